//! The conductor: runs a world, lets its timeline strike, and asks the oracle before each head.

mod judge;
mod questions;
mod summary;

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mock_node::DEV_CHAIN_ID;
use nix::sys::signal::Signal;
use order_stream::{Flow, ServerConfig, StreamConfig, ensure_stream, stream_name};
use testkit::{
    devnet::{NatsCluster, NatsConfig},
    figures::{Times, histogram},
    member::{Config, Member, Setup},
    process::Process,
    usage::now_ns,
};

use crate::{
    attack::{self, Attack},
    clock::{self, Clock},
    mirror::Mirror,
    net::{self, Net},
    network::{Network, OLD_BLOCKS},
    oracle::{GRACE_NS, Outcome, Trouble, Violation, due},
    real::RealNodes,
    searchers::{Searchers, known_signers},
    world::{IMPORT, Part, SLOT, What, World},
};

use questions::Before;

pub(crate) type Failure = Box<dyn Error>;

/// A member must come up within it.
const STARTED: Duration = Duration::from_secs(6);
/// The conductor, which hardly works, is never so late for want of a core alone.
const STOOD_STILL: Duration = Duration::from_millis(300);
/// A node that has lost everything is down for so long.
const STOPPED: Duration = Duration::from_millis(500);
/// Between its steps of an import, which are as many as fit into [`IMPORT`].
const IMPORTED_EACH: Duration = Duration::from_millis(100);
/// After it the use of memory is measured.
const FILLED: Duration = Duration::from_mins(5);

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
    /// Of the attackers, together.
    pub(crate) attack: attack::Tally,
    /// Messages of honest searchers that were refused or not answered: of unknown signers, and of known ones.
    pub(crate) refused: [u64; 2],
    /// From when a message was due to its answer: of unknown signers, and of known ones.
    pub(crate) answers: [Times; 2],
    pub(crate) health: Times,
    /// From the announcement to a builder.
    pub(crate) live: Times,
    /// Resident memory of the first member at the first look, and the most afterwards, in bytes.
    pub(crate) memory: [usize; 2],
}

#[derive(Default)]
struct Seat {
    config: Config,
    /// `None` while it is down.
    member: Option<Member>,
    /// By SIGSTOP.
    is_stopped: bool,
    /// It gets no further files and threads.
    is_refused: bool,
    clock: Option<Clock>,
    /// Since when its pool exists.
    started: u64,
    kills: Vec<u64>,
    net: Option<Net>,
    address: Option<SocketAddr>,
    mirror: Mirror,
}

impl Seat {
    fn start(&mut self) -> io::Result<()> {
        let (member, address) = Member::start(&self.config)?;
        (self.member, self.address) = (Some(member), address);
        (self.started, self.mirror) = (now_ns(), Mirror::default());
        self.lead_to(address);
        Ok(())
    }

    /// Whether it cannot answer: it is stopped, or could open no file to look into.
    const fn is_unasked(&self) -> bool {
        self.is_stopped || self.is_refused
    }

    /// Its process, if that is neither down nor unable to answer.
    fn running(&mut self) -> Option<&mut Member> {
        let is_unasked = self.is_unasked();
        self.member.as_mut().filter(|_| !is_unasked)
    }

    /// Where its searchers are led to.
    fn lead_to(&self, server: Option<SocketAddr>) {
        if let Some(net) = &self.net {
            net.change(|state| state.server = server);
        }
    }
}

struct Run<'a> {
    world: &'a World,
    begin: Instant,
    network: Network,
    searchers: Arc<Searchers>,
    seats: Vec<Seat>,
    cluster: Option<NatsCluster>,
    real: RealNodes,
    troubles: Vec<Trouble>,
    /// What is done later: ends of what has struck.
    later: Vec<(Instant, After)>,
    /// One that has signed what it will send, if it is there from the beginning.
    ready: Option<Process>,
    attacks: Vec<JoinHandle<io::Result<attack::Tally>>>,
    head: u64,
    /// So many blocks are left before the next one, and come back.
    flip: usize,
    /// The chain's heads, each with the time before it was told.
    told: Vec<(u64, u64)>,
    /// When a head was told for the last time, if a reorg left it and came back or replaced it.
    told_last: HashMap<u64, u64>,
    checks: u64,
    /// From the announcement to builders that are not slow: of this slot, and of what no fault touched.
    late: [Histogram<u64>; 2],
    worst: u64,
    /// What the further questions found before.
    before: Before,
    outcomes: Outcomes,
    is_quiet: bool,
}

#[derive(Debug)]
enum After {
    EndQuirk(usize),
    SetClock(usize),
    GiveResources(usize),
    StartNode { node: usize, keeps_pool: bool },
    StartImport { node: usize, says: bool },
    Import(usize),
    StartMember(usize),
    Continue(usize),
    StartServer(usize),
}

/// Runs until the end, or until the head at which something is wrong.
pub(crate) fn run(world: &World, is_quiet: bool) -> Result<Outcomes, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(start(world, is_quiet))
}

async fn start(world: &World, is_quiet: bool) -> Result<Outcomes, Failure> {
    let dir = tempfile::tempdir()?;
    let cluster = || NatsCluster::start(dir.path(), 3, &NatsConfig::default());
    let cluster = world.has_fleet.then(cluster).transpose();
    let cluster = cluster.map_err(|error| format!("this world has a fleet: {error}"))?;
    let servers = cluster.as_ref().map_or_else(Vec::new, NatsCluster::urls);
    for flow in [Flow::Public, Flow::Private].into_iter().filter(|_| world.has_fleet) {
        let stream = StreamConfig { replicas: 3, ..StreamConfig::new(flow, DEV_CHAIN_ID) };
        ensure_stream(&ServerConfig::cluster(&servers), &stream).await?;
    }
    let real = match world.has_real {
        true => RealNodes::start(dir.path(), world.seed)?,
        false => RealNodes::default(),
    };
    let network = Network::start(dir.path(), world)?;
    // Alone, it strikes at full strength from its first moment, and signs before anybody is measured.
    let ready = match world.timeline[..] {
        [(_, What::Attack { attack, .. })] if world.setup != Setup::Small => {
            Some(attacker(attack, world, OLD_BLOCKS, network.ledger().txs.len())?)
        }
        _ => None,
    };
    let has_clocks = world.timeline.iter().any(|(_, what)| matches!(what, What::Clock { .. }));
    let clocks = has_clocks.then(|| clock::compile(dir.path())).transpose()?;
    let mut seats = Vec::new();
    for (number, plan) in world.members.iter().enumerate() {
        let clock = clocks
            .as_deref()
            .map(|library| Clock::new(library, dir.path().join(format!("clock-{number}"))));
        let clock = clock.transpose()?;
        let path = |node: &usize| -> PathBuf { dir.path().join(format!("node-{node}.ipc")) };
        let config = Config {
            nodes: plan.nodes.iter().map(path).collect(),
            rpc: plan.has_rpc.then(known_signers),
            name: format!("member-{number}"),
            publishes_to: if plan.has_rpc { servers.clone() } else { Vec::new() },
            reads_from: if plan.reads_fleet { servers.clone() } else { Vec::new() },
            takes_objects: number % 2 == 1 || world.setup != Setup::Small,
            is_slow: plan.is_slow,
            has_heads: number == 0,
            trusted_proxies: vec![attack::PROXY.into()],
            trusted_fronts: vec![attack::FRONT.into()],
            variables: clock.as_ref().map(Clock::variables).unwrap_or_default(),
            setup: world.setup,
            ..Config::default()
        };
        let net = if plan.has_rpc { Some(Net::open(world.link).await?) } else { None };
        let mut seat = Seat { config, net, clock, ..Seat::default() };
        seat.start()?;
        seats.push(seat);
    }
    let machines = seats.iter().enumerate();
    let machines = machines.filter_map(|(at, seat)| Some((at, seat.net.as_ref()?.address)));
    let searchers = Searchers::start(machines.collect(), OLD_BLOCKS, world);
    let troubles = seats.iter().enumerate().map(|(at, seat)| starts(at, seat.started)).collect();
    let run = Run {
        world,
        begin: Instant::now(),
        network,
        searchers,
        seats,
        cluster,
        real,
        troubles,
        later: Vec::new(),
        ready,
        attacks: Vec::new(),
        head: OLD_BLOCKS,
        flip: 0,
        told: Vec::new(),
        told_last: HashMap::new(),
        checks: 0,
        late: [histogram(), histogram()],
        worst: 0,
        before: Before::default(),
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
                self.real.end_faults()?;
                let clocks = self.seats.iter().filter_map(|seat| seat.clock.as_ref());
                clocks.filter(|clock| clock.is_drifting()).try_for_each(Clock::tick)?;
                self.rest();
            }
            self.look()?;
            self.look_at_real()?;
            let private = self.private_for_block();
            let flip = std::mem::take(&mut self.flip);
            self.told_again(flip, now_ns());
            self.told.push((self.head + 1, now_ns()));
            if flip > 0 {
                self.network.flip_back(flip)?;
            }
            self.head = self.network.mine(&private, self.world.mines)?;
            self.searchers.head.store(self.head, Relaxed);
            next_head = (next_head + SLOT).max(Instant::now() + SLOT / 2);
        }
        self.searchers.stop.store(true, Relaxed);
        self.measure();
        self.summarize()?;
        Ok(std::mem::take(&mut self.outcomes))
    }

    fn look_at_real(&mut self) -> Result<(), Failure> {
        let (wrong, checks, text) = self.real.look(self.seats.len(), &mut self.troubles)?;
        self.outcomes.violations.extend(wrong);
        self.checks += checks;
        if !text.is_empty() {
            self.say(&text);
        }
        Ok(())
    }

    /// Looks whether the machine stands still meanwhile, as a shared one does now and then: nobody can be in time then.
    fn rest(&mut self) {
        let from = now_ns();
        thread::sleep(Duration::from_millis(10));
        let stood = Duration::from_nanos(now_ns() - from);
        if stood > STOOD_STILL {
            self.say(&format!("the machine stood still for {:.1} s", stood.as_secs_f64()));
            Trouble::new(Part::All, from, stood).add_to(&mut self.troubles);
        }
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
            What::Node(node, fault) => self.network.inject(node, fault),
            What::RestartNode { node, down, keeps_pool } => {
                if !self.network.stop_node(node) {
                    return Ok(());
                }
                self.later.push((now_at + down, After::StartNode { node, keeps_pool }));
            }
            What::Lag { node, time } => {
                self.network.lag(node, now_at + time);
                self.hears_all_at_once(node, time, now);
            }
            What::Import { node, says } => {
                if !self.network.stop_node(node) {
                    return Ok(());
                }
                self.later.push((now_at + STOPPED, After::StartImport { node, says }));
                self.hears_all_at_once(node, STOPPED + IMPORT, now);
            }
            What::Reorg { depth } => {
                self.told_again(depth, now);
                let undone: HashSet<_> = self.network.reorg(depth).into_iter().collect();
                for wish in &mut self.searchers.log().wishes {
                    wish.is_void |= undone.contains(&wish.tx);
                }
            }
            What::FlipBack { depth } => self.flip = depth,
            What::Burst { count } => self.network.burst(count),
            What::Kill { member, down } => {
                let seat = &mut self.seats[member];
                let Some(running) = seat.running() else { return Ok(()) };
                running.signal(Signal::SIGKILL)?;
                seat.member = None;
                seat.kills.push(now);
                seat.lead_to(None);
                self.later.push((now_at + down, After::StartMember(member)));
            }
            What::Replace { member, down } => {
                let way = [Part::Fleet];
                // Without a stream that stores it has until its deadline, and no longer.
                let may_lose = due(now, &way, &self.troubles) > now + GRACE_NS;
                let seat = &mut self.seats[member];
                let is_unasked = seat.is_unasked();
                let running = seat.member.take_if(|_| !is_unasked);
                let Some(running) = running else { return Ok(()) };
                running.finish()?;
                seat.kills.extend(may_lose.then(now_ns));
                seat.lead_to(None);
                self.later.push((Instant::now() + down, After::StartMember(member)));
            }
            What::Stop { member, time } => {
                let seat = &mut self.seats[member];
                let Some(running) = seat.running() else { return Ok(()) };
                running.signal(Signal::SIGSTOP)?;
                seat.is_stopped = true;
                self.later.push((now_at + time, After::Continue(member)));
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
            What::Quirk { node, quirk, time } => {
                self.network.set_quirk(node, Some(quirk));
                self.later.push((now_at + time, After::EndQuirk(node)));
            }
            What::Clock { member, fault, time } => {
                let Some(clock) = &mut self.seats[member].clock else { return Ok(()) };
                clock.strike(fault)?;
                self.later.push((now_at + time, After::SetClock(member)));
            }
            What::RefuseResources { member, time } => {
                let seat = &mut self.seats[member];
                let Some(running) = seat.running() else { return Ok(()) };
                running.refuse_resources(true)?;
                seat.is_refused = true;
                self.later.push((now_at + time, After::GiveResources(member)));
            }
            What::Real(node, fault) => self.real.strike(node, fault)?,
            What::StallNet { member, time } => {
                self.net(member, |net| net.stalls_until = now_at + time)
            }
            What::ResetNet { member } => self.net(member, |net| net.resets += 1),
            What::HalfClose { member } => self.net(member, |net| net.half_closes += 1),
            What::Attack { attack, member, time, addresses } => {
                let Some(server) = self.seats[member].address else { return Ok(()) };
                let (ready, world, head) = (self.ready.take(), self.world.clone(), self.head);
                let announced = self.network.ledger().txs.len();
                self.attacks.push(thread::spawn(move || {
                    let mut attacker =
                        ready.map_or_else(|| attacker(attack, &world, head, announced), Ok)?;
                    attacker.request(&attack::Request::Run { server, lasts: time, addresses })
                }));
            }
        }
        if let Some((part, bound)) = what.touches(self.world.tps) {
            Trouble::new(part, now, bound).add_to(&mut self.troubles);
        }
        self.say(&format!("{what:?}"));
        self.outcomes.struck.push((self.begin.elapsed(), what));
        Ok(())
    }

    /// The latest heads, which the builders leave and come to again.
    fn told_again(&mut self, depth: usize, now: u64) {
        let latest = self.told.iter().rev().take(depth);
        self.told_last.extend(latest.map(|(number, _)| (*number, now)));
    }

    /// After so long the node hears of all that the others had told, also of reorgs.
    fn hears_all_at_once(&mut self, node: usize, after: Duration, now: u64) {
        let from = now + after.as_nanos() as u64;
        for (at, plan) in self.world.members.iter().enumerate() {
            if plan.nodes.contains(&node) {
                Trouble::new(Part::Member(at), from, SLOT * 3).add_to(&mut self.troubles);
            }
        }
    }

    fn net(&self, member: usize, change: impl FnOnce(&mut net::State)) {
        if let Some(net) = &self.seats[member].net {
            net.change(change);
        }
    }

    fn end(&mut self, after: After) -> Result<(), Failure> {
        match after {
            After::StartNode { node, keeps_pool } => self.network.start_node(node, keeps_pool)?,
            After::StartImport { node, says } => {
                self.network.start_import(node, says)?;
                self.later.push((Instant::now(), After::Import(node)));
            }
            After::Import(node) => {
                if self.network.import(node) {
                    self.later.push((Instant::now() + IMPORTED_EACH, After::Import(node)));
                }
                return Ok(());
            }
            After::StartMember(at) => {
                let seat = &mut self.seats[at];
                seat.start()?;
                starts(at, seat.started).add_to(&mut self.troubles);
            }
            After::Continue(at) => {
                let seat = &mut self.seats[at];
                seat.is_stopped = false;
                seat.member.iter().try_for_each(|member| member.signal(Signal::SIGCONT))?;
            }
            After::EndQuirk(node) => self.network.set_quirk(node, None),
            After::SetClock(at) => {
                self.seats[at].clock.as_mut().map_or(Ok(()), Clock::set_right)?;
            }
            After::GiveResources(at) => {
                let seat = &mut self.seats[at];
                seat.is_refused = false;
                seat.member.as_mut().map_or(Ok(()), |member| member.refuse_resources(false))?;
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
}

/// A process that has signed what it will send.
fn attacker(attack: Attack, world: &World, head: u64, announced: usize) -> io::Result<Process> {
    let mut attacker = Process::spawn(attack::ROLE)?;
    let target = attack::Target { head, seed: world.seed, announced };
    let most_requests = world.most_requests;
    let prepare = attack::Request::Prepare { attack, most_requests, target };
    attacker.request::<attack::Tally>(&prepare)?;
    Ok(attacker)
}

const fn starts(member: usize, from: u64) -> Trouble {
    Trouble::new(Part::Member(member), from, STARTED)
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // A stopped process would never see that its stdin is closed.
        let stopped = self.seats.iter().filter(|seat| seat.is_stopped);
        for member in stopped.flat_map(|seat| &seat.member) {
            _ = member.signal(Signal::SIGCONT);
        }
    }
}
