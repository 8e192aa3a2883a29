//! Decides what is written to the log and the live pages, and what they free.

use std::sync::Arc;

use super::{
    Tables,
    garbage::{Garbage, Piece},
    live::{LiveTable, LiveWriter},
    log::{LogTable, LogWriter},
};
use crate::event::Event;

/// The most pages that one upkeep step rewrites, at about 10 us each.
const REWRITES_PER_STEP: usize = 16;

/// The most segments that one publication, or one upkeep step, drops because no reader needs them.
/// When the slowest reader ends there may be a thousand, at up to 50 us each.
const DROPS_PER_STEP: usize = 8;

/// The most pieces of garbage that one upkeep step frees, at about 20 us each, without the lock.
const FREE_PER_STEP: usize = 64;

/// Writes events and live pages. Readers see them after [`Self::publish`].
#[derive(Debug)]
pub(crate) struct Publisher {
    log: LogWriter,
    live: LiveWriter,
    garbage: Garbage,
    max_events: usize,
    max_removed_bytes: usize,
}

/// Tables that were replaced, and garbage. They are dropped after the lock is released, which frees
/// what only they still hold.
pub(crate) type Replaced = (Option<Arc<LogTable>>, Option<Arc<LiveTable>>, Vec<Piece>);

impl Publisher {
    pub(crate) fn new(max_events: usize, max_removed_bytes: usize) -> Self {
        Self {
            log: LogWriter::default(),
            live: LiveWriter::default(),
            garbage: Garbage::default(),
            max_events,
            max_removed_bytes,
        }
    }

    /// Returns the sequence number of the next event.
    pub(crate) const fn next_seq(&self) -> u64 {
        self.log.head
    }

    /// Returns the memory of removed orders that readers may still need, in bytes.
    pub(crate) const fn removed_bytes(&self) -> usize {
        self.live.removed_bytes
    }

    /// Writes an event that no replay shows.
    pub(crate) fn event(&mut self, event: Event) {
        self.log.push(event);
    }

    /// Writes an event that replays show until it is removed.
    pub(crate) fn add(&mut self, event: Event) {
        self.live.add(self.next_seq(), event.clone());
        self.event(event);
    }

    /// Hides the event with sequence number `added` from replays that begin with the next event or
    /// later.
    pub(crate) fn remove(&mut self, added: u64, size_bytes: usize) {
        self.live.remove(added, self.next_seq(), size_bytes);
    }

    /// Makes what was written visible to readers.
    pub(crate) fn publish(&mut self, tables: &Tables) -> Replaced {
        // Only once for each segment, because the cost of `slowest` grows with the number of
        // subscriptions.
        let needed = if self.log.changed { tables.wakers.slowest() } else { 0 };
        self.shorten(needed);
        // Each event spends at most one entry, so as many rewrites as events keep pace.
        let events = self.log.head - tables.wakers.head();
        self.live.compact(events as usize, self.log.tail(), &mut self.garbage);
        let excess = self.garbage.take_excess();
        let replaced = self.swap(tables, excess);
        tables.wakers.publish(self.log.head);
        replaced
    }

    /// Runs one bounded step of upkeep. Returns also whether more is due.
    pub(crate) fn upkeep(&mut self, tables: &Tables) -> (Replaced, bool) {
        let shortening = self.shorten(tables.wakers.slowest());
        let compacting = self.live.compact(REWRITES_PER_STEP, self.log.tail(), &mut self.garbage);
        let garbage = self.garbage.take(FREE_PER_STEP);
        (self.swap(tables, garbage), shortening || compacting || !self.garbage.is_empty())
    }

    fn swap(&mut self, tables: &Tables, garbage: Vec<Piece>) -> Replaced {
        (self.log.publish(&tables.log), self.live.publish(&tables.live), garbage)
    }

    /// Frees some of the segments that no subscription needs, which end below `needed`, and
    /// shortens the log to its caps. Returns whether more are left.
    fn shorten(&mut self, needed: u64) -> bool {
        let mut drops = 0;
        while (drops < DROPS_PER_STEP && self.log.ends_before(needed)
            || self.log.exceeds(self.max_events))
            && self.log.pop(&mut self.garbage)
        {
            drops += 1;
        }
        self.live.forget_before(self.log.tail(), &mut self.garbage);
        while self.live.removed_bytes > self.max_removed_bytes && self.log.pop(&mut self.garbage) {
            self.live.forget_before(self.log.tail(), &mut self.garbage);
        }
        self.log.ends_before(needed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        order::ReplacementKey,
        read::{Index, SEGMENT_EVENTS, SeenWindow},
    };

    /// A thousand segments were dropped in one hold of the writer's lock.
    #[test]
    fn the_slowest_readers_segments_are_dropped_a_few_at_a_time() {
        let tables = Tables::new(&Index::new(1), &SeenWindow::new(1));
        let mut publisher = Publisher::new(usize::MAX, usize::MAX);
        let key = ReplacementKey { uuid: Default::default(), signer: Default::default() };
        let write = |publisher: &mut Publisher| {
            (0..SEGMENT_EVENTS).for_each(|_| publisher.event(Event::CancellationForgotten(key)));
            drop(publisher.publish(&tables));
            publisher.log.tail() / SEGMENT_EVENTS as u64
        };
        let reader = tables.wakers.join();
        assert!((0..100).all(|_| write(&mut publisher) == 0));
        tables.wakers.leave(&reader);
        assert_eq!([write(&mut publisher), write(&mut publisher)], [8, 16]);
        let steps = (0..).take_while(|_| publisher.upkeep(&tables).1).count();
        assert!(steps >= 10, "{steps}");
        assert_eq!(publisher.log.tail(), publisher.next_seq() - SEGMENT_EVENTS as u64);
    }
}
