//! The further questions of the oracle, asked at each look of a world that has them
//! ([`World::asks_more`](crate::world::World::asks_more)). The first three need no fault's bound: no fault is a reason to
//! say that all is well, or to lose what is there.
//!
//! 1. Is a source live for ten seconds while its node lists transactions, of which the pool has none?
//! 2. Is what a node still lists still held, once it was there?
//! 3. Does a machine say that it is ready while what it has accepted reaches no builder?
//! 4. Do all builders of a fleet hold the same?

use std::collections::HashSet;

use alloy_primitives::B256;
use testkit::member::Report;

use super::Run;
use crate::{
    oracle::{Findings, GRACE_NS, LIVE_NS, Lasting, Outcome, READY_NS, Wrong, differences, due},
    world::Part,
};

/// What was so at the looks before.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Of a member and a node.
    live_in_vain: Lasting<(usize, usize)>,
    /// Of a member.
    dropped: Lasting<(usize, B256)>,
    differs: Lasting<(usize, B256)>,
}

/// What the nodes list, each hash with the time since when.
type Held = [Option<Vec<(B256, u64)>>];

impl Run<'_> {
    /// What is wrong with whom.
    pub(super) fn ask_further(
        &mut self,
        reports: &[(usize, Report)],
        held: &Held,
        now: u64,
    ) -> Vec<(usize, Findings)> {
        let reports = || reports.iter().filter(|(_, report)| report.is_current);
        let (mut live_in_vain, mut dropped, mut ready_in_vain) =
            (Vec::new(), Vec::new(), Vec::new());
        for (member, report) in reports() {
            live_in_vain.extend(self.live_in_vain(*member, report, held, now));
            dropped.extend(self.dropped(*member, held));
            if report.is_ready {
                let in_vain = self.accepted_in_vain(*member, now).map(|hash| (*member, hash));
                ready_in_vain.extend(in_vain);
            }
        }
        let builders = reports().filter(|(member, _)| self.world.members[*member].reads_fleet);
        let orders =
            builders.map(|(at, _)| (*at, self.seats[*at].mirror.held().copied().collect()));
        let differs = differences(&orders.collect::<Vec<_>>());
        let mut all: Vec<_> =
            (0..self.seats.len()).map(|member| (member, Findings::new(now))).collect();
        let before = &mut self.before;
        for ((member, _), since) in before.live_in_vain.look(now, live_in_vain) {
            all[member].1.ask(since + LIVE_NS, false, Wrong::LiveInVain, B256::ZERO);
        }
        for ((member, hash), since) in before.dropped.look(now, dropped) {
            all[member].1.ask(since + GRACE_NS, false, Wrong::Dropped, hash);
        }
        for (member, hash) in ready_in_vain {
            all[member].1.ask(now, false, Wrong::ReadyInVain, hash);
        }
        let everybody = (0..self.world.members.len()).map(Part::Member);
        let way: Vec<_> = everybody.chain([Part::Fleet]).collect();
        for ((member, hash), since) in before.differs.look(now, differs) {
            all[member].1.ask(due(since, &way, &self.troubles), false, Wrong::Differs, hash);
        }
        all
    }

    /// The nodes of a member that list what they should have told it, while its source says that it is live and it has
    /// nothing of that.
    fn live_in_vain(
        &self,
        member: usize,
        report: &Report,
        held: &Held,
        now: u64,
    ) -> Vec<(usize, usize)> {
        let mirror = &self.seats[member].mirror;
        let nodes = self.world.members[member].nodes.iter().zip(&report.live_sources);
        let is_in_vain = |node: usize| {
            let listed = held[node].iter().flatten().filter(|(_, since)| since + GRACE_NS < now);
            let mut listed = listed.peekable();
            listed.peek().is_some() && listed.all(|(hash, _)| !mirror.has(hash))
        };
        let in_vain = nodes.filter(|(node, is_live)| **is_live && is_in_vain(**node));
        in_vain.map(|(node, _)| (member, *node)).collect()
    }

    /// What a node of the member has listed since before the member lost it.
    fn dropped(&self, member: usize, held: &Held) -> Vec<(usize, B256)> {
        let mirror = &self.seats[member].mirror;
        let nodes = &self.world.members[member].nodes;
        let is_dropped = |hash: &B256, since: u64| {
            let is_mined = || nodes.iter().any(|node| self.network.has_mined(*node, hash));
            mirror.removed(hash).is_some_and(|removed| removed > since) && !is_mined()
        };
        let listed = nodes.iter().flat_map(|node| held[*node].iter().flatten());
        let dropped = listed.filter(|(hash, since)| is_dropped(hash, *since));
        dropped.map(|(hash, _)| (member, *hash)).collect()
    }

    /// An order that a machine of a fleet accepted too long ago to say that it is ready while no builder has seen it.
    fn accepted_in_vain(&self, machine: usize, now: u64) -> Option<B256> {
        let accepted_before = now.checked_sub(READY_NS + GRACE_NS)?;
        let seat = &self.seats[machine];
        let builders = || {
            let members = self.world.members.iter().zip(&self.seats);
            members.filter(|(plan, _)| plan.reads_fleet).map(|(_, seat)| seat)
        };
        // Without a fleet the machine's own builder has it at once.
        let newest_builder = builders().map(|builder| builder.started).max()?;
        let oldest = newest_builder.max(seat.started);
        if builders().any(|builder| builder.member.is_none() || builder.is_unasked()) {
            return None;
        }
        let log = self.searchers.log();
        let recent = log.wishes.len().saturating_sub(1_000);
        let orders = log.wishes[recent..].iter().filter(|wish| !wish.is_void).filter_map(|wish| {
            // One message: nothing has taken its place before it was published.
            let [sent] = &wish.messages[..] else { return None };
            let is_accepted = sent.machine == machine && sent.outcome == Outcome::Accepted;
            let is_old_enough = (oldest..accepted_before).contains(&sent.answered);
            let is_open = wish.block.is_some_and(|block| block > self.head) && wish.mined.is_none();
            sent.makes.filter(|_| is_accepted && is_old_enough && is_open)
        });
        let seen: HashSet<_> = builders().flat_map(|builder| builder.mirror.lives.keys()).collect();
        orders.into_iter().find(|hash| !seen.contains(hash))
    }
}
