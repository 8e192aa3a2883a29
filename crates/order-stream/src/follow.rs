//! Which of a pool's events are published. Pure.

use std::{collections::HashMap, sync::Arc};

use alloy_primitives::{Address, B256};
use chain_view::Head;
use order_pool::{Cancellation, Event, Order, OrderId, RemoveReason, ReplacementKey};

use crate::{
    config::Flow,
    wire::{Encoded, HeadRecord, MAX_MINED, Record, encode_bundle, encode_transaction},
};

/// Something to be published. It holds the order and not its bytes, which the pool has anyway.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Order(Arc<Order>),
    Cancellation(Cancellation),
    CancelPrivate { hash: B256, signer: Address },
    Head(Arc<HeadRecord>),
}

impl Item {
    /// Its message; `None` for an order of a kind that is not known here.
    pub(crate) fn encode(&self) -> Option<Encoded> {
        Some(match self {
            Self::Order(order) => match (order.as_tx(), order.as_bundle()) {
                (Some(tx), _) => encode_transaction(tx),
                (None, Some(bundle)) => encode_bundle(bundle),
                (None, None) => return None,
            },
            Self::Cancellation(cancellation) => Record::Cancellation(*cancellation).encode(),
            Self::CancelPrivate { hash, signer } => {
                Record::CancelPrivate { hash: *hash, signer: *signer }.encode()
            }
            Self::Head(record) => record.encode(),
        })
    }
}

/// Follows the events of a pool and remembers what was published of it: at most one entry for each order that
/// the pool holds and for each key that it remembers.
#[derive(Debug)]
pub(crate) struct Follower {
    flow: Flow,
    with_heads: bool,
    /// The pooled orders that were published, with the comparison that last saw them.
    published: HashMap<OrderId, u64>,
    cancelled: HashMap<ReplacementKey, (Option<u64>, u64)>,
    comparison: u64,
    has_forgotten: bool,
    head: B256,
    mined: Vec<B256>,
}

impl Follower {
    pub(crate) fn new(flow: Flow, with_heads: bool) -> Self {
        Self {
            flow,
            with_heads,
            published: HashMap::new(),
            cancelled: HashMap::new(),
            comparison: 0,
            has_forgotten: false,
            head: B256::ZERO,
            mined: Vec::new(),
        }
    }

    /// The pool is replayed from now on: what was published is not published again.
    pub(crate) fn begin_comparison(&mut self) {
        self.comparison += 1;
        self.has_forgotten = false;
        self.mined.clear();
    }

    /// The replay is over: what it did not contain has left the pool.
    pub(crate) fn end_comparison(&mut self) {
        let seen = self.comparison;
        self.published.retain(|_, at| *at == seen);
        self.cancelled.retain(|_, (_, at)| *at == seen);
        // After a large pool, its table would stay.
        self.published.shrink_to(2 * self.published.len());
    }

    /// Everything is to be published again: the stream has lost it.
    pub(crate) fn forget_all(&mut self) {
        self.published.clear();
        self.cancelled.clear();
        self.head = B256::ZERO;
    }

    /// The next comparison publishes it again.
    pub(crate) fn forget(&mut self, item: &Item) {
        self.has_forgotten = true;
        match item {
            Item::Order(order) => {
                self.published.remove(&order.id());
            }
            Item::Cancellation(cancellation) => {
                self.cancelled.remove(&cancellation.key);
            }
            Item::Head(_) => self.head = B256::ZERO,
            Item::CancelPrivate { .. } => {}
        }
    }

    /// Whether a comparison would find something that was [forgotten](Self::forget), unless it has left the pool.
    pub(crate) const fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// What is to be published for an event.
    pub(crate) fn on(&mut self, event: &Event) -> Option<Item> {
        match event {
            Event::Added(order) => {
                let is_public = order.as_tx().is_some_and(order_pool::Transaction::is_public);
                if is_public != (self.flow == Flow::Public) {
                    return None;
                }
                let before = self.published.insert(order.id(), self.comparison);
                before.is_none().then(|| Item::Order(Arc::clone(order)))
            }
            Event::Removed { order, reason } => self.on_removed(order, *reason),
            Event::Cancelled(cancellation) if self.flow == Flow::Private => {
                let now = (cancellation.nonce, self.comparison);
                let before = self.cancelled.insert(cancellation.key, now);
                let is_new = before.is_none_or(|(nonce, _)| nonce != cancellation.nonce);
                is_new.then_some(Item::Cancellation(*cancellation))
            }
            Event::CancellationForgotten(key) => {
                self.cancelled.remove(key);
                None
            }
            Event::Head(head) => self.on_head(head),
            _ => None,
        }
    }

    fn on_removed(&mut self, order: &Arc<Order>, reason: RemoveReason) -> Option<Item> {
        let was_published = self.published.remove(&order.id()).is_some();
        let tx = order.as_tx()?;
        match (self.flow, reason) {
            (Flow::Public, RemoveReason::Mined) => {
                // Without heads nothing would ever empty it.
                if self.with_heads && self.mined.len() < MAX_MINED {
                    self.mined.push(*tx.hash());
                }
                None
            }
            (Flow::Private, RemoveReason::Cancelled) if was_published => {
                let signer = tx.private_terms()?.signer?;
                Some(Item::CancelPrivate { hash: *tx.hash(), signer })
            }
            _ => None,
        }
    }

    fn on_head(&mut self, head: &Head) -> Option<Item> {
        let mined = std::mem::take(&mut self.mined);
        if self.flow != Flow::Public || !self.with_heads || head.hash == self.head {
            return None;
        }
        let previous = std::mem::replace(&mut self.head, head.hash);
        Some(Item::Head(Arc::new(HeadRecord { head: *head, previous, mined })))
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::transaction::Recovered;
    use alloy_eips::eip2718::Decodable2718 as _;
    use chain_view::{Block, PooledTransaction};
    use mock_node::workload::{Workload, WorkloadConfig};
    use order_pool::{OrderPool, Origin, PoolConfig, PrivateTerms, Subscription, Transaction};
    use std::time::SystemTime;

    use super::*;

    fn txs(count: usize) -> Vec<Recovered<PooledTransaction>> {
        let mut load = Workload::new(WorkloadConfig::new(7, 1).with_accounts(10));
        let read = |raw: &[u8]| PooledTransaction::decode_2718_exact(raw).expect("a transaction");
        let all = load.prepare(count).into_iter();
        all.map(|tx| Recovered::new_unchecked(read(&tx.raw), tx.sender)).collect()
    }

    fn insert(pool: &OrderPool, tx: &Recovered<PooledTransaction>, origin: Origin) {
        pool.insert_transaction(Transaction::new(tx.clone(), origin, SystemTime::now()));
    }

    /// Everything that is published for the events of now, in short.
    fn follow(follower: &mut Follower, events: &mut Subscription) -> Vec<String> {
        let items = std::iter::from_fn(|| events.try_next())
            .filter_map(|event| follower.on(&event.expect("no lag")));
        items
            .map(|item| match item {
                Item::Order(order) => order.id().to_string(),
                Item::Head(record) => format!("head {} {}", record.head.number, record.mined.len()),
                Item::CancelPrivate { hash, .. } => format!("cancel {hash}"),
                Item::Cancellation(cancellation) => format!("{cancellation:?}"),
            })
            .collect()
    }

    #[test]
    fn a_comparison_publishes_what_is_missing_and_nothing_twice() {
        let pool = OrderPool::new(PoolConfig::default()).expect("a pool");
        let txs = txs(3);
        let mut follower = Follower::new(Flow::Public, true);
        insert(&pool, &txs[0], Origin::Mempool);
        let mut events = pool.subscribe_all();
        follower.begin_comparison();
        assert_eq!(follow(&mut follower, &mut events), [format!("tx {}", txs[0].hash())]);
        follower.end_comparison();
        drop(events);
        insert(&pool, &txs[1], Origin::Mempool);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
        follower.begin_comparison();
        let published = follow(&mut follower, &mut pool.subscribe_all());
        assert_eq!(published, ["head 1 0".to_owned(), format!("tx {}", txs[1].hash())]);
        follower.end_comparison();
        assert_eq!(follower.published.len(), 1, "the mined one is forgotten");
        follower.begin_comparison();
        assert!(follow(&mut follower, &mut pool.subscribe_all()).is_empty());
        follower.forget_all();
        follower.begin_comparison();
        assert_eq!(follow(&mut follower, &mut pool.subscribe_all()).len(), 2);
    }

    #[test]
    fn private_orders_are_published_only_by_the_private_flow_and_heads_only_by_the_public_one() {
        let pool = OrderPool::new(PoolConfig::default()).expect("a pool");
        let txs = txs(3);
        let signer = Address::repeat_byte(1);
        let terms = PrivateTerms { signer: Some(signer), max_block: 100 };
        let mut flows = [Flow::Public, Flow::Private]
            .map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
        insert(&pool, &txs[0], Origin::Mempool);
        insert(&pool, &txs[1], Origin::Rpc);
        pool.insert_transaction(Transaction::private(txs[2].clone(), terms, SystemTime::now()));
        pool.cancel_private(txs[2].hash(), signer);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
        let [public, private] = flows.each_mut().map(|(follower, events)| follow(follower, events));
        assert_eq!(public, [format!("tx {}", txs[0].hash()), "head 1 1".to_owned()]);
        let hash = txs[2].hash();
        let expected =
            [format!("tx {}", txs[1].hash()), format!("tx {hash}"), format!("cancel {hash}")];
        assert_eq!(private, expected);
    }
}
