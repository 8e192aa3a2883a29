//! How far each contender goes: what it holds without loss, its p99, its CPU time and its memory, against
//! the rate at which the node announces. Who is compared, and what is timed and asserted, is said at
//! [`testkit::contest`].
//!
//! Each run has a process of its own for the contender and one for the node, so that the memory is that of
//! this run alone. No transaction carries blobs, and nothing is mined or evicted: at the end the pool holds
//! all that the run brought in. A rate is *held* when every round pooled, in the end, everything that was
//! announced, no buffer of ours was overrun, and the node kept the rate.
//!
//! `cargo bench --bench scale` takes about ten minutes, with `-- --test` a minute. The environment sets
//! `SCALE_BENCH_RATES` (500,1000,2000,5000,10000,20000,40000), `SCALE_BENCH_SECONDS` (3, of each run),
//! `SCALE_BENCH_ROUNDS` (3), `SCALE_BENCH_CONTENDERS` (all; the first letters of their names, with semicolons between)
//! and `SCALE_BENCH_DIR`, where `scale.csv` and `scale.svg` go (target/criterion/scale).

mod plot;
mod row;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use testkit::{
    contest::{Contender, Load, Stage},
    node::NodeProcess,
    process::{Process, run_as, serve},
};

use crate::row::{Figures, Row, print, write_csv};

const ROLE: &str = "__contender";

/// What to run, for the process of a contender: the place in [`Contender::ALL`], the rate and the seconds.
type Request = (usize, u32, f64);

struct Plan {
    contenders: Vec<usize>,
    rates: Vec<u32>,
    rounds: usize,
    seconds: f64,
    dir: PathBuf,
}

impl Plan {
    fn new(is_test: bool) -> Result<Self, String> {
        let var = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
        let dir = env::var_os("SCALE_BENCH_DIR")
            .map_or_else(|| target.join("criterion").join("scale"), PathBuf::from);
        if is_test {
            let contenders = (0..Contender::ALL.len()).collect();
            return Ok(Self { contenders, rates: vec![500, 2000], rounds: 1, seconds: 0.3, dir });
        }
        let rates = var("SCALE_BENCH_RATES", "500,1000,2000,5000,10000,20000,40000");
        let contenders = var("SCALE_BENCH_CONTENDERS", "");
        let find = |prefix: &str| {
            let mut all = Contender::ALL.iter();
            all.position(|contender| contender.name().starts_with(prefix.trim())).ok_or_else(|| {
                format!("SCALE_BENCH_CONTENDERS: nobody's name begins with {prefix:?}")
            })
        };
        Ok(Self {
            contenders: match contenders.as_str() {
                "" => (0..Contender::ALL.len()).collect(),
                some => some.split(';').map(find).collect::<Result<_, _>>()?,
            },
            rates: numbers("SCALE_BENCH_RATES", &rates, 1..=100_000)?,
            rounds: one("SCALE_BENCH_ROUNDS", &var("SCALE_BENCH_ROUNDS", "3"), 1..=100)? as usize,
            seconds: one("SCALE_BENCH_SECONDS", &var("SCALE_BENCH_SECONDS", "3"), 1..=600)?.into(),
            dir,
        })
    }
}

fn one(name: &str, text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.trim().parse().ok().filter(|number| range.contains(number));
    let (least, most) = (range.start(), range.end());
    number.ok_or_else(|| format!("{name} is {text:?}, expected a number of {least} to {most}"))
}

fn numbers(
    name: &str,
    text: &str,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Vec<u32>, String> {
    text.split(',').map(|text| one(name, text, range.clone())).collect()
}

fn main() -> ExitCode {
    if let Some(code) = NodeProcess::run_if_child().or_else(|| run_as(ROLE, respond)) {
        return code;
    }
    let has = |flag: &str| env::args().any(|arg| arg == flag);
    if has("--list") {
        return ExitCode::SUCCESS;
    }
    let plan = match Plan::new(has("--test") || !has("--bench")) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut rows: Vec<Row> = Vec::new();
    for &rate in &plan.rates {
        rows.extend(plan.contenders.iter().map(|&contender| Row::new((contender, rate))));
    }
    for round in 0..plan.rounds {
        for row in &mut rows {
            let (contender, rate) = row.contender;
            let figures = run((contender, rate, plan.seconds)).expect("a run comes to its end");
            eprintln!(
                "round {} of {}: {} at {rate}/s: {figures}",
                round + 1,
                plan.rounds,
                Contender::ALL[contender].name()
            );
            row.runs.push(figures);
        }
    }
    print(&rows);
    let keep = || -> Result<(), Box<dyn std::error::Error>> {
        fs::create_dir_all(&plan.dir)?;
        write_csv(&plan.dir.join("scale.csv"), &rows)?;
        plot::draw(&plan.dir.join("scale.svg"), &rows)
    };
    match keep() {
        Ok(()) => println!("\nwritten: {}/scale.csv and scale.svg", plan.dir.display()),
        Err(error) => eprintln!("warning: the table and its picture could not be written: {error}"),
    }
    ExitCode::SUCCESS
}

fn run(request: Request) -> io::Result<Figures> {
    Process::spawn(ROLE)?.request(&request)
}

/// Runs as the process of a contender.
fn respond() -> io::Result<()> {
    serve(|(contender, rate, seconds): Request| {
        let count = (f64::from(rate) * seconds).round().max(1.0) as usize;
        let load = Load { latency: Duration::ZERO, count, tps: Some(rate), blobs_per_mille: 0 };
        let mut stage = Stage::new(count, 0)?;
        let run = stage.run(Contender::ALL[contender], load);
        Ok(Figures::new(&run))
    })
}
