//! A fleet on real NATS servers, which `scripts/real-nodes.sh --install-only nats` installs: what it adds to the way of a
//! transaction, what a builder costs, what one publisher stores, and what is left when parts of it are killed.
//!
//! `cargo bench --bench fleet` takes about ten minutes. Words after `--` choose parts: `latency`, `cost`, `throughput`,
//! `cluster` (two minutes, with kills), `rates` (the cluster without kills, at rising rates; only if asked for). The
//! environment sets `FLEET_BENCH_RATES` (500,1000,2000), `FLEET_BENCH_BUILDERS` (1,4,8), `FLEET_BENCH_SECONDS` (3, of a
//! run), `FLEET_BENCH_ROUNDS` (3), `FLEET_BENCH_COST_TPS` (500), `FLEET_BENCH_BURST` (100000); of the cluster
//! `FLEET_BENCH_TPS` (500), `FLEET_BENCH_TIME` (120, seconds) and `FLEET_BENCH_KILL_EVERY` (20, seconds).
//!
//! Each member of the fleet is a process: the pools, the latencies and the CPU times are its own.

mod cluster;
mod cost;
mod latency;
mod member;
mod nodes;
mod servers;
mod throughput;

use std::{env, io, process::ExitCode, str::FromStr, time::Duration};

use crate::{cluster::Load, member::Member, nodes::Nodes};

/// How much is measured.
pub(crate) struct Size {
    rates: Vec<u32>,
    builders: Vec<usize>,
    seconds: f64,
    rounds: usize,
    cost_tps: u32,
    burst: usize,
    cluster: Load,
    rising: Vec<u32>,
}

impl Size {
    fn new(is_test: bool) -> Result<Self, String> {
        let seconds = |name, default| Ok::<_, String>(Duration::from_secs(one(name, default)?));
        if is_test {
            let cluster = Load {
                tps: 100,
                time: Duration::from_secs(12),
                kill_every: Some(Duration::from_secs(2)),
            };
            return Ok(Self {
                rates: vec![200],
                builders: vec![1, 2],
                seconds: 0.5,
                rounds: 1,
                cost_tps: 200,
                burst: 1_000,
                cluster,
                rising: vec![100],
            });
        }
        Ok(Self {
            rates: list("FLEET_BENCH_RATES", "500,1000,2000")?,
            builders: list("FLEET_BENCH_BUILDERS", "1,4,8")?,
            seconds: one("FLEET_BENCH_SECONDS", "3")?,
            rounds: one("FLEET_BENCH_ROUNDS", "3")?,
            cost_tps: one("FLEET_BENCH_COST_TPS", "500")?,
            burst: one("FLEET_BENCH_BURST", "100000")?,
            cluster: Load {
                tps: one("FLEET_BENCH_TPS", "500")?,
                time: seconds("FLEET_BENCH_TIME", "120")?,
                kill_every: Some(seconds("FLEET_BENCH_KILL_EVERY", "20")?),
            },
            rising: vec![500, 750, 1_000, 1_500, 2_000, 3_000],
        })
    }
}

fn one<T: FromStr>(name: &str, default: &str) -> Result<T, String> {
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    text.trim().parse().map_err(|_| format!("{name} is {text:?}, expected a number"))
}

fn list<T: FromStr>(name: &str, default: &str) -> Result<Vec<T>, String> {
    let text = env::var(name).unwrap_or_else(|_| default.to_owned());
    let parse = |part: &str| {
        part.trim().parse().map_err(|_| format!("{name} is {text:?}, expected numbers"))
    };
    text.split(',').map(parse).collect()
}

fn main() -> ExitCode {
    if let Some(code) = Member::run_if_child().or_else(Nodes::run_if_child) {
        return code;
    }
    if let Some(code) = testkit::node::NodeProcess::run_if_child() {
        return code;
    }
    let args: Vec<_> = env::args().skip(1).collect();
    let has = |word: &str| args.iter().any(|arg| arg == word);
    if has("--list") {
        return ExitCode::SUCCESS;
    }
    let is_test = has("--test") || !has("--bench");
    if is_test && let Err(error) = devnet::find_nats() {
        println!("fleet: nothing is run: {error}");
        return ExitCode::SUCCESS;
    }
    let parts = ["latency", "cost", "throughput", "cluster", "rates"];
    let chosen = |part: &str| has(part) || (part != "rates" && !parts.iter().any(|part| has(part)));
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let size = Size::new(is_test)?;
        for part in parts.into_iter().filter(|part| chosen(part)) {
            match part {
                "latency" => latency::run(&size)?,
                "cost" => cost::run(&size)?,
                "throughput" => throughput::run(&size)?,
                "cluster" => {
                    cluster::run(size.cluster)?;
                }
                _ => rates(&size)?,
            }
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The highest rate that the machine holds for all parts together: half a second from the node to a builder for 99 of a
/// hundred.
fn rates(size: &Size) -> io::Result<()> {
    let mut held = None;
    for &tps in &size.rising {
        let time = Duration::from_secs_f64(5.0 * size.seconds);
        let outcome = cluster::run(Load { tps, time, kill_every: None })?;
        if outcome.p99 > Duration::from_millis(500) {
            break;
        }
        held = Some(tps);
    }
    match held {
        Some(tps) => println!("\nheld by this machine for all parts together: {tps}/s"),
        None => println!("\nthis machine does not hold the lowest rate for all parts together"),
    }
    Ok(())
}
