//! The conductor: runs a world, lets its timeline strike, and asks the oracle before each head.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    error::Error,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use devnet::{NatsCluster, NatsConfig};
use hdrhistogram::Histogram;
use mock_node::DEV_CHAIN_ID;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use testkit::{
    figures::{Times, histogram},
    process::Process,
    usage::now_ns,
};

use crate::{
    member::{Config, Member, Mirror, Report, Seen},
    net::Net,
    network::Network,
    oracle::{self, GRACE_NS, Message, Outcome, Time, Trouble, Wrong, due},
    scenario::attacks,
    searchers::{Searchers, Wish, known_signers},
    world::{Part, SLOT, What, World},
};

pub(crate) type Failure = Box<dyn Error>;

/// Different requests of an attacker: signing more would take the machine's time.
const MOST_REQUESTS: u64 = 2_000;
/// A member must come up within it.
const STARTED: Duration = Duration::from_secs(6);
/// Blocks whose transactions must stay away, and after which an order is forgotten.
const REMEMBERED: u64 = 30;

/// A bundle for the next block that comes later before its head may not reach the builders of a fleet in time.
const NEXT_BLOCK_NS: u64 = 500_000_000;
/// After it the use of memory is measured.
const FILLED: Duration = Duration::from_mins(5);

/// Something that is not as promised.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) wrong: Wrong,
    pub(crate) member: usize,
    pub(crate) hash: B256,
    pub(crate) text: String,
}

/// What a head was like, for the picture.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) at: Duration,
    pub(crate) orders_in: usize,
    pub(crate) live: Vec<usize>,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// What a run came to.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) violations: Vec<Violation>,
    pub(crate) heads: Vec<Head>,
    pub(crate) struck: Vec<(Duration, What)>,
    pub(crate) summary: String,
}

enum State {
    Up(Member),
    Stopped(Member),
    Down,
}

struct Seat {
    config: Config,
    state: State,
    /// Since when its pool exists.
    started: u64,
    kills: Vec<u64>,
    net: Option<Net>,
    address: Option<SocketAddr>,
    mirror: Mirror,
    /// When its builder saw the public transaction before.
    last_public: u64,
}

struct Run<'a> {
    world: &'a World,
    begin: Instant,
    network: Network,
    searchers: Arc<Searchers>,
    seats: Vec<Seat>,
    cluster: Option<NatsCluster>,
    troubles: Vec<Trouble>,
    /// What is done later: ends of what has struck.
    later: Vec<(Instant, After)>,
    attacks: Vec<JoinHandle<std::io::Result<attacks::Tally>>>,
    head: u64,
    checks: u64,
    /// Of this slot, and of all.
    late: [Histogram<u64>; 2],
    worst: u64,
    silence: u64,
    outcomes: Outcomes,
    is_quiet: bool,
}

#[derive(Debug)]
enum After {
    StartNode { node: usize, keeps_pool: bool },
    StartMember(usize),
    Continue(usize),
    StartServer(usize),
}

/// Runs until the end, or until the head at which something is wrong.
pub(crate) async fn run(world: &World, is_quiet: bool) -> Result<Outcomes, Failure> {
    let dir = tempfile::tempdir()?;
    let cluster = if world.has_fleet {
        let cluster = NatsCluster::start(dir.path(), 3, &NatsConfig::default())
            .map_err(|error| format!("this world has a fleet: {error}"))?;
        for flow in [Flow::Public, Flow::Private] {
            let stream = StreamConfig { replicas: 3, ..StreamConfig::new(flow, DEV_CHAIN_ID) };
            ensure_stream(&ServerConfig::cluster(cluster.urls()), &stream).await?;
        }
        Some(cluster)
    } else {
        None
    };
    let network = Network::start(dir.path(), world)?;
    let servers = cluster.as_ref().map_or_else(Vec::new, NatsCluster::urls);
    let mut seats = Vec::new();
    for (number, plan) in world.members.iter().enumerate() {
        let path = |node: &usize| -> PathBuf { dir.path().join(format!("node-{node}.ipc")) };
        let config = Config {
            nodes: plan.nodes.iter().map(path).collect(),
            rpc: plan.has_rpc.then(known_signers),
            name: format!("member-{number}"),
            publishes_to: if plan.has_rpc { servers.clone() } else { Vec::new() },
            reads_from: if plan.reads_fleet { servers.clone() } else { Vec::new() },
            takes_objects: number % 2 == 1,
            is_slow: plan.is_slow,
            has_heads: number == 0,
        };
        let (member, address) = Member::start(&config)?;
        let net = if plan.has_rpc { Some(Net::open().await?) } else { None };
        if let Some(net) = &net {
            net.leads_to(address);
        }
        seats.push(Seat {
            config,
            state: State::Up(member),
            started: now_ns(),
            kills: Vec::new(),
            net,
            address,
            mirror: Mirror::default(),
            last_public: 0,
        });
    }
    let machines = seats.iter().enumerate();
    let machines = machines.filter_map(|(at, seat)| Some((at, seat.net.as_ref()?.address)));
    let searchers = Searchers::start(machines.collect(), world.seed, world.searchers_tps);
    let run = Run {
        world,
        begin: Instant::now(),
        network,
        searchers,
        seats,
        cluster,
        troubles: Vec::new(),
        later: Vec::new(),
        attacks: Vec::new(),
        head: 0,
        checks: 0,
        late: [histogram(), histogram()],
        worst: 0,
        silence: 0,
        outcomes: Outcomes::default(),
        is_quiet,
    };
    tokio::task::block_in_place(|| run.conduct())
}

impl Run<'_> {
    fn say(&self, text: &str) {
        if !self.is_quiet {
            println!("{:7.1} s  {text}", self.begin.elapsed().as_secs_f64());
        }
    }

    fn conduct(mut self) -> Result<Outcomes, Failure> {
        let timeline = self.world.timeline.clone();
        let mut timeline = timeline.into_iter().peekable();
        let mut next_head = self.begin + SLOT;
        while self.begin.elapsed() < self.world.lasts && self.outcomes.violations.is_empty() {
            // Just before the head: what the builder has when the block comes.
            let look_at = next_head - SLOT / 6;
            while Instant::now() < look_at {
                while let Some((_, what)) = timeline.next_if(|(at, _)| self.begin.elapsed() >= *at)
                {
                    self.strike(what)?;
                }
                let due: Vec<_> =
                    self.later.extract_if(.., |(at, _)| *at <= Instant::now()).collect();
                for (_, after) in due {
                    self.end(after)?;
                }
                thread::sleep(Duration::from_millis(10));
            }
            self.look()?;
            let private = self.private_for_block();
            self.head = self.network.mine(&private)?;
            self.searchers.head.store(self.head, Relaxed);
            next_head = (next_head + SLOT).max(Instant::now() + SLOT / 2);
        }
        self.searchers.stop.store(true, Relaxed);
        self.measure();
        self.summarize();
        Ok(std::mem::take(&mut self.outcomes))
    }

    /// The block contains a part of what searchers sent, as if a builder had won it.
    fn private_for_block(&self) -> Vec<alloy_primitives::Bytes> {
        let next = self.head + 1;
        let mut log = self.searchers.log();
        let recent = log.wishes.len().saturating_sub(1_000);
        let mut chosen = Vec::new();
        for wish in &mut log.wishes[recent..] {
            let is_sure = wish.messages.iter().all(|message| message.outcome == Outcome::Accepted)
                && wish.messages.last().is_some_and(|message| message.makes.is_some());
            let is_drawn = wish.tx[31].is_multiple_of(4);
            if is_sure && is_drawn && wish.mined.is_none() && wish.block == Some(next) {
                wish.mined = Some(next);
                chosen.push(wish.raw.clone());
            }
        }
        chosen
    }

    fn strike(&mut self, what: What) -> Result<(), Failure> {
        let (now, now_at) = (now_ns(), Instant::now());
        match what {
            What::Node(node, fault) => _ = self.network.with(node, |node| node.inject(fault)),
            What::RestartNode { node, down, keeps_pool } => {
                if self.network.with(node, |_| ()).is_none() {
                    return Ok(());
                }
                self.network.stop_node(node);
                self.later.push((now_at + down, After::StartNode { node, keeps_pool }));
            }
            What::Lag { node, time } => {
                self.network.lag(node, now_at + time);
                // At its end the node hears of all at once, also of reorgs that others had told.
                let from = now + time.as_nanos() as u64;
                let until = from + (SLOT * 3).as_nanos() as u64;
                let members = self.world.members.iter().enumerate();
                let readers = members.filter(|(_, plan)| plan.nodes.contains(&node));
                let trouble = |(at, _)| Trouble { part: Part::Member(at), from, until };
                self.troubles.extend(readers.map(trouble));
            }
            What::Reorg { depth } => {
                let undone: HashSet<_> = self.network.reorg(depth).into_iter().collect();
                for wish in &mut self.searchers.log().wishes {
                    wish.is_void |= undone.contains(&wish.tx);
                }
            }
            What::Burst { count } => self.network.burst(count),
            What::Kill { member, down } => {
                let seat = &mut self.seats[member];
                let State::Up(running) = &seat.state else { return Ok(()) };
                kill(pid(running), Signal::SIGKILL)?;
                seat.state = State::Down;
                seat.kills.push(now);
                if let Some(net) = &seat.net {
                    net.leads_to(None);
                }
                self.later.push((now_at + down, After::StartMember(member)));
            }
            What::Stop { member, time } => {
                let seat = &mut self.seats[member];
                match std::mem::replace(&mut seat.state, State::Down) {
                    State::Up(running) => {
                        kill(pid(&running), Signal::SIGSTOP)?;
                        seat.state = State::Stopped(running);
                        self.later.push((now_at + time, After::Continue(member)));
                    }
                    other => {
                        seat.state = other;
                        return Ok(());
                    }
                }
            }
            What::KillServer { leader, down } => {
                let Some(cluster) = &mut self.cluster else { return Ok(()) };
                // A second one would take the majority.
                if cluster.servers().iter().any(|server| server.pid().is_none()) {
                    return Ok(());
                }
                let leads = cluster.stream_leader(&stream_name(Flow::Private, DEV_CHAIN_ID));
                let server = (0..3).find(|at| (Some(*at) == leads) == leader).unwrap_or(0);
                cluster.server(server).kill9()?;
                self.later.push((now_at + down, After::StartServer(server)));
            }
            What::StallNet { member, time } => self.net(member, |net| net.stall(now_at + time)),
            What::ResetNet { member } => self.net(member, Net::reset),
            What::HalfClose { member } => self.net(member, Net::half_close),
            What::Attack { attack, member, time, addresses } => {
                let Some(server) = self.seats[member].address else { return Ok(()) };
                self.attacks.push(thread::spawn(move || {
                    let mut attacker = Process::spawn(attacks::ROLE)?;
                    let prepare = attacks::Request::Prepare(attack, MOST_REQUESTS);
                    attacker.request::<attacks::Tally>(&prepare)?;
                    attacker.request(&attacks::Request::Run { server, lasts: time, addresses })
                }));
            }
        }
        if let Some((part, bound)) = what.touches(self.world.tps) {
            self.troubles.push(Trouble { part, from: now, until: now + bound.as_nanos() as u64 });
        }
        self.troubles.sort_by_key(|trouble| trouble.from);
        self.say(&what.to_string());
        self.outcomes.struck.push((self.begin.elapsed(), what));
        Ok(())
    }

    fn net(&self, member: usize, act: impl FnOnce(&Net)) {
        if let Some(net) = &self.seats[member].net {
            act(net);
        }
    }

    fn end(&mut self, after: After) -> Result<(), Failure> {
        match after {
            After::StartNode { node, keeps_pool } => self.network.start_node(node, keeps_pool)?,
            After::StartMember(at) => {
                let seat = &mut self.seats[at];
                let (member, address) = Member::start(&seat.config)?;
                (seat.state, seat.address) = (State::Up(member), address);
                (seat.started, seat.mirror) = (now_ns(), Mirror::default());
                if let Some(net) = &seat.net {
                    net.leads_to(address);
                }
                let until = seat.started + STARTED.as_nanos() as u64;
                self.troubles.push(Trouble { part: Part::Member(at), from: seat.started, until });
            }
            After::Continue(at) => {
                let seat = &mut self.seats[at];
                if let State::Stopped(member) = std::mem::replace(&mut seat.state, State::Down) {
                    kill(pid(&member), Signal::SIGCONT)?;
                    seat.state = State::Up(member);
                }
            }
            After::StartServer(at) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.server(at).spawn()?;
                }
            }
        }
        self.say(&format!("{after:?}"));
        Ok(())
    }

    /// Asks all builders, and the oracle about each.
    fn look(&mut self) -> Result<(), Failure> {
        let held: Vec<_> = (0..self.world.nodes).map(|node| self.network.held(node)).collect();
        let now = now_ns();
        for seat in &mut self.seats {
            if let State::Up(member) = &mut seat.state {
                member.ask()?;
            }
        }
        let mut reports = Vec::new();
        for (at, seat) in self.seats.iter_mut().enumerate() {
            if let State::Up(member) = &mut seat.state {
                let report = member.report().map_err(|error| format!("member {at}: {error}"))?;
                reports.push((at, report));
            }
        }
        self.late[0].reset();
        for (at, report) in &reports {
            self.take(*at, report);
        }
        for (at, report) in reports {
            self.judge(at, &report, &held, now);
        }
        let now_late = Times::from(&self.late[0]);
        let live: Vec<_> = self.seats.iter().map(|seat| seat.mirror.len()).collect();
        let (orders_in, accepted) = (self.network.ledger().txs.len(), self.accepted());
        self.outcomes.heads.push(Head {
            at: self.begin.elapsed(),
            orders_in: orders_in + accepted as usize,
            live: live.clone(),
            p50_ms: now_late.p50 / 1e3,
            p99_ms: now_late.p99 / 1e3,
        });
        self.say(&format!(
            "before head {}: {orders_in} transactions and {accepted} searchers' messages in; builders hold {live:?}; p50 {:.1} ms, p99 {:.1} ms; {} checks, {} violations",
            self.head + 1,
            now_late.p50 / 1e3,
            now_late.p99 / 1e3,
            self.checks,
            self.outcomes.violations.len()
        ));
        self.forget();
        Ok(())
    }

    fn accepted(&self) -> u64 {
        let log = self.searchers.log();
        ["new", "replaced", "cancelled"].iter().filter_map(|kind| log.counts.get(*kind)).sum()
    }

    /// What a builder saw since the look before.
    fn take(&mut self, at: usize, report: &Report) {
        let ledger = self.network.ledger();
        let ours: HashSet<B256> = {
            let log = self.searchers.log();
            let recent = log.wishes.len().saturating_sub(3_000);
            log.wishes[recent..].iter().flat_map(Wish::versions).collect()
        };
        let seat = &mut self.seats[at];
        for (seen_at, seen, hash) in &report.seen {
            let Some(tx) = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]) else { continue };
            if *seen != Seen::Added || seat.mirror.lives.contains_key(hash) {
                continue;
            }
            let late = seen_at.saturating_sub(tx.at);
            // What was announced before it came up is no measure of it.
            if tx.at < seat.started {
                continue;
            }
            self.worst = self.worst.max(late);
            let mut way: Vec<_> =
                self.world.members[at].nodes.iter().map(|node| Part::Node(*node)).collect();
            way.extend([Part::Member(at), Part::Fleet]);
            if !seat.config.is_slow && due(tx.at, &way, &self.troubles) == tx.at + GRACE_NS {
                self.late.iter_mut().for_each(|late| late.saturating_record(*seen_at - tx.at));
                if seat.last_public > seat.started {
                    self.silence = self.silence.max(seen_at.saturating_sub(seat.last_public));
                }
            }
            seat.last_public = *seen_at;
        }
        seat.mirror.take(report, |hash| ledger.by_hash.contains_key(hash) || ours.contains(hash));
    }

    /// The ways of a node's transactions to a builder.
    fn ways(&self, at: usize) -> Vec<(usize, Vec<Part>)> {
        let plan = &self.world.members[at];
        if !plan.reads_fleet {
            let way = |node: &usize| (*node, vec![Part::Node(*node), Part::Member(at)]);
            return plan.nodes.iter().map(way).collect();
        }
        let machines = self.world.members.iter().enumerate().filter(|(_, plan)| plan.has_rpc);
        let way = |(machine, plan): (usize, &crate::world::MemberPlan)| {
            let parts =
                |node| vec![Part::Node(node), Part::Member(machine), Part::Fleet, Part::Member(at)];
            plan.nodes.iter().map(|node| (*node, parts(*node))).collect::<Vec<_>>()
        };
        machines.flat_map(way).collect()
    }

    fn judge(&mut self, at: usize, report: &Report, held: &[Option<Vec<(B256, u64)>>], now: u64) {
        if !report.is_current {
            self.say(&format!("member {at} reads what came before: not judged"));
            return;
        }
        let (seat, plan) = (&self.seats[at], &self.world.members[at]);
        let mirror = &seat.mirror;
        let mut wrong: BTreeMap<(Wrong, B256), ()> = BTreeMap::new();
        let mut checks = 0;
        let ways = self.ways(at);
        let first_start = |way: &[Part]| {
            let started = way.iter().filter_map(|part| match part {
                Part::Member(member) => Some(self.seats[*member].started),
                _ => None,
            });
            started.max().unwrap_or_default()
        };
        for (node, way) in &ways {
            let Some(held) = held.get(*node).and_then(Option::as_ref) else { continue };
            let started = first_start(way);
            for (hash, since) in held {
                let due = due((*since).max(started), way, &self.troubles);
                checks += u64::from(due <= now);
                // The chain is what the node that leads has told: what is mined there is not pending.
                let is_mined = || plan.nodes.iter().any(|node| self.network.has_mined(*node, hash));
                if let Some(what) = oracle::pending(due, now, mirror.has(hash))
                    && !is_mined()
                {
                    wrong.insert((what, *hash), ());
                }
            }
        }
        let own: Vec<_> = ways.iter().flat_map(|(_, way)| way.clone()).collect();
        let known_since = |block: u64| mirror.reached(block);
        let ledger = self.network.ledger();
        for tx in ledger.txs.iter().rev().take(30_000) {
            let Some((block, mined_at)) =
                tx.mined.filter(|(block, _)| block + REMEMBERED > self.head)
            else {
                continue;
            };
            let Some(reached) = known_since(block) else { continue };
            let due = due(reached.max(mined_at), &own, &self.troubles);
            checks += u64::from(due <= now);
            if let Some(what) = oracle::mined(due, now, mirror.has(&tx.hash)) {
                wrong.insert((what, tx.hash), ());
            }
        }
        drop(ledger);
        let log = self.searchers.log();
        let recent = log.wishes.len().saturating_sub(1_500);
        for wish in log.wishes[recent..].iter().filter(|wish| !wish.is_void) {
            let messages = self.messages(at, wish, seat.started);
            if messages.is_empty() {
                continue;
            }
            checks += 1;
            let Some(block) = wish.block else {
                // A machine that it is sent to has it at once; elsewhere it must come before the head that ends it.
                let Message { makes, outcome, due } = messages[0];
                let hash = makes.unwrap_or_default();
                let answered = wish.messages[0].answered.min(now);
                let next = mirror.heads.iter().find(|(_, at)| *at > answered);
                let has_time = next.is_none_or(|(_, at)| at - answered > NEXT_BLOCK_NS);
                let is_due =
                    outcome == Outcome::Accepted && due <= now && due == answered + GRACE_NS;
                if is_due && has_time && !mirror.lives.contains_key(&hash) {
                    wrong.insert((Wrong::Missing, hash), ());
                }
                continue;
            };
            let end = wish.mined.map_or(block, |mined| mined.min(block));
            let time = match known_since(end) {
                Some(reached) if due(reached, &own, &self.troubles) <= now => Time::Over,
                Some(_) => Time::Ending,
                None if self.head >= end => Time::Ending,
                None => Time::Open,
            };
            let there: Vec<_> = wish.versions().filter(|version| mirror.has(version)).collect();
            if let Some(what) = oracle::order(&messages, now, time, &there) {
                let hash = there.first().copied().or(wish.versions().last());
                wrong.insert((what, hash.unwrap_or_default()), ());
            }
        }
        drop(log);
        let differs = report.sizes.is_some_and(|(view, pool)| view != pool);
        if report.balance != 0 || differs {
            wrong.insert((Wrong::Counts, B256::ZERO), ());
        }
        self.checks += checks;
        let texts: Vec<_> = wrong
            .into_keys()
            .map(|(wrong, hash)| {
                let text = self.life(at, &hash, report);
                Violation { wrong, member: at, hash, text }
            })
            .collect();
        self.outcomes.violations.extend(texts);
    }

    /// What a searcher has said of an order, as far as this builder must have heard of it.
    fn messages(&self, at: usize, wish: &Wish, started: u64) -> Vec<Message> {
        let plan = &self.world.members[at];
        let of = |sent: &crate::searchers::Sent| {
            if !plan.reads_fleet {
                if sent.machine != at || !plan.has_rpc {
                    return None;
                }
                // A restart loses everything.
                if sent.answered < started || sent.answered == u64::MAX && sent.sent < started {
                    return None;
                }
                let due = due(sent.answered.min(u64::MAX / 2), &[Part::Member(at)], &self.troubles);
                return Some(Message { makes: sent.makes, outcome: sent.outcome, due });
            }
            let way = [Part::Fleet, Part::Member(sent.machine), Part::Member(at)];
            let answered = sent.answered.min(u64::MAX / 2);
            let published = due(answered, &way[..2], &self.troubles);
            // What a machine had accepted and not published when it was killed is lost.
            let kills = &self.seats[sent.machine].kills;
            let is_lost = kills.iter().any(|kill| (answered..published).contains(kill));
            let outcome = match sent.outcome {
                Outcome::Accepted if is_lost => Outcome::InDoubt,
                outcome => outcome,
            };
            Some(Message {
                makes: sent.makes,
                outcome,
                due: due(answered.max(started), &way, &self.troubles),
            })
        };
        wish.messages.iter().filter_map(of).collect()
    }

    /// An order's life as each part knows it.
    fn life(&self, at: usize, hash: &B256, report: &Report) -> String {
        if hash.is_zero() {
            let (balance, sizes) = (report.balance, report.sizes);
            return format!(
                "balance of hashes {balance}, orders in the builder's view and in the pool {sizes:?}"
            );
        }
        let mut lines = Vec::new();
        let seconds = |ns: u64| {
            (ns as f64 - (now_ns() as f64 - self.begin.elapsed().as_nanos() as f64)) / 1e9
        };
        let ledger = self.network.ledger();
        if let Some(tx) = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]) {
            lines.push((seconds(tx.at), "announced".to_owned()));
            if let Some((block, at)) = tx.mined {
                lines.push((seconds(at), format!("mined in block {block}")));
            }
        }
        drop(ledger);
        for node in 0..self.world.nodes {
            let is_held = self.network.with(node, |node| node.pending().contains(hash));
            lines.push((
                self.begin.elapsed().as_secs_f64(),
                format!("node {node} holds it: {is_held:?}"),
            ));
        }
        let log = self.searchers.log();
        for wish in log.wishes.iter().filter(|wish| wish.versions().any(|version| version == *hash))
        {
            for sent in &wish.messages {
                let what =
                    sent.makes.map_or("cancelled".to_owned(), |makes| format!("made {makes}"));
                lines.push((
                    seconds(sent.sent),
                    format!(
                        "searcher {}: {what} at member {}, {:?} {}, private {}, block {:?}",
                        wish.searcher,
                        sent.machine,
                        sent.outcome,
                        sent.answer,
                        wish.is_private,
                        wish.block
                    ),
                ));
            }
            if let Some(block) = wish.mined {
                lines.push((f64::NAN, format!("mined in block {block}")));
            }
        }
        drop(log);
        for (member, seat) in self.seats.iter().enumerate() {
            for (when, seen) in seat.mirror.lives.get(hash).into_iter().flatten() {
                lines.push((seconds(*when), format!("member {member}: {seen:?}")));
            }
        }
        let mirror = &self.seats[at].mirror;
        lines.push((
            seconds(self.seats[at].started),
            format!("member {at} started; its head is {:?}", mirror.heads.last()),
        ));
        for trouble in &self.troubles {
            lines.push((
                seconds(trouble.from),
                format!("{:?} is touched until {:.1} s", trouble.part, seconds(trouble.until)),
            ));
        }
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.iter().map(|(at, line)| format!("    {at:8.3} s  {line}\n")).collect()
    }

    /// What no rule asks about any more.
    fn forget(&mut self) {
        let ledger = self.network.ledger();
        let head = self.head;
        for seat in &mut self.seats {
            seat.mirror.lives.retain(|hash, seen| {
                let tx = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]);
                match tx {
                    Some(tx) => tx.mined.is_none_or(|(block, _)| block + REMEMBERED > head),
                    None => seen.last().is_some_and(|(at, _)| now_ns() - at < 200_000_000_000),
                }
            });
        }
        drop(ledger);
        let now = now_ns();
        // One that is over touches nothing that is still judged: what is pending for longer was judged before.
        self.troubles.retain(|trouble| trouble.until + 300_000_000_000 > now);
        self.troubles.sort_by_key(|trouble| trouble.from);
    }

    /// What memory, files and threads have become, where the run was long enough to tell.
    fn measure(&mut self) {
        for (member, seat) in self.seats.iter().enumerate() {
            // Fewer orders are not remembered for ever before.
            let filled = seat.started + FILLED.as_nanos() as u64;
            let late = seat.mirror.uses.iter().filter(|(at, _)| *at > filled);
            let uses: Vec<_> = late.map(|(_, uses)| *uses).collect();
            if let Some(wrong) = (uses.len() > 60).then(|| oracle::grown(&uses)).flatten() {
                let text = format!("{:?} to {:?}", uses.first(), uses.last());
                self.outcomes.violations.push(Violation { wrong, member, hash: B256::ZERO, text });
            }
        }
    }

    fn summarize(&mut self) {
        let mut tallies = Vec::new();
        for attack in self.attacks.drain(..) {
            match attack.join() {
                Ok(Ok(tally)) => tallies.push(tally),
                other => eprintln!("warning: an attacker ended early: {other:?}"),
            }
        }
        let log = self.searchers.log();
        let times = Times::from(&self.late[1]);
        let answers = Times::from(&log.took);
        let is_attack = |(_, what): &&(Duration, What)| what.is_attack();
        let attacks = self.outcomes.struck.iter().filter(is_attack).count();
        let builders = self.seats.len();
        let missed: u64 = self.seats.iter().map(|seat| seat.mirror.missed).sum();
        let names: BTreeSet<_> = self.seats.iter().map(|seat| &seat.config.name).collect();
        let refused: BTreeMap<_, _> = log
            .counts
            .iter()
            .filter(|(name, _)| name.starts_with("refused") || *name == "no answer")
            .collect();
        let sent: u64 = tallies.iter().map(|tally| tally.sent).sum();
        self.outcomes.summary = format!(
            "seed {}, {:.1} minutes: {} transactions and {} searchers' messages in, {} nodes, {builders} builders{}, {} heads; {} checks, {} violations; \
             announced to builder p50 {:.1} ms, p99 {:.1} ms, longest silence {:.1} s, worst beside a fault {:.1} s; answers p99 {:.1} ms; \
             {} faults, {attacks} attacks with {sent} requests; slow builders missed {missed} events and began again; honest callers: {refused:?}",
            self.world.seed,
            self.begin.elapsed().as_secs_f64() / 60.0,
            self.network.ledger().txs.len(),
            ["new", "replaced", "cancelled"]
                .iter()
                .filter_map(|kind| log.counts.get(*kind))
                .sum::<u64>(),
            self.world.nodes,
            if self.world.has_fleet { " of a fleet" } else { "" },
            self.head,
            self.checks,
            self.outcomes.violations.len(),
            times.p50 / 1e3,
            times.p99 / 1e3,
            self.silence as f64 / 1e9,
            self.worst as f64 / 1e9,
            answers.p99 / 1e3,
            self.outcomes.struck.len() - attacks,
        );
        debug_assert_eq!(names.len(), builders);
    }
}

fn pid(member: &Member) -> Pid {
    Pid::from_raw(member.0.id() as i32)
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // A stopped process would never see that its stdin is closed.
        for seat in &self.seats {
            if let State::Stopped(member) = &seat.state {
                _ = kill(pid(member), Signal::SIGCONT);
            }
        }
    }
}
