//! A fleet on real NATS servers, which `scripts/real-nodes.sh --install-only nats` installs. It
//! measures the latency that the fleet adds, the cost of an additional builder, and the rate of one
//! publisher. The trial measures what is lost when parts of a fleet are killed.
//!
//! `cargo bench --bench fleet` takes about eight minutes. Words after `--` choose parts: `latency`,
//! `cost`, `throughput`. These environment variables change the load:
//!
//! - `FLEET_BENCH_RATES` (500,1000,2000): transactions/s of `latency`
//! - `FLEET_BENCH_BUILDERS` (1,4,8): numbers of builders
//! - `FLEET_BENCH_SECONDS` (3): length of a run
//! - `FLEET_BENCH_ROUNDS` (3)
//! - `FLEET_BENCH_COST_TPS` (500): transactions/s of `cost`
//! - `FLEET_BENCH_BURST` (100000): transactions of `throughput`
//!
//! Each member of the fleet is a process with its own pools, latencies and CPU times.

mod cost;
mod latency;
mod servers;
mod throughput;

use std::{io, process::ExitCode};

use testkit::{
    bench::{Args, number, numbers},
    member::{Config, Member, Setup},
    node::NodeProcess,
};

type Part = fn(&Size) -> io::Result<()>;

const PARTS: [(&str, Part); 3] =
    [("latency", latency::run), ("cost", cost::run), ("throughput", throughput::run)];

struct Size {
    rates: Vec<u32>,
    builders: Vec<usize>,
    seconds: f64,
    rounds: usize,
    cost_tps: u32,
    burst: usize,
}

impl Size {
    fn new(is_test: bool) -> Self {
        if is_test {
            let (rates, builders) = (vec![200], vec![1, 2]);
            return Self { rates, builders, seconds: 0.5, rounds: 1, cost_tps: 200, burst: 1_000 };
        }
        Self {
            rates: numbers("FLEET_BENCH_RATES", "500,1000,2000", 1..=100_000),
            builders: numbers("FLEET_BENCH_BUILDERS", "1,4,8", 1..=100),
            seconds: number("FLEET_BENCH_SECONDS", "3", 0.1..=600.0),
            rounds: number("FLEET_BENCH_ROUNDS", "3", 1..=100),
            cost_tps: number("FLEET_BENCH_COST_TPS", "500", 1..=100_000),
            burst: number("FLEET_BENCH_BURST", "100000", 1..=1_000_000),
        }
    }
}

/// Starts a member of the fleet, or a process that sends or receives bare messages.
fn start_member(config: Config) -> io::Result<Member> {
    let config = Config { is_public: true, setup: Setup::Roomy, ..config };
    Ok(Member::start(&config)?.0)
}

/// The configuration of a machine that publishes to these servers.
fn machine(servers: &[String]) -> Config {
    Config { name: "ingest-1".to_owned(), publishes_to: servers.to_vec(), ..Config::default() }
}

/// Starts a builder that reads from these servers.
fn builder(servers: &[String], number: usize) -> io::Result<Member> {
    start_member(Config {
        name: format!("builder-{number}"),
        reads_from: servers.to_vec(),
        ..Config::default()
    })
}

fn main() -> ExitCode {
    if let Some(code) = Member::run_if_child().or_else(NodeProcess::run_if_child) {
        return code;
    }
    let args = Args::read();
    if args.has("--list") {
        return ExitCode::SUCCESS;
    }
    if args.is_test()
        && let Err(error) = testkit::devnet::find_nats()
    {
        println!("fleet: nothing is measured, because there is no NATS server: {error}");
        return ExitCode::SUCCESS;
    }
    let size = Size::new(args.is_test());
    for (_, part) in PARTS.into_iter().filter(|(name, _)| args.choose(name)) {
        if let Err(error) = part(&size) {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
