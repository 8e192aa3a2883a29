//! What a run came to.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use testkit::{figures::Times, usage::now_ns};

use super::{FILLED, Failure, Run};
use crate::{
    attack,
    oracle::{self, REMEMBERED, Violation},
};

impl Run<'_> {
    /// What no rule asks about any more.
    pub(super) fn forget(&mut self) {
        let ledger = self.network.ledger();
        let head = self.head;
        for seat in &mut self.seats {
            seat.mirror.lives.retain(|hash, seen| {
                let tx = ledger.by_hash.get(hash).map(|at| &ledger.txs[*at]);
                match tx {
                    Some(tx) => tx.mined.is_none_or(|(block, _)| block + REMEMBERED > head),
                    None => seen.last().is_some_and(|(at, _)| now_ns() - at < 200_000_000_000),
                }
            });
        }
        drop(ledger);
        let now = now_ns();
        // One that is over touches nothing that is still judged: what is pending for longer was judged before.
        self.troubles.retain(|trouble| trouble.until + 300_000_000_000 > now);
    }

    /// What memory, files and threads have become, where the run was long enough to tell.
    pub(super) fn measure(&mut self) {
        for (member, seat) in self.seats.iter().enumerate() {
            // Fewer orders are not remembered for ever before.
            let filled = seat.started + FILLED.as_nanos() as u64;
            let late = seat.mirror.uses.iter().filter(|(at, _)| *at > filled);
            let uses: Vec<_> = late.map(|(_, uses)| *uses).collect();
            if let (Some([bytes, files, threads]), Some([bytes_now, files_now, threads_now])) =
                (uses.first(), uses.last())
            {
                println!(
                    "member {member}, after five minutes and at the end: {} and {} MiB beside its orders and the hashes that it remembers, {files} and {files_now} files, {threads} and {threads_now} threads",
                    bytes >> 20,
                    bytes_now >> 20
                );
            }
            if let Some(wrong) = (uses.len() > 60).then(|| oracle::grown(&uses)).flatten() {
                let text = format!("{:?} to {:?}", uses.first(), uses.last());
                self.outcomes.violations.push(Violation { wrong, member, hash: B256::ZERO, text });
            }
        }
    }

    pub(super) fn summarize(&mut self) -> Result<(), Failure> {
        let outcomes = &mut self.outcomes;
        for attack in self.attacks.drain(..) {
            match attack.join() {
                Ok(Ok(tally)) => outcomes.attack += tally,
                other => eprintln!("warning: an attacker ended early: {other:?}"),
            }
        }
        let log = self.searchers.log();
        let times = Times::from(&self.late[1]);
        outcomes.refused = log.refused;
        outcomes.answers = [Times::from(&log.took[0]), Times::from(&log.took[1])];
        outcomes.health = Times::from(&log.health);
        outcomes.live = times;
        outcomes.memory = self.seats[0].mirror.memory;
        let answers_p99 = outcomes.answers.map(|times| times.p99);
        let attacks = self.outcomes.struck.iter().filter(|(_, what)| what.is_attack()).count();
        let builders = self.seats.len();
        let missed: u64 = self.seats.iter().map(|seat| seat.mirror.missed).sum();
        let is_refused = |name: &str| name.starts_with("refused") || name == "no answer";
        let refused = log.counts.iter().filter(|(name, _)| is_refused(name));
        let refused: BTreeMap<_, _> = refused.collect();
        // A run in which faults touched every way measured none.
        let measured = match times.count {
            0 => String::new(),
            _ => format!(" p50 {:.1} ms, p99 {:.1} ms", times.p50 / 1e3, times.p99 / 1e3),
        };
        let attack::Tally { sent, accepted: taken, .. } = self.outcomes.attack;
        self.outcomes.summary = format!(
            "seed {}, {:.1} minutes: {} transactions and {} searchers' messages in, {} nodes, {builders} builders{}, {} heads; {} checks, {} violations; \
             announced to builder{measured}, worst beside a fault {:.1} s; answers p99 {:.1} ms, of known signers {:.1}; \
             {} faults, {attacks} attacks with {sent} requests, of which {taken} were accepted; slow builders missed {missed} events and began again; honest callers: {refused:?}",
            self.world.seed,
            self.begin.elapsed().as_secs_f64() / 60.0,
            self.network.ledger().txs.len(),
            log.accepted(),
            self.world.nodes,
            if self.world.has_fleet { " of a fleet" } else { "" },
            self.head,
            self.checks,
            self.outcomes.violations.len(),
            self.worst as f64 / 1e9,
            answers_p99[0] / 1e3,
            answers_p99[1] / 1e3,
            self.outcomes.struck.len() - attacks,
        );
        self.outcomes.summary += &self.real.summary(self.outcomes.violations.is_empty())?;
        Ok(())
    }
}
