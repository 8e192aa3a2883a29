//! The public owner of a running fetcher: starts it, supervises it, and stops it.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | feed | `mempool-io` at its end, the end of the [`Fetcher`] | to take the guard out |

use std::{
    any::Any,
    fmt, io,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, atomic::AtomicU32},
    time::Duration,
};

use load_control::{build_runtime, within};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    announce::AwaitingObjects,
    chain::{self, Chain, Follower},
    config::{FetcherConfig, Settings, StartPolicy},
    context::Context,
    error::StartError,
    fetch::{Deferral, Fetch, Hashes},
    handle::FetcherHandle,
    limits::Limits,
    metrics::Metrics,
    node::{ChainId, RequestConnections},
    outcome::Counts,
    sink::{SinkCaller, TransactionSink},
    source::{Changes, Inbox, Parts, Source, SourceShared},
    sync::{OnDrop, lock},
    tasks::Tasks,
};

/// How long an end without a deadline of the host waits for calls of the sink.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

/// How long before the host's deadline the fetcher's own wait ends, at most, so that the host still
/// learns the reason.
const REPORT_TIME: Duration = Duration::from_millis(50);

/// Why a fetcher has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// [`Fetcher::shutdown`] was called, or the [`Fetcher`] was dropped.
    Stopped,
    /// The sink reported [`Delivery::Closed`](crate::Delivery::Closed).
    SinkClosed,
    /// Every source has reached its limit of connection attempts.
    SourcesEnded,
    /// A task of the fetcher panicked, which is a defect. The counts can still be read.
    Panicked,
}

/// How a fetcher has ended: the result of [`Fetcher::shutdown`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetcherEnd {
    /// Why the fetcher has ended.
    pub reason: EndReason,
    /// The final counts.
    pub counts: Counts,
    /// Whether all threads and tasks had ended by the deadline. Also false if the thread of the
    /// sockets did not report its end by then, because it is blocked or gone, as after a fork of
    /// the process. Then the reason is [`EndReason::Stopped`].
    pub ended: bool,
}

/// A running fetcher, on threads of its own, so that nothing is lost while the host's runtime is
/// busy or blocked. Dropping it stops it without waiting, and logs a warning.
///
/// All methods of [`FetcherHandle`], which report on the fetcher and request audits, can be called
/// on it. The handle is cloneable; the fetcher is not, because its owner decides when it stops.
pub struct Fetcher {
    handle: FetcherHandle,
    /// How long the end waits for calls of the sink.
    deadline: watch::Sender<Duration>,
    stop: CancellationToken,
    feed: Arc<Feed>,
}

/// The guard of [`TransactionSink::feed`], until the feed has ended.
///
/// The thread of the sockets ends it, and the [`Fetcher`] in case that thread is blocked or gone.
/// The guard is code of the host, so it is dropped after the lock is released.
struct Feed(Mutex<Option<Box<dyn Any + Send>>>);

impl Feed {
    fn end(&self) {
        let guard = lock(&self.0).take();
        // The guard is gone, and nothing else of it is used.
        if catch_unwind(AssertUnwindSafe(|| drop(guard))).is_err() {
            tracing::error!("the guard of the sink's feed panicked when it was dropped");
        }
    }
}

impl Fetcher {
    /// Starts fetching into `sink`. With [`StartPolicy::RequireNode`] it returns when the first
    /// source is connected and subscribed; the backfill may still run.
    ///
    /// # Errors
    /// - [`StartError::Config`] if the configuration is invalid;
    /// - [`StartError::Thread`] if a thread cannot be started;
    /// - [`StartError::Connect`] with [`StartPolicy::RequireNode`], if no source can be reached.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything that was started is stopped.
    pub async fn start<S: TransactionSink>(
        config: FetcherConfig,
        sink: S,
    ) -> Result<Self, StartError> {
        Self::start_limited(config, Limits::default(), sink).await
    }

    /// Like [`Self::start`], with other limits than the constants of this crate, for tests.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    #[cfg(feature = "test-limits")]
    pub async fn start_with<S: TransactionSink>(
        config: FetcherConfig,
        limits: Limits,
        sink: S,
    ) -> Result<Self, StartError> {
        Self::start_limited(config, limits, sink).await
    }

    async fn start_limited<S: TransactionSink>(
        config: FetcherConfig,
        limits: Limits,
        sink: S,
    ) -> Result<Self, StartError> {
        config.validate()?;
        let settings = Arc::new(Settings { config, limits });
        let config = &settings.config;
        let source_count = config.sources.len();
        let stop = CancellationToken::new();
        let metrics = Arc::new(Metrics::new_described());
        let deferral = Arc::new(Deferral::new(&settings, &metrics)?);
        let (end_tx, end) = watch::channel(None);
        let (deadline, deadline_rx) = watch::channel(DEFAULT_DEADLINE);
        let io = start_runtime(source_count).map_err(|error| not_started("mempool-io", error))?;
        let changes = Changes::default();
        let (sources, inboxes): (Vec<_>, Vec<_>) = config
            .sources
            .iter()
            .map(|endpoint| SourceShared::new(endpoint.clone(), &settings, &changes))
            .unzip();
        let backlogs = sources.iter().map(|shared| Arc::clone(&shared.backlog)).collect();
        let hashes = Hashes::new(stop.clone(), Arc::clone(&metrics), source_count);
        let tasks = Arc::new(Tasks::new(io.handle().clone(), stop.clone()));
        let requires_node = config.start == StartPolicy::RequireNode;
        let reads_nonces = sink.wants_nonces();
        let feed = Arc::new(Feed(Mutex::new(Some(Box::new(sink.feed())))));
        let context = Arc::new(Context {
            hashes: Arc::clone(&hashes),
            connections: RequestConnections::new(source_count),
            listings: sources.iter().map(|_| Arc::default()).collect(),
            deferral: Arc::clone(&deferral),
            chain_id: ChainId::new(config.chain_id, source_count),
            sink: SinkCaller::new(sink, &tasks),
            awaiting_objects: AwaitingObjects::default(),
            tasks: Arc::clone(&tasks),
            metrics,
            settings,
        });
        // The sink's thread also ends when the supervisor panics or cannot be started.
        let queue = Arc::clone(&context.sink.queue);
        let ends_queue = OnDrop(move || queue.end());
        let sink_context = Arc::clone(&context);
        tasks
            .spawn_thread("mempool-sink", move || sink_context.sink.run())
            .map_err(|error| not_started("mempool-sink", error))?;
        let limits = sources.iter().map(|shared| Arc::clone(&shared.limit)).collect();
        let fetch = Arc::new(Fetch::new(Arc::clone(&context), limits)?);
        let (nonces, blocks) = mpsc::channel(chain::BLOCKS_WAITING);
        let chain = Arc::new(Chain {
            follower: Follower::new(source_count, context.settings.limits.lead_timeout).into(),
            resets: AtomicU32::new(0),
            context: Arc::clone(&context),
            fetch: Arc::clone(&fetch),
            reports: sources.iter().map(|shared| shared.backlog.reports.clone()).collect(),
            reads_nonces,
            nonces,
        });
        let parts = Parts { context: Arc::clone(&context), fetch, chain };
        let sources: Arc<[_]> = sources.into();
        let inboxes = sources.iter().cloned().zip(inboxes).collect();
        let ended_feed = Arc::clone(&feed);
        // Also after a panic, or if the thread cannot be started.
        let ends_feed = OnDrop(move || ended_feed.end());
        let run = move || {
            let _ends_queue = ends_queue;
            let end = io.block_on(async {
                let followers = chain::follow(&parts.chain, backlogs, blocks);
                supervise(parts, inboxes, followers, deadline_rx).await
            });
            // The sink is dropped here, outside of the runtime and before the end is reported,
            // unless a call of it has not returned.
            drop(context);
            drop(ends_feed);
            // The error means that the `Fetcher` and its handles were dropped.
            let _ = end_tx.send(Some(end));
            // Dropping the runtime would wait for blocking calls.
            io.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("mempool-io".into());
        thread.spawn(run).map_err(|error| not_started("mempool-io", error))?;
        let handle = FetcherHandle { sources, hashes, deferral, changes, end };
        let fetcher = Self { handle, deadline, stop, feed };
        if requires_node && let Err(error) = fetcher.first_connected().await {
            fetcher.begin_stop(DEFAULT_DEADLINE);
            return Err(error);
        }
        Ok(fetcher)
    }

    /// Returns the handle, whose methods can also be called on the fetcher. Clone it for threads
    /// and tasks that report on the fetcher without owning it.
    #[must_use]
    pub const fn handle(&self) -> &FetcherHandle {
        &self.handle
    }

    /// Stops the fetcher and waits for its end for at most `deadline`, whatever has happened to its
    /// threads. Afterwards no thread or task of the fetcher is left, except threads whose call of
    /// the sink or of a pool in this process has not returned yet. The transactions in those calls
    /// stay counted as unfinished, and chain events that the sink has not taken are dropped
    /// (`mempool_fetcher_sink_dropped_total`).
    ///
    /// # Cancel safety
    /// The stop continues if the future is dropped.
    pub async fn shutdown(self, deadline: Duration) -> FetcherEnd {
        self.begin_stop(deadline - REPORT_TIME.min(deadline / 10));
        let (reason, ended) = within(deadline, self.end()).await.unwrap_or_else(|| {
            tracing::error!(
                ?deadline,
                "the fetcher's thread `mempool-io` has not ended by the deadline: it is blocked or gone"
            );
            (EndReason::Stopped, false)
        });
        FetcherEnd { reason, counts: self.counts(), ended }
    }

    /// Begins the stop, and does not wait for it.
    pub(crate) fn begin_stop(&self, deadline: Duration) {
        self.deadline.send_replace(deadline);
        self.stop.cancel();
    }
}

impl Deref for Fetcher {
    type Target = FetcherHandle;

    fn deref(&self) -> &FetcherHandle {
        &self.handle
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        if !self.stop.is_cancelled() {
            tracing::warn!(
                "a fetcher was dropped without `shutdown`: nothing is ingested any more"
            );
        }
        self.stop.cancel();
        // At once, because the threads may be blocked or gone.
        self.feed.end();
    }
}

/// Waits until the deadline has passed. A change of the deadline begins the wait again.
async fn deadline_passed(mut deadline: watch::Receiver<Duration>) {
    loop {
        let limit = *deadline.borrow_and_update();
        tokio::select! {
            () = sleep(limit) => return,
            // The error, once the `Fetcher` is dropped, means that the deadline stays as it is.
            Ok(()) = deadline.changed() => {}
        }
    }
}

pub(crate) fn not_started(thread: &'static str, error: io::Error) -> StartError {
    StartError::Thread { thread, error }
}

/// Makes the runtime of the fetcher, with one thread for tasks, and threads for work that may
/// block.
fn start_runtime(sources: usize) -> io::Result<Runtime> {
    // The blocking threads read full blocks for their nonces, look up WebSocket hosts, and read up
    // to two lists of each source's pool at the same time.
    let threads = 2 + 2 * sources;
    let mut builder = Builder::new_current_thread();
    build_runtime(builder.enable_all().thread_name("mempool-blocks"), threads)
}

/// The root of the task tree: runs the sources and the followers of their heads until the fetcher
/// stops. Returns the reason, and whether everything had ended by the deadline.
async fn supervise(
    parts: Parts,
    inboxes: Vec<(Arc<SourceShared>, Inbox)>,
    mut followers: JoinSet<()>,
    deadline: watch::Receiver<Duration>,
) -> (EndReason, bool) {
    let tasks = Arc::clone(&parts.context.tasks);
    let sink_closed = parts.context.sink.closed.clone();
    let mut sources = JoinSet::new();
    for (index, (source, inbox)) in inboxes.into_iter().enumerate() {
        sources.spawn(Source::run(parts.clone(), index, source, inbox));
    }
    let reason = loop {
        tokio::select! {
            // A stop also ends the sources, so it is looked at first: the cause before its
            // consequence.
            biased;
            () = tasks.stop.cancelled() => break EndReason::Stopped,
            () = sink_closed.cancelled() => break EndReason::SinkClosed,
            Some(joined) = sources.join_next() => match joined {
                Err(error) if error.is_panic() => break EndReason::Panicked,
                _ if sources.is_empty() => break EndReason::SourcesEnded,
                _ => {}
            },
            // The followers end before a stop only by a panic, because their queues are never
            // closed.
            Some(_) = followers.join_next() => break EndReason::Panicked,
        }
    };
    if reason != EndReason::Stopped {
        tracing::error!(?reason, "the fetcher has ended: nothing is ingested any more");
    }
    tasks.stop.cancel();
    let end = async {
        while sources.join_next().await.is_some() {}
        followers.shutdown().await;
        tasks.ended().await;
        // No task adds heads any more, so the sink's thread may end once it has taken those that
        // wait.
        parts.context.sink.queue.drain();
        tasks.threads_ended().await;
    };
    tokio::select! {
        // Tasks that ended in time count as such, however late this is polled.
        biased;
        () = end => (reason, true),
        () = deadline_passed(deadline) => {
            tracing::warn!(
                "a call of the sink or of a pool has not returned by the deadline: its thread keeps \
                 running"
            );
            (reason, false)
        }
    }
}
