//! What the adapter touches of reth 2.5.1 and is on no registry, in the modules in which `reth_ethereum` exports it: traits
//! with the signatures of the originals, which reth documents, without the functions and bounds that are not used.
//!
//! | here | original, at the tag `v2.5.1` |
//! |---|---|
//! | [`Block`], [`TransactionSigned`], [`EthPrimitives`] | `crates/ethereum/primitives/src/lib.rs` |
//! | [`chainspec::ChainSpecProvider`] | `crates/chainspec/src/spec.rs` |
//! | [`chainspec::EthChainSpec`] | `crates/chainspec/src/api.rs` |
//! | [`pool::TransactionPool`], [`pool::PoolTransaction`], [`pool::AllPoolTransactions`] | `crates/transaction-pool/src/traits.rs` |
//! | [`pool::ValidPoolTransaction`] | `crates/transaction-pool/src/validate/mod.rs` |
//! | [`pool::TransactionListenerKind`] | `crates/transaction-pool/src/pool/listener.rs` |
//! | [`provider::BlockNumReader`], [`provider::BlockReader`] | `crates/storage/storage-api/src/block_id.rs`, `block.rs` |
//! | [`provider::TransactionVariant`] | `crates/storage/storage-api/src/transactions.rs` |
//! | [`provider::NodePrimitivesProvider`] | `crates/storage/storage-api/src/primitives.rs` |
//! | [`provider::CanonStateSubscriptions`], [`provider::CanonStateNotification`] | `crates/chain-state/src/notifications.rs` |
//! | [`provider::Chain`] | `crates/evm/execution-types/src/chain.rs` |

#![allow(missing_docs, reason = "reth documents the originals")]

use alloy_consensus::{EthereumReceipt, EthereumTxEnvelope, Header, TxEip4844};

/// `reth-primitives-traits` 0.6.0, which is on the registry.
pub mod primitives {
    pub use reth_primitives_traits::*;
}

/// A signed transaction as a block has it.
pub type TransactionSigned = EthereumTxEnvelope<TxEip4844>;
pub type Block = alloy_consensus::Block<TransactionSigned>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EthPrimitives;

impl primitives::NodePrimitives for EthPrimitives {
    type Block = Block;
    type BlockHeader = Header;
    type BlockBody = alloy_consensus::BlockBody<TransactionSigned>;
    type SignedTx = TransactionSigned;
    type Receipt = EthereumReceipt;
}

/// `reth-chainspec`.
pub mod chainspec {
    use std::{fmt::Debug, sync::Arc};

    pub trait EthChainSpec: Send + Sync + Unpin + Debug {
        fn chain_id(&self) -> u64;
    }

    pub trait ChainSpecProvider: Debug + Send {
        type ChainSpec: EthChainSpec + 'static;
        fn chain_spec(&self) -> Arc<Self::ChainSpec>;
    }
}

/// `reth-transaction-pool`.
pub mod pool {
    use std::{fmt::Debug, sync::Arc};

    use alloy_consensus::transaction::Recovered;
    use alloy_primitives::TxHash;
    use reth_primitives_traits::SignedTransaction;
    use tokio::sync::mpsc::Receiver;

    pub trait PoolTransaction: Debug + Send + Sync + Clone {
        /// As peers are sent it: a blob transaction with its sidecar.
        type Pooled: SignedTransaction;
        fn hash(&self) -> &TxHash;
    }

    #[derive(Debug)]
    pub struct ValidPoolTransaction<T: PoolTransaction> {
        pub transaction: T,
    }

    impl<T: PoolTransaction> ValidPoolTransaction<T> {
        pub fn hash(&self) -> &TxHash {
            self.transaction.hash()
        }
    }

    #[derive(Debug)]
    pub struct AllPoolTransactions<T: PoolTransaction> {
        /// Ready for the next block.
        pub pending: Vec<Arc<ValidPoolTransaction<T>>>,
        /// Waiting for a nonce, or for a lower base fee.
        pub queued: Vec<Arc<ValidPoolTransaction<T>>>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TransactionListenerKind {
        All,
        /// Those that peers are sent.
        PropagateOnly,
    }

    pub trait TransactionPool: Clone + Debug + Send + Sync {
        type Transaction: PoolTransaction;
        /// The hashes of transactions that become pending, from now on.
        fn pending_transactions_listener_for(
            &self,
            kind: TransactionListenerKind,
        ) -> Receiver<TxHash>;
        fn get_pooled_transaction_element(
            &self,
            tx_hash: TxHash,
        ) -> Option<Recovered<<Self::Transaction as PoolTransaction>::Pooled>>;
        fn all_transactions(&self) -> AllPoolTransactions<Self::Transaction>;
    }
}

/// `reth-provider`, which exports `reth-storage-api`, `reth-chain-state` and `reth-execution-types`.
pub mod provider {
    use std::{collections::BTreeMap, sync::Arc};

    use alloy_eips::BlockHashOrNumber;
    use alloy_primitives::BlockNumber;
    use futures::stream::BoxStream;
    use reth_primitives_traits::{Block, NodePrimitives, RecoveredBlock};

    #[derive(Debug)]
    pub struct ProviderError;
    pub type ProviderResult<Ok> = Result<Ok, ProviderError>;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TransactionVariant {
        NoHash,
        WithHash,
    }

    pub trait BlockNumReader: Send {
        fn best_block_number(&self) -> ProviderResult<BlockNumber>;
    }

    pub trait BlockReader: BlockNumReader + Send {
        type Block: Block;
        /// A block with the senders of its transactions.
        fn recovered_block(
            &self,
            id: BlockHashOrNumber,
            transaction_kind: TransactionVariant,
        ) -> ProviderResult<Option<RecoveredBlock<Self::Block>>>;
    }

    pub trait NodePrimitivesProvider {
        type Primitives: NodePrimitives;
    }

    #[derive(Clone, Debug)]
    pub struct Chain<N: NodePrimitives>(
        /// Its blocks by their numbers. In reth it has more fields, and another constructor.
        pub BTreeMap<BlockNumber, Arc<RecoveredBlock<N::Block>>>,
    );

    impl<N: NodePrimitives> Chain<N> {
        pub fn blocks_iter(&self) -> impl Iterator<Item = &Arc<RecoveredBlock<N::Block>>> + '_ {
            self.0.values()
        }
    }

    #[derive(Clone, Debug)]
    pub enum CanonStateNotification<N: NodePrimitives> {
        Commit {
            new: Arc<Chain<N>>,
        },
        Reorg {
            old: Arc<Chain<N>>,
            /// What takes their place; empty for a revert.
            new: Arc<Chain<N>>,
        },
    }

    impl<N: NodePrimitives> CanonStateNotification<N> {
        /// The blocks that are canonical now.
        pub fn committed(&self) -> Arc<Chain<N>> {
            match self {
                Self::Commit { new } | Self::Reorg { new, .. } => Arc::clone(new),
            }
        }
    }

    /// Skips what it lost by a lag.
    pub type CanonStateNotificationStream<N> = BoxStream<'static, CanonStateNotification<N>>;

    pub trait CanonStateSubscriptions: NodePrimitivesProvider + Send + Sync {
        fn canonical_state_stream(&self) -> CanonStateNotificationStream<Self::Primitives>;
    }
}
