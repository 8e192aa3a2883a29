//! What a stranger can do to a builder by the RPC server: one attack after another at full size, on an
//! `Ingest` with the default configuration, while a node announces and honest searchers bid.
//!
//! In each run the node has 20,000 transactions pending and announces 500 a second; 50 searchers at ten
//! addresses send five signed bundles a second each; a monitor asks for `/healthz`. The attacker has two
//! addresses, and half a core. Two rows are run again with a builder that asks the node about every sender
//! (`NodeAdmissionConfig`), which is off by default. The builder's side, the node, the honest callers and the attacker are processes
//! of their own, fresh for each attack, so that the memory is that of this attack alone.
//!
//! **What is asserted.** After each run, everything that the node announced or held is in the pool, and whatever
//! the attacker was refused, the server has counted under that reason. Honest bundles that were refused, latency and
//! memory are printed beside their goals and never fail it: on a machine that is too slow for the load, callers are
//! refused.
//!
//! **The clock.** A request's latency is from the moment when it was due, so a server that stands still is
//! not asked less often. Live latency is from the announcement to the order seen by a subscriber.
//!
//! `cargo bench --bench attack` takes about three minutes; with `-- --test` each attack runs for a moment.
//! Arguments other than flags choose attacks by name. The environment sets `ATTACK_BENCH_SECONDS` (8).

mod attacks;
mod builder;
mod honest;
mod signed;

use std::{env, io, process::ExitCode, time::Duration};

use testkit::{
    figures::Table,
    node::{NodeProcess, Pace, What},
    process::{Process, run_as},
};

use crate::{attacks::Attack, builder::Builder, honest::Honest};

const TPS: u32 = 500;
/// The goal for 512 bundles of three transactions at once.
const BURST_P99_MS: f64 = 250.0;

#[derive(Debug)]
struct Plan {
    lasts: Duration,
    /// Pending in the node at the start.
    preload: usize,
    is_test: bool,
}

impl Plan {
    fn new(is_test: bool) -> Result<Self, String> {
        if is_test {
            return Ok(Self { lasts: Duration::from_millis(400), preload: 500, is_test });
        }
        let seconds = env::var("ATTACK_BENCH_SECONDS").unwrap_or_else(|_| "8".into());
        let lasts = seconds.parse().ok().filter(|seconds| (1..=600).contains(seconds));
        let lasts = lasts.ok_or_else(|| {
            format!("ATTACK_BENCH_SECONDS is {seconds:?}, expected a number of 1 to 600")
        })?;
        Ok(Self { lasts: Duration::from_secs(lasts), preload: 20_000, is_test })
    }
}

fn main() -> ExitCode {
    let ended = NodeProcess::run_if_child()
        .or_else(|| run_as(builder::ROLE, builder::respond))
        .or_else(|| run_as(honest::ROLE, honest::respond))
        .or_else(|| run_as(attacks::ROLE, attacks::respond));
    ended.unwrap_or_else(|| match bench(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    })
}

fn bench(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filters: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    // `cargo bench -- --test`, and anything but `cargo bench`, takes each path once.
    let plan = Plan::new(has("--test") || !has("--bench"))?;
    let is_chosen = |case: &Case| {
        filters.is_empty() || filters.iter().any(|filter| case.name().contains(filter.as_str()))
    };
    let mut table = Table::new([
        "attack",
        "sent",
        "accepted",
        "node lost",
        "bundles lost",
        "bundle p50 ms",
        "p99 ms",
        "health p99 ms",
        "live p99 ms",
        "MB idle",
        "MB more",
        "refused",
    ]);
    let mut missed = Vec::new();
    let by_default = Attack::ALL.map(|attack| Case { attack, asks_node: false });
    let asking = [Attack::None, Attack::FreshKeys].map(|attack| Case { attack, asks_node: true });
    for case in by_default.into_iter().chain(asking).filter(is_chosen) {
        let run = run(&plan, &case)?;
        missed.extend(run.missed(&case));
        table.row(run.row(&case));
        eprintln!("{} done", case.name());
    }
    println!(
        "{TPS} announced a second, {} searchers with {} bundles a second each; {} s of each attack",
        honest::SEARCHERS,
        honest::PER_SECOND,
        plan.lasts.as_secs_f64()
    );
    print!("{table}");
    println!(
        "goals: nothing lost, bundle p99 50 ms ({BURST_P99_MS} ms in the burst), health p99 50 ms, 300 MB more than idle"
    );
    if missed.is_empty() {
        println!("  all reached");
    }
    for goal in missed {
        println!("  MISSED: {goal}");
    }
    Ok(())
}

/// A row of the table.
struct Case {
    attack: Attack,
    /// Whether the builder asks the node about the senders of orders.
    asks_node: bool,
}

impl Case {
    fn name(&self) -> String {
        let suffix = if self.asks_node { ", node asked" } else { "" };
        format!("{}{suffix}", self.attack.name())
    }
}

/// What came of one attack.
struct Run {
    attacker: attacks::Tally,
    honest: honest::Tally,
    /// Announced or pending at the start, and not in the pool.
    lost: usize,
    live_p99_ms: f64,
    idle_bytes: usize,
    most_bytes: usize,
}

fn run(plan: &Plan, case: &Case) -> io::Result<Run> {
    let mut node = NodeProcess::spawn()?;
    let mut expected = node.start(|config| mock_node::NodeConfig {
        preload: plan.preload,
        state: case.asks_node,
        ..config
    })?;
    let announced = (f64::from(TPS) * (plan.lasts.as_secs_f64() + 4.0)) as usize;
    let prepared = node.prepare(announced)?;
    let mut builder = Builder::spawn(node.path(), plan.preload, case.asks_node)?;
    let mut honest = Honest::spawn(builder.address, plan.lasts)?;
    let mut attacker = Process::spawn(attacks::ROLE)?;
    let ready: attacks::Tally =
        attacker.request(&attacks::Request::Prepare(case.attack, plan.is_test))?;
    assert_eq!(ready.sent, 0, "nothing is sent before it is told to");

    let idle = builder.look()?;
    node.announce(What::Prepared, Pace::steady(TPS))?;
    honest.begin()?;
    attacker.send(&attacks::Request::Run { server: builder.address, lasts: plan.lasts })?;
    let bids = honest.finish()?;
    let attacker: attacks::Tally = attacker.receive()?;
    let count = node.stop()?.count;
    expected.extend(&prepared[..count]);
    let report = builder.look()?;
    let lost = builder.missing(expected)?;

    assert_eq!(lost, 0, "{}: of the node's transactions", case.name());
    if bids.lost() > 0 {
        eprintln!("{}: {bids:?}", case.name());
    }
    for (reason, refused) in &attacker.refused {
        let counted = report.refused.get(reason).copied().unwrap_or(0);
        assert!(counted >= *refused, "{}: {reason}: {counted} of {refused}", case.name());
    }
    Ok(Run {
        attacker,
        honest: bids,
        lost,
        live_p99_ms: report.live_p99_us as f64 / 1e3,
        idle_bytes: idle.resident,
        most_bytes: report.most_resident,
    })
}

impl Run {
    fn more_mb(&self) -> f64 {
        (self.most_bytes as f64 - self.idle_bytes as f64) / 1e6
    }

    fn row(&self, case: &Case) -> [String; 12] {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        let refused: Vec<_> = self.attacker.reasons().collect();
        [
            case.name(),
            self.attacker.sent.to_string(),
            self.attacker.accepted.to_string(),
            self.lost.to_string(),
            self.honest.lost().to_string(),
            ms(self.honest.p50_us),
            ms(self.honest.p99_us),
            ms(self.honest.health_p99_us),
            format!("{:.1}", self.live_p99_ms),
            format!("{:.0}", self.idle_bytes as f64 / 1e6),
            format!("{:+.0}", self.more_mb()),
            refused.join(", "),
        ]
    }

    fn missed(&self, case: &Case) -> Vec<String> {
        // A burst of honest callers is no attack: its own bundles, and those that come meanwhile, wait their turn.
        let is_burst = matches!(case.attack, Attack::HonestBurst);
        let refused = if is_burst { self.attacker.sent - self.attacker.accepted } else { 0 };
        let burst_p99_ms = self.attacker.p99_us.unwrap_or_default() as f64 / 1e3;
        let figures = [
            ("bundles lost", self.honest.lost() as f64, 0.0, ""),
            ("bundles of the burst lost", refused as f64, 0.0, ""),
            ("p99 of the burst", burst_p99_ms, BURST_P99_MS, "ms"),
            (
                "bundle p99",
                self.honest.p99_us as f64 / 1e3,
                if is_burst { BURST_P99_MS } else { 50.0 },
                "ms",
            ),
            ("health p99", self.honest.health_p99_us as f64 / 1e3, 50.0, "ms"),
            ("memory above idle", self.more_mb(), 300.0, "MB"),
        ];
        let missed = figures.into_iter().filter(|(_, value, limit, _)| value > limit);
        missed
            .map(|(what, value, limit, unit)| {
                format!("{}: {what} {value:.1} {unit}, goal {limit} {unit}", case.name())
            })
            .collect()
    }
}
