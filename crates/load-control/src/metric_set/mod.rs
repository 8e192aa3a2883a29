#![doc = include_str!("../README.md")]

mod count;

pub use self::count::{Count, Level};

/// The items that the macros' expansions name.
#[doc(hidden)]
pub mod private {
    pub use metrics::{
        Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
        describe_histogram, gauge, histogram,
    };
}

/// Declares metrics: see the crate's documentation.
///
/// Each struct has `new()`, and `labelled(&[Label])` for labels that all its handles share.
#[macro_export]
macro_rules! metric_set {
    (
        $(#[$table_attr:meta])* $table_vis:vis const $table:ident
            $(, late { $($late_kind:ident $late_name:literal, $late_unit:ident, $late_text:expr;)* })?;
        $(
            $(#[$attr:meta])* $vis:vis struct $set:ident {
                $(
                    $(#[$field_attr:meta])*
                    $kind:ident $field:ident $([$len:expr])? = $name:literal, $unit:ident, $text:expr
                        $(, $label:literal: $values:expr)?;
                )*
            }
        )*
    ) => {
        $(#[$table_attr])*
        $table_vis const $table: &[(&str, $crate::private::Unit, &str)] =
            &[
                $($(($name, $crate::private::Unit::$unit, $text),)*)*
                $($(($late_name, $crate::private::Unit::$late_unit, $late_text),)*)?
            ];
        $(
            /// Describes the metrics whose handles are made later, once their labels are known.
            fn describe_late() {
                $($crate::metric_set!(@describe $late_kind $late_name, $late_unit, $late_text);)*
            }
        )?

        $(
            $(#[$attr])*
            $vis struct $set {
                $($(#[$field_attr])* $vis $field: $crate::metric_set!(@type $kind $([$len])?),)*
            }

            #[allow(dead_code, reason = "a set is made with or without labels of its own")]
            impl $set {
                /// Makes the handles, and describes them to the recorder.
                #[must_use]
                $vis fn new() -> Self {
                    Self::labelled(&[])
                }

                /// Like `new`; every handle also has these labels.
                #[must_use]
                $vis fn labelled(labels: &[$crate::private::Label]) -> Self {
                    let _ = labels;
                    $($crate::metric_set!(@describe $kind $name, $unit, $text);)*
                    Self {
                        $($field: $crate::metric_set!(
                            @make $kind labels, $name $(, $label: $values)?
                        ),)*
                    }
                }
            }
        )*
    };

    (@type $kind:ident [$len:expr]) => { [$crate::metric_set!(@type $kind); $len] };
    (@type counter) => { $crate::private::Counter };
    (@type gauge) => { $crate::private::Gauge };
    (@type histogram) => { $crate::private::Histogram };
    (@type count) => { $crate::Count };
    (@type level) => { $crate::Level };

    (@make $kind:ident $labels:ident, $name:literal, $label:literal: $values:expr) => {
        $values.map(|value| {
            let mut labels = $labels.to_vec();
            labels.push($crate::private::Label::new($label, value));
            $crate::metric_set!(@handle $kind labels, $name)
        })
    };
    (@make $kind:ident $labels:ident, $name:literal) => {
        $crate::metric_set!(@handle $kind $labels.to_vec(), $name)
    };

    (@handle counter $labels:expr, $name:literal) => { $crate::private::counter!($name, $labels) };
    (@handle gauge $labels:expr, $name:literal) => { $crate::private::gauge!($name, $labels) };
    (@handle histogram $labels:expr, $name:literal) => { $crate::private::histogram!($name, $labels) };
    (@handle count $labels:expr, $name:literal) => {
        $crate::Count::new($crate::private::counter!($name, $labels))
    };
    (@handle level $labels:expr, $name:literal) => {
        $crate::Level::new($crate::private::gauge!($name, $labels))
    };

    (@describe gauge $name:literal, $unit:ident, $text:expr) => {
        $crate::private::describe_gauge!($name, $crate::private::Unit::$unit, $text)
    };
    (@describe level $name:literal, $unit:ident, $text:expr) => {
        $crate::metric_set!(@describe gauge $name, $unit, $text)
    };
    (@describe histogram $name:literal, $unit:ident, $text:expr) => {
        $crate::private::describe_histogram!($name, $crate::private::Unit::$unit, $text)
    };
    // `counter` and `count`.
    (@describe $kind:ident $name:literal, $unit:ident, $text:expr) => {
        $crate::private::describe_counter!($name, $crate::private::Unit::$unit, $text)
    };
}

/// Declares an enum whose variants are the values of a label: `Variant = "text",`.
///
/// It has `ALL`, in the order of the variants as numbers, and `as_str()`.
#[macro_export]
macro_rules! labels {
    (
        $(#[$attr:meta])* $vis:vis enum $name:ident {
            $($(#[$variant_attr:meta])* $variant:ident = $text:literal,)*
        }
    ) => {
        $(#[$attr])*
        $vis enum $name {
            $($(#[$variant_attr])* $variant,)*
        }

        impl $name {
            /// All variants, in their order as numbers.
            #[allow(dead_code, reason = "not every set is listed")]
            $vis const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The value of the label.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

/// Gives an enum whose variants may have fields one value of a label for each variant: `Enum::LIST { Variant = "text", }`.
///
/// The enum gets the list of the values, `as_str()`, and `index()` in the list.
#[macro_export]
macro_rules! labels_of {
    ($name:ident::$list:ident { $($variant:ident = $text:literal,)* }) => {
        impl $name {
            /// Every value of [`Self::as_str`].
            pub const $list: [&'static str; [$($text),*].len()] = [$($text),*];

            /// The value of the label.
            #[must_use]
            pub const fn as_str(&self) -> &'static str {
                Self::$list[self.index()]
            }

            pub(crate) const fn index(&self) -> usize {
                enum Index {
                    $($variant,)*
                }
                match self {
                    $(Self::$variant { .. } => Index::$variant as usize,)*
                }
            }
        }
    };
}
