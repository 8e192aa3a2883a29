//! What the adapter touches of reth 2.5.1 and is on no registry, in the modules in which `reth_ethereum` exports it: traits
//! with the signatures of the originals, without the functions and bounds that are not used.
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

use alloy_consensus::{EthereumReceipt, EthereumTxEnvelope, Header, TxEip4844};

/// `reth-primitives-traits` 0.6.0, which is on the registry.
pub mod primitives {
    pub use reth_primitives_traits::*;
}

/// A signed transaction as a block has it.
pub type TransactionSigned = EthereumTxEnvelope<TxEip4844>;
/// A block.
pub type Block = alloy_consensus::Block<TransactionSigned>;

/// The types of Ethereum's chain.
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

    /// What is fixed for a chain.
    pub trait EthChainSpec: Send + Sync + Unpin + Debug {
        /// The chain id.
        fn chain_id(&self) -> u64;
    }

    /// Knows the chain.
    pub trait ChainSpecProvider: Debug + Send {
        /// Its specification.
        type ChainSpec: EthChainSpec + 'static;
        /// Its specification.
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

    /// A transaction of the pool.
    pub trait PoolTransaction: Debug + Send + Sync + Clone {
        /// As peers are sent it: a blob transaction with its sidecar.
        type Pooled: SignedTransaction;
        /// Its hash.
        fn hash(&self) -> &TxHash;
    }

    /// A transaction that has passed validation.
    #[derive(Debug)]
    pub struct ValidPoolTransaction<T: PoolTransaction> {
        /// The transaction.
        pub transaction: T,
    }

    impl<T: PoolTransaction> ValidPoolTransaction<T> {
        /// Its hash.
        pub fn hash(&self) -> &TxHash {
            self.transaction.hash()
        }
    }

    /// The pool at one moment.
    #[derive(Debug)]
    pub struct AllPoolTransactions<T: PoolTransaction> {
        /// Ready for the next block.
        pub pending: Vec<Arc<ValidPoolTransaction<T>>>,
        /// Waiting for a nonce, or for a lower base fee.
        pub queued: Vec<Arc<ValidPoolTransaction<T>>>,
    }

    /// Which transactions are announced.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TransactionListenerKind {
        /// All.
        All,
        /// Those that peers are sent.
        PropagateOnly,
    }

    /// The pool.
    pub trait TransactionPool: Clone + Debug + Send + Sync {
        /// Its transactions.
        type Transaction: PoolTransaction;
        /// The hashes of transactions that become pending, from now on.
        fn pending_transactions_listener_for(
            &self,
            kind: TransactionListenerKind,
        ) -> Receiver<TxHash>;
        /// A transaction with its sender.
        fn get_pooled_transaction_element(
            &self,
            tx_hash: TxHash,
        ) -> Option<Recovered<<Self::Transaction as PoolTransaction>::Pooled>>;
        /// All that is in it.
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

    /// An error of the database.
    #[derive(Debug)]
    pub struct ProviderError;
    /// What a read returns.
    pub type ProviderResult<Ok> = Result<Ok, ProviderError>;

    /// Whether a block's transactions are read with their hashes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TransactionVariant {
        /// Without.
        NoHash,
        /// With.
        WithHash,
    }

    /// Reads numbers of blocks.
    pub trait BlockNumReader: Send {
        /// The number of the latest block.
        fn best_block_number(&self) -> ProviderResult<BlockNumber>;
    }

    /// Reads blocks.
    pub trait BlockReader: BlockNumReader + Send {
        /// Their type.
        type Block: Block;
        /// A block with the senders of its transactions.
        fn recovered_block(
            &self,
            id: BlockHashOrNumber,
            transaction_kind: TransactionVariant,
        ) -> ProviderResult<Option<RecoveredBlock<Self::Block>>>;
    }

    /// Knows the types of the chain.
    pub trait NodePrimitivesProvider {
        /// These types.
        type Primitives: NodePrimitives;
    }

    /// A segment of a chain.
    #[derive(Clone, Debug)]
    pub struct Chain<N: NodePrimitives>(
        /// Its blocks by their numbers. In reth it has more fields, and another constructor.
        pub BTreeMap<BlockNumber, Arc<RecoveredBlock<N::Block>>>,
    );

    impl<N: NodePrimitives> Chain<N> {
        /// Its blocks, in their order.
        pub fn blocks_iter(&self) -> impl Iterator<Item = &Arc<RecoveredBlock<N::Block>>> + '_ {
            self.0.values()
        }
    }

    /// What happened to the canonical chain.
    #[derive(Clone, Debug)]
    pub enum CanonStateNotification<N: NodePrimitives> {
        /// It was extended.
        Commit {
            /// By these blocks.
            new: Arc<Chain<N>>,
        },
        /// Blocks were undone.
        Reorg {
            /// These.
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

    /// Tells what happens to the canonical chain.
    pub trait CanonStateSubscriptions: NodePrimitivesProvider + Send + Sync {
        /// From now on.
        fn canonical_state_stream(&self) -> CanonStateNotificationStream<Self::Primitives>;
    }
}
