//! Resident memory is the process's, and what others freed would hide what is taken here: each test
//! that uses this is a program of its own. Clients and server share it, so a bound holds for both.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Resident memory of this process, in bytes.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has a line");
    let kib = line.trim().strip_suffix(" kB").expect("in kB").parse::<usize>();
    kib.expect("a number") << 10
}

/// The most that was resident whenever someone looked.
#[derive(Debug, Default)]
pub struct Most(AtomicUsize);

impl Most {
    pub fn look(&self) {
        // A maximum orders nothing else.
        self.0.fetch_max(resident(), Relaxed);
    }

    /// By how many bytes that is above `before`.
    pub fn above(&self, before: usize) -> usize {
        self.look();
        self.0.load(Relaxed).saturating_sub(before)
    }
}
