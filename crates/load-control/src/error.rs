//! The errors of a configuration, which occur only at start-up.

use thiserror::Error;

/// An invalid configuration. Each variant names the field, its value and the limit.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("{field} is {value}, must be between {min} and {max}")]
    OutOfBounds {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// Two thresholds in the wrong order.
    #[error("{field} is {value}, must be {relation} {other}, which is {limit}")]
    Order {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: u8,
        /// `below` or `at most`.
        relation: &'static str,
        /// The other setting.
        other: &'static str,
        /// The value of the other setting.
        limit: u8,
    },
    /// A queue of capacity zero, for which no load can be computed.
    #[error("queue {queue:?}: capacity is 0, must be at least 1")]
    ZeroCapacity {
        /// The queue.
        queue: &'static str,
    },
    /// More queues than [`MAX_QUEUES`](crate::MAX_QUEUES) for one monitor.
    #[error("queue {queue:?} cannot be watched: a monitor watches at most {limit} queues")]
    TooManyQueues {
        /// The queue that was refused.
        queue: &'static str,
        /// The limit.
        limit: usize,
    },
}
