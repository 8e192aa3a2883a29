//! The threads that read the streams and feed a pool.

mod reader;

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use async_nats::Message;
use futures::future::join_all;
use order_pool::OrderPool;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use self::reader::Reader;
use crate::{
    config::{SourceConfig, Trust},
    deliver::Deliverer,
    error::StreamError,
    link::{Link, state_of},
    machines::{MachineStats, Machines},
    metrics::{SourceCounters, SourceStats},
    state::{DisconnectReason, State},
    tracker::Tracker,
};

/// Messages that wait for the pool; their bytes are bounded by the configuration.
const QUEUE: usize = 8_192;

/// How often the machines' figures are shown while messages wait.
const SHOW_MESSAGES: u64 = 256;

/// A connection that has lasted as long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Feeds a pool from the streams of a flow: what they hold, then every new message, in the order of each
/// stream. If it is dropped without [`Self::shutdown`], it ends after the message that it is
/// processing.
///
/// A gap between sequence numbers is asked for again; what the stream no longer has is counted. Every
/// outcome is counted in [`SourceStats`].
#[derive(Debug)]
pub struct Source {
    stop: Option<oneshot::Sender<Duration>>,
    ended: oneshot::Receiver<()>,
    state: watch::Receiver<State>,
    machines: watch::Receiver<Vec<MachineStats>>,
    counters: Arc<SourceCounters>,
}

/// What waits for the pool.
enum Job {
    Message(Message, OwnedSemaphorePermit),
    Report(Message),
}

impl Source {
    /// Starts feeding the pool.
    ///
    /// # Errors
    /// The configuration is out of bounds, or a thread cannot be started.
    pub fn start(pool: &OrderPool, config: SourceConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let counters = Arc::new(SourceCounters::new(config.flow));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StreamError::Thread { source })?;
        let (state, state_of) = watch::channel(State::Connecting);
        counters.state.set(State::Connecting.code().into());
        let (shown, machines) = watch::channel(Vec::new());
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let deliverer = Deliverer {
            pool: pool.clone(),
            flow: config.flow,
            chain_id: config.chain_id,
            trust: config.trust.clone(),
            heads: config.heads,
            machines: Machines::default(),
            shown,
            counters: Arc::clone(&counters),
        };
        let (queue, jobs) = mpsc::channel(QUEUE);
        let abandon = Arc::new(AtomicBool::new(false));
        let inserted = start_inserting(deliverer, jobs, Arc::clone(&abandon))?;
        let bytes = Arc::new(Semaphore::new(config.queue_bytes));
        let trackers = (0..config.streams()).map(|_| Tracker::default()).collect();
        let counts = Arc::clone(&counters);
        let mut run = Run { config, counters: counts, state, queue, bytes, trackers };
        let body = move || {
            runtime.block_on(async {
                let limit = run.run(stopping).await;
                let Run { queue, state, counters, .. } = run;
                drop(queue);
                if timeout(limit, inserted).await.is_err() {
                    // Relaxed: nothing else is published by it.
                    abandon.store(true, Relaxed);
                }
                counters.state.set(State::Ended.code().into());
                // If the handle was dropped, nothing waits for the end.
                let _ = (state.send(State::Ended), end.send(()));
            });
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name("order-stream-source".into())
            .spawn(body)
            .map_err(|source| StreamError::Thread { source })?;
        Ok(Self { stop: Some(stop), ended, state: state_of, machines, counters })
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
    pub fn stats(&self) -> SourceStats {
        self.counters.stats()
    }

    /// Which of the trusted machines saw the public transactions first, and by how much.
    #[must_use]
    pub fn machines(&self) -> Vec<MachineStats> {
        self.machines.borrow().clone()
    }

    /// Stops reading, waits for at most `limit` until the pool has what was read, and ends.
    ///
    /// # Cancel safety
    /// If it is dropped, the source still ends within the limit.
    pub async fn shutdown(mut self, limit: Duration) -> SourceStats {
        if let Some(stop) = self.stop.take() {
            // Closed only if its thread has panicked.
            let _ = stop.send(limit);
        }
        let _ = (&mut self.ended).await;
        self.counters.stats()
    }
}

/// Starts the thread that decodes, recovers senders and inserts.
fn start_inserting(
    mut deliverer: Deliverer,
    mut jobs: mpsc::Receiver<Job>,
    abandon: Arc<AtomicBool>,
) -> Result<oneshot::Receiver<()>, StreamError> {
    let (end, ended) = oneshot::channel();
    let body = move || {
        if deliverer.trust == Trust::Nobody {
            // Or the first sidecar would wait some seconds for it, and what comes behind it.
            order_pool::load_trusted_setup();
        }
        let mut processed = 0_u64;
        while let Some(job) = jobs.blocking_recv() {
            if abandon.load(Relaxed) {
                break;
            }
            match job {
                Job::Message(message, permit) => {
                    deliverer.message(&message, SystemTime::now());
                    drop((message, permit));
                }
                Job::Report(message) => deliverer.report(&message),
            }
            processed += 1;
            if processed.is_multiple_of(SHOW_MESSAGES) || jobs.is_empty() {
                deliverer.show();
            }
        }
        // If the source has ended without it, nothing waits for the end.
        let _ = end.send(());
    };
    thread::Builder::new()
        .name("order-stream-insert".into())
        .spawn(body)
        .map_err(|source| StreamError::Thread { source })?;
    Ok(ended)
}

struct Run {
    config: SourceConfig,
    counters: Arc<SourceCounters>,
    state: watch::Sender<State>,
    queue: mpsc::Sender<Job>,
    bytes: Arc<Semaphore>,
    trackers: Vec<Tracker>,
}

impl Run {
    fn set_state(&self, state: State) {
        let changed = self.state.send_if_modified(|now| std::mem::replace(now, state) != state);
        if changed {
            tracing::info!(%state, flow = self.config.flow.as_str(), "source");
            self.counters.state.set(state.code().into());
        }
    }

    /// Reads until it is stopped. Returns how long the pool may take for the rest.
    async fn run(&mut self, mut stopping: oneshot::Receiver<Duration>) -> Duration {
        let mut attempt = 0;
        loop {
            self.set_state(State::Connecting);
            let began = Instant::now();
            let session = async {
                match Link::open(&self.config.server, &self.config.name).await {
                    Ok(link) => {
                        self.counters.connects.add(1);
                        self.session(&link).await
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot connect");
                        state_of(&error)
                    }
                }
            };
            // A stop is never late: a session can be left at any point.
            let end = tokio::select! {
                biased;
                limit = &mut stopping => return limit.unwrap_or_default(),
                end = session => end,
            };
            self.set_state(end);
            attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
            let pause = self.config.backoff.random_delay(attempt);
            attempt = attempt.saturating_add(1);
            tokio::select! {
                biased;
                limit = &mut stopping => return limit.unwrap_or_default(),
                () = sleep(pause) => {}
            }
        }
    }

    /// One connection, until it is lost.
    async fn session(&mut self, link: &Link) -> State {
        let mut trackers = std::mem::take(&mut self.trackers);
        let states = RefCell::new(vec![(State::CatchingUp, 0); trackers.len()]);
        let reader = Reader { run: self, link, states: &states };
        reader.show();
        let streams =
            trackers.iter_mut().zip(0..).map(|(tracker, shard)| reader.follow(shard, tracker));
        let streams = join_all(streams);
        // The streams never end by themselves.
        let reason = tokio::select! {
            biased;
            reason = link.lost() => reason,
            _ = streams => DisconnectReason::Lost,
            () = reader.reports() => DisconnectReason::Lost,
        };
        self.trackers = trackers;
        State::Disconnected { reason }
    }
}
