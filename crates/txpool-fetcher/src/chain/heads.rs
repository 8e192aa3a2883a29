//! Fetches the blocks of heads, and of the heads that were missed before them.

use std::sync::Arc;

use alloy_primitives::B256;
use chain_view::{Block, Head, Relation};
use serde_json::value::RawValue;
use tokio::{sync::mpsc, time::sleep};

use super::{
    AnnouncedHead, BLOCK_TRIES, Chain, Fetched, MAX_ANCESTORS, RETRY_BACKOFF, ReadBlock, Unread,
    wire::read_block,
};
use crate::{error::CallError, in_process_pool::MinedBlock, sync::lock};

/// Requests the head of a source right after it has connected: otherwise the base fee is unknown
/// until its next block, and heads that were missed while it was disconnected go unnoticed.
pub(crate) async fn latest(chain: &Arc<Chain>, source: usize) -> Option<AnnouncedHead> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if let Some(pool) = chain.settings.in_process_pool(source) {
            match pool.call(&chain.tasks, "latest_block", |pool| pool.latest_block()).await {
                Ok(block) => return Some(AnnouncedHead::requested(block?.into())),
                Err(_) => continue,
            }
        }
        // Without a connection it was lost again; the next connection starts with this call.
        let connection = chain.connections.calls(source)?;
        let limit = chain.settings.limits.call_timeout;
        let response = connection.call("eth_getBlockByNumber", ("latest", false), limit).await;
        match block_of(response) {
            Ok(block) => return Some(AnnouncedHead::requested(block.into())),
            Err(unread) => reason = unread,
        }
    }
    reason.count("latest", B256::ZERO);
    None
}

/// Fetches what the heads of one source need, one after another.
pub(super) async fn fetch(
    chain: Arc<Chain>,
    source: usize,
    mut heads: mpsc::Receiver<AnnouncedHead>,
    fetched: mpsc::Sender<Fetched>,
) {
    while let Some(announced) = heads.recv().await {
        let found = fetch_head(&chain, source, announced).await;
        // The applier ends last, or panics, which ends the fetcher.
        if fetched.send(found).await.is_err() {
            return;
        }
    }
}

async fn fetch_head(
    chain: &Arc<Chain>,
    source: usize,
    AnnouncedHead { head, block, was_requested }: AnnouncedHead,
) -> Fetched {
    let mut found = Fetched { source, blocks: Vec::new(), is_incomplete: false, was_requested };
    let (relation, latest) = {
        let blocks = lock(&chain.hashes.blocks);
        (blocks.relate(&head), blocks.head().copied())
    };
    match relation {
        Relation::Repeat => return found,
        Relation::Inconsistent => {
            Unread::Inconsistent.count("head", head.hash);
            return found;
        }
        Relation::Gap { .. } => {
            let is_linked = ancestors(chain, source, &head, &mut found.blocks).await;
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
        None => hashes(chain, source, head.hash).await,
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
async fn ancestors(
    chain: &Arc<Chain>,
    source: usize,
    head: &Head,
    found: &mut Vec<ReadBlock>,
) -> bool {
    let mut child = *head;
    let is_linked = loop {
        let (is_known, oldest) = {
            let blocks = lock(&chain.hashes.blocks);
            let oldest = blocks.iter().next().map_or(0, |block| block.head.number);
            (blocks.block(&child.parent_hash).is_some(), oldest)
        };
        if is_known || found.len() == MAX_ANCESTORS || child.number == 0 {
            break true;
        }
        match hashes(chain, source, child.parent_hash).await {
            Ok(ReadBlock { block, .. })
                if block.head.number.checked_add(1) != Some(child.number) =>
            {
                break false;
            }
            // The reorg is deeper than the remembered blocks.
            Ok(ReadBlock { block, .. }) if block.head.number < oldest => break true,
            Ok(read) => {
                child = read.block.head;
                found.push(read);
            }
            Err(unread) => {
                unread.count("ancestor", child.parent_hash);
                break false;
            }
        }
    };
    found.reverse();
    is_linked
}

/// The block with the hashes of its transactions.
async fn hashes(chain: &Arc<Chain>, source: usize, hash: B256) -> Result<ReadBlock, Unread> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        let read = match in_process_block(chain, source, attempt, hash).await {
            Some(read) => read.map(ReadBlock::from),
            None => block_of(request(chain, source, attempt, hash).await).map(ReadBlock::from),
        };
        match read {
            Ok(read) if read.block.head.hash == hash => return Ok(read),
            Ok(_) => reason = Unread::Malformed,
            Err(unread) => reason = unread,
        }
    }
    Err(reason)
}

fn block_of(response: Result<Box<RawValue>, CallError>) -> Result<Block, Unread> {
    let response = response.map_err(|_| Unread::Failed)?;
    read_block(response.get()).map_err(|_| Unread::Malformed)?.ok_or(Unread::Missing)
}

/// The block, if it is the turn of a pool in this process; `None` if it is a node's turn.
pub(super) async fn in_process_block(
    chain: &Arc<Chain>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Option<Result<MinedBlock, Unread>> {
    let pool = chain.settings.in_process_pool(turn(chain, source, attempt))?;
    let block = pool.call(&chain.tasks, "block", move |pool| pool.block(&hash)).await;
    Some(match block {
        Ok(Some(mined)) if mined.block.head.hash == hash => Ok(mined),
        Ok(Some(_)) => Err(Unread::Malformed),
        Ok(None) => Err(Unread::Missing),
        Err(_) => Err(Unread::Failed),
    })
}

/// The source to ask: the block's source first, then each of the others in turn.
pub(super) fn turn(chain: &Chain, source: usize, attempt: u32) -> usize {
    (source + attempt as usize) % chain.settings.config.sources.len()
}

/// Requests a block from the node whose turn it is, else from one that is connected.
async fn request(
    chain: &Arc<Chain>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Result<Box<RawValue>, CallError> {
    let connection = chain.connections.pick(turn(chain, source, attempt)).await;
    let connection = connection.ok_or(CallError::ConnectionLost)?;
    let limit = chain.settings.limits.call_timeout;
    // A connection that is lost is replaced before the next attempt, which waits for one that is up.
    connection.call("eth_getBlockByHash", (hash, false), limit).await
}

/// Waits before an attempt, except the first.
pub(super) async fn wait(attempt: u32) {
    if let Some(retry) = attempt.checked_sub(1) {
        sleep(RETRY_BACKOFF.random_delay(retry)).await;
    }
}
