use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use alloy_consensus::{
    SignableTransaction as _, TxEip4844, TxEip4844WithSidecar, transaction::SignerRecoverable as _,
};
use alloy_eips::{
    eip2718::Decodable2718 as _,
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::{BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant},
};
use alloy_primitives::Signature;
use chain_view::{Head, PooledTransaction};
use mock_node::workload::{Workload, WorkloadConfig};
use order_pool::{
    BundleParts, OrderPool, Origin, PoolConfig, PrivateTerms, ReplacementKey, Transaction,
};
use proptest::{collection::vec, option, prelude::*};
use testkit::corpus::damaged;

use super::*;

fn at(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// Signed transactions of every type without blobs, at most 200.
fn envelopes(count: usize) -> Vec<PooledTransaction> {
    static ALL: LazyLock<Vec<PooledTransaction>> = LazyLock::new(|| {
        let mut load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) });
        let raw = load.prepare(200).into_iter().map(|tx| tx.raw);
        raw.map(|raw| PooledTransaction::decode_2718_exact(&raw).expect("a transaction")).collect()
    });
    ALL[..count].to_vec()
}

/// A transaction with a blob of zeros: its commitment and its proofs are the point at infinity.
fn blob(with_cells: bool) -> PooledTransaction {
    let infinity = Bytes48::from_slice(&[&[0xc0][..], &[0; 47]].concat());
    let (blobs, commitments, proofs) = (vec![Blob::ZERO], vec![infinity], vec![infinity]);
    let sidecar = BlobTransactionSidecar { blobs, commitments, proofs };
    let hashes = sidecar.versioned_hashes().collect();
    let tx = TxEip4844 { chain_id: 1, blob_versioned_hashes: hashes, ..Default::default() };
    let sidecar: BlobTransactionSidecarVariant = if with_cells {
        let BlobTransactionSidecar { blobs, commitments, proofs } = sidecar;
        let cell_proofs = proofs.repeat(128);
        BlobTransactionSidecarEip7594 { blobs, commitments, cell_proofs }.into()
    } else {
        sidecar.into()
    };
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar);
    PooledTransaction::Eip4844(tx.into_signed(Signature::test_signature()))
}

fn record(tx: PooledTransaction, private: Option<PrivateTerms>) -> TxRecord {
    let sender = tx.recover_signer().expect("a sender");
    let origin = if private.is_some() { Origin::Private } else { Origin::Mempool };
    TxRecord { tx, sender, origin, first_seen: at(1_234_567_890_123_456_789), private }
}

fn pooled(tx: PooledTransaction) -> Transaction {
    let now = at(5);
    record(tx, None).resolve(now)
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
        (delayed_refund, first_seen) in any::<(bool, u64)>(),
    ) -> BundleParts {
        let mut lists = lists.into_iter().map(|list| list.into_iter().map(B256::new).collect());
        let mut others = others.into_iter().map(|other| other.map(Address::new));
        BundleParts {
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
            first_seen: Some(at(first_seen)),
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

/// Decodes to a record that encodes to the same message.
fn round_trip(encoded: &Encoded) -> Record {
    let record = Record::decode(&encoded.id, &encoded.payload).expect("a record");
    assert_eq!(record.encode(), *encoded);
    record
}

#[test]
fn transactions_of_every_type_keep_bytes_sender_and_times() {
    let terms = PrivateTerms { signer: Some(Address::repeat_byte(3)), max_block: 77 };
    let txs = envelopes(200).into_iter().chain([blob(false), blob(true)]);
    for (tx, private) in txs.zip(
        [None, Some(terms), None, Some(PrivateTerms { signer: None, ..terms })].into_iter().cycle(),
    ) {
        let sent = record(tx, private);
        let Record::Tx(read) = round_trip(&sent.encode()) else { panic!("another kind") };
        assert_eq!((&read.tx, read.sender, read.origin), (&sent.tx, sent.sender, sent.origin));
        assert_eq!((read.first_seen, read.private), (sent.first_seen, sent.private));
    }
}

#[test]
fn a_transaction_costs_31_bytes_more_than_its_own() {
    use alloy_eips::eip2718::Encodable2718 as _;
    let tx = envelopes(1).remove(0);
    let encoded = record(tx.clone(), None).encode();
    assert_eq!(encoded.payload.len(), tx.encode_2718_len() + 31);
    assert_eq!(encoded.id, *tx.tx_hash());
}

#[test]
fn cancellations_keep_their_fields_and_differ_in_their_ids() {
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(5), signer: Address::repeat_byte(1) };
    let mut ids = std::collections::BTreeSet::new();
    for nonce in [None, Some(0), Some(u64::MAX)] {
        let sent = Cancellation { key, nonce };
        let encoded = Record::Cancellation(sent).encode();
        assert!(matches!(round_trip(&encoded), Record::Cancellation(read) if read == sent));
        assert!(ids.insert(encoded.id));
    }
    let (sent, by) = (B256::repeat_byte(9), Address::repeat_byte(1));
    let encoded = Record::CancelPrivate { hash: sent, signer: by }.encode();
    let read = round_trip(&encoded);
    assert!(matches!(read, Record::CancelPrivate { hash, signer } if (hash, signer) == (sent, by)));
}

#[test]
fn a_reorg_back_to_an_earlier_block_is_a_message_of_its_own() {
    let head = Head::new(5, B256::repeat_byte(5), B256::repeat_byte(4));
    let record = |previous| HeadRecord { head, previous, mined: Vec::new() };
    let (first, again) =
        (record(B256::repeat_byte(4)).encode(), record(B256::repeat_byte(6)).encode());
    assert_ne!(first.id, again.id);
    let mined = HeadRecord { mined: vec![B256::ZERO], ..record(B256::repeat_byte(4)) }.encode();
    assert_eq!(first.id, mined.id, "two machines whose pools differ publish one head");
}

#[test]
fn another_version_another_kind_another_id_and_other_bytes_are_refused() {
    let tx = envelopes(1).remove(0);
    let Encoded { id, payload } = record(tx, None).encode();
    let changed = |index: usize, value| {
        let mut bytes = payload.to_vec();
        bytes[index] = value;
        Record::decode(&id, &bytes)
    };
    assert!(matches!(changed(0, 2), Err(WireError::Version { found: 2 })));
    assert!(matches!(changed(1, 99), Err(WireError::Kind { found: 99 })));
    assert!(matches!(changed(2, 9), Err(WireError::Value { field: "origin", value: 9 })));
    assert!(matches!(Record::decode(&B256::ZERO, &payload), Err(WireError::Id { .. })));
    let longer = vec![VERSION; MAX_MESSAGE_BYTES + 1];
    assert!(matches!(
        Record::decode(&id, &longer),
        Err(WireError::TooLong { field: "message", .. })
    ));
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(5), signer: Address::ZERO };
    let Encoded { id, payload } = Record::Cancellation(Cancellation { key, nonce: None }).encode();
    let longer = [&payload[..], &[0]].concat();
    assert!(matches!(Record::decode(&id, &longer), Err(WireError::Trailing { left: 1 })));
}

#[test]
fn a_first_seen_time_of_a_clock_that_is_ahead_becomes_now() {
    let sent = record(envelopes(1).remove(0), None);
    assert_eq!(sent.clone().resolve(at(u64::MAX)).first_seen(), sent.first_seen);
    assert_eq!(sent.resolve(at(7)).first_seen(), at(7));
}

#[test]
fn a_pooled_bundle_has_the_same_fields_in_the_pool_that_it_reaches() {
    let pool = || OrderPool::new(PoolConfig::default()).expect("a pool");
    let (first, second) = (pool(), pool());
    let parts = BundleParts {
        txs: envelopes(2).into_iter().map(pooled).collect(),
        block: Some(9),
        uuid: Some(uuid::Uuid::from_u128(1)),
        signer: Some(Address::repeat_byte(2)),
        ..Default::default()
    };
    first.insert_bundle(order_pool::Bundle::new(parts).expect("a bundle"));
    let in_pool = |pool: &OrderPool| {
        let order = pool.subscribe_all().find_map_order();
        order.as_bundle().expect("a bundle").clone()
    };
    let sent = BundleRecord::of(&in_pool(&first));
    let Record::Bundle(read) = round_trip(&sent.encode()) else { panic!("another kind") };
    second.insert_bundle(read.resolve(at(9)).expect("a bundle"));
    assert_eq!(BundleRecord::of(&in_pool(&second)).encode().id, sent.encode().id);
    assert_eq!(in_pool(&second).nonce(), in_pool(&first).nonce());
}

/// The first order of a replay.
trait FindOrder {
    fn find_map_order(self) -> std::sync::Arc<order_pool::Order>;
}

impl FindOrder for order_pool::Subscription {
    fn find_map_order(mut self) -> std::sync::Arc<order_pool::Order> {
        std::iter::from_fn(|| self.try_next())
            .find_map(|event| match event {
                Ok(order_pool::Event::Added(order)) => Some(order),
                _ => None,
            })
            .expect("an order")
    }
}

/// One message of each kind, small enough to be damaged everywhere.
static EXAMPLES: LazyLock<Vec<Encoded>> = LazyLock::new(examples);

fn examples() -> Vec<Encoded> {
    let terms = PrivateTerms { signer: Some(Address::repeat_byte(3)), max_block: 77 };
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(5), signer: Address::repeat_byte(1) };
    let txs = envelopes(4);
    let parts = BundleParts {
        txs: txs[..2].iter().cloned().map(pooled).collect(),
        block: Some(1),
        uuid: Some(key.uuid),
        signer: Some(key.signer),
        reverting_tx_hashes: vec![*txs[0].tx_hash()],
        first_seen: Some(at(1)),
        ..Default::default()
    };
    let head = Head::new(5, B256::repeat_byte(5), B256::repeat_byte(4));
    vec![
        record(txs[2].clone(), None).encode(),
        record(txs[3].clone(), Some(terms)).encode(),
        BundleRecord { parts }.encode(),
        Record::Cancellation(Cancellation { key, nonce: Some(4) }).encode(),
        Record::CancelPrivate { hash: B256::ZERO, signer: key.signer }.encode(),
        HeadRecord { head, previous: B256::ZERO, mined: vec![B256::ZERO] }.encode(),
    ]
}

proptest! {
    #[test]
    fn bundles_keep_every_field(parts in parts()) {
        let sent = BundleRecord { parts };
        let Record::Bundle(read) = round_trip(&sent.encode()) else { panic!("another kind") };
        let before = order_pool::Bundle::new(sent.parts).expect("a bundle");
        let after = order_pool::Bundle::new(read.parts).expect("a bundle");
        // The id is a hash of all fields but the times and the senders.
        prop_assert_eq!(after.id(), before.id());
        prop_assert_eq!(after.first_seen(), before.first_seen());
        for (after, before) in after.txs().iter().zip(before.txs()) {
            prop_assert_eq!(after.recovered(), before.recovered());
        }
    }

    #[test]
    fn heads_keep_every_field(sent in head()) {
        let read = round_trip(&sent.encode());
        prop_assert!(matches!(read, Record::Head(read) if read == sent));
    }

    /// What decodes has the id that it claims and encodes to the bytes that were read.
    #[test]
    fn damaged_messages_are_refused_or_are_what_they_say(
        (index, bytes) in (0..6_usize).prop_flat_map(|index| {
            let payload = EXAMPLES[index].payload.to_vec();
            (Just(index), damaged(vec![payload]))
        }),
    ) {
        let id = EXAMPLES[index].id;
        if let Ok(record) = Record::decode(&id, &bytes) {
            prop_assert_eq!(record.encode(), Encoded { id, payload: bytes.into() });
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in vec(any::<u8>(), 0..300), kind in 0..9_u8) {
        let mut bytes = bytes;
        if bytes.len() > 1 {
            (bytes[0], bytes[1]) = (VERSION, kind);
        }
        let _ = Record::decode(&B256::ZERO, &bytes);
    }
}
