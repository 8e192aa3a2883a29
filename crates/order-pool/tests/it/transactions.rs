//! Single transactions, and the readers that wait for them.

use std::time::SystemTime;

use order_pool::{Event, InsertOutcome, Origin, PoolConfig, RejectReason, Transaction};
use testkit::configured;

use crate::common::{Spec, head, insert_all, nth, pool, pool_with, tx, tx_from, upkeep};

#[tokio::test]
async fn a_waiting_task_is_woken_and_ends_with_the_pool() {
    use futures::StreamExt;
    let pool = pool();
    let mut subscription = pool.subscribe(1);
    let reader = tokio::spawn(async move {
        let mut count = 0;
        while let Some(event) = subscription.next().await {
            count += usize::from(event.is_ok());
        }
        count
    });
    for n in 0..100 {
        pool.insert_transaction(nth(n));
        tokio::task::yield_now().await;
    }
    drop(pool);
    assert_eq!(reader.await.expect("no panic"), 100);
}

#[test]
fn every_blocked_thread_is_woken_and_ends_with_the_pool() {
    let pool = pool();
    let readers: Vec<_> = (0..9)
        .map(|_| {
            let mut subscription = pool.subscribe(1);
            std::thread::spawn(move || subscription.blocking().filter(Result::is_ok).count())
        })
        .collect();
    insert_all(&pool, 0..2_000);
    drop(pool);
    for reader in readers {
        assert_eq!(reader.join().expect("no panic"), 2_000);
    }
}

/// Returns a transaction of an external caller.
fn external(spec: Spec) -> Transaction {
    tx_from(spec, Origin::Rpc)
}

#[test]
fn an_inflated_gas_limit_or_tip_improves_no_rank() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.max_txs = 1));
    let honest = tx(Spec { sender: 1, max_fee: 100, max_tip: 90, ..Spec::default() });
    pool.insert_transaction(honest.clone());
    // It pays at most 80, whatever tip it claims.
    let spec = Spec { sender: 2, max_fee: 80, max_tip: u128::MAX, ..Spec::default() };
    let refused = pool.insert_transaction(tx(Spec { gas_limit: u64::MAX, ..spec }));
    let reason = RejectReason::PaysTooLittle { tip_wei: Some(80) };
    assert_eq!(refused, InsertOutcome::Rejected(reason));
    assert!(pool.contains(honest.hash()));
}

#[test]
fn a_private_transaction_that_becomes_public_has_both_origins() {
    let pool = pool();
    let spec = Spec { sender: 1, ..Spec::default() };
    assert_eq!(pool.insert_transaction(tx_from(spec, Origin::Private)), InsertOutcome::Added);
    let order = pool.get(tx(spec).hash()).expect("it is pooled");
    let order = order.as_tx().expect("a transaction");
    assert_eq!((order.origin(), order.second_origin()), (Origin::Private, None));
    // A repetition by another caller changes nothing.
    assert_eq!(pool.insert_transaction(external(spec)), InsertOutcome::Known);
    assert!(!order.is_public() && order.second_origin().is_none());
    assert_eq!(pool.insert_transaction(tx(spec)), InsertOutcome::Known);
    let public = Some((Origin::Mempool, SystemTime::UNIX_EPOCH));
    assert_eq!((order.origin(), order.second_origin()), (Origin::Private, public));
}

/// Seven minutes at 1,000/s left 200 MB of removed orders in a process whose pool held 13.
#[test]
fn removed_orders_that_no_subscription_needs_are_not_kept() {
    let pool = pool();
    let churn = |range: std::ops::Range<u64>| {
        for number in range {
            let txs = number * 100..number * 100 + 100;
            insert_all(&pool, txs.clone());
            pool.on_head(head(number, 0, 0, &txs.map(|n| *nth(n).hash()).collect::<Vec<_>>()));
        }
        upkeep(&pool);
        pool.stats().log_bytes
    };
    let one_segment = 256 * 2_000;
    assert!(churn(1..100) <= one_segment, "nobody is subscribed");
    let mut slow = pool.subscribe_all();
    let mut fast = pool.subscribe(1_000);
    let kept = churn(100..120);
    assert!(kept > 1_900 * 1_000, "two subscriptions may still read {kept} bytes");
    while fast.try_next().is_some() {}
    assert!(churn(120..121) > kept, "the slower one has not read them");
    let mut held = 0_i64;
    while let Some(event) = slow.try_next() {
        match event.expect("nothing that it needs was freed") {
            Event::Added(_) => held += 1,
            Event::Removed { .. } => held -= 1,
            _ => {}
        }
    }
    assert_eq!(held, 0);
    drop(fast);
    assert!(churn(121..122) <= one_segment, "everything is read");
    drop(slow);
    assert!(churn(122..130) <= one_segment);
}

/// A waker that panicked made the insert panic in its caller, and left the next readers asleep.
#[tokio::test]
async fn a_waker_that_panics_harms_neither_the_insert_nor_other_readers() {
    use futures::{Stream, StreamExt};
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("a waker of a host");
        }
    }
    let pool = pool();
    let (mut bad, mut good) = (pool.subscribe_all(), pool.subscribe_all());
    let waker = std::task::Waker::from(std::sync::Arc::new(Panics));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut bad).poll_next(&mut context).is_pending());
    let reader = tokio::spawn(async move { good.next().await });
    tokio::task::yield_now().await;
    assert_eq!(pool.insert_transaction(nth(1)), InsertOutcome::Added);
    assert!(matches!(reader.await.expect("it ends"), Some(Ok(Event::Added(_)))));
}
