//! A busy node and a busy host: retries, backfill and decoding wait without delaying live
//! announcements, and nothing is lost.

use futures::FutureExt as _;
use load_control::{Gate, GateConfig, LoadMonitor, LoadState, MonitorConfig, QueueLoad};

use super::*;

/// So few slots that retries which kept theirs would leave none to live announcements.
const SLOTS: usize = 4;

/// Limits with which no deferred work reaches the age cap.
fn limits() -> Limits {
    Limits { deferral_max_age: Duration::from_secs(3_600), ..Limits::default() }
}

/// Makes a monitor, and a queue of another part of the process, which causes the load.
fn monitor() -> (LoadMonitor, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).expect("defaults");
    let others = monitor.watch("others", 1).expect("a place");
    (monitor, others)
}

/// Starts a fetcher at a live node, under a high load.
async fn pressed(node: &Node) -> (Fetcher, OrderPool, LoadMonitor, QueueLoad) {
    let (monitor, others) = monitor();
    let config = configured(node.fetcher(), |config| {
        config.fetch_slots = SLOTS;
        config.audit_interval = None;
        config.monitor = Some(monitor.clone());
    });
    let (fetcher, pool) = ingest_with(config, limits()).await;
    others.observe(1);
    assert!(monitor.is_pressed());
    (fetcher, pool, monitor, others)
}

fn holds(pool: &OrderPool, txs: &[PreparedTx]) -> bool {
    txs.iter().all(|tx| pool.contains(&tx.hash))
}

/// Waits until all transactions are pooled by the retries alone, and compares with the node.
async fn complete(node: &Node, fetcher: &Fetcher, pool: &OrderPool, deferred: u64) {
    eventually("all are in", || holds(pool, &node.txs)).await;
    let counts = settled(fetcher, "nothing under way", |_| true).await;
    let announced = node.txs.len() as u64;
    assert_eq!((counts.announced, counts.pooled), (announced, announced), "{counts:?}");
    assert_eq!((counts.failed, counts.gone), (0, 0), "{counts:?}");
    let stats = fetcher.deferred();
    assert_eq!((stats.deferred, stats.aged, stats.waiting), (deferred, 0, 0), "{stats:?}");
    let report = compare(fetcher).await;
    assert_eq!((report.missing, report.removed), (0, 0), "{report:?}");
}

#[tokio::test]
async fn deferred_retries_leave_their_slots_to_live_announcements() {
    let bad = [BadAnswer::Busy, BadAnswer::Error];
    for (bad, by_kill_switch) in bad.into_iter().zip([false, true]) {
        let node = Node::start(30, |config| config);
        let (unlucky, live) = node.txs.split_at(SLOTS);
        let (fetcher, pool, monitor, others) = pressed(&node).await;
        node.node.inject(Fault::Answers { bad, count: SLOTS as u32 });
        submit(&node, unlucky);
        let waiting = || fetcher.deferred().waiting;
        eventually("every retry waits", || waiting() == SLOTS as u64).await;

        submit(&node, live);
        eventually("the live ones are in", || holds(&pool, live)).await;
        assert!(unlucky.iter().all(|tx| !pool.contains(&tx.hash)), "{bad:?}");
        let unfinished = || fetcher.counts().unfinished;
        eventually("only the retries are left", || unfinished() == SLOTS as u64).await;
        assert_eq!(waiting(), SLOTS as u64);

        if by_kill_switch {
            monitor.set_enabled(false);
        } else {
            others.observe(0);
        }
        complete(&node, &fetcher, &pool, SLOTS as u64).await;
    }
}

#[tokio::test]
async fn a_retry_without_room_to_wait_keeps_its_slot() {
    let node = Node::start(SLOTS + 2, |config| config);
    let (fetcher, pool, _monitor, others) = pressed(&node).await;
    let count = node.txs.len() as u32;
    node.node.inject(Fault::Answers { bad: BadAnswer::Busy, count });
    // Only as many retries wait as there are slots, so the load cannot accumulate retries.
    submit(&node, &node.txs);
    eventually("two are in", || pool.len() == 2).await;
    assert_eq!(fetcher.deferred().waiting, SLOTS as u64);
    others.observe(0);
    complete(&node, &fetcher, &pool, SLOTS as u64).await;
}

#[tokio::test]
async fn decoding_waits_for_an_internal_permit_and_a_stop_does_not() {
    let node = Node::start(2, |config| config);
    let gate = Gate::new(GateConfig::default()).expect("defaults");
    let config = configured(node.fetcher(), |config| config.gate = Some(gate.clone()));
    let (fetcher, pool) = ingest_with(config, limits()).await;
    for stops in [false, true] {
        let taken: Vec<_> = std::iter::from_fn(|| gate.acquire_internal().now_or_never()).collect();
        assert!(!taken.is_empty());
        let waited = gate.stats().internal_waited;
        let tx = &node.txs[usize::from(stops)..][..1];
        submit(&node, tx);
        eventually("it waits for a place", || gate.stats().internal_waited == waited + 1).await;
        assert!(!holds(&pool, tx));
        if stops {
            let ended = fetcher.shutdown(Duration::from_secs(60)).await;
            assert_eq!((ended.counts.pooled, ended.counts.unfinished), (1, 1));
            return;
        }
        drop(taken);
        eventually("it is in", || holds(&pool, tx)).await;
    }
}

#[tokio::test]
async fn a_backfill_waits_under_load_while_live_announcements_pass() {
    let node = Node::start(60, |config| config);
    let (pending, live) = node.txs.split_at(40);
    submit(&node, pending);
    let (monitor, others) = monitor();
    others.observe(1);
    let pool = order_pool();
    let config = configured(node.fetcher(), |config| config.monitor = Some(monitor.clone()));
    let fetcher = Fetcher::start_with(config, limits(), pool.clone()).await.expect("it starts");
    eventually("the backfill waits", || fetcher.deferred().waiting == 1).await;
    submit(&node, live);
    eventually("the live ones are in", || pool.len() == live.len()).await;
    assert!(holds(&pool, live));
    assert_eq!(fetcher.counts().backfilled, 0);
    assert_eq!(monitor.state(), LoadState::Critical);

    others.observe(0);
    eventually("the backfill is in", || pool.len() == node.txs.len()).await;
    let counts = settled(&fetcher, "nothing is lost", |_| true).await;
    assert_eq!((counts.backfilled, counts.announced), (40, 20));
    let deferred = fetcher.deferred();
    assert_eq!((deferred.deferred, deferred.aged, deferred.waiting), (1, 0, 0));
}

/// Before the fix its unprocessed announcements counted as load for ever.
#[tokio::test]
async fn a_source_that_has_ended_does_not_count_as_load() {
    let node = Node::start(60, |config| config);
    let (monitor, _) = monitor();
    let (fetch_slots, reconnect_limit) = (4, Some(1));
    let config = configured(node.fetcher(), |config| config.monitor = Some(monitor.clone()));
    let config = configured(config, |config| {
        config.fetch_slots = fetch_slots;
        config.reconnect_limit = reconnect_limit;
    });
    let limits = Limits { announcement_buffer: 16, ..limits() };
    let fetcher = start_with(config, limits, order_pool()).await;
    node.node.inject(Fault::Answers { bad: BadAnswer::Never, count: 60 });
    submit(&node, &node.txs);
    eventually("the buffer is full", || monitor.is_pressed()).await;
    drop(node);
    eventually("it has ended", || fetcher.status()[0].state == SourceState::Ended).await;
    eventually("no load is left", || !monitor.is_pressed()).await;
    assert_eq!(fetcher.status()[0].backlog, 0, "waiting announcements are dropped");
}
