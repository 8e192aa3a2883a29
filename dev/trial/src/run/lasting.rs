//! Gathers the facts that count only if they last over several checks, or compare builders.
//!
//! 1. Is a source live for ten seconds while its node lists new transactions, of which the pool has
//!    none?
//! 2. Does a source say for ten seconds that its node announces whole transactions while it
//!    announces only hashes?
//! 3. Does a node that answers late bring nothing?
//! 4. Is a transaction that was there still there while a node lists it? Nodes count that no fault
//!    disturbed when the transaction went: a source that failed may not have asked its node.
//! 5. Is a machine ready while an order that it has accepted reaches no builder?
//! 6. Do all builders of a fleet hold the same orders of nodes and honest searchers? When the share
//!    of an attacker is full, its orders make room for each other, and which of them are left also
//!    depends on when a builder learns of a head: one that was cut off learns of them all at once.
//!
//! No fault extends the deadlines of 1, 2, 4 and 5: no fault is a reason to say that all is well.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use alloy_primitives::B256;
use mock_node::Topic;
use testkit::member::Report;

use super::{Run, RunningMember};
use crate::{
    hazard::NodeQuirk,
    oracle::{Facts, GRACE_NS, LATE_NS, LIVE_NS, Outcome, READY_NS, deadline, is_disturbed},
    searchers::{SearcherOrder, is_known},
    world::Part,
};

/// How many new transactions a node must list before it is suspicious that none of them is there.
const LEAST_NEW: usize = 10;

/// Conditions that held at each check since some time.
#[derive(Debug)]
struct Lasting<Key>(HashMap<Key, u64>);

impl<Key> Default for Lasting<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<Key: Copy + Eq + Hash> Lasting<Key> {
    /// Takes the conditions that hold at the check `now`. Returns each with the time of the first
    /// check of its series.
    fn update(&mut self, now: u64, holding: impl IntoIterator<Item = Key>) -> Vec<(Key, u64)> {
        let series = |key| (key, self.0.get(&key).copied().unwrap_or(now));
        self.0 = holding.into_iter().map(series).collect();
        self.0.iter().map(|(key, since)| (*key, *since)).collect()
    }
}

/// The conditions of the earlier checks.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// By member and node.
    live_in_vain: Lasting<(usize, usize)>,
    /// By member, node, and the number of reconnects: a new connection has time to show that it
    /// brings none.
    objects_in_vain: Lasting<(usize, usize, u64)>,
    /// By member and transaction.
    dropped: Lasting<(usize, B256)>,
    /// By member and order.
    differing: Lasting<(usize, B256)>,
}

/// The transactions that each node lists, each with the time since when; `None` for a node that is
/// down.
pub(super) type Listed = [Option<Vec<(B256, u64)>>];

impl Run<'_> {
    /// Adds these facts to those of the members, in their order.
    pub(super) fn add_lasting_facts(
        &mut self,
        reports: &[(usize, Report)],
        listed: &Listed,
        now: u64,
        facts: &mut [Facts],
    ) {
        let current = || reports.iter().filter(|(_, report)| report.is_current);
        let (mut live_in_vain, mut objects_in_vain, mut dropped) =
            (Vec::new(), Vec::new(), Vec::new());
        for (member, report) in current() {
            objects_in_vain.extend(self.objects_in_vain(*member, report));
            live_in_vain.extend(self.live_in_vain(*member, report, listed, now));
            dropped.extend(self.dropped(*member, listed));
            facts[*member].is_late_in_vain = self.is_late_in_vain(*member, listed, now);
            if report.is_ready {
                facts[*member].accepted_in_vain = self.accepted_in_vain(*member, now);
                facts[*member].stores_nothing = self.stores_nothing(*member, report, now);
            }
        }
        for (member, report) in reports {
            self.members[*member].published = (now, report.published.clone());
        }
        let builders = current().filter(|(member, _)| self.world.members[*member].reads_fleet);
        let ledger = self.network.ledger();
        let honest: HashSet<B256> = {
            let log = self.searchers.log();
            let recent = log.orders.len().saturating_sub(3_000);
            log.orders[recent..].iter().flat_map(SearcherOrder::versions).collect()
        };
        let is_honest = |hash: &&B256| ledger.by_hash.contains_key(*hash) || honest.contains(*hash);
        let held_by = |member: usize| {
            self.members[member].view.held().filter(is_honest).copied().collect::<HashSet<_>>()
        };
        let held: Vec<_> = builders.map(|(member, _)| (*member, held_by(*member))).collect();
        drop(ledger);
        let differing = differences(&held);
        for ((member, _), since) in self.conditions.live_in_vain.update(now, live_in_vain) {
            facts[member].live_in_vain_since = Some(since);
        }
        for ((member, ..), since) in self.conditions.objects_in_vain.update(now, objects_in_vain) {
            facts[member].objects_in_vain_since = Some(since);
        }
        for ((member, hash), since) in self.conditions.dropped.update(now, dropped) {
            facts[member].dropped.push((hash, since));
        }
        let members = (0..self.world.members.len()).map(Part::Member);
        let path: Vec<_> = members.chain([Part::Fleet]).collect();
        for ((member, hash), since) in self.conditions.differing.update(now, differing) {
            facts[member].differing.push((hash, deadline(since, &path, &self.disturbances)));
        }
    }

    /// Returns the nodes of a member whose source is live while the member has none of the
    /// transactions that the node has begun to list in the last ten seconds, the grace apart.
    fn live_in_vain(
        &self,
        member: usize,
        report: &Report,
        listed: &Listed,
        now: u64,
    ) -> Vec<(usize, usize)> {
        let RunningMember { view, judged_from, .. } = &self.members[member];
        // Only a comparison shows that a subscription never worked.
        if now < *judged_from {
            return Vec::new();
        }
        let nodes = self.world.members[member].nodes.iter().zip(&report.live_sources);
        let is_in_vain = |node: usize| {
            let is_new = |since: u64| (GRACE_NS..GRACE_NS + LIVE_NS).contains(&(now - since));
            let new = listed[node].iter().flatten().filter(|(_, since)| is_new(*since));
            new.clone().count() >= LEAST_NEW && new.into_iter().all(|(hash, _)| !view.holds(hash))
        };
        let in_vain = nodes.filter(|(node, is_live)| **is_live && is_in_vain(**node));
        in_vain.map(|(node, _)| (member, *node)).collect()
    }

    /// Whether the only node of a member has answered late for [`LATE_NS`], without any other
    /// fault, and the member has got none of its transactions in the last ten seconds of that.
    fn is_late_in_vain(&self, member: usize, listed: &Listed, now: u64) -> bool {
        let [node] = self.world.members[member].nodes[..] else { return false };
        let quirk = self.network.quirk(node);
        if !quirk.is_some_and(|quirk| quirk.feeds_late(self.world.tps)) {
            return false;
        }
        let is_of_member = |part: Part| part == Part::All || part == Part::Member(member);
        let ends = self.disturbances.iter().filter(|other| is_of_member(other.part));
        let ends = ends.map(|other| other.ends).max().unwrap_or_default();
        let late_since = self.settled_at[node].max(ends);
        let listed = listed[node].iter().flatten();
        let view = &self.members[member].view;
        let ledger = self.network.ledger();
        let is_of_node = |hash: &B256| ledger.by_hash.contains_key(hash);
        now > late_since + LATE_NS
            && listed.filter(|(_, since)| *since > late_since).count() >= LEAST_NEW
            && !view.has_added_since(now - LIVE_NS, is_of_node)
    }

    /// Returns the nodes of a member that announce only hashes, while the source says that they
    /// announce whole transactions.
    /// Each is with the number of its source's reconnects.
    fn objects_in_vain(&self, member: usize, report: &Report) -> Vec<(usize, usize, u64)> {
        let nodes = self.world.members[member].nodes.iter().enumerate();
        let in_vain = nodes.filter(|(source, node)| {
            let quirk = self.network.quirk(**node);
            report.live_sources[*source]
                && report.has_objects[*source]
                && quirk == Some(NodeQuirk::Silent(Topic::Objects))
        });
        in_vain.map(|(source, node)| (member, *node, report.reconnects[source])).collect()
    }

    /// Returns the transactions that a node of the member has listed since before the member lost
    /// them. A node that was disturbed then may not have been asked for its list for a while.
    fn dropped(&self, member: usize, listed: &Listed) -> Vec<(usize, B256)> {
        let view = &self.members[member].view;
        let nodes = &self.world.members[member].nodes;
        let is_mined = |hash: &B256| nodes.iter().any(|node| self.network.has_mined(*node, hash));
        let is_dropped = |node: usize, hash: &B256, since: u64| {
            let is_promised = |removed_at: u64| {
                removed_at > since
                    && !is_disturbed(removed_at, &[Part::Node(node)], &self.disturbances)
            };
            view.removed_at(hash).is_some_and(is_promised) && !is_mined(hash)
        };
        let all = nodes.iter().flat_map(|node| {
            listed[*node].iter().flatten().map(|(hash, since)| (*node, hash, *since))
        });
        let dropped = all.filter(|(node, hash, since)| is_dropped(*node, hash, *since));
        dropped.map(|(_, hash, _)| (member, *hash)).collect()
    }

    /// Whether messages of a publisher wait, and the stream has acknowledged none since the last
    /// check.
    fn stores_nothing(&self, member: usize, report: &Report, now: u64) -> bool {
        let (checked_at, before) = &self.members[member].published;
        let stands_still = |(before, after): (&(u64, u64), &(u64, u64))| {
            before.0 == after.0 && before.1 > 0 && after.1 > 0
        };
        now - checked_at > READY_NS && before.iter().zip(&report.published).any(stands_still)
    }

    /// Returns an order that no builder has seen although a machine of the fleet accepted it too
    /// long ago to be ready. A builder that a fault disturbs may be late by itself. Without a fleet
    /// the machine's own builder has each order at once. If strangers come from hundreds of
    /// addresses, a builder may have no room for the orders of unknown callers.
    fn accepted_in_vain(&self, machine: usize, now: u64) -> Option<B256> {
        let accepted_before = now.checked_sub(READY_NS + GRACE_NS)?;
        let members = self.world.members.iter().enumerate();
        let builders: Vec<_> =
            members.filter(|(_, plan)| plan.reads_fleet).map(|(number, _)| number).collect();
        let is_late = |builder: &usize| {
            let path = [Part::Member(*builder), Part::Fleet];
            is_disturbed(accepted_before, &path, &self.disturbances)
        };
        if builders.iter().any(is_late) {
            return None;
        }
        let builders: Vec<_> = builders.into_iter().map(|builder| &self.members[builder]).collect();
        let newest = builders.iter().map(|builder| builder.remembers_since).max()?;
        let since = newest.max(self.members[machine].remembers_since);
        let log = self.searchers.log();
        let recent = log.orders.len().saturating_sub(1_000);
        let is_promised = |order: &&SearcherOrder| {
            !order.is_void && (self.world.promises_unknown || is_known(order.searcher))
        };
        let candidates = log.orders[recent..].iter().filter(is_promised);
        let accepted = candidates.filter_map(|order| {
            // With one message, nothing has taken its place before it was published.
            let [sent] = &order.messages[..] else { return None };
            let is_accepted = sent.machine == machine && sent.outcome == Outcome::Accepted;
            let is_old_enough = (since..accepted_before).contains(&sent.answered_at);
            let is_open =
                order.block.is_some_and(|block| block > self.head) && order.mined_in.is_none();
            sent.content.filter(|_| is_accepted && is_old_enough && is_open)
        });
        let seen: HashSet<_> =
            builders.iter().flat_map(|builder| builder.view.events.keys()).collect();
        accepted.into_iter().find(|hash| !seen.contains(hash))
    }
}

/// Returns the orders that some builder of a fleet holds and another lacks, each with the number of
/// the builder that lacks it.
fn differences(held: &[(usize, HashSet<B256>)]) -> Vec<(usize, B256)> {
    let all: HashSet<_> = held.iter().flat_map(|(_, orders)| orders).collect();
    let lacking = held.iter().flat_map(|(builder, orders)| {
        let missing = all.iter().filter(|hash| !orders.contains(**hash));
        missing.map(|hash| (*builder, **hash)).collect::<Vec<_>>()
    });
    lacking.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_did_not_hold_in_between_begins_anew() {
        let mut lasting = Lasting::default();
        assert_eq!(lasting.update(1, [7]), [(7, 1)]);
        assert_eq!(lasting.update(2, [7]), [(7, 1)]);
        lasting.update(3, []);
        assert_eq!(lasting.update(4, [7]), [(7, 4)]);
    }

    #[test]
    fn builders_differ_by_the_orders_that_one_of_them_lacks() {
        let [a, b] = [1, 2].map(B256::repeat_byte);
        let held = [(0, HashSet::from([a, b])), (1, HashSet::from([a])), (2, HashSet::from([a]))];
        assert_eq!(differences(&held), [(1, b), (2, b)]);
    }
}
