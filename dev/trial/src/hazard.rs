//! What strikes only when it is asked for by name (`--hazards`): worlds in which the product does not keep all its promises
//! yet. Each moves into [`World::from_seed`] once it does.

use std::time::Duration;

use clap::ValueEnum as _;
use mock_node::{
    AnswerIds, Fault, IncompleteBlobs, IncompleteForm, MethodQuirk, OddLine, Quirks, Target, Topic,
};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::{
    attack::{Addresses, Attack},
    clock::ClockFault,
    world::{What, World},
};

/// A kind of world, or of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Hazard {
    /// Half-broken nodes.
    Nodes,
    /// Clocks that step or drift.
    Clocks,
    /// Files and threads that the kernel refuses for a while.
    Resources,
    /// The attacks of strangers that [`Attack::AHEAD`] lists.
    Strangers,
    /// The questions of [`crate::run`]'s `questions` module.
    Questions,
}

impl Hazard {
    /// As it is given on the command line.
    pub(crate) fn name(&self) -> String {
        let value = self.to_possible_value().expect("none is skipped");
        value.get_name().to_owned()
    }
}

/// How a node is half broken for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeQuirk {
    /// `null` to raw requests for so long after each announcement.
    Null(Duration),
    /// Every answer is so late.
    Late(Duration),
    /// Answers come in reverse order, within so long.
    Reversed(Duration),
    /// No answer at all, or none with a raw transaction, while announcements go on.
    Mute,
    NoRaw,
    /// No announcement of a kind, while requests are answered.
    Silent(Topic),
    /// Blob transactions are incomplete for two seconds.
    Blobs(IncompleteForm),
    Wrapped,
    TextIds,
    Twice,
    /// Errors instead of the list of the pool.
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
    /// The same with what the hazards add, drawn from the seed too, between what strikes anyway.
    pub(crate) fn with_hazards(mut self, hazards: &[Hazard]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.rotate_left(17) ^ 0x53);
        let mut at = Duration::from_secs(7);
        let mut round = Vec::new();
        while at < self.quiet_from() {
            if round.is_empty() {
                round = self.hazardous(hazards, &mut rng);
                round.shuffle(&mut rng);
            }
            // The questions alone add nothing.
            let Some(what) = round.pop() else { break };
            self.timeline.push((at, what));
            at += Duration::from_millis(rng.random_range(4_000..=12_000));
        }
        self.timeline.sort_by_key(|(at, _)| *at);
        self.asks_more = hazards.contains(&Hazard::Questions);
        self
    }

    /// One of each, with values of this draw.
    fn hazardous(&self, hazards: &[Hazard], rng: &mut ChaCha8Rng) -> Vec<What> {
        let mut kinds = Vec::new();
        for hazard in hazards {
            match hazard {
                Hazard::Nodes => {
                    for quirk in NodeQuirk::all() {
                        let time = Duration::from_millis(rng.random_range(2_000..=12_000));
                        let node = rng.random_range(0..self.nodes);
                        kinds.push(What::Quirk { node, quirk, time });
                    }
                    for topic in [Topic::Hashes, Topic::Objects, Topic::Heads] {
                        let ended = Fault::EndSubscriptions { topic, notifies: rng.random() };
                        kinds.push(What::Node(rng.random_range(0..self.nodes), ended));
                    }
                    for line in OddLine::ALL {
                        let odd = Fault::SendLine { target: Target::All, line };
                        kinds.push(What::Node(rng.random_range(0..self.nodes), odd));
                    }
                }
                Hazard::Clocks => {
                    let steps = [-3_600_000, -70_000, -5_000, 2_000, 60_000, 3_600_000];
                    let drifts = [-50, 50];
                    let faults = steps.map(ClockFault::Step).into_iter();
                    for fault in faults.chain(drifts.map(ClockFault::Drift)) {
                        let member = rng.random_range(0..self.members.len());
                        let time = Duration::from_millis(rng.random_range(3_000..=20_000));
                        kinds.push(What::Clock { member, fault, time });
                    }
                }
                Hazard::Resources => {
                    let member = rng.random_range(0..self.members.len());
                    let time = Duration::from_millis(rng.random_range(500..=5_000));
                    kinds.push(What::RefuseResources { member, time });
                }
                Hazard::Strangers => {
                    let ingests = self.members.iter().filter(|member| member.has_rpc).count();
                    for (attack, ..) in Attack::AHEAD {
                        let member = rng.random_range(0..ingests);
                        let time = Duration::from_millis(rng.random_range(4_000..=12_000));
                        let all = [Addresses::Ipv4(8), Addresses::Ipv4(256), Addresses::Ipv6Prefix];
                        let addresses = all[rng.random_range(0..all.len())];
                        kinds.push(What::Attack { attack, member, time, addresses });
                    }
                }
                Hazard::Questions => {}
            }
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hazards_add_to_a_world_what_a_seed_draws_and_leave_the_rest_as_it_is() {
        let lasts = Duration::from_mins(4);
        let plain = World::from_seed(7, lasts, None);
        let more = plain.clone().with_hazards(Hazard::value_variants());
        let added = more.timeline.iter().filter(|entry| !plain.timeline.contains(entry)).count();
        assert!(added > 20 && more.timeline.len() == plain.timeline.len() + added);
        let again = World::from_seed(7, lasts, None).with_hazards(Hazard::value_variants());
        assert_eq!(again.timeline, more.timeline);
        assert_eq!(plain.clone().with_hazards(&[]).timeline, plain.timeline);
        for quirk in NodeQuirk::all() {
            assert_ne!(quirk.quirks(), Quirks::default(), "{quirk:?}");
        }
    }
}
