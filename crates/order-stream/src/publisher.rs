//! The thread that follows a pool and publishes what it holds.
//!
//! # Why publisher and source are built this way
//!
//! Both have a pure core (window, position, what of a pool is published) under a thread with a runtime of its own.
//!
//! - **The message id of a public order is the order's.** Any number of machines publish all they
//!   have. No machine has to know of the others, and each may end at any time.
//! - **A publisher remembers which of the pool's orders it has published, and no bytes.** So an
//!   outage of any length needs no queue. In the private flow it first goes on in the pool's log: a
//!   cancellation that the pool has forgotten is there.
//! - **A publisher and a source are of one flow.** Private orders have a stream, credentials and a connection of their own,
//!   so a mistake in the rights of one flow shows nothing of the other.
//! - **The client's own reconnect is not used.** It hides the reason of a loss, and what was lost with it.
//! - **A stream that stores nothing gets one message at a time**, the oldest, after growing pauses: without a leader the
//!   server responds at once, and 4,096 messages would be refused in a loop. A missing response counts as the same.
//! - **A source acknowledges nothing.** Its position is a sequence number of its own, and the server's consumer is only a
//!   reader that begins there; it is kept in memory and made anew after any failure. A hole in the consumer's own numbers is
//!   read again; a hole in the stream's numbers without one in the consumer's is what the stream no longer has.
//! - **The client's ordered consumer is not used.** It names each new consumer differently, so that rights could not name a
//!   source, and tries forever to make a consumer of a stream that is missing or denied.
//! - **A source decodes and inserts on the thread that reads.** Neither recovers or proves anything, so both take
//!   microseconds; what is not read stays on the server, whose requests are bounded in bytes.
//! - **The machine is in the subject**, because the server grants rights for subjects: a name inside the message would be
//!   whatever its sender writes.

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
    follow::{Follower, Item},
    identity::Identity,
    metrics::{PublisherCounters, PublisherStats, label},
    running::{Running, Shown},
    state::State,
    streams::{stream_name, subjects},
    turns::Turns,
    window::Window,
};

/// Publishes the orders of a pool: those that it holds, then every new one, each stored once however many machines
/// publish it. Dropping it stops it without waiting.
///
/// The pool does not wait for it: while its window is full, events stay in the pool's log, whose
/// caps bound it, and so do all events of the pool while a publisher of the private flow has lost its
/// connection. It holds a handle of the pool, whose other subscriptions therefore do not end before it
/// does.
pub type Publisher = Running<PublisherStats>;

impl Publisher {
    /// Starts publishing. The stream must exist: see [`ensure_stream`](crate::ensure_stream).
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: PublisherConfig) -> Result<Self, StreamError> {
        Self::with_clock(pool, config, WallClock::default())
    }

    /// As [`Self::start`], with the clock that has timed the orders of the pool.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_clock(
        pool: &OrderPool,
        config: PublisherConfig,
        clock: WallClock,
    ) -> Result<Self, StreamError> {
        config.validate()?;
        let run = Run::new(pool, &config, clock);
        let (counters, shown) = (Arc::clone(&run.counters), run.shown.clone());
        let stats = move || counters.stats();
        let PublisherConfig { server, machine, .. } = config;
        Self::spawn("order-stream-publish", server, machine, shown, stats, run)
    }
}

/// A publisher that has stored nothing for as long, although something waits or because no server can be used, is not
/// [ready](Publisher::readiness).
pub const UNSTORED_LIMIT: Duration = Duration::from_secs(2);

/// How often the log says what a publisher waits for that has stored nothing for as long.
const UNSTORED_NOTICE: Duration = Duration::from_secs(15);

impl Publisher {
    /// For how long nothing was stored, although something waits or because no server can be used; `None` if the stream
    /// has everything. [`Duration::MAX`] before the first connection.
    #[must_use]
    pub fn unstored_for(&self) -> Option<Duration> {
        self.unstored.duration()
    }

    /// Returns a function that says whether what the pool accepts now can be expected to reach builders: not while nothing
    /// was stored for [`UNSTORED_LIMIT`]. It takes a lock for some nanoseconds, and works after the publisher has ended.
    pub fn readiness(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let unstored = self.unstored.clone();
        move || unstored.duration().is_none_or(|duration| duration < UNSTORED_LIMIT)
    }
}

struct Run {
    pool: OrderPool,
    clock: WallClock,
    stream: String,
    subjects: [Subject; 2],
    /// Part of the message ids that are this publisher's alone: no other machine and no later run has the same.
    run_id: String,
    shown: Shown,
    counters: Arc<PublisherCounters>,
    follower: Follower,
    /// It is read while there is a connection. Without one only the private flow has it: the pool's log keeps what is unread.
    events: Option<Subscription>,
    /// Whether the pool is replayed.
    comparing: bool,
    /// What is to be published before other events are read. What strangers send does not hold them up.
    held: VecDeque<Item>,
    /// What strangers have sent and is not published yet.
    turns: Turns,
    window: Window,
    identity: Identity,
    /// Whether the stream has acknowledged a message over this connection.
    is_acknowledged: bool,
    noticed_at: Option<Instant>,
}

impl Run {
    fn new(
        pool: &OrderPool,
        &PublisherConfig { flow, chain_id, ref machine, heads, .. }: &PublisherConfig,
        clock: WallClock,
    ) -> Self {
        let counters = Arc::new(PublisherCounters::labelled(&[label(flow)]));
        let micros = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        Self {
            pool: pool.clone(),
            clock,
            stream: stream_name(flow, chain_id),
            subjects: subjects(flow, chain_id, machine),
            run_id: format!("{machine}-{micros:x}"),
            shown: Shown::new(
                counters.state[0].clone(),
                counters.clock_offset[0].clone(),
                "publisher",
                flow.as_str(),
            ),
            counters,
            follower: Follower::new(flow, heads),
            events: None,
            comparing: false,
            held: VecDeque::new(),
            turns: Turns::default(),
            window: Window::default(),
            identity: Identity::default(),
            is_acknowledged: false,
            noticed_at: None,
        }
    }

    /// The pool is replayed from now on.
    fn compare(&mut self) {
        self.events = Some(self.pool.subscribe_all());
        // What left before is not told any more, nor why.
        self.counters.unsent.add(self.turns.retain(|id| self.pool.contains(id.hash())));
        self.follower.begin_comparison();
        self.counters.comparisons.add(1);
        self.comparing = true;
    }

    fn end_comparison(&mut self) {
        if self.comparing && !self.is_replaying() {
            self.comparing = false;
            let items = self.follower.end_comparison();
            self.hold(items);
        }
    }

    /// Takes what is to be published.
    fn hold(&mut self, items: impl IntoIterator<Item = Item>) {
        for mut item in items {
            item.arrived = item.record.arrived().map(|arrival| self.clock.instant_of(arrival));
            match item.stranger() {
                None => self.held.push_back(item),
                Some(holder) => self.counters.unsent.add(self.turns.push(holder, item)),
            }
        }
    }

    /// The connection has ended. The private flow goes on in the pool's log with the next one, as the pool may forget a
    /// cancellation meanwhile. Else that one begins with a comparison.
    fn disconnected(&mut self) {
        if !self.follower.is_private() || self.comparing {
            self.events = None;
            // The latest first: of several heads the one before the earliest was published.
            self.held.drain(..).rev().for_each(|item| self.follower.forget(&item));
        }
        self.counters.unfinished.set(self.window.len() as f64);
        self.shown.unstored.begin(Instant::now());
        self.notice_unstored();
    }

    /// Says in the log what it waits for.
    fn notice_unstored(&mut self) {
        let Some(unstored_for) = self.shown.unstored.duration() else {
            self.noticed_at = None;
            return;
        };
        let is_noticed = self.noticed_at.is_some_and(|then| then.elapsed() < UNSTORED_NOTICE);
        if unstored_for < UNSTORED_NOTICE || unstored_for == Duration::MAX || is_noticed {
            return;
        }
        self.noticed_at = Some(Instant::now());
        let (state, unfinished) = (self.shown.get(), self.window.len());
        tracing::warn!(
            stream = self.stream, %state, unfinished, ?unstored_for,
            "nothing is stored: the stream has no leader, or its server has disabled JetStream, which it does when its disk \
             is full and undoes only when it is restarted: see `disabled` on its page /jsz",
        );
    }

    fn is_replaying(&self) -> bool {
        self.events.as_ref().is_some_and(Subscription::is_replaying)
    }

    fn is_all_read(&self) -> bool {
        let events = self.events.as_ref();
        events.is_some_and(|events| !events.is_replaying() && events.behind() == 0)
    }

    fn is_done(&self) -> bool {
        self.is_all_read()
            && self.held.is_empty()
            && self.turns.len() == 0
            && self.window.len() == 0
    }

    fn show(&mut self) {
        let window = &self.window;
        if window.len() > 0 || !self.held.is_empty() {
            self.shown.unstored.begin(Instant::now());
        } else if !self.comparing {
            self.shown.unstored.end();
        }
        let unstored_for = self.shown.unstored.duration().unwrap_or_default();
        self.shown.set(match window.trouble() {
            Some(trouble) => trouble,
            None if window.len() > 0 && unstored_for >= UNSTORED_LIMIT => State::Unavailable,
            None if self.comparing || (window.len() > 0 && !self.is_acknowledged) => {
                State::CatchingUp
            }
            None if !self.held.is_empty() => State::Lagging,
            None => State::Live,
        });
        self.counters.unfinished.set(window.len() as f64);
        self.counters.waiting.set(self.turns.len() as u64);
        self.notice_unstored();
    }

    /// Reads an event, if there is one now.
    fn read_one(&mut self) -> bool {
        let event = self.events.as_mut().and_then(Subscription::try_next);
        event.map(|event| self.on_event(event)).is_some()
    }

    fn on_event(&mut self, event: Result<Event, Lagged>) {
        match event {
            Ok(event) => {
                match &event {
                    Event::Removed { order, reason } => {
                        let is_replaced = *reason == RemoveReason::Replaced;
                        let unsent = self.turns.remove(order.id(), is_replaced);
                        // Its sender wants no builder to have it.
                        let is_lost = !is_replaced && *reason != RemoveReason::Cancelled;
                        self.counters.unsent.add(if is_lost { unsent } else { 0 });
                    }
                    // The public flow publishes it. A replay tells of it with `Added`.
                    Event::BecamePublic(order) | Event::Added(order)
                        if order.as_tx().is_some_and(Transaction::is_public) =>
                    {
                        self.turns.remove(order.id(), false);
                    }
                    _ => {}
                }
                let items = self.follower.on(&event, &self.pool);
                self.hold(items);
            }
            Err(Lagged { missed, .. }) => {
                tracing::warn!(missed, "the publisher was too slow for the pool's log");
                self.counters.lost_events.add(missed);
                self.compare();
            }
        }
    }

    /// Whether what strangers have sent may be published: when there is room for it and nothing is left to be read, which
    /// may be that it was cancelled or replaced.
    fn has_turns(&self) -> bool {
        self.is_all_read() && self.window.has_room_for_strangers()
    }

    /// The next message that is published for the first time, if there is room for it: one of strangers behind all others.
    fn next_item(&mut self, is_stopping: bool) -> Option<Item> {
        let held = self.window.has_room().then(|| self.held.pop_front()).flatten();
        held.or_else(|| self.has_turns().then(|| self.turns.next(Instant::now(), is_stopping))?)
    }

    /// The stream has lost what it had stored: everything is published again.
    fn reset(&mut self) {
        tracing::warn!(stream = self.stream, "the stream has lost what it had stored");
        self.counters.resets.add(1);
        self.follower.forget_all();
        self.compare();
    }
}

#[cfg(test)]
mod tests;
