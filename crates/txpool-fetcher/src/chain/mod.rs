//! Follows the chain: heads in order, missed ones, reorgs. Entry: [`follow`], rule: [`follower`].
//!
//! ```text
//!  source 0: newHeads --> heads --+   relate and apply
//!  source 1: newHeads --> heads --+--> follower --> mempool-sink: heads
//!                           ^             |  |
//!                           |             |  +--> full blocks, one at a time --> mempool-sink: nonces
//!                           +-------------+
//!                        missed ancestors, the block's hashes
//! ```
//! A task for each source reads blocks for its heads, so a node that does not respond delays only
//! its own. For each new head, the block's hashes are requested first, which is a small response;
//! then the full block, for the nonces, because private transactions raise nonces too.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | follower | the tasks of the sources, and a source whose state changes | one step, with the locks of the recent blocks, of the seen hashes and of the sink's queue inside, one at a time |

mod follower;
mod heads;
mod wire;

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use alloy_primitives::B256;
use chain_view::{Block, Head, NonceUpdate, RecentBlocks};
use tokio::{sync::mpsc, task::JoinSet};

use self::follower::{Applied, Branch, Step};
pub(crate) use self::{
    follower::Follower,
    heads::{BLOCKS_WAITING, Wanted, head_of, latest, says_syncing},
    wire::read_head,
};
use crate::{
    announce::Backlog,
    buffer::Buffer,
    context::Context,
    fetch::Fetch,
    gap::{GapReason, Report},
    in_process_pool::MinedBlock,
    limits::RECENT_BLOCKS,
    metrics,
    sink::Job,
    sync::lock,
};

/// The waiting heads of a source, at most [`HEADS_WAITING`]. One displaced is read as an ancestor.
pub(crate) type HeadQueue = Buffer<AnnouncedHead>;

/// See [`HeadQueue`].
pub(crate) const HEADS_WAITING: usize = 64;

/// A head as a source announced it.
#[derive(Clone, Debug)]
pub(crate) struct AnnouncedHead {
    pub(crate) head: Head,
    /// The block, if it came with the head.
    block: Option<ReadBlock>,
    /// The head was requested from the source, not announced by it.
    was_requested: bool,
}

impl AnnouncedHead {
    pub(crate) fn with_block(block: ReadBlock, was_requested: bool) -> Self {
        Self { head: block.block.head, block: Some(block), was_requested }
    }
}

impl From<Head> for AnnouncedHead {
    fn from(head: Head) -> Self {
        Self { head, block: None, was_requested: false }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ReadBlock {
    block: Block,
    /// The nonces it raised, if they came with it.
    nonces: Option<Vec<NonceUpdate>>,
}

impl From<Block> for ReadBlock {
    fn from(block: Block) -> Self {
        Self { block, nonces: None }
    }
}

impl From<MinedBlock> for ReadBlock {
    fn from(mined: MinedBlock) -> Self {
        Self { block: mined.block, nonces: Some(mined.nonces) }
    }
}

load_control::labels! {
    /// Why a block could not be read. A closed set: it is a label.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Unread {
        /// No response in time, or an error response.
        Failed = "failed",
        /// The node does not have the block.
        Missing = "missing",
        /// The response is not a block, or is another block.
        Malformed = "malformed",
        /// Too many blocks or jobs wait already.
        QueueFull = "queue_full",
        /// A head far ahead of the latest one, whose ancestors the node does not have.
        Unlinked = "unlinked",
        /// A head whose number does not follow its parent's.
        Inconsistent = "inconsistent",
    }
}

impl Unread {
    /// Counts it; `part` names the part of the block that was to be read.
    fn count(self, part: &'static str, hash: B256) {
        tracing::warn!(%hash, part, reason = self.as_str(), "a block could not be read");
        metrics::unread_block(part, self.as_str());
    }
}

pub(crate) struct Chain {
    pub(crate) follower: Mutex<Follower>,
    pub(crate) context: Arc<Context>,
    pub(crate) fetch: Arc<Fetch>,
    /// To each source.
    pub(crate) reports: Box<[mpsc::Sender<Report>]>,
    /// Whether the sink wants the nonces of blocks.
    pub(crate) reads_nonces: bool,
    /// Blocks whose nonces must be read.
    pub(crate) nonces: mpsc::Sender<Wanted>,
}

impl Chain {
    /// Whether the heads of a source count. When those of the leader cease to, the others look at
    /// theirs again, which may be higher and did not count.
    pub(crate) fn set_may_lead(&self, source: usize, may_lead: bool) {
        if lock(&self.follower).set_may_lead(source, may_lead) {
            for reports in &self.reports {
                // If the inbox is full, heads come.
                let _ = reports.try_send(Report::LeaderLost);
            }
        }
    }

    /// Forgets all blocks, and which hashes were seen: the chain was reset.
    pub(crate) fn reset(&self) {
        let mut follower = lock(&self.follower);
        follower.reset();
        *lock(&self.context.hashes.blocks) = RecentBlocks::new(RECENT_BLOCKS);
        self.context.hashes.seen.clear();
        self.context.sink.queue.push(Job::Reset);
    }

    /// Tells a source that announcements or blocks may have been missed.
    async fn report(&self, source: usize, gap: GapReason) {
        // If the source has ended, the report has no receiver and no use.
        let _ = self.reports[source].send(Report::Gap(gap)).await;
    }

    /// The next step of a branch. Returns a block that must be read before the one after it.
    async fn step(&self, source: usize, branch: &mut Branch) -> Option<B256> {
        let gap = match self.step_now(source, branch) {
            Step::Read(hash) => return Some(hash),
            Step::Ignored(reason) => {
                let unread = reason.inspect(|reason| reason.count("head", branch.hash()));
                unread.map(|_| GapReason::UnreadBlock)
            }
            Step::Applied(applied) => applied.gap,
        };
        if let Some(gap) = gap {
            self.report(source, gap).await;
        }
        None
    }

    /// Holds the follower's lock until the sink's queue has the heads, in the order of the chain.
    fn step_now(&self, source: usize, branch: &mut Branch) -> Step {
        let mut follower = lock(&self.follower);
        let step = follower.step(&mut lock(&self.context.hashes.blocks), branch, Instant::now());
        if let Step::Applied(applied) = &step {
            let Applied { blocks, untold, mined_before, unmined, has_unread, .. } = applied;
            // What was delivered, the sink puts back; what was removed, the comparison finds.
            let was_announced = |hash: &B256| self.context.hashes.seen.forget_mined(*hash);
            let undone: Vec<B256> = unmined.iter().copied().filter(was_announced).collect();
            if !undone.is_empty() && !has_unread {
                self.fetch.undone(source, undone);
            }
            if !unmined.is_empty() {
                self.context.sink.queue.undo(unmined);
            }
            let mined = blocks.iter().flat_map(|read| read.block.mined.iter());
            for hash in mined_before.iter().chain(mined) {
                self.context.hashes.seen.mined(*hash);
            }
            let mut before = mined_before.clone();
            for ReadBlock { block, .. } in blocks {
                let (block, carried) = (block.clone(), std::mem::take(&mut before));
                self.context.sink.queue.push(Job::Head { block, is_undone: false, carried });
            }
            // Also those of missed blocks; the sink knows those of untold ones as the first head's.
            let told = blocks.iter().map(|read| (read, read.block.head.hash));
            let first = blocks.first().map(|read| read.block.head.hash);
            let untold = untold.iter().map(|read| (read, first.unwrap_or(read.block.head.hash)));
            for (read, told_as) in told.chain(untold) {
                self.want_nonces(Wanted { source, read: read.clone(), told_as });
            }
        }
        step
    }

    /// Those that came with the block cost nothing.
    fn want_nonces(&self, wanted: Wanted) {
        let (source, hash) = (wanted.source, wanted.read.block.head.hash);
        if (self.reads_nonces || wanted.read.nonces.is_some())
            && self.nonces.try_send(wanted).is_err()
        {
            Unread::QueueFull.count("nonces", hash);
            // If the inbox is full, the shell is about to read it: it never waits for a sender.
            let _ = self.reports[source].try_send(Report::Gap(GapReason::UnreadBlock));
        }
    }
}

/// Follows the heads of all sources, and reads nonces.
pub(crate) fn follow(
    chain: &Arc<Chain>,
    backlogs: Vec<Arc<Backlog>>,
    nonces: mpsc::Receiver<Wanted>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(heads::read_nonces(Arc::clone(chain), nonces));
    tasks.spawn(compare_after_dropped_events(Arc::clone(chain)));
    for (source, backlog) in backlogs.into_iter().enumerate() {
        tasks.spawn(heads::follow(Arc::clone(chain), source, backlog));
    }
    tasks
}

/// Compares when the sink has caught up after events were dropped: what the node removed meanwhile,
/// other than by a block, is then reported as vanished.
async fn compare_after_dropped_events(chain: Arc<Chain>) {
    loop {
        chain.context.sink.queue.caught_up.notified().await;
        tracing::info!("the sink has caught up");
        for source in 0..chain.reports.len() {
            chain.report(source, GapReason::MissedHeads).await;
        }
    }
}
