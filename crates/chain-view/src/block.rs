//! The types for heads, blocks and nonces that all crates share.

use std::sync::Arc;

use alloy_primitives::{Address, B256};

/// The head of the chain: the fields of its newest block that a builder needs for the next one. A
/// later version may have more fields, so end a literal with `..Head::new(…)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
    /// The parent's hash, which distinguishes a reorg from the next block.
    pub parent_hash: B256,
    /// Seconds since the Unix epoch.
    pub timestamp: u64,
    /// Base fee of the next block, in wei per gas; `None` if it is not known, or before London.
    pub next_base_fee_wei: Option<u64>,
    /// Base fee of the block itself, in wei per gas; `None` if it is not known, or before London.
    pub base_fee_wei: Option<u64>,
    /// Blob gas that the block used; `None` if it is not known, or before Cancun.
    pub blob_gas_used: Option<u64>,
    /// Excess blob gas of the block; `None` if it is not known, or before Cancun. From it, the
    /// block's base fee and its blob gas, a builder computes the next block's blob base fee
    /// (EIP-4844, EIP-7918), with the blob parameters of its fork.
    pub excess_blob_gas: Option<u64>,
    /// Gas limit of the block.
    pub gas_limit: u64,
    /// The address that received the fees of the block.
    pub fee_recipient: Address,
}

impl Head {
    /// Makes a head whose other fields are zero or unknown.
    #[must_use]
    pub const fn new(number: u64, hash: B256, parent_hash: B256) -> Self {
        Self {
            number,
            hash,
            parent_hash,
            timestamp: 0,
            next_base_fee_wei: None,
            base_fee_wei: None,
            blob_gas_used: None,
            excess_blob_gas: None,
            gas_limit: 0,
            fee_recipient: Address::ZERO,
        }
    }
}

/// A block: its head, and the transactions that it contains.
///
/// A clone shares the list of hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The fields of its header.
    pub head: Head,
    /// The hashes of its transactions, in any order.
    pub mined: Arc<[B256]>,
}

impl Block {
    /// Makes a block with these transactions.
    #[must_use]
    pub fn new(head: Head, mined: impl Into<Arc<[B256]>>) -> Self {
        Self { head, mined: mined.into() }
    }
}

/// A nonce that a block raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct NonceUpdate {
    /// The sender.
    pub sender: Address,
    /// The lowest nonce that the sender can still use.
    pub next_nonce: u64,
}

impl NonceUpdate {
    /// Makes an update: `next_nonce` is the lowest nonce that `sender` can still use.
    #[must_use]
    pub const fn new(sender: Address, next_nonce: u64) -> Self {
        Self { sender, next_nonce }
    }
}

impl From<(Address, u64)> for NonceUpdate {
    fn from((sender, next_nonce): (Address, u64)) -> Self {
        Self { sender, next_nonce }
    }
}

/// The nonces that one block raised, with those of private transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockNonces {
    /// The hash of the block.
    pub block_hash: B256,
    /// One update for each sender of the block.
    pub updates: Vec<NonceUpdate>,
}

impl BlockNonces {
    /// Makes the updates of one block.
    #[must_use]
    pub const fn new(block_hash: B256, updates: Vec<NonceUpdate>) -> Self {
        Self { block_hash, updates }
    }
}
