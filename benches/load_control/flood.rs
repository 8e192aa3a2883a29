//! A backfill of a whole pool floods while the node announces.

use std::time::{Duration, Instant};

use alloy_primitives::B256;
use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    node::{NodeProcess, Pace, What},
    usage::resident_bytes,
};

use crate::{
    Plan,
    stage::{self, Parts, Policy, Setup, warn_if_short},
    table::{self, Figures, Row},
};

pub(crate) const TPS: u32 = 1_000;

/// The node signs so many seconds of live announcements for a run: more than a flood lasts.
const SIGNED_S: usize = 25;

/// Contenders: with which policy, and whether there is a flood.
const CONTENDERS: [(&str, Policy, bool); 4] = [
    ("no flood", Policy::On, false),
    ("policy off", Policy::Off, true),
    ("shares only", Policy::SharesOnly, true),
    ("policy on", Policy::On, true),
];

pub(crate) fn bench(plan: &Plan) {
    let (mut node, preloaded) = stage::node(plan.flood);
    let mut rows = CONTENDERS.map(|(name, ..)| Row::new(name.to_owned()));
    for round in 0..plan.flood_rounds {
        for turn in 0..CONTENDERS.len() {
            let number = (turn + round) % CONTENDERS.len();
            let (_, policy, floods) = CONTENDERS[number];
            rows[number].runs.push(plan.host.block_on(run(
                plan,
                (&mut node, &preloaded),
                policy,
                floods,
            )));
        }
    }
    let title = format!(
        "(a) {TPS} announced a second while a backfill of {} floods; medians of {} rounds\n\
         latency from the announcement read from the socket to the order in the pool, while it lasts",
        plan.flood, plan.flood_rounds
    );
    table::print(&title, "backfilled/s", &rows);
    let [calm, off, _, on] = &rows;
    println!("goals (ratios within a round; the median of the rounds, least to most):");
    table::goal("live p95, policy on / off", table::ratio(on, off, 0.95), 0.83, "");
    table::goal("live p99, policy on / off", table::ratio(on, off, 0.99), 0.89, "");
    table::goal("live p99, policy on / no flood", table::ratio(on, calm, 0.99), 1.5, "");
    println!("  every run: all {} and all live ones are in the pool, once each", plan.flood);
}

async fn run(
    plan: &Plan,
    (node, preloaded): (&mut NodeProcess, &[B256]),
    policy: Policy,
    floods: bool,
) -> Figures {
    let signed = node.prepare(plan.signed(TPS, SIGNED_S)).expect("the node signs");
    let backfill = if floods { Backfill::Pending } else { Backfill::Off };
    let mut parts = Parts::start(node.path(), Setup { policy, backfill, rpc: false }).await;
    node.announce(What::Prepared, Pace::steady(TPS)).expect("the node announces");
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
    warn_if_short(&announced, plan, policy);
    let preloaded = if floods { preloaded } else { &[] };
    parts.check(&[preloaded, &signed[..announced.count]], 0).await;
    if floods {
        assert_eq!(parts.fetcher.counts().backfilled, preloaded.len() as u64, "all of them");
    }
    let live = parts.live(begin, end);
    let lasted = (end - begin).max(Duration::from_millis(1)).as_secs_f64();
    let figures = Figures {
        live_per_s: live.len() as f64 / lasted,
        live,
        other_per_s: (after.backfilled - before.backfilled) as f64 / lasted,
        refused: parts.refused(),
        deferred: parts.deferred(),
        oldest: parts.watched().oldest,
        resident_bytes: resident_bytes(),
        late: announced.late,
        pressed_share: f64::from(parts.watched().pressed) / f64::from(parts.watched().looks.max(1)),
    };
    parts.stop().await;
    node.reset().expect("the node mines what it announced");
    figures
}
