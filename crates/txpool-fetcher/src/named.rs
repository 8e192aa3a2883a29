//! Names of variants, for logs, displays and the labels of metrics.

/// Gives an enum `as_str`, and a list of all its variants.
macro_rules! named {
    ($type:ident: $($variant:ident $name:literal),+ $(,)?) => {
        #[allow(dead_code, unreachable_pub, reason = "not every set is listed, or public")]
        impl $type {
            pub(crate) const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in lower case: one of a closed set.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
pub(crate) use named;
