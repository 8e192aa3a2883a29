//! A running node, on its own threads.

mod inject;
mod load;

use std::{
    convert::Infallible,
    fmt, fs,
    os::unix::net::UnixListener as StdListener,
    path::Path,
    sync::{Arc, mpsc::channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use tokio::{net::UnixListener, sync::Notify};

use crate::{
    chain::{Block, FullBlock},
    config::NodeConfig,
    delays::deliver,
    error::{NodeError, TxRefused},
    faults::Fault,
    quirks::{Quirks, Topic},
    rpc,
    shared::Shared,
    state::NewState,
    stats::Stats,
    tx::SignedTx,
};
use inject::{follow, inject};

/// How long shutdown waits for threads that are busy with a large answer.
const BLOCKING_GRACE: Duration = Duration::from_secs(2);

/// A node that runs until it is shut down or dropped.
///
/// It has its own runtime and threads, so a test that blocks its runtime does not block the node.
/// Every method may be called from any thread; none waits for a client.
pub struct MockNode {
    shared: Arc<Shared>,
    stop: Arc<Notify>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl MockNode {
    /// Starts a node. It signs the transactions that are needed first, and then listens; the socket
    /// exists when this returns.
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        assert!(!config.state, "a node that executes blocks is started by testkit::state::start");
        Self::with_state(config, None)
    }

    /// Like [`Self::start`], with an executor of the blocks.
    pub fn with_state(config: NodeConfig, state: Option<NewState>) -> Result<Self, NodeError> {
        Self::prepared(config, state, |shared| {
            let mut preloaded = shared.take(shared.config.preload).into_iter();
            preloaded.try_for_each(|(_, tx)| shared.submit(tx))
        })
    }

    /// Starts a node with the chain of another one, and with these transactions in its pool as far
    /// as their nonces follow, like a node that restarts.
    pub fn start_beside(
        config: NodeConfig,
        other: &Self,
        pending: impl IntoIterator<Item = Bytes>,
    ) -> Result<Self, NodeError> {
        let chain = other.shared.lock().core.chain.clone();
        Self::prepared(config, None, |shared| {
            shared.lock().core.chain = chain;
            for raw in pending {
                // A transaction that has been mined is refused.
                _ = shared.submit_raw(&raw);
            }
            Ok(())
        })
    }

    /// Starts a node after `prepare` has changed it without notifications.
    fn prepared(
        config: NodeConfig,
        state: Option<NewState>,
        prepare: impl FnOnce(&Shared) -> Result<(), TxRefused>,
    ) -> Result<Self, NodeError> {
        let (delays, held) = channel();
        let shared = Arc::new(Shared::new(config, state, delays));
        prepare(&shared)?;
        let listener = rpc::listen(&shared.config.ipc_path)?;
        let node = Self { shared, stop: Arc::default(), threads: Mutex::default() };
        node.spawn("server", {
            let (shared, stop) = (node.shared.clone(), node.stop.clone());
            move |_| serve(shared, &stop, listener)
        });
        node.spawn("delays", move |_| deliver(&held));
        let config = &node.shared.config;
        if config.tps > 0 {
            node.spawn("load", load::pace);
        }
        if let Some(plan) = config.faults.clone() {
            node.spawn("faults", move |shared| follow(shared, &plan));
        }
        if !config.block_time.is_zero() {
            node.spawn("miner", mine_on_time);
        }
        Ok(node)
    }

    fn spawn(&self, part: &str, run: impl FnOnce(&Shared) + Send + 'static) {
        let shared = self.shared.clone();
        let thread = thread::Builder::new().name(format!("mock-node-{part}"));
        let thread = thread.spawn(move || run(&shared)).expect("a thread");
        self.threads.lock().push(thread);
    }

    pub fn ipc_path(&self) -> &Path {
        &self.shared.config.ipc_path
    }

    pub fn config(&self) -> &NodeConfig {
        &self.shared.config
    }

    /// Submits a transaction, as `eth_sendRawTransaction` does. It is announced once it is pending,
    /// and not while it is queued.
    pub fn submit(&self, raw: Bytes) -> Result<B256, TxRefused> {
        self.shared.submit_raw(&raw)
    }

    /// Announces the next `count` transactions of the node's own load at once. All are signed
    /// before the first is announced.
    pub fn burst(&self, count: usize) -> Vec<B256> {
        load::burst(&self.shared, count)
    }

    /// Injects a fault. It is in force when this returns, except for a restart, which the thread of
    /// the server does as soon as it can.
    pub fn inject(&self, fault: Fault) {
        inject(&self.shared, fault);
    }

    /// Waits until all faults of the configured plan were injected. Returns false after `timeout`,
    /// or if there is no plan.
    pub fn wait_faults_finished(&self, timeout: Duration) -> bool {
        self.shared.wait(Instant::now() + timeout, |state| state.plan_finished)
    }

    /// Announces a transaction of the pool once more, as reth does with 2 to 3 % under load.
    pub fn announce_again(&self, hash: B256) -> Result<(), NodeError> {
        let mut state = self.shared.lock();
        let tx = state.core.pool.get(&hash).cloned();
        let tx = tx.ok_or(NodeError::UnknownTransaction { hash })?;
        self.shared.announce_once(&mut state, &tx);
        Ok(())
    }

    /// The JSON object of a pending transaction, as subscribers to full transactions get it.
    pub fn object(&self, hash: B256) -> Option<String> {
        let state = self.shared.lock();
        let object = state.core.pool.get(&hash)?.pending_object().to_vec();
        Some(String::from_utf8(object).expect("JSON is text"))
    }

    /// Sends this JSON to subscribers to full transactions, without checking it.
    pub fn announce_object(&self, json: &str) {
        self.shared.lock().notify(Topic::Objects, json.as_bytes());
    }

    /// Announces an unknown hash, as if its transaction had been replaced or evicted immediately.
    pub fn announce_unknown(&self, hash: B256) {
        self.shared.lock().announce_hash(hash);
    }

    /// Mines pending transactions, up to the limits of a block.
    pub fn mine(&self) -> Block {
        self.shared.mine().summary()
    }

    /// Mines empty blocks whose timestamps are `interval_s` seconds apart. Two nodes with the same
    /// genesis make the same blocks.
    pub fn mine_empty(&self, count: usize, interval_s: u64) {
        let Ok(()) = self
            .shared
            .change(|core| Ok::<_, Infallible>(((), core.mine_empty(count, interval_s))));
    }

    /// Changes the quirks of the node, from the next request and notification on.
    pub fn set_quirks(&self, change: impl FnOnce(&mut Quirks)) {
        change(Arc::make_mut(&mut self.shared.lock().quirks));
    }

    /// Mines exactly these transactions of the pool, in this order.
    pub fn mine_only(&self, hashes: &[B256]) -> Result<Block, NodeError> {
        let now_s = self.shared.now_s();
        let block = self.shared.change(|core| {
            let pooled = |hash: &B256| {
                let tx = core.pool.get(hash).cloned();
                tx.ok_or(NodeError::UnknownTransaction { hash: *hash })
            };
            let txs = hashes.iter().map(pooled).collect::<Result<_, _>>()?;
            Ok::<_, NodeError>(core.mine_checked(txs, now_s)?)
        })?;
        Ok(block.summary())
    }

    /// Mines transactions that were never announced, like the private ones of a builder.
    /// Transactions of the pool with the same or lower nonces of their senders are removed
    /// silently.
    pub fn mine_private(&self, raws: impl IntoIterator<Item = Bytes>) -> Result<Block, NodeError> {
        let signed = |raw| SignedTx::from_raw(&raw, self.shared.config.chain_id).map(Arc::new);
        let txs = raws.into_iter().map(signed).collect::<Result<_, _>>()?;
        let now_s = self.shared.now_s();
        let block = self.shared.change(|core| core.mine_checked(txs, now_s))?;
        Ok(block.summary())
    }

    /// Replaces the newest `depth` blocks by as many empty ones, whose heads are announced. The
    /// transactions of the replaced blocks become pending and are announced again.
    pub fn reorg(&self, depth: usize) -> Result<Reorg, NodeError> {
        let now_s = self.shared.now_s();
        self.shared.change(|core| {
            let (removed, effects) = core.reorg(depth, now_s)?;
            let summaries =
                |blocks: &[Arc<FullBlock>]| blocks.iter().map(|block| block.summary()).collect();
            let reorg = Reorg { removed: summaries(&removed), added: summaries(&effects.heads) };
            Ok((reorg, effects))
        })
    }

    /// Adopts the chain of another node, like a node that imports blocks: the new heads are
    /// announced, and transactions that only this node's blocks contained become pending again.
    pub fn follow(&self, other: &Self) {
        let chain = other.shared.lock().core.chain.clone();
        let Ok(()) = self.shared.change(|core| Ok::<_, Infallible>(((), core.follow(chain))));
    }

    pub fn head(&self) -> Block {
        self.shared.lock().core.chain.head().summary()
    }

    /// Hashes of pending transactions, oldest first.
    pub fn pending(&self) -> Vec<B256> {
        self.shared.lock().core.pool.pending().map(|tx| tx.hash).collect()
    }

    /// Hashes of queued transactions.
    pub fn queued(&self) -> Vec<B256> {
        self.shared.lock().core.pool.queued().map(|tx| tx.hash).collect()
    }

    /// The answer to `eth_getRawTransactionByHash` for this hash: a pending blob transaction with
    /// its sidecar, a mined one without.
    pub fn raw(&self, hash: B256) -> Option<Bytes> {
        self.shared.raw(&hash)
    }

    pub fn stats(&self) -> Stats {
        self.shared.lock().stats.clone()
    }

    /// Waits until the paced load has announced its count. Returns false after `timeout`, or if
    /// there is no count.
    pub fn wait_load_finished(&self, timeout: Duration) -> bool {
        self.shared.wait(Instant::now() + timeout, |state| state.load_finished)
    }

    /// Stops the node: closes the connections, removes the socket file, and waits until its threads
    /// have ended. A second call does nothing.
    pub fn shutdown(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return;
        }
        self.shared.signal(|state| (state.stopped, state.delays) = (true, None));
        self.stop.notify_one();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the node panicked");
            }
        }
        // Another node may already listen at this path.
        let _ = fs::remove_file(&self.shared.config.ipc_path);
    }
}

impl Drop for MockNode {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for MockNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockNode").field("ipc_path", &self.ipc_path()).finish_non_exhaustive()
    }
}

/// The changes that a reorg made to the chain, oldest blocks first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reorg {
    /// Blocks that are no longer part of the chain.
    pub removed: Vec<Block>,
    /// Blocks that replaced them.
    pub added: Vec<Block>,
}

fn serve(shared: Arc<Shared>, stop: &Notify, listener: StdListener) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().thread_name("mock-node-blocking").build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let listener = UnixListener::from_std(listener).expect("it does not block");
        // The order is irrelevant: both branches end only once, and a node that is stopped needs no
        // further connection.
        tokio::select! {
            () = rpc::serve(shared, listener) => {}
            () = stop.notified() => {}
        }
    });
    runtime.shutdown_timeout(BLOCKING_GRACE);
}

fn mine_on_time(shared: &Shared) {
    let mut due = Instant::now() + shared.config.block_time;
    while !shared.sleep_until(due) {
        due += shared.config.block_time;
        let turn = shared.lock().line.as_mut().map(|line| line.block(Instant::now()));
        if let Some(turn) = turn {
            // A late thread skips the blocks that it missed: they would wait for each other in the
            // queue.
            due = due.max(Instant::now() + shared.config.block_time);
            {
                let stats = &mut shared.lock().stats;
                stats.import_wait_us_max = stats.import_wait_us_max.max(turn.as_micros() as u64);
            }
            if shared.sleep_until(Instant::now() + turn) {
                return;
            }
        }
        shared.mine();
    }
}
