//! Where fetched transactions go.

use std::{
    future::Future,
    time::{Instant, SystemTime},
};

use alloy_consensus::transaction::Recovered;
use alloy_primitives::{Address, B256, Bytes};
use tokio::sync::mpsc;

use crate::{outcome::Entry, tx::PooledTransaction};

/// A transaction on its way to the sink.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetchedTransaction {
    /// The transaction with its sender, a blob transaction with its sidecar.
    pub tx: Recovered<PooledTransaction>,
    /// The bytes the node sent: EIP-2718, blob transactions in network form.
    pub raw: Bytes,
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
    /// It does not want it; the reason is the label of a closed set of the sink.
    Refused(&'static str),
    /// Nobody reads any more: the fetcher ends with [`EndReason::SinkClosed`](crate::EndReason).
    Closed,
}

/// A new head of the chain, with what its block took out of the node's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadUpdate {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
    /// Its parent's hash.
    pub parent_hash: B256,
    /// Seconds since the epoch.
    pub timestamp: u64,
    /// Base fee of the next block in wei, by EIP-1559 from this header; `None` before London.
    pub next_base_fee_wei: Option<u64>,
    /// Gas limit of the block.
    pub gas_limit: u64,
    /// Who was paid the fees of the block.
    pub fee_recipient: Address,
    /// Hashes of the block's transactions, in their order.
    pub mined: Vec<B256>,
}

/// What is known of a hash that the node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holding {
    /// The sink cannot be asked: what was delivered counts as held.
    Unknown,
    /// It is here.
    Held,
    /// It was here and was removed: evicted, expired, mined or stale.
    Removed,
    /// It is not here and never was.
    Missing,
}

/// Takes what the fetcher brings. Implemented for `order_pool::OrderPool` (feature `order-pool`)
/// and for [`tokio::sync::mpsc::Sender`].
///
/// The calls come from the fetcher's own threads, several at once.
pub trait TransactionSink: Send + Sync + 'static {
    /// Takes one transaction. May wait: a fetch slot is held meanwhile, so a slow sink slows the
    /// asking, never the listening.
    ///
    /// # Cancel safety
    /// Dropped only when the fetcher stops; the transaction then stays counted as unfinished.
    fn deliver(&self, tx: FetchedTransaction) -> impl Future<Output = Delivery> + Send;

    /// A new head. Called in order, before any transaction fetched after it.
    fn head(&self, head: &HeadUpdate) {
        let _ = head;
    }

    /// The next nonces of the senders of the block, a while after its [`head`](Self::head): they
    /// include those of transactions that were never public.
    fn nonces(&self, block_hash: B256, next_nonces: &[(Address, u64)]) {
        let _ = (block_hash, next_nonces);
    }

    /// What became of a hash that was delivered.
    fn holding(&self, hash: &B256) -> Holding {
        let _ = hash;
        Holding::Unknown
    }

    /// The node does not have this pending transaction any more, and no block took it. A builder
    /// may still want it, so a sink marks rather than removes.
    fn vanished(&self, hash: &B256) {
        let _ = hash;
    }
}

/// Sends every transaction; heads are not passed on. Waits while the channel is full.
impl TransactionSink for mpsc::Sender<FetchedTransaction> {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.send(tx).await {
            Ok(()) => Delivery::Pooled,
            Err(_) => Delivery::Closed,
        }
    }
}
