//! What a seed means: who takes part, and what goes wrong when. Pure.

use std::time::Duration;

use mock_node::{BadAnswer, Fault, Target};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use testkit::{devnet::RealNodeKind, member::Setup};

use crate::{
    attack::{Addresses, Attack},
    clock::ClockFault,
    hazard::NodeQuirk,
};

/// Between two heads. Short, so that many orders see their block.
pub(crate) const SLOT: Duration = Duration::from_secs(3);
/// After a comparison of a member with a node is due ([`testkit::member::AUDIT`]): its jitter, the
/// time in which announcements settle, and the fetches.
const AUDITED: Duration = Duration::from_secs(25);
/// A connection that is silent is closed after ten seconds, or twenty while the node lists its pool, is dialled again within
/// one, and a comparison follows.
const DEAD: Duration = Duration::from_secs(30);
/// Dialled again with a back-off of at most a second, and compared. Deferrable work waits for at most five seconds.
pub(crate) const DIALLED: Duration = Duration::from_secs(9);
/// A real node that was killed answers so long after its start, on a busy machine.
const STARTS: Duration = Duration::from_secs(5);
/// After a bad response, the next comparison finds what came of it.
pub(crate) const ANSWERED: Duration = DIALLED.saturating_add(AUDITED);
/// For the old blocks.
pub(crate) const IMPORT: Duration = Duration::from_secs(4);
/// A run that is long enough for a look at memory.
const LONG: Duration = Duration::from_mins(10);
/// At the end nothing strikes.
const QUIET: Duration = AUDITED.saturating_add(Duration::from_secs(10));
/// Between groups of six faults and attacks.
const BREATH: Duration = Duration::from_secs(13);
/// After so long, a stream whose leader was killed has another one, and publishers have caught up.
const ELECTED: Duration = Duration::from_secs(15);

/// A process with a pool, and a builder that reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberPlan {
    /// The nodes that it reads by IPC.
    pub(crate) nodes: Vec<usize>,
    /// Whether searchers send to it.
    pub(crate) has_rpc: bool,
    /// Whether it reads the fleet's streams. In a fleet those with an RPC server publish.
    pub(crate) reads_fleet: bool,
    /// Its builder pauses again and again, behind a log that is too short for that.
    pub(crate) is_slow: bool,
}

/// With chains of their own ([`crate::real`]).
pub(crate) const REAL_NODES: [(&str, RealNodeKind); 2] =
    [("anvil", RealNodeKind::Anvil), ("geth", RealNodeKind::Geth)];

/// What strikes a real node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RealFault {
    /// SIGSTOP, then SIGCONT.
    Stop(Duration),
    /// SIGKILL; started again after a while, without its pool, and anvil without its chain.
    Kill(Duration),
    /// Of anvil alone: so many blocks are replaced by empty ones.
    Reorg(usize),
}

/// Something that strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// At the node's socket.
    Node(usize, Fault),
    /// The process ends; it comes back with the chain as it is then, and with its pool or without.
    RestartNode { node: usize, down: Duration, keeps_pool: bool },
    /// The node hears of no block for a while.
    Lag { node: usize, time: Duration },
    /// The node comes back without anything, and imports the chain from its beginning: it says that it is syncing, or not.
    Import { node: usize, says: bool },
    /// The newest blocks are replaced by empty ones.
    Reorg { depth: usize },
    /// Just before the next head: another branch, and back to the first at once.
    FlipBack { depth: usize },
    /// So many transactions at once.
    Burst { count: usize },
    /// SIGKILL; started again after a while.
    Kill { member: usize, down: Duration },
    /// A shutdown, which publishes what was accepted; started again after a while.
    Replace { member: usize, down: Duration },
    /// SIGSTOP, then SIGCONT.
    Stop { member: usize, time: Duration },
    /// Of the fleet: the one that leads a stream, or another.
    KillServer { leader: bool, down: Duration },
    /// Between the searchers and a server.
    StallNet { member: usize, time: Duration },
    /// The connections of the searchers to a server are reset.
    ResetNet { member: usize },
    /// Their direction to the server is closed.
    HalfClose { member: usize },
    /// On the RPC port.
    Attack { attack: Attack, member: usize, time: Duration, addresses: Addresses },
    /// A node is half broken for a while.
    Quirk { node: usize, quirk: NodeQuirk, time: Duration },
    /// A machine's clock is wrong for a while.
    Clock { member: usize, fault: ClockFault, time: Duration },
    /// A machine gets no further files and threads for a while.
    RefuseResources { member: usize, time: Duration },
    /// At anvil or geth.
    Real(usize, RealFault),
}

/// Whose promises a fault suspends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What a member hears of a node.
    Node(usize),
    Member(usize),
    Fleet,
    /// What the builder beside a real node hears of it.
    Real(usize),
    All,
}

impl What {
    /// What it touches, and until how long after its begin that part may be late: the written bounds.
    pub(crate) fn touches(&self, tps: u32) -> Option<(Part, Duration)> {
        Some(match *self {
            Self::Node(node, fault) => (
                Part::Node(node),
                match fault {
                    Fault::GoDead(_) => DEAD,
                    Fault::Stall { time, .. } if time > Duration::from_secs(8) => time + DEAD,
                    Fault::Stall { time, .. } => time + DIALLED,
                    Fault::TableFull { time } => time + DIALLED,
                    Fault::Answers {
                        bad: BadAnswer::OutOfOrder | BadAnswer::ByteByByte, ..
                    } => Duration::from_secs(2),
                    // The next comparison finds what the node did not tell, or told wrongly.
                    Fault::DropNotifications { count } => {
                        Duration::from_secs_f64(f64::from(count) / f64::from(tps)) + AUDITED
                    }
                    Fault::Answers { .. } => ANSWERED,
                    Fault::DropObjects { .. } | Fault::Duplicate { .. } => return None,
                    _ => DIALLED,
                },
            ),
            Self::RestartNode { node, down, .. } => (Part::Node(node), down + DIALLED),
            Self::Import { node, .. } => (Part::Node(node), IMPORT + DEAD),
            Self::Reorg { .. } => (Part::All, Duration::from_secs(5)),
            Self::FlipBack { .. } => (Part::All, SLOT + Duration::from_secs(5)),
            Self::Burst { count } => (Part::All, Duration::from_millis(2_000 + count as u64)),
            // A shutdown takes up to five seconds itself.
            Self::Replace { member, down } => {
                (Part::Member(member), down + DIALLED + Duration::from_secs(5))
            }
            Self::Kill { member, down } => (Part::Member(member), down + DIALLED),
            Self::Stop { member, time } => (Part::Member(member), time + DIALLED),
            Self::KillServer { down, .. } => (Part::Fleet, down + ELECTED),
            Self::Attack { attack: Attack::Crowd, member, time, .. } => {
                (Part::Member(member), time + Duration::from_secs(2))
            }
            Self::Attack { .. } | Self::Lag { .. } => return None,
            Self::ResetNet { .. } | Self::HalfClose { .. } | Self::StallNet { .. } => return None,
            // Its answers are right, and late.
            Self::Quirk { node, quirk: NodeQuirk::Reversed(_), time } => {
                (Part::Node(node), time + Duration::from_secs(2))
            }
            // It is noticed while it lasts; then the node is dialled again and compared.
            Self::Quirk { node, time, .. } => (Part::Node(node), time + DEAD + ANSWERED),
            // Spans of time are of another clock.
            Self::Clock { .. } => return None,
            Self::RefuseResources { member, time } => (Part::Member(member), time + DIALLED),
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

    pub(crate) const fn is_attack(&self) -> bool {
        matches!(self, Self::Attack { .. })
    }

    /// How long it lasts by itself.
    pub(crate) const fn lasts(&self) -> Duration {
        match *self {
            Self::RestartNode { down: time, .. }
            | Self::Lag { time, .. }
            | Self::Kill { down: time, .. }
            | Self::Replace { down: time, .. }
            | Self::Stop { time, .. }
            | Self::KillServer { down: time, .. }
            | Self::StallNet { time, .. }
            | Self::Attack { time, .. }
            | Self::Quirk { time, .. }
            | Self::Clock { time, .. }
            | Self::RefuseResources { time, .. }
            | Self::Node(_, Fault::Stall { time, .. } | Fault::TableFull { time })
            | Self::Real(_, RealFault::Stop(time) | RealFault::Kill(time)) => time,
            _ => Duration::ZERO,
        }
    }
}

/// Everything that follows from a seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) lasts: Duration,
    pub(crate) nodes: usize,
    pub(crate) members: Vec<MemberPlan>,
    pub(crate) has_fleet: bool,
    /// Anvil and geth, each read by a builder of its own.
    pub(crate) has_real: bool,
    /// Announced a second.
    pub(crate) tps: u32,
    /// Messages of honest searchers a second.
    pub(crate) searchers_tps: f64,
    pub(crate) setup: Setup,
    /// Pending before the first member starts.
    pub(crate) preload: usize,
    /// Whether blocks contain what is public.
    pub(crate) mines: bool,
    /// Whether searchers whom the hosts do not know are promised anything.
    pub(crate) promises_unknown: bool,
    /// Different requests of an attacker.
    pub(crate) most_requests: u64,
    /// Further bytes of each searcher's transaction.
    pub(crate) upload_bytes: usize,
    /// What the way from the searchers to a server takes, each time for as much as a link without a window sends at once.
    pub(crate) link: Duration,
    /// Whether the further questions are asked too.
    pub(crate) asks_more: bool,
    /// What strikes when, in order.
    pub(crate) timeline: Vec<(Duration, What)>,
}

impl World {
    pub(crate) fn from_seed(seed: u64, lasts: Duration, fleet: Option<bool>) -> Self {
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
            lasts,
            nodes,
            members,
            has_fleet,
            tps,
            searchers_tps: 30.0,
            mines: true,
            promises_unknown: true,
            // Signing more would take the machine's time.
            most_requests: 6_000,
            ..Self::default()
        };
        world.draw_timeline(&mut rng);
        world
    }

    /// The same with real nodes, and with what strikes them in between.
    pub(crate) fn with_real(mut self) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(!self.seed);
        let end = self.quiet_from();
        let mut at = Duration::from_secs(8);
        while at < end {
            let node = rng.random_range(0..REAL_NODES.len());
            let time = Duration::from_millis(rng.random_range(500..=12_000));
            let fault = match rng.random_range(0..3) {
                0 => RealFault::Kill(time / 3),
                1 if REAL_NODES[node].1 == RealNodeKind::Anvil => {
                    RealFault::Reorg(rng.random_range(1..=3))
                }
                _ => RealFault::Stop(time),
            };
            self.timeline.push((at, What::Real(node, fault)));
            at += Duration::from_millis(rng.random_range(8_000..=16_000));
        }
        self.timeline.sort_by_key(|(at, _)| *at);
        self.has_real = true;
        self
    }

    /// From then on nothing strikes.
    pub(crate) const fn quiet_from(&self) -> Duration {
        self.lasts.saturating_sub(QUIET)
    }

    /// The same with only these entries of its list.
    pub(crate) fn only(&self, kept: &[usize]) -> Self {
        let timeline = kept.iter().map(|number| self.timeline[*number]).collect();
        Self { timeline, ..self.clone() }
    }

    /// These entries, each with its number in the whole list.
    pub(crate) fn print_timeline(&self, kept: &[usize]) {
        for &number in kept {
            let (at, what) = self.timeline[number];
            println!("{number:3}  {:6.1} s  {what:?}", at.as_secs_f64());
        }
    }

    /// As [`mock_node::FaultPlan`]: the kinds come in rounds of random order, and the end is quiet, so that what is late
    /// is found missing.
    fn draw_timeline(&mut self, rng: &mut ChaCha8Rng) {
        let end = self.quiet_from();
        let mut at = Duration::from_secs(6);
        let mut round: Vec<What> = Vec::new();
        for number in 1.. {
            if at >= end {
                break;
            }
            let what = round.pop().unwrap_or_else(|| {
                round = self.kinds(rng);
                round.shuffle(rng);
                round.pop().expect("there are kinds")
            });
            self.timeline.push((at, what));
            at += Duration::from_millis(rng.random_range(500..=4_000));
            // What is late after several is found missing before the next strike.
            at += if number % 6 == 0 { BREATH } else { Duration::ZERO };
        }
    }

    /// One of each, with values of this draw.
    fn kinds(&self, rng: &mut ChaCha8Rng) -> Vec<What> {
        let ms = |rng: &mut ChaCha8Rng, least, most| {
            Duration::from_millis(rng.random_range(least..=most))
        };
        let ingests = self.members.iter().filter(|member| member.has_rpc).count();
        let (rpc, member) = (rng.random_range(0..ingests), rng.random_range(0..self.members.len()));
        // In a long run the first one lives from beginning to end: what its memory becomes is judged.
        let is_spared = |member| self.lasts >= LONG && member == 0;
        let targets = [Target::All, Target::Subscription, Target::Request];
        let at = targets[rng.random_range(0..targets.len())];
        let bad = BadAnswer::ALL[rng.random_range(0..BadAnswer::ALL.len())];
        // A hash whose responses end three connections rests for a minute, as is written.
        let most_bad = match bad {
            BadAnswer::Garbage | BadAnswer::Truncated | BadAnswer::PlainText | BadAnswer::Large => {
                2
            }
            _ => 20,
        };
        let mut kinds: Vec<_> = [
            Fault::Close(at),
            Fault::CloseMidFrame(at),
            Fault::CloseOnAccept { connections: 3 },
            Fault::CloseAfterSubscribe { connections: 2 },
            Fault::Stall { target: at, time: ms(rng, 500, 5_000) },
            Fault::GoDead(at),
            Fault::DropNotifications { count: rng.random_range(10..=300) },
            Fault::DropObjects { count: rng.random_range(10..=300) },
            Fault::Duplicate { count: rng.random_range(10..=300) },
            Fault::Answers { bad, count: rng.random_range(1..=most_bad) },
            Fault::TableFull { time: ms(rng, 300, 2_000) },
        ]
        .into_iter()
        .map(|fault| What::Node(rng.random_range(0..self.nodes), fault))
        .collect();
        let node = rng.random_range(0..self.nodes);
        kinds.extend([
            What::RestartNode { node, down: ms(rng, 200, 4_000), keeps_pool: rng.random() },
            What::Reorg { depth: rng.random_range(1..=3) },
            What::FlipBack { depth: rng.random_range(1..=3) },
            What::Burst { count: rng.random_range(300..=3_000) },
            What::Stop { member, time: ms(rng, 200, 4_000) },
            What::StallNet { member: rpc, time: ms(rng, 200, 3_000) },
            What::ResetNet { member: rpc },
            What::HalfClose { member: rpc },
        ]);
        if !is_spared(member) {
            kinds.push(What::Kill { member, down: ms(rng, 100, 3_000) });
        }
        if !is_spared(rpc) {
            kinds.push(What::Replace { member: rpc, down: ms(rng, 100, 2_000) });
        }
        if self.nodes > 1 {
            let node = rng.random_range(1..self.nodes);
            kinds.push(What::Lag { node, time: ms(rng, 3_000, 20_000) });
            // Who reads it alone is told: the chain is what a single node tells.
            let is_alone = self.members.iter().any(|member| member.nodes == [node]);
            kinds.push(What::Import { node, says: rng.random::<bool>() || is_alone });
        }
        if self.has_fleet {
            for leader in [true, false] {
                kinds.push(What::KillServer { leader, down: ms(rng, 1_000, 5_000) });
            }
        }
        // As many attacks as faults would leave no time: a third of the entries.
        for _ in 0..kinds.len() / 2 {
            let (attack, ..) = Attack::ALL[rng.random_range(1..Attack::ALL.len())];
            let addresses = Addresses::Ipv4([1, 8][rng.random_range(0..2)]);
            let time = ms(rng, 2_000, 8_000);
            kinds.push(What::Attack { attack, member: rpc, time, addresses });
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_world_with_a_quiet_end_in_which_every_kind_is_possible() {
        let lasts = Duration::from_mins(2);
        let text = |seed| format!("{:?}", World::from_seed(seed, lasts, None));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        let worlds: Vec<_> = (0..60).map(|seed| World::from_seed(seed, lasts, None)).collect();
        for world in &worlds {
            let last = world.timeline.last().expect("something strikes").0;
            assert!(last + AUDITED < lasts, "seed {}", world.seed);
        }
        let struck = |attack| {
            let all = worlds.iter().flat_map(|world| &world.timeline);
            let is_it = |what| matches!(what, &What::Attack { attack: it, .. } if it == attack);
            all.into_iter().any(|(_, what)| is_it(what))
        };
        assert!(Attack::ALL.into_iter().skip(1).all(|(attack, ..)| struck(attack)));
        assert!(worlds.iter().any(|world| world.has_fleet && world.nodes == 3));
    }
}
