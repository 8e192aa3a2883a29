//! The thread that follows a pool and publishes what it holds.

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
