//! One start of ours against a node that announces meanwhile: what a backfill does to the live
//! announcements.
//!
//! **The clock.** Live latency is from the announcement read from the socket to the order in the
//! pool, by a stopwatch around the pool, while the backfill fetches, or for a while without one:
//! from its first transaction, or from before the fetcher starts. The node announces from the first
//! subscription on. It is a process of its own (this program again), so that what it burns is not
//! ours.
//!
//! **Equal work.** After every run, the pool holds each announced and each backfilled transaction
//! once, and no other. Every hash has had one outcome. Otherwise the bench fails; timings never
//! fail it.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mempool_ingest::{
    Fetcher, FetcherConfig, LoadMonitor, OrderPool, PoolConfig,
    load_control::{Gate, GateConfig, Limit, MonitorConfig},
    order_pool::{Upkeep, UpkeepConfig},
    txpool_fetcher::{
        Backfill, ChainEvent, Delivery, EndReason, Entry, FetchedTransaction, Holding, Limits,
        TransactionSink,
    },
};
use mock_node::NodeConfig;
use testkit::{
    figures::{Rounds, Table, Times, histogram},
    ingest::{PATIENCE, eventually, settled},
    node::NodeProcess,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Announced a second, for so long: if it lasts longer, what is live is of a part of it.
    pub(crate) tps: u32,
    pub(crate) announces: Duration,
    /// Pending at the node before.
    pub(crate) preload: usize,
    pub(crate) backfill: Backfill,
    /// Without it deferrable fetches may hold all slots, and nothing is deferred.
    pub(crate) policy: bool,
    /// Whether what connecting and listing take is in it.
    pub(crate) from_start: bool,
    /// Of a run that backfills nothing.
    pub(crate) lasts: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) live: Times,
    pub(crate) lasted: Duration,
    pub(crate) backfilled: u64,
    pub(crate) deferred: u64,
    /// Announcements that the node made more than 5 ms late.
    pub(crate) late: usize,
}

impl Start {
    /// The parts are wired as `Ingest` wires them; a monitor that is off is left out.
    pub(crate) async fn run(self, node: &mut NodeProcess) -> Figures {
        let Self { tps, announces, preload, backfill, policy, from_start, lasts } = self;
        let backfills = preload > 0 && backfill != Backfill::Off;
        let signed = (f64::from(tps) * announces.as_secs_f64()) as usize;
        let preloaded = node.start(|config| NodeConfig { preload, signed_ahead: signed, ..config });
        let mut expected = preloaded.expect("the node starts");
        assert_eq!(expected.len(), preload);
        if !backfills {
            expected.clear();
        }
        let backfilled = expected.len() as u64;

        let mut config = PoolConfig::default();
        // A run on a busy machine must not outlive its transactions: equal work is asserted.
        config.tx_retention = Duration::from_mins(30);
        let pool = OrderPool::new(config).expect("a valid configuration");
        let monitor = LoadMonitor::new(MonitorConfig::default()).expect("the defaults are valid");
        let mut config = GateConfig::default();
        config.requests = if policy { Limit::Auto } else { Limit::Unlimited };
        let gate = Gate::new(config).expect("the defaults are valid");
        let pressed = monitor.clone();
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), move || pressed.is_pressed());
        let upkeep = upkeep.expect("a thread");
        let mut config = FetcherConfig::ipc(node.path());
        config.audit_interval = None;
        config.backfill = backfill;
        config.monitor = policy.then_some(monitor);
        config.gate = Some(gate.clone());
        let mut limits = Limits::default();
        if !policy {
            limits.deferrable_slots = Some(config.fetch_slots);
            limits.deferrable_connections = config.request_connections;
        }
        let sink = Timed { pool: pool.clone(), live: Arc::default() };
        let (mut begin, mut before) = (Instant::now(), 0);
        let fetcher =
            Fetcher::start_with(config, limits, sink.clone()).await.expect("the node is there");

        // It has subscribed.
        node.announce(signed, Some(tps)).expect("the node announces");
        if !from_start {
            // The listing before is the same for all, and the node's business.
            let has_begun = || {
                let counts = fetcher.counts();
                (if backfills { counts.backfilled } else { counts.pooled }) > 0
            };
            eventually("it has begun", has_begun).await;
            (begin, before) = (Instant::now(), fetcher.counts().backfilled);
        }
        let is_over = || if backfills { fetcher.is_live() } else { begin.elapsed() >= lasts };
        eventually("it is over", is_over).await;
        let (end, after) = (Instant::now(), fetcher.counts());
        let announced = node.stop().expect("the node stops");
        if announced.txs.len() == signed {
            println!(
                "warning: all {signed} were announced before the end: live is of a part of it"
            );
        }
        expected.extend(announced.txs.iter().map(|(hash, _)| *hash));

        let total = expected.len();
        let counts = settled(&fetcher, "all pooled", |counts| counts.pooled >= total as u64).await;
        for hash in &expected {
            assert!(pool.contains(hash), "{hash} is not in the pool: {counts:?}");
        }
        assert_eq!((pool.len(), counts.pooled), (total, total as u64), "{counts:?}");
        assert_eq!((counts.failed, counts.refused, counts.gone), (0, 0, 0), "{counts:?}");
        assert_eq!(counts.backfilled, backfilled, "all of them");
        // Each of them acquired a permit of the gate that external callers compete for.
        let internal = gate.stats().internal_admitted;
        assert!(internal > 0 && internal >= total as u64, "{internal} permits for {total}");
        let figures = Figures {
            live: sink.times(begin, end),
            lasted: (end - begin).max(Duration::from_millis(1)),
            backfilled: after.backfilled - before,
            deferred: fetcher.deferred().deferred,
            late: announced.late,
        };
        assert_eq!(fetcher.shutdown(PATIENCE).await.reason, EndReason::Stopped);
        assert!(upkeep.shutdown(PATIENCE).ended, "the upkeep has ended");
        figures
    }
}

pub(crate) fn print(rows: &[Rounds<&str, Figures>]) {
    println!(
        "latency from the announcement read from the socket to the order in the pool, while it \
         lasts; medians of {} rounds",
        rows[0].runs.len()
    );
    let mut table = Table::new(
        " | lasts ms | p50 us | p95 us | p99 us | live/s | backfilled/s | deferred | late",
    );
    for row in rows {
        table.row([
            row.contender.to_owned(),
            row.whole(|run| run.lasted.as_secs_f64() * 1e3),
            row.whole(|run| run.live.p50),
            row.whole(|run| run.live.p95),
            row.whole(|run| run.live.p99),
            row.whole(|run| run.live.count as f64 / run.lasted.as_secs_f64()),
            row.whole(|run| run.backfilled as f64 / run.lasted.as_secs_f64()),
            row.whole(|run| run.deferred as f64),
            row.runs.iter().map(|run| run.late).sum::<usize>().to_string(),
        ]);
    }
    print!("{table}");
}

/// The pool, which takes the time of what was announced.
#[derive(Clone, Debug)]
struct Timed {
    pool: OrderPool,
    /// When each was announced, and how long it took.
    live: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl Timed {
    /// Of what was announced in between.
    fn times(&self, start: Instant, end: Instant) -> Times {
        let mut times = histogram();
        for (announced_at, latency) in self.live.lock().expect("nobody panics with it").iter() {
            if (start..end).contains(announced_at) {
                times.saturating_record(latency.as_nanos() as u64);
            }
        }
        Times::from(&times)
    }
}

impl TransactionSink for Timed {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let (entry, announced_at) = (tx.entry, tx.announced_at);
        let delivery = self.pool.deliver(tx).await;
        if entry == Entry::Announced {
            self.live
                .lock()
                .expect("nobody panics with it")
                .push((announced_at, announced_at.elapsed()));
        }
        delivery
    }

    async fn chain_event(&self, event: ChainEvent) {
        self.pool.chain_event(event).await;
    }

    fn holding(&self, hash: &B256) -> Holding {
        TransactionSink::holding(&self.pool, hash)
    }
}
