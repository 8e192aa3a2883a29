//! Too much of everything: the documented refusal, other callers served, nothing left behind.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use alloy_signer_local::PrivateKeySigner;
use futures::{FutureExt as _, future::join_all};
use load_control::{Limit, Priority};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{common::*, *};

const ONE: [u8; 4] = [127, 0, 0, 1];

#[tokio::test]
async fn idle_connections_and_heads_that_never_end_are_closed() {
    let server = limited(|limits| limits.header_timeout = Duration::from_millis(100));
    let mut silent = TcpStream::connect(server.addr).await.unwrap();
    let mut slow = TcpStream::connect(server.addr).await.unwrap();
    // It may be closed before; then a reset is as good an end.
    let _ = slow.write_all(b"POST / HTTP/1.1\r\nhost: ").await;
    for socket in [&mut silent, &mut slow] {
        let mut bytes = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes));
        let _ = closed.await.expect("closed by the server");
    }
}

/// With the default capacity, which is far more than the gate lets in.
#[tokio::test]
async fn raw_transactions_that_wait_leave_half_of_the_gate_to_bundles_and_cancellations() {
    let (server, queue) = start_pressed(4, |_| {});
    let addr = server.addr;
    let wait = || tokio::spawn(async move { send(addr, transaction().as_bytes(), &[]).await });
    let waits = || server.rpc.deferral_stats().waiting;
    let mut waiting = vec![wait()];
    until("one is deferred", || waits() == 1).await;
    // Each element that waited would keep the places of both.
    let batch = format!("[{},{}]", transaction(), transaction());
    for answer in send(addr, batch.as_bytes(), &[]).await.json().as_array().unwrap() {
        assert_eq!(answer["error"]["data"]["reason"], "deferred_full", "{answer}");
    }
    waiting.push(wait());
    until("two are deferred", || waits() == 2).await;
    // However many come.
    for _ in 0..4 {
        let answer = send(addr, transaction().as_bytes(), &[]).await;
        assert_eq!(answer.error(), refused(503, "deferred_full"));
    }
    call(addr, "eth_sendBundle", json!([{ "txs": [raw(1)] }])).await.result();
    let cancel = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    assert!(send_signed(addr, &PrivateKeySigner::random(), &cancel).await.is_success());
    assert_eq!(server.gate.stats().requests_in_flight, 2);
    assert_eq!(server.counted.reason("deferred_full"), 6);
    // Whoever hangs up leaves its place to the next.
    waiting.pop().unwrap().abort();
    until("it is gone", || server.held()[..3] == [1, 0, 1]).await;
    waiting.push(wait());
    until("the next is deferred", || waits() == 2).await;

    queue.removed(1);
    for answer in join_all(waiting).await {
        assert_eq!(answer.unwrap().status, 200);
    }
    let stats = server.rpc.deferral_stats();
    assert_eq!((stats.deferred, stats.aged, stats.waiting), (3, 0, 0));
    let batch = send(addr, batch.as_bytes(), &[]).await.json();
    assert!(batch.as_array().unwrap().iter().all(|answer| answer["result"].is_string()), "{batch}");
}

/// It stood in one line with those of strangers, who could fill it.
#[tokio::test]
async fn a_raw_transaction_of_a_known_signer_does_not_wait_behind_those_of_strangers() {
    let known = PrivateKeySigner::random();
    let (server, _queue) = start_pressed(4, |limits| {
        limits.config.known_signers = vec![known.address()];
    });
    let addr = server.addr;
    let _waiting = [0; 2]
        .map(|_| tokio::spawn(async move { send(addr, transaction().as_bytes(), &[]).await }));
    until("the line is full", || server.rpc.deferral_stats().waiting == 2).await;
    send_signed(addr, &known, &transaction()).await.result();
}

#[tokio::test]
async fn a_deferred_transaction_runs_when_it_is_old_enough_whatever_the_load() {
    let soon = |limits: &mut Limits| limits.max_deferral = Duration::from_millis(50);
    let (server, _queue) = start_pressed(64, soon);
    assert_eq!(send(server.addr, transaction().as_bytes(), &[]).await.status, 200);
    assert_eq!(server.rpc.deferral_stats().aged, 1);
}

fn long_bundle() -> (&'static str, serde_json::Value) {
    ("eth_sendBundle", json!({ "txs": (0..80).map(raw).collect::<Vec<_>>(), "blockNumber": 5 }))
}

/// A hundred bundles of a hundred transactions kept it for half a second.
#[tokio::test]
async fn a_batch_gives_its_permit_to_others_between_its_elements() {
    let server = start(config());
    let held = server.hold_permits();
    let short = request("eth_sendBundle", json!([{ "txs": [raw(0)], "blockNumber": 5 }]));
    let bodies = [batch(&[long_bundle(), long_bundle(), long_bundle()]), short];
    let mut sent = Vec::new();
    for (body, count) in bodies.into_iter().zip(1..) {
        let addr = server.addr;
        sent.push(tokio::spawn(async move { send(addr, body.as_bytes(), &[]).await }));
        until("it waits", || server.gate.stats().work_waited == count).await;
    }
    drop(held);
    for answer in join_all(sent).await {
        assert_eq!(answer.unwrap().status, 200);
    }
    let pooled = bundles(server.pool.subscribe_all());
    let pooled: Vec<_> = pooled.iter().map(|bundle| bundle.txs().len()).collect();
    assert_eq!(pooled, [80, 1, 80, 80]);
}

#[tokio::test]
async fn what_of_a_batch_finds_no_permit_is_refused_alone() {
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    let gate = impatient_gate_config(Duration::from_millis(10));
    let server = Server::start(pool, gate, None, |host| {
        let (gate, waiting) = (host.gate.clone(), Mutex::new(Vec::new()));
        // While the first bundle is verified, someone else comes, and keeps the permit.
        let known = move |_| {
            let gate = gate.clone();
            let other = async move { gate.acquire_external(Priority::Known, Instant::now()).await };
            let mut other = Box::pin(other);
            if other.as_mut().now_or_never().is_none() {
                waiting.lock().unwrap().push(other);
            }
            false
        };
        start_by(config(), |_| {})(host.with_known_signers(known))
    });
    let body = batch(&[long_bundle(), long_bundle(), long_bundle()]);
    let answers = send_signed(server.addr, &PrivateKeySigner::random(), &body).await.json();
    let reasons = [0, 1, 2].map(|n: usize| answers[n]["error"]["data"]["reason"].clone());
    assert_eq!(reasons, [json!(null), json!("no_permit"), json!("no_permit")]);
    assert_eq!((server.pool.len(), server.counted.reason("no_permit")), (1, 2));
}

/// It is refused neither before its first permit nor before a later one.
#[tokio::test]
async fn a_deferred_batch_waits_for_each_of_its_permits() {
    let (monitor, queue) = pressed();
    let gate = impatient_gate_config(Duration::from_millis(10));
    let gate = GateConfig { requests: Limit::Number(128), ..gate };
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    // `None` until the load falls.
    let others = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&others);
    let server = Server::start(pool, gate, Some(monitor), |host| {
        let gate = host.gate.clone();
        // While it is verified, someone else comes, and keeps the permit.
        let known = move |_| {
            let gate = gate.clone();
            let other = async move { gate.acquire_external(Priority::Known, Instant::now()).await };
            let (mut other, mut others) = (Box::pin(other), keeps.lock().unwrap());
            let others = others.as_mut().filter(|others: &&mut Vec<_>| others.is_empty());
            if let Some(others) = others
                && other.as_mut().now_or_never().is_none()
            {
                others.push(other);
            }
            false
        };
        start_by(config(), |_| {})(host.with_known_signers(known))
    });
    let calls: Vec<_> = (0..40).map(|n| ("eth_sendRawTransaction", json!(raw(n)))).collect();
    let (addr, body) = (server.addr, batch(&calls));
    let sent =
        tokio::spawn(
            async move { send_signed(addr, &PrivateKeySigner::random(), &body).await.json() },
        );
    until("it is deferred", || server.rpc.deferral_stats().waiting == 40).await;
    *others.lock().unwrap() = Some(Vec::new());
    queue.removed(1);
    until("it waits for the next", || (32..40).contains(&server.pool.len())).await;
    // Five times as long as another one would wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    *others.lock().unwrap() = None;
    let answers = sent.await.unwrap();
    let refused = (0..40).filter(|n: &usize| answers[*n].get("result").is_none()).count();
    assert_eq!(refused, 0, "{answers}");
}

#[tokio::test]
async fn shutdown_answers_those_who_are_in_and_refuses_those_who_come() {
    let server = limited(|limits| limits.slow_body_after = Duration::from_millis(1));
    let body = transaction();
    // One is in the middle of sending, one is kept open and idle.
    let (early, late) = body.split_at(10);
    let mut sending = begin(ONE, server.addr, (body.len(), early), &[]).await;
    until("it is in", || server.rpc.active_requests() == 1).await;
    let (addr, pool) = (server.addr, server.pool.clone());
    let down = tokio::spawn(server.rpc.shutdown(PATIENCE));
    let refusal = loop {
        let answer = send(addr, transaction().as_bytes(), &[]).await;
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
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn shutdown_ends_at_its_deadline_and_says_what_it_cut_off() {
    let server = start(config());
    let mut stuck = begin(ONE, server.addr, (100, "{"), &[]).await;
    until("it is in", || server.rpc.active_requests() == 1).await;
    let deadline = Duration::from_millis(100);
    let ended = tokio::time::timeout(PATIENCE, server.rpc.shutdown(deadline)).await;
    let end = ended.expect("an end");
    assert!(!end.ended && end.unanswered == 1, "{end:?}");
    let mut bytes = Vec::new();
    // A reset is as good an end.
    let _ = stuck.read_to_end(&mut bytes).await;
    assert_eq!(server.gate.stats().requests_in_flight, 0);
}

#[tokio::test]
async fn a_dropped_handle_ends_the_rpc_server_without_a_shutdown() {
    let server = start(config());
    let mut idle = TcpStream::connect(server.addr).await.unwrap();
    assert_eq!(get(server.addr, "/healthz").await.status, 200);
    drop(server.rpc);
    let mut bytes = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, idle.read_to_end(&mut bytes)).await;
    closed.expect("closed").unwrap();
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test]
async fn shutdown_refuses_what_waits_for_the_load_to_fall() {
    let (server, _queue) = start_pressed(64, |limits| limits.max_deferred = 1);
    let addr = server.addr;
    let waiting = tokio::spawn(async move { send(addr, transaction().as_bytes(), &[]).await });
    until("it is deferred", || server.rpc.deferral_stats().waiting == 1).await;
    let beyond = send(addr, transaction().as_bytes(), &[]).await;
    assert_eq!(beyond.error(), refused(503, "deferred_full"));
    assert!(server.rpc.shutdown(PATIENCE).await.ended);
    assert_eq!(waiting.await.unwrap().error(), refused(503, "shutting_down"));
}
