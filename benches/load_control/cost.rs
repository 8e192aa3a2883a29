//! What the monitor costs when it has nothing to do: announcements taken in as fast as it goes.

use std::time::Duration;

use alloy_primitives::B256;
use mempool_ingest::txpool_fetcher::Backfill;
use testkit::{
    figures::{Goal, Spread, median},
    node::{NodeProcess, Pace, What},
};

use crate::{
    Plan,
    stage::{self, Parts, Policy},
};

pub(crate) fn bench(plan: &Plan) {
    let (mut node, _) = stage::node(0);
    // The first run warms both sides up and is not kept.
    plan.host.block_on(run(plan, &mut node, Policy::On));
    // With and without it.
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..plan.cost_rounds {
        for turn in 0..2 {
            let number = (turn + round) % 2;
            let policy = [Policy::On, Policy::SharesOnly][number];
            times[number].push(plan.host.block_on(run(plan, &mut node, policy)));
        }
    }
    let [with, without] = times;
    println!(
        "\nthe monitor's cost with nothing to defer: {} announced at once, {} rounds in turns",
        plan.burst, plan.cost_rounds
    );
    let per_s =
        |times: &[Duration]| plan.burst as f64 / median(times.iter().map(Duration::as_secs_f64));
    println!("  without {:.0}/s, with {:.0}/s", per_s(&without), per_s(&with));
    let pairs = with.iter().zip(&without);
    let costs = pairs.map(|(with, without)| 1.0 - without.as_secs_f64() / with.as_secs_f64());
    let costs = Spread::of(costs.map(|cost| cost * 100.0));
    println!("  {}", Goal::at_most("throughput that it costs", costs, 1.0, " %"));
}

/// From the first of them read from the socket to the last in the pool.
async fn run(plan: &Plan, node: &mut NodeProcess, policy: Policy) -> Duration {
    let mut parts = Parts::start(node.path(), policy, Backfill::Off).await;
    parts.until(|parts| parts.fetcher.is_live()).await;
    node.announce(What::OwnLoad(plan.burst), Pace::AtOnce).expect("the node announces");
    node.finish().expect("the node has announced");
    let announced = node.stop().expect("the node stops").own;
    let announced: Vec<B256> = announced.into_iter().map(|(hash, _)| hash).collect();
    parts.check(&[&announced]).await;
    let took = parts.span();
    parts.stop().await;
    node.reset().expect("the node mines what it announced");
    took
}
