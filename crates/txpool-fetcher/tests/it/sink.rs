//! What the host's side can do to the fetcher, its sink above all: block, panic, be full, call back.

use std::{
    sync::{
        MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::UNIX_EPOCH,
};

use mock_node::{DEV_CHAIN_ID, FullObjects};
use txpool_fetcher::{Delivery, Gap, Head, Holding};

use super::*;

/// Beyond a deadline, for a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(5);

/// Blocks who waits for it until it is set.
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

/// Notes what it is told, after a test has had its way with the call.
#[derive(Clone)]
struct Hooked {
    hook: Hook,
    delivery: Delivery,
    told: Arc<Mutex<Told>>,
}

#[derive(Debug, Default)]
struct Told {
    pooled: BTreeSet<B256>,
    mined: BTreeSet<B256>,
    vanished: BTreeSet<B256>,
    heads: Vec<u64>,
    nonces: usize,
    /// Calls inside of a runtime, where a sink must not block: a task that a sink spawned in that
    /// of the sockets blocked their thread, and with hashes a sink could use timers that it did not
    /// have with full objects.
    inside: Vec<Call>,
}

impl Hooked {
    fn new(hook: impl Fn(Call) + Send + Sync + 'static) -> Self {
        Self { hook: Arc::new(hook), delivery: Delivery::Pooled, told: Arc::default() }
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
            self.told().inside.push(call);
        }
        (self.hook)(call);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }
}

impl TransactionSink for Hooked {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        // Also after it has waited it is not inside of a runtime.
        tokio::task::yield_now().await;
        self.call(Call::Deliver);
        self.told().pooled.insert(tx.hash());
        self.delivery.clone()
    }

    async fn chain_event(&self, event: ChainEvent) {
        self.call(match event {
            ChainEvent::Head(_) => Call::Head,
            ChainEvent::Nonces(_) => Call::Nonces,
            _ => Call::Vanished,
        });
        let mut told = self.told();
        match event {
            ChainEvent::Head(block) => {
                told.heads.push(block.head.number);
                told.mined.extend(block.mined.iter());
            }
            ChainEvent::Nonces(_) => told.nonces += 1,
            ChainEvent::Vanished(hash) => _ = told.vanished.insert(hash),
            _ => {}
        }
    }

    fn holding(&self, hash: &B256) -> Holding {
        self.call(Call::Holding);
        if self.told().pooled.contains(hash) { Holding::Held } else { Holding::Missing }
    }
}

/// Replaces transactions of the node: the same accounts and nonces at higher fees.
fn rivals(node: &Node) -> Vec<PreparedTx> {
    let plain = WorkloadConfig { accounts: 20, ..WorkloadConfig::new(7, DEV_CHAIN_ID) };
    let workload = WorkloadConfig {
        max_fee_wei: plain.max_fee_wei * 4,
        max_tip_wei: plain.max_tip_wei * 4,
        max_blob_fee_wei: plain.max_blob_fee_wei * 4,
        ..plain
    };
    let rivals = Workload::new(workload).prepare(node.txs.len());
    let is_rival =
        |(tx, of): (&PreparedTx, &PreparedTx)| (tx.sender, tx.nonce) == (of.sender, of.nonce);
    assert!(rivals.iter().zip(&node.txs).all(is_rival));
    rivals
}

/// On a thread of the fetcher's.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

async fn start(config: FetcherConfig, sink: impl TransactionSink) -> Fetcher {
    start_with(config, Limits::default(), sink).await
}

/// Stops, in time.
async fn stop(fetcher: Fetcher, deadline: Duration) -> FetcherEnd {
    let start = Instant::now();
    let end = fetcher.shutdown(deadline).await;
    assert!(start.elapsed() < deadline + SLACK, "{:?} of {deadline:?}", start.elapsed());
    assert_eq!(end.reason, EndReason::Stopped);
    assert_eq!(end.counts.balance(), 0, "{end:?}");
    end
}

/// `head` ran on the thread of the sockets: nothing was announced any more, and a stop with a
/// deadline of one second had not returned after eight.
#[tokio::test]
async fn a_sink_that_never_returns_from_a_call_holds_up_neither_the_rest_nor_the_stop() {
    let cases = CALLS.map(|stuck| (stuck, Announcements::Hashes));
    for (stuck, announcements) in cases.into_iter().chain([(Call::Deliver, Announcements::Full)]) {
        let node = Node::start(20, |config| config);
        let (sink, latch) = Hooked::stuck_in(stuck);
        // The first transaction is pending before the start: `holding` is asked about it.
        node.node.submit(node.txs[0].raw.clone()).unwrap();
        let config = FetcherConfig { announcements, request_connections: 2, ..node.fetcher() };
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
            eventually("heads are told", || sink.told().heads.len() >= 3).await;
        }
        let counts = stop(fetcher, Duration::from_secs(1)).await.counts;
        assert_eq!(counts.unfinished > 0, stuck == Call::Deliver, "{stuck:?}: {counts:?}");
        latch.set(()).unwrap();
    }
}

/// A panic in `holding` ended the comparison without a result, and the source waited for it for
/// ever: it said `Live`, and no audit ran again. One in `head` ended the fetcher.
#[tokio::test]
async fn a_panic_of_the_sink_costs_that_call_alone_and_is_counted_and_none_is_inside_of_a_runtime()
{
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
        let config = FetcherConfig { announcements, audit_interval: None, ..node.fetcher() };
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
        let heads = sink.told().heads.len();
        let nonces = sink.told().nonces;
        let audits = fetcher.status()[0].audits;
        assert!(fetcher.is_live());
        submit(&node, &node.txs[2..]);
        // A rival of the first one was pooled too. What comes after the next block would be mined.
        let all = 10 + u64::from(panics == Call::Vanished);
        settled(&fetcher, "the rest is pooled", |counts| counts.pooled + counts.failed >= all)
            .await;
        assert_eq!(fetcher.counts().failed, u64::from(panics == Call::Deliver));
        node.node.mine();
        eventually("heads", || sink.told().heads.len() > heads).await;
        eventually("nonces", || sink.told().nonces > nonces).await;
        recover(&fetcher).await;
        assert!(fetcher.status()[0].audits > audits);
        let all: BTreeSet<B256> = node.txs.iter().map(|tx| tx.hash).collect();
        let missing = all.difference(&sink.told().pooled).count() as u64;
        // What was lost with the panic may come again, unless a block has taken it.
        assert!(missing <= fetcher.counts().failed, "{missing}");
        stop(fetcher, Duration::from_secs(5)).await;
        let label = format!("{panics:?}").to_lowercase();
        assert_eq!(figures.get("sink_panics_total", &label).0, 1.0);
        assert_eq!(sink.told().inside.clone(), [], "{announcements:?}");
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
            // Some come again when their block is undone.
            SinkEvent::Transaction(tx) => _ = txs.insert(tx.hash()),
            SinkEvent::Chain(ChainEvent::Head(block)) => {
                mined += block.mined.len();
                reorged |= heads.iter().any(|head| head.number >= block.head.number);
                heads.push(block.head);
            }
            SinkEvent::Chain(ChainEvent::Nonces(nonces)) => {
                let of_a_head = |head: &Head| head.hash == nonces.block_hash;
                assert!(heads.iter().any(of_a_head), "nonces before their head");
                raised.extend(nonces.updates.into_iter().map(|update| update.sender));
                // Not before: the nonces of a block that is undone are not read.
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
async fn a_sink_that_comes_back_knows_the_latest_head_and_all_that_was_mined() {
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
        start(FetcherConfig { audit_interval: None, ..node.fetcher() }, sink.clone()).await;
    node.submit_all();
    settled(&fetcher, "all pooled", |counts| counts.pooled == BLOCKS as u64 + 1).await;
    let mut last = 0;
    for (n, tx) in node.txs[..BLOCKS].iter().enumerate() {
        if n == 10 {
            // Never announced: its block alone tells it.
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
    // The one in the sink, 64 that wait.
    eventually("the rest is dropped", || dropped("head") == BLOCKS + 1 - 64).await;
    assert!(dropped("nonces") > 0);
    let audits = fetcher.status()[0].audits;
    latch.set(()).unwrap();
    eventually("the latest head is told", || sink.told().heads.last() == Some(&last)).await;
    let heads = sink.told().heads.clone();
    assert!(heads[1..].iter().copied().eq(last - 63..=last), "{heads:?}");
    let mined = node.txs[..BLOCKS].iter().chain([&private]);
    let mined: BTreeSet<B256> = mined.map(|tx| tx.hash).collect();
    // Blocks are read behind their heads. What a busy machine could not read in time, a comparison finds.
    let has_gone = |told: &Told| told.mined.union(&told.vanished).eq(&mined);
    eventually("also what the dropped blocks took is told", || has_gone(&sink.told())).await;
    assert!(sink.told().mined.len() > heads.len(), "the next head has what was dropped");
    eventually("a comparison follows", || fetcher.status()[0].audits > audits).await;
    assert_eq!(dropped("mined"), 0);
    stop(fetcher, Duration::from_secs(5)).await;
}

/// They stayed for as long as the process, and two fetchers at one node wrote one gauge.
#[tokio::test]
async fn the_gauges_of_a_fetcher_are_its_own_and_go_with_it() {
    let figures = Figures::install();
    let node = Node::start(20, |config| config);
    let config = FetcherConfig { audit_interval: None, ..node.fetcher() };
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

/// What waited and what had been displaced was in no count.
#[tokio::test]
async fn what_has_not_entered_at_a_stop_has_lagged_and_what_is_displaced_has_at_once() {
    // With objects, of which none comes, another hash is in hand while the oldest waits for a slot.
    for (announcements, in_hand) in [(Announcements::Hashes, 0), (Announcements::Full, 1)] {
        let full_objects = FullObjects::Dropped { per_mille: 1_000, run: 1 };
        let node = Node::start(1_000, |config| NodeConfig { full_objects, ..config });
        let (sink, latch) = Hooked::stuck_in(Call::Deliver);
        let limits = Limits { announcement_buffer: 16, ..Limits::default() };
        let config = FetcherConfig { audit_interval: None, announcements, ..node.fetcher() };
        let fetcher = start_with(config, limits, sink).await;
        node.submit_all();
        let counted = |counts: Counts| counts.announced + counts.lagged;
        let all_but_these = || counted(fetcher.counts()) == 1_000 - 16 - in_hand;
        eventually("all but those in the buffer are counted", all_but_these).await;
        let counts = stop(fetcher, Duration::from_secs(1)).await.counts;
        assert_eq!(counted(counts), 1_000, "{announcements:?} {counts:?}");
        latch.set(()).unwrap();
    }
}

/// The pool was listed and what had overrun the buffer was fetched while the rest still waited.
#[tokio::test]
async fn a_comparison_for_a_lag_waits_until_live_work_has_caught_up() {
    let node = Node::start(500, |config| config);
    let (deliver, delivers) = std::sync::mpsc::channel();
    let delivers = Mutex::new(delivers);
    let sink = Hooked::new(move |call| {
        if call == Call::Deliver {
            // At the end none waits any more.
            let _ = delivers.lock().unwrap().recv();
        }
    });
    let limits = Limits { announcement_buffer: 64, ..settles_fast() };
    let config = FetcherConfig { fetch_slots: 4, audit_interval: None, ..node.fetcher() };
    let fetcher = start_with(config, limits, sink).await;
    let audits = fetcher.status()[0].audits;
    node.submit_all();
    // What is not displaced waits in the buffer and in four slots.
    eventually("the buffer overruns", || fetcher.counts().lagged > 400).await;
    // Its reader learns of it when it reads again.
    (0..8).for_each(|_| deliver.send(()).unwrap());
    let is_known = |gap: &Gap| gap.reason == GapReason::Lagged;
    eventually("it is known", || fetcher.status()[0].gaps.iter().any(is_known)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fetcher.status()[0].audits, audits);
    drop(deliver);
    settled(&fetcher, "all pooled", |counts| counts.pooled == 500).await;
    assert!(fetcher.status()[0].audits > audits);
}

/// What the sink calls back while it is called.
#[tokio::test]
async fn a_sink_may_call_the_fetcher_and_even_stop_it() {
    for from in CALLS {
        let node = Node::start(4, |config| config);
        let held: Arc<Mutex<Option<Fetcher>>> = Arc::default();
        let (ended, mut ends) = mpsc::channel(1);
        let sink = {
            let held = Arc::clone(&held);
            Hooked::new(move |call| {
                if call != from {
                    return;
                }
                // Not while the lock is held: other calls take it too.
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
        // A replacement, a block with nonces, and audits: every call comes.
        node.node.submit(rivals(&node)[0].raw.clone()).unwrap();
        node.node.submit(node.txs[1].raw.clone()).unwrap();
        node.node.mine_only(&[node.txs[1].hash]).unwrap();
        let reason = timeout(PATIENCE, ends.recv()).await.expect("it is stopped");
        assert_eq!(reason, Some(EndReason::Stopped), "{from:?}");
    }
}

/// A comparison reads a pool on a thread of its own, which outlived the runtime that it used.
#[tokio::test]
async fn the_stop_is_in_time_under_every_fault_and_with_every_call_stuck() {
    let deadline = Duration::from_millis(500);
    for (index, fault) in Fault::all().into_iter().enumerate() {
        let stuck = CALLS[index % CALLS.len()];
        let (sink, latch) = Hooked::stuck_in(stuck);
        let node = Node::start(50, |config| config);
        let config = FetcherConfig {
            start: StartPolicy::WaitForNode,
            audit_interval: Some(Duration::from_millis(100)),
            ..node.fetcher()
        };
        let fetcher =
            Fetcher::start_with(config, settles_fast(), sink).await.expect("it waits for the node");
        eventually("the node is reached", || fetcher.status()[0].node.is_some()).await;
        node.submit_all();
        node.node.mine_only(&[node.txs[0].hash]).unwrap();
        node.node.inject(fault);
        // Whatever it is in the middle of, more or less.
        tokio::time::sleep(Duration::from_millis(10 * (index as u64 % 20))).await;
        println!("{fault:?} with {stuck:?} stuck");
        stop(fetcher, deadline).await;
        latch.set(()).unwrap();
    }
}

/// A sink that was closed made the fetcher end with the default deadline of 5 s, whatever the
/// `shutdown` said that came after it.
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
    // It may wait for as long as the type allows.
    let fetcher = start(node.fetcher(), Hooked::new(|_| {})).await;
    let end = fetcher.shutdown(Duration::MAX).await;
    assert_eq!((end.reason, end.ended), (EndReason::Stopped, true));
}

/// What a full pool refused was remembered as refused, and never offered again.
#[tokio::test]
async fn what_a_full_sink_postpones_is_offered_again_a_few_at_a_time_until_it_has_room() {
    struct Full(Arc<AtomicBool>);
    impl TransactionSink for Full {
        async fn deliver(&self, _: FetchedTransaction) -> Delivery {
            match self.0.load(SeqCst) {
                true => Delivery::Postponed("full"),
                false => Delivery::Pooled,
            }
        }
    }
    let node = Node::start(200, |config| config);
    let is_full = Arc::new(AtomicBool::new(true));
    let config = FetcherConfig { audit_interval: None, ..node.fetcher() };
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
async fn a_full_order_pool_takes_what_it_postponed_when_it_has_room_again() {
    let node = Node::start(40, |config| config);
    let pool = OrderPool::new(PoolConfig { max_txs: 5, ..PoolConfig::default() }).expect("valid");
    let fetcher =
        start(FetcherConfig { audit_interval: None, ..node.fetcher() }, pool.clone()).await;
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
async fn without_backfill_an_audit_finds_the_past_and_callers_beyond_the_queue_of_audits_are_told()
{
    let node = Node::start(100, |config| config);
    node.submit_all();
    let limits = Limits { audit_settle: Duration::from_millis(300), ..Limits::default() };
    let config = FetcherConfig { backfill: Backfill::Off, ..node.fetcher() };
    let (fetcher, pool) = ingest_with(config, limits).await;
    assert_eq!((compare(&fetcher).await.missing, pool.len()), (100, 0), "it was only compared");
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
    // Four wait, and the one that runs may have been taken out before the last of them came.
    assert!((4..=5).contains(&done), "{results:?}");
    assert_eq!(compare(&fetcher).await.missing, 0, "there is room again");
}
