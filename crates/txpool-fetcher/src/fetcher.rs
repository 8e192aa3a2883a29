//! The public handle: starts, reports on and stops the fetcher.

use std::{
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot, watch,
    },
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    announce::AwaitingObjects,
    audit::{AuditMode, AuditReport},
    chain::{self, Chain, Follower},
    config::{Endpoint, FetcherConfig, Settings, StartPolicy},
    context::Context,
    error::{SnapshotError, SourceError, StartError},
    fetch::{Deferral, DeferredStats, Fetch, Hashes},
    limits::Limits,
    metrics::Metrics,
    node::{ChainId, Genesis, RequestConnections},
    outcome::Counts,
    sink::{SinkCaller, TransactionSink},
    source::{
        AUDITS_WAITING, AuditRequest, Changes, Inbox, Parts, Source, SourceShared, SourceState,
        SourceStatus,
    },
    sync::OnDrop,
    tasks::Tasks,
};

/// How long an end without a given deadline waits for calls of the sink that have not returned.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

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

/// How a fetcher has ended, see [`Fetcher::shutdown`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetcherEnd {
    /// Why it has ended.
    pub reason: EndReason,
    /// The final counts.
    pub counts: Counts,
    /// Whether everything has ended by the deadline.
    pub ended: bool,
}

/// A running fetcher, on threads of its own: nothing is lost if the host's runtime is busy, or blocked
/// for minutes. Dropping it stops it without waiting, and is reported as a warning in the log.
pub struct Fetcher {
    context: Arc<Context>,
    sources: Arc<[Arc<SourceShared>]>,
    changes: Changes,
    /// How long an end waits.
    deadline: watch::Sender<Duration>,
    ended: watch::Receiver<Option<(EndReason, bool)>>,
}

impl Fetcher {
    /// Starts fetching into `sink`. With [`StartPolicy::RequireNode`] it returns when the first
    /// source is connected and subscribed; its backfill may still run.
    ///
    /// # Errors
    /// A bad configuration, a thread that cannot start, or a required node that cannot be reached.
    ///
    /// # Cancel safety
    /// Everything that was started is stopped if the future is dropped.
    pub async fn start<S: TransactionSink>(
        config: FetcherConfig,
        sink: S,
    ) -> Result<Self, StartError> {
        Self::start_limited(config, Limits::default(), sink).await
    }

    /// As [`Self::start`], with other limits than the constants of this crate: for tests.
    ///
    /// # Errors
    /// As [`Self::start`].
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
        let metrics = Arc::new(Metrics::described());
        let deferral = Deferral::new(&settings, &metrics)?;
        let (ended_tx, ended) = watch::channel(None);
        let (deadline, deadline_rx) = watch::channel(DEFAULT_DEADLINE);
        let io = start_runtime(source_count).map_err(not_started("mempool-io"))?;
        let changes = Changes::default();
        let share = |endpoint: &Endpoint| SourceShared::new(endpoint.clone(), &settings, &changes);
        let (sources, inboxes): (Vec<_>, Vec<_>) = config.sources.iter().map(share).unzip();
        let backlogs = sources.iter().map(|shared| Arc::clone(&shared.backlog)).collect();
        let hashes = Hashes::new(stop.clone(), Arc::clone(&metrics), source_count);
        let tasks = Arc::new(Tasks::new(io.handle().clone(), stop));
        let requires_node = config.start == StartPolicy::RequireNode;
        let reads_nonces = sink.wants_nonces();
        let context = Arc::new(Context {
            hashes,
            connections: RequestConnections::new(source_count),
            listings: sources.iter().map(|_| Arc::default()).collect(),
            deferral,
            chain_id: ChainId::new(config.chain_id, source_count),
            genesis: Genesis::new(source_count),
            sink: SinkCaller::new(sink, &tasks),
            awaiting_objects: AwaitingObjects::default(),
            tasks: Arc::clone(&tasks),
            metrics,
            settings,
        });
        // Ends the sink's thread, also when the supervisor panics or cannot be started.
        let queue = Arc::clone(&context.sink.queue);
        let ends_queue = OnDrop(move || queue.end());
        let caller = Arc::clone(&context);
        let run = move || caller.sink.run();
        tasks.spawn_thread("mempool-sink", run).map_err(not_started("mempool-sink"))?;
        let limits = sources.iter().map(|shared| Arc::clone(&shared.limit)).collect();
        let fetch = Arc::new(Fetch::new(Arc::clone(&context), limits)?);
        let (nonces, wanted) = mpsc::channel(chain::BLOCKS_WAITING);
        let chain = Arc::new(Chain {
            follower: Follower::new(source_count, context.settings.limits.lead_timeout).into(),
            context: Arc::clone(&context),
            fetch: Arc::clone(&fetch),
            reports: sources.iter().map(|shared| shared.backlog.reports.clone()).collect(),
            reads_nonces,
            nonces,
        });
        let parts = Parts { context: Arc::clone(&context), fetch, chain };
        let sources: Arc<[_]> = sources.into();
        let running = sources.iter().cloned().zip(inboxes).collect();
        let body = move || {
            let _ends_queue = ends_queue;
            let end = io.block_on(async {
                let followers = chain::follow(&parts.chain, backlogs, wanted);
                supervise(parts, running, followers, deadline_rx).await
            });
            // The `Fetcher` may have been dropped.
            let _ = ended_tx.send(Some(end));
            // Dropping the runtime would wait for blocking calls.
            io.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("mempool-io".into());
        thread.spawn(body).map_err(not_started("mempool-io"))?;
        let fetcher = Self { context, sources, changes, deadline, ended };
        if requires_node && let Err(error) = fetcher.first_source().await {
            fetcher.begin_stop(DEFAULT_DEADLINE);
            return Err(error);
        }
        Ok(fetcher)
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.context.hashes.counts()
    }

    /// The status of each source, in the order of the configuration.
    #[must_use]
    pub fn status(&self) -> Vec<SourceStatus> {
        let sources = self.sources.iter().zip(&self.context.hashes.announcements);
        sources.map(|(shared, announcements)| shared.status(announcements)).collect()
    }

    /// Whether at least one source is [`SourceState::Live`].
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.sources.iter().any(|shared| shared.state() == SourceState::Live)
    }

    /// Waits until at least one source is [`SourceState::Live`]: the transactions that were pending
    /// at its node have been fetched, and later ones are announced.
    ///
    /// # Errors
    /// The reason, if the fetcher ends before.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn wait_live(&self) -> Result<(), EndReason> {
        let mut changes = self.changes.subscribe();
        let live = async {
            // The sender lives as long as `self`.
            while !self.is_live() && changes.changed().await.is_ok() {}
        };
        tokio::select! {
            // A fetcher that has ended may have been live before; it no longer is.
            biased;
            reason = self.ended() => Err(reason),
            () = live => Ok(()),
        }
    }

    /// A function that returns whether every source is [`SourceState::Live`], for a readiness
    /// probe; it does not borrow the fetcher. Always false once the fetcher has ended.
    pub fn readiness(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let sources = Arc::clone(&self.sources);
        move || sources.iter().all(|source| source.state() == SourceState::Live)
    }

    /// A function that returns whether the pool of every source's node can be compared with ours,
    /// see [`SourceStatus::audited`]; it does not borrow the fetcher.
    pub fn audited(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let sources = Arc::clone(&self.sources);
        move || sources.iter().all(|source| source.is_audited())
    }

    /// A function that returns the sources that have announced a transaction until now, as indices
    /// into the configured sources, in their order; it does not borrow the fetcher. A source that
    /// only listed it in a comparison is among them if the transaction came from there. None for a
    /// hash that is not known any more: between a quarter and a half of a million are remembered. A
    /// look-up takes a lock that announcements take, for as long as one of theirs.
    pub fn announcers(&self) -> impl Fn(&B256) -> Vec<usize> + Send + Sync + use<> {
        let hashes = Arc::clone(&self.context.hashes);
        move |hash| hashes.seen.sources(hash).iter().collect()
    }

    /// How much work has waited, and waits now, as [`FetcherConfig::monitor`] reports a high load.
    #[must_use]
    pub fn deferred(&self) -> DeferredStats {
        self.context.deferral.stats()
    }

    /// Compares the pool of source `source` with ours now, independently of the timer. One
    /// comparison runs at a time for each source, and up to four callers wait for it.
    ///
    /// # Errors
    /// Why the node's pool could not be listed; [`SnapshotError::Busy`] at once when four wait;
    /// [`SnapshotError::Unfinished`] after two minutes; [`SnapshotError::ConnectionLost`] when the
    /// fetcher stops, or when the node's connections have been lost for 10 s.
    ///
    /// # Panics
    /// Never: a source that does not exist or has ended gives [`SnapshotError::ConnectionLost`].
    ///
    /// # Cancel safety
    /// The comparison continues if this is dropped.
    pub async fn audit(
        &self,
        source: usize,
        mode: AuditMode,
    ) -> Result<AuditReport, SnapshotError> {
        let (reply, report) = oneshot::channel();
        let Some(source) = self.sources.get(source) else {
            return Err(SnapshotError::ConnectionLost);
        };
        let request = AuditRequest { mode, reply, at: Instant::now() };
        if let Err(TrySendError::Full(_)) = source.audit_requests.try_send(request) {
            return Err(SnapshotError::Busy { waiting: AUDITS_WAITING });
        }
        // Dropped without a reply, also by a source that has ended.
        report.await.unwrap_or(Err(SnapshotError::ConnectionLost))
    }

    /// Waits until the fetcher has ended, for whatever reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> EndReason {
        self.end().await.0
    }

    async fn end(&self) -> (EndReason, bool) {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // The thread ended without a reason: it panicked.
        end.unwrap_or((EndReason::Panicked, false))
    }

    /// Stops the fetcher and waits for at most `deadline`. Afterwards no thread or task of the
    /// fetcher is left, except threads whose call of the sink or of a pool in this process has not
    /// returned yet. The transactions in those calls stay counted as unfinished, and chain events
    /// that the sink has not taken are dropped (`mempool_fetcher_sink_dropped_total`).
    ///
    /// # Cancel safety
    /// The stop continues if this is dropped.
    pub async fn shutdown(self, deadline: Duration) -> FetcherEnd {
        self.begin_stop(deadline);
        let (reason, ended) = self.end().await;
        FetcherEnd { reason, counts: self.counts(), ended }
    }

    /// Waits until one source is up. If all fail, returns the error of the first configured one.
    async fn first_source(&self) -> Result<(), StartError> {
        let mut changes = self.changes.subscribe();
        let tried = async {
            loop {
                let mut errors = Vec::new();
                for SourceStatus { state, last_error, .. } in self.status() {
                    if !matches!(state, SourceState::Connecting | SourceState::Ended) {
                        return Ok(());
                    }
                    if let Some(SourceError::Connect(error)) = last_error.as_deref() {
                        errors.push(error.clone());
                    }
                }
                if errors.len() == self.sources.len() {
                    return Err(errors.swap_remove(0).into());
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            // The cause before its consequence.
            biased;
            tried = tried => tried,
            _ = self.ended() => {
                Err(not_started("mempool-io")(io::Error::other("it ended before a source was tried")))
            }
        }
    }

    pub(crate) fn begin_stop(&self, deadline: Duration) {
        self.deadline.send_replace(deadline);
        self.context.tasks.stop.cancel();
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        if !self.context.tasks.stop.is_cancelled() {
            tracing::warn!(
                "a fetcher was dropped without `shutdown`: nothing is ingested any more"
            );
        }
        self.context.tasks.stop.cancel();
    }
}

/// Waits for the deadline, from the beginning of the end or from its change on.
async fn passed(mut deadline: watch::Receiver<Duration>) {
    loop {
        let limit = *deadline.borrow_and_update();
        tokio::select! {
            () = sleep(limit) => return,
            // Once the `Fetcher` is dropped, nothing changes the deadline any more.
            Ok(()) = deadline.changed() => {}
        }
    }
}

fn not_started(thread: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Thread { thread, source }
}

/// The runtime of the fetcher: one thread, and further ones for work that may block.
///
/// All of its threads are started here, and none ends before the runtime. So whatever runs later does not
/// depend on a thread that can be started: at the limit of processes, tokio would panic instead.
fn start_runtime(sources: usize) -> io::Result<Runtime> {
    // Full blocks are read there, for their nonces, and for each source two lists of its pool at the same
    // time; WebSocket hosts are looked up.
    let threads = 2 + 2 * sources;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("mempool-blocks")
        .max_blocking_threads(threads)
        .thread_keep_alive(Duration::MAX)
        .build()?;
    // Each waits for all the others, so each needs a thread of its own.
    let all_started = Arc::new(Barrier::new(threads + 1));
    for _ in 0..threads {
        let all_started = Arc::clone(&all_started);
        // A thread that cannot be started is a panic of tokio's.
        let spawn = || runtime.spawn_blocking(move || all_started.wait());
        if catch_unwind(AssertUnwindSafe(spawn)).is_err() {
            // Those that wait would do so for ever.
            return Err(io::Error::other("the limit of threads is reached"));
        }
    }
    all_started.wait();
    Ok(runtime)
}

/// The root of the task tree: runs the sources, waits for them and for who follows their heads.
async fn supervise(
    parts: Parts,
    running: Vec<(Arc<SourceShared>, Inbox)>,
    mut followers: JoinSet<()>,
    deadline: watch::Receiver<Duration>,
) -> (EndReason, bool) {
    let tasks = Arc::clone(&parts.context.tasks);
    let sink_closed = parts.context.sink.closed.clone();
    let mut sources = JoinSet::new();
    for (index, (source, inbox)) in running.into_iter().enumerate() {
        sources.spawn(Source::run(parts.clone(), index, source, inbox));
    }
    let reason = loop {
        tokio::select! {
            // The cause before its consequences: a stop also ends the sources.
            biased;
            () = tasks.stop.cancelled() => break EndReason::Stopped,
            () = sink_closed.cancelled() => break EndReason::SinkClosed,
            Some(joined) = sources.join_next() => match joined {
                Err(error) if error.is_panic() => break EndReason::Panicked,
                _ if sources.is_empty() => break EndReason::SourcesEnded,
                _ => {}
            },
            // They end before a stop only by a panic: their queues are never closed.
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
        // Nothing applies heads any more.
        parts.context.sink.queue.drain();
        tasks.threads_ended().await;
    };
    tokio::select! {
        // A task that ended in time is no failure, however late this is polled.
        biased;
        () = end => (reason, true),
        () = passed(deadline) => {
            tracing::warn!("the sink has not returned by the deadline: its threads keep running");
            (reason, false)
        }
    }
}
