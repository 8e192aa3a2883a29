//! How the fetcher follows the chain, against a scripted node.

use order_pool::{Event, Subscription};

use super::{
    fake::{CHAIN_ID, Fake, FakeBlock, Listing, Reply, block_hash, blocks, config_of},
    *,
};

/// Starts a node, and a fetcher that knows its head.
async fn start_at_first_head() -> (Fake, Fetcher, OrderPool) {
    let fake = Fake::start();
    let (fetcher, pool) = ingest_fast(fake.config()).await;
    eventually("the first head", || head_number(&pool) == Some(1)).await;
    (fake, fetcher, pool)
}

fn txs(count: usize) -> Vec<PreparedTx> {
    let config = WorkloadConfig { accounts: 100, ..WorkloadConfig::new(5, CHAIN_ID) };
    let all = Workload::new(config).prepare(1_000);
    let mut senders = HashSet::new();
    all.into_iter().filter(|tx| senders.insert(tx.sender)).take(count).collect()
}

fn head_number(pool: &OrderPool) -> Option<u64> {
    pool.head().map(|head| head.number)
}

/// Starts a fetcher with two live sources, of which the first leads.
async fn first_leads(first: &Fake, other: &Fake, limits: Limits) -> (Fetcher, OrderPool) {
    let config = config_of([first, other]);
    other.lock().stands_still = true;
    let (fetcher, pool) = ingest_with(config, limits).await;
    eventually("the first head", || pool.head().is_some()).await;
    other.lock().stands_still = false;
    all_live(&fetcher).await;
    (fetcher, pool)
}

/// Returns the numbers of the heads that a subscriber saw.
fn seen(events: &mut Subscription) -> Vec<u64> {
    let events = std::iter::from_fn(|| events.try_next());
    let number = |event: Result<Event, _>| match event.expect("not so many") {
        Event::Head(head) => Some(head.number),
        _ => None,
    };
    events.filter_map(number).collect()
}

#[tokio::test]
async fn the_head_is_known_right_after_the_start_and_after_a_reconnect() {
    let (fake, fetcher, pool) = start_at_first_head().await;
    // The blocks are made while the fetcher is disconnected.
    fake.restart(&blocks(1..=3).collect::<Vec<_>>());
    eventually("the latest head", || head_number(&pool) == Some(3)).await;
    assert!(fetcher.status()[0].reconnects > 0);
    let head = pool.head().expect("just seen");
    assert_eq!((head.hash, head.timestamp, head.gas_limit), (block_hash(3), 1, 30_000_000));
    assert_eq!(head.next_base_fee_wei, Some(875_000_000));
}

/// Before the fix they stayed until a comparison, or for their retention.
#[tokio::test]
async fn transactions_mined_shortly_before_the_first_head_are_not_pooled() {
    let (first, behind) = (Fake::start(), Fake::start());
    let txs = txs(3);
    let now = FakeBlock::new(9, 9, 8, &[]).recent().time;
    // With blocks of 12 s, block 4 is 60 s older than the head.
    for number in 2..=9 {
        let mut block = FakeBlock::new(number, number, number - 1, &[]);
        block.time = now - 12 * (9 - number);
        match number {
            5 => block.txs = vec![(txs[0].hash, txs[0].sender, txs[0].nonce)],
            6 => block = block.with_rival_of(&txs[1]),
            _ => {}
        }
        first.announce(&block);
        if number <= 4 {
            behind.announce(&block);
        }
    }
    behind.lock().pending = txs.clone();
    let (fetcher, pool) = first_leads(&first, &behind, settles_fast()).await;
    settled(&fetcher, "the listed transactions have outcomes", |counts| {
        counts.unfinished == 0 && counts.pooled >= 1
    })
    .await;
    eventually("only the last one is pooled", || pool.len() == 1 && pool.contains(&txs[2].hash))
        .await;
    assert_eq!(first.requests_for(4, false), 1, "the oldest that may be missing");
    assert_eq!(first.requests_for(3, false), 0, "no node that old is compared");
}

#[tokio::test]
async fn the_nonces_of_every_missed_block_count() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let txs = txs(3);
    fake.announce_and_wait(&pool, &txs).await;
    // Blocks 2 and 3 are never announced. Each contains a rival of a pooled transaction.
    fake.add(&FakeBlock::new(2, 2, 1, &[]).with_rival_of(&txs[0]));
    fake.add(&FakeBlock::new(3, 3, 2, &[]).with_rival_of(&txs[1]));
    fake.announce(&FakeBlock::new(4, 4, 3, &[]));
    eventually("stale", || pool.len() == 1).await;
    assert!(pool.contains(&txs[2].hash));
    assert_eq!(head_number(&pool), Some(4));
}

/// Before the fix it was forgotten with its block, and stayed pending for ever.
#[tokio::test]
async fn transactions_of_an_undone_block_that_are_not_listed_have_vanished() {
    let fake = Fake::start();
    let (sender, mut events) = mpsc::channel::<SinkEvent>(1024);
    let fetcher = start_with(fake.config(), settles_fast(), sender).await;
    let tx = txs(1).remove(0);
    fake.announce_tx(&tx);
    settled(&fetcher, "pooled", |counts| counts.pooled == 1).await;
    fake.lock().pending.clear();
    fake.announce(&FakeBlock::new(2, 2, 1, &[&tx]));
    fake.announce(&FakeBlock::new(2, 20, 1, &[]));
    let vanished = async {
        while let Some(event) = events.recv().await {
            if let SinkEvent::Chain(ChainEvent::Vanished(hash)) = event {
                return Some(hash);
            }
        }
        None
    };
    let vanished = timeout(PATIENCE, vanished).await.expect("it is reported");
    assert_eq!(vanished, Some(tx.hash));
}

/// Waits for the list at the start. Later lists get no response.
async fn stop_listing(fake: &Fake, fetcher: &Fetcher) {
    settled(fetcher, "the start's list", |_| fake.count("txpool_content") >= 1).await;
    fake.lock().listing = Listing::Silent;
}

/// Mines transactions in block 2, announces the first of them, and removes the block by a reorg.
async fn announced_while_mined(
    fake: &Fake,
    fetcher: &Fetcher,
    pool: &OrderPool,
    txs: &[PreparedTx],
) {
    fake.announce(&FakeBlock::new(2, 2, 1, &txs.iter().collect::<Vec<_>>()));
    eventually("mined", || head_number(pool) == Some(2)).await;
    fake.announce_hash(txs[0].hash);
    settled(fetcher, "announced late", |counts| counts.mined == 1).await;
    fake.announce(&FakeBlock::new(2, 20, 1, &[]));
    fake.announce(&FakeBlock::new(3, 30, 20, &[]));
}

/// Before the fix only a comparison found it, whose fetches are deferred. The node may not have it
/// again when it is asked.
#[tokio::test]
async fn hashes_announced_while_mined_are_fetched_when_their_block_is_undone() {
    let txs = txs(2);
    for reply in [Reply::Raw(txs[0].raw.clone()), Reply::NotYet(txs[0].raw.clone())] {
        let (fake, fetcher, pool) = start_at_first_head().await;
        stop_listing(&fake, &fetcher).await;
        fake.lock().replies.insert(txs[0].hash, reply);
        announced_while_mined(&fake, &fetcher, &pool, &txs).await;
        eventually("pending", || pool.contains(&txs[0].hash)).await;
        assert!(!pool.contains(&txs[1].hash), "it was not announced");
        let counts = fetcher.counts();
        assert_eq!((counts.balance(), counts.audit_recovered), (0, 1));
        assert_eq!(counts.announced, fetcher.status()[0].announced, "only by the node");
    }
}

/// Its block is only forgotten, and still contains it.
#[tokio::test]
async fn hashes_announced_while_mined_are_not_fetched_when_blocks_are_missed() {
    let (fake, fetcher, pool) = start_at_first_head().await;
    stop_listing(&fake, &fetcher).await;
    let tx = txs(1).remove(0);
    fake.lock().replies.insert(tx.hash, Reply::Raw(tx.raw.clone()));
    fake.announce(&FakeBlock::new(2, 2, 1, &[&tx]));
    eventually("mined", || head_number(&pool) == Some(2)).await;
    fake.announce_hash(tx.hash);
    settled(&fetcher, "announced late", |counts| counts.mined == 1).await;
    let requested = fake.count("eth_getRawTransactionByHash");
    fake.announce(&FakeBlock::new(60, 60, 59, &[]));
    eventually("the head", || head_number(&pool) == Some(60)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(pool.is_empty());
    assert_eq!(fake.count("eth_getRawTransactionByHash"), requested);
}

/// The pool has let it expire, so it has nothing to put back.
#[tokio::test]
async fn an_expired_transaction_is_fetched_again_when_its_block_is_undone() {
    let fake = Fake::start();
    // The node does not count its pool, so the transaction counts as unlisted, and expires.
    fake.lock().listing = Listing::Uncounted;
    let pool = configured(PoolConfig::default(), |config| {
        config.tx_retention = Duration::from_millis(300)
    });
    let pool = OrderPool::new(pool).expect("a valid configuration");
    let fetcher = start_with(fake.config(), settles_fast(), pool.clone()).await;
    let txs = txs(1);
    fake.announce_and_wait(&pool, &txs).await;
    stop_listing(&fake, &fetcher).await;
    eventually("expired", || {
        pool.upkeep();
        pool.is_empty()
    })
    .await;
    let requested = fake.count("eth_getRawTransactionByHash");
    announced_while_mined(&fake, &fetcher, &pool, &txs).await;
    let counts = settled(&fetcher, "delivered again", |counts| counts.audit_recovered == 1).await;
    assert_eq!(counts.announced, 2);
    assert_eq!(fake.count("eth_getRawTransactionByHash"), requested + 1);
}

#[tokio::test]
async fn a_node_that_is_busy_for_a_while_loses_no_block() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let txs = txs(2);
    fake.announce_and_wait(&pool, &txs).await;
    let block = FakeBlock::new(2, 2, 1, &[&txs[0]]).with_rival_of(&txs[1]);
    // Before the fix the fourth error response made it an empty block, and the first one for the
    // full block left its nonces unread.
    fake.lock().busy.extend([((block.hash, false), 5), ((block.hash, true), 5)]);
    fake.announce(&block);
    eventually("mined and stale", || pool.is_empty()).await;
    assert_eq!((pool.stats().mined, pool.stats().stale), (1, 1));
}

#[tokio::test]
async fn a_block_that_cannot_be_read_is_a_gap_and_compared() {
    for full in [false, true] {
        let (fake, fetcher, pool) = start_at_first_head().await;
        let block = FakeBlock::new(2, 2, 1, &[]);
        fake.lock().busy.insert((block.hash, full), u32::MAX);
        fake.announce(&block);
        eventually("compared", || has_closed_gap(&fetcher, GapReason::UnreadBlock)).await;
        assert_eq!(head_number(&pool), Some(2), "the head counts");
    }
}

/// Before the fix the second announcement was ignored, and the block's transactions stayed pending.
#[tokio::test]
async fn an_unread_block_is_read_when_another_node_announces_it() {
    let fakes = [Fake::start(), Fake::start()];
    let (_fetcher, pool) = first_leads(&fakes[0], &fakes[1], settles_fast()).await;
    let txs = txs(1);
    fakes[0].announce_and_wait(&pool, &txs).await;
    let block = FakeBlock::new(2, 2, 1, &[&txs[0]]);
    for fake in &fakes {
        fake.lock().busy = [false, true].map(|full| ((block.hash, full), u32::MAX)).into();
    }
    fakes[0].announce(&block);
    let tried = || fakes.iter().map(|fake| fake.requests_for(2, true)).sum::<usize>();
    eventually("neither its hashes nor its nonces are read", || tried() == 7).await;
    assert_eq!((head_number(&pool), pool.len()), (Some(2), 1));
    fakes.iter().for_each(|fake| fake.lock().busy.clear());
    fakes[1].announce(&block);
    eventually("its transaction is gone", || pool.is_empty()).await;
}

/// Before the fix it counted as mined for ever: its announcement as known, and no audit missed it.
#[tokio::test]
async fn a_transaction_that_lost_its_nonce_returns_when_the_block_is_undone() {
    let fake = Fake::start();
    let config = configured(fake.config(), |config| config.backfill = Backfill::Off);
    let (fetcher, pool) = ingest_fast(config).await;
    eventually("the first head", || head_number(&pool) == Some(1)).await;
    let txs = txs(3);
    fake.announce_and_wait(&pool, &txs[2..]).await;
    let block = txs.iter().fold(FakeBlock::new(2, 2, 1, &[]), FakeBlock::with_rival_of);
    fake.announce(&block);
    eventually("the block's nonces are known", || pool.is_empty()).await;
    fake.announce_tx(&txs[0]);
    fake.announce_tx(&txs[1]);
    settled(&fetcher, "two come too late", |counts| counts.mined == 2).await;
    fake.lock().pending.clear();
    fake.announce(&FakeBlock::new(2, 22, 1, &[]));
    eventually("undone", || pool.head().is_some_and(|head| head.hash == block_hash(22))).await;
    eventually("its comparison is done", || has_closed_gap(&fetcher, GapReason::Reorg)).await;
    // One is announced again, the other is found by an audit.
    fake.announce_tx(&txs[0]);
    eventually("admitted again", || pool.contains(&txs[0].hash)).await;
    fake.lock().pending.push(txs[1].clone());
    recover(&fetcher).await;
    eventually("recovered", || pool.contains(&txs[1].hash)).await;
}

#[tokio::test]
async fn a_silent_leader_leads_until_another_branch_is_higher() {
    let (silent, other) = (Fake::start(), Fake::start());
    let limits = Limits { lead_timeout: Duration::ZERO, ..settles_fast() };
    let (_fetcher, pool) = first_leads(&silent, &other, limits).await;
    // A valid branch with all its ancestors, which then stops.
    for number in 2..=9 {
        let parent = if number == 2 { 1 } else { 99 + number };
        silent.announce(&FakeBlock::new(number, 100 + number, parent, &[]));
    }
    eventually("the first leads", || head_number(&pool) == Some(9)).await;
    let mut events = pool.subscribe_all();
    blocks(2..=12).for_each(|block| other.announce(&block));
    let head = || pool.head().is_some_and(|head| head.hash == block_hash(12));
    eventually("the other leads", head).await;
    let heads = seen(&mut events);
    assert_eq!(heads[0], 9, "until then");
    assert_eq!(
        heads[heads.len() - 11..],
        (2..=12).collect::<Vec<_>>(),
        "not before the 11th: {heads:?}"
    );
}

#[tokio::test]
async fn the_other_node_replaces_a_frozen_leader_without_a_step_back() {
    let began = Instant::now();
    let (first, other) = (Fake::start(), Fake::start());
    let (_fetcher, pool) = first_leads(&first, &other, settles_fast()).await;
    let mut events = pool.subscribe_all();
    for block in blocks(2..=3) {
        first.announce(&block);
        other.announce(&block);
    }
    eventually("both are followed", || head_number(&pool) == Some(3)).await;
    first.lock().stands_still = true;
    // The request for its block waits until the call times out.
    first.announce(&FakeBlock::new(4, 4, 3, &[]));
    for block in blocks(4..=9) {
        other.announce(&block);
        eventually("the other is", || head_number(&pool) == Some(block.number)).await;
    }
    first.lock().stands_still = false;
    blocks(5..=10).for_each(|block| first.announce(&block));
    eventually("the first again", || head_number(&pool) == Some(10)).await;
    let heads = seen(&mut events);
    assert!(heads.is_sorted(), "{heads:?}");
    // A call to the frozen one takes 10 s to time out.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_huge_first_head_number_keeps_no_honest_head_from_the_sink() {
    let (liar, honest) = (Fake::start(), Fake::start());
    let high = FakeBlock::new(1 << 60, 100, 99, &[]);
    liar.add(&high);
    liar.lock().head = high.hash;
    let (_fetcher, pool) = first_leads(&liar, &honest, settles_fast()).await;
    assert_eq!(head_number(&pool), Some(high.number), "no other node has announced a head");
    for block in blocks(2..=8) {
        liar.announce(&high);
        honest.announce(&block);
        eventually("an honest head", || head_number(&pool) == Some(block.number)).await;
    }
}

/// Before the fix a head was related to the chain before the previous one was applied.
#[tokio::test]
async fn a_quick_flip_back_to_a_known_branch_is_followed() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let txs = txs(1);
    fake.announce_and_wait(&pool, &txs).await;
    let block = |number| match number {
        4 => FakeBlock::new(4, 4, 3, &[&txs[0]]),
        _ => FakeBlock::new(number, number, number - 1, &[]),
    };
    (2..=5).for_each(|number| fake.announce(&block(number)));
    eventually("mined", || pool.is_empty() && head_number(&pool) == Some(5)).await;
    let mut events = pool.subscribe_all();
    let flip = FakeBlock::new(3, 33, 2, &[]);
    // While it is read, all later heads are announced.
    fake.lock().busy.insert((flip.hash, false), 2);
    fake.announce(&flip);
    (3..=6).for_each(|number| fake.announce(&block(number)));
    eventually("the head", || head_number(&pool) == Some(6)).await;
    assert_eq!(seen(&mut events), [5, 3, 3, 4, 5, 6], "to the other branch and back");
    assert!(pool.is_empty());
}

#[tokio::test]
async fn a_head_that_was_reorged_out_does_not_hold_up_the_next() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let gone = FakeBlock::new(2, 22, 1, &[]);
    let next = FakeBlock::new(2, 2, 1, &[]);
    fake.add(&next);
    {
        // Both are announced before the first request can be answered.
        let state = fake.lock();
        state.notify("newHeads", &gone.json(None));
        state.notify("newHeads", &next.json(None));
    }
    eventually("the next head", || head_number(&pool) == Some(2)).await;
    assert!(pool.head().is_some_and(|head| head.hash == next.hash));
    assert!(fake.requests_for(22, false) <= 2, "{} requests", fake.requests_for(22, false));
}

/// Before the fix it was given up for the newer head, which was ignored.
#[tokio::test]
async fn a_head_announced_twice_before_its_block_exists_is_read() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let block = FakeBlock::new(2, 2, 1, &[]);
    (0..2).for_each(|_| fake.notify("newHeads", &block.json(None)));
    eventually("it is requested", || fake.requests_for(2, false) > 0).await;
    fake.add(&block);
    eventually("the head", || head_number(&pool) == Some(2)).await;
}

/// Before the fix it was ignored until its source announced the next head.
#[tokio::test]
async fn a_higher_head_of_another_node_counts_when_the_leader_is_lost() {
    let (first, other) = (Fake::start(), Fake::start());
    let (fetcher, pool) = first_leads(&first, &other, settles_fast()).await;
    first.announce(&FakeBlock::new(2, 102, 1, &[]));
    eventually("the first leads", || head_number(&pool) == Some(2)).await;
    blocks(2..=3).for_each(|block| other.announce(&block));
    eventually("both are announced", || fetcher.status()[1].head == Some(3)).await;
    eventually("it is looked into", || other.requests_for(2, false) > 0).await;
    first.lock().stands_still = true;
    first.restart(&blocks(1..=1).collect::<Vec<_>>());
    let head = || pool.head().is_some_and(|head| head.hash == block_hash(3));
    eventually("the other leads", head).await;
}

#[tokio::test]
async fn the_first_listed_source_sets_the_chain_however_late_it_responds() {
    let (first, other) = (Fake::start(), Fake::start());
    other.lock().chain_id = Some(1);
    first.lock().stands_still = true;
    let config =
        configured(config_of([&first, &other]), |config| config.start = StartPolicy::WaitForNode);
    let pool = order_pool();
    let fetcher = Fetcher::start(config, pool).await.expect("it waits for no node");
    eventually("the other is probed", || other.count("web3_clientVersion") >= 2).await;
    first.lock().stands_still = false;
    eventually("the other is refused", || fetcher.status()[1].last_error.is_some()).await;
    let error = fetcher.status()[1].last_error.as_ref().map(ToString::to_string);
    let error = error.expect("just seen");
    assert!(error.ends_with("is on chain 1, expected chain 1337"), "{error}");
    eventually("the first is live", || fetcher.is_live()).await;
    assert_eq!(fetcher.status()[1].state, SourceState::Connecting);
    assert!(!fetcher.is_ready(), "one of them is not");
}

#[tokio::test]
async fn a_syncing_node_is_not_live_and_its_heads_do_not_count() {
    let fake = Fake::start();
    fake.lock().is_syncing = true;
    let pool = order_pool();
    let limits = Limits { ping_interval: Duration::from_millis(20), ..settles_fast() };
    let started = Fetcher::start_with(fake.config(), limits, pool.clone()).await;
    let fetcher = started.expect("the node is there");
    let txs = txs(1);
    fake.lock().pending.push(txs[0].clone());
    blocks(2..=3).for_each(|block| fake.announce(&block));
    eventually("its heads are seen", || fetcher.status()[0].head == Some(3)).await;
    let status = &fetcher.status()[0];
    assert_eq!((status.state, status.audits), (SourceState::Syncing, 0));
    assert!(!fetcher.is_live() && pool.head().is_none() && pool.is_empty());
    eventually("it is asked again", || fake.count("eth_syncing") >= 10).await;
    assert!(fake.count("eth_getBlockByNumber") <= 3);
    // An old head alone does not mean that it is syncing: a development chain may mine seldom.
    fake.lock().is_syncing = false;
    eventually("live", || fetcher.is_live()).await;
    eventually("its pool and its head", || pool.len() == 1 && head_number(&pool) == Some(3)).await;
}

#[tokio::test]
async fn a_node_far_behind_another_is_syncing_until_it_has_caught_up() {
    let (late, live) = (Fake::start(), Fake::start());
    let recent = FakeBlock::new(2, 2, 1, &[]).recent();
    live.add(&recent);
    live.lock().head = recent.hash;
    let (fetcher, pool) = ingest_fast(config_of([&late, &live])).await;
    let states = || fetcher.status().into_iter().map(|source| source.state);
    let expected = [SourceState::Syncing, SourceState::Live];
    eventually("one syncs, one is live", || states().eq(expected)).await;
    live.announce(&FakeBlock::new(3, 3, 2, &[]).recent());
    eventually("the head", || head_number(&pool) == Some(3)).await;
    late.announce(&recent);
    all_live(&fetcher).await;
    assert_eq!(head_number(&pool), Some(3));
}

#[tokio::test]
async fn a_head_above_a_mebibyte_is_read_before_the_next_one() {
    let figures = Figures::install();
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let mut events = pool.subscribe_all();
    let long = |number, bytes| {
        let block = FakeBlock::new(number, number, number - 1, &[]);
        fake.add(&block);
        let mut head = block.json(None);
        head["padding"] = "x".repeat(bytes).into();
        fake.notify("newHeads", &head);
    };
    long(2, 1_000_000);
    eventually("a long one counts", || head_number(&pool) == Some(2)).await;
    long(3, 1 << 20);
    let malformed = || figures.get("malformed_notifications_total", "").0;
    eventually("it is counted", || malformed() == 1.0).await;
    assert_eq!(head_number(&pool), Some(2));
    blocks(4..=4).for_each(|block| fake.announce(&block));
    eventually("the next head", || head_number(&pool) == Some(4)).await;
    assert_eq!(seen(&mut events), [1, 2, 3, 4]);
}

/// The same transactions, with the same hashes, counted as mined for ever.
#[tokio::test]
async fn after_a_chain_reset_transactions_of_the_old_chain_are_pooled_again() {
    let fake = Fake::start();
    fake.lock().genesis = Some(B256::repeat_byte(1));
    let tx = txs(1).remove(0);
    let (fetcher, pool) = ingest_fast(fake.config()).await;
    fake.announce_tx(&tx);
    eventually("it is pooled", || pool.len() == 1).await;
    fake.lock().pending.clear();
    fake.announce(&FakeBlock::new(2, 2, 1, &[&tx]));
    // More blocks than are remembered, so that the one with the transaction is forgotten.
    for block in blocks(3..=100) {
        fake.announce(&block);
        let number = block.number;
        eventually("the head", || head_number(&pool) == Some(number)).await;
    }
    assert!(pool.is_empty());

    // The first connects after the reset fail once the node has returned its genesis block.
    {
        let mut state = fake.lock();
        (state.genesis, state.refuses_subscriptions) = (Some(B256::repeat_byte(2)), true);
        state.pending.push(tx.clone());
    }
    fake.restart(&[FakeBlock::new(1, 1_001, 1_000, &[])]);
    let refused = |error: &SourceError| matches!(error, SourceError::Connect(error) if error.to_string().contains("eth_subscribe"));
    let was_refused = || fetcher.status()[0].last_error.as_deref().is_some_and(refused);
    eventually("a subscription was refused", was_refused).await;
    fake.lock().refuses_subscriptions = false;
    eventually("it is pooled again", || pool.len() == 1).await;
    fake.announce(&FakeBlock::new(2, 1_002, 1_001, &[&tx]));
    eventually("the new chain is followed", || pool.is_empty()).await;
    assert_eq!(head_number(&pool), Some(2));
}

/// Before the fix all its heads were rejected, without an end, while it was live: they could not be
/// linked, and were so much higher that they seemed invented.
#[tokio::test]
async fn a_node_that_has_gone_far_ahead_and_dropped_the_blocks_between_is_followed() {
    let (fake, _fetcher, pool) = start_at_first_head().await;
    let last_blocks: Vec<_> = blocks(197..=200).collect();
    fake.restart(&last_blocks);
    eventually("the head", || head_number(&pool) == Some(200)).await;
    fake.announce(&FakeBlock::new(201, 201, 200, &[]));
    eventually("the next head", || head_number(&pool) == Some(201)).await;
}

#[tokio::test]
async fn a_chain_that_comes_back_after_a_reset_is_followed() {
    let fake = Fake::start();
    fake.lock().genesis = Some(B256::repeat_byte(1));
    let (_fetcher, pool) = ingest_fast(fake.config()).await;
    blocks(2..=90).for_each(|block| fake.announce(&block));
    eventually("the head", || head_number(&pool) == Some(90)).await;
    fake.lock().genesis = Some(B256::repeat_byte(2));
    fake.restart(&[FakeBlock::new(4, 1_004, 1_003, &[])]);
    eventually("the other chain", || head_number(&pool) == Some(4)).await;
    fake.lock().genesis = Some(B256::repeat_byte(1));
    fake.restart(&[FakeBlock::new(91, 91, 90, &[])]);
    eventually("the first chain", || head_number(&pool) == Some(91)).await;
    fake.announce(&FakeBlock::new(92, 92, 91, &[]));
    eventually("the next head", || head_number(&pool) == Some(92)).await;
}

/// Before the fix nothing ended the retention of what the node had listed before the reset.
#[tokio::test]
async fn after_a_chain_reset_the_pool_keeps_what_the_node_lists_and_nothing_else() {
    let fake = Fake::start();
    fake.lock().genesis = Some(B256::repeat_byte(1));
    let tx_retention = Duration::from_secs(1);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| {
        config.tx_retention = tx_retention
    }))
    .expect("it is valid");
    let fetcher = start_with(fake.config(), settles_fast(), pool.clone()).await;
    let txs = txs(2);
    fake.announce_and_wait(&pool, &txs).await;
    compare(&fetcher).await;
    {
        let mut state = fake.lock();
        state.genesis = Some(B256::repeat_byte(2));
        state.pending = vec![txs[0].clone()];
    }
    fake.restart(&[FakeBlock::new(1, 1_001, 1_000, &[])]);
    eventually("the new chain", || pool.head().is_some_and(|head| head.hash == block_hash(1_001)))
        .await;
    compare(&fetcher).await;
    eventually("only what is listed", || {
        pool.upkeep();
        !pool.contains(&txs[1].hash)
    })
    .await;
    tokio::time::sleep(2 * tx_retention).await;
    pool.upkeep();
    assert!(pool.contains(&txs[0].hash));
}

/// The other source was compared a minute later, when they had expired.
#[tokio::test]
async fn a_chain_reset_of_one_source_ends_no_transaction_that_another_lists() {
    let (first, other) = (Fake::start(), Fake::start());
    for fake in [&first, &other] {
        fake.lock().genesis = Some(B256::repeat_byte(1));
    }
    let tx_retention = Duration::from_secs(2);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| {
        config.tx_retention = tx_retention
    }))
    .expect("it is valid");
    let fetcher = start_with(config_of([&first, &other]), settles_fast(), pool.clone()).await;
    all_live(&fetcher).await;
    let txs = txs(1);
    other.announce_and_wait(&pool, &txs).await;
    first.lock().genesis = Some(B256::repeat_byte(2));
    first.restart(&[FakeBlock::new(1, 1_001, 1_000, &[])]);
    eventually("the loss is noticed", || fetcher.status()[0].reconnects > 0).await;
    all_live(&fetcher).await;
    tokio::time::sleep(3 * tx_retention).await;
    pool.upkeep();
    assert!(pool.contains(&txs[0].hash));
}

/// Before the fix the head was applied after the reset, without its hashes: the first head of the
/// new chain was one of the old chain.
#[tokio::test]
async fn a_head_whose_block_is_being_read_at_a_chain_reset_is_dropped() {
    let fake = Fake::start();
    fake.lock().genesis = Some(B256::repeat_byte(1));
    let (sender, mut events) = mpsc::channel(256);
    let fetcher = start_with(fake.config(), settles_fast(), sender).await;
    // Its block is never returned, and the new chain does not have it.
    fake.lock().busy.insert((block_hash(2), false), u32::MAX);
    fake.announce(&FakeBlock::new(2, 2, 1, &[]));
    eventually("its block is requested", || fake.requests_for(2, false) > 0).await;
    fake.lock().genesis = Some(B256::repeat_byte(2));
    fake.restart(&[FakeBlock::new(1, 1_001, 1_000, &[])]);
    let mut heads = Vec::new();
    let (mut is_reset, mut is_announced) = (false, false);
    let is_on_new_chain = |head: B256| head == block_hash(1_001) || head == block_hash(1_002);
    loop {
        let event = timeout(PATIENCE, events.recv()).await.expect("in time").expect("it runs");
        match event {
            SinkEvent::Chain(ChainEvent::Reset) => is_reset = true,
            SinkEvent::Chain(ChainEvent::Head(block)) if is_reset => heads.push(block.head.hash),
            _ => {}
        }
        if heads.contains(&block_hash(1_002)) {
            break;
        }
        if heads.contains(&block_hash(1_001)) && !std::mem::replace(&mut is_announced, true) {
            // As long as all attempts to read a block take.
            tokio::time::sleep(Duration::from_secs(2)).await;
            fake.announce(&FakeBlock::new(2, 1_002, 1_001, &[]));
        }
    }
    assert!(heads.iter().all(|head| is_on_new_chain(*head)), "{heads:?}");
    assert!(fetcher.is_live());
}

#[tokio::test]
async fn nothing_waits_behind_a_full_block() {
    let fake = Fake::start();
    fake.lock().full_blocks_stand_still = true;
    let txs = txs(2);
    let (fetcher, pool) = ingest_fast(fake.config()).await;
    fake.announce_and_wait(&pool, &txs[..1]).await;
    fake.announce(&FakeBlock::new(2, 2, 1, &[]).with_rival_of(&txs[0]));
    for number in 3..6 {
        fake.announce(&FakeBlock::new(number, number, number - 1, &[]));
        eventually("the next head", || head_number(&pool) == Some(number)).await;
    }
    fake.announce_and_wait(&pool, &txs[1..]).await;
    assert!(pool.contains(&txs[0].hash), "the nonces of its rival's block are not here yet");
    fake.lock().full_blocks_stand_still = false;
    eventually("the nonce is taken", || !pool.contains(&txs[0].hash)).await;
    assert_eq!(fetcher.status()[0].reconnects, 0);
}

#[tokio::test]
async fn no_full_block_is_requested_for_a_sink_without_nonces() {
    let fake = Fake::start();
    // A channel of transactions takes no nonces.
    let (sender, _receiver) = mpsc::channel::<FetchedTransaction>(16);
    let _fetcher = start_with(fake.config(), Limits::default(), sender).await;
    for block in blocks(2..=5) {
        fake.announce(&block);
        eventually("the head is read", || fake.requests_for(block.number, false) > 0).await;
        assert_eq!(fake.requests_for(block.number, true), 0);
    }
}

/// The announced head is known, but not yet the hashes of its parent.
#[tokio::test]
async fn transactions_of_a_block_that_is_being_read_have_not_vanished() {
    let (fake, fetcher, pool) = start_at_first_head().await;
    let txs = txs(1);
    fake.announce_and_wait(&pool, &txs).await;
    fake.add(&FakeBlock::new(2, 2, 1, &[&txs[0]]));
    fake.lock().pending.clear();
    fake.lock().busy.insert((block_hash(2), false), 6);
    fake.announce(&FakeBlock::new(3, 3, 2, &[]));
    eventually("it is read", || fake.requests_for(2, false) > 0).await;
    assert_eq!(compare(&fetcher).await.vanished, 0);
    eventually("the head", || head_number(&pool) == Some(3)).await;
    assert!(pool.is_empty());
}
