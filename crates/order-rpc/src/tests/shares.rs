//! No caller gets more than its share, and others always find room.

use std::net::{IpAddr, Ipv4Addr};

use order_pool::Holder;

use super::*;

const MIB: usize = 1 << 20;

/// Announces a body of this length and sends all but the last ten bytes.
async fn stall(client: Client, length: usize) -> TcpStream {
    client.send_partial(length, &" ".repeat(length - 10)).await
}

/// Stalls one body at each of `count` addresses.
async fn stall_many(server: &Server, count: u8, length: usize) -> Vec<TcpStream> {
    let stalled = (0..count).map(|number| stall(server.client([127, 0, 1, number]), length));
    let stalled = join_all(stalled).await;
    let all = usize::from(count) * (length - 10);
    wait_until("the bodies are read", || server.rpc.buffered_bytes() == all).await;
    stalled
}

/// Sends one complete request from each of `count` addresses, while the test holds all work
/// permits.
async fn send_many(server: &Server, count: u8) -> Vec<TcpStream> {
    let mut sent = Vec::new();
    for number in 0..count {
        sent.push(send_whole(&server.client([127, 0, 1, number])).await);
    }
    wait_until("the requests are in flight", || {
        server.gate.stats().requests_in_flight == usize::from(count)
    })
    .await;
    sent
}

async fn send_whole(client: &Client) -> TcpStream {
    let mut socket = client.connect().await;
    socket.write_all(&client.clone().post(transaction().as_bytes())).await.unwrap();
    socket
}

/// Returns the first answer on any of these sockets.
async fn first_answer(sockets: &mut [TcpStream]) -> Answer {
    let answers = sockets.iter_mut().map(|socket| Box::pin(read_answer(socket)));
    futures::future::select_all(answers).await.0
}

async fn signed_cancellation(server: &Server) -> Answer {
    server.signed(&PrivateKeySigner::random()).send(cancellation()).await
}

/// Opens a connection that is idle after its first request.
async fn connect_idle(address: [u8; 4], server: &Server) -> TcpStream {
    server.client(address).connect_idle().await.expect("served")
}

async fn assert_served(socket: &mut TcpStream, server: &Server) {
    let answer = exchange(socket, server.client(ONE).head("GET", "/healthz", 0)).await;
    assert_eq!(answer.expect("open").status, 200);
}

/// Sixteen addresses could keep everybody else out for as long as each of their connections
/// requested the health of the server once in half a minute.
#[tokio::test]
async fn a_new_caller_can_connect_while_others_hold_all_connections() {
    for each in [2, 1] {
        let server = limited(|limits| {
            (limits.config.max_connections, limits.max_connections_per_caller) = (4, 2);
        });
        let mut held = Vec::new();
        for number in 0..4 {
            held.push(connect_idle([127, 0, 1, number / each as u8], &server).await);
        }
        if each == 2 {
            // The rejection is sent before the request: a late request would find the socket
            // closed.
            let beyond = server.client([127, 0, 1, 0]).write("").await;
            assert_eq!(beyond.error(), refused(429, "caller_connections"));
        }
        // The beginning of a request does not protect a connection either.
        held[0].write_all(b"POST / HTTP/1.1\r\nhost: ").await.unwrap();
        let mut honest = connect_idle(OTHER, &server).await;
        wait_until_closed(&mut held[0]).await;
        assert_eq!(server.counted.reason("connections"), 1);
        // The network with the most connections gives way, or else the one with the oldest.
        let _newest = connect_idle([127, 0, 1, 9], &server).await;
        wait_until_closed(&mut held[each]).await;
        assert_served(&mut honest, &server).await;
        if each == 1 {
            // Where nobody has more, a caller displaces its own connection.
            let _second = connect_idle(OTHER, &server).await;
            wait_until_closed(&mut honest).await;
        }
    }
}

#[tokio::test]
async fn neither_busy_connections_nor_those_of_fronts_are_displaced() {
    let known = PrivateKeySigner::random();
    let (front, proxy) = ([127, 0, 0, 8], [127, 0, 0, 9]);
    let config = OrderRpcConfig {
        known_signers: vec![known.address()],
        trusted_fronts: vec![front.into()],
        trusted_proxies: vec![proxy.into()],
        max_connections: 5,
        ..config()
    };
    let server = Setup { config, ..Setup::default() }.limited(|limits| {
        limits.max_connections_per_caller = 2;
    });
    let mut trusted = [connect_idle(front, &server).await, connect_idle(proxy, &server).await];
    let in_work = |count| move |server: &Server| server.gate.stats().requests_in_flight == count;
    let mut known_socket = server.client([127, 0, 1, 2]).connect().await;
    let signed = server.signed(&known).post(cancellation().as_bytes());
    exchange(&mut known_socket, &signed).await.expect("open").result();
    let permits = server.hold_permits();
    let mut sending = send_whole(&server.client([127, 0, 1, 1])).await;
    wait_until("one request is in flight", || in_work(1)(&server)).await;
    // The newest connection of the network that has the most.
    let mut idle = connect_idle([127, 0, 1, 3], &server).await;
    let other = connect_idle(OTHER, &server).await;
    wait_until_closed(&mut idle).await;
    drop(other);
    wait_until("the connection is closed", || server.counted.sum("order_rpc_connections", "") == 4)
        .await;
    let mut sending_too = send_whole(&server.client(OTHER)).await;
    wait_until("two requests are in flight", || in_work(2)(&server)).await;
    let mut last = send_whole(&server.client([127, 0, 1, 3])).await;
    wait_until_closed(&mut known_socket).await;
    wait_until("three requests are in flight", || in_work(3)(&server)).await;
    // Now every connection has a request in progress.
    let beyond = server.client([127, 0, 1, 2]).write("").await;
    assert_eq!(beyond.error(), refused(503, "connections"));
    assert_eq!(server.counted.reason("connections"), 3);
    drop(permits);
    for socket in [&mut sending, &mut sending_too, &mut last] {
        read_answer(socket).await.result();
    }
    for socket in &mut trusted {
        assert_served(socket, &server).await;
    }
}

#[tokio::test]
async fn long_bodies_leave_room_for_small_ones() {
    let (max_body_bytes, max_buffered_bytes) = (MIB, 8 * MIB);
    let server = start(OrderRpcConfig { max_body_bytes, max_buffered_bytes, ..config() });
    let held = stall_many(&server, 7, MIB - 1).await;
    let mut eighth = stall(server.client([127, 0, 1, 7]), MIB - 1).await;
    assert_eq!(read_answer(&mut eighth).await.error(), refused(503, "buffered_bytes"));
    assert_eq!(server.counted.reason("buffered_bytes"), 1);
    signed_cancellation(&server).await.result();
    server.client(OTHER).send(transaction()).await.result();
    drop(held);
    server.wait_until_nothing_is_held().await;
}

#[tokio::test]
async fn the_requests_in_flight_of_one_caller_are_bounded() {
    let server = limited(|limits| limits.max_requests_per_caller = 2);
    let permits = server.hold_permits();
    let held = [send_whole(&server.client(ONE)).await, send_whole(&server.client(ONE)).await];
    wait_until("the requests are in flight", || server.gate.stats().requests_in_flight == 2).await;
    assert_eq!(server.send(transaction()).await.error(), refused(429, "caller_requests"));
    let other = tokio::spawn(server.client(OTHER).send(transaction()));
    wait_until("the other request is in flight", || server.gate.stats().requests_in_flight == 3)
        .await;
    drop(permits);
    other.await.unwrap().result();
    let batch = format!("[{}]", vec![transaction(); 3].join(","));
    let beyond = server.client(OTHER).send(batch).await;
    assert_eq!(beyond.error(), refused(429, "caller_requests"), "each element counts");
    assert_eq!(server.counted.reason("caller_requests"), 2);
    drop(held);
    server.wait_until_in_flight(0).await;
    server.send(transaction()).await.result();
}

#[tokio::test]
async fn unsigned_requests_leave_room_for_signed_ones_unless_signatures_are_off() {
    for (signatures, most, reason) in [
        (SignatureMode::Optional, 7, "unsigned_requests"),
        (SignatureMode::Off, 8, "too_many_requests"),
    ] {
        let (config, gate) = (OrderRpcConfig { signatures, ..config() }, gate_config(8));
        let server = Setup { config, gate, ..Setup::default() }.limited(|_| {});
        let batch = format!("[{}]", vec![transaction(); usize::from(most) + 1].join(","));
        assert_eq!(server.send(batch).await.error(), refused(503, reason), "as a whole");
        assert!(server.pool.is_empty());
        server.wait_until_nothing_is_held().await;
        let permits = server.hold_permits();
        let _held = send_many(&server, most).await;
        let beyond = server.client(OTHER).send(transaction()).await;
        assert_eq!(beyond.error(), refused(503, reason));
        let client = server.signed(&PrivateKeySigner::random());
        let signed = tokio::spawn(client.send(cancellation()));
        wait_until("all places are taken", || server.gate.stats().requests_in_flight == 8).await;
        // With signatures off no place is reserved.
        if most == 8 {
            assert_eq!(signed.await.unwrap().error(), refused(503, reason));
            continue;
        }
        drop(permits);
        signed.await.unwrap().result();
    }
}

/// The signature header costs nothing, so with it a few addresses took all requests in flight, or
/// all buffered bytes.
#[tokio::test]
async fn strangers_leave_room_for_known_signers_whatever_they_claim() {
    let known = PrivateKeySigner::random();
    let header = forged(&PrivateKeySigner::random(), b"", &known);
    for (requests, most, length, reason) in
        [(16, 15, 100, "too_many_requests"), (64, 30, 32 << 10, "buffered_bytes")]
    {
        let mut config = OrderRpcConfig { known_signers: vec![known.address()], ..config() };
        (config.max_body_bytes, config.max_buffered_bytes) = (64 << 10, MIB);
        let gate = gate_config(requests);
        let server = Setup { config, gate, ..Setup::default() }.limited(|_| {});
        let known_client = server.client(OTHER).signed(&known);
        known_client.clone().send(cancellation()).await.result();
        server.wait_until_nothing_is_held().await;
        let claims = |number| server.client([127, 0, 1, number]).with(SIGNATURE, &header);
        let mut permits = Vec::new();
        let mut held = Vec::new();
        if requests == 16 {
            permits = server.hold_permits();
            for number in 0..most {
                held.push(send_whole(&claims(number)).await);
            }
            wait_until("the requests are in flight", || {
                server.gate.stats().requests_in_flight == 15
            })
            .await;
        } else {
            held = join_all((0..most).map(|number| stall(claims(number), length))).await;
            let all = usize::from(most) * (length - 10);
            wait_until("the bodies are read", || server.rpc.buffered_bytes() == all).await;
        }
        let mut beyond = stall(claims(most), length).await;
        assert_eq!(read_answer(&mut beyond).await.error(), refused(503, reason));
        // The known signer uses a new connection.
        let sent = tokio::spawn(known_client.send(cancellation()));
        wait_until("the request is admitted", || {
            server.rpc.active_requests() > usize::from(most) || sent.is_finished()
        })
        .await;
        drop(permits);
        sent.await.unwrap().result();
        // These refusals do not count for `/readyz`.
        assert_eq!(server.gate.stats().requests_refused, 0);
    }
}

#[tokio::test]
async fn behind_a_trusted_proxy_the_address_that_it_names_counts() {
    let mapped = Ipv4Addr::from(ONE).to_ipv6_mapped();
    let config = OrderRpcConfig { trusted_proxies: vec![mapped.into()], ..config() };
    let server = Setup { config, ..Setup::default() }.limited(|limits| {
        (limits.max_requests_per_caller, limits.max_connections_per_caller) = (1, 2);
    });
    let client = |address, named: &[&str]| {
        let client = server.client(address);
        named.iter().fold(client, |client, named| client.with("X-Forwarded-For", named))
    };
    let permits = server.hold_permits();
    let _first = send_whole(&client(ONE, &["9.9.9.9, 1.1.1.1"])).await;
    let _second = send_whole(&client(ONE, &["2.2.2.2"])).await;
    wait_until("both requests are in flight", || server.gate.stats().requests_in_flight == 2).await;
    let too_many = refused(429, "caller_requests");
    let no_caller = (400, -32600, "http");
    for (named, expected) in [
        (&["8.8.8.8, 1.1.1.1"][..], too_many),
        // The last of several headers counts.
        (&["8.8.8.8", "1.1.1.1"], too_many),
        (&[""], no_caller),
        (&["unknown"], no_caller),
        (&["1.2.3.4:5678"], no_caller),
        (&["1.2.3.4,"], no_caller),
        (&[], no_caller),
    ] {
        assert_eq!(client(ONE, named).send(transaction()).await.error(), expected, "{named:?}");
    }
    // The proxy's own connections are not bounded as those of one caller.
    let third = tokio::spawn(client(ONE, &["3.3.3.3"]).send(transaction()));
    let _unnamed = send_whole(&client(OTHER, &["4.4.4.4"])).await;
    wait_until("four requests are in flight", || server.gate.stats().requests_in_flight == 4).await;
    let beyond = client(OTHER, &["5.5.5.5"]).send(transaction()).await;
    assert_eq!(beyond.error(), too_many, "not a proxy that is trusted");
    drop(permits);
    third.await.unwrap().result();
}

/// Unread responses count as bytes of their caller, and are released with its connection.
#[tokio::test]
async fn a_client_that_reads_no_responses_is_disconnected() {
    // Without a quota, so that the responses can fill the socket.
    let config = OrderRpcConfig { caller_quota: None, ..config() };
    let server = Setup { config, ..Setup::default() }.limited(|limits| {
        limits.send_timeout = Duration::from_millis(500);
    });
    let mut deaf = server.client(ONE).connect().await;
    let call = request(&"x".repeat(200), json!([]));
    let body = format!("[{}]", vec![call; 100].join(","));
    let head = server.client(ONE).head("POST", "/", body.len());
    let text = head.replace("connection: close\r\n", "") + &body;
    let ended = async {
        // The connection ends in the middle of a request.
        while deaf.write_all(text.as_bytes()).await.is_ok() {}
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("disconnected");
    let connections = || server.counted.sum("order_rpc_connections", "");
    wait_until("the connection and its bytes are released", || {
        connections() == 0 && server.held() == [0; 4]
    })
    .await;
    wait_until_closed(&mut deaf).await;
    server.client(OTHER).send(transaction()).await.result();
}

/// Each byte that was read restarted the timeout, so four addresses that read a few bytes a second
/// kept all buffered bytes for ever.
#[tokio::test]
async fn one_caller_keeps_only_a_few_unread_responses() {
    const DEAF: usize = 12;
    let (config, gate) = (OrderRpcConfig { caller_quota: None, ..config() }, gate_config(4_096));
    let server = Setup { config, gate, ..Setup::default() }.limited(|limits| {
        // These clients read enough not to be disconnected by it.
        limits.send_timeout = 2 * PATIENCE;
        limits.max_requests_per_caller = 4_096;
        // Their requests do not arrive slowly, also on a busy machine.
        limits.slow_body_after = Duration::from_secs(1);
    });
    // The error names the method.
    let call = request(&"\u{1}".repeat(200), json!([]));
    let body = format!("[{}]", vec![call; 100].join(","));
    let head = server.client(OTHER).head("POST", "/", body.len());
    let text = head.replace("connection: close\r\n", "") + &body;
    let deaf = (0..DEAF).map(|_| {
        let (client, text) = (server.client(OTHER), text.clone());
        tokio::spawn(async move {
            let mut socket = client.connect().await;
            // It blocks when the responses fill the socket, and fails when the server closes it.
            while socket.write_all(text.as_bytes()).await.is_ok() {}
        })
    });
    let deaf: Vec<_> = deaf.collect();
    let closed = || deaf.iter().filter(|deaf| deaf.is_finished()).count();
    let kept = Limits::new(OrderRpcConfig::new(CHAIN)).max_slow_bodies_per_caller;
    wait_until("the others are disconnected", || closed() >= DEAF - kept).await;
    let connections = || server.counted.sum("order_rpc_connections", "");
    wait_until("their connections are closed", || connections() <= kept as u64).await;
    deaf.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn slow_callers_displace_no_others_and_end_at_the_body_timeout() {
    let server = limited(|limits| {
        limits.slow_body_after = Duration::from_millis(10);
        (limits.max_slow_bodies, limits.max_slow_bodies_per_caller) = (6, 2);
    });
    // The third slow body of one address is refused.
    let mut sockets = join_all((0..3).map(|_| stall(server.client(ONE), 100))).await;
    let refusal = first_answer(&mut sockets).await.error();
    assert_eq!(refusal, refused(429, "caller_slow_bodies"));
    // Another address has places of its own.
    let body = transaction();
    let (start, end) = body.split_at(10);
    let mut slow = server.client(OTHER).send_partial(body.len(), start).await;
    // The body must be slow: five times as long as `slow_body_after`.
    tokio::time::sleep(Duration::from_millis(50)).await;
    slow.write_all(end.as_bytes()).await.unwrap();
    read_answer(&mut slow).await.result();
    assert_eq!(server.counted.reason("slow_bodies"), 0);
    // When all places are taken the slowest body is evicted: first of the caller that has the
    // most, and then of all.
    let mut others = Vec::new();
    for (number, refusals) in [(1, 0), (2, 1), (3, 2)] {
        others.push(stall(server.client([127, 0, 1, number]), 100).await);
        wait_until("the body counts as slow", || server.counted.reason("slow_bodies") == refusals)
            .await;
        let is_slow = || server.rpc.active_requests() == 3 && server.rpc.buffered_bytes() == 270;
        wait_until("the other bodies are left", || refusals == 0 || is_slow()).await;
    }
    assert_eq!(server.counted.reason("caller_slow_bodies"), 1);
    drop((sockets, others));

    // A body that times out leaves its place.
    let server = limited(|limits| {
        limits.body_timeout = Duration::from_millis(200);
        (limits.max_slow_bodies, limits.max_slow_bodies_per_caller) = (2, 1);
    });
    for given_up in 1..=3 {
        let mut stalled = server.client(ONE).send_partial(MIB, "{").await;
        // However often a byte arrives. Such a byte may also reset the answer.
        wait_until("the body times out", || {
            let _ = given_up > 1 && stalled.try_write(b" ").is_ok();
            server.counted.reason("body_timeout") == given_up
        })
        .await;
        if given_up == 1 {
            let answer = read_answer(&mut stalled).await;
            assert_eq!(answer.error(), (408, -32600, "body_timeout"));
        }
        server.wait_until_nothing_is_held().await;
    }
}

/// With 32 sockets at 0.8 kB/s in all an attacker had every upload refused that took more than
/// 100 ms.
#[tokio::test]
async fn honest_slow_uploads_succeed_while_other_bodies_are_held_open() {
    const HELD: u8 = 60;
    let server = Arc::new(limited(|limits| limits.slow_body_after = Duration::from_millis(20)));
    let attackers: Vec<_> = (0..HELD)
        .map(|number| {
            let client = server.client([127, 0, 2, number]);
            tokio::spawn(async move {
                // A refused body is sent again at once.
                loop {
                    let mut socket = client.send_partial(80_000, "[").await;
                    wait_until_closed(&mut socket).await;
                }
            })
        })
        .collect();
    wait_until("each of them is refused repeatedly", || {
        server.counted.reason("slow_bodies") > u64::from(HELD)
    })
    .await;
    let builders = vec!["a builder".to_owned(); 6_500];
    for block in 1..=10 {
        let bundle = json!([{ "txs": [raw(0)], "blockNumber": block, "builders": builders }]);
        let body = request("eth_sendBundle", bundle);
        assert!(body.len() > 75_000, "{}", body.len());
        let mut honest = server.client(OTHER).send_partial(body.len(), "").await;
        // The initial congestion window, then twice as much each time.
        let (mut rest, mut window) = (body.as_bytes(), 14_600);
        while !rest.is_empty() {
            let (next, later) = rest.split_at(window.min(rest.len()));
            honest.write_all(next).await.unwrap();
            (rest, window) = (later, 2 * window);
            // The line is slow: a body takes four times as long as `slow_body_after`.
            tokio::time::sleep(Duration::from_millis(27)).await;
        }
        read_answer(&mut honest).await.result();
    }
    assert_eq!(server.pool.len(), 10);
    attackers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Incomplete bodies took the places of requests that could have been served.
#[tokio::test]
async fn an_incomplete_body_takes_no_place_of_a_complete_request() {
    let gate = gate_config(4);
    let server = Setup { gate, ..Setup::default() }.limited(|_| {});
    let _held = stall_many(&server, 8, 100).await;
    server.send(transaction()).await.result();
    assert_eq!(server.gate.stats().requests_refused, 0);
}

/// Each /64 was one caller, and a subscriber with a /48 has 65,536 of them.
#[tokio::test]
async fn an_ipv6_site_is_at_most_four_callers() {
    let config = OrderRpcConfig { trusted_proxies: vec![IpAddr::from(ONE)], ..config() };
    let server =
        Setup { config, ..Setup::default() }.limited(|limits| limits.max_requests_per_caller = 1);
    let permits = server.hold_permits();
    let client = |address: String| server.client(ONE).with("X-Forwarded-For", &address);
    let mut held = Vec::new();
    for number in 0..4 {
        held.push(send_whole(&client(format!("2001:db8:0:{number}00::1"))).await);
        wait_until("the request is in flight", || {
            server.gate.stats().requests_in_flight == held.len()
        })
        .await;
        // The same subscriber.
        let same = client(format!("2001:db8:0:{number}ff::2")).send(transaction()).await;
        assert_eq!(same.error(), refused(429, "caller_requests"));
    }
    let fifth = client("2001:db8:0:ff00::1".to_owned()).send(transaction()).await;
    assert_eq!(fifth.error(), refused(429, "caller_requests"));
    let other = tokio::spawn(client("2001:db8:1::1".to_owned()).send(transaction()));
    wait_until("the request of another site is in flight", || {
        server.gate.stats().requests_in_flight == 5
    })
    .await;
    drop(permits);
    other.await.unwrap().result();
}

/// A long body takes milliseconds to parse, and anyone can sign one.
#[tokio::test]
async fn known_signers_are_served_first_and_short_signed_requests_second() {
    let known = PrivateKeySigner::random();
    let address = known.address();
    let server = Setup::default()
        .start(|_| {}, |host| host.with_known_signers(move |signer| signer == address));
    let held = server.hold_permits();
    assert_eq!(held.len(), 1, "one at a time");
    let (long, short) = (vec!["a builder".to_owned(); 10_000], Vec::new());
    let (unsigned, stranger) = (server.client(ONE), server.signed(&PrivateKeySigner::random()));
    let mut sent = Vec::new();
    for (block, builders, client) in [
        (1, &long, &stranger),
        (2, &short, &unsigned),
        (3, &short, &stranger),
        (4, &long, &server.signed(&known)),
    ] {
        let bundle = json!([{ "txs": [raw(0)], "blockNumber": block, "builders": builders }]);
        sent.push(tokio::spawn(client.clone().send(request("eth_sendBundle", bundle))));
        wait_until("the request waits", || server.gate.stats().work_waited == block).await;
    }
    let wait = |_| Box::pin(server.gate.acquire_external(Priority::Known, Instant::now()));
    let mut others: Vec<_> = (4..load_control::MAX_PERMIT_WAITERS).map(wait).collect();
    assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
    let beyond = server.client(OTHER).send(transaction()).await;
    assert_eq!(beyond.error(), refused(503, "permit_queue_full"));
    drop((others, held));
    for answer in join_all(sent).await {
        answer.unwrap().result();
    }
    let served: Vec<_> = bundles(server.pool.subscribe_all()).iter().map(Bundle::block).collect();
    assert_eq!(served, [4, 3, 1, 2].map(Some));
}

/// The pool divides its capacity by holder. A known signer had lost orders to a crowd, and others
/// had lost theirs to fresh keys of one address.
#[tokio::test]
async fn an_order_is_held_by_its_known_signer_or_its_sending_address() {
    let (known, fresh) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let (front, known_holder) = ([127, 0, 0, 8], Holder::Signer(known.address()));
    let mut config = OrderRpcConfig { known_signers: vec![known.address()], ..config() };
    config.trusted_fronts = vec![front.into()];
    let server = start(config);
    let mut pooled = server.pool.subscribe_all();
    for (client, holder) in [
        (server.client(ONE).signed(&known), known_holder),
        (server.client(OTHER).signed(&known), known_holder),
        (server.client(ONE).signed(&fresh), Holder::caller(ONE.into())),
        (server.client(OTHER), Holder::caller(OTHER.into())),
        (server.client(front), Holder::Forwarded { front: front.into(), signer: None }),
    ] {
        let bundle = ("eth_sendBundle", json!([{ "txs": [raw(0)] }]));
        for (method, params) in [bundle, ("eth_sendRawTransaction", json!([raw(0)]))] {
            client.clone().call(method, params).await.result();
            let Some(Ok(Event::Added(order))) = pooled.try_next() else { panic!("not pooled") };
            assert_eq!(order.holder(), holder, "{method} of {client:?}");
        }
    }
}

/// A request that claims a known signer is served before others, so a false claim must not be
/// cheap. It was never verified if every call failed before it needed the signature.
#[tokio::test]
async fn forged_signatures_spend_the_callers_quota_whatever_the_calls_are() {
    let (victim, forger) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let no_params = request("eth_cancelBundle", json!([]));
    for (body, is_known) in [
        (cancellation(), false),
        (no_params.clone(), true),
        (no_params + &" ".repeat(9_000), true),
        ("{".repeat(9_000), true),
    ] {
        let server = limited(|limits| {
            limits.config.caller_quota = Some(Quota { per_second: 1, burst: 1_000 });
            limits.config.known_signers = vec![victim.address(); usize::from(is_known)];
        });
        let right = signature(&victim, body.as_bytes());
        let forged = forged(&forger, body.as_bytes(), &victim);
        for (address, header, expected) in [(OTHER, forged, 2..=4), (ONE, right, 0..=0)] {
            let client = server.client(address).with(SIGNATURE, &header);
            let mut refusals = 0;
            for _ in 0..8 {
                refusals += usize::from(client.clone().send(&body).await.status == 429);
            }
            assert!(expected.contains(&refusals), "{refusals} of {} bytes", body.len());
        }
        server.signed(&victim).send(cancellation()).await.result();
    }
}

/// One copy of a known signer's request, which every other builder has, made any address a signed
/// caller. Each copy was served before everybody else's requests.
#[tokio::test]
async fn a_copy_of_a_known_signers_request_gains_its_sender_nothing() {
    let known = PrivateKeySigner::random();
    let config = OrderRpcConfig { known_signers: vec![known.address()], ..config() };
    let gate = gate_config(16);
    let server = Setup { config, gate, ..Setup::default() }.limited(|_| {});
    let bundle = request("eth_sendBundle", json!([{ "txs": [raw(0)], "blockNumber": 5 }]));
    server.signed(&known).send(&bundle).await.result();
    let accepted = || server.counted.sum("order_rpc_accepted_total", "eth_sendBundle");
    assert_eq!(accepted(), 1);

    let held = server.hold_permits();
    let mut signed = Box::pin(server.gate.acquire_external(Priority::Signed, Instant::now()));
    assert!((&mut signed).now_or_never().is_none());
    let waiting = server.gate.stats().work_waited;
    let copy = tokio::spawn(server.client(OTHER).signed(&known).send(bundle.clone()));
    wait_until("the copy waits", || server.gate.stats().work_waited > waiting).await;
    drop(held);
    let permit = signed.await.unwrap();
    assert_eq!(accepted(), 1, "the copy was served first");
    drop(permit);
    copy.await.unwrap().result();
    server.wait_until_nothing_is_held().await;

    // Only the signer's own address has the reserved place.
    let permits = server.hold_permits();
    let header = signature(&known, b"");
    let mut strangers = Vec::new();
    for number in 0..15 {
        let client = server.client([127, 0, 1, number]).with(SIGNATURE, &header);
        strangers.push(send_whole(&client).await);
    }
    wait_until("they are in flight", || server.gate.stats().requests_in_flight == 15).await;
    let beyond = server.client(OTHER).signed(&known).send(&bundle).await;
    assert_eq!(beyond.error(), refused(503, "too_many_requests"));
    let own = tokio::spawn(server.signed(&known).send(bundle));
    wait_until("it is in flight", || server.gate.stats().requests_in_flight == 16).await;
    drop(permits);
    own.await.unwrap().result();
}
