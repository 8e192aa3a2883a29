//! From the publisher's pool to the subscriber of each builder's pool, beside bare messages of the same bytes.

use std::{collections::HashMap, io, thread, time::Duration};

use testkit::{
    figures::{Goal, Rounds, Table, Times, histogram},
    member::Config,
};

use crate::{
    Size, builder, machine,
    servers::{reset_streams, start},
    start_member,
};

/// Transactions before those that are timed: connections, buffers and the consumer are warm then.
const WARM_UP: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Bare,
    Stream,
}

pub(crate) fn run(size: &Size) -> io::Result<()> {
    println!("\n== From the publisher to every builder, one server, one replica ==");
    let (_folder, server) = start()?;
    let servers = [server.url()];
    let mut table = Table::new(" | builders | p50, us | p99, us | p99 to bare");
    let mut goals = Vec::new();
    for &tps in &size.rates {
        for &builders in &size.builders {
            let mut bare = Rounds::new("bare messages");
            let mut stream = Rounds::new("stream");
            for _ in 0..size.rounds {
                bare.runs.push(one(Way::Bare, &servers, tps, builders, size.seconds)?);
                stream.runs.push(one(Way::Stream, &servers, tps, builders, size.seconds)?);
            }
            let ratio = stream.ratio(&bare, |run: &Times| run.p99);
            for rounds in [&bare, &stream] {
                let is_stream = rounds.contender == stream.contender;
                table.row([
                    format!("{} at {tps}/s", rounds.contender),
                    builders.to_string(),
                    rounds.whole(|run| run.p50),
                    rounds.whole(|run| run.p99),
                    if is_stream { ratio.to_string() } else { String::new() },
                ]);
            }
            let what = format!("p99 to bare messages at {tps}/s, {builders} builders");
            goals.push(Goal::at_most(what, ratio, 2.0, ""));
        }
    }
    println!("{table}");
    goals.iter().for_each(|goal| println!("{goal}"));
    Ok(())
}

fn one(way: Way, servers: &[String], tps: u32, builders: usize, seconds: f64) -> io::Result<Times> {
    let count = WARM_UP + (f64::from(tps) * seconds) as usize;
    let publish = match way {
        Way::Stream => {
            reset_streams(servers)?;
            servers
        }
        Way::Bare => &[],
    };
    let member = |number| match way {
        Way::Stream => builder(servers, number),
        Way::Bare => start_member(Config { bare_from: servers.to_vec(), ..Config::default() }),
    };
    let mut all = (1..=builders).map(member).collect::<io::Result<Vec<_>>>()?;
    let mut publisher = start_member(Config { signs: count, ..machine(publish) })?;
    for member in all.iter_mut().chain([&mut publisher]) {
        member.wait("live", |look| look.is_live)?;
    }
    // What was signed has just kept all cores busy.
    thread::sleep(Duration::from_millis(200));
    let sent = match way {
        Way::Stream => publisher.insert(Some(tps))?,
        Way::Bare => publisher.send(servers, tps)?,
    };
    let timed: HashMap<_, _> = sent.iter().skip(WARM_UP).copied().collect();
    let mut times = histogram();
    for mut builder in all {
        builder.wait("the last order", |look| look.seen >= count)?;
        let seen = builder.finish()?;
        assert_eq!(seen.len(), count, "each once");
        for (hash, at) in &seen {
            if let Some(sent) = timed.get(hash) {
                times.saturating_record(at.saturating_sub(*sent).max(1));
            }
        }
    }
    assert_eq!(times.len() as usize, timed.len() * builders, "equal work");
    Ok(Times::from(&times))
}
