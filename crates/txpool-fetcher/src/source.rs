//! The shell around one source's state machine: it dials, listens, pings and compares as the
//! machine says, and tells it what happened.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{B256, U64};
use alloy_pubsub::RawSubscription;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc, oneshot},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    config::{Endpoint, FetcherConfig},
    core::{Arrival, Core, Firsts, lock},
    error::{CallError, ConnectError, LossReason},
    heads::{Announced, Header},
    limit::NodeLimit,
    link::{Link, NodeInfo, Stamps, dial},
    machine::{Action, Event, Gap, GapReason, Machine, Role, SourceState},
    metrics::SourceMetrics,
    outcome::Entry,
    reconcile::{AuditMode, AuditReport, Comparison},
    sink::TransactionSink,
    snapshot::SnapshotError,
};

/// Slots of the buffer for heads: four minutes of a chain with a block a second.
const HEAD_BUFFER: usize = 256;

/// How often the machine is told that time passes: the grain of its decisions.
const TICK: Duration = Duration::from_millis(100);

/// Messages to the shell that may wait; senders wait beyond.
const MESSAGES: usize = 256;

/// What can be read off a source at any time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceStatus {
    /// Where it is.
    pub endpoint: Endpoint,
    /// What it is doing.
    pub state: SourceState,
    /// Since when.
    pub since: SystemTime,
    /// What the node said of itself, once it was reached.
    pub node: Option<NodeInfo>,
    /// Connections lost after they worked.
    pub reconnects: u64,
    /// The latest reason for a loss or a failed attempt.
    pub last_error: Option<String>,
    /// The latest 32 gaps, oldest first.
    pub gaps: Vec<Gap>,
    /// Comparisons with the node's pool, of any reason.
    pub audits: u64,
    /// Hashes they brought in.
    pub recovered: u64,
    /// The latest comparison.
    pub last_audit: Option<AuditReport>,
    /// Hashes it announced.
    pub announced: u64,
    /// Hashes it announced before any other source.
    pub first_seen: u64,
    /// Announcements read from the socket and not yet taken in.
    pub backlog: u64,
    /// Fetches that it is asked at once, at most: [`FetcherConfig::fetch_slots`], or less while it
    /// is overloaded.
    ///
    /// [`FetcherConfig::fetch_slots`]: crate::FetcherConfig::fetch_slots
    pub fetch_limit: usize,
    /// The latest head it announced.
    pub head: Option<u64>,
}

/// What a source shares with its handle and its comparisons.
#[derive(Debug)]
pub(crate) struct Shared {
    status: Mutex<SourceStatus>,
    listening: Mutex<Option<Arc<Progress>>>,
    /// Lists of the pool under way: the source's own comparison, and those asked for from outside.
    listing: AtomicUsize,
    pub(crate) audits: AtomicU64,
    pub(crate) recovered: AtomicU64,
    pub(crate) firsts: Arc<Firsts>,
    pub(crate) limit: Arc<NodeLimit>,
    /// When the latest full comparison began.
    pub(crate) compared: Mutex<Option<Instant>>,
}

/// How far the intake is behind one listening connection.
#[derive(Debug)]
struct Progress {
    stamps: Arc<Stamps>,
    taken: AtomicU64,
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, config: &FetcherConfig) -> Arc<Self> {
        let name = endpoint.to_string();
        Arc::new(Self {
            limit: Arc::new(NodeLimit::new(
                config.adaptive_limit,
                config.fetch_slots,
                config.deferrable_slots,
                SourceMetrics::fetch_limit(&name),
                SourceMetrics::rests(&name),
            )),
            status: Mutex::new(SourceStatus {
                endpoint,
                state: SourceState::Connecting,
                since: SystemTime::now(),
                node: None,
                reconnects: 0,
                last_error: None,
                gaps: Vec::new(),
                audits: 0,
                recovered: 0,
                last_audit: None,
                announced: 0,
                first_seen: 0,
                backlog: 0,
                fetch_limit: config.fetch_slots,
                head: None,
            }),
            listening: Mutex::new(None),
            listing: AtomicUsize::new(0),
            audits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            firsts: Arc::default(),
            compared: Mutex::new(None),
        })
    }

    /// Until the guard is dropped, the pings give the node time.
    pub(crate) fn list(&self) -> impl Drop + '_ {
        struct Listing<'a>(&'a AtomicUsize);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.listing.fetch_add(1, Relaxed);
        Listing(&self.listing)
    }

    fn is_listing(&self) -> bool {
        self.listing.load(Relaxed) > 0
    }

    pub(crate) fn backlog(&self) -> u64 {
        lock(&self.listening).as_ref().map_or(0, |progress| {
            progress.stamps.read().saturating_sub(progress.taken.load(Relaxed))
        })
    }

    pub(crate) fn status(&self) -> SourceStatus {
        SourceStatus {
            backlog: self.backlog(),
            fetch_limit: self.limit.limit(),
            audits: self.audits.load(Relaxed),
            recovered: self.recovered.load(Relaxed),
            announced: self.firsts.announced.load(Relaxed),
            first_seen: self.firsts.first_seen.load(Relaxed),
            ..lock(&self.status).clone()
        }
    }

    pub(crate) fn state(&self) -> SourceState {
        lock(&self.status).state
    }
}

/// A request for a comparison from outside.
#[derive(Debug)]
pub(crate) struct AuditRequest {
    pub(crate) mode: AuditMode,
    pub(crate) reply: oneshot::Sender<Result<AuditReport, SnapshotError>>,
}

#[derive(Debug)]
enum Message {
    Event(Event),
    Listening(Arc<Link>),
    Asking(Vec<Arc<Link>>),
    DialFailed(Role, ConnectError),
    Lost(Role, u64, LossReason),
    Compared(Result<AuditReport, SnapshotError>),
}

/// One source, until it is stopped or gives up.
pub(crate) struct Source<S> {
    core: Arc<Core<S>>,
    index: usize,
    shared: Arc<Shared>,
    heads: mpsc::Sender<Announced>,
    audits: mpsc::Receiver<AuditRequest>,
    /// Told the result of the first attempt, for a start that requires a node.
    first: Option<oneshot::Sender<Result<(), ConnectError>>>,
    machine: Machine,
    messages: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
    metrics: SourceMetrics,
    listening: Option<Arc<Link>>,
    asking: Vec<Arc<Link>>,
    /// Counts the connections of each role, so that news of an old one is told from the new.
    generations: [u64; 2],
}

impl<S: TransactionSink> Source<S> {
    /// Runs one source. Ends when the fetcher stops, or at the limit of attempts.
    pub(crate) async fn run(
        core: Arc<Core<S>>,
        index: usize,
        shared: Arc<Shared>,
        heads: mpsc::Sender<Announced>,
        audits: mpsc::Receiver<AuditRequest>,
        first: oneshot::Sender<Result<(), ConnectError>>,
    ) {
        let (messages, mut inbox) = mpsc::channel(MESSAGES);
        let (machine, actions) = Machine::new(&core.config, rand::random(), Instant::now());
        let metrics = SourceMetrics::new(&core.config.sources[index].to_string());
        let mut source = Self {
            core,
            index,
            shared,
            heads,
            audits,
            first: Some(first),
            machine,
            messages,
            tasks: JoinSet::new(),
            metrics,
            listening: None,
            asking: Vec::new(),
            generations: [0; 2],
        };
        let mut ended = source.perform(actions);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = source.core.stop.clone();
        while !ended {
            // In any order: messages wait in their channel, a missed tick is made up by the next.
            let actions = tokio::select! {
                () = stop.cancelled() => break,
                Some(message) = inbox.recv() => source.on_message(message),
                Some(request) = source.audits.recv() => {
                    source.audit(request);
                    Vec::new()
                }
                Some(_) = source.tasks.join_next(), if !source.tasks.is_empty() => Vec::new(),
                _ = ticks.tick() => source.tick(),
            };
            ended = source.perform(actions);
            source.publish();
        }
        source.end(ended).await;
    }

    fn tick(&mut self) -> Vec<Action> {
        let announced = self.core.firsts[self.index].announced.load(Relaxed);
        let backlog = self.shared.backlog();
        self.metrics.backlog.set(backlog as f64);
        // Also while the intake waits for a slot and tells nothing itself.
        self.core.deferral.backlog(self.index, backlog);
        self.machine.on(Event::Tick { announced }, Instant::now())
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
            Message::Listening(link) => {
                self.watch(Role::Listening, &link);
                lock(&self.shared.status).node = Some(link.node.clone());
                self.listening = Some(link);
                self.up(Role::Listening, now)
            }
            Message::Asking(links) => {
                for link in &links {
                    self.watch(Role::Asking, link);
                }
                self.core.asks.set(self.index, links.clone());
                self.asking = links;
                self.up(Role::Asking, now)
            }
            Message::DialFailed(role, error) => {
                self.core.tally.metrics.connect_failures.increment(1);
                tracing::debug!(%error, ?role, "cannot connect");
                lock(&self.shared.status).last_error = Some(error.to_string());
                if let Some(first) = self.first.take() {
                    // Nobody may wait for it: then the status has it.
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
                    Role::Listening => self.listening = None,
                    Role::Asking => {
                        self.core.asks.set(self.index, Vec::new());
                        for link in self.asking.drain(..) {
                            // The others of this source: one set of connections, one life.
                            link.kill(LossReason::Closed);
                        }
                    }
                }
                SourceMetrics::reconnected(reason.label());
                tracing::warn!(
                    endpoint = %self.core.config.sources[self.index], ?role, %reason,
                    "connection lost"
                );
                lock(&self.shared.status).last_error = Some(reason.to_string());
                self.machine.on(Event::Down(role), now)
            }
            Message::Compared(Ok(report)) => {
                let recovered = report.recovered;
                lock(&self.shared.status).last_audit = Some(report);
                self.machine.on(Event::Compared { recovered }, now)
            }
            Message::Compared(Err(error)) => {
                tracing::warn!(%error, "cannot compare with the node's pool");
                lock(&self.shared.status).last_error = Some(error.to_string());
                self.machine.on(Event::CompareFailed, now)
            }
        }
    }

    fn up(&mut self, role: Role, now: Instant) -> Vec<Action> {
        let actions = self.machine.on(Event::Up(role), now);
        if self.machine.state() != SourceState::Connecting
            && let Some(first) = self.first.take()
        {
            let _ = first.send(Ok(()));
        }
        actions
    }

    /// Does what the machine wants; true when it wants to end.
    fn perform(&mut self, actions: Vec<Action>) -> bool {
        let mut ended = false;
        for action in actions {
            match action {
                Action::Dial { role, after } => self.dial(role, after),
                Action::Drop { role, reason } => {
                    let links = match role {
                        Role::Listening => self.listening.as_slice(),
                        Role::Asking => self.asking.as_slice(),
                    };
                    for link in links {
                        link.kill(reason.clone());
                    }
                }
                Action::Compare(reason) => self.compare(reason),
                Action::End => ended = true,
            }
        }
        ended
    }

    fn publish(&self) {
        let state = self.machine.state();
        let before = {
            let mut status = lock(&self.shared.status);
            let before = std::mem::replace(&mut status.state, state);
            if before != state {
                status.since = SystemTime::now();
            }
            status.reconnects = self.machine.reconnects();
            status.gaps.clear();
            status.gaps.extend(self.machine.gaps().copied());
            before
        };
        // After the lock: a log line and a gauge are someone else's code.
        if before != state {
            let endpoint = &self.core.config.sources[self.index];
            tracing::info!(%endpoint, from = before.label(), to = state.label(), "source");
            self.metrics.state.set(f64::from(state as u8));
        }
    }

    fn dial(&mut self, role: Role, after: Duration) {
        let core = Arc::clone(&self.core);
        let shared = Arc::clone(&self.shared);
        let messages = self.messages.clone();
        let (index, heads) = (self.index, self.heads.clone());
        let known = lock(&self.shared.status).node.is_some();
        self.tasks.spawn(async move {
            sleep(after).await;
            let message = match role {
                Role::Listening => {
                    match listen(&core, index, &shared, &messages, &heads).await {
                        // It has said `Listening` itself, before the first announcement.
                        Ok(()) => return,
                        Err(error) => Message::DialFailed(role, error),
                    }
                }
                Role::Asking => match dial_all(&core, index, known).await {
                    Ok(links) => Message::Asking(links),
                    Err(error) => Message::DialFailed(role, error),
                },
            };
            // A closed channel means that the source has ended meanwhile.
            let _ = messages.send(message).await;
        });
    }

    /// Waits for the end of a connection, and pings it meanwhile.
    fn watch(&mut self, role: Role, link: &Arc<Link>) {
        let generation = self.generations[role as usize];
        let messages = self.messages.clone();
        let watched = Arc::clone(link);
        self.tasks.spawn(async move {
            let reason = watched.closed().await;
            let _ = messages.send(Message::Lost(role, generation, reason)).await;
        });
        let pinged = Arc::clone(link);
        let pinger = Pinger {
            every: self.core.config.ping_interval,
            limit: self.core.config.ping_timeout,
            list_limit: self.core.config.snapshot_timeout,
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
        let comparison = self.comparison(reason, AuditMode::Recover, reason == GapReason::Audit);
        let messages = self.messages.clone();
        self.tasks.spawn(async move {
            let result = comparison.run().await;
            let _ = messages.send(Message::Compared(result)).await;
        });
    }

    fn audit(&mut self, request: AuditRequest) {
        let comparison = self.comparison(GapReason::Audit, request.mode, false);
        self.tasks.spawn(async move {
            // Whoever asked may have stopped waiting.
            let _ = request.reply.send(comparison.run().await);
        });
    }

    fn comparison(&self, reason: GapReason, mode: AuditMode, cheap: bool) -> Comparison<S> {
        Comparison {
            core: Arc::clone(&self.core),
            shared: Arc::clone(&self.shared),
            source: self.index,
            reason,
            mode,
            cheap,
        }
    }

    async fn end(mut self, gave_up: bool) {
        self.core.asks.set(self.index, Vec::new());
        self.tasks.shutdown().await;
        {
            let mut status = lock(&self.shared.status);
            status.state = SourceState::Ended;
            status.since = SystemTime::now();
            if !gave_up {
                status.last_error = None;
            }
        }
        self.metrics.state.set(SourceState::Ended as u8 as f64);
    }
}

struct Pinger {
    every: Duration,
    limit: Duration,
    /// Longest time for which the node may list its pool.
    list_limit: Duration,
    shared: Arc<Shared>,
    messages: mpsc::Sender<Message>,
}

impl Pinger {
    /// Returns when the connection was given up.
    async fn run(&self, role: Role, link: &Link) {
        // When the first ping was sent that had no answer yet.
        let mut silent_since = None;
        loop {
            sleep(self.every).await;
            let asked = *silent_since.get_or_insert_with(Instant::now);
            let listing = self.shared.is_listing();
            let answer = link.call("eth_blockNumber", (), self.limit).await;
            if !matches!(answer, Err(CallError::Timeout(_))) {
                silent_since = None;
            }
            match answer {
                Ok(answer) if role == Role::Asking => {
                    if let Ok(number) = serde_json::from_str::<U64>(answer.get()) {
                        let event = Message::Event(Event::SawBlock(number.to()));
                        let _ = self.messages.send(event).await;
                    }
                }
                // An error is an answer too.
                Ok(_) | Err(CallError::Rpc { .. }) => {}
                Err(CallError::LinkLost) => return,
                // Busy sending us something else is alive.
                Err(CallError::Timeout(_)) if link.last_frame() >= asked => silent_since = None,
                Err(CallError::Timeout(_)) => {
                    let mut limit = self.limit;
                    // While it lists its pool, a node may be slow with everything: anvil answers
                    // nothing for 12 s with 60,000 transactions.
                    if listing || self.shared.is_listing() {
                        limit += self.list_limit;
                    }
                    let silent = asked.elapsed();
                    if silent >= limit {
                        link.kill(LossReason::Unresponsive(silent));
                        return;
                    }
                }
            }
        }
    }
}

async fn dial_all<S>(
    core: &Core<S>,
    index: usize,
    known: bool,
) -> Result<Vec<Arc<Link>>, ConnectError> {
    let mut links = Vec::new();
    for _ in 0..core.config.ask_connections {
        links.push(Arc::new(dial_on_chain(core, index, known).await?));
    }
    Ok(links)
}

async fn dial_on_chain<S>(core: &Core<S>, index: usize, known: bool) -> Result<Link, ConnectError> {
    let endpoint = &core.config.sources[index];
    let link = dial(endpoint, &core.config, known).await?;
    let expected = *lock(&core.chain_id).get_or_insert(link.node.chain_id);
    if link.node.chain_id != expected {
        return Err(ConnectError::OtherChain {
            endpoint: endpoint.to_string(),
            found: link.node.chain_id,
            expected,
        });
    }
    Ok(link)
}

/// Connects, subscribes, says that it is up, and reads until the connection ends.
async fn listen<S: TransactionSink>(
    core: &Arc<Core<S>>,
    index: usize,
    shared: &Arc<Shared>,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) -> Result<(), ConnectError> {
    let config = &core.config;
    let endpoint = &config.sources[index];
    let known = lock(&shared.status).node.is_some();
    let link = Arc::new(dial_on_chain(core, index, known).await?);
    let slots = config.announcement_buffer;
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    let limit = config.ping_timeout;
    let hashes = match link.subscribe_hashes(slots, limit).await.map_err(refused)? {
        Ok(subscription) => subscription,
        Err(probed) => {
            return Err(ConnectError::BufferNotInEffect {
                endpoint: endpoint.to_string(),
                probed,
                wanted: slots,
            });
        }
    };
    let new_heads = link.subscribe_heads(HEAD_BUFFER, limit).await.map_err(refused)?;
    let progress = Arc::new(Progress { stamps: link.stamps(), taken: AtomicU64::new(0) });
    *lock(&shared.listening) = Some(Arc::clone(&progress));
    if messages.send(Message::Listening(Arc::clone(&link))).await.is_err() {
        return Ok(());
    }
    // Two readers: a wait for a slot must not hold back a head.
    tokio::join!(
        read_hashes(core, index, hashes, &progress, messages),
        read_heads(core, index, new_heads, messages, heads),
    );
    Ok(())
}

async fn read_hashes<S: TransactionSink>(
    core: &Arc<Core<S>>,
    index: usize,
    mut hashes: RawSubscription,
    progress: &Progress,
    messages: &mpsc::Sender<Message>,
) {
    // The number of the next announcement on this connection.
    let mut number = 0;
    let mut lag_told: Option<Instant> = None;
    loop {
        match hashes.recv().await {
            Ok(notification) => match parse_hash(notification.get()) {
                Some(hash) => {
                    let at = progress.stamps.take(number).unwrap_or_else(Instant::now);
                    number += 1;
                    let arrival = Arrival { hash, entry: Entry::Announced, source: index, at };
                    core.deferral.backlog(index, progress.stamps.read().saturating_sub(number));
                    core.announced(arrival).await;
                    progress.taken.store(number, Relaxed);
                }
                None => {
                    // Strings are stamped, whatever they say.
                    number += u64::from(notification.get().starts_with('"'));
                    progress.taken.store(number, Relaxed);
                    core.tally.metrics.malformed_notifications.increment(1);
                }
            },
            Err(RecvError::Lagged(count)) => {
                number += count;
                progress.taken.store(number, Relaxed);
                core.tally.lagged(count);
                // While it lasts, it overruns at every turn: one line a second says so.
                if lag_told.is_none_or(|told| told.elapsed() >= Duration::from_secs(1)) {
                    tracing::warn!(count, "announcement buffer overruns");
                    lag_told = Some(Instant::now());
                }
                let _ = messages.send(Message::Event(Event::Lagged)).await;
            }
            Err(RecvError::Closed) => break,
        }
    }
    core.deferral.backlog(index, 0);
}

fn parse_hash(json: &str) -> Option<B256> {
    let hex = json.strip_prefix("\"0x")?.strip_suffix('"')?;
    const_hex::decode_to_array::<_, 32>(hex).ok().map(B256::from)
}

async fn read_heads<S>(
    core: &Arc<Core<S>>,
    index: usize,
    mut new_heads: RawSubscription,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) {
    let (events, mut relayed) = mpsc::channel(16);
    let relay = async {
        while let Some(event) = relayed.recv().await {
            let _ = messages.send(Message::Event(event)).await;
        }
    };
    let read = async move {
        loop {
            match new_heads.recv().await {
                Ok(json) => match serde_json::from_str::<Header>(json.get()) {
                    Ok(header) => {
                        let number = header.number.to();
                        let _ = messages.send(Message::Event(Event::Head(number))).await;
                        let head = Announced { source: index, header, events: events.clone() };
                        if heads.send(head).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => core.tally.metrics.malformed_notifications.increment(1),
                },
                // The next head's parent is then unknown, and the missed ones are fetched.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    };
    tokio::join!(relay, read);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_66_characters_in_quotes_and_nothing_else() {
        let hash = B256::repeat_byte(0xab);
        assert_eq!(parse_hash(&format!("\"{hash}\"")), Some(hash));
        for bad in ["null", "\"0x\"", "\"0xab\"", "{}", "\"", "\"0xzz\""] {
            assert_eq!(parse_hash(bad), None);
        }
    }
}
