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
    iter::successors,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::{Block, Head};
use order_pool::{
    Event, Holder, Order, OrderId, OrderPool, PrivateCancellation, PrivateTerms, Transaction,
};

use crate::{
    config::Flow,
    wire::{Encoded, HeadRecord, Record, Sent, encode_order},
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
    /// Who has sent the order too, if not who sent it first.
    pub(crate) hold: Option<Hold>,
    /// When it arrived at this machine; `None` if its age does not matter to builders.
    pub(crate) arrived: Option<Instant>,
}

/// An order counts for everyone who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) holder: Holder,
    /// Of a private transaction.
    pub(crate) terms: Option<PrivateTerms>,
}

impl Item {
    /// Encodes it with its age as of `now`.
    pub(crate) fn encode(&self, now: Instant) -> Option<Encoded> {
        let age = self.arrived.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        let sent = Sent { age, local_micros: self.record.local_micros() };
        if let (Record::Order(order), Some(Hold { holder, terms })) = (&self.record, &self.hold) {
            return encode_order(order, *holder, terms.as_ref(), &sent);
        }
        self.record.encode(&sent)
    }

    /// The caller that has sent it, if the host does not know its signer: not what the node has announced.
    pub(crate) fn stranger(&self) -> Option<Holder> {
        let holder = match (&self.record, &self.hold) {
            (Record::Order(order), _) if order.as_tx().is_some_and(Transaction::is_public) => None,
            (Record::Order(_), Some(hold)) => Some(hold.holder),
            (Record::Order(order), None) => Some(order.holder()),
            (Record::Cancellation(cancellation), _) => Some(cancellation.holder),
            (Record::CancelPrivate(cancellation), _) => Some(cancellation.holder),
            (Record::Head(_), _) => None,
        };
        holder.filter(|holder| !holder.is_known())
    }

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
#[derive(Debug, Default)]
struct Published {
    /// The comparison that last saw it.
    comparison: u64,
    /// The stream may not have it: it is to be published again.
    is_lost: bool,
    /// What cancels it, but not what its signer sends later.
    cancellation: Option<PrivateCancellation>,
    /// Which of the signers that the host knows have sent it too.
    holds: Vec<Hold>,
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
        let mut items = Vec::with_capacity(absent.len());
        for cancellation in absent {
            items.push(self.own(Record::CancelPrivate(cancellation)));
        }
        items
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
                let id = OrderId::Tx(cancellation.hash);
                let cancellation = Some(*cancellation);
                let absent = Published { is_lost: true, cancellation, ..Published::default() };
                self.published.entry(id).or_insert(absent);
            }
            Record::Head(record) => {
                if let Some(position) = self.place(&record.head.hash) {
                    self.chain.truncate(position);
                }
            }
            // The replay contains it.
            Record::Cancellation(_) => {}
        }
    }

    /// What is to be published because of an event of a pool.
    pub(crate) fn on(&mut self, event: &Event, pool: &OrderPool) -> Vec<Item> {
        let is_private = self.is_private();
        let item = match event {
            Event::Head(head) => return self.on_head(head, pool),
            Event::Added(order) | Event::BecamePublic(order) => return self.on_added(order),
            Event::Held { order, holder, terms } if is_private => {
                self.on_held(order, Hold { holder: *holder, terms: *terms })
            }
            Event::Removed { order, .. } => {
                self.published.remove(&order.id());
                None
            }
            Event::Cancelled(cancellation) if is_private => {
                Some(self.own(Record::Cancellation(*cancellation)))
            }
            Event::CancelledPrivate(cancellation) if is_private => {
                let published = self.published.get_mut(&OrderId::Tx(cancellation.hash));
                if let Some(Published { cancellation: own, .. }) = published {
                    // Told now, and not once more at the end of a comparison.
                    let PrivateCancellation { signer, cancelled_at: at, .. } = *cancellation;
                    own.take_if(|own| own.signer == signer && own.cancelled_at <= at);
                }
                Some(self.own(Record::CancelPrivate(*cancellation)))
            }
            _ => None,
        };
        item.into_iter().collect()
    }

    /// A message that is no other's duplicate.
    fn own(&mut self, record: Record) -> Item {
        self.numbers += 1;
        Item { record, number: Some(self.numbers), hold: None, arrived: None }
    }

    /// Builders count it for that holder too, or what it was told is pooled would leave them with who sent it first.
    fn on_held(&mut self, order: &Arc<Order>, hold: Hold) -> Option<Item> {
        if order.as_tx().is_some_and(Transaction::is_public) {
            return None;
        }
        if let Some(Published { holds, .. }) = self.published.get_mut(&order.id())
            && hold.holder.is_known()
        {
            holds.retain(|other| other.holder != hold.holder);
            holds.push(hold);
        }
        Some(Item { hold: Some(hold), ..self.own(Record::Order(Arc::clone(order))) })
    }

    fn on_added(&mut self, order: &Arc<Order>) -> Vec<Item> {
        let (comparison, tx) = (self.comparison, order.as_tx());
        if tx.is_some_and(Transaction::is_public) != (self.flow == Flow::Public) {
            // A private one that has become public has not left the pool.
            let published = self.published.entry(order.id());
            published.and_modify(|published| published.comparison = comparison);
            return Vec::new();
        }
        let cancellation = tx.filter(|_| self.is_private()).and_then(|tx| {
            let signer = tx.private_terms()?.signer?;
            let (hash, at, holder) = (*tx.hash(), tx.first_seen(), tx.holder());
            Some(PrivateCancellation { hash, signer, cancelled_at: at, holder })
        });
        let is_new = !self.published.contains_key(&order.id());
        let published = self.published.entry(order.id()).or_default();
        (published.comparison, published.cancellation) = (comparison, cancellation);
        if !std::mem::take(&mut published.is_lost) && !is_new {
            return Vec::new();
        }
        let holds = published.holds.clone();
        let record = Record::Order(Arc::clone(order));
        if is_new && self.flow == Flow::Public {
            return vec![Item { record, number: None, hold: None, arrived: None }];
        }
        // The stream may still remember the message id.
        let first = self.own(record.clone());
        let others = holds.into_iter().map(Some);
        let others = others.map(|hold| Item { hold, ..self.own(record.clone()) });
        std::iter::once(first).chain(others).collect()
    }

    /// Where a block stands in the chain as it was published.
    fn place(&self, hash: &B256) -> Option<usize> {
        self.chain.iter().rposition(|known| known == hash)
    }

    /// A head is published with all that its block contains: builders may hold what this pool never held. Before it come
    /// the blocks since the latest that builders have of its chain: those that the pool took while nothing could be
    /// published, and all of the last [`MAX_HEAD_AGE`] if the stream is new to this run.
    fn on_head(&mut self, head: &Head, pool: &OrderPool) -> Vec<Item> {
        let is_latest = self.chain.back() == Some(&head.hash);
        if self.flow != Flow::Public || !self.with_heads || is_latest {
            return Vec::new();
        }
        let parent = |block: &Block| {
            let Head { number, parent_hash, .. } = &block.head;
            let is_near = number.saturating_add(MAX_HEAD_AGE) > head.number;
            (is_near && self.place(parent_hash).is_none()).then(|| pool.block(parent_hash))?
        };
        // The pool tells a head when it has taken it wholly, and may have left it meanwhile: the one that it went to follows.
        let blocks: Vec<_> = successors(pool.block(&head.hash), parent).collect();
        blocks.into_iter().rev().map(|block| self.head_item(block)).collect()
    }

    /// The stream has stored an item under this sequence number. Returns the latest head, to be published again, if the
    /// stream holds it before another head.
    pub(crate) fn acknowledged(
        &mut self,
        item: &Item,
        sequence: u64,
        pool: &OrderPool,
    ) -> Option<Item> {
        let Record::Head(record) = &item.record else { return None };
        self.highest = self.highest.max(sequence);
        if (record.head.hash, item.number) == self.latest {
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
        let item = self.own(Record::Head(record.into()));
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
        let record = Record::Head(record.into());
        Item { record, number: None, hold: None, arrived: None }
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
mod tests;
