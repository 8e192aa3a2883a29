//! The threads that read the streams and feed a pool.

mod reader;
mod reports;
mod single;

use std::{
    cell::{Cell, RefCell},
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
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use self::reader::Reader;
use crate::{
    backoff::STABLE_AFTER,
    config::SourceConfig,
    deliver::Deliverer,
    error::StreamError,
    link::{Link, state_of},
    machines::{MachineStats, Machines},
    metrics::{SourceCounters, SourceStats},
    state::{EndGuard, State},
    tracker::Tracker,
};

/// Messages that wait for the pool; their bytes are bounded by the configuration.
const QUEUE: usize = 8_192;

/// How often the machines' figures are shown while messages wait.
const SHOW_MESSAGES: u64 = 256;

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
    Report(Message, OwnedSemaphorePermit),
}

impl Source {
    /// Starts feeding the pool.
    ///
    /// # Errors
    /// The configuration is out of bounds, or a thread cannot be started.
    pub fn start(pool: &OrderPool, config: SourceConfig) -> Result<Self, StreamError> {
        config.validate()?;
        let counters = Arc::new(SourceCounters::new(config.flow));
        let (shown, machines) = watch::channel(Vec::new());
        let deliverer = Deliverer {
            pool: pool.clone(),
            flow: config.flow,
            chain_id: config.chain_id,
            heads: config.heads,
            machines: Machines::default(),
            shown,
            counters: Arc::clone(&counters),
        };
        Self::launch(config, counters, machines, move |jobs, abandon| {
            insert(deliverer, jobs, abandon);
        })
    }

    /// Starts both threads, of which one runs `insert` until its queue is closed and empty, or abandoned.
    fn launch(
        config: SourceConfig,
        counters: Arc<SourceCounters>,
        machines: watch::Receiver<Vec<MachineStats>>,
        insert: impl FnOnce(mpsc::Receiver<Job>, &AtomicBool) + Send + 'static,
    ) -> Result<Self, StreamError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StreamError::Thread { source })?;
        let (state, state_of) = watch::channel(State::Connecting);
        counters.state.set(State::Connecting.code().into());
        let (stop, stopping) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (queue, jobs) = mpsc::channel(QUEUE);
        let abandon = Arc::new(AtomicBool::new(false));
        let (inserted, mut inserting) = oneshot::channel();
        let is_abandoned = Arc::clone(&abandon);
        let body = move || {
            insert(jobs, &is_abandoned);
            // If the source has ended without it, nothing waits for the end.
            let _ = inserted.send(());
        };
        thread::Builder::new()
            .name("order-stream-insert".into())
            .spawn(body)
            .map_err(|source| StreamError::Thread { source })?;
        let bytes = Arc::new(Semaphore::new(config.queue_bytes));
        let trackers = (0..config.streams()).map(|_| Tracker::default()).collect();
        let counts = Arc::clone(&counters);
        let mut run = Run { config, counters: counts, state, queue, bytes, trackers };
        let body = move || {
            let (counters, state) = (Arc::clone(&run.counters), run.state.clone());
            let mut guard = EndGuard::new(|last: State| {
                counters.show_unfinished();
                counters.state.set(last.code().into());
                state.send_replace(last);
            });
            runtime.block_on(async {
                let limit = tokio::select! {
                    biased;
                    // Its queue is open, so it has panicked.
                    _ = &mut inserting => return guard.fail(),
                    limit = run.run(stopping) => limit,
                };
                drop(run);
                match timeout(limit, inserting).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => guard.fail(),
                    // Relaxed: nothing else is published by it.
                    Err(_) => abandon.store(true, Relaxed),
                }
            });
            // Connections that are still closing are not waited for.
            runtime.shutdown_background();
            drop(guard);
            // If the handle was dropped, nothing waits for the end.
            let _ = end.send(());
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

    /// The present state and its changes. Ends with [`State::Ended`] or [`State::Failed`].
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        self.counters.stats()
    }

    /// Which of the machines saw the public transactions first, and by how much.
    #[must_use]
    pub fn machines(&self) -> Vec<MachineStats> {
        self.machines.borrow().clone()
    }

    /// Stops reading, waits for at most `limit` until the pool has what was read, and ends. What it does not have
    /// then is dropped: [`SourceStats::unfinished`]. Returns at once if the source has failed.
    ///
    /// # Cancel safety
    /// If it is dropped, the source still ends within the limit.
    pub async fn shutdown(mut self, limit: Duration) -> SourceStats {
        if let Some(stop) = self.stop.take() {
            // Closed only if a thread of it has panicked.
            let _ = stop.send(limit);
        }
        let _ = (&mut self.ended).await;
        self.counters.stats()
    }
}

/// Decodes and inserts, on its own thread.
fn insert(mut deliverer: Deliverer, mut jobs: mpsc::Receiver<Job>, abandon: &AtomicBool) {
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
            Job::Report(message, permit) => {
                deliverer.report(&message);
                drop((message, permit));
            }
        }
        processed += 1;
        if processed.is_multiple_of(SHOW_MESSAGES) || jobs.is_empty() {
            deliverer.show();
        }
    }
    deliverer.counters.show_unfinished();
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
            let (began, read) = (Instant::now(), self.counters.read_total());
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
            let was_useful = self.counters.read_total() > read || began.elapsed() > STABLE_AFTER;
            attempt = if was_useful { 0 } else { attempt };
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
        let (silence, given_up) = (Cell::default(), Notify::new());
        let reader = Reader { run: self, link, states: &states, silence, given_up };
        reader.show();
        let streams =
            trackers.iter_mut().zip(0..).map(|(tracker, shard)| reader.follow(shard, tracker));
        // The streams end when the connection is lost, the reports never.
        let given_up = tokio::select! {
            biased;
            _ = join_all(streams) => false,
            // Another server may answer: this one may be cut off from its cluster.
            () = reader.given_up.notified() => true,
            () = reader.reports() => false,
        };
        let end = match given_up {
            true => State::Unavailable,
            false => State::Disconnected { reason: link.lost().await },
        };
        self.trackers = trackers;
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flow, ServerConfig};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn launch(
        url: String,
        insert: impl FnOnce(mpsc::Receiver<Job>, &AtomicBool) + Send + 'static,
    ) -> Source {
        let server = ServerConfig::new(url).with_times(PATIENCE * 2, PATIENCE * 2);
        let config = SourceConfig::new(server, 1, "one");
        let counters = Arc::new(SourceCounters::new(Flow::Public));
        Source::launch(config, counters, watch::channel(Vec::new()).1, insert).expect("a source")
    }

    /// A server that accepts and says nothing.
    fn mute() -> (std::net::TcpListener, String) {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("nats://{}", server.local_addr().expect("its address"));
        (server, url)
    }

    #[tokio::test]
    async fn a_panic_of_the_inserting_thread_ends_the_source_and_shows() {
        let (_server, url) = mute();
        let source = launch(url, |_, _| panic!("a bug in the pool"));
        let mut states = source.watch();
        let failed = states.wait_for(|state| *state == State::Failed);
        timeout(PATIENCE, failed).await.expect("in time").expect("a state");
        timeout(PATIENCE, source.shutdown(PATIENCE * 2)).await.expect("at once");
    }

    #[tokio::test]
    async fn a_panic_during_the_shutdown_shows_as_well() {
        let (_server, url) = mute();
        let source = launch(url, |mut jobs, _| {
            assert!(jobs.blocking_recv().is_some(), "a bug");
        });
        let states = source.watch();
        timeout(PATIENCE, source.shutdown(PATIENCE * 2)).await.expect("at once");
        assert_eq!(*states.borrow(), State::Failed);
    }

    #[tokio::test]
    async fn a_shutdown_waits_neither_for_a_connection_nor_for_a_message_that_takes_long() {
        let (_server, url) = mute();
        let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
        let source = launch(url, move |_jobs, _| {
            // Until the test is over.
            let _ = held.recv();
        });
        let states = source.watch();
        assert_eq!(*states.borrow(), State::Connecting);
        let limit = Duration::from_millis(50);
        timeout(PATIENCE, source.shutdown(limit)).await.expect("within its limit");
        assert_eq!(*states.borrow(), State::Ended);
        drop(release);
    }
}
