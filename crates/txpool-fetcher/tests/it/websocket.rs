//! A node over WebSocket: the mock node's socket behind a bridge, message by message.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use futures::{SinkExt as _, StreamExt as _};
use mock_node::workload::Mix;
use testkit::ingest::{Node, eventually, settled};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, UnixStream},
    task::AbortHandle,
};
use tokio_tungstenite::tungstenite::Message;
use txpool_fetcher::{Endpoint, FetcherConfig, Limits, SourceState};

use super::{compare, ingest_with, submit};

/// Serves WebSockets and passes each on to the node's socket, until it is aborted.
async fn bridge(path: PathBuf) -> (SocketAddr, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(pass_on(stream, path.clone()));
        }
    });
    (address, task.abort_handle())
}

async fn pass_on(stream: TcpStream, path: PathBuf) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let (mut to_client, mut from_client) = socket.split();
    let (from_node, mut to_node) = UnixStream::connect(path).await.unwrap().into_split();
    // Each message of the node is a line.
    let mut lines = BufReader::new(from_node).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    if to_client.send(Message::text(line)).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
            message = from_client.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    if to_node.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}

#[tokio::test]
async fn a_source_over_websocket_is_backfilled_followed_and_audited() {
    let node = Node::start(300, |config| config);
    submit(&node, &node.txs[..100]);
    let (address, bridge) = bridge(node.node.ipc_path().to_owned()).await;
    let config = FetcherConfig::new([Endpoint::Ws(format!("ws://{address}"))]);
    let limits = Limits { ping_interval: Duration::from_millis(50), ..Limits::default() };
    let (fetcher, pool) = ingest_with(config, limits).await;
    assert_eq!(pool.len(), 100);
    submit(&node, &node.txs[100..]);
    let counts = settled(&fetcher, "300 pooled", |counts| counts.pooled == 300).await;
    assert_eq!((counts.backfilled, counts.announced), (100, 200));
    let report = compare(&fetcher).await;
    assert_eq!((report.listed, report.missing), (300, 0));
    node.node.mine();
    eventually("the block has emptied the pool", || pool.is_empty()).await;
    bridge.abort();
    eventually("the loss is seen", || {
        fetcher.status()[0].state == SourceState::Connecting && fetcher.status()[0].reconnects > 0
    })
    .await;
}

/// It came over the connection for all calls, and ended all request connections each time.
#[tokio::test]
async fn a_pool_longer_than_a_frame_may_be_is_listed_and_costs_no_connection() {
    let node = Node::start(2_000, |config| config);
    node.submit_all();
    let (address, _bridge) = bridge(node.node.ipc_path().to_owned()).await;
    let config = FetcherConfig::new([Endpoint::Ws(format!("ws://{address}"))]);
    let limits = Limits { max_frame_bytes: 1 << 20, ..Limits::default() };
    let (fetcher, _pool) = ingest_with(config, limits).await;
    let counts = settled(&fetcher, "2000 pooled", |counts| counts.pooled == 2_000).await;
    assert_eq!((counts.backfilled, fetcher.status()[0].reconnects), (2_000, 0));
}

/// Its message is above the limit, and a WebSocket cannot skip it.
#[tokio::test]
async fn a_transaction_longer_than_a_frame_may_be_costs_one_reconnect() {
    let node = Node::with_mix(60, Mix { blobs_per_mille: 50, ..Mix::default() }, |config| config);
    let (address, _bridge) = bridge(node.node.ipc_path().to_owned()).await;
    let config = FetcherConfig::new([Endpoint::Ws(format!("ws://{address}"))]);
    let limits = Limits { max_frame_bytes: 200_000, ..Limits::default() };
    let (fetcher, pool) = ingest_with(config, limits).await;
    node.submit_all();
    let counts =
        settled(&fetcher, "all have left", |counts| counts.refused as usize + pool.len() == 60)
            .await;
    let reconnects = fetcher.status()[0].reconnects;
    assert!((1..=counts.refused).contains(&reconnects), "{reconnects}, {counts:?}");
}
