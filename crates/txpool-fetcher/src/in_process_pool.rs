//! The trait for a transaction pool in the same process, which can be a source like a node, and its
//! types. `in_process` calls it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
};

use alloy_consensus::transaction::Recovered;
use alloy_primitives::B256;
use chain_view::{Block, NonceUpdate, PooledTransaction};
use futures::{Stream, stream};
use tokio::sync::mpsc;

use crate::{error::ConnectError, tasks::Tasks};

/// The announcements of a pool, in order.
pub type AnnouncementStream = Pin<Box<dyn Stream<Item = PoolAnnouncement> + Send>>;

/// The blocks of the canonical chain, in order.
pub type BlockStream = Pin<Box<dyn Stream<Item = MinedBlock> + Send>>;

/// A transaction pool in the same process, as a source of a [`Fetcher`](crate::Fetcher):
/// [`FetcherConfig::in_process`](crate::FetcherConfig::in_process).
///
/// The streams may be polled on the thread that also reads the sockets of other sources, so a poll
/// must not block. All functions are called on threads that may block, and concurrently. No
/// time-out applies to a call, because it cannot be abandoned; a shutdown waits for it until its
/// deadline.
///
/// A panic of a function or a stream affects only that call: the hash counts as failed
/// ([`Counts::failed`](crate::Counts::failed)), and a comparison or a subscription is repeated.
pub trait InProcessPool: Send + Sync + 'static {
    /// Returns the chain id of the pool's chain (EIP-155).
    fn chain_id(&self) -> u64;

    /// Subscribes to the hashes of transactions that become pending. Called at the start and after
    /// each end of the subscription. The subscription must be active when this returns, because the
    /// pool is listed next: a transaction that is neither announced nor listed is found only by the
    /// next audit.
    ///
    /// The end of the stream counts as a lost connection: after a backoff both streams are
    /// requested again, and the pool is compared. Hashes that the stream drops without a
    /// [`Lagged`](PoolAnnouncement::Lagged) item are fetched by the next audit;
    /// [`announcements_of`] adds these items to a channel.
    fn announcements(&self) -> AnnouncementStream;

    /// Subscribes to the new blocks of the canonical chain. It sends only new blocks: a reorg shows
    /// in the parent hash of the first block of the new branch. Missed blocks are requested with
    /// [`block`](Self::block). The end of the stream counts as a lost connection too.
    fn blocks(&self) -> BlockStream;

    /// Returns the latest block of the canonical chain. Called after each subscription, and when
    /// transactions seem to have vanished. If it is `None`, no transaction counts as vanished.
    fn latest_block(&self) -> Option<MinedBlock>;

    /// Returns a recent block of the canonical chain: one that [`blocks`](Self::blocks) did not
    /// deliver or, with several sources, one of the minute before the first head. If a block of the
    /// first kind is `None`, it counts as unread (`mempool_fetcher_unread_blocks_total`), and a
    /// comparison follows.
    fn block(&self, hash: &B256) -> Option<MinedBlock>;

    /// Returns the hashes of all transactions in the pool. Called at the start, after each gap and
    /// by each audit. Unknown hashes are fetched. Delivered transactions that are neither listed
    /// nor mined count as vanished.
    fn pooled(&self) -> PooledHashes;

    /// Returns a transaction with its sender, a blob transaction with its sidecar; `None` if it is
    /// no longer in the pool. Neither the sender nor the sidecar is verified, unless
    /// [`verify_blob_proofs`](crate::FetcherConfig::verify_blob_proofs) is set.
    ///
    /// It may be slow: it is called on
    /// [`request_connections`](crate::FetcherConfig::request_connections) threads, and on the
    /// thread that reads the announcements, for one hash each.
    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>>;
}

/// One item of an [`AnnouncementStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolAnnouncement {
    /// A transaction has become pending.
    Pending(B256),
    /// The stream has lost this many announcements; 0 if the number is unknown. This opens a gap,
    /// and the pool is compared at once.
    Lagged(u64),
}

/// Converts a bounded channel into an [`AnnouncementStream`], for a pool that sends its hashes into
/// such a channel and silently drops those for which it has no room, as reth does.
///
/// A channel that was full when it was read may have lost hashes. As soon as it has room again, the
/// stream yields [`Lagged`](PoolAnnouncement::Lagged), once for each time that the channel was
/// full.
pub fn announcements_of(mut hashes: mpsc::Receiver<B256>) -> AnnouncementStream {
    let mut was_full = false;
    Box::pin(stream::poll_fn(move |context| {
        // One more hash may have come since the previous one was taken.
        let is_full = hashes.len() + 1 >= hashes.max_capacity();
        if was_full && (!is_full || hashes.is_empty()) {
            was_full = false;
            return Poll::Ready(Some(PoolAnnouncement::Lagged(0)));
        }
        let hash = ready!(hashes.poll_recv(context));
        was_full |= hash.is_some() && hashes.len() + 1 >= hashes.max_capacity();
        Poll::Ready(hash.map(PoolAnnouncement::Pending))
    }))
}

/// A block with the nonces that it raised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinedBlock {
    /// The head of the block, and the hashes of its transactions.
    pub block: Block,
    /// For each sender of a transaction in the block, the nonce of its last transaction plus one.
    /// It may also have the authorities whose delegations were applied (EIP-7702).
    pub nonces: Vec<NonceUpdate>,
}

/// The hashes of the transactions in a pool at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PooledHashes {
    /// The hashes of transactions that are valid now.
    pub pending: Vec<B256>,
    /// The hashes of transactions that wait for a lower nonce or a lower base fee.
    pub queued: Vec<B256>,
}

/// An [`InProcessPool`] with a name. Two are equal if their names are equal.
#[derive(Clone)]
pub struct InProcess {
    name: Arc<str>,
    pool: Arc<dyn InProcessPool>,
}

impl InProcess {
    /// Names a pool. `name` identifies it in logs, in errors, and in the label `source` of metrics.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, pool: Arc<dyn InProcessPool>) -> Self {
        Self { name: name.into(), pool }
    }

    /// Calls the pool on a thread that may block.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        tasks: &Tasks,
        function: &'static str,
        call: impl FnOnce(&dyn InProcessPool) -> T + Send + 'static,
    ) -> Result<T, ConnectError> {
        let pool = Arc::clone(&self.pool);
        // Apart from a panic, only the shutdown of the runtime is an error, and then nobody needs
        // the result.
        tasks.spawn_blocking(move || call(&*pool)).await.map_err(|_| self.panicked(function))
    }

    /// Calls the pool on the current thread.
    pub(crate) fn catch<T>(
        &self,
        function: &'static str,
        call: impl FnOnce(&dyn InProcessPool) -> T,
    ) -> Result<T, ConnectError> {
        // Unwind safe for the fetcher: state that the call leaves half changed belongs to the pool.
        catch_unwind(AssertUnwindSafe(|| call(&*self.pool))).map_err(|_| self.panicked(function))
    }

    fn panicked(&self, function: &'static str) -> ConnectError {
        tracing::error!(pool = %self, function, "a function of the pool panicked");
        ConnectError::PoolPanicked { endpoint: self.to_string(), function }
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InProcess").field(&self.name).finish()
    }
}

impl fmt::Display for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in-process:{}", self.name)
    }
}

impl PartialEq for InProcess {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for InProcess {}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    #[test]
    fn a_full_channel_is_reported_as_a_lag_once_each_time() {
        let (sender, receiver) = mpsc::channel(4);
        let mut stream = announcements_of(receiver);
        let mut send = |count: usize| {
            (0..count).for_each(|_| _ = sender.try_send(B256::ZERO));
            let taken = std::iter::from_fn(|| stream.next().now_or_never().flatten());
            taken.map(|taken| taken == PoolAnnouncement::Lagged(0)).collect::<Vec<_>>()
        };
        assert_eq!(send(2), [false; 2]);
        for _ in 0..2 {
            let lags = send(9);
            assert_eq!((lags.len(), lags.iter().filter(|lag| **lag).count()), (5, 1), "{lags:?}");
        }
        assert_eq!(send(2), [false; 2]);
    }
}
