//! The orders that recent blocks took from the pool, so that undoing a block puts them back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256, map::B256Map};
use chain_view::{Block, Head, RecentBlocks, Relation, Taken};

use super::{
    claims::Claim,
    limits::{MAX_ENDED_BYTES, MAX_UNMINE_BYTES},
    pooled_txs::Retention,
    usage::{Measure, Usage},
};
use crate::{
    holder::Holder,
    order::{Order, Transaction},
};

/// Newest blocks whose late transactions are kept: one more than the deepest reorg since proof of stake had (seven, on the
/// beacon chain on 25 May 2022). What they contain fits; an older one would be dropped at once, and noted as dropped each
/// time that a caller sends it.
const LATE_BLOCKS: u64 = 8;

/// Most claims that are kept with an order, those of known holders first: who else held it may send
/// it again.
pub(super) const MAX_TAKEN_CLAIMS: usize = 4;

/// An order that a block took, with all that is needed to put it back as it was.
#[derive(Clone, Debug)]
pub(crate) struct TakenOrder {
    pub(super) order: Arc<Order>,
    /// Those who held it; none if it was in the node's share.
    pub(super) claims: Vec<Claim>,
    /// Of a transaction.
    pub(super) retention: Retention,
    /// The signer who may cancel a private transaction.
    pub(super) signer: Option<Address>,
}

/// The orders that one block took.
#[derive(Debug, Default)]
struct TakenOrders {
    /// In the order in which they were taken, each with the holder for whom it counts.
    orders: BTreeMap<u64, (TakenOrder, Holder)>,
    by_hash: B256Map<u64>,
    /// Orders that exceeded the byte limit and were not kept, and the last block of each that has one.
    dropped: Vec<(B256, Option<u64>)>,
}

/// An order by the number of its block, the block, and its own number.
type Position = (u64, B256, u64);

/// The orders of one kind that recent blocks took, with a byte limit of their own.
#[derive(Debug)]
pub(crate) struct Kept {
    of_blocks: BTreeMap<(u64, B256), TakenOrders>,
    /// By holder, the oldest last: at the limit the holder with the most bytes loses its oldest.
    usage: Usage<(), Reverse<Position>>,
    /// The number of the next order.
    next: u64,
    max_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) relation: Relation,
    /// The orders that the replaced blocks had taken, the oldest block's first.
    pub(crate) reinserted: VecDeque<TakenOrder>,
    /// How many more they had taken: there was no room to keep them. Without what the new block contains, and what is for a
    /// block that has passed; with bundles and transactions whose nonces it uses, of which no more is known than the hash.
    pub(crate) dropped: u64,
    /// All transactions that the replaced blocks, and those that a gap forgot, had taken or contained.
    pub(crate) forgotten: Vec<B256>,
}

/// The recent blocks, each with the orders that it took.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) recent: RecentBlocks,
    /// What the blocks contain.
    mined: Kept,
    /// What they made impossible, bundles and transactions whose nonces they used: those of callers,
    /// and those of the node, the host and the signers that it knows. Whoever has one transaction
    /// mined can end as many bundles as may be pooled, and they must not displace what others had.
    ended: [Kept; 2],
}

impl Chain {
    pub(crate) fn new(max_blocks: usize) -> Self {
        let ended = || Kept::new(MAX_ENDED_BYTES);
        Self {
            recent: RecentBlocks::new(max_blocks),
            mined: Kept::new(MAX_UNMINE_BYTES - 2 * MAX_ENDED_BYTES),
            ended: [ended(), ended()],
        }
    }

    /// Keeps an order that a block made impossible.
    pub(crate) fn take_ended(&mut self, head: &Head, taken: TakenOrder) {
        let holder = taken.claims.first().map_or(Holder::Host, |(_, holder)| *holder);
        self.ended[usize::from(holder.is_known())].take(head, taken, holder);
    }

    /// Keeps an order that a block contains. To have one mined costs ether, so all share one limit.
    pub(crate) fn take_mined(&mut self, head: &Head, taken: TakenOrder) {
        self.mined.take(head, taken, Holder::Host);
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
            reinserted: VecDeque::new(),
            dropped: 0,
            forgotten: Vec::new(),
        };
        let undone = pushed.undone.into_iter().map(|block| (block, true));
        let forgotten = pushed.forgotten.into_iter().map(|block| (block, false));
        for (block, is_undone) in undone.chain(forgotten) {
            // What a gap forgot may be pending: it is admitted when it comes again.
            let is_forgotten = is_undone || matches!(pushed.relation, Relation::Gap { .. });
            if is_forgotten {
                change.forgotten.extend(block.mined.iter());
            }
            let [of_callers, of_known] = &mut self.ended;
            for kept in [&mut self.mined, of_known, of_callers] {
                let taken = kept.leave(&block.head);
                if is_undone {
                    let is_left = |(hash, last): &&(B256, Option<u64>)| {
                        !self.recent.is_mined(hash) && last.is_none_or(|last| last > number)
                    };
                    change.dropped += taken.dropped.iter().filter(is_left).count() as u64;
                }
                if is_forgotten {
                    change.forgotten.extend(taken.dropped.iter().map(|(hash, _)| *hash));
                    change
                        .forgotten
                        .extend(taken.orders.values().map(|(taken, _)| *taken.order.id().hash()));
                }
                if is_undone {
                    let orders = taken.orders.into_values().map(|(order, _)| order);
                    change.reinserted.extend(orders);
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
        let kept = taken.and_then(|taken| taken.orders.get(taken.by_hash.get(tx.hash())?));
        if let Some(kept) = kept.and_then(|(taken, _)| taken.order.as_tx()) {
            kept.came_again(tx.origin(), tx.first_seen());
            return;
        }
        let last_block = tx.private_terms().map(|terms| terms.max_block);
        let until = last_block.is_none().then_some(Duration::ZERO);
        let retention = Retention { is_listed: false, until, last_block };
        let signer = tx.private_terms().and_then(|terms| terms.signer);
        let order = Arc::new(Order::Tx(tx));
        self.take_mined(&head, TakenOrder { order, claims: Vec::new(), retention, signer });
    }
}

impl Kept {
    fn new(max_bytes: usize) -> Self {
        Self { of_blocks: BTreeMap::new(), usage: Usage::default(), next: 0, max_bytes }
    }

    /// Takes out all orders of a block.
    fn leave(&mut self, head: &Head) -> TakenOrders {
        let block = self.of_blocks.remove(&(head.number, head.hash)).unwrap_or_default();
        for (number, (taken, holder)) in &block.orders {
            let position = Reverse((head.number, head.hash, *number));
            self.usage.remove(*holder, (), position, taken.order.size_bytes());
        }
        block
    }

    /// Keeps an order that a block took from the pool, so that undoing the block puts it back.
    fn take(&mut self, head: &Head, taken: TakenOrder, holder: Holder) {
        let number = self.next;
        self.next += 1;
        let position = Reverse((head.number, head.hash, number));
        self.usage.insert(holder, (), position, taken.order.size_bytes());
        let block = self.of_blocks.entry((head.number, head.hash)).or_default();
        block.by_hash.insert(*taken.order.id().hash(), number);
        block.orders.insert(number, (taken, holder));
        // No more of them than is needed: thousands at once would take milliseconds.
        while self.usage.total.bytes > self.max_bytes && self.drop_one() {}
    }

    /// Drops the oldest order of the holder with the most bytes.
    fn drop_one(&mut self) -> bool {
        let largest = self.usage.by_size.by(Measure::Bytes).last();
        let held = largest.and_then(|(_, holder)| self.usage.holders.get(holder));
        let Some(&position) = held.and_then(|held| held.items.last()) else { return false };
        let Reverse((block_number, block_hash, number)) = position;
        let Some(block) = self.of_blocks.get_mut(&(block_number, block_hash)) else {
            return false;
        };
        let Some((taken, holder)) = block.orders.remove(&number) else { return false };
        let hash = *taken.order.id().hash();
        block.by_hash.remove(&hash);
        self.usage.remove(holder, (), position, taken.order.size_bytes());
        let is_timed = taken.retention.is_listed || taken.retention.until.is_some();
        let last_block = taken.retention.last_block.filter(|_| !is_timed);
        block.dropped.push((hash, taken.order.block().or(last_block)));
        true
    }
}
