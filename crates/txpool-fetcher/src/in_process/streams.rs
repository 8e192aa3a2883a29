//! The subscription to a pool in this process: its streams, read as a node's announcements are.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use alloy_primitives::B256;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{
    broadcast::{
        self,
        error::{RecvError, TryRecvError},
    },
    mpsc,
};

use crate::{
    announce::{Backlog, HashBuffer, Progress, read_hashes, report},
    chain::AnnouncedHead,
    connection::{ChainId, End, NodeInfo, ReadTimes},
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

impl HashBuffer for broadcast::Receiver<B256> {
    async fn recv(&mut self) -> Result<Option<B256>, RecvError> {
        Self::recv(self).await.map(Some)
    }

    fn try_recv(&mut self) -> Result<Option<B256>, TryRecvError> {
        Self::try_recv(self).map(Some)
    }
}

/// A subscription that is up and not read yet.
pub(crate) struct PoolSubscribed {
    pub(crate) subscription: Arc<PoolSubscription>,
    announcements: AnnouncementStream,
    blocks: BlockStream,
    progress: Arc<Progress>,
}

/// Subscribes to both streams.
pub(crate) async fn subscribe(
    fetch: &Fetch,
    chain: &ChainId,
    index: usize,
    pool: &InProcess,
    backlog: &Backlog,
) -> Result<PoolSubscribed, ConnectError> {
    let subscribed = pool.call(&fetch.tasks, "announcements", |pool| {
        (pool.chain_id(), pool.announcements(), pool.blocks())
    });
    let (chain_id, announcements, blocks) = subscribed.await.map_err(|panicked| {
        ConnectError::PoolPanicked { endpoint: pool.to_string(), function: panicked.function }
    })?;
    chain.check(index, &fetch.settings.config.sources[index], chain_id).await?;
    let node = NodeInfo { client: pool.to_string(), chain_id };
    let subscription = Arc::new(PoolSubscription { node, end: End::new() });
    let read_times = ReadTimes::new(fetch.settings.limits.announcement_buffer);
    let progress = Progress::new(Arc::new(read_times));
    backlog.add_reader(&progress);
    Ok(PoolSubscribed { subscription, announcements, blocks, progress })
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
        backlog: &Backlog,
        reports: &mpsc::Sender<Report>,
        heads: &mpsc::Sender<AnnouncedHead>,
    ) {
        let Self { subscription, announcements, blocks, progress } = self;
        let read_times = &progress.read_times;
        let (buffer, hashes) = broadcast::channel(fetch.settings.limits.announcement_buffer);
        let ends = EndsOnDrop(Arc::clone(&subscription));
        let read_streams = async {
            let _ends = ends;
            let reason = tokio::select! {
                // The order is irrelevant: the first branch that ends, ends all.
                reason = subscription.end.wait() => reason,
                reason = until_end("announcements", async {
                    read_announcements(fetch, announcements, &buffer, read_times, reports).await;
                }) => reason,
                reason = until_end("blocks", read_blocks(blocks, reports, heads)) => reason,
            };
            subscription.end.set(reason);
            // The reader processes the rest and ends.
            drop(buffer);
        };
        let read_announcements = async {
            match backlog.wait_for_turn(&progress, subscription.end.wait()).await {
                Ok(_turn) => {
                    read_hashes(fetch, index, hashes, &progress, None, reports).await;
                    fetch.deferral.observe_backlog(index, backlog.len());
                }
                Err(unread) => fetch.metrics.lagged.add(unread),
            }
        };
        tokio::join!(read_streams, read_announcements);
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
    buffer: &broadcast::Sender<B256>,
    read_times: &ReadTimes,
    reports: &mpsc::Sender<Report>,
) {
    let mut in_a_row = 0;
    while let Some(announcement) = announcements.next().await {
        match announcement {
            PoolAnnouncement::Pending(hash) => {
                read_times.push(Instant::now(), size_of::<B256>());
                // The reader lives as long as the buffer has a sender, unless the fetcher stops.
                let _ = buffer.send(hash);
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
