//! Logs when a gate starts to refuse and when it stops: two lines instead of one per refusal.
//!
//! A refusal takes the lock; other calls take it only while an episode may have to end. The log
//! line is written after the lock is released. A readiness probe fails only if an episode has
//! lasted, because a single burst is no reason to fail.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    config::{SHED_QUIET, SHED_SUSTAINED},
    refusal::GateName,
};

/// Detects shedding episodes: series of refusals with less than [`SHED_QUIET`] between two of them.
#[derive(Debug)]
pub(crate) struct Shedding {
    gate: GateName,
    /// Whether an episode may be open. It avoids the lock while no caller is refused.
    open: AtomicBool,
    episode: Mutex<Option<Episode>>,
}

/// A series of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    first_refusal: Instant,
    last_refusal: Instant,
    refused: u64,
}

impl Episode {
    fn duration(&self) -> Duration {
        self.last_refusal.saturating_duration_since(self.first_refusal)
    }
}

impl Shedding {
    pub(crate) const fn new(gate: GateName) -> Self {
        Self { gate, open: AtomicBool::new(false), episode: Mutex::new(None) }
    }

    /// Counts a refusal. Returns whether it begins an episode.
    pub(crate) fn refused(&self, now: Instant) -> bool {
        self.end_if_quiet(now);
        let mut episode = self.episode.lock();
        let begins = episode.is_none();
        let current =
            episode.get_or_insert(Episode { first_refusal: now, last_refusal: now, refused: 0 });
        current.refused += 1;
        current.last_refusal = current.last_refusal.max(now);
        // Relaxed: this is only a hint; the episode itself is read under the lock.
        self.open.store(true, Relaxed);
        drop(episode);
        if begins {
            tracing::warn!(gate = self.gate.as_str(), "shedding: external callers are refused");
        }
        begins
    }

    /// Ends the episode if its last refusal was [`SHED_QUIET`] ago. Must be called regularly.
    pub(crate) fn end_if_quiet(&self, now: Instant) -> Option<Episode> {
        if !self.open.load(Relaxed) {
            return None;
        }
        let mut episode = self.episode.lock();
        let ended = episode
            .take_if(|episode| now.saturating_duration_since(episode.last_refusal) >= SHED_QUIET)?;
        self.open.store(false, Relaxed);
        drop(episode);
        tracing::info!(
            gate = self.gate.as_str(),
            refused = ended.refused,
            lasted_ms = ended.duration().as_millis() as u64,
            "shedding has ended"
        );
        Some(ended)
    }

    /// Whether an episode has lasted for [`SHED_SUSTAINED`], from its first refusal to its last.
    pub(crate) fn is_sustained(&self, now: Instant) -> bool {
        self.end_if_quiet(now);
        if !self.open.load(Relaxed) {
            return false;
        }
        let episode = self.episode.lock();
        episode.is_some_and(|episode| episode.duration() >= SHED_SUSTAINED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_begins_and_ends_once_and_counts_its_refusals() {
        let shedding = Shedding::new(GateName::Work);
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(shedding.end_if_quiet(after(0)), None);
        for (ms, begins, is_sustained) in
            [(0, true, false), (500, false, false), (1_499, false, false), (2_100, false, true)]
        {
            assert_eq!(shedding.refused(after(ms)), begins, "{ms}");
            assert_eq!(shedding.is_sustained(after(ms)), is_sustained, "a refusal after {ms} ms");
        }
        assert!(shedding.is_sustained(after(3_099)));
        let ended = Episode { first_refusal: after(0), last_refusal: after(2_100), refused: 4 };
        assert_eq!(shedding.end_if_quiet(after(3_099)), None);
        assert_eq!(shedding.end_if_quiet(after(3_100)), Some(ended));
        assert_eq!(shedding.end_if_quiet(after(3_200)), None);
        assert!(!shedding.is_sustained(after(3_200)));
        // A refusal after a quiet time ends the old episode too.
        assert!(shedding.refused(after(4_000)) && shedding.refused(after(9_000)));
        assert_eq!(shedding.end_if_quiet(after(10_000)).map(|ended| ended.refused), Some(1));
    }
}
