//! The parts on a mock node, and the whole on geth.

#[cfg(feature = "real-nodes")]
mod geth;
mod mock;
mod signal;
mod world;
