//! Scripted nodes and sinks that misbehave: only the transaction that is affected is lost.

use load_control::Backoff;
use txpool_fetcher::Delivery;

use super::{
    fake::{CHAIN_ID, Fake, Listing, Reply, blocks, config_of},
    *,
};

/// Starts a node with these replies and an empty pool.
fn node(replies: impl IntoIterator<Item = (B256, Reply)>) -> Fake {
    let node = Fake::start();
    node.lock().replies = replies.into_iter().collect();
    node
}

/// Makes a configuration with these sources, without backfill and audits.
fn config<'a>(nodes: impl IntoIterator<Item = &'a Fake>) -> FetcherConfig {
    let (backfill, audit_interval) = (Backfill::Off, None);
    configured(config_of(nodes), |config| {
        config.backfill = backfill;
        config.audit_interval = audit_interval;
        config.request_connections = 1;
    })
}

fn transactions() -> Vec<PreparedTx> {
    let config = WorkloadConfig { accounts: 1, ..WorkloadConfig::new(5, CHAIN_ID) };
    Workload::new(config).prepare(10)
}

fn transaction(nonce: u64) -> (B256, Reply) {
    let tx = transactions().swap_remove(nonce as usize);
    (tx.hash, Reply::Raw(tx.raw))
}

/// Never returns for nonce 1, and accepts all other transactions.
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

/// Limits with short frames and short pauses.
fn limits() -> Limits {
    let short = Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(10) };
    let max_frame_bytes = 1 << 20;
    Limits { max_frame_bytes, retry_backoff: short, reconnect: short, ..Limits::default() }
}

async fn live(config: FetcherConfig) -> Fetcher {
    start_with(config, limits(), HostileSink).await
}

/// Before the fix the comparison after each reconnect requested it again, so the connections were
/// lost for ever, and with them other requests.
#[tokio::test]
async fn a_transaction_that_ends_connections_is_given_up_after_three() {
    let (listed, announced) = (Backfill::Pending, Backfill::Off);
    for (reply, backfill, request_connections) in
        [(Reply::Close, listed, 2), (Reply::Garbage, listed, 2), (Reply::Close, announced, 1)]
    {
        let poison = B256::repeat_byte(8);
        let good: Vec<_> = (2..10).map(transaction).collect();
        let node = node(good.iter().cloned().chain([(poison, reply.clone())]));
        node.lock().listing = Listing::All;
        let config = configured(config([&node]), |config| {
            config.backfill = backfill;
            config.request_connections = request_connections;
        });
        let fetcher = live(config).await;
        let announcements = if backfill == announced { 9 } else { 0 };
        let hashes = [poison].into_iter().chain(good.iter().map(|(hash, _)| *hash));
        hashes.take(announcements).for_each(|hash| node.announce_hash(hash));
        settled(&fetcher, "the good ones are pooled", |counts| counts.pooled == 8).await;
        let counts = fetcher.counts();
        assert_eq!((counts.refused, counts.failed), (0, 1), "{reply:?}: {counts:?}");
        // Once with other hashes in flight, and twice as the only suspect.
        let reconnects = fetcher.status()[0].reconnects;
        assert_eq!((reconnects, node.requests_of(poison)), (3, 3));
        // Neither a comparison nor an announcement requests it again soon.
        let report = recover(&fetcher).await;
        assert_eq!((report.refused, report.missing), (1, 0), "{report:?}");
        node.announce_hash(poison);
        settled(&fetcher, "it is known", |counts| counts.announced == announcements as u64 + 1)
            .await;
        assert_eq!((fetcher.counts().known, node.requests_of(poison)), (1, 3));
        for (hash, _) in good {
            assert!(node.requests_of(hash) <= 2, "no other was lost twice");
        }
        // The next one is requested as before.
        let (next, reply) = transaction(0);
        node.lock().replies.insert(next, reply);
        node.announce_hash(next);
        settled(&fetcher, "the next one is pooled", |counts| counts.pooled == 9).await;
        assert_eq!((node.requests_of(next), fetcher.status()[0].reconnects), (1, 3));
    }
}

/// The honest node announces the hash once, while the other one is asked.
#[tokio::test]
async fn another_node_delivers_a_hash_that_the_first_answers_wrongly() {
    let ((hash, right), (_, wrong)) = (transaction(0), transaction(1));
    let (liar, honest) = (node([(hash, wrong)]), node([(hash, right)]));
    let fetcher = live(config([&liar, &honest])).await;
    all_live(&fetcher).await;
    liar.lock().stands_still = true;
    liar.announce_hash(hash);
    eventually("the liar is asked", || fetcher.counts().unfinished == 1).await;
    honest.announce_hash(hash);
    eventually("announced by both", || fetcher.counts().known == 1).await;
    liar.lock().stands_still = false;
    let counts = settled(&fetcher, "an outcome", |counts| counts.known == 1).await;
    assert_eq!((counts.pooled, counts.malformed), (1, 0));
}

/// Before the fix the comparison waited for slots whose fetches waited for the node: ten minutes
/// and more.
#[tokio::test]
async fn an_audit_ends_when_its_node_is_lost_or_takes_too_long() {
    for is_gone in [false, true] {
        // The sink never returns for this one, so the comparison cannot be complete.
        let node = node([transaction(1)]);
        let short = Duration::from_secs(1);
        let limits = if is_gone {
            Limits { call_timeout: short, ..limits() }
        } else {
            Limits { audit_timeout: short, ..limits() }
        };
        let fetcher = start_with(config([&node]), limits, HostileSink).await;
        node.lock().listing = Listing::All;
        let audit = fetcher.audit(0, AuditMode::Recover);
        let goes_away = async {
            eventually("it is requested", || fetcher.counts().unfinished == 1).await;
            if is_gone {
                std::fs::remove_file(&node.path).unwrap();
                node.close();
            }
        };
        let (audited, ()) = tokio::join!(audit, goes_away);
        let error = audited.expect_err("it cannot be complete");
        if is_gone {
            assert!(matches!(error, SnapshotError::ConnectionLost), "{error}");
        } else {
            assert!(matches!(error, SnapshotError::Unfinished(_)), "{error}");
        }
        let (start, deadline) = (Instant::now(), Duration::from_secs(3));
        let counts = fetcher.shutdown(deadline).await.counts;
        assert!(start.elapsed() < deadline * 19 / 10, "{:?}", start.elapsed());
        assert_eq!(counts.balance(), 0);
    }
}

#[tokio::test]
async fn a_node_that_is_busy_for_a_fifth_of_a_second_loses_nothing() {
    let (hash, reply) = transaction(3);
    let node = node([(hash, Reply::Busy(json!({ "code": -32005, "message": "overloaded" })))]);
    let limits = Limits { retry_backoff: Limits::default().retry_backoff, ..limits() };
    let fetcher = start_with(config([&node]), limits, HostileSink).await;
    node.announce_hash(hash);
    tokio::time::sleep(Duration::from_millis(200)).await;
    node.lock().replies.insert(hash, reply);
    let counts = settled(&fetcher, "it has left", |counts| counts.announced == 1).await;
    assert_eq!((counts.pooled, counts.malformed, counts.failed), (1, 0, 0));
    assert!(fetcher.status()[0].fetch_limit < 64, "it is a sign of overload");
}

/// Announcements wait in the buffer while the sink blocks, but they were read from the socket.
#[tokio::test]
async fn back_pressure_of_the_sink_does_not_count_as_silence() {
    let stuck = transaction(1);
    let node = node([stuck.clone()]);
    node.lock().listing = Listing::Growing;
    let mut config = config([&node]);
    // The stuck transaction holds the only slot.
    config.fetch_slots = 1;
    let fetcher = live(config).await;
    node.announce_hash(stuck.0);
    eventually("it is requested", || node.requests_of(stuck.0) == 1).await;
    for n in 0..2_000_u64 {
        node.announce_hash(B256::right_padding_from(&n.to_be_bytes()));
    }
    for (number, block) in (10_u64..).zip(blocks(2..=15)) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        node.announce(&block);
        node.announce_hash(B256::right_padding_from(&(10_000 + number).to_be_bytes()));
    }
    let status = fetcher.status().remove(0);
    assert_eq!((status.reconnects, status.state), (0, SourceState::Live), "{status:?}");
    assert!(status.backlog > 900, "{}", status.backlog);
    assert_eq!(node.count("txpool_content"), 0);
}

#[tokio::test]
async fn a_subscription_without_the_listed_hashes_is_replaced() {
    let node = node([]);
    node.lock().listing = Listing::Growing;
    let fetcher = live(config([&node])).await;
    // Many hashes, so that the rate of announcements is high, and then only heads for a while.
    for n in 0..2_000_u64 {
        node.announce_hash(B256::right_padding_from(&n.to_be_bytes()));
    }
    for block in blocks(2..=21) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        node.announce(&block);
    }
    eventually("it is replaced", || fetcher.status()[0].reconnects == 1).await;
    eventually("the source is live again", || fetcher.is_live()).await;
    let error = fetcher.status().remove(0).last_error.expect("why it was lost");
    assert!(
        matches!(*error, SourceError::Lost(LossReason::NoHashes { unannounced: 1 })),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_without_the_txpool_namespace_is_live_and_not_audited() {
    let node = node([transaction(2)]);
    node.lock().listing = Listing::Refused(-32601);
    let fetcher =
        live(configured(config([&node]), |config| config.backfill = Backfill::Pending)).await;
    eventually("the pool cannot be listed", || !fetcher.status()[0].audited).await;
    assert!(!fetcher.is_audited());
    // Before the fix the pool was requested once a second, for ever.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((node.count("txpool_content"), fetcher.is_live()), (1, true));
}

#[tokio::test]
async fn a_node_whose_lists_time_out_is_live_after_three_attempts() {
    let node = node([]);
    node.lock().listing = Listing::Silent;
    let config = configured(config([&node]), |config| {
        config.backfill = Backfill::Pending;
        config.audit_interval = Some(Duration::from_secs(2));
    });
    let limits = Limits { snapshot_timeout: Duration::from_millis(50), ..limits() };
    let fetcher = start_with(config, limits, HostileSink).await;
    let status = fetcher.status().remove(0);
    assert!(!status.audited && node.count("txpool_content") >= 3, "{status:?}");
    node.lock().listing = Listing::All;
    eventually("an audit lists it", || fetcher.status()[0].audited).await;
}

/// Before the fix it had a minute more, in which nothing was noticed.
#[tokio::test]
async fn a_node_that_goes_silent_while_listing_is_given_up_soon() {
    let node = node([]);
    let millis = Duration::from_millis;
    let limits = Limits { ping_interval: millis(50), ping_timeout: millis(300), ..limits() };
    let fetcher = start_with(config([&node]), limits, HostileSink).await;
    // A first list, so that the fetcher knows how long a list takes.
    recover(&fetcher).await;
    let lists = node.count("txpool_content");
    node.lock().listing = Listing::Silent;
    let audit = async { _ = fetcher.audit(0, AuditMode::CompareOnly).await };
    let given_up = async {
        eventually("it lists", || node.count("txpool_content") > lists).await;
        node.lock().stands_still = true;
        eventually("both connections are lost", || fetcher.status()[0].reconnects >= 2).await;
    };
    tokio::select! {
        () = audit => panic!("no list comes"),
        () = given_up => {}
    }
}

/// Before the fix the gauge had the number of the node that was compared last.
#[tokio::test]
async fn each_source_has_its_own_number_of_unlistable_transactions() {
    let figures = Figures::install();
    let nodes = [1, 2].map(|few| {
        let node = node([]);
        node.lock().pending = transactions();
        node.lock().listing = Listing::AllBut(few);
        node
    });
    let fetcher = live(config(&nodes)).await;
    all_live(&fetcher).await;
    for (source, node) in nodes.iter().enumerate() {
        let audit = fetcher.audit(source, AuditMode::CompareOnly).await;
        assert_eq!(audit.expect("it lists its pool").unlistable, 1 + source as u64);
        let path = node.path.display().to_string();
        assert_eq!(figures.get("unlistable", &path).1, (1 + source) as f64);
    }
}

/// Before the fix a transaction that was mined between the count and the list counted as
/// unlistable, so none was marked as vanished. Without a count, unlisted transactions counted as
/// vanished.
#[tokio::test]
async fn unlisted_transactions_have_vanished_if_the_node_counts_its_pool() {
    for (listing, vanished) in [(Listing::All, 2), (Listing::Mined, 2), (Listing::Uncounted, 0)] {
        let node = node([]);
        let fetcher = live(config([&node])).await;
        transactions()[2..4].iter().for_each(|tx| node.announce_tx(tx));
        settled(&fetcher, "pooled", |counts| counts.pooled == 2).await;
        node.lock().pending.truncate(usize::from(matches!(listing, Listing::Mined)));
        node.lock().listing = listing;
        let report = compare(&fetcher).await;
        assert_eq!((report.unlistable, report.vanished), (0, vanished), "{listing:?}: {report:?}");
    }
}

/// Only once no node lists it: another node may still have it pending.
#[tokio::test]
async fn a_transaction_that_no_node_lists_has_vanished() {
    let nodes = [(); 2].map(|()| node([]));
    let (fetcher, pool) = ingest_with(config(&nodes), limits()).await;
    all_live(&fetcher).await;
    // Before the first head nothing counts as vanished: a block that is being read may contain it.
    eventually("the first head", || pool.head().is_some()).await;
    let announced = &transactions()[2..4];
    nodes.iter().for_each(|node| announced.iter().for_each(|tx| node.announce_tx(tx)));
    settled(&fetcher, "pooled", |counts| (counts.pooled, counts.known) == (2, 2)).await;
    let vanished = async |source| {
        let report = fetcher.audit(source, AuditMode::CompareOnly).await;
        report.expect("it lists its pool").vanished
    };
    assert_eq!((vanished(0).await, vanished(1).await), (0, 0));
    nodes[0].lock().pending.clear();
    assert_eq!((vanished(0).await, vanished(1).await), (0, 0), "the second node has them");
    nodes[1].lock().pending.clear();
    assert_eq!((vanished(1).await, vanished(0).await), (2, 0), "once");
}

/// Before the fix the time began with a comparison that had fetched nothing, or failed to.
#[tokio::test]
async fn missing_time_counts_from_the_last_comparison_without_missing_transactions() {
    let figures = Figures::install();
    let (second, (hash, reply)) = (Duration::from_secs(1), transaction(2));
    let in_vain = Reply::Busy(json!({ "code": -32601, "message": "no" }));
    for fetches in [false, true] {
        let node = node([]);
        let fetcher = live(config([&node])).await;
        recover(&fetcher).await;
        tokio::time::sleep(second).await;
        node.lock().replies.insert(hash, in_vain.clone());
        let report = if fetches { recover(&fetcher).await } else { compare(&fetcher).await };
        assert_eq!((report.missing, fetcher.counts().pooled), (1, 0));
        assert!(figures.get("missing_seconds", "").1 >= second.as_secs_f64());
        tokio::time::sleep(second / 10).await;
        node.lock().replies.insert(hash, reply.clone());
        recover(&fetcher).await;
        assert_eq!(fetcher.counts().pooled, 1);
        assert!(figures.get("missing_seconds", "").1 >= 1.1 * second.as_secs_f64());
    }
}

/// As many other transactions come between the count and the list as there are blob transactions.
#[tokio::test]
async fn a_blob_transaction_has_vanished_only_if_its_node_lists_others() {
    let mix = Mix { blobs_per_mille: 1_000, six_blobs_per_mille: 0, ..Mix::default() };
    let blobs = WorkloadConfig { accounts: 20, mix, ..WorkloadConfig::new(5, CHAIN_ID) };
    let blobs = Workload::new(blobs).prepare(2);
    for lists_blobs in [false, true] {
        let node = node([]);
        let (fetcher, _pool) = ingest_with(config([&node]), limits()).await;
        blobs.iter().for_each(|tx| node.announce_tx(tx));
        settled(&fetcher, "pooled", |counts| counts.pooled == 2).await;
        if lists_blobs {
            node.lock().pending.remove(0);
        } else {
            node.lock().listing = Listing::AllBut(2);
            node.lock().replies.extend([2, 3].map(transaction));
        }
        let report = compare(&fetcher).await;
        let expected = (2 - u64::from(lists_blobs), 0, u64::from(lists_blobs));
        assert_eq!((report.listed, report.unlistable, report.vanished), expected, "{report:?}");
    }
}

/// A channel cannot say what it holds. Before the fix, each audit delivered the blob transactions
/// of the node's pool to it again.
#[tokio::test]
async fn a_delivered_blob_transaction_is_not_missing_in_a_sink_without_look_ups() {
    let mix = Mix { blobs_per_mille: 1_000, six_blobs_per_mille: 0, ..Mix::default() };
    let blobs = WorkloadConfig { accounts: 20, mix, ..WorkloadConfig::new(5, CHAIN_ID) };
    let node = node([]);
    let fetcher = start_with(config([&node]), limits(), HostileSink).await;
    Workload::new(blobs).prepare(2).iter().for_each(|tx| node.announce_tx(tx));
    settled(&fetcher, "pooled", |counts| counts.pooled == 2).await;
    let report = compare(&fetcher).await;
    assert_eq!((report.listed, report.missing), (2, 0), "{report:?}");
}

/// Before the fix the gap was closed, and failed fetches counted as recovered.
#[tokio::test]
async fn a_gap_stays_open_until_missing_transactions_have_come() {
    let (hash, reply) = transaction(2);
    let in_vain = Reply::Busy(json!({ "code": -32601, "message": "no" }));
    let node = node([(hash, in_vain), transaction(3)]);
    let audit_interval = Some(Duration::from_millis(50));
    let config = configured(config_of([&node]), |config| config.audit_interval = audit_interval);
    let fetcher = start_with(config, settles_fast(), HostileSink).await;
    settled(&fetcher, "audits try again", |counts| counts.failed >= 3).await;
    let gap = fetcher.status()[0].gaps[0];
    assert_eq!((gap.reason, gap.closed_at, gap.recovered), (GapReason::StartUp, None, 1));
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.failed, report.recovered), (1, 1, 0), "{report:?}");
    node.lock().replies.insert(hash, reply);
    eventually("closed", || has_closed_gap(&fetcher, GapReason::StartUp)).await;
    assert_eq!((fetcher.counts().pooled, fetcher.status()[0].gaps[0].recovered), (2, 1));
}
