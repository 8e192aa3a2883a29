//! Keeps the recent blocks of the canonical chain, and decides how a new block relates to them.

use std::collections::{HashMap, VecDeque, hash_map::Entry};

use alloy_primitives::{Address, B256};

use crate::block::{Block, Head, NonceUpdate};

/// How a block relates to the recent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Relation {
    /// The first block that is pushed, or the child of the newest block.
    Next,
    /// Already one of the recent blocks, as reported by another node: nothing changes.
    Repeat,
    /// The child of an older block: it replaces the blocks above its parent.
    Reorg {
        /// The number of replaced blocks.
        replaced: usize,
    },
    /// Its parent is not among the recent blocks: blocks in between were missed, or a reorg goes
    /// deeper than the remembered blocks. Nothing proves that those below are its ancestors, so
    /// they are forgotten.
    Gap {
        /// The number of known blocks at its parent's height and above, which cannot be its
        /// ancestors.
        replaced: usize,
    },
    /// Its parent is a recent block, but its number does not follow: nothing changes.
    Inconsistent,
}

impl Relation {
    /// Returns the number of blocks that the new block replaces.
    #[must_use]
    pub const fn replaced(&self) -> usize {
        match self {
            Self::Reorg { replaced } | Self::Gap { replaced } => *replaced,
            Self::Next | Self::Repeat | Self::Inconsistent => 0,
        }
    }

    /// Whether pushing the block changes anything.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        !matches!(self, Self::Repeat | Self::Inconsistent)
    }
}

/// The changes made by [`RecentBlocks::push`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// How the block relates to the recent ones.
    pub relation: Relation,
    /// The blocks that it replaced, oldest first. Their nonces are removed with them.
    pub undone: Vec<Block>,
    /// Other blocks that were removed, oldest first: to make room (none, one, or, for a block with
    /// very many transactions, several), or all that a [`Relation::Gap`] did not replace. It is
    /// unknown whether the latter are on the chain, so their transactions may be pending.
    pub forgotten: Vec<Block>,
}

/// Why a transaction can no longer be mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObsoleteReason {
    /// A recent block contains the transaction.
    Mined,
    /// A recent block contains another transaction of its sender with the same nonce or a higher
    /// one.
    StaleNonce {
        /// The lowest nonce that the sender can still use.
        next_nonce: u64,
    },
}

/// A nonce that a block raised.
#[derive(Clone, Copy, Debug)]
struct Raised {
    next_nonce: u64,
    /// [`Recent::serial`] of the block.
    block_serial: u64,
}

#[derive(Debug)]
struct Recent {
    /// Distinguishes it from other blocks of its number.
    serial: u64,
    block: Block,
    /// Senders with a [`Raised`] of this block.
    raised: Vec<Address>,
}

/// The recent blocks that contain a transaction.
#[derive(Clone, Copy, Debug, Default)]
struct MinedHash {
    /// The number of these blocks: one on a real chain.
    block_count: u32,
    /// The lower half of [`Recent::serial`] of the newest of these blocks.
    newest_serial: u32,
}

/// The most hashes of mined transactions that [`RecentBlocks`] remembers, unless a single block has
/// more.
///
/// 64 blocks of mainnet have at most 182,857 transactions (60,000,000 gas each, of transfers at
/// 21,000 gas), so this leaves room for almost three times the gas limit. In the table they take at
/// most 2^20 slots of 37 bytes, 39 MB, however many transactions a development chain, or a node
/// that lies, puts into a block.
pub const MAX_RECENT_HASHES: usize = 1 << 19;

/// The newest blocks of the canonical chain, with the hashes of their transactions and the nonces
/// that they raised. Each block is the parent of the next.
///
/// Bounded in blocks and in hashes ([`MAX_RECENT_HASHES`]). A full block of mainnet has some 1,500
/// transactions of as many senders, at about 40 + 40 bytes in the tables and 32 in the block: 64
/// such blocks are some 11 MB. The tables use the hasher of std, because a node that chooses hashes
/// does not know its secret.
#[derive(Debug)]
pub struct RecentBlocks {
    /// The oldest first.
    blocks: VecDeque<Recent>,
    /// The number of hashes of transactions in all blocks.
    hash_count: usize,
    mined: HashMap<B256, MinedHash>,
    /// The nonces that blocks raised, by sender. They are added in any order and removed with their
    /// block.
    nonces: HashMap<Address, Vec<Raised>>,
    /// [`Recent::serial`] of the next block.
    next_serial: u64,
    max_blocks: usize,
}

impl RecentBlocks {
    /// Makes an empty list that keeps the newest `max_blocks` blocks; 0 counts as 1. It keeps fewer
    /// if they have more than [`MAX_RECENT_HASHES`] transactions.
    #[must_use]
    pub fn new(max_blocks: usize) -> Self {
        Self {
            blocks: VecDeque::new(),
            hash_count: 0,
            mined: HashMap::default(),
            nonces: HashMap::default(),
            next_serial: 0,
            max_blocks: max_blocks.max(1),
        }
    }

    /// Returns the newest block's head.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.blocks.back().map(|recent| &recent.block.head)
    }

    /// Returns the blocks, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Block> + ExactSizeIterator {
        self.blocks.iter().map(|recent| &recent.block)
    }

    /// Returns the block with this hash, if it is one of the recent ones.
    #[must_use]
    pub fn block(&self, hash: &B256) -> Option<&Block> {
        self.iter().rev().find(|block| block.head.hash == *hash)
    }

    /// Returns how a block with this head relates to the recent ones. The pool and the fetcher both
    /// decide by it what is a reorg.
    #[must_use]
    pub fn relate(&self, head: &Head) -> Relation {
        if self.block(&head.hash).is_some() {
            return Relation::Repeat;
        }
        let newest_first = || self.iter().rev().map(|block| &block.head);
        let parent = newest_first().enumerate().find(|(_, known)| known.hash == head.parent_hash);
        match parent {
            Some((_, parent)) if parent.number.checked_add(1) != Some(head.number) => {
                Relation::Inconsistent
            }
            Some((0, _)) => Relation::Next,
            Some((replaced, _)) => Relation::Reorg { replaced },
            None if self.blocks.is_empty() => Relation::Next,
            // The known block at its parent's height is not its parent.
            None => Relation::Gap {
                replaced: newest_first()
                    .take_while(|known| known.number.saturating_add(1) >= head.number)
                    .count(),
            },
        }
    }

    /// Appends a block, after removing those that it replaces.
    pub fn push(&mut self, block: Block) -> Pushed {
        let relation = self.relate(&block.head);
        let mut pushed = Pushed { relation, undone: Vec::new(), forgotten: Vec::new() };
        if !relation.is_new() {
            return pushed;
        }
        let kept = self.blocks.len() - relation.replaced();
        for recent in self.blocks.split_off(kept) {
            pushed.undone.push(self.remove_from_tables(recent));
        }
        // The new hashes are added afterwards, so that the table never exceeds its bound.
        self.hash_count += block.mined.len();
        let max_kept = match relation {
            Relation::Gap { .. } => 0,
            _ => self.max_blocks - 1,
        };
        while self.blocks.len() > max_kept || self.hash_count > MAX_RECENT_HASHES {
            let Some(oldest) = self.blocks.pop_front() else { break };
            pushed.forgotten.push(self.remove_from_tables(oldest));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        for hash in block.mined.iter() {
            let mined = self.mined.entry(*hash).or_default();
            mined.block_count += 1;
            mined.newest_serial = serial as u32;
        }
        self.blocks.push_back(Recent { serial, block, raised: Vec::new() });
        pushed
    }

    /// Records that a block raised a nonce. Returns whether that raises the sender's known nonce;
    /// `None` if the block is not one of the recent ones, for instance after a reorg.
    pub fn raise(&mut self, block_hash: &B256, update: NonceUpdate) -> Option<bool> {
        let NonceUpdate { sender, next_nonce } = update;
        let before = self.next_nonce(&sender);
        let recent =
            self.blocks.iter_mut().rev().find(|recent| recent.block.head.hash == *block_hash)?;
        let nonces = self.nonces.entry(sender).or_default();
        match nonces.iter_mut().find(|raised| raised.block_serial == recent.serial) {
            Some(raised) => raised.next_nonce = raised.next_nonce.max(next_nonce),
            None => {
                nonces.push(Raised { next_nonce, block_serial: recent.serial });
                recent.raised.push(sender);
            }
        }
        Some(before.is_none_or(|before| before < next_nonce))
    }

    /// Whether one of the blocks contains the transaction.
    #[must_use]
    pub fn is_mined(&self, hash: &B256) -> bool {
        self.mined.contains_key(hash)
    }

    /// Returns the newest block that contains the transaction, without a search of the blocks'
    /// hashes.
    #[must_use]
    pub fn block_of(&self, hash: &B256) -> Option<&Block> {
        let newest = self.mined.get(hash)?.newest_serial;
        let recent = self.blocks.iter().rev().find(|recent| recent.serial as u32 == newest);
        recent.map(|recent| &recent.block)
    }

    /// Returns the lowest nonce that the sender can still use, if one of the blocks raised it.
    #[must_use]
    pub fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.nonces.get(sender)?.iter().map(|raised| raised.next_nonce).max()
    }

    /// Returns why the transaction can no longer be mined, if a recent block is the reason. A nonce
    /// counts once [`Self::raise`] has recorded it, which may be after [`Self::push`].
    #[must_use]
    pub fn obsolete_reason(
        &self,
        hash: &B256,
        sender: &Address,
        nonce: u64,
    ) -> Option<ObsoleteReason> {
        if self.is_mined(hash) {
            return Some(ObsoleteReason::Mined);
        }
        let next_nonce = self.next_nonce(sender).filter(|next| nonce < *next)?;
        Some(ObsoleteReason::StaleNonce { next_nonce })
    }

    /// Removes the hashes and the nonces of a block that has left [`Self::blocks`] from the other
    /// tables. Returns the block.
    fn remove_from_tables(&mut self, recent: Recent) -> Block {
        self.hash_count -= recent.block.mined.len();
        for hash in recent.block.mined.iter() {
            if let Entry::Occupied(mut entry) = self.mined.entry(*hash) {
                entry.get_mut().block_count -= 1;
                if entry.get().block_count == 0 {
                    entry.remove();
                }
            }
        }
        // The sender keeps the nonces that other blocks raised.
        for sender in recent.raised {
            if let Entry::Occupied(mut nonces) = self.nonces.entry(sender) {
                nonces.get_mut().retain(|raised| raised.block_serial != recent.serial);
                if nonces.get().is_empty() {
                    nonces.remove();
                }
            }
        }
        recent.block
    }
}
