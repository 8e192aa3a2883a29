//! Incidents that are drawn besides those of [`World::from_seed`], by kind (`--hazards`):
//! half-broken nodes, wrong clocks, starved machines, and what else a laboratory does not have.

use std::time::Duration;

use clap::ValueEnum as _;
use mock_node::{
    AnswerIds, Fault, IncompleteBlobs, IncompleteForm, MethodQuirk, OddLine, Quirks, Target, Topic,
};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::{
    attack::{Addresses, Attack},
    host::ClockFault,
    world::{COMPARED, Incident, MOST_ADDRESSES, World, random_ms},
};

const RAW_METHOD: &str = "eth_getRawTransactionByHash";

/// The delay of every answer of a node that is far away.
const FAR: Duration = Duration::from_millis(20);

/// Of ten accounts, those whose transactions linger at such a node, so that it has thousands
/// pending.
const FAR_LINGERING: usize = 9;

/// The transactions per second of a slow chain: a fetcher can request them all of a node that
/// answers after 2.5 s.
const SLOW_TPS: u32 = 20;

/// The bytes of a searcher's transaction in a world of uploads, in which searchers send less.
const UPLOAD_BYTES: usize = 40_000;
const UPLOADS_TPS: f64 = 10.0;
const UPLOAD_DELAY: Duration = Duration::from_millis(100);

/// A kind of incidents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hazard {
    /// Half-broken nodes.
    Nodes,
    /// A node that restarts with another genesis.
    Genesis,
    /// Clocks that step or drift.
    Clocks,
    /// Files and threads that the kernel refuses for a while.
    Resources,
    /// A command whose log nobody reads.
    Log,
    /// Servers of the fleet that hang or are cut off.
    Servers,
    /// Servers of the fleet whose disk is full. To mount disks, the process must be root.
    Disks,
    /// The attacks of strangers that [`Attack::FROM_EVERYWHERE`] lists.
    Strangers,
}

impl Hazard {
    /// The kinds that are drawn by default: all for which the process needs no special rights.
    pub(crate) const DEFAULT: [Self; 7] = [
        Self::Nodes,
        Self::Genesis,
        Self::Clocks,
        Self::Resources,
        Self::Log,
        Self::Servers,
        Self::Strangers,
    ];

    /// Returns its name on the command line.
    pub(crate) fn name(&self) -> String {
        let value = self.to_possible_value().expect("no kind is skipped");
        value.get_name().to_owned()
    }
}

/// How a node is half broken for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeQuirk {
    /// Raw requests are answered `null` for this long after each announcement.
    Null(Duration),
    /// Every answer is this late.
    Late(Duration),
    /// The answers of each period of this length come in reverse order.
    Reversed(Duration),
    /// No request is answered, while announcements go on.
    Mute,
    /// No request for a raw transaction is answered.
    NoRaw,
    /// The node has no method that returns raw transactions.
    MissingRaw,
    /// Nothing of this kind is announced, while requests are answered.
    Silent(Topic),
    /// Blob transactions are incomplete for two seconds.
    Blobs(IncompleteForm),
    /// Raw transactions come in an RLP string.
    Wrapped,
    /// The ids of answers are texts.
    TextIds,
    /// Every answer comes twice.
    Twice,
    /// The request for the pool's list is answered with an error.
    NoList,
}

impl NodeQuirk {
    pub(crate) fn all() -> Vec<Self> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        vec![
            Self::Null(ms(50)),
            Self::Null(ms(300)),
            Self::Late(ms(2_500)),
            Self::Late(s(9)),
            Self::Reversed(ms(200)),
            Self::Mute,
            Self::NoRaw,
            Self::MissingRaw,
            Self::Silent(Topic::Hashes),
            Self::Silent(Topic::Objects),
            Self::Silent(Topic::Heads),
            Self::Blobs(IncompleteForm::NoSidecar),
            Self::Blobs(IncompleteForm::ElidedBlobs),
            Self::Wrapped,
            Self::TextIds,
            Self::Twice,
            Self::NoList,
        ]
    }

    pub(crate) fn quirks(self) -> Quirks {
        let mut quirks = Quirks::default();
        match self {
            Self::Null(time) => quirks.null_after_announcement = time,
            Self::Late(delay) => quirks.delay = delay,
            Self::Reversed(window) => quirks.reverse_window = window,
            Self::Mute => quirks.is_mute = true,
            Self::NoRaw => {
                quirks.methods.insert(RAW_METHOD.to_owned(), MethodQuirk::NoAnswer);
            }
            Self::MissingRaw => {
                quirks.methods.insert(RAW_METHOD.to_owned(), MethodQuirk::Error(-32601));
            }
            Self::Silent(topic) => quirks.silent = [topic].into(),
            Self::Blobs(form) => {
                let time = Duration::from_secs(2);
                quirks.incomplete_blobs = Some(IncompleteBlobs { form, time });
            }
            Self::Wrapped => quirks.wraps_raw = true,
            Self::TextIds => quirks.ids = AnswerIds::Text,
            Self::Twice => quirks.answers_twice = true,
            Self::NoList => {
                let method = "txpool_content".to_owned();
                quirks.methods.insert(method, MethodQuirk::Error(-32008));
            }
        }
        quirks
    }

    /// Returns for how long it delays the node's transactions if it lasts for `time` and nothing
    /// else happens to the node meanwhile; `None` if connections end by it.
    pub(crate) fn delays_alone(self, time: Duration) -> Option<Duration> {
        let s = Duration::from_secs;
        Some(match self {
            // A hash is requested again after 25 ms, and after 100 ms more.
            Self::Null(null) if null <= Duration::from_millis(50) => Duration::ZERO,
            // The next comparison finds the others.
            Self::Null(_) => time + COMPARED,
            // Late answers count. What waited behind them is requested when the last have come.
            Self::Late(delay) if delay < s(5) => time + delay + s(6),
            Self::Reversed(_) | Self::Silent(Topic::Objects) | Self::Wrapped => Duration::ZERO,
            Self::Twice => Duration::ZERO,
            // A member that starts meanwhile finds what was pending before with its next
            // comparison.
            Self::NoList => time + COMPARED,
            // A blob transaction is requested again after 0.5, 2 and 8 s.
            Self::Blobs(_) => time + s(12),
            Self::Late(_) | Self::Mute | Self::NoRaw | Self::MissingRaw => return None,
            Self::Silent(Topic::Hashes | Topic::Heads) | Self::TextIds => return None,
        })
    }

    /// Whether every answer is late, but not too late to count, and a fetcher can request all
    /// transactions of a node that announces so many per second.
    pub(crate) const fn feeds_late(self, tps: u32) -> bool {
        matches!(self, Self::Late(delay) if delay.as_secs() < 5) && tps <= SLOW_TPS
    }

    /// Returns how long it lasts at least. A source takes up to twelve seconds to say that no
    /// request is answered, and must not be live without transactions for ten more.
    const fn least_time(self, tps: u32) -> Duration {
        match self {
            Self::MissingRaw | Self::NoRaw => Duration::from_secs(27),
            Self::Late(_) if self.feeds_late(tps) => Duration::from_secs(27),
            Self::Silent(Topic::Objects) => Duration::from_secs(15),
            _ => Duration::from_secs(2),
        }
    }
}

impl Incident {
    /// Whether no upload has to survive it: a body that stalls by itself may lose its place to
    /// another one, and a link that is half closed delivers a body only in part.
    const fn breaks_uploads(&self) -> bool {
        matches!(self, Self::StallLink { .. } | Self::HalfClose { .. })
    }
}

impl World {
    /// Returns the same world with incidents of these kinds between its own. They are drawn from
    /// the seed too; the world's own stay as they are.
    pub(crate) fn with_hazards(mut self, hazards: &[Hazard]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.rotate_left(17) ^ 0x53);
        let [is_far, is_slow, has_many_addresses] = [(); 3].map(|()| rng.random_bool(0.5));
        let has_uploads = is_slow;
        if hazards.contains(&Hazard::Nodes) && is_far {
            (self.node_delay, self.lingering_accounts) = (FAR, FAR_LINGERING);
        } else if hazards.contains(&Hazard::Nodes) && is_slow {
            self.tps = SLOW_TPS;
        }
        self.has_command = hazards.contains(&Hazard::Log);
        if hazards.contains(&Hazard::Strangers) {
            self.promises_unknown = !has_many_addresses;
            if has_uploads {
                (self.upload_bytes, self.searchers_tps) = (UPLOAD_BYTES, UPLOADS_TPS);
                self.link_delay = UPLOAD_DELAY;
                self.timeline.retain(|(_, incident)| !incident.breaks_uploads());
            }
        }
        let mut time = Duration::from_secs(7);
        let mut round = Vec::new();
        while time < self.quiet_from() {
            if round.is_empty() {
                for hazard in hazards {
                    self.draw_hazard(*hazard, &mut rng, &mut round);
                }
                round.shuffle(&mut rng);
            }
            let Some(incident) = round.pop() else { break };
            self.timeline.push((time, incident));
            time += random_ms(&mut rng, 4_000, 12_000);
            // A node has one quirk at a time.
            if let Incident::Quirk { time: lasts, .. } = incident {
                time += lasts;
            }
        }
        self.timeline.sort_by_key(|(time, _)| *time);
        self
    }

    /// Draws a member that reads a node.
    fn random_reader(&self, rng: &mut ChaCha8Rng) -> usize {
        let members = self.members.iter().enumerate();
        let readers: Vec<_> = members.filter(|(_, member)| !member.nodes.is_empty()).collect();
        readers[rng.random_range(0..readers.len())].0
    }

    /// Draws one incident of each sort of a kind.
    fn draw_hazard(&self, hazard: Hazard, rng: &mut ChaCha8Rng, round: &mut Vec<Incident>) {
        let random_node = |rng: &mut ChaCha8Rng| rng.random_range(0..self.nodes);
        match hazard {
            Hazard::Nodes => {
                for quirk in NodeQuirk::all() {
                    let time = quirk.least_time(self.tps) + random_ms(rng, 0, 10_000);
                    round.push(Incident::Quirk { node: random_node(rng), quirk, time });
                }
                let member = self.random_reader(rng);
                let down = random_ms(rng, 100, 2_000);
                round.push(Incident::SilentStart { member, down });
                for topic in [Topic::Hashes, Topic::Objects, Topic::Heads] {
                    let ended = Fault::EndSubscriptions { topic, notifies: rng.random() };
                    round.push(Incident::Node(random_node(rng), ended));
                }
                for line in OddLine::ALL {
                    let odd_line = Fault::SendLine { target: Target::All, line };
                    round.push(Incident::Node(random_node(rng), odd_line));
                }
            }
            // The heads of a fleet come from one machine, for which another chain is another fleet.
            Hazard::Genesis if self.has_fleet => {}
            Hazard::Genesis => {
                let (node, time) = (random_node(rng), random_ms(rng, 3_000, 12_000));
                round.push(Incident::OtherGenesis { node, time });
            }
            Hazard::Clocks => {
                let steps = [-3_600_000, -70_000, -5_000, 2_000, 60_000, 3_600_000];
                let drifts = [-50, 50].map(ClockFault::Drift);
                for fault in steps.map(ClockFault::Step).into_iter().chain(drifts) {
                    let member = rng.random_range(0..self.members.len());
                    let time = random_ms(rng, 3_000, 20_000);
                    round.push(Incident::Clock { member, fault, time });
                }
            }
            Hazard::Resources => {
                let member = rng.random_range(0..self.members.len());
                let time = random_ms(rng, 500, 5_000);
                round.push(Incident::RefuseResources { member, time });
                let member = self.random_reader(rng);
                let time = random_ms(rng, 4_000, 6_000);
                round.push(Incident::RefuseAfterIdle { member, time });
            }
            // It lasts from the beginning to the end.
            Hazard::Log => {}
            Hazard::Servers if self.has_fleet => {
                for leader in [true, false] {
                    let time = random_ms(rng, 1_000, 15_000);
                    round.push(Incident::StopServer { leader, time });
                }
                let server = rng.random_range(0..3);
                round.extend([
                    Incident::CutServer { server, time: random_ms(rng, 1_000, 15_000) },
                    Incident::ResetServer { server },
                    Incident::CutMember {
                        member: rng.random_range(0..self.members.len()),
                        time: random_ms(rng, 6_000, 15_000),
                    },
                ]);
            }
            Hazard::Disks if self.has_fleet => {
                let (server, time) = (rng.random_range(0..3), random_ms(rng, 2_000, 12_000));
                round.push(Incident::FillDisk { server, time });
            }
            Hazard::Servers | Hazard::Disks => {}
            Hazard::Strangers => {
                let ingests = self.members.iter().filter(|member| member.has_rpc).count();
                for (attack, ..) in Attack::FROM_EVERYWHERE {
                    let member = rng.random_range(0..ingests);
                    let time = random_ms(rng, 4_000, 12_000);
                    let all = [
                        Addresses::Ipv4(MOST_ADDRESSES),
                        Addresses::Ipv4(256),
                        Addresses::Ipv6Prefix,
                    ];
                    // An order counts once, so copies of few orders harm nobody from anywhere.
                    let is_harmless = attack == Attack::FewBundles;
                    let choices = if self.promises_unknown && !is_harmless { 1 } else { all.len() };
                    let addresses = all[rng.random_range(0..choices)];
                    round.push(Incident::Attack { attack, member, time, addresses });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hazards_add_incidents_and_leave_the_others_as_they_are() {
        let world = |seed| World::from_seed(seed, Duration::from_mins(4), Some(true));
        for seed in 0..8 {
            let (plain, more) = (world(seed), world(seed).with_hazards(Hazard::value_variants()));
            let is_kept =
                |entry: &&(Duration, Incident)| more.upload_bytes == 0 || !entry.1.breaks_uploads();
            let kept: Vec<_> = plain.timeline.iter().filter(is_kept).collect();
            let is_kept = |entry: &&(Duration, Incident)| kept.contains(entry);
            let added = more.timeline.iter().filter(|entry| !is_kept(entry)).count();
            assert!(added > 10 && more.timeline.len() == kept.len() + added, "seed {seed}");
            let again = world(seed).with_hazards(Hazard::value_variants());
            assert_eq!(format!("{again:?}"), format!("{more:?}"));
            assert_eq!(plain.clone().with_hazards(&[]).timeline, plain.timeline);
        }
        for quirk in NodeQuirk::all() {
            assert_ne!(quirk.quirks(), Quirks::default(), "{quirk:?}");
        }
    }
}
