#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

pub mod wire;

mod clock;
mod config;
mod deliver;
mod error;
mod follow;
mod identity;
mod link;
mod memory;
mod metrics;
mod position;
mod publisher;
mod response;
mod running;
mod source;
mod state;
mod streams;
#[cfg(test)]
mod tests;
mod turns;
mod window;

pub use clock::WallClock;
pub use config::*;
pub use error::StreamError;
pub use metrics::{METRICS, PublisherStats, RefuseReason, SourceStats};
pub use publisher::{Publisher, UNSTORED_LIMIT};
pub use running::{End, Running};
pub use source::Source;
pub use state::{DisconnectReason, State};
pub use streams::{
    DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_PRIVATE_MAX_AGE, StreamConfig, ensure_stream,
    stream_name, stream_subjects,
};
