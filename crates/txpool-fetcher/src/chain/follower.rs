//! The rule for the chain: heads of several nodes in, one canonical chain out; no I/O, no clock.
//!
//! # Whom it follows
//! One source leads. The chain is what the leader told, or longer: another source's head counts if
//! it extends the chain. So a slow leader makes no head late, and another branch changes nothing.
//!
//! Another source takes the lead with a head that is linked to the chain by its ancestors, or is
//! deeper than what is remembered,
//! - if it has been higher than what the leader told for [`Limits::lead_timeout`](crate::limits::Limits)
//!   and told [`HEADS_TO_LEAD`] new heads in this time;
//! - if the leader may not lead (it is not connected, or it is syncing), and the head is higher than
//!   the leader's, or time and heads have passed since then;
//! - at once, if the leader's first head could not be linked: a number alone proves nothing. Of a later
//!   head that could not be linked, the number does not count until another head is.
//!
//! With several sources, the first head of all counts with the blocks of the minute before it: another
//! source may be that late, and lists what they contain. They are not told as heads: what they mined is
//! told with the first head, and again with a reorg that undoes it.
//!
//! A head of another source that is not linked does not count, unless no other source may lead. A
//! head at or below what is remembered is not looked into, unless its source leads and has gone
//! back: a node that lags or imports old blocks is no reorg and no gap.
//!
//! # What holds
//! An *honest node* tells the heads of one chain, each after its block can be requested, and can
//! answer for the ancestors of each. It *leads* from its first head that is applied until it is
//! disconnected, syncs, or another node's linked branch has been higher for as long as is said above.
//! While it leads and after each of its heads, the chain contains that head, each block is the parent
//! of the next, and the head's number does not fall, except by a reorg of the node that leads. The
//! only blocks above its head are descendants of it. So nothing that is mined on its chain is pending
//! for the sink, and nothing pending is mined, unless another node was faster by a block.
//!
//! A node that invents a whole linked branch cannot be told from an honest one by this rule.

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

/// How many missed heads are fetched, newest to oldest: as many as are remembered. Also how far
/// above the latest head a head may be whose ancestors cannot be fetched.
pub(super) const MAX_ANCESTORS: usize = RECENT_BLOCKS;

/// New heads that a source must have told above the leader's to take the lead: one is no progress.
const HEADS_TO_LEAD: u32 = 2;

/// How long a proven first head waits for blocks before it: five take ten round trips of 200 ms.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// A head on its way into the chain, with what was read for it.
#[derive(Debug)]
pub(super) struct Branch {
    source: usize,
    head: Head,
    /// When it was told.
    since: Instant,
    /// The head's block, once it is read.
    block: Option<ReadBlock>,
    /// Blocks before it, oldest first, each the parent of the next.
    ancestors: VecDeque<ReadBlock>,
    was_requested: bool,
    /// An ancestor could not be read.
    is_cut: bool,
    /// The head's block could not be read.
    is_unread: bool,
}

impl Branch {
    /// Adds what was requested by [`Step::Read`].
    pub(super) fn read(&mut self, hash: B256, read: Result<ReadBlock, Unread>) {
        if hash == self.head.hash {
            // The head counts, although its mined hashes are not known: a comparison finds them.
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

    /// Whether blocks before it were read.
    pub(super) fn is_proven(&self) -> bool {
        !self.ancestors.is_empty()
    }

    fn oldest(&self) -> &Head {
        self.ancestors.front().map_or(&self.head, |read| &read.block.head)
    }
}

/// What follows from a head.
#[derive(Debug)]
pub(super) enum Step {
    /// This block is needed first.
    Read(B256),
    /// The head changes nothing; the reason, if it was refused.
    Ignored(Option<Unread>),
    Applied(Applied),
}

/// Blocks that are now the end of the chain.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Oldest first, the head last; none if the chain has them already.
    pub(super) blocks: Vec<ReadBlock>,
    /// Blocks before the first head of all, newest first, which the sink is not told of: with that
    /// head, and with one that replaces it. Or the one that could not be read before.
    pub(super) untold: Vec<ReadBlock>,
    /// What blocks contain of which the sink is not told, if it does not know that yet or any more.
    pub(super) mined_before: Vec<B256>,
    /// Transactions that were mined before and are in no block that counts any more.
    pub(super) unmined: Vec<B256>,
    /// Nothing is known of blocks between the chain and these: they may contain what was unmined.
    pub(super) has_unread: bool,
    /// What it means for its source.
    pub(super) gap: Option<GapReason>,
}

/// The lead of a source.
#[derive(Clone, Copy, Debug)]
struct Leader {
    source: usize,
    /// The number of the latest head that it told and that counted.
    number: u64,
}

/// What a source has told.
#[derive(Debug, Default)]
struct Told {
    head: Option<Head>,
    /// When it told that.
    told_at: Option<Instant>,
    /// Connected, and not syncing.
    may_lead: bool,
    /// Since when it could have taken the lead, and the new heads in this time.
    ahead: Option<(Instant, u32)>,
}

/// Decides which heads count.
pub(crate) struct Follower {
    told: Box<[Told]>,
    leader: Option<Leader>,
    /// The leader's head could not be linked, and nobody else has told it: what was known of it before
    /// ends at this number, 0 if nothing was.
    doubtful_above: Option<u64>,
    /// The number of the last block before the first head that still counts.
    last_untold: Option<u64>,
    /// The blocks of the chain that could not be read, each with the sources that were asked for its nonces since.
    unread: Vec<(B256, Vec<usize>)>,
    lead_timeout: Duration,
}

impl Follower {
    pub(crate) fn new(sources: usize, lead_timeout: Duration) -> Self {
        let told = std::iter::repeat_with(Told::default).take(sources).collect();
        let (leader, doubtful_above, last_untold, unread) = <_>::default();
        Self { told, leader, doubtful_above, last_untold, unread, lead_timeout }
    }

    /// Forgets every head, but not which sources may lead: the chain was reset.
    pub(super) fn reset(&mut self) {
        let may_lead = self.told.iter().map(|told| told.may_lead).collect::<Vec<_>>();
        *self = Self::new(self.told.len(), self.lead_timeout);
        for (told, may_lead) in self.told.iter_mut().zip(may_lead) {
            told.may_lead = may_lead;
        }
    }

    /// Whether the heads of a source count. Returns whether those of the leader do not any more.
    pub(super) fn set_may_lead(&mut self, source: usize, may_lead: bool) -> bool {
        let before = std::mem::replace(&mut self.told[source].may_lead, may_lead);
        let is_leader = self.is_leader(source);
        if before != may_lead {
            // What it told before it went says nothing of what it tells when it is back.
            let told = self.told.iter_mut().enumerate();
            let concerned = told.filter(|(other, _)| is_leader || *other == source);
            concerned.for_each(|(_, told)| told.ahead = None);
        }
        is_leader && before && !may_lead
    }

    /// The latest timestamp of a head that any source has told within the last minute, in seconds since
    /// the Unix epoch.
    pub(crate) fn latest_timestamp(&self, now: Instant) -> Option<u64> {
        let recent = self.told.iter().filter(|told| {
            told.told_at
                .is_some_and(|told_at| now.saturating_duration_since(told_at) <= MAX_HEAD_AGE)
        });
        recent.filter_map(|told| told.head).map(|head| head.timestamp).max()
    }

    /// A source tells a head. `None` if that is nothing new.
    pub(super) fn tell(
        &mut self,
        source: usize,
        announced: AnnouncedHead,
        now: Instant,
    ) -> Option<Branch> {
        let AnnouncedHead { head, block, was_requested } = announced;
        let told = &mut self.told[source];
        if !told.may_lead {
            return None;
        }
        let before = told.head.replace(head);
        if before.is_none_or(|before| before.hash != head.hash) {
            told.told_at = Some(now);
        }
        // After a reconnect it is looked into again.
        if !was_requested && before.is_some_and(|before| before.hash == head.hash) {
            return None;
        }
        let is_progress = before.is_none_or(|before| before.number < head.number);
        if is_progress && self.leader.is_some_and(|leader| leader.source != source) {
            told.ahead.get_or_insert((now, 0)).1 += 1;
        }
        self.pass_lower();
        let (ancestors, is_cut, is_unread) = <_>::default();
        let since = now;
        Some(Branch { source, head, since, block, ancestors, was_requested, is_cut, is_unread })
    }

    /// Relates a branch to the chain and applies it, if it counts and nothing more has to be read.
    pub(super) fn step(
        &mut self,
        chain: &mut RecentBlocks,
        branch: &mut Branch,
        now: Instant,
    ) -> Step {
        let (source, head) = (branch.source, branch.head);
        if !self.told[source].may_lead {
            return Step::Ignored(None);
        }
        // Another source may have told some of it meanwhile.
        let is_known = |read: &ReadBlock| chain.block(&read.block.head.hash).is_some();
        if let Some(newest) = branch.ancestors.iter().rposition(is_known) {
            branch.ancestors.drain(..=newest);
        }
        let is_leader = self.is_leader(source);
        let is_repeat = chain.block(&head.hash).is_some();
        if is_repeat && !is_leader {
            // What two sources tell is no invention of one.
            self.doubtful_above = None;
            self.pass_lower();
        }
        let leads = is_leader || self.takes_lead(source, &head, now);
        // What its heads undid while they did not count is known to its pool alone.
        let unknown =
            (leads && !is_leader && self.leader.is_some()).then_some(GapReason::MissedHeads);
        let link = if is_repeat { Link::Repeat } else { self.link(chain, branch, leads, now) };
        let is_linked = match link {
            Link::Needs(hash) => return Step::Read(hash),
            Link::No(reason) => {
                let known = chain.head().map_or(0, |latest| latest.number);
                if reason.is_some() && head.number > known.saturating_add(MAX_ANCESTORS as u64) {
                    // The time in which it has told such numbers does not count.
                    self.told[source].ahead = None;
                }
                return Step::Ignored(reason);
            }
            Link::Repeat => {
                if leads {
                    self.lead(source, &head);
                }
                let mut applied = Applied { gap: unknown, ..Applied::default() };
                let mut unread = self.unread.iter_mut();
                if let Some((_, asked)) = unread.find(|(unread, _)| *unread == head.hash) {
                    // It is compared each time: once it has gone back, it lists what the block contains
                    // as pending, and the chain does not say otherwise.
                    applied.gap = unknown.or(Some(GapReason::UnreadBlock));
                    // It has the block, whose nonces tell what that is. Once, because the others wait.
                    if !asked.contains(&source) {
                        asked.push(source);
                        let block = chain.block(&head.hash).cloned();
                        applied.untold.extend(block.map(ReadBlock::from));
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
        self.doubtful_above = match self.leader {
            _ if is_linked => None,
            // It may have gone back.
            Some(leader) if is_leader => {
                Some(self.doubtful_above.unwrap_or(leader.number).min(head.number))
            }
            _ => Some(0),
        };
        if leads {
            self.lead(source, &head);
        } else {
            self.pass_lower();
        }
        if branch.is_unread {
            self.unread.push((head.hash, Vec::new()));
        }
        let mut applied = self.apply(chain, branch, is_linked);
        self.unread.retain(|(unread, _)| chain.block(unread).is_some());
        applied.gap = applied.gap.or(unknown);
        Step::Applied(applied)
    }

    /// Whether the branch counts and is linked. `leads`: its source leads, or takes the lead now.
    fn link(&self, chain: &RecentBlocks, branch: &Branch, leads: bool, now: Instant) -> Link {
        let (oldest, number) = (branch.oldest(), branch.head.number);
        let is_proven = branch.is_proven() || oldest.number == 0;
        let (Some(latest), Some(first)) = (chain.head(), chain.iter().next()) else {
            // The first head of all. With several sources its parent is proof that its number is no
            // invention; and one that lags lists what blocks before this head contain.
            let age = branch.head.timestamp.saturating_sub(oldest.timestamp);
            let is_deep = oldest.number == 0
                || age >= MAX_HEAD_AGE.as_secs()
                || branch.ancestors.len() == MAX_ANCESTORS
                || now.saturating_duration_since(branch.since) >= FIRST_HEAD_TIMEOUT;
            return match () {
                () if self.told.len() == 1 || is_deep && is_proven => Link::Linked,
                () if !branch.is_cut => Link::Needs(oldest.parent_hash),
                () if is_proven => Link::Linked,
                () => Link::Unlinked,
            };
        };
        match chain.relate(oldest) {
            Relation::Next => return Link::Linked,
            Relation::Reorg { .. } if leads => return Link::Linked,
            // Another branch cannot extend the chain: its ancestors are not read.
            Relation::Gap { .. } if leads || oldest.number > latest.number => {}
            Relation::Inconsistent => return Link::No(Some(Unread::Inconsistent)),
            _ => return Link::No(None),
        }
        let leader = self.leader.filter(|leader| leader.source == branch.source);
        if leader.is_some_and(|leader| number > leader.number && number <= first.head.number) {
            // It catches up with what others told before.
            return Link::Repeat;
        }
        let is_deep = oldest.number <= first.head.number || branch.ancestors.len() == MAX_ANCESTORS;
        // A single head with a huge number must not hide the true ones.
        let is_far = number > latest.number.saturating_add(MAX_ANCESTORS as u64);
        // Its source may lead, so it is that one.
        let is_alone = || self.told.iter().filter(|told| told.may_lead).count() == 1;
        match () {
            () if is_deep && !leads => Link::No(None),
            () if is_deep && is_proven => Link::Linked,
            () if !branch.is_cut => Link::Needs(oldest.parent_hash),
            () if !is_far && (leader.is_some() || leads && is_alone()) => Link::Unlinked,
            () => Link::No(Some(Unread::Unlinked)),
        }
    }

    fn is_leader(&self, source: usize) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.source == source)
    }

    /// Whether a source that does not lead takes the lead, if this head of it is linked.
    fn takes_lead(&self, source: usize, head: &Head, now: Instant) -> bool {
        let Some(leader) = &self.leader else { return true };
        let is_higher = head.number > self.doubtful_above.unwrap_or(leader.number);
        let has_waited = self.told[source].ahead.is_some_and(|(since, heads)| {
            heads >= HEADS_TO_LEAD && now.saturating_duration_since(since) >= self.lead_timeout
        });
        match self.told[leader.source].may_lead {
            _ if self.doubtful_above == Some(0) => true,
            true => is_higher && has_waited,
            false => is_higher || has_waited,
        }
    }

    /// With the head's block, which has been read.
    fn apply(&mut self, chain: &mut RecentBlocks, branch: &mut Branch, is_linked: bool) -> Applied {
        let is_first = chain.head().is_none();
        let mut blocks: Vec<_> = std::mem::take(&mut branch.ancestors).into();
        let is_gap = !(is_first || is_linked && blocks.is_empty());
        blocks.extend(branch.block.take());
        let (mut is_reorg, mut has_unread, mut unmined) = (false, false, Vec::new());
        for read in &blocks {
            let Pushed { relation, undone, forgotten, .. } = chain.push(read.block.clone());
            is_reorg |= !undone.is_empty();
            // Those of a block that is only too old stay mined.
            let is_unproven = matches!(relation, Relation::Gap { .. });
            has_unread |= is_unproven;
            let unproven = forgotten.into_iter().filter(|_| is_unproven);
            unmined
                .extend(undone.into_iter().chain(unproven).flat_map(|block| block.mined.to_vec()));
        }
        unmined.retain(|hash| !chain.is_mined(hash));
        let before_first = if is_first { blocks.len() - 1 } else { 0 };
        let mut untold: Vec<_> = blocks.drain(..before_first).rev().collect();
        let below = blocks[0].block.head.number.checked_sub(1);
        let replaces_first = is_reorg && below <= self.last_untold;
        self.last_untold = if is_first { below } else { self.last_untold.min(below) };
        let is_untold = |block: &&Block| Some(block.head.number) <= self.last_untold;
        let before = || chain.iter().filter(is_untold);
        let mut mined_before = Vec::new();
        if is_first || is_reorg {
            mined_before = before().flat_map(|block| block.mined.to_vec()).collect();
        }
        if replaces_first {
            // Their nonces went with the head that is replaced.
            untold = before().rev().cloned().map(ReadBlock::from).collect();
        }
        let gap = match () {
            () if is_reorg => Some(GapReason::Reorg),
            // The comparison after a connect covers what was missed, not what was mined meanwhile.
            () if is_gap && !(branch.was_requested && unmined.is_empty()) => {
                Some(GapReason::MissedHeads)
            }
            () if branch.is_unread || is_gap && !is_linked => Some(GapReason::UnreadBlock),
            () => None,
        };
        Applied { blocks, untold, mined_before, unmined, has_unread, gap }
    }

    fn lead(&mut self, source: usize, head: &Head) {
        let is_new = !self.is_leader(source);
        self.leader = Some(Leader { source, number: head.number });
        if is_new {
            self.told.iter_mut().for_each(|told| told.ahead = None);
        }
        self.pass_lower();
    }

    /// No source has been higher that is not above what is known of a leader that is up.
    fn pass_lower(&mut self) {
        let Some(leader) = self.leader.filter(|leader| self.told[leader.source].may_lead) else {
            return;
        };
        let known = self.doubtful_above.unwrap_or(leader.number);
        let lower = |told: &&mut Told| told.head.is_some_and(|head| head.number <= known);
        self.told.iter_mut().filter(lower).for_each(|told| told.ahead = None);
    }
}

enum Link {
    Needs(B256),
    /// The chain has it, or had it.
    Repeat,
    Linked,
    /// It counts all the same.
    Unlinked,
    /// It does not count.
    No(Option<Unread>),
}

#[cfg(test)]
mod tests;
