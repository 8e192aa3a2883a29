//! Queues what unknown callers have sent, and releases it fairly and at a bounded rate. Pure.
//!
//! An unknown caller is one that the host knows by its address only
//! ([`Holder::is_known`](order_pool::Holder::is_known)). The stream and the way to each builder are
//! first in, first out. One address can send some thousand orders or 40 MB a second within its
//! quotas, and all of it would reach the builders before everybody else's orders. So the publisher
//! publishes these messages behind all messages of the host, of known signers and of its node, at a
//! rate that the builders' links carry in addition to the rest.
//!
//! Among unknown callers the order is weighted fair queueing by bytes: each caller has a queue,
//! each queue a virtual start and finish time, and the queue with the earliest finish time is
//! served next. A caller that sends one order waits for about as many bytes of each other caller as
//! its order has, however much these have sent and however large their orders are.
//!
//! A stream of their own for these messages would not replace the queue. Within that stream each
//! message would still wait behind everything that one caller had sent before, which
//! `a_flood_is_published_at_the_rate_and_delays_other_callers_little` forbids, and its reader would
//! still share the builder's link with that of the private stream, so the rate must stay too.
//!
//! The messages of one caller keep their sequence. An order that has left the pool leaves the queue
//! too, so the queues hold at most as many orders as the pool holds of callers. The pool does not
//! bound cancellations, nor orders that another holder had sent before; these are *extras*, with
//! limits of their own. A cancellation may be published behind a later order of its key that
//! another caller sent; pools compare both by their nonce or by their time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use order_pool::{Holder, Order, OrderId};

use crate::{follow::Item, wire::Record};

/// The rate of release, in bytes of pool memory, which are slightly more than bytes of messages. It
/// is what one address may hold of a pool with default caps, each second. It takes 67 Mbit/s of
/// each builder's link.
const BYTES_PER_SECOND: f64 = (8 << 20) as f64;

/// The most bytes that are released at once after a pause: five transactions with six blobs, or
/// 2,700 plain ones. On a link of 100 Mbit/s it delays the messages behind it by a third of a
/// second.
const MAX_BURST_BYTES: f64 = (4 << 20) as f64;

/// The size of a cancellation together with what a server stores with it.
const CANCELLATION_BYTES: u64 = 256;

/// The most extras of one caller. Its further extras are not published.
const MAX_EXTRAS_PER_CALLER: usize = 1_024;

/// The most extras of all callers: as many as pools remember cancellations by default
/// (`max_cancellations`). Beyond it the caller with the most loses its latest one.
const MAX_EXTRAS: usize = 1 << 16;

/// An order in a caller's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderKey {
    id: OrderId,
    holder: Holder,
    /// Whether another holder had sent it before, so that builders get it without this message.
    is_additional: bool,
}

#[derive(Debug)]
struct CallerQueue {
    /// The virtual time when the first item became the first.
    start: u64,
    /// `start` plus the size of the first item. A queue that a replacement empties keeps it,
    /// because the replacing order follows.
    finish: u64,
    /// The items by their number, which is their sequence.
    items: BTreeMap<u64, Item>,
    /// How many of the items are extras.
    extras: usize,
}

impl CallerQueue {
    fn take(&mut self, number: u64) -> Option<Item> {
        let item = self.items.remove(&number)?;
        self.extras -= usize::from(is_extra(&item));
        Some(item)
    }
}

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    queues: BTreeMap<Holder, CallerQueue>,
    /// All queues by their virtual finish time.
    by_finish: BTreeSet<(u64, Holder)>,
    /// All queues by how many extras they hold.
    by_extras: BTreeSet<(usize, Holder)>,
    /// The virtual time: the bytes that each queue that was never empty has been served.
    virtual_time: u64,
    /// The number of each queued order.
    orders: BTreeMap<OrderKey, u64>,
    /// How many items all queues hold.
    len: usize,
    /// How many of these are extras.
    extras: usize,
    next_number: u64,
    /// How much of [`MAX_BURST_BYTES`] is used up, as of `updated_at`.
    used_bytes: f64,
    updated_at: Option<Instant>,
}

impl FairQueue {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Queues what a caller has sent. An order that is queued already is replaced at its place.
    /// Returns how many cancellations were dropped for lack of room: the new one, or the latest one
    /// of the caller with the most extras.
    pub(crate) fn push(&mut self, holder: Holder, item: Item) -> u64 {
        let key = order_key(holder, &item);
        let queued_number = key.and_then(|key| self.orders.get(&key).copied());
        let is_new_extra = is_extra(&item) && queued_number.is_none();
        let mut dropped_cancellations = 0;
        if is_new_extra {
            let extras_of_caller = self.queues.get(&holder).map_or(0, |queue| queue.extras);
            if extras_of_caller >= MAX_EXTRAS_PER_CALLER {
                return u64::from(key.is_none());
            }
            if self.extras >= MAX_EXTRAS {
                dropped_cancellations = self.drop_extra();
            }
        }
        let number = queued_number.unwrap_or(self.next_number);
        self.next_number += 1;
        if let Some(key) = key {
            self.orders.insert(key, number);
        }
        let now = self.virtual_time;
        self.queues.entry(holder).or_insert_with(|| CallerQueue {
            start: now,
            finish: now,
            items: BTreeMap::new(),
            extras: 0,
        });
        self.update(holder, |queue| {
            queue.extras += usize::from(is_new_extra);
            queue.items.insert(number, item);
        });
        dropped_cancellations
    }

    /// Drops the latest extra of the caller with the most. Returns 1 if it was a cancellation.
    fn drop_extra(&mut self) -> u64 {
        let Some((_, holder)) = self.by_extras.last().copied() else { return 0 };
        let dropped = self.update(holder, |queue| {
            let latest = queue.items.iter().rev().find(|(_, item)| is_extra(item));
            queue.take(*latest?.0)
        });
        let Some(item) = dropped.flatten() else { return 0 };
        match order_key(holder, &item) {
            Some(key) => {
                self.orders.remove(&key);
                0
            }
            None => 1,
        }
    }

    /// Removes an order from all queues, because it has left the pool or is published otherwise.
    /// `is_replaced` says that the replacing order follows. Returns how many copies were removed
    /// that builders get from no other message: one or none, because the copies of additional
    /// holders do not count.
    pub(crate) fn remove(&mut self, id: OrderId, is_replaced: bool) -> u64 {
        let first = OrderKey { id, holder: Holder::Host, is_additional: false };
        let queued: Vec<_> = self
            .orders
            .range(first..)
            .take_while(|(key, _)| key.id == id)
            .map(|(key, number)| (*key, *number))
            .collect();
        for (key, number) in &queued {
            self.orders.remove(key);
            self.update(key.holder, |queue| queue.take(*number));
            if !is_replaced {
                self.remove_if_empty(key.holder);
            }
        }
        queued.iter().filter(|(key, _)| !key.is_additional).count() as u64
    }

    /// Removes the orders that are not pooled any more. Returns their number as [`Self::remove`]
    /// counts them.
    pub(crate) fn retain(&mut self, is_pooled: impl Fn(&OrderId) -> bool) -> u64 {
        let ids: BTreeSet<_> = self.orders.keys().map(|key| key.id).collect();
        ids.into_iter().filter(|id| !is_pooled(id)).map(|id| self.remove(id, false)).sum()
    }

    /// Takes the next item, if the rate permits it. `ignore_rate` is for a shutdown, which
    /// publishes everything.
    pub(crate) fn next(&mut self, now: Instant, ignore_rate: bool) -> Option<Item> {
        let updated_at = self.updated_at.replace(now).unwrap_or(now);
        let refilled = now.saturating_duration_since(updated_at).as_secs_f64() * BYTES_PER_SECOND;
        self.used_bytes = (self.used_bytes - refilled).max(0.0);
        let (finish, holder, number) = loop {
            let (finish, holder) = *self.by_finish.first()?;
            let first = self.queues.get(&holder).and_then(|queue| queue.items.first_key_value());
            match first {
                Some((number, _)) => break (finish, holder, *number),
                // A replacement has emptied it, and the replacing order did not follow.
                None => self.remove_if_empty(holder),
            }
        };
        let cost = self.next_cost();
        let used_bytes = self.used_bytes + cost;
        if used_bytes > MAX_BURST_BYTES && !ignore_rate {
            return None;
        }
        self.used_bytes = used_bytes.min(MAX_BURST_BYTES);
        let served_per_queue = cost as u64 / self.by_finish.len() as u64;
        // The virtual time must not fall behind the queue that is served, since queues end.
        let start_of_served = self.queues.get(&holder)?.start;
        self.virtual_time = (self.virtual_time + served_per_queue).max(start_of_served);
        let start = finish.max(self.virtual_time);
        let item = self.update(holder, |queue| {
            queue.start = start;
            queue.take(number)
        })??;
        if let Some(key) = order_key(holder, &item) {
            self.orders.remove(&key);
        }
        Some(item)
    }

    /// Returns the size of the next item, zero if there is none.
    fn next_cost(&self) -> f64 {
        let next_queue = self.by_finish.first().and_then(|(_, holder)| self.queues.get(holder));
        match next_queue.and_then(|queue| queue.items.values().next()) {
            Some(item) => (size_bytes(item) as f64).min(MAX_BURST_BYTES),
            None => 0.0,
        }
    }

    /// Returns when the rate permits the next item.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let missing = (self.used_bytes + self.next_cost() - MAX_BURST_BYTES).max(0.0);
        // One microsecond more, so that rounding does not wake too early.
        let wait = Duration::from_secs_f64(missing / BYTES_PER_SECOND) + Duration::from_micros(1);
        self.updated_at.filter(|_| self.len > 0).map(|updated_at| updated_at + wait)
    }

    /// Changes a queue, and updates the sums and the indices that depend on it.
    fn update<T>(
        &mut self,
        holder: Holder,
        change: impl FnOnce(&mut CallerQueue) -> T,
    ) -> Option<T> {
        let queue = self.queues.get_mut(&holder)?;
        self.by_finish.remove(&(queue.finish, holder));
        self.by_extras.remove(&(queue.extras, holder));
        let len_before = queue.items.len();
        let extras_before = queue.extras;
        let result = change(queue);
        self.len = self.len + queue.items.len() - len_before;
        self.extras = self.extras + queue.extras - extras_before;
        if let Some(first) = queue.items.values().next() {
            queue.finish = queue.start + size_bytes(first);
        }
        self.by_finish.insert((queue.finish, holder));
        self.by_extras.insert((queue.extras, holder));
        Some(result)
    }

    fn remove_if_empty(&mut self, holder: Holder) {
        if let Some(queue) = self.queues.get(&holder)
            && queue.items.is_empty()
        {
            self.by_finish.remove(&(queue.finish, holder));
            self.by_extras.remove(&(queue.extras, holder));
            self.queues.remove(&holder);
        }
    }
}

/// Returns the key of an order; `None` for a cancellation.
fn order_key(holder: Holder, item: &Item) -> Option<OrderKey> {
    match &item.record {
        Record::Order(order) => Some(OrderKey {
            id: order.id(),
            holder,
            is_additional: item.additional_holder.is_some(),
        }),
        _ => None,
    }
}

/// Whether the pool does not bound the item: it is not an order of the holder that sent it first.
const fn is_extra(item: &Item) -> bool {
    !matches!(item, Item { record: Record::Order(_), additional_holder: None, .. })
}

fn size_bytes(item: &Item) -> u64 {
    match &item.record {
        Record::Order(order) => Order::size_bytes(order) as u64,
        _ => CANCELLATION_BYTES,
    }
}

#[cfg(test)]
mod tests;
