//! The fetcher as a collector has it: a stream of transactions, and a wait until it is live.

use std::{collections::BTreeSet, pin::pin, time::Duration};

use futures::StreamExt as _;
use mock_node::{DEV_CHAIN_ID, Fault, MockNode, NodeConfig, Target};
use testkit::ingest::{Node, PATIENCE, eventually, socket};
use tokio::{sync::mpsc, time::timeout};
use txpool_fetcher::{
    ConfigError, ConnectError, EndReason, FetchedTransaction, Fetcher, FetcherConfig, FetcherEnd,
    LossReason, SourceError, StartError, StartPolicy,
};

use super::submit;

const DEADLINE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_stream_brings_every_transaction_and_owns_its_fetcher() {
    let node = Node::start(200, |config| config);
    submit(&node, &node.txs[..100]);
    let mut stream = Fetcher::stream(node.fetcher(), 16).await.unwrap();
    let first: BTreeSet<_> = stream.by_ref().take(100).map(|tx| tx.hash()).collect().await;
    stream.fetcher().wait_live().await.unwrap();
    submit(&node, &node.txs[100..]);
    // More than the buffer holds waits in the fetcher meanwhile.
    let second: BTreeSet<_> = stream.by_ref().take(80).map(|tx| tx.hash()).collect().await;
    assert_eq!((first.len(), second.len()), (100, 80));
    assert!(
        first.iter().eq(node.txs[..100].iter().map(|tx| tx.hash).collect::<BTreeSet<_>>().iter())
    );
    let FetcherEnd { reason, counts, .. } = stream.shutdown(DEADLINE).await;
    assert_eq!((reason, counts.balance()), (EndReason::Stopped, 0));
    assert_eq!((counts.backfilled, counts.announced), (100, 100));
}

#[tokio::test]
async fn a_stream_without_a_buffer_is_refused() {
    let error = Fetcher::stream(Node::start(0, |config| config).fetcher(), 0).await.unwrap_err();
    let StartError::Config(ConfigError::OutOfRange { field, value, min, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((field, value, min), ("buffer", 0, 1));
}

#[tokio::test]
async fn who_waits_for_live_waits_for_the_node_and_hears_of_the_end() {
    let (_folder, path) = socket();
    let config = FetcherConfig { start: StartPolicy::WaitForNode, ..FetcherConfig::ipc(&path) };
    let (sink, _transactions) = mpsc::channel::<FetchedTransaction>(1);
    let fetcher = Fetcher::start(config, sink).await.unwrap();
    let _node = {
        let mut live = pin!(fetcher.wait_live());
        assert!(futures::poll!(live.as_mut()).is_pending());
        let node = MockNode::start(NodeConfig::new(&path)).unwrap();
        timeout(PATIENCE, live).await.expect("in time").expect("live");
        node
    };
    let is_ready = fetcher.readiness();
    assert!(is_ready());
    let reason = fetcher.shutdown(DEADLINE).await.reason;
    assert_eq!((reason, is_ready()), (EndReason::Stopped, false));
}

#[tokio::test]
async fn a_lost_connection_has_a_typed_reason() {
    let node = Node::start(0, |config| config);
    let stream = Fetcher::stream(node.fetcher(), 16).await.unwrap();
    stream.fetcher().wait_live().await.unwrap();
    node.node.inject(Fault::Close(Target::Subscription));
    let is_lost = || {
        let error = stream.fetcher().status()[0].last_error.clone();
        matches!(error.as_deref(), Some(SourceError::Lost(LossReason::Closed)))
    };
    eventually("the reason is shown", is_lost).await;
}

#[tokio::test]
async fn a_node_on_another_chain_than_the_expected_one_is_refused() {
    let node = Node::start(0, |config| config);
    let on = |chain| FetcherConfig { chain_id: Some(chain), ..node.fetcher() };
    let error = Fetcher::stream(on(1), 16).await.unwrap_err();
    let StartError::Connect(ConnectError::OtherChain { found, expected, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((found, expected), (DEV_CHAIN_ID, 1));
    let right = Fetcher::stream(on(DEV_CHAIN_ID), 16).await;
    assert!(right.is_ok());
}
