//! The node's chain: linked headers, nonces, and the position of each recent transaction.

use std::{collections::VecDeque, sync::Arc};

use alloy_consensus::{
    Header, Transaction as _, constants::EMPTY_WITHDRAWALS, transaction::TransactionInfo,
};
use alloy_eips::{eip1559::BaseFeeParams, eip7840::BlobParams};
use alloy_primitives::{
    Address, B256, Bytes, U256, keccak256,
    map::{AddressHashMap, B256HashMap},
};
use alloy_rpc_types_eth::{Block as RpcBlock, BlockTransactions, Header as RpcHeader};

use crate::tx::SignedTx;

/// Blocks whose transactions and state can still be requested: at 2,000 transactions/s and 12 s
/// blocks 770,000 transactions, about 500 MB. Older ones are dropped, as a pruned node does.
pub const HISTORY_BLOCKS: usize = 32;

/// Base fee of the genesis block in wei per gas, the value mainnet's London fork began with.
const GENESIS_BASE_FEE_WEI: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct FullBlock {
    /// The header as `newHeads` notifies it.
    pub(crate) header: RpcHeader,
    pub(crate) txs: Vec<Arc<SignedTx>>,
}

/// A mined block, as it is returned to the test that mined it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    pub number: u64,
    pub hash: B256,
    pub parent_hash: B256,
    /// Seconds since the Unix epoch.
    pub timestamp: u64,
    /// Hashes of its transactions, in order.
    pub txs: Vec<B256>,
}

impl FullBlock {
    pub(crate) fn summary(&self) -> Block {
        Block {
            number: self.header.number,
            hash: self.header.hash,
            parent_hash: self.header.parent_hash,
            timestamp: self.header.timestamp,
            txs: self.txs.iter().map(|tx| tx.hash).collect(),
        }
    }

    /// The block with its transactions, or with their hashes alone.
    pub(crate) fn object(&self, full: bool) -> RpcBlock {
        // No literal: newer versions of alloy have more fields.
        let place = TransactionInfo {
            block_hash: Some(self.header.hash),
            block_number: Some(self.header.number),
            base_fee: self.header.base_fee_per_gas,
            ..TransactionInfo::default()
        };
        let object = |(index, tx): (u64, &Arc<SignedTx>)| {
            tx.to_object(TransactionInfo { index: Some(index), ..place })
        };
        let transactions = if full {
            BlockTransactions::Full((0..).zip(&self.txs).map(object).collect())
        } else {
            BlockTransactions::Hashes(self.txs.iter().map(|tx| tx.hash).collect())
        };
        RpcBlock::new(self.header.clone(), transactions).with_withdrawals(Some(Vec::new().into()))
    }
}

/// The blocks of the recent past. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    blocks: VecDeque<Arc<FullBlock>>,
    /// The genesis block, which every node keeps.
    genesis: Arc<FullBlock>,
    mined: B256HashMap<(u64, usize)>,
    nonces: AddressHashMap<u64>,
    gas_limit: u64,
    /// How many blocks were ever made. It is part of each block, so that a block that replaces
    /// another has a different hash.
    made: u64,
}

impl Chain {
    pub(crate) fn new(now_s: u64, gas_limit: u64) -> Self {
        let header = Header {
            gas_limit,
            timestamp: now_s,
            base_fee_per_gas: Some(GENESIS_BASE_FEE_WEI),
            ..common_header()
        };
        let genesis = Arc::new(FullBlock { header: RpcHeader::new(header), txs: Vec::new() });
        Self {
            blocks: VecDeque::from([Arc::clone(&genesis)]),
            genesis,
            mined: B256HashMap::default(),
            nonces: AddressHashMap::default(),
            gas_limit,
            made: 1,
        }
    }

    /// Makes another chain on another genesis block. The accounts keep their nonces.
    pub(crate) fn with_new_genesis(&self, now_s: u64) -> Self {
        let mut header = Self::new(now_s, self.gas_limit).head().header.inner.clone();
        header.state_root = keccak256(self.made.to_be_bytes());
        let genesis = Arc::new(FullBlock { header: RpcHeader::new(header), txs: Vec::new() });
        Self {
            blocks: VecDeque::from([Arc::clone(&genesis)]),
            genesis,
            mined: B256HashMap::default(),
            nonces: self.nonces.clone(),
            gas_limit: self.gas_limit,
            made: self.made + 1,
        }
    }

    pub(crate) fn head(&self) -> &Arc<FullBlock> {
        self.blocks.back().expect("a chain has at least its oldest kept block")
    }

    /// Returns the blocks of this chain that another chain does not have, as far as both are kept.
    pub(crate) fn without(&self, other: &Self) -> Vec<Arc<FullBlock>> {
        let oldest = other.blocks.front().map_or(0, |block| block.header.number);
        let has = |block: &FullBlock| {
            let same = other.by_number(block.header.number);
            block.header.number < oldest
                || same.is_some_and(|same| same.header.hash == block.header.hash)
        };
        self.blocks.iter().filter(|block| !has(block)).cloned().collect()
    }

    pub(crate) fn nonce(&self, address: &Address) -> u64 {
        self.nonces.get(address).copied().unwrap_or_default()
    }

    pub(crate) fn by_number(&self, number: u64) -> Option<&Arc<FullBlock>> {
        if number == 0 {
            return Some(&self.genesis);
        }
        let oldest = self.blocks.front()?.header.number;
        self.blocks.get(usize::try_from(number.checked_sub(oldest)?).ok()?)
    }

    pub(crate) fn by_hash(&self, hash: &B256) -> Option<&Arc<FullBlock>> {
        let mut blocks = self.blocks.iter().rev().chain([&self.genesis]);
        blocks.find(|block| block.header.hash == *hash)
    }

    pub(crate) fn tx(&self, hash: &B256) -> Option<&Arc<SignedTx>> {
        let (number, index) = *self.mined.get(hash)?;
        Some(&self.by_number(number)?.txs[index])
    }

    /// The base fee of the block after the head, in wei per gas.
    pub(crate) fn next_base_fee_wei(&self) -> u64 {
        let header = &self.head().header;
        header.next_block_base_fee(BaseFeeParams::ethereum()).unwrap_or(GENESIS_BASE_FEE_WEI)
    }

    /// Appends a block. Its used gas is the sum of the limits, since nothing is executed; its roots
    /// are digests that differ from those of every other block.
    pub(crate) fn append(&mut self, txs: Vec<Arc<SignedTx>>, now_s: u64) -> Arc<FullBlock> {
        let parent = self.head();
        let hashes: Vec<u8> = txs.iter().flat_map(|tx| tx.hash).collect();
        let header = Header {
            parent_hash: parent.header.hash,
            number: parent.header.number + 1,
            timestamp: now_s.max(parent.header.timestamp + 1),
            gas_limit: self.gas_limit,
            gas_used: txs.iter().map(|tx| tx.gas_limit()).sum::<u64>().min(self.gas_limit),
            base_fee_per_gas: Some(self.next_base_fee_wei()),
            blob_gas_used: Some(txs.iter().filter_map(|tx| tx.blob_gas_used()).sum()),
            excess_blob_gas: parent.header.next_block_excess_blob_gas(BlobParams::osaka()),
            transactions_root: keccak256(hashes),
            state_root: keccak256(self.made.to_be_bytes()),
            mix_hash: keccak256(self.made.to_le_bytes()),
            ..common_header()
        };
        self.made += 1;
        let block = Arc::new(FullBlock { header: RpcHeader::new(header), txs });
        for (index, tx) in block.txs.iter().enumerate() {
            self.mined.insert(tx.hash, (block.header.number, index));
            self.nonces.insert(tx.signer(), tx.nonce() + 1);
        }
        self.blocks.push_back(block.clone());
        while self.blocks.len() > HISTORY_BLOCKS + 1 {
            let oldest = self.blocks.pop_front().expect("it is longer than what is kept");
            for tx in &oldest.txs {
                self.mined.remove(&tx.hash);
            }
        }
        block
    }

    /// How many blocks can be removed from the head.
    pub(crate) fn undoable(&self) -> usize {
        self.blocks.len() - 1
    }

    /// Removes the head, and sets the nonces of its senders back.
    pub(crate) fn pop(&mut self) -> Arc<FullBlock> {
        assert!(self.undoable() > 0, "the oldest kept block stays");
        let block = self.blocks.pop_back().expect("just counted");
        for tx in block.txs.iter().rev() {
            self.mined.remove(&tx.hash);
            self.nonces.insert(tx.signer(), tx.nonce());
        }
        block
    }
}

fn common_header() -> Header {
    Header {
        beneficiary: Address::with_last_byte(0xfe),
        difficulty: U256::ZERO,
        extra_data: Bytes::from_static(b"mock-node"),
        withdrawals_root: Some(EMPTY_WITHDRAWALS),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(alloy_eips::eip7685::EMPTY_REQUESTS_HASH),
        ..Header::default()
    }
}
