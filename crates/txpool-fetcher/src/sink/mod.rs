//! Where fetched transactions go. Entry: [`TransactionSink`]; `thread` calls all but `deliver`.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | events for the sink | the tasks that apply heads, nonces and comparisons; `mempool-sink` | one push or pop; when 64 heads wait, a scan of all of them |

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
    /// How its hash entered.
    pub entry: Entry,
    /// The source that announced it first, as an index into the configured sources.
    pub source: usize,
    /// Whether its node lists it, or will as far as is known: then a sink should keep it until it is mined,
    /// replaced, or reported as [`ChainEvent::Vanished`] or [`ChainEvent::Unlisted`], however long it is
    /// pending. Otherwise nobody reports when it leaves the node's pool.
    pub is_listed: bool,
    /// When its announcement was read from the socket; for a backfilled one, when it was listed.
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
            is_listed: false,
            announced_at: Instant::now(),
            first_seen: SystemTime::now(),
        }
    }

    /// The transaction's encoded form: EIP-2718, blob transactions in network form. From a node,
    /// these are the bytes that it sent, shared and not copied. A transaction of a pool in the same
    /// process is encoded by each call, which for six blobs copies 800 kB.
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
    /// The sink accepted it.
    Pooled,
    /// The sink had it before.
    Known,
    /// It is already in a block, or another transaction with its sender and nonce is.
    Mined,
    /// The sink does not want it, now or later; the reason is one of a closed set of labels.
    Refused(&'static str),
    /// The sink has no room for it now; the reason as above. Comparisons offer it again while the
    /// node has it, see [`AuditReport::offered_again`](crate::AuditReport::offered_again).
    Postponed(&'static str),
    /// The receiver is gone: the fetcher ends with [`EndReason::SinkClosed`](crate::EndReason).
    Closed,
}

/// What a sink knows of a hash that the node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// The sink does not know: a delivered transaction counts as held.
    Unknown,
    /// The sink holds it.
    Held,
    /// The sink has removed it and does not want it now: mined, stale, or expired shortly before.
    Removed,
    /// The sink has removed it for lack of room or by age: it is offered again like postponed ones.
    MayReturn,
    /// The sink never held it.
    Missing,
}

/// A change of the chain, or of the node's pool, other than a new transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainEvent {
    /// The chain has a new head, and its block contains these transactions. A reorg shows in
    /// [`Head::parent_hash`](chain_view::Head::parent_hash). The first event comes right after the
    /// first connection, with the head at that time.
    ///
    /// With several sources, the first event, and one that undoes it, also has the hashes of the
    /// blocks of a minute before it, which have no event: a source may be that late, and list them.
    ///
    /// If the block could not be read, the event has no hashes: that is counted
    /// (`mempool_fetcher_unread_blocks_total`), and a comparison with the node's pool follows.
    Head(Block),
    /// The nonces that a block raised, some time after its [`Head`](Self::Head): they include those
    /// of private transactions. A reorg that removes the block reverts them. Those of blocks before
    /// the first head come as the first head's, in events of their own.
    Nonces(BlockNonces),
    /// The node no longer has this pending transaction, and no block contains it. A builder may
    /// still want it, so a sink should mark it and not remove it.
    ///
    /// Reported if every source that has announced it lists its pool and has it no more, while no block
    /// of the node that was compared last waits to be read. A node that lists fewer transactions than
    /// it counts says nothing about those that it may hide: geth lists no blob transactions, and of
    /// these nothing is reported.
    Vanished(B256),
    /// A node lists this delivered transaction, and will be compared again: a sink should keep it as one
    /// with [`FetchedTransaction::is_listed`]. Reported when the pool of a node can be listed that could
    /// not be listed when the transaction was delivered.
    Listed(B256),
    /// The pool of the node that listed this transaction cannot be listed any more: nobody reports when
    /// it leaves that pool, so a sink should keep it no longer than any other transaction.
    Unlisted(B256),
    /// The node has another genesis block than before, under the same chain id: a development chain was
    /// reset. The heads, nonces and mined transactions that were reported before are of a chain that
    /// does not exist any more, and the next head is the first one of the new chain.
    Reset,
}

impl ChainEvent {
    /// The value of the label in metrics: one of a closed set.
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

/// Receives transactions and chain events. Implemented for `order_pool::OrderPool` (feature
/// `order-pool`) and for [`tokio::sync::mpsc::Sender`] of [`FetchedTransaction`] or [`SinkEvent`].
///
/// ```
/// use std::sync::Mutex;
///
/// use txpool_fetcher::{ChainEvent, Delivery, FetchedTransaction, TransactionSink};
///
/// /// Keeps the newest 1,000, without a look at what blocks take out.
/// struct Newest(Mutex<std::collections::VecDeque<FetchedTransaction>>);
///
/// impl TransactionSink for Newest {
///     async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
///         let mut newest = self.0.lock().expect("nobody panics with it");
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
/// head, and those of two blocks in the order of their heads, unless the read of one was retried.
/// [`deliver`](Self::deliver) is called on the thread of the sockets and on `mempool-deliver`, or on
/// the latter alone: see [`may_block`](Self::may_block); and on the threads that call a pool in this
/// process. So it is called concurrently with itself and with the others, and a transaction may be delivered before or after a head whose block
/// contains it: a sink that must not hold it compares with the recent blocks, as the order pool
/// does. [`ChainEvent::Vanished`] comes after the delivery of its transaction has returned.
///
/// # A sink that blocks or panics
/// Sockets and heads are read on other threads, and the fetcher stops without it. But a delivery
/// holds its fetch slot: behind a slow sink requests wait, and announcements overrun the buffer
/// (`Counts::lagged`). A panic ends the call and is counted (`mempool_fetcher_sink_panics_total`):
/// a transaction has failed and may be fetched again, an event is lost, a [`Holding`] is unknown.
///
/// While `chain_event` does not return, 64 heads and as many nonce updates wait. Beyond that the
/// oldest is dropped and counted (`mempool_fetcher_sink_dropped_total`), so the latest head is
/// always delivered. Transactions of a dropped block that are still mined are reported with the
/// next head. Once the sink has taken all waiting events, the fetcher compares the pools, and
/// transactions that left the node's pool for another reason are reported as vanished.
///
/// The futures may be polled on threads without a runtime, so they must not use tokio's timers or
/// sockets. A sink that may block is polled on such threads alone, and may use `blocking_send`.
pub trait TransactionSink: Send + Sync + 'static {
    /// Takes one transaction. May wait.
    ///
    /// The same transaction is delivered again when its node announces it more than 60 s after its
    /// outcome or after it was reported as vanished, when a reorg undoes the block that it was
    /// announced in, or when a comparison finds that the sink does not hold it.
    ///
    /// # Cancel safety
    /// Dropped only when the fetcher stops; the transaction then stays counted as unfinished.
    fn deliver(&self, tx: FetchedTransaction) -> impl Future<Output = Delivery> + Send;

    /// Takes one chain event. By default it is ignored.
    ///
    /// # Cancel safety
    /// Dropped only when the fetcher stops; the event then counts as dropped.
    fn chain_event(&self, event: ChainEvent) -> impl Future<Output = ()> + Send {
        drop(event);
        std::future::ready(())
    }

    /// Whether [`deliver`](Self::deliver) may block the thread that calls it, for more than some
    /// milliseconds: in a lock that is held for long, on a disk, in `blocking_send`. Called once, at the
    /// start. If so, which is the default, every transaction is handed over to a thread of its own for
    /// deliveries, which costs some 10 us. If not, a delivery runs on the thread that reads the sockets
    /// while little is in flight; it may still wait, as a future does.
    fn may_block(&self) -> bool {
        true
    }

    /// Whether the sink uses [`ChainEvent::Nonces`]. Called once, at the start. If not, no full
    /// block is requested: some megabytes of JSON.
    fn wants_nonces(&self) -> bool {
        true
    }

    /// What the sink knows of a hash that was delivered. Hashes are looked up in batches of up to
    /// 64; if a batch takes longer than two seconds, its hashes count as [`Holding::Unknown`].
    fn holding(&self, hash: &B256) -> Holding {
        let _ = hash;
        Holding::Unknown
    }
}

/// Sends every transaction; chain events are not passed on. Waits while the channel is full.
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

/// Every transaction and chain event, for one channel: see [`TransactionSink`] for the order.
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
        // If the receiver is gone, the next delivery reports it.
        let _ = self.send(SinkEvent::Chain(event)).await;
    }
}
