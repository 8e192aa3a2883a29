//! A pool in the same process as a source: the same outcomes, gaps and audits as with a node.

use std::sync::{
    MutexGuard,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use alloy_consensus::transaction::{Recovered, SignerRecoverable as _};
use alloy_eips::Decodable2718 as _;
use futures::stream;
use mock_node::DEV_CHAIN_ID;
use tokio::{runtime::Handle, sync::RwLock};
use txpool_fetcher::{
    AnnouncementStream, Block, BlockStream, Head, InProcessPool, MinedBlock, NonceUpdate,
    PoolAnnouncement, PooledHashes, PooledTransaction, announcements_of,
};

use super::*;

/// A small pool with a chain, controlled by the test.
#[derive(Default)]
struct SmallPool {
    state: Mutex<State>,
    /// While the test holds this lock, `get` waits, and sets `is_waited_for`.
    busy: RwLock<()>,
    is_waited_for: AtomicBool,
    /// Announcements are dropped silently.
    drops: AtomicBool,
}

#[derive(Default)]
struct State {
    txs: HashMap<B256, Recovered<PooledTransaction>>,
    chain: Vec<MinedBlock>,
    announcements: Option<mpsc::UnboundedSender<PoolAnnouncement>>,
    blocks: Option<mpsc::UnboundedSender<MinedBlock>>,
    /// The channel that the next subscription reads.
    listener: Option<mpsc::Receiver<B256>>,
    /// Functions that panic once, and hashes for which `get` panics once.
    panics: HashSet<&'static str>,
    panics_for: HashSet<B256>,
    subscriptions: u32,
}

impl SmallPool {
    /// Locks the state. It is not poisoned, because panics of the tests happen outside of the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn add(&self, tx: &PreparedTx) {
        let tx = PooledTransaction::decode_2718_exact(&tx.raw).unwrap();
        let hash = *tx.hash();
        let mut state = self.state();
        state.txs.insert(hash, tx.try_into_recovered().unwrap());
        if !self.drops.load(Relaxed) {
            state.announce(PoolAnnouncement::Pending(hash));
        }
    }

    /// Mines transactions in a block on top of the block `parent` of the chain.
    fn mine(&self, parent: usize, txs: &[&PreparedTx]) -> MinedBlock {
        let mut state = self.state();
        state.chain.truncate(parent + 1);
        let parent = state.chain.last().map(|mined| mined.block.head).unwrap_or_default();
        let number = parent.number + 1;
        // Two blocks at the same height differ in their transactions, and so in their hash.
        let salt = txs.first().map_or(0, |tx| tx.hash[0]);
        let hash = B256::from([number as u8 ^ salt; 32]);
        let head = Head { next_base_fee_wei: Some(7), ..Head::new(number, hash, parent.hash) };
        let hashes: Vec<_> = txs.iter().map(|tx| tx.hash).collect();
        let nonces = txs.iter().map(|tx| NonceUpdate::new(tx.sender, tx.nonce + 1)).collect();
        let mined = MinedBlock { block: Block::new(head, hashes.clone()), nonces };
        state.txs.retain(|hash, _| !hashes.contains(hash));
        state.chain.push(mined.clone());
        mined
    }

    /// Announces a block.
    fn announce_block(&self, mined: MinedBlock) {
        if let Some(blocks) = &self.state().blocks {
            // The error means that nobody is subscribed.
            let _ = blocks.send(mined);
        }
    }

    /// Panics if the test wants this function to panic.
    fn panic_if_armed(&self, function: &'static str) {
        assert!(!self.state().panics.remove(function), "{function} panics, as the test wants");
    }
}

impl State {
    fn announce(&self, announcement: PoolAnnouncement) {
        if let Some(announcements) = &self.announcements {
            let _ = announcements.send(announcement);
        }
    }
}

impl InProcessPool for SmallPool {
    fn chain_id(&self) -> u64 {
        DEV_CHAIN_ID
    }

    fn announcements(&self) -> AnnouncementStream {
        self.panic_if_armed("announcements");
        let mut state = self.state();
        if let Some(listener) = state.listener.take() {
            return announcements_of(listener);
        }
        let panics = state.panics.remove("the stream");
        let (sender, mut receiver) = mpsc::unbounded_channel();
        state.announcements = Some(sender);
        state.subscriptions += 1;
        Box::pin(stream::poll_fn(move |context| {
            let polled = receiver.poll_recv(context);
            assert!(!(panics && polled.is_ready()), "the stream panics, as the test wants");
            polled
        }))
    }

    fn blocks(&self) -> BlockStream {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        self.state().blocks = Some(sender);
        Box::pin(stream::poll_fn(move |context| receiver.poll_recv(context)))
    }

    fn latest_block(&self) -> Option<MinedBlock> {
        self.panic_if_armed("latest_block");
        self.state().chain.last().cloned()
    }

    fn block(&self, hash: &B256) -> Option<MinedBlock> {
        self.panic_if_armed("block");
        self.state().chain.iter().find(|mined| mined.block.head.hash == *hash).cloned()
    }

    fn pooled(&self) -> PooledHashes {
        self.panic_if_armed("pooled");
        PooledHashes { pending: self.state().txs.keys().copied().collect(), queued: vec![] }
    }

    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>> {
        assert!(Handle::try_current().is_err(), "called inside of a runtime");
        if self.busy.try_read().is_err() {
            self.is_waited_for.store(true, Relaxed);
            drop(self.busy.blocking_read());
        }
        let panics = self.state().panics_for.remove(hash);
        assert!(!panics, "get panics, as the test wants");
        self.state().txs.get(hash).cloned()
    }
}

/// Prepares transactions of every kind.
fn prepared(count: usize) -> Vec<PreparedTx> {
    let mix = Mix { blobs_per_mille: 20, six_blobs_per_mille: 300, ..Mix::default() };
    let workload = WorkloadConfig { accounts: 20, mix, ..WorkloadConfig::new(7, DEV_CHAIN_ID) };
    Workload::new(workload).prepare(count)
}

/// Makes a configuration with the pool as the source, without audits on the timer.
fn config(pool: &Arc<SmallPool>) -> FetcherConfig {
    let pool: Arc<dyn InProcessPool> = Arc::clone(pool) as _;
    configured(FetcherConfig::in_process("small", pool), |config| config.audit_interval = None)
}

/// Starts a fetcher at an empty pool, and prepares `count` transactions for it.
async fn start_empty(count: usize) -> (Arc<SmallPool>, Vec<PreparedTx>, Fetcher, OrderPool) {
    let pool = Arc::default();
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    (pool, prepared(count), fetcher, ours)
}

/// Asserts that both pools hold the same, and that every hash is accounted for.
async fn assert_complete(fetcher: &Fetcher, pool: &SmallPool, ours: &OrderPool) -> Counts {
    let report = compare(fetcher).await;
    assert_eq!((report.missing, report.removed), (0, 0));
    let hashes: Vec<_> = pool.state().txs.keys().copied().collect();
    assert_eq!(report.listed, hashes.len() as u64);
    assert!(hashes.iter().all(|hash| ours.contains(hash)));
    let counts = fetcher.counts();
    assert_eq!((counts.balance(), counts.unfinished), (0, 0), "{counts:?}");
    counts
}

#[tokio::test]
async fn pending_announced_and_silently_dropped_transactions_all_arrive() {
    let (pool, txs) = (Arc::<SmallPool>::default(), prepared(600));
    let (before, rest) = txs.split_at(200);
    let (live, dropped) = rest.split_at(200);
    before.iter().for_each(|tx| pool.add(tx));
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    settled(&fetcher, "the backfill", |counts| counts.pooled == 200).await;
    live.iter().for_each(|tx| pool.add(tx));
    settled(&fetcher, "live", |counts| counts.pooled == 400).await;
    pool.drops.store(true, Relaxed);
    dropped.iter().for_each(|tx| pool.add(tx));
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.recovered), (200, 200));
    let counts = assert_complete(&fetcher, &pool, &ours).await;
    let entered = (counts.backfilled, counts.announced, counts.audit_recovered);
    assert_eq!((entered, counts.pooled), ((200, 200, 200), 600));
    let types = arrived_whole(&ours, &txs);
    assert_eq!(types, BTreeSet::from([0, 1, 2, 3, 4]));
}

#[tokio::test]
async fn a_reported_lag_opens_a_gap_that_a_comparison_closes() {
    let (pool, txs, fetcher, ours) = start_empty(20).await;
    pool.drops.store(true, Relaxed);
    txs.iter().for_each(|tx| pool.add(tx));
    pool.state().announce(PoolAnnouncement::Lagged(20));
    settled(&fetcher, "recovered", |counts| counts.audit_recovered == 20).await;
    eventually("closed", || has_closed_gap(&fetcher, GapReason::Lagged)).await;
    let counts = assert_complete(&fetcher, &pool, &ours).await;
    assert_eq!((counts.lagged, counts.announced, counts.pooled), (20, 0, 20));
}

#[tokio::test]
async fn hashes_that_a_full_channel_dropped_are_recovered_soon() {
    let (pool, txs) = (Arc::<SmallPool>::default(), prepared(100));
    let (listener, receiver) = mpsc::channel(16);
    pool.state().listener = Some(receiver);
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    pool.drops.store(true, Relaxed);
    for (n, half) in (1..).zip(txs.chunks(50)) {
        half.iter().for_each(|tx| pool.add(tx));
        // Fill the channel until it is full, and then send no more.
        let mut sent = half[..10].iter().cycle();
        while listener.try_send(sent.next().expect("a cycle has no end").hash).is_ok() {}
        settled(&fetcher, "all arrive", |counts| counts.pooled == 50 * n).await;
    }
    let counts = assert_complete(&fetcher, &pool, &ours).await;
    assert!(counts.audit_recovered >= 80 && counts.lagged == 0, "{counts:?}");
}

#[tokio::test]
async fn announcements_are_read_while_the_pool_blocks_on_one_transaction() {
    let (pool, txs, fetcher, ours) = start_empty(30).await;
    let busy = pool.busy.write().await;
    let (first, rest) = txs.split_first().expect("30");
    pool.add(first);
    eventually("the first blocks the pool", || pool.is_waited_for.load(Relaxed)).await;
    rest.iter().for_each(|tx| pool.add(tx));
    eventually("all have been read", || fetcher.counts().unfinished == 30).await;
    drop(busy);
    settled(&fetcher, "30 pooled", |counts| counts.pooled == 30).await;
    assert_complete(&fetcher, &pool, &ours).await;
}

#[tokio::test]
async fn heads_and_nonces_reach_the_order_pool_and_a_reorg_puts_back() {
    let (pool, txs) = (Arc::<SmallPool>::default(), prepared(40));
    let plain: Vec<_> = txs.iter().filter(|tx| tx.nonce == 0).collect();
    let [first, second, third, ..] = plain[..] else { panic!("three senders") };
    let genesis = pool.mine(0, &[]);
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    eventually("the head right after the start", || {
        ours.head().is_some_and(|head| head.hash == genesis.block.head.hash)
    })
    .await;
    assert_eq!(ours.head().and_then(|head| head.next_base_fee_wei), Some(7));
    [first, second].iter().for_each(|tx| pool.add(tx));
    settled(&fetcher, "2 pooled", |counts| counts.pooled == 2).await;
    // A private transaction takes the nonce of the second one.
    let mut mined = pool.mine(0, &[first]);
    mined.nonces.push(NonceUpdate::new(second.sender, 1));
    pool.announce_block(mined.clone());
    eventually("both are out of the pool", || ours.is_empty()).await;
    assert_eq!(fetcher.status()[0].head, Some(2));
    // Of two blocks only the second is announced. The fetcher requests the other.
    pool.add(third);
    settled(&fetcher, "3 pooled", |counts| counts.pooled == 3).await;
    let _missed = pool.mine(1, &[third]);
    pool.announce_block(pool.mine(2, &[]));
    eventually("mined in the missed block", || ours.is_empty()).await;
    eventually("missed", || has_closed_gap(&fetcher, GapReason::MissedHeads)).await;
    // Another branch without these: all three are pending again.
    [first, second, third].iter().for_each(|tx| pool.add(tx));
    pool.announce_block(pool.mine(0, &[txs.last().expect("many")]));
    eventually("the branch", || has_closed_gap(&fetcher, GapReason::Reorg)).await;
    eventually("put back", || [first, second, third].iter().all(|tx| ours.contains(&tx.hash)))
        .await;
    settled(&fetcher, "nothing under way", |_| true).await;
    assert_complete(&fetcher, &pool, &ours).await;
}

#[tokio::test]
async fn the_end_of_either_stream_counts_as_a_lost_connection() {
    let (pool, txs, fetcher, ours) = start_empty(30).await;
    for (round, part) in txs.chunks(10).enumerate() {
        let reconnects = round as u64;
        eventually("live", || fetcher.is_live() && fetcher.status()[0].reconnects == reconnects)
            .await;
        settled(&fetcher, "all until now", |counts| counts.pooled == 10 * reconnects).await;
        // The transactions are not announced. The end of a stream is the only signal.
        let (announcements, blocks) = {
            let mut state = pool.state();
            (state.announcements.take(), state.blocks.take())
        };
        let (ended, kept) = match round {
            0 => (announcements.map(drop), blocks.map(|blocks| (None, Some(blocks)))),
            _ => (blocks.map(drop), announcements.map(|kept| (Some(kept), None))),
        };
        assert!(ended.is_some() && kept.is_some());
        part.iter().for_each(|tx| pool.add(tx));
        eventually("lost", || fetcher.status()[0].reconnects == reconnects + 1).await;
        drop(kept);
    }
    settled(&fetcher, "all backfilled", |counts| counts.backfilled == 30).await;
    eventually("live", || fetcher.is_live()).await;
    assert_eq!(pool.state().subscriptions, 4);
    let error = fetcher.status()[0].last_error.clone().expect("the loss");
    assert_eq!(error.to_string(), "the pool ended its stream of blocks");
    assert_complete(&fetcher, &pool, &ours).await;
}

#[tokio::test]
async fn a_panic_of_the_pool_affects_only_that_call() {
    let (pool, txs) = (Arc::<SmallPool>::default(), prepared(40));
    pool.mine(0, &[]);
    pool.state().panics.insert("latest_block");
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    eventually("the head, at the second try", || ours.head().is_some()).await;

    pool.state().panics_for.insert(txs[3].hash);
    txs[..20].iter().for_each(|tx| pool.add(tx));
    let counts = settled(&fetcher, "19 pooled", |counts| counts.pooled == 19).await;
    assert_eq!((counts.announced, counts.failed), (20, 1));
    pool.state().panics.insert("pooled");
    let error = fetcher.audit(0, AuditMode::Recover).await.unwrap_err();
    assert!(matches!(error, SnapshotError::Connect(ConnectError::PoolPanicked { .. })), "{error}");
    let report = recover(&fetcher).await;
    assert_eq!(report.recovered, 1);
    settled(&fetcher, "20 pooled", |counts| counts.pooled == 20).await;

    // The next subscription's stream panics at its first item, and the one after it works.
    pool.state().panics.extend(["the stream", "announcements"]);
    pool.state().announcements = None;
    eventually("subscribed again", || pool.state().subscriptions == 2).await;
    eventually("live", || fetcher.is_live()).await;
    txs[20..].iter().for_each(|tx| pool.add(tx));
    eventually("and again", || pool.state().subscriptions == 3).await;
    settled(&fetcher, "40 pooled", |counts| counts.pooled == 40).await;
    let error = fetcher.status()[0].last_error.clone().expect("the loss");
    assert_eq!(error.to_string(), "the pool's stream of announcements panicked");
    eventually("live", || fetcher.is_live()).await;

    // The request for a block panics, and is repeated.
    pool.state().panics.insert("block");
    let _missed = pool.mine(0, &[&txs[0]]);
    let last = pool.mine(1, &[]);
    pool.announce_block(last.clone());
    eventually("the head", || ours.head().is_some_and(|head| head == last.block.head)).await;
    assert!(!ours.contains(&txs[0].hash));
    assert_complete(&fetcher, &pool, &ours).await;
}

#[tokio::test]
async fn absent_mined_and_wrong_transactions_of_the_pool_have_their_outcomes() {
    let (pool, txs) = (Arc::<SmallPool>::default(), prepared(3));
    pool.mine(0, &[]);
    let (fetcher, ours) = ingest_fast(config(&pool)).await;
    eventually("the first head", || ours.head().is_some()).await;
    pool.state().announce(PoolAnnouncement::Pending(txs[0].hash));
    settled(&fetcher, "gone", |counts| counts.gone == 1).await;
    // Mined while `get` waits, so the hash is not known from the block when it enters.
    let busy = pool.busy.write().await;
    pool.state().announce(PoolAnnouncement::Pending(txs[1].hash));
    eventually("under way", || fetcher.counts().unfinished == 1).await;
    let mined = pool.mine(0, &[&txs[1]]);
    pool.announce_block(mined.clone());
    eventually("the head", || ours.head().is_some_and(|head| head == mined.block.head)).await;
    drop(busy);
    settled(&fetcher, "mined", |counts| counts.mined == 1).await;
    pool.add(&txs[0]);
    settled(&fetcher, "pooled", |counts| counts.pooled == 1).await;
    {
        let mut state = pool.state();
        let other = state.txs[&txs[0].hash].clone();
        state.txs.insert(txs[2].hash, other);
        state.announce(PoolAnnouncement::Pending(txs[2].hash));
    }
    let counts = settled(&fetcher, "malformed", |counts| counts.malformed == 1).await;
    assert_eq!((counts.announced, counts.pooled, counts.failed), (4, 1, 0));
    assert!(!ours.contains(&txs[2].hash));
}

#[tokio::test]
async fn a_node_and_a_pool_in_this_process_complement_each_other() {
    let node = Node::start(50, |config| config);
    let pool = Arc::<SmallPool>::default();
    let mut both = config(&pool);
    both.sources.extend(node.fetcher().sources);
    let (fetcher, ours) = ingest(both).await;
    all_live(&fetcher).await;
    node.submit_all();
    settled(&fetcher, "50 of the node", |counts| counts.pooled == 50).await;
    node.txs.iter().for_each(|tx| pool.add(tx));
    let counts = settled(&fetcher, "50 known", |counts| counts.known == 50).await;
    assert_eq!((counts.announced, counts.pooled, counts.gone), (100, 50, 0));
    let announced =
        fetcher.status().into_iter().map(|source| (source.announced, source.first_seen));
    assert!(announced.eq([(50, 0), (50, 50)]), "the pool announced nothing first");
    // The pool announces a transaction that only the node has.
    let late = Node::start(51, |config| config).txs.pop().expect("the last of 51");
    let busy = pool.busy.write().await;
    pool.state().announce(PoolAnnouncement::Pending(late.hash));
    eventually("under way", || fetcher.counts().unfinished == 1).await;
    node.node.submit(late.raw.clone()).unwrap();
    eventually("known", || fetcher.counts().known == 51).await;
    drop(busy);
    settled(&fetcher, "51 pooled", |counts| counts.pooled == 51 && counts.known == 51).await;
    assert!(ours.contains(&late.hash));
    // A block of the node that no source can return any more holds nothing up.
    drop(node);
    let mined = pool.mine(0, &[&late]);
    pool.announce_block(mined.clone());
    eventually("the head", || ours.head().is_some_and(|head| head == mined.block.head)).await;
    eventually("mined", || !ours.contains(&late.hash)).await;
}

#[tokio::test]
async fn a_start_fails_if_the_pool_panics_at_the_subscription() {
    let ours = order_pool();
    let pool = Arc::<SmallPool>::default();
    pool.state().panics.insert("announcements");
    let error = Fetcher::start(config(&pool), ours.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Connect(ConnectError::PoolPanicked { .. })), "{error}");
    assert!(error.to_string().starts_with("in-process:small: "), "{error}");
    let twice = [(); 2].map(|()| config(&Arc::default()).sources.remove(0));
    let error = Fetcher::start(FetcherConfig::new(twice), ours).await.unwrap_err();
    assert_eq!(error.to_string(), "`sources` names in-process:small twice");
}

#[tokio::test]
async fn a_shutdown_waits_for_the_pool_until_its_deadline() {
    let (pool, txs, fetcher, _ours) = start_empty(10).await;
    txs.iter().for_each(|tx| pool.add(tx));
    settled(&fetcher, "10 pooled", |counts| counts.pooled == 10).await;
    let start = Instant::now();
    let counts = fetcher.shutdown(PATIENCE).await.counts;
    assert!(start.elapsed() < PATIENCE / 2, "it waits for nothing: {:?}", start.elapsed());
    assert_eq!((counts.pooled, counts.unfinished, counts.balance()), (10, 0, 0));
    let announcements = pool.state().announcements.take().expect("it was subscribed");
    assert!(announcements.is_closed(), "the stream is dropped");
    assert_eq!(Arc::strong_count(&pool), 1, "no thread is left");

    let (fetcher, _ours) =
        ingest_fast(configured(config(&pool), |config| config.backfill = Backfill::Off)).await;
    let busy = pool.busy.write().await;
    pool.state().announce(PoolAnnouncement::Pending(txs[0].hash));
    eventually("the pool is called", || pool.is_waited_for.load(Relaxed)).await;
    let start = Instant::now();
    let FetcherEnd { counts, ended, .. } = fetcher.shutdown(Duration::from_millis(300)).await;
    assert!(!ended, "the pool has not returned");
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    assert_eq!((counts.unfinished, counts.balance()), (1, 0));
    drop(busy);
}
