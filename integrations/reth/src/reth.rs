//! The parts of reth 2.5.1 that the adapter and `main.rs` use, in the modules in which
//! `reth_ethereum` exports them. Traits and functions have the signatures of the originals, without
//! what is not used. Of a node there are only types without a value, because nothing here runs one.
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
//! | [`cli::Cli`] | `crates/ethereum/cli/src/interface.rs` |
//! | [`node::builder::NodeHandle`], [`node::FullNode`] | `crates/node/builder/src/handle.rs`, `node.rs` |
//! | [`node::TaskExecutor`] | `crates/tasks/src/lib.rs` |

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

/// `reth-provider`, which exports `reth-storage-api`, `reth-chain-state` and
/// `reth-execution-types`.
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

/// `reth-ethereum-cli`.
pub mod cli {
    use super::node::{NoArgs, NodeBuilder};

    #[derive(Debug)]
    pub struct Cli;

    impl Cli {
        pub fn parse_args() -> Self {
            Self
        }

        pub fn run<L, Fut>(self, _launcher: L) -> eyre::Result<()>
        where
            L: FnOnce(NodeBuilder, NoArgs) -> Fut,
            Fut: Future<Output = eyre::Result<()>>,
        {
            eyre::bail!("this crate has only the signatures of reth")
        }
    }
}

/// `reth-node-ethereum`, and in `builder` `reth-node-builder`.
pub mod node {
    use alloy_consensus::transaction::Recovered;
    use alloy_eips::BlockHashOrNumber;
    use alloy_primitives::{BlockNumber, TxHash};
    use futures::future::BoxFuture;
    use reth_primitives_traits::RecoveredBlock;
    use tokio::{sync::mpsc::Receiver, task::JoinHandle};
    use txpool_fetcher::PooledTransaction;

    use super::{chainspec::*, pool::*, provider::*, *};

    pub mod builder {
        pub use super::NodeHandle;
    }

    #[derive(Debug, Default)]
    pub struct EthereumNode;

    #[derive(Debug)]
    pub struct NoArgs;

    /// A node builder with its launch context.
    #[derive(Debug)]
    pub enum NodeBuilder {}

    impl NodeBuilder {
        pub fn node(self, _node: EthereumNode) -> Self {
            self
        }

        pub async fn launch(self) -> eyre::Result<NodeHandle> {
            match self {}
        }
    }

    pub struct NodeHandle {
        pub node: FullNode,
        pub node_exit_future: BoxFuture<'static, eyre::Result<()>>,
    }

    #[derive(Debug)]
    pub struct FullNode {
        pub pool: NodePool,
        pub provider: NodeProvider,
        pub task_executor: TaskExecutor,
    }

    #[derive(Debug)]
    pub enum TaskExecutor {}

    impl TaskExecutor {
        pub fn spawn_critical_with_graceful_shutdown_signal<F>(
            &self,
            _name: &'static str,
            _f: impl FnOnce(GracefulShutdown) -> F,
        ) -> JoinHandle<()>
        where
            F: Future<Output = ()> + Send + 'static,
        {
            match *self {}
        }
    }

    pub type GracefulShutdown = BoxFuture<'static, GracefulShutdownGuard>;

    #[derive(Debug)]
    pub struct GracefulShutdownGuard;

    #[derive(Clone, Debug)]
    pub enum NodeTransaction {}

    impl PoolTransaction for NodeTransaction {
        type Pooled = PooledTransaction;

        fn hash(&self) -> &TxHash {
            match *self {}
        }
    }

    #[derive(Clone, Debug)]
    pub enum NodePool {}

    impl TransactionPool for NodePool {
        type Transaction = NodeTransaction;

        fn pending_transactions_listener_for(
            &self,
            _kind: TransactionListenerKind,
        ) -> Receiver<TxHash> {
            match *self {}
        }

        fn get_pooled_transaction_element(
            &self,
            _tx_hash: TxHash,
        ) -> Option<Recovered<PooledTransaction>> {
            match *self {}
        }

        fn all_transactions(&self) -> AllPoolTransactions<NodeTransaction> {
            match *self {}
        }
    }

    #[derive(Clone, Debug)]
    pub enum NodeProvider {}

    #[derive(Debug)]
    pub enum NodeChainSpec {}

    impl EthChainSpec for NodeChainSpec {
        fn chain_id(&self) -> u64 {
            match *self {}
        }
    }

    impl ChainSpecProvider for NodeProvider {
        type ChainSpec = NodeChainSpec;

        fn chain_spec(&self) -> std::sync::Arc<NodeChainSpec> {
            match *self {}
        }
    }

    impl BlockNumReader for NodeProvider {
        fn best_block_number(&self) -> ProviderResult<BlockNumber> {
            match *self {}
        }
    }

    impl BlockReader for NodeProvider {
        type Block = Block;

        fn recovered_block(
            &self,
            _id: BlockHashOrNumber,
            _transaction_kind: TransactionVariant,
        ) -> ProviderResult<Option<RecoveredBlock<Block>>> {
            match *self {}
        }
    }

    impl NodePrimitivesProvider for NodeProvider {
        type Primitives = EthPrimitives;
    }

    impl CanonStateSubscriptions for NodeProvider {
        fn canonical_state_stream(&self) -> CanonStateNotificationStream<EthPrimitives> {
            match *self {}
        }
    }
}
