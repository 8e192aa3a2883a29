//! Decides which of the orders that recent blocks removed are kept, so that undoing a block puts
//! them back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256, map::B256Map};
use chain_view::{Block, Head, ObsoleteReason, RecentBlocks, Relation};

use super::{
    claims::Claim,
    limits::{MAX_INVALIDATED_BYTES, MAX_REORG_BYTES},
    pooled_txs::Retention,
    usage::{Measure, Usage},
};
use crate::{
    holder::Holder,
    order::{Order, Transaction},
};

/// The number of newest blocks whose late transactions are kept: one more than the deepest reorg
/// since proof of stake had (seven, on the beacon chain on 25 May 2022). Their contents fit. A late
/// transaction of an older block would be dropped at once, and be noted as dropped each time that a
/// caller sends it.
const MAX_LATE_BLOCKS: u64 = 8;

/// The most claims that are kept with an order, those of known holders first. Other holders may
/// send it again.
pub(super) const MAX_RETAINED_CLAIMS: usize = 4;

/// An order that a block removed, with everything that is needed to put it back unchanged.
#[derive(Clone, Debug)]
pub(crate) struct RemovedOrder {
    pub(super) order: Arc<Order>,
    /// The claims on it; none if it was in the node's share.
    pub(super) claims: Vec<Claim>,
    /// What kept a transaction.
    pub(super) retention: Retention,
    /// The signer who may cancel a private transaction.
    pub(super) signer: Option<Address>,
}

/// The orders that one block removed.
#[derive(Debug, Default)]
struct BlockOrders {
    /// In the order in which they were removed, each with the holder that it counts for.
    orders: BTreeMap<u64, (RemovedOrder, Holder)>,
    by_hash: B256Map<u64>,
    /// The orders that exceeded the byte limit and were not kept, each with its last block if it
    /// has one.
    dropped: Vec<(B256, Option<u64>)>,
}

/// An order by the number of its block, the block's hash, and its own number.
type Position = (u64, B256, u64);

/// The orders of one kind that recent blocks removed, with a byte limit of their own.
#[derive(Debug)]
pub(crate) struct ReorgStore {
    blocks: BTreeMap<(u64, B256), BlockOrders>,
    /// By holder, the oldest last: at the limit the holder with the most bytes loses its oldest.
    usage: Usage<(), Reverse<Position>>,
    next_number: u64,
    max_bytes: usize,
}

/// What follows from a new block.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) relation: Relation,
    /// The orders that the replaced blocks had removed, those of the oldest block first.
    pub(crate) reinserted: VecDeque<RemovedOrder>,
    /// The number of other orders that the replaced blocks had removed, and that were not kept for
    /// want of room. Orders that the new block contains, and those for a block that has passed, are
    /// not counted. Bundles and transactions whose nonces the new block uses are counted, because
    /// only their hashes are known.
    pub(crate) dropped: u64,
    /// All transactions that replaced blocks, and blocks that a gap forgot, contained or removed.
    pub(crate) forgotten: Vec<B256>,
}

/// The recent blocks, each with the orders that it removed.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) recent: RecentBlocks,
    /// The orders that the blocks contain.
    mined: ReorgStore,
    /// The orders that the blocks invalidated (bundles, and transactions whose nonces they used):
    /// first those of callers, then those of the node, the host and the signers that it knows.
    ///
    /// Whoever has one transaction mined can invalidate as many bundles as may be pooled, and these
    /// must not displace those of known signers.
    invalidated: [ReorgStore; 2],
}

impl Chain {
    pub(crate) fn new(max_blocks: usize) -> Self {
        let invalidated = || ReorgStore::new(MAX_INVALIDATED_BYTES);
        Self {
            recent: RecentBlocks::new(max_blocks),
            mined: ReorgStore::new(MAX_REORG_BYTES - 2 * MAX_INVALIDATED_BYTES),
            invalidated: [invalidated(), invalidated()],
        }
    }

    /// Keeps an order that a block invalidated.
    pub(crate) fn retain_invalidated(&mut self, head: &Head, removed: RemovedOrder) {
        let holder = removed.claims.first().map_or(Holder::Host, |(_, holder)| *holder);
        self.invalidated[usize::from(holder.is_known())].insert(head, removed, holder);
    }

    /// Keeps an order that a block contains. To have an order mined costs ether, so all holders
    /// share one limit.
    pub(crate) fn retain_mined(&mut self, head: &Head, removed: RemovedOrder) {
        self.mined.insert(head, removed, Holder::Host);
    }

    pub(crate) fn head(&self) -> Option<&Head> {
        self.recent.head()
    }

    /// Returns the base fee of the next block; zero while it is unknown, so that tips alone decide.
    pub(crate) fn next_base_fee_wei(&self) -> u64 {
        self.head().and_then(|head| head.next_base_fee_wei).unwrap_or(0)
    }

    /// Returns why a recent block makes the transaction obsolete, if one does.
    pub(crate) fn obsolete_reason(&self, tx: &Transaction) -> Option<ObsoleteReason> {
        self.recent.obsolete_reason(tx.hash(), &tx.sender(), tx.nonce())
    }

    /// Appends a block, after undoing those that it replaces. The caller applies the returned
    /// change in steps, so that other operations come in between: see
    /// [`OrderPool::on_head`](crate::OrderPool::on_head).
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
            // Transactions of blocks that a gap forgot may be pending. They are admitted when they
            // are announced again.
            let is_forgotten = is_undone || matches!(pushed.relation, Relation::Gap { .. });
            if is_forgotten {
                change.forgotten.extend(block.mined.iter());
            }
            let [of_callers, of_known] = &mut self.invalidated;
            for store in [&mut self.mined, of_known, of_callers] {
                let BlockOrders { orders, dropped, .. } = store.remove_block(&block.head);
                if is_undone {
                    let is_lost = |(hash, last_block): &&(B256, Option<u64>)| {
                        !self.recent.is_mined(hash)
                            && last_block.is_none_or(|last_block| last_block > number)
                    };
                    change.dropped += dropped.iter().filter(is_lost).count() as u64;
                }
                if is_forgotten {
                    change.forgotten.extend(dropped.iter().map(|(hash, _)| *hash));
                    change
                        .forgotten
                        .extend(orders.values().map(|(removed, _)| *removed.order.id().hash()));
                }
                if is_undone {
                    change.reinserted.extend(orders.into_values().map(|(removed, _)| removed));
                }
            }
        }
        change
    }

    /// Keeps a transaction that arrived after its block, if the block is one of the newest
    /// [`MAX_LATE_BLOCKS`], so that undoing the block brings it in.
    ///
    /// A builder of a fleet may learn that a transaction is pending again before it learns of the
    /// reorg, and may learn of another machine's orders after their block. No one sends these a
    /// second time. A transaction that is kept already becomes public if this one is. Any caller
    /// can send mined transactions, so this does no search.
    pub(crate) fn retain_late(&mut self, tx: Transaction) {
        let newest = self.recent.head().map_or(0, |head| head.number);
        let head = self.recent.block_of(tx.hash()).map(|block| block.head);
        let is_recent = |head: &Head| head.number.saturating_add(MAX_LATE_BLOCKS) > newest;
        let Some(head) = head.filter(is_recent) else { return };
        let block = self.mined.blocks.get(&(head.number, head.hash));
        let kept = block.and_then(|block| block.orders.get(block.by_hash.get(tx.hash())?));
        if let Some(kept) = kept.and_then(|(removed, _)| removed.order.as_tx()) {
            kept.record_repeat(tx.origin(), tx.first_seen());
            if kept.has_older_sidecar_than(&tx) && !tx.origin().is_external() {
                let order = Arc::new(Order::Tx(kept.with_envelope(&tx)));
                self.mined.replace(&head, order);
            }
            return;
        }
        let last_block = tx.private_terms().map(|terms| terms.max_block);
        let until = last_block.is_none().then_some(Duration::ZERO);
        let retention = Retention { is_listed: false, until, last_block };
        let signer = tx.private_terms().and_then(|terms| terms.signer);
        let order = Arc::new(Order::Tx(tx));
        self.retain_mined(&head, RemovedOrder { order, claims: Vec::new(), retention, signer });
    }
}

impl ReorgStore {
    fn new(max_bytes: usize) -> Self {
        Self { blocks: BTreeMap::new(), usage: Usage::default(), next_number: 0, max_bytes }
    }

    /// Removes and returns all orders of a block.
    fn remove_block(&mut self, head: &Head) -> BlockOrders {
        let block = self.blocks.remove(&(head.number, head.hash)).unwrap_or_default();
        for (number, (removed, holder)) in &block.orders {
            let position = Reverse((head.number, head.hash, *number));
            self.usage.remove(*holder, (), position, removed.order.size_bytes());
        }
        block
    }

    fn insert(&mut self, head: &Head, removed: RemovedOrder, holder: Holder) {
        let number = self.next_number;
        self.next_number += 1;
        let position = Reverse((head.number, head.hash, number));
        self.usage.insert(holder, (), position, removed.order.size_bytes());
        let block = self.blocks.entry((head.number, head.hash)).or_default();
        block.by_hash.insert(*removed.order.id().hash(), number);
        block.orders.insert(number, (removed, holder));
        // One at a time, with each order that is added: to drop thousands at once takes
        // milliseconds.
        while self.usage.total.bytes > self.max_bytes && self.drop_one() {}
    }

    /// Replaces an order of a block by one with the same hash.
    fn replace(&mut self, head: &Head, order: Arc<Order>) {
        let block = self.blocks.get_mut(&(head.number, head.hash));
        let Some(BlockOrders { orders, by_hash, .. }) = block else { return };
        let Some(&number) = by_hash.get(order.id().hash()) else { return };
        let Some((removed, holder)) = orders.get_mut(&number) else { return };
        let position = Reverse((head.number, head.hash, number));
        self.usage.remove(*holder, (), position, removed.order.size_bytes());
        self.usage.insert(*holder, (), position, order.size_bytes());
        removed.order = order;
        while self.usage.total.bytes > self.max_bytes && self.drop_one() {}
    }

    /// Drops the oldest order of the holder with the most bytes. Returns whether there was one.
    fn drop_one(&mut self) -> bool {
        let largest = self.usage.by_size.by(Measure::Bytes).last();
        let held = largest.and_then(|(_, holder)| self.usage.holders.get(holder));
        let Some(&position) = held.and_then(|held| held.items.last()) else { return false };
        let Reverse((block_number, block_hash, number)) = position;
        let Some(block) = self.blocks.get_mut(&(block_number, block_hash)) else {
            return false;
        };
        let Some((removed, holder)) = block.orders.remove(&number) else { return false };
        let hash = *removed.order.id().hash();
        block.by_hash.remove(&hash);
        self.usage.remove(holder, (), position, removed.order.size_bytes());
        let is_timed = removed.retention.is_listed || removed.retention.until.is_some();
        let last_block = removed.retention.last_block.filter(|_| !is_timed);
        block.dropped.push((hash, removed.order.block().or(last_block)));
        true
    }
}
