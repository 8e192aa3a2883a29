//! The criterion groups: latency and CPU time of every contender at 500, 1,000 and 2,000
//! transactions a second.
//!
//! Criterion takes all samples of one benchmark before it begins the next, and the speed of a
//! shared machine changes within minutes. So the contenders take turns first, as in the other
//! parts, and each run then becomes one sample of its three benchmarks: both latencies and the CPU
//! time come from the same run.

use std::{cell::RefCell, time::Duration};

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use regex::Regex;
use testkit::{
    bench::{Args, number},
    figures::Rounds,
    usage::process_cpu,
};

use crate::{
    Defaults, Plan, race,
    run::{Contender, Load, Run},
    table::Row,
};

/// Criterion's least number of samples.
const LEAST_SAMPLES: usize = 10;

/// How long the transactions are announced that warm the process up, at the rate of the run.
const WARM_UP: Duration = Duration::from_millis(500);

/// The groups, each with the figure that it takes from a run, for each transaction.
const P50: (&str, Figure) = ("rates latency p50", |run| micros(run.latency.p50));
const P99: (&str, Figure) = ("rates latency p99", |run| micros(run.latency.p99));
const CPU: (&str, Figure) = ("rates CPU time", |run| micros(run.cpu_us()));

type Figure = fn(&Run) -> Duration;

fn micros(micros: f64) -> Duration {
    Duration::from_secs_f64(micros / 1e6)
}

pub(crate) fn bench(args: &Args) {
    let defaults = Defaults { rates: "500,1000,2000", rounds: "10", seconds: "2.5" };
    let plan = Plan::new(args.is_test(), &[500], defaults);
    let blobs_per_mille = number("INGEST_BENCH_BLOBS", "0", 0..=1_000);
    let load = |&tps: &u32| Load {
        warm_up: (f64::from(tps) * WARM_UP.as_secs_f64()) as usize,
        count: plan.count(tps),
        tps,
        blobs_per_mille,
        ..Load::default()
    };
    let contenders = Contender::OVER_A_SOCKET.into_iter().chain([Contender::InProcess]);
    let loads = plan.rates.iter().map(load);
    let lines: Vec<_> = loads
        .flat_map(|load| contenders.clone().map(move |contender| (contender, load)))
        .filter(|&line| [P50, P99, CPU].iter().any(|(group, _)| is_chosen(args, group, line)))
        .collect();
    let measure = || {
        let rows = race(lines.iter().copied().map(Rounds::new).collect(), plan.rounds, false);
        for row in &rows {
            let lost: usize = row.runs.iter().map(Run::lost).sum();
            // One fetch at a time may fall behind, and a buffer of 16 overrun; the others have
            // room.
            let may_lose = row.contender.0 == Contender::Sequential;
            assert!(lost == 0 || may_lose, "{:?} lost {lost}: no equal work", row.contender);
        }
        rows
    };
    if !args.is_test() && !args.has("--list") && plan.rounds < LEAST_SAMPLES {
        if !lines.is_empty() {
            measure();
            println!("criterion needs {LEAST_SAMPLES} rounds: no report is written");
        }
        return;
    }
    let lines = Lines { lines: &lines, measure: &measure, rows: RefCell::default() };
    let mut latency = Criterion::default().configure_from_args();
    lines.report(latency.benchmark_group(P50.0), plan.rounds, P50.1);
    lines.report(latency.benchmark_group(P99.0), plan.rounds, P99.1);
    let mut cpu = Criterion::default().with_measurement(CpuTime).configure_from_args();
    lines.report(cpu.benchmark_group(CPU.0), plan.rounds, CPU.1);
    // It reads all groups from the disk.
    cpu.final_summary();
}

fn id((contender, load): (Contender, Load)) -> BenchmarkId {
    BenchmarkId::new(contender.name(), load.name())
}

/// Whether criterion's filter lets one of the line's benchmarks through.
fn is_chosen(args: &Args, group: &str, (contender, load): (Contender, Load)) -> bool {
    let id = format!("{group}/{}/{}", contender.name(), load.name());
    let is_match = |word: &String| Regex::new(word).is_ok_and(|filter| filter.is_match(&id));
    args.words.is_empty() || args.words.iter().any(is_match)
}

/// A line of the report is a contender under a load.
struct Lines<'a> {
    lines: &'a [(Contender, Load)],
    measure: &'a dyn Fn() -> Vec<Row>,
    /// Empty until the first sample is needed: with `--list` or `--load-baseline` none is.
    rows: RefCell<Vec<Row>>,
}

impl Lines<'_> {
    /// Hands the runs of each line to criterion.
    fn report<M: Measurement<Value = Duration>>(
        &self,
        mut group: BenchmarkGroup<'_, M>,
        rounds: usize,
        figure: Figure,
    ) {
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(rounds.max(LEAST_SAMPLES))
            // The samples are there: nothing has to warm up, and no time has to be filled.
            .warm_up_time(Duration::from_nanos(1))
            .measurement_time(Duration::from_millis(1));
        for (number, line) in self.lines.iter().enumerate() {
            let mut taken = 0;
            group.bench_function(id(*line), |bencher| {
                let mut rows = self.rows.borrow_mut();
                if rows.is_empty() {
                    *rows = (self.measure)();
                }
                let runs = &rows[number].runs;
                let sample = figure(&runs[taken % runs.len()]);
                taken += 1;
                let repeated = |iterations: u64| u32::try_from(iterations).unwrap_or(u32::MAX);
                bencher.iter_custom(|iterations| sample.saturating_mul(repeated(iterations)));
            });
        }
        group.finish();
    }
}

/// The CPU time of a process, user and system, of all threads. Here of the contender's process,
/// which measures itself.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        process_cpu()
    }

    fn end(&self, start: Duration) -> Duration {
        process_cpu() - start
    }

    fn add(&self, first: &Duration, second: &Duration) -> Duration {
        *first + *second
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, time: &Duration) -> f64 {
        time.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
