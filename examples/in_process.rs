//! A builder inside a node: a pool of this process is the source, and no socket is opened. Fails if
//! anything that the pool held, announced or dropped without a word is missing.

use std::{collections::HashMap, error::Error, sync::Arc, sync::Mutex, time::Duration};

use alloy_consensus::transaction::{Recovered, SignerRecoverable as _};
use alloy_eips::Decodable2718 as _;
use alloy_primitives::B256;
use futures::channel::mpsc::{Sender, channel};
use mempool_ingest::{FetcherConfig, Ingest, IngestConfig, PoolConfig, txpool_fetcher::*};
use mock_node::workload::{PreparedTx, Workload, WorkloadConfig};

const CHAIN_ID: u64 = 1337;

#[derive(Default)]
struct SmallPool {
    txs: Mutex<HashMap<B256, Recovered<PooledTransaction>>>,
    latest: Mutex<Option<MinedBlock>>,
    announcements: Mutex<Option<Sender<PoolAnnouncement>>>,
    blocks: Mutex<Option<Sender<MinedBlock>>>,
}

impl SmallPool {
    fn add(&self, tx: &PreparedTx, is_announced: bool) {
        let decoded = PooledTransaction::decode_2718_exact(&tx.raw).expect("signed by us");
        let recovered = decoded.try_into_recovered().expect("signed by us");
        self.txs.lock().unwrap().insert(tx.hash, recovered);
        if let Some(sender) = self.announcements.lock().unwrap().as_mut().filter(|_| is_announced) {
            let _ = sender.try_send(PoolAnnouncement::Pending(tx.hash)); // Full: the audit finds it.
        }
    }

    fn mine(&self, txs: &[PreparedTx]) {
        let head = Head::new(1, B256::with_last_byte(1), B256::ZERO);
        let hashes: Vec<_> = txs.iter().map(|tx| tx.hash).collect();
        let nonces = txs.iter().map(|tx| NonceUpdate::new(tx.sender, tx.nonce + 1)).collect();
        self.txs.lock().unwrap().retain(|hash, _| !hashes.contains(hash));
        let mined = MinedBlock::new(Block::new(head, hashes), nonces);
        *self.latest.lock().unwrap() = Some(mined.clone());
        if let Some(sender) = self.blocks.lock().unwrap().as_mut() {
            let _ = sender.try_send(mined); // Full: it is asked for when its child comes.
        }
    }
}

impl InProcessPool for SmallPool {
    fn chain_id(&self) -> u64 {
        CHAIN_ID
    }
    fn announcements(&self) -> AnnouncementStream {
        let (sender, receiver) = channel(2_048);
        *self.announcements.lock().unwrap() = Some(sender);
        Box::pin(receiver)
    }
    fn blocks(&self) -> BlockStream {
        let (sender, receiver) = channel(16);
        *self.blocks.lock().unwrap() = Some(sender);
        Box::pin(receiver)
    }
    fn latest_block(&self) -> Option<MinedBlock> {
        self.latest.lock().unwrap().clone()
    }
    fn block(&self, hash: &B256) -> Option<MinedBlock> {
        self.latest_block().filter(|mined| mined.block.head.hash == *hash)
    }
    fn pooled(&self) -> PooledHashes {
        PooledHashes::new(self.txs.lock().unwrap().keys().copied().collect(), Vec::new())
    }
    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>> {
        self.txs.lock().unwrap().get(hash).cloned()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let txs = Workload::new(WorkloadConfig::new(7, CHAIN_ID)).prepare(1_500);
    let pool = Arc::new(SmallPool::default());
    txs[..500].iter().for_each(|tx| pool.add(tx, false));
    let source = FetcherConfig::in_process("small pool", pool.clone());
    let ingest = Ingest::start(IngestConfig::new(source, PoolConfig::default())).await?;
    let reaches = async |orders, what| {
        while ingest.pool().len() != orders {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("{orders} orders: {what}");
    };
    reaches(500, "what the pool held").await;
    txs[500..1_000].iter().for_each(|tx| pool.add(tx, true));
    reaches(1_000, "what it announced").await;
    txs[1_000..].iter().for_each(|tx| pool.add(tx, false));
    ingest.fetcher().audit(0, AuditMode::Recover).await?;
    reaches(1_500, "what it dropped without a word, and an audit found").await;
    pool.mine(&txs[..500]);
    reaches(1_000, "a block took the rest").await;
    let missing = ingest.fetcher().audit(0, AuditMode::CompareOnly).await?.missing;
    let counts = ingest.shutdown(Duration::from_secs(5)).await.counts;
    println!("{missing} missing, balance {}: {counts:?}", counts.balance());
    if missing > 0 || counts.balance() != 0 { Err("incomplete".into()) } else { Ok(()) }
}
