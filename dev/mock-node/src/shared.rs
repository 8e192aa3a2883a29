//! What the node's threads share: the core, the subscriptions, the counters.

mod signals;
pub(crate) mod stats;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use alloy_eips::Encodable2718 as _;
use alloy_primitives::{B256, Bytes, keccak256};

use crate::{
    capacity::Line,
    chain::FullBlock,
    config::{FullObjects, NodeConfig},
    core::{Core, Effects},
    delays::DelayLine,
    error::TxRefused,
    faults::switches::Switches,
    lock,
    outbox::Outbox,
    state::{Execute, NewState},
    tx::{SignedTx, to_json},
};
use signals::Signals;
use stats::Counters;

/// What a subscription is notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Hashes,
    Objects,
    Heads,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    /// The id as the client knows it, without quotes.
    pub(crate) id: String,
    pub(crate) topic: Topic,
    pub(crate) connection: u64,
    pub(crate) outbox: Arc<Outbox>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) next_subscription: u64,
    pub(crate) connections: Vec<(u64, Arc<Outbox>)>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    pub(crate) counters: Counters,
    pub(crate) delays: DelayLine,
    /// Requests and blocks wait in it, if the node can do only so much.
    pub(crate) line: Option<Line>,
    /// How many objects there were, dropped or not.
    objects: AtomicU64,
    /// Until when the node lists its pool.
    lists_until: Mutex<Option<Instant>>,
    pub(crate) is_syncing: AtomicBool,
    pub(crate) signals: Signals,
    pub(crate) switches: Switches,
    /// What executes the blocks, if something does.
    pub(crate) executor: Option<Box<dyn Execute>>,
    /// Held for the length of a look-up or of one transaction's notifications; never across an await or I/O. Taken
    /// before any outbox's lock.
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(config: NodeConfig, state: Option<NewState>) -> Self {
        let core = Core::new(&config, unix_s());
        let executor = state.map(|new| new(&config, core.chain.head().hash));
        let delays = DelayLine::new(config.seed);
        Self {
            line: config.capacity.map(Line::new),
            config,
            counters: Counters::default(),
            delays,
            objects: AtomicU64::new(0),
            lists_until: Mutex::new(None),
            is_syncing: AtomicBool::new(false),
            signals: Signals::default(),
            switches: Switches::default(),
            executor,
            state: Mutex::new(State {
                core,
                subscriptions: Vec::new(),
                next_subscription: 0,
                connections: Vec::new(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The pool is listed from now on; a list that is under way is waited for.
    pub(crate) fn list(&self) {
        if self.config.list_time.is_zero() {
            return;
        }
        let mut until = lock(&self.lists_until);
        *until =
            Some(until.unwrap_or_else(Instant::now).max(Instant::now()) + self.config.list_time);
    }

    /// How long until the node is done with listing its pool, and answers again.
    pub(crate) fn list_ends_in(&self) -> Duration {
        let until = *lock(&self.lists_until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn submit(&self, tx: Arc<SignedTx>) -> Result<(), TxRefused> {
        let mut state = self.lock();
        let effects = state.core.submit(tx).inspect_err(|_| {
            self.counters.refused.fetch_add(1, Relaxed);
        })?;
        self.publish(&state, effects);
        Ok(())
    }

    /// As a client sends it.
    pub(crate) fn submit_raw(&self, raw: &Bytes) -> Result<B256, TxRefused> {
        let tx = SignedTx::from_raw(raw, self.config.chain_id)?;
        let hash = tx.hash;
        self.submit(Arc::new(tx))?;
        Ok(hash)
    }

    /// A pending blob transaction with its sidecar, a mined one without.
    pub(crate) fn raw(&self, hash: &B256) -> Option<Bytes> {
        let state = self.lock();
        let (pending, mined) =
            (state.core.pool.get(hash).cloned(), state.core.chain.tx(hash).cloned());
        drop(state);
        let mined = || mined.map(|tx| tx.encoded_2718().into());
        pending.map(|tx| tx.network()).or_else(mined)
    }

    /// Mines what is pending, up to the block's limits.
    pub(crate) fn mine(&self) -> Arc<FullBlock> {
        let mut state = self.lock();
        let (block, effects) = state.core.mine(unix_s());
        self.publish(&state, effects);
        block
    }

    /// Notifies the subscribers, under the lock, so that all are notified in the order in which it happened.
    pub(crate) fn publish(&self, state: &State, effects: Effects) {
        for tx in &effects.announced {
            self.announce(state, tx);
        }
        for block in &effects.heads {
            if let Some(executor) = &self.executor {
                executor.push(block.as_ref().into());
            }
            self.counters.blocks.fetch_add(1, Relaxed);
            self.counters.mined.fetch_add(block.txs.len() as u64, Relaxed);
            self.notify(state, Topic::Heads, &to_json(&block.head_object()));
        }
        for tx in &effects.announced_after {
            self.announce(state, tx);
        }
    }

    fn announce(&self, state: &State, tx: &SignedTx) {
        self.counters.announced.fetch_add(1, Relaxed);
        if self.switches.drop_notifications.take() {
            self.counters.notifications_dropped.fetch_add(1, Relaxed);
            return;
        }
        self.announce_once(state, tx);
        if self.switches.duplicate.take() {
            self.announce_once(state, tx);
        }
    }

    /// Tells the hash and the object.
    pub(crate) fn announce_once(&self, state: &State, tx: &SignedTx) {
        self.announce_hash(state, tx.hash);
        if !state.subscriptions.iter().any(|subscription| subscription.topic == Topic::Objects) {
            return;
        }
        if self.drops_object() {
            self.counters.objects_dropped.fetch_add(1, Relaxed);
        } else {
            self.notify(state, Topic::Objects, tx.pending_object());
        }
    }

    /// Whether the next object is one that the node drops.
    fn drops_object(&self) -> bool {
        let is_drawn = match self.config.full_objects {
            FullObjects::Dropped { per_mille, run } => {
                let number = self.objects.fetch_add(1, Relaxed) / u64::from(run);
                let digest = keccak256([self.config.seed, number].map(u64::to_be_bytes).concat());
                u32::from(u16::from_be_bytes([digest[0], digest[1]])) % 1000 < per_mille
            }
            _ => false,
        };
        is_drawn || self.switches.drop_objects.take()
    }

    /// Tells the hash alone.
    pub(crate) fn announce_hash(&self, state: &State, hash: B256) {
        let mut quoted = [b'"'; 68];
        quoted[1..3].copy_from_slice(b"0x");
        const_hex::encode_to_slice(hash, &mut quoted[3..67]).expect("64 digits for 32 bytes");
        self.notify(state, Topic::Hashes, &quoted);
    }

    pub(crate) fn notify(&self, state: &State, topic: Topic, result: &[u8]) {
        for subscription in state.subscriptions.iter().filter(|sub| sub.topic == topic) {
            let (id, begin) = (
                subscription.id.as_bytes(),
                br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":""#,
            );
            let text = [begin, id, br#"","result":"#, result, b"}}\n"].concat();
            self.push(&subscription.outbox, text, 0);
        }
    }

    /// Queues a message, of which the first `singles` bytes are one write each.
    pub(crate) fn push(&self, outbox: &Outbox, message: Vec<u8>, singles: usize) {
        if !outbox.push(message, singles) {
            tracing::debug!("a connection was closed, since too much waited for it");
        }
    }
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
