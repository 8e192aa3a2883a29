//! The atomics, which under `--cfg loom` are loom's, so that it can try every interleaving.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
