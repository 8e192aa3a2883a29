//! One source: the shell around its state machine, which performs the machine's actions and passes
//! it the events that result. Entry: [`Source::run`]; [`machine`] makes the decisions.
//!
//! Subscription and request connections are supervised separately, because each may fail alone.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | status | the source's shell, `status()` | to write or clone the status |

mod activity;
pub(crate) mod machine;
mod status;
mod sync_state;

use std::{
    panic::resume_unwind,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U64};
use futures::FutureExt as _;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, sleep_until},
};

pub(crate) use self::status::{AUDITS_WAITING, Changes, Inbox, SourceShared};
pub use self::{machine::SourceState, status::SourceStatus};
use self::{
    machine::{Action, Event, Machine, Role},
    sync_state::{SyncResponse, SyncState},
};
use crate::{
    announce::{self, Backlog, Readers, Subscription},
    audit::{self, AuditMode, AuditReport, Comparison},
    chain::{self, Chain},
    config::{Announcements, Settings},
    context::Context,
    error::{CallError, ConnectError, LossReason, SnapshotError, SourceError},
    fetch::{Fetch, PoolRequest},
    gap::{GapReason, Report},
    in_process,
    limits::Limits,
    metrics,
    node::{self, Connection, Dialed, NodeRequests, Requests, keep_alive},
    sync::lock,
};

/// How often the machine gets a tick: the resolution of its timers.
const TICK: Duration = Duration::from_millis(100);

/// A request for a comparison, by a caller of
/// [`FetcherHandle::audit`](crate::FetcherHandle::audit).
pub(crate) struct AuditRequest {
    pub(crate) mode: AuditMode,
    pub(crate) requested_at: Instant,
    pub(crate) reply: oneshot::Sender<Result<AuditReport, SnapshotError>>,
}

/// The result of a task of the source.
enum Message {
    /// The subscription is active. The readers are the tasks that read it.
    SubscriptionUp(Subscription, Readers),
    /// The request connections are open, with the progress of the node.
    RequestsUp(Arc<Requests<PoolRequest>>, SyncResponse),
    DialFailed(Role, ConnectError),
    Lost(Role, LossReason),
    Compared(Result<AuditReport, SnapshotError>, Duration),
}

/// The parts of the fetcher that all sources share.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) chain: Arc<Chain>,
}

/// The shell of one source.
pub(crate) struct Source {
    parts: Parts,
    index: usize,
    shared: Arc<SourceShared>,
    machine: Machine,
    tasks: JoinSet<Option<Message>>,
    subscription: Option<Subscription>,
    sync: SyncState,
    /// The hash of the node's genesis block, once the node has returned it.
    genesis: Option<B256>,
    /// The error of a source on another chain was logged.
    is_on_other_chain: bool,
    /// Whether a connection was lost since the source was live.
    is_lost: bool,
}

impl Source {
    /// Runs one source. Returns when the fetcher stops, or at the limit of connection attempts.
    pub(crate) async fn run(
        parts: Parts,
        index: usize,
        shared: Arc<SourceShared>,
        Inbox { audits, mut reports, name: _name }: Inbox,
    ) {
        let machine = Machine::new(&parts.context.settings, rand::random(), Instant::now());
        let mut source = Self {
            parts,
            index,
            shared,
            machine,
            tasks: JoinSet::new(),
            subscription: None,
            sync: SyncState::default(),
            genesis: None,
            is_on_other_chain: false,
            is_lost: false,
        };
        source.serve_audits(audits);
        source.perform();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = source.parts.context.tasks.stop.clone();
        while source.machine.state != SourceState::Ended {
            tokio::select! {
                // Messages come before reports, so that a connection is known before its reports.
                // Reports are last, because there may be many.
                biased;
                () = stop.cancelled() => break,
                Some(joined) = source.tasks.join_next() => match joined {
                    Ok(message) => {
                        message.into_iter().for_each(|message| source.on_message(message));
                    }
                    // The event of the task would never come, so the fetcher ends.
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                _ = ticks.tick() => source.tick(),
                Some(report) = reports.recv() => source.on_report(report),
            }
            source.perform();
            source.publish();
        }
        source.parts.context.connections.set(index, None);
        source.tasks.shutdown().await;
        if source.machine.state != SourceState::Ended {
            lock(&source.shared.status).last_error = None;
        }
    }

    /// Spawns a task without a message at its end.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task.map(|()| None));
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let lost = self.shared.backlog.newly_lost();
        if lost > 0 {
            self.parts.context.metrics.lagged.add(lost);
            self.machine.on(Event::Gap(GapReason::Lagged), now);
        }
        self.parts.fetch.report_listed_announcements(self.index);
        let backlog = self.shared.backlog.len();
        self.shared.metrics.backlog.set(backlog as f64);
        self.shared.metrics.fetch_limit.set(self.shared.limit.limit() as f64);
        // The reader of announcements reports this too, but not while it waits for a slot.
        self.parts.context.deferral.observe_backlog(self.index, || backlog);
        if let Some(head) = self.sync.head() {
            self.shared.metrics.head.set(head.number as f64);
            self.shared.metrics.head_age.set(sync_state::age(&head).as_secs_f64());
        }
        self.tick_machine(now);
    }

    /// Passes the number of hashes read to the machine.
    fn tick_machine(&mut self, now: Instant) {
        self.check_sync(now);
        self.machine.on(Event::Failures(self.shared.limit.failures()), now);
        let read = self.shared.backlog.hashes_read();
        self.machine.on(Event::Tick { read }, now);
    }

    /// Passes the machine whether the node follows the chain.
    fn check_sync(&mut self, now: Instant) {
        let latest = lock(&self.parts.chain.follower).latest_timestamp(now);
        let is_behind = self.sync.is_behind(latest, sync_state::since_epoch(), now);
        if let Some(ahead) = self.sync.newly_ahead() {
            tracing::warn!(
                endpoint = %self.parts.context.settings.config.sources[self.index],
                ahead_s = ahead.as_secs(),
                "this machine's clock seems to be ahead: the node's heads are old by it, although they \
                 come at the pace of the clock"
            );
        }
        self.machine.on(Event::Behind(is_behind), now);
    }

    fn on_report(&mut self, report: Report) {
        let event = match report {
            Report::Head(head) => {
                self.sync.record(head, Instant::now());
                Event::Head(head.number)
            }
            Report::Gap(reason) => Event::Gap(reason),
            Report::Sync { block, says_syncing } => {
                if let Some(says_syncing) = says_syncing {
                    self.sync.set_says_syncing(says_syncing);
                }
                let known = self.sync.head().map(|head| head.number);
                if self.machine.state == SourceState::Syncing && block > known {
                    // Its subscription may be dead, which is noticed only while it is live.
                    self.request_progress();
                }
                block.map_or(Event::NoBlockNumber, Event::SawBlock)
            }
            Report::LeaderLost => return self.request_head(),
            Report::NoObjects => {
                // alloy closes the connection for objects, which is the second one, when nobody
                // has it any more.
                if let Some(up) = &mut self.subscription {
                    up.connections.truncate(1);
                }
                return self.shared.announces(Announcements::Hashes);
            }
        };
        self.machine.on(event, Instant::now());
    }

    fn on_message(&mut self, message: Message) {
        let now = Instant::now();
        match message {
            Message::SubscriptionUp(subscription, readers) => {
                // Before the readers begin, whose heads are of the chain that the connection has
                // shown.
                self.check_genesis(subscription.genesis);
                readers.into_iter().for_each(|reader| self.spawn(reader));
                let ended = Arc::clone(&subscription.ended);
                self.tasks.spawn(async move {
                    Some(Message::Lost(Role::Subscription, ended.wait().await))
                });
                self.shared.announces(if subscription.has_objects {
                    Announcements::Full
                } else {
                    Announcements::Hashes
                });
                self.shared.metrics.chain_id.set(subscription.node.chain_id as f64);
                lock(&self.shared.status).node = Some(subscription.node.clone());
                self.is_on_other_chain = false;
                self.subscription = Some(subscription);
                self.up(Role::Subscription, now);
            }
            Message::RequestsUp(requests, sync) => {
                self.sync.set_says_syncing(sync.says_syncing);
                if let Some(head) = sync.head {
                    self.sync.record(head, now);
                }
                let context = Arc::clone(&self.parts.context);
                context.connections.set(self.index, Some(Arc::clone(&requests)));
                if let Requests::Node(node) = &*requests {
                    let limits = &context.settings.limits;
                    for connection in node.all() {
                        let listings = Arc::clone(&context.listings[self.index]);
                        self.spawn(keep_alive(Arc::clone(connection), limits.clone(), listings));
                    }
                    let backlog = Arc::clone(&self.shared.backlog);
                    if let Some(calls) = context.connections.calls(self.index) {
                        self.spawn(report_sync(calls, limits.clone(), backlog));
                    }
                }
                let index = self.index;
                self.tasks.spawn(async move {
                    let reason = requests.watch(&context.connections, index).await;
                    Some(Message::Lost(Role::Request, reason))
                });
                self.up(Role::Request, now);
            }
            Message::DialFailed(role, error) => {
                self.parts.context.metrics.connect_failures.increment(1);
                self.parts.context.chain_id.set_tried(self.index);
                let is_on_other_chain = matches!(error, ConnectError::OtherChain { .. });
                if is_on_other_chain && !self.is_on_other_chain {
                    tracing::error!(%error, "a source on another chain is not used");
                } else {
                    tracing::debug!(%error, ?role, "cannot connect: another attempt follows");
                }
                self.is_on_other_chain |= is_on_other_chain;
                self.shared.fail(SourceError::Connect(error));
                self.machine.on(Event::DialFailed(role), now);
            }
            Message::Lost(role, reason) => {
                if role == Role::Subscription {
                    self.subscription = None;
                }
                metrics::count_lost_connection(reason.as_str());
                tracing::warn!(
                    endpoint = %self.parts.context.settings.config.sources[self.index], ?role, %reason,
                    "connection lost"
                );
                self.is_lost = true;
                self.shared.fail(SourceError::Lost(reason));
                self.machine.on(Event::Down(role), now);
            }
            Message::Compared(Ok(report), _) => {
                // The latest announcements are counted before a silent source is judged.
                self.tick_machine(now);
                self.machine.on(Event::Compared(report), now);
            }
            Message::Compared(Err(error), after) => {
                let is_retryable = error.is_retryable();
                self.shared.fail(SourceError::Compare(error));
                self.machine.on(Event::CompareFailed { after, is_retryable }, now);
            }
        }
    }

    /// Forgets everything that is known of the chain if it was reset: if it has another genesis
    /// block than before, under the same chain id. Otherwise the transactions of the old chain,
    /// which have the same hashes, would count as mined for ever.
    fn check_genesis(&mut self, genesis: Option<B256>) {
        let Some(found) = genesis else { return };
        let Some(before) = self.genesis.replace(found).filter(|before| *before != found) else {
            return;
        };
        tracing::error!(
            endpoint = %self.parts.context.settings.config.sources[self.index], %before, %found,
            "the chain was reset: it has another genesis block under the same chain id; everything \
             that was known of it is forgotten"
        );
        self.shared.backlog.reset();
        self.parts.chain.reset(self.index);
        self.sync = SyncState::default();
    }

    /// Notes that the connections of a role are open.
    fn up(&mut self, role: Role, now: Instant) {
        // This comes first, so that the pool of a node that is syncing is not compared.
        self.check_sync(now);
        self.machine.on(Event::Up(role), now);
        if self.machine.state != SourceState::Connecting {
            self.request_head();
        }
    }

    /// Requests the current head. New heads are announced already, so none is missed in between.
    fn request_head(&mut self) {
        let (chain, index) = (Arc::clone(&self.parts.chain), self.index);
        let backlog = Arc::clone(&self.shared.backlog);
        let resets = backlog.resets();
        self.spawn(async move {
            if let Some(head) = chain::latest(&chain, index).await
                && backlog.resets() == resets
            {
                backlog.report(Report::Head(head.head)).await;
                backlog.heads.push(head);
            }
        });
    }

    /// Requests the current head of a source that is syncing, whose heads do not count.
    fn request_progress(&mut self) {
        let Some(calls) = self.parts.context.connections.calls(self.index) else { return };
        let limit = self.parts.context.settings.limits.ping_timeout;
        let backlog = Arc::clone(&self.shared.backlog);
        self.spawn(async move {
            if let Some(head) = chain::latest_head(&calls, limit).await {
                backlog.report(Report::Head(head)).await;
            }
        });
    }

    /// Performs the machine's actions.
    fn perform(&mut self) {
        for action in std::mem::take(&mut self.machine.actions) {
            match action {
                Action::Dial { role, after } => self.dial(role, after),
                Action::Drop(Role::Subscription, reason) => {
                    if let Some(up) = &self.subscription {
                        up.end(reason);
                    }
                }
                Action::Drop(Role::Request, reason) => {
                    let requests = self.parts.context.connections.get(self.index);
                    if let Some(Requests::Node(node)) = requests.as_deref() {
                        node.end(&reason);
                    }
                }
                Action::Compare(reason) => {
                    let comparison = self.comparison(reason, reason == GapReason::Audit);
                    let compared = |(result, took)| Some(Message::Compared(result, took));
                    self.tasks.spawn(comparison.run().map(compared));
                }
            }
        }
    }

    /// Publishes the state of the machine in the status, the log and the metrics.
    fn publish(&mut self) {
        let state = self.machine.reported_state();
        let audited = self.machine.is_audited;
        let (before, audited_before) = {
            let mut status = lock(&self.shared.status);
            let before = std::mem::replace(&mut status.state, state);
            status.head = self.sync.head().map(|head| head.number);
            status.reconnects = self.machine.reconnects;
            status.gaps.clear();
            status.gaps.extend(self.machine.gaps.iter().copied());
            (before, std::mem::replace(&mut status.audited, audited))
        };
        // Outside of the lock, because the log subscriber and the metrics recorder are code of the
        // host.
        let context = Arc::clone(&self.parts.context);
        let endpoint = &context.settings.config.sources[self.index];
        if audited_before != audited {
            if audited {
                tracing::info!(%endpoint, "the node's pool can be compared again");
            } else {
                tracing::warn!(
                    %endpoint,
                    "the node's pool cannot be compared: transactions that it does not announce stay unknown"
                );
                self.spawn(audit::report_unlisted(Arc::clone(&self.parts.context), self.index));
            }
            self.shared.metrics.audited.set(f64::from(u8::from(audited)));
            self.shared.changed();
        }
        if before != state {
            self.shared.changed();
            let may_lead = matches!(
                state,
                SourceState::Backfilling | SourceState::Live | SourceState::Failing
            );
            self.parts.chain.set_may_lead(self.index, may_lead);
            let names = (before.as_str(), state.as_str());
            if state == SourceState::Live && std::mem::take(&mut self.is_lost) {
                // The level is that of the loss, so that the same readers see its end.
                tracing::warn!(%endpoint, from = names.0, to = names.1, "the state of the source has changed");
            } else {
                tracing::info!(%endpoint, from = names.0, to = names.1, "the state of the source has changed");
            }
            self.shared.metrics.state.set(f64::from(state as u8));
            if before == SourceState::Syncing && may_lead {
                // The heads of this source did not count until now.
                self.request_head();
            }
        }
    }

    fn dial(&mut self, role: Role, after: Duration) {
        let (parts, index) = (self.parts.clone(), self.index);
        let backlog = Arc::clone(&self.shared.backlog);
        let was_connected = lock(&self.shared.status).node.is_some();
        self.tasks.spawn(async move {
            sleep(after).await;
            let dialed = dial(&parts, index, role, &backlog, was_connected).await;
            Some(dialed.unwrap_or_else(|error| Message::DialFailed(role, error)))
        });
    }

    fn comparison(&self, reason: GapReason, deferrable: bool) -> Comparison {
        Comparison {
            context: Arc::clone(&self.parts.context),
            fetch: Arc::clone(&self.parts.fetch),
            chain: Arc::clone(&self.parts.chain),
            state: Arc::clone(&self.shared.audits),
            backlog: Arc::clone(&self.shared.backlog),
            unlistable: self.shared.metrics.unlistable.clone(),
            listed_not_held: self.shared.metrics.listed_not_held.clone(),
            source: self.index,
            reason,
            mode: AuditMode::Recover,
            deferrable,
        }
    }

    /// Spawns the task that runs the comparisons which callers request, one at a time.
    fn serve_audits(&mut self, mut audits: mpsc::Receiver<AuditRequest>) {
        let comparison = self.comparison(GapReason::Audit, false);
        self.spawn(async move {
            let (context, index) = (Arc::clone(&comparison.context), comparison.source);
            let limits = &context.settings.limits;
            while let Some(AuditRequest { mode, requested_at, reply }) = audits.recv().await {
                if reply.is_closed() {
                    // The caller has stopped waiting before the comparison began.
                    continue;
                }
                let comparison = Comparison { mode, ..comparison.clone() };
                let result = tokio::select! {
                    // A complete comparison is reported, however late it is.
                    biased;
                    (result, _) = comparison.run() => result,
                    () = sleep_until((requested_at + limits.audit_timeout).into()) => {
                        Err(SnapshotError::Unfinished(limits.audit_timeout))
                    }
                    () = context.connections.down_for(index, limits.call_timeout) => {
                        Err(SnapshotError::ConnectionLost)
                    }
                };
                // The error means that the caller no longer waits. The comparison was continued,
                // because the hashes that it fetches have entered.
                let _ = reply.send(result);
            }
        });
    }
}

/// Opens the connections of one role. `was_connected` says that the source was connected before.
async fn dial(
    parts: &Parts,
    index: usize,
    role: Role,
    backlog: &Arc<Backlog>,
    was_connected: bool,
) -> Result<Message, ConnectError> {
    let Parts { context, fetch, .. } = parts;
    match (role, context.settings.in_process_pool(index)) {
        (Role::Subscription, pool) => {
            let (subscription, readers) = match pool {
                Some(pool) => in_process::subscribe(context, fetch, index, pool, backlog).await?,
                None => announce::subscribe(context, fetch, index, backlog, was_connected).await?,
            };
            Ok(Message::SubscriptionUp(subscription, readers))
        }
        (Role::Request, Some(pool)) => {
            let queues = in_process::start(context, fetch, pool)?;
            Ok(Message::RequestsUp(Requests::InProcess(queues).into(), SyncResponse::default()))
        }
        (Role::Request, None) => open_requests(context, index, was_connected).await,
    }
}

/// Opens the request connections of a node, and asks for its progress.
async fn open_requests(
    context: &Context,
    index: usize,
    was_connected: bool,
) -> Result<Message, ConnectError> {
    let Settings { config, limits } = &*context.settings;
    let endpoint = &config.sources[index];
    let Dialed { connection, node } = node::dial(endpoint, limits, was_connected).await?;
    context.chain_id.check(index, endpoint, node.chain_id).await?;
    let limit = limits.ping_timeout;
    let says_syncing = chain::says_syncing(&connection, limit).await;
    // Without this, its head cannot make it count as syncing: see `SyncState::is_behind`.
    let needs_head = says_syncing || config.sources.len() > 1;
    let head = if needs_head { chain::latest_head(&connection, limit).await } else { None };
    let mut connections = vec![connection];
    while connections.len() < config.request_connections {
        connections.push(Arc::new(Connection::open(endpoint, limits).await?));
    }
    let requests = NodeRequests::new(connections, context.settings.deferrable_connections());
    Ok(Message::RequestsUp(Requests::Node(requests).into(), SyncResponse { says_syncing, head }))
}

/// Asks a node for its block number and its progress at regular intervals, and reports them, until
/// the connection is lost.
async fn report_sync(calls: Arc<Connection>, limits: Limits, backlog: Arc<Backlog>) {
    loop {
        tokio::select! {
            // The order is irrelevant: if both are ready, the end is noticed an interval later.
            _ = calls.ended.wait() => return,
            () = sleep(limits.ping_interval) => {}
        }
        let (block, says_syncing) =
            match calls.call("eth_blockNumber", (), limits.ping_timeout).await {
                Ok(number) => {
                    let block =
                        serde_json::from_str::<U64>(number.get()).ok().map(|block| block.to());
                    (block, Some(chain::says_syncing(&calls, limits.ping_timeout).await))
                }
                Err(CallError::ConnectionLost) => return,
                // What the node says of its progress counts only with its block number.
                Err(_) => (None, None),
            };
        backlog.report(Report::Sync { block, says_syncing }).await;
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // This also runs after a panic. The threads that call a pool in this process end with its
        // queues.
        self.parts.context.connections.set(self.index, None);
        self.parts.context.metrics.lagged.add(self.shared.backlog.close());
        self.parts.context.deferral.observe_backlog(self.index, || 0);
        self.shared.end();
        self.parts.chain.set_may_lead(self.index, false);
    }
}
