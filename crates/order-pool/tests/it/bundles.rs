//! Bundles: the table of replacement and cancellation, retention by block, and bad input.

use std::time::{Duration, SystemTime};

use alloy_primitives::{Address, B256};
use order_pool::{
    Bundle, BundleError, BundleParts, CancelOutcome, Clock, InsertOutcome, OrderPool, PoolConfig,
    RawBundle, RawCancelBundle, RejectReason, ReplacementKey,
};
use uuid::Uuid;

use crate::common::{address, hash, head, journal, nth};

const SEARCHER: u64 = 1;
const OTHER: u64 = 2;

fn key(signer: u64) -> ReplacementKey {
    ReplacementKey { uuid: Uuid::from_u128(7), signer: address(signer) }
}

fn pool() -> (OrderPool, Clock) {
    pool_with(PoolConfig::default())
}

fn pool_with(config: PoolConfig) -> (OrderPool, Clock) {
    let clock = Clock::manual();
    let config = config.with_dedupe_window(1 << 10);
    (OrderPool::with_clock(config, clock.clone()).expect("a valid configuration"), clock)
}

/// A bundle of the key with this nonce; `n` tells its content.
fn keyed(n: u64, signer: u64, nonce: Option<u64>) -> Bundle {
    Bundle::new(BundleParts {
        txs: vec![nth(n)],
        uuid: Some(Uuid::from_u128(7)),
        signer: Some(address(signer)),
        replacement_nonce: nonce,
        first_seen: Some(SystemTime::UNIX_EPOCH),
        ..Default::default()
    })
    .expect("a valid bundle")
}

fn plain(n: u64, block: Option<u64>) -> Bundle {
    Bundle::new(BundleParts { txs: vec![nth(n)], block, ..Default::default() })
        .expect("a valid bundle")
}

#[derive(Clone, Copy, Debug)]
enum Message {
    /// A bundle with this nonce.
    Bundle(u64),
    /// A bundle that leaves its nonce to the order of arrival.
    Next,
    /// A cancellation up to this nonce.
    Cancel(u64),
    /// `eth_cancelBundle` without a nonce.
    Final,
    /// An empty bundle with this nonce.
    Empty(u64),
    /// Another signer's cancellation permanently of the same uuid.
    OtherFinal,
    /// Another signer's bundle of the same uuid.
    OtherBundle(u64),
    /// The retention of cancellations passes.
    Forget,
}
use Message::{Bundle as B, Cancel as C, Empty as E, Final, Forget, Next, OtherBundle, OtherFinal};

/// What happened, as a word.
fn send(pool: &OrderPool, clock: &Clock, step: usize, message: Message) -> &'static str {
    let n = step as u64;
    let inserted = match message {
        B(nonce) => pool.insert_bundle(keyed(n, SEARCHER, Some(nonce))),
        Next => pool.insert_bundle(keyed(n, SEARCHER, None)),
        OtherBundle(nonce) => pool.insert_bundle(keyed(n, OTHER, Some(nonce))),
        E(nonce) => {
            let parts = keyed(n, SEARCHER, Some(nonce)).parts().clone();
            let parts = BundleParts { txs: Vec::new(), ..parts };
            pool.insert_bundle(Bundle::new(parts).expect("a cancellation"))
        }
        C(_) | Final | OtherFinal => {
            let cancelled = match message {
                C(nonce) => pool.cancel_bundle(key(SEARCHER), Some(nonce)),
                Final => pool.cancel_bundle(key(SEARCHER), None),
                _ => pool.cancel_bundle(key(OTHER), None),
            };
            return match cancelled {
                CancelOutcome::Cancelled { removed: Some(_) } => "cancelled",
                CancelOutcome::Cancelled { removed: None } => "tombstone",
                CancelOutcome::Superseded { .. } => "superseded",
                CancelOutcome::CancelledPermanently => "permanently",
                _ => "?",
            };
        }
        Forget => {
            clock.advance(Duration::from_secs(60));
            while pool.upkeep() {}
            return "forgotten";
        }
    };
    match inserted {
        InsertOutcome::Added => "added",
        InsertOutcome::Replaced { .. } => "replaced",
        InsertOutcome::Cancelled => "cancelled",
        InsertOutcome::Superseded { .. } => "superseded",
        InsertOutcome::CancelledPermanently => "permanently",
        InsertOutcome::Known => "known",
        _ => "?",
    }
}

/// The table: messages in the order of arrival, what is answered to each, which message's bundle of
/// the searcher is in the pool afterwards, and what a subscriber saw (`+` added, `-` removed, `x`
/// cancelled, `f` forgotten).
#[test]
fn every_row_of_the_table_of_replacement_and_cancellation_holds() {
    type Row = (&'static [Message], &'static [&'static str], Option<usize>, &'static str);
    let rows: &[Row] = &[
        (&[B(1)], &["added"], Some(0), "+"),
        // A strictly greater nonce wins; a gap is no matter.
        (&[B(1), B(2)], &["added", "replaced"], Some(1), "+-+"),
        (&[B(1), B(9)], &["added", "replaced"], Some(1), "+-+"),
        // Equal or lower is ignored, whatever its content.
        (&[B(1), B(1)], &["added", "superseded"], Some(0), "+"),
        (&[B(5), B(4)], &["added", "superseded"], Some(0), "+"),
        (&[B(5), B(4), B(6)], &["added", "superseded", "replaced"], Some(2), "+-+"),
        // Without a nonce the order of arrival counts.
        (&[Next, Next], &["added", "replaced"], Some(1), "+-+"),
        (&[B(5), Next, B(6)], &["added", "replaced", "superseded"], Some(1), "+-+"),
        // A cancellation is a message like any other.
        (&[B(1), C(2)], &["added", "cancelled"], None, "+-x"),
        (&[B(1), C(1)], &["added", "superseded"], Some(0), "+"),
        (&[B(2), C(1)], &["added", "superseded"], Some(0), "+"),
        // One that overtakes its bundle is kept.
        (&[C(2), B(1)], &["tombstone", "superseded"], None, "x"),
        (&[C(2), B(2)], &["tombstone", "superseded"], None, "x"),
        (&[C(1), C(2)], &["tombstone", "tombstone"], None, "xx"),
        (&[C(2), C(1)], &["tombstone", "superseded"], None, "x"),
        // A higher nonce revives the key.
        (&[C(2), B(3)], &["tombstone", "added"], Some(1), "x+"),
        (&[B(1), C(2), B(3)], &["added", "cancelled", "added"], Some(2), "+-x+"),
        (&[C(2), Next], &["tombstone", "added"], Some(1), "x+"),
        (
            &[B(1), C(4), B(3), B(5)],
            &["added", "cancelled", "superseded", "added"],
            Some(3),
            "+-x+",
        ),
        // An empty bundle with a uuid is a cancellation.
        (&[B(1), E(2)], &["added", "cancelled"], None, "+-x"),
        (&[B(1), E(1)], &["added", "superseded"], Some(0), "+"),
        (&[E(2), B(3)], &["cancelled", "added"], Some(1), "x+"),
        // Without a nonce a cancellation is final.
        (&[B(1), Final], &["added", "cancelled"], None, "+-x"),
        (&[B(1), Final, B(9)], &["added", "cancelled", "permanently"], None, "+-x"),
        (&[Final, B(9)], &["tombstone", "permanently"], None, "x"),
        (&[Final, Next], &["tombstone", "permanently"], None, "x"),
        (&[Final, C(9)], &["tombstone", "permanently"], None, "x"),
        (&[Final, Final], &["tombstone", "permanently"], None, "x"),
        (&[C(3), Final], &["tombstone", "tombstone"], None, "xx"),
        // Other signers have keys of their own.
        (&[B(1), OtherFinal], &["added", "tombstone"], Some(0), "+x"),
        (&[B(1), OtherBundle(9), B(2)], &["added", "added", "replaced"], Some(2), "++-+"),
        (&[OtherFinal, B(1)], &["tombstone", "added"], Some(1), "x+"),
        // A tombstone is forgotten after its retention; a live bundle's nonce is not.
        (&[C(2), Forget, B(1)], &["tombstone", "forgotten", "added"], Some(2), "xf+"),
        (&[Final, Forget, B(1)], &["tombstone", "forgotten", "added"], Some(2), "xf+"),
        (&[B(5), Forget, B(4)], &["added", "forgotten", "superseded"], Some(0), "+"),
    ];
    for (messages, answers, pooled, events) in rows {
        let (pool, clock) = pool();
        let mut subscription = pool.subscribe(1);
        let sent: Vec<_> =
            messages.iter().enumerate().map(|(n, m)| send(&pool, &clock, n, *m)).collect();
        assert_eq!(&sent, answers, "{messages:?}");
        let mut late = pool.subscribe(1);
        let seen: String = journal(&mut subscription).iter().map(|event| word(event)).collect();
        assert_eq!(&seen, events, "{messages:?}");
        let theirs = usize::from(messages.iter().any(|m| matches!(m, OtherBundle(_))));
        assert_eq!(pool.len(), usize::from(pooled.is_some()) + theirs, "{messages:?}");
        let replay = journal(&mut late);
        if let Some(n) = pooled {
            let tx = *nth(*n as u64).hash();
            let bundle_hash = alloy_primitives::keccak256(tx);
            let held = replay.iter().any(|event| {
                let id = event.strip_prefix("+bundle ").and_then(|id| id.parse::<B256>().ok());
                id.and_then(|id| pool.get(&id))
                    .is_some_and(|order| order.as_bundle().map(Bundle::hash) == Some(&bundle_hash))
            });
            assert!(held, "{messages:?} must leave the bundle of message {n}");
        }
        // Who comes late is shown the tombstones that still count, and those only.
        let tombstones = replay.iter().filter(|event| word(event) == 'x').count();
        let counts = match events.rfind(['x', 'f']) {
            Some(at) if events.as_bytes()[at] == b'x' => {
                usize::from(!events[at..].contains('+') || messages.contains_other())
            }
            _ => 0,
        };
        assert_eq!(tombstones, counts, "{messages:?}: {replay:?}");
    }
}

trait ContainsOther {
    fn contains_other(&self) -> bool;
}

impl ContainsOther for [Message] {
    fn contains_other(&self) -> bool {
        self.iter().any(|message| matches!(message, OtherFinal))
    }
}

fn word(event: &str) -> char {
    match event {
        event if event.starts_with("CancellationForgotten") => 'f',
        event if event.starts_with("Cancelled") => 'x',
        event => event.chars().next().unwrap_or('?'),
    }
}

#[test]
fn the_same_bundle_again_is_known_also_when_the_key_has_no_nonces() {
    let (pool, _) = pool();
    for bundle in [plain(1, None), keyed(2, SEARCHER, Some(3)), keyed(3, OTHER, None)] {
        assert_eq!(pool.insert_bundle(bundle.clone()), InsertOutcome::Added);
        assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Known);
    }
    assert_eq!((pool.len(), pool.stats().known), (3, 3));
}

#[test]
fn the_same_transactions_for_another_block_are_another_bundle_of_the_same_hash() {
    let (pool, _) = pool();
    pool.on_head(head(10, 0, 0, &[]));
    let (a, b) = (plain(1, Some(11)), plain(1, Some(12)));
    assert_eq!(a.hash(), b.hash());
    assert_eq!(pool.insert_bundle(a), InsertOutcome::Added);
    assert_eq!(pool.insert_bundle(b), InsertOutcome::Added);
    assert_eq!(pool.insert_bundle(plain(1, None)), InsertOutcome::Added, "its hash has no block");
}

#[test]
fn a_bundle_is_shown_to_subscribers_of_its_block_only_and_leaves_when_that_is_built() {
    let (pool, _) = pool();
    pool.on_head(head(10, 0, 0, &[]));
    pool.insert_bundle(plain(1, Some(11)));
    let mut eleven = pool.subscribe(11);
    let mut twelve = pool.subscribe(12);
    let mut all = pool.subscribe_all();
    pool.insert_bundle(plain(2, Some(12)));
    pool.insert_bundle(plain(3, None));
    pool.on_head(head(11, 0, 0, &[]));
    let counts = [&mut eleven, &mut twelve, &mut all].map(|reader| journal(reader).len());
    assert_eq!(counts, [4, 1, 5], "two of block 11 come and go, one of block 12 comes");
    assert_eq!((pool.len(), pool.stats().block_passed), (1, 2));
}

#[test]
fn a_bundle_for_the_next_block_waits_for_the_first_head_if_there_is_none() {
    let (pool, _) = pool();
    pool.insert_bundle(plain(1, None));
    assert_eq!(journal(&mut pool.subscribe(5)).len(), 1);
    pool.on_head(head(5, 0, 0, &[]));
    assert!(pool.is_empty());
}

#[test]
fn a_late_message_of_a_bundle_whose_block_has_passed_does_not_count() {
    let (pool, _) = pool();
    pool.on_head(head(10, 0, 0, &[]));
    pool.insert_bundle(keyed(1, SEARCHER, Some(5)));
    pool.on_head(head(11, 0, 0, &[]));
    let late = pool.insert_bundle(keyed(2, SEARCHER, Some(4)));
    assert_eq!(late, InsertOutcome::Superseded { nonce: 4, current: 5 });
}

#[test]
fn cancellations_have_a_bound_and_the_longest_waiting_goes_first() {
    let (pool, clock) = pool_with(PoolConfig::default().with_max_cancellations(8));
    let nth_key = |n| ReplacementKey { uuid: Uuid::from_u128(n), signer: address(1) };
    for n in 0..100 {
        clock.advance(Duration::from_millis(1));
        pool.cancel_bundle(nth_key(n), None);
    }
    assert_eq!((pool.stats().keys, pool.stats().keys_forgotten), (8, 92));
    assert_eq!(pool.cancel_bundle(nth_key(99), None), CancelOutcome::CancelledPermanently);
    assert_eq!(journal(&mut pool.subscribe(1)).len(), 8);
}

/// Whatever is refused changes nothing.
fn refused(config: PoolConfig, bundle: Bundle) -> RejectReason {
    let (pool, _) = pool_with(config);
    pool.on_head(head(10, 0, 0, &[]));
    pool.insert_bundle(plain(1_000, None));
    let before = (pool.len(), pool.bytes(), journal(&mut pool.subscribe_all()));
    let outcome = pool.insert_bundle(bundle);
    let after = (pool.len(), pool.bytes(), journal(&mut pool.subscribe_all()));
    assert_eq!(before, after);
    match outcome {
        InsertOutcome::Rejected(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_in_the_past_is_refused_with_the_lowest_that_is_not() {
    let reason = refused(PoolConfig::default(), plain(1, Some(10)));
    assert_eq!(reason, RejectReason::BlockPassed { value: 10, limit: 11 });
    assert_eq!(reason.to_string(), "blockNumber is 10, the lowest that is not built yet is 11");
}

#[test]
fn a_block_too_far_ahead_is_refused_with_the_highest_that_is_not() {
    let reason = refused(PoolConfig::default().with_max_blocks_ahead(5), plain(1, Some(16)));
    assert_eq!(reason, RejectReason::BlockTooFar { value: 16, limit: 15 });
}

#[test]
fn more_transactions_than_the_limit_are_refused_with_both_numbers() {
    let parts = BundleParts { txs: (0..4).map(nth).collect(), ..Default::default() };
    let bundle = Bundle::new(parts).expect("a valid bundle");
    let reason = refused(PoolConfig::default().with_max_txs_per_bundle(3), bundle);
    assert_eq!(reason, RejectReason::TooMany { field: "txs", value: 4, limit: 3 });
}

#[test]
fn a_bundle_above_the_cap_is_refused_and_no_other_goes_for_it_but_its_own_predecessor() {
    let reason = refused(PoolConfig::default().with_max_bundles(1), plain(1, None));
    assert!(matches!(reason, RejectReason::BundlesFull { count: 1, limit: 1, .. }), "{reason}");
    let (pool, _) = pool_with(PoolConfig::default().with_max_bundles(1));
    pool.insert_bundle(keyed(1, SEARCHER, Some(1)));
    let replaced = pool.insert_bundle(keyed(2, SEARCHER, Some(2)));
    assert!(matches!(replaced, InsertOutcome::Replaced { .. }), "{replaced:?}");
}

/// What is wrong with parameters as they come in.
fn wrong(json: &str) -> String {
    let signer = Some(address(SEARCHER));
    match serde_json::from_str::<RawBundle>(json) {
        Err(error) => error.to_string(),
        Ok(raw) => match raw.resolve(signer, 2, SystemTime::UNIX_EPOCH) {
            Err(error) => error.to_string(),
            Ok(bundle) => panic!("taken: {bundle:?}"),
        },
    }
}

const UUID: &str = r#""replacementUuid": "00000000-0000-0000-0000-000000000007""#;

#[test]
fn an_empty_bundle_without_a_uuid_is_refused() {
    assert!(wrong(r#"{"txs": []}"#).starts_with("txs is empty: at least 1"));
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    assert!(wrong(r#"{"txs": [], "blokNumber": "0x1"}"#).contains("`blokNumber`"));
}

#[test]
fn a_nonce_without_a_uuid_is_refused() {
    let raw = alloy_raw();
    let error = wrong(&format!(r#"{{"txs": ["{raw}"], "replacementNonce": 3}}"#));
    assert_eq!(error, "replacementNonce is 3 but there is no replacementUuid");
}

#[test]
fn a_uuid_without_a_signer_is_refused() {
    let raw: RawBundle = serde_json::from_str(&format!("{{{UUID}}}")).expect("it parses");
    let error = raw.resolve(None, 2, SystemTime::UNIX_EPOCH).expect_err("nobody signed it");
    assert!(matches!(error, BundleError::UuidWithoutSigner { .. }));
}

#[test]
fn a_refund_percent_over_100_is_refused_even_beyond_a_byte() {
    for percent in [101, 300] {
        let error = wrong(&format!(r#"{{{UUID}, "refundPercent": {percent}}}"#));
        assert_eq!(error, format!("refundPercent is {percent}, the most is 100"));
    }
}

#[test]
fn two_refund_hashes_are_refused() {
    let (a, b) = (hash(1), hash(2));
    let error = wrong(&format!(r#"{{{UUID}, "refundTxHashes": ["{a}", "{b}"]}}"#));
    assert_eq!(error, "refundTxHashes has 2 entries, the most is 1");
}

#[test]
fn reversed_timestamps_are_refused_and_zero_is_unset() {
    let error = wrong(&format!(r#"{{{UUID}, "minTimestamp": 9, "maxTimestamp": "0x8"}}"#));
    assert_eq!(error, "minTimestamp is 9, above maxTimestamp 8");
    let raw: RawBundle =
        serde_json::from_str(&format!(r#"{{{UUID}, "minTimestamp": 9, "maxTimestamp": 0}}"#))
            .expect("it parses");
    let bundle = raw.resolve(Some(Address::ZERO), 2, SystemTime::UNIX_EPOCH);
    assert_eq!(bundle.expect("valid").parts().max_timestamp, None);
}

#[test]
fn lists_above_the_limit_are_refused_before_anything_is_decoded() {
    let error = wrong(r#"{"txs": ["0x00", "0x00", "0x00"]}"#);
    assert_eq!(error, "txs has 3 entries, the most is 2");
    let hashes = vec![format!("\"{}\"", hash(1)); 3].join(",");
    let error = wrong(&format!(r#"{{{UUID}, "droppingTxHashes": [{hashes}]}}"#));
    assert_eq!(error, "droppingTxHashes has 3 entries, the most is 2");
}

#[test]
fn a_transaction_that_does_not_decode_is_refused_by_its_place() {
    let raw = alloy_raw();
    assert!(
        wrong(&format!(r#"{{"txs": ["{raw}", "0x02ff"]}}"#)).starts_with("txs[1] does not decode")
    );
}

/// A signed transaction as a searcher sends it: nonce 0, chain 1, from a well-known key.
fn alloy_raw() -> String {
    use alloy_consensus::{EthereumTxEnvelope, SignableTransaction, TxEip1559};
    use alloy_eips::eip2718::Encodable2718;
    let tx = TxEip1559 { chain_id: 1, gas_limit: 21_000, ..Default::default() };
    // Any valid signature recovers to somebody.
    let signature = alloy_primitives::Signature::test_signature();
    let tx: order_pool::PooledTransaction = EthereumTxEnvelope::from(tx.into_signed(signature));
    alloy_primitives::hex::encode_prefixed(tx.encoded_2718())
}

#[test]
fn all_fields_arrive_and_the_block_may_be_absent_null_or_zero() {
    let raw_tx = alloy_raw();
    for block in ["", r#""blockNumber": null,"#, r#""blockNumber": "0x0","#, r#""blockNumber": 0,"#]
    {
        let json = format!(
            r#"{{{block} "txs": ["{raw_tx}"], "uuid": "00000000-0000-0000-0000-000000000007",
                "replacementNonce": "0x5", "minTimestamp": 1, "maxTimestamp": 2,
                "revertingTxHashes": null, "droppingTxHashes": ["{}"], "refundPercent": 90,
                "refundRecipient": "{}", "refundTxHashes": ["{}"]}}"#,
            hash(1),
            address(1),
            hash(2),
        );
        let raw: RawBundle = serde_json::from_str(&json).expect("it parses");
        let bundle = raw.resolve(Some(address(1)), 2, SystemTime::UNIX_EPOCH).expect("valid");
        let parts = bundle.parts();
        assert_eq!((parts.block, parts.replacement_nonce), (None, Some(5)));
        assert_eq!((parts.min_timestamp, parts.max_timestamp), (Some(1), Some(2)));
        assert_eq!(parts.dropping_tx_hashes, [hash(1)]);
        assert_eq!((parts.refund_percent, parts.refund_recipient), (Some(90), Some(address(1))));
        assert_eq!(parts.refund_tx_hashes, [hash(2)]);
        assert_eq!(bundle.key(), Some(key(1)));
        let sent = alloy_rpc_types_mev::EthSendBundle::from(&bundle);
        assert_eq!(sent.bundle_hash(), *bundle.hash(), "as other builders compute it");
        assert_eq!(sent.txs[0].to_string(), raw_tx);
    }
}

#[test]
fn a_cancellation_parses_with_and_without_a_nonce_and_refuses_unknown_fields() {
    let parse = |json: &str| serde_json::from_str::<RawCancelBundle>(json);
    let with = parse(&format!(r#"{{{UUID}, "replacementNonce": "0x2"}}"#)).expect("it parses");
    assert_eq!(with.replacement_nonce, Some(2));
    assert_eq!(parse(&format!("{{{UUID}}}")).expect("it parses").replacement_nonce, None);
    assert!(parse(&format!(r#"{{{UUID}, "nonce": 2}}"#)).is_err());
}
