//! Five shapes of deferrable load on top of the live announcements.

use std::time::Duration;

use crate::{
    Plan,
    clients::{Clients, Phase},
    node::Node,
    outsiders,
    stage::Policy,
    table::{self, Row},
};

const TPS: u32 = 1_000;

/// Raw transactions a second.
const SLIGHT: u32 = 200;
const HEAVY: u32 = 5_000;

const POLICIES: [(&str, Policy); 2] = [("off", Policy::Off), ("on", Policy::On)];

/// A scenario of `lasts` in all.
fn scenarios(lasts: Duration) -> [(&'static str, Vec<Phase>); 5] {
    let phase = |parts: u32, rate| Phase { lasts: lasts * parts / 12, rate };
    let (quiet, spike) = (Some(0), None);
    [
        ("none", vec![phase(12, quiet)]),
        ("slight", vec![phase(12, Some(SLIGHT))]),
        ("heavy", vec![phase(12, Some(HEAVY))]),
        ("single spike", vec![phase(5, quiet), phase(2, spike), phase(5, quiet)]),
        ("repeated spikes", (0..6).flat_map(|_| [phase(1, quiet), phase(1, spike)]).collect()),
    ]
}

pub(crate) fn bench(plan: &Plan) {
    let mut node = Node::spawn(0).expect("the node starts");
    let mut clients = Clients::spawn(plan.outside_txs).expect("the clients start");
    let scenarios = scenarios(plan.scenario);
    let mut rows: Vec<_> = scenarios
        .iter()
        .flat_map(|(name, _)| POLICIES.map(|(policy, _)| Row::new(format!("{name}, {policy}"))))
        .collect();
    for round in 0..plan.rounds {
        for (rows, (_, phases)) in rows.chunks_mut(POLICIES.len()).zip(&scenarios) {
            for turn in 0..POLICIES.len() {
                let number = (turn + round) % POLICIES.len();
                let of = (&mut node, &mut clients, None);
                let run = outsiders::run(plan, of, POLICIES[number].1, TPS, phases);
                rows[number].runs.push(plan.host.block_on(run).0);
            }
        }
    }
    let title = format!(
        "(c) {TPS} announced a second, and raw transactions: none, {SLIGHT}/s, {HEAVY}/s, as many as\n\
         they can for a sixth of the time, and for every other twelfth; policy off and on, {} rounds of {:.1} s",
        plan.rounds,
        plan.scenario.as_secs_f64()
    );
    table::print(&title, "accepted/s", &rows);
    println!("live p99, on / off:");
    for (pair, (name, _)) in rows.chunks(POLICIES.len()).zip(&scenarios) {
        println!("  {name:<16} {:.2}", table::ratio(&pair[1], &pair[0], 0.99));
    }
}
