//! Follows the chain: applies heads in order, fetches missed ones, detects reorgs.
//!
//! ```text
//!  source 0: newHeads --> fetch: the block's hashes, missed ancestors --+
//!  source 1: newHeads --> fetch                                         +--> apply --> mempool-sink: heads
//!                                                                              |
//!                                             full blocks, one at a time  <----+
//!                                                   |
//!                                                   +----------------------------> mempool-sink: nonces
//! ```
//! A task for each source fetches its heads, so a node that does not answer delays only its own
//! heads. One task applies them all, so the sink sees one chain.

mod apply;
mod full_block;
mod nonces;
mod wire;

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use chain_view::{Block, Head, NonceUpdate, Relation};
use serde_json::value::RawValue;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};

pub(crate) use self::wire::read_head;
use self::{apply::Applier, wire::read_block};
use crate::{
    config::Backoff, error::CallError, fetch::FetchContext, in_process::MinedBlock, machine::Event,
    metrics::Metrics, sink::TransactionSink, sync::lock,
};

/// Blocks that are remembered. On geth, announcements came up to 11 ms after their block, and after
/// a stall up to some blocks later; 64 blocks are 13 minutes.
pub(crate) const RECENT_BLOCKS: usize = 64;

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

/// Events of a source that may wait for its shell, which reads them at once.
pub(crate) const EVENTS_WAITING: usize = 16;

/// A head as a source announced it.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    head: Head,
    /// The block, if it came with the head.
    block: Option<ReadBlock>,
    /// The head was requested from the source, not announced by it.
    was_requested: bool,
}

impl Announced {
    fn requested(block: ReadBlock) -> Self {
        Self { head: block.block.head, block: Some(block), was_requested: true }
    }
}

impl From<Head> for Announced {
    fn from(head: Head) -> Self {
        Self { head, block: None, was_requested: false }
    }
}

impl From<MinedBlock> for Announced {
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
    /// No answer in time, or an error response.
    Failed,
    /// The node does not have the block.
    Missing,
    /// The answer is not a block, or is another block.
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
        Metrics::unread_block(part, self.as_str());
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

/// Follows the heads of all sources. For each source it takes its heads, and the channel to which
/// reorgs, missed heads and unread blocks are reported.
pub(crate) fn follow<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    sources: Vec<(mpsc::Receiver<Announced>, mpsc::Sender<Event>)>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let (fetched_tx, fetched) = mpsc::channel(HEADS_WAITING);
    let mut events = Vec::new();
    for (source, (heads, event)) in sources.into_iter().enumerate() {
        events.push(event);
        tasks.spawn(fetch(Arc::clone(context), source, heads, fetched_tx.clone()));
    }
    let events: Arc<[_]> = events.into();
    let (full_blocks, waiting) = mpsc::channel(nonces::BLOCKS_WAITING);
    tasks.spawn(nonces::read(Arc::clone(context), waiting, Arc::clone(&events)));
    tasks.spawn(compare_after_dropped_events(Arc::clone(context), Arc::clone(&events)));
    tasks.spawn(Applier::new(Arc::clone(context), full_blocks, events).run(fetched));
    tasks
}

/// Requests a comparison when the sink has caught up after events were dropped: transactions that
/// the node removed meanwhile, other than by a block, are then reported as vanished.
async fn compare_after_dropped_events<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    events: Arc<[mpsc::Sender<Event>]>,
) {
    loop {
        context.sink_queue.caught_up().await;
        for source in events.iter() {
            // If the source has ended, the event has no receiver and no use.
            let _ = source.send(Event::MissedHeads).await;
        }
    }
}

/// Requests the head of a source right after it has connected: otherwise the base fee is unknown
/// until its next block, and heads that were missed while it was disconnected go unnoticed.
pub(crate) async fn latest<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
) -> Option<Announced> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if let Some(pool) = context.config.in_process_pool(source) {
            match pool.call(&context.tasks, "latest_block", |pool| pool.latest_block()).await {
                Ok(block) => return Some(Announced::requested(block?.into())),
                Err(_) => continue,
            }
        }
        // Without a connection it was lost again; the next connection starts with this call.
        let connection = context.requests.calls(source)?;
        let limit = context.config.call_timeout;
        let answer = connection.call("eth_getBlockByNumber", ("latest", false), limit).await;
        match block_of(answer) {
            Ok(block) => return Some(Announced::requested(block.into())),
            Err(unread) => reason = unread,
        }
    }
    reason.count("latest", B256::ZERO);
    None
}

/// Fetches what the heads of one source need, one after another.
async fn fetch<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    source: usize,
    mut heads: mpsc::Receiver<Announced>,
    fetched: mpsc::Sender<Fetched>,
) {
    while let Some(announced) = heads.recv().await {
        let found = fetch_head(&context, source, announced).await;
        // The applier ends last, or panics, which ends the fetcher.
        if fetched.send(found).await.is_err() {
            return;
        }
    }
}

async fn fetch_head<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    Announced { head, block, was_requested }: Announced,
) -> Fetched {
    let mut found = Fetched { source, blocks: Vec::new(), is_incomplete: false, was_requested };
    let (relation, latest) = {
        let mined = lock(&context.mined);
        (mined.relate(&head), mined.head().copied())
    };
    match relation {
        Relation::Repeat => return found,
        Relation::Inconsistent => {
            Unread::Inconsistent.count("head", head.hash);
            return found;
        }
        Relation::Gap { .. } => {
            let is_linked = ancestors(context, source, &head, &mut found.blocks).await;
            let highest = latest
                .map_or(u64::MAX, |latest| latest.number.saturating_add(MAX_ANCESTORS as u64));
            if !is_linked && head.number > highest {
                // A single head with a huge number must not make its source the leader.
                Unread::Unlinked.count("head", head.hash);
                found.blocks.clear();
                found.is_incomplete = true;
                return found;
            }
        }
        _ => {}
    }
    let block = match block {
        Some(block) => Ok(block),
        None => hashes(context, source, head.hash).await,
    };
    found.blocks.push(block.unwrap_or_else(|unread| {
        // The head counts, although its mined hashes are not known: a comparison finds them.
        unread.count("hashes", head.hash);
        found.is_incomplete = true;
        Block::new(head, []).into()
    }));
    found
}

/// Fetches the blocks before a head whose parent is not known, oldest first. The result also says
/// whether they confirm the head: they lead to a known block, below the oldest known one, or as far
/// back as blocks are remembered.
async fn ancestors<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    head: &Head,
    chain: &mut Vec<ReadBlock>,
) -> bool {
    let mut child = *head;
    let is_linked = loop {
        let (is_known, oldest) = {
            let mined = lock(&context.mined);
            let oldest = mined.iter().next().map_or(0, |block| block.head.number);
            (mined.block(&child.parent_hash).is_some(), oldest)
        };
        if is_known || chain.len() == MAX_ANCESTORS || child.number == 0 {
            break true;
        }
        match hashes(context, source, child.parent_hash).await {
            Ok(ReadBlock { block, .. })
                if block.head.number.checked_add(1) != Some(child.number) =>
            {
                break false;
            }
            // The reorg is deeper than the remembered blocks.
            Ok(ReadBlock { block, .. }) if block.head.number < oldest => break true,
            Ok(read) => {
                child = read.block.head;
                chain.push(read);
            }
            Err(unread) => {
                unread.count("ancestor", child.parent_hash);
                break false;
            }
        }
    };
    chain.reverse();
    is_linked
}

/// The block with the hashes of its transactions.
async fn hashes<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    hash: B256,
) -> Result<ReadBlock, Unread> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        let read = match in_process_block(context, source, attempt, hash).await {
            Some(read) => read.map(ReadBlock::from),
            None => block_of(request(context, source, attempt, hash).await).map(ReadBlock::from),
        };
        match read {
            Ok(read) if read.block.head.hash == hash => return Ok(read),
            Ok(_) => reason = Unread::Malformed,
            Err(unread) => reason = unread,
        }
    }
    Err(reason)
}

fn block_of(answer: Result<Box<RawValue>, CallError>) -> Result<Block, Unread> {
    let answer = answer.map_err(|_| Unread::Failed)?;
    read_block(answer.get()).map_err(|_| Unread::Malformed)?.ok_or(Unread::Missing)
}

/// The block, if it is the turn of a pool in this process; `None` if it is a node's turn.
async fn in_process_block<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Option<Result<MinedBlock, Unread>> {
    let pool = context.config.in_process_pool(turn(context, source, attempt))?;
    let block = pool.call(&context.tasks, "block", move |pool| pool.block(&hash)).await;
    Some(match block {
        Ok(Some(mined)) if mined.block.head.hash == hash => Ok(mined),
        Ok(Some(_)) => Err(Unread::Malformed),
        Ok(None) => Err(Unread::Missing),
        Err(_) => Err(Unread::Failed),
    })
}

/// The source to ask: the block's source first, then each of the others in turn.
fn turn<S>(context: &FetchContext<S>, source: usize, attempt: u32) -> usize {
    (source + attempt as usize) % context.config.sources.len()
}

/// Requests a block from the node whose turn it is, else from one that is connected.
async fn request<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Result<Box<RawValue>, CallError> {
    let connection = context.requests.pick(turn(context, source, attempt)).await;
    let connection = connection.ok_or(CallError::ConnectionLost)?;
    let answer =
        connection.call("eth_getBlockByHash", (hash, false), context.config.call_timeout).await;
    if matches!(answer, Err(CallError::ConnectionLost)) {
        // Whichever source it belongs to: the next attempt waits for one that is up.
        context.requests.remove_lost(&connection);
    }
    answer
}

/// Waits before an attempt, except the first.
async fn wait(attempt: u32) {
    if let Some(retry) = attempt.checked_sub(1) {
        sleep(RETRY_BACKOFF.delay(retry, rand::random())).await;
    }
}
