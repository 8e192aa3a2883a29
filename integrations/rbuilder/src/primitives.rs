//! The parts of the crate `rbuilder-primitives` that the adapters use.

use std::sync::Arc;

use alloy_consensus::{EthereumTxEnvelope, TxEip4844, transaction::Recovered};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Address, B256};
use txpool_fetcher::PooledTransaction;

/// reth's `TransactionSigned`.
pub type TransactionSigned = EthereumTxEnvelope<TxEip4844>;

/// A transaction with its sender and its sidecar, which is empty for all but blob transactions.
#[derive(Clone, Debug)]
pub struct TransactionSignedEcRecoveredWithBlobs {
    tx: Recovered<TransactionSigned>,
    pub blobs_sidecar: Arc<BlobTransactionSidecarVariant>,
}

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

/// The original has bundles too.
#[derive(Clone, Debug)]
pub enum Order {
    Tx(MempoolTx),
}
