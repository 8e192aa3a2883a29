//! What no load, internal or external, may do to live announcements: the policy off and on, in one
//! run.
//!
//! - `flood`: 1000 announcements a second while a backfill of 108,000 hashes floods;
//! - `external`: 2000 a second while external callers send raw transactions as fast as they can, against a
//!   control in which the same clients send as many to a server that is not ours, has as many threads
//!   and accepts as many; the processor time of each process is printed;
//! - `scenarios`: no, slight and heavy deferrable load, one spike of it, and many;
//! - `cost`: what the monitor costs when there is nothing to defer.
//!
//! **The clock.** Live latency is from the announcement read from the socket to the order in the
//! pool, by a stopwatch around the pool. The node, the clients and the control's server are processes
//! of their own (this program again), so that what they burn is not ours.
//!
//! **Equal work.** After every run, what the node announced and what it held at the start are in the
//! pool, each of them, and so is what external callers had accepted; nothing else, and nothing twice.
//! Every hash has had its one outcome. If not, the bench fails; timings never fail it. The live work
//! and the backfill are the same whatever the policy. What external callers get accepted is not: to turn some
//! of it away is the policy's purpose. So where there are external callers, how much was accepted on one side
//! and the other stands beside each ratio of live latency.
//!
//! `cargo bench --bench load_control` takes about five minutes; with `-- --test` each path runs once.
//! Arguments other than flags choose parts by name. The environment sets `LOAD_BENCH_ROUNDS` (3).

mod clients;
mod cost;
mod decoy;
mod external;
mod flood;
mod scenarios;
mod stage;
mod table;

use std::{
    env,
    process::{Command, ExitCode},
    time::Duration,
};

use testkit::{node::NodeProcess, process::run_as};

type Part = fn(&Plan);

/// The parts by name.
const PARTS: [(&str, Part); 4] = [
    ("flood", flood::bench),
    ("external", external::bench),
    ("scenarios", scenarios::bench),
    ("cost", cost::bench),
];

/// How much is done.
#[derive(Debug)]
struct Plan {
    /// Drives the bench; ours does its work on threads of its own.
    host: tokio::runtime::Runtime,
    /// Hashes of the backfill.
    flood: usize,
    flood_rounds: usize,
    /// How long the reference without a flood lasts.
    calm: Duration,
    rounds: usize,
    /// How long a run with external callers lasts, and of how many transactions they have the choice.
    external: Duration,
    external_txs: usize,
    scenario: Duration,
    /// Announced at once; below three quarters of the announcement buffer.
    burst: usize,
    cost_rounds: usize,
    is_test: bool,
}

impl Plan {
    fn new(is_test: bool) -> Result<Self, String> {
        let host = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let host = host.map_err(|error| error.to_string())?;
        let plan = Self {
            host,
            flood: 108_000,
            flood_rounds: 3,
            calm: Duration::from_secs(3),
            rounds: 3,
            external: Duration::from_secs(3),
            external_txs: 60_000,
            scenario: Duration::from_millis(1_800),
            burst: 8_000,
            cost_rounds: 11,
            is_test,
        };
        if is_test {
            return Ok(Self {
                flood: 500,
                flood_rounds: 1,
                calm: Duration::from_millis(100),
                rounds: 1,
                external: Duration::from_millis(200),
                external_txs: 2_000,
                scenario: Duration::from_millis(120),
                burst: 500,
                cost_rounds: 1,
                ..plan
            });
        }
        match env::var("LOAD_BENCH_ROUNDS") {
            Err(_) => Ok(plan),
            Ok(text) => match text.parse() {
                Ok(rounds) if rounds > 0 => {
                    Ok(Self { flood_rounds: rounds, rounds, cost_rounds: 4 * rounds, ..plan })
                }
                _ => Err(format!("LOAD_BENCH_ROUNDS is {text:?}, expected a number above 0")),
            },
        }
    }

    /// So many seconds' worth of announcements at this rate; a few in the quick pass.
    const fn signed(&self, tps: u32, seconds: usize) -> usize {
        tps as usize * if self.is_test && seconds > 6 { 6 } else { seconds }
    }
}

fn main() -> ExitCode {
    let ended = NodeProcess::run_if_child()
        .or_else(|| run_as(clients::ROLE, clients::respond))
        .or_else(|| run_as(decoy::ROLE, decoy::respond));
    ended.unwrap_or_else(|| bench(&env::args().skip(1).collect::<Vec<_>>()))
}

fn bench(args: &[String]) -> ExitCode {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    // `cargo bench -- --test`, and anything but `cargo bench`, takes each path once.
    let plan = match Plan::new(has("--test") || !has("--bench")) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let chosen = |name: &str| filters.iter().any(|filter| name.contains(filter.as_str()));
    let chosen: Vec<_> =
        PARTS.into_iter().filter(|(name, _)| filters.is_empty() || chosen(name)).collect();
    if let [(_, part)] = chosen.as_slice() {
        part(&plan);
        return ExitCode::SUCCESS;
    }
    // Each in a process of its own: what one part's allocator keeps would hide another's growth.
    let flags = args.iter().filter(|arg| arg.starts_with('-'));
    for (name, _) in chosen {
        let this = env::current_exe().expect("this bench is a file");
        let ended = Command::new(this).arg(name).args(flags.clone()).status();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("error: {name} has failed");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
