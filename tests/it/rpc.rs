//! Searchers' orders over HTTP into a running [`Ingest`].

use std::net::{Ipv4Addr, SocketAddr};

use mempool_ingest::IngestError;
use mock_node::MockNode;
use order_pool::{Event, Order, Origin, Subscription};
use testkit::http::{Answer, Connection};
use tokio::net::TcpStream;
use txpool_fetcher::{EndReason, StartPolicy};

use super::*;

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

fn config(fetcher: FetcherConfig) -> IngestConfig {
    let mut config = IngestConfig::new(fetcher, PoolConfig::default());
    config.rpc = Some(OrderRpcConfig::new(DEV_CHAIN_ID));
    config
}

pub(crate) fn address(ingest: &Ingest) -> SocketAddr {
    ingest.rpc().expect("the RPC server").local_addr()
}

/// Sends one request on a connection of its own.
async fn request(server: SocketAddr, request: &[u8]) -> Answer {
    let connection = Connection::open(Ipv4Addr::LOCALHOST, server).await;
    connection.expect("a connection").request(request).await.expect("a response")
}

pub(crate) async fn call(server: SocketAddr, method: &str, params: Value) -> Value {
    request_json(server, &http::call(method, &params, None)).await
}

/// Sends one request, and returns the response as JSON.
pub(crate) async fn request_json(server: SocketAddr, body: &[u8]) -> Value {
    let response = request(server, body).await.body;
    serde_json::from_str(&response).unwrap_or_else(|_| panic!("no JSON: {response}"))
}

async fn readiness(server: SocketAddr) -> u16 {
    request(server, &http::request("/readyz", "", None)).await.status
}

/// Signs a transaction with the account of this number, and returns its hash and bytes.
fn transaction(account: u64) -> (B256, String) {
    let (hash, raw) = signed(&Account::from_entropy(7, account), |_| {});
    (hash, hex::encode_prefixed(raw))
}

/// Returns the next order, and skips heads.
fn next_added(orders: &mut Subscription) -> std::sync::Arc<Order> {
    loop {
        match orders.next_timeout(PATIENCE).expect("an event").expect("no lag") {
            Event::Head(_) => {}
            Event::Added(order) => return order,
            other => panic!("not added: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_subscriber_sees_announced_and_sent_transactions() {
    let node = Node::start(1, |config| config);
    let ingest = Ingest::start(config(node.fetcher())).await.expect("all parts start");
    let server = address(&ingest);
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    let mut orders = ingest.pool().subscribe_all();

    node.submit_all();
    let announced = next_added(&mut orders);
    let announced = announced.as_tx().expect("a transaction");
    assert_eq!((announced.hash(), announced.origin()), (&node.txs[0].hash, Origin::Mempool));

    let (hash, raw) = transaction(0);
    let sent = call(server, "eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(sent["result"], json!(hash), "{sent}");
    let order = next_added(&mut orders);
    let tx = order.as_tx().expect("a transaction");
    assert_eq!((tx.hash(), tx.origin()), (&hash, Origin::Rpc));

    let ended = ingest.shutdown(DEADLINE).await;
    assert_eq!(ended.reason, EndReason::Stopped);
    assert!(ended.ended && ended.rpc.is_some_and(|rpc| rpc.unanswered == 0), "{ended:?}");
    assert_eq!(ended.counts.balance(), 0);
    assert!(TcpStream::connect(server).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn the_rpc_server_is_ready_only_while_the_source_is_live() {
    let (_folder, path) = socket();
    let mut fetcher = FetcherConfig::ipc(path.clone());
    fetcher.start = StartPolicy::WaitForNode;
    let mut ingest = Ingest::start(config(fetcher)).await.expect("it waits for the node");
    let server = address(&ingest);
    assert_eq!(readiness(server).await, 503);
    // Before it is ready, the server accepts orders, which wait in the pool for the node.
    let sent = call(server, "eth_sendRawTransaction", json!([transaction(0).1])).await;
    assert!(sent["result"].is_string(), "{sent}");
    let second = ingest.start_rpc(OrderRpcConfig::new(DEV_CHAIN_ID));
    assert!(matches!(second, Err(IngestError::SecondRpc { address }) if address == server));

    let node = MockNode::start(NodeConfig::new(path)).expect("the mock node starts");
    let deadline = Instant::now() + PATIENCE;
    while readiness(server).await != 200 {
        assert!(Instant::now() < deadline, "not ready: {:?}", ingest.fetcher().status());
    }
    assert!(ingest.fetcher().is_live());
    drop(node);
    while readiness(server).await != 503 {
        assert!(Instant::now() < deadline, "ready without a node");
    }
    ingest.shutdown(DEADLINE).await;
}
