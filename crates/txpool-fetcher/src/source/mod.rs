//! The I/O of one source: it dials, subscribes, pings and compares pools as the actions of the
//! state machine say, and feeds the resulting events back to it.

pub(crate) mod machine;
mod ping;
pub(crate) mod status;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use self::ping::Pinger;
pub use self::status::SourceStatus;
pub(crate) use self::status::{Changes, Progress, SourceShared};
use crate::{
    announce::subscription::run_subscription,
    audit::SnapshotError,
    audit::{AuditMode, AuditReport, Comparison},
    chain::{self, Announced},
    connection::Connection,
    error::{ConnectError, LossReason, SourceError},
    fetch::FetchContext,
    in_process::{PoolReader, PoolSubscription, run_in_process},
    metrics::SourceMetrics,
    request::{Opened, RequestSet, Requests, dial_requests, watch_requests},
    sink::TransactionSink,
    source::machine::{Action, Event, GapReason, Machine, Role, SourceState},
    sync::lock,
};

/// How often the machine gets a tick: the resolution of its timers.
const TICK: Duration = Duration::from_millis(100);

/// Capacity of the source's inbox. A sender waits while it is full, so nothing is lost.
const MESSAGES: usize = 256;

/// A request for a comparison, by a caller of [`Fetcher::audit`](crate::Fetcher::audit).
#[derive(Debug)]
pub(crate) struct AuditRequest {
    pub(crate) mode: AuditMode,
    pub(crate) reply: oneshot::Sender<Result<AuditReport, SnapshotError>>,
}

#[derive(Debug)]
pub(crate) enum Message {
    Event(Event),
    SubscriptionUp(Arc<Connection>),
    RequestConnectionsUp(Opened),
    PoolSubscribed(Arc<PoolSubscription>),
    PoolReaderUp(Arc<PoolReader>),
    DialFailed(Role, ConnectError),
    Lost(Role, u64, LossReason),
    Compared(Result<AuditReport, SnapshotError>, Duration),
}

/// The task that reads a source's announcements.
#[derive(Debug)]
enum Subscription {
    Node(Arc<Connection>),
    InProcess(Arc<PoolSubscription>),
}

impl Subscription {
    fn kill(&self, reason: LossReason) {
        match self {
            Self::Node(connection) => connection.kill(reason),
            Self::InProcess(subscription) => subscription.end(reason),
        }
    }
}

/// Sends a message to the source. Cannot deadlock: the source never waits for a task that sends.
pub(crate) async fn send(messages: &mpsc::Sender<Message>, message: Message) {
    // A closed channel means that the source has ended, which makes the message irrelevant.
    let _ = messages.send(message).await;
}

/// The channels between a source and the other parts.
#[derive(Debug)]
pub(crate) struct SourceChannels {
    /// To which it sends heads.
    pub(crate) heads: mpsc::Sender<Announced>,
    /// Events that follow from its heads.
    pub(crate) events: mpsc::Receiver<Event>,
}

/// One running source.
pub(crate) struct Source<S> {
    context: Arc<FetchContext<S>>,
    index: usize,
    shared: Arc<SourceShared>,
    channels: SourceChannels,
    /// Gets the result of the first attempt to connect, for a start that requires a node.
    first: Option<oneshot::Sender<Result<(), ConnectError>>>,
    machine: Machine,
    messages: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
    metrics: SourceMetrics,
    subscription: Option<Subscription>,
    requests: Option<Arc<RequestSet>>,
    /// Counts the connections of each role, so that a message about an earlier one is recognised.
    generations: [u64; 2],
}

impl<S: TransactionSink> Source<S> {
    /// Runs one source. Returns when the fetcher stops, or at the limit of connection attempts.
    pub(crate) async fn run(
        context: Arc<FetchContext<S>>,
        index: usize,
        shared: Arc<SourceShared>,
        channels: SourceChannels,
        audits: mpsc::Receiver<AuditRequest>,
        first: oneshot::Sender<Result<(), ConnectError>>,
    ) {
        let (messages, mut inbox) = mpsc::channel(MESSAGES);
        let (machine, actions) = Machine::new(&context.config, rand::random(), Instant::now());
        let metrics = SourceMetrics::new(&context.config.sources[index].to_string());
        let mut source = Self {
            context,
            index,
            shared,
            channels,
            first: Some(first),
            machine,
            messages,
            tasks: JoinSet::new(),
            metrics,
            subscription: None,
            requests: None,
            generations: [0; 2],
        };
        source.serve_audits(audits);
        let mut ended = source.perform(actions);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = source.context.stop.clone();
        while !ended {
            // The order is irrelevant: messages wait in their channels, and a delayed tick catches
            // up.
            let actions = tokio::select! {
                () = stop.cancelled() => break,
                Some(message) = inbox.recv() => source.on_message(message),
                Some(event) = source.channels.events.recv() => {
                    source.machine.on(event, Instant::now())
                }
                Some(joined) = source.tasks.join_next() => {
                    // The event that it was to report would never come, so the fetcher ends with
                    // this reason.
                    if let Err(error) = joined && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                    Vec::new()
                }
                _ = ticks.tick() => source.tick(),
            };
            ended = source.perform(actions);
            source.publish();
        }
        source.end(ended).await;
    }

    fn tick(&mut self) -> Vec<Action> {
        let backlog = self.shared.backlog();
        self.metrics.backlog.set(backlog as f64);
        // The announcement reader reports this too, but not while it waits for a slot.
        self.context.deferral.observe_backlog(self.index, backlog);
        self.tick_machine(Instant::now())
    }

    fn tick_machine(&mut self, now: Instant) -> Vec<Action> {
        let read = self.shared.read();
        self.machine.on(Event::Tick { read }, now)
    }

    fn on_message(&mut self, message: Message) -> Vec<Action> {
        let now = Instant::now();
        match message {
            Message::Event(event) => {
                if let Event::Head(number) = event {
                    lock(&self.shared.status).head = Some(number);
                }
                self.machine.on(event, now)
            }
            Message::SubscriptionUp(connection) => {
                self.watch(Role::Subscription, &connection);
                lock(&self.shared.status).node = Some(connection.node.clone());
                self.subscription = Some(Subscription::Node(connection));
                self.up(Role::Subscription, now)
            }
            Message::PoolSubscribed(subscription) => {
                let watched = Arc::clone(&subscription);
                self.watch_end(Role::Subscription, async move { watched.ended().await });
                lock(&self.shared.status).node = Some(subscription.node.clone());
                self.subscription = Some(Subscription::InProcess(subscription));
                self.up(Role::Subscription, now)
            }
            Message::PoolReaderUp(reader) => {
                self.context.requests.set(self.index, Some(Requests::InProcess(reader)));
                self.up(Role::Request, now)
            }
            Message::RequestConnectionsUp(opened) => {
                self.ping(Role::Request, &opened.set.calls);
                let set = Requests::Node(Arc::clone(&opened.set));
                self.context.requests.set(self.index, Some(set));
                self.requests = Some(Arc::clone(&opened.set));
                self.watch_requests(opened);
                self.up(Role::Request, now)
            }
            Message::DialFailed(role, error) => {
                self.context.tally.metrics.connect_failures.increment(1);
                tracing::debug!(%error, ?role, "cannot connect");
                self.shared.fail(SourceError::Connect(error.clone()));
                if let Some(first) = self.first.take() {
                    // The receiver may be gone; the error is in the status as well.
                    let _ = first.send(Err(error));
                }
                self.machine.on(Event::DialFailed(role), now)
            }
            Message::Lost(role, generation, reason) => {
                if generation != self.generations[role as usize] {
                    return Vec::new();
                }
                self.generations[role as usize] += 1;
                match role {
                    Role::Subscription => self.subscription = None,
                    // By then the requests in flight have been passed on.
                    Role::Request => self.requests = None,
                }
                SourceMetrics::reconnected(reason.as_str());
                tracing::warn!(
                    endpoint = %self.context.config.sources[self.index], ?role, %reason,
                    "connection lost"
                );
                self.shared.fail(SourceError::Lost(reason));
                self.machine.on(Event::Down(role), now)
            }
            Message::Compared(Ok(report), _) => {
                let AuditReport { recovered, unannounced, .. } = report;
                lock(&self.shared.status).last_audit = Some(report);
                self.shared.changed();
                // A silent source is judged only after its latest announcements are counted.
                let mut actions = self.tick_machine(now);
                actions.extend(self.machine.on(Event::Compared { recovered, unannounced }, now));
                actions
            }
            Message::Compared(Err(error), after) => {
                let is_retryable = error.is_retryable();
                self.shared.fail(SourceError::Compare(error));
                self.machine.on(Event::CompareFailed { after, is_retryable }, now)
            }
        }
    }

    fn up(&mut self, role: Role, now: Instant) -> Vec<Action> {
        let actions = self.machine.on(Event::Up(role), now);
        if self.machine.state() != SourceState::Connecting {
            self.request_head();
            if let Some(first) = self.first.take() {
                // The receiver may be gone; the state is in the status as well.
                let _ = first.send(Ok(()));
            }
        }
        actions
    }

    /// Requests the current head. Heads are already announced, so none can be missed in between.
    fn request_head(&mut self) {
        let (context, index) = (Arc::clone(&self.context), self.index);
        let heads = self.channels.heads.clone();
        self.tasks.spawn(async move {
            if let Some(head) = chain::latest(&context, index).await {
                // If the fetcher stops, the head is not needed.
                let _ = heads.send(head).await;
            }
        });
    }

    /// Carries out the machine's actions; true when one of them ends the source.
    fn perform(&mut self, actions: Vec<Action>) -> bool {
        let mut ended = false;
        for action in actions {
            match action {
                Action::Dial { role, after } => self.dial(role, after),
                Action::Drop { role, reason } => match (role, &self.subscription, &self.requests) {
                    (Role::Subscription, Some(subscription), _) => subscription.kill(reason),
                    (Role::Request, _, Some(set)) => set.end(&reason),
                    (Role::Subscription, None, _) | (Role::Request, _, None) => {}
                },
                Action::Compare(reason) => self.compare(reason),
                Action::End => ended = true,
            }
        }
        ended
    }

    fn publish(&self) {
        let state = self.machine.state();
        let audited = self.machine.is_audited();
        let (before, audited_before) = {
            let mut status = lock(&self.shared.status);
            let before = std::mem::replace(&mut status.state, state);
            if before != state {
                status.since = SystemTime::now();
            }
            status.reconnects = self.machine.reconnects();
            status.gaps.clear();
            status.gaps.extend(self.machine.gaps().copied());
            (before, std::mem::replace(&mut status.audited, audited))
        };
        // After the lock is released: the log subscriber and the metrics recorder are code of the
        // host.
        let endpoint = &self.context.config.sources[self.index];
        if audited_before != audited {
            match audited {
                true => tracing::info!(%endpoint, "the node's pool can be compared again"),
                false => tracing::warn!(
                    %endpoint,
                    "the node's pool cannot be compared: transactions that it does not announce stay unknown"
                ),
            }
            self.metrics.audited.set(f64::from(u8::from(audited)));
            self.shared.changed();
        }
        if before != state {
            self.shared.changed();
            tracing::info!(%endpoint, from = before.as_str(), to = state.as_str(), "source");
            self.metrics.state.set(f64::from(state as u8));
        }
    }

    fn dial(&mut self, role: Role, after: Duration) {
        let context = Arc::clone(&self.context);
        let shared = Arc::clone(&self.shared);
        let messages = self.messages.clone();
        let (index, heads) = (self.index, self.channels.heads.clone());
        let known = lock(&self.shared.status).node.is_some();
        self.tasks.spawn(async move {
            sleep(after).await;
            let pool = context.config.in_process_pool(index);
            let message = match (role, pool) {
                (Role::Subscription, Some(pool)) => {
                    match run_in_process(&context, index, pool, &shared, &messages, &heads).await {
                        // It has sent `PoolSubscribed` itself.
                        Ok(()) => return,
                        Err(error) => Message::DialFailed(role, error),
                    }
                }
                (Role::Request, Some(pool)) => match PoolReader::start(&context, pool) {
                    Ok(reader) => Message::PoolReaderUp(Arc::new(reader)),
                    Err(source) => {
                        let endpoint = pool.to_string();
                        Message::DialFailed(
                            role,
                            ConnectError::Io { endpoint, source: source.into() },
                        )
                    }
                },
                (Role::Subscription, None) => {
                    match run_subscription(&context, index, &shared, &messages, &heads).await {
                        // It has sent `SubscriptionUp` itself, before it read announcements.
                        Ok(()) => return,
                        Err(error) => Message::DialFailed(role, error),
                    }
                }
                (Role::Request, None) => match dial_requests(&context, index, known).await {
                    Ok(opened) => Message::RequestConnectionsUp(opened),
                    Err(error) => Message::DialFailed(role, error),
                },
            };
            send(&messages, message).await;
        });
    }

    /// Starts the tasks that wait for the end of a connection and that ping it.
    fn watch(&mut self, role: Role, connection: &Arc<Connection>) {
        let watched = Arc::clone(connection);
        self.watch_end(role, async move { watched.closed().await });
        self.ping(role, connection);
    }

    /// Starts the task that waits for an end.
    fn watch_end(&mut self, role: Role, ended: impl Future<Output = LossReason> + Send + 'static) {
        let generation = self.generations[role as usize];
        let messages = self.messages.clone();
        self.tasks.spawn(async move {
            let reason = ended.await;
            send(&messages, Message::Lost(role, generation, reason)).await;
        });
    }

    /// Waits for the end of the request connections; meanwhile it times requests out.
    fn watch_requests(&mut self, opened: Opened) {
        let (context, shared) = (Arc::clone(&self.context), Arc::clone(&self.shared));
        self.watch_end(Role::Request, watch_requests(context, self.index, shared, opened));
    }

    fn ping(&mut self, role: Role, connection: &Arc<Connection>) {
        let pinged = Arc::clone(connection);
        let pinger = Pinger {
            every: self.context.config.ping_interval,
            limit: self.context.config.ping_timeout,
            list_limit: self.context.config.snapshot_timeout,
            shared: Arc::clone(&self.shared),
            messages: self.messages.clone(),
        };
        self.tasks.spawn(async move {
            tokio::select! {
                _ = pinged.closed() => {}
                () = pinger.run(role, &pinged) => {}
            }
        });
    }

    fn compare(&mut self, reason: GapReason) {
        let comparison = Comparison {
            context: Arc::clone(&self.context),
            shared: Arc::clone(&self.shared),
            source: self.index,
            reason,
            mode: AuditMode::Recover,
            deferrable: reason == GapReason::Audit,
        };
        let messages = self.messages.clone();
        self.tasks.spawn(async move {
            let started = Instant::now();
            let result = comparison.run().await;
            send(&messages, Message::Compared(result, started.elapsed())).await;
        });
    }

    /// Starts the task that runs the comparisons requested by callers, one after another, because
    /// each lists a whole pool.
    fn serve_audits(&mut self, mut audits: mpsc::Receiver<AuditRequest>) {
        let (context, shared, source) =
            (Arc::clone(&self.context), Arc::clone(&self.shared), self.index);
        self.tasks.spawn(async move {
            while let Some(AuditRequest { mode, reply }) = audits.recv().await {
                if reply.is_closed() {
                    // The caller has stopped waiting before it began.
                    continue;
                }
                let comparison = Comparison {
                    context: Arc::clone(&context),
                    shared: Arc::clone(&shared),
                    source,
                    reason: GapReason::Audit,
                    mode,
                    deferrable: false,
                };
                // It continues when the caller stops waiting, because the hashes that it fetches
                // have entered.
                let _ = reply.send(comparison.run().await);
            }
        });
    }

    async fn end(mut self, gave_up: bool) {
        self.context.requests.set(self.index, None);
        self.tasks.shutdown().await;
        if !gave_up {
            lock(&self.shared.status).last_error = None;
        }
    }
}

impl<S> Drop for Source<S> {
    fn drop(&mut self) {
        // Also after a panic: the source is not live any more, and the threads that call a pool in
        // this process end with its reader.
        self.context.requests.set(self.index, None);
        {
            let mut status = lock(&self.shared.status);
            status.state = SourceState::Ended;
            status.since = SystemTime::now();
        }
        self.shared.changed();
        self.metrics.state.set(SourceState::Ended as u8 as f64);
    }
}
