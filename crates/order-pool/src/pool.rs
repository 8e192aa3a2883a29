//! The pool: the core behind one lock for writers, and the tables that readers use without it.
//!
//! The lock is taken by each insert and cancellation, by each step of a head and of a list of nonces,
//! and by a step of upkeep (to remove what is over, up to 16 times, to expire, to compact): for one change and its publication. An insert
//! evicts at most 512 transactions, or evicts 64 bundles and removes 4 that are over; a step touches at most 256
//! transactions, removes at most 4 bundles, or rewrites at most 16 pages; one that puts back what a reorg un-mined
//! ends with the order that has it touch as many, whose insert may evict others. Each ends at most 256 claims on orders that
//! have left. It is never held together with a sink's. Under it no
//! sink and no waker runs: an iterator that a caller passed is drained before it is taken, and replaced
//! values are freed after it is released. The only foreign code that runs under it is that of the
//! metrics recorder.
//!
//! Heads and lists of nonces take turns through a second lock, which nothing else takes; the writer's is
//! taken under it, never the other way round.
//!
//! One mutex, because there is one mempool: the critical section is bounded, and the many readers take
//! no lock anyway.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, NonceUpdate, Relation};

use crate::{
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

/// Most transactions that one step of a head, of nonces or of upkeep touches: at about 2 us each, half a
/// millisecond.
const PER_STEP: usize = 256;
/// Steps that remove bundles before a block is told, and with each step of upkeep: of 64, in about two
/// milliseconds.
const SWEEPS_IN_A_ROW: usize = 16;

/// The pause between two steps of a head. Without one the thread that has just released the lock
/// would usually get it again before one that waits for it.
pub(crate) const STEP_PAUSE: Duration = Duration::from_micros(50);

/// Calls `step` with the items in groups, and pauses between two.
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
/// All methods can be called from any thread at any time. Those that change the pool share one lock
/// for a few microseconds; those that read take none, unless their documentation says so.
#[derive(Clone, Debug)]
pub struct OrderPool {
    pub(crate) shared: Arc<PoolShared>,
}

pub(crate) struct PoolShared {
    writer: Mutex<Writer>,
    /// Held through all steps of a head or of a list of nonces, so that they come one after another.
    turn: Mutex<()>,
    pub(crate) tables: Arc<Tables>,
    levels: Levels,
    clock: Clock,
    /// The most effects of one hold of the writer's lock.
    #[cfg(test)]
    pub(crate) most_effects: std::sync::atomic::AtomicUsize,
}

impl std::fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the contents: printing a pool would fill the log.
        f.debug_struct("Pool").field("head", &self.tables.wakers.head()).finish_non_exhaustive()
    }
}

/// Ends the subscriptions, once the last [`OrderPool`] is dropped.
impl Drop for PoolShared {
    fn drop(&mut self) {
        self.tables.wakers.close();
    }
}

/// What the one lock protects.
struct Writer {
    core: Core,
    publisher: Publisher,
}

impl OrderPool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// If the configuration is out of bounds: see [`PoolConfig::validate`].
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
                turn: Mutex::default(),
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

    /// Inserts a bundle; its parts name its signer. An empty one with a uuid cancels earlier ones.
    ///
    /// A bundle without a block number is for the block after the head; while the pool knows no
    /// head, it is for any block until the first head comes.
    pub fn insert_bundle(&self, bundle: Bundle) -> InsertOutcome {
        self.insert(Order::Bundle(bundle), None)
    }

    /// Inserts an order. With `funds` only if [`Self::check_funds`] allows it.
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

    /// Lets a caller hold a pooled transaction that another one has sent, as inserting it again
    /// would: from then on it counts for both, and stays until both have lost it. With `terms` the
    /// caller sends it as a private one.
    pub fn hold(&self, hash: &B256, holder: Holder, terms: Option<&PrivateTerms>) -> InsertOutcome {
        self.shared.try_insert(|core| core.hold_again(hash, holder, terms))
    }

    /// Whether the sender of an order's first transaction can pay for it and for all external orders
    /// of the same holder that begin with another of its transactions; of those with the same nonce
    /// only the dearest, since no more than one can be included. What others have sent of that sender
    /// does not count, so that nobody can spend another one's balance. The first transaction of a
    /// bundle that may omit it does not count. Takes the lock, for one look-up for each pooled nonce.
    ///
    /// # Errors
    /// [`RejectReason::InsufficientFunds`].
    pub fn check_funds(&self, order: &Order, funds: &Funds) -> Result<(), RejectReason> {
        self.shared.lock().core.claims.check_funds(order, funds)
    }

    /// Cancels the bundles of a key for all blocks with its nonce or a lower one, including those
    /// that have not arrived yet; without a nonce, permanently. Another signer's bundles have
    /// another key.
    pub fn cancel_bundle(&self, cancellation: Cancellation) -> CancelOutcome {
        let shared = &self.shared;
        let outcome = shared.write(|core| core.cancel_bundle(cancellation));
        shared.tables.counters.outcome(&outcome.into());
        outcome
    }

    /// Ends the bundle of a key for a block that has a lower nonce: another pool has replaced it, by one that this pool does
    /// not take, as its transactions are in a block here already, or for want of room. Of messages without a nonce it is
    /// that which the other pool has given them.
    pub fn supersede(&self, key: ReplacementKey, block: u64, nonce: u64, holder: Holder) {
        self.shared.write(|core| core.supersede((key, Some(block)), nonce, holder));
    }

    /// Removes a private transaction that `signer` sent ([`Transaction::private`]), unless it has
    /// become public, or another caller sent it too. `at` is when the signer cancelled it, by
    /// [`arrival`](crate::arrival()):
    /// what was sent later stays, and is accepted if it is sent again. Whether or not the
    /// transaction is here, subscribers are told, and until
    /// [`CANCELLATION_RETENTION`](crate::CANCELLATION_RETENTION) after `at` it is refused if it
    /// arrives with an earlier [`Transaction::first_seen`]. What is remembered counts against
    /// `holder`; what was cancelled longer ago only removes the transaction.
    pub fn cancel_private(
        &self,
        hash: &B256,
        signer: Address,
        holder: Holder,
        at: SystemTime,
    ) -> CancelPrivateOutcome {
        let shared = &self.shared;
        // A clock that is ahead: now.
        let age = SystemTime::now().duration_since(at).unwrap_or_default();
        let cancellation = PrivateCancellation { hash: *hash, signer, at, holder };
        let outcome = shared.write(|core| core.cancel_private(cancellation, age));
        let counted = outcome == CancelPrivateOutcome::Cancelled;
        shared.tables.counters.cancellations.add(u64::from(counted));
        outcome
    }

    /// Applies a new head: the mined orders are removed, orders that it un-mined (if it replaces
    /// known blocks) are put back as new ones are inserted (what finds no room is counted as rejected), and then subscribers get [`Event::Head`], which says what is removed
    /// before it and what after. A block that the pool knows already changes nothing, nor does one that
    /// cannot follow its parent: the returned [`Relation`] says so.
    ///
    /// It is done in short steps, and other changes come in between. Bundles that are left after it are
    /// removed by [`Self::upkeep`] and by inserts; from the head on, [`Self::get`] and [`Self::contains`]
    /// do not find one whose block has passed.
    pub fn on_head(&self, block: Block) -> Relation {
        let shared = &self.shared;
        let _in_turn = shared.in_turn();
        let (head, mined) = (block.head, Arc::clone(&block.mined));
        let Change { relation, mut reinserted, dropped, forgotten } =
            shared.write(|core| core.chain.push(block));
        if !relation.is_new() {
            return relation;
        }
        let mut raised = VecDeque::new();
        in_steps(&mined, |hashes| shared.write(|core| core.mine(&head, hashes, &mut raised)));
        shared.sweep_some();
        let pass_private = || shared.write(|core| core.pass_private(PER_STEP));
        let are_left = pass_private();
        let counters = &shared.tables.counters;
        counters.not_kept(dropped);
        while !reinserted.is_empty() {
            let (put_back, refused) = shared.write(|core| core.put_back(&mut reinserted, PER_STEP));
            counters.put_back.add(put_back);
            refused.iter().for_each(|reason| counters.outcome(&InsertOutcome::Rejected(*reason)));
            thread::sleep(STEP_PAUSE);
        }
        in_steps(&forgotten, |hashes| shared.write(|core| core.forget(hashes)));
        shared.write(|core| core.tell(Effect::Told(Event::Head(Arc::new(head)))));
        while are_left && pass_private() {
            thread::sleep(STEP_PAUSE);
        }
        shared.end_stale(&head, raised);
        counters.heads.add(1);
        counters.reorgs.add(u64::from(relation.replaced() > 0));
        counters.head_gaps.add(u64::from(matches!(relation, Relation::Gap { .. })));
        relation
    }

    /// The chain was reset: it has another genesis block, as a development chain may have. The pool
    /// forgets every block, nonce and mined transaction, and accepts again what it has removed. What is
    /// pooled stays until it is removed for another reason. The next head is the first of the new chain.
    pub fn on_chain_reset(&self) {
        let _in_turn = self.shared.in_turn();
        self.shared.write(Core::reset_chain);
    }

    /// A node whose pool the host compares with this one lists these hashes: what is pooled of them
    /// and public is kept until the node lists it no more, as with
    /// [`Transaction::listed`](crate::Transaction::listed).
    pub fn on_listed(&self, hashes: &[B256]) {
        in_steps(hashes, |hashes| self.shared.write(|core| core.on_listed(hashes)));
    }

    /// No node lists these hashes any more: what is pooled of them is kept for
    /// [`PoolConfig::tx_retention`] from now on, since a builder may still want it.
    pub fn on_unlisted(&self, hashes: &[B256]) {
        in_steps(hashes, |hashes| self.shared.write(|core| core.on_unlisted(hashes)));
    }

    /// The latest head that [`Self::on_head`] applied; `None` before the first.
    pub fn head(&self) -> Option<Head> {
        self.shared.tables.heads.latest()
    }

    /// A block that [`Self::on_head`] applied, if it is one of the last 64 and no reorg has undone it. Takes the lock, for
    /// one look-up.
    pub fn block(&self, hash: &B256) -> Option<Block> {
        self.shared.lock().core.chain.recent.block(hash).cloned()
    }

    /// Applies the nonces that a block raised: for each sender of the block, the next nonce it can
    /// use. May be called any time after [`Self::on_head`]; ignored, and counted, if a reorg undid
    /// the block meanwhile.
    pub fn on_nonces(&self, block_hash: B256, updates: impl IntoIterator<Item: Into<NonceUpdate>>) {
        let shared = &self.shared;
        // The iterator is foreign code, so it runs before a lock is taken.
        let updates: Vec<NonceUpdate> = updates.into_iter().map(Into::into).collect();
        let _in_turn = shared.in_turn();
        let applied = shared.write(|core| core.raise_nonces(block_hash, updates));
        match applied {
            Some((head, raised)) => shared.end_stale(&head, raised),
            None => shared.tables.counters.stale_nonces.add(1),
        }
    }

    /// Whether the order is in the pool.
    pub fn contains(&self, hash: &B256) -> bool {
        self.shared.tables.find(hash, |_| ()).is_some()
    }

    /// What the pool knows of an order: whether it holds it, and if not, whether the order should
    /// be offered again.
    pub fn status(&self, hash: &B256) -> OrderStatus {
        // Before the pool is read, so that an order which is put back in between is found there.
        let seen = self.shared.tables.seen.state(hash);
        match seen {
            _ if self.contains(hash) => OrderStatus::Pooled,
            Some(SeenState::Known) => OrderStatus::Removed,
            Some(SeenState::MayReturn) => OrderStatus::MayReturn,
            None => OrderStatus::Unknown,
        }
    }

    /// The order with this hash, if it is in the pool.
    pub fn get(&self, hash: &B256) -> Option<Arc<Order>> {
        self.shared.tables.find(hash, Arc::clone)
    }

    /// The number of orders.
    pub fn len(&self) -> usize {
        let levels = &self.shared.levels;
        (levels.txs.get() + levels.bundles.get()) as usize
    }

    /// Whether the pool is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory of the orders, in bytes.
    pub fn bytes(&self) -> usize {
        self.shared.levels.bytes() as usize
    }

    /// The present sizes, and the counts since the pool was made.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.shared;
        let tables = &shared.tables;
        PoolStats::read(&shared.levels, &tables.counters, tables.wakers.waiters())
    }

    /// Subscribes to the head, then every live order that may go into block `block`, once, then
    /// every later event that concerns that block, in the order the pool accepted them. Heads
    /// concern every block.
    pub fn subscribe(&self, block: u64) -> Subscription {
        Subscription::new(Arc::clone(&self.shared.tables), Some(block))
    }

    /// Like [`Self::subscribe`], for the orders of all blocks.
    pub fn subscribe_all(&self) -> Subscription {
        Subscription::new(Arc::clone(&self.shared.tables), None)
    }

    /// One bounded step of upkeep: removes orders that are over, rewrites pages, frees memory. Returns
    /// whether more may be due; inserts run between steps.
    ///
    /// [`Upkeep`](crate::Upkeep) calls it from a thread of its own. A host without one should call
    /// this about once a second; if it is never called nothing expires, but every cap still holds.
    pub fn upkeep(&self) -> bool {
        self.shared.upkeep()
    }
}

impl PoolShared {
    /// Runs one change under the lock, publishes its effects and wakes waiting readers.
    fn write<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        let (result, replaced) = {
            let mut writer = self.lock();
            let Writer { core, publisher } = &mut *writer;
            // Read under the lock, so that time and sequence numbers ascend together.
            core.begin(self.clock.now());
            let result = change(core);
            #[cfg(test)]
            self.most_effects.fetch_max(core.effects.len(), std::sync::atomic::Ordering::Relaxed);
            let replaced = (!core.effects.is_empty()).then(|| {
                core.effects.drain(..).for_each(|effect| self.apply(publisher, effect));
                debug_assert_eq!(core.next_seq, publisher.next_seq());
                publisher.publish(&self.tables)
            });
            // Also without effects: a key may have been forgotten without an event.
            self.set_levels(&writer);
            (result, replaced)
        };
        if replaced.is_some() {
            self.tables.wakers.wake_readers();
        }
        drop(replaced);
        result
    }

    /// An insert, which is counted by its outcome.
    fn try_insert(
        &self,
        insert: impl FnOnce(&mut Core) -> Result<InsertOutcome, InsertOutcome>,
    ) -> InsertOutcome {
        let outcome = self.write(insert).unwrap_or_else(|refused| refused);
        self.tables.counters.outcome(&outcome);
        outcome
    }

    /// Removes some of the bundles that are over; returns whether more are left.
    fn sweep_some(&self) -> bool {
        for _ in 0..SWEEPS_IN_A_ROW {
            if !self.write(Core::sweep) {
                return false;
            }
            thread::sleep(STEP_PAUSE);
        }
        true
    }

    /// Removes what has nonces that a block used.
    fn end_stale(&self, head: &Head, mut raised: VecDeque<NonceUpdate>) {
        if raised.is_empty() {
            return;
        }
        while !raised.is_empty() {
            self.write(|core| core.end_stale(head, &mut raised, PER_STEP));
            thread::sleep(STEP_PAUSE);
        }
        self.sweep_some();
    }

    fn in_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // No foreign code runs under the lock, so a poisoned lock means a defect of ours that its
        // panic has reported. Refusing all orders from then on would help nobody.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, publisher: &mut Publisher, effect: Effect) {
        match effect {
            Effect::Added(event) => publisher.add(event),
            Effect::Told(event) => {
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
        let sweeping = self.sweep_some();
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
