//! Declares the metrics of a crate in one place: name, unit, description, kind and labels of each.
//!
//! From one declaration the macro [`metric_set!`](crate::metric_set!) makes a table of all metrics,
//! their descriptions for the exporter, and structs of handles that are made once. It chooses no
//! exporter: everything goes through the `metrics` facade, so the recorder must be installed before
//! the handles are made. Every crate of this workspace declares its metrics with it.
//!
//! ```
//! load_control::metric_set! {
//!     /// The name, the unit and the meaning of every metric of this crate.
//!     pub const METRICS;
//!
//!     /// The metrics of one queue.
//!     #[derive(Debug)]
//!     pub struct QueueMetrics {
//!         /// Entries that wait, which `len()` returns too.
//!         level waiting = "queue_waiting", Count, "entries that wait";
//!         /// Rejections, one counter for each reason.
//!         counter rejected[2] = "queue_rejected_total", Count, "entries rejected, by `reason`",
//!             "reason": ["full", "closed"];
//!         histogram wait_seconds = "queue_wait_seconds", Seconds, "time in the queue";
//!     }
//! }
//!
//! let queue = QueueMetrics::new();
//! queue.waiting.set(3);
//! queue.rejected[0].increment(1);
//! assert_eq!(queue.waiting.get(), 3);
//! assert_eq!(METRICS.len(), 3);
//! ```
//!
//! | kind | type of the field | read by |
//! |---|---|---|
//! | `counter` | [`metrics::Counter`] | the exporter |
//! | `count` | [`Count`] | the exporter and the process itself, for instance its `stats()` |
//! | `gauge` | [`metrics::Gauge`] | the exporter |
//! | `level` | [`Level`] | the exporter and the process itself |
//! | `histogram` | [`metrics::Histogram`] | the exporter |
//!
//! A field with `[N]` is an array, with one handle for each of the N values of the label that
//! follows the description. `new()` makes and describes the handles; `labelled(labels)` also adds
//! labels to every handle, for instance the endpoint of a source.
//!
//! Metrics whose handles are made elsewhere, where their labels are known, are listed after the
//! name of the table, `const METRICS, late { counter "queue_keys_total", Count, "keys, by `owner`";
//! };`, and are described by the generated function `describe_late()`.
//!
//! [`labels!`](crate::labels!) declares the values of a label as an enum, and
//! [`labels_of!`](crate::labels_of!) gives label values to an enum whose variants have fields.

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

/// Declares the metrics of a crate; see [`mod@crate::metric_set`].
///
/// Each struct has `new()`, and `labelled(&[Label])` for labels that all its handles share.
#[macro_export]
macro_rules! metric_set {
    (
        $(#[$table_attr:meta])* $table_vis:vis const $table:ident
            $(, late {
                $($late_kind:ident $late_name:literal, $late_unit:ident, $late_text:expr;)*
            })?;
        $(
            $(#[$attr:meta])* $vis:vis struct $set:ident {
                $(
                    $(#[$field_attr:meta])*
                    $kind:ident $field:ident $([$len:expr])? =
                        $name:literal, $unit:ident, $text:expr $(, $label:literal: $values:expr)?;
                )*
            }
        )*
    ) => {
        $(#[$table_attr])*
        $table_vis const $table: &[(&str, $crate::metric_set::private::Unit, &str)] =
            &[
                $($(($name, $crate::metric_set::private::Unit::$unit, $text),)*)*
                $($(($late_name, $crate::metric_set::private::Unit::$late_unit, $late_text),)*)?
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
                $vis fn labelled(labels: &[$crate::metric_set::private::Label]) -> Self {
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
    (@type counter) => { $crate::metric_set::private::Counter };
    (@type gauge) => { $crate::metric_set::private::Gauge };
    (@type histogram) => { $crate::metric_set::private::Histogram };
    (@type count) => { $crate::metric_set::Count };
    (@type level) => { $crate::metric_set::Level };

    (@make $kind:ident $labels:ident, $name:literal, $label:literal: $values:expr) => {
        $values.map(|value| {
            let mut labels = $labels.to_vec();
            labels.push($crate::metric_set::private::Label::new($label, value));
            $crate::metric_set!(@handle $kind labels, $name)
        })
    };
    (@make $kind:ident $labels:ident, $name:literal) => {
        $crate::metric_set!(@handle $kind $labels.to_vec(), $name)
    };

    (@handle counter $labels:expr, $name:literal) => {
        $crate::metric_set::private::counter!($name, $labels)
    };
    (@handle gauge $labels:expr, $name:literal) => {
        $crate::metric_set::private::gauge!($name, $labels)
    };
    (@handle histogram $labels:expr, $name:literal) => {
        $crate::metric_set::private::histogram!($name, $labels)
    };
    (@handle count $labels:expr, $name:literal) => {
        $crate::metric_set::Count::new($crate::metric_set::private::counter!($name, $labels))
    };
    (@handle level $labels:expr, $name:literal) => {
        $crate::metric_set::Level::new($crate::metric_set::private::gauge!($name, $labels))
    };

    (@describe gauge $name:literal, $unit:ident, $text:expr) => {
        $crate::metric_set::private::describe_gauge!(
            $name,
            $crate::metric_set::private::Unit::$unit,
            $text
        )
    };
    (@describe level $name:literal, $unit:ident, $text:expr) => {
        $crate::metric_set!(@describe gauge $name, $unit, $text)
    };
    (@describe histogram $name:literal, $unit:ident, $text:expr) => {
        $crate::metric_set::private::describe_histogram!(
            $name,
            $crate::metric_set::private::Unit::$unit,
            $text
        )
    };
    // `counter` and `count`.
    (@describe $kind:ident $name:literal, $unit:ident, $text:expr) => {
        $crate::metric_set::private::describe_counter!(
            $name,
            $crate::metric_set::private::Unit::$unit,
            $text
        )
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

/// Gives an enum whose variants may have fields one value of a label for each variant: `Enum::LIST
/// { Variant = "text", }`.
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

            /// Returns the position of the variant in the list.
            pub(crate) const fn index(&self) -> usize {
                // A variant with fields cannot be cast to its number, so an enum without fields
                // numbers the names in the same order.
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
