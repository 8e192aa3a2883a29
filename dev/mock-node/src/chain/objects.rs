//! The JSON objects that nodes show.

use alloy_primitives::B256;
use alloy_rpc_types_eth::{Block, BlockTransactions, Header, Transaction};

use crate::chain::FullBlock;

/// A header, as `newHeads` tells it.
pub(crate) fn head_object(block: &FullBlock) -> Header {
    Header { hash: block.hash, inner: block.header.clone(), total_difficulty: None, size: None }
}

/// A block with its transactions, or with their hashes alone.
pub(crate) fn block_object(block: &FullBlock, full: bool) -> Block<Transaction> {
    let transactions = if full {
        let objects = block.txs.iter().enumerate();
        BlockTransactions::Full(
            objects.map(|(index, tx)| tx.to_object(Some(block.place_of(index)))).collect(),
        )
    } else {
        BlockTransactions::Hashes(block.txs.iter().map(|tx| tx.hash).collect::<Vec<B256>>())
    };
    Block {
        header: head_object(block),
        uncles: Vec::new(),
        transactions,
        withdrawals: Some(Vec::new().into()),
    }
}
