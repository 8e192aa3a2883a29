use alloy_consensus::{
    EthereumTypedTransaction, SignableTransaction as _, Transaction as _, TxEip4844,
    TxEip4844Variant, TxEnvelope, transaction::TransactionInfo,
};
use alloy_eips::{
    Decodable2718 as _,
    eip2930::AccessListItem,
    eip7594::BlobTransactionSidecarVariant,
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{address, bytes};
use alloy_rpc_types_eth::Transaction;
use mock_node::workload::{Account, test_accounts};
use proptest::prelude::*;
use rand::{Rng, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
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

/// A transaction of a type in 0..=4 with a signature that nobody made.
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
        3 => TxEip4844Variant::<BlobTransactionSidecarVariant>::TxEip4844(TxEip4844 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: rng.random::<[u8; 20]>().into(),
            value,
            access_list,
            blob_versioned_hashes: vec![B256::new(rng.random())],
            max_fee_per_blob_gas: wei(rng),
            input,
        })
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

fn object_of(rng: &mut StdRng, tx: TxEnvelope, from: Address) -> Transaction {
    // No literal: newer versions of alloy have more fields.
    let tx = Recovered::new_unchecked(tx, from);
    let mut object = Transaction::from_transaction(tx, TransactionInfo::default());
    // Shown as `gasPrice` where the type has no field of that name.
    object.effective_gas_price = rng.random_bool(0.8).then(|| wei(rng));
    object
}

// ---- The objects' text: any order, whitespace, escapes and fields of no interest ----

fn whitespace(rng: &mut StdRng, out: &mut String) {
    while rng.random_bool(0.1) {
        out.push(*[' ', '\n', '\t', '\r'].choose(rng));
    }
}

trait Choose<T> {
    fn choose(&self, rng: &mut StdRng) -> &T;
}

impl<T> Choose<T> for [T] {
    fn choose(&self, rng: &mut StdRng) -> &T {
        &self[rng.random_range(0..self.len())]
    }
}

fn string(rng: &mut StdRng, text: &str, out: &mut String) {
    let escaped = rng.random_bool(0.02);
    out.push('"');
    for char in text.chars() {
        if escaped && rng.random_bool(0.2) {
            out.push_str(&format!("\\u{:04x}", char as u32));
        } else {
            match char {
                '"' | '\\' => out.extend(['\\', char]),
                char => out.push(char),
            }
        }
    }
    out.push('"');
}

fn write(rng: &mut StdRng, json: &Json, out: &mut String) {
    match json {
        Json::String(text) => string(rng, text, out),
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                whitespace(rng, out);
                write(rng, item, out);
                whitespace(rng, out);
            }
            out.push(']');
        }
        Json::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.shuffle(rng);
            out.push('{');
            for (index, (key, value)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                whitespace(rng, out);
                string(rng, key, out);
                whitespace(rng, out);
                out.push(':');
                whitespace(rng, out);
                write(rng, value, out);
                whitespace(rng, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Fields that an object may have besides those of a transaction.
fn add_extra_fields(rng: &mut StdRng, object: &mut Json) {
    let extras = [
        ("data", serde_json::json!("0xdead")),
        ("creates", Json::Null),
        ("condition", serde_json::json!({"a": [1, {"b": "}]\"\\"}], "hash": "0x00"})),
        ("blobs", serde_json::json!(["0x1122", "0x33\"}"])),
        ("x\"\\y", serde_json::json!(-1.5e3)),
        ("isFirst", serde_json::json!(true)),
    ];
    for (key, value) in extras {
        if rng.random_bool(0.3) {
            object[key] = value;
        }
    }
}

fn text_of(rng: &mut StdRng, object: &Json) -> String {
    let mut text = String::new();
    whitespace(rng, &mut text);
    write(rng, object, &mut text);
    whitespace(rng, &mut text);
    text
}

fn into_pooled(tx: TxEnvelope) -> PooledTransaction {
    tx.try_into_pooled().expect("no blob transaction")
}

#[track_caller]
fn expect_transaction(json: &str) -> FullTransaction {
    match read_object(json.as_bytes()) {
        FullAnnouncement::Transaction(transaction) => *transaction,
        other => panic!("{other:?} for {json}"),
    }
}

#[track_caller]
fn expect_error(json: &str) -> ObjectError {
    match read_object(json.as_bytes()) {
        FullAnnouncement::Malformed { reason, .. } => reason,
        other => panic!("{other:?} for {json}"),
    }
}

/// What alloy makes of the object, if its hash is that of its transaction.
fn by_alloy(json: &str) -> Option<(PooledTransaction, Address)> {
    let object = serde_json::from_str::<Transaction>(json).ok()?;
    let (tx, from) = object.into_recovered().into_parts();
    let encoded = tx.encoded_2718();
    (keccak256(&encoded) == *tx.hash()).then_some(())?;
    Some((tx.try_into_pooled().ok()?, from))
}

proptest! {
    #[test]
    fn what_alloy_writes_is_read_back_in_any_order_with_any_whitespace_and_other_fields(
        seed: u64,
        tx_type in 0u8..=4,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let tx = transaction(rng, tx_type);
        let from: Address = rng.random::<[u8; 20]>().into();
        let object = object_of(rng, tx.clone(), from);
        let mut json = serde_json::to_value(&object).unwrap();
        add_extra_fields(rng, &mut json);
        let text = text_of(rng, &json);
        match read_object(text.as_bytes()) {
            FullAnnouncement::Transaction(read) => {
                prop_assert_ne!(tx_type, 3);
                prop_assert_eq!(read.tx.hash(), tx.hash());
                prop_assert_eq!(&read.raw, &Bytes::from(tx.encoded_2718()));
                prop_assert_eq!(read.claimed_sender, from);
                prop_assert_eq!(by_alloy(&text), Some((read.tx.clone(), from)));
                prop_assert_eq!(read.tx, into_pooled(tx));
            }
            FullAnnouncement::FetchRaw(hash) => {
                prop_assert_eq!(tx_type, 3);
                prop_assert_eq!(hash, *tx.hash());
            }
            FullAnnouncement::Malformed { reason, .. } => prop_assert!(false, "{reason} in {text}"),
        }
    }

    // Every field of interest in every shape that alloy may or may not accept: whenever alloy
    // reads the announced transaction, so do we, and what we read is always what was announced.
    #[test]
    fn an_object_with_one_odd_field_is_read_as_alloy_reads_it(
        seed: u64,
        tx_type in prop_oneof![Just(0u8), Just(1), Just(2), Just(4)],
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let tx = transaction(rng, tx_type);
        let from: Address = rng.random::<[u8; 20]>().into();
        let object = object_of(rng, tx.clone(), from);
        let mut json = serde_json::to_value(&object).unwrap();
        let fields = json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let field = fields.choose(rng).clone();
        make_odd(rng, &mut json, &field);
        let text = text_of(rng, &json);
        let expected = by_alloy(&text);
        match read_object(text.as_bytes()) {
            FullAnnouncement::Transaction(read) => {
                prop_assert_eq!(keccak256(&read.raw), *tx.hash());
                prop_assert_eq!(&PooledTransaction::decode_2718_exact(&read.raw).unwrap(), &read.tx);
                // Of some fields that are not read, alloy verifies the form.
                let is_read = match field.as_str() {
                    "blockHash" | "blockNumber" | "transactionIndex" => false,
                    "gasPrice" => tx_type < 2,
                    _ => true,
                };
                if is_read {
                    prop_assert_eq!(expected, Some((read.tx, read.claimed_sender)), "{}", text);
                }
            }
            FullAnnouncement::FetchRaw(hash) => {
                prop_assert_eq!(hash, *tx.hash());
                prop_assert_eq!(expected, None, "{}", text);
            }
            FullAnnouncement::Malformed { reason, .. } => {
                prop_assert_eq!(expected, None, "{} in {}", reason, text);
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_do_not_panic(bytes: Vec<u8>) {
        let _ = read_object(&bytes);
        let _ = read_object(&[b"{".as_slice(), &bytes].concat());
        let _ = read_object(&[b"{\"hash\":".as_slice(), &bytes, b"}"].concat());
    }

    #[test]
    fn a_damaged_object_does_not_panic_and_is_never_another_transaction(
        seed: u64,
        tx_type in 0u8..=4,
    ) {
        let rng = &mut StdRng::seed_from_u64(seed);
        let tx = transaction(rng, tx_type);
        let object = object_of(rng, tx.clone(), Address::ZERO);
        let mut text = serde_json::to_vec(&object).unwrap();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..text.len());
            match rng.random_range(0..3) {
                0 => text[at] = rng.random(),
                1 => text[at] = *b"{}[]\",:\\0n".choose(rng),
                _ => text.truncate(at.max(1)),
            }
        }
        if let FullAnnouncement::Transaction(read) = read_object(&text) {
            prop_assert_eq!(keccak256(&read.raw), *read.tx.hash());
            // A changed field changes the hash: only `from` can differ.
            if read.tx.hash() == tx.hash() {
                prop_assert_eq!(read.tx, into_pooled(tx));
            }
        }
    }

    #[test]
    fn a_damaged_kept_object_is_never_another_transaction(text in damaged_seeds("objects")) {
        if let FullAnnouncement::Transaction(read) = read_object(&text) {
            prop_assert_eq!(keccak256(&read.raw), *read.tx.hash());
            prop_assert_eq!(announced_hash(&text), Some(*read.tx.hash()));
        }
    }

    #[test]
    fn integers_are_those_that_ruint_reads(text in "(0x)?[0-9a-fA-F_]{0,70}|[0-9]{1,30}|\\PC{0,5}") {
        fn check<const BITS: usize, const LIMBS: usize>(text: &str) {
            let value = Value::Text(text.as_bytes().into());
            let quoted = serde_json::to_string(text).unwrap();
            let expected = serde_json::from_str::<alloy_primitives::Uint<BITS, LIMBS>>(&quoted).ok();
            assert_eq!(value::uint::<BITS, LIMBS>(&value), expected, "{text}");
        }
        check::<8, 1>(&text);
        check::<64, 1>(&text);
        check::<128, 2>(&text);
        check::<256, 4>(&text);
    }
}

#[test]
fn the_kept_objects_are_read_or_refused() {
    for seed in seeds("objects") {
        let read = read_object(&seed.bytes);
        let is_read = !matches!(read, FullAnnouncement::Malformed { .. });
        assert_eq!(is_read, seed.is_good(), "{}: {read:?}", seed.name);
    }
}

/// Removes one field of the object, or gives it another form, most of them of equal value.
fn make_odd(rng: &mut StdRng, object: &mut Json, field: &str) {
    if field == "input" && rng.random_bool(0.3) {
        // Only `input` counts.
        let input = object["input"].take();
        object.as_object_mut().unwrap().remove("input");
        object["data"] = input;
        return;
    }
    if field == "gas" && rng.random_bool(0.3) {
        let gas = object["gas"].take();
        object.as_object_mut().unwrap().remove("gas");
        object["gasLimit"] = gas;
        return;
    }
    let value = &mut object[field];
    let digits = value.as_str().and_then(|text| text.strip_prefix("0x")).map(str::to_owned);
    match (rng.random_range(0..9), digits) {
        (0, _) => {
            object.as_object_mut().unwrap().remove(field);
        }
        (1, _) => *value = Json::Null,
        (2, _) => *value = serde_json::json!(rng.random_range(0..40)),
        (3, _) => *value = serde_json::json!(["", "0x", "0xzz", "zz", "0x1", "1"].choose(rng)),
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

// ---- Objects as nodes write them ----

fn signed(account: &Account, tx: EthereumTypedTransaction<TxEip4844Variant>) -> TxEnvelope {
    let signature = account.sign_hash(tx.signature_hash());
    tx.into_signed(signature).into()
}

fn account() -> Account {
    test_accounts(1).remove(0)
}

const RECIPIENT: Address = address!("00000000000000000000000000000000deadbeef");

fn legacy(chain_id: Option<u64>) -> TxEnvelope {
    let tx = TxLegacy {
        chain_id,
        nonce: 9,
        gas_price: 20_000_000_000,
        gas_limit: 21_000,
        to: RECIPIENT.into(),
        value: U256::from(10).pow(U256::from(18)),
        input: Bytes::new(),
    };
    signed(&account(), tx.into())
}

fn eip1559(nonce: u64) -> TxEnvelope {
    let tx = TxEip1559 {
        chain_id: 1337,
        nonce,
        gas_limit: 90_000,
        max_fee_per_gas: 30_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: RECIPIENT.into(),
        value: U256::ZERO,
        access_list: AccessList::default(),
        input: bytes!("a9059cbb00000000000000000000000000000000000000000000000000000000deadbeef"),
    };
    signed(&account(), tx.into())
}

fn eip7702() -> TxEnvelope {
    let account = account();
    let authorization = Authorization { chain_id: U256::from(1337), address: RECIPIENT, nonce: 1 };
    let signature = account.sign_hash(authorization.signature_hash());
    let tx = TxEip7702 {
        chain_id: 1337,
        nonce: 0,
        gas_limit: 100_000,
        max_fee_per_gas: 30_000_000_000,
        max_priority_fee_per_gas: 1,
        to: RECIPIENT,
        value: U256::from(7),
        access_list: AccessList(vec![AccessListItem {
            address: RECIPIENT,
            storage_keys: vec![B256::with_last_byte(1), B256::ZERO],
        }]),
        authorization_list: vec![authorization.into_signed(signature)],
        input: Bytes::new(),
    };
    signed(&account, tx.into())
}

fn blob() -> TxEnvelope {
    let tx = TxEip4844 {
        chain_id: 1337,
        blob_versioned_hashes: vec![B256::with_last_byte(1)],
        ..Default::default()
    };
    let tx = TxEip4844Variant::<BlobTransactionSidecarVariant>::TxEip4844(tx);
    signed(&account(), tx.into())
}

/// The hash, `v`, `r` and `s`, as geth and reth write integers: without leading zeros.
fn hash_and_signature(tx: &TxEnvelope) -> (B256, String, String, String) {
    let signature = tx.signature();
    let v = match tx.chain_id() {
        _ if !tx.is_legacy() => u128::from(signature.v()),
        Some(chain_id) => 35 + 2 * u128::from(chain_id) + u128::from(signature.v()),
        None => 27 + u128::from(signature.v()),
    };
    let [r, s] = [signature.r(), signature.s()].map(|word| format!("{word:#x}"));
    (*tx.hash(), format!("{v:#x}"), r, s)
}

/// Go's struct order. A legacy transaction has no `yParity`, an unprotected one no `chainId`.
fn geth_legacy(tx: &TxEnvelope) -> String {
    let (hash, v, r, s) = hash_and_signature(tx);
    let chain_id = tx.chain_id().map_or(String::new(), |id| format!(r#""chainId":"{id:#x}","#));
    let from = account().address;
    format!(
        r#"{{"blockHash":null,"blockNumber":null,"from":"{from:#x}","gas":"0x5208","gasPrice":"0x4a817c800","hash":"{hash}","input":"0x","nonce":"0x9","to":"0x00000000000000000000000000000000deadbeef","transactionIndex":null,"value":"0xde0b6b3a7640000","type":"0x0",{chain_id}"v":"{v}","r":"{r}","s":"{s}"}}"#
    )
}

fn geth_eip1559(tx: &TxEnvelope) -> String {
    let (hash, v, r, s) = hash_and_signature(tx);
    let (from, nonce) = (account().address, tx.nonce());
    format!(
        r#"{{"blockHash":null,"blockNumber":null,"from":"{from:#x}","gas":"0x15f90","gasPrice":"0x6fc23ac00","maxFeePerGas":"0x6fc23ac00","maxPriorityFeePerGas":"0x3b9aca00","hash":"{hash}","input":"0xa9059cbb00000000000000000000000000000000000000000000000000000000deadbeef","nonce":"{nonce:#x}","to":"0x00000000000000000000000000000000deadbeef","transactionIndex":null,"value":"0x0","type":"0x2","accessList":[],"chainId":"0x539","v":"{v}","r":"{r}","s":"{s}","yParity":"{v}"}}"#
    )
}

/// alloy's order: the envelope, the signature, the hash, then the block's fields.
fn reth_eip1559(tx: &TxEnvelope) -> String {
    let (hash, v, r, s) = hash_and_signature(tx);
    let (from, nonce) = (account().address, tx.nonce());
    format!(
        r#"{{"type":"0x2","chainId":"0x539","nonce":"{nonce:#x}","gas":"0x15f90","maxFeePerGas":"0x6fc23ac00","maxPriorityFeePerGas":"0x3b9aca00","to":"0x00000000000000000000000000000000deadbeef","value":"0x0","accessList":[],"input":"0xa9059cbb00000000000000000000000000000000000000000000000000000000deadbeef","r":"{r}","s":"{s}","yParity":"{v}","v":"{v}","hash":"{hash}","blockHash":null,"blockNumber":null,"transactionIndex":null,"from":"{from:#x}","gasPrice":"0x6fc23ac00"}}"#
    )
}

fn anvil_eip7702(tx: &TxEnvelope) -> String {
    let (hash, v, r, s) = hash_and_signature(tx);
    let authorization = &tx.authorization_list().unwrap()[0];
    let parity = authorization.y_parity();
    let [auth_r, auth_s] = [authorization.r(), authorization.s()];
    let from = account().address;
    format!(
        r#"{{"hash":"{hash}","nonce":"0x0","blockHash":null,"blockNumber":null,"transactionIndex":null,"from":"{from:#x}","to":"0x00000000000000000000000000000000deadbeef","value":"0x7","gasPrice":"0x6fc23ac00","gas":"0x186a0","maxFeePerGas":"0x6fc23ac00","maxPriorityFeePerGas":"0x1","input":"0x","r":"{r}","s":"{s}","v":"{v}","yParity":"{v}","chainId":"0x539","accessList":[{{"address":"0x00000000000000000000000000000000deadbeef","storageKeys":["0x0000000000000000000000000000000000000000000000000000000000000001","0x0000000000000000000000000000000000000000000000000000000000000000"]}}],"type":"0x4","authorizationList":[{{"chainId":"0x539","address":"0x00000000000000000000000000000000deadbeef","nonce":"0x1","yParity":"{parity:#x}","r":"{auth_r:#x}","s":"{auth_s:#x}"}}]}}"#
    )
}

#[test]
fn objects_of_geth_reth_and_anvil_are_read_and_their_senders_recovered() {
    let mut objects = vec![
        (legacy(Some(1337)), geth_legacy(&legacy(Some(1337)))),
        (legacy(None), geth_legacy(&legacy(None))),
        (eip7702(), anvil_eip7702(&eip7702())),
    ];
    // Enough of them that some have an `r` or `s` with leading zeros.
    for tx in (0..64).map(eip1559) {
        objects.push((tx.clone(), geth_eip1559(&tx)));
        objects.push((tx.clone(), reth_eip1559(&tx)));
    }
    for (tx, json) in objects {
        let read = expect_transaction(&json);
        assert_eq!(read.raw, Bytes::from(tx.encoded_2718()));
        assert_eq!(read.tx, into_pooled(tx));
        assert_eq!(by_alloy(&json), Some((read.tx.clone(), account().address)));
        assert_eq!(read.clone().trust_sender().0.signer(), account().address);
        assert_eq!(read.recover_sender().unwrap().0.signer(), account().address);
    }
}

#[test]
fn an_unprotected_transaction_with_a_chain_id_beside_it_stays_unprotected() {
    let tx = legacy(None);
    let json = geth_legacy(&tx).replace(r#""v":"#, r#""chainId":"0x539","v":"#);
    assert_eq!(expect_transaction(&json).tx, into_pooled(tx));
}

#[test]
fn a_blob_transaction_is_requested_by_its_hash_with_and_without_its_sidecar() {
    let hash = *blob().hash();
    let from = account().address;
    let blobs = "ab".repeat(131_072);
    let bare = format!(r#"{{"type":"0x3","hash":"{hash}","from":"{from}","nonce":null}}"#);
    let with_sidecar = format!(r#"{{"blobs":["0x{blobs}"],"type":"0x03","hash":"{hash}"}}"#);
    for json in [bare, with_sidecar] {
        let read = read_object(json.as_bytes());
        assert!(matches!(read, FullAnnouncement::FetchRaw(found) if found == hash), "{read:?}");
    }
}

#[test]
fn a_type_that_is_unknown_is_requested_by_its_hash_whatever_its_fields() {
    let hash = B256::repeat_byte(7);
    for tx_type in [r#""0x7e""#, r#""0x5""#, r#""""#, "2", "{}"] {
        let json = format!(r#"{{"type":{tx_type},"hash":"{hash}","nonce":"what","r":[]}}"#);
        let read = read_object(json.as_bytes());
        assert!(matches!(read, FullAnnouncement::FetchRaw(found) if found == hash), "{read:?}");
    }
}

#[test]
fn an_object_that_is_not_the_announced_transaction_names_both_hashes() {
    let (tx, other) = (eip1559(1), eip1559(2));
    let json = geth_eip1559(&tx).replace(&tx.hash().to_string(), &other.hash().to_string());
    let expected = ObjectError::OtherTransaction { announced: *other.hash(), found: *tx.hash() };
    assert_eq!(expect_error(&json), expected);
    let json = geth_eip1559(&tx).replace(r#""value":"0x0""#, r#""value":"0x1""#);
    assert!(matches!(expect_error(&json), ObjectError::OtherTransaction { .. }));
}

#[test]
fn a_claimed_sender_is_not_the_recovered_one() {
    let from = account().address;
    let json = geth_eip1559(&eip1559(0)).replace(&format!("{from:#x}"), &RECIPIENT.to_string());
    let read = expect_transaction(&json);
    assert_eq!(read.clone().trust_sender().0.signer(), RECIPIENT);
    assert_eq!(read.recover_sender().unwrap().0.signer(), from);
}

#[test]
fn an_error_names_the_field() {
    let json = geth_eip1559(&eip1559(0));
    let without = |field: &str| {
        let mut object: Json = serde_json::from_str(&json).unwrap();
        object.as_object_mut().unwrap().remove(field);
        expect_error(&object.to_string())
    };
    for field in ["hash", "from", "nonce", "gas", "value", "input", "accessList", "r", "s"] {
        assert_eq!(without(field), ObjectError::Missing { field });
    }
    let odd = json.replace(r#""nonce":"0x0""#, r#""nonce":"0xg""#);
    assert_eq!(expect_error(&odd), ObjectError::Undecodable { field: "nonce" });
    let odd = geth_legacy(&legacy(Some(1337))).replace("0x539", "0x53a");
    assert_eq!(expect_error(&odd), ObjectError::OtherChainInV { in_v: 1337, chain_id: 1338 });
    assert_eq!(expect_error("[]"), ObjectError::NotAnObject { at: 0 });
    assert_eq!(expect_error("{} {}"), ObjectError::NotAnObject { at: 3 });
    assert_eq!(expect_error(r#"{"a":"#), ObjectError::NotAnObject { at: 5 });
}

#[test]
fn a_signature_that_nobody_made_cannot_be_recovered() {
    let tx = eip1559(0);
    let json = geth_eip1559(&tx);
    let [r, s] = [tx.signature().r(), tx.signature().s()].map(|word| format!("{word:#x}"));
    let TxEnvelope::Eip1559(made) = &tx else { unreachable!() };
    let tx: TxEnvelope =
        made.tx().clone().into_signed(Signature::new(U256::ZERO, U256::ZERO, false)).into();
    let parity = made.signature().v();
    let json = json
        .replace(&made.hash().to_string(), &tx.hash().to_string())
        .replace(&format!(r#""{r}""#), r#""0x0""#)
        .replace(&format!(r#""{s}""#), r#""0x0""#)
        .replace(&format!(r#""yParity":"{:#x}""#, u8::from(parity)), r#""yParity":"0x0""#);
    assert!(expect_transaction(&json).recover_sender().is_err());
}
