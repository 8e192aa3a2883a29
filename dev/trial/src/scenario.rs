//! What a stranger can do to a builder by the RPC server: one attack after the other at full size, each in a world of
//! its own with one node and one machine with the defaults, judged by the same oracle.
//!
//! The node has 20,000 transactions pending and announces 500 a second, none of which a block takes; honest searchers
//! send 150 messages a second, and a monitor asks for `/healthz`. The attacker has eight addresses, in other rows one
//! or 256, keys without end, no ether, and half a core. A crowd of 64 callers, who are no strangers with a few
//! addresses, sends raw transactions as fast as it can: what the gate is for, so it is run again with the gate off.
//!
//! **What counts** is what the oracle finds before each head, and that no honest searcher is refused. From 256
//! addresses only known signers are promised anything. That the orders of one caller are executed in turn, that work
//! above a limit is refused for good, and what a proxy, a waker or an ill-formed field can do, are properties that
//! the tests of the crates show. A violation fails the command. Latency and memory are printed with their goals; on a
//! machine that is too slow for the load, callers are refused.
//!
//! `--ahead` adds the scenarios in which not all is kept yet that is promised, each from one, eight and 256 IPv4
//! addresses and from one IPv6 /48, and asks the oracle's further questions:
//!
//! | scenario | promise |
//! |---|---|
//! | copies of few bundles | an order counts once, however many callers send it, and a /48 is not thousands of callers |
//! | trickled bodies | a bundle of 80 KB over a link of 100 ms succeeds beside 60 bodies that come by the byte |
//! | 10,000 keys behind a front | what a front forwards for unknown signers takes nothing from known ones |
//! | copies with early last blocks | a stranger's copy does not end a transaction that a node lists |
//! | pipelined gets | GET requests cost quota, and honest callers do not wait for them |
//! | incomplete bodies | a body that is not complete takes no place that a complete request needs |
//! | clock steps | 5 s back and an hour ahead change nothing that is held, replaced or cancelled |
//!
//! `cargo run --release -p trial -- --scenarios` takes about ten minutes; with `--test` each attack runs for a
//! moment. `--scenario NAME` chooses by name. The environment sets `ATTACK_BENCH_SECONDS` (8).

use std::time::Duration;

use testkit::{bench::number, figures::Table, member::Setup};

use crate::{
    attack::{self, Addresses, Attack},
    clock::ClockFault,
    run::{self, Failure, Outcomes},
    world::{MemberPlan, SLOT, What, World},
};

const TPS: u32 = 500;
const SEARCHERS_TPS: f64 = 150.0;
/// Of the attacker: by default, and in the rows of one who has many.
const ADDRESSES: usize = 8;
const MANY_ADDRESSES: usize = 256;
/// Of honest searchers beside trickled bodies: bundles of 80 KB over a link of 100 ms.
const UPLOADS_TPS: f64 = 10.0;
const UPLOAD_BYTES: usize = 40_000;
const LINK: Duration = Duration::from_millis(100);

/// Runs those whose names contain one of the words, all without words. With `is_test` what an attacker with other addresses
/// does is left out, which is the same again. Whether nothing was wrong.
/// `has_ahead`: also those of [`Attack::AHEAD`], which a word chooses too.
pub(crate) fn run_all(words: &[String], is_test: bool, has_ahead: bool) -> Result<bool, Failure> {
    let seconds = if is_test { 0.4 } else { number("ATTACK_BENCH_SECONDS", "8", 1.0..=600.0) };
    let is_chosen = |case: &Case| {
        let is_named = words.iter().any(|word| case.name().contains(word.as_str()));
        let is_small = matches!(case.addresses, Addresses::Ipv4(ADDRESSES)) || !is_test;
        is_named || words.is_empty() && is_small && (has_ahead || !case.is_ahead())
    };
    let mut table = Table::new(
        "attack | sent | MB sent | CPU s | accepted | violations | known refused | unknown refused | p99 ms | known p99 ms | \
         health p99 ms | live p99 ms | MB idle | MB more | refused",
    );
    let mut is_right = true;
    for case in Case::all().filter(is_chosen) {
        let outcomes = run::run(&case.world(seconds, is_test), true)?;
        table.row(case.row(&outcomes));
        if let Some(violation) = outcomes.violations.first() {
            eprintln!("{}: {:?} {}", case.name(), violation.wrong, violation.text);
            is_right = false;
        }
        eprintln!("{} done", case.name());
    }
    println!(
        "{TPS} announced and {SEARCHERS_TPS} messages of honest searchers a second, a head every \
         {} s, {seconds} s of each attack;\n\
         refused: of honest searchers, or without an answer; sent, MB and CPU: what it cost the \
         attacker",
        SLOT.as_secs()
    );
    print!("{table}");
    println!(
        "goals: no violation, nobody refused, p99 50 ms (250 ms in the burst of 512 bundles of \
         three transactions, none of which is refused), health p99 50 ms, 300 MB more than idle;\n\
         of the crowd, which is to be refused, only a p99 of 5 ms for that, and health and memory;\n\
         with the gate unlimited only no violation; from {MANY_ADDRESSES} only known signers are \
         promised anything"
    );
    Ok(is_right)
}

/// A row of the table.
struct Case {
    attack: Attack,
    setup: Setup,
    addresses: Addresses,
    /// The machine's clock steps while nobody attacks: 5 s back, then an hour ahead, and right again.
    has_clock_steps: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let by_default = Attack::ALL.map(|(attack, ..)| (attack, Setup::Default, ADDRESSES));
        let by_default =
            by_default.map(|(attack, setup, count)| (attack, setup, Addresses::Ipv4(count)));
        let mut others = vec![(Attack::Crowd, Setup::NoGate, Addresses::Ipv4(ADDRESSES))];
        for addresses in [1, MANY_ADDRESSES] {
            let displacing = [
                Attack::FreshKeys,
                Attack::FreshCancellations,
                Attack::PrivateFlood,
                Attack::LargePrivateFlood,
                Attack::SharedTransactions,
            ];
            let addresses = Addresses::Ipv4(addresses);
            others.extend(displacing.map(|attack| (attack, Setup::Default, addresses)));
        }
        let numbers = [ADDRESSES, 1, MANY_ADDRESSES].map(Addresses::Ipv4);
        let ahead = Attack::AHEAD.into_iter().flat_map(move |(attack, ..)| {
            let all = numbers.into_iter().chain([Addresses::Ipv6Prefix]);
            all.map(move |addresses| (attack, Setup::Default, addresses))
        });
        let all = by_default.into_iter().chain(others).chain(ahead);
        let attacks = all.map(|(attack, setup, addresses)| Self {
            attack,
            setup,
            addresses,
            has_clock_steps: false,
        });
        attacks.chain([Self {
            attack: Attack::None,
            setup: Setup::Default,
            addresses: Addresses::Ipv4(ADDRESSES),
            has_clock_steps: true,
        }])
    }

    /// Whether more is promised here than is kept yet.
    fn is_ahead(&self) -> bool {
        self.has_clock_steps || Attack::AHEAD.iter().any(|(attack, ..)| *attack == self.attack)
    }

    fn name(&self) -> String {
        let suffix = if self.setup == Setup::NoGate { ", gate unlimited" } else { "" };
        let name = if self.has_clock_steps { "clock steps" } else { self.attack.name() };
        match self.addresses {
            Addresses::Ipv4(ADDRESSES) => format!("{name}{suffix}"),
            Addresses::Ipv4(addresses) => format!("{name} from {addresses}{suffix}"),
            Addresses::Ipv6Prefix => format!("{name} from an IPv6 /48{suffix}"),
        }
    }

    fn world(&self, seconds: f64, is_test: bool) -> World {
        let Self { attack, setup, addresses, has_clock_steps } = *self;
        let time = Duration::from_secs_f64(seconds);
        // What ends early is missing only after its last block, and after its grace.
        let lasts_long = has_clock_steps || attack == Attack::EarlyCopies;
        let time = if lasts_long { time.max(SLOT * 9) } else { time };
        let has_uploads = attack == Attack::TrickledBodies;
        // Before the attack and after it; pending in the node at the start; different requests of
        // the attacker.
        let (quiet, preload, most_requests) = match is_test {
            true => (Duration::ZERO, 500, attack::QUICK),
            false => (SLOT, 20_000, u64::MAX),
        };
        let timeline = if has_clock_steps {
            let step = |at, by_ms| {
                let fault = ClockFault::Step(by_ms);
                (at, What::Clock { member: 0, fault, time: time / 3 })
            };
            vec![step(quiet, -5_000), step(quiet + time / 2, 3_600_000)]
        } else {
            vec![(quiet, What::Attack { attack, member: 0, time, addresses })]
        };
        let machine = MemberPlan { nodes: vec![0], has_rpc: true, ..MemberPlan::default() };
        World {
            seed: 1,
            lasts: quiet * 2 + time,
            nodes: 1,
            members: vec![machine],
            tps: TPS,
            searchers_tps: if has_uploads { UPLOADS_TPS } else { SEARCHERS_TPS },
            upload_bytes: if has_uploads { UPLOAD_BYTES } else { 0 },
            link: if has_uploads { LINK } else { Duration::ZERO },
            asks_more: self.is_ahead(),
            setup,
            preload,
            promises_unknown: matches!(addresses, Addresses::Ipv4(1 | ADDRESSES)),
            most_requests,
            timeline,
            ..World::default()
        }
    }

    fn row(&self, outcomes: &Outcomes) -> [String; 15] {
        let [unknown, known] = outcomes.refused;
        let [idle, peak] = outcomes.memory.map(|bytes| bytes as f64 / 1e6);
        let ms = |us: f64| format!("{:.1}", us / 1e3);
        let refused: Vec<_> = outcomes.attack.reasons().collect();
        [
            self.name(),
            outcomes.attack.sent.to_string(),
            format!("{:.1}", outcomes.attack.bytes as f64 / 1e6),
            format!("{:.1}", outcomes.attack.cpu.as_secs_f64()),
            outcomes.attack.accepted.to_string(),
            outcomes.violations.len().to_string(),
            known.to_string(),
            unknown.to_string(),
            ms(outcomes.answers[0].p99),
            ms(outcomes.answers[1].p99),
            ms(outcomes.health.p99),
            ms(outcomes.live.p99),
            format!("{idle:.0}"),
            format!("{:+.0}", peak - idle),
            refused.join(", "),
        ]
    }
}
