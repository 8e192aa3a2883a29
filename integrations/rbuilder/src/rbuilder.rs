//! What the adapters touch of rbuilder, which is on no registry: names and signatures as there, the bodies as short as
//! the tests allow. Linked into rbuilder, this module is deleted, and `use crate::rbuilder::` becomes
//! the paths below.
//!
//! | here | file in rbuilder | read at |
//! |---|---|---|
//! | [`OrderInputConfig`], [`MempoolSource`], [`ReplaceableOrderPoolCommand`], [`MempoolTx`], [`Order`], [`TransactionSignedEcRecoveredWithBlobs`], [`add_txfetcher_time_to_query`], [`mark_command_received`] | as `crates/rbuilder/src/live_builder/order_input/txpool_fetcher.rs` uses them | `0354775d` |
//! | [`BlockListProvider`], [`Error`], [`update_blocklist_metrics`] | `crates/rbuilder/src/live_builder/block_list_provider.rs` | `18263b8e` |
//! | [`TransactionErr`] | `crates/rbuilder/src/building/order_commit.rs` | `8d3643c5` |

#![allow(missing_docs, reason = "rbuilder documents the originals")]

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::{EthereumTxEnvelope, TxEip4844, transaction::Recovered};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Address, B256};
use revm::context::result::InvalidTransaction;
use time::OffsetDateTime;
use txpool_fetcher::PooledTransaction;

/// reth's `TransactionSigned`.
pub type TransactionSigned = EthereumTxEnvelope<TxEip4844>;

/// A transaction with its sender, and its sidecar beside it.
#[derive(Clone, Debug)]
pub struct TransactionSignedEcRecoveredWithBlobs {
    tx: Recovered<TransactionSigned>,
    /// Empty for all but blob transactions.
    pub blobs_sidecar: Arc<BlobTransactionSidecarVariant>,
}

/// Why a transaction and a sidecar are no such pair.
#[derive(Debug)]
pub struct TxWithBlobsCreateError;

// reth's `PooledTransactionVariant` and our `PooledTransaction` are the same type of alloy.
impl TryFrom<Recovered<PooledTransaction>> for TransactionSignedEcRecoveredWithBlobs {
    type Error = TxWithBlobsCreateError;

    fn try_from(value: Recovered<PooledTransaction>) -> Result<Self, Self::Error> {
        let (tx, signer) = value.into_parts();
        let mut sidecar = BlobTransactionSidecarVariant::Eip4844(Default::default());
        let tx = tx.map_eip4844(|with_blobs| {
            let (tx, blobs) = with_blobs.into_parts();
            sidecar = blobs;
            tx
        });
        let tx = Recovered::new_unchecked(tx, signer);
        Ok(Self { tx, blobs_sidecar: Arc::new(sidecar) })
    }
}

impl TransactionSignedEcRecoveredWithBlobs {
    pub fn hash(&self) -> B256 {
        *self.tx.inner().hash()
    }

    pub fn signer(&self) -> Address {
        self.tx.signer()
    }
}

#[derive(Clone, Debug)]
pub struct MempoolTx {
    pub tx_with_blobs: TransactionSignedEcRecoveredWithBlobs,
}

impl MempoolTx {
    pub fn new(tx_with_blobs: TransactionSignedEcRecoveredWithBlobs) -> Self {
        Self { tx_with_blobs }
    }
}

/// What blocks are built of. Bundles are left out here.
#[derive(Clone, Debug)]
pub enum Order {
    Tx(MempoolTx),
}

/// Where the mempool comes from.
#[derive(Clone, Debug)]
pub enum MempoolSource {
    Ipc(PathBuf),
    Ws(String),
}

/// What the order input is configured with. Its other fields are left out here.
#[derive(Clone, Debug)]
pub struct OrderInputConfig {
    pub mempool_source: Option<MempoolSource>,
}

/// What the order pool is sent. Cancellations are left out here.
#[derive(Clone, Debug)]
pub enum ReplaceableOrderPoolCommand {
    Order(Arc<Order>),
}

/// How often [`add_txfetcher_time_to_query`] was called.
pub static TXFETCHER_TRANSACTION_COUNTER: AtomicUsize = AtomicUsize::new(0);

/// How often [`mark_command_received`] was called.
pub static ORDERS_RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// Records how long a transaction took from its announcement. rbuilder has a histogram beside the counter.
pub fn add_txfetcher_time_to_query(_duration: Duration) {
    TXFETCHER_TRANSACTION_COUNTER.fetch_add(1, Relaxed);
}

/// Records when an order came in. rbuilder keeps the time by the order's id.
pub fn mark_command_received(_command: &ReplaceableOrderPoolCommand, _received_at: OffsetDateTime) {
    ORDERS_RECEIVED.fetch_add(1, Relaxed);
}

pub type BlockList = ahash::HashSet<Address>;

/// The length that [`update_blocklist_metrics`] was last called with.
pub static BLOCKLIST_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Sets the two metrics of the list: its length, and a hash.
pub fn update_blocklist_metrics(blocklist: &BlockList) {
    BLOCKLIST_LENGTH.store(blocklist.len(), Relaxed);
}

#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// At the start.
    UnableToLoadInitialList,
    /// Later: the last one is too old.
    UnableToUpdateList,
}

pub trait BlockListProvider: std::fmt::Debug + Sync + Send {
    /// A copy of the list in force.
    fn get_blocklist(&self) -> Result<BlockList, Error>;
    fn current_list_contains(&self, address: &Address) -> Result<bool, Error>;
}

/// Why a transaction is not in the block. Three of its variants are left out here.
#[derive(Debug)]
pub enum TransactionErr {
    /// The EVM refused it.
    InvalidTransaction(InvalidTransaction),
    /// It reaches a listed address.
    Blocklist,
}
