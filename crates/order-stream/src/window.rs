//! Holds the messages that are published and not yet acknowledged, within bounds. Pure.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::follow::Item;

/// The most messages: enough for 40,000/s at a round trip of 100 ms.
const MAX_MESSAGES: usize = 4_096;

/// The most bytes of these: 40 transactions with six blobs. The last message may exceed it.
const MAX_BYTES: usize = 32 << 20;

/// The most messages and bytes of unknown callers, or of orders that are published again. Other
/// messages never wait for more than these.
const MAX_DEFERRABLE_MESSAGES: usize = 512;
const MAX_DEFERRABLE_BYTES: usize = 1 << 20;

/// Room for messages and bytes.
#[derive(Debug)]
struct Room {
    messages: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Room {
    fn new(messages: usize, bytes: usize) -> Self {
        Self {
            messages: Arc::new(Semaphore::new(messages)),
            bytes: Arc::new(Semaphore::new(bytes)),
        }
    }

    fn is_free(&self) -> bool {
        self.messages.available_permits() > 0 && self.bytes.available_permits() > 0
    }

    /// Takes the room of a message, as far as there is room.
    fn take(&self, size_bytes: usize) -> Vec<OwnedSemaphorePermit> {
        [(&self.messages, 1), (&self.bytes, size_bytes)]
            .into_iter()
            .filter_map(|(semaphore, count)| {
                let count = count.min(semaphore.available_permits());
                Arc::clone(semaphore).try_acquire_many_owned(u32::try_from(count).ok()?).ok()
            })
            .collect()
    }
}

#[derive(Debug)]
struct Unacknowledged {
    item: Arc<Item>,
    /// The room that the message takes until it is dropped. It depends on the sender at the time of
    /// publishing, because a node may announce the transaction meanwhile.
    _room: Vec<OwnedSemaphorePermit>,
}

/// The messages that the stream may not have, by their number, which is the order of their first
/// publishing. A message stays until the stream has it or will never have it.
#[derive(Debug)]
pub(crate) struct Window {
    messages: BTreeMap<u64, Unacknowledged>,
    next_number: u64,
    room: Room,
    deferrable_room: Room,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            messages: BTreeMap::new(),
            next_number: 0,
            room: Room::new(MAX_MESSAGES, MAX_BYTES),
            deferrable_room: Room::new(MAX_DEFERRABLE_MESSAGES, MAX_DEFERRABLE_BYTES),
        }
    }
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.room.is_free()
    }

    pub(crate) fn has_room_for_deferrable(&self) -> bool {
        self.has_room() && self.deferrable_room.is_free()
    }

    /// Adds a new message. Returns its number.
    pub(crate) fn add(&mut self, item: Item, size_bytes: usize) -> u64 {
        let mut room = self.room.take(size_bytes);
        if item.is_deferrable() {
            room.extend(self.deferrable_room.take(size_bytes));
        }
        let number = self.next_number;
        self.next_number += 1;
        self.messages.insert(number, Unacknowledged { item: Arc::new(item), _room: room });
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Arc<Item>> {
        self.messages.get(&number).map(|unacknowledged| &unacknowledged.item)
    }

    /// Returns the numbers of all messages.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.messages.keys().copied()
    }

    /// Removes a message that the stream has or will never have. Returns whether it was there.
    pub(crate) fn settle(&mut self, number: u64) -> bool {
        self.messages.remove(&number).is_some()
    }

    /// Removes the messages that must not be published again. The stream may have some of them.
    /// Returns how many were removed.
    pub(crate) fn withdraw(&mut self, is_withdrawn: impl Fn(&Item) -> bool) -> u64 {
        let len_before = self.messages.len();
        self.messages.retain(|_, unacknowledged| !is_withdrawn(&unacknowledged.item));
        (len_before - self.messages.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use alloy_primitives::{Address, B256};
    use order_pool::{Holder, Origin, PrivateCancellation, Transaction};

    use super::*;
    use crate::{
        tests::{caller, pool, txs},
        wire::Record,
    };

    fn item(n: u8) -> Item {
        Item::shared(Record::CancelPrivate(PrivateCancellation {
            hash: B256::repeat_byte(n),
            signer: Address::ZERO,
            cancelled_at: SystemTime::UNIX_EPOCH,
            holder: Holder::Host,
        }))
    }

    #[test]
    fn a_message_leaves_once_and_frees_its_room() {
        let mut window = Window::default();
        let first = window.add(item(0), 100);
        assert!(window.settle(first));
        assert!(!window.settle(first), "a second response");
        let last = window.add(item(1), MAX_BYTES + 1);
        assert!(!window.has_room(), "the bytes are used up");
        window.settle(last);
        assert!(window.has_room(), "no more room is freed than was taken");
        assert_eq!(window.room.bytes.available_permits(), MAX_BYTES);
        let numbers: Vec<_> = (0..MAX_MESSAGES).map(|_| window.add(item(0), 1)).collect();
        assert!(!window.has_room(), "the messages are used up");
        window.settle(numbers[7]);
        assert!(window.has_room());
        let left: Vec<_> = window.numbers().collect();
        assert_eq!(left, [&numbers[..7], &numbers[8..]].concat(), "in their order");
    }

    /// The node's announcement used to change who had sent a message, so its room was never freed.
    #[test]
    fn unknown_callers_fill_only_a_part_of_the_window() {
        let (pool, tx) = (pool(), txs(1).remove(0));
        let transaction = |origin| Transaction::new(tx.clone(), origin, SystemTime::UNIX_EPOCH);
        pool.insert_transaction(transaction(Origin::Rpc).held_by(caller(1)));
        let order = pool.get(tx.hash()).expect("it is pooled");
        let mut window = Window::default();
        let number = window.add(Item::shared(Record::Order(order)), MAX_DEFERRABLE_BYTES);
        assert!(window.has_room() && !window.has_room_for_deferrable());
        pool.insert_transaction(transaction(Origin::Mempool));
        assert!(window.settle(number));
        assert_eq!(window.deferrable_room.messages.available_permits(), MAX_DEFERRABLE_MESSAGES);
        assert_eq!(window.deferrable_room.bytes.available_permits(), MAX_DEFERRABLE_BYTES);
        window.add(item(1), MAX_DEFERRABLE_BYTES);
        assert!(window.has_room_for_deferrable());
    }

    #[test]
    fn a_withdrawn_message_is_not_there_any_more() {
        let mut window = Window::default();
        let [first, second] = [0, 1].map(|n| window.add(item(n), 100));
        let withdrawn = window.withdraw(|item| match &item.record {
            Record::CancelPrivate(cancellation) => cancellation.hash == B256::repeat_byte(0),
            _ => false,
        });
        assert_eq!((withdrawn, window.len()), (1, 1));
        assert!(window.get(first).is_none() && window.get(second).is_some());
        assert!(!window.settle(first), "a late response is ignored");
    }
}
