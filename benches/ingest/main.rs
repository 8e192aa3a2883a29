//! From the node's announcement to the order in front of a builder: ours in both modes against the two ways in which
//! builders fetch today.
//!
//! - *sequential*: one connection, one fetch at a time in the notification loop, alloy's default buffer of 16;
//! - *plain concurrent*: a second connection, a task for each hash, 64 permits, a buffer of 16,384;
//! - *hashes* and *full objects*: [`mempool_ingest::Ingest`] in its two modes, else with its defaults.
//!
//! `benches/README.md` says what each part shows. A rate of `scale` is *held* when every round pooled, in the end,
//! everything that was announced, no buffer of ours was overrun, and the node kept the rate. The burst of `paced`
//! fits the buffers of ours and of the plain concurrent rival, so that it measures speed, not overflow.
//!
//! **The clock.** The node runs in a process of its own (the running program again) and notes, in `CLOCK_MONOTONIC`,
//! which all processes share, the moment before it hands each transaction to its pool. A subscriber of the order
//! pool, the same for all, notes when it sees each order. The difference is the latency; what the contenders note
//! themselves plays no part. So it contains the node's own work, which is the same for all. The paced announcements
//! are due at start + n/rate; how many were late is counted, since it says how far the machine can be trusted.
//!
//! **Equal work.** Every run announces the first transactions of one list. Asserted in each run: the node announced
//! that list; what was pooled is part of it, nothing twice, each sender right and each sidecar there. What a rival
//! did not pool is its loss. Ours must have pooled everything but for what overran its buffer and was counted, or the
//! bench fails; timings never fail it.
//!
//! **The cost.** Each run has a process of its own for the contender, so that CPU time and memory are its own: CPU
//! time from the first announcement to the last order, subscriber included, for each pooled transaction, also as a
//! multiple of the floor, the CPU time to decode a raw transaction and recover its sender, which is taken before each
//! round, on one thread and on as many at once as there are cores. All use libsecp256k1, and rivals have as many
//! threads as ours. The node never mines here.
//!
//! `cargo bench --bench ingest` takes about half an hour, `-- paced` fifteen minutes; with `-- --test` each path runs
//! once. A word is criterion's filter too. `scripts/chart.py` draws the table of `scale`. Of `paced` and of `scale`
//! the environment sets `INGEST_BENCH_ROUNDS` (3), `INGEST_BENCH_SECONDS` (3.5 and 3, of each run) and
//! `INGEST_BENCH_RATES`.

mod backfill;
mod floor;
mod rivals;
mod run;
#[path = "../common/start.rs"]
mod start;
mod table;

use std::{process::ExitCode, time::Duration};

use criterion::Criterion;
use mock_node::FullObjects;
use testkit::{
    bench::{Args, number, numbers},
    figures::Rounds,
    node::NodeProcess,
    process::{Process, run_as, serve},
};

use crate::{
    floor::Floor,
    run::{Contender, Load, Run},
    table::{Row, print, print_held},
};

const ANSWER_TIMES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];

/// Most transactions of a paced run, so that the fastest do not take minutes to sign.
const MOST: usize = 20_000;

/// Of a thousand transactions, how many carry blobs; a fifth of those six. The example's default.
const BLOBS_PER_MILLE: u32 = 5;

/// The role of a contender's process.
const ROLE: &str = "__contender";

#[derive(Debug)]
struct Plan {
    rates: Vec<u32>,
    rounds: usize,
    /// How long each paced run lasts.
    seconds: f64,
    /// Announced at once; half of the larger announcement buffers.
    burst: usize,
}

impl Plan {
    /// What the environment says, or each path once, at these rates.
    fn new(is_test: bool, test_rates: &[u32], rates: &str, seconds: &str) -> Self {
        if is_test {
            return Self { rates: test_rates.to_vec(), rounds: 1, seconds: 0.4, burst: 500 };
        }
        Self {
            rates: numbers("INGEST_BENCH_RATES", rates, 1..=100_000),
            rounds: number("INGEST_BENCH_ROUNDS", "3", 1..=100),
            seconds: number("INGEST_BENCH_SECONDS", seconds, 0.1..=600.0),
            burst: 8_000,
        }
    }

    fn count(&self, tps: u32) -> usize {
        (f64::from(tps) * self.seconds).round().max(1.0) as usize
    }
}

/// With whether it is only shown to work.
type Part = fn(bool);

const PARTS: [(&str, Part); 4] =
    [("paced", paced), ("scale", scale), ("backfill", backfill::bench), ("drops", drops)];

fn main() -> ExitCode {
    let contend = || serve(|(contender, load)| run::run(contender, load));
    if let Some(code) = NodeProcess::run_if_child().or_else(|| run_as(ROLE, contend)) {
        return code;
    }
    let args = Args::read();
    let mut criterion = Criterion::default().configure_from_args();
    floor::bench(&mut criterion);
    criterion.final_summary();
    let chosen = |name| !args.has("--list") && args.choose(name);
    for (_, part) in PARTS.into_iter().filter(|(name, _)| chosen(name)) {
        part(args.is_test());
    }
    ExitCode::SUCCESS
}

fn paced(is_test: bool) {
    let plan = Plan::new(is_test, &[500], "500,1000,2000,20000", "3.5");
    let loads = ANSWER_TIMES.iter().flat_map(|&latency| {
        let plan = &plan;
        let load = move |tps: Option<u32>| {
            let count = tps.map_or(plan.burst, |tps| plan.count(tps).min(MOST));
            Load { latency, count, tps, blobs_per_mille: BLOBS_PER_MILLE, ..Load::default() }
        };
        plan.rates.iter().copied().map(Some).chain([None]).map(load)
    });
    race(of_all(loads), plan.rounds, true);
}

fn scale(is_test: bool) {
    let rates = "500,1000,2000,5000,10000,20000,40000";
    let plan = Plan::new(is_test, &[500, 2000], rates, "3");
    let load = |&tps| Load { count: plan.count(tps), tps: Some(tps), ..Load::default() };
    print_held(&race(of_all(plan.rates.iter().map(load)), plan.rounds, false));
}

fn drops(is_test: bool) {
    let plan = Plan::new(is_test, &[], "2000", "5");
    let (tps, blobs_per_mille) = (2_000, BLOBS_PER_MILLE);
    let load = Load { count: plan.count(tps), tps: Some(tps), blobs_per_mille, ..Load::default() };
    let dropped =
        |per_mille, run| Load { full_objects: FullObjects::Dropped { per_mille, run }, ..load };
    let full = [load, dropped(200, 1), dropped(500, 2_000), dropped(1_000, 1)];
    let full = full.map(|load| Rounds::new((Contender::Full, load)));
    let rows = [Rounds::new((Contender::Hashes, load))].into_iter().chain(full).collect();
    for row in race(rows, plan.rounds, true) {
        assert_eq!(row.runs.iter().map(Run::lost).sum::<usize>(), 0, "{:?}", row.contender);
    }
}

/// All contenders under each load, those of a load beside each other, without a run yet.
fn of_all(loads: impl Iterator<Item = Load>) -> Vec<Row> {
    let of_load = |load| Contender::ALL.map(|contender| Rounds::new((contender, load)));
    loads.flat_map(of_load).collect()
}

/// Rounds of all rows, printed; the contenders of a load take turns at going first. `is_warm`: in a process that has had a
/// run already, as a builder has that runs for days; but only a first run shows what it adds to the memory.
fn race(mut rows: Vec<Row>, rounds: usize, is_warm: bool) -> Vec<Row> {
    let samples = floor::samples();
    let mut floors = Rounds::new(());
    for round in 0..rounds {
        floors.runs.push(Floor::of(&samples));
        for of_load in rows.chunk_by_mut(|one, other| one.contender.1 == other.contender.1) {
            for turn in 0..of_load.len() {
                let at = (turn + round) % of_load.len();
                let (contender, load) = of_load[at].contender;
                let mut process = Process::spawn(ROLE).expect("its process starts");
                let mut run =
                    || -> Run { process.request(&(contender, load)).expect("it comes to its end") };
                if is_warm {
                    run();
                }
                let run = run();
                let (contender, load) = (contender.name(), load.name());
                eprintln!("round {} of {rounds}: {contender} at {load}", round + 1);
                of_load[at].runs.push(run);
            }
        }
    }
    print(&rows, &floors);
    rows
}
