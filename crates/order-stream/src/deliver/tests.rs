//! What a source does with the messages of a stream.

use std::time::Duration;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip4844::{Blob, BlobTransactionSidecar, Bytes48};
use alloy_primitives::{Address, hex};
use chain_view::Head;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, Cancellation, Clock, Holder, Origin, PoolConfig,
    PrivateCancellation, PrivateTerms, Transaction,
};

use super::*;
use crate::{
    tests::{self, KEY, SIGNER, blob_transaction, deliverer, keyed_parts, parts, stored_now, time},
    wire::{self, Encoded, HeadRecord, PublisherTime},
};

fn txs(count: usize) -> Vec<Transaction> {
    let announced = |tx| Transaction::new(tx, Origin::Mempool, time(100));
    tests::txs(count).into_iter().map(announced).collect()
}

/// Encodes a record as a machine does that sends it without delay.
fn encode(record: Record) -> Encoded {
    let publisher_time =
        PublisherTime { local_micros: record.local_micros(), ..PublisherTime::default() };
    record.encode(&publisher_time).expect("a known kind")
}

fn encode_transaction(tx: &Transaction) -> Encoded {
    wire::encode_transaction(tx, Duration::ZERO)
}

fn message(Encoded { id, payload }: Encoded) -> Message {
    tests::message(&hex::encode(id), payload)
}

fn bundle(parts: BundleParts) -> Encoded {
    encode(Record::Order(Arc::new(Order::Bundle(Bundle::new(parts).expect("a bundle")))))
}

/// A deliverer of the private flow.
fn private_deliverer() -> Deliverer {
    Deliverer { flow: Flow::Private, ..deliverer(false) }
}

/// The counts of pooled, known, superseded, refused and malformed messages, whose sum is the count
/// of received messages.
fn counts(deliverer: &Deliverer) -> [u64; 5] {
    let stats = deliverer.counters.stats();
    let counts = [stats.pooled, stats.known, stats.superseded, stats.refused, stats.malformed];
    assert_eq!(stats.received, counts.iter().sum::<u64>());
    counts
}

/// The publisher has verified the proofs, so these invalid ones are accepted.
#[test]
fn blob_proofs_are_not_verified_again() {
    let (blobs, points) = (vec![Blob::ZERO; 6], vec![Bytes48::ZERO; 6]);
    let sidecar = BlobTransactionSidecar { blobs, commitments: points.clone(), proofs: points };
    let tx = blob_transaction(sidecar.versioned_hashes().collect(), sidecar.into());
    let tx = Recovered::new_unchecked(tx, Address::ZERO);
    let tx = Transaction::new(tx, Origin::Mempool, time(100));
    let mut deliverer = deliverer(true);
    for _ in 0..3 {
        deliverer.deliver(&message(encode_transaction(&tx)), stored_now(time(101)));
    }
    assert_eq!(counts(&deliverer), [1, 2, 0, 0, 0]);
}

#[test]
fn a_damaged_message_or_one_with_another_id_is_malformed() {
    let mut deliverer = deliverer(true);
    let txs = txs(2);
    let valid = encode_transaction(&txs[0]);
    let other_id = Encoded { id: *txs[1].hash(), ..valid.clone() };
    let truncated = Encoded { payload: valid.payload.slice(..40), ..valid.clone() };
    let mut without_id = message(valid);
    without_id.headers = None;
    for message in [message(other_id), without_id, message(truncated)] {
        deliverer.deliver(&message, stored_now(time(101)));
    }
    assert_eq!(counts(&deliverer), [0, 0, 0, 0, 3]);
}

#[test]
fn the_public_stream_brings_no_private_order_and_no_other_chain() {
    let terms = PrivateTerms { signer: None, max_block: 9 };
    let tx = txs(1).remove(0);
    let private = Transaction::private(tx.recovered().clone(), terms, time(100));
    let cancellation = Cancellation { key: KEY, nonce: None, holder: Holder::Host, sent_at: None };
    let cancellation = encode(Record::Cancellation(cancellation));
    let mut public = deliverer(false);
    // The head is refused because the source is configured not to apply heads.
    for encoded in [encode_transaction(&private), cancellation, head(1, 0)] {
        public.deliver(&message(encoded), stored_now(time(101)));
    }
    public.chain_id = 5;
    public.deliver(&message(encode_transaction(&tx)), stored_now(time(101)));
    assert_eq!((counts(&public), public.pool.head()), ([0, 0, 0, 4, 0], None));
}

#[test]
fn private_orders_and_cancellations_may_arrive_in_any_sequence() {
    // The pool forgets a cancellation by its own clock, so the times are near the present.
    let begin = SystemTime::now();
    let time = |seconds| begin + Duration::from_secs(seconds);
    let (txs, signer, holder) = (txs(2), SIGNER, Holder::Host);
    let terms = PrivateTerms { signer: Some(signer), max_block: 9 };
    let private = Transaction::private(txs[1].recovered().clone(), terms, time(100));
    let private_cancellation =
        PrivateCancellation { hash: *private.hash(), signer, cancelled_at: time(100), holder };
    let bundle_cancellation = Cancellation { key: KEY, nonce: Some(2), holder, sent_at: None };
    let orders = [bundle(keyed_parts(&txs[0], 5, 1)), encode_transaction(&private)];
    let cancellations = [
        encode(Record::Cancellation(bundle_cancellation)),
        encode(Record::CancelPrivate(private_cancellation)),
    ];
    let mut deliverer = private_deliverer();
    let mut deliver = |messages: &[Encoded; 2]| {
        for encoded in messages {
            deliverer.deliver(&message(encoded.clone()), stored_now(time(101)));
        }
        let stats = deliverer.pool.stats();
        ([stats.bundles, stats.external_txs], counts(&deliverer))
    };
    assert_eq!(deliver(&orders), ([1, 1], [2, 0, 0, 0, 0]));
    assert_eq!(deliver(&cancellations), ([0, 0], [4, 0, 0, 0, 0]));
    // Another machine published the same orders before the cancellations, and they arrive late.
    assert_eq!(deliver(&orders), ([0, 0], [4, 0, 2, 0, 0]));
}

/// A replacement whose transaction was in a block already left the earlier bundle in place.
#[test]
fn a_refused_replacement_still_ends_the_bundle_that_it_replaces() {
    let txs = txs(3);
    let mut deliverer = private_deliverer();
    deliverer.pool.on_head(Block::new(tests::head(10, 0, 0), vec![*txs[1].hash()]));
    let bundle = |tx: usize, nonce| bundle(keyed_parts(&txs[tx], 12, nonce));
    let mut deliver = |encoded| {
        deliverer.deliver(&message(encoded), stored_now(time(101)));
        (deliverer.pool.stats().bundles, counts(&deliverer))
    };
    assert_eq!(deliver(bundle(0, 1)), (1, [1, 0, 0, 0, 0]));
    assert_eq!(deliver(bundle(1, 2)), (0, [1, 0, 0, 1, 0]));
    assert_eq!(deliver(bundle(2, 1)), (0, [1, 0, 1, 1, 0]), "it arrives late");
}

/// A bundle without a chosen nonce that was sent at this time.
fn bundle_sent_at(tx: &Transaction, block: u64, seconds: u64) -> Encoded {
    let parts = keyed_parts(tx, block, 0);
    bundle(BundleParts { replacement_nonce: None, first_seen: Some(time(seconds)), ..parts })
}

/// The pool forgot the newest bundle of a key a minute after that had left, and when it had refused
/// the newest one, any bundle without a nonce was newer. So an older one was there again.
#[test]
fn a_bundle_that_arrives_late_is_replaced_although_the_pool_has_not_its_replacement() {
    let txs = txs(2);
    for is_forgotten in [false, true] {
        let clock = Clock::manual();
        let pool = OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("a pool");
        let mut deliverer = Deliverer { pool, ..private_deliverer() };
        let head = |number| Block::new(tests::head(number, 0, 0), vec![*txs[1].hash()]);
        if is_forgotten {
            deliverer.deliver(&message(bundle_sent_at(&txs[1], 12, 102)), stored_now(time(102)));
            deliverer.pool.on_head(head(10));
            clock.advance(CANCELLATION_RETENTION);
            while deliverer.pool.upkeep() {}
        } else {
            deliverer.pool.on_head(head(10));
            deliverer.deliver(&message(bundle_sent_at(&txs[1], 12, 102)), stored_now(time(102)));
        }
        deliverer.deliver(&message(bundle_sent_at(&txs[0], 12, 101)), stored_now(time(101)));
        assert_eq!(deliverer.pool.stats().bundles, 0, "forgotten: {is_forgotten}");
        let with_nonce = bundle(keyed_parts(&txs[0], 12, 5));
        deliverer.deliver(&message(with_nonce), stored_now(time(101)));
        assert_eq!(deliverer.pool.stats().bundles, 0, "a chosen nonce is below each time");
        deliverer.deliver(&message(bundle_sent_at(&txs[0], 12, 103)), stored_now(time(103)));
        assert_eq!(deliverer.pool.stats().bundles, 1, "it was sent later");
    }
}

/// The pool knew only when the bundle had been sent for the first time.
#[test]
fn a_late_message_does_not_end_a_bundle_that_was_sent_again_after_it() {
    let txs = txs(3);
    let mut deliverer = private_deliverer();
    let pool = deliverer.pool.clone();
    pool.on_head(Block::new(tests::head(10, 0, 0), []));
    let cancellation = |seconds| {
        let (sent_at, holder) = (Some(time(seconds)), Holder::Host);
        let nonce = Some(micros(time(seconds)));
        encode(Record::Cancellation(Cancellation { key: KEY, nonce, holder, sent_at }))
    };
    // The message was sent to another machine than the bundles.
    let from_other = |encoded| Message { subject: "mempool.1.tx.b".into(), ..message(encoded) };
    let mut deliver = |message, seconds| {
        deliverer.deliver(&message, stored_now(time(seconds)));
        deliverer.pool.stats().bundles
    };
    assert_eq!(deliver(message(bundle_sent_at(&txs[0], 12, 100)), 100), 1);
    assert_eq!(deliver(message(bundle_sent_at(&txs[1], 13, 101)), 101), 2);
    assert_eq!(deliver(message(bundle_sent_at(&txs[0], 12, 106)), 106), 2);
    assert_eq!(deliver(from_other(bundle_sent_at(&txs[2], 12, 104)), 104), 2, "it is replaced");
    assert_eq!(deliver(from_other(bundle_sent_at(&txs[0], 12, 104)), 104), 2, "it is the same");
    // It came over another source of the pool.
    let other = BundleParts { replacement_nonce: None, ..keyed_parts(&txs[2], 14, 0) };
    let other = BundleParts { first_seen: Some(time(100)), ..other };
    pool.insert_bundle(Bundle::new(other).expect("a bundle"));
    assert_eq!(deliver(from_other(cancellation(105)), 105), 1, "only the one for block 12 stays");
    assert_eq!(counts(&deliverer), [3, 2, 1, 0, 0]);
    let mut deliver = |message, seconds| {
        deliverer.deliver(&message, stored_now(time(seconds)));
        deliverer.pool.stats().bundles
    };
    assert_eq!(deliver(message(bundle_sent_at(&txs[1], 13, 101)), 101), 1, "it is cancelled");
    assert_eq!(deliver(from_other(cancellation(107)), 107), 0);
}

fn head(number: u64, branch: u64) -> Encoded {
    head_with_mined(number, branch, Vec::new())
}

fn head_with_mined(number: u64, branch: u64, mined: Vec<B256>) -> Encoded {
    let head = tests::head(number, branch, branch);
    encode(Record::Head(HeadRecord { head, previous: B256::ZERO, mined }.into()))
}

/// A head without a known parent undoes a block, whose transactions are pending again. The next
/// head of its chain applies the block again.
#[test]
fn a_block_that_an_unrelated_head_undid_is_applied_again() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let tx = txs(1).remove(0);
    deliverer.deliver(&message(encode_transaction(&tx)), stored_now(time(101)));
    let mut is_pending_after = |encoded| {
        deliverer.deliver(&message(encoded), stored_now(time(102)));
        pool.contains(tx.hash())
    };
    assert!((1..=4).all(|number| is_pending_after(head(number, 0))));
    assert!(!is_pending_after(head_with_mined(5, 0, vec![*tx.hash()])));
    assert!(is_pending_after(head(6, 1)), "its parent could be another block than the fifth");
    is_pending_after(head(6, 0));
    assert!(!is_pending_after(head(7, 0)));
}

/// A machine whose node came back after a quarter of an hour undid 64 blocks of every builder,
/// which removed the bundles for its next blocks as too far ahead.
#[test]
fn a_machine_whose_node_is_far_behind_undoes_no_block() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let mut deliver =
        |encoded, seconds| deliverer.deliver(&message(encoded), stored_now(time(seconds)));
    for number in 1..=100 {
        deliver(head(number, 0), 12 * number);
    }
    let bundle = Bundle::new(parts(&txs(1)[0], 121)).expect("a bundle");
    assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Added);
    for number in 101..=120 {
        deliver(head(number - 75, 0), 12 * number - 5);
        deliver(head(number, 0), 12 * number);
        assert_eq!(pool.head().map(|head| head.number), Some(number));
        assert_eq!(pool.stats().bundles, 1);
    }
    deliver(head(120, 0), 1_441);
    assert_eq!(counts(&deliverer), [120, 1, 0, 20, 0]);
}

#[test]
fn a_reorg_is_followed_at_once_a_new_chain_later() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let mut head_after = |encoded, seconds| {
        deliverer.deliver(&message(encoded), stored_now(time(seconds)));
        pool.head().map(|head| (head.number, head.hash))
    };
    for number in 1..=9 {
        head_after(head(number, 0), number);
    }
    let parent_hash = pool.head().expect("the ninth").parent_hash;
    let sibling = (9, B256::repeat_byte(9));
    let sibling_head = Head::new(sibling.0, sibling.1, parent_hash);
    let record = HeadRecord { head: sibling_head, previous: B256::ZERO, mined: Vec::new() };
    assert_eq!(head_after(encode(Record::Head(record.into())), 10), Some(sibling));
    for (number, seconds) in [(1, 20), (2, 40), (3, 79)] {
        assert_eq!(head_after(head(number, 1), seconds), Some(sibling), "after {number}");
    }
    for (number, seconds) in [(4, 80), (5, 81)] {
        let applied = head_after(head(number, 1), seconds).map(|(number, _)| number);
        assert_eq!(applied, Some(number));
    }
    assert_eq!(counts(&deliverer), [12, 0, 0, 3, 0]);
}

/// Unknown signers behind a front shared the room of known signers, and could displace their
/// cancellations.
#[test]
fn unknown_signers_behind_a_front_count_as_unknown_callers() {
    let front = [10, 0, 0, 1].into();
    for (holder, is_unknown) in [
        (Holder::Host, false),
        (Holder::Signer(SIGNER), false),
        (tests::caller(1), true),
        (Holder::Forwarded { front, signer: Some(SIGNER) }, true),
        (Holder::Forwarded { front, signer: None }, true),
    ] {
        let cancellation = Cancellation { key: KEY, nonce: None, holder, sent_at: None };
        let record = Record::Cancellation(cancellation);
        assert_eq!(is_of_unknown_caller(&record), is_unknown, "{holder:?}");
    }
}
