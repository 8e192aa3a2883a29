//! Where fetched transactions go.

use std::{
    future::Future,
    time::{Instant, SystemTime},
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{B256, Bytes};
use chain_view::{Block, BlockNonces, PooledTransaction};
use tokio::sync::mpsc;

use crate::outcome::Entry;

/// A transaction on its way to the sink.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchedTransaction {
    /// The transaction with its sender, a blob transaction with its sidecar.
    pub tx: Recovered<PooledTransaction>,
    pub(crate) raw: Option<Bytes>,
    /// How its hash entered.
    pub entry: Entry,
    /// The source that announced it first, as an index into the configured sources.
    pub source: usize,
    /// When its announcement was read from the socket (for a backfilled one: when it was listed).
    pub announced_at: Instant,
    /// The same moment on the wall clock.
    pub first_seen: SystemTime,
}

impl FetchedTransaction {
    /// A transaction announced now by the first source, for tests of a sink. `raw` is what a node
    /// sent; `None` for a transaction of a pool in the same process.
    #[must_use]
    pub fn new(tx: Recovered<PooledTransaction>, raw: impl Into<Option<Bytes>>) -> Self {
        Self {
            tx,
            raw: raw.into(),
            entry: Entry::Announced,
            source: 0,
            announced_at: Instant::now(),
            first_seen: SystemTime::now(),
        }
    }

    /// Sets [`Self::entry`].
    #[must_use]
    pub fn with_entry(mut self, entry: Entry) -> Self {
        self.entry = entry;
        self
    }

    /// Sets [`Self::source`].
    #[must_use]
    pub fn with_source(mut self, source: usize) -> Self {
        self.source = source;
        self
    }

    /// Sets [`Self::announced_at`].
    #[must_use]
    pub fn with_announced_at(mut self, announced_at: Instant) -> Self {
        self.announced_at = announced_at;
        self
    }

    /// Sets [`Self::first_seen`].
    #[must_use]
    pub fn with_first_seen(mut self, first_seen: SystemTime) -> Self {
        self.first_seen = first_seen;
        self
    }

    /// The transaction's encoded form: EIP-2718, blob transactions in network form.
    ///
    /// Of a transaction that a node sent these are its bytes, shared and not copied. One of a pool in
    /// the same process never had any: it is encoded by each call, which for six blobs copies 800 kB.
    #[must_use]
    pub fn raw(&self) -> Bytes {
        match &self.raw {
            Some(raw) => raw.clone(),
            None => self.tx.inner().encoded_2718().into(),
        }
    }

    /// The transaction's hash.
    #[must_use]
    pub fn hash(&self) -> B256 {
        *self.tx.inner().hash()
    }
}

/// What the sink did with a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// It has it now.
    Pooled,
    /// It had it before.
    Known,
    /// It is in a block already, or a transaction with its nonce is.
    Mined,
    /// It does not want it, now or later; the reason is the label of a closed set of the sink.
    Refused(&'static str),
    /// It has no room for it now; the reason as above. Comparisons offer it again while the node has
    /// it: a few of what was postponed, and more as long as the sink takes most of them.
    Postponed(&'static str),
    /// Nobody reads any more: the fetcher ends with [`EndReason::SinkClosed`](crate::EndReason).
    Closed,
}

/// What is known of a hash that the node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// The sink cannot be asked: what was delivered counts as held.
    Unknown,
    /// It is here.
    Held,
    /// It was here and was removed, and is not wanted now: mined, stale, or expired a short while ago.
    Removed,
    /// It was here and was removed for want of room or by age: comparisons offer it again as they do
    /// what was [postponed](Delivery::Postponed), a few at first, and more while the sink takes them.
    MayReturn,
    /// It is not here and never was.
    Missing,
}

/// What happens to the chain, and to the node's pool, apart from new transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainEvent {
    /// The chain has a new head, and its block contains these transactions. A reorg shows in
    /// [`Head::parent_hash`](chain_view::Head::parent_hash). The first event comes right after the
    /// first connection, with the head of that moment.
    ///
    /// If the block could not be read, it comes without hashes: that is counted
    /// (`mempool_fetcher_unread_blocks_total`), and a comparison with the node's pool follows.
    Head(Block),
    /// The nonces that a block raised, a while after its [`Head`](Self::Head): they include those of
    /// transactions that were never public. A reorg that undoes the block undoes them.
    Nonces(BlockNonces),
    /// The node does not have this pending transaction any more, and no block took it. A builder
    /// may still want it, so a sink marks rather than removes.
    Vanished(B256),
}

impl ChainEvent {
    /// The value of the label in metrics: one of a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Head(_) => "head",
            Self::Nonces(_) => "nonces",
            Self::Vanished(_) => "vanished",
        }
    }
}

/// Takes what the fetcher brings. Implemented for `order_pool::OrderPool` (feature `order-pool`)
/// and for [`tokio::sync::mpsc::Sender`], of [`FetchedTransaction`] or of [`SinkEvent`].
///
/// # Threads and order
/// [`chain_event`](Self::chain_event) and [`holding`](Self::holding) are called on the thread
/// `mempool-sink`, one at a time: heads in the order of the chain, the nonces of a block after its
/// head. The nonces of two blocks come in the order of their heads, unless reading one was tried
/// again. [`deliver`](Self::deliver) is called on the threads that read transactions, several at once,
/// and at the same time as the others. So a transaction may be delivered before or after a head
/// whose block contains it, and a sink that must not hold such a transaction compares with the
/// recent blocks, as the order pool does. [`ChainEvent::Vanished`] comes after the delivery of its
/// transaction has returned.
///
/// # A sink that blocks or panics
/// It holds up nothing but itself: announcements, heads and requests are read on other threads, and
/// the fetcher stops without it. A panic ends the call, is logged and counted
/// (`mempool_fetcher_sink_panics_total`): a transaction counts as failed and may come again, an event
/// is lost, a [`Holding`] is unknown.
///
/// While `chain_event` does not return, 64 heads and as many nonce updates wait. Beyond that the
/// oldest is dropped and counted (`mempool_fetcher_sink_dropped_total`), so the latest head is always
/// told. What a dropped block contained and is still mined is told with the next head. Once the sink
/// has taken all that waited, the fetcher compares the pools, and what has left the node's pool for
/// another reason is told as vanished.
///
/// The futures are polled on threads without a runtime: a sink may block in them (`blocking_send`,
/// a lock), and must not use tokio's timers or sockets.
pub trait TransactionSink: Send + Sync + 'static {
    /// Takes one transaction. May wait: a fetch slot is held meanwhile, so a slow sink slows the
    /// requests, never the subscription.
    ///
    /// A transaction comes a second time when its node announces it again more than 60 s after it was
    /// delivered, or when a comparison finds that the sink does not hold it.
    ///
    /// # Cancel safety
    /// Dropped only when the fetcher stops; the transaction then stays counted as unfinished.
    fn deliver(&self, tx: FetchedTransaction) -> impl Future<Output = Delivery> + Send;

    /// Takes one event of the chain. By default it is ignored.
    ///
    /// # Cancel safety
    /// Dropped only when the fetcher stops; the event then counts as dropped.
    fn chain_event(&self, event: ChainEvent) -> impl Future<Output = ()> + Send {
        drop(event);
        std::future::ready(())
    }

    /// Whether [`ChainEvent::Nonces`] is of any use to it. Asked once, at the start. If not, no full
    /// block is requested: as with [`FetcherConfig::block_nonces`](crate::FetcherConfig) off.
    fn wants_nonces(&self) -> bool {
        true
    }

    /// What became of a hash that was delivered. If up to 64 of them are not answered within two
    /// seconds, they count as [`Holding::Unknown`] (`mempool_fetcher_sink_timeouts_total`).
    fn holding(&self, hash: &B256) -> Holding {
        let _ = hash;
        Holding::Unknown
    }
}

/// Sends every transaction; events of the chain are not passed on. Waits while the channel is full.
impl TransactionSink for mpsc::Sender<FetchedTransaction> {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.send(tx).await {
            Ok(()) => Delivery::Pooled,
            Err(_) => Delivery::Closed,
        }
    }

    fn wants_nonces(&self) -> bool {
        false
    }
}

/// All that a sink is told, for a channel that carries it: see
/// [`TransactionSink`] for the order.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are transactions: a box would cost \
    an allocation for each"
)]
pub enum SinkEvent {
    /// A transaction.
    Transaction(FetchedTransaction),
    /// An event of the chain.
    Chain(ChainEvent),
}

/// Sends every transaction and every event of the chain. Waits while the channel is full.
impl TransactionSink for mpsc::Sender<SinkEvent> {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.send(SinkEvent::Transaction(tx)).await {
            Ok(()) => Delivery::Pooled,
            Err(_) => Delivery::Closed,
        }
    }

    async fn chain_event(&self, event: ChainEvent) {
        // Nobody reads any more: the next delivery says so.
        let _ = self.send(SinkEvent::Chain(event)).await;
    }
}
