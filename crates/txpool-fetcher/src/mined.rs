//! What recent blocks took: hashes and nonces. A hash can arrive after its block.

use std::collections::VecDeque;

use alloy_primitives::{
    Address, B256,
    map::{AddressHashMap, B256HashMap},
};

/// Blocks remembered. Announcements came up to 11 ms after their block on geth, and after a stall
/// of some blocks; 64 blocks are 13 minutes. Worst case in memory: 64 × about 1,500 transactions
/// × (56 + 56) bytes = 11 MB.
const BLOCKS: usize = 64;

/// How a head relates to the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// The first one, or the child of the latest.
    Next,
    /// Known already.
    Repeat,
    /// Its parent is not known: heads were missed, or the reorg is deeper than what is remembered.
    Gap,
    /// Its parent is an older block: so many blocks were undone.
    Reorg(usize),
}

#[derive(Debug)]
struct Block {
    number: u64,
    hash: B256,
    mined: Vec<B256>,
    nonces: Vec<(Address, u64)>,
}

/// The latest blocks of the canonical chain and what they mined.
#[derive(Debug, Default)]
pub(crate) struct RecentlyMined {
    blocks: VecDeque<Block>,
    hashes: B256HashMap<u64>,
    next_nonces: AddressHashMap<u64>,
}

impl RecentlyMined {
    /// Where a block with this hash and parent would stand.
    pub(crate) fn relate(&self, hash: B256, parent_hash: B256) -> Link {
        if self.blocks.iter().any(|block| block.hash == hash) {
            return Link::Repeat;
        }
        match self.blocks.iter().rev().position(|block| block.hash == parent_hash) {
            Some(0) => Link::Next,
            Some(undone) => Link::Reorg(undone),
            None if self.blocks.is_empty() => Link::Next,
            None => Link::Gap,
        }
    }

    pub(crate) fn latest(&self) -> Option<(u64, B256)> {
        self.blocks.back().map(|block| (block.number, block.hash))
    }

    /// The number of the oldest block remembered.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.blocks.front().map(|block| block.number)
    }

    pub(crate) fn knows(&self, hash: B256) -> bool {
        self.blocks.iter().any(|block| block.hash == hash)
    }

    /// Appends a block, after undoing what stands behind its parent. Returns the hashes of the
    /// undone blocks' transactions that the new block does not contain.
    pub(crate) fn push(
        &mut self,
        number: u64,
        hash: B256,
        parent_hash: B256,
        mined: &[B256],
    ) -> Vec<B256> {
        let keep = match self.relate(hash, parent_hash) {
            Link::Repeat => return Vec::new(),
            Link::Next => self.blocks.len(),
            Link::Reorg(undone) => self.blocks.len() - undone,
            // Unknown parent: blocks at or above this height cannot be on the new chain.
            Link::Gap => self.blocks.iter().filter(|block| block.number < number).count(),
        };
        let mut undone = Vec::new();
        while self.blocks.len() > keep {
            let Some(block) = self.blocks.pop_back() else { break };
            for hash in block.mined {
                if self.hashes.get(&hash) == Some(&block.number) {
                    self.hashes.remove(&hash);
                    undone.push(hash);
                }
            }
        }
        if !undone.is_empty() {
            self.rebuild_nonces();
        }
        self.hashes.extend(mined.iter().map(|hash| (*hash, number)));
        self.blocks.push_back(Block { number, hash, mined: mined.to_vec(), nonces: Vec::new() });
        if self.blocks.len() > BLOCKS {
            self.forget_oldest();
        }
        undone.retain(|hash| !self.hashes.contains_key(hash));
        undone
    }

    /// Records the next nonces of the senders of a block that was pushed.
    pub(crate) fn nonces(&mut self, block_hash: B256, next_nonces: &[(Address, u64)]) {
        let Some(block) = self.blocks.iter_mut().find(|block| block.hash == block_hash) else {
            return;
        };
        block.nonces = next_nonces.to_vec();
        for (sender, next) in next_nonces {
            let slot = self.next_nonces.entry(*sender).or_insert(*next);
            *slot = (*slot).max(*next);
        }
    }

    pub(crate) fn contains(&self, hash: &B256) -> bool {
        self.hashes.contains_key(hash)
    }

    /// Whether a block took this nonce of the sender, by whatever transaction.
    pub(crate) fn is_nonce_used(&self, sender: &Address, nonce: u64) -> bool {
        self.next_nonces.get(sender).is_some_and(|next| nonce < *next)
    }

    fn forget_oldest(&mut self) {
        let Some(block) = self.blocks.pop_front() else { return };
        for hash in block.mined {
            if self.hashes.get(&hash) == Some(&block.number) {
                self.hashes.remove(&hash);
            }
        }
        // A nonce stays used for ever, but what is not asked again must not pile up: a sender
        // whose latest block is the forgotten one goes.
        for (sender, next) in block.nonces {
            if self.next_nonces.get(&sender) == Some(&next) {
                self.next_nonces.remove(&sender);
            }
        }
    }

    fn rebuild_nonces(&mut self) {
        self.next_nonces.clear();
        for block in &self.blocks {
            for (sender, next) in &block.nonces {
                let slot = self.next_nonces.entry(*sender).or_insert(*next);
                *slot = (*slot).max(*next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h(n: u64) -> B256 {
        B256::left_padding_from(&n.to_be_bytes())
    }

    #[test]
    fn a_hash_is_mined_until_its_block_is_undone() {
        let mut recent = RecentlyMined::default();
        assert!(recent.push(1, h(1), h(0), &[h(101), h(102)]).is_empty());
        assert!(recent.push(2, h(2), h(1), &[h(103)]).is_empty());
        assert_eq!(recent.relate(h(22), h(1)), Link::Reorg(1));
        assert_eq!(recent.push(2, h(22), h(1), &[h(104)]), vec![h(103)]);
        assert!(recent.contains(&h(101)) && recent.contains(&h(104)));
        assert!(!recent.contains(&h(103)));
        assert_eq!(recent.latest(), Some((2, h(22))));
    }

    #[test]
    fn a_transaction_that_is_in_both_branches_is_not_undone() {
        let mut recent = RecentlyMined::default();
        recent.push(1, h(1), h(0), &[]);
        recent.push(2, h(2), h(1), &[h(103)]);
        assert!(recent.push(2, h(22), h(1), &[h(103)]).is_empty());
        assert!(recent.contains(&h(103)));
    }

    #[test]
    fn a_nonce_is_used_until_its_block_is_undone() {
        let mut recent = RecentlyMined::default();
        let sender = Address::repeat_byte(7);
        recent.push(1, h(1), h(0), &[]);
        recent.nonces(h(1), &[(sender, 3)]);
        recent.push(2, h(2), h(1), &[h(9)]);
        recent.nonces(h(2), &[(sender, 5)]);
        assert!(recent.is_nonce_used(&sender, 4));
        assert!(!recent.is_nonce_used(&sender, 5));
        recent.push(2, h(22), h(1), &[]);
        assert!(recent.is_nonce_used(&sender, 2));
        assert!(!recent.is_nonce_used(&sender, 3));
    }

    #[test]
    fn an_unknown_parent_is_a_gap_and_a_known_block_a_repeat() {
        let mut recent = RecentlyMined::default();
        recent.push(1, h(1), h(0), &[]);
        assert_eq!(recent.relate(h(1), h(0)), Link::Repeat);
        assert_eq!(recent.relate(h(5), h(4)), Link::Gap);
        assert_eq!(recent.relate(h(2), h(1)), Link::Next);
    }

    #[test]
    fn the_memory_is_bounded_in_blocks() {
        let mut recent = RecentlyMined::default();
        for n in 1..1000u64 {
            recent.push(n, h(n), h(n - 1), &[h(n + 10_000)]);
            recent.nonces(h(n), &[(Address::left_padding_from(&n.to_be_bytes()), n)]);
        }
        assert_eq!(recent.blocks.len(), BLOCKS);
        assert_eq!(recent.hashes.len(), BLOCKS);
        assert_eq!(recent.next_nonces.len(), BLOCKS);
    }
}
