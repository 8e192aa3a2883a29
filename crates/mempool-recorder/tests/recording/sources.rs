//! The column `sources`, with two nodes.

use std::{collections::BTreeMap, time::Instant};

use alloy_primitives::B256;
use futures::executor::block_on;
use mempool_recorder::{Recorder, RecorderConfig};
use mock_node::{MockNode, NodeConfig, workload::PreparedTx};
use order_pool::OrderPool;
use parquet::record::RowAccessor as _;
use txpool_fetcher::{Backfill, Endpoint, Fetcher, FetcherConfig};

use crate::files::{LONG, pool, rows, signed};

const NAMES: [&str; 2] = ["one", "two"];

/// Records what the pool holds. Returns the column `sources` of each transaction.
fn record(pool: &OrderPool, fetcher: &Fetcher) -> BTreeMap<B256, Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let handle = fetcher.handle().clone();
    let name = move |hash: &B256| {
        handle.announcers(hash).into_iter().map(|source| NAMES[source].to_owned()).collect()
    };
    let recorder = Recorder::start_with(pool, RecorderConfig::new(folder.path()), name);
    assert!(recorder.expect("a folder").shutdown(LONG).ended);
    let mut found = BTreeMap::new();
    for row in rows(folder.path()) {
        let names = row.get_list(14).expect("a list").elements().iter();
        let names = names.map(|name| name.to_string().trim_matches('"').to_owned()).collect();
        let hash = row.get_string(1).expect("a hash").parse().expect("hex");
        assert_eq!(found.insert(hash, names), None, "{hash} has two rows");
    }
    found
}

fn submit(node: &MockNode, txs: &[PreparedTx]) {
    for tx in txs {
        node.submit(tx.raw.clone()).expect("the node takes it");
    }
}

#[test]
fn a_row_names_every_node_that_announced_its_transaction_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes = NAMES.map(|name| {
        MockNode::start(NodeConfig::new(folder.path().join(name))).expect("the mock node starts")
    });
    let pool = pool();
    let sources = nodes.each_ref().map(|node| Endpoint::Ipc(node.ipc_path().to_owned()));
    let mut config = FetcherConfig::new(sources);
    config.backfill = Backfill::Off;
    let fetcher = block_on(Fetcher::start(config, pool.clone())).expect("the fetcher starts");
    let wait = |description: &str, condition: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < LONG, "{description}: {:?}", fetcher.counts());
            std::thread::yield_now();
        }
    };
    wait("both are live", &|| fetcher.is_ready());

    // Each transaction has a sender of its own, so a node accepts any of them. The pools overlap.
    let txs = signed(40, 0);
    submit(&nodes[0], &txs[..30]);
    wait("30 are pooled", &|| fetcher.counts().pooled == 30);
    let first = record(&pool, &fetcher);
    assert_eq!(first.len(), 30);
    assert!(first.values().all(|names| *names == ["one"]), "{first:?}");

    submit(&nodes[1], &txs[10..]);
    wait("the others are pooled, the shared ones known", &|| {
        let counts = fetcher.counts();
        (counts.pooled, counts.known) == (40, 20)
    });
    let expected = txs.iter().enumerate().map(|(index, tx)| {
        let names = match index {
            0..10 => &NAMES[..1],
            10..30 => &NAMES,
            _ => &NAMES[1..],
        };
        (tx.hash, names.iter().map(|name| (*name).to_owned()).collect())
    });
    assert_eq!(record(&pool, &fetcher), expected.collect());
    assert!(block_on(fetcher.shutdown(LONG)).ended);
}
