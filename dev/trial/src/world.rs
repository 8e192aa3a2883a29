//! Derives a world from a seed: who takes part, and which incidents happen when. Pure.

use std::time::Duration;

use mock_node::{BadAnswer, Fault, Target, workload::Mix};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use testkit::{devnet::RealNodeKind, member::Setup};

use crate::{
    attack::{Addresses, Attack},
    hazard::NodeQuirk,
    host::ClockFault,
};

/// The time between two heads. Short, so that many orders see their block.
pub(crate) const SLOT: Duration = Duration::from_secs(3);

/// The longest time until a member has compared itself with a node and fetched what it lacked: the
/// audit interval ([`testkit::member::AUDIT`]), its jitter, and the fetches.
const AUDITED: Duration = Duration::from_secs(25);

/// The longest time until a member has recovered from a dead connection: one that is silent is
/// closed after ten seconds, or twenty while the node lists its pool, dialled again within one, and
/// then a comparison follows.
const DEAD: Duration = Duration::from_secs(30);

/// The longest time until a member has recovered from a closed connection: it is dialled again with
/// a backoff of at most a second, and compared. Deferrable work waits for at most five seconds.
pub(crate) const DIALLED: Duration = Duration::from_secs(9);

/// What a member fetches of a node that answers after 20 ms, on a busy machine: half of the 500 a
/// second that the fetcher aims at.
pub(crate) const BACKFILLED_PER_S: u64 = 250;

/// The longest time that a real node takes to answer after its start, on a busy machine.
const STARTS: Duration = Duration::from_secs(5);

/// The longest time until the consequences of a bad response are repaired by a comparison.
pub(crate) const ANSWERED: Duration = DIALLED.saturating_add(AUDITED);

/// The longest time until everything is repaired that a half-broken node has caused.
pub(crate) const UNQUIRKED: Duration = DEAD.saturating_add(ANSWERED);

/// The longest time until a comparison, and the requests before it, have found what is missing.
pub(crate) const COMPARED: Duration = AUDITED;

/// The time that a node takes to import the old blocks.
pub(crate) const IMPORT: Duration = Duration::from_secs(4);

/// The time without a block after which an idle thread of a pool may have ended: tokio keeps one
/// for ten seconds.
pub(crate) const IDLE: Duration = Duration::from_secs(11);

/// The longest time until a source has noticed that its subscription never worked: a comparison
/// finds what is missing, and a second one of five seconds that it is not announced.
pub(crate) const NEVER_WORKED: Duration = DIALLED.saturating_add(AUDITED).saturating_add(DIALLED);

/// The longest time until a publisher or a source works over another server than one that is
/// silent.
const NEXT_SERVER: Duration = Duration::from_secs(6);

/// A run is long enough for a verdict on memory from here on.
const LONG: Duration = Duration::from_mins(10);

/// The end of a run without incidents, so that what is late is found missing.
const QUIET: Duration = AUDITED.saturating_add(Duration::from_secs(10));

/// The pause after each group of six incidents, in which everything recovers.
const BREATH: Duration = Duration::from_secs(13);

/// The longest time until a stream has another leader and its publishers have caught up.
const ELECTED: Duration = Duration::from_secs(15);

/// Messages of the busy searcher. Half of them are cancellations, a quarter of which each of two
/// machines gets for orders that it does not know: 180 a minute.
const BUSY_TPS: f64 = 24.0;

/// The most addresses of an attacker in a world that promises something to unknown callers. A
/// builder of a fleet gets the orders of all machines at once, and a front counts as eight
/// addresses: with these it makes the fifteen that cannot fill the half that callers share.
pub(crate) const MOST_ADDRESSES: usize = 7;

/// A process with a pool, and a builder that reads the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberPlan {
    /// The nodes that it reads by IPC.
    pub(crate) nodes: Vec<usize>,
    /// Whether searchers send to it.
    pub(crate) has_rpc: bool,
    /// Whether it reads the fleet's streams. In a fleet, those with an RPC server publish.
    pub(crate) reads_fleet: bool,
    /// Whether its builder pauses again and again, behind a log that is too short for that.
    pub(crate) is_slow: bool,
}

/// The real nodes, each with a chain of its own ([`crate::real`]).
pub(crate) const REAL_NODES: [(&str, RealNodeKind); 2] =
    [("anvil", RealNodeKind::Anvil), ("geth", RealNodeKind::Geth)];

/// A fault of a real node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RealFault {
    /// SIGSTOP, then SIGCONT.
    Stop(Duration),
    /// SIGKILL. It starts again after a while, without its pool, and anvil without its chain.
    Kill(Duration),
    /// This many blocks are replaced by empty ones; of anvil only.
    Reorg(usize),
}

/// An incident: a fault, an attack, or something that a healthy chain does too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// At the node's socket.
    Node(usize, Fault),
    /// The node's process ends, and comes back with the chain as it is then and with its pool or
    /// without.
    RestartNode { node: usize, down: Duration, keeps_pool: bool },
    /// The node hears of no block for a while.
    Lag { node: usize, time: Duration },
    /// The node comes back without anything and imports the chain from its beginning. It says that
    /// it is syncing, or not.
    Import { node: usize, says: bool },
    /// The node comes back with another genesis under the same chain id, and after a while with the
    /// right one.
    OtherGenesis { node: usize, time: Duration },
    /// The newest blocks are replaced by empty ones.
    Reorg { depth: usize },
    /// Just before the next head the chain moves to another branch and back at once.
    FlipBack { depth: usize },
    /// This many transactions are announced at once.
    Burst { count: usize },
    /// The next block contains the transaction that searchers' bundles share.
    MineShared,
    /// SIGKILL; the member starts again after a while.
    Kill { member: usize, down: Duration },
    /// A shutdown, which publishes what was accepted; the member starts again after a while.
    Replace { member: usize, down: Duration },
    /// SIGSTOP, then SIGCONT.
    Stop { member: usize, time: Duration },
    /// SIGKILL of a server of the fleet: the one that leads a stream, or another.
    KillServer { leader: bool, down: Duration },
    /// SIGSTOP of a server: its connections stay open, so publishers must move to another server.
    StopServer { leader: bool, time: Duration },
    /// No byte passes between the members and a server, which the other servers still reach.
    CutServer { server: usize, time: Duration },
    /// The connections of the members to a server are reset.
    ResetServer { server: usize },
    /// A server's disk is full.
    FillDisk { server: usize, time: Duration },
    /// The link between the searchers and a server stalls.
    StallLink { member: usize, time: Duration },
    /// The connections of the searchers to a server are reset.
    ResetLink { member: usize },
    /// The direction from the searchers to a server is closed.
    HalfClose { member: usize },
    /// On the RPC port.
    Attack { attack: Attack, member: usize, time: Duration, addresses: Addresses },
    /// A node is half broken for a while.
    Quirk { node: usize, quirk: NodeQuirk, time: Duration },
    /// A machine's clock is wrong for a while.
    Clock { member: usize, fault: ClockFault, time: Duration },
    /// A machine gets no further files and threads for a while.
    RefuseResources { member: usize, time: Duration },
    /// The same after [`IDLE`] without a block, in which threads that had nothing to do may have
    /// ended; then comes a block.
    RefuseAfterIdle { member: usize, time: Duration },
    /// SIGKILL. While the member starts again, its nodes accept its subscriptions to transactions
    /// and never notify them.
    SilentStart { member: usize, down: Duration },
    /// No byte passes between a member and all servers of the fleet.
    CutMember { member: usize, time: Duration },
    /// At anvil or geth.
    Real(usize, RealFault),
}

/// A part of the world that an incident can delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What members receive from a node.
    Node(usize),
    Member(usize),
    /// The streams between publishers and builders.
    Fleet,
    /// What the builder beside a real node receives from it.
    Real(usize),
    All,
}

impl Incident {
    /// Returns the part that it delays, and until how long after its begin: the written bounds.
    pub(crate) fn disturbs(&self, tps: u32) -> Option<(Part, Duration)> {
        Some(match *self {
            Self::Node(node, fault) => (Part::Node(node), recovery(fault, tps)?),
            Self::RestartNode { node, down, .. } => (Part::Node(node), down + DIALLED),
            Self::Import { node, .. } => (Part::Node(node), IMPORT + DEAD),
            Self::OtherGenesis { node, time } => (Part::Node(node), time + DEAD),
            Self::Reorg { .. } => (Part::All, Duration::from_secs(5)),
            Self::FlipBack { .. } => (Part::All, SLOT + Duration::from_secs(5)),
            Self::Burst { count } => (Part::All, Duration::from_millis(2_000 + count as u64)),
            // A shutdown takes up to five seconds itself.
            Self::Replace { member, down } => {
                (Part::Member(member), down + DIALLED + Duration::from_secs(5))
            }
            Self::Kill { member, down } => (Part::Member(member), down + DIALLED),
            Self::SilentStart { member, down } => (Part::Member(member), down + NEVER_WORKED),
            Self::Stop { member, time } => (Part::Member(member), time + DIALLED),
            Self::KillServer { down: time, .. }
            | Self::StopServer { time, .. }
            | Self::FillDisk { time, .. } => (Part::Fleet, time + ELECTED),
            // The streams keep their leaders, and every member reaches two other servers.
            Self::CutServer { time, .. } => (Part::Fleet, time.min(NEXT_SERVER)),
            Self::CutMember { member, time } => (Part::Member(member), time + ELECTED),
            Self::ResetServer { .. } => (Part::Fleet, DIALLED),
            Self::Attack { attack: Attack::Crowd, member, time, .. } => {
                (Part::Member(member), time + Duration::from_secs(2))
            }
            // Attacks and faults of the searchers' links delay nothing that was accepted, and time
            // spans are measured by a clock that does not step.
            Self::Attack { .. }
            | Self::Lag { .. }
            | Self::MineShared
            | Self::ResetLink { .. }
            | Self::HalfClose { .. }
            | Self::StallLink { .. }
            | Self::Clock { .. } => return None,
            // It is noticed while it lasts; then the node is dialled again and compared.
            Self::Quirk { node, time, .. } => (Part::Node(node), time + UNQUIRKED),
            Self::RefuseResources { member, time } => (Part::Member(member), time + DIALLED),
            Self::RefuseAfterIdle { member, time } => (Part::Member(member), IDLE + time + DIALLED),
            Self::Real(node, fault) => (
                Part::Real(node),
                match fault {
                    RealFault::Stop(time) if time > Duration::from_secs(8) => time + DEAD,
                    RealFault::Stop(time) => time + DIALLED,
                    RealFault::Kill(down) => down + STARTS + DIALLED,
                    RealFault::Reorg(_) => Duration::from_secs(5),
                },
            ),
        })
    }

    /// Returns for how long it delays its node if nothing else does.
    pub(crate) fn disturbs_alone(&self) -> Option<Duration> {
        match *self {
            Self::Quirk { quirk, time, .. } => quirk.delays_alone(time),
            _ => None,
        }
    }

    pub(crate) const fn is_attack(&self) -> bool {
        matches!(self, Self::Attack { .. })
    }

    /// Whether it needs the library that changes a machine's clock and threads.
    pub(crate) const fn needs_host(&self) -> bool {
        matches!(
            self,
            Self::Clock { .. } | Self::RefuseResources { .. } | Self::RefuseAfterIdle { .. }
        )
    }

    /// Returns how long it lasts by itself.
    pub(crate) const fn duration(&self) -> Duration {
        match *self {
            Self::RestartNode { down: time, .. }
            | Self::Lag { time, .. }
            | Self::OtherGenesis { time, .. }
            | Self::Kill { down: time, .. }
            | Self::Replace { down: time, .. }
            | Self::Stop { time, .. }
            | Self::KillServer { down: time, .. }
            | Self::StopServer { time, .. }
            | Self::CutServer { time, .. }
            | Self::FillDisk { time, .. }
            | Self::StallLink { time, .. }
            | Self::Attack { time, .. }
            | Self::Quirk { time, .. }
            | Self::Clock { time, .. }
            | Self::RefuseResources { time, .. }
            | Self::RefuseAfterIdle { time, .. }
            | Self::SilentStart { down: time, .. }
            | Self::CutMember { time, .. }
            | Self::Node(_, Fault::Stall { time, .. } | Fault::TableFull { time })
            | Self::Real(_, RealFault::Stop(time) | RealFault::Kill(time)) => time,
            _ => Duration::ZERO,
        }
    }
}

/// Returns how long after a fault of a node its transactions may be late; `None` if they must not.
fn recovery(fault: Fault, tps: u32) -> Option<Duration> {
    Some(match fault {
        Fault::GoDead(_) => DEAD,
        Fault::Stall { time, .. } if time > Duration::from_secs(8) => time + DEAD,
        Fault::Stall { time, .. } => time + DIALLED,
        Fault::TableFull { time } => time + DIALLED,
        Fault::Answers { bad: BadAnswer::OutOfOrder | BadAnswer::ByteByByte, .. } => {
            Duration::from_secs(2)
        }
        // The next comparison finds what the node did not announce, or answered wrongly.
        Fault::DropNotifications { count } => {
            Duration::from_secs_f64(f64::from(count) / f64::from(tps)) + AUDITED
        }
        Fault::Answers { .. } => ANSWERED,
        // A subscription that has ended in silence is noticed, dialled again and compared.
        Fault::EndSubscriptions { .. } => DEAD + ANSWERED,
        Fault::DropObjects { .. } | Fault::Duplicate { .. } => return None,
        _ => DIALLED,
    })
}

/// Everything that follows from a seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    pub(crate) nodes: usize,
    pub(crate) members: Vec<MemberPlan>,
    pub(crate) has_fleet: bool,
    /// Whether the command runs too, whose log nobody reads ([`crate::command`]).
    pub(crate) has_command: bool,
    /// Whether anvil and geth run too, each read by a builder of its own.
    pub(crate) has_real: bool,
    /// The delay of every answer of the nodes.
    pub(crate) node_delay: Duration,
    /// Transactions that the nodes announce per second.
    pub(crate) tps: u32,
    /// Of ten accounts, those whose transactions no block takes for a while.
    pub(crate) lingering_accounts: usize,
    /// Of a thousand transactions, those with blobs; of a thousand of these, those with six.
    pub(crate) blobs_per_mille: u32,
    pub(crate) six_blobs_per_mille: u32,
    /// Messages of honest searchers per second.
    pub(crate) searchers_tps: f64,
    /// Messages of the busy searcher per second; 0 if there is none.
    pub(crate) busy_tps: f64,
    pub(crate) setup: Setup,
    /// Transactions that are pending before the first member starts.
    pub(crate) preload: usize,
    /// Whether the nodes also hold so many transactions that pay less than any other that the
    /// node's share of the pool is full, some of them tiny. They may be evicted.
    pub(crate) has_filler: bool,
    /// Whether all bundles of searchers contain the same public transaction.
    pub(crate) shares_tx: bool,
    /// Whether blocks contain public transactions.
    pub(crate) mines: bool,
    /// Whether anything is promised to searchers whom the hosts do not know.
    pub(crate) promises_unknown: bool,
    /// The most different requests of an attacker.
    pub(crate) most_requests: u64,
    /// Further bytes of each searcher's transaction.
    pub(crate) upload_bytes: usize,
    /// The delay from the searchers to a server of as much as TCP sends at once.
    pub(crate) link_delay: Duration,
    /// Incidents, each with its time, in order.
    pub(crate) timeline: Vec<(Duration, Incident)>,
}

impl World {
    pub(crate) fn from_seed(seed: u64, duration: Duration, fleet: Option<bool>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let nodes = rng.random_range(1..=3);
        let drawn = rng.random_bool(0.4);
        let has_fleet = fleet.unwrap_or(drawn);
        let ingests = if has_fleet { 2 } else { rng.random_range(1..=2) };
        let mut members: Vec<_> = (0..ingests)
            .map(|number| MemberPlan {
                nodes: vec![number % nodes],
                has_rpc: true,
                ..MemberPlan::default()
            })
            .collect();
        if nodes > 1 && !has_fleet {
            members[0].nodes = vec![0, 1];
        }
        for number in 0..rng.random_range(1..=2) {
            members.push(MemberPlan {
                nodes: if has_fleet { Vec::new() } else { (number % nodes..nodes).collect() },
                has_rpc: false,
                reads_fleet: has_fleet,
                is_slow: number == 0,
            });
        }
        let tps = rng.random_range(100..=250);
        let mut world = Self {
            seed,
            duration,
            nodes,
            members,
            has_fleet,
            tps,
            lingering_accounts: 1,
            blobs_per_mille: 5,
            six_blobs_per_mille: Mix::default().six_blobs_per_mille,
            searchers_tps: 30.0,
            busy_tps: if has_fleet { BUSY_TPS } else { 0.0 },
            mines: true,
            promises_unknown: true,
            // Signing more would take the machine's time.
            most_requests: 6_000,
            ..Self::default()
        };
        world.draw_timeline(&mut rng);
        world
    }

    /// Returns the same world with real nodes and their faults.
    pub(crate) fn with_real(mut self) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(!self.seed);
        let end = self.quiet_from();
        let mut time = Duration::from_secs(8);
        while time < end {
            let node = rng.random_range(0..REAL_NODES.len());
            let lasts = Duration::from_millis(rng.random_range(500..=12_000));
            let fault = match rng.random_range(0..3) {
                0 => RealFault::Kill(lasts / 3),
                1 if REAL_NODES[node].1 == RealNodeKind::Anvil => {
                    RealFault::Reorg(rng.random_range(1..=3))
                }
                _ => RealFault::Stop(lasts),
            };
            self.timeline.push((time, Incident::Real(node, fault)));
            time += Duration::from_millis(rng.random_range(8_000..=16_000));
        }
        self.timeline.sort_by_key(|(time, _)| *time);
        self.has_real = true;
        self
    }

    /// Returns the mix of the nodes' transactions.
    pub(crate) fn mix(&self) -> Mix {
        let (blobs_per_mille, six_blobs_per_mille) =
            (self.blobs_per_mille, self.six_blobs_per_mille);
        Mix { blobs_per_mille, six_blobs_per_mille, ..Mix::default() }
    }

    /// Returns when the quiet end begins.
    pub(crate) const fn quiet_from(&self) -> Duration {
        self.duration.saturating_sub(QUIET)
    }

    /// Returns the same world with only these entries of its timeline.
    pub(crate) fn only(&self, kept: &[usize]) -> Self {
        let timeline = kept.iter().map(|number| self.timeline[*number]).collect();
        Self { timeline, ..self.clone() }
    }

    /// Prints these entries, each with its number in the whole timeline.
    pub(crate) fn print_timeline(&self, kept: &[usize]) {
        for &number in kept {
            let (time, incident) = self.timeline[number];
            println!("{number:3}  {:6.1} s  {incident:?}", time.as_secs_f64());
        }
    }

    /// As [`mock_node::FaultPlan`]: the kinds come in rounds of random order, and the end is quiet.
    fn draw_timeline(&mut self, rng: &mut ChaCha8Rng) {
        let end = self.quiet_from();
        let mut time = Duration::from_secs(6);
        let mut round: Vec<Incident> = Vec::new();
        for number in 1.. {
            if time >= end {
                break;
            }
            let incident = round.pop().unwrap_or_else(|| {
                round = self.draw_round(rng);
                round.shuffle(rng);
                round.pop().expect("there are kinds")
            });
            self.timeline.push((time, incident));
            time += Duration::from_millis(rng.random_range(500..=4_000));
            if number % 6 == 0 {
                time += BREATH;
            }
        }
    }

    /// Draws one incident of each kind.
    fn draw_round(&self, rng: &mut ChaCha8Rng) -> Vec<Incident> {
        let ingests = self.members.iter().filter(|member| member.has_rpc).count();
        let (rpc, member) = (rng.random_range(0..ingests), rng.random_range(0..self.members.len()));
        // In a long run the first member lives from beginning to end, for the verdict on its
        // memory.
        let is_spared = |member| self.duration >= LONG && member == 0;
        let targets = [Target::All, Target::Subscription, Target::Request];
        let target = targets[rng.random_range(0..targets.len())];
        let bad = BadAnswer::ALL[rng.random_range(0..BadAnswer::ALL.len())];
        // A hash whose responses end three connections is not requested again for a minute.
        let most_bad = match bad {
            BadAnswer::Garbage | BadAnswer::Truncated | BadAnswer::PlainText | BadAnswer::Large => {
                2
            }
            _ => 20,
        };
        let mut round: Vec<_> = [
            Fault::Close(target),
            Fault::CloseMidFrame(target),
            Fault::CloseOnAccept { connections: 3 },
            Fault::CloseAfterSubscribe { connections: 2 },
            Fault::Stall { target, time: random_ms(rng, 500, 5_000) },
            Fault::GoDead(target),
            Fault::DropNotifications { count: rng.random_range(10..=300) },
            Fault::DropObjects { count: rng.random_range(10..=300) },
            Fault::Duplicate { count: rng.random_range(10..=300) },
            Fault::Answers { bad, count: rng.random_range(1..=most_bad) },
            Fault::TableFull { time: random_ms(rng, 300, 2_000) },
        ]
        .into_iter()
        .map(|fault| Incident::Node(rng.random_range(0..self.nodes), fault))
        .collect();
        let node = rng.random_range(0..self.nodes);
        round.extend([
            Incident::RestartNode {
                node,
                down: random_ms(rng, 200, 4_000),
                keeps_pool: rng.random(),
            },
            Incident::Reorg { depth: rng.random_range(1..=3) },
            Incident::FlipBack { depth: rng.random_range(1..=3) },
            Incident::Burst { count: rng.random_range(300..=3_000) },
            Incident::Stop { member, time: random_ms(rng, 200, 4_000) },
            Incident::StallLink { member: rpc, time: random_ms(rng, 200, 3_000) },
            Incident::ResetLink { member: rpc },
            Incident::HalfClose { member: rpc },
        ]);
        if !is_spared(member) {
            round.push(Incident::Kill { member, down: random_ms(rng, 100, 3_000) });
        }
        if !is_spared(rpc) {
            round.push(Incident::Replace { member: rpc, down: random_ms(rng, 100, 2_000) });
        }
        if self.nodes > 1 {
            let node = rng.random_range(1..self.nodes);
            round.push(Incident::Lag { node, time: random_ms(rng, 3_000, 20_000) });
            // A member that reads it alone follows it, so it must say that it is syncing.
            let is_alone = self.members.iter().any(|member| member.nodes == [node]);
            round.push(Incident::Import { node, says: rng.random::<bool>() || is_alone });
        }
        if self.has_fleet {
            for leader in [true, false] {
                round.push(Incident::KillServer { leader, down: random_ms(rng, 1_000, 5_000) });
            }
        }
        // A third of the entries are attacks: as many attacks as faults would leave no time.
        for _ in 0..round.len() / 2 {
            let (attack, ..) = Attack::ALL[rng.random_range(1..Attack::ALL.len())];
            let addresses = Addresses::Ipv4([1, MOST_ADDRESSES][rng.random_range(0..2)]);
            let time = random_ms(rng, 2_000, 8_000);
            round.push(Incident::Attack { attack, member: rpc, time, addresses });
        }
        round
    }
}

pub(crate) fn random_ms(rng: &mut ChaCha8Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.random_range(least..=most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_world_with_a_quiet_end_and_every_attack() {
        let duration = Duration::from_mins(2);
        let text = |seed| format!("{:?}", World::from_seed(seed, duration, None));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        let worlds: Vec<_> = (0..60).map(|seed| World::from_seed(seed, duration, None)).collect();
        for world in &worlds {
            let last = world.timeline.last().expect("there are incidents").0;
            assert!(last + AUDITED < duration, "seed {}", world.seed);
        }
        let happens = |attack| {
            let mut incidents = worlds.iter().flat_map(|world| &world.timeline);
            incidents.any(|(_, incident)| {
                matches!(incident, Incident::Attack { attack: drawn, .. } if *drawn == attack)
            })
        };
        assert!(Attack::ALL.into_iter().skip(1).all(|(attack, ..)| happens(attack)));
        assert!(worlds.iter().any(|world| world.has_fleet && world.nodes == 3));
    }
}
