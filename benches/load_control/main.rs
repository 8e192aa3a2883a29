//! What a backfill may not do to live announcements: 1000 announcements a second while 108,000
//! hashes flood, with the policy off and on. What is timed and asserted is said at [`start`]. What
//! callers from outside may not do is shown by the scenarios of the trial.
//!
//! `cargo bench --bench load_control` takes about a minute; with `-- --test` each contender runs
//! once. The environment sets `LOAD_BENCH_ROUNDS` (3).

#[path = "../common/start.rs"]
mod start;

use std::{process::ExitCode, time::Duration};

use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    bench::{Args, number},
    figures::{Goal, Rounds},
    node::NodeProcess,
};

use crate::start::{Figures, Start, print};

const TPS: u32 = 1_000;

/// Contenders: whether the policy is on, and whether there is a flood.
const CONTENDERS: [(&str, bool, bool); 3] =
    [("no flood", true, false), ("policy off", false, true), ("policy on", true, true)];

fn main() -> ExitCode {
    NodeProcess::run_if_child().unwrap_or_else(|| {
        bench(Args::read().is_test());
        ExitCode::SUCCESS
    })
}

fn bench(is_test: bool) {
    let (flood, rounds) =
        if is_test { (500, 1) } else { (108_000, number("LOAD_BENCH_ROUNDS", "3", 1..=100)) };
    // More seconds of live announcements than a flood lasts.
    let (announces, lasts) = match is_test {
        true => (Duration::from_secs(6), Duration::from_millis(100)),
        false => (Duration::from_secs(25), Duration::from_secs(3)),
    };
    let host = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let host = host.expect("a runtime");
    let mut node = NodeProcess::spawn().expect("the node's process starts");
    let mut rows = CONTENDERS.map(|(name, ..)| Rounds::new(name));
    for round in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            let number = (turn + round) % CONTENDERS.len();
            let (_, policy, floods) = CONTENDERS[number];
            let preload = if floods { flood } else { 0 };
            let backfill = if floods { Backfill::Pending } else { Backfill::Off };
            let from_start = false;
            let start = Start { tps: TPS, announces, preload, backfill, policy, from_start, lasts };
            rows[number].runs.push(host.block_on(start.run(&mut node)));
        }
    }
    println!("\n{TPS} announced a second while a backfill of {flood} floods");
    print(&rows);
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
