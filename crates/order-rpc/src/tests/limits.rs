//! Cheap checks run before expensive ones, and expensive work is charged.

use order_pool::{Block, Head};

use super::{blobs::*, *};

/// A searcher sends a bundle again for each block, and raises a fee with a new transaction that has
/// the same blobs.
#[tokio::test]
async fn a_verified_blob_needs_no_proof_in_another_order() {
    // Enough for three blobs at 200 each and the other work, not for verifying each blob again.
    let server = with_caller_quota(800);
    // Returns the number of permits that were taken, and the answer.
    let send = async |tx: &str, block: &str| {
        let before = server.gate.stats().work_admitted;
        let bundle = json!([{ "txs": [raw(0), tx], "blockNumber": block }]);
        let answer = server.call("eth_sendBundle", bundle).await;
        (server.gate.stats().work_admitted - before, answer)
    };
    let ((right, wrong), (another_signers, _)) = (with_blobs(2), with_blobs(2));
    for (tx, block, expected, why) in [
        (&right, "0x5", 1 + 2, "the senders, and each blob"),
        (&right, "0x6", 1, "the same blobs"),
        (&another_signers, "0x6", 1, "the same blobs in another transaction"),
    ] {
        let (permits, answer) = send(tx, block).await;
        assert_eq!(permits, expected, "{why}");
        assert!(answer.result()["bundleHash"].is_string(), "{why}");
    }
    // With other proofs, which were not verified before.
    let (permits, refused) = send(&wrong, "0x7").await;
    assert_eq!((permits, refused.field_error()), (1 + 1, ("sidecar", "txs[1]".to_owned())));
    assert_eq!(server.pool.len(), 3);
}

#[tokio::test]
async fn a_bundle_for_no_possible_block_is_refused_before_decoding() {
    let server = start(config());
    let head = Head { timestamp: 1_000, ..Head::new(100, B256::repeat_byte(1), B256::ZERO) };
    server.pool.on_head(Block::new(head, vec![]));
    for (field, value, expected) in [
        ("blockNumber", 100, "params"),
        ("blockNumber", 100 + 65, "params"),
        ("blockNumber", 100 + 64, "undecodable"),
        ("maxTimestamp", 1, "params"),
        ("maxTimestamp", 1_000, "params"),
        ("maxTimestamp", 1_001, "undecodable"),
        ("maxTimestamp", 0, "undecodable"),
    ] {
        let bundle = json!([{ "txs": ["0x02"], field: value }]);
        let answer = server.call("eth_sendBundle", bundle).await;
        let named = if expected == "params" { field } else { "txs[0]" };
        assert_eq!(answer.field_error(), (expected, named.to_owned()), "{value}");
    }
}

/// The address pays, however many keys its caller makes up.
#[tokio::test]
async fn fresh_keys_do_not_evade_the_quota_of_their_address() {
    // Enough for three requests of 93: two for the body, one for the signature of the request, and
    // 90 for its transactions.
    let server = with_caller_quota(300);
    let bundle = json!([{ "txs": (0..90).map(raw).collect::<Vec<_>>() }]);
    for status in [200, 200, 200, 429] {
        let client = server.signed(&PrivateKeySigner::random());
        assert_eq!(client.call("eth_sendBundle", bundle.clone()).await.status, status);
    }
    assert_eq!(server.counted.reason("caller_quota"), 1);
    server.client(OTHER).send(transaction()).await.result();
}

/// A broken body cost nothing, and a caller without quota had its bodies parsed all the same.
#[tokio::test]
async fn a_body_is_charged_before_it_is_parsed() {
    // Enough for two requests of 65: one for the head and one for each 16 KiB.
    let server = with_caller_quota(130);
    let broken = vec![b' '; 1 << 20];
    let no_json = (400, -32700, "not_json");
    for expected in [no_json, no_json, refused(429, "caller_quota")] {
        assert_eq!(server.send(&broken).await.error(), expected);
    }
    // Nothing is parsed for a signer without quota either.
    let server = with_quota(2);
    let header = signature(&PrivateKeySigner::random(), cancellation().as_bytes());
    let signed = server.client(ONE).with(SIGNATURE, &header);
    // On a slow machine some of the quota is refilled between two requests.
    for attempt in 0.. {
        signed.clone().send(cancellation()).await;
        let answer = signed.clone().send("{").await.error();
        if answer == refused(429, "quota") {
            break;
        }
        assert!(attempt < 100 && answer.2 == "not_json", "{answer:?}");
    }
}

/// A body that never ended cost nothing.
#[tokio::test]
async fn an_abandoned_request_costs_its_head_and_the_bytes_that_arrived() {
    // The first request costs 64 of them: one for its head and one for each full 16 KiB.
    let server = with_caller_quota(70);
    let (mut body, mut given_up) = ((1 << 20, " ".repeat((1 << 20) - 10)), 0);
    while server.counted.reason("caller_quota") == 0 {
        assert!(given_up < 20, "abandoned requests cost nothing");
        let socket = server.client(ONE).send_partial(body.0, &body.1).await;
        let is_read = || server.held()[3] == body.1.len();
        wait_until("the body is read", || is_read() || server.counted.reason("caller_quota") > 0)
            .await;
        drop(socket);
        server.wait_until_nothing_is_held().await;
        (body, given_up) = ((100, "{".to_owned()), given_up + 1);
    }
    assert!((5..10).contains(&given_up), "{given_up}");
}

/// Pipelined requests for the health of the server cost nothing, and made known signers wait for
/// seconds.
#[tokio::test]
async fn gets_and_refusals_cost_a_unit_and_without_quota_the_connection_ends() {
    let post =
        |client: Client| client.head("POST", "/", 0).replace("application/json", "text/html");
    let get = |client: Client| client.head("GET", "/healthz", 0);
    for (text, status) in
        [(get(start(config()).client(ONE)), 200), (post(start(config()).client(ONE)), 415)]
    {
        let server = with_caller_quota(200);
        let mut socket = server.client(ONE).connect().await;
        for number in 0.. {
            let answer = exchange(&mut socket, &text).await.expect("open");
            if answer.status != status {
                assert_eq!(answer.error(), refused(429, "caller_quota"));
                // 200, and those that were refilled meanwhile, one each second.
                assert!((200..230).contains(&number), "{number}");
                assert_eq!(answer.headers["connection"], "close");
                break;
            }
        }
        wait_until_closed(&mut socket).await;
        let answer = server.client(ONE).get("/healthz").await;
        assert_eq!(answer.error(), refused(429, "caller_quota"));
        assert_eq!(server.client(OTHER).get("/healthz").await.status, 200);
    }
}

/// A body without quota or memory for it was read to its end before it was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_quota_or_memory_is_refused_before_it_is_sent() {
    let refusal = async |server: &Server, length| {
        let client = server.client(ONE);
        client.write(client.head("POST", "/", length)).await.error()
    };
    let server = start(config());
    assert_eq!(refusal(&server, (8 << 20) + 1).await, (413, -32600, "body_too_large"));
    // Enough for one request of 65: one for the head and one for each 16 KiB. 55 are left, so that
    // a second one is refused also ten seconds later.
    let server = with_caller_quota(120);
    assert_eq!(server.send(vec![b' '; 1 << 20]).await.error().2, "not_json");
    assert_eq!(refusal(&server, 1 << 20).await, refused(429, "caller_quota"));
    let full = server.gate.request_limit().unwrap();
    let held: Vec<_> = (0..full).map(|_| server.gate.enter(Instant::now()).unwrap()).collect();
    assert_eq!(refusal(&server, 1_000).await, refused(503, "too_many_requests"));
    drop(held);
    // One caller may hold a quarter of the buffered bytes.
    let small = OrderRpcConfig { max_buffered_bytes: 4 << 20, max_body_bytes: 1 << 20, ..config() };
    let server = start(small);
    let _held = server.client(ONE).send_partial(1 << 20, &" ".repeat(1_000_000)).await;
    wait_until("the body is held", || server.held()[3] >= 1_000_000).await;
    assert_eq!(refusal(&server, 1 << 20).await, refused(429, "caller_buffered_bytes"));
    assert_eq!(server.counted.reason("caller_buffered_bytes"), 1);
    server.client(OTHER).send(transaction()).await.result();
}

/// A request that no quota could ever pay for was answered with a retry-after time.
#[test]
fn inconsistent_limits_are_refused_at_the_start() {
    let quota = |burst| Some(Quota { per_second: 1, burst });
    // A request for which it named no caller would be its own, and so a front's.
    let proxy_and_front = OrderRpcConfig {
        trusted_proxies: vec!["::ffff:127.0.0.1".parse().unwrap()],
        trusted_fronts: vec![ONE.into()],
        ..config()
    };
    for (config, expected) in [
        (
            OrderRpcConfig { max_buffered_bytes: 1 << 20, ..config() },
            "max_buffered_bytes is 1048576, must be at least 8388608 while max_body_bytes is 8388608",
        ),
        (
            OrderRpcConfig { caller_quota: quota(512), ..config() },
            "caller_quota.burst is 512, must be at least 513 while max_body_bytes is 8388608",
        ),
        (
            OrderRpcConfig { quota: quota(199), ..config() },
            "quota.burst is 199, must be between 200 and 4294967295",
        ),
        (
            proxy_and_front,
            "::ffff:127.0.0.1 is in trusted_proxies and in trusted_fronts, must be in one",
        ),
    ] {
        assert_eq!(config.validate().unwrap_err().to_string(), expected);
    }
}

/// A bundle costs as much as its transactions, and a refused request costs its signer nothing.
#[tokio::test]
async fn a_quota_counts_work_and_not_requests() {
    let server = with_quota(1_000);
    let signer = PrivateKeySigner::random();
    let send = |txs: &[String]| {
        server.signed(&signer).send(request("eth_sendBundle", json!([{ "txs": txs }])))
    };
    let valid = |count| (0..count).map(raw).collect::<Vec<_>>();
    for _ in 0..100 {
        assert_eq!(send(&["0x02".to_owned()]).await.error().2, "undecodable");
    }
    // Each costs 101 of 1,000, and one unit is refilled each second, so on a slow machine more than
    // nine are accepted.
    let began = Instant::now();
    let mut accepted = 0;
    let refusal = loop {
        let answer = send(&valid(100)).await;
        if answer.status != 200 {
            break answer;
        }
        accepted += 1;
        assert!(accepted * 101 <= 1_000 + began.elapsed().as_secs(), "{accepted} accepted");
    };
    assert!(accepted >= 9, "{accepted} accepted");
    assert_eq!(refusal.error(), refused(429, "quota"));
    assert_eq!(server.counted.reason("quota"), 1);
    if accepted == 9 {
        // Ten units are missing.
        assert!(refusal.json()["error"]["data"]["retryAfterMs"].as_u64().unwrap() <= 10_000);
        assert_eq!(send(&valid(10)).await.status, 200, "there is still some left");
    }
    // The quota of a signer counts per address. A copy of one signed request, sent from anywhere,
    // was enough to keep its signer out.
    let elsewhere = server.client(OTHER).signed(&signer);
    elsewhere.call("eth_sendBundle", json!([{ "txs": valid(100) }])).await.result();
    // A forged claim spends nothing of the claimed signer's quota.
    let modest = PrivateKeySigner::random();
    let header = forged(&signer, cancellation().as_bytes(), &modest);
    let forged = server.client(ONE).with(SIGNATURE, &header).send(cancellation()).await;
    assert_eq!(forged.status, 401);
    assert_eq!(server.signed(&modest).send(cancellation()).await.status, 200);
}

/// A batch is served up to its quota. If it were charged as a whole it could never pass.
#[tokio::test]
async fn a_batch_above_the_burst_is_served_up_to_the_burst() {
    let server = with_quota(250);
    let bundle = || ("eth_sendBundle", json!({ "txs": (0..100).map(raw).collect::<Vec<_>>() }));
    let body = batch(&[bundle(), bundle(), bundle()]);
    let answer = server.signed(&PrivateKeySigner::random()).send(body).await;
    assert_eq!(answer.reasons(), [None, None, Some("quota")]);
    assert_eq!(server.pool.len(), 2);
}
