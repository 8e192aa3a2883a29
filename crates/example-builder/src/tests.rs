//! The parts on a mock node, and the whole on geth.

mod mock;
#[cfg(feature = "real-nodes")]
mod real;
mod world;
