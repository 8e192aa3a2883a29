#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod pool;
pub mod reth;

pub use pool::RethPool;
