//! From the node's announcement to the order in front of a builder: ours in both modes against the two
//! ways in which builders fetch today. What is compared, how it is timed and what is asserted is said at
//! [`testkit::contest`].
//!
//! - criterion's group `floor`: what nobody can save;
//! - `paced`: the table of all contenders at paced rates and in a burst of 8,000, and where the CPU time goes;
//! - `scale`: how far each contender goes, with its memory, see [`scale`];
//! - `backfill`: what the start-up backfill costs the live announcements, see [`backfill`];
//! - `drops`: what it costs in time when the node drops full objects, see [`drops`].
//!
//! A fifth of the 0.5 % of transactions with blobs have six. Ours must have pooled everything, or the
//! bench fails; timings never fail it. CPU time is given as a multiple of the floor too: the CPU time to
//! decode a raw transaction and recover its sender, measured between the rounds, on one thread and on as
//! many at once as there are cores.
//!
//! **The burst** is announced at once. It fits the buffers of ours and of the plain concurrent
//! rival, so that it measures speed, not overflow. Which side was the limit is said from which
//! side's cores were busy.
//!
//! `cargo bench --bench ingest` takes about 25 minutes, `-- paced` or `-- scale` ten; with `-- --test` each
//! path runs once. A word is criterion's filter too. `scripts/chart.py` draws the table of `scale`. Of `paced` and of
//! `scale` the environment sets `INGEST_BENCH_ROUNDS` (3), `INGEST_BENCH_SECONDS` (3.5 and 3, of each run) and
//! `INGEST_BENCH_RATES`.

mod backfill;
mod drops;
mod floor;
mod scale;
mod table;

use std::{process::ExitCode, time::Duration};

use criterion::Criterion;
use mock_node::workload::PreparedTx;
use testkit::{
    bench::{Args, number, numbers},
    contest::{Contender, Load, Stage},
    figures::{Rounds, median},
    node::NodeProcess,
    process::run_as,
};

use crate::table::{Floor, Row};

const RATES: &str = "500,1000,2000,20000";
const ANSWER_TIMES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];

/// Most transactions of a paced run, so that the fastest do not take minutes to sign.
const MOST: usize = 20_000;

/// Of a thousand transactions, how many carry blobs; a fifth of those six. The example's default.
const BLOBS_PER_MILLE: u32 = 5;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rates: Vec<u32>,
    pub(crate) rounds: usize,
    /// How long each paced run lasts.
    pub(crate) seconds: f64,
    /// Announced at once; half of the larger announcement buffers.
    burst: usize,
}

impl Plan {
    /// What the environment says, or each path once, at these rates.
    pub(crate) fn new(is_test: bool, test_rates: &[u32], rates: &str, seconds: &str) -> Self {
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

    fn loads(&self) -> Vec<Load> {
        let rates = self.rates.iter().copied().map(Some).chain([None]);
        let all = ANSWER_TIMES.iter().flat_map(|&latency| {
            rates.clone().map(move |tps| {
                let count = match tps {
                    Some(tps) => ((f64::from(tps) * self.seconds).round() as usize).min(MOST),
                    None => self.burst,
                };
                Load { latency, count, tps, blobs_per_mille: BLOBS_PER_MILLE, ..Load::default() }
            })
        });
        all.collect()
    }
}

/// With whether it is only shown to work.
type Part = fn(bool);

const PARTS: [(&str, Part); 4] = [
    ("paced", paced),
    ("scale", scale::bench),
    ("backfill", backfill::bench),
    ("drops", drops::bench),
];

fn main() -> ExitCode {
    if let Some(code) = NodeProcess::run_if_child().or_else(|| run_as(scale::ROLE, scale::respond))
    {
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

/// The table: rounds of all loads, contenders taking turns at going first.
fn paced(is_test: bool) {
    let plan = Plan::new(is_test, &[500], RATES, "3.5");
    let most = plan.loads().iter().map(|load| load.count).max().expect("there are loads");
    let mut stage = Stage::new(most, BLOBS_PER_MILLE).expect("the node's process starts");
    let mut rows = rows(plan.loads());
    let mut floors = Vec::new();
    for round in 0..plan.rounds {
        let pass = |pass: fn(&[PreparedTx]) -> Duration| pass(stage.samples()).as_secs_f64();
        floors.push((pass(floor::pass), pass(floor::pass_on_all_cores)));
        for of_load in rows.chunks_mut(Contender::ALL.len()) {
            for turn in 0..of_load.len() {
                let row = &mut of_load[(turn + round) % Contender::ALL.len()];
                let (contender, load) = row.contender;
                row.runs.push(stage.run(contender, load));
            }
        }
        eprintln!("round {} of {} done", round + 1, plan.rounds);
    }
    let floor = Floor {
        alone_us: 1e6 * median(floors.iter().map(|(alone, _)| *alone)),
        all_cores_us: 1e6 * median(floors.iter().map(|(_, all_cores)| *all_cores)),
    };
    table::print(&rows, floor);
}

/// All contenders under each load, those of a load beside each other, without a run yet.
pub(crate) fn rows(loads: Vec<Load>) -> Vec<Row> {
    let of_load = |load| Contender::ALL.map(|contender| Rounds::new((contender, load)));
    loads.into_iter().flat_map(of_load).collect()
}
