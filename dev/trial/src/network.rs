//! The nodes, their common chain, and the transactions that they announce. They live in the
//! conductor's process, so that it knows what they really hold; members reach them by their
//! sockets.

use std::{
    collections::HashMap,
    error::Error,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use alloy_consensus::TxEnvelope;
use alloy_eips::Decodable2718 as _;
use alloy_primitives::{Address, B256, Bytes};
use mock_node::{
    BadAnswer, DEV_CHAIN_ID, Fault, MockNode, NodeConfig, Quirks,
    workload::{Account, Mix, PreparedTx, Workload, WorkloadConfig},
};
use testkit::{member::SMALL_NODE_SHARE_BYTES, sign::signed, usage::now_ns};

use crate::{
    hazard::NodeQuirk,
    lock,
    world::{SLOT, World},
};

/// Some accounts send transactions that no block takes for this long: a transaction that was lost
/// must still be pending when a comparison comes.
const LINGERS: Duration = Duration::from_secs(45);

/// The least age of other transactions in a block.
const MINED_AFTER: Duration = Duration::from_millis(400);

/// No block takes again for this long what a reorg has undone: builders must have it again.
const UNDONE: Duration = Duration::from_secs(12);

/// One transaction of this many replaces an earlier one that lingers.
const REPLACED_SHARE: usize = 40;

/// Empty blocks before the run, a slot apart: more than a fetcher and a pool remember of the chain.
pub(crate) const OLD_BLOCKS: u64 = 80;

/// Old blocks that a node imports at a time.
const IMPORTED_BLOCKS: usize = 4;

/// The first key of the filler's senders, and that of the sender of the shared transaction. No
/// searcher and no attacker has them.
const FILLER_KEYS: u64 = 1 << 40;
const SHARED_KEY: u64 = 1 << 41;

/// The filler: transactions of this many bytes until the node's share is full, then tiny ones of
/// one sender that pay even less. An eviction that went by the tip alone would meet the tiny ones
/// first.
const FILLER_BYTES: usize = 120_000;
const FILLER_TIP_WEI: u128 = 1_000;
const TINY_TXS: u64 = 320;
const TINY_TIP_WEI: u128 = 1;

/// A public transaction.
#[derive(Debug, Default)]
pub(crate) struct PublicTx {
    pub(crate) hash: B256,
    pub(crate) raw: Bytes,
    /// When it was sent to the first node.
    pub(crate) announced_at: u64,
    /// Since when no block contains it: since its announcement, or since a reorg.
    pending_since: u64,
    /// The only node that it is sent to; `None` if it is sent to all.
    pub(crate) only_node: Option<usize>,
    /// The number and the time of the block that contains it, or its replacement.
    pub(crate) mined: Option<(u64, u64)>,
    lingers: bool,
    account: usize,
    /// The index of its replacement: no node holds the replaced one.
    pub(crate) replaced_by: Option<usize>,
    /// The index of the one that it replaced.
    replaces: Option<usize>,
}

/// All public transactions, in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) txs: Vec<PublicTx>,
    pub(crate) by_hash: HashMap<B256, usize>,
    /// Accounts whose transactions a reorg has undone, and until when no block takes any of them.
    undone: HashMap<usize, Instant>,
}

#[derive(Default)]
struct NodeState {
    config: NodeConfig,
    /// `None` while it is down.
    node: Option<MockNode>,
    lags_until: Option<Instant>,
    /// When it heard of what it had missed.
    follows_since: u64,
    /// Since when it has listed each transaction that it lists.
    listed: HashMap<B256, u64>,
    up_since: u64,
    /// Bad responses that it was told to give since it came up, and how many of them to the last
    /// that does harm.
    bad_answers: [u64; 2],
    /// How it is half broken at present.
    quirk: Option<NodeQuirk>,
    /// Whether it has come back without its pool, so that what it is sent may wait for a nonce.
    is_lossy: bool,
}

/// The state that all threads share.
struct Shared {
    ledger: Mutex<Ledger>,
    nodes: Vec<Mutex<NodeState>>,
    /// The chain that the nodes follow. Nobody connects to it, and no fault strikes it.
    reference: MockNode,
    must_stop: AtomicBool,
    burst: AtomicUsize,
}

pub(crate) struct Network {
    shared: Arc<Shared>,
    load: Option<JoinHandle<()>>,
    /// The transaction that the bundles of all searchers contain.
    pub(crate) shared_tx: Option<(B256, Bytes)>,
}

impl Network {
    pub(crate) fn start(folder: &Path, world: &World) -> Result<Self, Box<dyn Error>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        // Large blocks, so that the base fee does not rise.
        let chain = NodeConfig {
            block_gas_limit: 4_000_000_000,
            genesis_s: Some(now.as_secs() - (OLD_BLOCKS + 1) * SLOT.as_secs()),
            answers_balances: true,
            quirks: Quirks { delay: world.node_delay, ..Quirks::default() },
            ..NodeConfig::new(folder.join("reference.ipc"))
        };
        let reference = MockNode::start(chain.clone())?;
        reference.mine_empty(OLD_BLOCKS as usize, SLOT.as_secs());
        let mut nodes = Vec::new();
        for number in 0..world.nodes {
            let config = NodeConfig {
                seed: world.seed + number as u64,
                ipc_path: folder.join(format!("node-{number}.ipc")),
                ..chain.clone()
            };
            let node = Some(MockNode::start_beside(config.clone(), &reference, [])?);
            let (follows_since, up_since) = (now_ns(), now_ns());
            let state = NodeState { config, node, follows_since, up_since, ..NodeState::default() };
            nodes.push(Mutex::new(state));
        }
        let shared = Arc::new(Shared {
            ledger: Mutex::default(),
            nodes,
            reference,
            must_stop: AtomicBool::new(false),
            burst: AtomicUsize::new(world.preload),
        });
        if world.has_filler {
            shared.announce_filler();
        }
        let shared_tx = world.shares_tx.then(|| {
            let (hash, raw) = signed(&Account::from_entropy(0, SHARED_KEY), |_| {});
            let tx = PublicTx { hash, raw: raw.clone(), ..PublicTx::default() };
            shared.announce(tx, None);
            (hash, raw)
        });
        let (loading, load) = (Arc::clone(&shared), Load::new(world));
        let tps = world.tps;
        let load = Some(thread::spawn(move || loading.announce_all(load, tps)));
        let network = Self { shared, load, shared_tx };
        while network.ledger().txs.len() < world.preload {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(network)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.shared.ledger)
    }

    /// Calls `act` with a node that runs.
    pub(crate) fn with<T>(&self, node: usize, act: impl FnOnce(&MockNode) -> T) -> Option<T> {
        lock(&self.shared.nodes[node]).node.as_ref().map(act)
    }

    pub(crate) fn inject(&self, node: usize, fault: Fault) {
        let mut state = lock(&self.shared.nodes[node]);
        let Some(running) = &state.node else { return };
        running.inject(fault);
        if let Fault::Answers { bad, count } = fault {
            let [ordered, harmful] = &mut state.bad_answers;
            *ordered += u64::from(count);
            if !matches!(bad, BadAnswer::OutOfOrder | BadAnswer::ByteByByte) {
                *harmful = *ordered;
            }
        }
    }

    /// Whether a node still has bad responses to give: they wait for requests.
    pub(crate) fn has_bad_answers_left(&self, node: usize) -> bool {
        let state = lock(&self.shared.nodes[node]);
        state.node.as_ref().is_some_and(|node| node.stats().bad_answers < state.bad_answers[1])
    }

    /// Makes a node half broken. Returns false if it is down or half broken already.
    pub(crate) fn begin_quirk(&self, node: usize, quirk: NodeQuirk) -> bool {
        let mut state = lock(&self.shared.nodes[node]);
        if state.node.is_none() || state.quirk.is_some() {
            return false;
        }
        state.quirk = Some(quirk);
        state.set_quirks(quirk.quirks());
        true
    }

    /// Makes a node whole again.
    pub(crate) fn end_quirk(&self, node: usize) {
        let mut state = lock(&self.shared.nodes[node]);
        state.quirk = None;
        state.set_quirks(Quirks::default());
    }

    /// Returns how a node is half broken.
    pub(crate) fn quirk(&self, node: usize) -> Option<NodeQuirk> {
        lock(&self.shared.nodes[node]).quirk
    }

    pub(crate) fn burst(&self, count: usize) {
        self.shared.burst.fetch_add(count, Relaxed);
    }

    pub(crate) fn lag(&self, node: usize, until: Instant) {
        lock(&self.shared.nodes[node]).lags_until = Some(until);
    }

    /// Returns since when a node has heard of each block at once; `None` while it lags.
    pub(crate) fn follows_since(&self, node: usize) -> Option<u64> {
        let state = lock(&self.shared.nodes[node]);
        state.lags_until.is_none().then_some(state.follows_since)
    }

    /// Stops a node. Returns whether it ran.
    pub(crate) fn stop_node(&self, node: usize) -> bool {
        let taken = lock(&self.shared.nodes[node]).node.take();
        taken.is_some()
    }

    pub(crate) fn start_node(&self, node: usize, keeps_pool: bool) -> Result<(), Box<dyn Error>> {
        let mut state = lock(&self.shared.nodes[node]);
        let ledger = self.ledger();
        let is_held = |tx: &&PublicTx| {
            let is_open = tx.mined.is_none() && tx.replaced_by.is_none();
            keeps_pool && is_open && tx.only_node.is_none_or(|only| only == node)
        };
        let pending = ledger.txs.iter().filter(is_held).map(|tx| tx.raw.clone());
        let pending: Vec<_> = pending.collect();
        drop(ledger);
        let reference = &self.shared.reference;
        let started = MockNode::start_beside(state.config.clone(), reference, pending)?;
        state.node = Some(started);
        (state.lags_until, state.follows_since) = (None, now_ns());
        state.came_up(keeps_pool);
        Ok(())
    }

    /// Starts a node that has lost everything. It says that it is syncing, or not.
    pub(crate) fn start_import(&self, node: usize, says: bool) -> Result<(), Box<dyn Error>> {
        let mut state = lock(&self.shared.nodes[node]);
        let started = MockNode::start(state.config.clone())?;
        started.set_quirks(|quirks| quirks.is_syncing = says);
        state.node = Some(started);
        state.lags_until = Some(Instant::now() + Duration::from_hours(1));
        state.came_up(false);
        Ok(())
    }

    /// Starts a node with another genesis, and a few blocks on it.
    pub(crate) fn start_other_genesis(&self, node: usize) -> Result<(), Box<dyn Error>> {
        let mut state = lock(&self.shared.nodes[node]);
        let genesis_s = state.config.genesis_s.map(|time| time + 1);
        let started = MockNode::start(NodeConfig { genesis_s, ..state.config.clone() })?;
        started.mine_empty(IMPORTED_BLOCKS, SLOT.as_secs());
        state.node = Some(started);
        state.lags_until = Some(Instant::now() + Duration::from_hours(1));
        state.came_up(false);
        Ok(())
    }

    /// Imports the next few old blocks, or at last the blocks that the others have had since.
    /// Returns whether there are more.
    pub(crate) fn import(&self, node: usize) -> bool {
        let mut state = lock(&self.shared.nodes[node]);
        let Some(importing) = &state.node else { return false };
        if importing.head().number < OLD_BLOCKS {
            importing.mine_empty(IMPORTED_BLOCKS, SLOT.as_secs());
            return true;
        }
        importing.follow(&self.shared.reference);
        importing.set_quirks(|quirks| quirks.is_syncing = false);
        (state.lags_until, state.follows_since) = (None, now_ns());
        false
    }

    /// Moves the chain to another branch and back: the next head comes within milliseconds.
    pub(crate) fn flip_back(&self, depth: usize) -> Result<(), Box<dyn Error>> {
        let reference = &self.shared.reference;
        let path = reference.ipc_path().with_extension("branch");
        let branch = MockNode::start_beside(NodeConfig::new(path), reference, [])?;
        if reference.reorg(depth).is_ok() {
            self.announce_head();
            reference.follow(&branch);
            self.announce_head();
        }
        Ok(())
    }

    /// Mines a block of these private transactions, of public ones that are old enough if
    /// `mines_public`, and of the shared one if `mines_shared`. Returns its number.
    pub(crate) fn mine(
        &self,
        private: &[Bytes],
        mines_public: bool,
        mines_shared: bool,
    ) -> Result<u64, Box<dyn Error>> {
        let reference = &self.shared.reference;
        let mut hashes = Vec::new();
        for raw in private {
            // Each has a sender of its own, so none waits for a nonce.
            hashes.push(reference.submit(raw.clone())?);
        }
        hashes.extend(self.shared_tx.iter().filter(|_| mines_shared).map(|(hash, _)| *hash));
        let mut ledger = self.ledger();
        let now = now_ns();
        ledger.undone.retain(|_, until| *until > Instant::now());
        let mut chosen = Vec::new();
        for (index, tx) in ledger.txs.iter().enumerate() {
            // A replacement is mined in the order and at the age of the one that it replaced.
            let original = tx.replaces.unwrap_or(index);
            let age = Duration::from_nanos(now - ledger.txs[original].announced_at);
            let least_age = if tx.lingers { LINGERS } else { MINED_AFTER };
            let is_open = mines_public && tx.mined.is_none() && tx.replaced_by.is_none();
            if is_open && age > least_age && !ledger.undone.contains_key(&tx.account) {
                chosen.push((original, tx.hash));
            }
        }
        chosen.sort_unstable();
        hashes.extend(chosen.into_iter().map(|(_, hash)| hash));
        let block = reference.mine_only(&hashes)?;
        for hash in &block.txs {
            if let Some(index) = ledger.by_hash.get(hash).copied() {
                ledger.set_mined(index, Some((block.number, now)));
            }
        }
        drop(ledger);
        self.announce_head();
        Ok(block.number)
    }

    /// Replaces blocks by empty ones. Returns the transactions that they contained.
    pub(crate) fn reorg(&self, depth: usize) -> Vec<B256> {
        let Ok(reorg) = self.shared.reference.reorg(depth) else { return Vec::new() };
        let undone: Vec<_> = reorg.removed.into_iter().flat_map(|block| block.txs).collect();
        let mut ledger = self.ledger();
        for hash in &undone {
            if let Some(index) = ledger.by_hash.get(hash).copied() {
                ledger.set_mined(index, None);
                ledger.txs[index].pending_since = now_ns();
                let account = ledger.txs[index].account;
                ledger.undone.insert(account, Instant::now() + UNDONE);
            }
        }
        drop(ledger);
        self.announce_head();
        undone
    }

    /// Lets the nodes that do not lag follow the chain.
    fn announce_head(&self) {
        for state in &self.shared.nodes {
            let mut state = lock(state);
            if state.lags_until.is_some_and(|until| until > Instant::now()) {
                continue;
            }
            if state.lags_until.take().is_some() {
                state.follows_since = now_ns();
            }
            if let Some(node) = &state.node {
                node.follow(&self.shared.reference);
            }
        }
    }

    /// Whether a block of a node's chain contains it. That chain may differ from the others for a
    /// while.
    pub(crate) fn has_mined(&self, node: usize, hash: &B256) -> bool {
        let has = |node: &MockNode| node.raw(*hash).is_some() && !node.pending().contains(hash);
        self.with(node, has).unwrap_or(false)
    }

    /// Whether a node has come back without its pool.
    pub(crate) fn is_lossy(&self) -> bool {
        self.shared.nodes.iter().any(|state| lock(state).is_lossy)
    }

    /// Returns the transactions that a node lists as pending and no block contains, each with the
    /// time since when; `None` while the node is down.
    pub(crate) fn listed(&self, node: usize) -> Option<Vec<(B256, u64)>> {
        let mut state = lock(&self.shared.nodes[node]);
        let pending = state.node.as_ref()?.pending();
        let ledger = self.ledger();
        let now = now_ns();
        let (mut listed, mut open) = (HashMap::with_capacity(pending.len()), Vec::new());
        for hash in pending {
            let tx = ledger.by_hash.get(&hash).map(|index| &ledger.txs[*index]);
            let Some(tx) = tx else { continue };
            let first = if state.is_lossy { now } else { tx.announced_at.max(state.up_since) };
            let since = state.listed.get(&hash).copied().unwrap_or(first).max(tx.pending_since);
            listed.insert(hash, since);
            open.extend(tx.mined.is_none().then_some((hash, since)));
        }
        state.listed = listed;
        Some(open)
    }
}

impl NodeState {
    fn set_quirks(&self, new: Quirks) {
        let Some(node) = &self.node else { return };
        let delay = self.config.quirks.delay + new.delay;
        // A node that imports says that it is syncing whatever else it does.
        node.set_quirks(|quirks| {
            *quirks = Quirks { is_syncing: quirks.is_syncing, delay, ..new };
        });
    }

    fn came_up(&mut self, keeps_pool: bool) {
        (self.up_since, self.bad_answers, self.quirk) = (now_ns(), [0; 2], None);
        self.is_lossy |= !keeps_pool;
        self.listed.clear();
    }
}

impl Ledger {
    /// Sets the block of a transaction and of all that it replaced: their nonce is used, or free
    /// again.
    fn set_mined(&mut self, index: usize, mined: Option<(u64, u64)>) {
        let mut replaced = Some(index);
        while let Some(index) = replaced {
            self.txs[index].mined = mined;
            replaced = self.txs[index].replaces;
        }
    }
}

/// Returns the load of a world's nodes. An attacker knows it too, as everybody does whose node
/// announces it.
pub(crate) fn load_config(seed: u64, mix: Mix) -> WorkloadConfig {
    WorkloadConfig { mix, ..WorkloadConfig::new(seed, DEV_CHAIN_ID) }
}

/// The transactions that are announced, in their order.
struct Load {
    seed: u64,
    workload: Workload,
    accounts: HashMap<Address, usize>,
    signed: std::vec::IntoIter<PreparedTx>,
    /// The number of transactions that are signed at a time.
    batch: usize,
    /// Of ten accounts, those whose transactions linger.
    lingering_accounts: usize,
}

impl Load {
    fn new(world: &World) -> Self {
        let seed = world.seed;
        let workload = Workload::new(load_config(seed, world.mix()));
        let numbered = workload.accounts().iter().enumerate();
        let accounts = numbered.map(|(number, account)| (account.address, number)).collect();
        let (batch, lingering_accounts) = (world.tps as usize, world.lingering_accounts);
        let signed = Vec::new().into_iter();
        Self { seed, workload, accounts, signed, batch, lingering_accounts }
    }

    fn next(&mut self) -> PublicTx {
        let PreparedTx { hash, raw, sender, .. } = self.signed.next().unwrap_or_else(|| {
            self.signed = self.workload.prepare(self.batch).into_iter();
            self.signed.next().expect("just signed")
        });
        let account = self.accounts[&sender];
        let lingers = (account + 2) % 10 + self.lingering_accounts >= 10;
        PublicTx { hash, raw, account, lingers, ..PublicTx::default() }
    }

    /// Returns the only node that transactions of an account are sent to. All of an account go to
    /// the same nodes, so that no node waits for a nonce that only others have.
    fn only_node(&self, account: usize, nodes: usize) -> Option<usize> {
        let drawn = (account + 1).wrapping_mul(self.seed as usize | 1) >> 3;
        drawn.is_multiple_of(5).then_some(account % nodes)
    }

    /// Returns the same transaction with twice its fees, if its kind has simple fees.
    fn replacement(&self, index: usize, old: &PublicTx) -> Option<PublicTx> {
        let Ok(TxEnvelope::Eip1559(before)) = TxEnvelope::decode_2718_exact(&old.raw) else {
            return None;
        };
        let (hash, raw) = signed(&self.workload.accounts()[old.account], |tx| {
            *tx = before.strip_signature();
            tx.max_fee_per_gas *= 2;
            tx.max_priority_fee_per_gas *= 2;
        });
        let (account, replaces) = (old.account, Some(index));
        Some(PublicTx { hash, raw, account, replaces, lingers: true, ..PublicTx::default() })
    }
}

impl Shared {
    /// Announces by an exact schedule until the end; a burst comes on top.
    fn announce_all(&self, mut load: Load, tps: u32) {
        let (start, mut number) = (Instant::now(), 0);
        for paced in 0_u64.. {
            let send_at = start + Duration::from_nanos(paced * 1_000_000_000 / u64::from(tps));
            thread::sleep(send_at.saturating_duration_since(Instant::now()));
            for _ in 0..=self.burst.swap(0, Relaxed) {
                if self.must_stop.load(Relaxed) {
                    return;
                }
                number += 1;
                let is_replacement = number % REPLACED_SHARE == 0;
                let replacement = is_replacement.then(|| self.replacement(&load)).flatten();
                let tx = replacement.unwrap_or_else(|| load.next());
                let only_node = load.only_node(tx.account, self.nodes.len());
                self.announce(tx, only_node);
            }
        }
    }

    /// Returns a replacement of the oldest recent transaction that lingers and was not replaced.
    fn replacement(&self, load: &Load) -> Option<PublicTx> {
        let ledger = lock(&self.ledger);
        let recent = ledger.txs.len().saturating_sub(3_000);
        let is_free = |tx: &PublicTx| {
            tx.lingers && tx.replaced_by.or(tx.replaces).is_none() && tx.mined.is_none()
        };
        let txs = ledger.txs.iter().enumerate().skip(recent).filter(|(_, tx)| is_free(tx));
        txs.into_iter().find_map(|(index, tx)| load.replacement(index, tx))
    }

    fn announce(&self, mut tx: PublicTx, only_node: Option<usize>) {
        tx.only_node = only_node;
        let raw = tx.raw.clone();
        let mut ledger = lock(&self.ledger);
        tx.announced_at = now_ns();
        tx.pending_since = tx.announced_at;
        let index = ledger.txs.len();
        if let Some(replaced) = tx.replaces {
            ledger.txs[replaced].replaced_by = Some(index);
        }
        ledger.by_hash.insert(tx.hash, index);
        ledger.txs.push(tx);
        // Under the ledger's lock, so that no block contains what is replaced here.
        self.reference.submit(raw.clone()).expect("signed in the order of its nonces");
        drop(ledger);
        for (number, state) in self.nodes.iter().enumerate() {
            if only_node.is_none_or(|only| only == number)
                && let Some(node) = &lock(state).node
            {
                // At a node that has lost its pool it waits for its nonce; a node that comes back
                // has it already.
                _ = node.submit(raw.clone());
            }
        }
    }

    /// Announces transactions that pay less than all others, until they fill the node's share of
    /// the pool. The ledger does not have them: nothing is promised of them.
    fn announce_filler(&self) {
        let account = |number| Account::from_entropy(0, FILLER_KEYS + number);
        let fill = SMALL_NODE_SHARE_BYTES.div_ceil(FILLER_BYTES) as u64;
        let large = (1..=fill).map(|number| {
            signed(&account(number), |tx| {
                (tx.gas_limit, tx.max_priority_fee_per_gas) = (2_000_000, FILLER_TIP_WEI);
                tx.input = vec![0; FILLER_BYTES].into();
            })
        });
        let tiny = (0..TINY_TXS).map(|nonce| {
            signed(&account(0), |tx| {
                (tx.nonce, tx.max_priority_fee_per_gas) = (nonce, TINY_TIP_WEI);
            })
        });
        for (_, raw) in tiny.chain(large) {
            for state in &self.nodes {
                if let Some(node) = &lock(state).node {
                    node.submit(raw.clone()).expect("signed in the order of its nonces");
                }
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.must_stop.store(true, Relaxed);
        if let Some(load) = self.load.take()
            && load.join().is_err()
        {
            eprintln!("warning: the load has panicked");
        }
    }
}
