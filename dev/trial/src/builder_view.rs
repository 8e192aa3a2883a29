//! What a builder holds, rebuilt from its reports.

use std::collections::{HashMap, HashSet};

use alloy_primitives::B256;
use testkit::{
    member::{Report, Seen},
    usage::now_ns,
};

use crate::growth::Usage;

/// What a builder holds and has seen.
#[derive(Debug, Default)]
pub(crate) struct BuilderView {
    /// How often each content is there: the same transactions may stand in bundles for several
    /// blocks.
    held: HashMap<B256, u32>,
    /// The events that it saw of each order that the trial knows, each with its time.
    pub(crate) events: HashMap<B256, Vec<(u64, Seen)>>,
    /// The numbers of the latest heads, each with its time.
    pub(crate) heads: Vec<(u64, u64)>,
    /// The last head's number and hash.
    pub(crate) head: Option<(u64, B256)>,
    /// Events that a slow builder missed before it resynchronized.
    pub(crate) missed_events: u64,
    /// Orders that were added while they were there.
    pub(crate) added_twice: Vec<B256>,
    /// Blob transactions that it holds with the proofs of EIP-4844.
    pub(crate) old_sidecars: HashSet<B256>,
    /// Resident memory at the first check, and the most since, in bytes.
    pub(crate) resident_bytes: [usize; 2],
    /// What its process used at each check.
    pub(crate) usages: Vec<(u64, Usage)>,
}

impl BuilderView {
    pub(crate) fn holds(&self, hash: &B256) -> bool {
        self.held.get(hash).is_some_and(|count| *count > 0)
    }

    /// Returns the contents that it holds.
    pub(crate) fn held(&self) -> impl Iterator<Item = &B256> {
        self.held.keys()
    }

    /// Returns the number of orders that it holds.
    pub(crate) fn len(&self) -> usize {
        self.held.values().map(|count| *count as usize).sum()
    }

    /// Returns since when it has known a block or a later one.
    pub(crate) fn reached_at(&self, block: u64) -> Option<u64> {
        let known = self.heads.iter().rev().take_while(|(head, _)| *head >= block);
        known.last().map(|(_, seen_at)| *seen_at)
    }

    /// Returns when it lost an order that it held, unless the order is there again.
    pub(crate) fn removed_at(&self, hash: &B256) -> Option<u64> {
        let (seen_at, event) = self.events.get(hash)?.last()?;
        matches!(event, Seen::Removed(_)).then_some(*seen_at)
    }

    /// Returns when an order that it holds was added last.
    pub(crate) fn added_at(&self, hash: &B256) -> Option<u64> {
        let (seen_at, event) = self.events.get(hash)?.last()?;
        matches!(event, Seen::Added).then_some(*seen_at)
    }

    /// Whether it added one of these orders at this time or later.
    pub(crate) fn has_added_since(&self, time: u64, is_one: impl Fn(&B256) -> bool) -> bool {
        let is_late_add =
            |(seen_at, event): &(u64, Seen)| *seen_at >= time && matches!(event, Seen::Added);
        self.events.iter().any(|(hash, events)| is_one(hash) && events.iter().any(is_late_add))
    }

    /// Applies a report. `is_known` says whether the trial itself made an order.
    pub(crate) fn apply(&mut self, report: &Report, is_known: impl Fn(&B256) -> bool) {
        for (seen_at, event, hash) in &report.seen {
            match event {
                Seen::Added => {
                    let count = self.held.entry(*hash).or_default();
                    *count += 1;
                    // A stranger's bundle may be there for several blocks; ours are for one each.
                    if *count > 1 && is_known(hash) {
                        self.added_twice.push(*hash);
                    }
                }
                Seen::Removed(_) => {
                    if let Some(count) = self.held.get_mut(hash) {
                        *count = count.saturating_sub(1);
                    }
                }
                Seen::Head(number) => {
                    self.head = Some((*number, *hash));
                    if self.heads.last().is_none_or(|(head, _)| head != number) {
                        self.heads.push((*number, *seen_at));
                    }
                }
                Seen::Resync(missed) => {
                    self.held.clear();
                    self.missed_events += missed;
                }
            }
            if matches!(event, Seen::Added | Seen::Removed(_)) && is_known(hash) {
                self.events.entry(*hash).or_default().push((*seen_at, event.clone()));
            }
        }
        self.held.retain(|_, count| *count > 0);
        self.old_sidecars = report.old_sidecars.iter().copied().collect();
        let [first, most] = self.resident_bytes;
        self.resident_bytes = if self.usages.is_empty() {
            [report.resident_bytes; 2]
        } else {
            [first, most.max(report.peak_bytes)]
        };
        let besides_orders = report.resident_bytes.saturating_sub(report.held_bytes);
        self.usages.push((now_ns(), [besides_orders, report.open_files, report.threads]));
    }

    /// Returns the events that it saw of an order and its latest heads, each with its time.
    pub(crate) fn story(&self, name: &str, hash: &B256) -> Vec<(u64, String)> {
        let events = self.events.get(hash).into_iter().flatten();
        let events = events.map(|(seen_at, event)| (*seen_at, format!("{name}: {event:?}")));
        let heads = self.heads.iter().rev().take(6);
        let heads = heads.map(|(head, seen_at)| (*seen_at, format!("{name} has head {head}")));
        events.chain(heads).collect()
    }
}
