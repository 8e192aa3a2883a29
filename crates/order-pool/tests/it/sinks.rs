//! Push sinks: a bad sink harms only itself.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use order_pool::{
    Cancellation, Head, Holder, Lagged, Order, OrderPool, OrderSink, PoolConfig, RemoveReason,
    SinkEndReason, SinkGuard,
};
use testkit::configured;

use crate::common::{bundle_for, head, insert_all, nth, pool, pool_with, upkeep};

const LONG: Duration = Duration::from_secs(30);

/// Reports every call, then does what the test wants.
struct Sink<F>(Sender<String>, F);

impl<F: FnMut(&str) -> bool + Send + 'static> OrderSink for Sink<F> {
    fn insert(&mut self, order: &Arc<Order>) -> bool {
        self.call(format!("+{}", order.id()))
    }

    fn remove(&mut self, order: &Arc<Order>, _: RemoveReason) -> bool {
        self.call(format!("-{}", order.id()))
    }

    fn cancel(&mut self, _: &Cancellation) -> bool {
        self.call("x".into())
    }

    fn head(&mut self, head: &Head) -> bool {
        self.call(format!("head {}", head.number))
    }

    fn lagged(&mut self, lagged: Lagged) -> bool {
        self.call(format!("lagged {}", lagged.missed))
    }
}

impl<F: FnMut(&str) -> bool> Sink<F> {
    fn call(&mut self, description: String) -> bool {
        // The test may have stopped listening.
        let _ = self.0.send(description.clone());
        self.1(&description)
    }
}

fn sink<F: FnMut(&str) -> bool + Send + 'static>(act: F) -> (Sink<F>, Receiver<String>) {
    let (sender, receiver) = channel();
    (Sink(sender, act), receiver)
}

/// Subscribes a sink that is stuck in its first call, until the returned sender sends or is
/// dropped. The pool must not be empty.
fn stuck_sink(pool: &OrderPool) -> (SinkGuard, Receiver<String>, Sender<()>) {
    let (entered, inside) = channel();
    let (release, blocked) = channel();
    let mut is_first = true;
    let (stuck, calls) = sink(move |_| {
        if !std::mem::take(&mut is_first) {
            return true;
        }
        entered.send(()).expect("the test listens");
        blocked.recv().is_ok()
    });
    let guard = pool.subscribe(1).push_into(stuck).expect("a thread");
    inside.recv_timeout(LONG).expect("it is in its first call");
    (guard, calls, release)
}

/// Waits until a sink has ended by itself.
fn wait_end(guard: &SinkGuard) -> SinkEndReason {
    let deadline = Instant::now() + LONG;
    loop {
        match guard.end() {
            Some(reason) => return reason,
            None => assert!(Instant::now() < deadline, "it did not end"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_sink_receives_live_orders_and_later_events_in_order() {
    let pool = pool();
    pool.insert_transaction(nth(1));
    pool.on_head(head(1, 0, 0, &[]));
    let (good, calls) = sink(|_| true);
    let guard = pool.subscribe_all().push_into(good).expect("a thread");
    let next = || calls.recv_timeout(LONG).expect("a call");
    let hash = *nth(1).hash();
    assert_eq!([next(), next()], ["head 1".to_owned(), format!("+tx {hash}")]);
    for block in [3, 4] {
        pool.insert_bundle(bundle_for(block, vec![nth(block)], Holder::Host));
        assert!(next().starts_with("+bundle"));
    }
    pool.on_head(head(2, 0, 0, &[hash]));
    assert_eq!([next(), next()], [format!("-tx {hash}"), "head 2".to_owned()]);
    let end = guard.shutdown(LONG);
    assert_eq!((end.reason, end.ended), (SinkEndReason::Unsubscribed, true));
    assert_eq!(pool.stats().subscribers, 0);
}

#[test]
fn a_sink_that_blocks_or_panics_delays_nobody_else() {
    let pool = pool();
    pool.insert_transaction(nth(0));
    let (stuck, _, release) = stuck_sink(&pool);
    let (good, calls) = sink(|_| true);
    let _good = pool.subscribe(1).push_into(good).expect("a thread");
    let (bad, _) = sink(|_| panic!("on purpose"));
    let bad = pool.subscribe(1).push_into(bad).expect("a thread");
    assert_eq!(wait_end(&bad), SinkEndReason::Panicked);
    insert_all(&pool, 1..1_000);
    assert_eq!((0..1_000).filter(|_| calls.recv_timeout(LONG).is_ok()).count(), 1_000);
    assert_eq!(stuck.end(), None);
    drop(stuck);
    drop(release);
}

#[test]
fn a_blocked_sink_keeps_one_order_and_ends_when_it_refuses() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.log_events = 1));
    insert_all(&pool, 0..1_000);
    let orders: Vec<_> = (0..1_000)
        .map(|n| Arc::downgrade(&pool.get(nth(n).hash()).expect("it was inserted")))
        .collect();
    // It is stuck in its replay.
    let (guard, calls, release) = stuck_sink(&pool);
    // All orders are removed, and the log is filled until it has dropped their removals.
    for number in 1..=4 {
        let mined = if number == 1 { (0..1_000).map(|n| *nth(n).hash()).collect() } else { vec![] };
        pool.on_head(head(number, 0, 0, &mined));
    }
    insert_all(&pool, 1_000..2_000);
    // After so many heads no order could be put back.
    for number in 5..100 {
        pool.on_head(head(number, 0, 0, &[]));
    }
    upkeep(&pool);
    assert_eq!(orders.iter().filter(|order| order.strong_count() > 0).count(), 1);
    drop(release);
    assert_eq!(wait_end(&guard), SinkEndReason::Refused);
    assert_eq!(calls.iter().count(), 1);
}

#[test]
fn a_sink_that_lagged_may_start_again() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.log_events = 1));
    pool.insert_transaction(nth(0));
    let (guard, calls, release) = stuck_sink(&pool);
    insert_all(&pool, 1..1_000);
    release.send(()).expect("it waits");
    let lag = calls.iter().find(|call| call.starts_with("lagged"));
    assert!(lag.is_some());
    assert_eq!(calls.iter().take(1_000).filter(|call| call.starts_with('+')).count(), 1_000);
    drop(pool);
    assert_eq!(wait_end(&guard), SinkEndReason::PoolClosed);
}
