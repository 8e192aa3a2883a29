//! Where fetched transactions go: the trait that the host's sink implements, and its types. Entry:
//! [`TransactionSink`]; `thread` calls all its functions but `deliver`.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | queue of the sink | the tasks that apply heads, nonces and comparisons; `mempool-sink` | one push or pop; when 64 heads wait, a scan of all of them |

#[cfg(feature = "order-pool")]
mod pool;
mod thread;

use std::{
    future::Future,
    time::{Instant, SystemTime},
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{B256, Bytes};
use chain_view::{Block, BlockNonces, PooledTransaction};
use tokio::sync::mpsc;

pub(crate) use self::thread::{Job, SinkCaller};
use crate::outcome::Entry;

/// A transaction on its way to the sink.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchedTransaction {
    /// The transaction with its sender, a blob transaction with its sidecar.
    pub tx: Recovered<PooledTransaction>,
    pub(crate) raw: Option<Bytes>,
    /// How the hash entered the fetcher.
    pub entry: Entry,
    /// The source that announced it first, as an index into
    /// [`FetcherConfig::sources`](crate::FetcherConfig::sources).
    pub source: usize,
    /// Whether a node lists it in its pool, or will do so as far as is known. Then a sink should
    /// keep it until it is mined, replaced, or reported as [`ChainEvent::Vanished`] or
    /// [`ChainEvent::Unlisted`], however long it is pending. Otherwise no event reports when it
    /// leaves the node's pool.
    pub is_listed: bool,
    /// When its announcement was read from the socket; for a transaction that a comparison found,
    /// when its fetch began.
    pub announced_at: Instant,
    /// The same moment on the wall clock.
    pub first_seen: SystemTime,
}

impl FetchedTransaction {
    /// Makes a transaction that the first source announces now, for tests of a sink. `raw` is the
    /// encoded form that a node sent; `None` for a transaction of a pool in the same process.
    #[must_use]
    pub fn new(tx: Recovered<PooledTransaction>, raw: impl Into<Option<Bytes>>) -> Self {
        Self {
            tx,
            raw: raw.into(),
            entry: Entry::Announced,
            source: 0,
            is_listed: false,
            announced_at: Instant::now(),
            first_seen: SystemTime::now(),
        }
    }

    /// Returns the encoded form of the transaction: EIP-2718, blob transactions in the network form
    /// with their sidecar. For a transaction from a node these are the bytes that it sent, shared
    /// and not copied. A transaction of a pool in the same process is encoded by each call, which
    /// copies 800 kB for six blobs.
    #[must_use]
    pub fn raw(&self) -> Bytes {
        match &self.raw {
            Some(raw) => raw.clone(),
            None => self.tx.inner().encoded_2718().into(),
        }
    }

    /// Returns the hash of the transaction.
    #[must_use]
    pub fn hash(&self) -> B256 {
        *self.tx.inner().hash()
    }
}

/// What the sink did with a transaction: the result of [`TransactionSink::deliver`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// The sink accepted it.
    Pooled,
    /// The sink had it before.
    Known,
    /// A block contains it, or another transaction with its sender and nonce.
    Mined,
    /// The sink does not want it, neither now nor later. The reason must be one of a small closed
    /// set of labels.
    Refused(&'static str),
    /// The sink has no room for it now. Comparisons offer it again while the node has it, see
    /// [`AuditReport::offered_again`](crate::AuditReport::offered_again). The reason must be one of
    /// a small closed set of labels.
    Postponed(&'static str),
    /// The sink takes no more transactions: the fetcher ends with
    /// [`EndReason::SinkClosed`](crate::EndReason::SinkClosed).
    Closed,
}

/// What a sink knows of a hash that the node's pool contains: the result of
/// [`TransactionSink::holding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// The sink does not know. A transaction that was delivered then counts as held.
    Unknown,
    /// The sink holds it.
    Held,
    /// The sink has removed it and does not want it now, because it is mined, stale, or expired
    /// shortly before.
    Removed,
    /// The sink has removed it for lack of room or by age. It is offered again like a postponed
    /// one.
    MayReturn,
    /// The sink never held it, or it holds it as a private transaction and must learn that it is
    /// public.
    Missing,
}

/// A change of the chain, or the disappearance of a transaction from the node's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainEvent {
    /// The chain has a new head, with the hashes of the transactions in its block. A reorg shows in
    /// [`Head::parent_hash`](chain_view::Head::parent_hash). The first event comes right after the
    /// first connect, with the head at that time.
    ///
    /// With several sources, the first event, and an event that undoes it, also have the hashes of
    /// the blocks of the minute before it, which have no event of their own: a source may be that
    /// late, and list their transactions.
    ///
    /// If the block could not be read, the event has no hashes. That is counted
    /// (`mempool_fetcher_unread_blocks_total`), and a comparison with the node's pool follows.
    Head(Block),
    /// The nonces that a block raised, also those of private transactions, some time after its
    /// [`Head`](Self::Head). A reorg that removes the block reverts them. The nonces of blocks
    /// before the first head come in separate events with the hash of the first head.
    Nonces(BlockNonces),
    /// The nodes' pools no longer have this pending transaction, and no block contains it. A
    /// builder may still want it, so a sink should mark it and not remove it.
    ///
    /// This event is sent if every source that announced the transaction lists its pool without it,
    /// while no block of the node that was compared last waits to be read. A node that lists fewer
    /// transactions than it counts does not show whether it has others: geth lists no blob
    /// transactions, so for these no event is sent.
    Vanished(B256),
    /// A node lists this delivered transaction, and will be compared again. A sink should keep it
    /// like one with [`FetchedTransaction::is_listed`]. This event is sent for a transaction that
    /// was delivered without that, was reported as [`Self::Vanished`] or [`Self::Unlisted`], or was
    /// forgotten, when a source that can be listed lists it, or announces it too.
    Listed(B256),
    /// No node lists this transaction, and a node that announced it does not list its pool, so no
    /// event reports when it leaves that pool. A sink should keep it no longer than any other
    /// transaction.
    Unlisted(B256),
    /// A development chain was reset: the node has another genesis block than before, under the
    /// same chain id. The heads, nonces and mined transactions that were reported before belong to
    /// a chain that no longer exists. The next head is the first one of the new chain.
    Reset,
}

impl ChainEvent {
    /// Returns the value of the metric label `event`, which is one of a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Head(_) => "head",
            Self::Nonces(_) => "nonces",
            Self::Vanished(_) => "vanished",
            Self::Listed(_) => "listed",
            Self::Unlisted(_) => "unlisted",
            Self::Reset => "reset",
        }
    }
}

/// Receives transactions and chain events. It is implemented for `order_pool::OrderPool` (feature
/// `order-pool`) and for [`tokio::sync::mpsc::Sender`] of [`FetchedTransaction`] or [`SinkEvent`].
///
/// ```
/// use std::sync::Mutex;
///
/// use txpool_fetcher::{ChainEvent, Delivery, FetchedTransaction, TransactionSink};
///
/// /// Keeps the newest 1,000 transactions, whether they are mined or not.
/// struct Newest(Mutex<std::collections::VecDeque<FetchedTransaction>>);
///
/// impl TransactionSink for Newest {
///     async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
///         let mut newest = self.0.lock().expect("no holder panics");
///         newest.truncate(999);
///         newest.push_front(tx);
///         Delivery::Pooled
///     }
///
///     async fn chain_event(&self, event: ChainEvent) {
///         if let ChainEvent::Head(block) = event {
///             println!("block {} with {} transactions", block.head.number, block.mined.len());
///         }
///     }
/// }
/// ```
///
/// # Threads and order
/// [`chain_event`](Self::chain_event) and [`holding`](Self::holding) are called on the thread
/// `mempool-sink`, one at a time: heads in the order of the chain, the nonces of a block after its
/// head, and the nonces of two blocks in the order of their heads, unless the read of one was
/// retried.
///
/// [`deliver`](Self::deliver) is called on `mempool-deliver`, on the thread of the sockets if
/// [`may_block`](Self::may_block) permits that, and on the threads that call a pool in this
/// process. So it is called concurrently with itself and with the other functions, and a
/// transaction may be delivered before or after a head whose block contains it. A sink that must
/// not hold mined transactions compares with the recent blocks, as the order pool does.
/// [`ChainEvent::Vanished`] comes after the delivery of its transaction has returned.
///
/// # A sink that blocks or panics
/// Sockets and heads are read on other threads, and a shutdown does not need the sink. But a
/// delivery holds its fetch slot, so behind a slow sink requests wait, and announcements overrun
/// the buffer ([`Counts::lagged`](crate::Counts::lagged)). A panic ends the call and is counted
/// (`mempool_fetcher_sink_panics_total`): a transaction counts as failed and may be fetched again,
/// a chain event is lost, and a [`Holding`] is unknown.
///
/// While `chain_event` does not return, up to 64 heads and as many nonce updates wait. Beyond that
/// the oldest is dropped and counted (`mempool_fetcher_sink_dropped_total`), so the latest head is
/// always delivered. Hashes of a dropped block that are still mined are reported with the next
/// head. Once the sink has taken all waiting events, the fetcher compares the pools, and
/// transactions that left the node's pool for another reason are reported as vanished.
///
/// The futures may be polled on threads without a runtime, so they must not use tokio's timers or
/// sockets. A sink that may block is only polled on such threads, and may use `blocking_send`.
pub trait TransactionSink: Send + Sync + 'static {
    /// Takes one transaction. It may wait.
    ///
    /// The same transaction is delivered again when its node announces it more than 60 s after its
    /// outcome, or after it was reported as vanished; when a reorg removes the block that contained
    /// it while it was announced; or when a comparison finds that the sink does not hold it.
    ///
    /// # Cancel safety
    /// The future is dropped only when the fetcher stops. The transaction then counts as
    /// unfinished.
    fn deliver(&self, tx: FetchedTransaction) -> impl Future<Output = Delivery> + Send;

    /// Takes one chain event. By default it is ignored.
    ///
    /// # Cancel safety
    /// The future is dropped only when the fetcher stops. The event then counts as dropped.
    fn chain_event(&self, event: ChainEvent) -> impl Future<Output = ()> + Send {
        drop(event);
        std::future::ready(())
    }

    /// Returns a guard that the fetcher holds while it feeds the sink. It is dropped once, when the
    /// fetcher has ended, for whatever reason; at the deadline of a shutdown that is not complete;
    /// or when the [`Fetcher`](crate::Fetcher) is dropped without a shutdown, before its last
    /// calls. So its `Drop` can tell the readers of the sink that nothing feeds it any more. It
    /// must not block.
    ///
    /// Called once, at the start. By default there is no guard. The order pool's is an
    /// `order_pool::Feed`.
    fn feed(&self) -> impl Send + 'static {}

    /// Returns whether [`deliver`](Self::deliver) may block the thread that calls it for more than
    /// some milliseconds: in a lock that is held for long, on a disk, or in `blocking_send`. Called
    /// once, at the start.
    ///
    /// If so, which is the default, every transaction is handed over to a thread for deliveries,
    /// which costs about 10 us. If not, a delivery runs on the thread that reads the sockets while
    /// little is in flight; the future may still wait.
    fn may_block(&self) -> bool {
        true
    }

    /// Returns whether the sink uses [`ChainEvent::Nonces`]. Called once, at the start. If not,
    /// full blocks, which are megabytes of JSON, are not requested.
    fn wants_nonces(&self) -> bool {
        true
    }

    /// Returns what the sink knows of a hash. Hashes are looked up in batches of up to 64. If a
    /// batch takes longer than two seconds, its hashes count as [`Holding::Unknown`].
    fn holding(&self, hash: &B256) -> Holding {
        let _ = hash;
        Holding::Unknown
    }
}

/// Sends every transaction, and ignores chain events. Waits while the channel is full.
impl TransactionSink for mpsc::Sender<FetchedTransaction> {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        self.send(tx).await.map_or(Delivery::Closed, |()| Delivery::Pooled)
    }

    fn may_block(&self) -> bool {
        false
    }

    fn wants_nonces(&self) -> bool {
        false
    }
}

/// A transaction or a chain event, for one channel of both. [`TransactionSink`] documents the
/// order.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are transactions: a box would cost an allocation for each"
)]
pub enum SinkEvent {
    /// A transaction.
    Transaction(FetchedTransaction),
    /// A chain event.
    Chain(ChainEvent),
}

/// Sends every transaction and every chain event. Waits while the channel is full.
impl TransactionSink for mpsc::Sender<SinkEvent> {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let sent = self.send(SinkEvent::Transaction(tx)).await;
        sent.map_or(Delivery::Closed, |()| Delivery::Pooled)
    }

    fn may_block(&self) -> bool {
        false
    }

    async fn chain_event(&self, event: ChainEvent) {
        // The error means that the receiver is gone, which the next delivery reports.
        let _ = self.send(SinkEvent::Chain(event)).await;
    }
}
