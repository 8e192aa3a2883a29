//! A node over WebSocket: the mock node's socket behind a bridge, message by message.

use std::path::PathBuf;

use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, UnixStream},
    task::AbortHandle,
};
use tokio_tungstenite::tungstenite::Message;

use super::*;

/// Starts a bridge that connects WebSockets to the node's socket until it is aborted. Returns a
/// configuration with the bridge as the source.
async fn bridged(node: &Node) -> (FetcherConfig, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let path = node.node.ipc_path().to_owned();
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(forward(stream, path.clone()));
        }
    });
    (FetcherConfig::new([Endpoint::Ws(url)]), task.abort_handle())
}

/// Forwards messages until either side ends.
async fn forward(stream: TcpStream, path: PathBuf) -> Option<()> {
    let socket = tokio_tungstenite::accept_async(stream).await.ok()?;
    let (mut to_client, mut from_client) = socket.split();
    let (from_node, mut to_node) = UnixStream::connect(path).await.unwrap().into_split();
    let mut lines = BufReader::new(from_node).lines();
    loop {
        tokio::select! {
            // Each message of the node is a line.
            line = lines.next_line() => to_client.send(Message::text(line.ok()??)).await.ok()?,
            message = from_client.next() => if let Message::Text(text) = message?.ok()? {
                to_node.write_all(text.as_bytes()).await.ok()?;
            },
        }
    }
}

#[tokio::test]
async fn ipc_and_websocket_sources_are_backfilled_followed_and_audited() {
    for is_ipc in [true, false] {
        let node = Node::start(300, |config| config);
        submit(&node, &node.txs[..100]);
        let (websocket, bridge) = bridged(&node).await;
        let config = if is_ipc { node.fetcher() } else { websocket };
        let limits = Limits { ping_interval: Duration::from_millis(50), ..Limits::default() };
        let (fetcher, pool) = ingest_with(config, limits).await;
        assert_eq!(pool.len(), 100, "the backfill is pooled when the source is live");
        let gap = &fetcher.status()[0].gaps[0];
        assert_eq!((gap.reason, gap.recovered), (GapReason::StartUp, 100));
        submit(&node, &node.txs[100..]);
        let counts = settled(&fetcher, "300 pooled", |counts| counts.pooled == 300).await;
        assert_eq!((counts.backfilled, counts.announced), (100, 200));
        let report = compare(&fetcher).await;
        assert_eq!((report.listed, report.missing), (300, 0));
        node.node.mine();
        eventually("the block has emptied the pool", || pool.is_empty()).await;
        bridge.abort();
        drop(node);
        eventually("the loss is seen", || {
            let status = &fetcher.status()[0];
            status.state == SourceState::Connecting && status.reconnects > 0
        })
        .await;
    }
}

/// Before the fix the list came over a request connection, and ended all of them each time.
#[tokio::test]
async fn a_pool_longer_than_a_frame_is_listed_without_a_reconnect() {
    let node = Node::start(2_000, |config| config);
    node.submit_all();
    let (config, _bridge) = bridged(&node).await;
    let limits = Limits { max_frame_bytes: 1 << 20, ..Limits::default() };
    let (fetcher, _pool) = ingest_with(config, limits).await;
    let counts = settled(&fetcher, "2000 pooled", |counts| counts.pooled == 2_000).await;
    assert_eq!((counts.backfilled, fetcher.status()[0].reconnects), (2_000, 0));
}

/// Its message exceeds the limit, and a WebSocket cannot skip a message.
#[tokio::test]
async fn a_transaction_longer_than_a_message_costs_three_reconnects() {
    let node = Node::with_mix(60, Mix { blobs_per_mille: 50, ..Mix::default() }, |config| config);
    let (config, _bridge) = bridged(&node).await;
    let limits = Limits { max_frame_bytes: 200_000, ..Limits::default() };
    let (fetcher, pool) = ingest_with(config, limits).await;
    node.submit_all();
    let counts =
        settled(&fetcher, "all have left", |counts| counts.failed as usize + pool.len() == 60)
            .await;
    let reconnects = fetcher.status()[0].reconnects;
    assert!((1..=3 * counts.failed).contains(&reconnects), "{reconnects}, {counts:?}");
}
