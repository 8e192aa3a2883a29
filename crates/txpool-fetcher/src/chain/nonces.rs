//! Full blocks, read for the nonces that they raised.
//!
//! A full block is slow on every node (170 to 660 ms for a large one), so neither the head itself
//! nor anything else waits for it: see [`full_block`](super::full_block).

use std::{os::unix::net::UnixStream, sync::Arc};

use alloy_primitives::B256;
use chain_view::{BlockNonces, NonceUpdate};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{
    BLOCK_TRIES, Chain, Reports, Unread,
    follower::MAX_ANCESTORS,
    full_block,
    heads::{in_process_block, turn, wait},
    wire,
};
use crate::{
    config::Endpoint,
    gap::{GapReason, Report},
    sync::lock,
};

/// Full blocks that may wait: as many as one gap can add, twice. A dev chain that mines for every
/// transaction can be faster than we read. Then nonces are not read, which is counted and followed
/// by a comparison; hashes always are.
pub(super) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// A block whose nonces must be reported to the sink.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The source that reported the block.
    pub(super) source: usize,
    pub(super) number: u64,
    pub(super) block: B256,
    /// The nonces, if they came with the block. They are queued all the same, so that the sink gets
    /// them in the order of the heads.
    pub(super) known: Option<Vec<NonceUpdate>>,
}

/// The nonces of a block, or where to read them.
enum Nonces {
    Known(Vec<NonceUpdate>),
    /// To be requested and read over this socket.
    OnSocket(UnixStream),
    InBlock(Box<RawValue>),
}

impl Nonces {
    fn read(self, chain: &Chain, hash: B256) -> Result<Vec<NonceUpdate>, Unread> {
        match self {
            Self::Known(updates) => Ok(updates),
            Self::OnSocket(stream) => {
                let limits = &chain.settings.limits;
                let (limit, max_bytes) = (limits.call_timeout, limits.max_frame_bytes);
                full_block::read_nonces(stream, hash, limit, max_bytes, &chain.tasks.stop)
            }
            Self::InBlock(json) => wire::read_nonces(json.get(), hash),
        }
    }
}

/// Reads one block after another. Ends with the sources, or when the fetcher stops.
pub(super) async fn read(chain: Arc<Chain>, mut blocks: mpsc::Receiver<Wanted>, reports: Reports) {
    while let Some(wanted) = blocks.recv().await {
        let (source, hash) = (wanted.source, wanted.block);
        if let Err(unread) = read_one(&chain, wanted).await {
            unread.count("nonces", hash);
            // If the source has ended, the report has no receiver and no use.
            let _ = reports[source].send(Report::Gap(GapReason::UnreadBlock)).await;
        }
    }
}

async fn read_one(
    chain: &Arc<Chain>,
    Wanted { source, number, block: hash, known }: Wanted,
) -> Result<(), Unread> {
    let mut reason = Unread::Failed;
    let mut known = known.map(Nonces::Known);
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        match remembered(chain, number, &hash) {
            Remembered::Yes => {}
            // Its nonces are no longer needed.
            Remembered::Undone => return Ok(()),
            Remembered::TooOld => return Err(Unread::QueueFull),
        }
        let read = match known.take() {
            Some(known) => Ok(known),
            None => read_block(chain, source, attempt, hash).await,
        };
        let nonces = match read {
            Ok(nonces) => nonces,
            Err(unread) => {
                reason = unread;
                continue;
            }
        };
        // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
        let shared = Arc::clone(chain);
        let job = move || nonces.read(&shared, hash).map(|updates| apply(&shared, hash, updates));
        match chain.tasks.spawn_blocking(job).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(unread)) => reason = unread,
            // A retry would panic again.
            Err(_) => return Err(Unread::Failed),
        }
    }
    Err(reason)
}

enum Remembered {
    Yes,
    /// A reorg has removed it.
    Undone,
    /// More blocks than are remembered came after it while it waited for its turn.
    TooOld,
}

fn remembered(chain: &Chain, number: u64, hash: &B256) -> Remembered {
    let mined = lock(&chain.hashes.blocks);
    let oldest = mined.iter().next().map_or(0, |block| block.head.number);
    match mined.block(hash) {
        Some(_) => Remembered::Yes,
        None if number < oldest => Remembered::TooOld,
        None => Remembered::Undone,
    }
}

async fn read_block(
    chain: &Arc<Chain>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Result<Nonces, Unread> {
    if let Some(mined) = in_process_block(chain, source, attempt, hash).await {
        return mined.map(|mined| Nonces::Known(mined.nonces));
    }
    // Waits until a node is connected, and prefers the one whose turn it is.
    let turn = turn(chain, source, attempt);
    let up = chain.connections.connected(&[turn], turn).await;
    let limit = chain.settings.limits.call_timeout;
    match up.first().map(|source| (source, &chain.settings.config.sources[*source])) {
        Some((_, Endpoint::Ipc(path))) => {
            full_block::connect(path, limit).await.map(Nonces::OnSocket)
        }
        // A WebSocket of its own would cost a handshake each time, so the connection for calls is
        // used.
        Some((source, Endpoint::Ws(_))) => {
            let calls = chain.connections.calls(*source).ok_or(Unread::Failed)?;
            let response = calls.call("eth_getBlockByHash", (hash, true), limit).await;
            response.map(Nonces::InBlock).map_err(|_| Unread::Failed)
        }
        Some((_, Endpoint::InProcess(_))) | None => Err(Unread::Failed),
    }
}

fn apply(chain: &Chain, hash: B256, updates: Vec<NonceUpdate>) {
    {
        let mut mined = lock(&chain.hashes.blocks);
        for update in &updates {
            // `None` when a reorg has removed the block meanwhile, which the sink will find too.
            let _ = mined.raise(&hash, *update);
        }
    }
    chain.sink.push_nonces(BlockNonces::new(hash, updates));
}
