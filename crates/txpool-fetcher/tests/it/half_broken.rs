//! Nodes that are half broken, as other clients, proxies and load balancers are. What the pool holds, and what an operator
//! reads.

use mock_node::{AnswerIds, IncompleteBlobs, IncompleteForm, MethodQuirk, OddLine, Quirks, Topic};

use super::*;

/// A live fetcher from a node with these quirks.
async fn from(node: &Node, quirks: Quirks) -> (Fetcher, OrderPool) {
    node.node.set_quirks(|current| *current = quirks);
    ingest_fast(FetcherConfig { audit_interval: None, ..node.fetcher() }).await
}

/// Of one source, every transaction was gone, the pool empty and the source live.
#[tokio::test]
async fn null_just_after_the_announcement_is_asked_again() {
    let node = Node::start(200, |config| config);
    let null_after_announcement = Duration::from_millis(50);
    let (fetcher, pool) =
        from(&node, Quirks { null_after_announcement, ..Quirks::default() }).await;
    let counts = pool_all(&node, &fetcher).await;
    assert_eq!((counts.gone, pool.len()), (0, 200), "{counts:?}");
}

/// Nothing came after the first minute, and each was asked for four times.
#[tokio::test]
async fn a_node_that_answers_everything_late_is_late_and_loses_nothing() {
    let node = Node::start(100, |config| config);
    let (fetcher, pool) = from(&node, Quirks::default()).await;
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

/// They left as mined or malformed after one request, and three clients never list them.
#[tokio::test]
async fn a_blob_transaction_that_is_incomplete_for_a_while_comes_when_it_is_complete() {
    for form in [IncompleteForm::NoSidecar, IncompleteForm::ElidedBlobs] {
        for (time, expected) in [(Duration::from_secs(1), 3), (Duration::MAX, 0)] {
            let mix = Mix { blobs_per_mille: 1_000, ..Mix::default() };
            let node = Node::with_mix(3, mix, |config| config);
            let incomplete = IncompleteBlobs { form, time };
            let quirks = Quirks { incomplete_blobs: Some(incomplete), ..Quirks::default() };
            let (fetcher, pool) = from(&node, quirks).await;
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
    let (fetcher, pool) = from(&node, Quirks { wraps_raw: true, ..Quirks::default() }).await;
    let counts = pool_all(&node, &fetcher).await;
    assert_eq!((counts.malformed, pool.len()), (0, 100), "{counts:?}");
}

/// Such a node passed, and one with a code of its own for an unknown hash did not.
#[tokio::test]
async fn a_node_without_raw_transactions_is_named_and_one_with_other_codes_or_no_version_works() {
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
        let (fetcher, pool) = from(&node, quirks).await;
        pool_all(&node, &fetcher).await;
        assert_eq!(pool.len(), 20);
        let client = fetcher.status()[0].node.clone().map(|node| node.client);
        assert_eq!(client.as_deref(), Some("unknown"));
    }
}

/// "Is the node stopped?", it was said.
#[tokio::test]
async fn a_first_answer_that_is_of_no_use_is_shown() {
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

/// Whatever comes, what is lost is counted, and the source is live again.
#[tokio::test]
async fn odd_lines_and_answers_cost_a_reconnect_at_most() {
    for line in OddLine::ALL {
        let node = Node::start(100, |config| config);
        let (fetcher, pool) = from(&node, Quirks::default()).await;
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
        let (fetcher, pool) = from(&node, quirks).await;
        pool_all(&node, &fetcher).await;
        assert_eq!((pool.len(), fetcher.status()[0].reconnects), (100, 0));
    }
}

/// Each transaction was late by the wait for its object, for ever.
#[tokio::test]
async fn a_stream_of_objects_that_has_ended_silently_is_given_up() {
    let node = Node::start(400, |config| config);
    let announcements = Announcements::Auto;
    let config = FetcherConfig { announcements, audit_interval: None, ..node.fetcher() };
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
}

/// It was live with an empty pool, and its connections were never opened again.
#[tokio::test]
async fn a_node_whose_every_request_for_a_transaction_fails_is_not_live_until_one_succeeds() {
    for quirk in [MethodQuirk::Error(-32_000), MethodQuirk::NoAnswer] {
        let node = Node::start(40, |config| config);
        let limits = Limits { fetch_timeout: Duration::from_millis(200), ..settles_fast() };
        let audit_interval = Some(Duration::from_secs(1));
        let config = FetcherConfig { audit_interval, ..node.fetcher() };
        let (fetcher, pool) = ingest_with(config, limits).await;
        let methods = [("eth_getRawTransactionByHash".into(), quirk)].into();
        node.node.set_quirks(|quirks| quirks.methods = methods);
        let (first, rest) = node.txs.split_at(20);
        submit(&node, first);
        let is_failing = || fetcher.status()[0].state == SourceState::Failing;
        eventually("it is failing", is_failing).await;
        assert!(!fetcher.is_live() && !fetcher.readiness()());
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

/// The head of the builder stood still while that of the node went on.
#[tokio::test]
async fn a_clock_that_is_ahead_does_not_make_a_node_syncing_whose_heads_keep_its_pace() {
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

/// The same transactions, with the same hashes, were known as mined for ever.
#[tokio::test]
async fn after_a_chain_reset_what_the_new_chain_has_pending_is_pooled() {
    let node = Node::start(20, |config| config);
    let (fetcher, pool) = ingest_fast(node.fetcher()).await;
    pool_all(&node, &fetcher).await;
    for _ in 0..10 {
        node.node.mine();
    }
    eventually("all are mined", || pool.is_empty()).await;
    node.node.inject(Fault::Reset { down: Duration::from_millis(50) });
    eventually("all are pending again", || pool.len() == 20).await;
    node.node.mine();
    eventually("the new chain is followed", || pool.is_empty()).await;
    assert_eq!(pool.head().map(|head| head.number), Some(node.node.head().number));
}

/// A pool that keeps what nobody lists for a second.
fn forgetful_pool() -> OrderPool {
    let tx_retention = Duration::from_secs(1);
    OrderPool::new(PoolConfig { tx_retention, ..PoolConfig::default() }).expect("it is valid")
}

async fn is_emptied(pool: &OrderPool) {
    let is_empty = || {
        pool.upkeep();
        pool.is_empty()
    };
    eventually("they have left", is_empty).await;
}

/// They stayed until the pool was full.
#[tokio::test]
async fn what_a_node_listed_that_cannot_be_listed_any_more_expires() {
    let node = Node::start(10, |config| config);
    let pool = forgetful_pool();
    let audit_interval = Some(Duration::from_millis(300));
    let config = FetcherConfig { audit_interval, ..node.fetcher() };
    let fetcher = start_with(config, settles_fast(), pool.clone()).await;
    pool_all(&node, &fetcher).await;
    let missing = MethodQuirk::Error(-32_601);
    let methods = [("txpool_content".into(), missing)].into();
    node.node.set_quirks(|quirks| quirks.methods = methods);
    eventually("it is not audited", || !fetcher.status()[0].audited).await;
    is_emptied(&pool).await;
    // It can be listed again.
    node.node.set_quirks(|quirks| quirks.methods.clear());
    eventually("what is pending there comes back", || pool.len() == 10).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    pool.upkeep();
    assert_eq!(pool.len(), 10);
}
