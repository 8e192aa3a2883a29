//! The node of one run: a process of its own, or a pool in the contender's process.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy::{consensus::transaction::Recovered, primitives::B256};
use futures::stream;
use mempool_ingest::{
    order_pool::PooledTransaction,
    txpool_fetcher::{
        AnnouncementStream, BlockStream, InProcessPool, MinedBlock, PooledHashes, announcements_of,
    },
};
use mock_node::{DEV_CHAIN_ID, workload::PreparedTx};
use testkit::{
    bench::pace,
    node::{Announced, LATE, NodeProcess},
    usage::{now_ns, thread_cpu},
};
use tokio::sync::mpsc;

/// The hashes that reth 2.5.1 keeps for a subscriber of its pool.
const CHANNEL: usize = 2_048;

pub(crate) enum Node {
    Process(NodeProcess),
    /// What was announced since the last [`Node::take_announced`] is noted here.
    InProcess {
        pool: Arc<NodePool>,
        announced: Announced,
    },
}

impl Node {
    /// Announces the next `count` transactions, `tps` a second or all at once, and returns when the
    /// last of them is announced.
    pub(crate) fn announce(&mut self, count: usize, tps: Option<u32>) -> io::Result<()> {
        match self {
            Self::Process(node) => {
                node.announce(count, tps)?;
                node.finish()
            }
            Self::InProcess { pool, announced } => {
                let cpu = thread_cpu();
                for due in pace(tps).take(count) {
                    announced.late += usize::from(tps.is_some() && due.elapsed() > LATE);
                    let announced_ns = now_ns();
                    announced.txs.push((pool.announce_next(), announced_ns));
                }
                announced.cpu += thread_cpu() - cpu;
                Ok(())
            }
        }
    }

    /// Returns what was announced since the last call.
    pub(crate) fn take_announced(&mut self) -> io::Result<Announced> {
        match self {
            Self::Process(node) => node.stop(),
            Self::InProcess { announced, .. } => Ok(std::mem::take(announced)),
        }
    }

    /// The CPU time that the node has used in this process since the last [`Self::take_announced`].
    /// It is the node's own, and no cost of the contender.
    pub(crate) const fn cpu_in_this_process(&self) -> Duration {
        match self {
            Self::Process(_) => Duration::ZERO,
            Self::InProcess { announced, .. } => announced.cpu,
        }
    }
}

/// The pool of a node that the contender runs in: a map of transactions with their senders, and a
/// channel of hashes, as reth has them.
pub(crate) struct NodePool {
    txs: HashMap<B256, Recovered<PooledTransaction>>,
    /// In the order of the announcements.
    hashes: Vec<B256>,
    announced: AtomicUsize,
    subscriber: Mutex<Option<mpsc::Sender<B256>>>,
}

impl NodePool {
    pub(crate) fn new(txs: &[PreparedTx]) -> Self {
        Self {
            txs: txs.iter().map(|tx| (tx.hash, tx.recovered())).collect(),
            hashes: txs.iter().map(|tx| tx.hash).collect(),
            announced: AtomicUsize::new(0),
            subscriber: Mutex::default(),
        }
    }

    /// Waits for room in the channel, so that no hash is lost; the wait is part of the latency.
    fn announce_next(&self) -> B256 {
        // Relaxed: the map of transactions does not change, and one thread announces.
        let hash = self.hashes[self.announced.fetch_add(1, Relaxed)];
        let subscriber = self.subscriber.lock().expect("nobody panics with it").clone();
        let subscriber = subscriber.expect("the fetcher has subscribed");
        subscriber.blocking_send(hash).expect("the fetcher reads");
        hash
    }
}

impl InProcessPool for NodePool {
    fn chain_id(&self) -> u64 {
        DEV_CHAIN_ID
    }

    fn announcements(&self) -> AnnouncementStream {
        let (sender, hashes) = mpsc::channel(CHANNEL);
        *self.subscriber.lock().expect("nobody panics with it") = Some(sender);
        announcements_of(hashes)
    }

    fn blocks(&self) -> BlockStream {
        Box::pin(stream::pending())
    }

    fn latest_block(&self) -> Option<MinedBlock> {
        None
    }

    fn block(&self, _: &B256) -> Option<MinedBlock> {
        None
    }

    fn pooled(&self) -> PooledHashes {
        let pending = self.hashes[..self.announced.load(Relaxed)].to_vec();
        PooledHashes { pending, queued: Vec::new() }
    }

    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>> {
        self.txs.get(hash).cloned()
    }
}
