//! Metrics that the process can read back: a counter and a gauge, each with an atomic next to its
//! exported handle.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Counter, Gauge};

/// A counter that the process itself can read too.
#[derive(Debug)]
pub struct Count {
    value: AtomicU64,
    exported: Counter,
}

impl Count {
    /// Makes a count of 0 with this handle.
    #[must_use]
    pub const fn new(exported: Counter) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    /// Adds to the count and to the exported counter.
    pub fn add(&self, more: u64) {
        // Relaxed, here and below: no other memory is published through it.
        self.value.fetch_add(more, Relaxed);
        self.exported.increment(more);
    }

    /// The sum of everything that was added.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// A gauge that the process itself can read too.
#[derive(Debug)]
pub struct Level {
    value: AtomicU64,
    exported: Gauge,
}

impl Level {
    /// Makes a level of 0 with this handle. The gauge is not set until [`Self::set`] is called.
    #[must_use]
    pub const fn new(exported: Gauge) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    /// Sets the level and the exported gauge. After concurrent calls the two may differ, so only
    /// one thread should set them.
    pub fn set(&self, value: u64) {
        self.value.store(value, Relaxed);
        self.exported.set(value as f64);
    }

    /// The value that was set last; 0 before.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}
