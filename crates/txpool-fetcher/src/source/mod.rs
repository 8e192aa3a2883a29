//! One source: its state machine, and the shell that carries out its actions and tells it the
//! events that result. Entry: [`Source::run`]; the machine is [`machine`].
//!
//! Subscription and request connections are supervised separately, because either may fail alone.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | status | the source's shell, `status()` | to write or clone the status |

mod activity;
pub(crate) mod machine;
mod status;

use std::{
    panic::resume_unwind,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::U64;
use chain_view::Head;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, sleep_until},
};

use self::machine::{Action, Event, Machine, Role};
pub(crate) use self::status::{AUDITS_WAITING, Changes, Inbox, SourceShared};
pub use self::{machine::SourceState, status::SourceStatus};
use crate::{
    announce::{self, Backlog},
    audit::{AuditMode, AuditReport, Comparison},
    chain::{self, Chain, Follower},
    config::Announcements,
    connection::{self, Calls, Subscription, dial},
    error::{ConnectError, LossReason, SnapshotError, SourceError},
    fetch::{Deliverer, Fetch, FetchRequest, ResponseReader},
    gap::{GapReason, Report},
    in_process,
    limits::{Limits, MAX_HEAD_AGE},
    metrics,
    request::{Opener, RequestSet, Requests},
    sink::TransactionSink,
    sync::lock,
};

/// How often the machine gets a tick: the resolution of its timers.
const TICK: Duration = Duration::from_millis(100);

/// A request for a comparison, by a caller of [`Fetcher::audit`](crate::Fetcher::audit).
pub(crate) struct AuditRequest {
    pub(crate) mode: AuditMode,
    pub(crate) at: Instant,
    pub(crate) reply: oneshot::Sender<Result<AuditReport, SnapshotError>>,
}

/// What became of a task of the source.
enum Message {
    /// With what is to be read of it.
    SubscriptionUp((Subscription, BoxFuture<'static, ()>)),
    /// With what the node says of its chain.
    RequestsUp(Arc<Requests<FetchRequest>>, Sync),
    DialFailed(Role, ConnectError),
    Lost(Role, LossReason),
    Compared(Result<AuditReport, SnapshotError>, Duration),
}

/// What is known of how far a node is.
#[derive(Clone, Copy, Debug, Default)]
struct Sync {
    says_syncing: bool,
    head: Option<Head>,
}

impl Sync {
    /// Whether its head is old, and it says that it is syncing, or another source has a recent one.
    /// Neither alone decides. A development chain may mine nothing for days, and geth says that it
    /// is syncing for hours while it indexes transactions at the head of the chain.
    fn is_behind(&self, follower: &Follower) -> bool {
        let oldest = since_epoch().saturating_sub(MAX_HEAD_AGE).as_secs();
        self.head.is_some_and(|head| head.timestamp < oldest)
            && (self.says_syncing || follower.has_head_after(oldest))
    }
}

fn since_epoch() -> Duration {
    // A clock before 1970 makes every head young.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// What all sources share.
pub(crate) struct Parts<S> {
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) deliverer: Arc<Deliverer<S>>,
    pub(crate) chain: Arc<Chain>,
}

pub(crate) struct Source<S> {
    parts: Arc<Parts<S>>,
    index: usize,
    shared: Arc<SourceShared>,
    machine: Machine,
    tasks: JoinSet<Option<Message>>,
    subscription: Option<Subscription>,
    sync: Sync,
    /// The error of a source on another chain is logged.
    is_on_other_chain: bool,
    /// Whether a connection was lost since it was live.
    is_lost: bool,
}

impl<S: TransactionSink> Source<S> {
    /// Runs one source. Returns when the fetcher stops, or at the limit of connection attempts.
    pub(crate) async fn run(
        parts: Arc<Parts<S>>,
        index: usize,
        shared: Arc<SourceShared>,
        Inbox { audits, mut reports, name: _name }: Inbox,
    ) {
        let machine = Machine::new(&parts.fetch.settings, rand::random(), Instant::now());
        let mut source = Self {
            parts,
            index,
            shared,
            machine,
            tasks: JoinSet::new(),
            subscription: None,
            sync: Sync::default(),
            is_on_other_chain: false,
            is_lost: false,
        };
        source.serve_audits(audits);
        let (fetch, backlog) = (&source.parts.fetch, &source.shared.backlog);
        let waiting = announce::process_waiting(Arc::clone(fetch), index, Arc::clone(backlog));
        source.spawn(waiting);
        source.perform();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = source.parts.fetch.tasks.stop.clone();
        while source.machine.state != SourceState::Ended {
            tokio::select! {
                // That a connection is up is known before what it reports; reports, of which there may be many, are last.
                biased;
                () = stop.cancelled() => break,
                Some(joined) = source.tasks.join_next() => match joined {
                    Ok(message) => message.into_iter().for_each(|it| source.on_message(it)),
                    // The event that it was to report would never come, so the fetcher ends.
                    Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                    Err(_) => {}
                },
                _ = ticks.tick() => source.tick(),
                Some(report) = reports.recv() => source.on_report(report),
            }
            source.perform();
            source.publish();
        }
        source.parts.fetch.connections.set(index, None);
        source.tasks.shutdown().await;
        if source.machine.state != SourceState::Ended {
            lock(&source.shared.status).last_error = None;
        }
    }

    /// Starts a task with nothing to say at its end.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task.map(|()| None));
    }

    fn tick(&mut self) {
        let backlog = self.shared.backlog.len();
        self.shared.metrics.backlog.set(backlog as f64);
        self.shared.metrics.fetch_limit.set(self.shared.limit.limit() as f64);
        // The announcement reader reports this too, but not while it waits for a slot.
        self.parts.fetch.deferral.observe_backlog(self.index, || backlog);
        if let Some(head) = self.sync.head {
            let age = since_epoch().saturating_sub(Duration::from_secs(head.timestamp));
            self.shared.metrics.head.set(head.number as f64);
            self.shared.metrics.head_age.set(age.as_secs_f64());
        }
        self.tick_machine(Instant::now());
    }

    fn tick_machine(&mut self, now: Instant) {
        self.check_sync(now);
        let read = self.shared.backlog.read.load(Relaxed);
        self.machine.on(Event::Tick { read }, now);
    }

    fn check_sync(&mut self, now: Instant) {
        let is_behind = self.sync.is_behind(&lock(&self.parts.chain.follower));
        self.machine.on(Event::Behind(is_behind), now);
    }

    fn on_report(&mut self, report: Report) {
        let event = match report {
            Report::Head(head) => {
                self.sync.head = Some(head);
                Event::Head(head.number)
            }
            Report::Gap(reason) => Event::Gap(reason),
            Report::Sync { block, says_syncing } => {
                self.sync.says_syncing = says_syncing;
                let Some(number) = block else { return };
                Event::SawBlock(number)
            }
            Report::LeaderLost => return self.request_head(),
            Report::NoObjects => return self.shared.announces(Announcements::Hashes),
        };
        self.machine.on(event, Instant::now());
    }

    fn on_message(&mut self, message: Message) {
        let now = Instant::now();
        match message {
            Message::SubscriptionUp((subscription, read)) => {
                self.spawn(read);
                let ended = Arc::clone(&subscription.ended);
                self.tasks.spawn(async move {
                    Some(Message::Lost(Role::Subscription, ended.wait().await))
                });
                self.shared.announces(match subscription.connections.len() {
                    2 => Announcements::Full,
                    _ => Announcements::Hashes,
                });
                self.shared.metrics.chain_id.set(subscription.node.chain_id as f64);
                lock(&self.shared.status).node = Some(subscription.node.clone());
                self.is_on_other_chain = false;
                self.subscription = Some(subscription);
                self.up(Role::Subscription, now);
            }
            Message::RequestsUp(requests, sync) => {
                self.sync = Sync { head: sync.head.or(self.sync.head), ..sync };
                self.parts.fetch.connections.set(self.index, Some(Arc::clone(&requests)));
                if let Requests::Node(set) = &*requests {
                    let limits = self.parts.fetch.settings.limits.clone();
                    let (calls, backlog) = (Arc::clone(&set.calls), &self.shared.backlog);
                    self.spawn(report_sync(calls, limits, Arc::clone(backlog)));
                }
                let (fetch, index) = (Arc::clone(&self.parts.fetch), self.index);
                self.tasks.spawn(async move {
                    let on_failure = |request, error| fetch.failed(request, error);
                    let reason = requests.watch(&fetch.connections, index, on_failure).await;
                    Some(Message::Lost(Role::Request, reason))
                });
                self.up(Role::Request, now);
            }
            Message::DialFailed(role, error) => {
                self.parts.fetch.metrics.connect_failures.increment(1);
                self.parts.deliverer.chain_id.tried(self.index);
                let is_on_other_chain = matches!(error, ConnectError::OtherChain { .. });
                match is_on_other_chain && !self.is_on_other_chain {
                    true => tracing::error!(%error, "a source of another chain is not used"),
                    false => tracing::debug!(%error, ?role, "cannot connect"),
                }
                self.is_on_other_chain |= is_on_other_chain;
                self.shared.fail(SourceError::Connect(error));
                self.machine.on(Event::DialFailed(role), now);
            }
            Message::Lost(role, reason) => {
                if role == Role::Subscription {
                    self.subscription = None;
                }
                metrics::reconnected(reason.as_str());
                tracing::warn!(
                    endpoint = %self.parts.fetch.settings.config.sources[self.index], ?role, %reason,
                    "connection lost"
                );
                self.is_lost = true;
                self.shared.fail(SourceError::Lost(reason));
                self.machine.on(Event::Down(role), now);
            }
            Message::Compared(Ok(report), _) => {
                // A silent source is judged only after its latest announcements are counted.
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

    fn up(&mut self, role: Role, now: Instant) {
        // Before the pool is compared.
        self.check_sync(now);
        self.machine.on(Event::Up(role), now);
        if self.machine.state != SourceState::Connecting {
            self.request_head();
        }
    }

    /// Requests the current head. Heads are already announced, so none can be missed in between.
    fn request_head(&mut self) {
        let (chain, index) = (Arc::clone(&self.parts.chain), self.index);
        let backlog = Arc::clone(&self.shared.backlog);
        self.spawn(async move {
            if let Some(head) = chain::latest(&chain, index).await {
                backlog.report(Report::Head(head.head)).await;
                backlog.heads.push(head, 0);
            }
        });
    }

    /// Carries out the machine's actions.
    fn perform(&mut self) {
        for action in std::mem::take(&mut self.machine.actions) {
            match action {
                Action::Dial { role, after } => self.dial(role, after),
                Action::Drop(reason) => {
                    let Some(up) = &self.subscription else { continue };
                    up.ended.set(reason.clone());
                    up.connections.iter().for_each(|it| it.end(reason.clone()));
                }
                Action::Compare(reason) => {
                    let comparison = self.comparison(reason, reason == GapReason::Audit);
                    let compared = |(result, took)| Some(Message::Compared(result, took));
                    self.tasks.spawn(comparison.run().map(compared));
                }
            }
        }
    }

    fn publish(&mut self) {
        let state = self.machine.state;
        let audited = self.machine.is_audited;
        let (before, audited_before) = {
            let mut status = lock(&self.shared.status);
            let before = std::mem::replace(&mut status.state, state);
            status.head = self.sync.head.map(|head| head.number);
            status.reconnects = self.machine.reconnects;
            status.gaps.clear();
            status.gaps.extend(self.machine.gaps.iter().copied());
            (before, std::mem::replace(&mut status.audited, audited))
        };
        // Without the lock: the log subscriber and the metrics recorder are the host's.
        let endpoint = &self.parts.fetch.settings.config.sources[self.index];
        if audited_before != audited {
            match audited {
                true => tracing::info!(%endpoint, "the node's pool can be compared again"),
                false => tracing::warn!(
                    %endpoint,
                    "the node's pool cannot be compared: transactions that it does not announce stay unknown"
                ),
            }
            self.shared.metrics.audited.set(f64::from(u8::from(audited)));
            self.shared.changed();
        }
        if before != state {
            self.shared.changed();
            let may_lead = matches!(state, SourceState::Backfilling | SourceState::Live);
            self.parts.chain.set_may_lead(self.index, may_lead);
            let (from, to) = (before.as_str(), state.as_str());
            match state == SourceState::Live && std::mem::take(&mut self.is_lost) {
                // At the level of the loss: who was told of that is told of its end.
                true => tracing::warn!(%endpoint, from, to, "source"),
                false => tracing::info!(%endpoint, from, to, "source"),
            }
            self.shared.metrics.state.set(f64::from(state as u8));
            if before == SourceState::Syncing && may_lead {
                // Its heads did not count until now.
                self.request_head();
            }
        }
    }

    fn dial(&mut self, role: Role, after: Duration) {
        let (deliverer, index) = (Arc::clone(&self.parts.deliverer), self.index);
        let backlog = Arc::clone(&self.shared.backlog);
        let known = lock(&self.shared.status).node.is_some();
        self.tasks.spawn(async move {
            sleep(after).await;
            let dialed = async {
                Ok(match (role, deliverer.fetch.settings.in_process_pool(index)) {
                    (Role::Subscription, Some(pool)) => Message::SubscriptionUp(
                        in_process::subscribe(&deliverer, index, pool, &backlog).await?,
                    ),
                    (Role::Subscription, None) => Message::SubscriptionUp(
                        announce::subscribe(&deliverer, index, &backlog, known).await?,
                    ),
                    (Role::Request, Some(pool)) => {
                        let queues = in_process::start(&deliverer, pool)?;
                        Message::RequestsUp(Requests::InProcess(queues).into(), Sync::default())
                    }
                    (Role::Request, None) => open_requests(&deliverer, index, known).await?,
                })
            };
            Some(dialed.await.unwrap_or_else(|error| Message::DialFailed(role, error)))
        });
    }

    fn comparison(&self, reason: GapReason, deferrable: bool) -> Comparison {
        Comparison {
            fetch: Arc::clone(&self.parts.fetch),
            chain: Arc::clone(&self.parts.chain),
            state: Arc::clone(&self.shared.audits),
            backlog: Arc::clone(&self.shared.backlog),
            unlistable: self.shared.metrics.unlistable.clone(),
            source: self.index,
            reason,
            mode: AuditMode::Recover,
            deferrable,
        }
    }

    /// Starts the task that runs the comparisons requested by callers, one at a time.
    fn serve_audits(&mut self, mut audits: mpsc::Receiver<AuditRequest>) {
        let comparison = self.comparison(GapReason::Audit, false);
        self.spawn(async move {
            let (fetch, index) = (Arc::clone(&comparison.fetch), comparison.source);
            let limits = &fetch.settings.limits;
            while let Some(AuditRequest { mode, at, reply }) = audits.recv().await {
                if reply.is_closed() {
                    // The caller has stopped waiting before it began.
                    continue;
                }
                let comparison = Comparison { mode, ..comparison.clone() };
                let result = tokio::select! {
                    // What is complete is reported, however late.
                    biased;
                    (result, _) = comparison.run() => result,
                    () = sleep_until((at + limits.audit_timeout).into()) => {
                        Err(SnapshotError::Unfinished(limits.audit_timeout))
                    }
                    () = fetch.connections.down_for(index, limits.call_timeout) => {
                        Err(SnapshotError::ConnectionLost)
                    }
                };
                // It continues without the caller, because what it fetches has entered.
                let _ = reply.send(result);
            }
        });
    }
}

/// Opens the request connections of a node, and finds out how far it is.
async fn open_requests<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    known: bool,
) -> Result<Message, ConnectError> {
    let fetch = &deliverer.fetch;
    let settings = &fetch.settings;
    let endpoint = &settings.config.sources[index];
    let patience = (&settings.limits, &fetch.listings[index]);
    let thread = ("mempool-calls", &*fetch.tasks);
    let [(calls, node)] = dial(endpoint, patience, known, thread).await?;
    deliverer.chain_id.check(index, endpoint, node.chain_id).await?;
    let limit = settings.limits.ping_timeout;
    let says_syncing = chain::says_syncing(&calls, limit).await;
    // Else its head cannot make it count as syncing.
    let needs_head = says_syncing || settings.config.sources.len() > 1;
    let head = if needs_head { chain::head_of(&calls, limit).await } else { None };
    let deliverer = Arc::clone(deliverer);
    let opener: Opener<_> = Box::new(move || {
        let deliverer = Arc::clone(&deliverer);
        let opened = async move {
            let Fetch { settings, listings, tasks, .. } = &*deliverer.fetch;
            let patience = (&settings.limits, &listings[index]);
            let responses = ResponseReader::new(&deliverer);
            connection::open(&settings.config.sources[index], patience, responses, tasks).await
        };
        opened.boxed()
    });
    let set = RequestSet::open(calls, opener, settings).await?;
    Ok(Message::RequestsUp(Requests::Node(set).into(), Sync { says_syncing, head }))
}

/// Asks a node at regular intervals how far it is, until the connection is lost.
async fn report_sync(calls: Arc<Calls>, limits: Limits, backlog: Arc<Backlog>) {
    loop {
        tokio::select! {
            // The order is irrelevant: the end is seen after the next interval too.
            _ = calls.ended.wait() => return,
            () = sleep(limits.ping_interval) => {}
        }
        if let Ok(number) = calls.call("eth_blockNumber", (), limits.ping_timeout).await {
            let block = serde_json::from_str::<U64>(number.get()).ok().map(|block| block.to());
            let says_syncing = chain::says_syncing(&calls, limits.ping_timeout).await;
            backlog.report(Report::Sync { block, says_syncing }).await;
        }
    }
}

impl<S> Drop for Source<S> {
    fn drop(&mut self) {
        // Also after a panic; the threads that call a pool in this process end with its reader.
        self.parts.fetch.connections.set(self.index, None);
        self.parts.fetch.metrics.lagged.add(self.shared.backlog.close());
        self.parts.fetch.deferral.observe_backlog(self.index, || 0);
        self.shared.end();
        self.parts.chain.set_may_lead(self.index, false);
    }
}
