//! Decides which message of a replacement key is valid, in whatever order the messages arrive.

use std::{collections::BTreeMap, time::Duration};

use super::{limits::ShareCaps, quota::CancellationQuota, usage::RetentionQueue};
use crate::{event::InsertOutcome, holder::Holder, order::ReplacementKey};

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
    /// For the cancellations of keys without a remembered bundle.
    quota: CancellationQuota,
    retention: Duration,
}

impl Keys {
    pub(crate) fn new(retention: Duration, caps: ShareCaps) -> Self {
        Self {
            states: BTreeMap::new(),
            retained: RetentionQueue::new(caps),
            quota: CancellationQuota::new(retention),
            retention,
        }
    }

    /// Returns whether to publish a cancellation of this key. One is always published if bundles of
    /// its key are remembered (`is_known`).
    pub(crate) fn may_publish(
        &mut self,
        key: &ReplacementKey,
        holder: &Holder,
        is_known: bool,
        now: Duration,
    ) -> bool {
        is_known || self.quota.admit(holder, key.signer, now)
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
        if let Some(before) = self.states.insert(slot, state) {
            self.dequeue(slot, &before);
        }
        if let Some(forget_at) = state.forget_at {
            self.retained.insert(state.holder, slot.0.signer, (forget_at, slot));
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
        Some((slot, state))
    }
}
