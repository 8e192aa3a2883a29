//! What the start-up backfill costs the live announcements: a node holds 10,000 pending
//! transactions and announces 500 more a second. What is timed and asserted is said at
//! [`crate::start`]: here from before the fetcher starts, with the monitor and the gate of
//! `Ingest`, until it is live. The goal is held against a start that backfills nothing, from its
//! beginning for as long as the other of the round took: the first announcements after any start
//! wait for the request connection.

use std::time::Duration;

use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    figures::{Goal, Rounds},
    node::NodeProcess,
};

use crate::start::{Figures, Start, print};

const TPS: u32 = 500;

pub(crate) fn bench(is_test: bool) {
    let (rounds, preload) = if is_test { (1, 300) } else { (9, 10_000) };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut node = NodeProcess::spawn().expect("the node's process starts");
    let mut run = |backfill, lasts| {
        let announces = Duration::from_secs(20);
        let (policy, from_start) = (true, true);
        let start = Start { tps: TPS, announces, preload, backfill, policy, from_start, lasts };
        runtime.block_on(start.run(&mut node))
    };
    let (mut during, mut without) = (Rounds::new("during a backfill"), Rounds::new("without one"));
    for _ in 0..rounds {
        let with = run(Backfill::Pending, Duration::ZERO);
        // Long enough for samples.
        without.runs.push(run(Backfill::Off, with.lasted.max(Duration::from_millis(100))));
        during.runs.push(with);
    }
    println!("\n{preload} pending at the start, {TPS} announced a second");
    let rows = [during, without];
    print(&rows);
    let [during, without] = rows;
    let ratio = during.ratio(&without, |run: &Figures| run.live.p99);
    println!("{}", Goal::at_most("live p99, during / without", ratio, 1.5, ""));
}
