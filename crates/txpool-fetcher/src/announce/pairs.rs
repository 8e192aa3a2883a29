//! Pairs the announcements of a source's two subscriptions: one to hashes, and one to objects
//! (whole transactions as JSON). Decides when a hash is requested because its object does not come.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::{sync::Notify, time::timeout};

use crate::{
    context::Context,
    fetch::{Arrival, Fetch, Hashes, Ticket},
    limits::Limits,
    node::Meter,
    sync::{OnDrop, lock},
};

/// Hashes of all sources that wait for their objects. The first object is delivered, whichever node
/// announces it.
pub(crate) type AwaitingObjects = Arc<Mutex<HashMap<B256, Awaiting>>>;

/// A hash that waits for its object, or for a slot.
pub(crate) struct Awaiting {
    ticket: Ticket,
    /// The object has come and cannot be delivered (a blob transaction, for one): the hash waits
    /// for a slot in which it is requested.
    needs_request: bool,
}

/// Capacity of one generation of announcements whose counterpart on the other subscription has not
/// come; two generations take at most 5 MB. A counterpart that comes when its announcement is
/// forgotten counts as a repeated announcement.
const GENERATION_CAPACITY: usize = 32_768;

/// The number of hashes in a row without an object, over at least [`DEAD_STREAM_TIME`], after which
/// the subscription to objects counts as dead: reth may end it silently. A node that only drops
/// some objects never reaches it.
const DEAD_STREAM_HASHES: u32 = 64;

/// See [`DEAD_STREAM_HASHES`]. It is longer than the pauses of a node: geth pauses for 3 s now and
/// then.
const DEAD_STREAM_TIME: Duration = Duration::from_secs(4);

/// Pairs hashes with objects, so that an announcement counts once, whichever of the two comes
/// first.
///
/// An object that comes first is delivered at once. A hash that comes first waits for its object,
/// and is requested when the object is overdue:
/// - when a later object has come, of a hash that was announced at least a fifth of `object_wait`
///   after this one, because a node announces hashes and objects in the same order;
/// - otherwise after `object_wait`, unless objects that were read from the socket before then still
///   wait to be processed, because the object may be among these.
///
/// One queue holds the waiting hashes in the order of their arrival, and one timer looks at its
/// front.
pub(crate) struct Pairs {
    waiting: AwaitingObjects,
    /// Counts the objects in their buffer.
    objects: Option<Arc<Meter>>,
    object_wait: Duration,
    /// The number of hashes that may wait, as many as the announcement buffer holds. Beyond that
    /// the oldest is requested.
    max_waiting: usize,
    state: Mutex<State>,
    /// Notified when a hash begins to wait, and when the subscription to objects ends.
    changed: Notify,
    /// Notified when the node turns out to announce hashes in place of objects, or no objects any
    /// more.
    pub(super) refused: Notify,
}

/// The result of [`Pairs::on_hash`].
pub(super) enum HashResult {
    /// The hash is known, waits for its object, or its object came before.
    Paired,
    /// No objects come any more, and the hash has not entered.
    Unpaired,
    /// Too many hashes wait, and this one has not entered.
    Full,
}

struct State {
    /// Hashes in the order of their arrival, with the time at which each was read from the socket.
    /// The objects of some have come by now.
    queue: VecDeque<(B256, Instant)>,
    unmatched: Unmatched,
    /// The latest time at which a hash was read whose object has come.
    latest_matched: Instant,
    /// When the object that is being processed was read from its socket; `None` while no object is
    /// processed.
    processing: Option<Instant>,
    /// The number of hashes in a row whose object did not come in time.
    without_object: u32,
    /// When the first of them was announced.
    without_object_since: Instant,
    /// No object comes any more: hashes are not queued, and those in the queue are requested.
    is_closed: bool,
}

/// For each transaction, the number of announced hashes minus the number of announced objects, if
/// it is not zero. When the younger of the two generations is full, the older one is forgotten.
#[derive(Debug, Default)]
struct Unmatched {
    young: HashMap<B256, i32>,
    old: HashMap<B256, i32>,
}

/// What the timer does next for the waiting hashes.
enum Next {
    /// Request the oldest hash. `is_missed` says that its object should have come by now.
    Request { ticket: Ticket, is_missed: bool },
    /// Look again, after a fifth of `object_wait`.
    Wait,
    /// No hash waits.
    Idle,
    /// No hash waits, and none will.
    End,
}

impl Pairs {
    pub(super) fn new(
        waiting: &AwaitingObjects,
        objects: Option<Arc<Meter>>,
        limits: &Limits,
    ) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            queue: VecDeque::new(),
            unmatched: Unmatched::default(),
            latest_matched: now,
            processing: None,
            without_object: 0,
            without_object_since: now,
            is_closed: false,
        };
        Arc::new(Self {
            waiting: Arc::clone(waiting),
            objects,
            object_wait: limits.object_wait,
            max_waiting: limits.announcement_buffer,
            state: Mutex::new(state),
            changed: Notify::new(),
            refused: Notify::new(),
        })
    }

    /// Pairs an announced hash with its object, or queues it, if there is room in the queue.
    pub(super) fn on_hash(&self, hashes: &Arc<Hashes>, arrival: Arrival) -> HashResult {
        let mut state = lock(&self.state);
        if state.queue.len() >= self.max_waiting && !state.is_closed {
            return HashResult::Full;
        }
        if state.unmatched.add(arrival.hash, 1) < 0 {
            // The object came before, and was counted.
            state.latest_matched = arrival.received_at;
            return HashResult::Paired;
        }
        if state.is_closed {
            return HashResult::Unpaired;
        }
        // The hash enters under the lock, so that its object finds it either unknown or waiting.
        let Some(ticket) = hashes.enter(arrival) else { return HashResult::Paired };
        if state.queue.is_empty() {
            self.changed.notify_one();
        }
        state.queue.push_back((arrival.hash, arrival.received_at));
        // No other ticket is replaced: a hash that is in flight does not enter again.
        let awaiting = Awaiting { ticket, needs_request: false };
        lock(&self.waiting).insert(arrival.hash, awaiting);
        HashResult::Paired
    }

    /// Processes an announced hash: it waits for its object, or is fetched. If too many hashes
    /// wait, the oldest is fetched first.
    pub(super) async fn take_announced(
        &self,
        context: &Context,
        fetch: &Arc<Fetch>,
        arrival: Arrival,
    ) {
        let (hashes, lagged) = (&context.hashes, &context.metrics.lagged);
        loop {
            match self.on_hash(hashes, arrival) {
                HashResult::Paired => return,
                HashResult::Unpaired => return fetch.fetch_announced(arrival).await,
                HashResult::Full => {}
            }
            let oldest = self.pop_oldest(&mut lock(&self.state));
            if let Some(ticket) = oldest {
                // If a stop drops this future while it waits, the hash of `arrival` has not
                // entered, and is counted as lost.
                let count_lost = OnDrop(|| lagged.add(1));
                fetch.fetch(ticket).await;
                std::mem::forget(count_lost);
            }
        }
    }

    /// Notes that the processing of an object begins, which was read from its socket at `read_at`.
    pub(super) fn begin_object(&self, read_at: Instant) {
        let mut state = lock(&self.state);
        state.processing = Some(read_at);
        state.without_object = 0;
    }

    /// Notes that all objects that came are processed.
    pub(super) fn end_objects(&self) {
        lock(&self.state).processing = None;
    }

    /// Pairs an announced object with its hash. Returns the ticket of the hash, if the transaction
    /// is new or its hash waits.
    ///
    /// `is_whole` is false if the transaction must be requested although its object has come. Then
    /// a hash that another source announced keeps waiting, because that source requests it itself.
    pub(super) fn on_object(
        &self,
        hashes: &Arc<Hashes>,
        arrival: Arrival,
        is_whole: bool,
    ) -> Option<Ticket> {
        let mut state = lock(&self.state);
        if state.unmatched.add(arrival.hash, -1) > 0 {
            // The hash came before, and was counted. If it does not wait, it was requested or
            // known.
            let ticket = self.take_waiting(&arrival, is_whole)?;
            state.latest_matched = state.latest_matched.max(ticket.arrival.received_at);
            return Some(ticket);
        }
        drop(state);
        // The hash may wait because another node announced it.
        hashes.enter(arrival).or_else(|| self.take_waiting(&arrival, is_whole))
    }

    /// Removes the ticket of a waiting hash for its object.
    fn take_waiting(&self, arrival: &Arrival, is_whole: bool) -> Option<Ticket> {
        let mut waiting = lock(&self.waiting);
        let awaiting = waiting.get(&arrival.hash)?;
        if !is_whole && awaiting.ticket.arrival.source != arrival.source {
            return None;
        }
        waiting.remove(&arrival.hash).map(|awaiting| awaiting.ticket)
    }

    /// Requests a transaction whose object is not whole. If no slot is free, the hash is queued for
    /// the timer, so that it does not delay the objects behind it, which need no slot.
    pub(super) async fn fetch(&self, fetch: &Arc<Fetch>, ticket: Ticket) {
        let Err(ticket) = fetch.try_fetch(ticket) else { return };
        if let Err(ticket) = self.put_back(ticket) {
            fetch.fetch(ticket).await;
        }
    }

    fn put_back(&self, ticket: Ticket) -> Result<(), Ticket> {
        let mut state = lock(&self.state);
        if state.is_closed || state.queue.len() >= self.max_waiting {
            return Err(ticket);
        }
        // If its hash came first, the queue has an earlier place for it, and the timer skips this
        // one.
        state.queue.push_back((ticket.arrival.hash, ticket.arrival.received_at));
        let awaiting = Awaiting { ticket, needs_request: true };
        lock(&self.waiting).insert(awaiting.ticket.arrival.hash, awaiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Notes that no object comes any more: hashes that wait are requested now.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_one();
    }

    /// The timer: requests and counts the hashes whose objects are overdue, until no object comes
    /// any more.
    pub(super) async fn request_overdue(self: Arc<Self>, context: Arc<Context>, fetch: Arc<Fetch>) {
        loop {
            match self.next(Instant::now()) {
                Next::Request { ticket, is_missed } => {
                    context.metrics.objects_missed.add(u64::from(is_missed));
                    fetch.fetch(ticket).await;
                }
                // The end of the subscription interrupts the wait.
                Next::Wait => _ = timeout(self.object_wait / 5, self.changed.notified()).await,
                Next::Idle => self.changed.notified().await,
                Next::End => return,
            }
        }
    }

    /// Decides what to do about the oldest hash in the queue. Hashes whose object has come are
    /// skipped. A hash counts as missed if its object is overdue, but not if the object came and
    /// cannot be delivered, and not after the subscription to objects has ended.
    fn next(&self, now: Instant) -> Next {
        let mut state = lock(&self.state);
        while let Some((hash, received_at)) = state.queue.front().copied() {
            let mut waiting = lock(&self.waiting);
            let waits_for_object =
                waiting.get(&hash).is_some_and(|awaiting| !awaiting.needs_request);
            if waits_for_object && !self.is_overdue(&state, received_at, now) {
                return Next::Wait;
            }
            state.queue.pop_front();
            // Without an entry, the object has come, or the hash was requested for want of room.
            if let Some(Awaiting { ticket, needs_request }) = waiting.remove(&hash) {
                // All sources share this lock, and it is not needed below.
                drop(waiting);
                let is_missed = !needs_request && !state.is_closed;
                if is_missed {
                    state.count_missed(received_at, now);
                    self.close_if_dead(&mut state, now);
                }
                return Next::Request { ticket, is_missed };
            }
        }
        if state.is_closed { Next::End } else { Next::Idle }
    }

    /// Closes the pairs if the subscription to objects is dead, because every transaction would be
    /// late by `object_wait`.
    fn close_if_dead(&self, state: &mut State, now: Instant) {
        let lasted = now.saturating_duration_since(state.without_object_since);
        if state.without_object >= DEAD_STREAM_HASHES && lasted >= DEAD_STREAM_TIME {
            tracing::warn!(
                hashes = state.without_object,
                "the node announces hashes and no whole transactions any more: only hashes are used \
                 until the next reconnect"
            );
            state.is_closed = true;
            self.refused.notify_one();
        }
    }

    /// Removes the hash that has waited for the longest time.
    fn pop_oldest(&self, state: &mut State) -> Option<Ticket> {
        let mut oldest = std::iter::from_fn(|| state.queue.pop_front());
        oldest.find_map(|(hash, _)| Some(lock(&self.waiting).remove(&hash)?.ticket))
    }

    /// Returns whether the object of a hash that was read at `received_at` should have come by now.
    fn is_overdue(&self, state: &State, received_at: Instant, now: Instant) -> bool {
        let deadline = received_at + self.object_wait;
        // Whether all objects that were read from the socket before the deadline are processed.
        let are_processed = match state.processing {
            Some(read_at) => read_at >= deadline,
            None => self.objects.as_ref().is_none_or(|objects| objects.waiting() == 0),
        };
        state.is_closed
            || state.latest_matched >= received_at + self.object_wait / 5
            || (now >= deadline && are_processed)
    }
}

impl State {
    /// Counts a hash that was read at `received_at` and whose object did not come in time.
    fn count_missed(&mut self, received_at: Instant, now: Instant) {
        if self.without_object == 0 {
            self.without_object_since = received_at.min(now);
        }
        self.without_object = self.without_object.saturating_add(1);
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        // A stop may leave hashes that wait: their tickets are dropped.
        let mut state = lock(&self.state);
        while self.pop_oldest(&mut state).is_some() {}
    }
}

impl Unmatched {
    /// Adds `step` to the difference of a transaction. Returns the difference before.
    fn add(&mut self, hash: B256, step: i32) -> i32 {
        let before = self.young.remove(&hash).or_else(|| self.old.remove(&hash)).unwrap_or(0);
        if before + step != 0 {
            if self.young.len() >= GENERATION_CAPACITY {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(hash, before + step);
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fetch::Seen,
        metrics::Metrics,
        outcome::{Entry, Outcome},
    };
    use proptest::prelude::*;
    use tokio_util::sync::CancellationToken;

    const TXS: usize = 3;

    fn pairs(object_wait: Duration) -> Arc<Pairs> {
        pairs_with(object_wait, &Arc::default())
    }

    fn pairs_with(object_wait: Duration, waiting: &AwaitingObjects) -> Arc<Pairs> {
        let limits = Limits { object_wait, announcement_buffer: 4, ..Limits::default() };
        Pairs::new(waiting, None, &limits)
    }

    fn new_hashes() -> Arc<Hashes> {
        Hashes::new(CancellationToken::new(), Arc::new(Metrics::new()), 2)
    }

    fn pop_oldest(pairs: &Pairs) -> Option<Ticket> {
        pairs.pop_oldest(&mut lock(&pairs.state))
    }

    fn arrival(tx: usize, received_at: Instant) -> Arrival {
        let hash = B256::repeat_byte(tx as u8);
        Arrival { hash, entry: Entry::Announced, source: 0, received_at }
    }

    proptest! {
        #[test]
        fn an_announcement_counts_once_whichever_of_hash_and_object_comes_first(
            steps in proptest::collection::vec((0..TXS, 0u8..3), 0..40)
        ) {
            let pairs = pairs(Duration::from_secs(3_600));
            let hashes = new_hashes();
            let now = Instant::now();
            // For each transaction: hashes minus objects, and how often it was delivered.
            let (mut ahead, mut delivered) = ([0i32; TXS], [0; TXS]);
            let mut announced = 0;
            let mut deliver = |ticket: Option<Ticket>| {
                if let Some(ticket) = ticket {
                    delivered[ticket.arrival.hash[0] as usize] += 1;
                    ticket.finish(Outcome::Pooled, Some(Seen::Delivered));
                }
            };
            for (tx, step) in steps {
                match step {
                    0 => {
                        announced += u64::from(ahead[tx] >= 0);
                        ahead[tx] += 1;
                        let result = pairs.on_hash(&hashes, arrival(tx, now));
                        prop_assert!(matches!(result, HashResult::Paired));
                    }
                    1 => {
                        announced += u64::from(ahead[tx] <= 0);
                        ahead[tx] -= 1;
                        deliver(pairs.on_object(&hashes, arrival(tx, now), true));
                    }
                    _ => deliver(pop_oldest(&pairs)),
                }
                let counts = hashes.counts();
                prop_assert_eq!((counts.announced, counts.balance()), (announced, 0));
                prop_assert_eq!(counts.unfinished, lock(&pairs.waiting).len() as u64);
            }
            pairs.close();
            while let Next::Request { ticket, .. } = pairs.next(now) {
                deliver(Some(ticket));
            }
            prop_assert!(delivered.iter().all(|times| *times <= 1), "{delivered:?}");
            let counts = hashes.counts();
            prop_assert_eq!((counts.balance(), counts.unfinished), (0, 0));
            prop_assert_eq!(counts.pooled + counts.known, announced);
            for (tx, ahead) in ahead.into_iter().enumerate() {
                prop_assert!(ahead == 0 || delivered[tx] == 1, "announced and not delivered");
            }
        }
    }

    #[test]
    fn an_object_is_overdue_after_later_ones_or_after_the_wait() {
        let wait = Duration::from_secs(1);
        let pairs = pairs(wait);
        let hashes = new_hashes();
        let start = Instant::now();
        let requested = |now| match pairs.next(now) {
            Next::Request { ticket, .. } => Some(ticket.arrival.hash[0]),
            _ => None,
        };
        for (tx, after) in [(0, wait / 10), (1, wait / 5), (2, wait / 3), (3, wait)] {
            let result = pairs.on_hash(&hashes, arrival(tx, start + after));
            assert!(matches!(result, HashResult::Paired));
        }
        assert!(pairs.on_object(&hashes, arrival(1, start + wait), true).is_some());
        assert_eq!(requested(start + wait), None, "objects may be slightly out of order");
        assert!(pairs.on_object(&hashes, arrival(2, start + wait), true).is_some());
        assert_eq!(requested(start + wait), Some(0), "the object of a later hash has come");
        assert_eq!(requested(start + wait), None);
        pairs.begin_object(start + wait);
        assert_eq!(requested(start + 2 * wait), None, "an object is being processed");
        pairs.end_objects();
        assert_eq!(requested(start + 2 * wait), Some(3), "it has waited");
    }

    /// Before the fix it waited until it was overdue, and counted as dropped by the node.
    #[test]
    fn an_object_that_is_not_whole_is_not_counted_as_missed() {
        let (now, hashes) = (Instant::now(), new_hashes());
        let pairs = pairs(Duration::from_secs(3_600));
        for tx in 1..=2 {
            assert!(matches!(pairs.on_hash(&hashes, arrival(tx, now)), HashResult::Paired));
        }
        let ticket = pairs.on_object(&hashes, arrival(1, now), false).expect("its hash waits");
        assert!(pairs.put_back(ticket).is_ok());
        assert!(matches!(pairs.next(now), Next::Request { is_missed: false, .. }));
        assert!(matches!(pairs.next(now), Next::Wait));
        assert_eq!(lock(&pairs.waiting).len(), 1);
    }

    #[test]
    fn the_oldest_hashes_are_requested_when_too_many_wait() {
        let pairs = pairs(Duration::from_secs(3_600));
        let hashes = new_hashes();
        let now = Instant::now();
        let mut requested = Vec::new();
        for tx in 0..6 {
            while let HashResult::Full = pairs.on_hash(&hashes, arrival(tx, now)) {
                requested.extend(pop_oldest(&pairs).map(|ticket| ticket.arrival.hash[0]));
            }
        }
        assert_eq!(requested, [0, 1]);
    }

    /// Before the fix the object was ignored, and the transaction late because of the other node.
    #[test]
    fn the_object_of_one_node_is_delivered_for_the_hash_of_another() {
        let (now, waiting, hashes) = (Instant::now(), Arc::default(), new_hashes());
        let [first, other] = [0; 2].map(|_| pairs_with(Duration::from_secs(3_600), &waiting));
        for (tx, hash_comes) in [(1, true), (2, false)] {
            assert!(matches!(first.on_hash(&hashes, arrival(tx, now)), HashResult::Paired));
            if hash_comes {
                assert!(matches!(other.on_hash(&hashes, arrival(tx, now)), HashResult::Paired));
            }
            let ticket = other.on_object(&hashes, arrival(tx, now), true).expect("its hash waits");
            ticket.finish(Outcome::Pooled, Some(Seen::Delivered));
            assert!(first.on_object(&hashes, arrival(tx, now), true).is_none());
        }
        assert!(pop_oldest(&first).is_none() && lock(&waiting).is_empty());
        assert_eq!(hashes.counts().balance(), 0);
        // A transaction that has to be requested takes a slot of the source that announced it
        // first.
        assert!(matches!(first.on_hash(&hashes, arrival(3, now)), HashResult::Paired));
        let from_other = Arrival { source: 1, ..arrival(3, now) };
        assert!(other.on_object(&hashes, from_other, false).is_none());
        assert!(pop_oldest(&first).is_some());
    }

    #[test]
    fn waiting_hashes_are_dropped_with_their_source() {
        let pairs = pairs(Duration::from_secs(3_600));
        let (hashes, waiting) = (new_hashes(), Arc::clone(&pairs.waiting));
        let result = pairs.on_hash(&hashes, arrival(1, Instant::now()));
        assert!(matches!(result, HashResult::Paired));
        drop(pairs);
        assert_eq!((lock(&waiting).len(), Arc::strong_count(&hashes)), (0, 1));
    }

    /// Before the fix every transaction was late by the wait, for ever.
    #[test]
    fn only_a_subscription_without_any_objects_is_given_up() {
        let wait = Duration::from_millis(25);
        for (drops_all, expected) in [(true, true), (false, false)] {
            let (pairs, hashes) = (pairs(wait), new_hashes());
            let mut now = Instant::now();
            for n in 0..200_u64 {
                now += Duration::from_millis(50);
                let hash = B256::left_padding_from(&(n + 1).to_be_bytes());
                let arrival =
                    Arrival { hash, entry: Entry::Announced, source: 0, received_at: now };
                pairs.on_hash(&hashes, arrival);
                if !drops_all && n % 50 == 0 {
                    pairs.begin_object(now);
                    drop(pairs.on_object(&hashes, arrival, true));
                    pairs.end_objects();
                }
                while let Next::Request { .. } = pairs.next(now + wait) {}
            }
            assert_eq!(lock(&pairs.state).is_closed, expected, "drops all: {drops_all}");
        }
    }

    #[test]
    fn unmatched_announcements_are_bounded() {
        let mut unmatched = Unmatched::default();
        let hash = |n: usize| B256::left_padding_from(&n.to_be_bytes());
        for n in 0..3 * GENERATION_CAPACITY {
            assert_eq!(unmatched.add(hash(n), 1), 0);
            assert!(unmatched.young.len() + unmatched.old.len() <= 2 * GENERATION_CAPACITY);
        }
        assert_eq!(unmatched.add(hash(0), -1), 0, "forgotten");
        assert_eq!(unmatched.add(hash(2 * GENERATION_CAPACITY), -1), 1);
    }
}
