//! What it costs in time when a node drops objects of its full stream, as reth does.
//!
//! Full objects at 2,000/s, of which the node drops none, a fifth at random, some runs of 2,000, and all; and hashes,
//! for comparison. Every run asserts that all was pooled.

use mock_node::FullObjects;
use testkit::{
    contest::{Contender, Load, Run, Stage},
    figures::{Rounds, Table},
};

use crate::{BLOBS_PER_MILLE, Plan};

const TPS: u32 = 2_000;

pub(crate) fn bench(is_test: bool) {
    let plan = Plan::new(is_test, &[], "2000", "5");
    let count = (f64::from(TPS) * plan.seconds).round() as usize;
    let blobs_per_mille = BLOBS_PER_MILLE;
    let load = Load { count, tps: Some(TPS), blobs_per_mille, ..Load::default() };
    let dropped =
        |per_mille, run| Load { full_objects: FullObjects::Dropped { per_mille, run }, ..load };
    let cases = [
        ("hashes", Contender::Hashes, load),
        ("none dropped", Contender::Full, load),
        ("a fifth at random", Contender::Full, dropped(200, 1)),
        ("in runs of 2,000", Contender::Full, dropped(500, 2_000)),
        ("all", Contender::Full, dropped(1_000, 1)),
    ];
    let mut stage = Stage::new(count, BLOBS_PER_MILLE).expect("the node's process starts");
    let mut rows = cases.map(|(name, contender, load)| (name, Rounds::new((contender, load))));
    for _ in 0..plan.rounds {
        for (name, rounds) in &mut rows {
            let (contender, load) = rounds.contender;
            let run = stage.run(contender, load);
            assert_eq!(run.lost(), 0, "{name}");
            rounds.runs.push(run);
        }
    }
    println!(
        "\n{TPS}/s, full objects by what the node drops of them; medians of {} rounds",
        plan.rounds
    );
    let mut table = Table::new("dropped | p50 us | p99 us | max us | CPU us each");
    for (name, rounds) in rows {
        table.row([
            name.to_owned(),
            rounds.whole(|run| run.latency.p50),
            rounds.whole(|run| run.latency.p99),
            rounds.whole(|run| run.latency.max),
            rounds.whole(Run::cpu_us),
        ]);
    }
    print!("{table}");
}
