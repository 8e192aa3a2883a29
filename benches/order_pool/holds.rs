//! Measures the longest hold of the writer's lock by each operation on a pool at its caps, in CPU
//! time of the thread that holds it, which leaves out other processes of the machine.
//!
//! The last thing that the pool does under the lock is to set its gauges. So the time between two
//! of these moments contains one hold, and besides only what the same thread does between two
//! holds.

use std::{cell::Cell, sync::Arc, time::Duration};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use order_pool::{
    Bundle, BundleParts, Cancellation, Clock, DEFAULT_MAX_EXTERNAL_TXS, DEFAULT_MAX_TXS, Holder,
    OrderPool, PoolConfig, ReplacementKey, Transaction,
};
use testkit::{
    figures::{Goal, Spread},
    usage::thread_cpu,
};

use crate::load::{block_hash, bundle, caller, external, head, rising, sender, with_bundles};

const LONGEST_MS: f64 = 5.0;

thread_local! {
    /// When the last hold of this thread ended, and the longest hold so far.
    static HOLDS: Cell<(Duration, Duration)> = const { Cell::new((Duration::ZERO, Duration::ZERO)) };
}

/// Records the end of each hold.
struct HoldRecorder;

impl GaugeFn for HoldRecorder {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, _: f64) {
        let now = thread_cpu();
        HOLDS.with(|holds| {
            let (last, longest) = holds.get();
            holds.set((now, longest.max(now - last)));
        });
    }
}

/// Upkeep counts its step after it has freed memory without the lock, which is no hold.
impl CounterFn for HoldRecorder {
    fn increment(&self, _: u64) {
        HOLDS.with(|holds| holds.set((thread_cpu(), holds.get().1)));
    }
    fn absolute(&self, _: u64) {}
}

impl Recorder for HoldRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "order_pool_upkeep_steps_total" => Counter::from_arc(Arc::new(Self)),
            _ => Counter::noop(),
        }
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Self))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs operations, and returns their longest hold in milliseconds.
fn longest(operations: impl FnOnce()) -> f64 {
    HOLDS.with(|holds| holds.set((thread_cpu(), Duration::ZERO)));
    operations();
    HOLDS.with(|holds| holds.get().1.as_secs_f64() * 1e3)
}

/// Returns an empty pool at block 1.
fn pool() -> (OrderPool, Clock) {
    let clock = Clock::manual();
    let pool = metrics::with_local_recorder(&HoldRecorder, || {
        OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("the default is valid")
    });
    pool.on_head(head(1, Vec::new()));
    (pool, clock)
}

/// Returns the transactions of the `n`th bundle.
fn txs(n: u64, count: u64) -> Vec<Transaction> {
    (0..count).map(|i| external(1 << 40 | n << 8 | i, 0, 0)).collect()
}

fn run_upkeep(pool: &OrderPool) {
    while pool.upkeep() {}
}

/// Measures each operation on the pool that makes it the most work.
pub(crate) fn holds(is_quick: bool) -> Goal {
    println!("\nlongest hold of the writer's lock at the caps, in ms of CPU time");
    let part = |count: usize| (if is_quick { count / 20 } else { count }) as u64;
    let mut most = 0.0_f64;
    let mut row = |operation: String, ms: f64| {
        println!("  {operation:<60} {ms:>6.2}");
        most = most.max(ms);
    };
    let another = bundle(1 << 30, 2, txs(1 << 30, 100), Holder::Host);
    for count in [1, 16] {
        let (all, shared) = (part(20_000), txs(0, count));
        let pool = with_bundles(pool().0, all, |_| shared.clone());
        let mined = shared.iter().map(|tx| *tx.hash()).collect();
        let ends = longest(|| {
            pool.on_head(head(2, mined));
            run_upkeep(&pool);
        });
        assert!(pool.is_empty());
        row(format!("a head that ends {all} bundles around {count}"), ends);
    }
    let all = part(2_000);
    let pool = with_bundles(pool().0, all, |n| txs(n, 100));
    // The insert removes some of the bundles whose block has passed, and evicts others.
    pool.on_head(head(2, Vec::new()));
    let took = longest(|| _ = pool.insert_bundle(another.clone()));
    row(format!("a bundle of 100 beside {all} of 100, a third over"), took);
    let passes = longest(|| {
        pool.on_head(head(3, Vec::new()));
        run_upkeep(&pool);
    });
    row(format!("a head that passes a third of {all} bundles of 100"), passes);

    let (pool, _) = self::pool();
    for block in 2..=65 {
        pool.insert_bundle(bundle(0, block, txs(block, 100), Holder::Host));
    }
    assert_eq!(pool.len(), 64);
    let key = |n| ReplacementKey { uuid: Default::default(), signer: sender(n) };
    let cancel = |pool: &OrderPool, n| {
        pool.cancel_bundle(Cancellation {
            key: key(n),
            nonce: None,
            holder: Holder::Host,
            sent_at: None,
        });
    };
    row("a cancellation of 64 bundles of 100".into(), longest(|| cancel(&pool, 0)));

    let (pool, _) = self::pool();
    let sized = |n: u64| (0..100).map(|i| external(1 << 41 | n << 8 | i, 0, 300)).collect();
    // All have one signer, or the large one would be the first to be evicted.
    let unsigned = |bundle: Bundle| {
        let parts = BundleParts { uuid: None, signer: None, ..bundle.parts().clone() };
        Bundle::new(parts).expect("a valid bundle")
    };
    let mut filling = (0..).map(|n| unsigned(bundle(n, 60, sized(n), caller(1))));
    while pool.stats().evicted + pool.stats().rejected == 0 {
        pool.insert_bundle(filling.next().expect("no end"));
    }
    let large = unsigned(bundle(1 << 30, 2, vec![external(1, 0, 4 << 20)], caller(1)));
    let took = longest(|| _ = pool.insert_bundle(large));
    row(format!("a bundle of 4 MB that evicts {} of 100", pool.stats().evicted), took);

    // The callers' half is full of bundles for an earlier block, each of another signer. Each of
    // the largest callers also has one for a later block that stays, because a small caller has it
    // too.
    let (all, callers) = (part(10_000), 16);
    let (pool, _) = self::pool();
    let insert = |n, block, holder| pool.insert_bundle(bundle(n, block, txs(n, 1), caller(holder)));
    (0..callers).for_each(|n| {
        insert(n, 60, n);
        insert(n, 60, 100 + n);
    });
    (callers..all).for_each(|n| _ = insert(n, 31, n % callers));
    let took = longest(|| _ = insert(all, 32, callers));
    assert_eq!(pool.stats().rejected, u64::from(!is_quick));
    row(format!("a bundle that is refused beside {all} of as many signers"), took);

    // The host may have one half.
    let all = part(DEFAULT_MAX_EXTERNAL_TXS / 2);
    let (pool, _) = self::pool();
    let insert = |n, holder| _ = pool.insert_transaction(external(7, n, 0).held_by(holder));
    (0..all).for_each(|n| insert(n, Holder::Host));
    row(
        format!("a raw transaction beside {all} of one sender"),
        longest(|| insert(all, Holder::Signer(sender(2)))),
    );
    let stale = longest(|| {
        pool.on_nonces(block_hash(1), [(sender(7), all + 1)]);
    });
    row(format!("nonces that end {all} of one sender"), stale);

    let (pool, clock) = self::pool();
    let (all, callers) = (part(256), 64);
    for n in 0..all {
        for n_caller in 0..callers {
            pool.insert_transaction(external(n, 0, 0).held_by(caller(n_caller)));
        }
    }
    clock.advance(Duration::from_secs(61));
    let took = longest(|| run_upkeep(&pool));
    assert!(pool.is_empty());
    row(format!("the end of {all} that {callers} callers have sent"), took);

    // The host's half again.
    let all = part(DEFAULT_MAX_EXTERNAL_TXS / 2);
    let (pool, _) = self::pool();
    let small = |n| external(n, 0, 2_700).held_by(Holder::Host);
    (0..all).for_each(|n| _ = pool.insert_transaction(small(n)));
    let large = external(1 << 40, 0, 820_000).held_by(Holder::Signer(sender(2)));
    let took = longest(|| _ = pool.insert_transaction(large));
    row(
        format!("a raw one of 820 KB that evicts {} of as many senders", pool.stats().evicted),
        took,
    );

    let all = part(DEFAULT_MAX_TXS);
    let (pool, _) = self::pool();
    let inserts = || (0..all * 5 / 4).for_each(|n| _ = pool.insert_transaction(rising(n)));
    row(format!("the node's {all} and a quarter more that evict one each"), longest(inserts));
    let ended = all * 5 / 4 - 100..all * 5 / 4;
    let mined = ended.clone().skip(50).map(|n| *rising(n).hash()).collect();
    let before = pool.len();
    let took = longest(|| {
        pool.on_head(head(2, mined));
        pool.on_nonces(block_hash(2), ended.map(|n| (sender(n), 1)));
    });
    assert_eq!(before - pool.len(), 100);
    row(format!("a head that mines 50 of these {all} and raises 100 senders"), took);

    let signers = part(65_536);
    let (pool, clock) = self::pool();
    let took = longest(|| (0..signers).for_each(|n| cancel(&pool, n)));
    row(format!("{signers} cancellations by as many signers"), took);
    clock.advance(Duration::from_secs(61));
    row("upkeep that forgets them".into(), longest(|| run_upkeep(&pool)));
    Goal::at_most("longest hold of the writer's lock", Spread::of([most]), LONGEST_MS, " ms")
}
