//! Bundles: the table of replacement and cancellation, retention by block, and bad input.

use std::time::{Duration, SystemTime};

use alloy_primitives::{Address, B256};
use order_pool::{
    Bundle, BundleError, BundleParts, CancelOutcome, Clock, Event, Holder, InsertOutcome,
    MAX_UNKNOWN_CANCELLATIONS, OrderPool, PoolConfig, RawBundle, RejectReason, ReplacementKey,
};
use uuid::Uuid;

use crate::common::{
    address, bundle, caller, cancellation, hash, head, journal, nth, pool_by_hand, pool_with,
    upkeep, variant,
};

const SEARCHER: u64 = 1;
const OTHER: u64 = 2;

fn key(signer: u64) -> ReplacementKey {
    ReplacementKey { uuid: Uuid::from_u128(7), signer: address(signer) }
}

fn pool() -> (OrderPool, Clock) {
    pool_by_hand(PoolConfig::default())
}

/// A pool that knows block 10.
fn pool_at_10() -> OrderPool {
    let pool = pool().0;
    pool.on_head(head(10, 0, 0, &[]));
    pool
}

/// A bundle of the key with this nonce; `n` tells its content.
fn keyed(n: u64, signer: u64, nonce: Option<u64>) -> Bundle {
    bundle(BundleParts {
        txs: vec![nth(n)],
        uuid: Some(Uuid::from_u128(7)),
        signer: Some(address(signer)),
        replacement_nonce: nonce,
        // What leaves its nonce to the pool is placed by this.
        first_seen: Some(SystemTime::UNIX_EPOCH),
        ..Default::default()
    })
}

fn plain(n: u64, block: Option<u64>) -> Bundle {
    bundle(BundleParts { txs: vec![nth(n)], block, ..Default::default() })
}

/// The same without its transactions: a cancellation.
fn emptied(of: &Bundle) -> Bundle {
    bundle(BundleParts { txs: Vec::new(), ..of.parts().clone() })
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
fn send(pool: &OrderPool, clock: &Clock, step: usize, message: Message) -> String {
    let n = step as u64;
    let insert = |bundle| variant(pool.insert_bundle(bundle));
    let cancel =
        |signer, nonce| match pool.cancel_bundle(cancellation(key(signer), nonce, Holder::Host)) {
            CancelOutcome::Cancelled { removed: 0 } => "tombstone".to_owned(),
            outcome => variant(outcome),
        };
    match message {
        B(nonce) => insert(keyed(n, SEARCHER, Some(nonce))),
        Next => insert(keyed(n, SEARCHER, None)),
        OtherBundle(nonce) => insert(keyed(n, OTHER, Some(nonce))),
        E(nonce) => insert(emptied(&keyed(n, SEARCHER, Some(nonce)))),
        C(nonce) => cancel(SEARCHER, Some(nonce)),
        Final => cancel(SEARCHER, None),
        OtherFinal => cancel(OTHER, None),
        Forget => {
            clock.advance(Duration::from_secs(60));
            upkeep(pool);
            "forgotten".to_owned()
        }
    }
}

/// The table: messages in the order of arrival, what is answered to each, which message's bundle of
/// the searcher is in the pool afterwards, and what a subscriber saw (`+` added, `-` removed, `x`
/// cancelled, `f` forgotten).
#[test]
fn every_row_of_the_table_of_replacement_and_cancellation_holds() {
    type Row = (&'static [Message], &'static [&'static str], Option<usize>, &'static str);
    let rows: &[Row] = &[
        (&[B(1)], &["Added"], Some(0), "+"),
        // A strictly greater nonce wins; a gap is no matter.
        (&[B(1), B(2)], &["Added", "Replaced"], Some(1), "+-+"),
        (&[B(1), B(9)], &["Added", "Replaced"], Some(1), "+-+"),
        // Equal or lower is ignored, whatever its content.
        (&[B(1), B(1)], &["Added", "Superseded"], Some(0), "+"),
        (&[B(5), B(4)], &["Added", "Superseded"], Some(0), "+"),
        (&[B(5), B(4), B(6)], &["Added", "Superseded", "Replaced"], Some(2), "+-+"),
        // Without a nonce the order of arrival counts.
        (&[Next, Next], &["Added", "Replaced"], Some(1), "+-+"),
        (&[B(5), Next, B(6)], &["Added", "Replaced", "Superseded"], Some(1), "+-+"),
        // A cancellation is a message like any other.
        (&[B(1), C(2)], &["Added", "Cancelled"], None, "+-x"),
        (&[B(1), C(1)], &["Added", "Superseded"], Some(0), "+"),
        (&[B(2), C(1)], &["Added", "Superseded"], Some(0), "+"),
        // One that overtakes its bundle is kept.
        (&[C(2), B(1)], &["tombstone", "Superseded"], None, "x"),
        (&[C(2), B(2)], &["tombstone", "Superseded"], None, "x"),
        (&[C(1), C(2)], &["tombstone", "tombstone"], None, "xx"),
        (&[C(2), C(1)], &["tombstone", "Superseded"], None, "x"),
        // A higher nonce revives the key.
        (&[C(2), B(3)], &["tombstone", "Added"], Some(1), "x+"),
        (&[B(1), C(2), B(3)], &["Added", "Cancelled", "Added"], Some(2), "+-x+"),
        (&[C(2), Next], &["tombstone", "Added"], Some(1), "x+"),
        (
            &[B(1), C(4), B(3), B(5)],
            &["Added", "Cancelled", "Superseded", "Added"],
            Some(3),
            "+-x+",
        ),
        // An empty bundle with a uuid is a cancellation.
        (&[B(1), E(2)], &["Added", "Cancelled"], None, "+-x"),
        (&[B(1), E(1)], &["Added", "Superseded"], Some(0), "+"),
        (&[E(2), B(3)], &["Cancelled", "Added"], Some(1), "x+"),
        // Without a nonce a cancellation is final.
        (&[B(1), Final], &["Added", "Cancelled"], None, "+-x"),
        (&[B(1), Final, B(9)], &["Added", "Cancelled", "CancelledPermanently"], None, "+-x"),
        (&[Final, B(9)], &["tombstone", "CancelledPermanently"], None, "x"),
        (&[Final, Next], &["tombstone", "CancelledPermanently"], None, "x"),
        (&[Final, C(9)], &["tombstone", "CancelledPermanently"], None, "x"),
        (&[Final, Final], &["tombstone", "CancelledPermanently"], None, "x"),
        (&[C(3), Final], &["tombstone", "tombstone"], None, "xx"),
        // Other signers have keys of their own.
        (&[B(1), OtherFinal], &["Added", "tombstone"], Some(0), "+x"),
        (&[B(1), OtherBundle(9), B(2)], &["Added", "Added", "Replaced"], Some(2), "++-+"),
        (&[OtherFinal, B(1)], &["tombstone", "Added"], Some(1), "x+"),
        // A tombstone is forgotten after its retention; a live bundle's nonce is not.
        (&[C(2), Forget, B(1)], &["tombstone", "forgotten", "Added"], Some(2), "xf+"),
        (&[Final, Forget, B(1)], &["tombstone", "forgotten", "Added"], Some(2), "xf+"),
        (&[B(5), Forget, B(4)], &["Added", "forgotten", "Superseded"], Some(0), "+"),
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
                let other = messages.iter().any(|message| matches!(message, OtherFinal));
                usize::from(!events[at..].contains('+') || other)
            }
            _ => 0,
        };
        assert_eq!(tombstones, counts, "{messages:?}: {replay:?}");
    }
}

fn word(event: &str) -> char {
    match event {
        event if event.starts_with("CancellationForgotten") => 'f',
        event if event.starts_with("Cancelled") => 'x',
        event => event.chars().next().unwrap_or('?'),
    }
}

/// For a block.
fn keyed_for(n: u64, block: u64, nonce: Option<u64>) -> Bundle {
    bundle(BundleParts { block: Some(block), ..keyed(n, SEARCHER, nonce).parts().clone() })
}

/// A searcher sends one uuid for each of the next blocks. The pool used to take the one for the next block
/// out when that for the block after it came, and to refuse the one that came late.
#[test]
fn a_bundle_replaces_one_of_its_key_for_its_block_and_none_for_another() {
    let pool = pool_at_10();
    for (n, block, nonce) in [(1, 11, 5), (2, 12, 5), (3, 13, 1)] {
        let outcome = pool.insert_bundle(keyed_for(n, block, Some(nonce)));
        assert_eq!(outcome, InsertOutcome::Added, "{block}");
    }
    let old = pool.insert_bundle(keyed_for(4, 12, Some(5)));
    assert_eq!(old, InsertOutcome::Superseded { nonce: 5, current: 5 });
    let replaced = pool.insert_bundle(keyed_for(5, 12, Some(6)));
    assert!(matches!(replaced, InsertOutcome::Replaced { .. }), "{replaced:?}");
    // One without a block is for the next one.
    let next = pool.insert_bundle(keyed(6, SEARCHER, None));
    assert!(matches!(next, InsertOutcome::Replaced { .. }), "{next:?}");
    assert_eq!(journal(&mut pool.subscribe(11)).len(), 1);
    assert_eq!((pool.len(), pool.stats().replaced), (3, 2));
    pool.on_head(head(11, 0, 0, &[]));
    // Block 12 has its own numbers, and so has 14.
    let late = pool.insert_bundle(keyed_for(7, 12, Some(6)));
    assert_eq!(late, InsertOutcome::Superseded { nonce: 6, current: 6 });
    assert_eq!(pool.insert_bundle(keyed_for(8, 14, Some(1))), InsertOutcome::Added);
}

/// Each pool counted from 0, so a third one that got the orders of two kept an older one.
#[test]
fn of_replacements_without_a_nonce_at_two_pools_the_latest_wins_in_a_third() {
    let (pools, (third, _)) = ([pool().0, pool().0], pool());
    pools.iter().chain([&third]).for_each(|pool| _ = pool.on_head(head(10, 0, 0, &[])));
    let sent = |n: u64| {
        let parts = keyed(n, SEARCHER, None).parts().clone();
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_000 + n);
        Bundle::new(BundleParts { block: Some(13), first_seen: Some(at), ..parts }).expect("valid")
    };
    let mut told = Vec::new();
    for (n, at) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let mut orders = pools[at].subscribe_all();
        while orders.try_next().is_some() {}
        pools[at].insert_bundle(sent(n));
        told.extend(std::iter::from_fn(|| orders.try_next()).filter_map(|event| match event {
            Ok(Event::Added(order)) => order.as_bundle().cloned(),
            _ => None,
        }));
    }
    // Both pools' orders arrive mixed.
    for n in [0, 3, 2, 1] {
        third.insert_bundle(told[n].clone());
    }
    assert_eq!(third.len(), 1);
    let kept = third.get(&bundle_id(third.subscribe_all())).expect("it is pooled");
    let kept = kept.as_bundle().map(|bundle| *bundle.txs()[0].hash());
    assert_eq!(kept, Some(*nth(4).hash()));
}

/// Whatever is refused changes nothing.
fn refused(config: PoolConfig, bundle: Bundle) -> RejectReason {
    let pool = pool_with(config);
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
fn a_block_out_of_range_or_too_many_transactions_are_refused_with_both_numbers() {
    let many = bundle(BundleParts { txs: (0..101).map(nth).collect(), ..Default::default() });
    let passed = RejectReason::BlockPassed { value: 10, limit: 11 };
    for (bundle, reason) in [
        (plain(1, Some(10)), passed),
        (plain(1, Some(75)), RejectReason::BlockTooFar { value: 75, limit: 74 }),
        (many, RejectReason::TooMany { field: "txs", value: 101, limit: 100 }),
    ] {
        assert_eq!(refused(PoolConfig::default(), bundle), reason);
    }
    assert_eq!(passed.to_string(), "blockNumber is 10, the lowest that is not built yet is 11");
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
fn what_is_wrong_with_parameters_is_said_with_the_field_and_both_numbers() {
    let (raw, hash) = (alloy_raw(), hash(1));
    let with_uuid = |rest: &str| format!(r#"{{{UUID}, {rest}}}"#);
    let three = vec![format!("\"{hash}\""); 3].join(",");
    for (json, error) in [
        (r#"{"txs": []}"#.to_owned(), "txs is empty: at least 1"),
        (
            format!(r#"{{"txs": ["{raw}"], "replacementNonce": 3}}"#),
            "replacementNonce is 3 but there is no replacementUuid",
        ),
        (with_uuid(r#""refundPercent": 100"#), "refundPercent is 100, the most is 99"),
        (with_uuid(r#""refundPercent": 300"#), "refundPercent is 300, the most is 99"),
        (
            with_uuid(&format!(r#""refundTxHashes": ["{hash}", "{hash}"]"#)),
            "refundTxHashes has 2 entries, the most is 1",
        ),
        (
            with_uuid(r#""minTimestamp": 9, "maxTimestamp": "0x8""#),
            "minTimestamp is 9, above maxTimestamp 8",
        ),
        // Before anything is decoded.
        (r#"{"txs": ["0x00", "0x00", "0x00"]}"#.to_owned(), "txs has 3 entries, the most is 2"),
        (
            with_uuid(&format!(r#""droppingTxHashes": [{three}]"#)),
            "droppingTxHashes has 3 entries, the most is 2",
        ),
        (format!(r#"{{"txs": ["{raw}", "0x02ff"]}}"#), "txs[1] does not decode"),
    ] {
        assert!(wrong(&json).starts_with(error), "{}", wrong(&json));
    }
}

#[test]
fn a_uuid_without_a_signer_is_refused() {
    let raw: RawBundle = serde_json::from_str(&format!("{{{UUID}}}")).expect("it parses");
    let error = raw.resolve(None, 2, SystemTime::UNIX_EPOCH).expect_err("nobody signed it");
    assert!(matches!(error, BundleError::UuidWithoutSigner { .. }));
}

#[test]
fn an_upper_bound_of_zero_is_unset() {
    let json = format!(r#"{{{UUID}, "minTimestamp": 9, "maxTimestamp": 0}}"#);
    let raw: RawBundle = serde_json::from_str(&json).expect("it parses");
    let bundle = raw.resolve(Some(Address::ZERO), 2, SystemTime::UNIX_EPOCH);
    assert_eq!(bundle.expect("valid").parts().max_timestamp, None);
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
fn all_fields_arrive() {
    let raw_tx = alloy_raw();
    let json = format!(
        r#"{{"txs": ["{raw_tx}"], "uuid": "00000000-0000-0000-0000-000000000007",
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
}

/// A bundle of one signer for a block; `n` tells its content.
fn held(n: u64, holder: Holder, signer: u64, block: u64) -> Bundle {
    bundle(BundleParts {
        txs: vec![nth(n)],
        block: Some(block),
        signer: Some(address(signer)),
        holder,
        ..Default::default()
    })
}

/// 20,000 fresh keys, one bundle each, left one bundle to each honest signer.
#[test]
fn fresh_keys_displace_no_bundle_of_another_holder() {
    for addresses in [1, 8] {
        let pool = pool_at_10();
        let mut honest = Vec::new();
        // Signers that the host knows, and unknown ones from an address of their own.
        for n in 0..400_u64 {
            let signer = 1_000 + n % 100;
            let holder = match n % 2 {
                0 => Holder::Signer(address(signer)),
                _ => caller(200 + n % 50),
            };
            let bundle = held(n, holder, signer, 12 + n % 3);
            honest.push(bundle.clone());
            assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Added);
        }
        for n in 0..20_000_u64 {
            let block = if n % 2 == 0 { 11 } else { 74 };
            let bundle = held(10_000, caller(n % addresses), 10_000 + n, block);
            pool.insert_bundle(bundle);
        }
        assert_eq!(pool.stats().bundles, 400 + addresses * 625);
        for number in 11..15 {
            let due = honest.iter().filter(|bundle| bundle.block() == Some(number));
            let ids: Vec<B256> = due.map(settled).collect();
            let missing = ids.iter().filter(|id| !pool.contains(id)).count();
            assert_eq!(missing, 0, "before head {number}, {addresses} addresses");
            pool.on_head(head(number, 0, 0, &[]));
            upkeep(&pool);
        }
    }
}

/// The id of a bundle for a block without a key.
fn settled(bundle: &Bundle) -> B256 {
    let block = bundle.block().expect("it has one");
    let mut preimage = bundle.id().to_vec();
    preimage.push(1);
    preimage.extend(block.to_be_bytes());
    preimage.extend([0; 9]);
    alloy_primitives::keccak256(preimage)
}

/// 70,000 cancellations of one signer went to every subscriber and, like those of 66,000 fresh keys,
/// made the pool forget what others had cancelled.
#[test]
fn cancellations_that_nobody_knows_fill_nobodys_log_and_displace_nobody_elses() {
    let (pool, _) = pool();
    let key = |signer, n| ReplacementKey { uuid: Uuid::from_u128(n), signer: address(signer) };
    for signer in 0..100 {
        pool.cancel_bundle(cancellation(key(signer, 1), None, caller(200 + signer % 50)));
    }
    let mut subscription = pool.subscribe_all();
    assert_eq!(journal(&mut subscription).len(), 100);
    for n in 0..70_000 {
        let cancelled = pool.cancel_bundle(cancellation(key(666, n), None, caller(1)));
        assert_eq!(cancelled, CancelOutcome::Cancelled { removed: 0 });
    }
    // Nor is one key that is cancelled again and again.
    for nonce in 0..10_000 {
        pool.cancel_bundle(cancellation(key(667, 1), Some(nonce), caller(2)));
    }
    // The first ones are told, and told as forgotten when the later ones push them out.
    let told = journal(&mut subscription);
    assert_eq!(told.len(), 3 * MAX_UNKNOWN_CANCELLATIONS, "{:?}", told.last());
    // Those that were not told count all the same.
    let uuid = Some(Uuid::from_u128(69_999));
    let late = BundleParts { uuid, ..keyed(1, 666, None).parts().clone() };
    let late = pool.insert_bundle(bundle(late));
    assert_eq!(late, InsertOutcome::CancelledPermanently);
    for signer in 10_000..76_000 {
        pool.cancel_bundle(cancellation(key(signer, 1), None, caller(3)));
    }
    let told = journal(&mut subscription).len();
    assert_eq!(told, 2 * MAX_UNKNOWN_CANCELLATIONS, "fresh keys of a caller count together");
    for signer in 0..100 {
        let again = pool.cancel_bundle(cancellation(key(signer, 1), None, caller(4)));
        assert_eq!(again, CancelOutcome::CancelledPermanently, "others' are remembered");
    }
}

#[test]
fn the_cancellation_of_a_bundle_that_was_seen_is_always_told() {
    let (pool, _) = pool();
    let other = |n| ReplacementKey { uuid: Uuid::from_u128(n), signer: address(SEARCHER) };
    (1_000..1_100).for_each(|n| _ = pool.cancel_bundle(cancellation(other(n), None, Holder::Host)));
    pool.insert_bundle(keyed(1, SEARCHER, Some(1)));
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    pool.cancel_bundle(cancellation(key(SEARCHER), None, Holder::Host));
    let words: String = journal(&mut subscription).iter().map(|event| word(event)).collect();
    assert_eq!(words, "-x");
}

/// A bundle of several transactions for block 12 that may do without some of them.
fn of_many(txs: &[u64], optional: &[u64]) -> Bundle {
    bundle(BundleParts {
        txs: txs.iter().map(|n| nth(*n)).collect(),
        block: Some(12),
        dropping_tx_hashes: optional.iter().map(|n| *nth(*n).hash()).collect(),
        ..Default::default()
    })
}

/// Bundles whose transactions were mined, or whose nonces were used, were shown until their block.
#[test]
fn a_bundle_leaves_with_what_it_cannot_do_without() {
    let (pool, _) = pool();
    pool.on_head(head(9, 0, 0, &[]));
    let mined = of_many(&[1, 2], &[]);
    let without = of_many(&[1, 3], &[1]);
    let stale = of_many(&[4, 5], &[5]);
    for bundle in [&mined, &without, &stale] {
        assert_eq!(pool.insert_bundle(bundle.clone()), InsertOutcome::Added);
    }
    let mut subscription = pool.subscribe_all();
    journal(&mut subscription);
    let block = head(10, 0, 0, &[*nth(1).hash()]);
    pool.on_head(block.clone());
    // The fifth may be left out, the fourth may not.
    pool.on_nonces(block.head.hash, [(address(5), 1), (address(4), 1)]);
    let reasons: Vec<_> = journal(&mut subscription)
        .iter()
        .map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(reasons, ["Mined", "StaleNonce"]);
    assert_eq!(pool.len(), 1);
    // One that comes later is refused for the same reason, and what has left is not called pooled.
    let late = pool.insert_bundle(of_many(&[6, 1], &[]));
    let hash = *nth(1).hash();
    assert_eq!(late, InsertOutcome::Rejected(RejectReason::TxMined { index: 1, hash }));
    // All that it contains is mined: nothing is left of it.
    pool.on_head(head(11, 0, 0, &[*nth(3).hash()]));
    assert!(pool.is_empty());
    assert_eq!((pool.stats().mined, pool.stats().stale), (2, 1));
}

/// The id of the first bundle that a subscription shows.
fn bundle_id(mut orders: order_pool::Subscription) -> B256 {
    let orders = std::iter::from_fn(|| orders.try_next());
    let mut ids = orders.filter_map(|event| match event {
        Ok(Event::Added(order)) => order.as_bundle().map(|bundle| *bundle.id()),
        _ => None,
    });
    ids.next().expect("there is a bundle")
}

#[test]
fn the_block_as_it_was_sent_is_known_beside_the_one_that_was_settled() {
    let pool = pool_at_10();
    pool.insert_bundle(plain(1, None));
    let order = pool.get(&bundle_id(pool.subscribe_all())).expect("it is pooled");
    let bundle = order.as_bundle().expect("a bundle");
    assert_eq!((bundle.sent_block(), bundle.block()), (None, Some(11)));
}

/// Without a signature, or with one that a stranger has seen, it is the same bundle.
#[test]
fn a_bundle_that_a_stranger_sent_first_stays_for_who_was_answered_with_success() {
    let pool = pool_with(PoolConfig { max_bundles: 320, ..PoolConfig::default() });
    pool.on_head(head(10, 0, 0, &[]));
    let by = |n, block, by| {
        bundle(BundleParts { holder: caller(by), ..plain(n, Some(block)).parts().clone() })
    };
    for n in 0..10 {
        assert_eq!(pool.insert_bundle(by(n, 12, 1)), InsertOutcome::Added);
        assert_eq!(pool.insert_bundle(by(n, 12, 2)), InsertOutcome::Known);
    }
    for n in 10..20 {
        assert_eq!(pool.insert_bundle(by(n, 11, 1)), InsertOutcome::Added);
    }
    assert_eq!(pool.len(), 20, "the stranger has 10, and its other ten are another's too");
    for n in 20..30 {
        assert_eq!(pool.insert_bundle(by(n, 11, 2)), InsertOutcome::Added);
    }
    assert_eq!((pool.len(), pool.stats().evicted), (20, 10), "now nobody holds the first ten");
}

/// A cancellation removes all of them in one hold of the lock.
#[test]
fn a_key_has_no_more_blocks_than_may_be_ahead_while_no_head_is_known() {
    let (pool, _) = pool();
    for block in 1..=64 {
        assert_eq!(pool.insert_bundle(keyed_for(1, block, Some(1))), InsertOutcome::Added);
    }
    let reason = RejectReason::TooMany { field: "replacementUuid", value: 64, limit: 64 };
    assert_eq!(pool.insert_bundle(keyed_for(1, 65, Some(1))), InsertOutcome::Rejected(reason));
    assert_eq!(variant(pool.insert_bundle(keyed_for(1, 64, Some(2)))), "Replaced");
}
