//! The orders that recent blocks took from the pool, so that undoing a block puts them back.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use alloy_primitives::{B256, map::B256Map};
use chain_view::{Block, Head, RecentBlocks, Relation, Taken};

use super::limits::MAX_UNMINE_BYTES;
use crate::order::{Order, Transaction};

/// Newest blocks whose late transactions are kept: one more than the deepest reorg since proof of stake had (seven, on the
/// beacon chain on 25 May 2022). What they contain fits; an older one would be dropped at once, and noted as dropped each
/// time that a caller sends it.
const LATE_BLOCKS: u64 = 8;

/// The orders that one block took.
#[derive(Debug, Default)]
struct TakenOrders {
    orders: VecDeque<Arc<Order>>,
    by_hash: B256Map<Arc<Order>>,
    bytes: usize,
    /// Orders that exceeded the byte limit and were not kept, and the last block of each that has one.
    dropped: Vec<(B256, Option<u64>)>,
}

/// The orders of one kind that recent blocks took, with a byte limit of their own.
#[derive(Debug)]
pub(crate) struct Kept {
    /// By number and hash: the orders of the oldest block are dropped first.
    of_blocks: BTreeMap<(u64, B256), TakenOrders>,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) relation: Relation,
    /// The orders that the replaced blocks had taken, the oldest block's first.
    pub(crate) untaken: VecDeque<Arc<Order>>,
    /// How many more they had taken: there was no room to keep them. Without what the new block contains, and what is for a
    /// block that has passed; with bundles and transactions whose nonces it uses, of which no more is known than the hash.
    pub(crate) not_kept: u64,
    /// All transactions that the replaced blocks, and those that a gap forgot, had taken or contained.
    pub(crate) free: Vec<B256>,
}

/// The recent blocks, each with the orders that it took.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) recent: RecentBlocks,
    /// What the blocks contain.
    pub(crate) mined: Kept,
    /// What they made impossible: bundles, and transactions whose nonces they used. A quarter of the bytes: whoever has one
    /// transaction mined can end as many of these as the pool holds, and they must not displace what others had mined.
    pub(crate) ended: Kept,
}

impl Chain {
    pub(crate) fn new(max_blocks: usize) -> Self {
        let ended = MAX_UNMINE_BYTES / 4;
        Self {
            recent: RecentBlocks::new(max_blocks),
            mined: Kept::new(MAX_UNMINE_BYTES - ended),
            ended: Kept::new(ended),
        }
    }

    pub(crate) fn head(&self) -> Option<&Head> {
        self.recent.head()
    }

    /// The base fee of the next block; zero while unknown, so that tips alone decide.
    pub(crate) fn next_base_fee_wei(&self) -> u64 {
        self.head().and_then(|head| head.next_base_fee_wei).unwrap_or(0)
    }

    /// Whether a recent block took the transaction, and how.
    pub(crate) fn taken(&self, tx: &Transaction) -> Option<Taken> {
        self.recent.taken(tx.hash(), &tx.sender(), tx.nonce())
    }

    /// Appends a block, after undoing those that it replaces. What follows from it is done in steps, so that
    /// other changes come in between: see [`OrderPool::on_head`](crate::OrderPool::on_head).
    pub(crate) fn push(&mut self, block: Block) -> Change {
        let number = block.head.number;
        let pushed = self.recent.push(block);
        let mut change = Change {
            relation: pushed.relation,
            untaken: VecDeque::new(),
            not_kept: 0,
            free: Vec::new(),
        };
        let undone = pushed.undone.into_iter().map(|block| (block, true));
        let forgotten = pushed.forgotten.into_iter().map(|block| (block, false));
        for (block, is_undone) in undone.chain(forgotten) {
            // What a gap forgot may be pending: it is admitted when it comes again.
            let is_free = is_undone || matches!(pushed.relation, Relation::Gap { .. });
            if is_free {
                change.free.extend(block.mined.iter());
            }
            for kept in [&mut self.mined, &mut self.ended] {
                let taken = kept.leave(&block.head);
                if is_undone {
                    let is_left = |(hash, last): &&(B256, Option<u64>)| {
                        !self.recent.is_mined(hash) && last.is_none_or(|last| last > number)
                    };
                    change.not_kept += taken.dropped.iter().filter(is_left).count() as u64;
                }
                if is_free {
                    change.free.extend(taken.dropped.iter().map(|(hash, _)| *hash));
                    change.free.extend(taken.orders.iter().map(|order| *order.id().hash()));
                }
                if is_undone {
                    change.untaken.extend(taken.orders);
                }
            }
        }
        change
    }

    /// Keeps a transaction that came after its block, one of the newest [`LATE_BLOCKS`], so that undoing the block brings it in:
    /// a builder of a fleet may be told that it is pending again before it is told of the reorg, and of what callers sent to
    /// another machine after its block.
    /// Nobody tells it a second time. One that is kept already becomes public if this one is. Any caller can send what is
    /// mined, so nothing is searched here.
    pub(crate) fn take_late(&mut self, tx: Transaction) {
        let newest = self.recent.head().map_or(0, |head| head.number);
        let head = self.recent.block_of(tx.hash()).map(|block| block.head);
        let Some(head) = head.filter(|head| head.number.saturating_add(LATE_BLOCKS) > newest)
        else {
            return;
        };
        let taken = self.mined.of_blocks.get(&(head.number, head.hash));
        let kept = taken.and_then(|taken| taken.by_hash.get(tx.hash())?.as_tx());
        match kept {
            Some(kept) => _ = kept.came_again(tx.origin(), tx.first_seen()),
            None => self.mined.take(&head, Arc::new(Order::Tx(tx))),
        }
    }
}

impl Kept {
    const fn new(max_bytes: usize) -> Self {
        Self { of_blocks: BTreeMap::new(), bytes: 0, max_bytes }
    }

    fn leave(&mut self, head: &Head) -> TakenOrders {
        let taken = self.of_blocks.remove(&(head.number, head.hash)).unwrap_or_default();
        self.bytes -= taken.bytes;
        taken
    }

    /// Records that a block took an order of the pool, so that undoing the block puts it back.
    pub(crate) fn take(&mut self, by: &Head, order: Arc<Order>) {
        let taken = self.of_blocks.entry((by.number, by.hash)).or_default();
        taken.bytes += order.size_bytes();
        self.bytes += order.size_bytes();
        taken.by_hash.insert(*order.id().hash(), Arc::clone(&order));
        taken.orders.push_back(order);
        // No more of them than is needed: thousands at once would take milliseconds.
        for oldest in self.of_blocks.values_mut() {
            while self.bytes > self.max_bytes
                && let Some(order) = oldest.orders.pop_front()
            {
                oldest.bytes -= order.size_bytes();
                self.bytes -= order.size_bytes();
                let hash = *order.id().hash();
                oldest.by_hash.remove(&hash);
                let terms = order.as_tx().filter(|tx| !tx.is_public());
                let terms = terms.and_then(Transaction::private_terms);
                let last = order.block().or(terms.map(|terms| terms.max_block));
                oldest.dropped.push((hash, last));
            }
            if self.bytes <= self.max_bytes {
                break;
            }
        }
    }
}
