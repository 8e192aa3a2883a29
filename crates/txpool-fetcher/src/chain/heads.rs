//! Reads blocks: those that the [follower](super::follower) needs for a head, and full ones for
//! their nonces. Decides which source is asked, and when a block counts as unread.

use std::{
    io::Read as _,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::{Block, BlockNonces, Head, NonceUpdate};
use load_control::Backoff;
use serde_json::value::RawValue;
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until},
};

use super::{AnnouncedHead, Chain, HeadQueue, ReadBlock, Unread, follower::MAX_ANCESTORS, wire};
use crate::{
    announce::Backlog,
    answer::{Answer, LongCall},
    config::Settings,
    context::Context,
    error::CallError,
    gap::GapReason,
    node::Connection,
    sink::Job,
    sync::lock,
};

/// The number of requests for a block before it counts as unread. With [`RETRY_BACKOFF`] in
/// between, they take 0.6 to 1.3 s if the node responds at once; a node may be busy for some
/// hundred milliseconds.
const MAX_ATTEMPTS: u32 = 7;

/// See [`MAX_ATTEMPTS`].
const RETRY_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(640) };

/// How many time-outs of a call a block is waited for while a newer head waits: two, 20 s. Within
/// one, a dead connection is only noticed; then it is opened again and returns the block. Builders
/// of a fleet learn only from their ingests what a block contains.
const PATIENCE: u32 = 2;

/// The part of this time, one thirty-second, for which a block is waited for if the block before
/// could not be read either: 0.6 s. So the heads of a node that does not return its blocks catch
/// up, and one that returns them again is noticed.
const IMPATIENCE: u32 = 32;

/// Requests the head of a source. It is called right after a connect: otherwise the base fee would
/// be unknown until the next block, and heads that were missed while disconnected would go
/// unnoticed.
pub(crate) async fn latest(chain: &Arc<Chain>, source: usize) -> Option<AnnouncedHead> {
    let mut reason = Unread::Failed;
    for attempt in 0..MAX_ATTEMPTS {
        wait_before(attempt).await;
        if let Some(pool) = chain.context.settings.in_process_pool(source) {
            match pool.call(&chain.context.tasks, "latest_block", |pool| pool.latest_block()).await
            {
                Ok(block) => return Some(AnnouncedHead::with_block(block?.into(), true)),
                Err(_) => continue,
            }
        }
        // Without a connection the source is lost again. The next connect begins with this call.
        let connection = chain.context.connections.calls(source)?;
        match latest_block(&connection, chain.context.settings.limits.call_timeout).await {
            Ok(block) => return Some(AnnouncedHead::with_block(block.into(), true)),
            Err(unread) => reason = unread,
        }
    }
    reason.count("latest", B256::ZERO);
    None
}

/// Returns whether a node says that it is syncing (`eth_syncing`): false for a node without the
/// method.
pub(crate) async fn says_syncing(calls: &Connection, limit: Duration) -> bool {
    let response = calls.call("eth_syncing", (), limit).await;
    response.is_ok_and(|response| response.get().starts_with('{'))
}

/// Requests the latest head of a node.
pub(crate) async fn latest_head(calls: &Connection, limit: Duration) -> Option<Head> {
    Some(latest_block(calls, limit).await.ok()?.head)
}

async fn latest_block(calls: &Connection, limit: Duration) -> Result<Block, Unread> {
    read_block(calls.call("eth_getBlockByNumber", ("latest", false), limit).await)
}

/// Follows the heads of one source: reads the blocks that each needs, one head after another.
pub(super) async fn follow(chain: Arc<Chain>, source: usize, backlog: Arc<Backlog>) {
    let heads = &backlog.heads;
    let first_patience = chain.context.settings.limits.call_timeout * PATIENCE;
    let mut newer = None;
    let mut patience = first_patience;
    loop {
        let announced = match newer.take() {
            Some(announced) => announced,
            None => heads.next().await,
        };
        let resets = backlog.resets();
        let branch = lock(&chain.follower).on_head(source, announced, Instant::now());
        let Some(mut branch) = branch else { continue };
        while let Some(hash) = chain.step(source, &mut branch).await {
            let read = match read(&chain, source, hash, heads, &mut newer, patience).await {
                Some(read) => {
                    let divisor = if read.is_ok() { 1 } else { IMPATIENCE };
                    patience = first_patience / divisor;
                    read
                }
                // The newer head is this one, announced again, which the follower would ignore.
                None if newer.as_ref().is_some_and(|newer| newer.head.hash == branch.hash()) => {
                    newer = None;
                    continue;
                }
                // For a newer first head the same blocks would be read again, and new heads may
                // come faster than that.
                None if branch.is_proven()
                    && lock(&chain.context.hashes.blocks).head().is_none() =>
                {
                    Err(Unread::Missing)
                }
                // The block was reorged out. A newer head waits, for which the missing ones are
                // read.
                None => break,
            };
            if backlog.resets() != resets {
                // The head is of a chain that does not exist any more.
                break;
            }
            branch.add_read(hash, read);
        }
    }
}

/// Reads a block with its hashes. Returns `None` if the node does not have it and a newer head
/// waits, which is then in `newer`. For any other reason, the block counts as unread once a newer
/// head waits and `patience` has passed: the heads must not fall ever further behind.
async fn read(
    chain: &Arc<Chain>,
    source: usize,
    hash: B256,
    heads: &HeadQueue,
    newer: &mut Option<AnnouncedHead>,
    patience: Duration,
) -> Option<Result<ReadBlock, Unread>> {
    let mut began_at = Instant::now();
    let mut reason = Unread::Failed;
    for attempt in 0..MAX_ATTEMPTS {
        if reason == Unread::Missing {
            tokio::select! {
                // A newer head is looked at first, so that it ends the wait at once.
                biased;
                head = heads.next(), if newer.is_none() => *newer = Some(head),
                () = wait_before(attempt) => {}
            }
            if newer.is_some() {
                return None;
            }
        } else {
            tokio::select! {
                // The order is irrelevant: the next attempt ends too.
                biased;
                () = wait_for_newer(heads, newer, began_at + patience) => break,
                () = wait_before(attempt) => {}
            }
        }
        let waits_since = Instant::now();
        let asked = source_to_ask(chain, source, attempt).await;
        // While no source is connected, no node is to blame.
        began_at += waits_since.elapsed();
        tokio::select! {
            // A block that has come counts.
            biased;
            read = read_from(chain, asked, hash) => match read {
                Ok(read) => return Some(Ok(read)),
                Err(unread) => reason = unread,
            },
            () = wait_for_newer(heads, newer, began_at + patience) => {
                if reason == Unread::Missing {
                    return None;
                }
                break;
            }
        }
    }
    reason.count("hashes", hash);
    Some(Err(reason))
}

/// Waits until this time, and then until a newer head waits, which is then in `newer`.
///
/// # Cancel safety
/// Cancel safe.
async fn wait_for_newer(heads: &HeadQueue, newer: &mut Option<AnnouncedHead>, time: Instant) {
    sleep_until(time.into()).await;
    if newer.is_none() {
        *newer = Some(heads.next().await);
    }
}

/// Reads a block from the response to a call.
fn read_block(response: Result<Box<RawValue>, CallError>) -> Result<Block, Unread> {
    let response = response.map_err(|_| Unread::Failed)?;
    wire::read_block(response.get()).map_err(|_| Unread::Malformed)?.ok_or(Unread::Missing)
}

/// Returns the source that is asked for a block: at the first attempt the one that announced it,
/// then the others in turn. A source that is not connected is replaced by one that is; waits until
/// there is one.
async fn source_to_ask(chain: &Chain, announcer: usize, attempt: u32) -> usize {
    let Context { settings, connections, .. } = &*chain.context;
    let turn = (announcer + attempt as usize) % settings.config.sources.len();
    connections.connected(&[turn], turn).await.first().copied().unwrap_or(turn)
}

/// Requests a block with its hashes from one source.
async fn read_from(chain: &Chain, source: usize, hash: B256) -> Result<ReadBlock, Unread> {
    let Context { settings, connections, tasks, .. } = &*chain.context;
    let read: ReadBlock = if let Some(pool) = settings.in_process_pool(source) {
        let called = pool.call(tasks, "block", move |pool| pool.block(&hash)).await;
        called.map_err(|_| Unread::Failed)?.ok_or(Unread::Missing)?.into()
    } else {
        // Without a connection, the next attempt waits for a source that is connected.
        let calls = connections.calls(source).ok_or(Unread::Failed)?;
        let limit = settings.limits.call_timeout;
        read_block(calls.call("eth_getBlockByHash", (hash, false), limit).await)?.into()
    };
    if read.block.head.hash == hash { Ok(read) } else { Err(Unread::Malformed) }
}

/// Waits before an attempt, except before the first one.
async fn wait_before(attempt: u32) {
    if let Some(retry) = attempt.checked_sub(1) {
        sleep(RETRY_BACKOFF.random_delay(retry)).await;
    }
}

/// The number of full blocks that may wait: twice as many as one gap can add. A development chain
/// that mines a block for every transaction can be faster than they are read. Then the nonces of
/// some are not read, and a comparison follows.
pub(crate) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// The number of nonces that are raised while the lock of the recent blocks is held once: some 100
/// us.
const NONCE_BATCH: usize = 1024;

/// A block whose nonces are reported to the sink. All go through one queue, in the order of the
/// heads, also if their nonces came with the block.
#[derive(Debug)]
pub(crate) struct NonceRequest {
    /// The source that announced the block.
    pub(super) source: usize,
    pub(super) read: ReadBlock,
    /// The head with which the hashes of the block were reported to the sink.
    pub(super) reported_as: B256,
}

/// Reads full blocks for the nonces that they raised, one after another. A full block is slow on
/// every node (170 to 660 ms for a large one), so no other work waits for it.
pub(super) async fn read_nonces(chain: Arc<Chain>, mut blocks: mpsc::Receiver<NonceRequest>) {
    while let Some(request) = blocks.recv().await {
        let (source, hash) = (request.source, request.read.block.head.hash);
        if let Err(unread) = report_nonces(&chain, request).await {
            unread.count("nonces", hash);
            chain.report(source, GapReason::UnreadBlock).await;
        }
    }
}

/// Reads the nonces of one block, and reports them to the sink.
async fn report_nonces(chain: &Chain, request: NonceRequest) -> Result<(), Unread> {
    let NonceRequest { source, read: ReadBlock { block, mut nonces }, reported_as } = request;
    let Head { number, hash, .. } = block.head;
    let mut reason = Unread::Failed;
    for attempt in 0..MAX_ATTEMPTS {
        wait_before(attempt).await;
        if !is_needed(chain, number, &hash)? {
            return Ok(());
        }
        let read = match nonces.take() {
            Some(known) => Ok(known),
            None => request_nonces(chain, source, attempt, &block).await,
        };
        match read {
            Ok(updates) => {
                // In batches, because announcements wait for this lock, and a node may send very
                // many nonces.
                for batch in updates.chunks(NONCE_BATCH) {
                    let mut blocks = lock(&chain.context.hashes.blocks);
                    // `None` means that a reorg removed the block meanwhile, which the sink finds
                    // too.
                    batch.iter().for_each(|update| _ = blocks.raise(&hash, *update));
                }
                chain.context.sink.queue.push(Job::Nonces(BlockNonces::new(reported_as, updates)));
                return Ok(());
            }
            Err(unread) => reason = unread,
        }
    }
    Err(reason)
}

/// Returns whether a block is still in the chain, and not removed by a reorg. An error means that
/// more blocks came after it than are remembered.
fn is_needed(chain: &Chain, number: u64, hash: &B256) -> Result<bool, Unread> {
    let blocks = lock(&chain.context.hashes.blocks);
    let is_recent = blocks.iter().next().is_none_or(|oldest| oldest.head.number <= number);
    match blocks.block(hash) {
        None if !is_recent => Err(Unread::QueueFull),
        found => Ok(found.is_some()),
    }
}

/// Requests the nonces of a block, with its full transactions.
async fn request_nonces(
    chain: &Chain,
    source: usize,
    attempt: u32,
    block: &Block,
) -> Result<Vec<NonceUpdate>, Unread> {
    let hash = block.head.hash;
    let Context { settings, tasks, .. } = &*chain.context;
    let asked = source_to_ask(chain, source, attempt).await;
    if settings.in_process_pool(asked).is_some() {
        return read_from(chain, asked, hash).await?.nonces.ok_or(Unread::Missing);
    }
    let Settings { config, limits } = &**settings;
    let max_bytes = limits.max_frame_bytes;
    let call = LongCall {
        endpoint: &config.sources[asked],
        method: "eth_getBlockByHash",
        params: &format!(r#"["{hash}",true]"#),
        max_bytes,
        time_limit: limits.call_timeout,
    };
    // Parsing 2 MB takes some milliseconds, so it is not done on the thread of the sockets.
    let block = block.clone();
    let read = move |answer: Answer| wire::read_nonces(answer.take(max_bytes as u64), &block);
    let read = call.read(tasks, read).await;
    read.unwrap_or(Err(Unread::Failed))
}
