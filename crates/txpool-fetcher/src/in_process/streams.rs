//! The subscription to a pool in this process: its streams, read as a node's announcements are.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use alloy_primitives::B256;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{
    broadcast::{
        self,
        error::{RecvError, TryRecvError},
    },
    mpsc, watch,
};

use crate::{
    announce::subscription::{HashBuffer, check_chain, read_hashes, wait_for_turn},
    chain::Announced,
    connection::{NodeInfo, ReadTimes},
    error::{ConnectError, LossReason},
    fetch::FetchContext,
    in_process_pool::{AnnouncementStream, BlockStream, InProcess, PoolAnnouncement},
    sink::TransactionSink,
    source::{
        Message,
        machine::Event,
        send,
        status::{Progress, SourceShared},
    },
};

/// Items of a stream that are read before the sockets of other sources are polled.
const READ_TOGETHER: usize = 64;

/// A subscription to both streams of a pool.
#[derive(Debug)]
pub(crate) struct PoolSubscription {
    pub(crate) node: NodeInfo,
    end: watch::Sender<Option<LossReason>>,
}

impl PoolSubscription {
    /// Ends the subscription, unless it has ended.
    pub(crate) fn end(&self, reason: LossReason) {
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert(reason);
            is_first
        });
    }

    /// Waits until the subscription has ended, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn ended(&self) -> LossReason {
        let mut end = self.end.subscribe();
        let reason = end.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or(LossReason::Closed)
    }
}

/// Ends the subscription on every path, also when a stream panics while it is dropped.
struct EndsOnDrop(Arc<PoolSubscription>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        self.0.end(LossReason::Closed);
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

/// Subscribes, reports that the subscription is up, and reads until it ends.
///
/// The pool's own stream may be short (reth's holds 2,048 hashes), and loses what it drops without
/// a count. So it is drained at once, into a buffer of ours whose overrun is counted.
pub(crate) async fn run_in_process<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    pool: &InProcess,
    shared: &Arc<SourceShared>,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) -> Result<(), ConnectError> {
    let subscribed = pool.call(&context.tasks, "announcements", |pool| {
        (pool.chain_id(), pool.announcements(), pool.blocks())
    });
    let (chain_id, announcements, blocks) = subscribed.await.map_err(|panicked| {
        ConnectError::PoolPanicked { endpoint: pool.to_string(), function: panicked.function }
    })?;
    check_chain(context, &context.config.sources[index], chain_id)?;
    let slots = context.config.announcement_buffer;
    let read_times = Arc::new(ReadTimes::new(slots));
    let progress = Arc::new(Progress::new(Arc::clone(&read_times)));
    shared.add_reader(&progress);
    let subscription = Arc::new(PoolSubscription {
        node: NodeInfo { client: pool.to_string(), chain_id },
        end: watch::Sender::new(None),
    });
    if messages.send(Message::PoolSubscribed(Arc::clone(&subscription))).await.is_err() {
        return Ok(());
    }
    let (buffer, hashes) = broadcast::channel(slots);
    let ends = EndsOnDrop(Arc::clone(&subscription));
    let read_streams = async {
        let _ends = ends;
        let reason = tokio::select! {
            // The order is irrelevant: the first branch that ends, ends all.
            reason = subscription.ended() => reason,
            reason = until_end("announcements", async {
                read_announcements(context, announcements, &buffer, &read_times, messages).await;
            }) => reason,
            reason = until_end("blocks", read_blocks(blocks, messages, heads)) => reason,
        };
        subscription.end(reason);
        // The reader processes the rest and ends.
        drop(buffer);
    };
    let read_announcements = async {
        let turn = wait_for_turn(context, shared, &progress, subscription.ended()).await;
        if turn.is_some() {
            read_hashes(context, index, hashes, &progress, messages).await;
            context.deferral.observe_backlog(index, shared.backlog());
        }
    };
    tokio::join!(read_streams, read_announcements);
    Ok(())
}

/// Why a stream that was read to its end has ended.
async fn until_end(stream: &'static str, read: impl Future<Output = ()>) -> LossReason {
    // The stream is not polled again after a panic.
    match AssertUnwindSafe(read).catch_unwind().await {
        Ok(()) => LossReason::StreamEnded(stream),
        Err(_) => LossReason::StreamPanicked(stream),
    }
}

async fn read_announcements<S>(
    context: &FetchContext<S>,
    mut announcements: AnnouncementStream,
    buffer: &broadcast::Sender<B256>,
    read_times: &ReadTimes,
    messages: &mpsc::Sender<Message>,
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
                context.tally.lagged(count);
                tracing::warn!(count, "the pool's stream of announcements overran");
                send(messages, Message::Event(Event::Lagged)).await;
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
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) {
    while let Some(mined) = blocks.next().await {
        send(messages, Message::Event(Event::Head(mined.block.head.number))).await;
        if heads.send(mined.into()).await.is_err() {
            // The fetcher is stopping.
            return;
        }
    }
}
