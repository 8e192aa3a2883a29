//! The atomics. Under `--cfg loom` they are those of loom, which then checks every interleaving.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
