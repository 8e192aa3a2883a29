//! Full blocks, read for the nonces that they raised.
//!
//! Slow on every node (170 to 660 ms for a large block), so never in the way of the head itself.

use std::sync::Arc;

use alloy_primitives::B256;
use chain_view::{BlockNonces, NonceUpdate};
use tokio::sync::mpsc;

use super::{BLOCK_TRIES, MAX_ANCESTORS, Unread, request, wait, wire};
use crate::{fetch::FetchContext, machine::Event, sink::TransactionSink, sync::lock};

/// Full blocks that may wait: those that a gap brings at once, and as many more. A dev chain that
/// mines for every transaction can be faster than we read: then nonces are not read, which is
/// counted and followed by a comparison; hashes always are.
pub(super) const BLOCKS_WAITING: usize = 2 * MAX_ANCESTORS + 2;

/// Reads one block after another. Ends with the applier, or when the fetcher stops.
pub(super) async fn read<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    mut blocks: mpsc::Receiver<(usize, B256)>,
    events: Arc<[mpsc::Sender<Event>]>,
) {
    while let Some((source, hash)) = blocks.recv().await {
        if let Err(unread) = read_one(&context, source, hash).await {
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
) -> Result<(), Unread> {
    let mut reason = Unread::Failed;
    for attempt in 0..BLOCK_TRIES {
        wait(attempt).await;
        if lock(&context.mined).block(&hash).is_none() {
            // A reorg has undone it: nobody needs its nonces.
            return Ok(());
        }
        let Ok(answer) = request(context, source, attempt, hash, true).await else {
            reason = Unread::Failed;
            continue;
        };
        // Parsing 2 MB takes some milliseconds: not on the thread of the sockets.
        let shared = Arc::clone(context);
        let job = move || apply(&*shared, hash, wire::read_nonces(answer.get()));
        match context.tasks.spawn_blocking(job).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(unread)) => reason = unread,
            // It is not called with the same once more.
            Err(_) => {
                tracing::error!("a sink has panicked");
                return Err(Unread::Failed);
            }
        }
    }
    Err(reason)
}

fn apply<S: TransactionSink>(
    context: &FetchContext<S>,
    hash: B256,
    read: serde_json::Result<Option<Vec<NonceUpdate>>>,
) -> Result<(), Unread> {
    let updates = read.map_err(|_| Unread::Malformed)?.ok_or(Unread::Missing)?;
    {
        let mut mined = lock(&context.mined);
        for update in &updates {
            // None when a reorg has undone it meanwhile, and the sink will say the same.
            let _ = mined.raise(&hash, *update);
        }
    }
    context.sink.nonces(&BlockNonces::new(hash, updates));
    Ok(())
}
