//! Nodes of a few lines whose answers hurt, and sinks that do: only the transaction that is hit is
//! lost.

use load_control::Backoff;
use txpool_fetcher::Delivery;

use super::{
    fake::{CHAIN_ID, Fake, Listing, Reply, blocks, config_of},
    *,
};

/// With these replies, and without a pool of its own.
fn node(replies: impl IntoIterator<Item = (B256, Reply)>) -> Fake {
    let node = Fake::start();
    node.lock().replies = replies.into_iter().collect();
    node
}

/// Sources that are neither backfilled nor audited.
fn config<'a>(nodes: impl IntoIterator<Item = &'a Fake>) -> FetcherConfig {
    let (backfill, audit_interval) = (Backfill::Off, None);
    FetcherConfig { backfill, audit_interval, request_connections: 1, ..config_of(nodes) }
}

fn transactions() -> Vec<PreparedTx> {
    let config = WorkloadConfig { accounts: 1, ..WorkloadConfig::new(5, CHAIN_ID) };
    Workload::new(config).prepare(10)
}

fn transaction(nonce: u64) -> (B256, Reply) {
    let tx = transactions().swap_remove(nonce as usize);
    (tx.hash, Reply::Raw(tx.raw))
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
async fn a_transaction_whose_response_ends_connections_is_given_up_after_three_and_no_other_is() {
    let (listed, announced) = (Backfill::Pending, Backfill::Off);
    for (reply, backfill, request_connections) in
        [(Reply::Close, listed, 2), (Reply::Garbage, listed, 2), (Reply::Close, announced, 1)]
    {
        let poison = B256::repeat_byte(8);
        let good: Vec<_> = (2..10).map(transaction).collect();
        let node = node(good.iter().cloned().chain([(poison, reply.clone())]));
        node.lock().listing = Listing::All;
        let config = FetcherConfig { backfill, request_connections, ..config([&node]) };
        let fetcher = live(config).await;
        let told = if backfill == announced { 9 } else { 0 };
        let hashes = [poison].into_iter().chain(good.iter().map(|(hash, _)| *hash));
        hashes.take(told).for_each(|hash| node.announce_hash(hash));
        settled(&fetcher, "the good ones are pooled", |counts| counts.pooled == 8).await;
        let counts = fetcher.counts();
        assert_eq!((counts.refused, counts.failed), (0, 1), "{reply:?}: {counts:?}");
        // Once with others in flight, and twice while no other suspect was.
        let reconnects = fetcher.status()[0].reconnects;
        assert_eq!((reconnects, node.requests_of(poison)), (3, 3));
        // Neither a comparison nor an announcement requests it again soon.
        let report = recover(&fetcher).await;
        assert_eq!((report.refused, report.missing), (1, 0), "{report:?}");
        node.announce_hash(poison);
        settled(&fetcher, "it is known", |counts| counts.announced == told as u64 + 1).await;
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

/// The honest node announces it while the other one is asked, and says it once: blob transactions are not even listed.
#[tokio::test]
async fn what_two_nodes_announced_is_there_although_the_first_responds_with_something_else() {
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

/// The comparison waited for slots whose fetches waited for the node: ten minutes later it still did.
#[tokio::test]
async fn an_audit_ends_when_its_node_goes_away_or_takes_too_long_and_so_does_a_stop() {
    for is_gone in [false, true] {
        // Never returned by the sink: the comparison cannot be complete.
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

/// Announcements stay in our buffer while the sink blocks. They were read from the socket all the same.
#[tokio::test]
async fn our_own_back_pressure_is_not_taken_for_a_dead_subscription() {
    let stuck = transaction(1);
    let node = node([stuck.clone()]);
    node.lock().listing = Listing::Growing;
    let mut config = config([&node]);
    // Which the stuck one holds.
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
async fn a_subscription_whose_node_lists_what_it_does_not_announce_is_dead() {
    let node = node([]);
    node.lock().listing = Listing::Growing;
    let fetcher = live(config([&node])).await;
    // So many hashes that the rate of announcements is high, then heads alone for a while.
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
async fn a_node_without_the_namespace_is_live_and_not_audited_and_is_asked_once() {
    let node = node([transaction(2)]);
    node.lock().listing = Listing::Refused(-32601);
    let fetcher = live(FetcherConfig { backfill: Backfill::Pending, ..config([&node]) }).await;
    eventually("it is found out", || !fetcher.status()[0].audited).await;
    assert!(!fetcher.audited()());
    // Before, one list a second, for ever.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((node.count("txpool_content"), fetcher.is_live()), (1, true));
}

#[tokio::test]
async fn a_node_whose_lists_time_out_is_live_after_three_and_audited_once_one_is_complete() {
    let node = node([]);
    node.lock().listing = Listing::Silent;
    let config = FetcherConfig {
        backfill: Backfill::Pending,
        audit_interval: Some(Duration::from_secs(2)),
        ..config([&node])
    };
    let limits = Limits { snapshot_timeout: Duration::from_millis(50), ..limits() };
    let fetcher = start_with(config, limits, HostileSink).await;
    let status = fetcher.status().remove(0);
    assert!(!status.audited && node.count("txpool_content") >= 3, "{status:?}");
    node.lock().listing = Listing::All;
    eventually("an audit lists it", || fetcher.status()[0].audited).await;
}

/// It had the time of a list more, a minute, in which nothing was seen.
#[tokio::test]
async fn a_node_that_goes_silent_while_it_lists_its_pool_is_given_up_as_soon_as_its_lists_allow() {
    let node = node([]);
    let millis = Duration::from_millis;
    let limits = Limits { ping_interval: millis(50), ping_timeout: millis(300), ..limits() };
    let fetcher = start_with(config([&node]), limits, HostileSink).await;
    // It is known how long a list takes.
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

/// Whichever node was compared last had the figure of all.
#[tokio::test]
async fn what_a_node_counts_and_does_not_list_is_a_figure_of_its_own() {
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

/// What a block took between the count and the list counted as not listed, so nothing was marked as
/// vanished. Without a count, what was not listed had gone.
#[tokio::test]
async fn what_is_no_longer_listed_has_vanished_unless_its_node_does_not_count_its_pool() {
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

/// With several nodes nothing was ever marked as vanished, and it stayed until the pool was full.
#[tokio::test]
async fn what_has_left_the_pools_of_all_nodes_has_vanished() {
    let nodes = [(); 2].map(|()| node([]));
    let fetcher = live(config(&nodes)).await;
    all_live(&fetcher).await;
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

/// The time in which it was missing began with a comparison that had fetched nothing, or in vain.
#[tokio::test]
async fn what_stays_missing_is_missing_since_the_comparison_before() {
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

/// As many others had come between the count and the list as there were blob transactions.
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
        match lists_blobs {
            true => _ = node.lock().pending.remove(0),
            false => {
                node.lock().listing = Listing::AllBut(2);
                node.lock().replies.extend([2, 3].map(transaction));
            }
        }
        let report = compare(&fetcher).await;
        let expected = (2 - u64::from(lists_blobs), 0, u64::from(lists_blobs));
        assert_eq!((report.listed, report.unlistable, report.vanished), expected, "{report:?}");
    }
}

/// It was closed as if nothing were missing, and what had been fetched in vain had been recovered.
#[tokio::test]
async fn a_gap_is_open_until_what_was_found_missing_has_come() {
    let (hash, reply) = transaction(2);
    let in_vain = Reply::Busy(json!({ "code": -32601, "message": "no" }));
    let node = node([(hash, in_vain), transaction(3)]);
    let audit_interval = Some(Duration::from_millis(50));
    let config = FetcherConfig { audit_interval, ..config_of([&node]) };
    let fetcher = start_with(config, settles_fast(), HostileSink).await;
    settled(&fetcher, "audits try again", |counts| counts.failed >= 3).await;
    let gap = fetcher.status()[0].gaps[0];
    assert_eq!((gap.reason, gap.to, gap.recovered), (GapReason::StartUp, None, 1));
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.failed, report.recovered), (1, 1, 0), "{report:?}");
    node.lock().replies.insert(hash, reply);
    eventually("closed", || has_closed_gap(&fetcher, GapReason::StartUp)).await;
    assert_eq!((fetcher.counts().pooled, fetcher.status()[0].gaps[0].recovered), (2, 1));
}
