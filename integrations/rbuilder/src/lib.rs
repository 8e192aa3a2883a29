#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod blocklist;
pub mod mempool;
pub mod rbuilder;
pub mod telemetry;
