//! A machine on which no further thread can be started.

use std::time::Duration;

use mock_node::{Fault, Target};
use testkit::{
    ingest::{Node, eventually, ingest, settled},
    threads::{NoThreads, run_in_own_process},
};
use txpool_fetcher::{Fetcher, FetcherConfig, SourceState};

/// tokio starts a thread for blocking work when it needs one, and ends it after ten idle seconds.
/// No block may need a new one.
#[test]
fn transactions_are_pooled_while_no_thread_can_be_started() {
    run_in_own_process("without_threads");
}

#[tokio::test]
#[ignore = "the other test runs it, in a process of its own"]
async fn without_threads() {
    let node = Node::start(300, |config| config);
    let mut config = node.fetcher();
    config.audit_interval = Some(Duration::from_secs(1));
    let (fetcher, pool) = ingest(config).await;
    let no_threads = NoThreads::begin();
    let another = FetcherConfig::ipc(node.node.ipc_path());
    let error = Fetcher::start(another, pool.clone()).await.expect_err("it needs threads");
    assert!(format!("{error:?}").contains("the limit of threads is reached"), "{error:?}");

    // Longer than idle threads live, across blocks, audits and a reconnect.
    for (index, txs) in node.txs.chunks(20).enumerate() {
        for tx in txs {
            node.node.submit(tx.raw.clone()).expect("valid");
        }
        settled(&fetcher, "all are in", |counts| counts.pooled >= 20 * (index as u64 + 1)).await;
        if index % 5 == 2 {
            node.node.mine();
            let head = node.node.head().number;
            eventually("the head", || pool.head().is_some_and(|seen| seen.number == head)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let audits = fetcher.status()[0].audits;
    assert!(audits >= 5, "{audits} comparisons");
    node.node.inject(Fault::Close(Target::All));
    eventually("it is connected again", || {
        let status = &fetcher.status()[0];
        status.state == SourceState::Live && status.reconnects > 0
    })
    .await;
    drop(no_threads);
    assert_eq!(fetcher.counts().balance(), 0);
    assert!(fetcher.shutdown(Duration::from_secs(5)).await.ended);
}
