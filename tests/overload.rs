//! A node that can do only so much: we notice, ask less, and lose nothing; its blocks come first.

mod common;

use std::time::Duration;

use common::{Node, eventually, ingest, settled};
use mempool_ingest::{
    FetcherConfig,
    txpool_fetcher::{ADAPTIVE_FLOOR, AuditMode},
};
use mock_node::{Capacity, NodeConfig, Stats};

/// 2000 questions a second.
const SERVICE: Duration = Duration::from_millis(2);

fn capacity(at_once: usize, may_wait: usize, says_when: bool) -> Option<Capacity> {
    Some(Capacity { at_once, service: SERVICE, may_wait, says_when })
}

/// A burst that is more than the node can do; everything is in the pool at the end, with audits for
/// what was refused too often.
async fn burst(says_when: bool, adaptive: bool) -> (Stats, usize) {
    let node =
        Node::start(2_000, |config: NodeConfig| config.with_capacity(capacity(4, 12, says_when)));
    let (fetcher, pool) = ingest(node.fetcher().with_adaptive_limit(adaptive)).await;
    assert_eq!(fetcher.status()[0].fetch_limit, 64);
    node.submit_all();
    let mut lowest = usize::MAX;
    eventually("all are asked for", || {
        lowest = lowest.min(fetcher.status()[0].fetch_limit);
        let counts = fetcher.counts();
        counts.announced == 2_000 && counts.unfinished == 0
    })
    .await;
    let stats = node.node.stats();
    while pool.len() < 2_000 {
        let report = fetcher.audit(0, AuditMode::Recover).await.expect("the node lists its pool");
        assert!(!report.missing.is_empty(), "what is not in the pool is known to be missing");
        settled(&fetcher, "nothing under way", |_| true).await;
    }
    (stats, lowest)
}

#[tokio::test]
async fn a_node_that_says_it_is_busy_is_asked_less_and_nothing_is_missing() {
    let (adaptive, lowest) = burst(false, true).await;
    let (fixed, unchanged) = burst(false, false).await;
    println!("refused: adaptive {} (lowest {lowest}), fixed {}", adaptive.raw_busy, fixed.raw_busy);
    assert!((ADAPTIVE_FLOOR..32).contains(&lowest), "{lowest}");
    assert_eq!(unchanged, 64, "switched off");
    assert!(fixed.raw_busy > 500, "it was too much: {}", fixed.raw_busy);
    assert!(adaptive.raw_busy * 4 < fixed.raw_busy, "{} {}", adaptive.raw_busy, fixed.raw_busy);
}

#[tokio::test]
async fn a_node_that_says_when_to_come_back_is_not_asked_before() {
    let (told, _) = burst(true, true).await;
    println!("refused: {}", told.raw_busy);
    // Each refusal empties the line: 16 answers at least come between two rounds of refusals, of
    // which none is larger than what was under way.
    assert!(told.raw_busy < 500, "{}", told.raw_busy);
}

/// Backfills 2,000 transactions from a node that serves 8 at once, whose blocks wait in the same
/// line.
async fn backfill(configure: impl FnOnce(FetcherConfig) -> FetcherConfig) -> Stats {
    let node = Node::start(2_000, |config: NodeConfig| {
        config
            .with_capacity(capacity(8, usize::MAX >> 1, false))
            .with_block_time(Duration::from_millis(10))
            .with_block_max_txs(1)
    });
    node.submit_all();
    let (_fetcher, _pool) = ingest(configure(node.fetcher())).await;
    node.node.stats()
}

#[tokio::test]
async fn a_backfill_does_not_delay_the_blocks_of_its_node() {
    let ours = backfill(|config| config).await;
    let greedy = backfill(|mut config| {
        config.deferrable_slots = config.fetch_slots;
        config.with_adaptive_limit(false)
    })
    .await;
    println!(
        "longest wait of a block: {} us of {} blocks, with all slots {} us of {}",
        ours.import_wait_us_max, ours.blocks, greedy.import_wait_us_max, greedy.blocks
    );
    // By counts, not by the clock: 4 questions and a block find 8 places.
    assert!(ours.blocks > 0 && greedy.blocks > 0);
    assert_eq!(ours.import_wait_us_max, 0);
    assert!(greedy.import_wait_us_max > SERVICE.as_micros() as u64);
}
