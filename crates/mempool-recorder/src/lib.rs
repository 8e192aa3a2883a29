#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

// The modules in reading order. First the recorder: it collects a group and writes it as a segment.
mod config;
mod recorder;

mod columns;
mod group;
mod pages;
mod segment;

// Then the replay: it reads a recording from bounded pieces of a file.
mod recording;
mod replay;

mod file;
mod footer;

// What both share.
mod error;
mod metrics;

pub use config::{
    DEFAULT_GROUP_AGE, MAX_GROUP_BYTES, MAX_GROUP_ROWS, POLL_INTERVAL, RecorderConfig,
};
pub use error::{BadRow, RecorderError, ReplayError};
pub use file::{MAX_DICTIONARY_BYTES, MAX_FOOTER_BYTES, MAX_PAGE_BYTES};
pub use metrics::{METRICS, RecorderStats, ReplayCounts};
pub use recorder::{Recorder, RecorderEnd};
pub use recording::{Recorded, Recording, RecordingConfig};
pub use replay::{MAX_GAP, MAX_STEP_BACK, Replay, ReplayEnd, ReplayEndReason, Speed, SpeedError};
