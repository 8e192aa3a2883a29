//! What the node's own threads wait for.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Instant,
};

use crate::lock;

#[derive(Debug, Default)]
pub(crate) struct Signals {
    flags: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) stopped: bool,
    pub(crate) subscribed: bool,
    pub(crate) load_finished: bool,
    pub(crate) plan_finished: bool,
}

impl Signals {
    pub(crate) fn set(&self, set: impl FnOnce(&mut Flags)) {
        set(&mut lock(&self.flags));
        self.changed.notify_all();
    }

    /// Waits until `ready` says so or the time has come; says what holds then.
    pub(crate) fn wait(&self, until: Option<Instant>, ready: impl Fn(&Flags) -> bool) -> Flags {
        let mut flags = lock(&self.flags);
        while !ready(&flags) {
            flags = match until {
                None => self.changed.wait(flags).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.changed.wait_timeout(flags, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *flags
    }

    /// Sleeps; true when the node is stopped meanwhile or was before.
    pub(crate) fn sleep_until(&self, until: Instant) -> bool {
        self.wait(Some(until), |flags| flags.stopped).stopped
    }
}
