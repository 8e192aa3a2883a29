//! The subscription to a pool in this process: its streams, read as a node's announcements are.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use crate::{
    announce::{Backlog, HashReader, report},
    chain::AnnouncedHead,
    connection::{ChainId, End, NodeInfo},
    error::{ConnectError, LossReason},
    fetch::Fetch,
    gap::{GapReason, Report},
    in_process_pool::{AnnouncementStream, BlockStream, InProcess, PoolAnnouncement},
};

/// Items of a stream that are read before the sockets of other sources are polled.
const READ_TOGETHER: usize = 64;

/// A subscription to both streams of a pool.
#[derive(Debug)]
pub(crate) struct PoolSubscription {
    pub(crate) node: NodeInfo,
    pub(crate) end: End,
}

/// Ends the subscription on every path, also when a stream panics while it is dropped.
struct EndsOnDrop(Arc<PoolSubscription>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        self.0.end.set(LossReason::Closed);
    }
}

/// A subscription that is up and not read yet.
pub(crate) struct PoolSubscribed {
    pub(crate) subscription: Arc<PoolSubscription>,
    announcements: AnnouncementStream,
    blocks: BlockStream,
}

/// Subscribes to both streams.
pub(crate) async fn subscribe(
    fetch: &Fetch,
    chain: &ChainId,
    index: usize,
    pool: &InProcess,
) -> Result<PoolSubscribed, ConnectError> {
    let subscribed = pool.call(&fetch.tasks, "announcements", |pool| {
        (pool.chain_id(), pool.announcements(), pool.blocks())
    });
    let (chain_id, announcements, blocks) = subscribed.await?;
    chain.check(index, &fetch.settings.config.sources[index], chain_id).await?;
    let node = NodeInfo { client: pool.to_string(), chain_id };
    let subscription = Arc::new(PoolSubscription { node, end: End::new() });
    Ok(PoolSubscribed { subscription, announcements, blocks })
}

impl PoolSubscribed {
    /// Reads until the subscription ends.
    ///
    /// The pool's own stream may be short (reth's holds 2,048 hashes), and loses what it drops without
    /// a count. So it is drained at once, into a buffer of ours whose overrun is counted.
    pub(crate) async fn read(
        self,
        fetch: &Arc<Fetch>,
        index: usize,
        backlog: &Arc<Backlog>,
        reports: &mpsc::Sender<Report>,
        heads: &mpsc::Sender<AnnouncedHead>,
    ) {
        let Self { subscription, announcements, blocks } = self;
        let _ends = EndsOnDrop(Arc::clone(&subscription));
        let hashes = HashReader::new(fetch, index, backlog, None);
        let reason = tokio::select! {
            // The order is irrelevant: the first branch that ends, ends all.
            reason = subscription.end.wait() => reason,
            reason = until_end("announcements", async {
                read_announcements(fetch, announcements, hashes, reports).await;
            }) => reason,
            reason = until_end("blocks", read_blocks(blocks, reports, heads)) => reason,
        };
        subscription.end.set(reason);
    }
}

/// Why a stream that was read to its end has ended.
async fn until_end(stream: &'static str, read: impl Future<Output = ()>) -> LossReason {
    // The stream is not polled again after a panic.
    match AssertUnwindSafe(read).catch_unwind().await {
        Ok(()) => LossReason::StreamEnded(stream),
        Err(_) => LossReason::StreamPanicked(stream),
    }
}

async fn read_announcements(
    fetch: &Fetch,
    mut announcements: AnnouncementStream,
    mut hashes: HashReader,
    reports: &mpsc::Sender<Report>,
) {
    let mut in_a_row = 0;
    while let Some(announcement) = announcements.next().await {
        match announcement {
            PoolAnnouncement::Pending(hash) => {
                hashes.take(hash, Instant::now());
                hashes.flush();
            }
            PoolAnnouncement::Lagged(count) => {
                fetch.metrics.lagged.add(count);
                tracing::warn!(count, "the pool's stream of announcements overran");
                report(reports, Report::Gap(GapReason::Lagged)).await;
            }
        }
        in_a_row += 1;
        if in_a_row == READ_TOGETHER {
            in_a_row = 0;
            tokio::task::yield_now().await;
        }
    }
}

async fn read_blocks(
    mut blocks: BlockStream,
    reports: &mpsc::Sender<Report>,
    heads: &mpsc::Sender<AnnouncedHead>,
) {
    while let Some(mined) = blocks.next().await {
        report(reports, Report::Head(mined.block.head)).await;
        if heads.send(mined.into()).await.is_err() {
            // The fetcher is stopping.
            return;
        }
    }
}
