//! What a block builder knows of the chain: the head, the recent blocks, and the one rule for
//! reorgs.
//!
//! # What it is for
//! The fetcher and the order pool both have to know what recent blocks took: which transactions
//! they contain and which nonces they raised. This crate holds the types in which both speak of it,
//! and [`RecentBlocks`], the structure that both keep.
//!
//! # What it does not do
//! It asks no node, reads no clock and verifies no header: what it is told counts, as far as it fits
//! together. [`RecentBlocks::relate`] says whether it does.
//!
//! ```text
//!  Block { head, mined } --push---> RecentBlocks ---> Pushed { relation, undone, forgotten }
//!  NonceUpdate -----------raise---->     |
//!                                        +---> taken(hash, sender, nonce)?  head()  next_nonce()
//! ```
//!
//! # The life of a block
//! 1. It is pushed with the hashes of its transactions, which is a small answer of the node.
//! 2. The nonces it raised come later, in any order, from the full block: transactions that were
//!    never public raise nonces too.
//! 3. It leaves in one of two ways: a reorg undoes it, or it is the oldest and there are too many.
//!    Its hashes and its nonces leave with it, and nothing else does.
//!
//! # What can be lost
//! A reorg deeper than [`RecentBlocks::new`] was told to remember undoes what is remembered and no
//! more: whoever keeps transactions must compare with a node then. [`Relation::Gap`] says so.
//!
//! ```
//! use alloy_primitives::{Address, B256};
//! use chain_view::{Block, Head, NonceUpdate, RecentBlocks, Relation, Taken};
//!
//! let hash = B256::with_last_byte;
//! let (sender, tx) = (Address::with_last_byte(7), hash(100));
//! let mut blocks = RecentBlocks::new(64);
//! blocks.push(Block::new(Head::new(1, hash(1), hash(0)), []));
//! blocks.push(Block::new(Head::new(2, hash(2), hash(1)), [tx]));
//! blocks.raise(&hash(2), NonceUpdate::new(sender, 5));
//! assert_eq!(blocks.taken(&tx, &sender, 9), Some(Taken::Mined));
//! assert_eq!(blocks.taken(&hash(101), &sender, 4), Some(Taken::StaleNonce { next_nonce: 5 }));
//!
//! // Another block in the place of the second one: what that one took is free again.
//! let pushed = blocks.push(Block::new(Head::new(2, hash(22), hash(1)), []));
//! assert_eq!(pushed.relation, Relation::Reorg { replaced: 1 });
//! assert_eq!(blocks.taken(&hash(101), &sender, 4), None);
//! ```

mod base_fee;
mod block;
mod recent;

pub use self::{
    base_fee::next_base_fee_wei,
    block::{Block, BlockNonces, Head, NonceUpdate},
    recent::{Pushed, RecentBlocks, Relation, Taken},
};

use alloy_consensus::{EthereumTxEnvelope, TxEip4844WithSidecar};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;

/// A transaction as a node's pool holds it and passes it on: legacy, 2930, 1559, 7702, and 4844
/// with its sidecar in the EIP-4844 form (a proof per blob) or the EIP-7594 form (cell proofs).
pub type PooledTransaction =
    EthereumTxEnvelope<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>;
