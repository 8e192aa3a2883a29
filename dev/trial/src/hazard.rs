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
    world::{Incident, World, random_ms},
};

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
    /// Servers of the fleet that hang, are cut off, or have a full disk.
    Servers,
    /// The attacks of strangers that [`Attack::AHEAD`] lists.
    Strangers,
}

impl Hazard {
    /// The kinds under which the product keeps all its promises: they are drawn by default.
    pub(crate) const DEFAULT: [Self; 0] = [];

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
            Self::Null(ms(300)),
            Self::Late(ms(2_500)),
            Self::Late(s(9)),
            Self::Reversed(ms(200)),
            Self::Mute,
            Self::NoRaw,
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
                let method = "eth_getRawTransactionByHash".to_owned();
                quirks.methods.insert(method, MethodQuirk::NoAnswer);
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
}

impl World {
    /// Returns the same world with incidents of these kinds between its own. They are drawn from
    /// the seed too; the world's own stay as they are.
    pub(crate) fn with_hazards(mut self, hazards: &[Hazard]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.rotate_left(17) ^ 0x53);
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
        }
        self.timeline.sort_by_key(|(time, _)| *time);
        self
    }

    /// Draws one incident of each sort of a kind.
    fn draw_hazard(&self, hazard: Hazard, rng: &mut ChaCha8Rng, round: &mut Vec<Incident>) {
        let random_node = |rng: &mut ChaCha8Rng| rng.random_range(0..self.nodes);
        match hazard {
            Hazard::Nodes => {
                for quirk in NodeQuirk::all() {
                    let time = random_ms(rng, 2_000, 12_000);
                    round.push(Incident::Quirk { node: random_node(rng), quirk, time });
                }
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
            }
            Hazard::Servers if self.has_fleet => {
                for leader in [true, false] {
                    let time = random_ms(rng, 1_000, 15_000);
                    round.push(Incident::StopServer { leader, time });
                }
                let server = rng.random_range(0..3);
                round.extend([
                    Incident::CutServer { server, time: random_ms(rng, 1_000, 15_000) },
                    Incident::ResetServer { server },
                    Incident::FillDisk { server, time: random_ms(rng, 2_000, 12_000) },
                ]);
            }
            Hazard::Servers => {}
            Hazard::Strangers => {
                let ingests = self.members.iter().filter(|member| member.has_rpc).count();
                for (attack, ..) in Attack::AHEAD {
                    let member = rng.random_range(0..ingests);
                    let time = random_ms(rng, 4_000, 12_000);
                    let all = [Addresses::Ipv4(8), Addresses::Ipv4(256), Addresses::Ipv6Prefix];
                    let addresses = all[rng.random_range(0..all.len())];
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
        let duration = Duration::from_mins(4);
        let plain = World::from_seed(7, duration, Some(true));
        let more = plain.clone().with_hazards(Hazard::value_variants());
        let added = more.timeline.iter().filter(|entry| !plain.timeline.contains(entry)).count();
        assert!(added > 20 && more.timeline.len() == plain.timeline.len() + added);
        let again =
            World::from_seed(7, duration, Some(true)).with_hazards(Hazard::value_variants());
        assert_eq!(again.timeline, more.timeline);
        assert_eq!(plain.clone().with_hazards(&[]).timeline, plain.timeline);
        for quirk in NodeQuirk::all() {
            assert_ne!(quirk.quirks(), Quirks::default(), "{quirk:?}");
        }
    }
}
