//! Full blocks, read for the nonces that they raised.
//!
//! Slow on every node (170 to 660 ms for a large block), so never in the way of the head itself.

use std::sync::Arc;

use alloy_primitives::B256;
use chain_view::{BlockNonces, NonceUpdate};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{BLOCK_TRIES, MAX_ANCESTORS, Unread, in_process_block, request, wait, wire};
use crate::{fetch::FetchContext, machine::Event, sink::TransactionSink, sync::lock};

/// Full blocks that may wait: those that a gap brings at once, and as many more. A dev chain that
/// mines for every transaction can be faster than we read: then nonces are not read, which is
/// counted and followed by a comparison; hashes always are.
pub(super) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// A block whose nonces the sink is to be told.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Who told of the block.
    pub(super) source: usize,
    pub(super) block: B256,
    /// The nonces, when they came with the block. They take their turn all the same, so that the
    /// sink is told in the order of the heads.
    pub(super) known: Option<Vec<NonceUpdate>>,
}

/// The nonces of a block, as they came.
enum Nonces {
    Known(Vec<NonceUpdate>),
    InBlock(Box<RawValue>),
}

impl Nonces {
    fn parse(self) -> Result<Vec<NonceUpdate>, Unread> {
        match self {
            Self::Known(updates) => Ok(updates),
            Self::InBlock(json) => {
                let read = wire::read_nonces(json.get()).map_err(|_| Unread::Malformed)?;
                read.ok_or(Unread::Missing)
            }
        }
    }
}

/// Reads one block after another. Ends with the applier, or when the fetcher stops.
pub(super) async fn read<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    mut blocks: mpsc::Receiver<Wanted>,
    events: Arc<[mpsc::Sender<Event>]>,
) {
    while let Some(Wanted { source, block: hash, known }) = blocks.recv().await {
        if let Err(unread) = read_one(&context, source, hash, known).await {
            unread.count("nonces", hash);
            // The source may have ended; then nobody needs to know.
            let _ = events[source].send(Event::UnreadBlock).await;
        }
    }
}

async fn read_one<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    source: usize,
    hash: B256,
    known: Option<Vec<NonceUpdate>>,
) -> Result<(), Unread> {
    let mut reason = Unread::Failed;
    let mut known = known.map(Nonces::Known);
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if lock(&context.mined).block(&hash).is_none() {
            // A reorg has undone it: nobody needs its nonces.
            return Ok(());
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
        let job = move || nonces.parse().map(|updates| apply(&*shared, hash, updates));
        match context.tasks.spawn_blocking(job).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(unread)) => reason = unread,
            // The same would panic once more.
            Err(_) => return Err(Unread::Failed),
        }
    }
    Err(reason)
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
    let answer = request(context, source, attempt, hash, true).await;
    answer.map(Nonces::InBlock).map_err(|_| Unread::Failed)
}

fn apply<S: TransactionSink>(context: &FetchContext<S>, hash: B256, updates: Vec<NonceUpdate>) {
    {
        let mut mined = lock(&context.mined);
        for update in &updates {
            // None when a reorg has undone it meanwhile, and the sink will say the same.
            let _ = mined.raise(&hash, *update);
        }
    }
    context.sink_queue.push_nonces(BlockNonces::new(hash, updates));
}
