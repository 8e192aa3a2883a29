//! The atomics; under `--cfg loom` they are loom's, so that it can check every interleaving.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
