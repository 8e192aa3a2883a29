//! What a builder has, as its reports tell it.

use std::collections::HashMap;

use alloy_primitives::B256;
use testkit::{
    member::{Report, Seen},
    usage::now_ns,
};

/// What a builder has, as its reports tell it.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// How often each content is there: the same transactions may stand in bundles for several blocks.
    live: HashMap<B256, u32>,
    /// What it saw of each, of those that somebody asks for.
    pub(crate) lives: HashMap<B256, Vec<(u64, Seen)>>,
    /// The latest heads, each with its time.
    pub(crate) heads: Vec<(u64, u64)>,
    /// The last one, with its hash.
    pub(crate) head: Option<(u64, B256)>,
    pub(crate) missed: u64,
    /// Transactions that came while they were there.
    pub(crate) twice: Vec<B256>,
    /// Resident memory at the first look, and the most since, in bytes.
    pub(crate) memory: [usize; 2],
    /// Resident memory beside [`Report::held_bytes`], open files and threads at each look.
    pub(crate) uses: Vec<(u64, [usize; 3])>,
}

impl Mirror {
    pub(crate) fn has(&self, hash: &B256) -> bool {
        self.live.get(hash).is_some_and(|count| *count > 0)
    }

    /// Since when it knows a block or a later one.
    pub(crate) fn reached(&self, block: u64) -> Option<u64> {
        let known = self.heads.iter().rev().take_while(|(head, _)| *head >= block);
        known.last().map(|(_, at)| *at)
    }

    pub(crate) fn take(&mut self, report: &Report, is_ours: impl Fn(&B256) -> bool) {
        for (at, seen, hash) in &report.seen {
            match seen {
                Seen::Added => {
                    let count = self.live.entry(*hash).or_default();
                    *count += 1;
                    // A bundle may be there for several blocks; ours are for one each.
                    if *count > 1 && is_ours(hash) {
                        self.twice.push(*hash);
                    }
                }
                Seen::Removed(_) => {
                    if let Some(count) = self.live.get_mut(hash) {
                        *count = count.saturating_sub(1);
                    }
                }
                Seen::Head(number) => {
                    self.head = Some((*number, *hash));
                    if self.heads.last().is_none_or(|(head, _)| head != number) {
                        self.heads.push((*number, *at));
                    }
                }
                Seen::Resync(missed) => {
                    self.live.clear();
                    self.missed += missed;
                }
            }
            if matches!(seen, Seen::Added | Seen::Removed(_)) && is_ours(hash) {
                self.lives.entry(*hash).or_default().push((*at, seen.clone()));
            }
        }
        self.live.retain(|_, count| *count > 0);
        let [idle, peak] = self.memory;
        self.memory = match self.uses.is_empty() {
            true => [report.resident_bytes; 2],
            false => [idle, peak.max(report.peak_bytes)],
        };
        let beside = report.resident_bytes.saturating_sub(report.held_bytes);
        let uses = [beside, report.open_files, report.threads];
        self.uses.push((now_ns(), uses));
    }

    /// What it saw of an order, and its latest heads, each with its time.
    pub(crate) fn life(&self, who: &str, hash: &B256) -> Vec<(u64, String)> {
        let seen = self.lives.get(hash).into_iter().flatten();
        let seen = seen.map(|(at, seen)| (*at, format!("{who}: {seen:?}")));
        let heads = self.heads.iter().rev().take(6);
        seen.chain(heads.map(|(head, at)| (*at, format!("{who} has head {head}")))).collect()
    }

    /// What it holds.
    pub(crate) fn held(&self) -> impl Iterator<Item = &B256> {
        self.live.keys()
    }

    /// When it lost what it had, if it does not have it any more.
    pub(crate) fn removed(&self, hash: &B256) -> Option<u64> {
        let (at, seen) = self.lives.get(hash)?.last()?;
        matches!(seen, Seen::Removed(_)).then_some(*at)
    }

    /// How many orders it has.
    pub(crate) fn len(&self) -> usize {
        self.live.values().map(|count| *count as usize).sum()
    }
}
