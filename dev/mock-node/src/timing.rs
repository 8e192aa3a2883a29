//! How long the node takes: the latency of each response, and the queue of a node that can do only so much at once.

mod capacity;
mod latency;

pub use capacity::Capacity;
pub(crate) use capacity::{Busy, Line};
pub(crate) use latency::DelayLine;
pub use latency::Latency;
