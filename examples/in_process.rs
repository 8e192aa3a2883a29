//! A builder inside a node: the source is a pool of this process, and no socket is opened. It fails
//! if an audit finds a missing transaction.

mod report;

use std::{collections::HashMap, sync::Arc, time::Duration};

use alloy_consensus::transaction::{Recovered, SignerRecoverable as _};
use alloy_eips::Decodable2718 as _;
use alloy_primitives::B256;
use futures::stream;
use mempool_ingest::{FetcherConfig, Ingest, IngestConfig, PoolConfig, txpool_fetcher::*};
use mock_node::workload::{Workload, WorkloadConfig};

const CHAIN_ID: u64 = 1337;

struct SmallPool {
    txs: HashMap<B256, Recovered<PooledTransaction>>,
    /// The hashes that it announces. The other transactions were pooled before.
    announced: Vec<B256>,
}

impl InProcessPool for SmallPool {
    fn chain_id(&self) -> u64 {
        CHAIN_ID
    }
    fn announcements(&self) -> AnnouncementStream {
        let announced = self.announced.clone().into_iter().map(PoolAnnouncement::Pending);
        // The stream must not end: an end counts as a lost connection.
        Box::pin(stream::StreamExt::chain(stream::iter(announced), stream::pending()))
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
        PooledHashes { pending: self.txs.keys().copied().collect(), queued: vec![] }
    }
    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>> {
        self.txs.get(hash).cloned()
    }
}

#[tokio::main]
async fn main() -> report::Result {
    report::help(include_str!("in_process.rs"));
    let txs = Workload::new(WorkloadConfig::new(7, CHAIN_ID)).prepare(1_500);
    let mut pooled = HashMap::new();
    for tx in &txs {
        let decoded = PooledTransaction::decode_2718_exact(&tx.raw)?;
        pooled.insert(tx.hash, decoded.try_into_recovered()?);
    }
    let announced = txs[500..].iter().map(|tx| tx.hash).collect();
    let pool = SmallPool { txs: pooled, announced };
    let source = FetcherConfig::in_process("small pool", Arc::new(pool));
    let ingest = Ingest::start(IngestConfig::new(source, PoolConfig::default())).await?;
    ingest.fetcher().wait_live().await.map_err(|end| format!("the fetcher has ended: {end:?}"))?;
    let missing = ingest.fetcher().audit(0, AuditMode::CompareOnly).await?.missing;
    println!("{} of {} pooled, {missing} missing", ingest.pool().len(), txs.len());
    let counts = ingest.shutdown(Duration::from_secs(5)).await.counts;
    if missing > 0 || counts.balance() != 0 { Err("incomplete".into()) } else { Ok(()) }
}
