//! What recent blocks did: which hashes they mined, which nonces they raised, which orders they
//! took from the pool. All of it can be undone block by block.

use crate::{event::Head, order::Order};
use alloy_primitives::{Address, B256};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

/// A nonce that a block raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Raised {
    next: u64,
    /// [`Block::serial`].
    by: u64,
}

#[derive(Debug)]
struct Block {
    /// Tells it from others of its number.
    serial: u64,
    head: Head,
    raised: Vec<Address>,
    taken: Vec<Arc<Order>>,
    taken_bytes: usize,
}

/// How a head relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadKind {
    /// The first, or the child of the last.
    Next,
    /// The same again: nothing to do.
    Same,
    /// It replaces this many known blocks.
    Reorg(usize),
    /// Blocks between it and the last are unknown.
    Gap,
}

#[derive(Debug)]
pub(crate) struct Chain {
    blocks: VecDeque<Block>,
    mined: HashMap<B256, u64>,
    /// What each block said of a sender: nonces come in any order of blocks, and each block's word
    /// goes with it.
    nonces: HashMap<Address, Vec<Raised>>,
    next_serial: u64,
    taken_bytes: usize,
    max_blocks: usize,
    max_taken_bytes: usize,
}

impl Chain {
    pub(crate) fn new(max_blocks: usize, max_taken_bytes: usize) -> Self {
        Self {
            blocks: VecDeque::new(),
            mined: HashMap::new(),
            nonces: HashMap::new(),
            next_serial: 0,
            taken_bytes: 0,
            max_blocks,
            max_taken_bytes,
        }
    }

    pub(crate) fn head(&self) -> Option<&Head> {
        self.blocks.back().map(|block| &block.head)
    }

    /// The base fee of the next block; zero while unknown, so that tips alone decide.
    pub(crate) fn base_fee_next_wei(&self) -> u64 {
        self.head().and_then(|head| head.base_fee_next_wei).unwrap_or(0)
    }

    pub(crate) fn is_mined(&self, hash: &B256) -> bool {
        self.mined.contains_key(hash)
    }

    /// The lowest nonce the sender can still use, if a recent block raised it.
    pub(crate) fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.nonces.get(sender)?.iter().map(|raised| raised.next).max()
    }

    pub(crate) fn kind(&self, head: &Head) -> HeadKind {
        let Some(last) = self.head() else {
            return HeadKind::Next;
        };
        if last.hash == head.hash {
            return HeadKind::Same;
        }
        match self.stale_from(head) {
            depth if depth > 0 => HeadKind::Reorg(depth),
            _ if last.hash == head.parent_hash => HeadKind::Next,
            _ => HeadKind::Gap,
        }
    }

    /// How many of the newest blocks are not ancestors of `head`, as far as can be known: all above
    /// its parent if that is known; else those at its height or above, and one at its parent's
    /// height that is not its parent.
    fn stale_from(&self, head: &Head) -> usize {
        let newest_first = || self.blocks.iter().rev();
        newest_first().position(|block| block.head.hash == head.parent_hash).unwrap_or_else(|| {
            newest_first()
                .take_while(|block| block.head.number.saturating_add(1) >= head.number)
                .count()
        })
    }

    /// Undoes the newest `depth` blocks. Returns what they had taken, oldest first, and all hashes
    /// they had mined.
    pub(crate) fn undo(&mut self, depth: usize) -> (Vec<Arc<Order>>, Vec<B256>) {
        let (mut taken, mut mined) = (Vec::new(), Vec::new());
        for _ in 0..depth {
            let Some(block) = self.blocks.pop_back() else {
                break;
            };
            for hash in &block.head.mined {
                self.mined.remove(hash);
            }
            self.unraise(&block);
            self.taken_bytes -= block.taken_bytes;
            mined.extend(block.head.mined);
            taken.push(block.taken);
        }
        (taken.into_iter().rev().flatten().collect(), mined)
    }

    /// Appends a block. The oldest is forgotten if there are too many.
    pub(crate) fn push(&mut self, head: Head) {
        for hash in &head.mined {
            self.mined.insert(*hash, head.number);
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        self.blocks.push_back(Block {
            serial,
            head,
            raised: Vec::new(),
            taken: Vec::new(),
            taken_bytes: 0,
        });
        while self.blocks.len() > self.max_blocks {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(block) = self.blocks.pop_front() else {
            return;
        };
        for hash in &block.head.mined {
            if self.mined.get(hash) == Some(&block.head.number) {
                self.mined.remove(hash);
            }
        }
        self.unraise(&block);
        self.taken_bytes -= block.taken_bytes;
    }

    /// Whether the block is one of those remembered.
    pub(crate) fn position(&self, block_hash: &B256) -> Option<usize> {
        self.blocks.iter().rposition(|block| block.head.hash == *block_hash)
    }

    fn unraise(&mut self, block: &Block) {
        for sender in &block.raised {
            if let Entry::Occupied(mut entry) = self.nonces.entry(*sender) {
                entry.get_mut().retain(|raised| raised.by != block.serial);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }

    /// Notes that the block at `position` raised the sender; says whether that is news.
    pub(crate) fn raise(&mut self, position: usize, sender: Address, next: u64) -> bool {
        let before = self.next_nonce(&sender);
        let block = &mut self.blocks[position];
        let words = self.nonces.entry(sender).or_default();
        match words.iter_mut().find(|raised| raised.by == block.serial) {
            Some(raised) => raised.next = raised.next.max(next),
            None => {
                words.push(Raised { next, by: block.serial });
                block.raised.push(sender);
            }
        }
        before.is_none_or(|before| before < next)
    }

    /// Notes that the block at `position` (the newest if `None`) took an order from the pool, so
    /// that undoing it brings it back.
    pub(crate) fn take(&mut self, position: Option<usize>, order: Arc<Order>) {
        let position = position.unwrap_or_else(|| self.blocks.len().saturating_sub(1));
        let Some(block) = self.blocks.get_mut(position) else {
            return;
        };
        block.taken_bytes += order.size_bytes();
        self.taken_bytes += order.size_bytes();
        block.taken.push(order);
        let mut oldest = 0;
        while self.taken_bytes > self.max_taken_bytes && oldest < self.blocks.len() {
            let block = &mut self.blocks[oldest];
            self.taken_bytes -= std::mem::take(&mut block.taken_bytes);
            block.taken = Vec::new();
            oldest += 1;
        }
    }
}
