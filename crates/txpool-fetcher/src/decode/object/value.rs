//! Decodes the values of a transaction object, as alloy's own types accept them.

use std::str;

use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization},
};
use alloy_primitives::{Address, B256, Bytes, FixedBytes, U8, U256, Uint};

use crate::decode::scan::{Elements, Members, Value};

/// An unsigned integer: a string of `0x` and hex digits, leading zeros allowed, or one of the other
/// forms that ruint reads (a decimal string, a JSON number).
pub(super) fn uint<const BITS: usize, const LIMBS: usize>(
    value: &Value<'_>,
) -> Option<Uint<BITS, LIMBS>> {
    match value {
        Value::Text(text) => match short_hex(text) {
            Some(value) => Uint::try_from(value).ok(),
            None => match full_hex(text) {
                Some(word) if BITS >= 256 => Uint::try_from_be_slice(word.as_slice()),
                _ => str::from_utf8(text).ok()?.parse().ok(),
            },
        },
        // serde_json reads every number that is not a 64-bit integer as a float.
        Value::Number(digits) => {
            Uint::try_from(str::from_utf8(digits).ok()?.parse::<u64>().ok()?).ok()
        }
        _ => None,
    }
}

/// `0x` and 1 to 32 hex digits.
fn short_hex(text: &[u8]) -> Option<u128> {
    let digits = text.strip_prefix(b"0x")?;
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    let mut value = 0;
    for digit in digits {
        value = value << 4 | u128::from((*digit as char).to_digit(16)?);
    }
    Some(value)
}

/// `0x` and 64 hex digits.
fn full_hex(text: &[u8]) -> Option<B256> {
    let digits = text.strip_prefix(b"0x").filter(|digits| digits.len() == 64)?;
    const_hex::decode_to_array(digits).ok().map(B256::new)
}

/// Bytes of a fixed length, `0x` optional.
pub(super) fn fixed<const N: usize>(value: &Value<'_>) -> Option<FixedBytes<N>> {
    let Value::Text(text) = value else { return None };
    const_hex::decode_to_array(text).ok().map(FixedBytes::new)
}

/// An address, in upper, lower or mixed case; a checksum is not verified.
pub(super) fn address(value: &Value<'_>) -> Option<Address> {
    fixed(value).map(Address::from)
}

/// Bytes of any length, `0x` optional.
pub(super) fn data(value: &Value<'_>) -> Option<Bytes> {
    let Value::Text(text) = value else { return None };
    const_hex::decode(text).ok().map(Bytes::from)
}

/// An EIP-2930 access list.
pub(super) fn access_list(value: &Value<'_>) -> Option<AccessList> {
    elements(value, access_list_item).map(AccessList)
}

fn access_list_item(value: &Value<'_>) -> Option<AccessListItem> {
    let mut address = None;
    let mut storage_keys = None;
    members(value, |key, value| match key {
        b"address" => address = Some(value),
        b"storageKeys" => storage_keys = Some(value),
        _ => {}
    })?;
    Some(AccessListItem {
        address: self::address(&address?)?,
        storage_keys: elements(&storage_keys?, fixed)?,
    })
}

/// The authorization list of an EIP-7702 transaction.
pub(super) fn authorizations(value: &Value<'_>) -> Option<Vec<SignedAuthorization>> {
    elements(value, authorization)
}

fn authorization(value: &Value<'_>) -> Option<SignedAuthorization> {
    let [mut chain_id, mut address, mut nonce, mut parity, mut v, mut r, mut s] =
        [const { None }; 7];
    members(value, |key, value| match key {
        b"chainId" => chain_id = Some(value),
        b"address" => address = Some(value),
        b"nonce" => nonce = Some(value),
        b"yParity" => parity = Some(value),
        b"v" => v = Some(value),
        b"r" => r = Some(value),
        b"s" => s = Some(value),
        _ => {}
    })?;
    let inner = Authorization {
        chain_id: uint::<256, 4>(&chain_id?)?,
        address: self::address(&address?)?,
        nonce: uint::<64, 1>(&nonce?)?.to(),
    };
    // Any value: a wrong one only invalidates this authorization, not the transaction.
    let given = |value: Option<Value<'_>>| match value {
        None | Some(Value::Null) => Some(None),
        Some(value) => uint::<8, 1>(&value).map(Some),
    };
    let (parity, v): (Option<U8>, Option<U8>) = (given(parity)?, given(v)?);
    let (r, s): (U256, U256) = (uint(&r?)?, uint(&s?)?);
    Some(SignedAuthorization::new_unchecked(inner, parity.or(v)?.to(), r, s))
}

fn elements<T>(value: &Value<'_>, decode: impl Fn(&Value<'_>) -> Option<T>) -> Option<Vec<T>> {
    let Value::Array(json) = value else { return None };
    let mut elements = Elements::new(json).ok()?;
    let mut decoded = Vec::new();
    while let Some(element) = elements.next().ok()? {
        decoded.push(decode(&element)?);
    }
    Some(decoded)
}

/// Calls `show` for every member of an object. If a key appears twice the later value counts, as in
/// serde_json's maps.
fn members<'a>(value: &Value<'a>, mut show: impl FnMut(&[u8], Value<'a>)) -> Option<()> {
    let Value::Object(json) = value else { return None };
    let mut members = Members::new(json).ok()?;
    while let Some((key, value)) = members.next().ok()? {
        show(&key, value);
    }
    Some(())
}
