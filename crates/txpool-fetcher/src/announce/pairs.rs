//! Which announcements of a source's two streams, of hashes and of objects, belong together.

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

/// Hashes of all sources that wait for their objects, each with whether its object has come and was not
/// whole. The first object is delivered, whichever node announces it.
pub(crate) type AwaitingObjects = Arc<Mutex<HashMap<B256, (Ticket, bool)>>>;

/// Announcements without a counterpart in the other stream that are remembered: this many, or twice
/// as many; at most 5 MB. One whose counterpart comes later than that counts as a repeat.
const REMEMBERED: usize = 32_768;

/// So many hashes in a row without an object, over at least [`NO_OBJECTS_FOR`], are the sign that the stream of
/// objects is dead, which reth may end without a word. A node that only drops some of them never has as many.
const NO_OBJECTS: u32 = 64;

/// See [`NO_OBJECTS`]. Longer than a node pauses: geth does so for 3 s now and then.
const NO_OBJECTS_FOR: Duration = Duration::from_secs(4);

/// Pairs hashes with objects, so that an announcement counts once, whichever comes first.
///
/// An object that comes first is delivered at once. A hash that comes first waits for its object, and
/// is requested when the object is overdue:
/// - when that of a hash announced a fifth of the wait later has come: both streams are in order;
/// - else after the wait, from the read of the hash to that of objects: one that waits has come.
///
/// One queue holds the waiting hashes in the order of their arrival, and one timer looks at its front.
pub(crate) struct Pairs {
    waiting: AwaitingObjects,
    /// The buffer of the objects.
    objects: Option<Arc<Meter>>,
    wait: Duration,
    /// As many hashes may wait as the buffer holds; above that the oldest is requested.
    most_waiting: usize,
    state: Mutex<State>,
    /// Notified when a hash begins to wait, and at the end of the objects.
    changed: Notify,
    /// Notified when the node turns out to announce hashes in place of objects, or no objects any more.
    pub(super) refused: Notify,
}

/// What became of a hash.
pub(super) enum OnHash {
    /// It has entered and waits for its object; or its object came before.
    Paired,
    /// No objects come, and it has not entered.
    Unpaired,
    /// Too many wait, and it has not entered.
    Full,
}

struct State {
    /// Hashes in the order of their arrival, and when each was read. Some have their object by now.
    queue: VecDeque<(B256, Instant)>,
    unmatched: Unmatched,
    /// When the latest of the hashes was read whose objects have come.
    passed: Instant,
    /// When the latest object was read from its socket that is taken out of the buffer; `None` while all
    /// that came are processed.
    in_work: Option<Instant>,
    /// How many hashes in a row had no object in time, and when the first of them was announced.
    without_object: u32,
    without_object_since: Instant,
    /// No object comes any more, so no hash waits.
    is_closed: bool,
}

/// How many more hashes than objects were announced of a transaction, where the numbers differ. In
/// two generations: when the younger one is full, the older one is forgotten.
#[derive(Debug, Default)]
struct Unmatched {
    young: HashMap<B256, i32>,
    old: HashMap<B256, i32>,
}

/// What there is to do for the hashes that wait.
enum Next {
    /// With whether its object should have come by now.
    Request(Ticket, bool),
    /// To look again, after a fifth of the wait.
    Wait,
    /// None waits.
    Idle,
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
            passed: now,
            in_work: None,
            without_object: 0,
            without_object_since: now,
            is_closed: false,
        };
        Arc::new(Self {
            waiting: Arc::clone(waiting),
            objects,
            wait: limits.object_wait,
            most_waiting: limits.announcement_buffer,
            state: Mutex::new(state),
            changed: Notify::new(),
            refused: Notify::new(),
        })
    }

    /// Takes in an announced hash, if that needs no wait.
    pub(super) fn on_hash(&self, hashes: &Arc<Hashes>, arrival: Arrival) -> OnHash {
        let mut state = lock(&self.state);
        if state.queue.len() >= self.most_waiting && !state.is_closed {
            return OnHash::Full;
        }
        if state.unmatched.add(arrival.hash, 1) < 0 {
            // Its object came before and was counted.
            state.passed = arrival.at;
            return OnHash::Paired;
        }
        if state.is_closed {
            return OnHash::Unpaired;
        }
        // Under the lock, so that the object finds the hash either unknown or waiting.
        let Some(ticket) = hashes.enter(arrival) else { return OnHash::Paired };
        if state.queue.is_empty() {
            self.changed.notify_one();
        }
        state.queue.push_back((arrival.hash, arrival.at));
        // It replaces none: a hash that is in flight is not entered again.
        lock(&self.waiting).insert(arrival.hash, (ticket, false));
        OnHash::Paired
    }

    /// Takes in an announced hash: it waits for its object, or is fetched. If too many wait, the oldest
    /// are fetched.
    pub(super) async fn announced(&self, context: &Context, fetch: &Arc<Fetch>, arrival: Arrival) {
        let (hashes, lagged) = (&context.hashes, &context.metrics.lagged);
        loop {
            match self.on_hash(hashes, arrival) {
                OnHash::Paired => return,
                OnHash::Unpaired => return fetch.announced(arrival).await,
                OnHash::Full => {}
            }
            let oldest = self.pop_oldest(&mut lock(&self.state));
            if let Some(ticket) = oldest {
                // A stop ends the wait: the hash in hand has not entered yet.
                let lost = OnDrop(|| lagged.add(1));
                fetch.fetch(ticket).await;
                std::mem::forget(lost);
            }
        }
    }

    /// An object was taken out of the buffer that was read from its socket at this time.
    pub(super) fn object_is_read(&self, read_at: Instant) {
        let mut state = lock(&self.state);
        state.in_work = Some(read_at);
        state.without_object = 0;
    }

    /// No object waits in the buffer or is in work.
    pub(super) fn objects_are_processed(&self) {
        lock(&self.state).in_work = None;
    }

    /// Takes in an announced object. Returns its ticket, if it is news; of one that is not whole not that of another source,
    /// which requests it itself.
    pub(super) fn on_object(
        &self,
        hashes: &Arc<Hashes>,
        arrival: Arrival,
        is_whole: bool,
    ) -> Option<Ticket> {
        let take = || {
            let mut waiting = lock(&self.waiting);
            let (ticket, _) = waiting.get(&arrival.hash)?;
            let may_take = is_whole || ticket.arrival.source == arrival.source;
            may_take.then(|| waiting.remove(&arrival.hash)).flatten().map(|(ticket, _)| ticket)
        };
        let mut state = lock(&self.state);
        if state.unmatched.add(arrival.hash, -1) > 0 {
            // Its hash was counted, and has been requested or known if it does not wait.
            let ticket = take()?;
            state.passed = state.passed.max(ticket.arrival.at);
            return Some(ticket);
        }
        drop(state);
        // Another node's hash may wait for it.
        hashes.enter(arrival).or_else(take)
    }

    /// Fetches what has no whole object. If there is no slot for it, the timer fetches it in its turn:
    /// objects that need no slot are behind it.
    pub(super) async fn fetch(&self, fetch: &Arc<Fetch>, ticket: Ticket) {
        let Err(ticket) = fetch.try_fetch(ticket) else { return };
        if let Err(ticket) = self.put_back(ticket) {
            fetch.fetch(ticket).await;
        }
    }

    fn put_back(&self, ticket: Ticket) -> Result<(), Ticket> {
        let mut state = lock(&self.state);
        if state.is_closed || state.queue.len() >= self.most_waiting {
            return Err(ticket);
        }
        // If its hash came first, it has its turn already, and this one is found empty.
        state.queue.push_back((ticket.arrival.hash, ticket.arrival.at));
        lock(&self.waiting).insert(ticket.arrival.hash, (ticket, true));
        self.changed.notify_one();
        Ok(())
    }

    /// No object comes any more: what waits is requested now.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_one();
    }

    /// Fetches the hashes whose objects are overdue, until no object comes any more. Counts them.
    pub(super) async fn request_overdue(self: Arc<Self>, context: Arc<Context>, fetch: Arc<Fetch>) {
        loop {
            match self.next(Instant::now()) {
                Next::Request(ticket, is_missed) => {
                    context.metrics.objects_missed.add(u64::from(is_missed));
                    fetch.fetch(ticket).await;
                }
                // The end of the objects does not wait.
                Next::Wait => _ = timeout(self.wait / 5, self.changed.notified()).await,
                Next::Idle => self.changed.notified().await,
                Next::End => return,
            }
        }
    }

    fn next(&self, now: Instant) -> Next {
        let mut state = lock(&self.state);
        while let Some((hash, at)) = state.queue.front().copied() {
            let mut waiting = lock(&self.waiting);
            let has_come = waiting.get(&hash).map(|(_, has_come)| *has_come);
            if has_come == Some(false) && !self.is_overdue(&state, at, now) {
                return Next::Wait;
            }
            state.queue.pop_front();
            if let Some((ticket, has_come)) = waiting.remove(&hash) {
                drop(waiting);
                let is_missed = !has_come && !state.is_closed;
                if is_missed {
                    state.miss(at, now);
                    self.close_if_dead(&mut state, now);
                }
                return Next::Request(ticket, is_missed);
            }
        }
        if state.is_closed { Next::End } else { Next::Idle }
    }

    /// Takes hashes alone if the stream of objects is dead: each transaction would be late by the wait.
    fn close_if_dead(&self, state: &mut State, now: Instant) {
        let lasted = now.saturating_duration_since(state.without_object_since);
        if state.without_object >= NO_OBJECTS && lasted >= NO_OBJECTS_FOR {
            tracing::warn!(
                hashes = state.without_object,
                "the node announces hashes and no objects any more: taking hashes until the next reconnect"
            );
            state.is_closed = true;
            self.refused.notify_one();
        }
    }

    fn pop_oldest(&self, state: &mut State) -> Option<Ticket> {
        let mut oldest = std::iter::from_fn(|| state.queue.pop_front());
        oldest.find_map(|(hash, _)| Some(lock(&self.waiting).remove(&hash)?.0))
    }

    fn is_overdue(&self, state: &State, at: Instant, now: Instant) -> bool {
        let until = at + self.wait;
        // Nothing that was read from the socket before then waits any more.
        let are_processed = match state.in_work {
            Some(read_at) => read_at >= until,
            None => self.objects.as_ref().is_none_or(|objects| objects.waiting() == 0),
        };
        state.is_closed || state.passed >= at + self.wait / 5 || (now >= until && are_processed)
    }
}

impl State {
    /// A hash that was announced at this time had no object in time.
    fn miss(&mut self, announced_at: Instant, now: Instant) {
        if self.without_object == 0 {
            self.without_object_since = announced_at.min(now);
        }
        self.without_object = self.without_object.saturating_add(1);
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        // What a stop leaves.
        let mut state = lock(&self.state);
        while self.pop_oldest(&mut state).is_some() {}
    }
}

impl Unmatched {
    /// Returns the number before.
    fn add(&mut self, hash: B256, step: i32) -> i32 {
        let before = self.young.remove(&hash).or_else(|| self.old.remove(&hash)).unwrap_or(0);
        if before + step != 0 {
            if self.young.len() >= REMEMBERED {
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

    fn pairs(wait: Duration) -> Arc<Pairs> {
        pairs_with(wait, &Arc::default())
    }

    fn pairs_with(wait: Duration, waiting: &AwaitingObjects) -> Arc<Pairs> {
        let limits = Limits { object_wait: wait, announcement_buffer: 4, ..Limits::default() };
        Pairs::new(waiting, None, &limits)
    }

    fn known() -> Arc<Hashes> {
        Hashes::new(CancellationToken::new(), Arc::new(Metrics::new()), 2)
    }

    fn popped(pairs: &Pairs) -> Option<Ticket> {
        pairs.pop_oldest(&mut lock(&pairs.state))
    }

    fn arrival(tx: usize, at: Instant) -> Arrival {
        let hash = B256::repeat_byte(tx as u8);
        Arrival { hash, entry: Entry::Announced, source: 0, at }
    }

    proptest! {
        #[test]
        fn an_announcement_counts_once_and_is_delivered_once_whichever_comes_first(
            steps in proptest::collection::vec((0..TXS, 0u8..3), 0..40)
        ) {
            let pairs = pairs(Duration::from_secs(3_600));
            let hashes = known();
            let now = Instant::now();
            // More hashes than objects of each, and how often each was delivered.
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
                        let on_hash = pairs.on_hash(&hashes, arrival(tx, now));
                        prop_assert!(matches!(on_hash, OnHash::Paired));
                    }
                    1 => {
                        announced += u64::from(ahead[tx] <= 0);
                        ahead[tx] -= 1;
                        deliver(pairs.on_object(&hashes, arrival(tx, now), true));
                    }
                    _ => deliver(popped(&pairs)),
                }
                let counts = hashes.counts();
                prop_assert_eq!((counts.announced, counts.balance()), (announced, 0));
                prop_assert_eq!(counts.unfinished, lock(&pairs.waiting).len() as u64);
            }
            pairs.close();
            while let Next::Request(entered, _) = pairs.next(now) {
                deliver(Some(entered));
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
    fn an_object_is_overdue_when_later_ones_have_come_or_after_the_wait_if_none_waits_to_be_read() {
        let wait = Duration::from_secs(1);
        let pairs = pairs(wait);
        let hashes = known();
        let start = Instant::now();
        let requested = |now| match pairs.next(now) {
            Next::Request(ticket, _) => Some(ticket.arrival.hash[0]),
            _ => None,
        };
        for (tx, after) in [(0, wait / 10), (1, wait / 5), (2, wait / 3), (3, wait)] {
            let on_hash = pairs.on_hash(&hashes, arrival(tx, start + after));
            assert!(matches!(on_hash, OnHash::Paired));
        }
        assert!(pairs.on_object(&hashes, arrival(1, start + wait), true).is_some());
        assert_eq!(requested(start + wait), None, "objects may change places a little");
        assert!(pairs.on_object(&hashes, arrival(2, start + wait), true).is_some());
        assert_eq!(requested(start + wait), Some(0), "the object of a later hash has come");
        assert_eq!(requested(start + wait), None);
        pairs.object_is_read(start + wait);
        assert_eq!(requested(start + 2 * wait), None, "an object is in work");
        pairs.objects_are_processed();
        assert_eq!(requested(start + 2 * wait), Some(3), "it has waited");
    }

    /// It waited until it was overdue, and counted as one that the node had dropped.
    #[test]
    fn what_has_come_and_is_not_whole_is_neither_early_nor_missed() {
        let (now, hashes) = (Instant::now(), known());
        let pairs = pairs(Duration::from_secs(3_600));
        for tx in 1..=2 {
            assert!(matches!(pairs.on_hash(&hashes, arrival(tx, now)), OnHash::Paired));
        }
        let ticket = pairs.on_object(&hashes, arrival(1, now), false).expect("it is news");
        assert!(pairs.put_back(ticket).is_ok());
        assert!(matches!(pairs.next(now), Next::Request(_, false)));
        assert!(matches!(pairs.next(now), Next::Wait));
        assert_eq!(lock(&pairs.waiting).len(), 1);
    }

    #[test]
    fn of_more_hashes_than_may_wait_the_oldest_is_requested() {
        let pairs = pairs(Duration::from_secs(3_600));
        let hashes = known();
        let now = Instant::now();
        let mut requested = Vec::new();
        for tx in 0..6 {
            while let OnHash::Full = pairs.on_hash(&hashes, arrival(tx, now)) {
                requested.extend(popped(&pairs).map(|ticket| ticket.arrival.hash[0]));
            }
        }
        assert_eq!(requested, [0, 1]);
    }

    /// It was dropped, and the transaction late by the fault of the other node.
    #[test]
    fn the_object_of_one_node_is_delivered_for_the_hash_of_another() {
        let (now, waiting, hashes) = (Instant::now(), Arc::default(), known());
        let [first, other] = [0; 2].map(|_| pairs_with(Duration::from_secs(3_600), &waiting));
        for (tx, hash_comes) in [(1, true), (2, false)] {
            assert!(matches!(first.on_hash(&hashes, arrival(tx, now)), OnHash::Paired));
            if hash_comes {
                assert!(matches!(other.on_hash(&hashes, arrival(tx, now)), OnHash::Paired));
            }
            let ticket = other.on_object(&hashes, arrival(tx, now), true).expect("it is news");
            ticket.finish(Outcome::Pooled, Some(Seen::Delivered));
            assert!(first.on_object(&hashes, arrival(tx, now), true).is_none());
        }
        assert!(popped(&first).is_none() && lock(&waiting).is_empty());
        assert_eq!(hashes.counts().balance(), 0);
        // What has to be requested takes a slot of who announced it first.
        assert!(matches!(first.on_hash(&hashes, arrival(3, now)), OnHash::Paired));
        let of_other = Arrival { source: 1, ..arrival(3, now) };
        assert!(other.on_object(&hashes, of_other, false).is_none());
        assert!(popped(&first).is_some());
    }

    #[test]
    fn what_waits_when_a_source_ends_is_dropped_with_it() {
        let pairs = pairs(Duration::from_secs(3_600));
        let (hashes, waiting) = (known(), Arc::clone(&pairs.waiting));
        assert!(matches!(pairs.on_hash(&hashes, arrival(1, Instant::now())), OnHash::Paired));
        drop(pairs);
        assert_eq!((lock(&waiting).len(), Arc::strong_count(&hashes)), (0, 1));
    }

    /// Every transaction was late by the wait, for ever.
    #[test]
    fn a_dead_stream_of_objects_is_given_up_and_one_that_drops_some_is_not() {
        let wait = Duration::from_millis(25);
        for (drops_all, expected) in [(true, true), (false, false)] {
            let (pairs, hashes) = (pairs(wait), known());
            let mut now = Instant::now();
            for n in 0..200_u64 {
                now += Duration::from_millis(50);
                let hash = B256::left_padding_from(&(n + 1).to_be_bytes());
                let arrival = Arrival { hash, entry: Entry::Announced, source: 0, at: now };
                pairs.on_hash(&hashes, arrival);
                if !drops_all && n % 50 == 0 {
                    pairs.object_is_read(now);
                    drop(pairs.on_object(&hashes, arrival, true));
                    pairs.objects_are_processed();
                }
                while let Next::Request(..) = pairs.next(now + wait) {}
            }
            assert_eq!(lock(&pairs.state).is_closed, expected, "drops all: {drops_all}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut unmatched = Unmatched::default();
        let hash = |n: usize| B256::left_padding_from(&n.to_be_bytes());
        for n in 0..3 * REMEMBERED {
            assert_eq!(unmatched.add(hash(n), 1), 0);
            assert!(unmatched.young.len() + unmatched.old.len() <= 2 * REMEMBERED);
        }
        assert_eq!(unmatched.add(hash(0), -1), 0, "forgotten");
        assert_eq!(unmatched.add(hash(2 * REMEMBERED), -1), 1);
    }
}
