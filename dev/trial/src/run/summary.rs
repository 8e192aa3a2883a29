//! Forgets what no promise is about any more, judges the growth of processes, and sums up a run.

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::B256;
use testkit::{figures::Times, usage::now_ns};

use super::{Failure, Run};
use crate::{
    attack,
    growth::has_grown,
    oracle::{Breach, JUDGED_NS, REMEMBERED_BLOCKS, Violation},
};

/// A process fills its memory of hashes for this long before its growth is judged.
const FILLED: Duration = Duration::from_mins(5);

/// The fewest checks from then on that show whether a process grows.
const LEAST_CHECKS: usize = 60;

/// Events of searchers' orders are forgotten this long after the last one, when they are not judged
/// any more, and disturbances this long after their end.
const FORGOTTEN_NS: u64 = JUDGED_NS + 20_000_000_000;
const UNDISTURBED_NS: u64 = 300_000_000_000;

impl Run<'_> {
    pub(super) fn forget_old(&mut self) {
        let ledger = self.network.ledger();
        let (head, now) = (self.head, now_ns());
        for member in &mut self.members {
            member.view.events.retain(|hash, events| {
                match ledger.by_hash.get(hash).map(|index| &ledger.txs[*index]) {
                    Some(tx) => tx.mined.is_none_or(|(block, _)| block + REMEMBERED_BLOCKS > head),
                    None => events.last().is_some_and(|(time, _)| now - time < FORGOTTEN_NS),
                }
            });
        }
        drop(ledger);
        self.disturbances.retain(|disturbance| disturbance.ends + UNDISTURBED_NS > now);
    }

    /// Judges memory, files and threads, where the run was long enough.
    pub(super) fn judge_growth(&mut self) {
        for (number, member) in self.members.iter().enumerate() {
            let filled_at = member.remembers_since + FILLED.as_nanos() as u64;
            let late = member.view.usages.iter().filter(|(time, _)| *time > filled_at);
            let usages: Vec<_> = late.map(|(_, usage)| *usage).collect();
            if let (Some([bytes, files, threads]), Some([bytes_now, files_now, threads_now])) =
                (usages.first(), usages.last())
            {
                println!(
                    "member {number}, after five minutes and at the end: {} and {} MiB besides its \
                     orders and remembered hashes, {files} and {files_now} files, {threads} and \
                     {threads_now} threads",
                    bytes >> 20,
                    bytes_now >> 20
                );
            }
            if usages.len() > LEAST_CHECKS && has_grown(&usages) {
                let story = format!("    {:?} to {:?}\n", usages.first(), usages.last());
                let (breach, hash) = (Breach::Grown, B256::ZERO);
                self.result.violations.push(Violation { breach, member: number, hash, story });
            }
        }
    }

    pub(super) fn summarize(&mut self) -> Result<(), Failure> {
        let result = &mut self.result;
        for attacker in self.attackers.drain(..) {
            match attacker.join() {
                Ok(Ok(tally)) => result.attack += tally,
                other => eprintln!("warning: an attacker ended early: {other:?}"),
            }
        }
        let log = self.searchers.log();
        let times = Times::from(&self.latencies[1]);
        result.refused = log.refused;
        result.answer_times = log.answer_times.each_ref().map(Times::from);
        result.health_times = Times::from(&log.health_times);
        result.announcement_times = times;
        result.resident_bytes = self.members[0].view.resident_bytes;
        let attacks = result.incidents.iter().filter(|(_, incident)| incident.is_attack()).count();
        let missed: u64 = self.members.iter().map(|member| member.view.missed_events).sum();
        let is_refused = |name: &str| name.starts_with("refused") || name == "no answer";
        let refused: BTreeMap<_, _> =
            log.counts.iter().filter(|(name, _)| is_refused(name)).collect();
        // A run in which faults disturbed every path measured nothing.
        let measured = if times.count == 0 {
            String::new()
        } else {
            format!(" p50 {:.1} ms, p99 {:.1} ms", times.p50 / 1e3, times.p99 / 1e3)
        };
        let [p99_unknown, p99_known] = result.answer_times.map(|times| times.p99);
        let attack::Tally { sent, accepted: taken, .. } = &result.attack;
        result.summary = format!(
            "seed {}, {:.1} minutes: {} transactions and {} searchers' messages in, {} nodes, {} \
             builders{}, {} heads; {} checks, {} violations; announced to builder{measured}, worst \
             beside a fault {:.1} s; answers p99 {:.1} ms, of known signers {:.1}; {} faults, \
             {attacks} attacks with {sent} requests, of which {taken} were accepted; slow builders \
             missed {missed} events and began again; honest callers: {refused:?}",
            self.world.seed,
            self.begin.elapsed().as_secs_f64() / 60.0,
            self.network.ledger().txs.len(),
            log.accepted(),
            self.world.nodes,
            self.members.len(),
            if self.world.has_fleet { " of a fleet" } else { "" },
            self.head,
            self.checks,
            result.violations.len(),
            self.worst_latency_ns as f64 / 1e9,
            p99_unknown / 1e3,
            p99_known / 1e3,
            result.incidents.len() - attacks,
        );
        result.summary += &self.real.summary(result.violations.is_empty())?;
        Ok(())
    }
}
