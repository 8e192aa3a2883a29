//! The parameters of `eth_sendBundle` and `eth_cancelBundle`. The cases were written from
//! rbuilder's `RawBundle` (develop of June 2026), the Flashbots RPC reference and BuilderNet's
//! FlowProxy.

use std::time::SystemTime;

use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, U256, hex};
use order_pool::{
    Bundle, BundleError, DesiredState, Holder, RawBundle, RawCancelBundle, StateTarget,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::corpus::{damaged_seeds, seeds};

use crate::common::{address, nth};

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
const OTHER_UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c9";

fn raw(n: u64) -> String {
    hex::encode_prefixed(nth(n).envelope().encoded_2718())
}

/// Returns a bundle with one transaction and these fields.
fn bundle(fields: Value) -> Value {
    let mut bundle = json!({ "txs": [raw(1)] });
    for (name, value) in fields.as_object().expect("an object") {
        bundle[name] = value.clone();
    }
    bundle
}

fn resolve(bundle: &Value) -> Result<Bundle, String> {
    let raw: RawBundle =
        serde_json::from_value(bundle.clone()).map_err(|error| format!("json: {error}"))?;
    raw.check(100).map_err(|error| error.to_string())?;
    let txs = (1..=raw.txs.len() as u64).map(nth).collect();
    let signer = Some(address(7));
    raw.with_transactions(txs, signer, Holder::Host, SystemTime::UNIX_EPOCH)
        .map_err(|error| error.to_string())
}

/// Returns a deeply nested value.
fn nested() -> Value {
    (0..100).fold(json!(1), |inner, _| json!([inner]))
}

#[test]
fn harmless_fields_are_accepted_and_change_nothing() {
    let plain = resolve(&bundle(json!({}))).expect("a bundle");
    let cases = [
        json!({ "version": "v2" }),
        json!({ "version": "v1" }),
        json!({ "version": null }),
        json!({ "blockNumber": null }),
        json!({ "blockNumber": "0x0" }),
        json!({ "blockNumber": 0 }),
        json!({ "minTimestamp": 0, "maxTimestamp": 0 }),
        json!({ "revertingTxHashes": null, "droppingTxHashes": null, "refundTxHashes": null }),
        json!({ "revertingTxHashes": [], "droppingTxHashes": [], "refundTxHashes": [] }),
        json!({ "signingAddress": address(9) }),
        json!({ "bundleHash": B256::ZERO }),
        json!({ "builders": ["flashbots", "beaverbuild.org"] }),
        json!({ "builders": { "any": [nested()] } }),
        json!({ "builders": null, "signingAddress": null, "bundleHash": null }),
        json!({ "delayedRefund": false }),
        json!({ "delayedRefund": null, "refundIdentity": null }),
        json!({ "desiredState": null, "targetAddresses": null, "targetSlots": null }),
        json!({ "targetAddresses": [], "targetSlots": [] }),
        json!({ "refundPercent": 0 }),
        json!({ "refundPercent": null, "refundRecipient": null }),
        json!({ "replacementUuid": null, "uuid": null, "replacementNonce": null }),
    ];
    for fields in cases {
        let resolved = resolve(&bundle(fields.clone())).unwrap_or_else(|e| panic!("{fields}: {e}"));
        assert_eq!(resolved.id(), plain.id(), "{fields}");
        assert_eq!(resolved.parts().signer, Some(address(7)), "the caller of resolve decides");
    }
}

#[test]
fn both_names_of_a_uuid_are_accepted_if_they_are_equal() {
    for fields in [
        json!({ "uuid": UUID }),
        json!({ "replacementUuid": UUID }),
        json!({ "uuid": UUID, "replacementUuid": UUID }),
    ] {
        let resolved = resolve(&bundle(fields)).expect("a bundle");
        let key = resolved.key().expect("it can be replaced");
        assert_eq!((key.uuid.to_string().as_str(), key.signer), (UUID, address(7)));
    }
    let two = resolve(&bundle(json!({ "uuid": UUID, "replacementUuid": OTHER_UUID })));
    assert!(two.expect_err("they differ").contains("must be equal"));
    // FlowProxy assigns a plain number of microseconds to bundles without a nonce.
    let resolved =
        resolve(&bundle(json!({ "uuid": UUID, "replacementNonce": 1_781_000_000_000_000_u64 })));
    assert_eq!(resolved.expect("a bundle").nonce(), Some(1_781_000_000_000_000));
}

#[test]
fn a_bundle_without_transactions_is_a_cancellation() {
    for txs in [json!([]), json!(null)] {
        let cancel = json!({ "txs": txs, "replacementUuid": UUID, "replacementNonce": 3 });
        let resolved = resolve(&cancel).expect("a cancellation");
        assert!(resolved.txs().is_empty() && resolved.key().is_some());
        assert!(resolve(&json!({ "txs": txs })).is_err(), "it cancels nothing");
    }
    let absent = resolve(&json!({ "uuid": UUID, "version": "v9" }));
    assert!(absent.is_ok(), "rbuilder does not read the version of a cancellation");
}

#[test]
fn version_one_has_none_of_the_fields_that_version_two_added() {
    let v2_fields = [
        ("droppingTxHashes", json!([B256::ZERO])),
        ("refundPercent", json!(5)),
        ("refundRecipient", json!(Address::ZERO)),
        ("refundTxHashes", json!([B256::ZERO])),
        ("delayedRefund", json!(true)),
        ("desiredState", json!("BottomOfBlock")),
        ("targetAddresses", json!([Address::ZERO])),
    ];
    for (field, value) in v2_fields {
        for (version, accepted) in [(json!("v1"), false), (json!("v2"), true), (json!(null), true)]
        {
            let mut fields = json!({ "version": version });
            fields[field] = value.clone();
            match resolve(&bundle(fields)) {
                Ok(_) => assert!(accepted, "{field} {version}"),
                Err(error) => {
                    assert!(!accepted && error.starts_with(field), "{field} {version}: {error}");
                }
            }
        }
    }
    let same_in_both = json!({ "version": "v1", "revertingTxHashes": [B256::ZERO],
        "refundIdentity": address(3), "replacementUuid": UUID, "maxTimestamp": 5 });
    assert!(resolve(&bundle(same_in_both)).is_ok());
    let long = "v".repeat(1_000);
    for version in ["v3", "V2", "", "2", &long] {
        let error = resolve(&bundle(json!({ "version": version }))).expect_err("no such version");
        assert!(error.starts_with("version is") && error.len() < 100, "{error}");
    }
    assert!(resolve(&bundle(json!({ "version": 2 }))).is_err());
}

#[test]
fn a_refund_is_below_all_of_it_and_has_rbuilders_defaults() {
    let two = |fields: Value| {
        let mut bundle = bundle(fields);
        bundle["txs"] = json!([raw(1), raw(2)]);
        resolve(&bundle)
    };
    let [first, last] = [1, 2].map(nth);
    for none in [json!({}), json!({ "refundRecipient": address(5) }), json!({ "refundPercent": 0 })]
    {
        assert_eq!(two(none).expect("a bundle").refund(), None);
    }
    let refund = two(json!({ "refundPercent": 99 })).expect("a bundle").refund().expect("a refund");
    assert_eq!(
        (refund.percent, refund.recipient, refund.tx_hash),
        (99, first.sender(), *last.hash())
    );
    assert!(!refund.is_delayed);
    let given = json!({ "refundPercent": "0x5", "refundRecipient": address(5),
        "refundTxHashes": [first.hash()], "delayedRefund": true, "refundIdentity": address(6) });
    let given = two(given).expect("a bundle");
    let refund = given.refund().expect("a refund");
    assert_eq!((refund.percent, refund.recipient, refund.tx_hash), (5, address(5), *first.hash()));
    assert!(refund.is_delayed);
    assert_eq!(given.parts().refund_identity, Some(address(6)));
    for percent in [json!(255), json!(u64::MAX), json!("0x64")] {
        let error = two(json!({ "refundPercent": percent })).expect_err("too much");
        assert!(error.starts_with("refundPercent is"), "{error}");
    }
}

#[test]
fn the_place_and_the_targeted_state_are_carried_counted_and_part_of_the_identity() {
    let plain = resolve(&bundle(json!({}))).expect("a bundle");
    let [whole, slots] = [address(3), address(4)];
    let last_slot = format!("0x{}", "f".repeat(64));
    let placed = resolve(&bundle(json!({ "version": "v2", "desiredState": "BottomOfBlock",
        "targetAddresses": [whole, slots], "targetSlots": [[], ["0x0", "0x0A", last_slot]] })));
    let placed = placed.expect("a bundle");
    let parts = placed.parts();
    assert_eq!(parts.desired_state, Some(DesiredState::BottomOfBlock));
    let numbers = [U256::ZERO, U256::from(10), U256::MAX].map(B256::from);
    let targets = [(whole, vec![]), (slots, numbers.to_vec())];
    let targets = targets.map(|(address, slots)| StateTarget { address, slots });
    assert_eq!(parts.targets, targets);
    let least = plain.size_bytes() + 2 * size_of::<StateTarget>() + 3 * size_of::<B256>();
    assert!(placed.size_bytes() >= least, "{} bytes", placed.size_bytes());

    let one = |slots: Value| json!({ "targetAddresses": [whole], "targetSlots": slots });
    let others = [
        json!({ "desiredState": "BottomOfBlock" }),
        one(json!([])),
        one(json!([["0x0"]])),
        one(json!([["0x1"]])),
        json!({ "targetAddresses": [slots] }),
        json!({ "targetAddresses": [whole, slots] }),
    ];
    let mut ids = std::collections::BTreeSet::from([*plain.id(), *placed.id()]);
    for fields in others {
        let resolved = resolve(&bundle(fields.clone())).expect("a bundle");
        assert_eq!(resolved.hash(), plain.hash());
        assert!(ids.insert(*resolved.id()), "{fields}");
    }
    // No list of slots, and an empty one, stand for all slots.
    for slots in [json!(null), json!([[]])] {
        assert!(ids.contains(resolve(&bundle(one(slots))).expect("a bundle").id()));
    }
}

#[test]
fn an_error_names_the_field_the_value_and_the_limit() {
    for (fields, error) in [
        (json!({ "txs": [] }), "txs is empty: at least 1"),
        (json!({ "txs": vec!["0x00"; 101] }), "txs has 101 entries, the most is 100"),
        (json!({ "replacementNonce": 3 }), "replacementNonce is 3 but there is no replacementUuid"),
        (json!({ "refundPercent": 100 }), "refundPercent is 100, the most is 99"),
        (json!({ "refundPercent": 300 }), "refundPercent is 300, the most is 99"),
        (
            json!({ "refundTxHashes": vec![B256::ZERO; 2] }),
            "refundTxHashes has 2 entries, the most is 1",
        ),
        (
            json!({ "droppingTxHashes": vec![B256::ZERO; 101] }),
            "droppingTxHashes has 101 entries, the most is 100",
        ),
        (
            json!({ "targetAddresses": vec![Address::ZERO; 101] }),
            "targetAddresses has 101 entries, the most is 100",
        ),
        (
            json!({ "targetAddresses": [Address::ZERO], "targetSlots": [vec!["0x1"; 1_001]] }),
            "targetSlots has 1001 entries, the most is 1000",
        ),
        (
            json!({ "targetSlots": [[], []], "targetAddresses": [Address::ZERO] }),
            "targetSlots has 2 lists, must have none or one for each of 1 targetAddresses",
        ),
        (json!({ "desiredState": "TopOfBlock" }), "json: unknown variant `TopOfBlock`, expected"),
        (json!({ "targetSlots": [["0x"]] }), "json: a storage slot must be 0x and 1 to 64 hex"),
        (
            json!({ "minTimestamp": 9, "maxTimestamp": "0x8" }),
            "minTimestamp is 9, above maxTimestamp 8",
        ),
        (json!({ "surprise": 1 }), "json: unknown field `surprise`"),
        (json!({ "maxBlockNumber": "0x5" }), "json: unknown field `maxBlockNumber`"),
        (json!({ "trustedBuilders": [] }), "json: unknown field `trustedBuilders`"),
        (json!({ "Version": "v2" }), "json: unknown field `Version`"),
    ] {
        let found = resolve(&bundle(fields)).expect_err(error);
        assert!(found.starts_with(error), "{found}");
    }
    let undecodable = RawBundle { txs: vec![vec![2, 0xff].into()], ..RawBundle::default() };
    let error = undecodable.resolve(None, 1, SystemTime::UNIX_EPOCH).expect_err("no transaction");
    assert!(error.to_string().starts_with("txs[0] does not decode"), "{error}");
}

#[test]
fn a_cancellation_names_its_uuid_and_may_name_its_signer() {
    let read = |cancel: Value| serde_json::from_value::<RawCancelBundle>(cancel);
    for name in ["replacementUuid", "uuid"] {
        let plain = read(json!({ name: UUID })).expect("a cancellation");
        assert_eq!((plain.signing_address, plain.replacement_nonce), (None, None));
        let full = json!({ name: UUID, "signingAddress": address(3), "replacementNonce": "0x2" });
        let full = read(full).expect("a cancellation");
        assert_eq!((full.signing_address, full.replacement_nonce), (Some(address(3)), Some(2)));
        assert_eq!(full.replacement_uuid.to_string(), UUID);
    }
    assert!(read(json!({})).is_err());
    assert!(read(json!({ "replacementUuid": UUID, "more": 1 })).is_err());
}

#[test]
fn a_serialized_bundle_is_read_again() {
    let full = json!({ "version": "v2", "txs": [raw(1)], "blockNumber": "0x5",
        "minTimestamp": "0x1", "maxTimestamp": "0x2", "revertingTxHashes": [B256::ZERO],
        "droppingTxHashes": [B256::ZERO], "replacementUuid": UUID, "uuid": UUID,
        "replacementNonce": "0x7", "refundPercent": "0x9", "refundRecipient": address(1),
        "refundTxHashes": [B256::ZERO], "delayedRefund": true, "refundIdentity": address(2),
        "signingAddress": address(3), "bundleHash": B256::ZERO });
    let raw: RawBundle = serde_json::from_value(full.clone()).expect("it reads");
    assert_eq!(serde_json::to_value(&raw).expect("it writes"), full);
    let resolved = resolve(&full).expect("a bundle");
    let parts = resolved.parts();
    assert_eq!(
        (parts.block, parts.min_timestamp, parts.max_timestamp),
        (Some(5), Some(1), Some(2))
    );
    assert_eq!((parts.replacement_nonce, parts.refund_tx_hashes.len()), (Some(7), 1));
    let lists = [&parts.reverting_tx_hashes, &parts.dropping_tx_hashes];
    assert_eq!(lists.map(|list| list.as_slice()), [[B256::ZERO]; 2]);
}

/// Two bundles that differ only in the refund are different orders.
#[test]
fn the_refund_is_part_of_the_identity() {
    let ids = [
        json!({}),
        json!({ "delayedRefund": true }),
        json!({ "refundIdentity": address(1) }),
        json!({ "refundRecipient": address(1) }),
        json!({ "refundPercent": 1 }),
    ]
    .map(|fields| *resolve(&bundle(fields)).expect("a bundle").id());
    for (index, id) in ids.iter().enumerate() {
        assert!(!ids[..index].contains(id), "{index}");
    }
    let error = BundleError::NotInVersion { field: "refundPercent" };
    assert_eq!(error.to_string(), "refundPercent is not in version v1");
}

fn read(text: &[u8]) -> Option<(RawBundle, Bundle)> {
    let raw: RawBundle = serde_json::from_slice(text).ok()?;
    let bundle = raw.clone().resolve(Some(address(7)), 100, SystemTime::UNIX_EPOCH).ok()?;
    Some((raw, bundle))
}

#[test]
fn the_bundles_of_the_corpus_are_resolved_or_refused() {
    for seed in seeds("bundles") {
        assert_eq!(read(&seed.bytes).is_some(), seed.is_good(), "{}", seed.name);
    }
}

proptest! {
    #[test]
    fn a_damaged_bundle_is_refused_or_equals_its_text(text in damaged_seeds("bundles")) {
        if let Some((raw, bundle)) = read(&text) {
            let encoded = bundle.txs().iter().map(|tx| tx.envelope().encoded_2718());
            prop_assert_eq!(encoded.map(Bytes::from).collect::<Vec<_>>(), raw.txs.clone());
            let written = serde_json::to_vec(&raw).expect("JSON");
            let (again, same) = read(&written).expect("what was written is read");
            prop_assert_eq!(again, raw);
            prop_assert_eq!(same.hash(), bundle.hash());
        }
    }
}
