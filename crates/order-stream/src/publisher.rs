//! The thread that follows a pool and publishes what it holds.

mod session;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use order_pool::OrderPool;
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use self::session::Session;
use crate::{
    config::{Flow, PublisherConfig},
    error::StreamError,
    follow::Follower,
    link::{Link, state_of},
    metrics::{PublisherCounters, PublisherStats},
    outbox::{Outbox, OutboxLimits},
    state::State,
    subjects::{Subjects, stream_name},
};

/// A connection that has lasted as long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Publishes the orders of a pool: those that it holds, then every new one, each once however many machines
/// publish it. If it is dropped without [`Self::shutdown`], it ends without waiting for
/// acknowledgements.
///
/// The pool does not wait for it: it reads the pool's log on a thread of its own. While the window is
/// full, events stay in that log, whose caps bound it; while there is no connection, nothing is
/// kept. After either, it compares the pool with what it has published and publishes what is missing. It
/// holds a handle of the pool, whose other subscriptions therefore do not end before it does.
#[derive(Debug)]
pub struct Publisher {
    stop: Option<oneshot::Sender<Duration>>,
    ended: oneshot::Receiver<()>,
    state: watch::Receiver<State>,
    counters: Arc<PublisherCounters>,
}

impl Publisher {
    /// Starts publishing. The streams must exist: see [`ensure_streams`](crate::ensure_streams).
    ///
    /// # Errors
    /// The configuration is out of bounds, or the thread cannot be started.
    pub fn start(pool: &OrderPool, config: PublisherConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let counters = Arc::new(PublisherCounters::new(config.flow));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StreamError::Thread { source })?;
        let (state, state_of) = watch::channel(State::Connecting);
        counters.state.set(State::Connecting.code().into());
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut run = Run::new(pool.clone(), config, Arc::clone(&counters), state);
        let body = move || {
            runtime.block_on(run.run(stopping));
            run.counters.unfinished.set(run.outbox.len() as u64);
            run.set_state(State::Ended);
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            // If the handle was dropped, nothing waits for the end.
            let _ = end.send(());
        };
        thread::Builder::new()
            .name("order-stream-publish".into())
            .spawn(body)
            .map_err(|source| StreamError::Thread { source })?;
        Ok(Self { stop: Some(stop), ended, state: state_of, counters })
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// The present state and its changes. Ends with [`State::Ended`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> PublisherStats {
        self.counters.stats()
    }

    /// Publishes what the pool holds now, waits for the acknowledgements for at most `limit`, and ends. What
    /// is not acknowledged then is [`PublisherStats::unfinished`]. Without a connection it ends at
    /// once.
    ///
    /// # Cancel safety
    /// If it is dropped, the publisher still ends within the limit.
    pub async fn shutdown(mut self, limit: Duration) -> PublisherStats {
        if let Some(stop) = self.stop.take() {
            // Closed only if its thread has panicked.
            let _ = stop.send(limit);
        }
        let _ = (&mut self.ended).await;
        self.counters.stats()
    }
}

/// The publisher on its thread.
struct Run {
    pool: OrderPool,
    config: PublisherConfig,
    counters: Arc<PublisherCounters>,
    state: watch::Sender<State>,
    follower: Follower,
    outbox: Outbox,
    subjects: Subjects,
    /// The highest sequence number of each stream that was acknowledged, and when the stream was made.
    stored: Vec<(u64, Option<i128>)>,
    report: Vec<(B256, SystemTime)>,
    report_due: Option<Instant>,
}

/// Why a session ended.
enum End {
    Stopped,
    Lost(State),
}

impl Run {
    fn new(
        pool: OrderPool,
        config: PublisherConfig,
        counters: Arc<PublisherCounters>,
        state: watch::Sender<State>,
    ) -> Self {
        let limits = OutboxLimits {
            window: config.window,
            window_bytes: config.window_bytes,
            ack_timeout: config.ack_timeout,
            backoff: config.backoff,
        };
        let shards = if config.flow == Flow::Public { config.shards } else { 1 };
        Self {
            follower: Follower::new(config.flow, config.heads),
            outbox: Outbox::new(limits),
            subjects: Subjects::new(config.chain_id, &config.machine, shards),
            stored: vec![(0, None); shards.into()],
            report: Vec::new(),
            report_due: None,
            pool,
            config,
            counters,
            state,
        }
    }

    fn set_state(&self, state: State) {
        let changed = self.state.send_if_modified(|now| std::mem::replace(now, state) != state);
        if changed {
            tracing::info!(%state, flow = self.config.flow.as_str(), "publisher");
            self.counters.state.set(state.code().into());
        }
    }

    async fn run(&mut self, mut stopping: oneshot::Receiver<Duration>) {
        let mut attempt = 0;
        loop {
            self.set_state(State::Connecting);
            let began = Instant::now();
            let session = async {
                match Link::open(&self.config.server, &self.config.machine).await {
                    Ok(link) => Ok(link),
                    Err(error) => {
                        tracing::warn!(%error, "cannot connect");
                        Err(state_of(&error))
                    }
                }
            };
            // The order matters little: a stop before a connection has nothing to wait for.
            let opened = tokio::select! {
                biased;
                _ = &mut stopping => return,
                opened = session => opened,
            };
            let end = match opened {
                Ok(link) => {
                    self.counters.connects.add(1);
                    match self.session(&link, &mut stopping).await {
                        End::Stopped => return,
                        End::Lost(state) => state,
                    }
                }
                Err(state) => state,
            };
            // The session may have ended between publishing and the next look.
            self.counters.unfinished.set(self.outbox.len() as u64);
            self.set_state(end);
            attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
            let pause = self.config.backoff.random_delay(attempt);
            attempt = attempt.saturating_add(1);
            tokio::select! {
                biased;
                _ = &mut stopping => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// One connection.
    async fn session(&mut self, link: &Link, stopping: &mut oneshot::Receiver<Duration>) -> End {
        self.set_state(State::CatchingUp);
        let check = async {
            self.check_streams(link).await?;
            // The answers to all messages: the last token is the message's number.
            let inbox = link.client.new_inbox();
            let acks = link.client.subscribe(format!("{inbox}.*")).await;
            acks.map(|acks| (inbox, acks)).map_err(|_| State::Unavailable)
        };
        let checked = tokio::select! {
            biased;
            _ = &mut *stopping => return End::Stopped,
            reason = link.lost() => return End::Lost(State::Disconnected { reason }),
            checked = check => checked,
        };
        match checked {
            Err(state) => End::Lost(state),
            Ok((inbox, acks)) => {
                self.outbox.connected(Instant::now());
                Session::new(self, link, inbox, acks).run(stopping).await
            }
        }
    }

    /// Whether the streams are there, and still hold what was stored. A stream that was made anew, or
    /// has lost its end, has to get everything again.
    async fn check_streams(&mut self, link: &Link) -> Result<(), State> {
        for shard in 0..self.stored.len() {
            let name = stream_name(self.config.flow, self.config.chain_id, shard as u16);
            let info = link.stream(&name).await?;
            let created = Some(info.created.unix_timestamp_nanos());
            let (sequence, before) = self.stored[shard];
            if before.is_some_and(|_| before != created) || info.state.last_sequence < sequence {
                tracing::warn!(stream = name, sequence, "the stream has lost what was stored");
                self.counters.resets.add(1);
                self.follower.forget_all();
                self.stored[shard].0 = info.state.last_sequence;
            }
            self.stored[shard].1 = created;
        }
        Ok(())
    }
}
