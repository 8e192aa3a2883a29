//! The order pool with a host's own source: the calls that feed it, and the events that a builder
//! reads.
//!
//! `cargo run --release --example own_source`

mod report;

use std::time::SystemTime;

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::Decodable2718 as _;
use alloy_primitives::B256;
use mempool_ingest::{OrderPool, PoolConfig, order_pool::*};
use mock_node::workload::{Workload, WorkloadConfig};

const CHAIN_ID: u64 = 1337;

fn main() -> report::Result {
    report::help(include_str!("own_source.rs"));
    let pool = OrderPool::new(PoolConfig::default())?;
    // Upkeep expires and compacts in bounded steps, on a thread that ends when this is dropped.
    let _upkeep = Upkeep::start(&pool, UpkeepConfig::default(), || false)?;
    // Subscribers receive `Event::FeedEnded` when this is dropped.
    let _feed = pool.feed();
    let mut orders = pool.subscribe_all();

    // Insert each transaction when it arrives, from any thread, with its sender and, for a blob
    // transaction, its sidecar.
    let txs = Workload::new(WorkloadConfig::new(7, CHAIN_ID)).prepare(100);
    for tx in &txs {
        let decoded = PooledTransaction::decode_2718_exact(&tx.raw)?.try_into_recovered()?;
        let tx = Transaction::new(decoded, Origin::Mempool, SystemTime::now());
        match pool.insert_transaction(tx) {
            InsertOutcome::Added | InsertOutcome::Known => {}
            refused => println!("refused: {refused:?}"),
        }
    }

    // Report each block once: its hashes at once, and its nonces when they are known.
    let head = Head::new(1, B256::with_last_byte(1), B256::ZERO);
    let (first, second) = txs.split_at(50);
    let mined: Vec<_> = first.iter().map(|tx| tx.hash).collect();
    let _ = pool.on_head(Block::new(head, mined));
    let private = &second[0]; // A private transaction of the same sender used its nonce.
    pool.on_nonces(head.hash, [NonceUpdate::new(private.sender, private.nonce + 1)]);

    let mut added = 0;
    let mut mined = 0;
    let mut stale = 0;
    while let Some(event) = orders.try_next() {
        match event? {
            Event::Added(_) => added += 1,
            Event::Removed { reason: RemoveReason::Mined, .. } => mined += 1,
            Event::Removed { .. } => stale += 1,
            _ => {} // Heads and cancellations.
        }
    }
    println!("{added} added, {mined} mined, {stale} stale, {} left", pool.len());
    Ok(())
}
