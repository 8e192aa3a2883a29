//! From the node's announcement to the order in front of a builder: ours in its three modes against
//! the two ways in which builders fetch today.
//!
//! - *sequential*: one connection, one fetch at a time in the notification loop, alloy's default
//!   buffer of 16, two worker threads, as tokio has by default on two cores;
//! - *plain concurrent*: a second connection, a task for each hash, 64 permits, a buffer of 16,384,
//!   with one worker thread and with two;
//! - *hashes* and *full objects*: [`mempool_ingest::Ingest`] in its two modes over a socket,
//!   otherwise with its defaults;
//! - *in process*: the same with the pool of a node in its own process.
//!
//! `benches/README.md` says what each part shows. A rate of `scale` is *held* when every round
//! pooled, in the end, everything that was announced, no buffer of ours overran, and the node kept
//! the rate.
//!
//! **The clock.** The node runs in a process of its own (the running program again) and notes, in
//! `CLOCK_MONOTONIC`, which all processes share, the moment before it hands each transaction to its
//! pool. A subscriber of the order pool, the same for all, notes when it sees each order. The
//! difference is the latency. So it contains the node's own work, which is the same for all but *in
//! process*, where it is the moment before the hash enters the channel of the node's pool.
//! Announcements are due at start + n/rate; the number of late ones is counted, since it shows how
//! far the machine can be trusted.
//!
//! **Equal work.** Every run announces the first transactions of one list. Each run asserts that
//! the node announced that list, and that every pooled transaction is in it, was pooled once, and
//! has the right sender and sidecar. What a rival did not pool is its loss. Ours must have pooled
//! everything but what overran its buffer and was counted, or the bench fails; timings never fail
//! it. `rates` asserts that every contender but *sequential* pooled all of them.
//!
//! **The cost.** Each run has a process of its own for the contender, so that CPU time and memory
//! are its own: CPU time from the first announcement to the last order, subscriber included, for
//! each pooled transaction, also as a multiple of the floor, the CPU time to decode a raw
//! transaction and recover its sender, which is taken before each round, on one thread and on as
//! many at once as there are cores. All use libsecp256k1. The node never mines here. Of *in
//! process* the CPU time of the thread that announces is the node's and not counted.
//!
//! `cargo bench --bench ingest` takes about half an hour, `-- rates` eleven minutes; with `--
//! --test` each path runs once. A word is criterion's filter too. `scripts/chart.py` draws the
//! table of `scale`. The environment sets `INGEST_BENCH_ROUNDS` (10 of `rates`, 3 of the others),
//! `INGEST_BENCH_SECONDS` (2.5 of `rates`, 3 of `scale`, 5 of `drops`, of each run),
//! `INGEST_BENCH_RATES` (of `rates` and `scale`), and `INGEST_BENCH_BLOBS` (of a thousand
//! transactions of `rates`, how many carry blobs; 0).

mod backfill;
mod floor;
mod node;
mod rates;
mod rivals;
mod run;
#[path = "../common/start.rs"]
mod start;
mod table;

use std::process::ExitCode;

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

/// Of a thousand transactions of `drops`, how many carry blobs; a fifth of those six. The example's
/// default.
const BLOBS_PER_MILLE: u32 = 5;

/// The role of a contender's process.
const ROLE: &str = "__contender";

#[derive(Debug)]
struct Plan {
    rates: Vec<u32>,
    rounds: usize,
    /// How long each run lasts.
    seconds: f64,
}

/// What holds where the environment sets nothing.
struct Defaults {
    rates: &'static str,
    rounds: &'static str,
    seconds: &'static str,
}

impl Plan {
    /// The plan that the environment sets, or each path once, at these rates.
    fn new(is_test: bool, test_rates: &[u32], defaults: Defaults) -> Self {
        if is_test {
            return Self { rates: test_rates.to_vec(), rounds: 1, seconds: 0.4 };
        }
        Self {
            rates: numbers("INGEST_BENCH_RATES", defaults.rates, 1..=100_000),
            rounds: number("INGEST_BENCH_ROUNDS", defaults.rounds, 1..=100),
            seconds: number("INGEST_BENCH_SECONDS", defaults.seconds, 0.1..=600.0),
        }
    }

    fn count(&self, tps: u32) -> usize {
        (f64::from(tps) * self.seconds).round().max(1.0) as usize
    }
}

/// Takes whether each path runs only once.
type Part = fn(bool);

const PARTS: [(&str, Part); 3] =
    [("scale", scale), ("backfill", backfill::bench), ("drops", drops)];

fn main() -> ExitCode {
    let contend = || serve(|(contender, load)| run::run(contender, load));
    if let Some(code) = NodeProcess::run_if_child().or_else(|| run_as(ROLE, contend)) {
        return code;
    }
    let args = Args::read();
    let mut criterion = Criterion::default().configure_from_args();
    floor::bench(&mut criterion);
    rates::bench(&args);
    let chosen = |name| !args.has("--list") && args.choose(name);
    for (_, part) in PARTS.into_iter().filter(|(name, _)| chosen(name)) {
        part(args.is_test());
    }
    ExitCode::SUCCESS
}

fn scale(is_test: bool) {
    let rates = "500,1000,2000,5000,10000,20000,40000";
    let plan = Plan::new(is_test, &[500, 2000], Defaults { rates, rounds: "3", seconds: "3" });
    let load = |&tps| Load { count: plan.count(tps), tps, ..Load::default() };
    let of_load = |load| Contender::OVER_A_SOCKET.map(|contender| Rounds::new((contender, load)));
    let rows = plan.rates.iter().map(load).flat_map(of_load).collect();
    print_held(&race(rows, plan.rounds, false));
}

fn drops(is_test: bool) {
    let plan = Plan::new(is_test, &[], Defaults { rates: "2000", rounds: "3", seconds: "5" });
    let (tps, blobs_per_mille) = (2_000, BLOBS_PER_MILLE);
    let load = Load { count: plan.count(tps), tps, blobs_per_mille, ..Load::default() };
    let dropped =
        |per_mille, run| Load { full_objects: FullObjects::Dropped { per_mille, run }, ..load };
    let full = [load, dropped(200, 1), dropped(500, 2_000), dropped(1_000, 1)];
    let full = full.map(|load| Rounds::new((Contender::Full, load)));
    let rows = [Rounds::new((Contender::Hashes, load))].into_iter().chain(full).collect();
    for row in race(rows, plan.rounds, true) {
        assert_eq!(row.runs.iter().map(Run::lost).sum::<usize>(), 0, "{:?}", row.contender);
    }
}

/// Runs all rows in rounds and prints them; the contenders of a load take turns at going first.
/// With `is_warm` each run follows another one in its process, as in a builder that has run for
/// days; but only a first run shows what it adds to the memory.
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
