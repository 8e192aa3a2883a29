//! A thread that stays on one core.

use std::io;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whether a thread of this process may be pinned to this core.
#[cfg(target_os = "linux")]
pub(crate) fn is_available(core: usize) -> bool {
    core < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|cores| cores.is_set(core))
}

/// Pins the calling thread.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(None, &only)?)
}

/// Whether a thread of this process may be pinned to this core.
#[cfg(not(target_os = "linux"))]
pub(crate) const fn is_available(_core: usize) -> bool {
    false
}

/// Pins the calling thread.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
