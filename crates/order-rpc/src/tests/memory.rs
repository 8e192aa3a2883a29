//! Resident memory is the process's, and what others freed would hide what is taken here: each test
//! that uses this is a program of its own. Clients and server share it, so a bound holds for both.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use testkit::usage::resident_bytes;

/// The most that was resident whenever someone looked.
#[derive(Debug, Default)]
pub struct Most(AtomicUsize);

impl Most {
    pub fn look(&self) {
        // A maximum orders nothing else.
        self.0.fetch_max(resident_bytes(), Relaxed);
    }

    /// By how many bytes that is above `before`.
    pub fn above(&self, before: usize) -> usize {
        self.look();
        self.0.load(Relaxed).saturating_sub(before)
    }
}
