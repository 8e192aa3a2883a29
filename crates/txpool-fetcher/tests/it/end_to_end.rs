//! The fetcher and the pool against the mock node, over a real socket.

use std::{collections::BTreeSet, pin::pin, sync::Arc, thread, time::Duration};

use alloy_eips::Encodable2718 as _;
use mock_node::{BadAnswer, Fault, NodeConfig, workload::Mix};
use order_pool::{Event, RemoveReason};
use testkit::ingest::{Node, PATIENCE, eventually, ingest, settled};
use tokio::{sync::mpsc, time::timeout};
use txpool_fetcher::{
    Backfill, EndReason, FetchedTransaction, Fetcher, FetcherConfig, GapReason, Limits,
    SourceState, StartPolicy,
};

use super::{all_live, compare, ingest_with, recover, settles_fast, sources, submit};

#[tokio::test]
async fn what_was_pending_before_the_start_is_brought_in_once() {
    let node = Node::start(400, |config| config);
    submit(&node, &node.txs[..200]);
    let (fetcher, pool) = ingest(node.fetcher()).await;
    assert_eq!(pool.len(), 200, "live means that the backfill is in");
    submit(&node, &node.txs[200..]);
    let counts = settled(&fetcher, "400 pooled", |counts| counts.pooled == 400).await;
    assert_eq!((counts.announced, counts.backfilled), (200, 200));
    let status = &fetcher.status()[0];
    assert_eq!(status.gaps[0].reason, GapReason::StartUp);
    assert_eq!(status.gaps[0].recovered, 200);
}

#[tokio::test]
async fn the_status_says_how_much_of_a_backfill_is_left() {
    let node = Node::start(200, |config| config);
    node.submit_all();
    // Nobody reads, so the backfill stops in its middle.
    let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(1);
    let fetcher = Fetcher::start(node.fetcher(), sink).await.unwrap();
    let left = || fetcher.status()[0].to_recover;
    eventually("the node's pool is listed", || left() > 0).await;
    assert!((100..=200).contains(&left()), "{}", left());
    for _ in 0..200 {
        transactions.recv().await.expect("the fetcher lives");
    }
    fetcher.wait_live().await.unwrap();
    assert_eq!(left(), 0);
}

#[tokio::test]
async fn without_backfill_the_past_stays_unknown_and_an_audit_finds_it() {
    let node = Node::start(50, |config| config);
    node.submit_all();
    let config = FetcherConfig { backfill: Backfill::Off, ..node.fetcher() };
    let (fetcher, pool) = ingest(config).await;
    assert_eq!(pool.len(), 0);
    let report = compare(&fetcher).await;
    assert_eq!(report.missing, 50);
    assert_eq!(pool.len(), 0, "it was only compared");
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.recovered), (50, 50));
    let counts = settled(&fetcher, "50 pooled", |counts| counts.pooled == 50).await;
    assert_eq!(counts.audit_recovered, 50);
    assert_eq!(compare(&fetcher).await.missing, 0);
}

#[tokio::test]
async fn repeats_are_known_and_unknown_hashes_are_gone() {
    for unknown_is_empty in [false, true] {
        let node = Node::start(10, |config| NodeConfig { unknown_is_empty, ..config });
        let (fetcher, _) = ingest(node.fetcher()).await;
        node.submit_all();
        settled(&fetcher, "10 pooled", |counts| counts.pooled == 10).await;
        for tx in &node.txs {
            node.node.announce_again(tx.hash).unwrap();
        }
        node.node.announce_unknown([7; 32].into());
        let counts = settled(&fetcher, "21 announced", |counts| counts.announced == 21).await;
        assert_eq!((counts.pooled, counts.known, counts.gone), (10, 10, 1));
        // A hash that was gone may come back: it is requested again.
        node.node.announce_unknown([7; 32].into());
        settled(&fetcher, "gone again", |counts| counts.gone == 2).await;
    }
}

#[tokio::test]
async fn a_block_takes_its_transactions_out_of_the_pool_and_late_hashes_are_mined() {
    let node = Node::start(60, |config| config);
    let (fetcher, pool) = ingest(node.fetcher()).await;
    let mut subscription = pool.subscribe_all();
    node.submit_all();
    settled(&fetcher, "60 pooled", |counts| counts.pooled == 60).await;
    let block = node.node.mine();
    assert_eq!(block.txs.len(), 60);
    eventually("the pool is empty", || pool.is_empty()).await;
    let mut removed = 0;
    while let Some(event) = subscription.try_next() {
        if let Event::Removed { reason, .. } = event.unwrap() {
            assert_eq!(reason, RemoveReason::Mined);
            removed += 1;
        }
    }
    assert_eq!(removed, 60);
    node.node.announce_unknown(node.txs[0].hash);
    let counts = settled(&fetcher, "a late hash", |counts| counts.announced == 61).await;
    assert_eq!(counts.mined, 1, "known from its block, not requested");
}

#[tokio::test]
async fn a_blob_transaction_answered_in_its_mined_form_is_mined() {
    let mix = Mix { blobs_per_mille: 1000, six_blobs_per_mille: 0, ..Mix::default() };
    let node = Node::with_mix(5, mix, |config| config);
    node.submit_all();
    node.node.mine();
    // The fetcher has not seen the block, so it has to find out from the answer.
    let (fetcher, pool) = ingest(node.fetcher()).await;
    for tx in &node.txs {
        node.node.announce_unknown(tx.hash);
    }
    let counts = settled(&fetcher, "5 announced", |counts| counts.announced == 5).await;
    assert_eq!((counts.mined, counts.malformed), (5, 0));
    assert!(pool.is_empty());
}

#[tokio::test]
async fn a_reorg_puts_back_what_it_unmined() {
    let node = Node::start(30, |config| config);
    let (fetcher, pool) = ingest(node.fetcher()).await;
    node.node.mine();
    node.submit_all();
    settled(&fetcher, "30 pooled", |counts| counts.pooled == 30).await;
    node.node.mine();
    eventually("mined", || pool.is_empty()).await;
    let reorg = node.node.reorg(1).unwrap();
    assert_eq!(reorg.removed.len(), 1);
    eventually("pending again", || {
        let mut pending = node.node.pending();
        pending.retain(|hash| !pool.contains(hash));
        pending.is_empty() && pool.len() == node.node.pending().len()
    })
    .await;
    eventually("the reorg's comparison is done", || {
        let status = &fetcher.status()[0];
        status.gaps.iter().any(|gap| gap.reason == GapReason::Reorg && gap.to.is_some())
    })
    .await;
}

#[tokio::test]
async fn at_most_as_many_fetches_as_slots_are_in_flight() {
    let latency = Duration::from_millis(3);
    let node = Node::start(500, |config| NodeConfig { latency, ..config });
    let (fetcher, _) = ingest(FetcherConfig { fetch_slots: 7, ..node.fetcher() }).await;
    node.submit_all();
    settled(&fetcher, "500 pooled", |counts| counts.pooled == 500).await;
    // The node counts an answer out a moment after it is on its way.
    let most = node.node.stats().max_concurrent_raw;
    assert!((7..=9).contains(&most), "{most}");
}

#[tokio::test]
async fn a_channel_is_a_sink_and_closing_it_ends_the_fetcher_with_a_reason() {
    let node = Node::start(21, |config| config);
    let (sender, mut receiver) = mpsc::channel::<FetchedTransaction>(4);
    let fetcher = Fetcher::start(node.fetcher(), sender).await.unwrap();
    submit(&node, &node.txs[..20]);
    let mut received = BTreeSet::new();
    for _ in 0..20 {
        let tx = receiver.recv().await.expect("the fetcher runs");
        assert_eq!(tx.tx.inner().encoded_2718(), tx.raw());
        received.insert(tx.hash());
    }
    assert_eq!(received, node.txs[..20].iter().map(|tx| tx.hash).collect());
    drop(receiver);
    node.node.announce_unknown([1; 32].into());
    submit(&node, &node.txs[20..]);
    assert_eq!(fetcher.ended().await, EndReason::SinkClosed);
    assert_eq!(fetcher.counts().balance(), 0);
}

/// Heads and gaps go to the source through one channel: 500 heads beside the overrun lose none of its reports, without
/// which nothing would bring in what was lost.
#[tokio::test]
async fn a_buffer_that_overruns_is_counted_and_what_it_lost_is_brought_in_also_in_a_flood_of_heads()
{
    let node = Arc::new(Node::start(2000, |config| config));
    let config = FetcherConfig { fetch_slots: 1, audit_interval: None, ..node.fetcher() };
    let limits = Limits { announcement_buffer: 16, ..settles_fast() };
    let (sender, mut receiver) = mpsc::channel::<FetchedTransaction>(1);
    let fetcher = Fetcher::start_with(config, limits, sender).await.unwrap();
    // Nobody reads: one slot is held, the buffer fills, the rest is lost for now.
    node.submit_all();
    eventually("the buffer has overrun", || fetcher.counts().lagged > 1_900).await;
    let mines = Arc::clone(&node);
    let heads = thread::spawn(move || {
        (0..500).for_each(|_| _ = mines.node.mine_only(&[]).expect("an empty block"));
    });
    let (mut received, mut lagged) = (BTreeSet::new(), false);
    while received.len() < 2000 {
        let tx = timeout(PATIENCE, receiver.recv()).await.expect("more comes");
        assert!(received.insert(tx.expect("the fetcher runs").hash()), "once each");
        lagged |= fetcher.status()[0].gaps.iter().any(|gap| gap.reason == GapReason::Lagged);
    }
    heads.join().expect("it does not panic");
    assert!(lagged, "the gap is opened");
    let counts = settled(&fetcher, "all in", |counts| counts.pooled == 2000).await;
    assert!(counts.lagged > 1000, "{counts:?}");
    assert_eq!(counts.announced + counts.lagged, 2000, "what the socket brought");
    assert_eq!(counts.audit_recovered + counts.backfilled, counts.lagged);
    eventually("the last head and no gap are left", || {
        let status = fetcher.status().remove(0);
        status.head == Some(500) && status.gaps.iter().all(|gap| gap.to.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_node_that_answers_nothing_while_it_lists_its_pool_is_given_time() {
    let ping_timeout = Duration::from_secs(2);
    let node = Node::start(10, |config| NodeConfig { list_time: ping_timeout * 2, ..config });
    let config = FetcherConfig { backfill: Backfill::Off, ..node.fetcher() };
    let ping_interval = Duration::from_millis(50);
    let limits = Limits { ping_interval, ping_timeout, ..Limits::default() };
    let (fetcher, _pool) = ingest_with(config, limits).await;
    node.submit_all();
    settled(&fetcher, "10 pooled", |counts| counts.pooled == 10).await;
    let report = compare(&fetcher).await;
    assert_eq!((report.listed, report.missing), (10, 0));
    let status = &fetcher.status()[0];
    assert_eq!(
        (status.reconnects, status.last_error.is_none()),
        (0, true),
        "pings had no answer for 4 s"
    );
}

#[tokio::test]
async fn two_request_connections_share_the_requests() {
    let node = Node::start(200, |config| config);
    let (fetcher, pool) = ingest(FetcherConfig { request_connections: 2, ..node.fetcher() }).await;
    node.submit_all();
    settled(&fetcher, "200 pooled", |counts| counts.pooled == 200).await;
    assert_eq!(pool.len(), 200);
    // One for subscriptions, two for fetches, one for all other requests; the list of the pool had one
    // of its own.
    assert_eq!(node.node.stats().connections_open, 4);
}

#[tokio::test]
async fn a_node_that_starts_late_is_waited_for_when_told_so_and_who_waits_hears_of_it() {
    let (_folder, path) = testkit::ingest::socket();
    let config = FetcherConfig { start: StartPolicy::WaitForNode, ..FetcherConfig::ipc(&path) };
    let pool = order_pool::OrderPool::new(order_pool::PoolConfig::default()).unwrap();
    let fetcher = Fetcher::start(config, pool.clone()).await.unwrap();
    eventually("it has tried", || fetcher.status()[0].last_error.is_some()).await;
    assert_eq!(fetcher.status()[0].state, SourceState::Connecting);
    let _node = {
        let mut live = pin!(fetcher.wait_live());
        assert!(futures::poll!(live.as_mut()).is_pending());
        let config = NodeConfig { accounts: 20, preload: 25, ..NodeConfig::new(&path) };
        let node = mock_node::MockNode::start(config).unwrap();
        timeout(PATIENCE, live).await.expect("in time").expect("live");
        node
    };
    assert_eq!(pool.len(), 25);
    let is_ready = fetcher.readiness();
    assert!(is_ready());
    let end = fetcher.shutdown(Duration::from_secs(5)).await;
    assert_eq!((end.reason, end.counts.balance()), (EndReason::Stopped, 0));
    assert!(!is_ready());
}

#[tokio::test]
async fn two_sources_are_one_mempool() {
    let one = Node::start(40, |config| config);
    let two = Node::start(40, |config| config);
    let (fetcher, pool) = ingest(sources([&one, &two])).await;
    all_live(&fetcher).await;
    // The first half is announced by both, the second by the second one alone.
    submit(&one, &one.txs[..20]);
    two.submit_all();
    let counts = settled(&fetcher, "60 announced", |counts| counts.announced == 60).await;
    assert_eq!((counts.pooled, counts.known), (40, 20));
    let status = fetcher.status();
    assert_eq!(status.iter().map(|source| source.first_seen).sum::<u64>(), 40);
    assert_eq!(status[1].announced, 40);
    drop(one);
    eventually("one is lost, the other not", || {
        let status = fetcher.status();
        status[0].state == SourceState::Connecting && status[1].state == SourceState::Live
    })
    .await;
    assert_eq!(pool.len(), 40);
}

#[tokio::test]
async fn what_a_source_held_when_it_gave_up_comes_in_from_another() {
    const TXS: usize = 100;
    let stuck = Node::start(TXS, |config| config);
    let healthy = Node::start(TXS, |config| config);
    let config =
        FetcherConfig { reconnect_limit: Some(1), fetch_slots: 16, ..sources([&stuck, &healthy]) };
    let (fetcher, pool) = ingest(config).await;
    all_live(&fetcher).await;
    // The healthy one is asked next, so that the slots stay taken until the stuck one has given up.
    for node in [&stuck, &healthy] {
        node.node.inject(Fault::Answers { bad: BadAnswer::Never, count: 16 });
    }
    stuck.submit_all();
    // Three quarters of the slots are held by requests in flight, and one more hash waits for a slot.
    eventually("13 have entered", || fetcher.counts().unfinished == 13).await;
    drop(stuck);
    eventually("it has given up", || fetcher.status()[0].state == SourceState::Ended).await;
    settled(&fetcher, "nothing in flight", |_| true).await;
    assert_eq!(pool.len(), 0, "nobody else had them");
    healthy.submit_all();
    settled(&fetcher, "all are in", |counts| counts.pooled == TXS as u64).await;
    assert_eq!(pool.len(), TXS);
}
