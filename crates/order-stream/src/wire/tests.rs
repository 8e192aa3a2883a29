//! Round trips of all records, and damaged messages.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use alloy_consensus::transaction::{Recovered, SignerRecoverable as _};
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::BlobTransactionSidecarEip7594,
};
use alloy_primitives::Address;
use chain_view::{Head, PooledTransaction};
use order_pool::{
    Bundle, BundleParts, DesiredState, Holder, MAX_TARGET_SLOTS, Origin, PrivateCancellation,
    PrivateTerms, StateTarget, Transaction,
};
use proptest::{collection::vec, option, prelude::*};
use testkit::corpus::damaged;

use super::*;
use crate::tests::{KEY, SIGNER, blob_transaction, keyed_parts, txs};

fn time(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// Signed transactions of every type without blobs; `count` is at most 200.
fn envelopes(count: usize) -> Vec<PooledTransaction> {
    static ALL: LazyLock<Vec<PooledTransaction>> =
        LazyLock::new(|| txs(200).into_iter().map(Recovered::into_inner).collect());
    ALL[..count].to_vec()
}

/// A transaction with a blob of zeros: its commitment and its proofs are the point at infinity.
fn blob(with_cells: bool) -> PooledTransaction {
    let infinity = Bytes48::from_slice(&[&[0xc0][..], &[0; 47]].concat());
    let (blobs, commitments, proofs) = (vec![Blob::ZERO], vec![infinity], vec![infinity]);
    let sidecar = BlobTransactionSidecar { blobs, commitments, proofs };
    let hashes = sidecar.versioned_hashes().collect();
    if !with_cells {
        return blob_transaction(hashes, sidecar.into());
    }
    let BlobTransactionSidecar { blobs, commitments, proofs } = sidecar;
    let cell_proofs = proofs.repeat(128);
    blob_transaction(
        hashes,
        BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs }.into(),
    )
}

fn pooled(tx: PooledTransaction) -> Transaction {
    let tx = tx.try_into_recovered().expect("a sender");
    Transaction::new(tx, Origin::Mempool, time(1_234_567_890_123_456_789))
}

fn private(tx: PooledTransaction, terms: PrivateTerms) -> Transaction {
    let tx = pooled(tx);
    Transaction::private(tx.recovered().clone(), terms, tx.first_seen())
}

fn bundle(parts: BundleParts) -> Record {
    Record::Order(Arc::new(Order::Bundle(Bundle::new(parts).expect("a bundle"))))
}

const AGE: Duration = Duration::from_secs(3);

/// Encodes a record as a publisher does three seconds after its arrival.
fn encode(record: &Record) -> Encoded {
    let publisher_time = PublisherTime {
        age: AGE,
        local_micros: record.local_micros(),
        sent_before: Some(sent_at()),
    };
    record.encode(&publisher_time).expect("a known kind")
}

/// The time at which all messages were sent, somewhat more than a second before they were stored.
fn sent_at() -> SystemTime {
    time(1_234_567_889_000_000_000)
}

/// The time at which the server stored all messages.
fn stored_at() -> SystemTime {
    time(1_234_567_890_123_456_789)
}

fn decode(id: &B256, payload: &[u8]) -> Result<Decoded, WireError> {
    Record::decode(id, payload, stored_at())
}

fn encode_again(Decoded { record, publisher_time, .. }: &Decoded) -> Encoded {
    record.encode(publisher_time).expect("a known kind")
}

fn target((address, slots): ([u8; 20], Vec<[u8; 32]>)) -> StateTarget {
    let slots = slots.into_iter().map(B256::new).collect();
    StateTarget { address: address.into(), slots }
}

prop_compose! {
    fn parts()(
        count in 1..4_usize,
        numbers in vec(option::of(0..1_000_u64), 3),
        percent in option::of(0..100_u8),
        key in option::of((any::<u128>(), any::<[u8; 20]>(), option::of(any::<u64>()))),
        others in vec(option::of(any::<[u8; 20]>()), 2),
        lists in vec(vec(any::<[u8; 32]>(), 0..3), 2),
        refund_tx in option::of(any::<[u8; 32]>()),
        targets in vec((any::<[u8; 20]>(), vec(any::<[u8; 32]>(), 0..3)), 0..3),
        (delayed_refund, is_at_bottom, first_seen) in any::<(bool, bool, u64)>(),
    ) -> BundleParts {
        let mut lists = lists.into_iter().map(|list| list.into_iter().map(B256::new).collect());
        let mut others = others.into_iter().map(|other| other.map(Address::new));
        let holder = match key {
            None => Holder::Host,
            Some((uuid, ..)) if uuid % 4 == 0 => Holder::caller((uuid as u32).to_be_bytes().into()),
            Some((uuid, ..)) if uuid % 4 == 1 => Holder::caller(uuid.to_be_bytes().into()),
            Some((uuid, signer, nonce)) if uuid % 4 == 2 => Holder::Forwarded {
                front: (uuid as u32).to_be_bytes().into(),
                signer: nonce.map(|_| signer.into()),
            },
            Some((_, signer, _)) => Holder::Signer(signer.into()),
        };
        BundleParts {
            holder,
            txs: envelopes(count).into_iter().map(pooled).collect(),
            block: numbers[0],
            min_timestamp: numbers[1],
            max_timestamp: numbers[2].map(|max| max + 1_000),
            refund_percent: percent,
            uuid: key.map(|(uuid, ..)| uuid::Uuid::from_u128(uuid)),
            signer: key.map(|(_, signer, _)| signer.into()),
            replacement_nonce: key.and_then(|(.., nonce)| nonce),
            refund_recipient: others.next().flatten(),
            refund_identity: others.next().flatten(),
            reverting_tx_hashes: lists.next().unwrap_or_default(),
            dropping_tx_hashes: lists.next().unwrap_or_default(),
            refund_tx_hashes: refund_tx.into_iter().map(B256::new).collect(),
            delayed_refund,
            desired_state: is_at_bottom.then_some(DesiredState::BottomOfBlock),
            targets: targets.into_iter().map(target).collect(),
            first_seen: Some(time(first_seen)),
        }
    }
}

prop_compose! {
    fn head()(
        numbers in any::<(u64, u64, u64)>(),
        hashes in any::<[[u8; 32]; 3]>(),
        options in any::<[Option<u64>; 4]>(),
        mined in vec(any::<[u8; 32]>(), 0..5),
    ) -> HeadRecord {
        let [hash, parent, previous] = hashes.map(B256::new);
        let mut head = Head::new(numbers.0, hash, parent);
        (head.timestamp, head.gas_limit) = (numbers.1, numbers.2);
        head.next_base_fee_wei = options[0];
        head.base_fee_wei = options[1];
        head.blob_gas_used = options[2];
        head.excess_blob_gas = options[3];
        HeadRecord { head, previous, mined: mined.into_iter().map(B256::new).collect() }
    }
}

/// Decodes a message, and checks that it encodes to the same bytes again.
fn round_trip(encoded: &Encoded) -> Record {
    let decoded = decode(&encoded.id, &encoded.payload).expect("a record");
    assert_eq!(encode_again(&decoded), *encoded);
    decoded.record
}

fn order_round_trip(encoded: &Encoded) -> Order {
    let Record::Order(order) = round_trip(encoded) else { panic!("another kind") };
    Arc::unwrap_or_clone(order)
}

#[test]
fn transactions_of_every_type_keep_bytes_sender_and_time() {
    let terms = PrivateTerms { signer: Some(Address::repeat_byte(3)), max_block: 77 };
    let txs = envelopes(200).into_iter().chain([blob(false), blob(true)]);
    let all = [None, Some(terms), None, Some(PrivateTerms { signer: None, ..terms })];
    for (tx, terms) in txs.zip(all.into_iter().cycle()) {
        let sent = terms.map_or_else(|| pooled(tx.clone()), |terms| private(tx.clone(), terms));
        let Order::Tx(read) = order_round_trip(&encode_transaction(&sent, AGE)) else {
            panic!("another kind")
        };
        assert_eq!((read.recovered(), read.origin()), (sent.recovered(), sent.origin()));
        let terms = sent.private_terms();
        assert_eq!((read.first_seen(), read.private_terms()), (stored_at() - AGE, terms));
    }
}

#[test]
fn an_announced_transaction_costs_40_bytes_more_than_its_own() {
    use alloy_eips::eip2718::Encodable2718 as _;
    let tx = envelopes(1).remove(0);
    let encoded = encode_transaction(&pooled(tx.clone()), AGE);
    assert_eq!(encoded.payload.len(), tx.encode_2718_len() + 40);
    assert_eq!(encoded.id, *tx.tx_hash());
}

#[test]
fn cancellations_keep_their_fields_and_differ_in_their_ids() {
    let holder = Holder::Signer(SIGNER);
    let mut ids = std::collections::BTreeSet::new();
    for nonce in [None, Some(0), Some(u64::MAX)] {
        let sent = Cancellation { key: KEY, nonce, holder, sent_at: None };
        let encoded = encode(&Record::Cancellation(sent));
        assert!(matches!(round_trip(&encoded), Record::Cancellation(read) if read == sent));
        assert!(ids.insert(encoded.id));
    }
    let hash = B256::repeat_byte(9);
    let sent = PrivateCancellation { hash, signer: SIGNER, cancelled_at: time(7), holder };
    let read = round_trip(&encode(&Record::CancelPrivate(sent)));
    let expected = PrivateCancellation { cancelled_at: sent_at() - AGE, ..sent };
    assert!(matches!(read, Record::CancelPrivate(read) if read == expected));
}

#[test]
fn a_head_after_another_predecessor_has_another_message_id() {
    let head = Head::new(5, B256::repeat_byte(5), B256::repeat_byte(4));
    let id = |previous, mined| {
        let previous = B256::repeat_byte(previous);
        encode(&Record::Head(HeadRecord { head, previous, mined }.into())).id
    };
    assert_ne!(id(4, vec![]), id(6, vec![]));
    assert_eq!(
        id(4, vec![]),
        id(4, vec![B256::ZERO]),
        "machines with different pools publish the same message"
    );
}

#[test]
fn unknown_versions_kinds_ids_and_trailing_bytes_are_rejected() {
    let Encoded { id, payload } = encode_transaction(&pooled(envelopes(1).remove(0)), AGE);
    let changed = |index: usize, value| {
        let mut bytes = payload.to_vec();
        bytes[index] = value;
        decode(&id, &bytes)
    };
    assert!(matches!(changed(0, 1), Err(WireError::Value { field: "version", value: 1 })));
    assert!(matches!(changed(1, 99), Err(WireError::Value { field: "kind", value: 99 })));
    assert!(matches!(changed(2, 9), Err(WireError::Value { field: "origin", value: 9 })));
    assert!(matches!(decode(&B256::ZERO, &payload), Err(WireError::Id { .. })));
    let longer = vec![VERSION; MAX_MESSAGE_BYTES + 1];
    assert!(matches!(decode(&id, &longer), Err(WireError::Value { field: "length", .. })));
    let cancellation = Cancellation { key: KEY, nonce: None, holder: Holder::Host, sent_at: None };
    let Encoded { id, payload } = encode(&Record::Cancellation(cancellation));
    let longer = [&payload[..], &[0]].concat();
    assert!(matches!(decode(&id, &longer), Err(WireError::Value { value: 1, .. })));
}

/// Readers that do not know the fields about the place in the block can read bundles without them,
/// whose only encoding ends after the transactions.
#[test]
fn a_bundle_has_the_fields_about_its_place_only_if_one_is_set() {
    let tx = pooled(envelopes(1).remove(0));
    let plain = keyed_parts(&tx, 1, 4);
    let targets = vec![target(([4; 20], vec![[5; 32]]))];
    let placed = BundleParts { targets, ..plain.clone() };
    let [plain, placed] = [plain, placed].map(|parts| encode(&bundle(parts)));
    let decode_content = |payload: &[u8]| {
        // The message id covers everything behind age, time of sending and holder.
        let content = &payload[2 + 8 + 8 + 1..];
        decode(&hash_content(KIND_BUNDLE, content), payload)
    };
    assert!(decode_content(&plain.payload).is_ok() && decode_content(&placed.payload).is_ok());
    // One target with one slot: no state, length, address, length, slot.
    assert_eq!(placed.payload.len() - plain.payload.len(), 1 + 4 + 20 + 4 + 32);
    let empty = [&plain.payload[..], &[0; 5]].concat();
    assert!(matches!(
        decode_content(&empty),
        Err(WireError::Value { field: "number of targets", value: 0 })
    ));
    let unknown = [&plain.payload[..], &[1, 9], &[0; 4]].concat();
    assert!(matches!(
        decode_content(&unknown),
        Err(WireError::Value { field: "desired state", value: 9 })
    ));
    let count = MAX_TARGET_SLOTS + 1;
    let slots = [&1_u32.to_be_bytes()[..], &[4; 20], &(count as u32).to_be_bytes()].concat();
    let many = [&plain.payload[..], &[0], &slots, &vec![5; count * 32]].concat();
    assert!(matches!(decode_content(&many), Err(WireError::Bundle(BundleError::TooMany { .. }))));
}

/// It was clamped to the reader's clock, so builders with different clocks did not agree.
#[test]
fn the_time_of_a_message_is_its_sending_time_less_its_age() {
    for first_seen in [time(0), time(7), time(u64::MAX)] {
        let tx = envelopes(1).remove(0).try_into_recovered().expect("a sender");
        let tx = Transaction::new(tx, Origin::Rpc, first_seen);
        let (txs, first_seen) = (vec![tx.clone()], Some(first_seen));
        let parts =
            BundleParts { uuid: Some(KEY.uuid), signer: Some(SIGNER), ..Default::default() };
        let bundle = encode(&bundle(BundleParts { txs, first_seen, ..parts }));
        let tx = encode(&Record::Order(Arc::new(Order::Tx(tx))));
        let Order::Tx(tx) = order_round_trip(&tx) else { panic!("another kind") };
        let Order::Bundle(bundle) = order_round_trip(&bundle) else { panic!("another kind") };
        let expected = sent_at() - AGE;
        assert_eq!((tx.first_seen(), bundle.first_seen()), (expected, expected));
        assert_eq!(bundle.nonce(), None, "readers assign it by that time");
    }
}

#[test]
fn a_message_has_its_storing_time_if_its_sending_time_is_not_plausible() {
    let second = Duration::from_secs(1);
    let (sent_in_time, sent_long_ago) =
        (stored_at() - MAX_TRANSIT, stored_at() - MAX_TRANSIT - second);
    for (sent_before, expected) in [
        (None, stored_at()),
        (Some(sent_in_time), sent_in_time),
        (Some(sent_long_ago), stored_at()),
        (Some(stored_at() + second), stored_at()),
    ] {
        let publisher_time = PublisherTime { age: AGE, local_micros: 0, sent_before };
        assert_eq!(publisher_time.stream_time(stored_at()), expected - AGE);
    }
}

/// One message of each kind, small enough to damage every byte.
static EXAMPLES: LazyLock<Vec<Encoded>> = LazyLock::new(examples);

fn examples() -> Vec<Encoded> {
    let terms = PrivateTerms { signer: Some(Address::repeat_byte(3)), max_block: 77 };
    let txs = envelopes(4);
    let (hash, holder) = (*txs[0].tx_hash(), Holder::Host);
    let bundle = bundle(BundleParts {
        txs: txs[..2].iter().cloned().map(pooled).collect(),
        reverting_tx_hashes: vec![hash],
        first_seen: Some(time(1)),
        desired_state: Some(DesiredState::BottomOfBlock),
        targets: vec![target(([4; 20], vec![[5; 32]])), target(([6; 20], vec![]))],
        ..keyed_parts(&pooled(txs[0].clone()), 1, 4)
    });
    let head = Head::new(5, B256::repeat_byte(5), B256::repeat_byte(4));
    let assigned = Cancellation { key: KEY, nonce: Some(4), holder, sent_at: None };
    let records = [
        bundle,
        Record::Cancellation(Cancellation { key: KEY, nonce: Some(4), holder, sent_at: None }),
        Record::Cancellation(Cancellation { sent_at: Some(time(4)), ..assigned }),
        Record::CancelPrivate(PrivateCancellation {
            hash,
            signer: SIGNER,
            cancelled_at: time(1),
            holder,
        }),
        Record::Head(HeadRecord { head, previous: B256::ZERO, mined: vec![B256::ZERO] }.into()),
    ];
    let [public, private] = [pooled(txs[2].clone()), private(txs[3].clone(), terms)];
    let txs = [public, private].map(|tx| encode_transaction(&tx, AGE));
    txs.into_iter().chain(records.iter().map(encode)).collect()
}

proptest! {
    #[test]
    fn bundles_keep_every_field(parts in parts()) {
        let before = Bundle::new(parts).expect("a bundle");
        let sent = encode(&Record::Order(Arc::new(Order::Bundle(before.clone()))));
        let Order::Bundle(after) = order_round_trip(&sent) else { panic!("another kind") };
        // The id is a hash of all fields but times and senders.
        prop_assert_eq!(after.id(), before.id());
        prop_assert_eq!(after.first_seen(), sent_at() - AGE);
        prop_assert_eq!(after.parts().desired_state, before.parts().desired_state);
        prop_assert_eq!(&after.parts().targets, &before.parts().targets);
        for (after, before) in after.txs().iter().zip(before.txs()) {
            prop_assert_eq!(after.recovered(), before.recovered());
        }
    }

    #[test]
    fn heads_keep_every_field(sent in head()) {
        let read = round_trip(&encode(&Record::Head(sent.clone().into())));
        prop_assert!(matches!(read, Record::Head(read) if *read == sent));
    }

    /// A message that can be decoded has the id that it claims and encodes to the same bytes.
    #[test]
    fn a_damaged_message_is_rejected_or_decodes_consistently(
        (index, bytes) in (0..7_usize).prop_flat_map(|index| {
            let payload = EXAMPLES[index].payload.to_vec();
            (Just(index), damaged(vec![payload]))
        }),
    ) {
        let id = EXAMPLES[index].id;
        if let Ok(decoded) = decode(&id, &bytes) {
            prop_assert_eq!(encode_again(&decoded), Encoded { id, payload: bytes.into() });
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in vec(any::<u8>(), 0..300), kind in 0..9_u8) {
        let mut bytes = bytes;
        if bytes.len() > 1 {
            (bytes[0], bytes[1]) = (VERSION, kind);
        }
        let _ = decode(&B256::ZERO, &bytes);
    }
}
