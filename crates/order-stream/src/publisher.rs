//! The publisher: follows a pool and publishes what it holds.
//!
//! # Why publisher and source are built this way
//!
//! Both have a pure core (window, position, follower) that a thread with a runtime of its own
//! drives.
//!
//! - **The message id of a public order is the order's hash.** Any number of machines publish all
//!   their orders. No machine needs to know of the others, and each may end at any time.
//! - **A publisher remembers which of the pool's orders it has published, but no bytes.** So an
//!   outage of any length needs no queue. In the private flow it reads every event since its start
//!   that the pool's log still has, because the pool forgets cancellations after a minute.
//! - **A publisher and a source serve one flow each.** Private orders have a stream, credentials
//!   and a connection of their own, so a mistake in the rights of one flow exposes nothing of the
//!   other.
//! - **The client's own reconnect is not used.** It hides the reason of a loss, and which messages
//!   were lost.
//! - **A stream that stores nothing gets one message at a time**, the oldest, with pauses. Without
//!   a leader the server responds at once, and would refuse 4,096 messages in a loop. A missing
//!   response counts as a failure too, and a new connection begins with one message.
//! - **A source acknowledges nothing.** It tracks its own sequence number, and the server's
//!   consumer is only a reader that begins there. The server keeps the consumer in memory, and the
//!   source creates another one after any failure. A gap in the consumer's sequence is read again.
//!   A gap in the stream's sequence without one in the consumer's consists of messages that the
//!   stream no longer has.
//! - **The client's ordered consumer is not used.** It gives each new consumer another name, so
//!   rights could not name a source. It also tries forever to create a consumer of a stream that is
//!   missing or denied.
//! - **A source decodes and inserts on the thread that reads.** It recovers no sender and verifies
//!   no proof, so both take microseconds. Unread messages stay on the server, whose responses are
//!   bounded in bytes.
//! - **The subject names the machine**, because the server grants rights by subject. A name inside
//!   the message could be forged.

mod session;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_nats::Subject;
use order_pool::{Event, Lagged, OrderPool, RemoveReason, Subscription, Transaction};

use crate::{
    clock::WallClock,
    config::PublisherConfig,
    error::StreamError,
    fair_queue::FairQueue,
    follow::{Follower, Item},
    metrics::{PublisherCounters, PublisherStats, flow_label},
    state::State,
    stream_check::StreamCheck,
    streams::{stream_name, subjects},
    window::Window,
    wire::Record,
    worker::{Status, Worker},
};

/// Publishes the orders of a pool: those that it holds, then every new one. The stream stores each
/// public order once, however many machines publish it. Dropping the publisher stops it without
/// waiting.
///
/// The pool does not wait for the publisher. While its window is full, events stay in the pool's
/// log, which the pool's caps bound. The same holds for all events of the pool while a publisher of
/// the private flow has no connection. The publisher holds a handle of the pool, so the pool's
/// other subscriptions do not end before the publisher does.
pub type Publisher = Worker<PublisherStats>;

impl Publisher {
    /// Starts publishing. The stream must exist, see [`ensure_stream`](crate::ensure_stream).
    ///
    /// # Errors
    /// The configuration is invalid, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: PublisherConfig) -> Result<Self, StreamError> {
        Self::with_clock(pool, config, WallClock::default())
    }

    /// Starts publishing with another clock of this machine, which must be the clock that times the
    /// pool's orders.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_clock(
        pool: &OrderPool,
        config: PublisherConfig,
        clock: WallClock,
    ) -> Result<Self, StreamError> {
        config.validate()?;
        let task = PublisherTask::new(pool, &config, clock);
        let counters = Arc::clone(&task.counters);
        let status = task.status.clone();
        let stats = move || counters.stats();
        let PublisherConfig { server, machine, .. } = config;
        Self::spawn("order-stream-publish", server, machine, status, stats, task)
    }
}

/// A publisher is not [ready](Publisher::readiness) when it has stored nothing for this long,
/// although something waits or because no server can be used.
pub const UNSTORED_LIMIT: Duration = Duration::from_secs(2);

/// How often the log says what a publisher waits for that has stored nothing for this long.
const UNSTORED_LOG_INTERVAL: Duration = Duration::from_secs(15);

impl Publisher {
    /// Returns for how long nothing was stored, although something waits or because no server can
    /// be used. Returns `None` if the stream has everything, and [`Duration::MAX`] before the first
    /// connection.
    #[must_use]
    pub fn unstored_for(&self) -> Option<Duration> {
        self.unstored.duration()
    }

    /// Returns a function that says whether the pool's new orders can be expected to reach
    /// builders. They cannot while nothing was stored for [`UNSTORED_LIMIT`]. The function takes a
    /// lock for some nanoseconds, and works after the publisher has ended.
    pub fn readiness(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let unstored = self.unstored.clone();
        move || unstored.duration().is_none_or(|duration| duration < UNSTORED_LIMIT)
    }
}

struct PublisherTask {
    pool: OrderPool,
    clock: WallClock,
    stream: String,
    /// The subject of orders, then that of heads or cancellations.
    subjects: [Subject; 2],
    /// Part of the unique message ids. No other machine and no other run has the same.
    run_id: String,
    status: Status,
    counters: Arc<PublisherCounters>,
    follower: Follower,
    /// The pool's events, which are read while there is a connection. The private flow has a
    /// subscription from its start on, and the pool's log keeps the unread events.
    events: Option<Subscription>,
    /// Whether the pool is replayed for a comparison.
    is_comparing: bool,
    /// Messages that must be published before more events are read. Messages of unknown callers are
    /// in `fair_queue` instead, so they hold up no event.
    outbox: VecDeque<Item>,
    /// Messages of unknown callers that are not published yet.
    fair_queue: FairQueue,
    window: Window,
    stream_check: StreamCheck,
    /// Whether the stream has acknowledged a message over this connection, and none has failed
    /// since.
    has_acknowledged: bool,
    /// Why the stream stores nothing; `None` if it does, as far as is known.
    outage: Option<State>,
    /// When the log last said that nothing is stored.
    unstored_logged_at: Option<Instant>,
}

impl PublisherTask {
    fn new(pool: &OrderPool, config: &PublisherConfig, clock: WallClock) -> Self {
        let PublisherConfig { flow, chain_id, ref machine, heads, .. } = *config;
        let counters = Arc::new(PublisherCounters::labelled(&[flow_label(flow)]));
        let started_micros = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        let mut task = Self {
            pool: pool.clone(),
            clock,
            stream: stream_name(flow, chain_id),
            subjects: subjects(flow, chain_id, machine),
            run_id: format!("{machine}-{started_micros:x}"),
            status: Status::new(
                counters.state[0].clone(),
                counters.clock_offset[0].clone(),
                "publisher",
                flow.as_str(),
            ),
            counters,
            follower: Follower::new(flow, heads),
            events: None,
            is_comparing: false,
            outbox: VecDeque::new(),
            fair_queue: FairQueue::default(),
            window: Window::default(),
            stream_check: StreamCheck::default(),
            has_acknowledged: false,
            outage: None,
            unstored_logged_at: None,
        };
        if task.follower.is_private() {
            task.begin_comparison();
        }
        task
    }

    /// Begins a comparison: the pool is replayed from now on.
    fn begin_comparison(&mut self) {
        self.events = Some(self.pool.subscribe_all());
        // The replay does not report what left the pool before it, nor why.
        self.counters.unsent.add(self.fair_queue.retain(|id| self.pool.contains(id.hash())));
        self.follower.begin_comparison();
        self.counters.comparisons.add(1);
        self.is_comparing = true;
    }

    fn end_comparison_if_replayed(&mut self) {
        if self.is_comparing && !self.is_replaying() {
            self.is_comparing = false;
            let items = self.follower.end_comparison();
            self.enqueue(items);
        }
    }

    /// Queues messages to be published.
    fn enqueue(&mut self, items: impl IntoIterator<Item = Item>) {
        for mut item in items {
            item.received_at = item.sent_at().map(|sent_at| self.clock.to_instant(sent_at));
            match item.unknown_caller() {
                None => self.outbox.push_back(item),
                Some(holder) => self.counters.unsent.add(self.fair_queue.push(holder, item)),
            }
        }
    }

    /// The connection has ended. The private flow continues to read the pool's log with the next
    /// connection, because the pool may forget a cancellation meanwhile. In the public flow the
    /// next connection begins with a comparison.
    fn on_disconnected(&mut self) {
        if !self.follower.is_private() {
            self.events = None;
            // The latest first: the head before the earliest unsent one was published.
            for item in self.outbox.drain(..).rev() {
                self.follower.forget(&item);
            }
        }
        self.status.unstored.begin(Instant::now());
        self.report_without_connection();
    }

    /// Updates the gauges while there is no connection. Orders of the pool wait for one.
    fn report_without_connection(&mut self) {
        let unpublished = self.count_unpublished();
        self.counters.unpublished.set(unpublished);
        self.counters.unfinished.set((self.window.len() as u64 + unpublished) as f64);
        self.log_if_unstored();
    }

    /// Counts the orders of the pool, and the queued messages, that are not published yet. Those of
    /// unknown callers in the fair queue are not included.
    fn count_unpublished(&self) -> u64 {
        let mut count = self.outbox.len() as u64;
        let mut replay = self.pool.subscribe_all();
        while replay.is_replaying() {
            match replay.try_next() {
                Some(Ok(Event::Added(order))) if self.follower.is_unpublished(&order) => {
                    count += 1;
                }
                Some(_) => {}
                None => break,
            }
        }
        count
    }

    /// Says in the log what the publisher waits for, if it has stored nothing for long.
    fn log_if_unstored(&mut self) {
        let Some(unstored_for) = self.status.unstored.duration() else {
            self.unstored_logged_at = None;
            return;
        };
        let is_due = self
            .unstored_logged_at
            .is_none_or(|logged_at| logged_at.elapsed() >= UNSTORED_LOG_INTERVAL);
        if unstored_for < UNSTORED_LOG_INTERVAL || unstored_for == Duration::MAX || !is_due {
            return;
        }
        self.unstored_logged_at = Some(Instant::now());
        tracing::warn!(
            stream = self.stream,
            state = %self.status.get(),
            unfinished = self.window.len(),
            ?unstored_for,
            "nothing is stored: the stream has no leader, or its server has disabled JetStream, \
             which it does when its disk is full and undoes only when it is restarted: see \
             `disabled` on its page /jsz",
        );
    }

    fn is_replaying(&self) -> bool {
        self.events.as_ref().is_some_and(Subscription::is_replaying)
    }

    fn has_read_all_events(&self) -> bool {
        let events = self.events.as_ref();
        events.is_some_and(|events| !events.is_replaying() && events.behind() == 0)
    }

    fn is_done(&self) -> bool {
        self.has_read_all_events()
            && self.outbox.is_empty()
            && self.fair_queue.len() == 0
            && self.window.len() == 0
    }

    /// Updates the state and the gauges.
    fn report(&mut self) {
        let window = &self.window;
        if window.len() > 0 || !self.outbox.is_empty() {
            self.status.unstored.begin(Instant::now());
        } else if !self.is_comparing {
            self.status.unstored.end();
        }
        let unstored_for = self.status.unstored.duration().unwrap_or_default();
        self.status.set(match self.outage {
            Some(state) if window.len() > 0 => state,
            _ if window.len() > 0 && unstored_for >= UNSTORED_LIMIT => State::Unavailable,
            _ if self.is_comparing || (window.len() > 0 && !self.has_acknowledged) => {
                State::CatchingUp
            }
            _ if !self.outbox.is_empty() => State::Lagging,
            _ => State::Live,
        });
        self.counters.unfinished.set(window.len() as f64);
        self.counters.waiting.set(self.fair_queue.len() as u64);
        self.log_if_unstored();
    }

    /// Reads one event, if there is one now. Returns whether there was one.
    fn read_event(&mut self) -> bool {
        match self.events.as_mut().and_then(Subscription::try_next) {
            Some(event) => {
                self.on_event(event);
                true
            }
            None => false,
        }
    }

    fn on_event(&mut self, event: Result<Event, Lagged>) {
        match event {
            Ok(event) => self.apply_event(&event),
            Err(Lagged { missed, .. }) => {
                self.on_lagged(missed);
                self.read_rest_of_log();
                self.begin_comparison();
            }
        }
    }

    fn apply_event(&mut self, event: &Event) {
        self.remove_from_fair_queue(event);
        let items = self.follower.on_event(event, &self.pool);
        self.enqueue(items);
    }

    fn on_lagged(&mut self, missed: u64) {
        tracing::warn!(
            missed,
            "events left the pool's log before they were read: the pool is compared"
        );
        self.counters.lost_events.add(missed);
    }

    /// Reads what the log still has before a comparison replaces the subscription. The private flow
    /// needs the cancellations: a replay shows them for a minute only, and none of a key that has
    /// another bundle since.
    fn read_rest_of_log(&mut self) {
        if !self.follower.is_private() {
            return;
        }
        while let Some(event) = self.events.as_mut().and_then(Subscription::try_next) {
            match event {
                Ok(event) => self.apply_event(&event),
                Err(Lagged { missed, .. }) => self.on_lagged(missed),
            }
        }
    }

    /// Removes an order from the fair queue that has left the pool or has become public.
    fn remove_from_fair_queue(&mut self, event: &Event) {
        match event {
            Event::Removed { order, reason } => {
                let is_replaced = *reason == RemoveReason::Replaced;
                let unsent = self.fair_queue.remove(order.id(), is_replaced);
                // Builders must not have an order that its sender has replaced or cancelled, so
                // only the others are lost.
                if !is_replaced && *reason != RemoveReason::Cancelled {
                    self.counters.unsent.add(unsent);
                }
            }
            // The public flow publishes it. A replay reports it as `Added`.
            Event::BecamePublic(order) | Event::Added(order)
                if order.as_tx().is_some_and(Transaction::is_public) =>
            {
                self.fair_queue.remove(order.id(), false);
            }
            _ => {}
        }
    }

    /// Whether messages of unknown callers may be published: there is room for them, and all events
    /// are read, so that none of them was cancelled or replaced.
    fn may_publish_unknown_callers(&self) -> bool {
        self.has_read_all_events() && self.window.has_room_for_deferrable()
    }

    /// Returns the next message to publish, if there is room for it. Messages of unknown callers
    /// come last, and then orders that are published again. `server_time` is the time of the
    /// server's clock at `now`.
    fn next_item(
        &mut self,
        now: Instant,
        server_time: SystemTime,
        is_stopping: bool,
    ) -> Option<Item> {
        if self.window.has_room()
            && let Some(item) = self.outbox.pop_front()
        {
            return Some(item);
        }
        if self.may_publish_unknown_callers()
            && let Some(item) = self.fair_queue.next(now, is_stopping)
        {
            return Some(item);
        }
        if is_stopping || !self.may_publish_again() {
            return None;
        }
        let mut item = self.follower.next_repeat(now, server_time, &self.pool)?;
        item.received_at = item.sent_at().map(|sent_at| self.clock.to_instant(sent_at));
        Some(item)
    }

    /// Whether orders may be published again: nothing else waits for the room that they take.
    fn may_publish_again(&self) -> bool {
        self.outbox.is_empty() && self.window.has_room_for_deferrable()
    }

    /// The stream has lost messages that it had stored, so everything is published again.
    fn on_stream_reset(&mut self) {
        tracing::warn!(
            stream = self.stream,
            "the stream has lost messages that it had stored: the pool is published again"
        );
        self.counters.resets.add(1);
        if self.follower.is_private() {
            self.read_rest_of_log();
            // The replay contains the orders.
            self.outbox.retain(|item| !matches!(item.record, Record::Order(_)));
        }
        self.follower.forget_all();
        self.begin_comparison();
    }
}

#[cfg(test)]
mod tests;
