//! Three servers, two machines that ingest from two nodes, four builders; servers, a publisher and a builder are killed
//! with SIGKILL meanwhile. In the end all builders hold what the machines pooled.

use std::{
    collections::{HashMap, HashSet},
    io, thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use devnet::{NatsCluster, NatsConfig};
use testkit::{
    figures::{Table, histogram, quantile_us},
    usage::now_ns,
};

use crate::{
    member::{Feed, MACHINES, Member, Publish},
    nodes::{Announced, Nodes},
    servers::{reset_streams, stored_in, stream},
};

const BUILDERS: usize = 4;

/// Longest wait for the last order.
const LAST: Duration = Duration::from_secs(120);

/// An order that is this late is the trace of a failure.
const LATE: Duration = Duration::from_millis(500);

/// The load of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Of both nodes together: what only one of them announces counts once, as what both do.
    pub(crate) tps: u32,
    pub(crate) time: Duration,
    /// Time between two kills of a server. None: nothing is killed.
    pub(crate) kill_every: Option<Duration>,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Whoever leads the stream, or somebody else.
    KillServer {
        leader: bool,
    },
    RestartServer,
    KillPublisher,
    RestartPublisher,
    KillBuilder,
    RestartBuilder,
}

/// A kill, and when.
struct Kill {
    what: String,
    at: u64,
}

struct Fleet {
    cluster: NatsCluster,
    nodes: Nodes,
    ingests: Vec<Option<Member>>,
    builders: Vec<Option<Member>>,
    down: Option<usize>,
    kills: Vec<Kill>,
    /// A restarted builder: its number, since when, and what the others had then.
    catching_up: Option<(usize, Instant, usize)>,
    begin: Instant,
}

impl Fleet {
    fn start(folder: &std::path::Path, count: usize) -> io::Result<Self> {
        let cluster = NatsCluster::start(folder, 3, &NatsConfig::default());
        let cluster = cluster.map_err(io::Error::other)?;
        reset_streams(&cluster.urls(), 3)?;
        let nodes = Nodes::start(count)?;
        let mut fleet = Self {
            cluster,
            nodes,
            ingests: Vec::new(),
            builders: Vec::new(),
            down: None,
            kills: Vec::new(),
            catching_up: None,
            begin: Instant::now(),
        };
        for number in 0..MACHINES.len() {
            let ingest = fleet.ingest(number)?;
            fleet.ingests.push(Some(ingest));
        }
        for number in 0..BUILDERS {
            let builder = fleet.builder(number)?;
            fleet.builders.push(Some(builder));
        }
        for member in fleet.ingests.iter_mut().chain(&mut fleet.builders).flatten() {
            member.wait("live", LAST, |look| look.is_live)?;
        }
        Ok(fleet)
    }

    fn ingest(&self, number: usize) -> io::Result<Member> {
        let machine = MACHINES[number].to_owned();
        let publish = Publish { servers: self.cluster.urls(), machine };
        Member::start(Feed::Node(self.nodes.path(number)), Some(publish))
    }

    fn builder(&self, number: usize) -> io::Result<Member> {
        Member::builder(&self.cluster.urls(), number)
    }

    fn act(&mut self, action: Action) -> io::Result<()> {
        match action {
            Action::KillServer { leader } => {
                let led = self.cluster.stream_leader(&stream());
                let next = (0..self.cluster.servers().len()).find(|at| Some(*at) != led);
                let Some(at) = (if leader { led } else { next }) else { return Ok(()) };
                let role = if led == Some(at) { ", which led the stream," } else { "" };
                let name = self.cluster.servers()[at].name().to_owned();
                self.note(format!("server {name}{role}"));
                self.cluster.server(at).kill9().map_err(io::Error::other)?;
                self.down = Some(at);
            }
            Action::RestartServer => {
                if let Some(at) = self.down.take() {
                    self.cluster.server(at).spawn().map_err(io::Error::other)?;
                }
            }
            Action::KillPublisher => {
                self.note(MACHINES[0].to_owned());
                self.ingests[0].take().map_or(Ok(()), Member::kill9)?;
            }
            Action::RestartPublisher => self.ingests[0] = Some(self.ingest(0)?),
            Action::KillBuilder => {
                self.note("builder-0".to_owned());
                self.builders[0].take().map_or(Ok(()), Member::kill9)?;
            }
            Action::RestartBuilder => {
                let others = match &mut self.builders[1] {
                    Some(builder) => builder.look()?.seen,
                    None => 0,
                };
                self.catching_up = Some((0, Instant::now(), others));
                self.builders[0] = Some(self.builder(0)?);
            }
        }
        Ok(())
    }

    fn note(&mut self, what: String) {
        println!("{:6.1} s: killed {what}", self.begin.elapsed().as_secs_f64());
        self.kills.push(Kill { what, at: now_ns() });
    }

    /// Whether the restarted builder has what the others had.
    fn look_at_restarted(&mut self) -> io::Result<()> {
        let Some((number, since, target)) = self.catching_up else { return Ok(()) };
        let Some(builder) = &mut self.builders[number] else { return Ok(()) };
        if builder.look()?.seen >= target {
            let after = since.elapsed();
            println!(
                "        builder-{number} had {target} orders again {after:.1?} after its start"
            );
            self.catching_up = None;
        }
        Ok(())
    }
}

/// What is done when. Servers come back after a quarter of the time between two kills.
fn schedule(load: &Load) -> Vec<(Duration, Action)> {
    let Some(every) = load.kill_every else { return Vec::new() };
    let mut actions = Vec::new();
    for number in 1.. {
        let at = every * number;
        if at + every > load.time {
            break;
        }
        actions.push((at, Action::KillServer { leader: number % 2 == 1 }));
        actions.push((at + every / 4, Action::RestartServer));
    }
    let half = |periods: u32| every * periods + every / 2;
    actions.push((half(2), Action::KillPublisher));
    actions.push((half(2) + every / 10, Action::RestartPublisher));
    actions.push((half(3), Action::KillBuilder));
    actions.push((half(3) + every / 10, Action::RestartBuilder));
    actions.sort_by_key(|(at, _)| *at);
    actions
}

/// Runs one load and compares the sets.
///
/// # Panics
/// When a builder lacks an order, has one twice, or something is not accounted for.
pub(crate) fn run(load: Load) -> io::Result<Outcome> {
    let count = (f64::from(load.tps) * load.time.as_secs_f64()) as usize;
    let folder = tempfile::tempdir()?;
    let mut fleet = Fleet::start(folder.path(), count)?;
    println!("\n== {BUILDERS} builders, {} machines, {load:?} ==", MACHINES.len());
    fleet.begin = Instant::now();
    fleet.nodes.announce(load.tps)?;
    for (at, action) in schedule(&load) {
        while fleet.begin.elapsed() < at {
            fleet.look_at_restarted()?;
            thread::sleep(Duration::from_millis(20));
        }
        fleet.act(action)?;
    }
    while fleet.begin.elapsed() < load.time {
        fleet.look_at_restarted()?;
        thread::sleep(Duration::from_millis(20));
    }
    let announced = fleet.nodes.finish()?;
    let ended = Instant::now();
    for builder in fleet.builders.iter_mut().flatten() {
        builder.wait("every order", LAST, |look| look.seen >= count)?;
    }
    println!("all builders had all orders {:.1?} after the last announcement", ended.elapsed());
    check(fleet, &announced)
}

fn check(fleet: Fleet, announced: &[Announced]) -> io::Result<Outcome> {
    let mut pooled: HashSet<B256> = HashSet::new();
    for (number, ingest) in fleet.ingests.into_iter().enumerate() {
        let Some(mut ingest) = ingest else { continue };
        ingest.wait("acknowledged", LAST, |look| look.publisher.unfinished == 0)?;
        let report = ingest.report()?;
        let own: HashSet<_> = report.seen.iter().map(|(hash, _)| *hash).collect();
        let node: HashSet<_> =
            announced.iter().filter(|tx| tx.by[number]).map(|tx| tx.hash).collect();
        assert!(own == node, "{} pooled what its node announced", MACHINES[number]);
        let counts = report.publisher;
        println!("{}: pooled {}, {counts:?}", MACHINES[number], own.len());
        assert!(counts.is_balanced() && counts.unfinished == 0, "{counts:?}");
        pooled.extend(own);
    }
    let (messages, bytes) = stored_in(&fleet.cluster)?;
    println!(
        "the stream: {messages} messages, {bytes} bytes; the union of the pools: {}",
        pooled.len()
    );
    assert_eq!(messages, pooled.len() as u64, "each order is stored once");
    let at: HashMap<_, _> = announced.iter().map(|tx| (tx.hash, tx.at)).collect();
    let restarted = fleet.kills.iter().find(|kill| kill.what == "builder-0").map(|kill| kill.at);
    let mut times = histogram();
    let mut arrivals = Vec::new();
    let mut table =
        Table::new(["", "orders", "missing", "not of the union", "twice", "received", "known"]);
    for (number, builder) in fleet.builders.into_iter().enumerate() {
        let Some(builder) = builder else { continue };
        let report = builder.report()?;
        let own: HashSet<_> = report.seen.iter().map(|(hash, _)| *hash).collect();
        let twice = report.seen.len() - own.len();
        let (missing, extra) = (pooled.difference(&own).count(), own.difference(&pooled).count());
        let source = report.source;
        table.row([
            format!("builder-{number}"),
            own.len().to_string(),
            missing.to_string(),
            extra.to_string(),
            twice.to_string(),
            source.received.to_string(),
            source.known.to_string(),
        ]);
        assert_eq!((missing, extra, twice), (0, 0, 0), "builder-{number}: {source:?}");
        assert!(source.is_balanced(), "builder-{number}: {source:?}");
        for (hash, seen) in &report.seen {
            let announced = at[hash];
            // What a restarted builder replays was announced before.
            if number != 0 || restarted.is_none_or(|restarted| announced > restarted) {
                times.saturating_record(seen.saturating_sub(announced).max(1));
                arrivals.push((announced, *seen));
            }
        }
    }
    println!("{table}");
    recovery(&fleet.kills, &arrivals);
    let time = |quantile| Duration::from_nanos((quantile_us(&times, quantile) * 1e3) as u64);
    let outcome = Outcome { p50: time(0.5), p99: time(0.99), max: time(1.0) };
    println!(
        "from the announcement to a builder: p50 {:.1?}, p99 {:.1?}, at most {:.1?}",
        outcome.p50, outcome.p99, outcome.max
    );
    Ok(outcome)
}

/// How late the orders were that were announced between a kill and the next one.
fn recovery(kills: &[Kill], arrivals: &[(u64, u64)]) {
    for (number, kill) in kills.iter().enumerate() {
        let next = kills.get(number + 1).map_or(u64::MAX, |next| next.at);
        let window = || arrivals.iter().filter(|(at, _)| (kill.at..next).contains(at));
        let latest = window().map(|(at, seen)| seen.saturating_sub(*at)).max().unwrap_or(0);
        let late =
            window().filter(|(at, seen)| u128::from(seen.saturating_sub(*at)) > LATE.as_nanos());
        let recovered = late.map(|(_, seen)| seen.saturating_sub(kill.at)).max();
        let recovered = match recovered {
            Some(after) => format!(
                "the last late one arrived {:.1?} after the kill",
                Duration::from_nanos(after)
            ),
            None => format!("none by more than {LATE:?}"),
        };
        println!(
            "after the kill of {}: orders were late by at most {:.1?}; {recovered}",
            kill.what,
            Duration::from_nanos(latest)
        );
    }
}
