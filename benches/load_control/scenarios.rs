//! Five shapes of deferrable load on top of the live announcements.

use std::time::Duration;

use testkit::node::Pace;

use crate::{
    Plan,
    clients::{Clients, Phase},
    external,
    stage::{self, Policy},
    table::{self, Row},
};

const TPS: u32 = 1_000;

/// Raw transactions a second.
const SLIGHT: u32 = 200;
const HEAVY: u32 = 5_000;

const POLICIES: [(&str, Policy); 2] = [("off", Policy::Off), ("on", Policy::On)];

/// What the node announces at once, on top, at the begin of a spike: the flood of external callers and the
/// one of announcements have the same cause, a block or a price.
const BURST: usize = 500;

struct Scenario {
    name: &'static str,
    /// Of the external callers.
    phases: Vec<Phase>,
    bursts: Vec<(Duration, usize)>,
}

/// The five, each of `lasts`.
fn scenarios(lasts: Duration) -> [Scenario; 5] {
    let part = lasts / 12;
    let phase = |parts: u32, rate| Phase { lasts: part * parts, rate };
    let (quiet, spike) = (Some(0), None);
    // The announcements' clock is ahead by the tenth of a second that they begin earlier.
    let burst = |parts: u32| (part * parts + Duration::from_millis(150), BURST);
    let steady =
        |name, rate| Scenario { name, phases: vec![phase(12, Some(rate))], bursts: Vec::new() };
    [
        steady("none", 0),
        steady("slight", SLIGHT),
        steady("heavy", HEAVY),
        Scenario {
            name: "single spike",
            phases: vec![phase(5, quiet), phase(2, spike), phase(5, quiet)],
            bursts: vec![burst(5)],
        },
        Scenario {
            name: "repeated spikes",
            phases: (0..6).flat_map(|_| [phase(1, quiet), phase(1, spike)]).collect(),
            bursts: (0..6).map(|spike| burst(2 * spike + 1)).collect(),
        },
    ]
}

pub(crate) fn bench(plan: &Plan) {
    let (mut node, _) = stage::node(0);
    let mut clients = Clients::spawn(plan.external_txs).expect("the clients start");
    let scenarios = scenarios(plan.scenario);
    let mut rows: Vec<_> = scenarios
        .iter()
        .flat_map(|scenario| {
            POLICIES.map(|(policy, _)| Row::new(format!("{}, {policy}", scenario.name)))
        })
        .collect();
    for round in 0..plan.rounds {
        for (rows, scenario) in rows.chunks_mut(POLICIES.len()).zip(&scenarios) {
            for turn in 0..POLICIES.len() {
                let number = (turn + round) % POLICIES.len();
                let pace = Pace { tps: Some(TPS), bursts: scenario.bursts.clone() };
                let of = (&mut node, &mut clients, None);
                let run = external::run(plan, of, POLICIES[number].1, pace, &scenario.phases);
                rows[number].runs.push(plan.host.block_on(run).0);
            }
        }
    }
    let title = format!(
        "(c) {TPS} announced a second, and raw transactions: none, {SLIGHT}/s, {HEAVY}/s, as many as they\n\
         can for a sixth of the time, and for every other twelfth, with {BURST} announced at once at the\n\
         begin of each; policy off and on, {} rounds of {:.1} s",
        plan.rounds,
        plan.scenario.as_secs_f64()
    );
    table::print(&title, "accepted/s", &rows);
    println!(
        "off puts internal work into one queue with external callers; (b) tells what that queue alone does\n\
         live p99, and accepted a second, on / off:"
    );
    for (pair, scenario) in rows.chunks(POLICIES.len()).zip(&scenarios) {
        let ratio = table::ratio(&pair[1], &pair[0], 0.99);
        let accepted = table::other_ratio(&pair[1], &pair[0]);
        println!("  {:<16} {ratio}, accepted {accepted}", scenario.name);
    }
}
