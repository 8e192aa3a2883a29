//! A backfill of a whole pool floods while the node announces.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    figures::{Goal, Rounds, Table, Times},
    node::{NodeProcess, Pace, What},
    usage::resident_bytes,
};

use crate::{
    Plan,
    stage::{self, Parts, Policy, Watched},
};

const TPS: u32 = 1_000;

/// Contenders: with which policy, and whether there is a flood.
const CONTENDERS: [(&str, Policy, bool); 4] = [
    ("no flood", Policy::On, false),
    ("policy off", Policy::Off, true),
    ("shares only", Policy::SharesOnly, true),
    ("policy on", Policy::On, true),
];

/// What one run of one contender came to.
#[derive(Clone, Debug)]
struct Figures {
    live: Times,
    live_per_s: f64,
    backfilled_per_s: f64,
    deferred: u64,
    watched: Watched,
    resident_bytes: usize,
    /// Announcements that the node made more than 5 ms late.
    late: usize,
}

pub(crate) fn bench(plan: &Plan) {
    let (mut node, preloaded) = stage::node(plan.flood);
    let mut rows = CONTENDERS.map(|(name, ..)| Rounds::new(name));
    for round in 0..plan.rounds {
        for turn in 0..CONTENDERS.len() {
            let number = (turn + round) % CONTENDERS.len();
            let (_, policy, floods) = CONTENDERS[number];
            let run = run(plan, (&mut node, &preloaded), policy, floods);
            rows[number].runs.push(plan.host.block_on(run));
        }
    }
    println!(
        "\n{TPS} announced a second while a backfill of {} floods; medians of {} rounds\n\
         latency from the announcement read from the socket to the order in the pool, while it lasts",
        plan.flood, plan.rounds
    );
    let mut table = Table::new(
        " | p50 us | p95 us | p99 us | live/s | backfilled/s | deferred | oldest ms | pressed | \
         res. MB | late",
    );
    for row in &rows {
        let whole = |value: &dyn Fn(&Figures) -> f64| format!("{:.0}", row.median(value));
        table.row([
            row.contender.to_owned(),
            whole(&|run| run.live.p50),
            whole(&|run| run.live.p95),
            whole(&|run| run.live.p99),
            whole(&|run| run.live_per_s),
            whole(&|run| run.backfilled_per_s),
            whole(&|run| run.deferred as f64),
            whole(&|run| run.watched.oldest.as_secs_f64() * 1e3),
            format!("{:.1}%", row.median(|run| run.watched.pressed_share() * 100.0)),
            whole(&|run| run.resident_bytes as f64 / 1e6),
            row.runs.iter().map(|run| run.late).sum::<usize>().to_string(),
        ]);
    }
    print!("{table}");
    let [calm, off, _, on] = &rows;
    println!("goals (ratios within a round; the median of the rounds, least to most):");
    let (p95, p99) = (|run: &Figures| run.live.p95, |run: &Figures| run.live.p99);
    for goal in [
        Goal::at_most("live p95, policy on / off", on.ratio(off, p95), 0.83, ""),
        Goal::at_most("live p99, policy on / off", on.ratio(off, p99), 0.89, ""),
        Goal::at_most("live p99, policy on / no flood", on.ratio(calm, p99), 1.5, ""),
    ] {
        println!("  {goal}");
    }
    println!("  every run: all {} and all live ones are in the pool, once each", plan.flood);
}

async fn run(
    plan: &Plan,
    (node, preloaded): (&mut NodeProcess, &[B256]),
    policy: Policy,
    floods: bool,
) -> Figures {
    let signed = node.prepare(TPS as usize * plan.signed_s).expect("the node signs");
    let backfill = if floods { Backfill::Pending } else { Backfill::Off };
    let mut parts = Parts::start(node.path(), policy, backfill).await;
    node.announce(What::Prepared, Pace::Steady(TPS)).expect("the node announces");
    // The listing before is the same for all, and the node's business.
    if floods {
        parts.until(|parts| parts.fetcher.counts().backfilled > 0).await;
    } else {
        parts.until(|parts| parts.fetcher.counts().pooled > 0).await;
    }
    let (begin, before) = (Instant::now(), parts.fetcher.counts());
    if floods {
        parts.until(|parts| parts.fetcher.is_live()).await;
    } else {
        parts.until(|_| begin.elapsed() >= plan.calm).await;
    }
    let (end, after) = (Instant::now(), parts.fetcher.counts());
    let announced = node.stop().expect("the node stops");
    if let (Some(short), false) = (announced.short, plan.is_test) {
        // What is printed as live latency is then of a part of the flood.
        println!(
            "warning: under {policy:?} all {} announcements were made {:.1} s before the load ended",
            announced.count,
            short.as_secs_f64()
        );
    }
    let preloaded = if floods { preloaded } else { &[] };
    parts.check(&[preloaded, &signed[..announced.count]]).await;
    assert_eq!(parts.fetcher.counts().backfilled, preloaded.len() as u64, "all of them");
    let live = parts.sink.times(begin, end);
    let lasted = (end - begin).max(Duration::from_millis(1)).as_secs_f64();
    let figures = Figures {
        live,
        live_per_s: live.count as f64 / lasted,
        backfilled_per_s: (after.backfilled - before.backfilled) as f64 / lasted,
        deferred: parts.fetcher.deferred().deferred,
        watched: parts.watched,
        resident_bytes: resident_bytes(),
        late: announced.late,
    };
    parts.stop().await;
    node.reset().expect("the node mines what it announced");
    figures
}
