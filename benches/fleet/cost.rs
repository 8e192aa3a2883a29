//! Measures the cost of an additional builder: builders of a fleet, compared with builders that
//! each fetch from the node.

use std::{io, time::Duration};

use mock_node::NodeConfig;
use testkit::{
    figures::{Goal, Rounds, Spread, Table},
    member::{Config, Member, Progress},
    node::NodeProcess,
    usage::cpu_of,
};

use crate::{
    Size, builder, machine,
    servers::{reset_streams, start},
    start_member,
};

/// CPU time in microseconds for each announced transaction.
#[derive(Clone, Copy, Debug)]
struct Figures {
    node: f64,
    /// All builders together.
    builders: f64,
    /// The machine that ingests and the NATS server.
    tier: f64,
}

pub(crate) fn run(size: &Size) -> io::Result<()> {
    let tps = size.cost_tps;
    println!("\n== CPU time for each transaction at {tps}/s, us ==");
    let mut table = Table::new(" | builders | node | builders together | ingest and server | sum");
    let mut node = [Vec::new(), Vec::new()];
    for &builders in &size.builders {
        let mut own = Rounds::new("each fetches from the node");
        let mut fleet = Rounds::new("on a fleet");
        for _ in 0..size.rounds {
            own.runs.push(measure(false, tps, builders, size.seconds)?);
            fleet.runs.push(measure(true, tps, builders, size.seconds)?);
        }
        for (rounds, node) in [&own, &fleet].into_iter().zip(&mut node) {
            table.row([
                rounds.contender.to_owned(),
                builders.to_string(),
                rounds.whole(|run| run.node),
                rounds.whole(|run| run.builders),
                rounds.whole(|run| run.tier),
                rounds.whole(|run| run.node + run.builders + run.tier),
            ]);
            node.push(rounds.runs.iter().map(|run| run.node).collect::<Vec<_>>());
        }
    }
    println!("{table}");
    let most = size.builders.last().copied().unwrap_or_default();
    let [own, fleet] = node.map(|runs| growth(&runs));
    println!("the node's CPU time with {most} builders to that with one, each on its own: {own}");
    let description = format!("the same on a fleet, {most} builders to one");
    println!("{}", Goal::at_most(description, fleet, 1.2, ""));
    Ok(())
}

/// Returns the ratios of the node's CPU time with the most builders to that with the fewest.
fn growth(runs: &[Vec<f64>]) -> Spread {
    match (runs.first(), runs.last()) {
        (Some(first), Some(last)) => {
            Spread::of(last.iter().zip(first).map(|(most, fewest)| most / fewest))
        }
        _ => Spread::of([]),
    }
}

/// Waits for all members. Returns the sum of their CPU times until then.
fn cpu(
    members: &mut [Member],
    description: &str,
    is_done: impl Fn(&Progress) -> bool,
) -> io::Result<Duration> {
    members.iter_mut().map(|member| Ok(member.wait(description, &is_done)?.cpu)).sum()
}

fn measure(is_fleet: bool, tps: u32, builders: usize, seconds: f64) -> io::Result<Figures> {
    let count = (f64::from(tps) * seconds) as usize;
    let mut node = NodeProcess::spawn()?;
    node.start(|config| NodeConfig { pool_limit: 2 * count, signed_ahead: count, ..config })?;
    let (mut nats, mut ingest, mut members) = (None, Vec::new(), Vec::new());
    if is_fleet {
        let (folder, server) = start()?;
        let servers = vec![server.url()];
        reset_streams(&servers)?;
        for number in 1..=builders {
            members.push(builder(&servers, number)?);
        }
        ingest.push(start_member(Config { nodes: vec![node.path()], ..machine(&servers) })?);
        nats = Some((server, folder));
    } else {
        for _ in 0..builders {
            members.push(start_member(Config { nodes: vec![node.path()], ..machine(&[]) })?);
        }
    }
    let server_cpu = || {
        let pid = nats.as_ref().and_then(|(server, _)| server.pid());
        pid.map_or(Duration::ZERO, cpu_of)
    };
    // The CPU time of connecting is not counted.
    let builders_before = cpu(&mut members, "live", |progress| progress.is_live)?;
    let tier_before = cpu(&mut ingest, "live", |progress| progress.is_live)? + server_cpu();
    node.announce(count, Some(tps))?;
    node.finish()?;
    let cpu_builders = cpu(&mut members, "the last order", |progress| progress.seen >= count)?;
    let announced = node.stop()?;
    assert_eq!(announced.txs.len(), count, "all were announced");
    let cpu_tier = cpu(&mut ingest, "a look", |_| true)? + server_cpu();
    for member in members {
        assert_eq!(member.finish()?.len(), count, "each once");
    }
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / count as f64;
    Ok(Figures {
        node: each(announced.cpu),
        builders: each(cpu_builders.saturating_sub(builders_before)),
        tier: each(cpu_tier.saturating_sub(tier_before)),
    })
}
