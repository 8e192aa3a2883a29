//! From the node's announcement to the order in front of a builder: ours in both modes against the two
//! ways in which builders fetch today. What is compared, how it is timed and what is asserted is said at
//! [`testkit::contest`].
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
//! `cargo bench --bench ingest` takes about ten minutes; with `-- --test` each path runs once. The
//! table is `target/criterion/ingest/latency.csv` too, and a picture beside it. Arguments other than
//! flags are criterion's filters: the table is the benchmark named `paced`. The environment sets
//! `INGEST_BENCH_ROUNDS` (3), `INGEST_BENCH_SECONDS` (3.5, of each paced run; a second at 20,000/s) and
//! `INGEST_BENCH_RATES` (500,1000,2000,20000).

mod floor;
mod plot;
mod table;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use mock_node::workload::PreparedTx;
use testkit::{
    contest::{Contender, Load, Stage},
    figures::{Rounds, median},
    node::NodeProcess,
};

use crate::table::{Floor, Row};

const RATES: &str = "500,1000,2000,20000";
const ANSWER_TIMES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];

/// Announced at once; half of the larger announcement buffers.
const BURST: usize = 8_000;

/// Most transactions of a paced run, so that the fastest do not take minutes to sign.
const MOST: usize = 20_000;

/// Of a thousand transactions, how many carry blobs; a fifth of those six. The example's default.
const BLOBS_PER_MILLE: u32 = 5;

/// How much is done.
#[derive(Debug)]
struct Plan {
    rates: Vec<u32>,
    answer_times: Vec<Duration>,
    rounds: usize,
    run_s: f64,
    burst: usize,
}

impl Plan {
    fn new(is_test: bool) -> Result<Self, String> {
        if is_test {
            return Ok(Self {
                rates: vec![500],
                answer_times: ANSWER_TIMES.to_vec(),
                rounds: 1,
                run_s: 0.4,
                burst: 500,
            });
        }
        let plan = Self {
            rates: rates(&env::var("INGEST_BENCH_RATES").unwrap_or_else(|_| RATES.into()))?,
            answer_times: ANSWER_TIMES.to_vec(),
            rounds: from_env("INGEST_BENCH_ROUNDS", 3)?,
            run_s: from_env("INGEST_BENCH_SECONDS", 3.5)?,
            burst: BURST,
        };
        if plan.rounds == 0 || !(0.1..=600.0).contains(&plan.run_s) {
            return Err(
                "INGEST_BENCH_ROUNDS must be at least 1, INGEST_BENCH_SECONDS 0.1 to 600".into()
            );
        }
        Ok(plan)
    }

    fn loads(&self) -> Vec<Load> {
        let rates = self.rates.iter().copied().map(Some).chain([None]);
        let all = self.answer_times.iter().flat_map(|&latency| {
            rates.clone().map(move |tps| {
                let count = match tps {
                    Some(tps) => ((f64::from(tps) * self.run_s).round() as usize).min(MOST),
                    None => self.burst,
                };
                Load { latency, count, tps, blobs_per_mille: BLOBS_PER_MILLE }
            })
        });
        all.collect()
    }

    fn most(&self) -> usize {
        self.loads().iter().map(|load| load.count).max().expect("there are loads")
    }
}

fn rates(text: &str) -> Result<Vec<u32>, String> {
    let rate = |text: &str| text.trim().parse().ok().filter(|rate| (1..=100_000).contains(rate));
    let rates: Option<Vec<u32>> = text.split(',').map(rate).collect();
    rates.ok_or_else(|| {
        format!("INGEST_BENCH_RATES is {text:?}, expected rates of 1 to 100000, as in {RATES}")
    })
}

fn from_env<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name} is {text:?}, expected a number")),
        Err(_) => Ok(default),
    }
}

fn main() -> ExitCode {
    if let Some(code) = NodeProcess::run_if_child() {
        return code;
    }
    let args: Vec<_> = env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    // As criterion decides it: `cargo bench` passes `--bench`, `cargo test --all-targets` does not.
    let plan = match Plan::new(has("--test") || !has("--bench")) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut criterion = Criterion::default().configure_from_args();
    let mut stage = Stage::new(plan.most(), BLOBS_PER_MILLE).expect("the node's process starts");
    floor::bench(&mut criterion, stage.samples());
    burst(&mut criterion, &mut stage, &plan);
    if !has("--list") && (filters.is_empty() || filters.iter().any(|filter| *filter == "paced")) {
        compare(&mut stage, &plan);
    }
    criterion.final_summary();
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
    let loads = plan.loads();
    let mut rows: Vec<_> = loads
        .iter()
        .flat_map(|&load| Contender::ALL.map(|contender| Rounds::new((contender, load))))
        .collect();
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
    if let Err(error) = keep(&rows, floor) {
        eprintln!("warning: the table and its picture could not be written: {error}");
    }
}

fn keep(rows: &[Row], floor: Floor) -> Result<(), Box<dyn std::error::Error>> {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let dir = target.join("criterion").join("ingest");
    fs::create_dir_all(&dir)?;
    table::write_csv(&dir.join("latency.csv"), rows, floor)?;
    plot::draw(&dir.join("latency.svg"), rows)?;
    println!("\nwritten: {}/latency.csv and latency.svg", dir.display());
    Ok(())
}
