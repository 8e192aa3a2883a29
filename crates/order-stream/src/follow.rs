//! Which of a pool's events are published. Pure.

use std::{collections::HashMap, sync::Arc};

use alloy_primitives::{Address, B256};
use chain_view::Head;
use order_pool::{Event, Order, OrderId, PrivateTerms, RemoveReason, ReplacementKey, Transaction};

use crate::{
    config::Flow,
    wire::{HeadRecord, Record},
};

/// Private orders that left the pool of which it is remembered that they were published, 10 MB.
const MAX_LEFT: usize = 1 << 16;

/// For how many blocks after its last one: longer than a private stream remembers a message id by default.
const KEPT_BLOCKS: u64 = 128;

/// A head that is as far below a new one is not published any more: a pool takes one that is older than the blocks that it
/// remembers, 64 by default, for the newest.
const MAX_HEAD_AGE: u64 = 32;

/// Most transactions of a head that are published as mined: above 45 million gas of plain transfers.
const MAX_MINED: usize = 4_096;

/// Something to be published. It shares the order with the pool, and has no bytes of its own.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) record: Record,
    /// How often it was published before and left the pool.
    pub(crate) again: u32,
}

impl Item {
    /// The end of the message id, where the stream must not take it for what was published before: by this run, by an
    /// earlier one, or by another machine that did not see the same sequence of orders and cancellations.
    pub(crate) fn suffix(&self, run_id: &str) -> Option<String> {
        let is_own = match &self.record {
            // Whoever signed it may cancel it and send it again, also by a machine that was started in between.
            Record::Order(order) => order
                .as_tx()
                .and_then(Transaction::private_terms)
                .is_some_and(|terms| terms.signer.is_some()),
            Record::CancelPrivate { .. } => true,
            _ => false,
        };
        (is_own || self.again > 0).then(|| format!("-{run_id}-{}", self.again))
    }

    /// Whether another item must not come behind this one: a transaction behind its cancellation, and an old head behind
    /// a new one.
    pub(crate) fn overrides(&self, other: &Self) -> bool {
        match (&self.record, &other.record) {
            (Record::CancelPrivate { hash, .. }, Record::Order(order)) => {
                order.id() == OrderId::Tx(*hash)
            }
            (Record::Head(new), Record::Head(old)) => {
                old.head.number.saturating_add(MAX_HEAD_AGE) < new.head.number
            }
            _ => false,
        }
    }
}

/// An order of the pool that was published.
#[derive(Debug)]
struct Published {
    /// The comparison that last saw it.
    comparison: u64,
    /// The stream may not have it: it is to be published again.
    is_lost: bool,
    terms: Option<PrivateTerms>,
}

/// A private order that was published and has left the pool.
#[derive(Debug)]
struct Left {
    times: u32,
    max_block: u64,
    /// Who signed its cancellation, if that is to be published by the next comparison.
    cancelled_by: Option<Address>,
}

/// Follows the events of a pool and remembers what was published of it: an entry for each order that the pool
/// holds, for each key that it remembers, and for a bounded number of private orders that have left.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    flow: Flow,
    with_heads: bool,
    published: HashMap<OrderId, Published>,
    left: HashMap<B256, Left>,
    cancelled: HashMap<ReplacementKey, (Option<u64>, u64)>,
    comparison: u64,
    head: B256,
    head_number: u64,
    mined: Vec<B256>,
    /// How many private orders have left that had no room: a cancellation of them may be missing.
    pub(crate) unremembered: u64,
    /// How often the stream has lost what it had. It may still remember the message ids.
    resets: u32,
}

impl Follower {
    pub(crate) fn new(flow: Flow, with_heads: bool) -> Self {
        Self { flow, with_heads, ..Self::default() }
    }

    /// The pool is replayed from now on: what was published is not published again.
    pub(crate) fn begin_comparison(&mut self) {
        self.comparison += 1;
        self.mined.clear();
    }

    /// The replay is over: what it did not contain has left the pool. Why a private transaction has left is not
    /// known, so it is cancelled: where it was mined or is too late that changes nothing, and a cancellation that
    /// is not passed on would harm its signer.
    pub(crate) fn end_comparison(&mut self) -> Vec<Item> {
        let (seen, head) = (self.comparison, self.head_number);
        let absent = |published: &Published| published.comparison != seen;
        let is_private = self.flow == Flow::Private;
        let unseen = self.published.iter().filter(|(_, was)| is_private && absent(was));
        let unseen: Vec<_> = unseen.map(|(id, was)| (*id.hash(), was.terms)).collect();
        for (hash, terms) in unseen {
            self.leave(hash, terms, terms.and_then(|terms| terms.signer));
        }
        self.published.retain(|_, published| !absent(published));
        self.cancelled.retain(|_, (_, at)| *at == seen);
        // After a large pool, its table would stay.
        self.published.shrink_to(2 * self.published.len());
        let pending = self.left.iter_mut().filter(|(_, left)| left.max_block > head);
        pending
            .filter_map(|(hash, left)| {
                let again = left.times.saturating_sub(1);
                let record =
                    Record::CancelPrivate { hash: *hash, signer: left.cancelled_by.take()? };
                Some(Item { record, again })
            })
            .collect()
    }

    /// Everything is to be published again: the stream has lost it.
    pub(crate) fn forget_all(&mut self) {
        self.published.values_mut().for_each(|published| published.is_lost = true);
        self.cancelled.clear();
        self.resets += 1;
        self.head = B256::ZERO;
    }

    /// The next comparison publishes it again.
    pub(crate) fn forget(&mut self, item: &Item) {
        match &item.record {
            // It may have been published before, and then its cancellation is to be.
            Record::Order(order) => {
                self.published.entry(order.id()).and_modify(|published| published.is_lost = true);
            }
            Record::Cancellation(cancellation) => {
                self.cancelled.remove(&cancellation.key);
            }
            Record::Head(_) => self.head = B256::ZERO,
            Record::CancelPrivate { hash, signer } => {
                self.left.entry(*hash).and_modify(|left| left.cancelled_by = Some(*signer));
            }
        }
    }

    /// What is to be published because of an event.
    pub(crate) fn on(&mut self, event: &Event) -> Option<Item> {
        match event {
            Event::Added(order) => self.on_added(order),
            Event::Removed { order, reason } => self.on_removed(order, *reason),
            Event::Cancelled(cancellation) if self.flow == Flow::Private => {
                let now = (cancellation.nonce, self.comparison);
                let before = self.cancelled.insert(cancellation.key, now);
                let is_new = before.is_none_or(|(nonce, _)| nonce != cancellation.nonce);
                let item = Item { record: Record::Cancellation(*cancellation), again: self.resets };
                is_new.then_some(item)
            }
            Event::CancellationForgotten(key) => {
                self.cancelled.remove(key);
                None
            }
            Event::Head(head) => self.on_head(head),
            _ => None,
        }
    }

    fn on_added(&mut self, order: &Arc<Order>) -> Option<Item> {
        let (comparison, tx) = (self.comparison, order.as_tx());
        if tx.is_some_and(Transaction::is_public) != (self.flow == Flow::Public) {
            // A private one that has become public has not left the pool.
            let published = self.published.entry(order.id());
            published.and_modify(|published| published.comparison = comparison);
            return None;
        }
        let terms = tx.and_then(Transaction::private_terms).copied();
        let published = Published { comparison, is_lost: false, terms };
        let before = self.published.insert(order.id(), published);
        let times = self.left.get_mut(order.id().hash()).map_or(0, |left| {
            left.cancelled_by = None;
            left.times
        });
        let is_lost = before.as_ref().is_some_and(|before| before.is_lost);
        let is_new = before.is_none() || is_lost;
        // Both only grow, so each time has a number of its own.
        let again = if times > 0 || is_lost { times + self.resets } else { 0 };
        is_new.then(|| Item { record: Record::Order(Arc::clone(order)), again })
    }

    fn on_removed(&mut self, order: &Arc<Order>, reason: RemoveReason) -> Option<Item> {
        let was_published = self.published.remove(&order.id()).is_some();
        let Some(tx) = order.as_tx() else {
            // Other bundles do not come back, or are put back by the pools of builders too.
            if was_published && matches!(reason, RemoveReason::Evicted | RemoveReason::BlockTooFar)
            {
                self.leave(*order.id().hash(), None, None);
            }
            return None;
        };
        match self.flow {
            Flow::Public => {
                // Without heads nothing would ever empty it.
                if reason == RemoveReason::Mined && self.with_heads && self.mined.len() < MAX_MINED
                {
                    self.mined.push(*tx.hash());
                }
                None
            }
            Flow::Private if was_published => {
                let (hash, terms) = (*tx.hash(), tx.private_terms().copied());
                let again = self.leave(hash, terms, None);
                let signer = terms?.signer.filter(|_| reason == RemoveReason::Cancelled)?;
                Some(Item { record: Record::CancelPrivate { hash, signer }, again })
            }
            Flow::Private => None,
        }
    }

    /// Returns how often it left before.
    fn leave(&mut self, hash: B256, terms: Option<PrivateTerms>, signer: Option<Address>) -> u32 {
        if self.left.len() >= MAX_LEFT && !self.left.contains_key(&hash) {
            self.unremembered += 1;
            return 0;
        }
        let max_block = terms.map_or(self.head_number, |terms| terms.max_block);
        let new = Left { times: 0, max_block, cancelled_by: None };
        let left = self.left.entry(hash).or_insert(new);
        left.max_block = left.max_block.max(max_block);
        left.cancelled_by = signer;
        left.times += 1;
        left.times - 1
    }

    fn on_head(&mut self, head: &Head) -> Option<Item> {
        self.head_number = head.number;
        self.left.retain(|_, left| left.max_block.saturating_add(KEPT_BLOCKS) >= head.number);
        let mined = std::mem::take(&mut self.mined);
        if self.flow != Flow::Public || !self.with_heads || head.hash == self.head {
            return None;
        }
        let previous = std::mem::replace(&mut self.head, head.hash);
        let record = Record::Head(HeadRecord { head: *head, previous, mined });
        Some(Item { record, again: 0 })
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::transaction::Recovered;
    use alloy_eips::eip2718::Decodable2718 as _;
    use chain_view::{Block, PooledTransaction};
    use mock_node::workload::{Workload, WorkloadConfig};
    use order_pool::{Bundle, BundleParts, OrderPool, Origin, PoolConfig, Subscription};
    use std::time::SystemTime;

    use super::*;

    fn txs(count: usize) -> Vec<Recovered<PooledTransaction>> {
        let mut load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) });
        let read = |raw: &[u8]| PooledTransaction::decode_2718_exact(raw).expect("a transaction");
        let all = load.prepare(count).into_iter();
        all.map(|tx| Recovered::new_unchecked(read(&tx.raw), tx.sender)).collect()
    }

    fn pool() -> OrderPool {
        OrderPool::new(PoolConfig::default()).expect("a pool")
    }

    fn insert(pool: &OrderPool, tx: &Recovered<PooledTransaction>, origin: Origin) {
        pool.insert_transaction(Transaction::new(tx.clone(), origin, SystemTime::now()));
    }

    const SIGNER: Address = Address::repeat_byte(1);

    /// Inserts a private transaction, which its signer may cancel.
    fn send(pool: &OrderPool, tx: &Recovered<PooledTransaction>) {
        let terms = PrivateTerms { signer: Some(SIGNER), max_block: 100 };
        pool.insert_transaction(Transaction::private(tx.clone(), terms, SystemTime::now()));
    }

    /// What a comparison publishes of the orders of a pool.
    fn replay(follower: &mut Follower, pool: &OrderPool) -> Vec<String> {
        follower.begin_comparison();
        follow(follower, &mut pool.subscribe_all())
    }

    /// Everything that is published for the events of now, in short.
    fn follow(follower: &mut Follower, events: &mut Subscription) -> Vec<String> {
        let items = std::iter::from_fn(|| events.try_next())
            .filter_map(|event| follower.on(&event.expect("no lag")));
        items
            .map(|Item { record, again }| {
                let text = match record {
                    Record::Order(order) => order.id().to_string(),
                    Record::Head(HeadRecord { head, mined, .. }) => {
                        format!("head {} {}", head.number, mined.len())
                    }
                    Record::CancelPrivate { hash, .. } => format!("cancel {hash}"),
                    Record::Cancellation(cancellation) => format!("{cancellation:?}"),
                };
                if again == 0 { text } else { format!("{text} again {again}") }
            })
            .collect()
    }

    #[test]
    fn a_comparison_publishes_what_is_missing_and_nothing_twice() {
        let pool = pool();
        let txs = txs(3);
        let mut follower = Follower::new(Flow::Public, true);
        insert(&pool, &txs[0], Origin::Mempool);
        let mut events = pool.subscribe_all();
        follower.begin_comparison();
        assert_eq!(follow(&mut follower, &mut events), [format!("tx {}", txs[0].hash())]);
        assert!(follower.end_comparison().is_empty());
        drop(events);
        insert(&pool, &txs[1], Origin::Mempool);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
        let published = replay(&mut follower, &pool);
        assert_eq!(published, ["head 1 0".to_owned(), format!("tx {}", txs[1].hash())]);
        assert!(follower.end_comparison().is_empty());
        assert_eq!(follower.published.len(), 1, "the mined one is forgotten");
        assert!(replay(&mut follower, &pool).is_empty());
        follower.forget_all();
        assert_eq!(replay(&mut follower, &pool).len(), 2);
    }

    #[test]
    fn private_orders_are_published_only_by_the_private_flow_and_heads_only_by_the_public_one() {
        let pool = pool();
        let txs = txs(3);
        let mut flows = [Flow::Public, Flow::Private]
            .map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
        insert(&pool, &txs[0], Origin::Mempool);
        insert(&pool, &txs[1], Origin::Rpc);
        send(&pool, &txs[2]);
        pool.cancel_private(txs[2].hash(), SIGNER);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
        let [public, private] = flows.each_mut().map(|(follower, events)| follow(follower, events));
        assert_eq!(public, [format!("tx {}", txs[0].hash()), "head 1 1".to_owned()]);
        let hash = txs[2].hash();
        let expected =
            [format!("tx {}", txs[1].hash()), format!("tx {hash}"), format!("cancel {hash}")];
        assert_eq!(private, expected);
    }

    #[test]
    fn a_private_transaction_that_left_unseen_is_cancelled_and_published_anew_when_it_comes_back() {
        let pool = pool();
        let txs = txs(3);
        let send = |n: usize| send(&pool, &txs[n]);
        let mut follower = Follower::new(Flow::Private, true);
        let mut events = pool.subscribe_all();
        follower.begin_comparison();
        send(0);
        send(1);
        send(2);
        assert_eq!(follow(&mut follower, &mut events).len(), 3);
        assert!(follower.end_comparison().is_empty());
        drop(events);
        // One is cancelled, and one becomes public: it has not left.
        pool.cancel_private(txs[0].hash(), SIGNER);
        insert(&pool, &txs[1], Origin::Mempool);
        follower.begin_comparison();
        let mut events = pool.subscribe_all();
        assert!(follow(&mut follower, &mut events).is_empty());
        let cancelled = follower.end_comparison();
        let [Item { record: Record::CancelPrivate { hash, .. }, again: 0 }] = &cancelled[..] else {
            panic!("{cancelled:?}")
        };
        assert_eq!(hash, txs[0].hash());
        // What could not be published is published by the next comparison, unless the transaction is there again.
        follower.forget(&cancelled[0]);
        replay(&mut follower, &pool);
        assert_eq!(follower.end_comparison().len(), 1);
        follower.forget(&cancelled[0]);
        send(0);
        let hash = txs[0].hash();
        assert_eq!(follow(&mut follower, &mut events), [format!("tx {hash} again 1")]);
        replay(&mut follower, &pool);
        assert!(follower.end_comparison().is_empty());
        pool.cancel_private(hash, SIGNER);
        assert_eq!(follow(&mut follower, &mut events), [format!("cancel {hash} again 1")]);
        let head = |number| Block::new(Head::new(number, B256::repeat_byte(7), B256::ZERO), []);
        pool.on_head(head(100 + KEPT_BLOCKS));
        follow(&mut follower, &mut events);
        assert_eq!(follower.left.len(), 3, "the others passed with their block");
        let late = Head::new(101 + KEPT_BLOCKS, B256::ZERO, B256::ZERO);
        follower.on(&Event::Head(late.into()));
        assert!(follower.left.is_empty());
    }

    #[test]
    fn what_a_stream_has_lost_is_published_again_and_its_cancellations_too() {
        let pool = pool();
        let txs = txs(2);
        for tx in &txs {
            send(&pool, tx);
        }
        let mut follower = Follower::new(Flow::Private, true);
        assert_eq!(replay(&mut follower, &pool).len(), 2);
        follower.end_comparison();
        pool.cancel_private(txs[0].hash(), SIGNER);
        follower.forget_all();
        let again = replay(&mut follower, &pool);
        assert_eq!(again, [format!("tx {} again 1", txs[1].hash())], "the stream may know its id");
        assert_eq!(follower.end_comparison().len(), 1);
    }

    #[test]
    fn a_private_transaction_that_became_public_is_never_cancelled_by_the_public_flow() {
        let pool = pool();
        let tx = &txs(1)[0];
        send(&pool, tx);
        insert(&pool, tx, Origin::Mempool);
        let mut follower = Follower::new(Flow::Public, true);
        assert_eq!(replay(&mut follower, &pool).len(), 1);
        assert!(follower.end_comparison().is_empty());
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*tx.hash()]));
        replay(&mut follower, &pool);
        let items = follower.end_comparison();
        assert!(items.is_empty(), "{items:?}");
    }

    #[test]
    fn what_was_published_before_is_cancelled_though_it_could_not_be_published_again() {
        let pool = pool();
        let tx = &txs(1)[0];
        send(&pool, tx);
        let mut follower = Follower::new(Flow::Private, true);
        replay(&mut follower, &pool);
        follower.end_comparison();
        // The stream was made anew, and the connection is lost before the order is published again.
        follower.forget_all();
        follower.begin_comparison();
        let mut events = pool.subscribe_all();
        let event = events.try_next().expect("an event").expect("no lag");
        let item = follower.on(&event).expect("it is published again");
        follower.forget(&item);
        pool.cancel_private(tx.hash(), SIGNER);
        replay(&mut follower, &pool);
        assert_eq!(follower.end_comparison().len(), 1, "builders have it from the first time");
    }

    #[test]
    fn whatever_private_order_left_unseen_is_another_message_when_it_comes_back() {
        let pool = pool();
        let tx = &txs(1)[0];
        let added = |order| Event::Added(Arc::new(order));
        let rpc = Transaction::new(tx.clone(), Origin::Rpc, SystemTime::now());
        let parts =
            BundleParts { txs: vec![rpc.clone()], block: Some(7), ..BundleParts::default() };
        let bundle = Bundle::new(parts).expect("a bundle");
        let orders = [Order::Tx(rpc), Order::Bundle(bundle)];
        let mut follower = Follower::new(Flow::Private, true);
        let again = |follower: &mut Follower| {
            orders
                .each_ref()
                .map(|order| follower.on(&added(order.clone())).map(|item| item.suffix("a")))
        };
        follower.begin_comparison();
        assert_eq!(again(&mut follower), [Some(None), Some(None)]);
        follower.end_comparison();
        replay(&mut follower, &pool);
        assert!(follower.end_comparison().is_empty());
        let suffix = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(again(&mut follower), [suffix("-a-1"), suffix("-a-1")]);
        for order in &orders {
            let (order, reason) = (Arc::new(order.clone()), RemoveReason::Evicted);
            assert!(follower.on(&Event::Removed { order, reason }).is_none());
        }
        assert_eq!(again(&mut follower), [suffix("-a-2"), suffix("-a-2")]);
    }

    #[test]
    fn a_machine_that_did_not_see_what_another_did_is_not_taken_for_its_duplicate() {
        let tx = &txs(1)[0];
        let pools = [(); 2].map(|()| pool());
        let mut followers = [(); 2].map(|()| Follower::new(Flow::Private, true));
        let mut events = pools.each_ref().map(OrderPool::subscribe_all);
        let mut stored = std::collections::HashSet::new();
        let mut is_stored = |machine: usize, is_sent: bool| {
            if is_sent {
                send(&pools[machine], tx);
            } else {
                pools[machine].cancel_private(tx.hash(), SIGNER);
            }
            let event = events[machine].try_next().expect("an event").expect("no lag");
            let item = followers[machine].on(&event).expect("a message");
            let id = item.record.encode().expect("a message").id;
            stored.insert((id, item.suffix(["a", "b"][machine])))
        };
        assert!(is_stored(0, true));
        assert!(is_stored(1, true), "its signer may cancel it at one of them");
        for is_sent in [false, true, false] {
            assert!(is_stored(0, is_sent));
        }
        // Then its sender turns to the other machine.
        assert!(is_stored(1, false) && is_stored(1, true) && is_stored(1, false));
    }
}
