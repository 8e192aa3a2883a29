#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

mod columns;
mod config;
mod error;
mod file;
mod footer;
mod group;
mod metrics;
mod pages;
mod recorder;
mod recording;
mod replay;
mod segment;

pub use config::{
    DEFAULT_GROUP_AGE, MAX_GROUP_BYTES, MAX_GROUP_ROWS, POLL_INTERVAL, RecorderConfig,
};
pub use error::{BadRow, RecorderError, ReplayError};
pub use file::{MAX_DICTIONARY_BYTES, MAX_FOOTER_BYTES, MAX_PAGE_BYTES};
pub use metrics::{METRICS, RecorderStats, ReplayCounts};
pub use recorder::{Recorder, RecorderEnd};
pub use recording::{Recorded, Recording, RecordingConfig};
pub use replay::{MAX_GAP, MAX_STEP_BACK, Replay, ReplayEnd, ReplayEndReason, Speed, SpeedError};
