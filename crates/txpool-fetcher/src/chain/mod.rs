//! Follows the chain: applies heads in order, fetches missed ones, detects reorgs. Entry: [`follow`].
//!
//! ```text
//!  source 0: newHeads --> fetch: the block's hashes, missed ancestors --+
//!  source 1: newHeads --> fetch                                         +--> apply --> mempool-sink: heads
//!                                                                              |
//!                                             full blocks, one at a time  <----+
//!                                                   |
//!                                                   +----------------------------> mempool-sink: nonces
//! ```
//! A task for each source fetches its heads, so a node that does not respond delays only its own
//! heads. One task applies them all, so the sink sees one chain.
//!
//! For each new head, the block's hashes are requested first, which is a small response; then the
//! full block in the background, for the nonces, because private transactions raise nonces too. The
//! hashes and nonces of 64 recent blocks are kept, because a hash can be announced after its block.
//! As soon as both connections of a source are up, the latest block is requested: nothing else
//! reports the head before the next block. A head whose parent is not known needs its ancestors, or a
//! number at most 64 above the latest. A block that cannot be read in 7 attempts is counted, and the
//! pools are compared.

mod apply;
mod full_block;
mod heads;
mod nonces;
mod wire;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use chain_view::{Block, Head, NonceUpdate};
use load_control::Backoff;
use tokio::{sync::mpsc, task::JoinSet};

use self::apply::Applier;
pub(crate) use self::{heads::latest, wire::read_head};
use crate::{
    fetch::{FetchRequest, Hashes},
    gap::{GapReason, Report},
    in_process_pool::MinedBlock,
    limits::RECENT_BLOCKS,
    metrics,
    request::RequestConnections,
    settings::Settings,
    sink::SinkQueue,
    tasks::Tasks,
};

/// How many missed heads are fetched, newest to oldest, before the rest is skipped: as many as are
/// remembered. Also how far above the latest head a head may be whose ancestors cannot be fetched.
const MAX_ANCESTORS: usize = RECENT_BLOCKS;

/// How often a block is requested before it counts as unread. With [`RETRY_BACKOFF`] in between,
/// the attempts last 0.6 to 1.3 s if the node answers at once, so that a block is not lost when the
/// node is busy for some hundred milliseconds.
const BLOCK_TRIES: u32 = 7;

const RETRY_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(640) };

/// Heads of one source that may wait; when more come, its subscription connection waits.
pub(crate) const HEADS_WAITING: usize = 64;

/// A head as a source announced it.
#[derive(Clone, Debug)]
pub(crate) struct AnnouncedHead {
    head: Head,
    /// The block, if it came with the head.
    block: Option<ReadBlock>,
    /// The head was requested from the source, not announced by it.
    was_requested: bool,
}

impl AnnouncedHead {
    fn requested(block: ReadBlock) -> Self {
        Self { head: block.block.head, block: Some(block), was_requested: true }
    }
}

impl From<Head> for AnnouncedHead {
    fn from(head: Head) -> Self {
        Self { head, block: None, was_requested: false }
    }
}

impl From<MinedBlock> for AnnouncedHead {
    fn from(mined: MinedBlock) -> Self {
        Self { was_requested: false, ..Self::requested(mined.into()) }
    }
}

/// A block that was read.
#[derive(Clone, Debug)]
struct ReadBlock {
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

/// Why a block could not be read. A closed set: it is a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    /// No response in time, or an error response.
    Failed,
    /// The node does not have the block.
    Missing,
    /// The response is not a block, or is another block.
    Malformed,
    /// Too many blocks or jobs wait already.
    QueueFull,
    /// A head far ahead of the latest one, whose ancestors the node does not have.
    Unlinked,
    /// A head whose number does not follow its parent's.
    Inconsistent,
}

impl Unread {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::QueueFull => "queue_full",
            Self::Unlinked => "unlinked",
            Self::Inconsistent => "inconsistent",
        }
    }

    /// Counts it; `part` names the part of the block that was to be read.
    fn count(self, part: &'static str, hash: B256) {
        tracing::warn!(%hash, part, reason = self.as_str(), "a block could not be read");
        metrics::unread_block(part, self.as_str());
    }
}

/// What a source's task has fetched for one head.
#[derive(Debug)]
struct Fetched {
    source: usize,
    /// Oldest first, the head itself last. Empty if the head changes nothing: then it only shows
    /// that its source is alive.
    blocks: Vec<ReadBlock>,
    /// Part of it could not be read, so a comparison must follow.
    is_incomplete: bool,
    /// The head was requested when the source had just connected. The comparison that follows a
    /// connect covers the heads that were missed until then.
    was_requested: bool,
}

/// What following the chain needs of the other parts.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) settings: Arc<Settings>,
    /// Where blocks are added.
    pub(crate) hashes: Arc<Hashes>,
    /// Over which blocks are requested.
    pub(crate) connections: Arc<RequestConnections<FetchRequest>>,
    /// To which heads and nonces are reported.
    pub(crate) sink: Arc<SinkQueue>,
    pub(crate) tasks: Arc<Tasks>,
    /// Whether the sink wants the nonces of blocks.
    pub(crate) reads_nonces: bool,
}

type Reports = Arc<[mpsc::Sender<Report>]>;

/// Follows the heads of all sources. For each source it takes its heads, and the channel to which
/// reorgs, missed heads and unread blocks are reported.
pub(crate) fn follow(
    chain: &Arc<Chain>,
    sources: Vec<(mpsc::Receiver<AnnouncedHead>, mpsc::Sender<Report>)>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (fetched_tx, fetched) = mpsc::channel(HEADS_WAITING);
    let mut reports = Vec::new();
    for (source, (heads, report)) in sources.into_iter().enumerate() {
        reports.push(report);
        tasks.spawn(heads::fetch(Arc::clone(chain), source, heads, fetched_tx.clone()));
    }
    let reports: Reports = reports.into();
    let (full_blocks, waiting) = mpsc::channel(nonces::BLOCKS_WAITING);
    tasks.spawn(nonces::read(Arc::clone(chain), waiting, Arc::clone(&reports)));
    tasks.spawn(compare_after_dropped_events(Arc::clone(chain), Arc::clone(&reports)));
    tasks.spawn(Applier::new(Arc::clone(chain), full_blocks, reports).run(fetched));
    tasks
}

/// Requests a comparison when the sink has caught up after events were dropped: transactions that
/// the node removed meanwhile, other than by a block, are then reported as vanished.
async fn compare_after_dropped_events(chain: Arc<Chain>, reports: Reports) {
    loop {
        chain.sink.caught_up().await;
        for source in reports.iter() {
            // If the source has ended, the report has no receiver and no use.
            let _ = source.send(Report::Gap(GapReason::MissedHeads)).await;
        }
    }
}
