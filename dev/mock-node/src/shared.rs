//! What the node's threads share: under one lock the core, the subscriptions, the armed faults and the counts.

use std::{
    convert::Infallible,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc::Sender},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use alloy_eips::Encodable2718 as _;
use alloy_primitives::{B256, Bytes, keccak256};
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
    lock,
    outbox::Outbox,
    state::{Execute, NewState},
    stats::Stats,
    tx::{SignedTx, to_json},
    workload::{TxKind, Workload},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Hashes,
    Objects,
    Heads,
}

#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) number: u64,
    pub(crate) outbox: Arc<Outbox>,
    /// Each with its id as the client knows it, without quotes.
    pub(crate) subscriptions: Vec<(String, Topic)>,
}

impl Connected {
    pub(crate) fn hears(&self, topic: Topic) -> bool {
        self.subscriptions.iter().any(|(_, other)| *other == topic)
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) next_subscription: u64,
    pub(crate) connections: Vec<Connected>,
    pub(crate) stats: Stats,
    pub(crate) armed: Armed,
    /// Requests and blocks wait in it, if the node can do only so much.
    pub(crate) line: Option<Line>,
    pub(crate) is_syncing: bool,
    /// Until when the node lists its pool.
    lists_until: Instant,
    /// How many objects there were, dropped or not.
    objects: u64,
    pub(crate) stopped: bool,
    /// A subscription to transactions was made, though it may have ended.
    pub(crate) was_subscribed: bool,
    pub(crate) load_finished: bool,
    pub(crate) plan_finished: bool,
    pub(crate) rng: ChaCha8Rng,
    /// Answers that are held back, bounded by what clients have requested; taken when the node stops.
    pub(crate) delays: Option<Sender<Held>>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    /// The node's own load.
    pub(crate) load: Mutex<Workload>,
    /// What threads wait for has changed in the state.
    pub(crate) changed: Condvar,
    /// A restart is armed.
    pub(crate) restart: Notify,
    /// What executes the blocks, if something does.
    pub(crate) executor: Option<Box<dyn Execute>>,
    /// Held for the length of a look-up or of one transaction's notifications; never across an await or I/O. Taken
    /// before any outbox's lock.
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(config: NodeConfig, state: Option<NewState>, delays: Sender<Held>) -> Self {
        let core = Core::new(&config, unix_s());
        let executor = state.map(|new| new(&config, core.chain.head().header.hash));
        let state = State {
            core,
            next_subscription: 0,
            connections: Vec::new(),
            stats: Stats::default(),
            armed: Armed::default(),
            line: config.capacity.map(Line::new),
            is_syncing: false,
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
            executor,
            state: Mutex::new(state),
        }
    }

    /// The next transactions of the node's own load.
    pub(crate) fn take(&self, count: usize) -> Vec<(TxKind, Arc<SignedTx>)> {
        lock(&self.load).take(count)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes what threads wait for.
    pub(crate) fn signal(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` says so or the time has come; whether it says so then.
    pub(crate) fn wait(&self, until: Instant, ready: impl Fn(&State) -> bool) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| !ready(state));
        ready(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Sleeps; true when the node is stopped meanwhile or was before.
    pub(crate) fn sleep_until(&self, until: Instant) -> bool {
        self.wait(until, |state| state.stopped)
    }

    /// Waits for the occasion on which the load begins; true when the node is stopped before.
    pub(crate) fn wait_for_start(&self) -> bool {
        let waits = self.config.load_start == LoadStart::FirstSubscription;
        let waiting = |state: &mut State| waits && !state.stopped && !state.was_subscribed;
        let started = self.changed.wait_while(self.lock(), waiting);
        started.unwrap_or_else(PoisonError::into_inner).stopped
    }

    /// The pool is listed from now on; a list that is under way is waited for.
    pub(crate) fn list(&self) {
        let until = &mut self.lock().lists_until;
        *until = Instant::now().max(*until) + self.config.list_time;
    }

    /// How long until the node is done with listing its pool, and answers again.
    pub(crate) fn list_ends_in(&self) -> Duration {
        if self.config.list_time.is_zero() {
            return Duration::ZERO;
        }
        self.lock().lists_until.saturating_duration_since(Instant::now())
    }

    pub(crate) fn submit(&self, tx: Arc<SignedTx>) -> Result<(), TxRefused> {
        self.change(|core| Ok(((), core.submit(tx)?)))
    }

    /// As a client sends it.
    pub(crate) fn submit_raw(&self, raw: &Bytes) -> Result<B256, TxRefused> {
        let tx = SignedTx::from_raw(raw, self.config.chain_id)?;
        let hash = tx.hash;
        self.submit(Arc::new(tx))?;
        Ok(hash)
    }

    /// A pending blob transaction with its sidecar, a mined one without. What a client requests is counted.
    pub(crate) fn raw(&self, hash: &B256, is_requested: bool) -> Option<Bytes> {
        let (pending, mined) = {
            let State { core, stats, .. } = &mut *self.lock();
            let (pending, mined) = (core.pool.get(hash), core.chain.tx(hash));
            let is_found = pending.is_some() || mined.is_some();
            stats.raw_found += u64::from(is_requested && is_found);
            (pending.cloned(), mined.cloned())
        };
        let mined = || mined.map(|tx| tx.encoded_2718().into());
        pending.map(|tx| tx.network()).or_else(mined)
    }

    pub(crate) fn mine(&self) -> Arc<FullBlock> {
        let Ok(block) = self.change(|core| Ok::<_, Infallible>(core.mine(unix_s())));
        block
    }

    /// Changes the core and notifies the subscribers, under the lock, so that all are notified in the order in which it
    /// happened.
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
        if take_one(&mut state.armed.drop_notifications) {
            state.stats.notifications_dropped += 1;
            return;
        }
        self.announce_once(state, tx);
        if take_one(&mut state.armed.duplicate) {
            self.announce_once(state, tx);
        }
    }

    /// Tells the hash and the object.
    pub(crate) fn announce_once(&self, state: &mut State, tx: &SignedTx) {
        state.announce_hash(tx.hash);
        if !state.connections.iter().any(|connected| connected.hears(Topic::Objects)) {
            return;
        }
        if self.drops_object(state) {
            state.stats.objects_dropped += 1;
        } else {
            state.notify(Topic::Objects, tx.pending_object());
        }
    }

    /// Whether the next object is one that the node drops.
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
        let begin = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":""#;
        for Connected { outbox, subscriptions, .. } in &self.connections {
            for (id, _) in subscriptions.iter().filter(|(_, other)| *other == topic) {
                let text = [begin, id.as_bytes(), br#"","result":"#, result, b"}}\n"].concat();
                outbox.push(text, 0);
            }
        }
    }
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
