//! Replacement keys: which message of a key counts, in whatever order they arrive.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::bundle::{Cancellation, ReplacementKey};

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyState {
    /// The highest nonce of any message that counted.
    pub(crate) nonce: Option<u64>,
    /// Cancelled permanently.
    pub(crate) is_final: bool,
    /// Its pooled bundle, by acceptance.
    pub(crate) bundle: Option<u64>,
    /// The number of its `Cancelled` event, while that is what counts.
    pub(crate) tombstone: Option<u64>,
    /// When it is forgotten; `None` while a bundle is pooled.
    pub(crate) forget_at: Option<Duration>,
}

/// Why a message does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superseded {
    Permanently,
    By { nonce: u64, current: u64 },
}

impl KeyState {
    /// The nonce a message gets, or why it does not count.
    pub(crate) const fn place(&self, nonce: Option<u64>) -> Result<u64, Superseded> {
        if self.is_final {
            return Err(Superseded::Permanently);
        }
        match (nonce, self.nonce) {
            (Some(nonce), Some(current)) if nonce <= current => {
                Err(Superseded::By { nonce, current })
            }
            (Some(nonce), _) => Ok(nonce),
            (None, None) => Ok(0),
            (None, Some(u64::MAX)) => Err(Superseded::By { nonce: u64::MAX, current: u64::MAX }),
            (None, Some(current)) => Ok(current + 1),
        }
    }
}

/// All keys, and when each is forgotten.
#[derive(Debug)]
pub(crate) struct Keys {
    states: HashMap<ReplacementKey, KeyState>,
    due: BTreeSet<(Duration, ReplacementKey)>,
    retention: Duration,
    limit: usize,
}

impl Keys {
    pub(crate) fn new(retention: Duration, limit: usize) -> Self {
        Self { states: HashMap::new(), due: BTreeSet::new(), retention, limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn get(&self, key: &ReplacementKey) -> KeyState {
        self.states.get(key).copied().unwrap_or_default()
    }

    /// Replaces what is known of a key. A key without a bundle is forgotten after the retention,
    /// counted from now.
    pub(crate) fn set(&mut self, key: ReplacementKey, mut state: KeyState, now: Duration) {
        state.forget_at = match state.bundle {
            Some(_) => None,
            None => Some(now.saturating_add(self.retention)),
        };
        let before = self.states.insert(key, state).and_then(|before| before.forget_at);
        if let Some(at) = before {
            self.due.remove(&(at, key));
        }
        if let Some(at) = state.forget_at {
            self.due.insert((at, key));
        }
    }

    /// Forgets a key without a bundle if one is due.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<(ReplacementKey, KeyState)> {
        self.is_due(now).then(|| self.forget_first())?
    }

    /// Forgets a key without a bundle if there are too many. The one that has waited the longest
    /// goes: an attacker who sends enough cancellations can make us forget others' tombstones
    /// early, but not grow without bound.
    pub(crate) fn forget_excess(&mut self) -> Option<(ReplacementKey, KeyState)> {
        (self.due.len() > self.limit).then(|| self.forget_first())?
    }

    fn forget_first(&mut self) -> Option<(ReplacementKey, KeyState)> {
        let (_, key) = self.due.pop_first()?;
        self.states.remove(&key).map(|state| (key, state))
    }

    /// Whether a key is due.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due.first().is_some_and(|(at, _)| *at <= now)
    }
}

/// What subscribers are told.
pub(crate) const fn cancellation(key: ReplacementKey, state: &KeyState) -> Cancellation {
    Cancellation { key, nonce: if state.is_final { None } else { state.nonce } }
}
