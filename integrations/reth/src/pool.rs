//! A reth node's transaction pool and chain as a source of the fetcher.

use alloy_consensus::{BlockHeader as _, Transaction as _, transaction::Recovered};
use alloy_eips::{BlockHashOrNumber, eip1559::BaseFeeParams};
use alloy_primitives::{B256, map::AddressHashMap};
use futures::{StreamExt as _, stream};
use reth_ethereum::{
    EthPrimitives,
    chainspec::{ChainSpecProvider, EthChainSpec as _},
    pool::{PoolTransaction, TransactionListenerKind, TransactionPool},
    primitives::RecoveredBlock,
    provider::{BlockReader, CanonStateSubscriptions, TransactionVariant},
};
use txpool_fetcher::{
    AnnouncementStream, Block, BlockStream, Head, InProcessPool, MinedBlock, PooledHashes,
    PooledTransaction, announcements_of,
};

/// A reth node's transaction pool and chain as a source: `FetcherConfig::in_process`.
#[derive(Debug)]
pub struct RethPool<P, C> {
    /// `node.pool` of a launched node.
    pub pool: P,
    /// `node.provider` of a launched node.
    pub chain: C,
}

impl<P, C> InProcessPool for RethPool<P, C>
where
    // reth's `PooledTransactionVariant` and our `PooledTransaction` are the same type of alloy.
    P: TransactionPool<Transaction: PoolTransaction<Pooled = PooledTransaction>> + 'static,
    C: BlockReader<Block = reth_ethereum::Block>
        + CanonStateSubscriptions<Primitives = EthPrimitives>
        + ChainSpecProvider
        + 'static,
{
    fn chain_id(&self) -> u64 {
        self.chain.chain_spec().chain_id()
    }

    fn announcements(&self) -> AnnouncementStream {
        // `All` includes transactions that the node does not send to its peers.
        announcements_of(self.pool.pending_transactions_listener_for(TransactionListenerKind::All))
    }

    fn blocks(&self) -> BlockStream {
        // A reorg delivers the blocks of the new branch. A revert delivers none, and the next block
        // reveals it.
        Box::pin(self.chain.canonical_state_stream().flat_map(|notification| {
            let blocks: Vec<_> =
                notification.committed().blocks_iter().map(|block| mined(block)).collect();
            stream::iter(blocks)
        }))
    }

    fn latest_block(&self) -> Option<MinedBlock> {
        self.read(self.chain.best_block_number().ok()?.into())
    }

    fn block(&self, hash: &B256) -> Option<MinedBlock> {
        self.read((*hash).into())
    }

    fn pooled(&self) -> PooledHashes {
        let all = self.pool.all_transactions();
        PooledHashes {
            pending: all.pending.iter().map(|tx| *tx.hash()).collect(),
            queued: all.queued.iter().map(|tx| *tx.hash()).collect(),
        }
    }

    fn get(&self, hash: &B256) -> Option<Recovered<PooledTransaction>> {
        // This reads the sidecar of a blob transaction from the disk if it is not cached.
        self.pool.get_pooled_transaction_element(*hash)
    }
}

impl<P, C: BlockReader<Block = reth_ethereum::Block>> RethPool<P, C> {
    fn read(&self, id: BlockHashOrNumber) -> Option<MinedBlock> {
        // An error counts as an unread block, and the pools are compared afterwards.
        let block = self.chain.recovered_block(id, TransactionVariant::WithHash).ok()??;
        Some(mined(&block))
    }
}

fn mined(block: &RecoveredBlock<reth_ethereum::Block>) -> MinedBlock {
    let head = Head {
        timestamp: block.timestamp(),
        base_fee_wei: block.base_fee_per_gas(),
        next_base_fee_wei: block.next_block_base_fee(BaseFeeParams::ethereum()),
        blob_gas_used: block.blob_gas_used(),
        excess_blob_gas: block.excess_blob_gas(),
        gas_limit: block.gas_limit(),
        fee_recipient: block.beneficiary(),
        ..Head::new(block.number(), block.hash(), block.parent_hash())
    };
    let mut hashes = Vec::new();
    let mut nonces = AddressHashMap::default();
    // Transactions of one sender are in the order of their nonces, so the last one wins.
    for (sender, tx) in block.transactions_with_sender() {
        hashes.push(*tx.tx_hash());
        nonces.insert(*sender, tx.nonce() + 1);
    }
    let nonces = nonces.into_iter().map(Into::into).collect();
    MinedBlock { block: Block::new(head, hashes), nonces }
}
