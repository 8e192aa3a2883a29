//! The queue of requests for accounts: decides which of them are in the next batch. Those of known
//! signers come first, and the holders take turns.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use order_pool::Holder;

/// The most items that wait in each of the two lanes. 4,096 accounts are the senders of forty of
/// the longest bundles.
const MAX_WAITING: usize = 4_096;
/// The most items of one holder that wait: a quarter, ten of the longest bundles.
const MAX_WAITING_PER_HOLDER: usize = MAX_WAITING / 4;

/// Items that wait, in two lanes. The items of strangers wait behind those of known signers and of
/// the host. In a lane the holders take turns, so that the items of one holder do not fill a batch.
#[derive(Debug)]
pub(super) struct Turns<T> {
    known: Lane<T>,
    strangers: Lane<T>,
}

#[derive(Debug)]
struct Lane<T> {
    queues: HashMap<Holder, VecDeque<T>>,
    /// The holders with a queue, the one whose turn is next first.
    next: VecDeque<Holder>,
    /// The number of items in all queues.
    len: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { known: Lane::default(), strangers: Lane::default() }
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { queues: HashMap::default(), next: VecDeque::new(), len: 0 }
    }
}

impl<T> Turns<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.known.len == 0 && self.strangers.len == 0
    }

    /// Adds an item to the queue of its holder.
    ///
    /// # Errors
    /// Returns an item for which there is no room: this one, if too many of its holder wait, or, if
    /// the lane is full, the last one of the holder with the most.
    pub(super) fn push(&mut self, holder: Holder, item: T) -> Result<(), T> {
        let lane = match holder {
            Holder::Host | Holder::Signer(_) => &mut self.known,
            _ => &mut self.strangers,
        };
        lane.push(queue_of(holder), item)
    }

    /// Takes at most `max` items, and at most `max_per_holder` of each holder.
    pub(super) fn take(&mut self, max: usize, max_per_holder: usize) -> Vec<T> {
        let mut taken = Vec::new();
        for lane in [&mut self.known, &mut self.strangers] {
            lane.take(max, max_per_holder, &mut taken);
        }
        taken
    }
}

/// The holder whose queue an item waits in: all callers of an IPv6 /48 have one, since one person
/// can be many of them.
fn queue_of(holder: Holder) -> Holder {
    match holder {
        Holder::Caller(IpAddr::V6(address)) => {
            let [a, b, c, ..] = address.segments();
            Holder::Caller(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0).into())
        }
        holder => holder,
    }
}

impl<T> Lane<T> {
    fn push(&mut self, holder: Holder, item: T) -> Result<(), T> {
        let queue = self.queues.entry(holder).or_default();
        if queue.len() >= MAX_WAITING_PER_HOLDER {
            return Err(item);
        }
        if queue.is_empty() {
            self.next.push_back(holder);
        }
        queue.push_back(item);
        self.len += 1;
        if self.len <= MAX_WAITING {
            return Ok(());
        }
        let largest = self.queues.iter().max_by_key(|(_, queue)| queue.len());
        let largest = largest.map(|(holder, _)| *holder);
        match largest.and_then(|holder| self.pop(holder, VecDeque::pop_back)) {
            Some(excess) => Err(excess),
            None => Ok(()),
        }
    }

    /// Removes an item of a holder by `pop`, and the holder with its last item.
    fn pop(
        &mut self,
        holder: Holder,
        pop: impl FnOnce(&mut VecDeque<T>) -> Option<T>,
    ) -> Option<T> {
        let queue = self.queues.get_mut(&holder)?;
        let item = pop(queue);
        self.len -= usize::from(item.is_some());
        if queue.is_empty() {
            self.queues.remove(&holder);
            self.next.retain(|next| *next != holder);
        }
        item
    }

    /// Moves items to `taken`, one of each holder in turn, until `taken` has `max` items, or
    /// `max_per_holder` of each holder were moved.
    fn take(&mut self, max: usize, max_per_holder: usize, taken: &mut Vec<T>) {
        for _ in 0..max_per_holder {
            for _ in 0..self.next.len() {
                if taken.len() >= max {
                    return;
                }
                let Some(holder) = self.next.pop_front() else { return };
                // Pushed before the pop, which removes a holder without further items.
                self.next.push_back(holder);
                taken.extend(self.pop(holder, VecDeque::pop_front));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Address;

    use super::*;

    fn caller(address: &str) -> Holder {
        Holder::caller(address.parse().unwrap())
    }

    #[test]
    fn known_signers_are_first_and_no_caller_has_more_than_its_part() {
        let mut turns = Turns::default();
        for number in 0..1_000 {
            turns.push(caller("10.0.0.1"), ("one", number)).unwrap();
            turns.push(caller("10.0.0.2"), ("other", number)).unwrap();
        }
        turns.push(caller("10.0.0.3"), ("honest", 0)).unwrap();
        for number in 0..17 {
            turns.push(Holder::Signer(Address::ZERO), ("known", number)).unwrap();
        }
        let batch = turns.take(256, 64);
        let count = |name| batch.iter().filter(|(sender, _)| *sender == name).count();
        assert!(batch[..17].iter().all(|(name, _)| *name == "known"));
        assert_eq!(["known", "honest", "one", "other"].map(count), [17, 1, 64, 64]);
        // In their order.
        assert_eq!(turns.take(2, 64), [("one", 64), ("other", 64)]);
        while !turns.take(256, 64).is_empty() {}
        assert!(turns.is_empty() && turns.strangers.next.is_empty());
    }

    #[test]
    fn beyond_all_places_the_holder_with_the_most_loses_its_last() {
        let mut turns = Turns::default();
        for number in 0..MAX_WAITING_PER_HOLDER {
            for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1"] {
                turns.push(caller(address), number).unwrap();
            }
        }
        // It has all that it may have, in another network of its /48 too.
        assert_eq!(turns.push(caller("2001:db8:0:ff00::1"), 9_999), Err(9_999));
        assert_eq!(turns.push(caller("10.0.0.4"), 0), Err(MAX_WAITING_PER_HOLDER - 1));
        assert_eq!(turns.push(Holder::Host, 0), Ok(()));
        let batch = turns.take(6, 64);
        assert_eq!(batch.len(), 6);
        assert_eq!(turns.strangers.len, MAX_WAITING - 5);
    }
}
