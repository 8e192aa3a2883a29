//! Decides which events of a pool are published, and as which messages. Pure.
//!
//! # Heads of several machines
//!
//! A source without a node follows the latest head that the stream stores, whichever machine
//! published it. The rules below make it stand on the machines' common head as soon as they agree,
//! even if this or another machine has published the same blocks before:
//!
//! - A head that extends the head that its machine published before has the same message id on
//!   every machine, so the stream stores it once. Every other head has a unique message id and is
//!   stored: the first of a run or of a reorg, and a head that comes back. A source knows its
//!   parent, and leaves the other branch.
//! - The latest head of a machine has a higher sequence number in the stream than all its other
//!   heads. If the stream stored it before them, as a duplicate of another machine's message, the
//!   machine publishes it again with a unique message id.
//! - A source remembers heads of other branches, and applies them before a head above them
//!   ([`crate::deliver`]).
//!
//! These rules suffice: let a source stand on a block that some machine published last. If that
//! machine left the block for another branch, the stream stored the first block of that branch
//! later, and the source has followed. If the machine went on above the block, the stream stored
//! its latest head later, and the source has applied it.
//!
//! While the machines disagree, the source follows each branch in turn, if the branch is higher or
//! its parent is known. A machine that started a block behind the others publishes each head twice
//! until it has caught up.
//!
//! # What a node lists for long
//!
//! A pool keeps a transaction for as long as an audited node lists it, while the builders' pools
//! and the stream keep it for [`DEFAULT_TX_RETENTION`]. So the public flow publishes again every
//! [`REPEAT_INTERVAL`] what the pool still holds, behind everything else. All machines give such a
//! message the same id within a period, so the stream stores it once.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    iter::successors,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head};
use order_pool::{
    DEFAULT_TX_RETENTION, Event, Holder, Order, OrderId, OrderPool, PrivateCancellation,
    PrivateTerms, RemoveReason, Transaction,
};

use crate::{
    clock::ServerClock,
    config::Flow,
    wire::{Encoded, HeadRecord, PublisherTime, Record, encode_order, micros},
};

/// A head that is more than this many blocks below a new head is not published any more. A pool
/// remembers 64 blocks by default, and would take a head below these for the newest one.
const MAX_HEAD_AGE_BLOCKS: u64 = 32;

/// How many blocks of the published chain are remembered: as many as a pool remembers by default.
const MAX_CHAIN_BLOCKS: usize = 64;

/// How many transactions of a block are published with its head at most, so that the message fits
/// into 1 MiB, the default `max_payload` of a server. A block of 600 million gas of plain transfers
/// has fewer.
const MAX_MINED: usize = 32_000;

/// How many cancellations of private transactions are kept until they can be sent. By default a
/// pool holds 18,000 private transactions and remembers 16,384 cancellations. Each takes about
/// 150 bytes.
const MAX_UNSENT_CANCELLATIONS: usize = 65_536;

/// How often a public order is published that the pool still holds: one of two messages may be
/// lost, and builders that start find each order in the stream.
pub(crate) const REPEAT_INTERVAL: Duration = DEFAULT_TX_RETENTION.checked_div(2).unwrap();

/// How many entries of orders that have left the pool, or have been published since, may wait
/// beside as many as twice the orders of the pool.
const MAX_OUTDATED_REPEATS: usize = 1_024;

/// How many orders are published again without a pause. A node may have listed 20,000 at the same
/// time, which would delay new orders by a second.
const REPEATS_IN_A_ROW: usize = 32;
const REPEAT_PAUSE: Duration = Duration::from_millis(5);

/// After this time without a head nothing is published again: ten slots. The node may have stopped
/// to follow the chain, and then lists for ever what blocks contain.
const MAX_HEAD_PAUSE: Duration = Duration::from_secs(120);

/// A message to be published. It shares the order with the pool and is encoded when it is sent.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) record: Record,
    /// A number that no other message of this publisher has. It makes the message id unique, where
    /// the stream must not take the message for a duplicate.
    pub(crate) unique_number: Option<u64>,
    /// The period in which the order is published again. It is part of the message id.
    pub(crate) period: Option<u64>,
    /// The holder that this message is for, if it is not for the first time that the order was
    /// sent.
    pub(crate) additional_holder: Option<AdditionalHolder>,
    /// When the order arrived at this machine; `None` if builders do not need its age.
    pub(crate) received_at: Option<Instant>,
}

/// A holder that has sent an order that was sent before, by another holder or by itself. An order
/// counts for every holder that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdditionalHolder {
    pub(crate) holder: Holder,
    /// The terms of this holder, if the order is a private transaction.
    pub(crate) terms: Option<PrivateTerms>,
    /// When this holder sent it last, by this machine's clock.
    pub(crate) sent_at: SystemTime,
}

impl Item {
    /// Returns a message with the message id that it has on every machine.
    pub(crate) fn shared(record: Record) -> Self {
        Self {
            record,
            unique_number: None,
            period: None,
            additional_holder: None,
            received_at: None,
        }
    }

    /// Encodes the message, which is sent at `now`.
    pub(crate) fn encode(&self, now: Instant, server_clock: &ServerClock) -> Option<Encoded> {
        let age = match self.received_at {
            Some(received_at) => now.saturating_duration_since(received_at),
            None => Duration::ZERO,
        };
        let sent_again_micros = self.additional_holder.as_ref().map(|again| micros(again.sent_at));
        // The assigned nonce of a bundle may be above its time.
        let local_micros = self.record.local_micros().max(sent_again_micros.unwrap_or_default());
        let sent_before = server_clock.upper_bound(now);
        let publisher_time = PublisherTime { age, local_micros, sent_before };
        match (&self.record, &self.additional_holder) {
            (Record::Order(order), Some(AdditionalHolder { holder, terms, .. })) => {
                encode_order(order, *holder, terms.as_ref(), &publisher_time)
            }
            _ => self.record.encode(&publisher_time),
        }
    }

    /// Returns when this was sent to the machine, by its clock; `None` if builders do not need it.
    pub(crate) fn sent_at(&self) -> Option<SystemTime> {
        match &self.additional_holder {
            Some(additional) => Some(additional.sent_at),
            None => self.record.received_at(),
        }
    }

    /// Returns the unknown caller that sent this ([`Holder::is_known`]); `None` if a known holder
    /// sent it or a node has announced it.
    pub(crate) fn unknown_caller(&self) -> Option<Holder> {
        let holder = match (&self.record, &self.additional_holder) {
            (Record::Order(order), _) if is_public(order) => return None,
            (Record::Order(_), Some(additional)) => additional.holder,
            (Record::Order(order), None) => order.holder(),
            (Record::Cancellation(cancellation), _) => cancellation.holder,
            (Record::CancelPrivate(cancellation), _) => cancellation.holder,
            (Record::Head(_), _) => return None,
        };
        (!holder.is_known()).then_some(holder)
    }

    /// Whether all other messages are published before this one.
    pub(crate) fn is_deferrable(&self) -> bool {
        self.period.is_some() || self.unknown_caller().is_some()
    }

    /// Returns what makes the message id differ from that of the first message about the order. No
    /// other machine has the same, nor has another run of this one, but for an order that is
    /// published again: all machines have the same in a period.
    pub(crate) fn message_id_suffix(&self, run_id: &str) -> Option<String> {
        match (self.unique_number, self.period) {
            (Some(number), _) => Some(format!("-{run_id}-{number}")),
            (None, period) => period.map(|period| format!("-{period}")),
        }
    }

    /// Whether `other` must not be stored behind this message: an old head behind a new one.
    pub(crate) fn overrides(&self, other: &Self) -> bool {
        match (&self.record, &other.record) {
            (Record::Head(new), Record::Head(old)) => {
                old.head.number.saturating_add(MAX_HEAD_AGE_BLOCKS) < new.head.number
            }
            _ => false,
        }
    }
}

fn is_public(order: &Order) -> bool {
    order.as_tx().is_some_and(Transaction::is_public)
}

/// What is remembered of an order of the pool that was published.
#[derive(Debug, Default)]
struct Published {
    /// The latest comparison that found the order in the pool.
    comparison: u64,
    /// Whether it must be published again, because the stream may not have it.
    is_lost: bool,
    /// The cancellation to publish if the order leaves the pool unseen. It does not cancel what its
    /// signer sends later. Only private transactions with a signer have one.
    cancellation: Option<PrivateCancellation>,
    /// The known holders that sent the order too.
    additional_holders: Vec<AdditionalHolder>,
    /// When the order is published again, if it is public.
    repeat_at: Option<Instant>,
}

/// The orders that are to be published again, the earliest first, and the pauses between them. Some
/// entries are outdated: [`Published::repeat_at`] decides.
#[derive(Debug, Default)]
struct Repeats {
    due: VecDeque<(Instant, OrderId)>,
    in_a_row: usize,
    pauses_until: Option<Instant>,
    /// When the latest head was published, if heads are.
    head_at: Option<Instant>,
}

/// Follows the events of a pool and remembers which orders of the pool were published.
///
/// A public order is the same message on every machine. A private order or a cancellation is a
/// message of its own on each machine and in each run, because their sequence matters and differs
/// between machines.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    flow: Flow,
    publishes_heads: bool,
    /// One entry for each published order that the pool holds.
    published: HashMap<OrderId, Published>,
    /// Cancellations of private transactions that the next comparison publishes, by transaction and
    /// signer: they were not sent, or another signer has sent the transaction since. At most
    /// [`MAX_UNSENT_CANCELLATIONS`].
    unsent_cancellations: BTreeMap<(B256, Address), PrivateCancellation>,
    /// The number of the current comparison.
    comparison: u64,
    repeats: Repeats,
    /// How many messages got a unique number.
    unique_numbers: u64,
    /// The chain as it was published, newest last.
    chain: VecDeque<B256>,
    /// The heads that were published, on any branch, latest last. A head that comes back gets a
    /// unique message id.
    published_heads: VecDeque<B256>,
    latest_head: LatestHead,
}

/// Where the stream stored the latest published head, in relation to this machine's other heads.
#[derive(Debug, Default)]
struct LatestHead {
    hash: B256,
    unique_number: Option<u64>,
    /// Its sequence number in the stream, once that is known.
    sequence: Option<u64>,
    /// The highest sequence number of this machine's heads since the latest one with a unique id.
    highest_sequence: u64,
}

impl Follower {
    pub(crate) fn new(flow: Flow, publishes_heads: bool) -> Self {
        Self { flow, publishes_heads, ..Self::default() }
    }

    pub(crate) fn is_private(&self) -> bool {
        self.flow == Flow::Private
    }

    /// Begins a comparison: the caller now passes the events of a replay of the pool. Orders that
    /// were published are not published again, cancellations are.
    pub(crate) fn begin_comparison(&mut self) {
        self.comparison += 1;
    }

    /// Ends the comparison: orders that the replay did not contain have left the pool. Returns the
    /// cancellations of the private transactions among them. Nobody knows why they left. If they
    /// were mined or expired, the cancellation changes nothing; if their signer cancelled them, it
    /// must reach the builders.
    pub(crate) fn end_comparison(&mut self) -> Vec<Item> {
        let current = self.comparison;
        let absent: Vec<_> = self
            .published
            .extract_if(|_, published| published.comparison != current)
            .filter_map(|(_, published)| published.cancellation)
            .collect();
        // The table of a pool that was large for a while is given back.
        self.published.shrink_to(2 * self.published.len());
        absent.into_iter().for_each(|cancellation| self.keep_cancellation(cancellation));
        std::mem::take(&mut self.unsent_cancellations)
            .into_values()
            .map(|cancellation| self.unique(Record::CancelPrivate(cancellation)))
            .collect()
    }

    /// Keeps a cancellation for the end of the next comparison.
    fn keep_cancellation(&mut self, cancellation: PrivateCancellation) {
        let key = (cancellation.hash, cancellation.signer);
        let is_full = self.unsent_cancellations.len() >= MAX_UNSENT_CANCELLATIONS;
        if is_full && !self.unsent_cancellations.contains_key(&key) {
            tracing::warn!(
                hash = %cancellation.hash,
                signer = %cancellation.signer,
                limit = MAX_UNSENT_CANCELLATIONS,
                "too many cancellations were not sent: builders do not learn of this one"
            );
            return;
        }
        let kept = self.unsent_cancellations.entry(key).or_insert(cancellation);
        if kept.cancelled_at < cancellation.cancelled_at {
            *kept = cancellation;
        }
    }

    /// Drops an unsent cancellation: at `time` the signer has sent the transaction again, or a
    /// later cancellation of it is published.
    fn drop_cancellation(&mut self, hash: B256, signer: Address, time: SystemTime) {
        let key = (hash, signer);
        if self.unsent_cancellations.get(&key).is_some_and(|kept| kept.cancelled_at <= time) {
            self.unsent_cancellations.remove(&key);
        }
    }

    /// The stream has lost everything, so everything is to be published again.
    pub(crate) fn forget_all(&mut self) {
        for published in self.published.values_mut() {
            published.is_lost = true;
        }
        self.chain.clear();
    }

    /// The message was not sent: notes what the next comparison must publish again.
    pub(crate) fn forget(&mut self, item: &Item) {
        match &item.record {
            // The entry is kept: an earlier message may have published the order, so its
            // cancellation must still be published if it leaves the pool.
            Record::Order(order) => {
                self.published.entry(order.id()).and_modify(|published| published.is_lost = true);
            }
            // The pool may have forgotten it when the next comparison begins.
            Record::CancelPrivate(cancellation) => self.keep_cancellation(*cancellation),
            Record::Head(record) => {
                if let Some(position) = self.chain_position(&record.head.hash) {
                    self.chain.truncate(position);
                }
            }
            // The replay contains it.
            Record::Cancellation(_) => {}
        }
    }

    /// Returns the messages that an event of the pool requires.
    pub(crate) fn on_event(&mut self, event: &Event, pool: &OrderPool) -> Vec<Item> {
        let is_private = self.is_private();
        let item = match event {
            Event::Head(head) => return self.on_head(head, pool),
            Event::Added(order) | Event::BecamePublic(order) => return self.on_added(order),
            Event::Held { order, holder, terms, sent_at } if is_private => {
                let (holder, terms, sent_at) = (*holder, *terms, *sent_at);
                self.on_held(order, AdditionalHolder { holder, terms, sent_at })
            }
            // The same transaction follows with another sidecar, which builders need too.
            Event::Removed { order, reason: RemoveReason::Replaced } if !is_private => {
                self.published.entry(order.id()).and_modify(|published| published.is_lost = true);
                None
            }
            Event::Removed { order, .. } => {
                self.published.remove(&order.id());
                None
            }
            Event::Cancelled(cancellation) if is_private => {
                Some(self.unique(Record::Cancellation(*cancellation)))
            }
            Event::CancelledPrivate(cancellation) if is_private => {
                let PrivateCancellation { hash, signer, cancelled_at, .. } = *cancellation;
                self.drop_cancellation(hash, signer, cancelled_at);
                if let Some(published) = self.published.get_mut(&OrderId::Tx(hash)) {
                    // It is published now, and not once more at the end of a comparison.
                    published.cancellation.take_if(|pending| {
                        pending.signer == signer && pending.cancelled_at <= cancelled_at
                    });
                }
                Some(self.unique(Record::CancelPrivate(*cancellation)))
            }
            _ => None,
        };
        item.into_iter().collect()
    }

    /// Returns a message that is no duplicate of any other.
    fn unique(&mut self, record: Record) -> Item {
        self.unique_numbers += 1;
        Item { unique_number: Some(self.unique_numbers), ..Item::shared(record) }
    }

    /// Publishes a private order for an additional holder, so that builders count it for that
    /// holder too. Without it, an order that this holder was told is pooled would leave the
    /// builders' pools together with the share of the holder that sent it first.
    fn on_held(&mut self, order: &Arc<Order>, additional: AdditionalHolder) -> Option<Item> {
        if is_public(order) {
            return None;
        }
        if let Some(signer) = additional.terms.and_then(|terms| terms.signer)
            && let Some(tx) = order.as_tx()
        {
            self.drop_cancellation(*tx.hash(), signer, additional.sent_at);
        }
        if let Some(published) = self.published.get_mut(&order.id())
            && additional.holder.is_known()
        {
            published.additional_holders.retain(|other| other.holder != additional.holder);
            published.additional_holders.push(additional);
            if let Some(cancellation) = &mut published.cancellation
                && additional.terms.and_then(|terms| terms.signer) == Some(cancellation.signer)
            {
                cancellation.cancelled_at = cancellation.cancelled_at.max(additional.sent_at);
            }
        }
        let item = self.unique(Record::Order(Arc::clone(order)));
        Some(Item { additional_holder: Some(additional), ..item })
    }

    fn on_added(&mut self, order: &Arc<Order>) -> Vec<Item> {
        let comparison = self.comparison;
        if is_public(order) != (self.flow == Flow::Public) {
            // A private transaction that became public has not left the pool.
            self.published
                .entry(order.id())
                .and_modify(|published| published.comparison = comparison);
            return Vec::new();
        }
        let cancellation = if self.is_private() { cancellation_of(order) } else { None };
        let is_new = !self.published.contains_key(&order.id());
        if let Some(cancellation) = &cancellation {
            let PrivateCancellation { hash, signer, cancelled_at, .. } = *cancellation;
            self.drop_cancellation(hash, signer, cancelled_at);
        }
        let published = self.published.entry(order.id()).or_default();
        published.comparison = comparison;
        // Builders know it from another signer, who does not hold it any more.
        let signer = cancellation.map(|cancellation| cancellation.signer);
        let from_other_signer = published.cancellation.take_if(|old| Some(old.signer) != signer);
        // It may have been sent again since.
        let is_earlier = |known: &PrivateCancellation| {
            cancellation.is_none_or(|other| known.cancelled_at < other.cancelled_at)
        };
        if published.cancellation.as_ref().is_none_or(is_earlier) {
            published.cancellation = cancellation;
        }
        let was_lost = std::mem::take(&mut published.is_lost) || from_other_signer.is_some();
        if !is_new && !was_lost {
            return Vec::new();
        }
        let additional_holders = published.additional_holders.clone();
        from_other_signer.into_iter().for_each(|old| self.keep_cancellation(old));
        let record = Record::Order(Arc::clone(order));
        if is_new && self.flow == Flow::Public {
            return vec![Item::shared(record)];
        }
        // A lost order needs a unique id too: the stream may still remember the old one.
        let mut items = vec![self.unique(record.clone())];
        for additional in additional_holders {
            let item = self.unique(record.clone());
            items.push(Item { additional_holder: Some(additional), ..item });
        }
        items
    }

    /// Records that a message is published at `now`. If it is about a public order, the order is
    /// published again after [`REPEAT_INTERVAL`].
    pub(crate) fn on_published(&mut self, item: &Item, now: Instant) {
        if let Record::Head(_) = item.record {
            self.repeats.head_at = Some(now);
        }
        if let Record::Order(order) = &item.record
            && self.flow == Flow::Public
            && let Some(published) = self.published.get_mut(&order.id())
        {
            let repeat_at = now + REPEAT_INTERVAL;
            published.repeat_at = Some(repeat_at);
            self.repeats.due.push_back((repeat_at, order.id()));
        }
        // While nothing is published again, as without heads, only this bounds the entries.
        if self.repeats.due.len() > 2 * self.published.len() + MAX_OUTDATED_REPEATS {
            let published = &self.published;
            self.repeats.due.retain(|(due, id)| {
                published.get(id).is_some_and(|published| published.repeat_at == Some(*due))
            });
        }
    }

    /// Returns when, from `now` on, there may be an order to publish again; `None` also if the
    /// latest head will be too old then.
    pub(crate) fn next_repeat_at(&self, now: Instant) -> Option<Instant> {
        let Repeats { due, pauses_until, head_at, .. } = &self.repeats;
        let (due, _) = *due.front()?;
        let repeat_at = pauses_until.map_or(due, |pause| pause.max(due)).max(now);
        let is_current = |head_at: Instant| repeat_at <= head_at + MAX_HEAD_PAUSE;
        head_at.is_none_or(is_current).then_some(repeat_at)
    }

    /// Returns a public order to be published again at `now`, if the pool still holds it.
    /// `server_time` is the time of the server's clock, whose periods all machines share.
    pub(crate) fn next_repeat(
        &mut self,
        now: Instant,
        server_time: SystemTime,
        pool: &OrderPool,
    ) -> Option<Item> {
        while self.next_repeat_at(now).is_some_and(|repeat_at| repeat_at <= now) {
            let (due, id) = self.repeats.due.pop_front()?;
            // The order may have left the pool, and may have been published again since.
            let published = self.published.get(&id);
            let is_due = published
                .is_some_and(|published| published.repeat_at == Some(due) && !published.is_lost);
            let order = pool.get(id.hash()).filter(|order| is_due && is_public(order));
            let Some(order) = order else { continue };
            self.repeats.in_a_row += 1;
            if self.repeats.in_a_row == REPEATS_IN_A_ROW {
                self.repeats.in_a_row = 0;
                self.repeats.pauses_until = Some(now + REPEAT_PAUSE);
            }
            let period = micros(server_time) / REPEAT_INTERVAL.as_micros() as u64;
            return Some(Item { period: Some(period), ..Item::shared(Record::Order(order)) });
        }
        None
    }

    /// Whether an order of the pool belongs to this flow and must still be published.
    pub(crate) fn is_unpublished(&self, order: &Order) -> bool {
        is_public(order) == (self.flow == Flow::Public)
            && self.published.get(&order.id()).is_none_or(|published| published.is_lost)
    }

    /// Returns the position of a block in the chain as it was published.
    fn chain_position(&self, hash: &B256) -> Option<usize> {
        self.chain.iter().rposition(|known| known == hash)
    }

    /// Publishes a head with all transactions of its block, because builders may hold some that
    /// this pool never held. The head follows all blocks since the latest one that builders have of
    /// its chain: blocks that the pool applied while nothing could be published, and all of the
    /// last [`MAX_HEAD_AGE_BLOCKS`] if the stream is new to this run.
    fn on_head(&mut self, head: &Head, pool: &OrderPool) -> Vec<Item> {
        let is_latest = self.chain.back() == Some(&head.hash);
        if self.flow != Flow::Public || !self.publishes_heads || is_latest {
            return Vec::new();
        }
        let unpublished_parent = |block: &Block| {
            let Head { number, parent_hash, .. } = &block.head;
            let is_recent = number.saturating_add(MAX_HEAD_AGE_BLOCKS) > head.number;
            if is_recent && self.chain_position(parent_hash).is_none() {
                pool.block(parent_hash)
            } else {
                None
            }
        };
        // The pool emits a head after it has applied it, and may have left it since. Then it does
        // not have the block, nothing is published, and the head of the other branch follows.
        let blocks: Vec<_> = successors(pool.block(&head.hash), unpublished_parent).collect();
        blocks.into_iter().rev().map(|block| self.head_item(block)).collect()
    }

    /// Records that the stream has a message at this sequence number. Returns the latest head to be
    /// published again, if the stream has it below another head of this machine.
    pub(crate) fn on_stored(
        &mut self,
        item: &Item,
        sequence: u64,
        pool: &OrderPool,
    ) -> Option<Item> {
        let Record::Head(record) = &item.record else { return None };
        let latest = &mut self.latest_head;
        latest.highest_sequence = latest.highest_sequence.max(sequence);
        if record.head.hash == latest.hash && item.unique_number == latest.unique_number {
            latest.sequence = Some(sequence);
        }
        if latest.sequence.is_none_or(|sequence| sequence >= latest.highest_sequence) {
            return None;
        }
        // If a reorg has undone the head, the pool has no block, and the next head follows.
        let Block { head, mined, .. } = pool.block(&latest.hash)?;
        let mined = limit_mined(&head, &mined);
        Some(self.unique_head(HeadRecord { head, previous: head.hash, mined }))
    }

    /// Returns a head that is no duplicate. Everything that is stored later has a higher sequence
    /// number than it, also in a stream that was recreated.
    fn unique_head(&mut self, record: HeadRecord) -> Item {
        let hash = record.head.hash;
        let item = self.unique(Record::Head(record.into()));
        let unique_number = item.unique_number;
        self.latest_head = LatestHead { hash, unique_number, sequence: None, highest_sequence: 0 };
        item
    }

    fn head_item(&mut self, Block { head, mined, .. }: Block) -> Item {
        let previous = self.chain.back().copied().unwrap_or_default();
        // The blocks that this head replaces leave the chain: one of them may come back.
        self.chain.truncate(self.chain_position(&head.parent_hash).map_or(0, |parent| parent + 1));
        self.chain.push_back(head.hash);
        if self.chain.len() > MAX_CHAIN_BLOCKS {
            self.chain.pop_front();
        }
        let record = HeadRecord { head, previous, mined: limit_mined(&head, &mined) };
        let comes_back = self.published_heads.contains(&head.hash);
        if !comes_back {
            self.published_heads.push_back(head.hash);
            if self.published_heads.len() > 2 * MAX_CHAIN_BLOCKS {
                self.published_heads.pop_front();
            }
        }
        if comes_back || previous != head.parent_hash {
            return self.unique_head(record);
        }
        self.latest_head.hash = head.hash;
        self.latest_head.unique_number = None;
        self.latest_head.sequence = None;
        Item::shared(Record::Head(record.into()))
    }
}

/// Returns the cancellation of a private transaction that has a signer.
fn cancellation_of(order: &Order) -> Option<PrivateCancellation> {
    let tx = order.as_tx()?;
    let signer = tx.private_terms()?.signer?;
    Some(PrivateCancellation {
        hash: *tx.hash(),
        signer,
        cancelled_at: tx.first_seen(),
        holder: tx.holder(),
    })
}

/// Returns the transactions of a block, as many as fit into a message.
fn limit_mined(head: &Head, mined: &[B256]) -> Vec<B256> {
    let count = mined.len();
    if count > MAX_MINED {
        tracing::warn!(
            number = head.number,
            count,
            limit = MAX_MINED,
            "a block has more transactions than fit into one message: the rest is left out"
        );
    }
    mined[..count.min(MAX_MINED)].to_vec()
}

#[cfg(test)]
mod tests;
