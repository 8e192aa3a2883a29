//! Full blocks, read for the nonces that they raised.
//!
//! A full block is slow on every node (170 to 660 ms for a large one), so neither the head itself
//! nor anything else waits for it.

use std::{io::Read as _, sync::Arc};

use alloy_primitives::B256;
use chain_view::{BlockNonces, Head, NonceUpdate};
use tokio::sync::mpsc;

use super::{
    Chain, ReadBlock, Unread,
    follower::MAX_ANCESTORS,
    heads::{BLOCK_TRIES, read_from_pool, turn, wait},
    wire,
};
use crate::{
    answer::{Answer, Wait},
    fetch::Fetch,
    gap::GapReason,
    settings::Settings,
    sync::lock,
};

/// Full blocks that may wait: as many as one gap can add, twice. A dev chain that mines for every
/// transaction can be faster than we read. Then nonces are not read, which is counted and followed
/// by a comparison; hashes always are.
pub(super) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// A block whose nonces must be reported to the sink, and the source that told it. Nonces that came with
/// it are queued all the same, so that the sink gets them in the order of the heads.
pub(crate) type Wanted = (usize, ReadBlock);

/// The nonces of a block, or the block that is to be read for them.
enum Nonces {
    Known(Vec<NonceUpdate>),
    In(Answer),
}

/// Reads one block after another. Ends with the sources, or when the fetcher stops.
pub(super) async fn read(chain: Arc<Chain>, mut blocks: mpsc::Receiver<Wanted>) {
    while let Some(wanted) = blocks.recv().await {
        let (source, hash) = (wanted.0, wanted.1.block.head.hash);
        if let Err(unread) = read_one(&chain, wanted).await {
            unread.count("nonces", hash);
            chain.report(source, GapReason::UnreadBlock).await;
        }
    }
}

async fn read_one(
    chain: &Arc<Chain>,
    (source, ReadBlock { block, nonces }): Wanted,
) -> Result<(), Unread> {
    let Head { number, hash, .. } = block.head;
    let mut reason = Unread::Failed;
    let mut known = nonces.map(Nonces::Known);
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if !is_needed(chain, number, &hash)? {
            return Ok(());
        }
        let found = match known.take() {
            Some(known) => Ok(known),
            None => request(chain, source, attempt, hash).await,
        };
        let shared = Arc::clone(chain);
        let job = move || {
            let updates = match found? {
                Nonces::Known(updates) => updates,
                Nonces::In(answer) => {
                    let max_bytes = shared.fetch.settings.limits.max_frame_bytes as u64;
                    wire::read_nonces(answer.take(max_bytes), hash)?
                }
            };
            apply(&shared, hash, updates);
            Ok(())
        };
        // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
        match chain.fetch.tasks.spawn_blocking(job).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(unread)) => reason = unread,
            // A retry would panic again.
            Err(_) => return Err(Unread::Failed),
        }
    }
    Err(reason)
}

/// Whether the nonces of a block are still needed: not once a reorg has removed it.
///
/// # Errors
/// More blocks than are remembered came after it while it waited for its turn.
fn is_needed(chain: &Chain, number: u64, hash: &B256) -> Result<bool, Unread> {
    let mined = lock(&chain.fetch.hashes.blocks);
    let is_recent = mined.iter().next().is_none_or(|oldest| oldest.head.number <= number);
    match mined.block(hash) {
        None if !is_recent => Err(Unread::QueueFull),
        found => Ok(found.is_some()),
    }
}

async fn request(chain: &Chain, source: usize, attempt: u32, hash: B256) -> Result<Nonces, Unread> {
    let Fetch { settings, tasks, .. } = &*chain.fetch;
    let turn = turn(chain, source, attempt).await;
    if let Some(pool) = settings.in_process_pool(turn) {
        return Ok(Nonces::Known(read_from_pool(chain, pool, hash).await?.nonces));
    }
    let Settings { config, limits } = &**settings;
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByHash","params":["{hash}",true]}}"#
    );
    let wait = Wait::new(limits.call_timeout, tasks.stop.clone(), tasks);
    let max_bytes = limits.max_frame_bytes;
    let answer = Answer::request(&config.sources[turn], &request, max_bytes, wait).await;
    answer.map(Nonces::In).map_err(|_| Unread::Failed)
}

fn apply(chain: &Chain, hash: B256, updates: Vec<NonceUpdate>) {
    {
        let mut mined = lock(&chain.fetch.hashes.blocks);
        for update in &updates {
            // `None` when a reorg has removed the block meanwhile, which the sink will find too.
            let _ = mined.raise(&hash, *update);
        }
    }
    chain.sink.push_nonces(BlockNonces::new(hash, updates));
}
