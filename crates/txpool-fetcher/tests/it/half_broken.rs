//! Nodes with the quirks of other clients, proxies and load balancers: what the pool holds, and
//! what an operator reads.

use mock_node::{
    AnswerIds, IncompleteBlobs, IncompleteForm, MethodQuirk, MockNode, OddLine, Quirks, Topic,
};

use super::{
    fake::{CHAIN_ID, Fake, FakeBlock, Reply, config_of},
    *,
};

/// Starts a live fetcher at a node with these quirks.
async fn ingest_with_quirks(node: &Node, quirks: Quirks) -> (Fetcher, OrderPool) {
    node.node.set_quirks(|current| *current = quirks);
    ingest_fast(configured(node.fetcher(), |config| config.audit_interval = None)).await
}

/// A node may announce a hash before it can return its transaction.
#[tokio::test]
async fn null_shortly_after_the_announcement_is_requested_again() {
    let node = Node::start(200, |config| config);
    let null_after_announcement = Duration::from_millis(50);
    let (fetcher, pool) =
        ingest_with_quirks(&node, Quirks { null_after_announcement, ..Quirks::default() }).await;
    let counts = pool_all(&node, &fetcher).await;
    assert_eq!((counts.gone, pool.len()), (0, 200), "{counts:?}");
}

/// Requests wait longer than the node takes, and a late response is used.
#[tokio::test]
async fn a_node_that_responds_late_loses_nothing() {
    let node = Node::start(100, |config| config);
    let (fetcher, pool) = ingest_with_quirks(&node, Quirks::default()).await;
    node.node.set_quirks(|quirks| quirks.delay = Duration::from_millis(2_500));
    for txs in node.txs.chunks(10) {
        submit(&node, txs);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let counts = settled(&fetcher, "all are pooled", |counts| counts.pooled == 100).await;
    assert_eq!((counts.failed, pool.len()), (0, 100), "{counts:?}");
    let requested = node.node.stats().methods["eth_getRawTransactionByHash"];
    assert!(requested <= 2 * 100 + 1, "at most two requests for each: {requested}");
}

/// Three clients never list them, so an audit would not recover them.
#[tokio::test]
async fn an_incomplete_blob_transaction_is_requested_until_it_is_complete() {
    for form in [IncompleteForm::NoSidecar, IncompleteForm::ElidedBlobs] {
        for (time, expected) in [(Duration::from_secs(1), 3), (Duration::MAX, 0)] {
            let mix = Mix { blobs_per_mille: 1_000, ..Mix::default() };
            let node = Node::with_mix(3, mix, |config| config);
            let incomplete = IncompleteBlobs { form, time };
            let quirks = Quirks { incomplete_blobs: Some(incomplete), ..Quirks::default() };
            let (fetcher, pool) = ingest_with_quirks(&node, quirks).await;
            node.submit_all();
            let counts =
                settled(&fetcher, "all have left", |counts| counts.pooled + counts.no_sidecar == 3);
            let counts = counts.await;
            assert_eq!(pool.len(), expected, "{form:?} for {time:?}: {counts:?}");
        }
    }
}

#[tokio::test]
async fn typed_transactions_in_an_rlp_string_are_read() {
    let node = Node::start(100, |config| config);
    let (fetcher, pool) =
        ingest_with_quirks(&node, Quirks { wraps_raw: true, ..Quirks::default() }).await;
    let counts = pool_all(&node, &fetcher).await;
    assert_eq!((counts.malformed, pool.len()), (0, 100), "{counts:?}");
}

/// A node with an error code of its own for an unknown hash is accepted.
#[tokio::test]
async fn a_node_without_raw_transactions_is_refused_and_named() {
    for code in [-32601, -32602] {
        let node = Node::start(1, |config| config);
        let missing = MethodQuirk::Error(code);
        node.node.set_quirks(|quirks| {
            quirks.methods = [("eth_getRawTransactionByHash".into(), missing)].into();
        });
        let error = Fetcher::start(node.fetcher(), order_pool()).await.unwrap_err().to_string();
        assert!(error.contains("has no eth_getRawTransactionByHash"), "{error}");
    }
    for code in [4444, 1] {
        let node = Node::start(20, |config| config);
        let methods = [("web3_clientVersion".into(), MethodQuirk::Error(-32601))].into();
        let quirks = Quirks { unknown_error: Some(code), methods, ..Quirks::default() };
        let (fetcher, pool) = ingest_with_quirks(&node, quirks).await;
        pool_all(&node, &fetcher).await;
        assert_eq!(pool.len(), 20);
        let client = fetcher.status()[0].node.clone().map(|node| node.client);
        assert_eq!(client.as_deref(), Some("unknown"));
    }
}

#[tokio::test]
async fn the_error_shows_a_first_response_that_cannot_be_used() {
    let quirks = [
        (Quirks { html_first: true, ..Quirks::default() }, "<"),
        (Quirks { ids: AnswerIds::Text, ..Quirks::default() }, "\\\"id\\\":\\\"1\\\""),
    ];
    for (quirks, expected) in quirks {
        let node = Node::start(1, |config| config);
        node.node.set_quirks(|current| *current = quirks);
        let limits = Limits { ping_timeout: Duration::from_millis(300), ..Limits::default() };
        let started = Fetcher::start_with(node.fetcher(), limits, order_pool()).await;
        let error = started.unwrap_err().to_string();
        assert!(error.contains("it sent: ") && error.contains(expected), "{error}");
    }
}

/// Whatever the node sends, lost hashes are counted, and the source is live again.
#[tokio::test]
async fn odd_lines_and_responses_cost_a_reconnect_at_most() {
    for line in OddLine::ALL {
        let node = Node::start(100, |config| config);
        let (fetcher, pool) = ingest_with_quirks(&node, Quirks::default()).await;
        let (first, rest) = node.txs.split_at(50);
        submit(&node, first);
        node.node.inject(Fault::SendLine { line, target: Target::All });
        submit(&node, rest);
        settled(&fetcher, "all are pooled", |counts| counts.pooled == 100).await;
        eventually("it is live", || fetcher.is_live()).await;
        assert_eq!((pool.len(), fetcher.counts().balance()), (100, 0), "{line:?}");
    }
    for quirks in [
        Quirks { answers_twice: true, ..Quirks::default() },
        Quirks { reverse_window: Duration::from_millis(20), ..Quirks::default() },
    ] {
        let node = Node::start(100, |config| config);
        let (fetcher, pool) = ingest_with_quirks(&node, quirks).await;
        pool_all(&node, &fetcher).await;
        assert_eq!((pool.len(), fetcher.status()[0].reconnects), (100, 0));
    }
}

/// Before the fix the reader of a subscription kept its own connection open: each subscription that
/// was given up left its sockets behind, and its announcements counted again for ever.
#[tokio::test]
async fn the_sockets_of_a_subscription_that_was_given_up_are_closed() {
    let node = Node::start(50, |config| config);
    let limits = Limits {
        ping_interval: Duration::from_millis(50),
        ping_timeout: Duration::from_secs(1),
        ..settles_fast()
    };
    let config = configured(node.fetcher(), |config| {
        config.announcements = Announcements::Full;
        config.audit_interval = None;
        config.request_connections = 1;
    });
    let (fetcher, pool) = ingest_with(config, limits).await;
    // Two subscription connections and one for requests, once that of the list is closed.
    let open = || node.node.stats().connections_open;
    eventually("three connections are open", || open() == 3).await;
    let time = Duration::from_secs(4);
    node.node.inject(Fault::Stall { target: Target::Subscription, time });
    eventually("it is given up", || fetcher.status()[0].reconnects > 0).await;
    eventually("it is live", || fetcher.is_live()).await;
    eventually("the old connections are closed", || open() == 3).await;
    let counts = pool_all(&node, &fetcher).await;
    // On a busy machine a ping may time out once more, and some are backfilled.
    assert!(counts.announced <= 50, "{counts:?}");
    assert_eq!(pool.len(), 50);
}

/// Before the fix most responses to pings were not noticed, so a node without any other message was
/// disconnected after each ping.
#[tokio::test]
async fn an_idle_node_that_answers_its_pings_stays_connected() {
    let node = Node::start(0, |config| config);
    let limits = Limits {
        ping_interval: Duration::from_millis(20),
        ping_timeout: Duration::from_secs(1),
        ..settles_fast()
    };
    let (fetcher, _pool) = ingest_with(node.fetcher(), limits).await;
    eventually("it is live", || fetcher.is_live()).await;
    // Some hundred pings of each connection, of which one without a response is enough.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!((fetcher.status()[0].reconnects, fetcher.is_live()), (0, true));
}

/// Each transaction would be delayed by the wait for its object.
#[tokio::test]
async fn a_silent_subscription_to_objects_is_given_up() {
    let node = Node::start(400, |config| config);
    let announcements = Announcements::Auto;
    let config = configured(node.fetcher(), |config| {
        config.announcements = announcements;
        config.audit_interval = None;
        config.request_connections = 1;
    });
    let (fetcher, pool) = ingest_fast(config).await;
    let announces = || fetcher.status()[0].announcements;
    assert_eq!(announces(), Announcements::Full);
    node.node.set_quirks(|quirks| quirks.silent = [Topic::Objects].into());
    for txs in node.txs.chunks(4) {
        submit(&node, txs);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    settled(&fetcher, "all are pooled", |counts| counts.pooled == 400).await;
    assert_eq!((pool.len(), announces()), (400, Announcements::Hashes));
    assert_eq!((fetcher.status()[0].reconnects, fetcher.is_live()), (0, true));
    let are_closed = || node.node.stats().connections_open == 2;
    eventually("only the connections for hashes and requests are open", are_closed).await;
}

/// Otherwise the source would be live while the pool stays empty.
#[tokio::test]
async fn a_source_is_failing_until_a_request_for_a_transaction_succeeds() {
    for quirk in [MethodQuirk::Error(-32_000), MethodQuirk::NoAnswer] {
        let node = Node::start(40, |config| config);
        let limits = Limits { fetch_timeout: Duration::from_millis(200), ..settles_fast() };
        let audit_interval = Some(Duration::from_secs(1));
        let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
        let (fetcher, pool) = ingest_with(config, limits).await;
        let methods = [("eth_getRawTransactionByHash".into(), quirk)].into();
        node.node.set_quirks(|quirks| quirks.methods = methods);
        let (first, rest) = node.txs.split_at(20);
        submit(&node, first);
        let is_failing = || fetcher.status()[0].state == SourceState::Failing;
        eventually("it is failing", is_failing).await;
        assert!(!fetcher.is_live() && !fetcher.is_ready());
        let reason = |error: &SourceError| {
            matches!(error, SourceError::Lost(LossReason::NoTransactions { requests: 8.., .. }))
        };
        let was_reopened = || fetcher.status()[0].last_error.as_deref().is_some_and(reason);
        eventually("its connections were opened again", was_reopened).await;
        node.node.set_quirks(|quirks| quirks.methods.clear());
        submit(&node, rest);
        eventually("it is live, and all are pooled", || fetcher.is_live() && pool.len() == 40)
            .await;
    }
}

#[tokio::test]
async fn a_source_that_lists_transactions_and_never_returns_them_has_a_gap_and_is_failing() {
    let node = Node::start(40, |config| config);
    let null_after_announcement = Duration::MAX;
    node.node.set_quirks(|quirks| quirks.null_after_announcement = null_after_announcement);
    let (first, rest) = node.txs.split_at(20);
    let (fetcher, pool) = fails_with_an_open_gap(&node, first).await;
    // A block takes what it never returned.
    node.node.mine();
    eventually("it is live again", || fetcher.is_live() && !has_open_gap(&fetcher)).await;
    node.node.set_quirks(|quirks| *quirks = Quirks::default());
    submit(&node, rest);
    eventually("the others are pooled", || pool.len() == 20).await;
}

#[tokio::test]
async fn a_source_that_returns_other_transactions_has_a_gap_and_is_failing() {
    let node = Node::start(40, |config| config);
    node.node.inject(Fault::Answers { bad: BadAnswer::WrongTransaction, count: u32::MAX });
    fails_with_an_open_gap(&node, &node.txs).await;
}

/// Before the fixes the source was live with an empty pool, and no gap was open.
async fn fails_with_an_open_gap(node: &Node, txs: &[PreparedTx]) -> (Fetcher, OrderPool) {
    submit(node, txs);
    let audit_interval = Some(Duration::from_millis(300));
    let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
    let (fetcher, pool) = ingest_with(config, settles_fast()).await;
    eventually("two audits", || fetcher.status()[0].audits >= 3).await;
    assert!(has_open_gap(&fetcher) && pool.is_empty());
    let is_failing = || fetcher.status()[0].state == SourceState::Failing;
    timeout(3 * FAILS_WITHIN, eventually("it is failing", is_failing)).await.expect("in time");
    assert!(!fetcher.is_ready());
    (fetcher, pool)
}

fn has_open_gap(fetcher: &Fetcher) -> bool {
    fetcher.status()[0].gaps.iter().any(|gap: &Gap| gap.closed_at.is_none())
}

/// How long a source is failing before it counts as that.
const FAILS_WITHIN: Duration = Duration::from_secs(10);

/// What a block takes while the list is read, or what is replaced, has no effect.
#[tokio::test]
async fn transactions_that_leave_a_node_while_they_are_fetched_do_not_make_it_failing() {
    let node = Node::start(40, |config| config);
    node.node.set_quirks(|quirks| {
        quirks.null_after_announcement = Duration::MAX;
        quirks.silent = [Topic::Hashes].into();
    });
    let config = configured(node.fetcher(), |config| config.audit_interval = None);
    let (fetcher, pool) = ingest_with(config, settles_fast()).await;
    submit(&node, &node.txs);
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.failed), (40, 40), "they may still be there");
    node.node.mine();
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.failed), (0, 0));
    tokio::time::sleep(FAILS_WITHIN + Duration::from_secs(1)).await;
    assert!(fetcher.is_ready() && pool.is_empty());
}

/// Before the fix it was live for ever: an error is an answer to a ping.
#[tokio::test]
async fn a_source_that_announces_nothing_and_answers_only_with_errors_is_not_live() {
    let node = Node::start(20, |config| config);
    let limits = Limits { ping_interval: Duration::from_millis(50), ..settles_fast() };
    let audit_interval = Some(Duration::from_secs(1));
    let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
    let (fetcher, pool) = ingest_with(config, limits).await;
    let methods = ["eth_blockNumber", "eth_getBlockByNumber", "txpool_content"];
    node.node.set_quirks(|quirks| {
        quirks.silent = [Topic::Hashes, Topic::Heads].into();
        quirks.methods = methods.map(|name| (name.into(), MethodQuirk::Error(-32_000))).into();
    });
    submit(&node, &node.txs);
    let is_not_live = || !fetcher.is_live();
    timeout(3 * FAILS_WITHIN, eventually("it is not live", is_not_live)).await.expect("in time");
    let reconnects = || fetcher.status()[0].reconnects;
    eventually("it reconnects", || reconnects() > 0).await;
    let is_failing = || fetcher.status()[0].state == SourceState::Failing;
    eventually("it is failing", is_failing).await;
    node.node.set_quirks(|quirks| *quirks = Quirks::default());
    eventually("all are pooled", || fetcher.is_live() && pool.len() == 20).await;
}

/// Before the fix each was kept as long as the connection lived, without a bound.
#[tokio::test]
async fn a_connection_is_opened_again_after_many_requests_without_an_answer() {
    let node = Fake::start();
    let config = WorkloadConfig { accounts: 20, ..WorkloadConfig::new(7, CHAIN_ID) };
    let txs = Workload::new(config).prepare(200);
    for tx in txs.iter().step_by(2) {
        node.lock().replies.insert(tx.hash, Reply::Never);
    }
    let limits =
        Limits { fetch_timeout: Duration::from_millis(50), max_unanswered: 50, ..settles_fast() };
    let config = configured(node.config(), |config| {
        config.backfill = Backfill::Off;
        config.audit_interval = Some(Duration::from_secs(1));
        config.request_connections = 1;
    });
    let (fetcher, pool) = ingest_with(config, limits).await;
    txs.iter().for_each(|tx| node.announce_tx(tx));
    let is_reason = |error: &SourceError| {
        matches!(error, SourceError::Lost(LossReason::Unanswered { requests: 50.. }))
    };
    let was_reopened = || fetcher.status()[0].last_error.as_deref().is_some_and(is_reason);
    timeout(FAILS_WITHIN, eventually("it was opened again", was_reopened)).await.expect("in time");
    node.lock().replies.clear();
    eventually("all are pooled", || pool.len() == 200).await;
    settled(&fetcher, "they balance", |counts| counts.pooled == 200).await;
}

/// Before the fix it stayed failing for ever: with nothing left to request, no response could show
/// that it works.
#[tokio::test]
async fn a_failing_source_is_live_again_when_an_audit_finds_nothing_missing() {
    let node = Node::start(20, |config| config);
    let limits = Limits { fetch_timeout: Duration::from_millis(200), ..settles_fast() };
    let audit_interval = Some(Duration::from_secs(1));
    let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
    let (fetcher, pool) = ingest_with(config, limits).await;
    let methods = [("eth_getRawTransactionByHash".into(), MethodQuirk::Error(-32_000))].into();
    node.node.set_quirks(|quirks| quirks.methods = methods);
    submit(&node, &node.txs);
    let is_failing = || fetcher.status()[0].state == SourceState::Failing;
    eventually("it is failing", is_failing).await;
    // A block takes the transactions out of the node's pool.
    node.node.mine();
    eventually("it is live", || fetcher.is_live()).await;
    assert_eq!(pool.len(), 0);
}

/// Before the fix each head waited for seven time-outs, and the heads fell ever further behind.
#[tokio::test]
async fn heads_keep_the_pace_of_a_node_that_does_not_return_its_blocks() {
    for quirk in [MethodQuirk::NoAnswer, MethodQuirk::Error(-32_000)] {
        let node = Node::start(1, |config| config);
        let limits = Limits { call_timeout: Duration::from_millis(300), ..settles_fast() };
        let (fetcher, pool) = ingest_with(node.fetcher(), limits).await;
        let methods = [("eth_getBlockByHash".into(), quirk)].into();
        node.node.set_quirks(|quirks| quirks.methods = methods);
        for _ in 0..50 {
            node.node.mine();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (latest, followed) =
            (node.node.head().number, pool.head().map_or(0, |head| head.number));
        assert!(latest >= 50 && latest - followed <= 10, "{quirk:?}: {followed} of {latest}");
        let is_open = |gap: &Gap| gap.reason == GapReason::UnreadBlock && gap.closed_at.is_none();
        assert!(fetcher.status()[0].gaps.iter().any(is_open), "{quirk:?}: the gap is open");
        node.node.set_quirks(|quirks| quirks.methods.clear());
        let (hash, number) = (node.txs[0].hash, latest + 1);
        submit(&node, &node.txs);
        eventually("it is pooled", || pool.contains(&hash)).await;
        node.node.mine();
        eventually("its block is read again", || {
            pool.head().is_some_and(|head| head.number == number) && !pool.contains(&hash)
        })
        .await;
    }
}

/// The timestamps of its heads look old to a machine whose clock is ahead.
#[tokio::test]
async fn a_node_with_regular_heads_is_live_although_our_clock_is_ahead() {
    let quirks = Quirks { clock_offset_s: -90, is_syncing: true, ..Quirks::default() };
    let node = Node::start(1, |config| NodeConfig {
        block_time: Duration::from_secs(1),
        quirks,
        ..config
    });
    let pool = order_pool();
    let limits = Limits { ping_interval: Duration::from_millis(50), ..settles_fast() };
    let fetcher = Fetcher::start_with(node.fetcher(), limits, pool.clone()).await.unwrap();
    eventually("it counts as syncing", || fetcher.status()[0].state == SourceState::Syncing).await;
    eventually("it is live", || fetcher.is_live()).await;
    let head = pool.head().map(|head| head.number);
    eventually("the head goes on", || pool.head().map(|head| head.number) > head).await;
}

/// A pool that keeps transactions for a second after no node lists them.
fn pool_with_short_retention() -> OrderPool {
    let tx_retention = Duration::from_secs(1);
    OrderPool::new(configured(PoolConfig::default(), |config| config.tx_retention = tx_retention))
        .expect("it is valid")
}

/// Waits until all transactions have expired.
async fn all_expired(pool: &OrderPool) {
    let is_empty = || {
        pool.upkeep();
        pool.is_empty()
    };
    eventually("they have left", is_empty).await;
}

/// Otherwise they would stay until the pool is full.
#[tokio::test]
async fn listed_transactions_expire_once_the_node_cannot_be_listed() {
    let node = Node::start(10, |config| config);
    let pool = pool_with_short_retention();
    let audit_interval = Some(Duration::from_millis(300));
    let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
    let fetcher = start_with(config, settles_fast(), pool.clone()).await;
    pool_all(&node, &fetcher).await;
    let missing = MethodQuirk::Error(-32_601);
    let methods = [("txpool_content".into(), missing)].into();
    node.node.set_quirks(|quirks| quirks.methods = methods);
    eventually("it is not audited", || !fetcher.status()[0].audited).await;
    all_expired(&pool).await;
    // It can be listed again.
    node.node.set_quirks(|quirks| quirks.methods.clear());
    eventually("what is pending there comes back", || pool.len() == 10).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    pool.upkeep();
    assert_eq!(pool.len(), 10);
}

/// Before the fix it expired, and came back with the next audit of the other node, because the node
/// that announced it first does not list its pool.
#[tokio::test]
async fn a_transaction_of_a_node_that_is_not_listed_stays_while_another_one_lists_it() {
    let (_folder, path) = socket();
    let unlisted = MockNode::start(NodeConfig::new(&path)).unwrap();
    let stop_listing = |node: &MockNode| {
        let methods = [("txpool_content".into(), MethodQuirk::Error(-32_601))].into();
        node.set_quirks(|quirks| quirks.methods = methods);
    };
    stop_listing(&unlisted);
    let listed_path = path.with_extension("listed");
    let listed = MockNode::start_beside(NodeConfig::new(&listed_path), &unlisted, []).unwrap();
    let endpoints = [path, listed_path].map(Endpoint::Ipc);
    let audit_interval = Some(Duration::from_millis(300));
    let config =
        configured(FetcherConfig::new(endpoints), |config| config.audit_interval = audit_interval);
    let pool = pool_with_short_retention();
    let fetcher = start_with(config, settles_fast(), pool.clone()).await;
    all_live(&fetcher).await;
    let [both, one] = unlisted.burst(2).try_into().unwrap();
    eventually("both are pooled", || pool.contains(&both) && pool.contains(&one)).await;
    listed.submit(unlisted.raw(both).unwrap()).unwrap();
    // Three times the retention of transactions that no node lists.
    tokio::time::sleep(Duration::from_secs(3)).await;
    pool.upkeep();
    assert!(pool.contains(&both));
    assert_eq!(fetcher.counts().audit_recovered, 0, "it was there all the time");
    let has_expired = || {
        pool.upkeep();
        !pool.contains(&one)
    };
    eventually("the one that no node lists expires", has_expired).await;
    stop_listing(&listed);
    all_expired(&pool).await;
}

/// Before the fix it was syncing for ever: its dead subscription is noticed only while it is live.
#[tokio::test]
async fn a_source_whose_subscription_died_while_it_was_syncing_is_live_again() {
    let (first, second) = (Fake::start(), Fake::start());
    second.announce(&FakeBlock::new(2, 2, 1, &[]).recent());
    let limits = Limits { ping_interval: Duration::from_millis(50), ..settles_fast() };
    let (fetcher, _pool) = ingest_with(config_of([&first, &second]), limits).await;
    let state = || fetcher.status()[0].state;
    eventually("its head is old", || state() == SourceState::Syncing).await;
    // It has the block, but does not announce it.
    let block = FakeBlock::new(2, 2, 1, &[]).recent();
    first.add(&block);
    first.lock().head = block.hash;
    let is_ready = || fetcher.is_ready();
    timeout(Duration::from_secs(20), eventually("it is live", is_ready)).await.expect("in time");
}
