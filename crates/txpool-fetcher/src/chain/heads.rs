//! Reads blocks: those that the [follower](super::follower) needs, and full ones for their nonces.

use std::{
    io::Read as _,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::{Block, BlockNonces, Head, NonceUpdate};
use load_control::Backoff;
use serde_json::value::RawValue;
use tokio::{sync::mpsc, time::sleep};

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

/// How often a block is requested before it counts as unread. With [`RETRY_BACKOFF`] in between,
/// the attempts last 0.6 to 1.3 s if the node answers at once: it may be busy for some hundred ms.
const BLOCK_TRIES: u32 = 7;

const RETRY_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(640) };

/// Requests the head of a source right after it has connected: otherwise the base fee is unknown
/// until its next block, and heads that were missed while it was disconnected go unnoticed.
pub(crate) async fn latest(chain: &Arc<Chain>, source: usize) -> Option<AnnouncedHead> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if let Some(pool) = chain.context.settings.in_process_pool(source) {
            match pool.call(&chain.context.tasks, "latest_block", |pool| pool.latest_block()).await
            {
                Ok(block) => return Some(AnnouncedHead::with_block(block?.into(), true)),
                Err(_) => continue,
            }
        }
        // Without a connection it was lost again; the next connection starts with this call.
        let connection = chain.context.connections.calls(source)?;
        match latest_block(&connection, chain.context.settings.limits.call_timeout).await {
            Ok(block) => return Some(AnnouncedHead::with_block(block.into(), true)),
            Err(unread) => reason = unread,
        }
    }
    reason.count("latest", B256::ZERO);
    None
}

/// Whether a node says that it is syncing (`eth_syncing`). One without the method does not.
pub(crate) async fn says_syncing(calls: &Connection, limit: Duration) -> bool {
    let response = calls.call("eth_syncing", (), limit).await;
    response.is_ok_and(|response| response.get().starts_with('{'))
}

pub(crate) async fn head_of(calls: &Connection, limit: Duration) -> Option<Head> {
    Some(latest_block(calls, limit).await.ok()?.head)
}

async fn latest_block(calls: &Connection, limit: Duration) -> Result<Block, Unread> {
    block_of(calls.call("eth_getBlockByNumber", ("latest", false), limit).await)
}

/// Follows the heads of one source, one after another.
pub(super) async fn follow(chain: Arc<Chain>, source: usize, backlog: Arc<Backlog>) {
    let heads = &backlog.heads;
    let mut newer = None;
    loop {
        let announced = match newer.take() {
            Some(announced) => announced,
            None => heads.next().await,
        };
        let told = lock(&chain.follower).tell(source, announced, Instant::now());
        let Some(mut branch) = told else { continue };
        while let Some(hash) = chain.step(source, &mut branch).await {
            let read = match read(&chain, source, hash, heads, &mut newer).await {
                Some(read) => read,
                // The same head again, which would be no news.
                None if newer.as_ref().is_some_and(|newer| newer.head.hash == branch.hash()) => {
                    newer = None;
                    continue;
                }
                // A newer first head would be read down to the same block, and blocks may come faster.
                None if branch.is_proven()
                    && lock(&chain.context.hashes.blocks).head().is_none() =>
                {
                    Err(Unread::Missing)
                }
                // The block was reorged out, and a newer head waits, which finds what is missing.
                None => break,
            };
            branch.read(hash, read);
        }
    }
}

/// Reads a block with its hashes. `None` if it is missing and a newer head waits, now in `newer`.
async fn read(
    chain: &Arc<Chain>,
    source: usize,
    hash: B256,
    heads: &HeadQueue,
    newer: &mut Option<AnnouncedHead>,
) -> Option<Result<ReadBlock, Unread>> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        if reason == Unread::Missing {
            tokio::select! {
                // A head that waits is seen before the first wait.
                biased;
                head = heads.next(), if newer.is_none() => *newer = Some(head),
                () = wait(attempt) => {}
            }
            if newer.is_some() {
                return None;
            }
        } else {
            wait(attempt).await;
        }
        let turn = turn(chain, source, attempt).await;
        match read_from(chain, turn, hash).await {
            Ok(read) => return Some(Ok(read)),
            Err(unread) => reason = unread,
        }
    }
    reason.count("hashes", hash);
    Some(Err(reason))
}

fn block_of(response: Result<Box<RawValue>, CallError>) -> Result<Block, Unread> {
    let response = response.map_err(|_| Unread::Failed)?;
    wire::read_block(response.get()).map_err(|_| Unread::Malformed)?.ok_or(Unread::Missing)
}

/// The source that is asked for a block: the one that told it first, then each of the others in
/// turn; in the place of one that is not connected, one that is. Waits until there is one.
async fn turn(chain: &Chain, source: usize, attempt: u32) -> usize {
    let Context { settings, connections, .. } = &*chain.context;
    let turn = (source + attempt as usize) % settings.config.sources.len();
    connections.connected(&[turn], turn).await.first().copied().unwrap_or(turn)
}

async fn read_from(chain: &Chain, source: usize, hash: B256) -> Result<ReadBlock, Unread> {
    let Context { settings, connections, tasks, .. } = &*chain.context;
    let read: ReadBlock = if let Some(pool) = settings.in_process_pool(source) {
        let called = pool.call(tasks, "block", move |pool| pool.block(&hash)).await;
        called.map_err(|_| Unread::Failed)?.ok_or(Unread::Missing)?.into()
    } else {
        // The next attempt waits for one that is up.
        let calls = connections.calls(source).ok_or(Unread::Failed)?;
        let limit = settings.limits.call_timeout;
        block_of(calls.call("eth_getBlockByHash", (hash, false), limit).await)?.into()
    };
    if read.block.head.hash == hash { Ok(read) } else { Err(Unread::Malformed) }
}

/// Waits before an attempt, except the first.
async fn wait(attempt: u32) {
    if let Some(retry) = attempt.checked_sub(1) {
        sleep(RETRY_BACKOFF.random_delay(retry)).await;
    }
}

/// Full blocks that may wait: as many as one gap can add, twice. A dev chain that mines for every
/// transaction can be faster than we read. Then nonces are not read, and a comparison follows.
pub(crate) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// Nonces raised with one hold of the lock of the recent blocks: some 100 us.
const RAISED_TOGETHER: usize = 1024;

/// A block whose nonces must be reported, also those that came with it: in the order of the heads.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// That told it.
    pub(super) source: usize,
    pub(super) read: ReadBlock,
    /// The head with which the sink was told what it mined.
    pub(super) told_as: B256,
}

/// Reads full blocks for the nonces that they raised, one after another. A full block is slow on
/// every node (170 to 660 ms for a large one), so nothing else waits for it.
pub(super) async fn read_nonces(chain: Arc<Chain>, mut blocks: mpsc::Receiver<Wanted>) {
    while let Some(wanted) = blocks.recv().await {
        let (source, hash) = (wanted.source, wanted.read.block.head.hash);
        if let Err(unread) = read_nonces_of(&chain, wanted).await {
            unread.count("nonces", hash);
            chain.report(source, GapReason::UnreadBlock).await;
        }
    }
}

async fn read_nonces_of(
    chain: &Chain,
    Wanted { source, read: ReadBlock { block, mut nonces }, told_as }: Wanted,
) -> Result<(), Unread> {
    let Head { number, hash, .. } = block.head;
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if !is_needed(chain, number, &hash)? {
            return Ok(());
        }
        let read = match nonces.take() {
            Some(known) => Ok(known),
            None => request_nonces(chain, source, attempt, &block).await,
        };
        match read {
            Ok(updates) => {
                // Who reads announcements waits for this lock, and a node may tell very many.
                for some in updates.chunks(RAISED_TOGETHER) {
                    let mut mined = lock(&chain.context.hashes.blocks);
                    // `None` if a reorg has removed the block meanwhile, which the sink finds too.
                    some.iter().for_each(|update| _ = mined.raise(&hash, *update));
                }
                chain.context.sink.queue.push(Job::Nonces(BlockNonces::new(told_as, updates)));
                return Ok(());
            }
            Err(unread) => reason = unread,
        }
    }
    Err(reason)
}

/// Whether no reorg has removed a block. An error if more blocks than are remembered came after it.
fn is_needed(chain: &Chain, number: u64, hash: &B256) -> Result<bool, Unread> {
    let mined = lock(&chain.context.hashes.blocks);
    let is_recent = mined.iter().next().is_none_or(|oldest| oldest.head.number <= number);
    match mined.block(hash) {
        None if !is_recent => Err(Unread::QueueFull),
        found => Ok(found.is_some()),
    }
}

async fn request_nonces(
    chain: &Chain,
    source: usize,
    attempt: u32,
    block: &Block,
) -> Result<Vec<NonceUpdate>, Unread> {
    let hash = block.head.hash;
    let Context { settings, tasks, .. } = &*chain.context;
    let turn = turn(chain, source, attempt).await;
    if settings.in_process_pool(turn).is_some() {
        return read_from(chain, turn, hash).await?.nonces.ok_or(Unread::Missing);
    }
    let Settings { config, limits } = &**settings;
    let max_bytes = limits.max_frame_bytes;
    let call = LongCall {
        endpoint: &config.sources[turn],
        method: "eth_getBlockByHash",
        params: &format!(r#"["{hash}",true]"#),
        max_bytes,
        time_limit: limits.call_timeout,
    };
    // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
    let block = block.clone();
    let read = move |answer: Answer| wire::read_nonces(answer.take(max_bytes as u64), &block);
    let read = call.read(tasks, read).await;
    read.unwrap_or(Err(Unread::Failed))
}
