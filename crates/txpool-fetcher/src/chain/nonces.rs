//! Full blocks, read for the nonces that they raised.
//!
//! A full block is slow on every node (170 to 660 ms for a large one), so neither the head itself
//! nor anything else waits for it: see [`full_block`](super::full_block).

use std::{os::unix::net::UnixStream, sync::Arc};

use alloy_primitives::B256;
use chain_view::{BlockNonces, NonceUpdate};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{BLOCK_TRIES, MAX_ANCESTORS, Unread, full_block, in_process_block, turn, wait, wire};
use crate::{
    config::Endpoint, fetch::FetchContext, machine::Event, sink::TransactionSink, sync::lock,
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
    fn read<S>(self, context: &FetchContext<S>, hash: B256) -> Result<Vec<NonceUpdate>, Unread> {
        match self {
            Self::Known(updates) => Ok(updates),
            Self::OnSocket(stream) => {
                let config = &context.config;
                let (limit, max_bytes) = (config.call_timeout, config.max_frame_bytes);
                full_block::read_nonces(stream, hash, limit, max_bytes, &context.stop)
            }
            Self::InBlock(json) => wire::read_nonces(json.get(), hash),
        }
    }
}

/// Reads one block after another. Ends with the applier, or when the fetcher stops.
pub(super) async fn read<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    mut blocks: mpsc::Receiver<Wanted>,
    events: Arc<[mpsc::Sender<Event>]>,
) {
    while let Some(wanted) = blocks.recv().await {
        let (source, hash) = (wanted.source, wanted.block);
        if let Err(unread) = read_one(&context, wanted).await {
            unread.count("nonces", hash);
            // If the source has ended, the event has no receiver and no use.
            let _ = events[source].send(Event::UnreadBlock).await;
        }
    }
}

async fn read_one<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    Wanted { source, number, block: hash, known }: Wanted,
) -> Result<(), Unread> {
    let mut reason = Unread::Failed;
    let mut known = known.map(Nonces::Known);
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        match remembered(context, number, &hash) {
            Remembered::Yes => {}
            // Its nonces are no longer needed.
            Remembered::Undone => return Ok(()),
            Remembered::TooOld => return Err(Unread::QueueFull),
        }
        let read = match known.take() {
            Some(known) => Ok(known),
            None => read_block(context, source, attempt, hash).await,
        };
        let nonces = match read {
            Ok(nonces) => nonces,
            Err(unread) => {
                reason = unread;
                continue;
            }
        };
        // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
        let shared = Arc::clone(context);
        let job = move || nonces.read(&shared, hash).map(|updates| apply(&*shared, hash, updates));
        match context.tasks.spawn_blocking(job).await {
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

fn remembered<S>(context: &FetchContext<S>, number: u64, hash: &B256) -> Remembered {
    let mined = lock(&context.mined);
    let oldest = mined.iter().next().map_or(0, |block| block.head.number);
    match mined.block(hash) {
        Some(_) => Remembered::Yes,
        None if number < oldest => Remembered::TooOld,
        None => Remembered::Undone,
    }
}

async fn read_block<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    attempt: u32,
    hash: B256,
) -> Result<Nonces, Unread> {
    if let Some(mined) = in_process_block(context, source, attempt, hash).await {
        return mined.map(|mined| Nonces::Known(mined.nonces));
    }
    // Waits until a node is connected, and prefers the one whose turn it is.
    let turn = turn(context, source, attempt);
    let up = context.requests.connected(&[turn], turn).await;
    let limit = context.config.call_timeout;
    match up.first().map(|source| (source, &context.config.sources[*source])) {
        Some((_, Endpoint::Ipc(path))) => {
            full_block::connect(path, limit).await.map(Nonces::OnSocket)
        }
        // A WebSocket of its own would cost a handshake each time, so the connection for calls is
        // used.
        Some((source, Endpoint::Ws(_))) => {
            let calls = context.requests.calls(*source).ok_or(Unread::Failed)?;
            let answer = calls.call("eth_getBlockByHash", (hash, true), limit).await;
            answer.map(Nonces::InBlock).map_err(|_| Unread::Failed)
        }
        Some((_, Endpoint::InProcess(_))) | None => Err(Unread::Failed),
    }
}

fn apply<S: TransactionSink>(context: &FetchContext<S>, hash: B256, updates: Vec<NonceUpdate>) {
    {
        let mut mined = lock(&context.mined);
        for update in &updates {
            // `None` when a reorg has removed the block meanwhile, which the sink will find too.
            let _ = mined.raise(&hash, *update);
        }
    }
    context.sink_queue.push_nonces(BlockNonces::new(hash, updates));
}
