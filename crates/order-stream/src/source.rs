//! The threads that read the streams and feed a pool.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use async_nats::{
    Message,
    jetstream::{
        ErrorCode,
        consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull},
        stream::ConsumerErrorKind,
    },
};
use futures::{StreamExt as _, future::join_all};
use order_pool::OrderPool;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{sleep, timeout},
};

use crate::{
    config::{Flow, SourceConfig, Trust},
    deliver::Deliverer,
    error::StreamError,
    link::{Link, state_of},
    machines::{MachineStats, Machines},
    metrics::{SourceCounters, SourceStats},
    state::State,
    subjects::{seen, stream_name},
    tracker::{Extent, Step, Tracker},
};

/// Messages that wait for the pool; their bytes are bounded by the configuration.
const QUEUE: usize = 8_192;

/// Messages of one pull request.
const PULL: usize = 2_000;

/// The server says as often that a consumer without messages is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// How long a pull request waits for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// After which the server forgets the position of a source that does not read.
const INACTIVE: Duration = Duration::from_secs(60);

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
            _ = streams => crate::DisconnectReason::Lost,
            () = reader.reports() => crate::DisconnectReason::Lost,
        };
        self.trackers = trackers;
        State::Disconnected { reason }
    }
}

/// Reads the streams over one connection.
struct Reader<'a> {
    run: &'a Run,
    link: &'a Link,
    /// Of each stream its state, and the messages before it.
    states: &'a RefCell<Vec<(State, u64)>>,
}

impl Reader<'_> {
    fn note(&self, shard: u16, state: State, behind: u64) {
        if let Some(there) = self.states.borrow_mut().get_mut(usize::from(shard)) {
            *there = (state, behind);
        }
        self.show();
    }

    /// The state is the worst of all streams.
    fn show(&self) {
        let states = self.states.borrow();
        let worst = states.iter().map(|(state, _)| *state).max_by_key(|state| match state {
            State::Live => 0,
            State::CatchingUp => 1,
            State::Lagging => 2,
            State::StreamMissing => 4,
            State::Denied => 5,
            _ => 3,
        });
        self.run.set_state(worst.unwrap_or(State::Live));
        self.run.counters.behind.set(states.iter().map(|(_, behind)| behind).sum());
    }

    /// Passes on the reports of the machines. They are not stored: those that find no room are dropped.
    async fn reports(&self) {
        let config = &self.run.config;
        if config.flow == Flow::Public && config.trust != Trust::Nobody {
            let subject = seen(config.chain_id, "*");
            if let Ok(mut reports) = self.link.client.subscribe(subject).await {
                while let Some(report) = reports.next().await {
                    if self.run.queue.try_send(Job::Report(report)).is_err() {
                        tracing::debug!("a report was dropped");
                    }
                }
            }
        }
        std::future::pending().await
    }

    /// Reads one stream, again after each failure.
    async fn follow(&self, shard: u16, tracker: &mut Tracker) {
        let mut attempt = 0;
        loop {
            let began = Instant::now();
            let failed = self.read(shard, tracker).await;
            if let Some(state) = failed {
                self.note(shard, state, 0);
                attempt = if began.elapsed() > STABLE_AFTER { 0 } else { attempt };
                sleep(self.run.config.backoff.random_delay(attempt)).await;
                attempt = attempt.saturating_add(1);
            }
        }
    }

    /// Reads one stream from where the tracker stands. Returns the state after a failure, `None` to
    /// read again at once.
    async fn read(&self, shard: u16, tracker: &mut Tracker) -> Option<State> {
        let Run { config, counters, .. } = self.run;
        let stream = stream_name(config.flow, config.chain_id, shard);
        let info = match self.link.stream(&stream).await {
            Ok(info) => info,
            Err(state) => return Some(state),
        };
        let begun = tracker.begin(Extent {
            created: info.created.unix_timestamp_nanos(),
            first: info.state.first_sequence,
            last: info.state.last_sequence,
            messages: info.state.messages,
        });
        counters.resets.add(begun.reset.into());
        counters.missed.add(begun.missed);
        let consumer = match self.consumer(&stream, tracker).await {
            Ok(consumer) => consumer,
            Err(state) => return Some(state),
        };
        let messages = consumer
            .stream()
            .max_messages_per_batch(PULL)
            .max_bytes_per_batch(config.queue_bytes)
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages()
            .await;
        let Ok(mut messages) = messages else { return Some(State::Unavailable) };
        let caught_up = if begun.behind == 0 { State::Live } else { State::CatchingUp };
        let mut state = caught_up;
        self.note(shard, state, begun.behind);
        loop {
            let message = match messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    tracing::warn!(%error, stream, "reading ended");
                    return Some(State::Unavailable);
                }
                None => return Some(State::Unavailable),
            };
            let Ok((sequence, pending)) =
                message.info().map(|info| (info.stream_sequence, info.pending))
            else {
                tracing::warn!(stream, "a message without a sequence number");
                return Some(State::Unavailable);
            };
            match tracker.on(sequence) {
                Step::Deliver => {}
                Step::Repeated => {
                    counters.repeated.add(1);
                    continue;
                }
                Step::Hole => {
                    tracing::warn!(stream, sequence, expected = tracker.next(), "a hole");
                    counters.holes.add(1);
                    return None;
                }
                Step::Missed(missed) => {
                    tracing::warn!(stream, sequence, missed, "messages left the stream unread");
                    counters.missed.add(missed);
                }
            }
            let lag = config.lag_messages;
            let next = match state {
                _ if pending == 0 => State::Live,
                State::CatchingUp => State::CatchingUp,
                State::Lagging if pending > lag / 2 => State::Lagging,
                _ if pending > lag => State::Lagging,
                _ => State::Live,
            };
            if next != state || pending == 0 || sequence % 256 == 0 {
                state = next;
                self.note(shard, state, pending);
            }
            self.enqueue(message.into()).await;
        }
    }

    /// Waits until the pool has taken enough of what was read before.
    async fn enqueue(&self, message: Message) {
        let most = self.run.config.queue_bytes;
        let bytes = u32::try_from(message.payload.len().clamp(1, most)).unwrap_or(u32::MAX);
        // Neither is ever closed while this runs.
        let Ok(permit) = Arc::clone(&self.run.bytes).acquire_many_owned(bytes).await else {
            return;
        };
        let _ = self.run.queue.send(Job::Message(message, permit)).await;
    }

    /// A consumer that begins where the tracker stands. The server keeps its position in memory, on one server:
    /// when that is lost, another begins here again.
    async fn consumer(
        &self,
        stream: &str,
        tracker: &Tracker,
    ) -> Result<async_nats::jetstream::consumer::Consumer<pull::Config>, State> {
        let name = self.run.config.name.clone();
        let context = &self.link.context;
        // The one of an earlier connection stands elsewhere. Usually there is none.
        let _ = context.delete_consumer_from_stream(&name, stream).await;
        let deliver_policy = match tracker.next() {
            None => DeliverPolicy::All,
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
        };
        let config = pull::Config {
            name: Some(name.clone()),
            deliver_policy,
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            inactive_threshold: INACTIVE,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        context.create_consumer_on_stream(config, stream).await.map_err(|error| {
            tracing::warn!(%error, stream, "no consumer");
            let subject = format!("$JS.API.CONSUMER.CREATE.{stream}.{name}");
            match error.kind() {
                ConsumerErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    State::StreamMissing
                }
                _ if self.link.is_denied(&subject) => State::Denied,
                _ => State::Unavailable,
            }
        })
    }
}
