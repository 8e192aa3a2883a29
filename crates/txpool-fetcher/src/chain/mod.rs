//! Follows the chain: reads the blocks of heads, applies them in order, and reports heads and
//! nonces to the sink. Entry: [`follow`]; [`follower`] decides which heads count.
//!
//! ```text
//!  source 0: newHeads --> heads --+   relate and apply
//!  source 1: newHeads --> heads --+--> follower --> mempool-sink: heads
//!                           ^             |  |
//!                           |             |  +--> full blocks, one at a time --> mempool-sink: nonces
//!                           +-------------+
//!                        missed ancestors, the block's hashes
//! ```
//! One task for each source reads the blocks of its heads, so a node that does not respond delays
//! only its own heads. For each new head, the block's hashes are requested first, which is a small
//! response. The full block is requested afterwards, for the nonces: private transactions raise
//! nonces too.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | follower | the tasks of the sources, a source whose state changes, and a comparison at its end | one step; the locks of the recent blocks, of the seen hashes, of the lists and of the sink's queue are taken while it is held, one at a time |

mod follower;
mod heads;
mod wire;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::B256;
use chain_view::{Block, Head, NonceUpdate, RecentBlocks};
use tokio::{sync::mpsc, task::JoinSet};

use self::follower::{Applied, Branch, Step};
pub(crate) use self::{
    follower::Follower,
    heads::{BLOCKS_WAITING, NonceRequest, latest, latest_head, says_syncing},
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

/// The waiting heads of a source, at most [`HEADS_WAITING`]. A displaced head is read later, as an
/// ancestor of the next one.
pub(crate) type HeadQueue = Buffer<AnnouncedHead>;

/// Capacity of a [`HeadQueue`]: as many heads as blocks are remembered.
pub(crate) const HEADS_WAITING: usize = 64;

/// A head as a source announced it.
#[derive(Clone, Debug)]
pub(crate) struct AnnouncedHead {
    pub(crate) head: Head,
    /// The block, if the source sent it with the head.
    block: Option<ReadBlock>,
    /// The head was requested from the source, not announced.
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

/// A block that was read.
#[derive(Clone, Debug)]
pub(crate) struct ReadBlock {
    block: Block,
    /// The nonces that it raised, if the source sent them with the block.
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
    /// Why a block could not be read: the value of the metric label `reason`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Unread {
        /// No response in time, or an error response.
        Failed = "failed",
        /// The node does not have the block.
        Missing = "missing",
        /// The response is not a block, or is another block.
        Malformed = "malformed",
        /// Too many blocks wait already.
        QueueFull = "queue_full",
        /// A head far ahead of the latest one, whose parent the node does not have.
        Unlinked = "unlinked",
        /// A head whose number does not follow its parent's.
        Inconsistent = "inconsistent",
    }
}

impl Unread {
    /// Counts and logs a block that could not be read. `part` is the part that was requested:
    /// latest, head, hashes or nonces.
    fn count(self, part: &'static str, hash: B256) {
        let reason = self.as_str();
        tracing::warn!(%hash, part, reason, "a block could not be read: the pools are compared");
        metrics::count_unread_block(part, reason);
    }
}

/// The state of following the chain, over all sources.
pub(crate) struct Chain {
    pub(crate) follower: Mutex<Follower>,
    /// The number of resets, which are counted under the follower's lock.
    pub(crate) resets: AtomicU32,
    pub(crate) context: Arc<Context>,
    pub(crate) fetch: Arc<Fetch>,
    /// Sends reports to each source.
    pub(crate) reports: Box<[mpsc::Sender<Report>]>,
    /// Whether the sink wants the nonces of blocks.
    pub(crate) reads_nonces: bool,
    /// The queue of blocks whose nonces are read.
    pub(crate) nonces: mpsc::Sender<NonceRequest>,
}

impl Chain {
    /// Sets whether the heads of a source count. When the leader loses that right, the other
    /// sources request their heads again: these may be higher, and did not count before.
    pub(crate) fn set_may_lead(&self, source: usize, may_lead: bool) {
        if lock(&self.follower).set_may_lead(source, may_lead) {
            for reports in &self.reports {
                // The error means that the inbox is full: then the source gets heads anyway.
                let _ = reports.try_send(Report::LeaderLost);
            }
        }
    }

    /// Forgets all blocks, all seen hashes and all lists of pools after a source's chain was reset.
    /// The next list of each source is reported to the sink as a whole, because the sink ends the
    /// listing of everything that it holds.
    pub(crate) fn reset(&self, source: usize) {
        let mut follower = lock(&self.follower);
        self.resets.fetch_add(1, Relaxed);
        follower.reset();
        self.context.listings.iter().for_each(|listings| _ = listings.set_latest(None));
        *lock(&self.context.hashes.blocks) = RecentBlocks::new(RECENT_BLOCKS);
        self.context.hashes.seen.clear();
        self.context.sink.queue.push(Job::Reset);
        // The source itself is compared after its connect.
        let others = self.reports.iter().enumerate().filter(|(other, _)| *other != source);
        for (_, reports) in others {
            // The error means that the inbox is full. Then its next audit lists its pool.
            let _ = reports.try_send(Report::Gap(GapReason::MissedHeads));
        }
    }

    /// Returns the number of resets of the chain so far.
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Relaxed)
    }

    /// Calls `change`, which no reset interrupts, unless there was one since [`Self::resets`]
    /// returned `resets`.
    pub(crate) fn unless_reset<T>(&self, resets: u32, change: impl FnOnce() -> T) -> Option<T> {
        let _follower = lock(&self.follower);
        (self.resets() == resets).then(change)
    }

    /// Reports to a source that announcements or blocks may have been missed.
    async fn report(&self, source: usize, gap: GapReason) {
        // The error means that the source has ended, which makes the report irrelevant.
        let _ = self.reports[source].send(Report::Gap(gap)).await;
    }

    /// Performs the next step of a branch. Returns the block that must be read before the step
    /// after it.
    async fn step(&self, source: usize, branch: &mut Branch) -> Option<B256> {
        let gap = match self.step_and_apply(source, branch) {
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

    /// Performs a step. It holds the follower's lock until the heads are in the sink's queue, so
    /// that they are queued in the order of the chain.
    fn step_and_apply(&self, source: usize, branch: &mut Branch) -> Step {
        let mut follower = lock(&self.follower);
        let step = follower.step(&mut lock(&self.context.hashes.blocks), branch, Instant::now());
        if let Step::Applied(applied) = &step {
            let Applied { blocks, unreported, mined_before, unmined, has_unknown_blocks, .. } =
                applied;
            // The sink restores transactions that it has, and the comparison after the reorg finds
            // those that the sink has removed. Only hashes that were announced while they were
            // mined are requested here.
            let was_announced = |hash: &B256| self.context.hashes.seen.forget_mined(*hash);
            let undone: Vec<B256> = unmined.iter().copied().filter(was_announced).collect();
            if !undone.is_empty() && !has_unknown_blocks {
                self.fetch.fetch_undone(source, undone);
            }
            if !unmined.is_empty() {
                self.context.sink.queue.undo(unmined);
            }
            let mined = blocks.iter().flat_map(|read| read.block.mined.iter());
            for hash in mined_before.iter().chain(mined) {
                self.context.hashes.seen.set_mined(*hash);
            }
            let mut carried = mined_before.clone();
            for ReadBlock { block, .. } in blocks {
                let (block, carried) = (block.clone(), std::mem::take(&mut carried));
                self.context.sink.queue.push(Job::Head { block, is_undone: false, carried });
            }
            // The nonces of unreported blocks are reported as those of the first reported one.
            for read in blocks {
                let reported_as = read.block.head.hash;
                self.request_nonces(NonceRequest { source, read: read.clone(), reported_as });
            }
            let first = blocks.first().map(|read| read.block.head.hash);
            for read in unreported {
                let reported_as = first.unwrap_or(read.block.head.hash);
                self.request_nonces(NonceRequest { source, read: read.clone(), reported_as });
            }
        }
        step
    }

    /// Queues a block for its nonces, if the sink wants them or they came with the block.
    fn request_nonces(&self, request: NonceRequest) {
        let (source, hash) = (request.source, request.read.block.head.hash);
        if (self.reads_nonces || request.read.nonces.is_some())
            && self.nonces.try_send(request).is_err()
        {
            Unread::QueueFull.count("nonces", hash);
            // The error means that the inbox is full. It is not awaited here, while a lock is held.
            let _ = self.reports[source].try_send(Report::Gap(GapReason::UnreadBlock));
        }
    }
}

/// Spawns the tasks that follow the heads of all sources and read nonces.
pub(crate) fn follow(
    chain: &Arc<Chain>,
    backlogs: Vec<Arc<Backlog>>,
    nonces: mpsc::Receiver<NonceRequest>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(heads::read_nonces(Arc::clone(chain), nonces));
    tasks.spawn(compare_after_dropped_events(Arc::clone(chain)));
    for (source, backlog) in backlogs.into_iter().enumerate() {
        tasks.spawn(heads::follow(Arc::clone(chain), source, backlog));
    }
    tasks
}

/// Requests a comparison when the sink has caught up after events were dropped. The comparison
/// reports those transactions as vanished that left the node's pool meanwhile without being mined.
async fn compare_after_dropped_events(chain: Arc<Chain>) {
    loop {
        chain.context.sink.queue.caught_up.notified().await;
        tracing::info!("the sink has caught up with the chain: the pools are compared");
        for source in 0..chain.reports.len() {
            chain.report(source, GapReason::MissedHeads).await;
        }
    }
}
