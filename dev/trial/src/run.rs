//! The conductor: runs a world, lets its incidents happen, and asks the oracle before each head.

mod facts;
mod lasting;
mod summary;

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use hdrhistogram::Histogram;
use mock_node::Fault;
use nix::sys::signal::Signal;
use testkit::{
    figures::{Times, histogram},
    member::{Config, Member, Setup},
    process::Process,
    usage::now_ns,
};

use crate::{
    attack::{self, Attack},
    builder_view::BuilderView,
    command::UnreadCommand,
    fleet::Fleet,
    host::{self, Host},
    link::{self, Link},
    network::{Network, OLD_BLOCKS},
    oracle::{
        self, Breach, Disturbance, GRACE_NS, Kept, Outcome, Violation, deadline, is_disturbed,
    },
    real::RealNodes,
    searchers::{Searchers, known_signers},
    world::{
        BACKFILLED_PER_S, DIALLED, IDLE, IMPORT, Incident, MemberPlan, NEVER_WORKED, Part, SLOT,
        UNQUIRKED, World,
    },
};

use lasting::Conditions;

pub(crate) type Failure = Box<dyn Error>;

/// A member must come up within this time.
const STARTED: Duration = Duration::from_secs(6);

/// The conductor, which hardly works, is never this late for want of a core alone: the machine
/// stood still.
const STOOD_STILL: Duration = Duration::from_millis(300);

/// A node that has lost everything is down for this long.
const NODE_DOWN: Duration = Duration::from_millis(500);

/// The time between two steps of an import.
const IMPORT_STEP: Duration = Duration::from_millis(100);

/// What the picture shows of a check before a head.
#[derive(Clone, Debug)]
pub(crate) struct HeadRow {
    pub(crate) time: Duration,
    /// Transactions and searchers' messages so far.
    pub(crate) orders: usize,
    /// The number of orders that each builder holds.
    pub(crate) held: Vec<usize>,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    pub(crate) violations: Vec<Violation>,
    pub(crate) heads: Vec<HeadRow>,
    pub(crate) incidents: Vec<(Duration, Incident)>,
    pub(crate) summary: String,
    /// The sum over all attackers.
    pub(crate) attack: attack::Tally,
    /// Orders that had to be held before a head and were: of the node, of unknown signers and of
    /// known ones.
    pub(crate) kept: [Kept; 3],
    /// Messages of honest searchers that were refused or not answered: of unknown signers, and of
    /// known ones.
    pub(crate) refused: [u64; 2],
    /// The time from when a message was due to its answer: of unknown signers, and of known ones.
    pub(crate) answer_times: [Times; 2],
    pub(crate) health_times: Times,
    /// The time from the announcement to a builder.
    pub(crate) announcement_times: Times,
    /// Resident memory of the first member at the first check, and the most afterwards, in bytes.
    pub(crate) resident_bytes: [usize; 2],
}

/// A member of the world, with what the conductor knows of it.
#[derive(Default)]
struct RunningMember {
    config: Config,
    /// `None` while it is down.
    process: Option<Member>,
    /// By SIGSTOP.
    is_stopped: bool,
    /// Whether it gets no further files and threads, so that it could not even look at its own.
    is_starved: bool,
    host: Option<Host>,
    /// Since when it remembers: since its start, or since its node began another chain.
    remembers_since: u64,
    /// When its node last began another chain.
    reset_at: u64,
    /// Since when its sources must have noticed that their subscriptions never worked.
    judged_from: u64,
    kills: Vec<u64>,
    /// The link from the searchers to its RPC server.
    link: Option<Link>,
    /// The address of its RPC server.
    server: Option<SocketAddr>,
    view: BuilderView,
    /// What its publishers reported at the last check, and when.
    published: (u64, Vec<(u64, u64)>),
}

impl RunningMember {
    fn start(&mut self) -> io::Result<()> {
        let (process, server) = Member::start(&self.config)?;
        (self.process, self.server) = (Some(process), server);
        (self.remembers_since, self.view) = (now_ns(), BuilderView::default());
        self.published = Default::default();
        self.connect_searchers(server);
        Ok(())
    }

    /// Whether it cannot answer the conductor.
    const fn is_mute(&self) -> bool {
        self.is_stopped || self.is_starved
    }

    /// Returns its process, unless that is down or cannot answer.
    fn answering(&mut self) -> Option<&mut Member> {
        let is_mute = self.is_mute();
        self.process.as_mut().filter(|_| !is_mute)
    }

    /// Connects the link from the searchers to this server, or to none.
    fn connect_searchers(&self, server: Option<SocketAddr>) {
        if let Some(link) = &self.link {
            link.change(|state| state.server = server);
        }
    }
}

struct Run<'a> {
    world: &'a World,
    begin: Instant,
    network: Network,
    searchers: Arc<Searchers>,
    members: Vec<RunningMember>,
    fleet: Option<Fleet>,
    real: RealNodes,
    command: Option<UnreadCommand>,
    disturbances: Vec<Disturbance>,
    /// When each node had recovered from its last incident, or became half-broken after it. Unlike
    /// in `disturbances`, it takes no longer because of a half-broken node.
    settled_at: Vec<u64>,
    /// What happens later: the ends of incidents.
    scheduled: Vec<(Instant, Recovery)>,
    /// An attacker that has signed its requests before the run began.
    prepared_attacker: Option<Process>,
    attackers: Vec<JoinHandle<io::Result<attack::Tally>>>,
    head: u64,
    /// No block comes before this time.
    blocks_from: Instant,
    /// The chain leaves this many blocks before the next head, and comes back.
    flip_depth: usize,
    /// Whether the next block contains the transaction that bundles share, and whether the latest
    /// ones do.
    mines_shared: bool,
    is_shared_mined: bool,
    /// When a reorg last made the shared transaction pending again.
    shared_undone_at: u64,
    /// The chain's heads, each with the time before it was announced.
    chain_heads: Vec<(u64, u64)>,
    /// When a head was last announced, if a reorg left it and came back to it or replaced it.
    reannounced_at: HashMap<u64, u64>,
    checks: u64,
    /// The time from the announcement to builders that are not slow: since the last check, and of
    /// all that no fault disturbed.
    latencies: [Histogram<u64>; 2],
    worst_latency_ns: u64,
    conditions: Conditions,
    result: RunResult,
    is_quiet: bool,
}

/// The end of an incident.
#[derive(Debug)]
enum Recovery {
    EndQuirk(usize),
    CorrectClock(usize),
    RefuseResources { member: usize, time: Duration },
    GiveResources(usize),
    StartNode { node: usize, keeps_pool: bool },
    StartImport { node: usize, says: bool },
    Import(usize),
    StartOtherGenesis { node: usize, time: Duration },
    ReturnToGenesis(usize),
    StartMember(usize),
    Continue(usize),
    RecoverServer,
    EmptyDisk,
}

/// Runs until the end, or until the head before which a promise is broken.
pub(crate) fn run(world: &World, is_quiet: bool) -> Result<RunResult, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(start(world, is_quiet))
}

async fn start(world: &World, is_quiet: bool) -> Result<RunResult, Failure> {
    let folder = tempfile::tempdir()?;
    let has =
        |wanted: fn(&Incident) -> bool| world.timeline.iter().any(|(_, incident)| wanted(incident));
    let fleet = if world.has_fleet {
        let has_disks = has(|incident| matches!(incident, Incident::FillDisk { .. }));
        Some(Fleet::start(folder.path(), world.members.len(), has_disks).await?)
    } else {
        None
    };
    let real = if world.has_real {
        RealNodes::start(folder.path(), world.seed)?
    } else {
        RealNodes::default()
    };
    let network = Network::start(folder.path(), world)?;
    let announced = network.ledger().txs.len();
    // A single attack begins at full strength, and is signed before anybody is measured.
    let prepared_attacker = match first_attack(world) {
        Some(attack) if world.setup != Setup::Small => {
            let target = target(world, &network, OLD_BLOCKS, announced);
            Some(prepare_attacker(attack, world.most_requests, target)?)
        }
        _ => None,
    };
    let library = has(Incident::needs_host).then(|| host::compile(folder.path())).transpose()?;
    let mut members = Vec::new();
    for (number, plan) in world.members.iter().enumerate() {
        let servers = fleet.as_ref().map_or_else(Vec::new, |fleet| fleet.urls(number));
        let page = folder.path().join(format!("host-{number}"));
        let host = library.as_deref().map(|library| Host::new(library, page)).transpose()?;
        let config = Config {
            variables: host.as_ref().map(Host::variables).unwrap_or_default(),
            ..member_config(folder.path(), world, number, plan, &servers)
        };
        let link = if plan.has_rpc { Some(Link::open(world.link_delay).await?) } else { None };
        let mut member = RunningMember { config, link, host, ..RunningMember::default() };
        member.start()?;
        members.push(member);
    }
    let node = folder.path().join("node-0.ipc");
    let command = world.has_command.then(|| UnreadCommand::start(&node)).transpose()?;
    let machines = members.iter().enumerate();
    let machines =
        machines.filter_map(|(number, member)| Some((number, member.link.as_ref()?.address)));
    let shared_tx = network.shared_tx.clone();
    let searchers = Searchers::start(machines.collect(), OLD_BLOCKS, shared_tx, world);
    let starts = members.iter().enumerate();
    let starts =
        starts.map(|(number, member)| startup(number, member.remembers_since, Duration::ZERO));
    let run = Run {
        world,
        begin: Instant::now(),
        network,
        searchers,
        disturbances: starts.collect(),
        settled_at: vec![0; world.nodes],
        members,
        fleet,
        real,
        command,
        scheduled: Vec::new(),
        prepared_attacker,
        attackers: Vec::new(),
        head: OLD_BLOCKS,
        blocks_from: Instant::now(),
        flip_depth: 0,
        mines_shared: false,
        is_shared_mined: false,
        shared_undone_at: 0,
        chain_heads: Vec::new(),
        reannounced_at: HashMap::new(),
        checks: 0,
        latencies: [histogram(), histogram()],
        worst_latency_ns: 0,
        conditions: Conditions::default(),
        result: RunResult::default(),
        is_quiet,
    };
    tokio::task::block_in_place(|| run.conduct())
}

fn member_config(
    folder: &Path,
    world: &World,
    number: usize,
    plan: &MemberPlan,
    servers: &[String],
) -> Config {
    let path = |node: &usize| -> PathBuf { folder.join(format!("node-{node}.ipc")) };
    let servers_if = |is_used: bool| if is_used { servers.to_vec() } else { Vec::new() };
    Config {
        nodes: plan.nodes.iter().map(path).collect(),
        rpc: plan.has_rpc.then(known_signers),
        name: format!("member-{number}"),
        publishes_to: servers_if(plan.has_rpc),
        reads_from: servers_if(plan.reads_fleet),
        takes_objects: number % 2 == 1 || world.setup != Setup::Small,
        is_slow: plan.is_slow,
        has_heads: number == 0,
        trusted_proxies: vec![attack::PROXY.into()],
        trusted_fronts: vec![attack::FRONT.into()],
        setup: world.setup,
        ..Config::default()
    }
}

/// Returns the attack of a world that has one attack, before anything else.
fn first_attack(world: &World) -> Option<Attack> {
    match world.timeline.first() {
        Some((_, Incident::Attack { attack, .. })) => Some(*attack),
        _ => None,
    }
}

fn target(world: &World, network: &Network, head: u64, announced: usize) -> attack::Target {
    attack::Target {
        head,
        seed: world.seed,
        blobs_per_mille: [world.blobs_per_mille, world.six_blobs_per_mille],
        announced,
        shared_tx: network.shared_tx.as_ref().map(|(_, raw)| raw.clone()),
    }
}

/// Starts an attacker's process, which signs its requests.
fn prepare_attacker(
    attack: Attack,
    most_requests: u64,
    target: attack::Target,
) -> io::Result<Process> {
    let mut attacker = Process::spawn(attack::ROLE)?;
    let prepare = attack::Request::Prepare { attack, most_requests, target };
    attacker.request::<attack::Tally>(&prepare)?;
    Ok(attacker)
}

/// Returns the time in which a member starts and fetches what was pending before.
const fn startup(member: usize, started_at: u64, backfill: Duration) -> Disturbance {
    Disturbance::new(Part::Member(member), started_at, STARTED.saturating_add(backfill))
}

impl Run<'_> {
    fn print(&self, text: &str) {
        if !self.is_quiet {
            println!("{:7.1} s  {text}", self.begin.elapsed().as_secs_f64());
        }
    }

    fn conduct(mut self) -> Result<RunResult, Failure> {
        let timeline = self.world.timeline.clone();
        let mut timeline = timeline.into_iter().peekable();
        let mut next_head = self.begin + SLOT;
        while self.begin.elapsed() < self.world.duration && self.result.violations.is_empty() {
            // The check is just before the head: what the builder holds when the block comes.
            let check_at = next_head - SLOT / 6;
            while Instant::now() < check_at {
                while let Some((_, incident)) =
                    timeline.next_if(|(time, _)| self.begin.elapsed() >= *time)
                {
                    self.strike(incident)?;
                }
                let now = Instant::now();
                let due: Vec<_> = self.scheduled.extract_if(.., |(time, _)| *time <= now).collect();
                for (_, recovery) in due {
                    self.recover(recovery)?;
                }
                self.real.end_faults()?;
                let hosts = self.members.iter().filter_map(|member| member.host.as_ref());
                hosts.filter(|host| host.is_drifting()).try_for_each(Host::write_offset)?;
                self.rest();
            }
            self.check_builders()?;
            self.check_real()?;
            self.check_command();
            if Instant::now() >= self.blocks_from {
                self.advance_chain()?;
            }
            next_head = (next_head + SLOT).max(Instant::now() + SLOT / 2);
        }
        self.searchers.must_stop.store(true, Relaxed);
        self.end_command()?;
        self.judge_growth();
        self.summarize()?;
        Ok(std::mem::take(&mut self.result))
    }

    /// Judges the command by what its node lists.
    fn check_command(&mut self) {
        let Some(command) = &self.command else { return };
        let node = Part::Node(0);
        let Some(listed) = self.network.listed(0) else { return };
        let deadline = |since| {
            let started = deadline(since, &[node], &self.disturbances);
            started.max(command.started_at() + STARTED.as_nanos() as u64 + GRACE_NS)
        };
        let facts = command.facts(&listed, deadline, |hash| self.network.has_mined(0, hash));
        let verdict = oracle::judge(&facts);
        self.checks += verdict.checks;
        for (breach, hash) in verdict.breaches {
            self.push_command_violation(breach, hash);
        }
    }

    fn end_command(&mut self) -> Result<(), Failure> {
        if let Some(command) = &mut self.command
            && !command.end()?
        {
            self.push_command_violation(Breach::Unstoppable, B256::ZERO);
        }
        Ok(())
    }

    /// Adds a violation of the command, which is numbered after the members.
    fn push_command_violation(&mut self, breach: Breach, hash: B256) {
        let story = "    the command whose log nobody reads\n".to_owned();
        let member = self.members.len();
        self.result.violations.push(Violation { breach, member, hash, story });
    }

    fn check_real(&mut self) -> Result<(), Failure> {
        let check = self.real.check(self.members.len(), &mut self.disturbances)?;
        self.result.violations.extend(check.violations);
        self.checks += check.checks;
        if !check.text.is_empty() {
            self.print(&check.text);
        }
        Ok(())
    }

    /// Mines a block and announces its head.
    fn advance_chain(&mut self) -> Result<(), Failure> {
        let private = self.private_for_block();
        let flip_depth = std::mem::take(&mut self.flip_depth);
        self.reannounce(flip_depth, now_ns());
        self.chain_heads.push((self.head + 1, now_ns()));
        if flip_depth > 0 {
            self.network.flip_back(flip_depth)?;
        }
        let mines_shared = std::mem::take(&mut self.mines_shared);
        self.is_shared_mined |= mines_shared;
        self.head = self.network.mine(&private, self.world.mines, mines_shared)?;
        self.searchers.head.store(self.head, Relaxed);
        Ok(())
    }

    /// Sleeps for a moment, and notices whether the machine stood still meanwhile, as a shared one
    /// does now and then: nobody can be in time then.
    fn rest(&mut self) {
        let begins = now_ns();
        thread::sleep(Duration::from_millis(10));
        let elapsed = Duration::from_nanos(now_ns() - begins);
        if elapsed > STOOD_STILL {
            self.print(&format!("the machine stood still for {:.1} s", elapsed.as_secs_f64()));
            Disturbance::new(Part::All, begins, elapsed).add_to(&mut self.disturbances);
        }
    }

    /// Returns the transactions of searchers that the next block contains, as if a builder had won
    /// it.
    fn private_for_block(&self) -> Vec<alloy_primitives::Bytes> {
        let next = self.head + 1;
        let mut log = self.searchers.log();
        let recent = log.orders.len().saturating_sub(1_000);
        let mut chosen = Vec::new();
        for order in &mut log.orders[recent..] {
            let is_sure = order.messages.iter().all(|sent| sent.outcome == Outcome::Accepted)
                && order.messages.last().is_some_and(|sent| sent.content.is_some());
            let is_drawn = order.tx[31].is_multiple_of(4);
            if is_sure && is_drawn && order.mined_in.is_none() && order.block == Some(next) {
                order.mined_in = Some(next);
                chosen.push(order.raw.clone());
            }
        }
        chosen
    }

    /// Lets an incident happen. One that finds its victim down or struck already has no effect.
    fn strike(&mut self, incident: Incident) -> Result<(), Failure> {
        let now = now_ns();
        let disturbance = self.disturbance(&incident, now);
        if !self.has_struck(incident, now)? {
            return Ok(());
        }
        if let Some(disturbance) = disturbance {
            disturbance.add_to(&mut self.disturbances);
        }
        if let Some((Part::Node(node), duration)) = incident.disturbs(self.world.tps) {
            let is_quirk = matches!(incident, Incident::Quirk { .. });
            let ends = now + if is_quirk { 0 } else { duration.as_nanos() as u64 };
            self.settled_at[node] = self.settled_at[node].max(ends);
        }
        self.print(&format!("{incident:?}"));
        self.result.incidents.push((self.begin.elapsed(), incident));
        Ok(())
    }

    /// Returns what an incident delays, and for how long. A node that is half broken takes long to
    /// recover from anything else.
    fn disturbance(&self, incident: &Incident, now: u64) -> Option<Disturbance> {
        let (part, mut duration) = incident.disturbs(self.world.tps)?;
        if let Part::Node(node) = part {
            let is_alone = !is_disturbed(now, &[part], &self.disturbances);
            match incident.disturbs_alone() {
                Some(short) if is_alone => duration = short,
                _ if self.network.quirk(node).is_some() => duration = duration.max(UNQUIRKED),
                _ => {}
            }
        }
        Some(Disturbance::new(part, now, duration))
    }

    fn schedule(&mut self, delay: Duration, recovery: Recovery) {
        self.scheduled.push((Instant::now() + delay, recovery));
    }

    /// Lets an incident happen. Returns whether it had an effect.
    fn has_struck(&mut self, incident: Incident, now: u64) -> Result<bool, Failure> {
        match incident {
            Incident::Node(node, fault) => self.network.inject(node, fault),
            Incident::RestartNode { node, down, keeps_pool } => {
                if !self.network.stop_node(node) {
                    return Ok(false);
                }
                self.schedule(down, Recovery::StartNode { node, keeps_pool });
            }
            Incident::Lag { node, time } => {
                self.network.lag(node, Instant::now() + time);
                self.disturb_readers(node, time, SLOT * 3);
            }
            Incident::Import { node, says } => {
                if !self.network.stop_node(node) {
                    return Ok(false);
                }
                self.schedule(NODE_DOWN, Recovery::StartImport { node, says });
                self.disturb_readers(node, NODE_DOWN + IMPORT, SLOT * 3);
            }
            Incident::OtherGenesis { node, time } => {
                if !self.network.stop_node(node) {
                    return Ok(false);
                }
                self.schedule(NODE_DOWN, Recovery::StartOtherGenesis { node, time });
                self.disturb_readers(node, Duration::ZERO, NODE_DOWN + time + DIALLED + STARTED);
            }
            Incident::Reorg { depth } => {
                self.reannounce(depth, now);
                let undone: HashSet<_> = self.network.reorg(depth).into_iter().collect();
                for order in &mut self.searchers.log().orders {
                    order.is_void |= undone.contains(&order.tx);
                }
                let shared = self.network.shared_tx.as_ref();
                if shared.is_some_and(|(hash, _)| undone.contains(hash)) {
                    (self.is_shared_mined, self.shared_undone_at) = (false, now);
                }
            }
            Incident::FlipBack { depth } => self.flip_depth = depth,
            Incident::Burst { count } => self.network.burst(count),
            Incident::MineShared => self.mines_shared = true,
            Incident::Kill { member, down } => return self.kill(member, down, now),
            Incident::Replace { member: number, down } => {
                // Without a stream that stores, a shutdown publishes until its deadline and no
                // longer.
                let is_disturbed = deadline(now, &[Part::Fleet], &self.disturbances);
                let may_lose = is_disturbed > now + GRACE_NS;
                let member = &mut self.members[number];
                let is_mute = member.is_mute();
                let process = member.process.take_if(|_| !is_mute);
                let Some(process) = process else { return Ok(false) };
                process.finish()?;
                member.kills.extend(may_lose.then(now_ns));
                member.connect_searchers(None);
                self.schedule(down, Recovery::StartMember(number));
            }
            Incident::Stop { member: number, time } => {
                let member = &mut self.members[number];
                let Some(process) = member.answering() else { return Ok(false) };
                process.signal(Signal::SIGSTOP)?;
                member.is_stopped = true;
                self.schedule(time, Recovery::Continue(number));
            }
            Incident::KillServer { leader, down } => {
                let Some(fleet) = &mut self.fleet else { return Ok(false) };
                if fleet.kill(leader)?.is_none() {
                    return Ok(false);
                }
                self.schedule(down, Recovery::RecoverServer);
            }
            Incident::StopServer { leader, time } => {
                let Some(fleet) = &mut self.fleet else { return Ok(false) };
                if fleet.stop(leader)?.is_none() {
                    return Ok(false);
                }
                self.schedule(time, Recovery::RecoverServer);
            }
            Incident::CutServer { server, time } => {
                let Some(fleet) = &mut self.fleet else { return Ok(false) };
                if !fleet.cut(server, Instant::now() + time) {
                    return Ok(false);
                }
                self.schedule(time, Recovery::RecoverServer);
            }
            Incident::ResetServer { server } => {
                let Some(fleet) = &self.fleet else { return Ok(false) };
                fleet.reset(server);
            }
            Incident::FillDisk { server, time } => {
                let Some(fleet) = &mut self.fleet else { return Ok(false) };
                if !fleet.fill_disk(server)? {
                    return Ok(false);
                }
                self.schedule(time, Recovery::EmptyDisk);
            }
            Incident::Quirk { node, quirk, time } => {
                if !self.network.begin_quirk(node, quirk) {
                    return Ok(false);
                }
                self.schedule(time, Recovery::EndQuirk(node));
            }
            Incident::SilentStart { member, down } => {
                if !self.kill(member, down, now)? {
                    return Ok(false);
                }
                let noticed_after = (down + NEVER_WORKED).as_nanos() as u64;
                self.members[member].judged_from = now + noticed_after;
                let subscriptions = 1 + u32::from(self.members[member].config.takes_objects);
                let fault = Fault::SilenceSubscriptions { subscriptions };
                let nodes = &self.world.members[member].nodes;
                nodes.iter().for_each(|node| self.network.inject(*node, fault));
            }
            Incident::CutMember { member, time } => {
                let Some(fleet) = &self.fleet else { return Ok(false) };
                fleet.cut_member(member, Instant::now() + time);
            }
            Incident::Clock { member, fault, time } => {
                let Some(host) = &mut self.members[member].host else { return Ok(false) };
                host.disturb_clock(fault)?;
                self.schedule(time, Recovery::CorrectClock(member));
            }
            Incident::RefuseResources { member, time } => {
                return self.refuse_resources(member, time);
            }
            Incident::RefuseAfterIdle { member, time } => {
                // Without blocks, searchers send more orders than the share of an address holds.
                if Instant::now() < self.blocks_from + IDLE {
                    return Ok(false);
                }
                self.blocks_from = Instant::now() + IDLE;
                self.schedule(IDLE, Recovery::RefuseResources { member, time });
            }
            Incident::Real(node, fault) => self.real.strike(node, fault)?,
            Incident::StallLink { member, time } => {
                self.change_link(member, |link| link.stalled_until = Instant::now() + time);
            }
            Incident::ResetLink { member } => self.change_link(member, |link| link.resets += 1),
            Incident::HalfClose { member } => {
                self.change_link(member, |link| link.half_closes += 1);
            }
            Incident::Attack { attack, member, time, addresses } => {
                let Some(server) = self.members[member].server else { return Ok(false) };
                let prepared = self.prepared_attacker.take();
                let announced = self.network.ledger().txs.len();
                let target = target(self.world, &self.network, self.head, announced);
                let most_requests = self.world.most_requests;
                self.attackers.push(thread::spawn(move || {
                    let mut attacker = match prepared {
                        Some(attacker) => attacker,
                        None => prepare_attacker(attack, most_requests, target)?,
                    };
                    attacker.request(&attack::Request::Run { server, duration: time, addresses })
                }));
            }
        }
        Ok(true)
    }

    /// Returns the longest time in which a member fetches all pending transactions of a distant
    /// node.
    fn backfill_time(&self) -> Duration {
        if self.world.node_delay.is_zero() {
            return Duration::ZERO;
        }
        let pending = |node| self.network.with(node, |node| node.pending().len());
        let most = (0..self.world.nodes).filter_map(pending).max().unwrap_or(0);
        Duration::from_secs(most as u64 / BACKFILLED_PER_S)
    }

    /// Kills a member, which starts again after a while. Returns false if it does not answer.
    fn kill(&mut self, number: usize, down: Duration, now: u64) -> Result<bool, Failure> {
        let member = &mut self.members[number];
        let Some(process) = member.answering() else { return Ok(false) };
        process.signal(Signal::SIGKILL)?;
        member.process = None;
        member.kills.push(now);
        member.connect_searchers(None);
        self.schedule(down, Recovery::StartMember(number));
        Ok(true)
    }

    /// Refuses further files and threads to a member for a while. Returns false if it does not
    /// answer.
    fn refuse_resources(&mut self, number: usize, time: Duration) -> Result<bool, Failure> {
        let member = &mut self.members[number];
        let Some(process) = member.answering() else { return Ok(false) };
        process.refuse_files(true)?;
        member.is_starved = true;
        member.host.as_ref().map_or(Ok(()), |host| host.refuse_threads(true))?;
        self.schedule(time, Recovery::GiveResources(number));
        Ok(true)
    }

    /// Records that the latest heads are announced again: the builders leave them and come back.
    fn reannounce(&mut self, depth: usize, now: u64) {
        let latest = self.chain_heads.iter().rev().take(depth);
        self.reannounced_at.extend(latest.map(|(number, _)| (*number, now)));
    }

    /// Records that the members that read a node are late for a while, from `delay` on: the node
    /// announces at once what the others had announced meanwhile, reorgs too.
    fn disturb_readers(&mut self, node: usize, delay: Duration, duration: Duration) {
        let begins = now_ns() + delay.as_nanos() as u64;
        for (number, plan) in self.world.members.iter().enumerate() {
            if plan.nodes.contains(&node) {
                let part = Part::Member(number);
                Disturbance::new(part, begins, duration).add_to(&mut self.disturbances);
            }
        }
    }

    /// Records that the members that read a node forget what they knew: it begins another chain.
    /// An order of a searcher may still be there.
    fn forget_at_readers(&mut self, node: usize) {
        let mut log = self.searchers.log();
        for (number, plan) in self.world.members.iter().enumerate() {
            if plan.nodes.contains(&node) {
                let member = &mut self.members[number];
                (member.remembers_since, member.reset_at) = (now_ns(), now_ns());
                for order in &mut log.orders {
                    order.is_void |= order.messages.iter().any(|sent| sent.machine == number);
                }
            }
        }
    }

    fn change_link(&self, member: usize, change: impl FnOnce(&mut link::State)) {
        if let Some(link) = &self.members[member].link {
            link.change(change);
        }
    }

    /// Ends an incident.
    fn recover(&mut self, recovery: Recovery) -> Result<(), Failure> {
        match recovery {
            Recovery::StartNode { node, keeps_pool } => {
                self.network.start_node(node, keeps_pool)?;
            }
            Recovery::StartImport { node, says } => {
                self.network.start_import(node, says)?;
                self.schedule(Duration::ZERO, Recovery::Import(node));
            }
            Recovery::Import(node) => {
                if self.network.import(node) {
                    self.schedule(IMPORT_STEP, Recovery::Import(node));
                }
                return Ok(());
            }
            Recovery::StartOtherGenesis { node, time } => {
                self.network.start_other_genesis(node)?;
                self.forget_at_readers(node);
                self.schedule(time, Recovery::ReturnToGenesis(node));
            }
            Recovery::ReturnToGenesis(node) => {
                self.network.stop_node(node);
                self.network.start_node(node, true)?;
                self.forget_at_readers(node);
            }
            Recovery::StartMember(number) => {
                let backfill = self.backfill_time();
                let member = &mut self.members[number];
                member.start()?;
                let started_at = member.remembers_since;
                startup(number, started_at, backfill).add_to(&mut self.disturbances);
            }
            Recovery::Continue(member) => {
                let member = &mut self.members[member];
                member.is_stopped = false;
                member.process.iter().try_for_each(|process| process.signal(Signal::SIGCONT))?;
            }
            Recovery::EndQuirk(node) => self.network.end_quirk(node),
            Recovery::RefuseResources { member, time } => {
                self.refuse_resources(member, time)?;
            }
            Recovery::CorrectClock(member) => {
                self.members[member].host.as_mut().map_or(Ok(()), Host::correct_clock)?;
            }
            Recovery::GiveResources(member) => {
                let member = &mut self.members[member];
                member.is_starved = false;
                member.host.as_ref().map_or(Ok(()), |host| host.refuse_threads(false))?;
                if let Some(process) = &mut member.process {
                    process.refuse_files(false)?;
                }
            }
            Recovery::RecoverServer => {
                self.fleet.as_mut().map_or(Ok(()), Fleet::recover)?;
            }
            Recovery::EmptyDisk => {
                self.fleet.as_mut().map_or(Ok(()), Fleet::empty_disk)?;
            }
        }
        self.print(&format!("{recovery:?}"));
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // A stopped process would never see that its stdin is closed.
        let stopped = self.members.iter().filter(|member| member.is_stopped);
        for process in stopped.flat_map(|member| &member.process) {
            _ = process.signal(Signal::SIGCONT);
        }
    }
}
