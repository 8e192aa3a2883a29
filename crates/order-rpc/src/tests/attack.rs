//! Overload of each kind: the documented refusal, other callers served, nothing left behind.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use futures::future::BoxFuture;
use load_control::Refusal;
use tokio::sync::Barrier;

use super::*;

#[tokio::test]
async fn silent_connections_and_heads_that_never_end_are_closed() {
    let server = limited(|limits| limits.header_timeout = Duration::from_millis(100));
    let mut silent = server.client(ONE).connect().await;
    let mut slow = server.client(ONE).connect().await;
    // The server may have closed it before; a reset is an end too.
    let _ = slow.write_all(b"POST / HTTP/1.1\r\nhost: ").await;
    for socket in [&mut silent, &mut slow] {
        wait_until_closed(socket).await;
    }
}

/// nginx keeps idle connections to its servers for 60 s, reqwest and Go for 90 s. When the server
/// closed them first, after 30 s, the request that was sent meanwhile was lost.
#[tokio::test]
async fn idle_connections_outlive_clients_and_the_header_timeout() {
    assert!(Limits::new(config()).idle_timeout > Duration::from_secs(90));
    let server = limited(|limits| limits.header_timeout = Duration::from_millis(500));
    let client = server.client(ONE);
    let mut idle = client.connect_idle().await.expect("served");
    // The header timeout closes a connection whose head began after the other became idle.
    let mut slow = client.connect().await;
    let _ = slow.write_all(b"POST / HTTP/1.1\r\nhost: ").await;
    wait_until_closed(&mut slow).await;
    let answer = exchange(&mut idle, client.head("GET", "/healthz", 0)).await;
    assert_eq!(answer.expect("still open").status, 200);
    // The header timeout applies to the next head of an idle connection too.
    idle.write_all(b"POST / HTTP/1.1\r\nhost: ").await.unwrap();
    wait_until_closed(&mut idle).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_idle_timeout() {
    let server = limited(|limits| limits.idle_timeout = Duration::from_millis(100));
    let mut idle = server.client(ONE).connect_idle().await.expect("served");
    wait_until_closed(&mut idle).await;
}

/// With the default capacity of the queue, which is far more than the gate admits.
#[tokio::test]
async fn deferred_transactions_leave_half_of_the_gate_to_urgent_calls() {
    let known = PrivateKeySigner::random();
    let (server, queue) = start_pressed(4, |limits| {
        limits.config.known_signers = vec![known.address()];
    });
    let wait = || tokio::spawn(server.client(ONE).send(transaction()));
    let waits = || server.rpc.deferral_stats().waiting;
    let mut waiting = vec![wait()];
    wait_until("one transaction is deferred", || waits() == 1).await;
    // Each element that waited would keep the places of both.
    let batch = batch(&[0; 2].map(|_| ("eth_sendRawTransaction", json!(raw(0)))));
    assert_eq!(server.send(&batch).await.reasons(), [Some("deferred_full"); 2]);
    waiting.push(wait());
    wait_until("two transactions are deferred", || waits() == 2).await;
    // However many more arrive.
    for _ in 0..4 {
        assert_eq!(server.send(transaction()).await.error(), refused(503, "deferred_full"));
    }
    server.call("eth_sendBundle", json!([{ "txs": [raw(1)] }])).await.result();
    // Transactions of known signers were in one queue with those of strangers, who could fill it.
    server.signed(&known).send(transaction()).await.result();
    server.signed(&PrivateKeySigner::random()).send(cancellation()).await.result();
    assert_eq!(server.gate.stats().requests_in_flight, 2);
    assert_eq!(server.counted.reason("deferred_full"), 6);
    // A client that disconnects leaves its place to the next.
    waiting.pop().unwrap().abort();
    wait_until("the client has left the queue", || server.held()[..3] == [1, 0, 1]).await;
    waiting.push(wait());
    wait_until("the next transaction is deferred", || waits() == 2).await;

    queue.removed(1);
    for answer in join_all(waiting).await {
        answer.unwrap().result();
    }
    let stats = server.rpc.deferral_stats();
    assert_eq!((stats.deferred, stats.aged, stats.waiting), (3, 0, 0));
    assert_eq!(server.send(&batch).await.reasons(), [None, None]);
}

/// Two addresses took the whole queue, because a caller had no share of it.
#[tokio::test]
async fn a_caller_that_fills_the_deferral_queue_leaves_places_to_others() {
    let (server, queue) = start_pressed(64, |_| {});
    let waits = || server.rpc.deferral_stats().waiting;
    let mut first = Vec::new();
    for count in 1..=32 {
        first.push(tokio::spawn(server.client(ONE).send(transaction())));
        wait_until("one more is deferred", || waits() == count).await;
    }
    let full = refused(503, "deferred_full");
    assert_eq!(server.send(transaction()).await.error(), full, "nobody has more than this caller");
    let other = tokio::spawn(server.client(OTHER).send(transaction()));
    let is_decided = || other.is_finished() || first.iter().any(|sent| sent.is_finished());
    wait_until("a place is given up", is_decided).await;
    assert!(!other.is_finished(), "the other caller is deferred");
    let newest = first.pop().unwrap().await.unwrap();
    assert_eq!(newest.error(), full, "the newest of the caller with the most");
    assert_eq!((waits(), server.counted.reason("deferred_full")), (32, 2));
    // A batch displaces nothing if it would have more than those that remain.
    let batch = batch(&[0; 16].map(|_| ("eth_sendRawTransaction", json!(raw(0)))));
    assert_eq!(server.client(OTHER).send(batch).await.reasons(), [Some("deferred_full"); 16]);
    assert_eq!(waits(), 32);
    queue.removed(1);
    for answer in join_all(first.into_iter().chain([other])).await {
        answer.unwrap().result();
    }
}

#[tokio::test]
async fn a_deferred_transaction_runs_at_its_maximum_age_whatever_the_load() {
    let soon = |limits: &mut Limits| limits.max_deferral = Duration::from_millis(50);
    let (server, _queue) = start_pressed(64, soon);
    server.send(transaction()).await.result();
    assert_eq!(server.rpc.deferral_stats().aged, 1);
}

/// The whole batch was answered as refused, although the bundle in it was pooled.
#[tokio::test]
async fn calls_of_a_batch_that_ran_keep_their_results_when_others_are_refused() {
    let (server, _queue) = start_pressed(64, |limits| limits.max_deferred = 1);
    let calls =
        [("eth_sendRawTransaction", json!(raw(0))), ("eth_sendBundle", json!({ "txs": [raw(1)] }))];
    assert_eq!(server.send(batch(&calls)).await.reasons(), [Some("deferred_full"), None]);
    assert_eq!(server.pool.len(), 1);
}

fn long_bundle() -> (&'static str, Value) {
    ("eth_sendBundle", json!({ "txs": (0..80).map(raw).collect::<Vec<_>>(), "blockNumber": 5 }))
}

/// A batch of a hundred bundles of a hundred transactions kept the permit for half a second.
#[tokio::test]
async fn a_batch_returns_its_permit_to_others_between_its_elements() {
    let server = start(config());
    let held = server.hold_permits();
    let short = request("eth_sendBundle", json!([{ "txs": [raw(0)], "blockNumber": 5 }]));
    let bodies = [batch(&[long_bundle(), long_bundle(), long_bundle()]), short];
    let mut sent = Vec::new();
    for (body, count) in bodies.into_iter().zip(1..) {
        sent.push(tokio::spawn(server.client(ONE).send(body)));
        wait_until("the request waits", || server.gate.stats().work_waited == count).await;
    }
    drop(held);
    for answer in join_all(sent).await {
        assert_eq!(answer.unwrap().status, 200);
    }
    let pooled = bundles(server.pool.subscribe_all());
    let pooled: Vec<_> = pooled.iter().map(|bundle| bundle.txs().len()).collect();
    assert_eq!(pooled, [80, 1, 80, 80]);
}

/// Another caller that waits for the permit, and keeps it once it is free; `None`: there is none
/// yet.
type Others = Arc<Mutex<Option<Vec<BoxFuture<'static, Result<WorkPermit, Refusal>>>>>>;

/// Starts a server where another caller takes the permit while a request is verified.
fn start_contended(setup: Setup, others: &Others) -> Server {
    let others = Arc::clone(others);
    let contend = |host: Host| {
        let gate = host.gate.clone();
        host.with_known_signers(move |_| {
            let gate = gate.clone();
            let other = async move { gate.acquire_external(Priority::Known, Instant::now()).await };
            let (mut other, mut others) = (other.boxed(), others.lock().unwrap());
            if let Some(others) = others.as_mut().filter(|others| others.is_empty())
                && (&mut other).now_or_never().is_none()
            {
                others.push(other);
            }
            false
        })
    };
    setup.start(|_| {}, contend)
}

#[tokio::test]
async fn only_the_calls_of_a_batch_without_a_permit_are_refused() {
    let gate = impatient_gate_config(Duration::from_millis(10));
    let others = Arc::new(Mutex::new(Some(Vec::new())));
    let server = start_contended(Setup { gate, ..Setup::default() }, &others);
    let body = batch(&[long_bundle(), long_bundle(), long_bundle()]);
    let answer = server.signed(&PrivateKeySigner::random()).send(body).await;
    assert_eq!(answer.reasons(), [None, Some("no_permit"), Some("no_permit")]);
    assert_eq!((server.pool.len(), server.counted.reason("no_permit")), (1, 2));
}

/// The permit was held while the response was written.
#[tokio::test]
async fn a_long_invalid_request_returns_its_permit_before_its_response() {
    let in_use = Arc::new(AtomicUsize::new(0));
    let last = Arc::clone(&in_use);
    let server = Setup::default().start(
        |_| {},
        |host| {
            let gate = host.gate.clone();
            // The last call is the one before the response is written.
            host.with_known_signers(move |_| {
                last.store(gate.stats().work_in_use, SeqCst);
                true
            })
        },
    );
    let body = batch(&[("no_such", json!("x".repeat(9_000)))]);
    let answer = server.signed(&PrivateKeySigner::random()).send(body).await;
    assert_eq!((answer.reasons(), in_use.load(SeqCst)), (vec![Some("method")], 0));
}

/// It is refused neither before its first permit nor before a later one.
#[tokio::test]
async fn a_deferred_batch_waits_for_each_of_its_permits() {
    let (monitor, queue) = pressed_monitor();
    let gate = impatient_gate_config(Duration::from_millis(10));
    let gate = configured(gate, |config| config.requests = Limit::Number(128));
    // No other caller comes until the load falls.
    let others = Others::default();
    let server = start_contended(Setup { monitor, gate, ..Setup::default() }, &others);
    let calls: Vec<_> = (0..40).map(|n| ("eth_sendRawTransaction", json!(raw(n)))).collect();
    let client = server.signed(&PrivateKeySigner::random());
    let sent = tokio::spawn(client.send(batch(&calls)));
    wait_until("the request is deferred", || server.rpc.deferral_stats().waiting == 40).await;
    *others.lock().unwrap() = Some(Vec::new());
    queue.removed(1);
    wait_until("the batch waits for its next permit", || (32..40).contains(&server.pool.len()))
        .await;
    // Five times as long as a request that was not deferred would wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    *others.lock().unwrap() = None;
    assert_eq!(sent.await.unwrap().reasons(), [None; 40]);
}

#[tokio::test]
async fn shutdown_answers_requests_in_flight_and_refuses_new_ones() {
    // The monitor watches no queue, so the load is normal.
    let monitor = Some(LoadMonitor::new(MonitorConfig::default()).unwrap());
    let server = Setup { monitor, ..Setup::default() }
        .limited(|limits| limits.slow_body_after = Duration::from_millis(1));
    let client = server.client(ONE);
    // A client is in the middle of sending its body.
    let body = transaction();
    let (early, late) = body.split_at(10);
    let mut sending = client.send_partial(body.len(), early).await;
    server.wait_until_in_flight(1).await;
    let pool = server.pool.clone();
    // The longest deadline is valid too.
    let down = tokio::spawn(server.rpc.shutdown(Duration::MAX));
    let refusal = loop {
        let answer = client.clone().send(transaction()).await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!(refusal.error(), refused(503, "shutting_down"));
    sending.write_all(late.as_bytes()).await.unwrap();
    read_answer(&mut sending).await.result();
    let end = down.await.unwrap();
    assert!(end.ended && end.unanswered == 0, "{end:?}");
    assert!(!pool.is_empty());
    assert!(TcpStream::connect(server.addr).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn shutdown_ends_at_its_deadline_and_counts_unanswered_requests() {
    let server = start(config());
    let mut stuck = server.client(ONE).send_partial(100, "{").await;
    server.wait_until_in_flight(1).await;
    let deadline = Duration::from_millis(100);
    let ended = tokio::time::timeout(PATIENCE, server.rpc.shutdown(deadline)).await;
    let end = ended.expect("an end");
    assert!(!end.ended && end.unanswered == 1, "{end:?}");
    wait_until_closed(&mut stuck).await;
    assert_eq!(server.gate.stats().requests_in_flight, 0);
}

#[tokio::test]
async fn a_dropped_handle_ends_the_rpc_server_without_a_shutdown() {
    let server = start(config());
    let mut idle = server.client(ONE).connect_idle().await.unwrap();
    drop(server.rpc);
    let closed = tokio::time::timeout(PATIENCE, idle.read(&mut [0])).await;
    assert_eq!(closed.expect("closed").unwrap(), 0);
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn shutdown_refuses_deferred_requests() {
    let (server, _queue) = start_pressed(64, |limits| limits.max_deferred = 1);
    let waiting = tokio::spawn(server.client(ONE).send(transaction()));
    wait_until("the request is deferred", || server.rpc.deferral_stats().waiting == 1).await;
    assert_eq!(server.send(transaction()).await.error(), refused(503, "deferred_full"));
    assert!(server.rpc.shutdown(PATIENCE).await.ended);
    assert_eq!(waiting.await.unwrap().error(), refused(503, "shutting_down"));
}

const SEARCHERS: usize = 512;
/// The searchers share this many addresses.
const ADDRESSES: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_512_honest_bundles_is_served_completely() {
    // The default except for the wait, because the speed of this machine is not part of the
    // promise.
    let gate = configured(GateConfig::for_cores(2), |config| config.permit_wait = PATIENCE);
    let server = Setup { gate, ..Setup::default() }.limited(|_| {});
    let at_once = Arc::new(Barrier::new(SEARCHERS));
    let mut searchers = Vec::new();
    for number in 0..SEARCHERS {
        let client = server.client([127, 0, 1, (number % ADDRESSES) as u8]);
        let bundle = json!([{ "txs": [raw(0), raw(1), raw(2)], "blockNumber": "0x5" }]);
        let body = request("eth_sendBundle", bundle);
        let mut socket = client.connect().await;
        let bytes = client.signed(&PrivateKeySigner::random()).post(body.as_bytes());
        let at_once = Arc::clone(&at_once);
        searchers.push(tokio::spawn(async move {
            at_once.wait().await;
            socket.write_all(&bytes).await.unwrap();
            read_answer(&mut socket).await
        }));
    }
    for answer in join_all(searchers).await {
        assert!(answer.unwrap().result()["bundleHash"].is_string());
    }
    assert_eq!(server.pool.len(), SEARCHERS);
    let stats = server.gate.stats();
    assert_eq!((stats.requests_refused, stats.work_refused), (0, 0));
    assert!(stats.work_waited > 0, "it was a burst");
}
