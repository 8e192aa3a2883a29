//! Replacement keys: which message of a key is valid, in whatever order they arrive.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use alloy_primitives::Address;

use super::{limits::Division, usage::Waiting};
use crate::{event::InsertOutcome, holder::Holder, order::ReplacementKey};

/// How many cancellations of unknown keys are published for each caller of whom only the address is
/// known, counted from the first one for the retention of cancellations; for each other signer it is
/// [`MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER`]. Further ones still take effect: the pool refuses the bundle when it arrives. No subscriber holds a
/// bundle of such a key, so none misses anything, and who invents keys, of replacements or of signers,
/// cannot fill the log. The limit is above zero because a cancellation can arrive before its bundle.
pub const MAX_UNKNOWN_CANCELLATIONS: usize = 64;

/// The same for each signer that the host knows: 17 a second. In a fleet a searcher cancels at one
/// machine what it has sent to another, so that all of its cancellations may be of unknown orders.
pub const MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER: usize = 1_024;

/// How many cancellations of unknown orders this holder may publish within their retention.
pub(super) const fn max_unknown(holder: &Holder) -> usize {
    if holder.is_known() { MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER } else { MAX_UNKNOWN_CANCELLATIONS }
}

/// A key's bundles for one block, 0 while the pool knows no head. `None` stands for the key's
/// cancellations, which cover every block.
///
/// A searcher sends one uuid for several blocks, and means each block's bundle to be valid:
/// rbuilder too replaces within a block (develop of July 2025, `OrderReplacementManager`), and
/// cancels in all of them.
pub(crate) type Slot = (ReplacementKey, Option<u64>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyState {
    /// The highest nonce of any message that took effect.
    pub(crate) nonce: Option<u64>,
    /// When that message was sent, if it came without a nonce: see [`micros`].
    pub(crate) sent_at: Option<u64>,
    /// Set by [`Keys::with_cancellations`] alone: no bundle of this nonce is pooled, and no cancellation covers it. Its
    /// message may come again.
    pub(crate) is_refused: bool,
    /// For cancellations: whether it was permanent.
    pub(crate) is_final: bool,
    /// For a block: the sequence number of its pooled bundle.
    pub(crate) bundle: Option<u64>,
    /// For cancellations: the sequence number of the published `Cancelled` event, while it applies.
    pub(crate) published: Option<u64>,
    /// When it is forgotten; `None` while a bundle is pooled.
    pub(crate) forget_at: Option<Duration>,
    /// Who sent its latest message.
    pub(crate) holder: Holder,
}

impl KeyState {
    /// The nonce that a message gets, or why it has no effect. One without a nonce gets the time of
    /// its arrival, in microseconds since the Unix epoch, so that of two pools whose orders meet in a
    /// third one the later message wins; but one above the highest known. If that is the time of one that
    /// was sent later, this one was only inserted later: its blobs were verified meanwhile.
    pub(crate) fn nonce_of(&self, nonce: Option<u64>, sent_at: u64) -> Result<u64, InsertOutcome> {
        if self.is_final {
            return Err(InsertOutcome::CancelledPermanently);
        }
        match (nonce, self.nonce) {
            (Some(nonce), Some(current)) if nonce == current && self.is_refused => Ok(nonce),
            (Some(nonce), Some(current)) if nonce <= current => {
                Err(InsertOutcome::Superseded { nonce, current })
            }
            (Some(nonce), _) => Ok(nonce),
            (None, Some(current @ u64::MAX)) => {
                Err(InsertOutcome::Superseded { nonce: current, current })
            }
            (None, Some(current)) if self.is_later_than(sent_at) => {
                Err(InsertOutcome::Superseded { nonce: sent_at, current })
            }
            (None, current) => Ok(current.map_or(sent_at, |current| sent_at.max(current + 1))),
        }
    }

    /// Whether it is known that its message was sent after this time.
    pub(crate) fn is_later_than(&self, sent_at: u64) -> bool {
        self.sent_at.is_some_and(|own| own > sent_at)
    }
}

/// Microseconds since the Unix epoch, below the highest nonce.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX - 1)
}

/// All slots.
#[derive(Debug)]
pub(crate) struct Keys {
    states: BTreeMap<Slot, KeyState>,
    /// Those without a bundle.
    waiting: Waiting<Slot>,
    /// How many cancellations of keys without a bundle were published, and until when they count.
    unknown_cancellations: BTreeMap<Holder, (usize, Duration)>,
    retention: Duration,
}

impl Keys {
    pub(crate) fn new(retention: Duration, division: Division) -> Self {
        Self {
            states: BTreeMap::new(),
            waiting: Waiting::new(division),
            unknown_cancellations: BTreeMap::new(),
            retention,
        }
    }

    /// Whether a cancellation of this key is published; counts it if so. `is_known`: bundles of the
    /// key are remembered.
    pub(crate) fn publishes(
        &mut self,
        key: &ReplacementKey,
        holder: &Holder,
        is_known: bool,
        now: Duration,
    ) -> bool {
        if is_known {
            return true;
        }
        let publisher = publisher(holder, key.signer);
        let (count, until) = self.unknown_cancellations.entry(publisher).or_default();
        if *until <= now {
            (*count, *until) = (0, now.saturating_add(self.retention));
        }
        *count += 1;
        *count <= max_unknown(holder)
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    pub(crate) fn get(&self, slot: &Slot) -> KeyState {
        self.states.get(slot).copied().unwrap_or_default()
    }

    /// The state of a block's bundle, combined with that of the key's cancellations.
    pub(crate) fn with_cancellations(&self, slot: &Slot) -> KeyState {
        let (own, all) = (self.get(slot), self.get(&(slot.0, None)));
        let is_latest = own.nonce > all.nonce;
        let KeyState { nonce, sent_at, .. } = if is_latest { own } else { all };
        let is_refused = is_latest && own.bundle.is_none();
        let KeyState { is_final, published, .. } = all;
        KeyState { nonce, sent_at, is_refused, is_final, published, ..own }
    }

    /// The states of the key's bundles, by block.
    pub(crate) fn blocks_of(&self, key: &ReplacementKey) -> Vec<(Slot, KeyState)> {
        let slots = self.states.range((*key, Some(0))..=(*key, Some(u64::MAX)));
        slots.map(|(slot, state)| (*slot, *state)).collect()
    }

    /// Replaces the state of a slot. One without a bundle is forgotten after the retention, counted
    /// from now.
    pub(crate) fn set(&mut self, slot: Slot, mut state: KeyState, now: Duration) {
        state.forget_at = match state.bundle {
            Some(_) => None,
            None => Some(now.saturating_add(self.retention)),
        };
        let before = self.states.insert(slot, state);
        if let Some(before) = &before {
            self.leave(slot, before);
        }
        if let Some(at) = state.forget_at {
            self.waiting.insert(state.holder, slot.0.signer, (at, slot));
        }
        if let Some(before) = before {
            self.forget_publisher(slot, &before);
        }
    }

    /// Removes a slot from everything but the states.
    fn leave(&mut self, slot: Slot, state: &KeyState) {
        if let Some(at) = state.forget_at {
            self.waiting.remove(state.holder, slot.0.signer, (at, slot));
        }
    }

    /// Forgets a slot without a bundle if one is due.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<(Slot, KeyState)> {
        self.forget(self.waiting.due(now)?)
    }

    /// Forgets a slot without a bundle if this holder, or its half of all, has too many.
    pub(crate) fn forget_excess(&mut self, holder: &Holder) -> Option<(Slot, KeyState)> {
        self.forget(self.waiting.excess(holder)?)
    }

    pub(crate) fn forget(&mut self, slot: Slot) -> Option<(Slot, KeyState)> {
        let state = self.states.remove(&slot)?;
        self.leave(slot, &state);
        self.forget_publisher(slot, &state);
        Some((slot, state))
    }

    /// Counts its published cancellations no longer, if its holder has no other slot.
    fn forget_publisher(&mut self, slot: Slot, &KeyState { holder, .. }: &KeyState) {
        let signer = slot.0.signer;
        if self.waiting.count(&holder, &signer) == 0 {
            self.unknown_cancellations.remove(&publisher(&holder, signer));
        }
    }
}

/// Against whom published cancellations of unknown orders are counted.
pub(super) fn publisher(holder: &Holder, signer: Address) -> Holder {
    if holder.is_known() { Holder::Signer(signer) } else { *holder }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PoolConfig, core::Limits};

    /// It was counted for ever for each address from which one key was cancelled.
    #[test]
    fn a_key_whose_holder_changes_is_counted_for_the_last_one_alone() {
        let now = Duration::ZERO;
        let division = Limits::from(PoolConfig::default()).keys;
        let mut keys = Keys::new(Duration::from_secs(60), division);
        let key = ReplacementKey { uuid: uuid::Uuid::nil(), signer: Address::ZERO };
        for n in 0..100 {
            let holder = Holder::caller([10, 0, 0, n].into());
            assert!(keys.publishes(&key, &holder, false, now));
            let state = KeyState { nonce: Some(n.into()), holder, ..KeyState::default() };
            keys.set((key, None), state, now);
        }
        assert_eq!(keys.unknown_cancellations.len(), 1);
    }
}
