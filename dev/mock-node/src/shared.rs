//! The state that the threads of the node share: one lock protects the core, the subscriptions, the
//! armed faults and the counts.

use std::{
    convert::Infallible,
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use alloy_eips::Encodable2718 as _;
use alloy_primitives::{B256, Bytes, keccak256, map::B256HashMap};
use alloy_rlp::EMPTY_STRING_CODE;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tokio::sync::Notify;

use crate::{
    capacity::Line,
    chain::FullBlock,
    config::{FullObjects, LoadStart, NodeConfig},
    core::{Core, Effects},
    delays::Held,
    error::TxRefused,
    faults::{Armed, take_one},
    outbox::Outbox,
    quirks::{IncompleteForm, Quirks, Topic},
    state::{Execute, NewState},
    stats::Stats,
    tx::{SignedTx, to_json},
    workload::{TxKind, Workload},
};

#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) number: u64,
    pub(crate) outbox: Arc<Outbox>,
    /// Each subscription with its id, as the client knows it, without quotes.
    pub(crate) subscriptions: Vec<(String, Topic)>,
}

impl Connected {
    pub(crate) fn is_subscribed(&self, topic: Topic) -> bool {
        self.subscriptions.iter().any(|(_, other)| *other == topic)
    }

    /// Ends the subscriptions to a topic; the client gets a notification of that if `notifies` is
    /// set.
    pub(crate) fn end_subscriptions(&mut self, topic: Topic, notifies: bool) {
        for (id, _) in self.subscriptions.extract_if(.., |(_, other)| *other == topic) {
            if notifies {
                self.outbox.push(notification(&id, "error", br#""subscription closed""#), 0);
            }
        }
    }

    fn notify(&self, topic: Topic, result: &[u8]) {
        for (id, _) in self.subscriptions.iter().filter(|(_, other)| *other == topic) {
            self.outbox.push(notification(id, "result", result), 0);
        }
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) next_subscription: u64,
    pub(crate) connections: Vec<Connected>,
    pub(crate) stats: Stats,
    pub(crate) armed: Armed,
    /// The queue of requests and blocks, if the capacity of the node is limited.
    pub(crate) line: Option<Line>,
    pub(crate) quirks: Arc<Quirks>,
    /// When transactions became pending, while a quirk depends on it.
    ages: B256HashMap<Instant>,
    /// The end of the time during which the node lists its pool.
    lists_until: Instant,
    /// How many objects were announced or dropped.
    objects: u64,
    pub(crate) stopped: bool,
    /// Whether a subscription to transactions was ever made; it may have ended.
    pub(crate) was_subscribed: bool,
    pub(crate) load_finished: bool,
    pub(crate) plan_finished: bool,
    pub(crate) rng: ChaCha8Rng,
    /// The queue of delayed answers, bounded by the number of requests; taken when the node stops.
    pub(crate) delays: Option<Sender<Held>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    /// The node's own load.
    pub(crate) load: Mutex<Workload>,
    /// Notified when a condition may have changed for which a thread waits.
    pub(crate) changed: Condvar,
    /// Notified when a restart is armed.
    pub(crate) restart: Notify,
    started: Instant,
    /// Executes the blocks, if state is kept.
    pub(crate) executor: Option<Box<dyn Execute>>,
    /// The lock is held for a look-up, or for the notifications of one transaction; never across an
    /// await or I/O. It is taken before the lock of any outbox.
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(config: NodeConfig, state: Option<NewState>, delays: Sender<Held>) -> Self {
        let core = Core::new(&config, unix_s(config.quirks.clock_offset_s));
        let executor = state.map(|new| new(&config, core.chain.head().header.hash));
        let state = State {
            core,
            next_subscription: 0,
            connections: Vec::new(),
            stats: Stats::default(),
            armed: Armed::default(),
            line: config.capacity.map(Line::new),
            quirks: Arc::new(config.quirks.clone()),
            ages: B256HashMap::default(),
            lists_until: Instant::now(),
            objects: 0,
            stopped: false,
            was_subscribed: false,
            load_finished: false,
            plan_finished: false,
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            delays: Some(delays),
        };
        Self {
            load: Mutex::new(config.load()),
            config,
            changed: Condvar::new(),
            restart: Notify::new(),
            started: Instant::now(),
            executor,
            state: Mutex::new(state),
        }
    }

    /// Takes the next transactions of the node's own load.
    pub(crate) fn take(&self, count: usize) -> Vec<(TxKind, Arc<SignedTx>)> {
        self.load.lock().take(count)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state, and wakes the threads that wait for a condition.
    pub(crate) fn signal(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `is_ready` returns true, at most until `deadline`. Returns whether it is ready.
    pub(crate) fn wait(&self, deadline: Instant, is_ready: impl Fn(&State) -> bool) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| !is_ready(state), left);
        is_ready(&state)
    }

    /// The delay of an answer that is ready now.
    pub(crate) fn delay(&self, quirks: &Quirks) -> Duration {
        quirks.delay_at(self.started.elapsed())
    }

    /// Sleeps until `deadline`. Returns true, possibly earlier, if the node is stopped.
    pub(crate) fn sleep_until(&self, deadline: Instant) -> bool {
        self.wait(deadline, |state| state.stopped)
    }

    /// Waits until the load may begin. Returns true if the node is stopped before that.
    pub(crate) fn wait_for_start(&self) -> bool {
        let waits = self.config.load_start == LoadStart::FirstSubscription;
        let mut state = self.lock();
        self.changed
            .wait_while(&mut state, |state| waits && !state.stopped && !state.was_subscribed);
        state.stopped
    }

    /// Begins to list the pool, after any list that is being made.
    pub(crate) fn list(&self) {
        let lists_until = &mut self.lock().lists_until;
        *lists_until = Instant::now().max(*lists_until) + self.config.list_time;
    }

    /// How long the node still lists its pool and answers nothing else.
    pub(crate) fn list_ends_in(&self) -> Duration {
        if self.config.list_time.is_zero() {
            return Duration::ZERO;
        }
        self.lock().lists_until.saturating_duration_since(Instant::now())
    }

    pub(crate) fn submit(&self, tx: Arc<SignedTx>) -> Result<(), TxRefused> {
        self.change(|core| Ok(((), core.submit(tx)?)))
    }

    /// Submits a raw transaction, as a client sends it.
    pub(crate) fn submit_raw(&self, raw: &Bytes) -> Result<B256, TxRefused> {
        let tx = SignedTx::from_raw(raw, self.config.chain_id)?;
        let hash = tx.hash;
        self.submit(Arc::new(tx))?;
        Ok(hash)
    }

    /// Returns a raw transaction: a pending blob transaction with its sidecar, a mined one without.
    pub(crate) fn raw(&self, hash: &B256) -> Option<Bytes> {
        let (pending, mined) = self.lock().find(hash);
        let mined = || mined.map(|tx| tx.encoded_2718().into());
        pending.map(|tx| tx.network()).or_else(mined)
    }

    /// Returns a raw transaction as a client gets it, with the quirks of the node.
    pub(crate) fn requested_raw(&self, hash: &B256) -> Option<Bytes> {
        let (quirks, age, (pending, mined)) = {
            let state = &mut *self.lock();
            let age = state.ages.get(hash).map(Instant::elapsed);
            let quirks = Arc::clone(&state.quirks);
            if age.is_some_and(|age| age < quirks.null_after_announcement) {
                return None;
            }
            let found = state.find(hash);
            state.stats.raw_found += u64::from(found.0.is_some() || found.1.is_some());
            (quirks, age, found)
        };
        let incomplete =
            quirks.incomplete_blobs.filter(|blobs| age.is_some_and(|age| age < blobs.time));
        let raw = match (pending, incomplete.map(|blobs| blobs.form)) {
            (Some(tx), Some(IncompleteForm::ElidedBlobs)) => tx.network_without_blobs(),
            (Some(tx), Some(IncompleteForm::NoSidecar)) => tx.encoded_2718().into(),
            (Some(tx), None) => tx.network(),
            (None, _) => mined?.encoded_2718().into(),
        };
        let is_wrapped = quirks.wraps_raw && raw[0] < EMPTY_STRING_CODE;
        Some(if is_wrapped { alloy_rlp::encode(raw).into() } else { raw })
    }

    pub(crate) fn mine(&self) -> Arc<FullBlock> {
        let now_s = self.now_s();
        let Ok(block) = self.change(|core| Ok::<_, Infallible>(core.mine(now_s)));
        block
    }

    /// The clock of the node, in seconds since the Unix epoch.
    pub(crate) fn now_s(&self) -> u64 {
        unix_s(self.lock().quirks.clock_offset_s)
    }

    /// Begins another chain, without a notification.
    pub(crate) fn reset(&self) {
        let now_s = self.now_s();
        self.lock().core.reset(now_s);
    }

    /// Changes the core and notifies the subscribers. The lock is held meanwhile, so that all
    /// subscribers are notified in the order of the changes.
    pub(crate) fn change<T, E>(
        &self,
        change: impl FnOnce(&mut Core) -> Result<(T, Effects), E>,
    ) -> Result<T, E> {
        let state = &mut *self.lock();
        let (outcome, effects) = change(&mut state.core)?;
        for block in &effects.heads {
            if let Some(executor) = &self.executor {
                let txs = block.txs.iter().map(|tx| &tx.mined).collect();
                executor.push(block.header.hash, &block.header, txs);
            }
            state.stats.blocks += 1;
            state.notify(Topic::Heads, &to_json(&block.header));
        }
        for tx in &effects.announced {
            self.announce(state, tx);
        }
        Ok(outcome)
    }

    fn announce(&self, state: &mut State, tx: &SignedTx) {
        state.stats.announced += 1;
        if state.quirks.needs_ages() {
            state.ages.entry(tx.hash).or_insert_with(Instant::now);
        }
        if take_one(&mut state.armed.drop_notifications) {
            state.stats.notifications_dropped += 1;
            return;
        }
        self.announce_once(state, tx);
        if take_one(&mut state.armed.duplicate) {
            self.announce_once(state, tx);
        }
    }

    /// Announces the hash and the object of a transaction.
    pub(crate) fn announce_once(&self, state: &mut State, tx: &SignedTx) {
        state.announce_hash(tx.hash);
        if !state.connections.iter().any(|connected| connected.is_subscribed(Topic::Objects)) {
            return;
        }
        if self.drops_object(state) {
            state.stats.objects_dropped += 1;
        } else {
            state.notify(Topic::Objects, tx.pending_object());
        }
    }

    /// Whether the node drops the next object.
    fn drops_object(&self, state: &mut State) -> bool {
        let is_drawn = match self.config.full_objects {
            FullObjects::Dropped { per_mille, run } => {
                let number = state.objects / u64::from(run);
                state.objects += 1;
                let digest = keccak256([self.config.seed, number].map(u64::to_be_bytes).concat());
                u32::from(u16::from_be_bytes([digest[0], digest[1]])) % 1000 < per_mille
            }
            _ => false,
        };
        is_drawn || take_one(&mut state.armed.drop_objects)
    }
}

impl State {
    pub(crate) fn announce_hash(&self, hash: B256) {
        self.notify(Topic::Hashes, &to_json(&hash));
    }

    pub(crate) fn notify(&self, topic: Topic, result: &[u8]) {
        if !self.quirks.silent.contains(&topic) {
            self.connections.iter().for_each(|connected| connected.notify(topic, result));
        }
    }

    /// The latest notification of a topic, whether or not it was sent.
    pub(crate) fn latest(&self, topic: Topic) -> Option<Vec<u8>> {
        let newest = || self.core.pool.pending().last();
        match topic {
            Topic::Heads => Some(to_json(&self.core.chain.head().header)),
            Topic::Hashes => newest().map(|tx| to_json(&tx.hash)),
            Topic::Objects => newest().map(|tx| tx.pending_object().to_vec()),
        }
    }

    /// Finds a transaction in the pool and in the blocks.
    fn find(&self, hash: &B256) -> (Option<Arc<SignedTx>>, Option<Arc<SignedTx>>) {
        (self.core.pool.get(hash).cloned(), self.core.chain.tx(hash).cloned())
    }
}

/// Makes a notification for the subscription with this id.
pub(crate) fn notification(id: &str, member: &str, json: &[u8]) -> Vec<u8> {
    let begin = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":""#;
    [begin, id.as_bytes(), br#"",""#, member.as_bytes(), br#"":"#, json, b"}}\n"].concat()
}

fn unix_s(offset_s: i64) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs()).saturating_add_signed(offset_s)
}
