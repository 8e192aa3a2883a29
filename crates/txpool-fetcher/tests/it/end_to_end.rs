//! The fetcher with a pool, a channel or a stream as its sink, against the mock node over a real
//! socket.

use std::{pin::pin, time::SystemTime};

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::{Decodable2718 as _, Encodable2718 as _};
use futures::StreamExt as _;
use mock_node::{DEV_CHAIN_ID, MockNode, Topic};
use order_pool::{PrivateTerms, Transaction};
use txpool_fetcher::{ConfigError, Gap, PooledTransaction};

use super::*;

#[tokio::test]
async fn the_status_shows_how_much_of_a_backfill_is_left() {
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
async fn repeats_are_known_and_unknown_hashes_are_gone() {
    let node = Node::start(10, |config| NodeConfig { unknown_is_empty: true, ..config });
    let (fetcher, _) = ingest(node.fetcher()).await;
    pool_all(&node, &fetcher).await;
    for tx in &node.txs {
        node.node.announce_again(tx.hash).unwrap();
    }
    node.node.announce_unknown([7; 32].into());
    let counts = settled(&fetcher, "21 announced", |counts| counts.announced == 21).await;
    assert_eq!((counts.pooled, counts.known, counts.gone), (10, 10, 1));
    // A hash that was gone is requested again when it is announced.
    node.node.announce_unknown([7; 32].into());
    settled(&fetcher, "gone again", |counts| counts.gone == 2).await;
}

#[tokio::test]
async fn a_blob_transaction_answered_in_its_mined_form_is_mined() {
    let mix = Mix { blobs_per_mille: 1000, six_blobs_per_mille: 0, ..Mix::default() };
    let node = Node::with_mix(5, mix, |config| config);
    node.submit_all();
    node.node.mine();
    // The fetcher has not seen the block, so only the response shows that they are mined.
    let (fetcher, pool) = ingest(node.fetcher()).await;
    for tx in &node.txs {
        node.node.announce_unknown(tx.hash);
    }
    let counts = settled(&fetcher, "5 announced", |counts| counts.announced == 5).await;
    assert_eq!((counts.mined, counts.malformed), (5, 0));
    assert!(pool.is_empty());
}

#[tokio::test]
async fn closing_a_channel_that_is_the_sink_ends_the_fetcher() {
    let node = Node::start(21, |config| config);
    let (sender, mut receiver) = mpsc::channel::<FetchedTransaction>(4);
    let fetcher = Fetcher::start(node.fetcher(), sender).await.unwrap();
    submit(&node, &node.txs[..20]);
    for _ in 0..20 {
        let tx = receiver.recv().await.expect("the fetcher runs");
        assert_eq!(tx.tx.inner().encoded_2718(), tx.raw());
    }
    drop(receiver);
    node.node.announce_unknown([1; 32].into());
    submit(&node, &node.txs[20..]);
    assert_eq!(fetcher.ended().await, EndReason::SinkClosed);
    assert_eq!(fetcher.counts().balance(), 0);
}

/// The sink takes one transaction at a time, and the buffer holds a few: all transactions arrive
/// once, some by a comparison, and the gap is known. Heads and gaps are reported to the source
/// through one channel: 500 heads during the overrun must not lose the report of the gap.
#[tokio::test]
async fn announcements_that_overran_the_buffer_are_counted_and_recovered() {
    for announcements in [Announcements::Hashes, Announcements::Full] {
        let node = Arc::new(Node::start(2_000, |config| config));
        let (mines, audit_interval) = (Arc::clone(&node), None);
        let config = configured(node.fetcher(), |config| {
            config.announcements = announcements;
            config.fetch_slots = 1;
            config.audit_interval = audit_interval;
        });
        let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(1);
        let limits = Limits { announcement_buffer: 16, ..settles_fast() };
        let fetcher = start_with(config, limits, sink).await;
        // Nobody reads the sink: hashes without a slot or room in the buffer are lost for now.
        node.submit_all();
        eventually("the buffer has overrun", || fetcher.counts().lagged > 1_800).await;
        let mine = move || (0..500).for_each(|_| _ = mines.node.mine_only(&[]).expect("a block"));
        let heads = thread::spawn(mine);
        let mut arrived = HashMap::new();
        while arrived.len() < 2_000 {
            let next = timeout(PATIENCE, transactions.recv()).await;
            let fetched = next.expect("more comes").expect("the fetcher runs");
            assert_eq!(arrived.insert(fetched.hash(), fetched.raw()), None, "once each");
        }
        // With full announcements this compares the encoding of the objects too.
        assert!(node.txs.iter().all(|tx| arrived[&tx.hash] == tx.raw));
        let counts = settled(&fetcher, "all delivered", |counts| counts.pooled == 2_000).await;
        assert!(counts.lagged > 1_000 && counts.audit_recovered > 0, "{counts:?}");
        // The object of a lost hash may enter.
        assert!(counts.announced + counts.lagged >= 2_000, "{counts:?}");
        if announcements == Announcements::Hashes {
            assert_eq!(counts.announced + counts.lagged, 2_000, "all announcements are counted");
            assert_eq!(counts.audit_recovered + counts.backfilled, counts.lagged);
        }
        eventually("the gap is closed", || has_closed_gap(&fetcher, GapReason::Lagged)).await;
        assert_eq!(compare(&fetcher).await.missing, 0);
        heads.join().expect("it does not panic");
        eventually("the last head", || fetcher.status()[0].head == Some(500)).await;
        let is_closed = |gap: &Gap| gap.closed_at.is_some();
        eventually("no gap is left", || fetcher.status()[0].gaps.iter().all(is_closed)).await;
    }
}

#[tokio::test]
async fn a_node_that_is_silent_while_it_lists_its_pool_has_time() {
    let ping_timeout = Duration::from_secs(2);
    let node = Node::start(10, |config| NodeConfig { list_time: ping_timeout * 2, ..config });
    let config = configured(node.fetcher(), |config| config.backfill = Backfill::Off);
    let ping_interval = Duration::from_millis(50);
    let limits = Limits { ping_interval, ping_timeout, ..Limits::default() };
    let (fetcher, _pool) = ingest_with(config, limits).await;
    pool_all(&node, &fetcher).await;
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
    let (fetcher, pool) =
        ingest(configured(node.fetcher(), |config| config.request_connections = 2)).await;
    pool_all(&node, &fetcher).await;
    assert_eq!(pool.len(), 200);
    // One for subscriptions and two for requests. The connection for the list is closed.
    assert_eq!(node.node.stats().connections_open, 3);
}

#[tokio::test]
async fn a_fetcher_can_wait_for_a_node_that_starts_late() {
    let (_folder, path) = socket();
    let config =
        configured(FetcherConfig::ipc(&path), |config| config.start = StartPolicy::WaitForNode);
    let pool = order_pool();
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
    let handle = fetcher.handle().clone();
    assert!(handle.is_ready());
    let end = fetcher.shutdown(Duration::from_secs(5)).await;
    assert_eq!((end.reason, end.counts.balance()), (EndReason::Stopped, 0));
    assert!(!handle.is_ready());
}

#[tokio::test]
async fn another_source_delivers_hashes_of_a_source_that_has_ended() {
    const TXS: usize = 100;
    let stuck = Node::start(TXS, |config| config);
    let healthy = Node::start(TXS, |config| config);
    let config = configured(sources([&stuck, &healthy]), |config| {
        config.reconnect_limit = Some(1);
        config.fetch_slots = 16;
    });
    let (fetcher, pool) = ingest_all(config, Limits::default()).await;
    // The healthy node would be asked next. It does not respond either, so the slots stay in use.
    for node in [&stuck, &healthy] {
        node.node.inject(Fault::Answers { bad: BadAnswer::Never, count: 16 });
    }
    stuck.submit_all();
    // Three quarters of the slots are held by requests in flight, and one more hash waits for a
    // slot.
    eventually("13 have entered", || fetcher.counts().unfinished == 13).await;
    drop(stuck);
    eventually("it has given up", || fetcher.status()[0].state == SourceState::Ended).await;
    settled(&fetcher, "nothing in flight", |_| true).await;
    assert_eq!(pool.len(), 0, "the other node does not have them");
    healthy.submit_all();
    settled(&fetcher, "all are in", |counts| counts.pooled == TXS as u64).await;
    assert_eq!(pool.len(), TXS);
}

#[tokio::test]
async fn a_stream_brings_every_transaction_and_owns_its_fetcher() {
    let node = Node::start(200, |config| config);
    submit(&node, &node.txs[..100]);
    let mut stream = Fetcher::stream(node.fetcher(), 16).await.unwrap();
    let first: BTreeSet<_> = stream.by_ref().take(100).map(|tx| tx.hash()).collect().await;
    stream.fetcher().wait_live().await.unwrap();
    submit(&node, &node.txs[100..]);
    // Transactions beyond the buffer wait in the fetcher meanwhile.
    let second: BTreeSet<_> = stream.by_ref().take(80).map(|tx| tx.hash()).collect().await;
    assert_eq!((first.len(), second.len()), (100, 80));
    assert!(
        first.iter().eq(node.txs[..100].iter().map(|tx| tx.hash).collect::<BTreeSet<_>>().iter())
    );
    let FetcherEnd { reason, counts, .. } = stream.shutdown(Duration::from_secs(5)).await;
    assert_eq!((reason, counts.balance()), (EndReason::Stopped, 0));
    assert_eq!((counts.backfilled, counts.announced), (100, 100));
}

/// Before the fix the fetcher kept its sink alive, and with it the channel behind the stream.
#[tokio::test]
async fn a_stream_ends_when_its_fetcher_ends() {
    let node = Node::start(0, |config| config);
    let config = configured(node.fetcher(), |config| config.reconnect_limit = Some(1));
    let mut stream = Fetcher::stream(config, 16).await.unwrap();
    drop(node);
    assert_eq!(stream.fetcher().ended().await, EndReason::SourcesEnded);
    let next = timeout(PATIENCE, stream.next()).await.expect("the stream ends");
    assert!(next.is_none());
}

#[tokio::test]
async fn an_audit_of_an_unknown_source_names_the_index() {
    let node = Node::start(0, |config| config);
    let (fetcher, _pool) = ingest(node.fetcher()).await;
    let error = fetcher.audit(1, AuditMode::CompareOnly).await.unwrap_err();
    assert!(matches!(error, SnapshotError::UnknownSource { index: 1, count: 1 }), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_handle_outlives_its_fetcher_and_not_the_sink() {
    let node = Node::start(10, |config| config);
    let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(16);
    let fetcher = Fetcher::start(node.fetcher(), sink).await.unwrap();
    node.submit_all();
    settled(&fetcher, "all are delivered", |counts| counts.pooled == 10).await;
    let handle = fetcher.handle().clone();
    drop(fetcher);
    assert_eq!(handle.ended().await, EndReason::Stopped);
    assert_eq!((handle.counts().pooled, handle.is_live()), (10, false));
    let mut received = 0;
    while timeout(PATIENCE, transactions.recv()).await.expect("the channel ends").is_some() {
        received += 1;
    }
    assert_eq!(received, 10);
}

#[tokio::test]
async fn a_stream_without_a_buffer_is_refused() {
    let error = Fetcher::stream(Node::start(0, |config| config).fetcher(), 0).await.unwrap_err();
    let StartError::Config(ConfigError::OutOfRange { field, value, min, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((field, value, min), ("buffer", 0, 1));
}

#[tokio::test]
async fn a_node_on_another_chain_is_refused() {
    let node = Node::start(0, |config| config);
    let on = |chain| configured(node.fetcher(), |config| config.chain_id = Some(chain));
    let error = Fetcher::stream(on(1), 16).await.unwrap_err();
    let StartError::Connect(ConnectError::OtherChain { found, expected, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((found, expected), (DEV_CHAIN_ID, 1));
    let right = Fetcher::stream(on(DEV_CHAIN_ID), 16).await;
    assert!(right.is_ok());
}

/// What was announced after the first list and delivered before the end of its comparison expired,
/// although the node still listed it.
#[tokio::test]
async fn transactions_that_come_during_the_first_comparison_do_not_expire() {
    let node = Node::start(0, |config| config);
    let limits = Limits { audit_settle: Duration::from_millis(500), ..Limits::default() };
    let tx_retention = Duration::from_secs(1);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| {
        config.tx_retention = tx_retention
    }))
    .unwrap();
    let fetcher = Fetcher::start_with(node.fetcher(), limits, pool.clone()).await.unwrap();
    let mut count = 0;
    while !fetcher.is_live() {
        count += node.node.burst(1).len() as u64;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(count > 0, "the comparison takes half a second");
    eventually("all are pooled", || fetcher.counts().pooled == count).await;
    tokio::time::sleep(3 * tx_retention).await;
    pool.upkeep();
    assert_eq!(pool.len() as u64, count);
}

/// A node had lost it for a moment. The pool let it expire, although the node listed it again.
#[tokio::test]
async fn a_transaction_that_is_listed_again_does_not_expire() {
    let (_folder, path) = socket();
    let node = MockNode::start(NodeConfig::new(&path)).unwrap();
    let hash = node.burst(1)[0];
    let raw = node.raw(hash).unwrap();
    let chain = path.with_extension("chain");
    let chain = MockNode::start_beside(NodeConfig::new(chain), &node, []).unwrap();
    let tx_retention = Duration::from_secs(1);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| {
        config.tx_retention = tx_retention
    }))
    .unwrap();
    let fetcher = start_with(FetcherConfig::ipc(&path), settles_fast(), pool.clone()).await;
    eventually("it is pooled", || pool.contains(&hash)).await;
    drop(node);
    let node = MockNode::start_beside(NodeConfig::new(&path), &chain, []).unwrap();
    eventually("the loss is noticed", || fetcher.status()[0].reconnects > 0).await;
    eventually("it is connected again", || fetcher.is_live()).await;
    node.set_quirks(|quirks| quirks.silent = [Topic::Hashes].into());
    node.submit(raw).unwrap();
    assert_eq!(compare(&fetcher).await.missing, 0, "the pool still has it");
    tokio::time::sleep(3 * tx_retention).await;
    pool.upkeep();
    assert!(pool.contains(&hash));
}

/// It had been announced while the fetcher was not there. The pool held it, so it was not fetched,
/// and stayed private.
#[tokio::test]
async fn a_private_transaction_that_the_node_lists_becomes_public() {
    let (_folder, path) = socket();
    let node = MockNode::start(NodeConfig::new(&path)).unwrap();
    let hash = node.burst(1)[0];
    let tx = PooledTransaction::decode_2718_exact(&node.raw(hash).unwrap()).unwrap();
    let terms = PrivateTerms { signer: None, max_block: 10 };
    let private = Transaction::private(tx.try_into_recovered().unwrap(), terms, SystemTime::now());
    let pool = order_pool();
    pool.insert_transaction(private);
    let is_public = || {
        let order = pool.get(&hash).expect("it is pooled");
        order.as_tx().is_some_and(Transaction::is_public)
    };
    assert!(!is_public());
    let fetcher = start_with(FetcherConfig::ipc(&path), settles_fast(), pool.clone()).await;
    fetcher.wait_live().await.unwrap();
    assert!(is_public());
}

/// Before the fix they expired although each audit listed them.
#[tokio::test]
async fn transactions_that_the_node_still_lists_do_not_expire() {
    let node = Node::start(10, |config| config);
    let tx_retention = Duration::from_secs(1);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| {
        config.tx_retention = tx_retention
    }))
    .unwrap();
    let audit_interval = Some(Duration::from_millis(300));
    let config = configured(node.fetcher(), |config| config.audit_interval = audit_interval);
    let fetcher = start_with(config, settles_fast(), pool.clone()).await;
    pool_all(&node, &fetcher).await;
    // Three times the retention of transactions that no node lists.
    tokio::time::sleep(3 * tx_retention).await;
    pool.upkeep();
    assert_eq!(pool.len(), 10);
    assert_eq!(fetcher.counts().audit_recovered, 0, "they were there all the time");
    // The node loses them, so they expire after the retention.
    node.node.inject(Fault::Restart { down: Duration::from_millis(50), leaves_file: false });
    let is_empty = || {
        pool.upkeep();
        pool.is_empty()
    };
    eventually("they have left", is_empty).await;
}
