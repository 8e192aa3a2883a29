//! Sinks that block, panic, are full, or call the fetcher back.

use std::{
    sync::{
        MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::UNIX_EPOCH,
};

use futures::StreamExt as _;
use mock_node::{DEV_CHAIN_ID, FullObjects};
use order_pool::Event;
use txpool_fetcher::{Delivery, Gap, Head, Holding};

use super::*;

/// Extra time after a deadline, for a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(5);

/// Blocks its waiters until it is set.
type Latch = Arc<OnceLock<()>>;

/// A call of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Deliver,
    Head,
    Nonces,
    Vanished,
    Holding,
}

const CALLS: [Call; 5] = [Call::Deliver, Call::Head, Call::Nonces, Call::Vanished, Call::Holding];

type Hook = Arc<dyn Fn(Call) + Send + Sync>;

/// A sink that records its calls, after running the hook of the test.
#[derive(Clone)]
struct Hooked {
    hook: Hook,
    delivery: Delivery,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
/// The calls that a sink has received.
struct Record {
    pooled: BTreeSet<B256>,
    mined: BTreeSet<B256>,
    vanished: BTreeSet<B256>,
    heads: Vec<u64>,
    nonces: usize,
    /// Calls inside of a runtime, where a sink must not block. Before the fix a task that a sink
    /// spawned blocked the thread of the sockets, and timers worked in a sink with hashes and not
    /// with objects.
    inside: Vec<Call>,
}

impl Hooked {
    fn new(hook: impl Fn(Call) + Send + Sync + 'static) -> Self {
        Self { hook: Arc::new(hook), delivery: Delivery::Pooled, record: Arc::default() }
    }

    /// Blocks in calls of one kind until the latch is opened.
    fn stuck_in(stuck: Call) -> (Self, Latch) {
        let latch = Latch::default();
        let waits = latch.clone();
        let hook = move |call| {
            if call == stuck {
                waits.wait();
            }
        };
        (Self::new(hook), latch)
    }

    fn call(&self, call: Call) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.record().inside.push(call);
        }
        (self.hook)(call);
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }
}

impl TransactionSink for Hooked {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        // It must not be inside of a runtime after it has waited either.
        tokio::task::yield_now().await;
        self.call(Call::Deliver);
        self.record().pooled.insert(tx.hash());
        self.delivery.clone()
    }

    async fn chain_event(&self, event: ChainEvent) {
        self.call(match event {
            ChainEvent::Head(_) => Call::Head,
            ChainEvent::Nonces(_) => Call::Nonces,
            _ => Call::Vanished,
        });
        let mut record = self.record();
        match event {
            ChainEvent::Head(block) => {
                record.heads.push(block.head.number);
                record.mined.extend(block.mined.iter());
            }
            ChainEvent::Nonces(_) => record.nonces += 1,
            ChainEvent::Vanished(hash) => _ = record.vanished.insert(hash),
            _ => {}
        }
    }

    fn holding(&self, hash: &B256) -> Holding {
        self.call(Call::Holding);
        if self.record().pooled.contains(hash) { Holding::Held } else { Holding::Missing }
    }
}

/// Prepares replacements of the node's transactions: the same accounts and nonces with higher fees.
fn rivals(node: &Node) -> Vec<PreparedTx> {
    let plain = WorkloadConfig { accounts: 20, ..WorkloadConfig::new(7, DEV_CHAIN_ID) };
    let workload = WorkloadConfig {
        max_fee_wei: plain.max_fee_wei * 4,
        max_tip_wei: plain.max_tip_wei * 4,
        max_blob_fee_wei: plain.max_blob_fee_wei * 4,
        ..plain
    };
    let rivals = Workload::new(workload).prepare(node.txs.len());
    let is_rival = |(tx, other): (&PreparedTx, &PreparedTx)| {
        (tx.sender, tx.nonce) == (other.sender, other.nonce)
    };
    assert!(rivals.iter().zip(&node.txs).all(is_rival));
    rivals
}

/// Runs a future on the current thread, which is one of the fetcher's.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

async fn start(config: FetcherConfig, sink: impl TransactionSink) -> Fetcher {
    start_with(config, Limits::default(), sink).await
}

/// Stops the fetcher, and asserts that this is in time.
async fn stop(fetcher: Fetcher, deadline: Duration) -> FetcherEnd {
    let start = Instant::now();
    let end = fetcher.shutdown(deadline).await;
    assert!(start.elapsed() < deadline + SLACK, "{:?} of {deadline:?}", start.elapsed());
    assert_eq!(end.reason, EndReason::Stopped);
    assert_eq!(end.counts.balance(), 0, "{end:?}");
    end
}

/// Before the fix the calls ran on the thread of the sockets: announcements were not read any more,
/// and a stop with a deadline of one second had not returned after eight.
#[tokio::test]
async fn a_sink_that_never_returns_blocks_neither_other_calls_nor_the_stop() {
    let cases = CALLS.map(|stuck| (stuck, Announcements::Hashes));
    for (stuck, announcements) in cases.into_iter().chain([(Call::Deliver, Announcements::Full)]) {
        let node = Node::start(20, |config| config);
        let (sink, latch) = Hooked::stuck_in(stuck);
        // The first transaction is pending before the start: `holding` is asked about it.
        node.node.submit(node.txs[0].raw.clone()).unwrap();
        let config = configured(node.fetcher(), |config| {
            config.announcements = announcements;
            config.request_connections = 2;
        });
        let fetcher = Fetcher::start(config, sink.clone()).await.expect("a node is there");
        if stuck != Call::Deliver {
            eventually("the source is live", || fetcher.is_live()).await;
            submit(&node, &node.txs[1..10]);
            settled(&fetcher, "10 pooled", |counts| counts.pooled == 10).await;
            node.node.mine_only(&[node.txs[0].hash]).unwrap();
            node.node.submit(rivals(&node)[1].raw.clone()).unwrap();
            settled(&fetcher, "11 pooled", |counts| counts.pooled == 11).await;
            assert_eq!(recover(&fetcher).await.vanished, 1);
            submit(&node, &node.txs[10..]);
            settled(&fetcher, "all pooled", |counts| counts.pooled == 21).await;
            assert!(fetcher.is_live());
        } else {
            eventually("it is requested", || fetcher.counts().unfinished > 0).await;
            for _ in 0..3 {
                let before = fetcher.status()[0].head;
                node.node.mine_only(&[]).unwrap();
                eventually("a head is announced", || fetcher.status()[0].head > before).await;
            }
            eventually("heads are reported", || sink.record().heads.len() >= 3).await;
        }
        let counts = stop(fetcher, Duration::from_secs(1)).await.counts;
        assert_eq!(counts.unfinished > 0, stuck == Call::Deliver, "{stuck:?}: {counts:?}");
        latch.set(()).unwrap();
    }
}

/// A sink that says that its deliveries do not block, and blocks in the first one for ever: the
/// thread of the sockets never comes back.
struct Stuck {
    is_blocked: Arc<AtomicBool>,
    is_fed: Arc<AtomicBool>,
}

/// Clears the flag when it is dropped.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl TransactionSink for Stuck {
    async fn deliver(&self, _tx: FetchedTransaction) -> Delivery {
        self.is_blocked.store(true, SeqCst);
        loop {
            thread::park();
        }
    }

    fn may_block(&self) -> bool {
        false
    }

    fn feed(&self) -> impl Send + 'static {
        self.is_fed.store(true, SeqCst);
        ClearOnDrop(Arc::clone(&self.is_fed))
    }
}

/// Before the fix it never returned: only the thread that was blocked measured the deadline.
#[tokio::test]
async fn a_shutdown_returns_by_its_deadline_although_a_thread_never_comes_back() {
    let node = Node::start(1, |config| config);
    let (is_blocked, is_fed) = (Arc::default(), Arc::default());
    let sink = Stuck { is_blocked: Arc::clone(&is_blocked), is_fed: Arc::clone(&is_fed) };
    let fetcher = start(node.fetcher(), sink).await;
    assert!(is_fed.load(SeqCst));
    node.submit_all();
    eventually("a delivery blocks", || is_blocked.load(SeqCst)).await;
    let deadline = Duration::from_secs(1);
    let end = timeout(PATIENCE, stop(fetcher, deadline)).await.expect("it returns");
    assert_eq!((end.ended, end.counts.unfinished), (false, 1));
    assert!(!is_fed.load(SeqCst), "the readers of the sink know that nothing feeds it any more");
}

/// Also those of a fetcher that was dropped. Before the fix they waited for ever.
#[tokio::test]
async fn subscribers_of_the_pool_learn_that_the_last_fetcher_has_ended() {
    let (node, other) = (Node::start(3, |config| config), Node::start(0, |config| config));
    let (fetcher, pool) = ingest_with(node.fetcher(), Limits::default()).await;
    let second = start(other.fetcher(), pool.clone()).await;
    let mut subscription = pool.subscribe_all();
    pool_all(&node, &fetcher).await;
    stop(second, PATIENCE).await;
    drop(fetcher);
    let mut added = 0;
    loop {
        match timeout(PATIENCE, subscription.next()).await.expect("the end is an event") {
            Some(Ok(Event::Added(_))) => added += 1,
            Some(Ok(Event::FeedEnded)) => break,
            Some(Ok(_)) => {}
            end => panic!("{end:?}"),
        }
    }
    assert_eq!(added, 3, "the end of the second fetcher came first, and was no end of the feed");
}

/// Before the fix a panic in `holding` ended the comparison without a result: the source stayed
/// `Live`, and no audit ran again. A panic in `head` ended the fetcher.
#[tokio::test]
async fn a_panic_of_the_sink_is_counted_and_affects_only_that_call() {
    let both = [Announcements::Hashes, Announcements::Full];
    for (panics, announcements) in CALLS.into_iter().zip(both.into_iter().cycle()) {
        let figures = Figures::install();
        let node = Node::start(10, |config| config);
        let armed = Arc::new(AtomicBool::new(false));
        let sink = {
            let armed = Arc::clone(&armed);
            Hooked::new(move |call| {
                if call == panics && armed.swap(false, SeqCst) {
                    panic!("a test panics here");
                }
            })
        };
        let config = configured(node.fetcher(), |config| {
            config.announcements = announcements;
            config.audit_interval = None;
        });
        let fetcher = start(config, sink.clone()).await;
        node.node.submit(node.txs[0].raw.clone()).unwrap();
        settled(&fetcher, "one pooled", |counts| counts.pooled == 1).await;
        if panics == Call::Vanished {
            node.node.submit(rivals(&node)[0].raw.clone()).unwrap();
            settled(&fetcher, "it is replaced", |counts| counts.pooled == 2).await;
        }
        armed.store(true, SeqCst);
        node.node.submit(node.txs[1].raw.clone()).unwrap();
        node.node.mine_only(&[]).unwrap();
        recover(&fetcher).await;
        eventually("it panics", || !armed.load(SeqCst)).await;
        // Everything goes on: announcements, heads, nonces, audits.
        let heads = sink.record().heads.len();
        let nonces = sink.record().nonces;
        let audits = fetcher.status()[0].audits;
        assert!(fetcher.is_live());
        submit(&node, &node.txs[2..]);
        // A rival of the first one was pooled too. After the next block the rest would be mined.
        let all = 10 + u64::from(panics == Call::Vanished);
        settled(&fetcher, "the rest is pooled", |counts| counts.pooled + counts.failed >= all)
            .await;
        assert_eq!(fetcher.counts().failed, u64::from(panics == Call::Deliver));
        node.node.mine();
        eventually("heads", || sink.record().heads.len() > heads).await;
        eventually("nonces", || sink.record().nonces > nonces).await;
        recover(&fetcher).await;
        assert!(fetcher.status()[0].audits > audits);
        let all: BTreeSet<B256> = node.txs.iter().map(|tx| tx.hash).collect();
        let missing = all.difference(&sink.record().pooled).count() as u64;
        // The transaction of the panic may come again, unless a block has taken it.
        assert!(missing <= fetcher.counts().failed, "{missing}");
        stop(fetcher, Duration::from_secs(5)).await;
        let label = format!("{panics:?}").to_lowercase();
        assert_eq!(figures.get("sink_panics_total", &label).0, 1.0);
        assert_eq!(sink.record().inside.clone(), [], "{announcements:?}");
    }
}

#[tokio::test]
async fn one_channel_carries_transactions_heads_nonces_and_reorgs_in_order() {
    let node = Node::start(10, |config| config);
    let (sender, mut events) = mpsc::channel(64);
    let fetcher = start(node.fetcher(), sender).await;
    pool_all(&node, &fetcher).await;
    node.node.mine();

    let mut heads: Vec<Head> = Vec::new();
    let (mut txs, mut mined, mut raised) = (BTreeSet::new(), 0, BTreeSet::new());
    let mut reorged = false;
    while !reorged || raised.is_empty() {
        let event = timeout(PATIENCE, events.recv()).await.expect("an event in time");
        match event.expect("the fetcher runs") {
            // Some are delivered again when their block is undone.
            SinkEvent::Transaction(tx) => _ = txs.insert(tx.hash()),
            SinkEvent::Chain(ChainEvent::Head(block)) => {
                mined += block.mined.len();
                reorged |= heads.iter().any(|head| head.number >= block.head.number);
                heads.push(block.head);
            }
            SinkEvent::Chain(ChainEvent::Nonces(nonces)) => {
                let is_its_head = |head: &Head| head.hash == nonces.block_hash;
                assert!(heads.iter().any(is_its_head), "nonces before their head");
                raised.extend(nonces.updates.into_iter().map(|update| update.sender));
                // Not earlier, because the nonces of an undone block are not read.
                if mined == 10 && !reorged {
                    node.node.reorg(1).unwrap();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(txs.len(), 10);
    // A channel that nobody reads any more does not hold up the stop.
    assert!(stop(fetcher, Duration::from_secs(5)).await.ended);
}

/// The sink takes a head, and the next only after more blocks than are remembered.
#[tokio::test]
async fn a_sink_that_resumes_gets_the_latest_head_and_all_mined_hashes() {
    const BLOCKS: usize = 90;
    let figures = Figures::install();
    let accounts = 40;
    let node = Node::start(BLOCKS + 1, |config| NodeConfig { accounts, ..config });
    let more = WorkloadConfig { accounts, ..WorkloadConfig::new(7, node.node.config().chain_id) };
    let mut more = Workload::new(more).prepare(2 * accounts).into_iter();
    let is_other = |tx: &PreparedTx| node.txs.iter().all(|known| known.sender != tx.sender);
    let private = more.find(is_other).expect("the first of another sender");
    let (sink, latch) = Hooked::stuck_in(Call::Head);
    let fetcher =
        start(configured(node.fetcher(), |config| config.audit_interval = None), sink.clone())
            .await;
    node.submit_all();
    settled(&fetcher, "all pooled", |counts| counts.pooled == BLOCKS as u64 + 1).await;
    let mut last = 0;
    for (n, tx) in node.txs[..BLOCKS].iter().enumerate() {
        if n == 10 {
            // It is never announced: only its block contains it.
            node.node.mine_private([private.raw.clone()]).unwrap();
        }
        let before = fetcher.counts().mined;
        last = node.node.mine_only(&[tx.hash]).unwrap().number;
        // A hash that is announced after its block shows that the block was read.
        eventually("the block is read", || {
            node.node.announce_unknown(tx.hash);
            fetcher.counts().mined > before
        })
        .await;
    }
    let dropped = |event| figures.get("sink_dropped_total", event).0 as usize;
    // One head is in the sink, and 64 wait.
    eventually("the rest is dropped", || dropped("head") == BLOCKS + 1 - 64).await;
    assert!(dropped("nonces") > 0);
    let audits = fetcher.status()[0].audits;
    latch.set(()).unwrap();
    eventually("the latest head is reported", || sink.record().heads.last() == Some(&last)).await;
    let heads = sink.record().heads.clone();
    assert!(heads[1..].iter().copied().eq(last - 63..=last), "{heads:?}");
    let mined = node.txs[..BLOCKS].iter().chain([&private]);
    let mined: BTreeSet<B256> = mined.map(|tx| tx.hash).collect();
    // Blocks are read after their heads. If a busy machine could not read some in time, a
    // comparison finds their transactions.
    let has_gone = |record: &Record| record.mined.union(&record.vanished).eq(&mined);
    eventually("the hashes of dropped blocks are reported", || has_gone(&sink.record())).await;
    assert!(
        sink.record().mined.len() > heads.len(),
        "the next head has the hashes of dropped blocks"
    );
    eventually("a comparison follows", || fetcher.status()[0].audits > audits).await;
    assert_eq!(dropped("mined"), 0);
    stop(fetcher, Duration::from_secs(5)).await;
}

/// Before the fix the gauges stayed as long as the process, and two fetchers wrote the same gauge.
#[tokio::test]
async fn two_fetchers_at_one_node_have_separate_gauges() {
    let figures = Figures::install();
    let node = Node::start(20, |config| config);
    let config = configured(node.fetcher(), |config| config.audit_interval = None);
    let (sinks, latches): (Vec<_>, Vec<_>) =
        [(); 2].map(|()| Hooked::stuck_in(Call::Deliver)).into_iter().unzip();
    let first = start(config.clone(), sinks[0].clone()).await;
    let second = start(config, sinks[1].clone()).await;
    node.submit_all();
    for fetcher in [&first, &second] {
        eventually("all are announced", || fetcher.counts().announced == 20).await;
    }
    let path = node.node.ipc_path().display().to_string();
    let state = |label: &str| figures.get("source_state", label).1;
    let unfinished = || figures.get("unfinished", "").0;
    let again = format!("{path}#2");
    eventually("both are live", || (state(&path), state(&again)) == (2.0, 2.0)).await;
    assert_eq!(unfinished(), 40.0);
    let head = node.node.mine_only(&[]).unwrap();
    for label in [&path, &again] {
        assert_eq!(figures.get("source_chain_id", label).1, DEV_CHAIN_ID as f64);
        let is_head = || figures.get("source_head", label).1 == head.number as f64;
        eventually("the head is known", is_head).await;
        let age = || figures.get("source_head_age_seconds", label).1;
        let expected = UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - head.timestamp as f64;
        eventually("its age too", || (age() - expected).abs() < 60.0).await;
    }
    for (fetcher, latch, left) in [(first, &latches[0], 20.0), (second, &latches[1], 0.0)] {
        assert_eq!(stop(fetcher, Duration::from_secs(1)).await.counts.unfinished, 20);
        latch.set(()).unwrap();
        eventually("its gauge has gone", || unfinished() == left).await;
    }
    assert_eq!((state(&path), state(&again)), (4.0, 4.0));
    // The name is free again.
    let _third = start(node.fetcher(), Hooked::new(|_| {})).await;
    eventually("it is live", || (state(&path), state(&again)) == (2.0, 4.0)).await;
}

/// Before the fix hashes that waited or were displaced were not counted.
#[tokio::test]
async fn hashes_in_the_buffer_at_a_stop_count_as_lagged() {
    // With objects, none of which comes, one more hash is being processed while the oldest waits
    // for a slot.
    for (announcements, in_process) in [(Announcements::Hashes, 0), (Announcements::Full, 1)] {
        let full_objects = FullObjects::Dropped { per_mille: 1_000, run: 1 };
        let node = Node::start(1_000, |config| NodeConfig { full_objects, ..config });
        let (sink, latch) = Hooked::stuck_in(Call::Deliver);
        let limits = Limits { announcement_buffer: 16, ..Limits::default() };
        let config = configured(node.fetcher(), |config| {
            config.audit_interval = None;
            config.announcements = announcements;
        });
        let fetcher = start_with(config, limits, sink).await;
        node.submit_all();
        let counted = |counts: Counts| counts.announced + counts.lagged;
        let all_but_these = || counted(fetcher.counts()) == 1_000 - 16 - in_process;
        eventually("all but those in the buffer are counted", all_but_these).await;
        let counts = stop(fetcher, Duration::from_secs(1)).await.counts;
        assert_eq!(counted(counts), 1_000, "{announcements:?} {counts:?}");
        latch.set(()).unwrap();
    }
}

/// Before the fix the pool was listed, and lost hashes fetched, while the rest still waited.
#[tokio::test]
async fn a_comparison_for_a_lag_waits_until_live_work_has_caught_up() {
    let node = Node::start(500, |config| config);
    let (deliver, delivers) = std::sync::mpsc::channel();
    let delivers = Mutex::new(delivers);
    let sink = Hooked::new(move |call| {
        if call == Call::Deliver {
            // The error, at the end, lets the call return.
            let _ = delivers.lock().unwrap().recv();
        }
    });
    let limits = Limits { announcement_buffer: 64, ..settles_fast() };
    let config = configured(node.fetcher(), |config| {
        config.fetch_slots = 4;
        config.audit_interval = None;
    });
    let fetcher = start_with(config, limits, sink).await;
    let audits = fetcher.status()[0].audits;
    node.submit_all();
    // Hashes that are not displaced wait in the buffer and in four slots.
    eventually("the buffer overruns", || fetcher.counts().lagged > 400).await;
    // The reader of the buffer notices the loss when it reads again.
    (0..8).for_each(|_| deliver.send(()).unwrap());
    let is_known = |gap: &Gap| gap.reason == GapReason::Lagged;
    eventually("it is known", || fetcher.status()[0].gaps.iter().any(is_known)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fetcher.status()[0].audits, audits);
    drop(deliver);
    settled(&fetcher, "all pooled", |counts| counts.pooled == 500).await;
    assert!(fetcher.status()[0].audits > audits);
}

/// The sink calls the fetcher while the fetcher calls it.
#[tokio::test]
async fn a_sink_may_call_the_fetcher_and_even_stop_it() {
    for stops_in in CALLS {
        let node = Node::start(4, |config| config);
        let held: Arc<Mutex<Option<Fetcher>>> = Arc::default();
        let (ended, mut ends) = mpsc::channel(1);
        let sink = {
            let held = Arc::clone(&held);
            Hooked::new(move |call| {
                if call != stops_in {
                    return;
                }
                // The lock is released at once, because other calls take it too.
                let Some(fetcher) = held.lock().unwrap().take() else { return };
                assert_eq!(fetcher.status().len(), 1);
                assert_eq!(fetcher.counts().balance(), 0);
                if call == Call::Deliver {
                    block_on(fetcher.audit(0, AuditMode::CompareOnly)).expect("it compares");
                }
                let end = block_on(fetcher.shutdown(Duration::from_millis(300)));
                ended.try_send(end.reason).unwrap();
            })
        };
        let mut config = node.fetcher();
        config.audit_interval = Some(Duration::from_millis(100));
        let fetcher = start(config, sink.clone()).await;
        node.node.submit(node.txs[0].raw.clone()).unwrap();
        settled(&fetcher, "one pooled", |counts| counts.pooled == 1).await;
        *held.lock().unwrap() = Some(fetcher);
        // A replacement, a block with nonces, and audits, so that every function of the sink is
        // called.
        node.node.submit(rivals(&node)[0].raw.clone()).unwrap();
        node.node.submit(node.txs[1].raw.clone()).unwrap();
        node.node.mine_only(&[node.txs[1].hash]).unwrap();
        let reason = timeout(PATIENCE, ends.recv()).await.expect("it is stopped");
        assert_eq!(reason, Some(EndReason::Stopped), "{stops_in:?}");
    }
}

/// Before the fix the thread of a comparison outlived the runtime that it used.
#[tokio::test]
async fn a_stop_is_in_time_under_every_fault_with_a_stuck_sink() {
    let deadline = Duration::from_millis(500);
    for (index, fault) in Fault::all().into_iter().enumerate() {
        let stuck = CALLS[index % CALLS.len()];
        let (sink, latch) = Hooked::stuck_in(stuck);
        let node = Node::start(50, |config| config);
        let config = configured(node.fetcher(), |config| {
            config.start = StartPolicy::WaitForNode;
            config.audit_interval = Some(Duration::from_millis(100));
        });
        let fetcher =
            Fetcher::start_with(config, settles_fast(), sink).await.expect("it waits for the node");
        eventually("the node is reached", || fetcher.status()[0].node.is_some()).await;
        node.submit_all();
        node.node.mine_only(&[node.txs[0].hash]).unwrap();
        node.node.inject(fault);
        // Different times, so that the stop comes in the middle of different work.
        tokio::time::sleep(Duration::from_millis(10 * (index as u64 % 20))).await;
        println!("{fault:?} with {stuck:?} stuck");
        stop(fetcher, deadline).await;
        latch.set(()).unwrap();
    }
}

/// Before the fix a closed sink made the fetcher end with the default deadline of 5 s, whatever
/// deadline a later `shutdown` had.
#[tokio::test]
async fn a_deadline_that_comes_after_the_end_has_begun_counts() {
    let node = Node::start(1, |config| config);
    let (sink, latch) = Hooked::stuck_in(Call::Head);
    let sink = Hooked { delivery: Delivery::Closed, ..sink };
    let fetcher = start(node.fetcher(), sink).await;
    node.submit_all();
    eventually("it ends", || !fetcher.is_live()).await;
    let began = Instant::now();
    let end = fetcher.shutdown(Duration::from_millis(100)).await;
    assert_eq!((end.reason, end.ended), (EndReason::SinkClosed, false));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    latch.set(()).unwrap();
    // The longest deadline is valid too.
    let fetcher = start(node.fetcher(), Hooked::new(|_| {})).await;
    let end = fetcher.shutdown(Duration::MAX).await;
    assert_eq!((end.reason, end.ended), (EndReason::Stopped, true));
}

/// Before the fix they were remembered as refused, and never offered again.
#[tokio::test]
async fn postponed_transactions_are_offered_again_a_few_at_a_time() {
    struct Full(Arc<AtomicBool>);
    impl TransactionSink for Full {
        async fn deliver(&self, _: FetchedTransaction) -> Delivery {
            if self.0.load(SeqCst) { Delivery::Postponed("full") } else { Delivery::Pooled }
        }
    }
    let node = Node::start(200, |config| config);
    let is_full = Arc::new(AtomicBool::new(true));
    let config = configured(node.fetcher(), |config| config.audit_interval = None);
    let fetcher = start(config, Full(Arc::clone(&is_full))).await;
    node.submit_all();
    settled(&fetcher, "200 postponed", |counts| counts.postponed == 200).await;
    let report = compare(&fetcher).await;
    assert_eq!((report.missing, report.postponed, report.offered_again), (0, 200, 0));
    for audit in 1..=3 {
        let report = recover(&fetcher).await;
        assert_eq!((report.postponed, report.offered_again), (200, 32));
        let counts = settled(&fetcher, "those again", |_| true).await;
        assert_eq!((counts.audit_recovered, counts.postponed), (32 * audit, 200 + 32 * audit));
    }
    is_full.store(false, SeqCst);
    let report = recover(&fetcher).await;
    assert_eq!((report.postponed, report.offered_again), (200, 200));
    settled(&fetcher, "all pooled", |counts| counts.pooled == 200).await;
    let report = recover(&fetcher).await;
    assert_eq!((report.postponed, report.offered_again), (0, 0));
}

#[tokio::test]
async fn an_order_pool_accepts_postponed_transactions_when_it_has_room() {
    let node = Node::start(40, |config| config);
    let pool = OrderPool::new(configured(PoolConfig::default(), |config| config.max_txs = 5))
        .expect("valid");
    let fetcher =
        start(configured(node.fetcher(), |config| config.audit_interval = None), pool.clone())
            .await;
    let mut best: Vec<_> = node.txs.iter().filter(|tx| tx.nonce == 0).collect();
    assert!(best.len() > 10, "{}", best.len());
    submit(&node, best.iter().copied());
    let entered = best.len() as u64;
    let counts = settled(&fetcher, "all offered", |counts| counts.announced == entered).await;
    assert!(counts.postponed > 0, "{counts:?}");
    assert_eq!((counts.refused, pool.len()), (0, 5));
    best.retain(|tx| pool.contains(&tx.hash));
    let pooled: Vec<_> = best.iter().map(|tx| tx.hash).collect();
    node.node.mine_only(&pooled).unwrap();
    eventually("the pool is empty", || pool.is_empty()).await;
    let report = recover(&fetcher).await;
    assert!(report.offered_again > 0, "{report:?}");
    assert_eq!(pool.len(), 5.min(report.postponed as usize));
}

#[tokio::test]
async fn an_audit_finds_transactions_from_before_the_start() {
    let node = Node::start(100, |config| config);
    node.submit_all();
    let limits = Limits { audit_settle: Duration::from_millis(300), ..Limits::default() };
    let config = configured(node.fetcher(), |config| config.backfill = Backfill::Off);
    let (fetcher, pool) = ingest_with(config, limits).await;
    assert_eq!((compare(&fetcher).await.missing, pool.len()), (100, 0), "the audit only compares");
    let report = recover(&fetcher).await;
    assert_eq!((report.missing, report.recovered), (100, 100));
    assert_eq!((fetcher.counts().audit_recovered, pool.len()), (100, 100));
    assert_eq!(report.missing_sample.len(), AuditReport::MISSING_SAMPLE);
    let sent = |hash| node.txs.iter().any(|tx| tx.hash == hash);
    assert!(report.missing_sample.into_iter().all(sent));
    let audits = (0..10).map(|_| fetcher.audit(0, AuditMode::CompareOnly));
    let results = futures::future::join_all(audits).await;
    let busy = |result: &&Result<_, _>| matches!(result, Err(SnapshotError::Busy { waiting: 4 }));
    let (busy, done) =
        (results.iter().filter(busy).count(), results.iter().filter(|r| r.is_ok()).count());
    assert_eq!(busy + done, 10, "{results:?}");
    // Four wait, and one more if the running one was taken out before the last of them came.
    assert!((4..=5).contains(&done), "{results:?}");
    assert_eq!(compare(&fetcher).await.missing, 0, "there is room again");
}
