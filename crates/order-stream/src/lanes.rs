//! The windows of all subjects of a publisher. Pure.

use std::time::{Duration, Instant};

use order_pool::OrderId;

use crate::{
    follow::Item,
    outbox::{Outbox, OutboxLimits, Trouble},
    subjects::Subjects,
};

/// Between the end of a comparison and the next because of what was left out.
const COMPARE_PAUSE: Duration = Duration::from_secs(1);

/// How far below a new head one is that is not published any more: a pool takes one that is older than the blocks
/// that it remembers, 64 by default, for the newest.
const MAX_HEAD_AGE: u64 = 32;

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
    /// When the latest comparison ended; none while one is under way.
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
            backoff: limits.backoff.connected(),
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

    /// The troubles of the subjects for which something waits: of the others nothing is known any more.
    fn troubles(&self) -> impl Iterator<Item = Trouble> {
        self.outboxes.iter().filter(|outbox| outbox.len() > 0).filter_map(Outbox::trouble)
    }

    /// The worst of all subjects.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.troubles().max()
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.troubles().any(|trouble| trouble == Trouble::Unavailable)
    }

    /// Whether a transaction that was cancelled and sent again can be published: its cancellation is on another subject
    /// and would come behind it.
    pub(crate) fn room_behind_cancellation(&mut self, item: &Item) -> Room {
        let Item::Order { order, again: 1.. } = item else { return Room::Now };
        let hash = *order.id().hash();
        let is_it =
            |item: &Item| matches!(item, Item::CancelPrivate { hash: of, .. } if *of == hash);
        let Some(lane) = self.outboxes.iter().position(|outbox| outbox.holds(is_it)) else {
            return Room::Now;
        };
        if self.outboxes[lane].trouble() == Some(Trouble::Denied) {
            self.left_out[lane] = true;
            return Room::LeaveOut;
        }
        Room::Wait
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
        let after = self.compared_at? + COMPARE_PAUSE;
        let left_out = self.left_out.iter().zip(&self.outboxes).filter(|(left_out, _)| **left_out);
        left_out.filter_map(|(_, outbox)| outbox.opens_after(after)).min()
    }

    /// Whether a subject takes messages again after some were left out, or has none left to try it with.
    pub(crate) fn must_compare(&self, now: Instant) -> bool {
        self.compare_at().is_some_and(|at| at <= now)
    }

    /// A comparison begins.
    pub(crate) fn compares(&mut self) {
        self.compared_at = None;
        self.left_out.fill(false);
    }

    /// It has ended.
    pub(crate) const fn compared(&mut self, now: Instant) {
        self.compared_at = Some(now);
    }

    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let wakes = self.outboxes.iter().filter_map(|outbox| outbox.next_wake(now));
        wakes.chain(self.compare_at()).min()
    }

    /// A new connection: everything that is not acknowledged is published again.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.outboxes.iter_mut().for_each(|outbox| outbox.connected(now));
    }

    /// What must not come behind this item is not published again: a transaction behind its cancellation, and an old
    /// head. Returns how many messages have left.
    pub(crate) fn withdraw_for(&mut self, item: &Item) -> usize {
        let is_it = |other: &Item| match (item, other) {
            (Item::CancelPrivate { hash, .. }, Item::Order { order, .. }) => {
                order.id() == OrderId::Tx(*hash)
            }
            (Item::Head(new), Item::Head(old)) => {
                old.head.number.saturating_add(MAX_HEAD_AGE) < new.head.number
            }
            _ => false,
        };
        if !matches!(item, Item::CancelPrivate { .. } | Item::Head(_)) {
            return 0;
        }
        self.outboxes.iter_mut().map(|outbox| outbox.withdraw(is_it)).sum()
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, B256};

    use std::{sync::Arc, time::SystemTime};

    use alloy_consensus::transaction::Recovered;
    use alloy_eips::eip2718::Decodable2718 as _;
    use chain_view::{Head, PooledTransaction};
    use mock_node::workload::{Workload, WorkloadConfig};
    use order_pool::{Order, Origin, Transaction};

    use super::*;
    use crate::{backoff::Backoff, config::Flow, outbox::Answer, wire::HeadRecord};

    fn transactions(count: usize, again: u32) -> Vec<Item> {
        let load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) })
            .prepare(count);
        let item = |tx: mock_node::workload::PreparedTx| {
            let read = PooledTransaction::decode_2718_exact(&tx.raw).expect("a transaction");
            let tx = Recovered::new_unchecked(read, tx.sender);
            let tx = Transaction::new(tx, Origin::Rpc, SystemTime::now());
            Item::Order { order: Arc::new(Order::Tx(tx)), again }
        };
        load.into_iter().map(item).collect()
    }

    fn cancellation_of(item: &Item) -> Item {
        let Item::Order { order, .. } = item else { panic!("{item:?}") };
        Item::CancelPrivate { hash: *order.id().hash(), signer: Address::ZERO, again: 0 }
    }

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
        lanes.compares();
        lanes.compared(now);
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
        lanes.compares();
        assert!(!lanes.must_compare(now + 9 * SECOND));
        lanes.compared(now + SECOND);
        assert!(!lanes.must_compare(now + 9 * SECOND));
    }

    #[test]
    fn the_next_comparison_is_not_due_before_the_present_one_has_ended() {
        let ((mut lanes, subjects), now) = (lanes(Flow::Public, 2), Instant::now());
        lanes.compares();
        let number = add(&mut lanes, 0, now);
        answer(&mut lanes, (0, number), Answer::Later(Trouble::Unavailable), now);
        assert_eq!(lanes.room(0, &subjects, now), Room::LeaveOut);
        answer(&mut lanes, (0, number), Answer::Stored, now);
        let now = now + 9 * SECOND;
        assert_eq!(lanes.next_wake(now), None, "a time in the past would never let it sleep");
        lanes.compared(now);
        assert_eq!(lanes.next_wake(now), Some(now + COMPARE_PAUSE));
    }

    #[test]
    fn a_subject_with_nothing_left_to_try_it_with_is_compared_with() {
        let ((mut lanes, subjects), now) = (lanes(Flow::Private, 1), Instant::now());
        lanes.compared(now);
        let txs = transactions(2, 0);
        let order = &txs[0];
        let number = lanes.get_mut(0).expect("a lane").add(order.clone(), B256::ZERO, 10, now);
        answer(&mut lanes, (0, number), DENIED, now);
        assert_eq!(lanes.room(0, &subjects, now), Room::LeaveOut);
        assert_eq!(lanes.compare_at(), None, "the first one tries");
        assert_eq!(lanes.trouble(), Some(Trouble::Denied));
        assert_eq!(lanes.withdraw_for(&cancellation_of(order)), 1);
        assert_eq!(lanes.compare_at(), Some(now + COMPARE_PAUSE));
        assert_eq!(lanes.trouble(), None, "nothing waits");
    }

    #[test]
    fn a_transaction_that_is_sent_again_is_not_overtaken_by_its_cancellation() {
        let ((mut lanes, subjects), now) = (lanes(Flow::Private, 1), Instant::now());
        lanes.compared(now);
        let txs = transactions(2, 1);
        let cancel = cancellation_of(&txs[0]);
        let number = lanes.get_mut(1).expect("a lane").add(cancel, B256::ZERO, 10, now);
        assert_eq!(lanes.room_behind_cancellation(&txs[0]), Room::Wait);
        assert_eq!(lanes.room_behind_cancellation(&txs[1]), Room::Now, "another");
        answer(&mut lanes, (1, number), DENIED, now);
        assert_eq!(lanes.room_behind_cancellation(&txs[0]), Room::LeaveOut, "it may take long");
        assert_eq!(lanes.room(0, &subjects, now), Room::Now);
        answer(&mut lanes, (1, number), Answer::Stored, now);
        assert_eq!(lanes.room_behind_cancellation(&txs[0]), Room::Now);
        assert_eq!(lanes.compare_at(), Some(now + COMPARE_PAUSE), "it was left out");
    }

    #[test]
    fn a_head_that_waited_for_long_is_not_published_behind_a_new_one() {
        let ((mut lanes, _), now) = (lanes(Flow::Public, 1), Instant::now());
        let head = |number| {
            let head = Head::new(number, B256::repeat_byte(1), B256::ZERO);
            Item::Head(Arc::new(HeadRecord { head, previous: B256::ZERO, mined: Vec::new() }))
        };
        for number in [100, 101] {
            lanes.get_mut(1).expect("a lane").add(head(number), B256::ZERO, 10, now);
        }
        assert_eq!(lanes.withdraw_for(&head(100 + MAX_HEAD_AGE)), 0);
        assert_eq!(lanes.withdraw_for(&head(101 + MAX_HEAD_AGE)), 1);
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
