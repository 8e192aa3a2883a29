//! How the crate's locks are taken.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another holder: what stands behind the locks of this crate
/// is plain data, valid after each statement, so a panic leaves nothing half done.
///
/// Every lock of this crate is held for single look-ups and changes, never across an await or a
/// call into the sink.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
