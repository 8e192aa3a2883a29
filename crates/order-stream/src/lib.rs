#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

// The modules in reading order. First what both sides share: messages, options, states, one
// connection, and the thread that opens connections.
pub mod wire;

mod clock;
mod config;
mod connection;
mod error;
mod metrics;
mod state;
mod streams;
mod worker;

// The publisher: which events of the pool become messages, in which order, and which are
// unfinished.
mod publisher;

mod fair_queue;
mod follow;
mod lifetime;
mod response;
mod retry;
mod stream_check;
mod window;

// The source: the position in the stream, and what becomes of each message.
mod source;

mod deliver;
mod key_history;
mod position;

#[cfg(test)]
mod tests;

pub use clock::WallClock;
pub use config::*;
pub use error::StreamError;
pub use metrics::{METRICS, PublisherStats, RefuseReason, SourceStats};
pub use publisher::{Publisher, UNSTORED_LIMIT};
pub use source::Source;
pub use state::{DisconnectReason, State};
pub use streams::{
    DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_PRIVATE_MAX_AGE, StreamConfig, ensure_stream,
    stream_name, stream_subjects,
};
pub use worker::{End, Worker};
