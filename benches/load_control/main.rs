//! What internal load may not do to live announcements: the policy off and on, in one run.
//!
//! - `flood`: 1000 announcements a second while a backfill of 108,000 hashes floods;
//! - `cost`: what the monitor costs when there is nothing to defer.
//!
//! What callers from outside may not do is shown by the bench `attack`.
//!
//! **The clock.** Live latency is from the announcement read from the socket to the order in the
//! pool, by a stopwatch around the pool. The node is a process of its own (this program again), so that
//! what it burns is not ours.
//!
//! **Equal work.** After every run, what the node announced and what it held at the start are in the
//! pool, each of them; nothing else, and nothing twice. Every hash has had its one outcome. If not, the
//! bench fails; timings never fail it.
//!
//! `cargo bench --bench load_control` takes about two minutes; with `-- --test` each path runs once.
//! Arguments other than flags choose parts by name. The environment sets `LOAD_BENCH_ROUNDS` (3).

mod cost;
mod flood;
mod stage;

use std::{
    env,
    process::{Command, ExitCode},
    time::Duration,
};

use testkit::{
    bench::{Args, number},
    node::NodeProcess,
};

type Part = fn(&Plan);

/// The parts by name.
const PARTS: [(&str, Part); 2] = [("flood", flood::bench), ("cost", cost::bench)];

/// How much is done.
#[derive(Debug)]
struct Plan {
    /// Drives the bench; ours does its work on threads of its own.
    host: tokio::runtime::Runtime,
    /// Hashes of the backfill.
    flood: usize,
    /// The node signs so many seconds of live announcements for a run: more than a flood lasts.
    signed_s: usize,
    rounds: usize,
    /// How long the reference without a flood lasts.
    calm: Duration,
    /// Announced at once; below three quarters of the announcement buffer.
    burst: usize,
    cost_rounds: usize,
    is_test: bool,
}

impl Plan {
    fn new(is_test: bool) -> Self {
        let host = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let host = host.expect("a runtime");
        let rounds = number("LOAD_BENCH_ROUNDS", "3", 1..=100);
        let calm = Duration::from_secs(3);
        let (flood, signed_s, burst, cost_rounds) = (108_000, 25, 8_000, 4 * rounds - 1);
        let full = Self { host, flood, signed_s, rounds, calm, burst, cost_rounds, is_test };
        if !is_test {
            return full;
        }
        let calm = Duration::from_millis(100);
        Self { flood: 500, signed_s: 6, rounds: 1, calm, burst: 500, cost_rounds: 1, ..full }
    }
}

fn main() -> ExitCode {
    if let Some(code) = NodeProcess::run_if_child() {
        return code;
    }
    let args = Args::read();
    let chosen: Vec<_> = PARTS.into_iter().filter(|(name, _)| args.choose(name)).collect();
    if let [(_, part)] = chosen.as_slice() {
        part(&Plan::new(args.is_test()));
        return ExitCode::SUCCESS;
    }
    // Each in a process of its own: what one part's allocator keeps would hide another's growth.
    for (name, _) in chosen {
        let this = env::current_exe().expect("this bench is a file");
        let ended = Command::new(this).arg(name).args(&args.flags).status();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("error: {name} has failed");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
