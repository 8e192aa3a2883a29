//! What the start-up backfill costs the live announcements.
//!
//! A mock node in a process of its own holds 10,000 pending transactions and announces 500 more a
//! second. The latency of live announcements (read from the socket to delivered to the sink) is
//! taken while the backfill runs and, in the same run, for as long after it. Five runs, the median
//! of their p99 ratios. The sink is the order pool behind a stopwatch, so both sides do the same
//! work; every run asserts that all 10,000 came in.

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool, PoolConfig,
    txpool_fetcher::{Delivery, Entry, FetchedTransaction, HeadUpdate, TransactionSink},
};
use mock_node::ChildNode;

const TPS: u32 = 500;

/// The pool behind a stopwatch.
#[derive(Clone)]
struct Timed {
    pool: OrderPool,
    live: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl TransactionSink for Timed {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let (entry, at) = (tx.entry, tx.announced_at);
        let delivery = self.pool.deliver(tx).await;
        if entry == Entry::Announced {
            self.live.lock().expect("nobody panics with it").push((at, at.elapsed()));
        }
        delivery
    }

    fn head(&self, head: &HeadUpdate) {
        TransactionSink::head(&self.pool, head);
    }
}

/// The folder of a socket, and a node there that announces once someone listens.
fn node(preload: usize) -> (tempfile::TempDir, ChildNode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (tps, preload) = (TPS.to_string(), preload.to_string());
    let args = [
        ["--start-on-subscription", "--block-time=0s", "--duration=20s"].as_slice(),
        &["--tps", &tps, "--preload", &preload],
    ];
    let node = ChildNode::start(folder.path().join("node.ipc"), args.concat());
    (folder, node.expect("the node starts"))
}

struct Run {
    backfill: Duration,
    during: Histogram<u64>,
    after: Histogram<u64>,
}

async fn run(preload: usize) -> Run {
    let (_folder, node) = node(preload);
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let sink = Timed { pool, live: Arc::default() };
    let config = FetcherConfig::ipc(node.path()).with_audit_interval(None);
    let begin = Instant::now();
    let fetcher = Fetcher::start(config, sink.clone()).await.expect("the node is there");
    while !fetcher.is_live() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let live = Instant::now();
    let backfill = live - begin;
    assert_eq!(fetcher.counts().backfilled, preload as u64, "all of them came in");
    // Long enough for as many samples after as during.
    tokio::time::sleep(backfill.max(Duration::from_secs(1))).await;
    let counts = fetcher.counts();
    assert_eq!((counts.lagged, counts.failed), (0, 0));
    let mut run = Run { backfill, during: histogram(), after: histogram() };
    for (at, latency) in sink.live.lock().expect("nobody panics with it").iter() {
        let side = if *at < live { &mut run.during } else { &mut run.after };
        side.saturating_record(latency.as_nanos() as u64);
    }
    run
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    if let Some(code) = ChildNode::run_if_child() {
        return code;
    }
    // `cargo bench -- --test`, and anything but `cargo bench`, takes each path once.
    let full = std::env::args().any(|arg| arg == "--bench")
        && !std::env::args().any(|arg| arg == "--test");
    let (rounds, preload) = if full { (5, 10_000) } else { (1, 300) };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("{preload} pending at the start, {TPS} announced a second, {rounds} runs");
    println!("run  backfill      live p50/p99 during       live p50/p99 after     p99 ratio");
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for number in 1..=rounds {
        let Run { backfill, during, after } = runtime.block_on(run(preload));
        let us = |side: &Histogram<u64>, quantile| side.value_at_quantile(quantile) as f64 / 1e3;
        let ratio = us(&during, 0.99) / us(&after, 0.99);
        println!(
            "{number:>3}  {:>6.2} s  {:>8.0} / {:>8.0} us ({:>4})  {:>8.0} / {:>8.0} us ({:>4})  {ratio:>8.2}",
            backfill.as_secs_f64(),
            us(&during, 0.5),
            us(&during, 0.99),
            during.len(),
            us(&after, 0.5),
            us(&after, 0.99),
            after.len(),
        );
        ratios.push(ratio);
        times.push(backfill.as_secs_f64());
    }
    println!(
        "median: backfill {:.2} s, live p99 during / after {:.2} (goal: at most 1.5)",
        median(times),
        median(ratios)
    );
    ExitCode::SUCCESS
}
