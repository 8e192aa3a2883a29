//! Merges the heads of all sources into the one chain that the sink sees.

use std::sync::Arc;

use alloy_primitives::B256;
use chain_view::Relation;
use tokio::sync::mpsc;

use super::{Chain, Fetched, ReadBlock, Reports, Unread, nonces::Wanted};
use crate::{
    gap::{GapReason, Report},
    sync::lock,
};

/// How many heads other sources may announce at or below the latest one while the leading source is
/// silent. Then it no longer leads: it may have stopped responding, or announced a number that no
/// chain reaches.
const HEADS_WITHOUT_LEADER: u32 = 3;

/// Applies heads, one after another.
pub(super) struct Applier {
    chain: Arc<Chain>,
    /// Blocks whose nonces must be read.
    nonces: mpsc::Sender<Wanted>,
    reports: Reports,
    /// The source of the latest head. Its branch counts when two nodes are on different branches.
    leader: Option<usize>,
    heads_without_leader: u32,
}

impl Applier {
    pub(super) fn new(chain: Arc<Chain>, nonces: mpsc::Sender<Wanted>, reports: Reports) -> Self {
        Self { chain, nonces, reports, leader: None, heads_without_leader: 0 }
    }

    pub(super) async fn run(mut self, mut fetched: mpsc::Receiver<Fetched>) {
        while let Some(fetched) = fetched.recv().await {
            let source = fetched.source;
            if let Some(reason) = self.apply(fetched) {
                // If the source has ended, the report has no receiver and no use.
                let _ = self.reports[source].send(Report::Gap(reason)).await;
            }
        }
    }

    /// Applies what was fetched for one head. Returns what it means for its source.
    fn apply(&mut self, fetched: Fetched) -> Option<GapReason> {
        let Fetched { source, blocks, is_incomplete, was_requested } = fetched;
        if self.leader == Some(source) {
            self.heads_without_leader = 0;
        }
        let incomplete = is_incomplete.then_some(GapReason::UnreadBlock);
        let Some(head) = blocks.last().map(|read| read.block.head) else { return incomplete };
        let (relation, latest) = {
            let mined = lock(&self.chain.hashes.blocks);
            (mined.relate(&head), mined.head().copied())
        };
        // Meanwhile another source may have reported the same head.
        if !relation.is_new() || !self.follows(source, head.number, latest.map(|head| head.number))
        {
            return None;
        }
        (self.leader, self.heads_without_leader) = (Some(source), 0);
        let is_gap = matches!(relation, Relation::Gap { .. });
        let mut is_reorg = relation.replaced() > 0;
        for block in blocks {
            is_reorg |= self.push(source, block);
        }
        if is_reorg {
            Some(GapReason::Reorg)
        } else if is_gap && !was_requested {
            Some(GapReason::MissedHeads)
        } else {
            incomplete
        }
    }

    /// Whether the head of `source` counts. Two nodes may be on two branches for a while. The
    /// branch changes when the leading source changes it, when another source is further ahead, or
    /// when the leading source has fallen silent.
    fn follows(&mut self, source: usize, number: u64, latest: Option<u64>) -> bool {
        let is_further = latest.is_none_or(|latest| number > latest);
        let leads = self
            .leader
            .is_none_or(|leader| leader == source || !self.chain.connections.is_up(leader));
        if is_further || leads {
            return true;
        }
        self.heads_without_leader += 1;
        self.heads_without_leader >= HEADS_WITHOUT_LEADER
    }

    /// Reports one block to the sink; returns whether it undid others.
    fn push(&self, source: usize, ReadBlock { block, nonces }: ReadBlock) -> bool {
        let chain = &self.chain;
        let (pushed, unmined) = {
            let mut mined = lock(&chain.hashes.blocks);
            let pushed = mined.push(block.clone());
            let undone = pushed.undone.iter().flat_map(|undone| undone.mined.iter());
            let unmined: Vec<B256> = undone.filter(|hash| !mined.is_mined(hash)).copied().collect();
            (pushed, unmined)
        };
        if !pushed.relation.is_new() {
            return false;
        }
        let mined = block.mined.iter().copied();
        let known = mined.filter(|hash| chain.hashes.seen.mined(*hash)).collect();
        for hash in &unmined {
            // Pending again, or removed: the comparison that follows finds out.
            chain.hashes.seen.forget_mined(*hash);
        }
        let (hash, number) = (block.head.hash, block.head.number);
        chain.sink.push_head(block, known);
        // Nonces that came with the block cost nothing.
        if !chain.reads_nonces && nonces.is_none() {
            return !pushed.undone.is_empty();
        }
        // Every block's nonces count, also those of blocks that were missed.
        let wanted = Wanted { source, number, block: hash, known: nonces };
        if self.nonces.try_send(wanted).is_err() {
            Unread::QueueFull.count("nonces", hash);
            // If the inbox is full, the shell is about to read it: it never waits for a sender.
            let _ = self.reports[source].try_send(Report::Gap(GapReason::UnreadBlock));
        }
        !pushed.undone.is_empty()
    }
}
