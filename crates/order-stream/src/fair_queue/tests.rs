//! Fairness, rate and bounds of the queue of unknown callers.

use std::{sync::Arc, time::SystemTime};

use alloy_consensus::{SignableTransaction as _, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, Bytes, Signature};
use chain_view::PooledTransaction;
use order_pool::{Cancellation, Origin, Transaction};

use super::*;
use crate::{
    follow::AdditionalHolder,
    tests::{KEY, caller},
};

/// An order with an input of this size.
fn order(n: u64, input_bytes: usize) -> Item {
    let tx =
        TxEip1559 { nonce: n, input: Bytes::from(vec![1; input_bytes]), ..TxEip1559::default() };
    let tx = PooledTransaction::Eip1559(tx.into_signed(Signature::test_signature()));
    let tx = Recovered::new_unchecked(tx, Address::ZERO);
    let tx = Transaction::new(tx, Origin::Rpc, SystemTime::UNIX_EPOCH);
    Item::shared(Record::Order(Arc::new(Order::Tx(tx))))
}

fn cancellation() -> Item {
    let cancellation = Cancellation { key: KEY, nonce: None, holder: Holder::Host, sent_at: None };
    Item::shared(Record::Cancellation(cancellation))
}

fn id(item: &Item) -> OrderId {
    let Record::Order(order) = &item.record else { panic!("no order") };
    order.id()
}

/// A queue whose burst is used up, as in a flood.
fn without_burst() -> (FairQueue, Instant) {
    let now = Instant::now();
    let queue =
        FairQueue { used_bytes: MAX_BURST_BYTES, updated_at: Some(now), ..FairQueue::default() };
    (queue, now)
}

/// The items that the rate permits now.
fn drain(queue: &mut FairQueue, now: Instant) -> Vec<Item> {
    std::iter::from_fn(|| queue.next(now, false)).collect()
}

/// Whether an order of a caller is queued that this caller sent first.
fn is_queued(queue: &FairQueue, id: OrderId, holder: Holder) -> bool {
    queue.orders.contains_key(&OrderKey { id, holder, is_additional: false })
}

#[test]
fn a_flood_is_published_at_the_rate_and_delays_other_callers_little() {
    let (begin, mut now) = (Instant::now(), Instant::now());
    let mut queue = FairQueue { updated_at: Some(begin), ..FairQueue::default() };
    for n in 0..1_000 {
        queue.push(caller((n % 2) as u8), order(n, 40_000));
    }
    let mut published: u64 = drain(&mut queue, now).iter().map(size_bytes).sum();
    assert!(published as f64 <= MAX_BURST_BYTES);
    let honest = order(5_000, 200);
    let honest_id = id(&honest);
    queue.push(caller(9), honest);
    let mut waited = Vec::new();
    while is_queued(&queue, honest_id, caller(9)) {
        now = queue.next_wake().expect("items wait");
        waited.extend(drain(&mut queue, now));
    }
    assert!(waited.len() <= 3, "{}", waited.len());
    assert!(now - begin < Duration::from_millis(100), "{:?}", now - begin);
    published += waited.iter().map(size_bytes).sum::<u64>();
    while now < begin + Duration::from_secs(2) {
        now = queue.next_wake().expect("items wait");
        published += drain(&mut queue, now).iter().map(size_bytes).sum::<u64>();
    }
    let limit = MAX_BURST_BYTES + BYTES_PER_SECOND * (now - begin).as_secs_f64();
    assert!((published as f64 - limit).abs() < 100_000.0, "{published} of {limit}");
    let left = queue.len();
    let rest = std::iter::from_fn(|| queue.next(now, true)).count();
    assert_eq!(
        (rest, queue.len(), queue.next_wake()),
        (left, 0, None),
        "a shutdown ignores the rate"
    );
    assert!(queue.queues.is_empty() && queue.by_finish.is_empty());
}

#[test]
fn an_order_that_is_replaced_repeatedly_keeps_its_place() {
    let (mut queue, begin) = without_burst();
    (0..100).for_each(|n| _ = queue.push(caller(1), order(n, 40_000)));
    queue.push(caller(2), order(1_000, 50_000));
    let mut latest = 1_000;
    let mut published = Vec::new();
    for step in 1..12 {
        published.extend(drain(&mut queue, begin + Duration::from_micros(1_250) * step));
        if queue.remove(id(&order(latest, 50_000)), true) == 1 {
            latest += 1;
            queue.push(caller(2), order(latest, 50_000));
        }
    }
    let latest = id(&order(latest, 50_000));
    assert_eq!(published.iter().map(id).filter(|id| *id == latest).count(), 1);
    assert!(
        published.len() <= 3,
        "it waits for one or two orders of the other caller: {}",
        published.len()
    );
}

#[test]
fn removed_orders_leave_the_sequence_of_the_rest_unchanged() {
    let (mut queue, begin) = without_burst();
    for n in 0..4 {
        queue.push(caller(1), order(n, 100));
        queue.push(caller(1), cancellation());
    }
    // It is queued again, because the stream has lost its messages.
    queue.push(caller(1), order(2, 100));
    assert_eq!((queue.len(), queue.remove(id(&order(0, 100)), false)), (8, 1));
    assert_eq!(queue.retain(|pooled| *pooled != id(&order(3, 100))), 1);
    let published = drain(&mut queue, begin + Duration::from_secs(1));
    let is_order = |item: &Item| matches!(item.record, Record::Order(_));
    assert_eq!(
        published.iter().map(is_order).collect::<Vec<_>>(),
        [false, true, false, true, false, false]
    );
    assert_eq!(queue.len(), 0);
    let refused: u64 = (0..2_000).map(|_| queue.push(caller(1), cancellation())).sum();
    assert_eq!((refused, queue.len()), (976, MAX_EXTRAS_PER_CALLER));
    assert_eq!(queue.push(caller(2), cancellation()), 0);
}

/// No event of the pool removes them while the order is pooled. They were as many as the orders of
/// the pool times the addresses that sent each again.
#[test]
fn orders_that_another_holder_sent_first_are_bounded_like_cancellations() {
    let (mut queue, begin) = without_burst();
    let again = |n, holder| {
        let sent_at = SystemTime::UNIX_EPOCH;
        let additional_holder = Some(AdditionalHolder { holder, terms: None, sent_at });
        Item { additional_holder, ..order(n, 100) }
    };
    let busy = caller(255);
    let unsent: u64 = (0..2_000).map(|n| queue.push(busy, again(n, busy))).sum();
    assert_eq!(
        (unsent, queue.len()),
        (0, MAX_EXTRAS_PER_CALLER),
        "they are published for the holders that sent them first"
    );
    assert_eq!(queue.push(busy, again(0, busy)), 0, "it is queued already");
    assert_eq!(queue.push(busy, order(0, 100)), 0, "its own order is no extra");
    assert_eq!(queue.push(busy, cancellation()), 1);
    assert_eq!(queue.push(caller(0), again(0, caller(0))), 0);
    assert_eq!(
        queue.remove(id(&order(0, 100)), false),
        1,
        "only the copy of the first holder counts"
    );
    assert_eq!(queue.push(caller(0), again(1, caller(0))), 0);
    assert_eq!(queue.remove(id(&order(1, 100)), false), 0, "it was published for another holder");
    for n in 0..64 * MAX_EXTRAS_PER_CALLER {
        queue.push(caller((n % 64) as u8), cancellation());
    }
    assert_eq!(queue.len(), MAX_EXTRAS);
    assert!(
        queue.orders.len() < MAX_EXTRAS_PER_CALLER - 1,
        "the caller with the most loses its latest"
    );
    assert_eq!((queue.push(caller(200), cancellation()), queue.len()), (1, MAX_EXTRAS));
    assert_eq!(queue.queues[&caller(200)].extras, 1);
    assert_eq!(
        (queue.push(caller(201), order(0, 100)), queue.by_finish.len()),
        (0, queue.queues.len())
    );
    assert_eq!(queue.by_extras.len(), queue.queues.len());
    while queue.next(begin, true).is_some() {}
    assert!(queue.len() == 0 && queue.orders.is_empty() && queue.queues.is_empty());
    assert!(queue.by_finish.is_empty() && queue.by_extras.is_empty() && queue.extras == 0);
}

/// The virtual time went to the end of what was published, so queues with one large order each
/// stayed in step, and another caller waited for an order of each.
#[test]
fn a_small_order_does_not_wait_for_every_callers_large_order() {
    let (mut queue, _) = without_burst();
    for n in 0..900 {
        queue.push(caller(n as u8 % 30), order(n, 1_000_000));
    }
    for step in 0..200 {
        let small = order(10_000 + step, 500);
        let (id, holder) = (id(&small), caller(100 + step as u8 % 100));
        queue.push(holder, small);
        let mut before = 0;
        while is_queued(&queue, id, holder) {
            let now = queue.next_wake().expect("items wait");
            before += drain(&mut queue, now).len();
        }
        assert!(before <= 3, "{before} at {step}");
        let now = queue.next_wake().expect("items wait");
        drain(&mut queue, now);
    }
}
