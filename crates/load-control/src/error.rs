//! What can be wrong with a configuration. Nothing here happens after start-up.

use thiserror::Error;

/// A setting that cannot work. Each names the field, its value and the limit.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("{field} is {value}, must be between {min} and {max}")]
    OutOfBounds {
        /// The setting.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// The least it may be.
        min: u64,
        /// The most it may be.
        max: u64,
    },
    /// Two thresholds in the wrong order.
    #[error("{field} is {value}, must be {relation} {other}, which is {limit}")]
    Order {
        /// The setting.
        field: &'static str,
        /// What it was set to.
        value: u8,
        /// `below` or `at most`.
        relation: &'static str,
        /// The setting it is held against.
        other: &'static str,
        /// What that one is set to.
        limit: u8,
    },
    /// A queue that can hold nothing has no load.
    #[error("queue {queue:?}: capacity is 0, must be at least 1")]
    ZeroCapacity {
        /// The queue.
        queue: &'static str,
    },
    /// A monitor watches at most [`MAX_QUEUES`](crate::MAX_QUEUES).
    #[error("queue {queue:?} would be one more than the {limit} that a monitor watches")]
    TooManyQueues {
        /// The queue that found no place.
        queue: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Without a reserve, outsiders could take every slot.
    #[error("reserve is 0 of {slots} slots, must be at least 1")]
    NoReserve {
        /// Slots in all.
        slots: usize,
    },
    /// The reserve leaves nothing to outside callers: each would be refused.
    #[error("reserve is {reserve} of {slots} slots, must leave at least 1 to outside callers")]
    NoOutsideSlot {
        /// Slots in all.
        slots: usize,
        /// Slots of the inside alone.
        reserve: usize,
    },
    /// A fraction that is none.
    #[error("{field} is {value}, must be between 0 and 1")]
    Fraction {
        /// The setting.
        field: &'static str,
        /// What it was set to.
        value: f64,
    },
}

/// A text that is no [`Limit`](crate::Limit).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is no limit: expected auto, unlimited or a number from 1 to {max}")]
pub struct ParseLimitError {
    /// The text.
    pub value: String,
    /// The highest number.
    pub max: usize,
}
