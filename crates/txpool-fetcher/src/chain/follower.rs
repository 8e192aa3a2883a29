//! The rule for the chain: decides which heads of which source become the canonical chain. No I/O,
//! no clock.
//!
//! # The leader
//! One source leads. The leader defines the chain; a block of another source counts if it extends
//! the chain, and is provisional until the leader agrees. So a slow leader makes no head late, and
//! a branch of another source changes nothing.
//!
//! Another source takes the lead with a head that is linked to the chain by its ancestors, or that
//! is deeper than the remembered blocks, in one of these cases:
//! - It has been higher than the leader for [`Limits::lead_timeout`](crate::limits::Limits), and
//!   has announced [`HEADS_TO_LEAD`] new heads in this time.
//! - The leader may not lead (it is not connected, or it is syncing), and the head is higher than
//!   the leader's, or the condition above holds.
//! - The leader's first head could not be linked: then the other source takes the lead at once,
//!   because a number alone proves nothing. If a later head of the leader cannot be linked, its
//!   number does not count until another head is linked.
//!
//! With several sources, the first head of all counts together with the blocks of the minute before
//! it, because another source may be that late, and list their transactions. These blocks are not
//! reported to the sink as heads: their hashes are reported with the first head, and again with a
//! reorg that undoes it.
//!
//! A head of another source that is not linked does not count, unless no other source may lead. A
//! head at or below the remembered blocks is ignored, unless its source leads and has gone back: a
//! node that lags or imports old blocks is neither a reorg nor a gap.
//!
//! # What holds
//! An *honest node* announces the heads of one chain, each after its block can be requested, and
//! can return the ancestors of each. It *leads* from its first applied head until it is
//! disconnected, is syncing, or another node's linked branch has been higher for the time above.
//!
//! While it leads and after each of its heads, the chain contains that head, each block is the
//! parent of the next, and the number of the head does not fall, except by a reorg of the node that
//! leads. The only blocks above its head are descendants of that head. So no transaction that is
//! mined on its chain is pending for the sink, and no pending one counts as mined, unless another
//! node was faster by a block.
//!
//! This rule cannot tell a node that invents a whole linked branch from an honest one.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::{Block, Head, Pushed, RecentBlocks, Relation};

use super::{AnnouncedHead, ReadBlock, Unread};
use crate::{
    gap::GapReason,
    limits::{MAX_HEAD_AGE, RECENT_BLOCKS},
};

/// The number of missed heads that are requested, newest to oldest: as many as are remembered. Also
/// the greatest distance to the latest head of a head whose parent cannot be read.
pub(super) const MAX_ANCESTORS: usize = RECENT_BLOCKS;

/// The number of new heads above the leader's that a source must announce to take the lead: a
/// single one shows no progress.
const HEADS_TO_LEAD: u32 = 2;

/// How long a first head whose parent was read waits for further blocks before it: five blocks take
/// ten round trips of 200 ms.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// A head on its way into the chain, with the blocks that were read for it.
#[derive(Debug)]
pub(super) struct Branch {
    source: usize,
    head: Head,
    /// When the head was announced.
    announced_at: Instant,
    /// The head's block, once it is read.
    block: Option<ReadBlock>,
    /// The blocks before it, oldest first, each the parent of the next.
    ancestors: VecDeque<ReadBlock>,
    /// The head was requested from its source, not announced.
    was_requested: bool,
    /// An ancestor could not be read.
    is_cut: bool,
    /// The head's block could not be read.
    is_unread: bool,
}

impl Branch {
    /// Adds the block that [`Step::Read`] requested.
    pub(super) fn add_read(&mut self, hash: B256, read: Result<ReadBlock, Unread>) {
        if hash == self.head.hash {
            // The head counts although its hashes are unknown: the comparison that follows finds
            // them.
            self.is_unread = read.is_err();
            self.block = Some(read.unwrap_or_else(|_| Block::new(self.head, []).into()));
            return;
        }
        match read {
            Ok(read) if read.block.head.number.checked_add(1) == Some(self.oldest().number) => {
                self.ancestors.push_front(read);
            }
            Ok(_) | Err(_) => self.is_cut = true,
        }
    }

    pub(super) fn hash(&self) -> B256 {
        self.head.hash
    }

    /// Returns whether blocks before the head were read.
    pub(super) fn is_proven(&self) -> bool {
        !self.ancestors.is_empty()
    }

    fn oldest(&self) -> &Head {
        self.ancestors.front().map_or(&self.head, |read| &read.block.head)
    }
}

/// The next step for a branch.
#[derive(Debug)]
pub(super) enum Step {
    /// Read this block, and add it to the branch.
    Read(B256),
    /// The head changes nothing. The reason, if it was rejected.
    Ignored(Option<Unread>),
    /// The head is applied to the chain.
    Applied(Applied),
}

/// The change of the chain by a head.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The new blocks of the chain, oldest first, the head last. Empty if the chain has them
    /// already.
    pub(super) blocks: Vec<ReadBlock>,
    /// Blocks that are not reported to the sink as heads and whose nonces are reported: those
    /// before the first head of all, newest first, with that head and with one that replaces it; or
    /// a block that could not be read before.
    pub(super) unreported: Vec<ReadBlock>,
    /// Hashes in unreported blocks that are reported to the sink with the first of `blocks`.
    pub(super) mined_before: Vec<B256>,
    /// Hashes that were mined before and are in no block of the chain any more.
    pub(super) unmined: Vec<B256>,
    /// Blocks between the chain and `blocks` are unknown. They may contain the `unmined` hashes.
    pub(super) has_unknown_blocks: bool,
    /// The gap that this opens for the source.
    pub(super) gap: Option<GapReason>,
}

/// The source that leads.
#[derive(Clone, Copy, Debug)]
struct Leader {
    source: usize,
    /// The number of its latest head that counted.
    number: u64,
}

/// A source as a candidate for the lead.
#[derive(Debug, Default)]
struct Candidate {
    /// Its latest head.
    head: Option<Head>,
    /// When it announced that head.
    announced_at: Option<Instant>,
    /// It is connected, and not syncing.
    may_lead: bool,
    /// Since when it has been higher than the leader, and how many new heads it announced since
    /// then.
    ahead: Option<(Instant, u32)>,
}

/// Decides which heads count.
pub(crate) struct Follower {
    candidates: Box<[Candidate]>,
    leader: Option<Leader>,
    /// Set while the leader's head could not be linked and no other source has announced it: the
    /// number up to which the leader's chain is proven, 0 if no part is.
    proven_up_to: Option<u64>,
    /// The number of the last block of the chain before the first head.
    last_unreported: Option<u64>,
    /// The blocks of the chain that could not be read.
    unread: Vec<UnreadBlock>,
    lead_timeout: Duration,
}

/// A block of the chain that could not be read.
#[derive(Debug)]
struct UnreadBlock {
    hash: B256,
    /// The sources that have announced the block since, and are asked for its nonces.
    asked: Vec<usize>,
}

impl Follower {
    pub(crate) fn new(source_count: usize, lead_timeout: Duration) -> Self {
        Self {
            candidates: (0..source_count).map(|_| Candidate::default()).collect(),
            leader: None,
            proven_up_to: None,
            last_unreported: None,
            unread: Vec::new(),
            lead_timeout,
        }
    }

    /// Forgets every head after a reset of the chain, but not which sources may lead.
    pub(super) fn reset(&mut self) {
        let before = std::mem::take(&mut self.candidates);
        *self = Self::new(before.len(), self.lead_timeout);
        for (candidate, before) in self.candidates.iter_mut().zip(before) {
            candidate.may_lead = before.may_lead;
        }
    }

    /// Sets whether the heads of a source count. Returns whether the leader has just lost that
    /// right.
    pub(super) fn set_may_lead(&mut self, source: usize, may_lead: bool) -> bool {
        let before = std::mem::replace(&mut self.candidates[source].may_lead, may_lead);
        let is_leader = self.is_leader(source);
        if before != may_lead {
            // The heads from before a disconnect say nothing about those after it.
            if is_leader {
                self.candidates.iter_mut().for_each(|candidate| candidate.ahead = None);
            } else {
                self.candidates[source].ahead = None;
            }
        }
        is_leader && before && !may_lead
    }

    /// Returns the latest timestamp of a head that any source announced within the last minute, in
    /// seconds since the Unix epoch.
    pub(crate) fn latest_timestamp(&self, now: Instant) -> Option<u64> {
        let recent = self.candidates.iter().filter(|candidate| {
            candidate.announced_at.is_some_and(|announced_at| {
                now.saturating_duration_since(announced_at) <= MAX_HEAD_AGE
            })
        });
        recent.filter_map(|candidate| candidate.head).map(|head| head.timestamp).max()
    }

    /// Processes a head of a source. Returns the branch to apply, or `None` if the head is not new.
    pub(super) fn on_head(
        &mut self,
        source: usize,
        announced: AnnouncedHead,
        now: Instant,
    ) -> Option<Branch> {
        let AnnouncedHead { head, block, was_requested } = announced;
        let candidate = &mut self.candidates[source];
        if !candidate.may_lead {
            return None;
        }
        let before = candidate.head.replace(head);
        if before.is_none_or(|before| before.hash != head.hash) {
            candidate.announced_at = Some(now);
        }
        // A head that was requested after a reconnect is looked into again.
        if !was_requested && before.is_some_and(|before| before.hash == head.hash) {
            return None;
        }
        let is_progress = before.is_none_or(|before| before.number < head.number);
        if is_progress && self.leader.is_some_and(|leader| leader.source != source) {
            candidate.ahead.get_or_insert((now, 0)).1 += 1;
        }
        self.reset_lower_candidates();
        Some(Branch {
            source,
            head,
            announced_at: now,
            block,
            ancestors: VecDeque::new(),
            was_requested,
            is_cut: false,
            is_unread: false,
        })
    }

    /// Relates a branch to the chain. Applies it, if it counts and no further block has to be read.
    pub(super) fn step(
        &mut self,
        chain: &mut RecentBlocks,
        branch: &mut Branch,
        now: Instant,
    ) -> Step {
        let (source, head) = (branch.source, branch.head);
        if !self.candidates[source].may_lead {
            return Step::Ignored(None);
        }
        // Blocks of the branch may have been applied meanwhile, by a head of another source.
        let is_known = |read: &ReadBlock| chain.block(&read.block.head.hash).is_some();
        if let Some(newest) = branch.ancestors.iter().rposition(is_known) {
            branch.ancestors.drain(..=newest);
        }
        let is_leader = self.is_leader(source);
        let is_repeat = chain.block(&head.hash).is_some();
        if is_repeat && !is_leader {
            // Two sources have announced this head, so neither has invented it.
            self.proven_up_to = None;
            self.reset_lower_candidates();
        }
        let leads = is_leader || self.takes_lead(source, &head, now);
        // Reorgs of the new leader from before its heads counted are only known to its pool.
        let missed_reorgs =
            (leads && !is_leader && self.leader.is_some()).then_some(GapReason::MissedHeads);
        let link = if is_repeat { Link::Repeat } else { self.link(chain, branch, leads, now) };
        let is_linked = match link {
            Link::NeedsBlock(hash) => return Step::Read(hash),
            Link::Rejected(reason) => {
                let latest = chain.head().map_or(0, |latest| latest.number);
                if reason.is_some() && head.number > latest.saturating_add(MAX_ANCESTORS as u64) {
                    // The time in which a source announces such numbers does not count for the
                    // lead.
                    self.candidates[source].ahead = None;
                }
                return Step::Ignored(reason);
            }
            Link::Repeat => {
                if leads {
                    self.set_leader(source, &head);
                }
                let mut applied = Applied { gap: missed_reorgs, ..Applied::default() };
                let mut unread = self.unread.iter_mut();
                if let Some(unread) = unread.find(|unread| unread.hash == head.hash) {
                    // The source is compared each time: if it goes back, it lists the transactions
                    // of the block as pending, and the chain does not know that they are mined.
                    applied.gap = missed_reorgs.or(Some(GapReason::UnreadBlock));
                    // The source has the block, and its nonces show what the block contains. They
                    // are requested once from each source, because full blocks are read one after
                    // another.
                    if !unread.asked.contains(&source) {
                        unread.asked.push(source);
                        let block = chain.block(&head.hash).cloned();
                        applied.unreported.extend(block.map(ReadBlock::from));
                    }
                }
                return Step::Applied(applied);
            }
            Link::Linked => true,
            Link::Unlinked => false,
        };
        if branch.is_unread && !is_leader && self.leader.is_some() {
            return Step::Ignored(None);
        }
        if branch.block.is_none() {
            return Step::Read(head.hash);
        }
        self.proven_up_to = match self.leader {
            _ if is_linked => None,
            // The minimum, because the leader may have gone back.
            Some(leader) if is_leader => {
                Some(self.proven_up_to.unwrap_or(leader.number).min(head.number))
            }
            _ => Some(0),
        };
        if leads {
            self.set_leader(source, &head);
        } else {
            self.reset_lower_candidates();
        }
        if branch.is_unread {
            self.unread.push(UnreadBlock { hash: head.hash, asked: Vec::new() });
        }
        let mut applied = self.apply(chain, branch, is_linked);
        self.unread.retain(|unread| chain.block(&unread.hash).is_some());
        applied.gap = applied.gap.or(missed_reorgs);
        Step::Applied(applied)
    }

    /// Decides whether the branch counts, and whether it is linked to the chain. `leads` says that
    /// its source leads, or takes the lead with this branch.
    fn link(&self, chain: &RecentBlocks, branch: &Branch, leads: bool, now: Instant) -> Link {
        let (oldest, number) = (branch.oldest(), branch.head.number);
        let is_proven = branch.is_proven() || oldest.number == 0;
        let (Some(latest), Some(first)) = (chain.head(), chain.iter().next()) else {
            // This is the first head of all. With several sources its parent proves that its number
            // is not invented, and a source that lags may list transactions of the blocks before
            // it.
            let age = branch.head.timestamp.saturating_sub(oldest.timestamp);
            let is_deep = oldest.number == 0
                || age >= MAX_HEAD_AGE.as_secs()
                || branch.ancestors.len() == MAX_ANCESTORS
                || now.saturating_duration_since(branch.announced_at) >= FIRST_HEAD_TIMEOUT;
            return if self.candidates.len() == 1 || is_deep && is_proven {
                Link::Linked
            } else if !branch.is_cut {
                Link::NeedsBlock(oldest.parent_hash)
            } else if is_proven {
                Link::Linked
            } else {
                Link::Unlinked
            };
        };
        match chain.relate(oldest) {
            Relation::Next => return Link::Linked,
            Relation::Reorg { .. } if leads => return Link::Linked,
            Relation::Gap { .. } if leads || oldest.number > latest.number => {}
            Relation::Inconsistent => return Link::Rejected(Some(Unread::Inconsistent)),
            // A branch that cannot extend the chain: its ancestors are not read.
            _ => return Link::Rejected(None),
        }
        let leader = self.leader.filter(|leader| leader.source == branch.source);
        if leader.is_some_and(|leader| number > leader.number && number <= first.head.number) {
            // The leader catches up with blocks that other sources announced before.
            return Link::Repeat;
        }
        let is_deep = oldest.number <= first.head.number || branch.ancestors.len() == MAX_ANCESTORS;
        // A single head with a huge number must not hide the honest ones. One whose parent was read
        // is not single: the node has gone far ahead, and has dropped the blocks between.
        let is_far = number > latest.number.saturating_add(MAX_ANCESTORS as u64) && !is_proven;
        if is_deep && !leads {
            Link::Rejected(None)
        } else if is_deep && is_proven {
            Link::Linked
        } else if !branch.is_cut {
            Link::NeedsBlock(oldest.parent_hash)
        } else if !is_far && (leader.is_some() || leads && self.has_single_candidate()) {
            Link::Unlinked
        } else {
            Link::Rejected(Some(Unread::Unlinked))
        }
    }

    /// Returns whether exactly one source may lead.
    fn has_single_candidate(&self) -> bool {
        self.candidates.iter().filter(|candidate| candidate.may_lead).count() == 1
    }

    fn is_leader(&self, source: usize) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.source == source)
    }

    /// Returns whether a source that does not lead takes the lead with this head, if it is linked.
    fn takes_lead(&self, source: usize, head: &Head, now: Instant) -> bool {
        let Some(leader) = &self.leader else { return true };
        let is_higher = head.number > self.proven_up_to.unwrap_or(leader.number);
        let has_been_ahead = self.candidates[source].ahead.is_some_and(|(since, heads)| {
            heads >= HEADS_TO_LEAD && now.saturating_duration_since(since) >= self.lead_timeout
        });
        if self.proven_up_to == Some(0) {
            true
        } else if self.candidates[leader.source].may_lead {
            is_higher && has_been_ahead
        } else {
            is_higher || has_been_ahead
        }
    }

    /// Adds the blocks of a branch, whose head's block has been read, to the chain.
    fn apply(&mut self, chain: &mut RecentBlocks, branch: &mut Branch, is_linked: bool) -> Applied {
        let is_first = chain.head().is_none();
        let mut blocks: Vec<_> = std::mem::take(&mut branch.ancestors).into();
        let is_gap = !(is_first || is_linked && blocks.is_empty());
        blocks.extend(branch.block.take());
        let mut is_reorg = false;
        let mut has_unknown_blocks = false;
        let mut unmined = Vec::new();
        for read in &blocks {
            let Pushed { relation, undone, forgotten, .. } = chain.push(read.block.clone());
            is_reorg |= !undone.is_empty();
            // Blocks that are forgotten because they are too old stay mined. Those that are
            // forgotten because of a gap may not be on this chain.
            let is_gap = matches!(relation, Relation::Gap { .. });
            has_unknown_blocks |= is_gap;
            let unproven = forgotten.into_iter().filter(|_| is_gap);
            let removed = undone.into_iter().chain(unproven);
            unmined.extend(removed.flat_map(|block| block.mined.to_vec()));
        }
        unmined.retain(|hash| !chain.is_mined(hash));
        let before_first = if is_first { blocks.len() - 1 } else { 0 };
        let mut unreported: Vec<_> = blocks.drain(..before_first).rev().collect();
        let below = blocks[0].block.head.number.checked_sub(1);
        let replaces_first = is_reorg && below <= self.last_unreported;
        self.last_unreported = if is_first { below } else { self.last_unreported.min(below) };
        let is_unreported = |block: &&Block| Some(block.head.number) <= self.last_unreported;
        let before = || chain.iter().filter(is_unreported);
        let mut mined_before = Vec::new();
        if is_first || is_reorg {
            mined_before = before().flat_map(|block| block.mined.to_vec()).collect();
        }
        if replaces_first {
            // Their nonces were reported with the head that is replaced, and reverted with it.
            unreported = before().rev().cloned().map(ReadBlock::from).collect();
        }
        let gap = if is_reorg {
            Some(GapReason::Reorg)
        } else if is_gap && !(branch.was_requested && unmined.is_empty()) {
            // After a connect, the comparison for it covers missed heads, but not hashes that
            // counted as mined while it ran.
            Some(GapReason::MissedHeads)
        } else if branch.is_unread || is_gap && !is_linked {
            Some(GapReason::UnreadBlock)
        } else {
            None
        };
        Applied { blocks, unreported, mined_before, unmined, has_unknown_blocks, gap }
    }

    /// Notes that the source leads with this head.
    fn set_leader(&mut self, source: usize, head: &Head) {
        let is_new = !self.is_leader(source);
        self.leader = Some(Leader { source, number: head.number });
        if is_new {
            self.candidates.iter_mut().for_each(|candidate| candidate.ahead = None);
        }
        self.reset_lower_candidates();
    }

    /// Resets the time for which a source has been higher than the leader, for each source that is
    /// not higher than the proven part of the leader's chain. While the leader may not lead, the
    /// time counts.
    fn reset_lower_candidates(&mut self) {
        let Some(leader) = self.leader else { return };
        if !self.candidates[leader.source].may_lead {
            return;
        }
        let number = self.proven_up_to.unwrap_or(leader.number);
        for candidate in &mut self.candidates {
            if candidate.head.is_some_and(|head| head.number <= number) {
                candidate.ahead = None;
            }
        }
    }
}

/// How a branch is linked to the chain.
enum Link {
    /// This block has to be read first.
    NeedsBlock(B256),
    /// The chain contains its head, or did.
    Repeat,
    /// The branch counts, and its ancestors are known.
    Linked,
    /// The branch counts although its ancestors could not be read.
    Unlinked,
    /// The branch does not count. The reason, if it is a fault.
    Rejected(Option<Unread>),
}

#[cfg(test)]
mod tests;
