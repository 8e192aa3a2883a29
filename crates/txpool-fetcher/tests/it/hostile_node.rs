//! Nodes of a few lines whose answers hurt, and sinks that do: only the transaction that is hit is
//! lost.

use std::{
    collections::HashMap,
    io::Write as _,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, hex};
use load_control::Backoff;
use mock_node::workload::{Workload, WorkloadConfig};
use serde_json::{Value, json};
use testkit::ingest::{eventually, settled, socket};
use txpool_fetcher::{
    AuditMode, Backfill, Delivery, FetchedTransaction, Fetcher, FetcherConfig, GapReason, Limits,
    LossReason, SnapshotError, SourceError, SourceState, TransactionSink,
};

use super::{peer, start_with};

const CHAIN_ID: u64 = 1337;

/// What a node does when a transaction is requested.
#[derive(Clone, Debug)]
enum Reply {
    Raw(String),
    /// More bytes than a value may have.
    Oversized,
    /// The connection is closed.
    Close,
    /// Bytes that are not JSON.
    Garbage,
    /// This `error`, for so long from the first request on; then the transaction.
    BusyFor(Duration, Value, String),
}

/// What a node does when its pool is to be listed.
#[derive(Clone, Copy, Debug)]
enum Listing {
    /// An error response with this code.
    Refused(i64),
    /// No response.
    Silent,
    /// The same few hashes each time.
    Steady,
    /// One more hash each time.
    Growing,
    /// The transactions that it has.
    All,
}

/// A node without a chain.
#[derive(Clone)]
struct FakeNode {
    path: PathBuf,
    replies: Arc<HashMap<B256, Reply>>,
    requests: Arc<Mutex<HashMap<B256, usize>>>,
    first_request: Arc<Mutex<Option<Instant>>>,
    subscribers: Arc<Mutex<Vec<UnixStream>>>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
    listing: Arc<Mutex<Listing>>,
    listed: Arc<AtomicUsize>,
}

impl FakeNode {
    fn start(path: &Path, replies: impl IntoIterator<Item = (B256, Reply)>) -> Self {
        let node = Self {
            path: path.to_owned(),
            replies: Arc::new(replies.into_iter().collect()),
            requests: Arc::default(),
            first_request: Arc::default(),
            subscribers: Arc::default(),
            connections: Arc::default(),
            listing: Arc::new(Mutex::new(Listing::Steady)),
            listed: Arc::default(),
        };
        let served = node.clone();
        peer::serve(path, move |stream| served.serve(&stream));
        node
    }

    fn config(&self) -> FetcherConfig {
        FetcherConfig {
            backfill: Backfill::Off,
            audit_interval: None,
            request_connections: 1,
            ..FetcherConfig::ipc(&self.path)
        }
    }

    fn announce(&self, hash: B256) {
        self.notify("0x1", &json!(hash));
    }

    fn announce_head(&self, number: u64) {
        let hash = |number: u64| B256::left_padding_from(&number.to_be_bytes());
        let head = json!({
            "number": format!("{number:#x}"), "hash": hash(number), "parentHash": hash(number - 1),
            "timestamp": "0x1", "gasUsed": "0x0", "gasLimit": "0x1c9c380",
        });
        self.notify("0x2", &head);
    }

    fn notify(&self, subscription: &str, result: &Value) {
        for subscriber in self.subscribers.lock().unwrap().iter() {
            peer::notify(subscriber, subscription, result);
        }
    }

    /// Announces so many hashes that the rate of announcements is high, then heads alone for a while.
    async fn fall_silent(&self) {
        for n in 0..2_000_u64 {
            self.announce(B256::right_padding_from(&n.to_be_bytes()));
        }
        for number in 10..30 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.announce_head(number);
        }
    }

    fn list(&self) -> Option<Value> {
        let listed = self.listed.fetch_add(1, Relaxed) as u64;
        let hash = |n: u64| B256::left_padding_from(&n.to_be_bytes());
        let hashes: Vec<B256> = match *self.listing.lock().unwrap() {
            Listing::Refused(code) => return Some(error(code)),
            Listing::Silent => return None,
            Listing::Steady => (1..=3).map(hash).collect(),
            Listing::Growing => (1..=3 + listed).map(hash).collect(),
            Listing::All => self.replies.keys().copied().collect(),
        };
        let pending: serde_json::Map<_, _> = hashes
            .iter()
            .map(|hash| (hash.to_string(), json!({ "0": { "hash": hash } })))
            .collect();
        Some(json!({ "result": { "pending": pending, "queued": {} } }))
    }

    fn requests(&self, hash: &B256) -> usize {
        self.requests.lock().unwrap().get(hash).copied().unwrap_or(0)
    }

    /// The response to a request for a transaction.
    fn raw(&self, hash: B256) -> Option<Value> {
        *self.requests.lock().unwrap().entry(hash).or_default() += 1;
        let raw = match self.replies.get(&hash) {
            Some(Reply::Raw(raw)) => raw.clone(),
            Some(Reply::Oversized) => format!("0x{}", "00".repeat(2 << 20)),
            Some(Reply::Close) => return None,
            Some(Reply::Garbage) => return Some(Value::Null),
            Some(Reply::BusyFor(time, busy, raw)) => {
                let first = *self.first_request.lock().unwrap().get_or_insert_with(Instant::now);
                if first.elapsed() < *time {
                    return Some(json!({ "error": busy }));
                }
                raw.clone()
            }
            None => return Some(json!({ "result": null })),
        };
        Some(json!({ "result": raw }))
    }

    fn serve(&self, stream: &UnixStream) {
        self.connections.lock().unwrap().push(stream.try_clone().unwrap());
        for request in peer::requests(stream) {
            let first = &request["params"][0];
            let response = match request["method"].as_str().unwrap() {
                "eth_chainId" => json!({ "result": format!("{CHAIN_ID:#x}") }),
                "web3_clientVersion" => json!({ "result": "fake" }),
                "eth_blockNumber" => json!({ "result": "0x1" }),
                "eth_subscribe" if first == "newPendingTransactions" => json!({ "result": "0x1" }),
                "eth_subscribe" => json!({ "result": "0x2" }),
                "eth_getRawTransactionByHash" => {
                    match self.raw(first.as_str().unwrap().parse().unwrap()) {
                        Some(Value::Null) => {
                            (&mut &*stream).write_all(b"upstream failed\n").unwrap();
                            continue;
                        }
                        Some(response) => response,
                        None => return stream.shutdown(std::net::Shutdown::Both).unwrap(),
                    }
                }
                "txpool_content" => match self.list() {
                    Some(response) => response,
                    None => continue,
                },
                _ => json!({ "result": null }),
            };
            peer::respond(stream, &request, response);
            if first == "newHeads" {
                self.subscribers.lock().unwrap().push(stream.try_clone().unwrap());
            }
        }
    }
}

fn error(code: i64) -> Value {
    json!({ "error": { "code": code, "message": "no" } })
}

fn transaction(nonce: u64) -> (B256, Reply) {
    let config = WorkloadConfig { accounts: 1, ..WorkloadConfig::new(5, CHAIN_ID) };
    let tx = Workload::new(config).prepare(10).swap_remove(nonce as usize);
    (tx.hash, Reply::Raw(hex::encode_prefixed(&tx.raw)))
}

/// Never returns for nonce 1, takes the rest.
#[derive(Clone, Copy)]
struct HostileSink;

impl TransactionSink for HostileSink {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        use alloy_consensus::Transaction as _;
        match tx.tx.inner().nonce() {
            1 => loop {
                thread::park();
            },
            _ => Delivery::Pooled,
        }
    }
}

/// Short frames, and short pauses.
fn limits() -> Limits {
    let short = Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(10) };
    let max_frame_bytes = 1 << 20;
    Limits { max_frame_bytes, retry_backoff: short, reconnect: short, ..Limits::default() }
}

async fn live(config: FetcherConfig) -> Fetcher {
    start_with(config, limits(), HostileSink).await
}

/// The comparison after each reconnect requested it again, so the connections were lost for ever, and
/// with them what else was requested.
#[tokio::test]
async fn a_listed_transaction_whose_response_ends_the_connection_costs_one_reconnect() {
    for reply in [Reply::Close, Reply::Garbage, Reply::Oversized] {
        let (_folder, path) = socket();
        let poison = B256::repeat_byte(8);
        let good: Vec<_> = (2..10).map(transaction).collect();
        let node = FakeNode::start(&path, good.iter().cloned().chain([(poison, reply.clone())]));
        *node.listing.lock().unwrap() = Listing::All;
        let config =
            FetcherConfig { backfill: Backfill::Pending, request_connections: 2, ..node.config() };
        let fetcher = live(config).await;
        settled(&fetcher, "the good ones are pooled", |counts| counts.pooled == 8).await;
        let counts = fetcher.counts();
        assert_eq!((counts.refused, counts.failed), (1, 0), "{reply:?}: {counts:?}");
        // Once with others in flight, and three times over a connection of its own.
        assert_eq!((fetcher.status()[0].reconnects, node.requests(&poison)), (1, 4));
        // Neither a comparison nor an announcement requests it again soon.
        let report = super::recover(&fetcher).await;
        assert_eq!((report.refused, report.missing), (1, 0), "{report:?}");
        node.announce(poison);
        settled(&fetcher, "it is known", |counts| counts.announced == 1).await;
        assert_eq!((fetcher.counts().known, node.requests(&poison)), (1, 4));
        for (hash, _) in good {
            assert!(node.requests(&hash) <= 2, "no other was lost twice");
        }
        assert_eq!((fetcher.status()[0].reconnects, fetcher.is_live()), (1, true));
    }
}

/// The comparison waited for slots whose fetches waited for the node: ten minutes later it still did.
#[tokio::test]
async fn an_audit_ends_when_its_node_goes_away_or_takes_too_long_and_so_does_a_stop() {
    for is_gone in [false, true] {
        let (_folder, path) = socket();
        // Never returned by the sink: the comparison cannot be complete.
        let node = FakeNode::start(&path, [transaction(1)]);
        let short = Duration::from_millis(300);
        let limits = if is_gone {
            Limits { call_timeout: short, ..limits() }
        } else {
            Limits { audit_timeout: short, ..limits() }
        };
        let fetcher = start_with(node.config(), limits, HostileSink).await;
        *node.listing.lock().unwrap() = Listing::All;
        let audit = fetcher.audit(0, AuditMode::Recover);
        let goes_away = async {
            eventually("it is requested", || fetcher.counts().unfinished == 1).await;
            if is_gone {
                std::fs::remove_file(&path).unwrap();
                node.connections.lock().unwrap().drain(..).for_each(peer::close);
            }
        };
        let (audited, ()) = tokio::join!(audit, goes_away);
        let error = audited.expect_err("it cannot be complete");
        match is_gone {
            true => assert!(matches!(error, SnapshotError::ConnectionLost), "{error}"),
            false => assert!(matches!(error, SnapshotError::Unfinished(_)), "{error}"),
        }
        let (start, deadline) = (Instant::now(), Duration::from_secs(3));
        let counts = fetcher.shutdown(deadline).await.counts;
        assert!(start.elapsed() < deadline * 19 / 10, "{:?}", start.elapsed());
        assert_eq!(counts.balance(), 0);
    }
}

/// A node that restarts loses no transaction, however often one was in flight with the connection.
#[tokio::test]
async fn what_was_in_flight_when_a_node_went_away_is_requested_alone_once_and_then_as_before() {
    let (_folder, path) = socket();
    let (poison, good) = (B256::repeat_byte(8), transaction(3));
    let node = FakeNode::start(&path, [(poison, Reply::Close), good.clone()]);
    let fetcher = live(node.config()).await;
    node.announce(poison);
    settled(&fetcher, "it is refused", |counts| counts.refused == 1).await;
    eventually("the source is live again", || fetcher.is_live()).await;
    node.announce(good.0);
    settled(&fetcher, "the next one is pooled", |counts| counts.pooled == 1).await;
    assert_eq!((node.requests(&good.0), fetcher.status()[0].reconnects), (1, 1));
}

/// Gateways say it in forms of their own: as a text alone, or with a code that is a text or missing.
#[tokio::test]
async fn a_node_that_is_busy_for_a_fifth_of_a_second_loses_nothing_however_it_says_so() {
    for busy in [
        json!({ "code": -32005, "message": "no" }),
        json!({ "code": "-32005", "message": "no" }),
        json!({ "code": "overloaded" }),
        json!({ "message": "no" }),
        json!("busy"),
    ] {
        let (_folder, path) = socket();
        let (hash, reply) = transaction(3);
        let Reply::Raw(raw) = reply else { unreachable!("a transaction") };
        let reply = Reply::BusyFor(Duration::from_millis(200), busy.clone(), raw);
        let node = FakeNode::start(&path, [(hash, reply)]);
        let limits = Limits { retry_backoff: Limits::default().retry_backoff, ..limits() };
        let fetcher = start_with(node.config(), limits, HostileSink).await;
        node.announce(hash);
        settled(&fetcher, "it has left", |counts| counts.announced == 1).await;
        let counts = fetcher.counts();
        assert_eq!((counts.pooled, counts.malformed, counts.failed), (1, 0, 0), "{busy}");
        assert!(fetcher.status()[0].fetch_limit < 64, "{busy} is a sign of overload");
    }
}

#[tokio::test]
async fn a_sink_that_never_returns_neither_times_others_out_nor_outlasts_the_deadline() {
    let (_folder, path) = socket();
    let (stuck, waits) = (transaction(1), transaction(5));
    let node = FakeNode::start(&path, [stuck.clone(), waits.clone()]);
    let limits = Limits {
        fetch_timeout: Duration::from_millis(50),
        ping_interval: Duration::from_millis(50),
        ping_timeout: Duration::from_millis(200),
        ..limits()
    };
    let fetcher = start_with(node.config(), limits, HostileSink).await;
    node.announce(stuck.0);
    eventually("it is requested", || node.requests(&stuck.0) == 1).await;
    node.announce(waits.0);
    eventually("so is the other one", || node.requests(&waits.0) == 1).await;
    // Many time-outs of fetches and pings, if they ran.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((node.requests(&stuck.0), node.requests(&waits.0)), (1, 1));
    assert_eq!((fetcher.counts().failed, fetcher.status()[0].reconnects), (0, 0));
    let (start, deadline) = (Instant::now(), Duration::from_secs(3));
    let counts = fetcher.shutdown(deadline).await.counts;
    // Twice the deadline would be one for each of two waits.
    assert!(start.elapsed() < deadline * 19 / 10, "{:?}", start.elapsed());
    assert_eq!((counts.unfinished, counts.balance()), (2, 0));
}

/// Announcements stay in our buffer while the sink blocks. They were read from the socket all the same.
#[tokio::test]
async fn our_own_back_pressure_is_not_taken_for_a_dead_subscription() {
    let (_folder, path) = socket();
    let stuck = transaction(1);
    let node = FakeNode::start(&path, [stuck.clone()]);
    *node.listing.lock().unwrap() = Listing::Growing;
    let mut config = node.config();
    config.fetch_slots = 1024;
    let fetcher = live(config).await;
    node.announce(stuck.0);
    eventually("it is requested", || node.requests(&stuck.0) == 1).await;
    for n in 0..2_000_u64 {
        node.announce(B256::right_padding_from(&n.to_be_bytes()));
    }
    for number in 10..24 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        node.announce_head(number);
        node.announce(B256::right_padding_from(&(10_000 + number).to_be_bytes()));
    }
    let status = fetcher.status().remove(0);
    assert_eq!((status.reconnects, status.state), (0, SourceState::Live), "{status:?}");
    assert!(status.backlog > 900, "{}", status.backlog);
    assert_eq!(node.listed.load(Relaxed), 0);
}

#[tokio::test]
async fn a_load_that_ends_costs_two_lists_of_the_pool_and_no_connection() {
    let (_folder, path) = socket();
    let node = FakeNode::start(&path, []);
    let fetcher = live(node.config()).await;
    node.fall_silent().await;
    eventually("the silence was looked into", || {
        let gaps = fetcher.status().remove(0).gaps;
        gaps.iter().any(|gap| gap.reason == GapReason::Silence && gap.to.is_some())
    })
    .await;
    let status = fetcher.status().remove(0);
    assert_eq!((status.reconnects, status.state), (0, SourceState::Live), "{status:?}");
    assert_eq!(node.listed.load(Relaxed), 2);
}

#[tokio::test]
async fn a_subscription_whose_node_lists_what_it_does_not_announce_is_dead() {
    let (_folder, path) = socket();
    let node = FakeNode::start(&path, []);
    *node.listing.lock().unwrap() = Listing::Growing;
    let fetcher = live(node.config()).await;
    node.fall_silent().await;
    eventually("it is replaced", || fetcher.status()[0].reconnects == 1).await;
    eventually("the source is live again", || fetcher.is_live()).await;
    let error = fetcher.status().remove(0).last_error.expect("why it was lost");
    assert!(
        matches!(*error, SourceError::Lost(LossReason::NoHashes { unannounced: 1 })),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_without_the_namespace_is_live_and_not_audited_and_is_asked_once() {
    let (_folder, path) = socket();
    let node = FakeNode::start(&path, [transaction(2)]);
    *node.listing.lock().unwrap() = Listing::Refused(-32601);
    let fetcher = live(FetcherConfig { backfill: Backfill::Pending, ..node.config() }).await;
    eventually("it is found out", || !fetcher.status()[0].audited).await;
    assert!(!fetcher.audited()());
    // Before, one list a second, for ever.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((node.listed.load(Relaxed), fetcher.is_live()), (1, true));
}

#[tokio::test]
async fn a_node_whose_lists_time_out_is_live_after_three_and_audited_once_one_is_complete() {
    let (_folder, path) = socket();
    let node = FakeNode::start(&path, []);
    *node.listing.lock().unwrap() = Listing::Silent;
    let config = FetcherConfig {
        backfill: Backfill::Pending,
        audit_interval: Some(Duration::from_secs(2)),
        ..node.config()
    };
    let limits = Limits { snapshot_timeout: Duration::from_millis(50), ..limits() };
    let fetcher = start_with(config, limits, HostileSink).await;
    let status = fetcher.status().remove(0);
    assert!(!status.audited && node.listed.load(Relaxed) >= 3, "{status:?}");
    *node.listing.lock().unwrap() = Listing::Steady;
    eventually("an audit lists it", || fetcher.status()[0].audited).await;
}
