#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// The three adapters stand at the paths that they have in rbuilder's crate `rbuilder`, and are
// copied there unchanged. All other modules replace parts of rbuilder, which is on no registry:
// names and signatures are those of the originals, bodies are as short as the tests allow.
pub mod building;
pub mod ingest_metrics;
pub mod live_builder;
pub mod telemetry;

// The adapters import from the crate `rbuilder_primitives`.
extern crate self as rbuilder_primitives;
#[allow(missing_docs, reason = "rbuilder documents the originals")]
mod primitives;
pub use primitives::*;
