//! What a stranger can do to a builder by the RPC server: one attack after another at full size, on an
//! `Ingest` with the default configuration, while a node announces and honest searchers bid.
//!
//! In each run the node has 20,000 transactions pending, announces 500 a second, and tells a head every eighth of
//! the time; 50 searchers send four signed bundles, one of which replaces another, and a private transaction a
//! second each, and have cancelled a uuid before; a monitor asks for `/healthz`. Of the searchers the host knows two fifths; two fifths are unknown, at ten addresses; a
//! fifth is at addresses of the attacker. The attacker has eight addresses, in other rows one or 256, keys
//! without end, no ether, and half a core. A crowd of 64 callers, who are no strangers with a few addresses, sends raw
//! transactions as fast as it can: what the gate is for, so it is run again with the gate off. Two rows are run
//! again with a builder that asks the node about every sender (`NodeAdmissionConfig`), which is off by default. The
//! builder's side, the node, the honest callers and the attacker are processes
//! of their own, fresh for each attack, so that the memory is that of this attack alone.
//!
//! **What counts** is what the builder still has when the block comes. Honest orders are lost when they were
//! refused, and when they were answered with success and were not there when the head before their block came
//! (those that came after that head: when their block came). What has no effect is counted too: a
//! cancelled bundle that is accepted again, and one that was replaced and is there all the same. The attacks on
//! an outcome are rows; that the orders of one caller are executed in turn, that work above a limit is refused for good, and
//! what a proxy, a waker or an ill-formed field can do, are properties that the tests of the crates show.
//!
//! **What is asserted.** After each run, everything that the node announced or held is in the pool, and whatever
//! the attacker was refused, the server has counted under that reason. Honest bundles that were refused, latency and
//! memory are printed beside their goals and never fail it: on a machine that is too slow for the load, callers are
//! refused.
//!
//! **The clock.** A request's latency is from the moment when it was due, so a server that stands still is
//! not asked less often. Live latency is from the announcement to the order seen by a subscriber.
//!
//! `cargo run --release -p trial -- --scenarios` takes about ten minutes; with `--test` each attack runs for a moment.
//! `--scenario NAME` chooses by name. The environment sets `ATTACK_BENCH_SECONDS` (8).

mod builder;
mod honest;

use std::{
    io,
    process::ExitCode,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use mock_node::NodeConfig;
use testkit::{
    bench::number,
    figures::{Table, Times},
    node::{NodeProcess, Pace, What},
    process::{Process, run_as},
};

use crate::attack::{self, Attack};

use self::{
    builder::{Builder, Setup},
    honest::{Honest, Kind},
};

const TPS: u32 = 500;
/// In each run.
const HEADS: u32 = 8;
/// Of the attacker: by default, and in the rows of one who has many.
const ADDRESSES: usize = 8;
const MANY_ADDRESSES: usize = 256;
/// The goal for 512 bundles of three transactions at once.
const BURST_P99_MS: f64 = 250.0;
/// The goal for telling a crowd that there is no room.
const REFUSAL_P99_MS: f64 = 5.0;

#[derive(Debug)]
struct Plan {
    lasts: Duration,
    /// Pending in the node at the start.
    preload: usize,
    /// Different ones of the attacker.
    most_requests: u64,
}

impl Plan {
    fn new(is_test: bool) -> Self {
        if is_test {
            return Self {
                lasts: Duration::from_millis(400),
                preload: 500,
                most_requests: attack::QUICK,
            };
        }
        let seconds = number("ATTACK_BENCH_SECONDS", "8", 1..=600);
        Self { lasts: Duration::from_secs(seconds), preload: 20_000, most_requests: u64::MAX }
    }
}

/// Runs as one of the processes of a scenario, if this one was started for that.
pub(crate) fn run_if_child() -> Option<ExitCode> {
    NodeProcess::run_if_child()
        .or_else(|| run_as(builder::ROLE, builder::respond))
        .or_else(|| run_as(honest::ROLE, honest::respond))
        .or_else(|| run_as(attack::ROLE, attack::respond))
}

/// Runs those whose names contain one of the words, all without words.
pub(crate) fn run_all(words: &[String], is_test: bool) -> io::Result<()> {
    let plan = Plan::new(is_test);
    let is_chosen = |case: &Case| {
        words.is_empty() || words.iter().any(|word| case.name().contains(word.as_str()))
    };
    let mut table = Table::new(
        "attack | sent | MB sent | CPU s | accepted | node lost | known lost | unknown lost | beside lost | \
         without effect | bundle p50 ms | p99 ms | known p99 ms | health p99 ms | live p99 ms | MB idle | MB more | refused",
    );
    let mut missed = Vec::new();
    // Live p99 while nobody attacks.
    let mut calm_ms = None;
    for case in Case::all().filter(is_chosen) {
        let run = run(&plan, &case)?;
        missed.extend(run.missed(&case));
        table.row(run.row(&case));
        let live_ms = run.live.p99 / 1e3;
        match (case.attack, calm_ms) {
            (Attack::None, None) => calm_ms = Some(live_ms),
            (Attack::Crowd, Some(calm_ms)) => {
                println!("live p99, {} / none: {:.2}", case.name(), live_ms / calm_ms);
            }
            _ => {}
        }
        eprintln!("{} done", case.name());
    }
    println!(
        "{TPS} announced a second, {} searchers with {} orders a second each; {HEADS} heads within the {} s of each attack\n\
         lost: refused + gone after success when the head before the order's block came; beside: at an address of\n\
         the attacker; sent, MB and CPU: what it cost the attacker",
        honest::SEARCHERS,
        honest::PER_SECOND,
        plan.lasts.as_secs_f64()
    );
    print!("{table}");
    println!(
        "goals: nothing lost, bundle p99 50 ms ({BURST_P99_MS} ms in the burst), health p99 50 ms, 300 MB more than idle;\n\
         of the crowd, which is to be refused, only a p99 of {REFUSAL_P99_MS} ms for that, and health and memory"
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
    setup: Setup,
    /// Of the attacker.
    addresses: usize,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let by_default = Attack::ALL.map(|(attack, ..)| (attack, Setup::Default, ADDRESSES));
        let mut others = vec![
            (Attack::Crowd, Setup::NoGate, ADDRESSES),
            (Attack::None, Setup::AsksNode, ADDRESSES),
            (Attack::FreshKeys, Setup::AsksNode, ADDRESSES),
        ];
        for addresses in [1, MANY_ADDRESSES] {
            let displacing = [
                Attack::FreshKeys,
                Attack::FreshCancellations,
                Attack::PrivateFlood,
                Attack::LargePrivateFlood,
                Attack::SharedTransactions,
            ];
            others.extend(displacing.map(|attack| (attack, Setup::Default, addresses)));
        }
        let all = by_default.into_iter().chain(others);
        all.map(|(attack, setup, addresses)| Self { attack, setup, addresses })
    }

    fn name(&self) -> String {
        let suffix = match self.setup {
            Setup::Default => "",
            Setup::AsksNode => ", node asked",
            Setup::NoGate => ", gate unlimited",
        };
        let from = match self.addresses {
            ADDRESSES => String::new(),
            addresses => format!(" from {addresses}"),
        };
        format!("{}{from}{suffix}", self.attack.name())
    }
}

/// What came of one attack.
struct Run {
    attacker: attack::Tally,
    honest: honest::Tally,
    /// Of the honest orders, by kind: refused, and gone after success.
    orders_lost: [(u64, u64); 3],
    /// Cancelled bundles that were accepted again, and replaced ones that were there when their block came.
    without_effect: usize,
    /// Announced or pending at the start, and not in the pool.
    lost: usize,
    live: Times,
    idle_bytes: usize,
    most_bytes: usize,
}

fn run(plan: &Plan, case: &Case) -> io::Result<Run> {
    let mut node = NodeProcess::spawn()?;
    let asks_node = case.setup == Setup::AsksNode;
    let preload = plan.preload;
    let mut expected = node.start(|config| NodeConfig { preload, state: asks_node, ..config })?;
    let announced = (f64::from(TPS) * (plan.lasts.as_secs_f64() + 4.0)) as usize;
    let prepared = node.prepare(announced)?;
    let mut builder = Builder::spawn(node.path(), plan.preload, case.setup, honest::known())?;
    let slot = plan.lasts / HEADS;
    let of_honest = honest::Plan { lasts: plan.lasts, slot, may_pay: !asks_node };
    let mut honest = Honest::spawn(builder.address, of_honest)?;
    let mut attacker = Process::spawn(attack::ROLE)?;
    let (attack, most_requests) = (case.attack, plan.most_requests);
    let ready: attack::Tally =
        attacker.request(&attack::Request::Prepare { attack, most_requests, head: 0 })?;
    assert_eq!(ready.sent, 0, "nothing is sent before it is told to");

    let idle = builder.look()?;
    node.announce(What::Prepared, Pace::Steady(TPS))?;
    honest.begin()?;
    let (server, addresses) = (builder.address, case.addresses);
    attacker.send(&attack::Request::Run { server, lasts: plan.lasts, addresses })?;
    let bids = thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let heads = scope.spawn(|| tell_heads(&mut node, slot, is_over));
        let bids = honest.finish();
        drop(over);
        heads.join().expect("no panic")?;
        bids
    })?;
    let attacker: attack::Tally = attacker.receive()?;
    let count = node.stop()?.count;
    expected.extend(&prepared[..count]);
    let report = builder.look()?;
    let mut orders_lost = [(0, 0); 3];
    let mut without_effect = 0;
    for (kind, lost) in Kind::ALL.into_iter().zip(&mut orders_lost) {
        let of_kind = &bids.kinds[kind as usize];
        let gone = builder.gone(of_kind.accepted.clone())?;
        *lost = (bids.refused(kind), gone.len() as u64);
        let replaced = builder.gone(of_kind.replaced.clone())?;
        without_effect += of_kind.replaced.len() - replaced.len();
    }
    without_effect += honest.revived(builder.address)?;
    let lost = builder.missing(expected)?;

    assert_eq!(lost, 0, "{}: of the node's transactions", case.name());
    if bids.failure.is_some() {
        eprintln!("{}: {:?}", case.name(), bids.failure);
    }
    for (reason, refused) in &attacker.refused {
        let counted = report.refused.get(reason).copied().unwrap_or(0);
        assert!(counted >= *refused, "{}: {reason}: {counted} of {refused}", case.name());
    }
    Ok(Run {
        attacker,
        honest: bids,
        orders_lost,
        without_effect,
        lost,
        live: report.live,
        idle_bytes: idle.resident,
        most_bytes: report.most_resident,
    })
}

/// Mines blocks without a transaction, so that everything that was announced stays pending.
fn tell_heads(
    node: &mut NodeProcess,
    slot: Duration,
    is_over: mpsc::Receiver<()>,
) -> io::Result<()> {
    let start = Instant::now();
    for head in 1.. {
        let due = start + slot * head;
        let left = due.saturating_duration_since(Instant::now());
        if is_over.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
            break;
        }
        node.reset()?;
    }
    Ok(())
}

impl Run {
    fn more_mb(&self) -> f64 {
        (self.most_bytes as f64 - self.idle_bytes as f64) / 1e6
    }

    fn row(&self, case: &Case) -> [String; 18] {
        let [known, unknown, beside] =
            self.orders_lost.map(|(refused, gone)| format!("{refused}+{gone}"));
        let ms = |us: f64| format!("{:.1}", us / 1e3);
        let refused: Vec<_> = self.attacker.reasons().collect();
        [
            case.name(),
            self.attacker.sent.to_string(),
            format!("{:.1}", self.attacker.bytes as f64 / 1e6),
            format!("{:.1}", self.attacker.cpu.as_secs_f64()),
            self.attacker.accepted.to_string(),
            self.lost.to_string(),
            known,
            unknown,
            beside,
            self.without_effect.to_string(),
            ms(self.honest.bundles.p50),
            ms(self.honest.bundles.p99),
            ms(self.honest.known.p99),
            ms(self.honest.health.p99),
            ms(self.live.p99),
            format!("{:.0}", self.idle_bytes as f64 / 1e6),
            format!("{:+.0}", self.more_mb()),
            refused.join(", "),
        ]
    }

    fn missed(&self, case: &Case) -> Vec<String> {
        let Self { honest, attacker, orders_lost: [known, unknown, _], .. } = self;
        let lost = |(refused, gone): &(u64, u64)| (refused + gone) as f64;
        // From so many addresses only known signers are promised anything.
        let is_many = case.addresses == MANY_ADDRESSES;
        let bundles = if is_many { &honest.known } else { &honest.bundles };
        let unknown_lost = if is_many { 0.0 } else { lost(unknown) };
        let bundle_p99 = bundles.p99 / 1e3;
        let answer_p99 = attacker.p99_ms.unwrap_or_default();
        let mut figures = vec![
            ("health p99", honest.health.p99 / 1e3, 50.0, "ms"),
            ("memory above idle", self.more_mb(), 300.0, "MB"),
        ];
        figures.extend(match case.attack {
            // Refusing them is what the gate is for; without it nothing of this is promised.
            Attack::Crowd if case.setup == Setup::NoGate => return Vec::new(),
            Attack::Crowd => vec![("p99 of a refusal", answer_p99, REFUSAL_P99_MS, "ms")],
            // A burst of honest callers is no attack: its own bundles, and those that come meanwhile, wait their turn.
            Attack::HonestBurst => vec![
                ("orders lost", lost(known) + lost(unknown), 0.0, ""),
                ("bundles of the burst lost", (attacker.sent - attacker.accepted) as f64, 0.0, ""),
                ("p99 of the burst", answer_p99, BURST_P99_MS, "ms"),
                ("bundle p99", bundle_p99, BURST_P99_MS, "ms"),
            ],
            _ => vec![
                ("orders of known signers lost", lost(known), 0.0, ""),
                ("orders of unknown signers lost", unknown_lost, 0.0, ""),
                (
                    "cancellations and replacements without effect",
                    self.without_effect as f64,
                    0.0,
                    "",
                ),
                ("bundle p99", bundle_p99, 50.0, "ms"),
            ],
        });
        let missed = figures.into_iter().filter(|(_, value, limit, _)| value > limit);
        missed
            .map(|(what, value, limit, unit)| {
                format!("{}: {what} {value:.1} {unit}, goal {limit} {unit}", case.name())
            })
            .collect()
    }
}
