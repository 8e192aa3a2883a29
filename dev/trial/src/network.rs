//! The nodes, their one chain, and what they announce. They live in the conductor's process, so that it knows what they truly
//! hold. Members reach them by their sockets alone.

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
    workload::{Mix, PreparedTx, Workload, WorkloadConfig},
};
use testkit::{sign::signed, usage::now_ns};

use crate::{
    hazard::NodeQuirk,
    lock,
    world::{SLOT, World},
};

/// One account of ten sends transactions that no block takes for so long: what was lost must still be pending when a
/// comparison comes.
const LINGERS: Duration = Duration::from_secs(45);
/// So long no block takes again what a reorg has undone.
const UNDONE: Duration = Duration::from_secs(12);
/// Of a thousand transactions, those with blobs; of ten accounts one sends nothing else.
const BLOBS_PER_MILLE: u32 = 5;
/// Of so many transactions one takes the place of an earlier one that lingers.
const REPLACES: usize = 40;

/// Empty blocks of before the run, a slot apart: more than what a fetcher and a pool remember of the chain.
pub(crate) const OLD_BLOCKS: u64 = 80;
/// Old blocks that a node imports at a time.
const IMPORTED: usize = 4;

/// A public transaction.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    pub(crate) hash: B256,
    raw: Bytes,
    /// When the first node was given it.
    pub(crate) at: u64,
    /// Since when no block contains it: since then, or since a reorg.
    since: u64,
    /// Which nodes are given it: all, or one.
    pub(crate) only: Option<usize>,
    /// The block that contains it, or the one that took its place.
    pub(crate) mined: Option<(u64, u64)>,
    lingers: bool,
    account: usize,
    /// Which one has taken its place: no node holds it.
    pub(crate) replaced_by: Option<usize>,
    /// The one whose place it took.
    replaces: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// In the order in which they were sent.
    pub(crate) txs: Vec<Tx>,
    pub(crate) by_hash: HashMap<B256, usize>,
    /// Accounts of what a reorg has undone, and until when no block takes anything of them: builders must have it again.
    undone: HashMap<usize, Instant>,
}

#[derive(Default)]
struct Slot {
    config: NodeConfig,
    /// `None` while it is down.
    node: Option<MockNode>,
    lags_until: Option<Instant>,
    /// When it was told what it had not heard of before.
    follows_since: u64,
    /// Since when it holds what it holds, by its own list.
    held: HashMap<B256, u64>,
    up_since: u64,
    /// Bad responses that it has been told to give since it came up, and those of them up to the last that has an effect.
    bad_answers: [u64; 2],
    /// It has come back without its pool, so what it is sent may wait for a nonce.
    is_lossy: bool,
}

/// What all threads share.
struct Shared {
    ledger: Mutex<Ledger>,
    slots: Vec<Mutex<Slot>>,
    /// The chain that the nodes follow. Nobody connects to it, and nothing fails in it.
    reference: MockNode,
    stop: AtomicBool,
    burst: AtomicUsize,
}

pub(crate) struct Network {
    shared: Arc<Shared>,
    load: Option<JoinHandle<()>>,
}

impl Network {
    pub(crate) fn start(dir: &Path, world: &World) -> Result<Self, Box<dyn Error>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        // Large blocks, so that the base fee does not rise.
        let chain = NodeConfig {
            block_gas_limit: 4_000_000_000,
            genesis_s: Some(now.as_secs() - (OLD_BLOCKS + 1) * SLOT.as_secs()),
            ..NodeConfig::new(dir.join("reference.ipc"))
        };
        let reference = MockNode::start(chain.clone())?;
        reference.mine_empty(OLD_BLOCKS as usize, SLOT.as_secs());
        let mut slots = Vec::new();
        for number in 0..world.nodes {
            let config = NodeConfig {
                seed: world.seed + number as u64,
                ipc_path: dir.join(format!("node-{number}.ipc")),
                ..chain.clone()
            };
            let node = Some(MockNode::start_beside(config.clone(), &reference, [])?);
            let (follows_since, up_since) = (now_ns(), now_ns());
            let slot = Slot { config, node, follows_since, up_since, ..Slot::default() };
            slots.push(Mutex::new(slot));
        }
        let shared = Arc::new(Shared {
            ledger: Mutex::default(),
            slots,
            reference,
            stop: AtomicBool::new(false),
            burst: AtomicUsize::new(world.preload),
        });
        let (loading, tps, seed) = (Arc::clone(&shared), world.tps, world.seed);
        let load = Some(thread::spawn(move || loading.announce(tps, seed)));
        let network = Self { shared, load };
        while network.ledger().txs.len() < world.preload {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(network)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.shared.ledger)
    }

    pub(crate) fn with<T>(&self, node: usize, act: impl FnOnce(&MockNode) -> T) -> Option<T> {
        lock(&self.shared.slots[node]).node.as_ref().map(act)
    }

    pub(crate) fn inject(&self, node: usize, fault: Fault) {
        let mut slot = lock(&self.shared.slots[node]);
        let Some(running) = &slot.node else { return };
        running.inject(fault);
        if let Fault::Answers { bad, count } = fault {
            let [told, harmful] = &mut slot.bad_answers;
            *told += u64::from(count);
            if !matches!(bad, BadAnswer::OutOfOrder | BadAnswer::ByteByByte) {
                *harmful = *told;
            }
        }
    }

    /// Whether bad responses of a node are still to come: they wait for requests.
    pub(crate) fn owes_bad_answers(&self, node: usize) -> bool {
        let slot = lock(&self.shared.slots[node]);
        slot.node.as_ref().is_some_and(|node| node.stats().bad_answers < slot.bad_answers[1])
    }

    /// Makes a node half broken, or whole again.
    pub(crate) fn set_quirk(&self, node: usize, quirk: Option<NodeQuirk>) {
        let new = quirk.map_or_else(Quirks::default, NodeQuirk::quirks);
        // One that imports says that it is syncing whatever else it does.
        self.with(node, |node| {
            node.set_quirks(|quirks| *quirks = Quirks { is_syncing: quirks.is_syncing, ..new });
        });
    }

    pub(crate) fn burst(&self, count: usize) {
        self.shared.burst.fetch_add(count, Relaxed);
    }

    pub(crate) fn lag(&self, node: usize, until: Instant) {
        lock(&self.shared.slots[node]).lags_until = Some(until);
    }

    /// Since when a node has heard of each block at once; `None` while it lags.
    pub(crate) fn follows_since(&self, node: usize) -> Option<u64> {
        let slot = lock(&self.shared.slots[node]);
        slot.lags_until.is_none().then_some(slot.follows_since)
    }

    /// Whether it ran.
    pub(crate) fn stop_node(&self, node: usize) -> bool {
        let taken = lock(&self.shared.slots[node]).node.take();
        taken.is_some()
    }

    pub(crate) fn start_node(&self, node: usize, keeps_pool: bool) -> Result<(), Box<dyn Error>> {
        let mut slot = lock(&self.shared.slots[node]);
        let ledger = self.ledger();
        let is_held = |tx: &&Tx| {
            let is_open = tx.mined.is_none() && tx.replaced_by.is_none();
            keeps_pool && is_open && tx.only.is_none_or(|only| only == node)
        };
        let pending = ledger.txs.iter().filter(is_held).map(|tx| tx.raw.clone());
        let pending: Vec<_> = pending.collect();
        drop(ledger);
        let started = MockNode::start_beside(slot.config.clone(), &self.shared.reference, pending)?;
        slot.node = Some(started);
        slot.lags_until = None;
        slot.is_up(keeps_pool);
        Ok(())
    }

    /// It has lost everything, and says that it is syncing, or not.
    pub(crate) fn start_import(&self, node: usize, says: bool) -> Result<(), Box<dyn Error>> {
        let mut slot = lock(&self.shared.slots[node]);
        let started = MockNode::start(slot.config.clone())?;
        started.set_quirks(|quirks| quirks.is_syncing = says);
        slot.node = Some(started);
        slot.lags_until = Some(Instant::now() + Duration::from_hours(1));
        slot.is_up(false);
        Ok(())
    }

    /// The next few old blocks, or at last what the others have had since. Whether there are more.
    pub(crate) fn import(&self, node: usize) -> bool {
        let mut slot = lock(&self.shared.slots[node]);
        let Some(importing) = &slot.node else { return false };
        if importing.head().number < OLD_BLOCKS {
            importing.mine_empty(IMPORTED, SLOT.as_secs());
            return true;
        }
        importing.follow(&self.shared.reference);
        importing.set_quirks(|quirks| quirks.is_syncing = false);
        (slot.lags_until, slot.follows_since) = (None, now_ns());
        false
    }

    /// Leaves so many blocks for another branch, and comes back at once: the next head comes within milliseconds.
    pub(crate) fn flip_back(&self, depth: usize) -> Result<(), Box<dyn Error>> {
        let reference = &self.shared.reference;
        let path = reference.ipc_path().with_extension("branch");
        let branch = MockNode::start_beside(NodeConfig::new(path), reference, [])?;
        if reference.reorg(depth).is_ok() {
            self.tell();
            reference.follow(&branch);
            self.tell();
        }
        Ok(())
    }

    /// Mines what builders had alone, and of what is public that which is old enough, if any. Returns the block's number.
    pub(crate) fn mine(&self, private: &[Bytes], mines: bool) -> Result<u64, Box<dyn Error>> {
        let reference = &self.shared.reference;
        let mut hashes = Vec::new();
        for raw in private {
            // A second one of the same sender is none: each has one of its own.
            hashes.push(reference.submit(raw.clone())?);
        }
        let mut ledger = self.ledger();
        let now = now_ns();
        ledger.undone.retain(|_, until| *until > Instant::now());
        let mut chosen = Vec::new();
        for (at, tx) in ledger.txs.iter().enumerate() {
            // What took another's place stands there.
            let place = tx.replaces.unwrap_or(at);
            let age = Duration::from_nanos(now - ledger.txs[place].at);
            let least = if tx.lingers { LINGERS } else { Duration::from_millis(400) };
            let is_open = mines && tx.mined.is_none() && tx.replaced_by.is_none();
            if is_open && age > least && !ledger.undone.contains_key(&tx.account) {
                chosen.push((place, tx.hash));
            }
        }
        chosen.sort_unstable();
        hashes.extend(chosen.into_iter().map(|(_, hash)| hash));
        let block = reference.mine_only(&hashes)?;
        for hash in &block.txs {
            if let Some(at) = ledger.by_hash.get(hash).copied() {
                ledger.set_mined(at, Some((block.number, now)));
            }
        }
        drop(ledger);
        self.tell();
        Ok(block.number)
    }

    /// Replaces blocks by empty ones; returns the first that was undone and what it and later ones held.
    pub(crate) fn reorg(&self, depth: usize) -> Vec<B256> {
        let Ok(reorg) = self.shared.reference.reorg(depth) else { return Vec::new() };
        let undone: Vec<_> = reorg.removed.into_iter().flat_map(|block| block.txs).collect();
        let mut ledger = self.ledger();
        for hash in &undone {
            if let Some(at) = ledger.by_hash.get(hash).copied() {
                ledger.set_mined(at, None);
                ledger.txs[at].since = now_ns();
                let account = ledger.txs[at].account;
                ledger.undone.insert(account, Instant::now() + UNDONE);
            }
        }
        drop(ledger);
        self.tell();
        undone
    }

    /// Nodes that do not lag hear of the chain.
    fn tell(&self) {
        for slot in &self.shared.slots {
            let mut slot = lock(slot);
            if slot.lags_until.is_some_and(|until| until > Instant::now()) {
                continue;
            }
            if slot.lags_until.take().is_some() {
                slot.follows_since = now_ns();
            }
            if let Some(node) = &slot.node {
                node.follow(&self.shared.reference);
            }
        }
    }

    /// Whether the chain of a node contains it, which may be another one than that of the others for a while.
    pub(crate) fn has_mined(&self, node: usize, hash: &B256) -> bool {
        let has = |node: &MockNode| node.raw(*hash).is_some() && !node.pending().contains(hash);
        self.with(node, has).unwrap_or(false)
    }

    /// Whether a node has come back without its pool.
    pub(crate) fn is_lossy(&self) -> bool {
        self.shared.slots.iter().any(|slot| lock(slot).is_lossy)
    }

    /// What a node holds that no block contains, and since when; `None` while it is down.
    pub(crate) fn held(&self, number: usize) -> Option<Vec<(B256, u64)>> {
        let mut slot = lock(&self.shared.slots[number]);
        let pending = slot.node.as_ref()?.pending();
        let ledger = self.ledger();
        let now = now_ns();
        let (mut held, mut open) = (HashMap::with_capacity(pending.len()), Vec::new());
        for hash in pending {
            let Some(tx) = ledger.by_hash.get(&hash).map(|at| &ledger.txs[*at]) else { continue };
            let first = if slot.is_lossy { now } else { tx.at.max(slot.up_since) };
            let since = slot.held.get(&hash).copied().unwrap_or(first).max(tx.since);
            held.insert(hash, since);
            open.extend(tx.mined.is_none().then_some((hash, since)));
        }
        slot.held = held;
        Some(open)
    }
}

impl Slot {
    fn is_up(&mut self, keeps_pool: bool) {
        (self.up_since, self.bad_answers) = (now_ns(), [0; 2]);
        self.is_lossy |= !keeps_pool;
        self.held.clear();
    }
}

impl Ledger {
    /// With what it took the place of: their nonce is used, or free again.
    fn set_mined(&mut self, at: usize, mined: Option<(u64, u64)>) {
        let mut place = Some(at);
        while let Some(at) = place {
            self.txs[at].mined = mined;
            place = self.txs[at].replaces;
        }
    }
}

/// What the nodes of this seed announce, in its order. An attacker knows it too, as everybody does whose node announces it.
pub(crate) fn load(seed: u64) -> WorkloadConfig {
    let mix = Mix { blobs_per_mille: BLOBS_PER_MILLE, ..Mix::default() };
    WorkloadConfig { mix, ..WorkloadConfig::new(seed, DEV_CHAIN_ID) }
}

/// What is announced, in its order.
struct Load {
    workload: Workload,
    accounts: HashMap<Address, usize>,
    signed: std::vec::IntoIter<PreparedTx>,
    /// Signed at a time.
    each: usize,
}

impl Load {
    fn new(each: usize, seed: u64) -> Self {
        let workload = Workload::new(load(seed));
        let numbered = workload.accounts().iter().enumerate();
        let accounts = numbered.map(|(number, account)| (account.address, number)).collect();
        Self { workload, accounts, signed: Vec::new().into_iter(), each }
    }

    fn next(&mut self) -> Tx {
        let PreparedTx { hash, raw, sender, .. } = self.signed.next().unwrap_or_else(|| {
            self.signed = self.workload.prepare(self.each).into_iter();
            self.signed.next().expect("just signed")
        });
        Tx { hash, raw, account: self.accounts[&sender], ..Tx::default() }
    }

    /// The same with twice its fees, if its kind is one whose fees are simple.
    fn replacement(&self, at: usize, old: &Tx) -> Option<Tx> {
        let Ok(TxEnvelope::Eip1559(before)) = TxEnvelope::decode_2718_exact(&old.raw) else {
            return None;
        };
        let (hash, raw) = signed(&self.workload.accounts()[old.account], |tx| {
            *tx = before.strip_signature();
            tx.max_fee_per_gas *= 2;
            tx.max_priority_fee_per_gas *= 2;
        });
        Some(Tx { hash, raw, account: old.account, replaces: Some(at), ..Tx::default() })
    }
}

impl Shared {
    /// By an exact schedule; a burst comes on top.
    fn announce(&self, tps: u32, seed: u64) {
        let mut load = Load::new(tps as usize, seed);
        let (start, mut number) = (Instant::now(), 0);
        for paced in 0_u64.. {
            let due = start + Duration::from_nanos(paced * 1_000_000_000 / u64::from(tps));
            thread::sleep(due.saturating_duration_since(Instant::now()));
            for _ in 0..=self.burst.swap(0, Relaxed) {
                if self.stop.load(Relaxed) {
                    return;
                }
                number += 1;
                let replacement = (number % REPLACES == 0).then(|| self.replacement(&load));
                self.submit(replacement.flatten().unwrap_or_else(|| load.next()), seed);
            }
        }
    }

    /// For the oldest recent one that lingers and was not replaced.
    fn replacement(&self, load: &Load) -> Option<Tx> {
        let ledger = lock(&self.ledger);
        let recent = ledger.txs.len().saturating_sub(3_000);
        let is_free =
            |tx: &Tx| tx.lingers && tx.replaced_by.or(tx.replaces).is_none() && tx.mined.is_none();
        let txs = ledger.txs.iter().enumerate().skip(recent).filter(|(_, tx)| is_free(tx));
        txs.into_iter().find_map(|(at, tx)| load.replacement(at, tx))
    }

    fn submit(&self, mut tx: Tx, seed: u64) {
        // By account, so that no node waits for a nonce that only others have.
        let drawn = (tx.account + 1).wrapping_mul(seed as usize | 1) >> 3;
        let only = drawn.is_multiple_of(5).then_some(tx.account % self.slots.len());
        (tx.only, tx.lingers) = (only, tx.account % 10 == 7);
        let raw = tx.raw.clone();
        let mut ledger = lock(&self.ledger);
        tx.at = now_ns();
        tx.since = tx.at;
        let at = ledger.txs.len();
        if let Some(replaced) = tx.replaces {
            ledger.txs[replaced].replaced_by = Some(at);
        }
        ledger.by_hash.insert(tx.hash, at);
        ledger.txs.push(tx);
        // With the ledger, so that no block is made of what is replaced.
        self.reference.submit(raw.clone()).expect("signed in the order of its nonces");
        drop(ledger);
        for (number, slot) in self.slots.iter().enumerate() {
            if only.is_none_or(|only| only == number)
                && let Some(node) = &lock(slot).node
            {
                // A node that has lost its pool has it wait for its nonce; one that comes back has it already.
                _ = node.submit(raw.clone());
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(load) = self.load.take()
            && load.join().is_err()
        {
            eprintln!("warning: the load has panicked");
        }
    }
}
