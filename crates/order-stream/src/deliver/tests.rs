use std::time::Duration;

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::Address;
use async_nats::HeaderMap;
use chain_view::{Head, PooledTransaction};
use mock_node::workload::{Workload, WorkloadConfig};
use order_pool::{
    Bundle, BundleParts, Cancellation, Origin, PoolConfig, PrivateTerms, ReplacementKey,
    Transaction,
};

use super::*;
use crate::wire::{BundleRecord, Encoded, HeadRecord, TxRecord};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn records(chain_id: u64) -> Vec<TxRecord> {
    let mut load =
        Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, chain_id) });
    let record = |raw: &[u8]| {
        let tx = PooledTransaction::decode_2718_exact(raw).expect("a transaction");
        let sender = tx.recover_signer().expect("a sender");
        let origin = Origin::Mempool;
        TxRecord { tx, sender, origin, first_seen: at(100), private: None }
    };
    load.prepare(6).iter().map(|tx| record(&tx.raw)).collect()
}

fn deliverer(flow: Flow) -> Deliverer {
    Deliverer {
        pool: OrderPool::new(PoolConfig::default()).expect("a pool"),
        flow,
        chain_id: 1,
        heads: true,
        counters: Arc::new(SourceCounters::of(flow)),
    }
}

fn message(machine: &str, Encoded { id, payload }: Encoded) -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", alloy_primitives::hex::encode(id));
    let subject = format!("mempool.1.tx.{machine}").into();
    let length = payload.len();
    let headers = Some(headers);
    Message { subject, reply: None, payload, headers, status: None, description: None, length }
}

/// The counts: pooled, known, refused, malformed. They make up what was received.
fn counts(deliverer: &Deliverer) -> [u64; 4] {
    let stats = deliverer.counters.stats();
    let counts = [stats.pooled, stats.known, stats.refused, stats.malformed];
    assert_eq!(stats.received, counts.iter().sum::<u64>());
    counts
}

#[test]
fn a_transaction_is_pooled_once_whoever_publishes_it() {
    let deliverer = deliverer(Flow::Public);
    let record = records(1).remove(0);
    for machine in ["a", "b"] {
        deliverer.message(&message(machine, record.encode()), at(101));
    }
    assert_eq!(counts(&deliverer), [1, 1, 0, 0]);
    let order = deliverer.pool.get(record.tx.tx_hash()).expect("an order");
    let tx = order.as_tx().expect("a transaction");
    assert_eq!(
        (tx.first_seen(), tx.origin(), tx.sender()),
        (at(100), Origin::Mempool, record.sender)
    );
}

#[test]
fn what_is_damaged_or_without_its_id_is_malformed() {
    let deliverer = deliverer(Flow::Public);
    let records = records(1);
    let other = Encoded { id: *records[1].tx.tx_hash(), ..records[0].encode() };
    deliverer.message(&message("a", other), at(101));
    let mut without = message("a", records[0].encode());
    without.headers = None;
    deliverer.message(&without, at(101));
    let mut cut = records[0].encode();
    cut.payload.truncate(40);
    deliverer.message(&message("a", cut), at(101));
    assert_eq!(counts(&deliverer), [0, 0, 0, 3]);
}

#[test]
fn the_public_stream_brings_no_private_order_and_no_other_chain() {
    let record = records(1).remove(0);
    let terms = PrivateTerms { signer: None, max_block: 9 };
    let private = TxRecord { private: Some(terms), origin: Origin::Private, ..record.clone() };
    let cancellation = Cancellation {
        key: ReplacementKey { uuid: uuid::Uuid::nil(), signer: Address::ZERO },
        nonce: None,
    };
    let cancellation = Record::Cancellation(cancellation);
    let public = deliverer(Flow::Public);
    let others = [private.encode(), cancellation.encode(), records(5).remove(0).encode()];
    for other in others {
        public.message(&message("a", other), at(101));
    }
    assert_eq!(counts(&public), [0, 0, 3, 0]);
}

#[test]
fn bundles_cancellations_and_private_transactions_reach_the_pool() {
    let deliverer = deliverer(Flow::Private);
    let records = records(1);
    let signer = Address::repeat_byte(1);
    let tx = |record: &TxRecord| record.clone().resolve(at(101));
    let parts = BundleParts {
        txs: vec![tx(&records[0])],
        block: Some(5),
        uuid: Some(uuid::Uuid::from_u128(7)),
        replacement_nonce: Some(1),
        signer: Some(signer),
        ..BundleParts::default()
    };
    let bundle = Bundle::new(parts.clone()).expect("a bundle");
    let terms = PrivateTerms { signer: Some(signer), max_block: 9 };
    let private = Transaction::private(tx(&records[1]).recovered().clone(), terms, at(100));
    let hash = *private.hash();
    deliverer.message(&message("a", BundleRecord { parts }.encode()), at(101));
    deliverer.message(&message("a", TxRecord::of(&private).encode()), at(101));
    let stats = deliverer.pool.stats();
    assert_eq!((stats.bundles, stats.external_txs), (1, 1));
    let key = bundle.key().expect("a key");
    let cancel = Record::Cancellation(Cancellation { key, nonce: Some(2) });
    deliverer.message(&message("a", cancel.encode()), at(101));
    deliverer.message(&message("a", Record::CancelPrivate { hash, signer }.encode()), at(101));
    let stats = deliverer.pool.stats();
    assert_eq!((stats.bundles, stats.external_txs), (0, 0));
    assert_eq!(counts(&deliverer), [4, 0, 0, 0]);
}

#[test]
fn heads_are_applied_only_if_configured() {
    let record = records(1).remove(0);
    let head = Head::new(5, B256::repeat_byte(5), B256::repeat_byte(4));
    let mined = vec![*record.tx.tx_hash()];
    let head = HeadRecord { head, previous: B256::ZERO, mined };
    for heads in [true, false] {
        let deliverer = Deliverer { heads, ..deliverer(Flow::Public) };
        for message in [record.encode(), head.encode(), head.encode()].map(|it| message("a", it)) {
            deliverer.message(&message, at(101));
        }
        assert_eq!(deliverer.pool.head().is_some(), heads);
        assert_eq!(deliverer.pool.contains(record.tx.tx_hash()), !heads);
        assert_eq!(counts(&deliverer), if heads { [2, 1, 0, 0] } else { [1, 0, 2, 0] });
    }
}
