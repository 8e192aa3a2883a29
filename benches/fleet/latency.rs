//! Measures the latency from the publisher's pool to the subscriber of each builder's pool,
//! compared with bare messages of the same bytes.

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

/// How many transactions are sent before those that are timed, so that connections, buffers and the
/// consumer are warm.
const WARM_UP: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// Messages of the same bytes over NATS without a stream.
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
                bare.runs.push(measure(Transport::Bare, &servers, tps, builders, size.seconds)?);
                stream.runs.push(measure(
                    Transport::Stream,
                    &servers,
                    tps,
                    builders,
                    size.seconds,
                )?);
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
            let description = format!("p99 to bare messages at {tps}/s, {builders} builders");
            goals.push(Goal::at_most(description, ratio, 2.0, ""));
        }
    }
    println!("{table}");
    goals.iter().for_each(|goal| println!("{goal}"));
    Ok(())
}

fn measure(
    transport: Transport,
    servers: &[String],
    tps: u32,
    builders: usize,
    seconds: f64,
) -> io::Result<Times> {
    let count = WARM_UP + (f64::from(tps) * seconds) as usize;
    let publish = match transport {
        Transport::Stream => {
            reset_streams(servers)?;
            servers
        }
        Transport::Bare => &[],
    };
    let member = |number| match transport {
        Transport::Stream => builder(servers, number),
        Transport::Bare => {
            start_member(Config { bare_from: servers.to_vec(), ..Config::default() })
        }
    };
    let mut all = (1..=builders).map(member).collect::<io::Result<Vec<_>>>()?;
    let mut publisher = start_member(Config { signs: count, ..machine(publish) })?;
    for member in all.iter_mut().chain([&mut publisher]) {
        member.wait("live", |progress| progress.is_live)?;
    }
    // Signing has just kept all cores busy.
    thread::sleep(Duration::from_millis(200));
    let sent = match transport {
        Transport::Stream => publisher.insert(Some(tps))?,
        Transport::Bare => publisher.send(servers, tps)?,
    };
    let timed: HashMap<_, _> = sent.iter().skip(WARM_UP).copied().collect();
    let mut times = histogram();
    for mut builder in all {
        builder.wait("the last order", |progress| progress.seen >= count)?;
        let seen = builder.finish()?;
        assert_eq!(seen.len(), count, "each once");
        for (hash, seen_at) in &seen {
            if let Some(sent_at) = timed.get(hash) {
                times.saturating_record(seen_at.saturating_sub(*sent_at).max(1));
            }
        }
    }
    assert_eq!(times.len() as usize, timed.len() * builders, "equal work");
    Ok(Times::from(&times))
}
