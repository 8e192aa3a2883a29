//! A node that is busy, and a host that is too: what has to be requested again waits without delaying
//! the requests for what is announced, and nothing is lost.

use std::time::Duration;

use futures::FutureExt as _;
use mempool_ingest::{
    Ingest, IngestConfig, LoadMonitor, PoolConfig,
    load_control::{Gate, GateConfig, MonitorConfig, QueueLoad},
    txpool_fetcher::AuditMode,
};
use mock_node::{BadAnswer, Fault, workload::PreparedTx};
use testkit::ingest::{Node, eventually, settled};

/// So few that retries which kept theirs would leave none to live announcements.
const SLOTS: usize = 4;

/// All parts on a live node, and somebody else's queue in the same process, full.
async fn pressed(node: &Node) -> (Ingest, LoadMonitor, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).expect("defaults");
    let others = monitor.watch("others", 1).expect("a place");
    let mut fetcher = node
        .fetcher()
        .with_fetch_slots(SLOTS)
        .with_audit_interval(None)
        .with_monitor(monitor.clone());
    fetcher.deferral_max_age = Duration::from_secs(3_600);
    let ingest = Ingest::start(IngestConfig::new(fetcher, PoolConfig::default()));
    let ingest = ingest.await.expect("all parts start");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    others.observe(1);
    assert!(monitor.is_pressed());
    (ingest, monitor, others)
}

fn submit(node: &Node, txs: &[PreparedTx]) {
    for tx in txs {
        node.node.submit(tx.raw.clone()).expect("the node takes its own transactions");
    }
}

fn holds(ingest: &Ingest, txs: &[PreparedTx]) -> bool {
    txs.iter().all(|tx| ingest.pool().contains(&tx.hash))
}

/// All is in, by the retries alone, and a comparison with the node finds nothing that is not.
async fn complete(node: &Node, ingest: Ingest, deferred: u64) {
    eventually("all are in", || holds(&ingest, &node.txs)).await;
    let counts = settled(ingest.fetcher(), "nothing under way", |_| true).await;
    let announced = node.txs.len() as u64;
    assert_eq!((counts.announced, counts.pooled), (announced, announced), "{counts:?}");
    assert_eq!((counts.failed, counts.gone), (0, 0), "{counts:?}");
    let stats = ingest.fetcher().deferred();
    assert_eq!((stats.deferred, stats.aged, stats.waiting), (deferred, 0, 0), "{stats:?}");
    let audit = ingest.fetcher().audit(0, AuditMode::CompareOnly).await;
    let report = audit.expect("the node lists its pool");
    assert_eq!((report.missing, report.removed), (0, 0), "{report:?}");
    ingest.shutdown(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn retries_wait_without_their_slots_until_the_load_falls_and_live_announcements_pass() {
    let bad = [BadAnswer::Busy, BadAnswer::Error];
    for (bad, by_kill_switch) in bad.into_iter().zip([false, true]) {
        let node = Node::start(30, |config| config);
        let (unlucky, live) = node.txs.split_at(SLOTS);
        let (ingest, monitor, others) = pressed(&node).await;
        node.node.inject(Fault::Answers { bad, count: SLOTS as u32 });
        submit(&node, unlucky);
        let waiting = || ingest.fetcher().deferred().waiting;
        eventually("every retry waits", || waiting() == SLOTS as u64).await;

        submit(&node, live);
        eventually("the live ones are in", || holds(&ingest, live)).await;
        assert!(unlucky.iter().all(|tx| !ingest.pool().contains(&tx.hash)), "{bad:?}");
        let unfinished = || ingest.fetcher().counts().unfinished;
        eventually("only the retries are left", || unfinished() == SLOTS as u64).await;
        assert_eq!(waiting(), SLOTS as u64);

        if by_kill_switch {
            monitor.set_enabled(false);
        } else {
            others.observe(0);
        }
        complete(&node, ingest, SLOTS as u64).await;
    }
}

#[tokio::test]
async fn a_retry_that_finds_no_room_to_wait_goes_on_in_its_slot() {
    let node = Node::start(SLOTS + 2, |config| config);
    let (ingest, _monitor, others) = pressed(&node).await;
    let count = node.txs.len() as u32;
    node.node.inject(Fault::Answers { bad: BadAnswer::Busy, count });
    // As many wait as there are slots, so the load cannot make a crowd of them.
    submit(&node, &node.txs);
    eventually("two are in", || ingest.pool().len() == 2).await;
    assert_eq!(ingest.fetcher().deferred().waiting, SLOTS as u64);
    others.observe(0);
    complete(&node, ingest, SLOTS as u64).await;
}

#[tokio::test]
async fn decoding_waits_for_an_internal_permit_and_a_stop_does_not_wait_for_it() {
    let node = Node::start(2, |config| config);
    let gate = Gate::new(GateConfig::default()).expect("defaults");
    let fetcher = node.fetcher().with_gate(gate.clone());
    let ingest = Ingest::start(IngestConfig::new(fetcher, PoolConfig::default()));
    let ingest = ingest.await.expect("all parts start");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    for stops in [false, true] {
        let taken: Vec<_> = std::iter::from_fn(|| gate.acquire_internal().now_or_never()).collect();
        assert!(!taken.is_empty());
        let waited = gate.stats().internal_waited;
        let tx = &node.txs[usize::from(stops)..][..1];
        submit(&node, tx);
        eventually("it waits for a place", || gate.stats().internal_waited == waited + 1).await;
        assert!(!holds(&ingest, tx));
        if stops {
            let ended = ingest.shutdown(Duration::from_secs(60)).await;
            assert_eq!((ended.counts.pooled, ended.counts.unfinished), (1, 1));
            return;
        }
        drop(taken);
        eventually("it is in", || holds(&ingest, tx)).await;
    }
}
