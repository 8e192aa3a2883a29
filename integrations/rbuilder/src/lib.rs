#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ingest_blocklist;
pub mod ingest_metrics;
pub mod rbuilder;
pub mod txpool_fetcher;
