use std::{sync::Arc, time::SystemTime};

use alloy_consensus::{SignableTransaction as _, TxEip1559, transaction::Recovered};
use alloy_primitives::{Address, Bytes, Signature};
use chain_view::PooledTransaction;
use order_pool::{Cancellation, Origin, Transaction};

use super::*;
use crate::{
    follow::Hold,
    tests::{KEY, caller},
};

/// An order of so many bytes, and some for itself.
fn order(n: u64, bytes: usize) -> Item {
    let tx = TxEip1559 { nonce: n, input: Bytes::from(vec![1; bytes]), ..TxEip1559::default() };
    let tx = PooledTransaction::Eip1559(tx.into_signed(Signature::test_signature()));
    let tx = Recovered::new_unchecked(tx, Address::ZERO);
    let tx = Transaction::new(tx, Origin::Rpc, SystemTime::UNIX_EPOCH);
    let record = Record::Order(Arc::new(Order::Tx(tx)));
    Item { record, number: None, hold: None, arrived: None }
}

fn cancellation() -> Item {
    let cancellation = Cancellation { key: KEY, nonce: None, holder: Holder::Host, sent_at: None };
    let record = Record::Cancellation(cancellation);
    Item { record, number: None, hold: None, arrived: None }
}

fn id(item: &Item) -> OrderId {
    let Record::Order(order) = &item.record else { panic!("no order") };
    order.id()
}

/// With nothing left of what may be published at once, as in a flood.
fn spent() -> (Turns, Instant) {
    let now = Instant::now();
    let (spent_bytes, as_of) = (MAX_CREDIT_BYTES, Some(now));
    (Turns { spent_bytes, as_of, ..Turns::default() }, now)
}

/// What is published until the next one has to wait.
fn drain(turns: &mut Turns, now: Instant) -> Vec<Item> {
    std::iter::from_fn(|| turns.next(now, false)).collect()
}

#[test]
fn whatever_callers_flood_no_more_than_the_rate_is_published_and_another_one_waits_for_few_of_theirs()
 {
    let (begin, mut now) = (Instant::now(), Instant::now());
    let mut turns = Turns { as_of: Some(begin), ..Turns::default() };
    for n in 0..1_000 {
        turns.push(caller((n % 2) as u8), order(n, 40_000));
    }
    let mut published: u64 = drain(&mut turns, now).iter().map(size_bytes).sum();
    assert!(published as f64 <= MAX_CREDIT_BYTES);
    let honest = order(5_000, 200);
    let honest_id = id(&honest);
    turns.push(caller(9), honest);
    let mut waited = Vec::new();
    while turns.orders.contains_key(&(honest_id, caller(9), false)) {
        now = turns.next_wake().expect("some wait");
        waited.extend(drain(&mut turns, now));
    }
    assert!(waited.len() <= 3, "{}", waited.len());
    assert!(now - begin < Duration::from_millis(100), "{:?}", now - begin);
    published += waited.iter().map(size_bytes).sum::<u64>();
    while now < begin + Duration::from_secs(2) {
        now = turns.next_wake().expect("some wait");
        published += drain(&mut turns, now).iter().map(size_bytes).sum::<u64>();
    }
    let limit = MAX_CREDIT_BYTES + BYTES_PER_SECOND * (now - begin).as_secs_f64();
    assert!((published as f64 - limit).abs() < 100_000.0, "{published} of {limit}");
    let left = turns.len();
    let rest = std::iter::from_fn(|| turns.next(now, true)).count();
    assert_eq!((rest, turns.len(), turns.next_wake()), (left, 0, None), "at a stop, all");
    assert!(turns.lines.is_empty() && turns.turns.is_empty());
}

#[test]
fn an_order_that_is_replaced_again_and_again_keeps_its_place() {
    let (mut turns, begin) = spent();
    (0..100).for_each(|n| _ = turns.push(caller(1), order(n, 40_000)));
    turns.push(caller(2), order(1_000, 50_000));
    let mut latest = 1_000;
    let mut published = Vec::new();
    for step in 1..12 {
        published.extend(drain(&mut turns, begin + Duration::from_micros(1_250) * step));
        if turns.remove(id(&order(latest, 50_000)), true) == 1 {
            latest += 1;
            turns.push(caller(2), order(latest, 50_000));
        }
    }
    let latest = id(&order(latest, 50_000));
    assert_eq!(published.iter().map(id).filter(|id| *id == latest).count(), 1);
    assert!(published.len() <= 3, "behind one of the other caller's, or two: {}", published.len());
}

#[test]
fn what_has_left_the_pool_is_not_published_and_the_rest_of_a_caller_keeps_its_sequence() {
    let (mut turns, begin) = spent();
    for n in 0..4 {
        turns.push(caller(1), order(n, 100));
        turns.push(caller(1), cancellation());
    }
    // It is published again, as the stream has lost what it had.
    turns.push(caller(1), order(2, 100));
    assert_eq!((turns.len(), turns.remove(id(&order(0, 100)), false)), (8, 1));
    assert_eq!(turns.retain(|pooled| *pooled != id(&order(3, 100))), 1);
    let published = drain(&mut turns, begin + Duration::from_secs(1));
    let is_order = |item: &Item| matches!(item.record, Record::Order(_));
    assert_eq!(
        published.iter().map(is_order).collect::<Vec<_>>(),
        [false, true, false, true, false, false]
    );
    assert_eq!(turns.len(), 0);
    let refused: u64 = (0..2_000).map(|_| turns.push(caller(1), cancellation())).sum();
    assert_eq!((refused, turns.len()), (976, MAX_EXTRAS_OF_ONE));
    assert_eq!(turns.push(caller(2), cancellation()), 0);
}

/// No event of the pool takes them out while the order is pooled: they were as many as the orders of the pool times the addresses
/// that sent each again.
#[test]
fn what_callers_send_again_of_others_is_bounded_as_cancellations_are() {
    let (mut turns, begin) = spent();
    let again = |n, holder| Item { hold: Some(Hold { holder, terms: None }), ..order(n, 100) };
    let crowd = caller(255);
    let unsent: u64 = (0..2_000).map(|n| turns.push(crowd, again(n, crowd))).sum();
    assert_eq!(
        (unsent, turns.len()),
        (0, MAX_EXTRAS_OF_ONE),
        "who sent them first has them published"
    );
    assert_eq!(turns.push(crowd, again(0, crowd)), 0, "it waits already");
    assert_eq!(turns.push(crowd, order(0, 100)), 0, "its own");
    assert_eq!(turns.push(crowd, cancellation()), 1);
    assert_eq!(turns.push(caller(0), again(0, caller(0))), 0);
    assert_eq!(
        turns.remove(id(&order(0, 100)), false),
        1,
        "of three places that of who sent it first"
    );
    assert_eq!(turns.push(caller(0), again(1, caller(0))), 0);
    assert_eq!(turns.remove(id(&order(1, 100)), false), 0, "it was published for another caller");
    for n in 0..64 * MAX_EXTRAS_OF_ONE {
        turns.push(caller((n % 64) as u8), cancellation());
    }
    assert_eq!(turns.len(), MAX_EXTRAS);
    assert!(turns.orders.len() < MAX_EXTRAS_OF_ONE - 1, "the largest crowd loses its latest");
    assert_eq!((turns.push(caller(200), cancellation()), turns.len()), (1, MAX_EXTRAS));
    assert_eq!(turns.lines[&caller(200)].extras, 1);
    assert_eq!((turns.push(caller(201), order(0, 100)), turns.turns.len()), (0, turns.lines.len()));
    assert_eq!(turns.crowds.len(), turns.lines.len());
    while turns.next(begin, true).is_some() {}
    assert!(turns.len() == 0 && turns.orders.is_empty() && turns.lines.is_empty());
    assert!(turns.turns.is_empty() && turns.crowds.is_empty() && turns.extras == 0);
}

/// The clock went to the end of what was published, so lines with one large order each stayed in step, and another one waited
/// for an order of each.
#[test]
fn an_order_waits_for_as_many_bytes_of_each_other_caller_however_large_theirs_are() {
    let (mut turns, _) = spent();
    for n in 0..900 {
        turns.push(caller(n as u8 % 30), order(n, 1_000_000));
    }
    for step in 0..200 {
        let small = order(10_000 + step, 500);
        let (id, holder) = (id(&small), caller(100 + step as u8 % 100));
        turns.push(holder, small);
        let mut before = 0;
        while turns.orders.contains_key(&(id, holder, false)) {
            let now = turns.next_wake().expect("some wait");
            before += drain(&mut turns, now).len();
        }
        assert!(before <= 3, "{before} at {step}");
        let now = turns.next_wake().expect("some wait");
        drain(&mut turns, now);
    }
}
