//! What a backfill may not do to live announcements: 1000 announcements a second while 108,000 hashes flood, with the
//! policy off and on. What callers from outside may not do is shown by the scenarios of the trial.
//!
//! **The clock.** Live latency is from the announcement read from the socket to the order in the
//! pool, by a stopwatch around the pool. The node is a process of its own (this program again), so that
//! what it burns is not ours.
//!
//! **Equal work.** After every run, what the node announced and what it held at the start are in the
//! pool, each of them; nothing else, and nothing twice. Every hash has had its one outcome. If not, the
//! bench fails; timings never fail it.
//!
//! `cargo bench --bench load_control` takes about a minute; with `-- --test` each contender runs once. The environment
//! sets `LOAD_BENCH_ROUNDS` (3).

mod stage;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use mempool_ingest::txpool_fetcher::Backfill;
use mock_node::NodeConfig;
use testkit::{
    bench::{Args, number},
    figures::{Goal, Rounds, Table, Times},
    ingest::eventually,
    node::NodeProcess,
};

use crate::stage::Parts;

const TPS: u32 = 1_000;

/// Contenders: whether the policy is on, and whether there is a flood.
const CONTENDERS: [(&str, bool, bool); 3] =
    [("no flood", true, false), ("policy off", false, true), ("policy on", true, true)];

#[derive(Clone, Debug)]
struct Figures {
    live: Times,
    live_per_s: f64,
    backfilled_per_s: f64,
    deferred: u64,
    /// Announcements that the node made more than 5 ms late.
    late: usize,
}

fn main() -> ExitCode {
    NodeProcess::run_if_child().unwrap_or_else(|| {
        bench(Args::read().is_test());
        ExitCode::SUCCESS
    })
}

fn bench(is_test: bool) {
    let (flood, rounds) =
        if is_test { (500, 1) } else { (108_000, number("LOAD_BENCH_ROUNDS", "3", 1..=100)) };
    let host = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let host = host.expect("a runtime");
    let mut node = NodeProcess::spawn().expect("the node's process starts");
    let mut rows = CONTENDERS.map(|(name, ..)| Rounds::new(name));
    for round in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            let number = (turn + round) % CONTENDERS.len();
            let (_, policy, floods) = CONTENDERS[number];
            let run = run(&mut node, policy, if floods { flood } else { 0 }, is_test);
            rows[number].runs.push(host.block_on(run));
        }
    }
    println!(
        "\n{TPS} announced a second while a backfill of {flood} floods; medians of {rounds} rounds\n\
         latency from the announcement read from the socket to the order in the pool, while it lasts",
    );
    let mut table =
        Table::new(" | p50 us | p95 us | p99 us | live/s | backfilled/s | deferred | late");
    for row in &rows {
        table.row([
            row.contender.to_owned(),
            row.whole(|run| run.live.p50),
            row.whole(|run| run.live.p95),
            row.whole(|run| run.live.p99),
            row.whole(|run| run.live_per_s),
            row.whole(|run| run.backfilled_per_s),
            row.whole(|run| run.deferred as f64),
            row.runs.iter().map(|run| run.late).sum::<usize>().to_string(),
        ]);
    }
    print!("{table}");
    let [calm, off, on] = &rows;
    println!("goals (ratios within a round; the median of the rounds, least to most):");
    let (p95, p99) = (|run: &Figures| run.live.p95, |run: &Figures| run.live.p99);
    for goal in [
        Goal::at_most("live p95, policy on / off", on.ratio(off, p95), 0.83, ""),
        Goal::at_most("live p99, policy on / off", on.ratio(off, p99), 0.89, ""),
        Goal::at_most("live p99, policy on / no flood", on.ratio(calm, p99), 1.5, ""),
    ] {
        println!("  {goal}");
    }
    println!("  every run: all {flood} and all live ones are in the pool, once each");
}

async fn run(node: &mut NodeProcess, policy: bool, flood: usize, is_test: bool) -> Figures {
    let floods = flood > 0;
    // More seconds of live announcements than a flood lasts; so long lasts the reference without one.
    let (signed_s, calm) =
        if is_test { (6, Duration::from_millis(100)) } else { (25, Duration::from_secs(3)) };
    let signed = TPS as usize * signed_s;
    let preloaded =
        node.start(|config| NodeConfig { preload: flood, signed_ahead: signed, ..config });
    let preloaded = preloaded.expect("the node starts");
    assert_eq!(preloaded.len(), flood);
    let backfill = if floods { Backfill::Pending } else { Backfill::Off };
    let parts = Parts::start(node.path(), policy, backfill).await;
    node.announce(signed, Some(TPS)).expect("the node announces");
    // The listing before is the same for all, and the node's business.
    let has_begun = || {
        let counts = parts.fetcher.counts();
        (if floods { counts.backfilled } else { counts.pooled }) > 0
    };
    eventually("it has begun", has_begun).await;
    let (begin, before) = (Instant::now(), parts.fetcher.counts());
    let is_over = || if floods { parts.fetcher.is_live() } else { begin.elapsed() >= calm };
    eventually("it is over", is_over).await;
    let (end, after) = (Instant::now(), parts.fetcher.counts());
    let announced = node.stop().expect("the node stops");
    if let (Some(short), false) = (announced.short, is_test) {
        // What is printed as live latency is then of a part of the flood.
        let (count, short) = (announced.txs.len(), short.as_secs_f64());
        println!("warning: all {count} announcements were made {short:.1} s before the load ended");
    }
    let live: Vec<_> = announced.txs.iter().map(|(hash, _)| *hash).collect();
    parts.check(&[preloaded, live].concat()).await;
    assert_eq!(parts.fetcher.counts().backfilled, flood as u64, "all of them");
    let live = parts.sink.times(begin, end);
    let lasted = (end - begin).max(Duration::from_millis(1)).as_secs_f64();
    let figures = Figures {
        live,
        live_per_s: live.count as f64 / lasted,
        backfilled_per_s: (after.backfilled - before.backfilled) as f64 / lasted,
        deferred: parts.fetcher.deferred().deferred,
        late: announced.late,
    };
    parts.stop().await;
    figures
}
