//! Which of a pool's events are published. Pure.
//!
//! # Heads of several machines
//!
//! Sources without a node follow the latest head that the stream stores, whoever told it. So that they stand where the
//! machines do as soon as these agree, also where the same blocks were told before, by this machine or another one:
//!
//! - A head that extends what its machine told last has the same message id on every machine, and is stored once. Any other
//!   one, the first of a run or of a reorg, or one that comes back, has an id of its own, and is stored. A source has its
//!   parent, and leaves the other branch.
//! - The latest head of a machine stands in the stream behind all its others. If it is the duplicate of one that was stored
//!   before them, it is published once more, with an id of its own.
//! - A source remembers the heads of other branches, and takes them before a head above them ([`crate::deliver`]).
//!
//! Why that is enough: let a source stand on a block that one machine told last. If that machine left it for another branch,
//! the first block of the branch was stored after it, and the source has gone there too. If it went on above it, its latest
//! head was stored after it, and the source has taken that one.
//!
//! While the machines disagree, the source follows each branch in turn, as far as it is higher or its parent is known. A
//! machine that started a block behind the others tells each head once more until it has caught up.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use alloy_primitives::B256;
use chain_view::{Block, Head};
use order_pool::{Event, Order, OrderId, OrderPool, PrivateCancellation, Transaction};

use crate::{
    config::Flow,
    wire::{HeadRecord, Record},
};

/// A head that is as far below a new one is not published any more: a pool takes one that is older than the blocks that it
/// remembers, 64 by default, for the newest.
const MAX_HEAD_AGE: u64 = 32;

/// Blocks of the published chain that are remembered: what a pool remembers by default.
const MAX_CHAIN: usize = 64;

/// Most transactions of a head that are published as mined, so that it fits into a message of 1 MiB, a server's default
/// `max_payload`: above 600 million gas of plain transfers.
const MAX_MINED: usize = 32_000;

/// Something to be published. It shares the order with the pool, and has no bytes of its own.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) record: Record,
    /// A number that no other message of this publisher has, if the stream must not take it for one that it has stored.
    pub(crate) number: Option<u64>,
}

impl Item {
    /// The end of the message id. No other machine and no later run has the same.
    pub(crate) fn suffix(&self, run_id: &str) -> Option<String> {
        self.number.map(|number| format!("-{run_id}-{number}"))
    }

    /// Whether another item must not come behind this one: an old head behind a new one.
    pub(crate) fn overrides(&self, other: &Self) -> bool {
        match (&self.record, &other.record) {
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
    /// What cancels it, but not what its signer sends later.
    cancellation: Option<PrivateCancellation>,
}

/// Follows the events of a pool and remembers what was published of it: an entry for each order that the pool
/// holds.
///
/// Orders of the public flow are the same message wherever they come from. Those of the private flow are messages of
/// their own, and so are cancellations: their sequence matters, and another machine, or an earlier run of this one, may
/// have seen another.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    flow: Flow,
    with_heads: bool,
    published: HashMap<OrderId, Published>,
    comparison: u64,
    /// Messages with a number of their own so far.
    numbers: u64,
    /// The chain as it was published, newest last.
    chain: VecDeque<B256>,
    /// Heads that were published, the latest last. One that comes back is a message of its own.
    told: VecDeque<B256>,
    /// The latest head with the number of its message, and its sequence number in the stream once that is known.
    latest: (B256, Option<u64>),
    place: Option<u64>,
    /// The highest sequence number of a head since the latest one that could be no duplicate.
    highest: u64,
}

impl Follower {
    pub(crate) fn new(flow: Flow, with_heads: bool) -> Self {
        Self { flow, with_heads, ..Self::default() }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.flow == Flow::Private
    }

    /// The pool is replayed from now on: what was published is not published again, but for cancellations.
    pub(crate) fn begin_comparison(&mut self) {
        self.comparison += 1;
    }

    /// The replay is over: what it did not contain has left the pool. Why a private transaction has left is not
    /// known, so it is cancelled: where it was mined or is too late that changes nothing, and a cancellation that
    /// is not passed on would harm its signer.
    pub(crate) fn end_comparison(&mut self) -> Vec<Item> {
        let seen = self.comparison;
        let absent = self.published.extract_if(|_, published| published.comparison != seen);
        let absent: Vec<_> = absent.filter_map(|(_, published)| published.cancellation).collect();
        // After a large pool, its table would stay.
        self.published.shrink_to(2 * self.published.len());
        absent
            .into_iter()
            .map(|cancellation| self.own(Record::CancelPrivate(cancellation)))
            .collect()
    }

    /// Everything is to be published again: the stream has lost it.
    pub(crate) fn forget_all(&mut self) {
        self.published.values_mut().for_each(|published| published.is_lost = true);
        self.chain.clear();
    }

    /// The next comparison publishes it again.
    pub(crate) fn forget(&mut self, item: &Item) {
        match &item.record {
            // It may have been published before, and then its cancellation is to be.
            Record::Order(order) => {
                self.published.entry(order.id()).and_modify(|published| published.is_lost = true);
            }
            Record::CancelPrivate(cancellation) => {
                // As an order that the replay will not contain.
                let absent =
                    Published { comparison: 0, is_lost: true, cancellation: Some(*cancellation) };
                self.published.entry(OrderId::Tx(cancellation.hash)).or_insert(absent);
            }
            Record::Head(record) => {
                if let Some(at) = self.place(&record.head.hash) {
                    self.chain.truncate(at);
                }
            }
            // The replay contains it.
            Record::Cancellation(_) => {}
        }
    }

    /// What is to be published because of an event of a pool.
    pub(crate) fn on(&mut self, event: &Event, pool: &OrderPool) -> Vec<Item> {
        match event {
            Event::Head(head) => self.on_head(head, |hash| pool.block(hash)),
            other => self.on_order(other).into_iter().collect(),
        }
    }

    fn on_order(&mut self, event: &Event) -> Option<Item> {
        let is_private = self.is_private();
        match event {
            Event::Added(order) | Event::BecamePublic(order) => self.on_added(order),
            Event::Removed { order, .. } => {
                self.published.remove(&order.id());
                None
            }
            Event::Cancelled(cancellation) if is_private => {
                Some(self.own(Record::Cancellation(*cancellation)))
            }
            Event::CancelledPrivate(cancellation) if is_private => {
                let it = self.published.get_mut(&OrderId::Tx(cancellation.hash));
                if let Some(Published { cancellation: own, .. }) = it {
                    // Told now, and not once more at the end of a comparison.
                    own.take_if(|own| {
                        own.signer == cancellation.signer && own.at <= cancellation.at
                    });
                }
                Some(self.own(Record::CancelPrivate(*cancellation)))
            }
            _ => None,
        }
    }

    /// A message that is no other's duplicate.
    fn own(&mut self, record: Record) -> Item {
        self.numbers += 1;
        Item { record, number: Some(self.numbers) }
    }

    fn on_added(&mut self, order: &Arc<Order>) -> Option<Item> {
        let (comparison, tx) = (self.comparison, order.as_tx());
        if tx.is_some_and(Transaction::is_public) != (self.flow == Flow::Public) {
            // A private one that has become public has not left the pool.
            let published = self.published.entry(order.id());
            published.and_modify(|published| published.comparison = comparison);
            return None;
        }
        let cancellation = tx.filter(|_| self.is_private()).and_then(|tx| {
            let signer = tx.private_terms()?.signer?;
            let (hash, at, holder) = (*tx.hash(), tx.first_seen(), tx.holder());
            Some(PrivateCancellation { hash, signer, at, holder })
        });
        let published = Published { comparison, is_lost: false, cancellation };
        let record = Record::Order(Arc::clone(order));
        match self.published.insert(order.id(), published) {
            Some(before) if !before.is_lost => None,
            None if self.flow == Flow::Public => Some(Item { record, number: None }),
            // The stream may still remember the message id.
            _ => Some(self.own(record)),
        }
    }

    /// Where a block stands in the chain as it was published.
    fn place(&self, hash: &B256) -> Option<usize> {
        self.chain.iter().rposition(|known| known == hash)
    }

    /// A head is published with all that its block contains: builders may hold what this pool never held. Before it come
    /// the blocks since the latest that builders have of its chain: those that the pool took while nothing could be
    /// published, and all of the last [`MAX_HEAD_AGE`] if the stream is new to this run.
    fn on_head(&mut self, head: &Head, block: impl Fn(&B256) -> Option<Block>) -> Vec<Item> {
        let is_latest = self.chain.back() == Some(&head.hash);
        if self.flow != Flow::Public || !self.with_heads || is_latest {
            return Vec::new();
        }
        // The pool tells a head when it has taken it wholly, and may have left it meanwhile: the one that it went to follows.
        let Some(first) = block(&head.hash) else { return Vec::new() };
        let mut blocks = vec![first];
        while let Some(Block { head: Head { number, parent_hash, .. }, .. }) = blocks.last()
            && self.place(parent_hash).is_none()
            && number.saturating_add(MAX_HEAD_AGE) > head.number
            && let Some(parent) = block(parent_hash)
        {
            blocks.push(parent);
        }
        blocks.into_iter().rev().map(|block| self.head_item(block)).collect()
    }

    /// The stream has an item under this number. Returns the latest head once more if that stands before another one.
    pub(crate) fn acknowledged(
        &mut self,
        item: &Item,
        sequence: u64,
        pool: &OrderPool,
    ) -> Option<Item> {
        let Record::Head(HeadRecord { head, .. }) = &item.record else { return None };
        self.highest = self.highest.max(sequence);
        if (head.hash, item.number) == self.latest {
            self.place = Some(sequence);
        }
        self.place.filter(|place| *place < self.highest)?;
        // One that a reorg has undone is followed by another.
        let Block { head, mined, .. } = pool.block(&self.latest.0)?;
        Some(self.own_head(HeadRecord { head, previous: head.hash, mined: listed(&head, &mined) }))
    }

    /// A head that is no other's duplicate: all that is stored later stands behind it, also in a stream that was made anew.
    fn own_head(&mut self, record: HeadRecord) -> Item {
        let hash = record.head.hash;
        let item = self.own(Record::Head(record));
        (self.latest, self.place, self.highest) = ((hash, item.number), None, 0);
        item
    }

    fn head_item(&mut self, Block { head, mined, .. }: Block) -> Item {
        let previous = self.chain.back().copied().unwrap_or_default();
        // Of the blocks that it replaces one may come back.
        self.chain.truncate(self.place(&head.parent_hash).map_or(0, |parent| parent + 1));
        self.chain.push_back(head.hash);
        if self.chain.len() > MAX_CHAIN {
            self.chain.pop_front();
        }
        let record = HeadRecord { head, previous, mined: listed(&head, &mined) };
        let is_told = self.told.contains(&head.hash);
        if !is_told {
            self.told.push_back(head.hash);
            if self.told.len() > 2 * MAX_CHAIN {
                self.told.pop_front();
            }
        }
        if is_told || previous != head.parent_hash {
            return self.own_head(record);
        }
        (self.latest, self.place) = ((head.hash, None), None);
        Item { record: Record::Head(record), number: None }
    }
}

/// What a block contains, as far as it fits into a message.
fn listed(head: &Head, mined: &[B256]) -> Vec<B256> {
    let (number, count) = (head.number, mined.len());
    if count > MAX_MINED {
        tracing::warn!(number, count, MAX_MINED, "a block is too large for one message");
    }
    mined[..count.min(MAX_MINED)].to_vec()
}

#[cfg(test)]
mod forks;

#[cfg(test)]
mod tests {
    use alloy_consensus::transaction::Recovered;
    use alloy_primitives::{Address, U256};
    use chain_view::{Block, PooledTransaction};
    use mock_node::workload::{PreparedTx, Workload, WorkloadConfig};
    use order_pool::{
        Bundle, BundleParts, Holder, OrderPool, Origin, PoolConfig, PrivateTerms, RemoveReason,
        Subscription,
    };
    use std::{collections::HashSet, time::SystemTime};

    use super::*;

    fn txs(count: usize) -> Vec<Recovered<PooledTransaction>> {
        let mut load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) });
        load.prepare(count).iter().map(PreparedTx::recovered).collect()
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

    fn text(Item { record, .. }: &Item) -> String {
        match record {
            Record::Order(order) => order.id().to_string(),
            Record::Head(HeadRecord { head, mined, .. }) => {
                format!("head {} {}", head.number, mined.len())
            }
            Record::CancelPrivate(cancellation) => format!("cancel {}", cancellation.hash),
            Record::Cancellation(cancellation) => format!("{cancellation:?}"),
        }
    }

    /// What a comparison publishes, in short.
    fn compare(follower: &mut Follower, pool: &OrderPool) -> Vec<String> {
        follower.begin_comparison();
        let mut published = follow(follower, pool, &mut pool.subscribe_all());
        published.extend(follower.end_comparison().iter().map(text));
        published
    }

    /// Everything that is published for the events of now.
    fn follow(follower: &mut Follower, pool: &OrderPool, events: &mut Subscription) -> Vec<String> {
        let events = std::iter::from_fn(|| events.try_next());
        let items = events.flat_map(|event| follower.on(&event.expect("no lag"), pool));
        items.map(|item| text(&item)).collect()
    }

    #[test]
    fn a_comparison_publishes_what_is_missing_and_nothing_twice() {
        let pool = pool();
        let txs = txs(3);
        let mut follower = Follower::new(Flow::Public, true);
        insert(&pool, &txs[0], Origin::Mempool);
        assert_eq!(compare(&mut follower, &pool), [format!("tx {}", txs[0].hash())]);
        insert(&pool, &txs[1], Origin::Mempool);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
        let published = compare(&mut follower, &pool);
        assert_eq!(published, ["head 1 1".to_owned(), format!("tx {}", txs[1].hash())]);
        assert_eq!(follower.published.len(), 1, "the mined one is forgotten");
        assert!(compare(&mut follower, &pool).is_empty());
        follower.forget_all();
        assert_eq!(compare(&mut follower, &pool).len(), 2);
    }

    #[test]
    fn a_head_names_all_that_its_block_contains_and_the_heads_of_an_outage_follow() {
        let pool = pool();
        let txs = txs(2);
        insert(&pool, &txs[0], Origin::Mempool);
        let hash = |number: u64| B256::left_padding_from(&number.to_be_bytes());
        // Half a gigagas of plain transfers.
        let others = (100..23_898).map(hash);
        let mine = |number: u64| {
            let head = Head::new(number, hash(number), hash(number - 1));
            // The pool has never held the second.
            let mined = txs.iter().map(|tx| *tx.hash()).chain(others.clone());
            pool.on_head(Block::new(head, mined.collect::<Vec<_>>()));
        };
        let mut follower = Follower::new(Flow::Public, true);
        mine(1);
        assert_eq!(compare(&mut follower, &pool), ["head 1 23800"]);
        mine(2);
        let mut events = pool.subscribe_all();
        let item = events.try_next().expect("the head").expect("no lag");
        // It is not sent before the connection is lost.
        follower.on(&item, &pool).iter().rev().for_each(|item| follower.forget(item));
        (3..6).for_each(mine);
        let published = compare(&mut follower, &pool);
        assert_eq!(published, [2, 3, 4, 5].map(|number| format!("head {number} 23800")));
        // The stream is lost, and blocks come until it is made anew: builders are where it ended.
        follower.forget_all();
        (6..8).for_each(mine);
        let published = compare(&mut follower, &pool);
        assert_eq!(published, [1, 2, 3, 4, 5, 6, 7].map(|number| format!("head {number} 23800")));
    }

    /// What is below the branching is not published again: builders would take it for a chain of its own. What comes back is
    /// no duplicate of what the stream has stored.
    #[test]
    fn a_reorg_publishes_the_blocks_of_the_new_branch_alone_and_a_flip_back_those_of_the_old_one() {
        let pool = pool();
        let mut follower = Follower::new(Flow::Public, true);
        let hash = |number: u64, branch: u64| B256::from(U256::from(number << 8 | branch));
        let tell = |blocks: &[(u64, u64, u64)]| {
            for (number, branch, of_parent) in blocks {
                let head = Head::new(*number, hash(*number, *branch), hash(number - 1, *of_parent));
                pool.on_head(Block::new(head, []));
            }
        };
        let mut stored = HashSet::new();
        let mut published = |events: &mut Subscription| -> Vec<u64> {
            let events = std::iter::from_fn(|| events.try_next());
            let items = events.flat_map(|event| follower.on(&event.expect("no lag"), &pool));
            let number = |item: Item| {
                let id = item.record.encode().expect("a message").id;
                assert!(stored.insert((id, item.suffix("run"))), "a duplicate: {item:?}");
                let Record::Head(HeadRecord { head, .. }) = item.record else { panic!("a head") };
                head.number
            };
            items.map(number).collect()
        };
        let mut events = pool.subscribe_all();
        tell(&[1, 2, 3, 4].map(|number| (number, 0, 0)));
        assert_eq!(published(&mut events), [1, 2, 3, 4]);
        tell(&[(4, 1, 0)]);
        assert_eq!(published(&mut events), [4]);
        tell(&[(3, 2, 0), (4, 2, 2), (5, 2, 2)]);
        assert_eq!(published(&mut events), [3, 4, 5]);
        tell(&[(3, 0, 0), (4, 0, 0), (5, 0, 0)]);
        assert_eq!(published(&mut events), [3, 4, 5]);
        tell(&[(3, 2, 0), (4, 2, 2), (5, 2, 2)]);
        assert_eq!(published(&mut events), [3, 4, 5]);
        // The return comes while nothing can be published.
        tell(&[3, 4, 5, 6].map(|number| (number, 0, 0)));
        assert_eq!(published(&mut pool.subscribe_all()), [3, 4, 5, 6]);
    }

    /// Alone, without the blocks before it, it would be a gap for builders, and so would be the branch that the pool is on.
    #[test]
    fn a_head_that_the_pool_has_left_meanwhile_is_not_published() {
        let pool = pool();
        let mut follower = Follower::new(Flow::Public, true);
        let hash = |number: u64, branch: u64| B256::from(U256::from(number << 8 | branch));
        let head = |number, branch, of_parent| {
            Head::new(number, hash(number, branch), hash(number - 1, of_parent))
        };
        let tell = |heads: &[Head]| {
            heads.iter().for_each(|head| _ = pool.on_head(Block::new(*head, [])));
        };
        tell(&[1, 2, 3, 4].map(|number| head(number, 0, 0)));
        assert_eq!(compare(&mut follower, &pool).len(), 4);
        tell(&[head(3, 1, 0), head(4, 1, 1), head(3, 0, 0), head(4, 0, 0), head(5, 0, 0)]);
        // A comparison that began before the flip back.
        assert!(follower.on(&Event::Head(head(4, 1, 1).into()), &pool).is_empty());
        let published = follow(&mut follower, &pool, &mut pool.subscribe_all());
        assert_eq!(published, ["head 5 0".to_owned()]);
    }

    #[test]
    fn private_orders_are_published_only_by_the_private_flow_and_heads_only_by_the_public_one() {
        let pool = pool();
        let txs = txs(4);
        let mut flows = [Flow::Public, Flow::Private]
            .map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
        insert(&pool, &txs[0], Origin::Mempool);
        insert(&pool, &txs[1], Origin::Rpc);
        send(&pool, &txs[2]);
        let hashes = txs.iter().map(|tx| *tx.hash()).collect::<Vec<_>>();
        // The last is not here: another machine may have it.
        hashes[2..]
            .iter()
            .for_each(|hash| _ = pool.cancel_private(hash, SIGNER, Holder::Host, None));
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [hashes[0]]));
        let [public, private] =
            flows.each_mut().map(|(follower, events)| follow(follower, &pool, events));
        assert_eq!(public, [format!("tx {}", hashes[0]), "head 1 1".to_owned()]);
        let [sent, cancelled] = ["tx", "cancel"]
            .map(|what| hashes.iter().map(|hash| format!("{what} {hash}")).collect::<Vec<_>>());
        assert_eq!(private, [&sent[1..3], &cancelled[2..]].concat());
    }

    #[test]
    fn a_private_transaction_that_left_unseen_is_cancelled_until_that_is_published() {
        let (before, after) = (pool(), pool());
        let txs = txs(3);
        txs.iter().for_each(|tx| send(&before, tx));
        let [sent, cancelled] = ["tx", "cancel"]
            .map(|what| txs.iter().map(|tx| format!("{what} {}", tx.hash())).collect::<Vec<_>>());
        let mut follower = Follower::new(Flow::Private, true);
        assert_eq!(compare(&mut follower, &before), sent);
        // One is still there, and one has become public: it has not left.
        send(&after, &txs[2]);
        insert(&after, &txs[1], Origin::Mempool);
        follower.begin_comparison();
        assert!(follow(&mut follower, &after, &mut after.subscribe_all()).is_empty());
        let items = follower.end_comparison();
        assert_eq!(items.iter().map(text).collect::<Vec<_>>(), cancelled[..1]);
        let Record::CancelPrivate(cancellation) = items[0].record else { panic!("{items:?}") };
        let first = before.get(txs[0].hash()).expect("the first copy");
        let first = first.as_tx().expect("a transaction").first_seen();
        assert_eq!(cancellation.at, first, "what is sent again later is not cancelled");
        // The connection is lost before it is published.
        follower.forget(&items[0]);
        assert_eq!(compare(&mut follower, &after), cancelled[..1]);
        assert!(compare(&mut follower, &after).is_empty());
        follower.forget(&items[0]);
        send(&after, &txs[0]);
        assert_eq!(compare(&mut follower, &after), sent[..1], "it was sent again");
        // The stream was made anew, and the connection is lost before the order is published again.
        follower.forget_all();
        follower.begin_comparison();
        let event = after.subscribe_all().try_next().expect("an event").expect("no lag");
        let items = follower.on(&event, &after);
        follower.forget(items.first().expect("it is published again"));
        assert_eq!(compare(&mut follower, &pool()).len(), 3, "builders have them from before");
    }

    #[test]
    fn what_a_stream_has_lost_is_published_again_and_cancellations_too() {
        let pool = pool();
        let txs = txs(2);
        txs.iter().for_each(|tx| send(&pool, tx));
        let mut follower = Follower::new(Flow::Private, true);
        assert_eq!(compare(&mut follower, &pool).len(), 2);
        pool.cancel_private(txs[0].hash(), SIGNER, Holder::Host, None);
        follower.forget_all();
        let expected = [format!("tx {}", txs[1].hash()), format!("cancel {}", txs[0].hash())];
        assert_eq!(compare(&mut follower, &pool), expected);
    }

    #[test]
    fn a_private_transaction_that_became_public_is_never_cancelled_by_the_public_flow() {
        let pool = pool();
        let tx = &txs(1)[0];
        send(&pool, tx);
        insert(&pool, tx, Origin::Mempool);
        let mut follower = Follower::new(Flow::Public, true);
        assert_eq!(compare(&mut follower, &pool).len(), 1);
        pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*tx.hash()]));
        assert_eq!(compare(&mut follower, &pool), ["head 1 1"]);
    }

    /// Only an addition was published, and it had been one of the private flow.
    #[test]
    fn what_was_sent_to_this_machine_and_becomes_public_later_is_published_by_the_public_flow() {
        let pool = pool();
        let txs = txs(2);
        let mut flows = [Flow::Public, Flow::Private]
            .map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
        let mut published =
            || flows.each_mut().map(|(follower, events)| follow(follower, &pool, events));
        send(&pool, &txs[0]);
        insert(&pool, &txs[1], Origin::Rpc);
        let both: Vec<_> = txs.iter().map(|tx| format!("tx {}", tx.hash())).collect();
        assert_eq!(published(), [vec![], both.clone()]);
        // Twice, as by two nodes.
        for tx in txs.iter().chain(&txs) {
            insert(&pool, tx, Origin::Mempool);
        }
        assert_eq!(published(), [both, vec![]]);
    }

    #[test]
    fn nothing_private_is_taken_for_a_duplicate_of_another_machine_or_of_an_earlier_time() {
        let tx = &txs(1)[0];
        let rpc = Transaction::new(tx.clone(), Origin::Rpc, SystemTime::now());
        let parts =
            BundleParts { txs: vec![rpc.clone()], block: Some(7), ..BundleParts::default() };
        let bundle = Arc::new(Order::Bundle(Bundle::new(parts).expect("a bundle")));
        let mut stored = HashSet::new();
        for machine in ["a-1", "b-1", "a-2"] {
            let pool = pool();
            let (mut events, mut follower) =
                (pool.subscribe_all(), Follower::new(Flow::Private, true));
            let mut items = Vec::new();
            for _ in 0..2 {
                send(&pool, tx);
                pool.cancel_private(tx.hash(), SIGNER, Holder::Host, None);
                let events = std::iter::from_fn(|| events.try_next());
                items.extend(events.flat_map(|event| follower.on(&event.expect("no lag"), &pool)));
                // It leaves, and comes back.
                let (order, reason) = (Arc::clone(&bundle), RemoveReason::Evicted);
                items.extend(follower.on(&Event::Added(Arc::clone(&bundle)), &pool));
                follower.on(&Event::Removed { order, reason }, &pool);
            }
            assert_eq!(items.len(), 6);
            for item in items {
                let id = item.record.encode().expect("a message").id;
                assert!(stored.insert((id, item.suffix(machine))), "{item:?}");
            }
        }
    }
}
