//! The oracle: what a builder must hold before each head. This page is the whole rule.
//!
//! Just before each head the conductor gathers [`Facts`] about every builder (`run/facts.rs`), and
//! [`judge`] compares them with what the product promises. It reads no clock and asks nobody. Each
//! promise has a deadline: an order may travel for [`GRACE_NS`], and longer while a fault disturbs
//! its path ([`mod@deadline`] has that rule). A promise whose deadline has not passed is not
//! judged.
//!
//! All times are nanoseconds of `CLOCK_MONOTONIC`, the same in all processes.

mod deadline;
mod searcher_order;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use alloy_primitives::B256;

pub(crate) use self::{
    deadline::{Disturbance, deadline, is_disturbed, is_for_next_block},
    searcher_order::{BlockPhase, Message, Outcome},
};

/// The time that an order may take to a builder on a busy machine.
pub(crate) const GRACE_NS: u64 = 2_500_000_000;

/// A source must not be live for longer while the pool has none of the transactions that its node
/// has listed since then, nor say for longer that whole transactions are announced while none is.
pub(crate) const LIVE_NS: u64 = 10_000_000_000;

/// While a node answers late, the first of its transactions must be there after this time.
pub(crate) const LATE_NS: u64 = 15_000_000_000;

/// A machine must not be ready for longer while an order that it accepted reaches nobody.
pub(crate) const READY_NS: u64 = 2_000_000_000;

/// An order of a searcher is judged for this long after its last message. Its block has passed by
/// then.
pub(crate) const JUDGED_NS: u64 = 180_000_000_000;

/// The number of recent blocks whose transactions must not come back. Older orders are forgotten.
pub(crate) const REMEMBERED_BLOCKS: u64 = 30;

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Breach {
    /// **Kept**: the builder lacks an order.
    Missing,
    /// **Kept**: the builder lost a transaction that a node still lists.
    Dropped,
    /// **Kept**: a node answers late, and the builder has none of its transactions.
    LateInVain,
    /// **Kept**: a blob transaction is there with the proofs of EIP-4844, which no block accepts
    /// since Osaka.
    OldSidecar,
    /// **Kept**: an honest searcher was refused although the machine had time for the request.
    Refused,
    /// **Kept**: another builder of the fleet holds an order that this one lacks.
    Differs,
    /// **Gone**: a block contains the order, and the builder still holds it.
    Mined,
    /// **Gone**: the order was replaced, and the builder still holds the old version.
    Replaced,
    /// **Gone**: the order was cancelled, and the builder still holds it.
    Cancelled,
    /// **Gone**: the last block of the order has passed, and the builder still holds it.
    Over,
    /// **Known**: the builder does not know the chain's head.
    Behind,
    /// **Known**: an order was added while it was there.
    Twice,
    /// **Known**: the fetcher's hash counts do not balance, or the builder's reader and its pool
    /// differ.
    Counts,
    /// **Known**: memory, open files or threads have grown over the run (`growth.rs`).
    Grown,
    /// **Known**: a machine is ready while an order that it accepted reaches no builder, or while
    /// its stream stores nothing.
    ReadyInVain,
    /// **Known**: the command does not end after a signal.
    Unstoppable,
    /// **Known**: a source is live while its node lists new transactions and the pool has none of
    /// them.
    LiveInVain,
    /// **Known**: a source says that its node announces whole transactions, which it does not: each
    /// transaction is late, because its object is waited for.
    ObjectsInVain,
}

/// What the trial knows about one builder at one check. A builder that still reads older events is
/// not judged.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) now: u64,
    /// Transactions that the nodes which feed this builder list as pending.
    pub(crate) listed: Vec<ListedTx>,
    /// Transactions of the last [`REMEMBERED_BLOCKS`] blocks that this builder knows.
    pub(crate) mined: Vec<MinedTx>,
    /// The latest heads of the chain: the deadline of each, and whether the builder knows it.
    pub(crate) heads: Vec<(u64, bool)>,
    /// Orders of honest searchers to whom something is promised.
    pub(crate) orders: Vec<OrderFacts>,
    /// Orders that were added while they were there.
    pub(crate) added_twice: Vec<B256>,
    /// Whether the fetcher's counts do not balance, or the reader and the pool differ.
    pub(crate) is_miscounted: bool,
    /// Transactions that a node lists and the builder has lost, each with the first check that saw
    /// it.
    pub(crate) dropped: Vec<(B256, u64)>,
    /// Orders that another builder of the fleet holds and this one lacks, each with its deadline.
    pub(crate) differing: Vec<(B256, u64)>,
    /// The first check since which a source has been live in vain.
    pub(crate) live_in_vain_since: Option<u64>,
    /// The same of a source that waits for objects in vain.
    pub(crate) objects_in_vain_since: Option<u64>,
    /// Whether a node has answered late for [`LATE_NS`] and this builder, which reads no other
    /// node, has got none of its transactions since then.
    pub(crate) is_late_in_vain: bool,
    /// An order accepted more than [`READY_NS`] and the grace ago that reached nobody while the
    /// machine was ready.
    pub(crate) accepted_in_vain: Option<B256>,
    /// Whether orders waited for the stream while it stored nothing and the machine was ready.
    pub(crate) stores_nothing: bool,
}

#[derive(Debug)]
pub(crate) struct ListedTx {
    pub(crate) hash: B256,
    pub(crate) deadline: u64,
    pub(crate) is_held: bool,
    /// Whether a block of the chain that this builder follows contains it.
    pub(crate) is_mined: bool,
    pub(crate) has_old_sidecar: bool,
}

#[derive(Debug)]
pub(crate) struct MinedTx {
    pub(crate) hash: B256,
    pub(crate) deadline: u64,
    pub(crate) is_held: bool,
}

#[derive(Debug)]
pub(crate) struct OrderFacts {
    /// The hash of its latest transaction.
    pub(crate) tx: B256,
    pub(crate) is_known_signer: bool,
    /// Whether this builder's machine refused it although it had time for the request.
    pub(crate) was_displaced: bool,
    /// What this builder must have heard of it, oldest first.
    pub(crate) messages: Vec<Message>,
    pub(crate) target: OrderTarget,
}

#[derive(Debug)]
pub(crate) enum OrderTarget {
    /// All versions are for one block. `held` are the versions that the builder holds, `latest` is
    /// the last one sent.
    Block { phase: BlockPhase, held: Vec<B256>, latest: B256 },
    /// The order ends with the next head, so it must have been seen, not be there still.
    NextBlock { bundle: B256, must_be_seen: bool, was_seen: bool },
}

/// How many promises of one kind of order were due, and how many of them were kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) due: u64,
    pub(crate) kept: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The number of promises that were due.
    pub(crate) checks: u64,
    pub(crate) breaches: BTreeSet<(Breach, B256)>,
    /// Of the node's transactions, of unknown signers' orders and of known signers' orders.
    pub(crate) kept: [Kept; 3],
}

/// Judges one builder at one check.
pub(crate) fn judge(facts: &Facts) -> Verdict {
    let now = facts.now;
    let mut verdict = Verdict::default();
    for tx in &facts.listed {
        if tx.deadline <= now {
            let is_kept = tx.is_held || tx.is_mined;
            verdict.kept[0].count(is_kept);
            verdict.check(is_kept, Breach::Missing, tx.hash);
            verdict.check(!tx.has_old_sidecar, Breach::OldSidecar, tx.hash);
        }
    }
    for tx in facts.mined.iter().filter(|tx| tx.deadline <= now) {
        verdict.check(!tx.is_held, Breach::Mined, tx.hash);
    }
    for (deadline, is_known) in &facts.heads {
        if *deadline <= now {
            verdict.check(*is_known, Breach::Behind, B256::ZERO);
        }
    }
    for order in &facts.orders {
        let breach = if order.was_displaced { Some((Breach::Refused, order.tx)) } else { None };
        let breach = breach.or_else(|| match &order.target {
            OrderTarget::Block { phase, held, latest } => {
                let breach = searcher_order::judge(&order.messages, now, *phase, held)?;
                Some((breach, held.first().copied().unwrap_or(*latest)))
            }
            OrderTarget::NextBlock { bundle, must_be_seen, was_seen } => {
                (*must_be_seen && !was_seen).then_some((Breach::Missing, *bundle))
            }
        });
        verdict.kept[1 + usize::from(order.is_known_signer)].count(breach.is_none());
        verdict.checks += 1;
        verdict.breaches.extend(breach);
    }
    for hash in &facts.added_twice {
        verdict.check(false, Breach::Twice, *hash);
    }
    verdict.check(!facts.is_miscounted, Breach::Counts, B256::ZERO);
    for (hash, first_seen) in &facts.dropped {
        verdict.check(first_seen + GRACE_NS > now, Breach::Dropped, *hash);
    }
    for (hash, deadline) in &facts.differing {
        verdict.check(*deadline > now, Breach::Differs, *hash);
    }
    for (since, breach) in [
        (facts.live_in_vain_since, Breach::LiveInVain),
        (facts.objects_in_vain_since, Breach::ObjectsInVain),
    ] {
        let is_kept = since.is_none_or(|since| since + LIVE_NS > now);
        verdict.check(is_kept, breach, B256::ZERO);
    }
    verdict.check(!facts.is_late_in_vain, Breach::LateInVain, B256::ZERO);
    if let Some(hash) = facts.accepted_in_vain {
        verdict.check(false, Breach::ReadyInVain, hash);
    }
    verdict.check(!facts.stores_nothing, Breach::ReadyInVain, B256::ZERO);
    verdict
}

impl Verdict {
    fn check(&mut self, is_kept: bool, breach: Breach, hash: B256) {
        self.checks += 1;
        if !is_kept {
            self.breaches.insert((breach, hash));
        }
    }
}

impl Kept {
    fn count(&mut self, is_kept: bool) {
        self.due += 1;
        self.kept += u64::from(is_kept);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.due += other.due;
        self.kept += other.kept;
    }

    /// The share of the due promises that were kept, in percent; `None` if none was due.
    pub(crate) fn percent(self) -> Option<f64> {
        (self.due > 0).then(|| 100.0 * self.kept as f64 / self.due as f64)
    }
}

/// A broken promise, with the history of the order.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) breach: Breach,
    pub(crate) member: usize,
    pub(crate) hash: B256,
    pub(crate) story: String,
}
