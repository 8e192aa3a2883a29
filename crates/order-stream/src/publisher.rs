//! The thread that follows a pool and publishes what it holds.
//!
//! # Why publisher and source are so
//!
//! `order-stream` shares the orders of pools over NATS JetStream. Both directions have a pure core (window, position, what
//! of a pool is published) under a thread with a runtime of its own.
//!
//! - **The message id is the order's.** Any number of machines publish everything they have, and the stream keeps the first
//!   of each within its duplicate window. No machine has to know of the others, and each may end at any time. What a machine
//!   cancels of private transactions, or sends again after it left, has the machine in its id: another one may have seen less.
//! - **A publisher remembers what the pool holds and has been acknowledged, and no bytes.** After a loss it publishes its
//!   window again, then replays the pool, and what is not remembered is missing. So an outage of any length needs no queue.
//! - **A publisher and a source are of one flow.** Private orders have a stream, credentials and a connection of their own,
//!   so a mistake in the rights of one flow shows nothing of the other.
//! - **Machines that publish are trusted**, by the server's rights: nothing is recovered or proven again, and a builder's
//!   credentials can publish nothing.
//! - **The client's own reconnect is not used.** It hides the reason of a loss, and what was lost with it. A connection is
//!   opened once; when it is lost, another is, after a backoff.
//! - **A stream that takes nothing gets one message at a time**, the oldest, after growing pauses: without a leader the server
//!   responds at once, and 4,096 messages would be refused in a loop. Silence counts as the same.
//! - **A source acknowledges nothing.** Its position is a sequence number of its own, and the server's consumer is only a
//!   reader that begins there; it is kept in memory and made anew after any failure. A hole in the consumer's own numbers is
//!   read again; a hole in the stream's numbers without one in the consumer's is what the stream no longer has.
//! - **The client's ordered consumer is not used.** It bounds its requests by messages and not by bytes, and tries forever to
//!   make a consumer of a stream that is missing or denied.
//! - **A source decodes and inserts on the thread that reads.** Neither recovers or proves anything, so both take
//!   microseconds; what is not read stays on the server, whose requests are bounded in bytes.
//! - **The machine is in the subject**, because the server grants rights for subjects: a name inside the message would be
//!   whatever its sender writes.

mod session;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use order_pool::OrderPool;
use tokio::sync::watch;

use crate::{
    config::PublisherConfig,
    error::StreamError,
    follow::Follower,
    identity::Identity,
    link::Link,
    metrics::{PublisherCounters, PublisherStats},
    running::{Running, Session, Shown, Stop},
    state::State,
    subjects::{Subjects, stream_name},
    window::Window,
};

/// Publishes the orders of a pool: those that it holds, then every new one, each stored once however many machines
/// publish it. Dropping it stops it without waiting.
///
/// The pool does not wait for it: it reads the pool's log on a thread of its own. While its window is full, events stay in
/// that log, whose caps bound it; without a connection nothing is kept. After either, it compares the pool with what it has
/// published and publishes what is missing. It holds a handle of the pool, whose other subscriptions therefore do not end
/// before it does.
#[derive(Debug)]
pub struct Publisher {
    running: Running,
    counters: Arc<PublisherCounters>,
}

/// The end of a [`Publisher`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PublisherEnd {
    /// [`State::Ended`], or [`State::Failed`] if its thread has panicked; another one if it has not ended in time.
    pub state: State,
    /// The counts. What the stream has not acknowledged is [`PublisherStats::unfinished`].
    pub stats: PublisherStats,
    /// Whether its thread ended before the deadline.
    pub ended: bool,
}

impl Publisher {
    /// Starts publishing. The stream must exist: see [`ensure_stream`](crate::ensure_stream).
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: PublisherConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let PublisherConfig { server, flow, chain_id, machine, heads } = config;
        let counters = Arc::new(PublisherCounters::of(flow));
        let micros = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
        let run = Run {
            pool: pool.clone(),
            stream: stream_name(flow, chain_id),
            subjects: Subjects::new(flow, chain_id, &machine),
            run_id: format!("{machine}-{micros:x}"),
            shown: Shown::new(counters.state[0].clone(), "publisher", flow.as_str()),
            counters: Arc::clone(&counters),
            follower: Follower::new(flow, heads),
            window: Window::default(),
            identity: Identity::default(),
        };
        let running = Running::start("order-stream-publish", server, machine, run)?;
        Ok(Self { running, counters })
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.running.state.borrow()
    }

    /// The present state and its changes. Ends with [`State::Ended`] or [`State::Failed`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.running.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> PublisherStats {
        self.counters.stats()
    }

    /// Publishes what the pool holds now, waits for the acknowledgements at most until the deadline, and ends. Without a
    /// connection it ends at once; for a stream without a leader it waits.
    ///
    /// # Cancel safety
    /// If it is dropped, the publisher still ends before the deadline.
    pub async fn shutdown(self, deadline: Duration) -> PublisherEnd {
        let (state, ended) = self.running.shutdown(deadline).await;
        PublisherEnd { state, stats: self.counters.stats(), ended }
    }
}

/// The publisher on its thread.
struct Run {
    pool: OrderPool,
    stream: String,
    subjects: Subjects,
    /// Part of the message ids that are this publisher's alone: no other machine and no later run has the same.
    run_id: String,
    shown: Shown,
    counters: Arc<PublisherCounters>,
    follower: Follower,
    window: Window,
    identity: Identity,
}

impl Session for Run {
    fn shown(&self) -> &Shown {
        &self.shown
    }

    async fn connected(&mut self, link: &Link, stop: Stop) -> State {
        self.counters.connects[0].add(1);
        self.shown.set(State::CatchingUp);
        session::run(self, link, stop).await
    }
}
