#![doc = include_str!("../README.md")]

pub mod wire;

mod ack;
mod backoff;
mod config;
mod deliver;
mod error;
mod follow;
mod lanes;
mod link;
mod machines;
mod metrics;
mod outbox;
mod publisher;
mod source;
mod state;
mod streams;
mod subjects;
mod tracker;

pub use backoff::Backoff;
pub use config::*;
pub use error::StreamError;
pub use machines::{MAX_MACHINES, MachineStats};
pub use metrics::{METRICS, PublisherStats, RefuseReason, SourceStats};
pub use publisher::Publisher;
pub use source::Source;
pub use state::{DisconnectReason, State};
pub use streams::{
    DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_PRIVATE_MAX_AGE, StreamsConfig, ensure_streams,
};
pub use subjects::{stream_name, stream_subjects};
