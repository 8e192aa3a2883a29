//! The windows of all subjects of a publisher. Pure.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use order_pool::OrderId;

use crate::{
    follow::Item,
    outbox::{Outbox, OutboxLimits, Trouble},
    subjects::Subjects,
};

/// Between two comparisons because of what was left out.
const COMPARE_PAUSE: Duration = Duration::from_secs(1);

/// Whether an item can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Now,
    /// Nothing behind it is published before it.
    Wait,
    /// Its subject takes nothing and others do: a comparison publishes it later.
    LeaveOut,
}

/// One outbox for each subject, so that one that takes nothing does not hold up the others.
#[derive(Debug)]
pub(crate) struct Lanes {
    outboxes: Vec<Outbox>,
    /// By lane: whether something was left out.
    left_out: Vec<bool>,
    compared_at: Option<Instant>,
}

impl Lanes {
    /// Shares the limits among the subjects evenly.
    pub(crate) fn new(subjects: &Subjects, limits: OutboxLimits) -> Self {
        let lanes = subjects.lanes();
        // Each flow has one subject of small or rare messages.
        let share = lanes - 1;
        let each = OutboxLimits {
            window: limits.window.div_ceil(share),
            window_bytes: limits.window_bytes.div_ceil(share),
            ..limits
        };
        Self {
            outboxes: (0..lanes).map(|_| Outbox::new(each)).collect(),
            left_out: vec![false; lanes],
            compared_at: None,
        }
    }

    pub(crate) fn get_mut(&mut self, lane: usize) -> Option<&mut Outbox> {
        self.outboxes.get_mut(lane)
    }

    pub(crate) fn len(&self) -> usize {
        self.outboxes.iter().map(Outbox::len).sum()
    }

    /// The worst of all subjects.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.outboxes.iter().filter_map(Outbox::trouble).max()
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.outboxes.iter().any(|outbox| outbox.trouble() == Some(Trouble::Unavailable))
    }

    pub(crate) fn room(&mut self, lane: usize, subjects: &Subjects, now: Instant) -> Room {
        let outbox = &self.outboxes[lane];
        if outbox.has_room(now) {
            return Room::Now;
        }
        let Some(trouble) = outbox.trouble() else { return Room::Wait };
        // What one stream refuses it refuses on all its subjects, but for rights.
        let mut others = self.outboxes.iter().enumerate().filter(|(other, _)| *other != lane);
        let is_apart = |other| {
            trouble == Trouble::Denied || subjects.stream_of(other) != subjects.stream_of(lane)
        };
        if others.any(|(other, outbox)| is_apart(other) && outbox.trouble().is_none()) {
            self.left_out[lane] = true;
            return Room::LeaveOut;
        }
        Room::Wait
    }

    /// When [`Self::must_compare`] is true, as far as no answer changes it.
    pub(crate) fn compare_at(&self) -> Option<Instant> {
        let mut lanes = self.left_out.iter().zip(&self.outboxes);
        let due = lanes.any(|(left_out, outbox)| *left_out && outbox.trouble().is_none());
        due.then_some(self.compared_at? + COMPARE_PAUSE)
    }

    /// Whether a subject takes messages again after some were left out.
    pub(crate) fn must_compare(&self, now: Instant) -> bool {
        self.compare_at().is_some_and(|at| at <= now)
    }

    /// A comparison begins.
    pub(crate) fn compares(&mut self, now: Instant) {
        self.compared_at = Some(now);
        self.left_out.fill(false);
    }

    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let wakes = self.outboxes.iter().filter_map(|outbox| outbox.next_wake(now));
        wakes.chain(self.compare_at()).min()
    }

    /// A new connection: everything that is not acknowledged is published again.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.outboxes.iter_mut().for_each(|outbox| outbox.connected(now));
    }

    /// A transaction was cancelled: it is not published again, or it would come behind its cancellation. Returns how
    /// many messages have left.
    pub(crate) fn withdraw(&mut self, hash: &B256) -> usize {
        let is_it = |item: &Item| matches!(item, Item::Order { order, .. } if order.id() == OrderId::Tx(*hash));
        self.outboxes.iter_mut().map(|outbox| outbox.withdraw(is_it)).sum()
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Address;

    use super::*;
    use crate::{backoff::Backoff, config::Flow, outbox::Answer};

    const SECOND: Duration = Duration::from_secs(1);
    const DENIED: Answer = Answer::Later(Trouble::Denied);

    fn lanes(flow: Flow, shards: u16) -> (Lanes, Subjects) {
        let backoff = Backoff { base: SECOND, cap: SECOND };
        let limits =
            OutboxLimits { window: 8, window_bytes: 1_000, ack_timeout: 5 * SECOND, backoff };
        let subjects = Subjects::new(flow, 1, "a", shards);
        (Lanes::new(&subjects, limits), subjects)
    }

    fn add(lanes: &mut Lanes, lane: usize, now: Instant) -> u64 {
        let item = Item::CancelPrivate { hash: B256::ZERO, signer: Address::ZERO, again: 0 };
        lanes.get_mut(lane).expect("a lane").add(item, B256::ZERO, 10, now)
    }

    fn answer(lanes: &mut Lanes, (lane, number): (usize, u64), answer: Answer, now: Instant) {
        lanes.get_mut(lane).expect("a lane").answer(number, answer, now, 1.0);
    }

    #[test]
    fn a_shard_that_takes_nothing_is_left_out_and_compared_with_when_it_does_again() {
        let ((mut lanes, subjects), now) = (lanes(Flow::Public, 2), Instant::now());
        lanes.compares(now);
        let number = add(&mut lanes, 0, now);
        let unavailable = Answer::Later(Trouble::Unavailable);
        answer(&mut lanes, (0, number), unavailable, now);
        assert_eq!(lanes.room(0, &subjects, now), Room::LeaveOut);
        assert_eq!(lanes.room(1, &subjects, now), Room::Now);
        assert!(!lanes.must_compare(now + 9 * SECOND), "it takes nothing yet");
        let now = now + SECOND / 2;
        answer(&mut lanes, (0, number), Answer::Stored, now);
        assert!(!lanes.must_compare(now), "not at once after the last");
        assert!(lanes.must_compare(now + SECOND));
        lanes.compares(now + SECOND);
        assert!(!lanes.must_compare(now + 9 * SECOND));
    }

    #[test]
    fn nothing_is_left_out_while_no_stream_takes_anything_or_the_window_is_full() {
        let ((mut lanes, subjects), now) = (lanes(Flow::Public, 1), Instant::now());
        let full: Vec<_> = (0..8).map(|_| add(&mut lanes, 0, now)).collect();
        assert_eq!(lanes.room(0, &subjects, now), Room::Wait, "for acknowledgements");
        answer(&mut lanes, (0, full[0]), Answer::Later(Trouble::Full), now);
        assert_eq!(lanes.room(0, &subjects, now), Room::Wait, "heads have the same stream");
        answer(&mut lanes, (0, full[0]), Answer::Stored, now);
        let head = add(&mut lanes, 1, now);
        answer(&mut lanes, (1, head), DENIED, now);
        assert_eq!(lanes.room(1, &subjects, now), Room::LeaveOut, "a right is of one subject");
        assert_eq!(lanes.room(0, &subjects, now), Room::Now);
    }
}
