use alloy_consensus::{
    EthereumTypedTransaction, SignableTransaction as _, TxEip4844Variant, TxEnvelope,
    transaction::{Recovered, SignerRecoverable as _, TransactionInfo},
};
use alloy_eips::{
    Decodable2718 as _,
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::TxKind;
use alloy_rpc_types_eth::Transaction;
use proptest::prelude::*;
use rand::{Rng, SeedableRng as _, rngs::StdRng};
use serde_json::Value as Json;
use testkit::corpus::{damaged_seeds, seeds};

use super::*;

// ---- Random transactions, and alloy's serializer as the source of their objects ----

fn random_bytes(rng: &mut StdRng, max: usize) -> Bytes {
    let length = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..=max) };
    (0..length).map(|_| rng.random::<u8>()).collect()
}

/// Short, so that leading zeros are common, or of any length.
fn word(rng: &mut StdRng) -> U256 {
    U256::from_be_bytes(rng.random::<[u8; 32]>()) >> rng.random_range(0..=256usize)
}

fn number(rng: &mut StdRng) -> u64 {
    rng.random::<u64>().checked_shr(rng.random_range(0..=64)).unwrap_or(0)
}

fn wei(rng: &mut StdRng) -> u128 {
    rng.random::<u128>().checked_shr(rng.random_range(0..=128)).unwrap_or(0)
}

fn kind(rng: &mut StdRng) -> TxKind {
    if rng.random_bool(0.2) {
        TxKind::Create
    } else {
        TxKind::Call(rng.random::<[u8; 20]>().into())
    }
}

fn list(rng: &mut StdRng) -> AccessList {
    let item = |rng: &mut StdRng| AccessListItem {
        address: rng.random::<[u8; 20]>().into(),
        storage_keys: (0..rng.random_range(0..3)).map(|_| B256::new(rng.random())).collect(),
    };
    AccessList((0..rng.random_range(0..3)).map(|_| item(rng)).collect())
}

fn signed_authorization(rng: &mut StdRng) -> SignedAuthorization {
    let inner = Authorization {
        chain_id: word(rng),
        address: rng.random::<[u8; 20]>().into(),
        nonce: number(rng),
    };
    SignedAuthorization::new_unchecked(inner, rng.random_range(0..4), word(rng), word(rng))
}

/// A transaction of type 0, 1, 2 or 4 with a signature that nobody made.
fn transaction(rng: &mut StdRng, tx_type: u8) -> TxEnvelope {
    let chain_id = number(rng) >> 1;
    let (nonce, gas_limit) = (number(rng), number(rng));
    let (gas_price, max_fee_per_gas, max_priority_fee_per_gas) = (wei(rng), wei(rng), wei(rng));
    let (to, value, access_list, input) = (kind(rng), word(rng), list(rng), random_bytes(rng, 200));
    let tx: EthereumTypedTransaction<TxEip4844Variant> = match tx_type {
        0 => {
            let chain_id = rng.random_bool(0.7).then_some(chain_id);
            TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input }.into()
        }
        1 => TxEip2930 { chain_id, nonce, gas_price, gas_limit, to, value, access_list, input }
            .into(),
        2 => TxEip1559 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to,
            value,
            access_list,
            input,
        }
        .into(),
        _ => TxEip7702 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: rng.random::<[u8; 20]>().into(),
            value,
            access_list,
            authorization_list: (0..rng.random_range(0..3))
                .map(|_| signed_authorization(rng))
                .collect(),
            input,
        }
        .into(),
    };
    tx.into_signed(Signature::new(word(rng), word(rng), rng.random())).into()
}

/// A transaction with a sender, and its object.
fn any_object() -> impl Strategy<Value = (StdRng, TxEnvelope, Address, Json)> {
    let tx_type = prop_oneof![Just(0), Just(1), Just(2), Just(4)];
    (any::<u64>(), tx_type).prop_map(|(seed, tx_type)| {
        let mut rng = StdRng::seed_from_u64(seed);
        let tx = transaction(&mut rng, tx_type);
        let sender: Address = rng.random::<[u8; 20]>().into();
        // Not a struct literal, because newer versions of alloy have more fields.
        let sent = Recovered::new_unchecked(tx.clone(), sender);
        let mut object = Transaction::from_transaction(sent, TransactionInfo::default());
        // It is written as `gasPrice` if the type of transaction has no such field.
        object.effective_gas_price = rng.random_bool(0.8).then(|| wei(&mut rng));
        let json = serde_json::to_value(&object).unwrap();
        (rng, tx, sender, json)
    })
}

#[track_caller]
fn expect_transaction(json: &str) -> FullTransaction {
    match read_object(json) {
        FullAnnouncement::Transaction(transaction) => *transaction,
        other => panic!("{other:?} for {json}"),
    }
}

#[track_caller]
fn expect_error(json: &str) -> Malformed {
    match read_object(json) {
        FullAnnouncement::Malformed(_, reason) => reason,
        other => panic!("{other:?} for {json}"),
    }
}

/// Decodes the object with alloy, if its hash is that of its transaction.
fn read_with_alloy(json: &str) -> Option<(PooledTransaction, Address)> {
    let object = serde_json::from_str::<Transaction>(json).ok()?;
    let (tx, sender) = object.into_recovered().into_parts();
    let encoded = tx.encoded_2718();
    (keccak256(&encoded) == *tx.hash()).then_some(())?;
    Some((tx.try_into_pooled().ok()?, sender))
}

proptest! {
    #[test]
    fn objects_that_alloy_writes_are_read_also_with_other_fields(
        (_, tx, sender, mut json) in any_object()
    ) {
        json["data"] = serde_json::json!("0xdead");
        json["condition"] = serde_json::json!({"a": [1, {"b": "}]\"\\"}], "hash": "0x00"});
        let text = json.to_string();
        match read_object(&text) {
            FullAnnouncement::Transaction(read) => {
                prop_assert_eq!(read.tx.hash(), tx.hash());
                prop_assert_eq!(&read.raw, &Bytes::from(tx.encoded_2718()));
                prop_assert_eq!(read.claimed_sender, sender);
                prop_assert_eq!(read_with_alloy(&text), Some((read.tx.clone(), sender)));
                prop_assert_eq!(Ok(read.tx), tx.try_into_pooled().map_err(drop));
            }
            other => prop_assert!(false, "{other:?} of {text}"),
        }
    }

    // One field has an odd form that alloy may or may not accept. A transaction that is read is
    // always the announced one, and otherwise it is requested if its hash can be read.
    #[test]
    fn an_object_with_an_odd_field_is_read_like_alloy_or_requested(
        (mut rng, tx, _, mut json) in any_object()
    ) {
        let rng = &mut rng;
        let fields = json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let field = fields[rng.random_range(0..fields.len())].clone();
        make_odd(rng, &mut json, &field);
        let text = json.to_string();
        let expected = read_with_alloy(&text);
        match read_object(&text) {
            FullAnnouncement::Transaction(read) => {
                prop_assert_eq!(keccak256(&read.raw), *tx.hash());
                prop_assert_eq!(&PooledTransaction::decode_2718_exact(&read.raw).unwrap(), &read.tx);
                // alloy also checks the form of some fields that are not read here.
                if let Some(expected) = expected {
                    prop_assert_eq!(expected, (read.tx, read.claimed_sender), "{}", text);
                }
            }
            FullAnnouncement::FetchRaw(hash) => prop_assert_eq!(hash, *tx.hash()),
            FullAnnouncement::Malformed(..) | FullAnnouncement::NoHash => {
                prop_assert_eq!(expected, None, "{}", text);
            }
        }
    }

    #[test]
    fn text_of_any_kind_does_not_panic(text: String) {
        let _ = read_object(&text);
        let _ = read_object(&format!("{{{text}"));
        let _ = read_object(&format!("{{\"hash\":{text}}}"));
    }

    #[test]
    fn a_damaged_object_is_never_another_transaction(bytes in damaged_seeds("objects")) {
        let text = String::from_utf8_lossy(&bytes);
        if let FullAnnouncement::Transaction(read) = read_object(&text) {
            prop_assert_eq!(keccak256(&read.raw), *read.tx.hash());
            prop_assert_eq!(announced_hash(&text), Some(*read.tx.hash()));
        }
    }
}

/// Removes a field of the object, or gives it another form, mostly with the same value.
fn make_odd(rng: &mut StdRng, object: &mut Json, field: &str) {
    for (name, other) in [("input", "data"), ("gas", "gasLimit")] {
        if field == name && rng.random_bool(0.3) {
            // Only the first of the two names counts.
            object[other] = object.as_object_mut().unwrap().remove(name).unwrap();
            return;
        }
    }
    let value = &mut object[field];
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x")).map(str::to_owned);
    match (rng.random_range(0..9), digits) {
        (0, _) => {
            object.as_object_mut().unwrap().remove(field);
        }
        (1, _) => *value = Json::Null,
        (2, _) => *value = serde_json::json!(rng.random_range(0..40)),
        (3, _) => {
            *value = serde_json::json!(["", "0x", "0xzz", "zz", "0x1", "1"][rng.random_range(0..6)])
        }
        (4, Some(digits)) => {
            let zeros = "0".repeat(rng.random_range(1..70));
            *value = format!("0x{zeros}{digits}").into();
        }
        (5, Some(digits)) => *value = format!("0x{}", digits.trim_start_matches('0')).into(),
        (6, Some(digits)) => *value = format!("0x{}", digits.to_uppercase()).into(),
        (7, Some(digits)) => *value = digits.into(),
        (8, Some(digits)) => {
            if let Ok(number) = u64::from_str_radix(&digits, 16) {
                *value = if rng.random() { number.into() } else { number.to_string().into() };
            }
        }
        _ => *value = serde_json::json!({"a": []}),
    }
}

// ---- Objects as nodes write them: the corpus ----

/// Returns an object of the corpus.
fn corpus_object(name: &str) -> String {
    let seed =
        seeds("objects").into_iter().find(|seed| seed.name == name).expect("the corpus has it");
    String::from_utf8(seed.bytes).expect("text")
}

fn eip1559() -> String {
    corpus_object("good-eip1559.json")
}

#[test]
fn the_corpus_of_objects_is_read_like_alloy_or_refused() {
    for seed in seeds("objects") {
        let read = read_object(&String::from_utf8_lossy(&seed.bytes));
        let is_read = match read {
            FullAnnouncement::Transaction(_) => true,
            FullAnnouncement::FetchRaw(_) => seed.is_good(),
            FullAnnouncement::Malformed(..) | FullAnnouncement::NoHash => false,
        };
        assert_eq!(is_read, seed.is_good(), "{}: {read:?}", seed.name);
        if let FullAnnouncement::Transaction(read) = read {
            let text = String::from_utf8(seed.bytes).expect("text");
            assert_eq!(read.raw, Bytes::from(read.tx.encoded_2718()), "{}", seed.name);
            assert_eq!(read_with_alloy(&text), Some((read.tx.clone(), read.claimed_sender)));
            let claimed = read.claimed_sender;
            let recovered = read.tx.recover_signer().expect("signed");
            assert_eq!(recovered, claimed, "{}", seed.name);
        }
    }
}

#[test]
fn an_unprotected_transaction_with_a_chain_id_stays_unprotected() {
    let json = corpus_object("good-legacy-unprotected.json");
    let with_chain = json.replace(r#""v":"#, r#""chainId":"0x539","v":"#);
    assert_eq!(expect_transaction(&with_chain), expect_transaction(&json));
}

#[test]
fn objects_that_cannot_be_decoded_are_requested_by_their_hash() {
    let hash = B256::repeat_byte(7);
    let blobs = format!(r#""blobs":["0x{}"],"type":"0x03""#, "ab".repeat(131_072));
    let types = [r#""0x3""#, r#""0x7e""#, r#""0x5""#, r#""""#, "2", "{}"];
    let odd = r#""type":"0x2""#.to_owned();
    let types = types.map(|tx_type| format!(r#""type":{tx_type}"#));
    for fields in types.into_iter().chain([blobs, odd]) {
        let json = format!(r#"{{{fields},"hash":"{hash}","nonce":"what","r":[]}}"#);
        let read = read_object(&json);
        assert!(matches!(read, FullAnnouncement::FetchRaw(found) if found == hash), "{read:?}");
    }
}

#[test]
fn an_object_that_is_not_the_announced_transaction_names_both_hashes() {
    let (announced, found) = (B256::repeat_byte(7), *expect_transaction(&eip1559()).tx.hash());
    let json = eip1559().replace(&found.to_string(), &announced.to_string());
    assert_eq!(expect_error(&json), Malformed::OtherTransaction { requested: announced, found });
    let json = eip1559().replace(r#""value":"0x0""#, r#""value":"0x1""#);
    assert!(matches!(expect_error(&json), Malformed::OtherTransaction { .. }));
}

#[test]
fn an_object_without_a_required_field_is_requested() {
    let without = |field: &str| {
        let mut object: Json = serde_json::from_str(&eip1559()).unwrap();
        object.as_object_mut().unwrap().remove(field);
        read_object(&object.to_string())
    };
    for field in ["from", "nonce", "gas", "value", "input", "accessList", "r", "s"] {
        assert!(matches!(without(field), FullAnnouncement::FetchRaw(_)), "{field}");
    }
    assert!(matches!(without("hash"), FullAnnouncement::NoHash));
    let other_chain = corpus_object("good-legacy.json").replace("0x539", "0x53a");
    assert!(matches!(read_object(&other_chain), FullAnnouncement::FetchRaw(_)));
    for text in ["[]", "{} {}", r#"{"a":"#, r#"{"hash":"0x1"}"#] {
        assert!(matches!(read_object(text), FullAnnouncement::NoHash), "{text}");
    }
}
