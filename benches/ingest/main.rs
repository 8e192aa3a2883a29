//! From the node's announcement to the order in front of a builder: ours in both modes against the two
//! ways in which builders fetch today. What is compared, how it is timed and what is asserted is said at
//! [`testkit::contest`].
//!
//! - criterion's groups `floor` and `burst`: what nobody can save, and a burst of 8,000;
//! - `paced`: the table of all contenders at paced rates and in the burst, and where the CPU time goes;
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

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use mock_node::{FullObjects, workload::PreparedTx};
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

/// How much is done.
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
    pub(crate) fn new(rates: &str, seconds: &str) -> Self {
        Self {
            rates: numbers("INGEST_BENCH_RATES", rates, 1..=100_000),
            rounds: number("INGEST_BENCH_ROUNDS", "3", 1..=100),
            seconds: number("INGEST_BENCH_SECONDS", seconds, 0.1..=600.0),
            burst: 8_000,
        }
    }

    /// Each path once.
    const fn test(rates: Vec<u32>) -> Self {
        Self { rates, rounds: 1, seconds: 0.4, burst: 500 }
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

fn main() -> ExitCode {
    if let Some(code) = NodeProcess::run_if_child().or_else(|| run_as(scale::ROLE, scale::respond))
    {
        return code;
    }
    let args = Args::read();
    let mut criterion = Criterion::default().configure_from_args();
    let is_other = |word: &String| ["scale", "backfill", "drops"].contains(&word.as_str());
    if !args.words.iter().any(is_other) {
        let plan = match args.is_test() {
            true => Plan::test(vec![500]),
            false => Plan::new(RATES, "3.5"),
        };
        let most = plan.loads().iter().map(|load| load.count).max().expect("there are loads");
        let mut stage = Stage::new(most, BLOBS_PER_MILLE).expect("the node's process starts");
        floor::bench(&mut criterion, stage.samples());
        burst(&mut criterion, &mut stage, &plan);
        if !args.has("--list") && args.choose("paced") {
            compare(&mut stage, &plan);
        }
    }
    criterion.final_summary();
    if !args.has("--list") && args.choose("scale") {
        scale::bench(&match args.is_test() {
            true => Plan::test(vec![500, 2000]),
            false => Plan::new(scale::RATES, "3"),
        });
    }
    if !args.has("--list") && args.choose("backfill") {
        backfill::bench(args.is_test());
    }
    if !args.has("--list") && args.choose("drops") {
        drops::bench(&match args.is_test() {
            true => Plan::test(vec![]),
            false => Plan::new(RATES, "5"),
        });
    }
    ExitCode::SUCCESS
}

/// The burst for criterion's report: only those who lose nothing, or the times are of unequal work.
fn burst(criterion: &mut Criterion, stage: &mut Stage, plan: &Plan) {
    let mut group = criterion.benchmark_group("burst");
    // A sample is one run, with a node and a pool of its own; more would not be better known.
    group
        .sample_size(10)
        .sampling_mode(SamplingMode::Flat)
        .warm_up_time(Duration::from_millis(1))
        .measurement_time(Duration::from_millis(1));
    // With slower answers the table has it: here it would show 64 / answer time.
    let load = Load {
        latency: Duration::ZERO,
        count: plan.burst,
        tps: None,
        blobs_per_mille: BLOBS_PER_MILLE,
        full_objects: FullObjects::Announced,
    };
    group.throughput(Throughput::Elements(load.count as u64));
    for contender in [Contender::Concurrent, Contender::Hashes, Contender::Full] {
        let id = BenchmarkId::new(contender.name(), load.answer());
        group.bench_function(id, |bencher| {
            bencher.iter_custom(|iterations| {
                (0..iterations)
                    .map(|_| {
                        let run = stage.run(contender, load);
                        if run.lost() > 0 {
                            eprintln!("{}: lost {}", contender.name(), run.lost());
                        }
                        run.wall
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

/// The table: rounds of all loads, contenders taking turns at going first.
fn compare(stage: &mut Stage, plan: &Plan) {
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
