//! The pool: the core behind one lock for writers, and the tables that readers use without it.
//!
//! # The writer's lock
//! Each insert and cancellation takes it once, for one change and its publication. A head, a list
//! of nonces and a step of upkeep are divided into steps that take it once each. What one hold does
//! is bounded:
//!
//! - An insert evicts at most 512 transactions, or removes at most 64 bundles to make room and one
//!   that is expired or invalid. To find them, it inspects a few thousand orders.
//! - A step touches at most 256 transactions, removes one bundle, or rewrites at most 16
//!   pages.
//! - A step that puts back what a reorg un-mined removes up to four bundles, and ends with the
//!   order that brings it to 256 transactions, whose insert may evict others.
//! - Each hold releases at most 256 claims on orders that were removed before.
//!
//! No sink and no waker runs under this lock, and no other lock of a sink is held with it. An
//! iterator that a caller passes is drained before the lock is taken, and replaced values are freed
//! after it is released. The only foreign code that runs under it is that of the metrics recorder.
//!
//! Heads and lists of nonces take turns through a second lock, which nothing else takes. The
//! writer's lock is taken under it, never the other way round.
//!
//! There is one mutex because there is one mempool: the critical section is bounded, and the many
//! readers take no lock anyway. A panic under a lock would be a defect of this crate, which its
//! message has reported. It does not poison the lock: to refuse all orders from then on would help
//! nobody.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, NonceUpdate, Relation};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    arrival::arrival_instant,
    clock::Clock,
    config::PoolConfig,
    core::{Change, Core, Effect, Limits},
    error::{ConfigError, RejectReason},
    event::{CancelOutcome, CancelPrivateOutcome, Event, InsertOutcome, OrderStatus},
    holder::Holder,
    metrics::{Levels, PoolStats},
    order::{
        Bundle, Cancellation, Funds, Order, PrivateCancellation, PrivateTerms, ReplacementKey,
        Transaction,
    },
    read::{Publisher, SeenState, Subscription, Tables},
};

/// The most transactions that one step of a head, of nonces or of upkeep touches: half a
/// millisecond, at about 2 us each.
const PER_STEP: usize = 256;

/// The most bundles that are removed before a head is published, and after a list of nonces. Each
/// takes a step of its own: together about three milliseconds.
const SWEPT_WITH_HEAD: usize = 16;

/// The most bundles that one step of upkeep removes.
const SWEPT_BY_UPKEEP: usize = 64;

/// The pause between two steps of a head. Without it the thread that has just released the lock
/// would usually take it again before a thread that waits for it.
pub(crate) const STEP_PAUSE: Duration = Duration::from_micros(50);

/// Calls `step` with the items in groups of [`PER_STEP`], and pauses between the calls.
fn in_steps<T>(items: &[T], mut step: impl FnMut(&[T])) {
    for (n, items) in items.chunks(PER_STEP).enumerate() {
        if n > 0 {
            thread::sleep(STEP_PAUSE);
        }
        step(items);
    }
}

/// A pool of orders. Cloning gives another handle to the same pool.
///
/// All methods can be called from any thread at any time. Methods that change the pool share one
/// lock for a few microseconds. Methods that read take no lock, unless their documentation says so.
#[derive(Clone, Debug)]
pub struct OrderPool {
    pub(crate) shared: Arc<PoolShared>,
}

pub(crate) struct PoolShared {
    writer: Mutex<Writer>,
    /// Held through all steps of a head or of a list of nonces, so that these are applied one after
    /// another.
    chain_turn: Mutex<()>,
    pub(crate) tables: Arc<Tables>,
    levels: Levels,
    clock: Clock,
    /// The most effects of one hold of the writer's lock.
    #[cfg(test)]
    pub(crate) most_effects: std::sync::atomic::AtomicUsize,
}

impl std::fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the contents, which would fill a log.
        f.debug_struct("Pool").field("head", &self.tables.wakers.head()).finish_non_exhaustive()
    }
}

/// Ends the subscriptions, once the last [`OrderPool`] is dropped.
impl Drop for PoolShared {
    fn drop(&mut self) {
        self.tables.wakers.close();
    }
}

/// The state that the writer's lock protects.
struct Writer {
    core: Core,
    publisher: Publisher,
}

impl OrderPool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// The configuration is out of bounds: see [`PoolConfig::validate`].
    pub fn new(config: PoolConfig) -> Result<Self, ConfigError> {
        Self::with_clock(config, Clock::system())
    }

    /// Makes an empty pool with the given clock.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_clock(config: PoolConfig, clock: Clock) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self::with_limits(Limits::from(config), clock))
    }

    pub(crate) fn with_limits(limits: Limits, clock: Clock) -> Self {
        let levels = Levels::new();
        levels.set_caps(&limits.options);
        let publisher = Publisher::new(limits.options.log_events, limits.options.log_bytes);
        let core = Core::new(limits);
        let tables = Arc::new(Tables::new(&core.index, &core.seen));
        Self {
            shared: Arc::new(PoolShared {
                writer: Mutex::new(Writer { core, publisher }),
                chain_turn: Mutex::default(),
                tables,
                levels,
                clock,
                #[cfg(test)]
                most_effects: Default::default(),
            }),
        }
    }

    /// Inserts a transaction.
    pub fn insert_transaction(&self, tx: Transaction) -> InsertOutcome {
        self.insert(Order::Tx(tx), None)
    }

    /// Inserts a bundle; its parts name its signer. An empty bundle with a uuid cancels the key's
    /// earlier ones.
    ///
    /// A bundle without a block number is for the block after the head. While the pool knows no
    /// head, it is for any block, until the first head comes.
    pub fn insert_bundle(&self, bundle: Bundle) -> InsertOutcome {
        self.insert(Order::Bundle(bundle), None)
    }

    /// Inserts an order; with `funds` only if the check of [`Self::check_funds`] passes.
    pub fn insert(&self, order: Order, funds: Option<&Funds>) -> InsertOutcome {
        self.shared.try_insert(|core| {
            if let Some(funds) = funds {
                core.claims.check_funds(&order, funds)?;
            }
            match order {
                Order::Tx(tx) => core.insert_tx(tx),
                Order::Bundle(bundle) => core.insert_bundle(bundle),
            }
        })
    }

    /// Adds a caller to the holders of a pooled transaction, as inserting the transaction again
    /// would. From then on it counts for all of its holders, and stays until all have lost it. With
    /// `terms` the caller sends it as a private transaction. `sent_at` is when the request arrived
    /// ([`arrival`](crate::arrival())): a cancellation that arrived later ends the transaction.
    pub fn add_holder(
        &self,
        hash: &B256,
        holder: Holder,
        terms: Option<&PrivateTerms>,
        sent_at: SystemTime,
    ) -> InsertOutcome {
        self.shared.try_insert(|core| core.add_tx_holder(hash, holder, terms, sent_at))
    }

    /// Checks whether the sender of an order's first transaction can pay for the order and for all
    /// external orders of the same holder that begin with another of its transactions.
    ///
    /// Of several orders with the same nonce only the dearest counts, since at most one can be
    /// included. Orders that other holders have sent do not count, so that nobody can use up
    /// another holder's balance. The first transaction of a bundle that may omit it does not count.
    /// Takes the lock, for one look-up for each pooled nonce.
    ///
    /// # Errors
    /// [`RejectReason::InsufficientFunds`].
    pub fn check_funds(&self, order: &Order, funds: &Funds) -> Result<(), RejectReason> {
        self.shared.lock().core.claims.check_funds(order, funds)
    }

    /// Cancels the bundles of a key with the cancellation's nonce or a lower one, for all blocks,
    /// including bundles that have not arrived yet. Without a nonce the cancellation is permanent.
    /// Another signer's bundles have another key.
    pub fn cancel_bundle(&self, cancellation: Cancellation) -> CancelOutcome {
        let shared = &self.shared;
        let outcome = shared.write(|core| core.cancel_bundle(cancellation));
        shared.tables.counters.outcome(&outcome.into());
        outcome
    }

    /// Removes the bundle of a key for a block, if it has a lower nonce. Another pool has replaced
    /// it by a bundle that this pool refuses, because a block here already contains its
    /// transactions, or because there is no room for it. If the new bundle's message had no nonce,
    /// `nonce` is the one that the other pool has assigned.
    pub fn supersede(&self, key: ReplacementKey, block: u64, nonce: u64, holder: Holder) {
        self.shared.write(|core| core.supersede((key, Some(block)), nonce, holder));
    }

    /// Returns the blocks for which the pool remembers a bundle of this key: of one that has left,
    /// for [`CANCELLATION_RETENTION`](crate::CANCELLATION_RETENTION).
    ///
    /// It takes the writer's lock as an insert does, so it is for those that insert, and not for a
    /// builder that reads.
    #[must_use]
    pub fn bundle_blocks(&self, key: &ReplacementKey) -> Vec<u64> {
        self.shared.write(|core| core.bundle_blocks(key))
    }

    /// Removes a private transaction that `signer` sent ([`Transaction::private`]), unless it has
    /// become public, or another caller sent it too.
    ///
    /// `cancelled_at` is when the signer cancelled it, by [`arrival`](crate::arrival()). If the
    /// signer sent the transaction later than that, it stays.
    ///
    /// The cancellation is remembered until
    /// [`CANCELLATION_RETENTION`](crate::CANCELLATION_RETENTION) after `cancelled_at`, whether or
    /// not the transaction is in the pool, and counts against `holder`. Subscribers receive
    /// [`Event::CancelledPrivate`]. Until then, the transaction is refused if it arrives with a
    /// [`Transaction::first_seen`] up to `cancelled_at`, and accepted if it was sent later. If that
    /// time is over when the cancellation arrives, the cancellation only removes the transaction.
    pub fn cancel_private(
        &self,
        hash: &B256,
        signer: Address,
        holder: Holder,
        cancelled_at: SystemTime,
    ) -> CancelPrivateOutcome {
        let shared = &self.shared;
        // The clock of the machine that received the cancellation may be ahead: its age is then 0.
        let age = Instant::now().saturating_duration_since(arrival_instant(cancelled_at));
        let cancellation = PrivateCancellation { hash: *hash, signer, cancelled_at, holder };
        let outcome = shared.write(|core| core.cancel_private(cancellation, age));
        let is_cancelled = outcome == CancelPrivateOutcome::Cancelled;
        shared.tables.counters.cancellations.add(u64::from(is_cancelled));
        outcome
    }

    /// Applies a new head.
    ///
    /// Orders that the block contains are removed. If it replaces known blocks, orders that these
    /// had removed are put back like new ones; those for which there is no room are counted as
    /// rejected. Then subscribers receive [`Event::Head`], which says what is removed before it and
    /// what after. A block that the pool knows already, or whose number does not follow its
    /// parent's, changes nothing: the returned [`Relation`] says so.
    ///
    /// The head is applied in short steps, with other changes in between. [`Self::upkeep`] and
    /// inserts remove bundles that are left after it. From the head on, [`Self::get`] and
    /// [`Self::contains`] do not find a bundle whose block has passed.
    pub fn on_head(&self, block: Block) -> Relation {
        let shared = &self.shared;
        let _turn = shared.chain_turn.lock();
        let (head, mined) = (block.head, Arc::clone(&block.mined));
        // `reinserted` are orders that a reorg puts back; `dropped` counts others for which there
        // was no room.
        let Change { relation, mut reinserted, dropped, forgotten } =
            shared.write(|core| core.chain.push(block));
        if !relation.is_new() {
            return relation;
        }
        let mut raised = VecDeque::new();
        in_steps(&mined, |hashes| {
            shared.write(|core| core.remove_mined(&head, hashes, &mut raised))
        });
        shared.sweep_some(SWEPT_WITH_HEAD);
        let expire_private = || shared.write(|core| core.expire_private(PER_STEP));
        let has_more_expired = expire_private();
        let counters = &shared.tables.counters;
        counters.reorg_dropped(dropped);
        while !reinserted.is_empty() {
            let (count, refused) = shared.write(|core| core.reinsert(&mut reinserted, PER_STEP));
            counters.put_back.add(count);
            refused.iter().for_each(|reason| counters.outcome(&InsertOutcome::Rejected(*reason)));
            thread::sleep(STEP_PAUSE);
        }
        in_steps(&forgotten, |hashes| shared.write(|core| core.forget_undone(hashes)));
        shared.write(|core| core.publish(Effect::Transient(Event::Head(Arc::new(head)))));
        // The other expired ones are removed after the event, as [`Event::Head`] says.
        while has_more_expired && expire_private() {
            thread::sleep(STEP_PAUSE);
        }
        shared.remove_stale(&head, raised);
        counters.heads.add(1);
        counters.reorgs.add(u64::from(relation.replaced() > 0));
        counters.head_gaps.add(u64::from(matches!(relation, Relation::Gap { .. })));
        relation
    }

    /// Forgets the chain, because it was reset: it has another genesis block, as a development
    /// chain may have.
    ///
    /// The pool forgets every block, nonce and mined transaction, and accepts again what it has
    /// removed. Pooled orders stay until they are removed for another reason; transactions that a
    /// node listed, for [`PoolConfig::tx_retention`] from now on or until a node lists them again.
    /// The next head is the first of the new chain.
    pub fn on_chain_reset(&self) {
        let shared = &self.shared;
        let _turn = shared.chain_turn.lock();
        let end = shared.write(|core| {
            core.reset_chain();
            core.next_seq
        });
        let mut next = Some(0);
        while let Some(begin) = next {
            next = shared.write(|core| core.unlist_from(begin, end, PER_STEP));
            thread::sleep(STEP_PAUSE);
        }
    }

    /// Records that a node whose pool the host compares with this one lists these transactions.
    /// Those that are pooled and public are kept until the node no longer lists them, as with
    /// [`Transaction::listed`](crate::Transaction::listed).
    pub fn on_listed(&self, hashes: &[B256]) {
        in_steps(hashes, |hashes| self.shared.write(|core| core.on_listed(hashes)));
    }

    /// Records that no node lists these transactions any more. Those that are pooled are kept for
    /// [`PoolConfig::tx_retention`] from now on, since a builder may still want them.
    pub fn on_unlisted(&self, hashes: &[B256]) {
        in_steps(hashes, |hashes| self.shared.write(|core| core.on_unlisted(hashes)));
    }

    /// Returns the latest head that [`Self::on_head`] applied; `None` before the first.
    pub fn head(&self) -> Option<Head> {
        self.shared.tables.heads.latest()
    }

    /// Returns a block that [`Self::on_head`] applied, if it is one of the last 64 and no reorg has
    /// undone it. Takes the lock, for one look-up.
    pub fn block(&self, hash: &B256) -> Option<Block> {
        self.shared.lock().core.chain.recent.block(hash).cloned()
    }

    /// Applies the nonces that a block raised: for each sender of the block, the next nonce that it
    /// can use. May be called any time after [`Self::on_head`]. If a reorg undid the block
    /// meanwhile, the nonces are ignored and counted (`order_pool_stale_nonces_total`).
    pub fn on_nonces(&self, block_hash: B256, updates: impl IntoIterator<Item: Into<NonceUpdate>>) {
        let shared = &self.shared;
        // The iterator is foreign code, so it runs before a lock is taken.
        let updates: Vec<NonceUpdate> = updates.into_iter().map(Into::into).collect();
        let _turn = shared.chain_turn.lock();
        let applied = shared.write(|core| core.raise_nonces(block_hash, updates));
        match applied {
            Some((head, raised)) => shared.remove_stale(&head, raised),
            None => shared.tables.counters.stale_nonces.add(1),
        }
    }

    /// Whether the order is in the pool.
    pub fn contains(&self, hash: &B256) -> bool {
        self.shared.tables.find(hash, |_| ()).is_some()
    }

    /// Returns what the pool knows about an order: whether it is pooled, and if not, whether a
    /// comparison with another pool should offer it again.
    pub fn status(&self, hash: &B256) -> OrderStatus {
        // Read before the pool, so that an order which is put back in between is found in the pool.
        let seen = self.shared.tables.seen.state(hash);
        if self.contains(hash) {
            return OrderStatus::Pooled;
        }
        match seen {
            Some(SeenState::Known) => OrderStatus::Removed,
            Some(SeenState::MayReturn) => OrderStatus::MayReturn,
            None => OrderStatus::Unknown,
        }
    }

    /// Returns the order with this hash, if it is in the pool.
    pub fn get(&self, hash: &B256) -> Option<Arc<Order>> {
        self.shared.tables.find(hash, Arc::clone)
    }

    /// Returns the number of orders.
    pub fn len(&self) -> usize {
        let levels = &self.shared.levels;
        (levels.txs.get() + levels.bundles.get()) as usize
    }

    /// Whether the pool is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the orders, in bytes.
    pub fn bytes(&self) -> usize {
        self.shared.levels.bytes() as usize
    }

    /// Returns the present sizes, and the counts since the pool was made.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.shared;
        let tables = &shared.tables;
        PoolStats::read(&shared.levels, &tables.counters, tables.wakers.waiters())
    }

    /// Subscribes to a block: the current head, then every live order that may go into the block,
    /// once, then every later event that concerns it, in the order in which the pool accepted them.
    /// Heads concern every block.
    pub fn subscribe(&self, block: u64) -> Subscription {
        Subscription::new(Arc::clone(&self.shared.tables), Some(block))
    }

    /// Like [`Self::subscribe`], for the orders of all blocks.
    pub fn subscribe_all(&self) -> Subscription {
        Subscription::new(Arc::clone(&self.shared.tables), None)
    }

    /// Runs one bounded step of upkeep: removes expired and invalid orders, rewrites pages, frees
    /// memory. Returns whether more may be due. Takes the writer's lock up to 66 times, each time
    /// for a bounded part of the work; inserts run in between.
    ///
    /// [`Upkeep`](crate::Upkeep) calls it from a thread of its own. A host without one should call
    /// it about once a second. If it is never called, only heads and inserts remove what has
    /// expired, but every cap still holds.
    pub fn upkeep(&self) -> bool {
        self.shared.upkeep()
    }
}

impl PoolShared {
    /// Runs one change under the lock, publishes its effects, and wakes waiting readers.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        let (result, replaced) = {
            let mut writer = self.lock();
            let Writer { core, publisher } = &mut *writer;
            // The clock is read under the lock, so that time and sequence numbers ascend together.
            core.begin(self.clock.now());
            let result = change(core);
            #[cfg(test)]
            self.most_effects.fetch_max(core.effects.len(), std::sync::atomic::Ordering::Relaxed);
            let replaced = (!core.effects.is_empty()).then(|| {
                core.effects.drain(..).for_each(|effect| self.apply(publisher, effect));
                debug_assert_eq!(core.next_seq, publisher.next_seq());
                publisher.publish(&self.tables)
            });
            // Also without effects, because a key may have been forgotten without an event.
            self.set_levels(&writer);
            (result, replaced)
        };
        if replaced.is_some() {
            self.tables.wakers.wake_readers();
        }
        drop(replaced);
        result
    }

    /// Runs an insert, and counts its outcome.
    fn try_insert(
        &self,
        insert: impl FnOnce(&mut Core) -> Result<InsertOutcome, InsertOutcome>,
    ) -> InsertOutcome {
        let outcome = self.write(insert).unwrap_or_else(|refused| refused);
        self.tables.counters.outcome(&outcome);
        outcome
    }

    /// Removes at most `limit` expired and invalid bundles. Returns whether more may be left.
    fn sweep_some(&self, limit: usize) -> bool {
        for _ in 0..limit {
            if !self.write(Core::sweep) {
                return false;
            }
            thread::sleep(STEP_PAUSE);
        }
        true
    }

    /// Removes orders with nonces that a block used.
    fn remove_stale(&self, head: &Head, mut raised: VecDeque<NonceUpdate>) {
        if raised.is_empty() {
            return;
        }
        while !raised.is_empty() {
            self.write(|core| core.remove_stale(head, &mut raised, PER_STEP));
            thread::sleep(STEP_PAUSE);
        }
        self.sweep_some(SWEPT_WITH_HEAD);
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    fn apply(&self, publisher: &mut Publisher, effect: Effect) {
        match effect {
            Effect::Added(event) => publisher.add(event),
            Effect::Transient(event) => {
                match &event {
                    Event::Head(head) => {
                        self.tables.heads.publish(publisher.next_seq(), Arc::clone(head));
                    }
                    Event::CancellationForgotten(_) => self.tables.counters.keys_forgotten.add(1),
                    _ => {}
                }
                publisher.event(event);
            }
            Effect::Removed { added, order, reason } => {
                self.tables.counters.removed(reason);
                publisher.remove(added, order.size_bytes());
                publisher.event(Event::Removed { order, reason });
            }
            Effect::CancellationEnded(added) => publisher.remove(added, 0),
            Effect::PrivateCancellationForgotten(added) => {
                self.tables.counters.keys_forgotten.add(1);
                publisher.remove(added, 0);
            }
        }
    }

    fn set_levels(&self, Writer { core, publisher }: &Writer) {
        let Core { txs, external, bundles, keys, .. } = core;
        let levels = &self.levels;
        levels.txs.set(txs.len() as u64);
        levels.tx_bytes.set(txs.bytes() as u64);
        levels.external_txs.set(external.count as u64);
        levels.external_tx_bytes.set(external.bytes as f64);
        levels.bundles.set(bundles.len() as u64);
        levels.bundle_bytes.set(bundles.bytes as u64);
        levels.keys.set(keys.len() as u64);
        levels.log_bytes.set(publisher.removed_bytes() as u64);
    }

    pub(crate) fn upkeep(&self) -> bool {
        let started = Instant::now();
        let sweeping = self.sweep_some(SWEPT_BY_UPKEEP);
        let expiring = self.write(|core| core.expire(PER_STEP));
        let (replaced, publishing) = {
            let mut writer = self.lock();
            let done = writer.publisher.upkeep(&self.tables);
            self.set_levels(&writer);
            done
        };
        drop(replaced);
        self.tables.counters.upkeep_steps.add(1);
        self.levels.upkeep_step_seconds.record(started.elapsed().as_secs_f64());
        sweeping || expiring || publishing
    }
}
