//! What the start-up backfill costs the live announcements.
//!
//! A mock node in a process of its own holds 10,000 pending transactions and announces 500 more a
//! second. The latency of live announcements (read from the socket to delivered to the sink) is
//! taken while the backfill runs; for as long after it; and, in a run of its own, for as long from a
//! start that backfills nothing. The last is what the goal is held against: the first announcements
//! after any start wait for the request connection, whatever else goes on. Nine rounds, the median of
//! their p99 ratios. The sink is the order pool behind a stopwatch, so all do the same work; every
//! run asserts that all 10,000 came in, or none of them.

use std::time::{Duration, Instant};

use mempool_ingest::{Fetcher, FetcherConfig, OrderPool, PoolConfig, txpool_fetcher::Backfill};
use mock_node::{LoadStart, NodeConfig};
use testkit::{
    Timed,
    figures::{Goal, Spread, Times, median},
    ingest::eventually,
    node::NodeProcess,
};

const TPS: u32 = 500;

/// A node that announces for 20 s once someone has subscribed.
fn node(preload: usize) -> NodeProcess {
    let mut node = NodeProcess::spawn().expect("the node's process starts");
    let started = node.start(|config| {
        let count = TPS * 20;
        NodeConfig {
            load_start: LoadStart::FirstSubscription,
            preload,
            tps: TPS,
            count: Some(count.into()),
            signed_ahead: count as usize,
            ..config
        }
    });
    assert_eq!(started.expect("the node starts").len(), preload);
    node
}

struct Run {
    /// From the start until the source was live.
    until_live: Duration,
    /// What was announced while the backfill ran, or for as long as it had in the run before.
    first: Times,
    /// What was announced afterwards, for as long again.
    after: Times,
}

/// One start. `time` is how long the first part lasts; without it, as long as the backfill.
async fn run(preload: usize, backfill: Backfill, time: Option<Duration>) -> Run {
    let node = node(preload);
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let sink = Timed::new(pool);
    let config =
        FetcherConfig { audit_interval: None, backfill, ..FetcherConfig::ipc(node.path()) };
    let begin = Instant::now();
    let fetcher = Fetcher::start(config, sink.clone()).await.expect("the node is there");
    eventually("it is live", || fetcher.is_live()).await;
    let until_live = begin.elapsed();
    let expected = if backfill == Backfill::Off { 0 } else { preload as u64 };
    assert_eq!(fetcher.counts().backfilled, expected, "all of them came in, or none");
    let first_ends = begin + time.unwrap_or(until_live);
    // Long enough for as many samples after as during.
    let after = time.unwrap_or(until_live).max(Duration::from_secs(1));
    let ends = first_ends + after;
    tokio::time::sleep_until(ends.into()).await;
    let counts = fetcher.counts();
    assert_eq!((counts.lagged, counts.failed), (0, 0));
    Run { until_live, first: sink.times(begin, first_ends), after: sink.times(first_ends, ends) }
}

pub(crate) fn bench(is_test: bool) {
    let (rounds, preload) = if is_test { (1, 300) } else { (9, 10_000) };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    println!("\n{preload} pending at the start, {TPS} announced a second, {rounds} rounds");
    println!("latency of live announcements, p50 / p99 us (samples)");
    println!("round  backfill    during                 without a backfill     after one");
    let (mut ratios, mut to_after, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for number in 1..=rounds {
        let ours = runtime.block_on(run(preload, Backfill::Pending, None));
        let control = runtime.block_on(run(preload, Backfill::Off, Some(ours.until_live)));
        print!("{number:>5}  {:>6.2} s", ours.until_live.as_secs_f64());
        for Times { p50, p99, count, .. } in [ours.first, control.first, ours.after] {
            print!("  {p50:>6.0} / {p99:>6.0} ({count:>4})");
        }
        println!();
        ratios.push(ours.first.p99 / control.first.p99);
        to_after.push(ours.first.p99 / ours.after.p99);
        times.push(ours.until_live.as_secs_f64());
    }
    println!("median backfill {:.2} s", median(times));
    let ratios = Spread::of(ratios);
    println!("{}", Goal::at_most("live p99, during / without", ratios, 1.5, ""));
    println!("live p99, during / after: {}", Spread::of(to_after));
}
