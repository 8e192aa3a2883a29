//! Nobody gets more than a share, and there is room for others.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use alloy_signer_local::PrivateKeySigner;
use futures::{FutureExt as _, future::join_all};
use load_control::Priority;
use order_rpc::SignatureMode;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{common::*, *};

const ONE: [u8; 4] = [127, 0, 0, 1];
const OTHER: [u8; 4] = [127, 0, 0, 2];
const MIB: usize = 1 << 20;

/// Promises a body of this length and sends all but its end.
async fn stall(
    from: [u8; 4],
    server: &Server,
    length: usize,
    headers: &[(&str, &str)],
) -> TcpStream {
    begin(from, server.addr, (length, &" ".repeat(length - 10)), headers).await
}

async fn send_from(from: [u8; 4], server: &Server, headers: &[(&str, &str)]) -> Answer {
    send_on(connect_from(from, server.addr).await, transaction().as_bytes(), headers).await
}

async fn signed_cancellation(server: &Server) -> Answer {
    let cancel = json!([{ "uuid": UUID }]);
    signed_call(server.addr, &PrivateKeySigner::random(), "eth_cancelBundle", cancel).await
}

async fn in_flight(server: &Server, count: usize) {
    until("they are in", || server.rpc.active_requests() == count).await;
}

/// Asks for its health and stays: a connection between two requests.
async fn keep(from: [u8; 4], server: &Server) -> TcpStream {
    let mut socket = connect_from(from, server.addr).await;
    assert_eq!(ask_on(&mut socket, &head("GET", "/healthz", 0, &[])).await.status, 200);
    socket
}

/// Sends a request whose response is not the last one.
async fn ask_on(socket: &mut TcpStream, text: &str) -> Answer {
    let text = text.replace("connection: close\r\n", "");
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut read = vec![0; 4_096];
    let count = tokio::time::timeout(PATIENCE, socket.read(&mut read)).await.unwrap().unwrap();
    parse(&read[..count])
}

async fn is_closed(socket: &mut TcpStream) {
    // A reset is as good an end.
    let _ = tokio::time::timeout(PATIENCE, socket.read(&mut [0])).await.expect("closed");
}

/// Sixteen addresses could keep everybody else out, for as long as each of their connections asked for the health of
/// the server once in half a minute.
#[tokio::test]
async fn whoever_connects_gets_in_however_many_addresses_hold_all_connections() {
    for each in [2, 1] {
        let server = limited(|limits| {
            (limits.config.max_connections, limits.max_connections_per_caller) = (4, 2);
        });
        let mut held = Vec::new();
        for number in 0..4 {
            held.push(keep([127, 0, 1, number / each as u8], &server).await);
        }
        if each == 2 {
            // It is told before it asks. One that asked late would meet a closed socket.
            let beyond = read_answer(&mut connect_from([127, 0, 1, 0], server.addr).await).await;
            assert_eq!(beyond.error(), refused(429, "caller_connections"));
        }
        // Nor does the beginning of a request keep its place.
        held[0].write_all(b"POST / HTTP/1.1\r\nhost: ").await.unwrap();
        let mut honest = keep(OTHER, &server).await;
        is_closed(&mut held[0]).await;
        assert_eq!(server.counted.reason("connections"), 1);
        // Whose share is the largest, or else whose connections are the oldest.
        let _newest = keep([127, 0, 1, 9], &server).await;
        is_closed(&mut held[each]).await;
        assert_eq!(ask_on(&mut honest, &head("GET", "/healthz", 0, &[])).await.status, 200);
        if each == 1 {
            // Of its own, where nobody has more.
            let _second = keep(OTHER, &server).await;
            is_closed(&mut honest).await;
        }
    }
}

#[tokio::test]
async fn no_connection_with_a_request_makes_room_nor_one_of_a_front_and_a_known_signers_is_the_last()
 {
    let known = PrivateKeySigner::random();
    let (front, proxy) = ([127, 0, 0, 8], [127, 0, 0, 9]);
    let config = OrderRpcConfig {
        known_signers: vec![known.address()],
        trusted_fronts: vec![front.into()],
        trusted_proxies: vec![proxy.into()],
        max_connections: 5,
        ..config()
    };
    let server = start_limited(config, gate_config(64), None, |limits| {
        limits.max_connections_per_caller = 2;
    });
    let mut trusted = [keep(front, &server).await, keep(proxy, &server).await];
    let body = transaction();
    let (early, late) = body.split_at(10);
    let mut sending = begin([127, 0, 1, 1], server.addr, (body.len(), early), &[]).await;
    in_flight(&server, 1).await;
    let mut of_known = connect_from([127, 0, 1, 2], server.addr).await;
    let signed = async |socket: &mut TcpStream| {
        let body = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
        let header = signature(&known, body.as_bytes());
        let headers = [("x-flashbots-signature", &*header)];
        ask_on(socket, &(head("POST", "/", body.len(), &headers) + &body)).await.status
    };
    assert_eq!(signed(&mut of_known).await, 200);
    // The newest.
    let mut idle = keep([127, 0, 1, 3], &server).await;
    let other = keep(OTHER, &server).await;
    is_closed(&mut idle).await;
    assert_eq!(signed(&mut of_known).await, 200);
    drop(other);
    until("it is gone", || server.counted.gauge("order_rpc_connections") == 4.0).await;
    let _sending = begin(OTHER, server.addr, (100, "{"), &[]).await;
    in_flight(&server, 2).await;
    let mut sending_too = begin([127, 0, 1, 3], server.addr, (body.len(), early), &[]).await;
    is_closed(&mut of_known).await;
    in_flight(&server, 3).await;
    // Now nobody is left who could make room.
    let beyond = read_answer(&mut connect_from([127, 0, 1, 2], server.addr).await).await;
    assert_eq!(beyond.error(), refused(503, "connections"));
    assert_eq!(server.counted.reason("connections"), 3);
    for socket in [&mut sending, &mut sending_too] {
        socket.write_all(late.as_bytes()).await.unwrap();
        assert_eq!(read_answer(socket).await.status, 200);
    }
    for socket in &mut trusted {
        assert_eq!(ask_on(socket, &head("GET", "/healthz", 0, &[])).await.status, 200);
    }
}

#[tokio::test]
async fn long_bodies_leave_room_for_small_ones() {
    let mut config = config();
    (config.max_body_bytes, config.max_buffered_bytes) = (MIB, 8 * MIB);
    let server = start(config);
    let mut held = Vec::new();
    for number in 0..7 {
        held.push(stall([127, 0, 1, number], &server, MIB - 1, &[]).await);
    }
    let all_read = 7 * (MIB - 11);
    until("seven are read", || server.rpc.buffered_bytes() == all_read).await;
    let mut eighth = stall([127, 0, 1, 7], &server, MIB - 1, &[]).await;
    assert_eq!(read_answer(&mut eighth).await.error(), refused(503, "buffered_bytes"));
    assert_eq!(server.counted.reason("buffered_bytes"), 1);
    assert!(signed_cancellation(&server).await.is_success());
    assert!(send_from(OTHER, &server, &[]).await.json()["result"].is_string());
    drop(held);
    server.until_nothing_is_held().await;
}

#[tokio::test]
async fn the_requests_in_flight_of_one_peer_are_bounded() {
    let server = limited(|limits| limits.max_requests_per_caller = 2);
    let held = [stall(ONE, &server, 100, &[]).await, stall(ONE, &server, 100, &[]).await];
    in_flight(&server, 2).await;
    assert_eq!(send_from(ONE, &server, &[]).await.error(), refused(429, "caller_requests"));
    assert_eq!(send_from(OTHER, &server, &[]).await.status, 200);
    let batch = format!("[{}]", vec![transaction(); 3].join(","));
    let beyond = send_on(connect_from(OTHER, server.addr).await, batch.as_bytes(), &[]).await;
    assert_eq!(beyond.error(), refused(429, "caller_requests"), "each element counts");
    assert_eq!(server.counted.reason("caller_requests"), 2);
    drop(held);
    in_flight(&server, 0).await;
    assert_eq!(send_from(ONE, &server, &[]).await.status, 200);
}

#[tokio::test]
async fn requests_without_a_signature_leave_room_for_signed_ones_where_these_are_looked_at() {
    for (signatures, most, reason) in [
        (SignatureMode::Optional, 7, "unsigned_requests"),
        (SignatureMode::Off, 8, "too_many_requests"),
    ] {
        let config = OrderRpcConfig { signatures, ..config() };
        let server = start_limited(config, gate_config(8), None, |_| {});
        let batch = format!("[{}]", vec![transaction(); most + 1].join(","));
        let beyond = send(server.addr, batch.as_bytes(), &[]).await;
        assert_eq!(beyond.error(), refused(503, reason), "as a whole");
        assert!(server.pool.is_empty());
        server.until_nothing_is_held().await;
        let mut held = Vec::new();
        for number in 0..most {
            held.push(stall([127, 0, 1, number as u8], &server, 100, &[]).await);
        }
        in_flight(&server, held.len()).await;
        assert_eq!(send_from(OTHER, &server, &[]).await.error(), refused(503, reason));
        assert_eq!(signed_cancellation(&server).await.status == 200, most == 7, "{reason}");
    }
}

/// The header costs nothing, so a few addresses took all requests in flight with it, or all bytes.
#[tokio::test]
async fn strangers_leave_room_where_a_known_signer_has_signed_whatever_they_claim() {
    let (known, forger) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let cancel = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    let forged = claimed_by(&signature(&forger, b""), &known);
    let claim = [("x-flashbots-signature", &*forged)];
    for (requests, most, length, reason) in
        [(16, 15, 100, "too_many_requests"), (64, 15, 64 << 10, "buffered_bytes")]
    {
        let mut config = OrderRpcConfig { known_signers: vec![known.address()], ..config() };
        (config.max_body_bytes, config.max_buffered_bytes) = (64 << 10, MIB);
        let server = start_limited(config, gate_config(requests), None, |_| {});
        let send = async |signer| {
            send_signed_on(connect_from(OTHER, server.addr).await, signer, &cancel).await
        };
        assert!(send(&known).await.is_success());
        server.until_nothing_is_held().await;
        let mut held = Vec::new();
        for number in 0..most {
            held.push(stall([127, 0, 1, number], &server, length, &claim).await);
        }
        let all = usize::from(most) * (length - 10);
        until("they are read", || server.rpc.buffered_bytes() == all).await;
        let mut beyond = stall([127, 0, 1, most], &server, length, &claim).await;
        assert_eq!(read_answer(&mut beyond).await.error(), refused(503, reason));
        // Over a connection that is new.
        assert!(send(&known).await.is_success(), "{reason}");
        // By which `/readyz` goes.
        assert_eq!(server.gate.stats().requests_refused, 0);
    }
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_address_that_it_names_counts() {
    let mapped = Ipv4Addr::from(ONE).to_ipv6_mapped();
    let config = OrderRpcConfig { trusted_proxies: vec![mapped.into()], ..config() };
    let server = start_limited(config, gate_config(64), None, |limits| {
        (limits.max_requests_per_caller, limits.max_connections_per_caller) = (1, 2);
    });
    let header = "X-Forwarded-For";
    let _first = stall(ONE, &server, 100, &[(header, "9.9.9.9, 1.1.1.1")]).await;
    let _second = stall(ONE, &server, 100, &[(header, "2.2.2.2")]).await;
    in_flight(&server, 2).await;
    let same = send_from(ONE, &server, &[(header, "8.8.8.8, 1.1.1.1")]).await;
    assert_eq!(same.error(), refused(429, "caller_requests"));
    let headers = [(header, "8.8.8.8"), (header, "1.1.1.1")];
    let added = send_from(ONE, &server, &headers).await;
    assert_eq!(added.error(), refused(429, "caller_requests"), "the last header counts");
    for unreadable in ["", "unknown", "1.2.3.4:5678", "1.2.3.4,"] {
        let refused = send_from(ONE, &server, &[(header, unreadable)]).await;
        assert_eq!(refused.error(), (400, -32600, "http".to_owned()), "{unreadable}");
    }
    assert_eq!(send_from(ONE, &server, &[]).await.status, 400, "it names nobody");
    // Its own connections are not bounded as one caller's.
    assert_eq!(send_from(ONE, &server, &[(header, "3.3.3.3")]).await.status, 200);
    let _unnamed = stall(OTHER, &server, 100, &[(header, "4.4.4.4")]).await;
    in_flight(&server, 3).await;
    let beyond = send_from(OTHER, &server, &[(header, "5.5.5.5")]).await;
    assert_eq!(beyond.error(), refused(429, "caller_requests"), "not a proxy that is trusted");
}

/// Responses that nobody reads count as bytes of their caller, and end with its connection.
#[tokio::test]
async fn a_client_that_reads_no_responses_is_disconnected() {
    // It is not refused before its responses fill the socket.
    let config = OrderRpcConfig { caller_quota: None, ..config() };
    let server = start_limited(config, gate_config(64), None, |limits| {
        limits.send_timeout = Duration::from_millis(500);
    });
    let mut deaf = TcpStream::connect(server.addr).await.unwrap();
    let call = request(&"x".repeat(200), json!([]));
    let body = format!("[{}]", vec![call; 100].join(","));
    let head = head("POST", "/", body.len(), &[]).replace("connection: close\r\n", "");
    let text = head + &body;
    let mut most = 0;
    let ended = async {
        loop {
            most = most.max(server.rpc.buffered_bytes());
            // It is cut off in the middle of one.
            if deaf.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("disconnected");
    let given_back = || {
        let connections = server.counted.gauge("order_rpc_connections");
        (connections, server.rpc.buffered_bytes(), server.rpc.active_requests()) == (0.0, 0, 0)
    };
    until("nothing is left of it", given_back).await;
    let mut rest = Vec::new();
    // A reset, or the responses that were on their way.
    let _ = deaf.read_to_end(&mut rest).await;
    assert_eq!(send_from(OTHER, &server, &[]).await.status, 200);
}

#[tokio::test]
async fn a_slow_host_does_not_keep_out_another_one() {
    let server = limited(|limits| {
        limits.slow_body_after = Duration::from_millis(10);
        (limits.max_slow_bodies, limits.max_slow_bodies_per_caller) = (8, 2);
    });
    // Of three from one address one finds no place.
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(stall(ONE, &server, 100, &[]).await);
    }
    let answers = sockets.iter_mut().map(|socket| Box::pin(read_answer(socket)));
    let (first, ..) = futures::future::select_all(answers).await;
    assert_eq!(first.error(), refused(429, "caller_slow_bodies"));
    // Another address has its own places.
    let body = transaction();
    let (start, end) = body.split_at(10);
    let mut slow = begin(OTHER, server.addr, (body.len(), start), &[]).await;
    // A slow one is what is tested: five times as long as `slow_body_after`.
    tokio::time::sleep(Duration::from_millis(50)).await;
    slow.write_all(end.as_bytes()).await.unwrap();
    assert!(read_answer(&mut slow).await.json()["result"].is_string());
    assert_eq!(server.counted.reason("caller_slow_bodies"), 1);
    assert_eq!(server.counted.reason("slow_bodies"), 0);
}

/// A long body takes milliseconds to parse, and anybody can sign one.
#[tokio::test]
async fn known_signers_are_served_first_then_short_signed_requests_then_the_others() {
    let known = PrivateKeySigner::random();
    let (pool, address) = (OrderPool::new(PoolConfig::default()).unwrap(), known.address());
    let server = Server::start(pool, gate_config(64), None, |host| {
        start_by(config(), |_| {})(host.with_known_signers(move |signer| signer == address))
    });
    let held = server.hold_permits();
    assert_eq!(held.len(), 1, "one at a time");
    let (long, short) = (vec!["a builder".to_owned(); 10_000], Vec::new());
    let stranger = PrivateKeySigner::random();
    let mut sent = Vec::new();
    for (block, builders, signer) in [
        (1, &long, Some(&stranger)),
        (2, &short, None),
        (3, &short, Some(&stranger)),
        (4, &long, Some(&known)),
    ] {
        let bundle = json!([{ "txs": [raw(0)], "blockNumber": block, "builders": builders }]);
        let (addr, signer, body) =
            (server.addr, signer.cloned(), request("eth_sendBundle", bundle));
        sent.push(tokio::spawn(async move {
            match signer {
                Some(signer) => send_signed(addr, &signer, &body).await,
                None => send(addr, body.as_bytes(), &[]).await,
            }
        }));
        until("it waits", || server.gate.stats().work_waited == block).await;
    }
    let wait = |_| Box::pin(server.gate.acquire_external(Priority::Known, Instant::now()));
    let mut others: Vec<_> = (4..load_control::MAX_PERMIT_WAITERS).map(wait).collect();
    assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
    assert_eq!(send_from(OTHER, &server, &[]).await.error(), refused(503, "permit_queue_full"));
    drop((others, held));
    for answer in join_all(sent).await {
        answer.unwrap().result();
    }
    let served: Vec<_> = bundles(server.pool.subscribe_all()).iter().map(Bundle::block).collect();
    assert_eq!(served, [4, 3, 1, 2].map(Some));
}

/// An honest bundle was accepted, and evicted a second later by fresh keys.
#[tokio::test]
async fn fresh_keys_of_one_address_displace_no_bundle_of_another_or_of_a_known_signer() {
    let known = PrivateKeySigner::random();
    let pool = OrderPool::new(PoolConfig { max_bundles: 64, ..PoolConfig::default() }).unwrap();
    let address = known.address();
    let config = OrderRpcConfig { known_signers: vec![address], ..config() };
    let server = start_on(pool, config);
    server.pool.on_head(block(10, &[]));
    let bundle = |n, block: u64| {
        request("eth_sendBundle", json!([{ "txs": [raw(n)], "blockNumber": block }]))
    };
    let send = async |from, signer: &PrivateKeySigner, body: String| {
        send_signed_on(connect_from(from, server.addr).await, signer, &body).await
    };
    for (n, from, signer) in [(0, ONE, &known), (1, OTHER, &PrivateKeySigner::random())] {
        assert!(send(from, signer, bundle(n, 12)).await.is_success());
    }
    let mut accepted = 0;
    for n in 2..40 {
        let answer = send(ONE, &PrivateKeySigner::random(), bundle(n, 11 + n % 2)).await;
        accepted += usize::from(answer.is_success());
    }
    // A thirty-second of 64.
    assert!((2..=4).contains(&accepted), "{accepted}");
    server.pool.on_head(block(11, &[]));
    let left = bundles(server.pool.subscribe(12));
    let left: Vec<_> = left.iter().map(|bundle| bundle.txs()[0].nonce()).collect();
    assert!([0, 1].iter().all(|honest| left.contains(honest)), "{left:?}");
}

/// A known signer that had more of them than each of a crowd was the first to lose some.
#[tokio::test]
async fn a_crowd_of_strangers_evicts_no_raw_transaction_of_a_known_signer() {
    let known = PrivateKeySigner::random();
    let pool =
        OrderPool::new(PoolConfig { max_external_txs: 16, ..PoolConfig::default() }).unwrap();
    let server =
        start_on(pool, OrderRpcConfig { known_signers: vec![known.address()], ..config() });
    let mut hashes = Vec::new();
    for _ in 0..8 {
        let sent = send_signed(server.addr, &known, &transaction()).await.result();
        hashes.push(sent.as_str().unwrap().parse().unwrap());
    }
    for number in 0..24 {
        send_from([127, 0, 1, number], &server, &[]).await;
    }
    assert!(hashes.iter().all(|hash| server.pool.contains(hash)));
    assert_eq!(server.pool.len(), 16);
}

/// A copy of one signed request was enough to keep its signer out, from any address, for as long as it was sent again.
#[tokio::test]
async fn who_sends_the_request_of_another_again_spends_nothing_of_that_signer_elsewhere() {
    let server = with_quota(10);
    let signer = PrivateKeySigner::random();
    let body = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    let send =
        async |from| send_signed_on(connect_from(from, server.addr).await, &signer, &body).await;
    for _ in 0..5 {
        assert!(send(OTHER).await.is_success());
    }
    assert_eq!(send(OTHER).await.error(), refused(429, "quota"));
    assert!(send(ONE).await.is_success());
}

/// What claims to be of a known signer is served before others, so it must not be cheap.
#[tokio::test]
async fn who_forges_signatures_has_soon_spent_its_quota() {
    let server = with_caller_quota(1_000);
    let (signer, other) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let body = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    let header = claimed_by(&signature(&signer, body.as_bytes()), &other);
    let forged = [("x-flashbots-signature", &*header)];
    let mut refusals = 0;
    for _ in 0..8 {
        let socket = connect_from(OTHER, server.addr).await;
        refusals += usize::from(send_on(socket, body.as_bytes(), &forged).await.status == 429);
    }
    assert!((2..=4).contains(&refusals), "{refusals}");
    let socket = connect_from(ONE, server.addr).await;
    assert!(send_signed_on(socket, &signer, &body).await.is_success());
}

/// As long as every call failed before it needed the signature, it was never looked at.
#[tokio::test]
async fn a_forged_claim_to_be_a_known_signer_is_paid_for_whatever_its_calls_are() {
    let (known, forger) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let no_params = request("eth_cancelBundle", json!([]));
    for body in [no_params.clone(), no_params + &" ".repeat(9_000), "{".repeat(9_000)] {
        let server = limited(|limits| {
            limits.config.caller_quota = Some(Quota { per_second: 1, burst: 1_000 });
            limits.config.known_signers = vec![known.address()];
        });
        let right = signature(&known, body.as_bytes());
        let forged = claimed_by(&signature(&forger, body.as_bytes()), &known);
        for (from, header, expected) in [(ONE, right, 0..=0), (OTHER, forged, 2..=4)] {
            let mut refusals = 0;
            for _ in 0..8 {
                let headers = [("x-flashbots-signature", &*header)];
                let socket = connect_from(from, server.addr).await;
                let answer = send_on(socket, body.as_bytes(), &headers).await;
                refusals += usize::from(answer.status == 429);
            }
            assert!(expected.contains(&refusals), "{refusals} of {} bytes", body.len());
        }
    }
}
