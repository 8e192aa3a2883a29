use std::time::Duration;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip4844::{Blob, BlobTransactionSidecar, Bytes48};
use alloy_primitives::{Address, hex};
use chain_view::Head;
use order_pool::{
    Bundle, BundleParts, Cancellation, Holder, Origin, PrivateCancellation, PrivateTerms,
    Transaction,
};

use super::*;
use crate::{
    tests::{self, KEY, SIGNER, deliverer, keyed_parts, of_blobs, parts, stored_now},
    wire::{self, Encoded, HeadRecord, Sent},
};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn txs(count: usize) -> Vec<Transaction> {
    let announced = |tx| Transaction::new(tx, Origin::Mempool, at(100));
    tests::txs(count).into_iter().map(announced).collect()
}

/// As a machine sends it that was not held up.
fn encode(record: Record) -> Encoded {
    let sent = Sent { age: Duration::ZERO, local_micros: record.local_micros() };
    record.encode(&sent).expect("a known kind")
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

/// The counts: pooled, known, superseded, refused, malformed. They make up what was received.
fn counts(deliverer: &Deliverer) -> [u64; 5] {
    let stats = deliverer.counters.stats();
    let counts = [stats.pooled, stats.known, stats.superseded, stats.refused, stats.malformed];
    assert_eq!(stats.received, counts.iter().sum::<u64>());
    counts
}

/// Whoever publishes has proven it: nothing is proven here, neither for the first copy nor for those that the pool knows.
#[test]
fn six_blobs_that_nobody_could_prove_cost_no_proof_however_often_they_come() {
    let (blobs, words) = (vec![Blob::ZERO; 6], vec![Bytes48::ZERO; 6]);
    let sidecar = BlobTransactionSidecar { blobs, commitments: words.clone(), proofs: words };
    let tx = of_blobs(sidecar.versioned_hashes().collect(), sidecar.into());
    let tx = Recovered::new_unchecked(tx, Address::ZERO);
    let tx = Transaction::new(tx, Origin::Mempool, at(100));
    let mut deliverer = deliverer(true);
    for _ in 0..3 {
        deliverer.message(&message(encode_transaction(&tx)), stored_now(at(101)));
    }
    assert_eq!(counts(&deliverer), [1, 2, 0, 0, 0]);
}

#[test]
fn what_is_damaged_or_without_its_id_is_malformed() {
    let mut deliverer = deliverer(true);
    let txs = txs(2);
    let sound = encode_transaction(&txs[0]);
    let other = Encoded { id: *txs[1].hash(), ..sound.clone() };
    let cut = Encoded { payload: sound.payload.slice(..40), ..sound.clone() };
    let mut without = message(sound);
    without.headers = None;
    for message in [message(other), without, message(cut)] {
        deliverer.message(&message, stored_now(at(101)));
    }
    assert_eq!(counts(&deliverer), [0, 0, 0, 0, 3]);
}

#[test]
fn the_public_stream_brings_no_private_order_no_other_chain_and_no_head_that_is_not_asked_for() {
    let terms = PrivateTerms { signer: None, max_block: 9 };
    let tx = txs(1).remove(0);
    let private = Transaction::private(tx.recovered().clone(), terms, at(100));
    let cancellation = Cancellation { key: KEY, nonce: None, holder: Holder::Host, sent_at: None };
    let cancellation = encode(Record::Cancellation(cancellation));
    let mut public = deliverer(false);
    for other in [encode_transaction(&private), cancellation, head(1, 0)] {
        public.message(&message(other), stored_now(at(101)));
    }
    public.chain_id = 5;
    public.message(&message(encode_transaction(&tx)), stored_now(at(101)));
    assert_eq!((counts(&public), public.pool.head()), ([0, 0, 0, 4, 0], None));
}

#[test]
fn bundles_cancellations_and_private_transactions_reach_the_pool_in_whatever_order_they_come() {
    // The pool forgets a cancellation by its own clock.
    let begin = SystemTime::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let (txs, signer, holder) = (txs(2), SIGNER, Holder::Host);
    let terms = PrivateTerms { signer: Some(signer), max_block: 9 };
    let private = Transaction::private(txs[1].recovered().clone(), terms, at(100));
    let cancelled =
        PrivateCancellation { hash: *private.hash(), signer, cancelled_at: at(100), holder };
    let orders = [bundle(keyed_parts(&txs[0], 5, 1)), encode_transaction(&private)];
    let cancellations = [
        encode(Record::Cancellation(Cancellation {
            key: KEY,
            nonce: Some(2),
            holder,
            sent_at: None,
        })),
        encode(Record::CancelPrivate(cancelled)),
    ];
    let mut deliverer = Deliverer { flow: Flow::Private, ..deliverer(false) };
    let mut deliver = |messages: &[Encoded; 2]| {
        for it in messages {
            deliverer.message(&message(it.clone()), stored_now(at(101)));
        }
        let stats = deliverer.pool.stats();
        ([stats.bundles, stats.external_txs], counts(&deliverer))
    };
    assert_eq!(deliver(&orders), ([1, 1], [2, 0, 0, 0, 0]));
    assert_eq!(deliver(&cancellations), ([0, 0], [4, 0, 0, 0, 0]));
    // What another machine published before both, and what comes late.
    assert_eq!(deliver(&orders), ([0, 0], [4, 0, 2, 0, 0]));
}

/// The block of a transaction that it runs behind had come here before it: the one before it stayed until its block.
#[test]
fn a_replacement_that_comes_after_its_transaction_was_mined_ends_what_it_replaces() {
    let txs = txs(3);
    let mut deliverer = Deliverer { flow: Flow::Private, ..deliverer(false) };
    deliverer.pool.on_head(Block::new(tests::head(10, 0, 0), vec![*txs[1].hash()]));
    let bundle = |tx: usize, nonce| bundle(keyed_parts(&txs[tx], 12, nonce));
    let mut deliver = |encoded| {
        deliverer.message(&message(encoded), stored_now(at(101)));
        (deliverer.pool.stats().bundles, counts(&deliverer))
    };
    assert_eq!(deliver(bundle(0, 1)), (1, [1, 0, 0, 0, 0]));
    assert_eq!(deliver(bundle(1, 2)), (0, [1, 0, 0, 1, 0]));
    assert_eq!(deliver(bundle(2, 1)), (0, [1, 0, 1, 1, 0]), "late");
}

/// The stream of private orders keeps them for 15 minutes, and a builder that started took them for new.
#[test]
fn raw_transactions_that_machines_have_dropped_are_not_taken_and_all_else_is() {
    let (txs, begin) = (txs(3), SystemTime::now());
    let raw = |n: usize| {
        let tx = txs[n].recovered().clone();
        encode_transaction(&Transaction::new(tx, Origin::Rpc, at(100)))
    };
    let terms = PrivateTerms { signer: None, max_block: 9 };
    let private = Transaction::private(txs[1].recovered().clone(), terms, at(100));
    let others = [encode_transaction(&private), bundle(parts(&txs[2], 5)), raw(1)];
    let mut deliverer = Deliverer { flow: Flow::Private, ..deliverer(false) };
    let mut deliver = |encoded, age| {
        let times = Times { stored: begin - Duration::from_secs(age), now: begin };
        deliverer.message(&message(encoded), times);
        counts(&deliverer)
    };
    assert_eq!(deliver(raw(0), 61), [0, 0, 0, 1, 0]);
    // A machine says when it has received it: a reorg may have brought it back since.
    assert_eq!(deliver(raw(0), 59), [1, 0, 0, 1, 0]);
    others.into_iter().for_each(|other| _ = deliver(other, 800));
    assert_eq!(deliver(raw(0), 800), [3, 2, 0, 1, 0], "a further caller of what is here");
}

fn head(number: u64, chain: u64) -> Encoded {
    head_with(number, chain, Vec::new())
}

fn head_with(number: u64, chain: u64, mined: Vec<B256>) -> Encoded {
    let head = tests::head(number, chain, chain);
    encode(Record::Head(HeadRecord { head, previous: B256::ZERO, mined }.into()))
}

/// A head that leads nowhere undoes a block, whose transactions are pending again. The next head of its chain brings it back.
#[test]
fn what_a_gap_undid_is_mined_again_with_the_next_block_of_its_chain() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let tx = txs(1).remove(0);
    deliverer.message(&message(encode_transaction(&tx)), stored_now(at(101)));
    let mut tell = |encoded| {
        deliverer.message(&message(encoded), stored_now(at(102)));
        pool.contains(tx.hash())
    };
    assert!((1..=4).all(|number| tell(head(number, 0))));
    assert!(!tell(head_with(5, 0, vec![*tx.hash()])));
    assert!(tell(head(6, 1)), "its parent could be another one than the fifth");
    tell(head(6, 0));
    assert!(!tell(head(7, 0)));
}

/// A machine whose node came back after a quarter of an hour undid 64 blocks of every builder, which removed the bundles for
/// its next ones as too far ahead.
#[test]
fn a_machine_whose_node_is_far_behind_undoes_nothing_however_long_it_is() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let mut tell = |encoded, seconds| deliverer.message(&message(encoded), stored_now(at(seconds)));
    (1..=100).for_each(|number| tell(head(number, 0), 12 * number));
    let bundle = Bundle::new(parts(&txs(1)[0], 121)).expect("a bundle");
    let outcome = pool.insert_bundle(bundle);
    assert_eq!(outcome, InsertOutcome::Added);
    for number in 101..=120 {
        tell(head(number - 75, 0), 12 * number - 5);
        tell(head(number, 0), 12 * number);
        assert_eq!(pool.head().map(|head| head.number), Some(number));
        assert_eq!(pool.stats().bundles, 1);
    }
    tell(head(120, 0), 1_441);
    assert_eq!(counts(&deliverer), [120, 1, 0, 20, 0]);
}

#[test]
fn a_reorg_is_followed_at_once_and_a_chain_that_begins_anew_when_no_other_is_told_for_a_minute() {
    let mut deliverer = deliverer(true);
    let pool = deliverer.pool.clone();
    let mut tell = |encoded, seconds| {
        deliverer.message(&message(encoded), stored_now(at(seconds)));
        pool.head().map(|head| (head.number, head.hash))
    };
    (1..=9).for_each(|number| _ = tell(head(number, 0), number));
    let parent_hash = pool.head().expect("the ninth").parent_hash;
    let other = (9, B256::repeat_byte(9));
    let branch = Head::new(other.0, other.1, parent_hash);
    let branch = HeadRecord { head: branch, previous: B256::ZERO, mined: Vec::new() };
    assert_eq!(tell(encode(Record::Head(branch.into())), 10), Some(other));
    for (number, seconds) in [(1, 20), (2, 40), (3, 79)] {
        assert_eq!(tell(head(number, 1), seconds), Some(other), "after {number}");
    }
    for (number, seconds) in [(4, 80), (5, 81)] {
        let told = tell(head(number, 1), seconds).map(|(number, _)| number);
        assert_eq!(told, Some(number));
    }
    assert_eq!(counts(&deliverer), [12, 0, 0, 3, 0]);
}
