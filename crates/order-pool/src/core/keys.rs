//! Decides which message of a replacement key is valid, in whatever order the messages arrive.

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::Address;

use super::{limits::ShareCaps, usage::RetentionQueue};
use crate::{event::InsertOutcome, holder::Holder, order::ReplacementKey};

/// The number of cancellations of unknown keys that are published for each caller of whom only the
/// address is known, within [`CANCELLATION_RETENTION`](crate::CANCELLATION_RETENTION) after the
/// first one. For a signer that the host knows it is [`MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER`].
///
/// Further cancellations still take effect: the pool refuses the bundle when it arrives. No
/// subscriber has a bundle of such a key, so none misses anything, and a caller that invents
/// replacement keys or signers cannot fill the log. The limit is above zero because a cancellation
/// can arrive before its bundle.
pub const MAX_UNKNOWN_CANCELLATIONS: usize = 64;

/// As [`MAX_UNKNOWN_CANCELLATIONS`], for each signer that the host knows: 17 a second. In a fleet a
/// searcher cancels at one machine what it has sent to another, so all of its cancellations may be
/// of unknown orders.
pub const MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER: usize = 1_024;

/// Returns how many cancellations of unknown orders a holder may publish within their retention.
pub(super) const fn max_unknown(holder: &Holder) -> usize {
    if holder.is_known() { MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER } else { MAX_UNKNOWN_CANCELLATIONS }
}

/// A key and a block, which is 0 while the pool knows no head. `None` stands for the key's
/// cancellations, which cover every block.
///
/// A searcher sends one uuid for several blocks, and means each block's bundle to be valid.
/// rbuilder too replaces bundles of one block only (develop of July 2025,
/// `OrderReplacementManager`), and cancels those of all blocks.
pub(crate) type Slot = (ReplacementKey, Option<u64>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyState {
    /// The highest nonce of any message that took effect.
    pub(crate) nonce: Option<u64>,
    /// When that message was sent, if it came without a nonce, in microseconds since the Unix
    /// epoch.
    pub(crate) sent_at: Option<u64>,
    /// No bundle of this nonce is pooled, and no cancellation covers it: its message may be sent
    /// again. Only [`Keys::merged_with_cancellations`] sets it.
    pub(crate) is_refused: bool,
    /// Of a key's cancellations: whether one was permanent.
    pub(crate) is_final: bool,
    /// Of a block: the sequence number of its pooled bundle.
    pub(crate) bundle: Option<u64>,
    /// Of a key's cancellations: the sequence number of the published `Cancelled` event, while it
    /// applies.
    pub(crate) published: Option<u64>,
    /// When the slot is forgotten; `None` while a bundle is pooled.
    pub(crate) forget_at: Option<Duration>,
    /// The holder that sent the latest message.
    pub(crate) holder: Holder,
}

impl KeyState {
    /// Returns the nonce of a message, or why the message has no effect.
    ///
    /// A message without a nonce gets the time of its arrival, in microseconds since the Unix
    /// epoch, or one above the highest known nonce if that is higher. So the later message wins
    /// where the orders of two pools meet in a third one. If the highest nonce is itself the time
    /// of a message that was sent later, this message was only inserted later, because its blobs
    /// were verified meanwhile: it is superseded.
    pub(crate) fn assign_nonce(
        &self,
        nonce: Option<u64>,
        sent_at: u64,
    ) -> Result<u64, InsertOutcome> {
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

    /// Whether its message is known to have been sent after this time.
    pub(crate) fn is_later_than(&self, sent_at: u64) -> bool {
        self.sent_at.is_some_and(|own| own > sent_at)
    }
}

/// The states of all slots.
#[derive(Debug)]
pub(crate) struct Keys {
    states: BTreeMap<Slot, KeyState>,
    /// The slots without a bundle.
    retained: RetentionQueue<Slot>,
    /// For each holder how many cancellations of unknown keys were published, and until when they
    /// count.
    unknown_cancellations: BTreeMap<Holder, (usize, Duration)>,
    retention: Duration,
}

impl Keys {
    pub(crate) fn new(retention: Duration, caps: ShareCaps) -> Self {
        Self {
            states: BTreeMap::new(),
            retained: RetentionQueue::new(caps),
            unknown_cancellations: BTreeMap::new(),
            retention,
        }
    }

    /// Counts a cancellation of this key, and returns whether to publish it. One is always
    /// published if bundles of its key are remembered (`is_known`).
    pub(crate) fn may_publish(
        &mut self,
        key: &ReplacementKey,
        holder: &Holder,
        is_known: bool,
        now: Duration,
    ) -> bool {
        if is_known {
            return true;
        }
        let quota_holder = quota_holder(holder, key.signer);
        let (count, until) = self.unknown_cancellations.entry(quota_holder).or_default();
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

    /// Returns the state of a block's bundle, combined with that of the key's cancellations.
    pub(crate) fn merged_with_cancellations(&self, slot: &Slot) -> KeyState {
        let (own, all) = (self.get(slot), self.get(&(slot.0, None)));
        let is_latest = own.nonce > all.nonce;
        let KeyState { nonce, sent_at, .. } = if is_latest { own } else { all };
        let is_refused = is_latest && own.bundle.is_none();
        let KeyState { is_final, published, .. } = all;
        KeyState { nonce, sent_at, is_refused, is_final, published, ..own }
    }

    /// Returns the slots of a key's bundles, by block.
    pub(crate) fn block_slots(&self, key: &ReplacementKey) -> Vec<(Slot, KeyState)> {
        let slots = self.states.range((*key, Some(0))..=(*key, Some(u64::MAX)));
        slots.map(|(slot, state)| (*slot, *state)).collect()
    }

    /// Replaces the state of a slot. A slot without a bundle is forgotten after the retention,
    /// counted from now.
    pub(crate) fn set(&mut self, slot: Slot, mut state: KeyState, now: Duration) {
        state.forget_at = match state.bundle {
            Some(_) => None,
            None => Some(now.saturating_add(self.retention)),
        };
        let before = self.states.insert(slot, state);
        if let Some(before) = &before {
            self.dequeue(slot, before);
        }
        if let Some(forget_at) = state.forget_at {
            self.retained.insert(state.holder, slot.0.signer, (forget_at, slot));
        }
        if let Some(before) = before {
            self.reset_unused_quota(slot, &before);
        }
    }

    /// Removes a slot from the queue of those without a bundle.
    fn dequeue(&mut self, slot: Slot, state: &KeyState) {
        if let Some(forget_at) = state.forget_at {
            self.retained.remove(state.holder, slot.0.signer, (forget_at, slot));
        }
    }

    /// Forgets a slot without a bundle whose time is over.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<(Slot, KeyState)> {
        self.forget(self.retained.due(now)?)
    }

    /// Forgets a slot without a bundle if this holder, its network or its half has too many.
    pub(crate) fn forget_excess(&mut self, holder: &Holder) -> Option<(Slot, KeyState)> {
        self.forget(self.retained.excess(holder)?)
    }

    pub(crate) fn forget(&mut self, slot: Slot) -> Option<(Slot, KeyState)> {
        let state = self.states.remove(&slot)?;
        self.dequeue(slot, &state);
        self.reset_unused_quota(slot, &state);
        Some((slot, state))
    }

    /// Stops counting the published cancellations of a slot's holder that has no other slot.
    fn reset_unused_quota(&mut self, slot: Slot, state: &KeyState) {
        let (holder, signer) = (&state.holder, slot.0.signer);
        if self.retained.count(holder, &signer) == 0 {
            self.unknown_cancellations.remove(&quota_holder(holder, signer));
        }
    }
}

/// Returns the holder against whom published cancellations of unknown orders are counted.
pub(super) fn quota_holder(holder: &Holder, signer: Address) -> Holder {
    if holder.is_known() { Holder::Signer(signer) } else { *holder }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PoolConfig, core::Limits};

    /// It was counted for ever for each address from which one key was cancelled.
    #[test]
    fn a_key_counts_only_for_its_latest_holder() {
        let now = Duration::ZERO;
        let caps = Limits::from(PoolConfig::default()).keys;
        let mut keys = Keys::new(Duration::from_secs(60), caps);
        let key = ReplacementKey { uuid: uuid::Uuid::nil(), signer: Address::ZERO };
        for n in 0..100 {
            let holder = Holder::caller([10, 0, 0, n].into());
            assert!(keys.may_publish(&key, &holder, false, now));
            let state = KeyState { nonce: Some(n.into()), holder, ..KeyState::default() };
            keys.set((key, None), state, now);
        }
        assert_eq!(keys.unknown_cancellations.len(), 1);
    }
}
