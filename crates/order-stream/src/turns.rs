//! What callers have sent of whom only the address is known, until its turn comes. Pure.
//!
//! A stream is first in, first out, and so is the way to each builder: what one address sends at the rate of its quotas, some
//! thousand orders or 40 MB a second, would come before everybody else's. So it is published behind all that the host, signers
//! that it knows and its node have sent, at no more than a rate that builders' links carry beside the rest, and of these
//! callers each in turn, by bytes: one that sends an order waits for as many bytes of each other caller, however much these
//! have sent, and however large their orders are (weighted fair queueing: the clock goes as fast as each line is served, and
//! what would be served first if all were at once is first).
//!
//! The orders of a caller keep their sequence, and what has left the pool is not published any more. So the lines hold no more
//! orders than the pool has of callers. What a caller sends that another one has sent before it is an item more while the order
//! is pooled, so these are bounded as cancellations are. A cancellation may come behind a later order of its key by another
//! caller: pools place both by their nonce, or by their time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use order_pool::{Holder, Order, OrderId};

use crate::{follow::Item, wire::Record};

/// In the memory of orders, which is a little more than their messages: what one address may hold of a pool's default caps in
/// a second. A publisher fills 67 Mbit/s of the link of each builder with it.
const BYTES_PER_SECOND: f64 = (8 << 20) as f64;

/// What may be published at once after a pause: five transactions with six blobs, or 2,700 plain ones. It delays what comes
/// behind it by a third of a second on a link of 100 Mbit/s.
const MAX_CREDIT_BYTES: f64 = (4 << 20) as f64;

/// A cancellation, with what a server stores beside it.
const CANCELLATION_BYTES: u64 = 256;

/// Most cancellations, and orders that another caller had sent before, that wait, of one caller and of all: as many as pools
/// remember of the former by default (`max_cancellations`). Beyond the first limit a caller's further ones are not published,
/// beyond the second the latest of the caller with the most.
const MAX_EXTRAS_OF_ONE: usize = 1_024;
const MAX_EXTRAS: usize = 1 << 16;

/// An order as its holder sent it: first, or (`true`) after another one, and builders have it without that.
type Place = (OrderId, Holder, bool);

#[derive(Debug)]
struct Line {
    /// The clock when the first item became the first.
    start: u64,
    /// `start` and the bytes of the first item. A line that a replacement empties keeps it: the order that replaces follows.
    turn: u64,
    items: BTreeMap<u64, Item>,
    /// Of these, what the pool does not bound.
    extras: usize,
}

impl Line {
    fn take(&mut self, number: u64) -> Option<Item> {
        let item = self.items.remove(&number)?;
        self.extras -= usize::from(is_extra(&item));
        Some(item)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Turns {
    lines: BTreeMap<Holder, Line>,
    /// All lines, by their turn.
    turns: BTreeSet<(u64, Holder)>,
    /// The lines by how many extras wait in each.
    crowds: BTreeSet<(usize, Holder)>,
    /// The bytes that each line has been served, of those that had something waiting.
    clock: u64,
    /// The number of each order that waits.
    orders: BTreeMap<Place, u64>,
    /// The items of all lines, and the extras of these.
    len: usize,
    extras: usize,
    numbers: u64,
    /// What was published of [`MAX_CREDIT_BYTES`] and is not earned again, as of a time.
    spent_bytes: f64,
    as_of: Option<Instant>,
}

impl Turns {
    /// How many wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Takes what a caller has sent; in its place if it waits already. There may be no room for an extra: it, or the latest of the
    /// caller with the most, is dropped. Returns how many cancellations were.
    pub(crate) fn push(&mut self, holder: Holder, item: Item) -> u64 {
        let place = place(holder, &item);
        let waiting = place.and_then(|place| self.orders.get(&place).copied());
        let is_more = is_extra(&item) && waiting.is_none();
        let of_one = self.lines.get(&holder).map_or(0, |line| line.extras);
        if is_more && of_one >= MAX_EXTRAS_OF_ONE {
            return u64::from(place.is_none());
        }
        let is_full = is_more && self.extras >= MAX_EXTRAS;
        let unsent = if is_full { self.drop_extra() } else { 0 };
        let number = waiting.unwrap_or(self.numbers);
        self.numbers += 1;
        self.orders.extend(place.map(|place| (place, number)));
        let (start, turn) = (self.clock, self.clock);
        let new = Line { start, turn, items: BTreeMap::new(), extras: 0 };
        self.lines.entry(holder).or_insert(new);
        self.change(holder, |line| {
            line.extras += usize::from(is_more);
            line.items.insert(number, item);
        });
        unsent
    }

    /// Returns how many cancellations it dropped.
    fn drop_extra(&mut self) -> u64 {
        let Some((_, holder)) = self.crowds.last().copied() else { return 0 };
        let dropped = self.change(holder, |line| {
            let latest = line.items.iter().rev().find(|(_, item)| is_extra(item));
            line.take(*latest?.0)
        });
        let Some(item) = dropped.flatten() else { return 0 };
        let Some(place) = place(holder, &item) else { return 1 };
        self.orders.remove(&place);
        0
    }

    /// An order has left the pool, for one that follows if it `is_replaced`, or is published without its turn. Returns how many
    /// orders, one or none, nobody's turn has come for: what was sent again waits as a copy of what was published first.
    pub(crate) fn remove(&mut self, id: OrderId, is_replaced: bool) -> u64 {
        let orders = self.orders.range((id, Holder::Host, false)..);
        let orders = orders.map(|(place, number)| (*place, *number));
        let places: Vec<_> = orders.take_while(|((other, ..), _)| *other == id).collect();
        for (place, number) in &places {
            self.orders.remove(place);
            self.change(place.1, |line| line.take(*number));
            if !is_replaced {
                self.end_empty(place.1);
            }
        }
        places.iter().filter(|((_, _, is_again), _)| !is_again).count() as u64
    }

    /// Removes the orders of which this does not say that they are in the pool. Returns as [`Self::remove`].
    pub(crate) fn retain(&mut self, is_pooled: impl Fn(&OrderId) -> bool) -> u64 {
        let left: BTreeSet<_> = self.orders.keys().map(|(id, ..)| *id).collect();
        left.into_iter().filter(|id| !is_pooled(id)).map(|id| self.remove(id, false)).sum()
    }

    /// The next one, if it may be published now; with `is_last_time` whatever was published before.
    pub(crate) fn next(&mut self, now: Instant, is_last_time: bool) -> Option<Item> {
        let as_of = self.as_of.replace(now).unwrap_or(now);
        let earned = now.saturating_duration_since(as_of).as_secs_f64() * BYTES_PER_SECOND;
        self.spent_bytes = (self.spent_bytes - earned).max(0.0);
        let (turn, holder, number) = loop {
            let (turn, holder) = *self.turns.first()?;
            let first = self.lines.get(&holder).and_then(|line| line.items.first_key_value());
            match first {
                Some((number, _)) => break (turn, holder, *number),
                None => self.end_empty(holder),
            }
        };
        let cost = self.next_cost();
        let spent = self.spent_bytes + cost;
        if spent > MAX_CREDIT_BYTES && !is_last_time {
            return None;
        }
        self.spent_bytes = spent.min(MAX_CREDIT_BYTES);
        let served = cost as u64 / self.turns.len() as u64;
        // Not behind what is served now: lines end.
        self.clock = (self.clock + served).max(self.lines.get(&holder)?.start);
        let start = turn.max(self.clock);
        let item = self.change(holder, |line| {
            line.start = start;
            line.take(number)
        })??;
        place(holder, &item).map(|place| self.orders.remove(&place));
        Some(item)
    }

    /// What the next one costs, zero if there is none.
    fn next_cost(&self) -> f64 {
        let line = self.turns.first().and_then(|(_, holder)| self.lines.get(holder));
        let first = line.and_then(|line| line.items.values().next());
        first.map_or(0.0, |item| (size_bytes(item) as f64).min(MAX_CREDIT_BYTES))
    }

    /// When [`Self::next`] may return something that it did not.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let missing = (self.spent_bytes + self.next_cost() - MAX_CREDIT_BYTES).max(0.0);
        // Not rounded to a moment at which it may not yet.
        let wait = Duration::from_secs_f64(missing / BYTES_PER_SECOND) + Duration::from_micros(1);
        self.as_of.filter(|_| self.len > 0).map(|as_of| as_of + wait)
    }

    fn change<T>(&mut self, holder: Holder, change: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let line = self.lines.get_mut(&holder)?;
        self.turns.remove(&(line.turn, holder));
        self.crowds.remove(&(line.extras, holder));
        let (len, extras) = (line.items.len(), line.extras);
        let changed = change(line);
        self.len = self.len + line.items.len() - len;
        self.extras = self.extras + line.extras - extras;
        if let Some(first) = line.items.values().next() {
            line.turn = line.start + size_bytes(first);
        }
        self.turns.insert((line.turn, holder));
        self.crowds.insert((line.extras, holder));
        Some(changed)
    }

    fn end_empty(&mut self, holder: Holder) {
        if let Some(line) = self.lines.get(&holder).filter(|line| line.items.is_empty()) {
            self.turns.remove(&(line.turn, holder));
            self.crowds.remove(&(line.extras, holder));
            self.lines.remove(&holder);
        }
    }
}

/// Where an order stands; `None` for anything else.
fn place(holder: Holder, item: &Item) -> Option<Place> {
    match &item.record {
        Record::Order(order) => Some((order.id(), holder, item.hold.is_some())),
        _ => None,
    }
}

/// Whether the pool does not bound it: not an order of who sent it first.
const fn is_extra(item: &Item) -> bool {
    !matches!(item, Item { record: Record::Order(_), hold: None, .. })
}

fn size_bytes(item: &Item) -> u64 {
    match &item.record {
        Record::Order(order) => Order::size_bytes(order) as u64,
        _ => CANCELLATION_BYTES,
    }
}

#[cfg(test)]
mod tests;
