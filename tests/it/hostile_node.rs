//! Nodes of a few lines whose answers hurt, and sinks that do: only the transaction that is hit is
//! lost.

use std::{
    collections::HashMap,
    io::Write as _,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, TxKind, hex};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use mempool_ingest::{
    Fetcher, FetcherConfig,
    txpool_fetcher::{
        Backfill, Backoff, Delivery, FetchedTransaction, PooledTransaction, TransactionSink,
    },
};
use serde_json::{Value, json};
use testkit::ingest::{eventually, socket};

const CHAIN_ID: u64 = 1337;

/// What a node does when a transaction is requested.
#[derive(Clone, Debug)]
enum Reply {
    Raw(String),
    /// More bytes than a value may have.
    Oversized,
    /// The connection is closed.
    Close,
}

/// A node without a chain and a pool.
#[derive(Clone)]
struct FakeNode {
    path: PathBuf,
    replies: Arc<HashMap<B256, Reply>>,
    requests: Arc<Mutex<HashMap<B256, usize>>>,
    subscribers: Arc<Mutex<Vec<UnixStream>>>,
}

impl FakeNode {
    fn start(path: &Path, replies: impl IntoIterator<Item = (B256, Reply)>) -> Self {
        let node = Self {
            path: path.to_owned(),
            replies: Arc::new(replies.into_iter().collect()),
            requests: Arc::default(),
            subscribers: Arc::default(),
        };
        let listener = UnixListener::bind(path).expect("a fresh path");
        let accepts = node.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let node = accepts.clone();
                thread::spawn(move || node.serve(stream));
            }
        });
        node
    }

    fn config(&self) -> FetcherConfig {
        let mut config = FetcherConfig::ipc(&self.path)
            .with_backfill(Backfill::Off)
            .with_audit_interval(None)
            .with_request_connections(1);
        config.max_frame_bytes = 1 << 20;
        config.retry_backoff =
            Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(10) };
        config.reconnect =
            Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(10) };
        config
    }

    fn announce(&self, hash: B256) {
        let text = json!({
            "jsonrpc": "2.0", "method": "eth_subscription",
            "params": { "subscription": "0x1", "result": hash },
        });
        for subscriber in self.subscribers.lock().unwrap().iter_mut() {
            // A fetcher that has stopped has closed it.
            let _ = subscriber.write_all(text.to_string().as_bytes());
        }
    }

    fn requests(&self, hash: &B256) -> usize {
        self.requests.lock().unwrap().get(hash).copied().unwrap_or(0)
    }

    fn serve(&self, mut stream: UnixStream) {
        let reader = stream.try_clone().unwrap();
        let values = serde_json::Deserializer::from_reader(reader).into_iter::<Value>();
        for request in values.map_while(Result::ok) {
            let first = &request["params"][0];
            let result = match request["method"].as_str().unwrap() {
                "eth_chainId" => json!(format!("{CHAIN_ID:#x}")),
                "web3_clientVersion" => json!("fake"),
                "eth_blockNumber" => json!("0x1"),
                "eth_subscribe" if first == "newPendingTransactions" => json!("0x1"),
                "eth_subscribe" => json!("0x2"),
                "eth_getRawTransactionByHash" => {
                    let hash: B256 = first.as_str().unwrap().parse().unwrap();
                    *self.requests.lock().unwrap().entry(hash).or_default() += 1;
                    match self.replies.get(&hash) {
                        Some(Reply::Raw(raw)) => json!(raw),
                        Some(Reply::Oversized) => json!(format!("0x{}", "00".repeat(2 << 20))),
                        Some(Reply::Close) => {
                            let _ = stream.shutdown(std::net::Shutdown::Both);
                            return;
                        }
                        None => Value::Null,
                    }
                }
                _ => Value::Null,
            };
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
            if stream.write_all(answer.to_string().as_bytes()).is_err() {
                return;
            }
            if first == "newHeads" {
                self.subscribers.lock().unwrap().push(stream.try_clone().unwrap());
            }
        }
    }
}

fn transaction(nonce: u64) -> (B256, Reply) {
    let tx = TxEip1559 {
        chain_id: CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..TxEip1559::default()
    };
    let signature =
        PrivateKeySigner::random().sign_hash_sync(&tx.signature_hash()).expect("a key signs");
    let tx = PooledTransaction::from(tx.into_signed(signature));
    (*tx.tx_hash(), Reply::Raw(hex::encode_prefixed(tx.encoded_2718())))
}

/// Panics for nonce 0, never returns for nonce 1, takes the rest.
#[derive(Clone, Copy)]
struct HostileSink;

impl TransactionSink for HostileSink {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        use alloy_consensus::Transaction as _;
        match tx.tx.inner().nonce() {
            0 => panic!("a test panics here"),
            1 => loop {
                thread::park();
            },
            _ => Delivery::Pooled,
        }
    }
}

async fn live(config: FetcherConfig) -> Fetcher {
    let fetcher = Fetcher::start(config, HostileSink).await.expect("it starts");
    eventually("the source is live", || fetcher.is_live()).await;
    fetcher
}

#[tokio::test]
async fn an_answer_above_the_limit_is_requested_once_and_costs_no_connection() {
    let (_folder, path) = socket();
    let (large, small) = (B256::repeat_byte(7), transaction(2));
    let node = FakeNode::start(&path, [(large, Reply::Oversized), small.clone()]);
    let fetcher = live(node.config()).await;
    node.announce(large);
    node.announce(small.0);
    eventually("both have left", || {
        fetcher.counts().unfinished == 0 && fetcher.counts().announced == 2
    })
    .await;
    let counts = fetcher.counts();
    assert_eq!((counts.malformed, counts.pooled), (1, 1), "{counts:?}");
    assert_eq!((node.requests(&large), fetcher.status()[0].reconnects), (1, 0));
}

#[tokio::test]
async fn a_request_that_ends_its_connection_each_time_is_given_up() {
    let (_folder, path) = socket();
    let (poison, good) = (B256::repeat_byte(8), transaction(3));
    let node = FakeNode::start(&path, [(poison, Reply::Close), good.clone()]);
    let fetcher = live(node.config()).await;
    node.announce(poison);
    eventually("it has failed", || fetcher.counts().failed == 1).await;
    // Three losses that do not count, one that does, and three retries.
    assert_eq!(node.requests(&poison), 7);
    eventually("the source is live again", || fetcher.is_live()).await;
    node.announce(good.0);
    eventually("the next one is pooled", || fetcher.counts().pooled == 1).await;
    assert_eq!(fetcher.counts().balance(), 0);
}

#[tokio::test]
async fn a_sink_that_panics_loses_the_transaction_that_it_was_given() {
    let (_folder, path) = socket();
    let (bad, good) = (transaction(0), transaction(4));
    let node = FakeNode::start(&path, [bad.clone(), good.clone()]);
    let fetcher = live(node.config()).await;
    node.announce(bad.0);
    node.announce(good.0);
    eventually("both have left", || fetcher.counts().pooled == 1 && fetcher.counts().failed == 1)
        .await;
    assert_eq!(fetcher.status()[0].reconnects, 0);
    assert_eq!(fetcher.counts().balance(), 0);
}

#[tokio::test]
async fn a_sink_that_never_returns_neither_times_others_out_nor_outlasts_the_deadline() {
    let (_folder, path) = socket();
    let (stuck, waits) = (transaction(1), transaction(5));
    let node = FakeNode::start(&path, [stuck.clone(), waits.clone()]);
    let mut config = node.config();
    config.fetch_timeout = Duration::from_millis(50);
    config.ping_interval = Duration::from_millis(50);
    config.ping_timeout = Duration::from_millis(200);
    let fetcher = live(config).await;
    node.announce(stuck.0);
    eventually("it is requested", || node.requests(&stuck.0) == 1).await;
    node.announce(waits.0);
    eventually("so is the other one", || node.requests(&waits.0) == 1).await;
    // Many time-outs of fetches and pings, if they ran.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((node.requests(&stuck.0), node.requests(&waits.0)), (1, 1));
    assert_eq!((fetcher.counts().failed, fetcher.status()[0].reconnects), (0, 0));
    let (start, deadline) = (Instant::now(), Duration::from_secs(1));
    let (_, counts) = fetcher.shutdown(deadline).await;
    // Twice the deadline would be one for each of two waits.
    assert!(start.elapsed() < deadline * 19 / 10, "{:?}", start.elapsed());
    assert_eq!((counts.unfinished, counts.balance()), (2, 0));
}
