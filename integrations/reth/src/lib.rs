#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// `pool.rs` and `main.rs` are copied to a node unchanged. They import from the crate
// `reth_ethereum`, which is on no registry: this library has its name, and its signatures in the
// module `reth`.
extern crate self as reth_ethereum;

// The name `pool` is that of a module of reth.
#[path = "pool.rs"]
mod adapter;
#[allow(missing_docs, reason = "reth documents the originals")]
mod reth;

pub use adapter::RethPool;
pub use reth::*;
