//! The CPU time and the memory of this process.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Returns the user and system time so far.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().expect("it does not begin below zero")
}

/// Returns the peak resident memory, or 0 where there is no `/proc`.
pub(crate) fn max_resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
