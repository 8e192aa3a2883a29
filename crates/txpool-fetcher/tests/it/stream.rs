//! The fetcher as a collector has it: a stream of transactions.

use futures::StreamExt as _;
use mock_node::DEV_CHAIN_ID;
use txpool_fetcher::ConfigError;

use super::*;

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
    let FetcherEnd { reason, counts, .. } = stream.shutdown(Duration::from_secs(5)).await;
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
