//! Replacement keys: which message of a key counts, in whatever order they arrive.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use alloy_primitives::Address;

use crate::{
    bundle::{Cancellation, ReplacementKey},
    shares::Shares,
};

/// How many cancellations of keys without a bundle are told for each signer, counted from the first one
/// for the retention of cancellations. Those beyond count all the same: the pool refuses the bundle when it
/// comes. No subscriber holds a bundle of such a key, so none misses anything, and a signer who makes
/// up keys does not fill everyone's log. A searcher's cancellation overtakes its bundle now and then.
pub const MAX_TOLD_UNSEEN: usize = 64;

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyState {
    /// The highest nonce of any message that counted.
    pub(crate) nonce: Option<u64>,
    /// Cancelled permanently.
    pub(crate) is_final: bool,
    /// Its pooled bundle, by acceptance.
    pub(crate) bundle: Option<u64>,
    /// The number of its `Cancelled` event, while that is what counts and was told.
    pub(crate) tombstone: Option<u64>,
    /// A bundle of it was taken in since the last cancellation that was told.
    pub(crate) seen: bool,
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

/// When a key without a bundle is forgotten, and which one it is.
type Due = (Duration, ReplacementKey);

/// How many cancellations were told, and until when they count.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    count: usize,
    until: Duration,
}

/// All keys, and when each is forgotten.
#[derive(Debug)]
pub(crate) struct Keys {
    states: HashMap<ReplacementKey, KeyState>,
    due: BTreeSet<Due>,
    /// What is due, by signer: who waited the longest goes first.
    shares: Shares<Address, Reverse<Due>>,
    /// Cancellations that were told of keys without a bundle, by signer.
    told_unseen: HashMap<Address, Told>,
    retention: Duration,
    limit: usize,
    limit_per_signer: usize,
}

impl Keys {
    pub(crate) fn new(retention: Duration, limit: usize, limit_per_signer: usize) -> Self {
        Self {
            states: HashMap::new(),
            due: BTreeSet::new(),
            shares: Shares::default(),
            told_unseen: HashMap::new(),
            retention,
            limit,
            limit_per_signer,
        }
    }

    /// The keys of a signer without a bundle.
    pub(crate) fn idle_of(&self, signer: &Address) -> usize {
        self.shares.count(signer)
    }

    /// Who has keys without a bundle.
    pub(crate) fn idle_signers(&self) -> impl Iterator<Item = &Address> {
        self.shares.holders()
    }

    /// Whether subscribers are told of a cancellation of this key; counts it if so.
    pub(crate) fn tells(&mut self, key: &ReplacementKey, state: &KeyState, now: Duration) -> bool {
        if state.seen {
            return true;
        }
        let told = self.told_unseen.entry(key.signer).or_default();
        if told.until <= now {
            *told = Told { count: 0, until: now.saturating_add(self.retention) };
        }
        told.count += 1;
        told.count <= MAX_TOLD_UNSEEN
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
        let before = self.states.insert(key, state);
        if let Some(before) = before {
            self.leave(key, &before);
        }
        if let Some(at) = state.forget_at {
            self.due.insert((at, key));
            self.shares.insert(key.signer, Reverse((at, key)), 0);
        }
    }

    /// Takes what is known of a key out of everything but the states.
    fn leave(&mut self, key: ReplacementKey, state: &KeyState) {
        if let Some(at) = state.forget_at {
            self.due.remove(&(at, key));
            self.shares.remove(key.signer, Reverse((at, key)), 0);
        }
    }

    /// Forgets a key without a bundle if one is due.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<(ReplacementKey, KeyState)> {
        let (_, key) = *self.due.first().filter(|(at, _)| *at <= now)?;
        self.forget(key)
    }

    /// Forgets a key without a bundle if there are too many, of this signer or at all. Of the signer, or
    /// else of the signer with the most, the one that has waited the longest goes: who sends too many
    /// cancellations makes us forget their own.
    pub(crate) fn forget_excess(&mut self, signer: &Address) -> Option<(ReplacementKey, KeyState)> {
        let Reverse((_, key)) = if self.shares.count(signer) > self.limit_per_signer {
            self.shares.last_first(*signer).next()?
        } else if self.due.len() > self.limit {
            self.shares.most_items()?.1
        } else {
            return None;
        };
        self.forget(key)
    }

    fn forget(&mut self, key: ReplacementKey) -> Option<(ReplacementKey, KeyState)> {
        let state = self.states.remove(&key)?;
        self.leave(key, &state);
        if self.shares.count(&key.signer) == 0 {
            self.told_unseen.remove(&key.signer);
        }
        Some((key, state))
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
