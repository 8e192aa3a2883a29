//! The pool: the core behind one lock for writers, and the tables that readers use without it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256};
use arc_swap::ArcSwap;
use chain_view::{Block, Head, NonceUpdate, Relation};

use crate::{
    clock::Clock,
    config::PoolConfig,
    core::{Core, Effect, HeadApplied, SignerStats},
    error::ConfigError,
    event::{CancelOutcome, CancelPrivateOutcome, Event, InsertOutcome, Standing},
    metrics::{Counters, Levels, PoolStats},
    order::{Bundle, Order, ReplacementKey, Transaction},
    read::{
        Bell, Fate, Garbage, Heads, IndexTable, Item, LiveTable, LiveWriter, LogTable, LogWriter,
        Piece, SeenTable, Slot, Subscription,
    },
};

/// Most orders that one upkeep step expires: at about 2 us each, half a millisecond.
const EXPIRE_PER_STEP: usize = 256;

/// Most pages that one upkeep step rewrites, at about 10 us each.
const REWRITES_PER_STEP: usize = 16;

/// Most pieces of garbage that one upkeep step frees, at about 20 us each, outside the lock.
const FREE_PER_STEP: usize = 64;

/// A pool of orders. Cloning gives another handle to the same pool.
///
/// All methods can be called from any thread at any time. Those that change the pool share one lock
/// for a few microseconds; those that read take none, unless their documentation says so.
#[derive(Clone, Debug)]
pub struct OrderPool {
    handle: Arc<Handle>,
}

/// Ends the subscriptions when the last [`OrderPool`] is dropped.
#[derive(Debug)]
struct Handle {
    shared: Arc<PoolShared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.bell.close();
    }
}

/// The tables that readers see. Written only under the lock of `writer`, in this order: `index` and
/// `seen`, `heads`, `log`, `live`, then the log's head in `bell`. A reader that loads the head
/// first and the tables after it finds in them everything below that head.
pub(crate) struct PoolShared {
    writer: Mutex<Writer>,
    pub(crate) bell: Bell,
    pub(crate) heads: Heads,
    pub(crate) log: ArcSwap<LogTable>,
    pub(crate) live: ArcSwap<LiveTable>,
    index: Arc<IndexTable>,
    seen: Arc<SeenTable>,
    pub(crate) counters: Counters,
    levels: Levels,
    clock: Clock,
}

impl std::fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the contents: printing a pool would fill the log.
        f.debug_struct("Pool").field("head", &self.bell.head()).finish_non_exhaustive()
    }
}

struct Writer {
    core: Core,
    log: LogWriter,
    live: LiveWriter,
    log_events: usize,
    log_bytes: usize,
    effects: Vec<Effect>,
    garbage: Garbage,
}

/// Dropped after the lock is released, which frees what only the replaced tables still hold.
#[derive(Debug, Default)]
struct Replaced {
    _log: Option<Arc<LogTable>>,
    _live: Option<Arc<LiveTable>>,
    _garbage: Vec<Piece>,
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
        let (log_events, log_bytes) = (config.log_events, config.log_bytes);
        let levels = Levels::new(&config);
        let core = Core::new(config);
        let shared = PoolShared {
            bell: Bell::default(),
            heads: Heads::default(),
            log: ArcSwap::default(),
            live: ArcSwap::default(),
            index: Arc::clone(core.index().table()),
            seen: Arc::clone(core.seen().table()),
            counters: Counters::new(),
            levels,
            clock,
            writer: Mutex::new(Writer {
                core,
                log: LogWriter::default(),
                live: LiveWriter::default(),
                log_events,
                log_bytes,
                effects: Vec::new(),
                garbage: Garbage::default(),
            }),
        };
        Ok(Self { handle: Arc::new(Handle { shared: Arc::new(shared) }) })
    }

    pub(crate) fn shared(&self) -> &Arc<PoolShared> {
        &self.handle.shared
    }

    /// Inserts a transaction.
    pub fn insert_transaction(&self, tx: Transaction) -> InsertOutcome {
        let shared = self.shared();
        let outcome = shared.write(|core, now, effects| core.insert_tx(tx, now, effects));
        shared.counters.outcome(&outcome);
        outcome
    }

    /// Inserts a bundle; its parts name its signer. An empty one with a uuid cancels earlier ones.
    ///
    /// A bundle without a block number is for the block after the head; while the pool knows no
    /// head, it is for any block until the first head comes.
    pub fn insert_bundle(&self, bundle: Bundle) -> InsertOutcome {
        let shared = self.shared();
        let outcome = shared.write(|core, now, effects| core.insert_bundle(bundle, now, effects));
        shared.counters.outcome(&outcome);
        outcome
    }

    /// Cancels the bundles of a key for all blocks with `nonce` or a lower one, including those
    /// that have not arrived yet; without a nonce, permanently. Another signer's bundles have
    /// another key.
    pub fn cancel_bundle(&self, key: ReplacementKey, nonce: Option<u64>) -> CancelOutcome {
        let shared = self.shared();
        let outcome =
            shared.write(|core, now, effects| core.cancel_bundle(key, nonce, now, effects));
        shared.counters.cancellation(&outcome);
        outcome
    }

    /// Removes a private transaction that `signer` sent ([`Transaction::private`]), unless it has
    /// become public. If it is sent again, it is accepted again.
    pub fn cancel_private(&self, hash: &B256, signer: Address) -> CancelPrivateOutcome {
        let shared = self.shared();
        let outcome =
            shared.write(|core, now, effects| core.cancel_private(hash, signer, now, effects));
        let counted = outcome == CancelPrivateOutcome::Cancelled;
        shared.counters.cancellations.add(u64::from(counted));
        outcome
    }

    /// Applies a new head: the mined orders are removed, orders that it un-mined (if it replaces
    /// known blocks) are put back, and then subscribers get [`Event::Head`]. A block that the pool
    /// knows already changes nothing, nor does one that cannot follow its parent: the returned
    /// [`Relation`] says so.
    ///
    /// The cost depends on what the block and the blocks it replaces changed, not on the size of
    /// the pool.
    pub fn on_head(&self, block: Block) -> Relation {
        let shared = self.shared();
        let HeadApplied { relation, put_back } =
            shared.write(|core, now, effects| core.on_head(block, now, effects));
        if relation.is_new() {
            let counters = &shared.counters;
            counters.heads.add(1);
            counters.reorgs.add(u64::from(relation.replaced() > 0));
            counters.head_gaps.add(u64::from(matches!(relation, Relation::Gap { .. })));
            counters.put_back.add(put_back as u64);
        }
        relation
    }

    /// The latest head that [`Self::on_head`] applied; `None` before the first.
    pub fn head(&self) -> Option<Head> {
        self.shared().heads.latest()
    }

    /// Applies the nonces that a block raised: for each sender of the block, the next nonce it can
    /// use. May be called any time after [`Self::on_head`]; ignored, and counted, if a reorg undid
    /// the block meanwhile.
    pub fn on_nonces(&self, block_hash: B256, updates: impl IntoIterator<Item: Into<NonceUpdate>>) {
        let shared = self.shared();
        // The iterator is foreign code, so it runs before the lock is taken.
        let updates: Vec<NonceUpdate> = updates.into_iter().map(Into::into).collect();
        let applied =
            shared.write(|core, now, effects| core.on_nonces(block_hash, updates, now, effects));
        if applied.is_none() {
            shared.counters.stale_nonces.add(1);
        }
    }

    /// Whether the order is in the pool.
    pub fn contains(&self, hash: &B256) -> bool {
        self.shared().find(hash, |_| ()).is_some()
    }

    /// What the pool knows of an order: whether it holds it, and if not, whether the order should
    /// be offered again.
    pub fn standing(&self, hash: &B256) -> Standing {
        // Before the pool is read, so that an order which is put back in between is found there.
        let fate = self.shared().seen.fate(hash);
        match fate {
            _ if self.contains(hash) => Standing::Pooled,
            Some(Fate::Known | Fate::Expired) => Standing::Removed,
            Some(Fate::MayReturn) => Standing::MayReturn,
            None => Standing::Unknown,
        }
    }

    /// Whether the order is in the pool or was removed, and is still in the dedupe window.
    pub fn was_seen(&self, hash: &B256) -> bool {
        self.shared().seen.contains(hash) || self.contains(hash)
    }

    /// The order with this hash, if it is in the pool.
    pub fn get(&self, hash: &B256) -> Option<Arc<Order>> {
        self.shared().find(hash, Arc::clone)
    }

    /// The pooled transactions of a sender, in nonce order; among equal nonces, in order of
    /// acceptance.
    ///
    /// Holds the writer's lock while it collects them, some 50 ns each.
    pub fn of_sender(&self, sender: Address) -> Vec<Arc<Order>> {
        self.shared().lock().core.of_sender(&sender)
    }

    /// The holdings of a signer; with `None`, of all unsigned bundles together. Takes the writer's
    /// lock for a few look-ups.
    pub fn signer_stats(&self, signer: Option<Address>) -> SignerStats {
        self.shared().lock().core.signer_stats(signer)
    }

    /// The same for every signer that holds anything, in no order. Holds the writer's lock for
    /// about 100 ns each.
    pub fn signers(&self) -> Vec<SignerStats> {
        self.shared().lock().core.signers()
    }

    /// The number of orders.
    pub fn len(&self) -> usize {
        let levels = &self.shared().levels;
        (levels.txs.get() + levels.bundles.get()) as usize
    }

    /// Whether the pool is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory of the orders, in bytes.
    pub fn bytes(&self) -> usize {
        let levels = &self.shared().levels;
        (levels.tx_bytes.get() + levels.bundle_bytes.get()) as usize
    }

    /// The present sizes, and the counts since the pool was made.
    pub fn stats(&self) -> PoolStats {
        let shared = self.shared();
        let mut stats = PoolStats {
            txs: shared.levels.txs.get(),
            external_txs: shared.levels.external_txs.get(),
            bundles: shared.levels.bundles.get(),
            bytes: self.bytes() as u64,
            keys: shared.levels.keys.get(),
            log_bytes: shared.levels.log_bytes.get(),
            subscribers: shared.bell.waiters() as u64,
            ..PoolStats::default()
        };
        shared.counters.read(&mut stats);
        stats
    }

    /// Subscribes to the head, then every live order that may go into block `block`, once, then
    /// every later event that concerns that block, in the order the pool accepted them. Heads
    /// concern every block.
    pub fn subscribe(&self, block: u64) -> Subscription {
        Subscription::new(Arc::clone(self.shared()), Some(block))
    }

    /// Like [`Self::subscribe`], for the orders of all blocks.
    pub fn subscribe_all(&self) -> Subscription {
        Subscription::new(Arc::clone(self.shared()), None)
    }

    /// One bounded step of upkeep: removes expired orders, rewrites pages, frees memory. Returns
    /// whether more is due; inserts run between steps.
    ///
    /// [`Upkeep`](crate::Upkeep) calls it from a thread of its own. A host without one should call
    /// this about once a second; if it is never called nothing expires, but every cap still holds.
    pub fn upkeep(&self) -> bool {
        self.shared().upkeep()
    }
}

impl PoolShared {
    /// The pooled order with this hash, without a lock. An order that is in the pool throughout the
    /// call is found: see [`IndexTable`].
    fn find<T>(&self, hash: &B256, show: impl Fn(&Arc<Order>) -> T) -> Option<T> {
        let live = self.live.load();
        self.index
            .find(hash, |seq| live.get(seq).filter(|order| order.id().hash() == hash).map(&show))
    }

    /// Runs one change under the lock, publishes its effects and wakes waiting readers.
    fn write<T>(&self, change: impl FnOnce(&mut Core, Duration, &mut Vec<Effect>) -> T) -> T {
        let (result, replaced, rang) = {
            let mut writer = self.lock();
            let mut effects = std::mem::take(&mut writer.effects);
            // Read under the lock, so that time and sequence numbers ascend together.
            let result = change(&mut writer.core, self.clock.now(), &mut effects);
            let rang = !effects.is_empty();
            let replaced =
                if rang { self.apply(&mut writer, &mut effects) } else { Replaced::default() };
            writer.effects = effects;
            // Also without effects: a key may have been forgotten without an event.
            self.set_levels(&writer);
            (result, replaced, rang)
        };
        if rang {
            self.bell.ring();
        }
        drop(replaced);
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Writer> {
        // No foreign code runs under the lock, so a poisoned lock means a defect of ours that its
        // panic has reported. Refusing all orders from then on would help nobody.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, writer: &mut Writer, effects: &mut Vec<Effect>) -> Replaced {
        let count = effects.len();
        for effect in effects.drain(..) {
            match effect {
                Effect::Added { seq, order } => {
                    debug_assert_eq!(seq, writer.log.head());
                    let block = order.block();
                    writer.live.add(seq, Item::Order(Arc::clone(&order)));
                    writer.log.push(Slot { event: Event::Added(order), block }, 0);
                }
                Effect::Removed { seq, added, order, reason } => {
                    debug_assert_eq!(seq, writer.log.head());
                    self.counters.removed(reason);
                    let (block, size_bytes) = (order.block(), order.size_bytes());
                    writer.live.remove(added, seq, size_bytes);
                    let event = Event::Removed { order, reason };
                    writer.log.push(Slot { event, block }, size_bytes);
                }
                Effect::Cancelled { seq, cancellation } => {
                    debug_assert_eq!(seq, writer.log.head());
                    writer.live.add(seq, Item::Cancelled(cancellation));
                    let event = Event::Cancelled(cancellation);
                    writer.log.push(Slot { event, block: None }, 0);
                }
                Effect::CancellationForgotten { seq, key } => {
                    debug_assert_eq!(seq, writer.log.head());
                    self.counters.keys_forgotten.add(1);
                    let event = Event::CancellationForgotten(key);
                    writer.log.push(Slot { event, block: None }, 0);
                }
                Effect::Head { seq, head } => {
                    debug_assert_eq!(seq, writer.log.head());
                    let head = Arc::new(head);
                    self.heads.publish(seq, Arc::clone(&head));
                    writer.log.push(Slot { event: Event::Head(head), block: None }, 0);
                }
                Effect::TombstoneEnded { added, at } => {
                    debug_assert_eq!(at, writer.log.head());
                    writer.live.remove(added, at, 0);
                }
            }
        }
        // Once for each segment, because its cost grows with the number of subscriptions.
        if writer.log.has_grown() {
            writer.release(self.bell.slowest());
        }
        writer.trim();
        // Each event spends at most one entry, so as many rewrites as events keep pace.
        let tail = writer.log.tail();
        writer.live.compact(count, tail, &mut writer.garbage);
        let replaced = self.publish(writer);
        self.bell.publish(writer.log.head());
        replaced
    }

    fn set_levels(&self, writer: &Writer) {
        let levels = writer.core.levels();
        self.levels.txs.set(levels.txs);
        self.levels.tx_bytes.set(levels.tx_bytes);
        self.levels.external_txs.set(levels.external_txs);
        self.levels.external_tx_bytes.set(levels.external_tx_bytes);
        self.levels.bundles.set(levels.bundles);
        self.levels.bundle_bytes.set(levels.bundle_bytes);
        self.levels.keys.set(levels.keys);
        self.levels.log_bytes.set(writer.live.removed_bytes());
    }

    fn publish(&self, writer: &mut Writer) -> Replaced {
        Replaced {
            _log: writer.log.publish(&self.log),
            _live: writer.live.publish(&self.live),
            _garbage: writer.garbage.take_excess(),
        }
    }

    pub(crate) fn upkeep(&self) -> bool {
        let started = Instant::now();
        let expiring = self.write(|core, now, effects| core.expire(now, EXPIRE_PER_STEP, effects));
        let (compacting, replaced, freeing) = {
            let mut writer = self.lock();
            let writer = &mut *writer;
            writer.release(self.bell.slowest());
            let tail = writer.log.tail();
            let compacting = writer.live.compact(REWRITES_PER_STEP, tail, &mut writer.garbage);
            let replaced = Replaced {
                _log: writer.log.publish(&self.log),
                _live: writer.live.publish(&self.live),
                _garbage: writer.garbage.take(FREE_PER_STEP),
            };
            self.set_levels(writer);
            (compacting, replaced, !writer.garbage.is_empty())
        };
        drop(replaced);
        self.counters.upkeep_steps.add(1);
        self.levels.upkeep_step_seconds.0.record(started.elapsed().as_secs_f64());
        expiring || compacting || freeing
    }
}

impl Writer {
    /// Frees the segments that no subscription needs, which end below `needed`.
    fn release(&mut self, needed: u64) {
        let mut forgotten = false;
        while self.log.ends_before(needed) {
            forgotten |= self.log.pop(&mut self.garbage);
        }
        if forgotten {
            self.live.forget_before(self.log.tail(), &mut self.garbage);
        }
    }

    /// Shortens the log to its caps. Memory that a reader may need is never freed before the log
    /// has dropped it.
    fn trim(&mut self) {
        let mut forgotten = false;
        loop {
            while self.log.exceeds(self.log_events) {
                forgotten |= self.log.pop(&mut self.garbage);
            }
            if std::mem::take(&mut forgotten) {
                self.live.forget_before(self.log.tail(), &mut self.garbage);
            }
            if self.live.removed_bytes() <= self.log_bytes {
                break;
            }
            if !self.log.pop(&mut self.garbage) {
                break;
            }
            self.live.forget_before(self.log.tail(), &mut self.garbage);
        }
    }
}
