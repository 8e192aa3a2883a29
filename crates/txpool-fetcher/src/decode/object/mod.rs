//! From the object of a full announcement to a transaction.
//!
//! A subscription to `newPendingTransactions` with `true` delivers objects instead of hashes.
//! alloy's own type reads them through serde's flattening, which first builds a map of the object;
//! this reads the text in place. The transaction is encoded again and hashed, so only an object
//! that describes exactly the announced transaction is accepted. The hash does not cover `from`: it
//! is the node's claim, see [`FullTransaction`].

mod value;

use alloy_consensus::{
    Signed, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    crypto::RecoveryError,
    transaction::{Recovered, SignerRecoverable, from_eip155_value},
};
use alloy_eips::{Encodable2718, eip2930::AccessList};
use alloy_primitives::{
    Address, B256, Bytes, Signature, TxKind, U64, U128, U256, keccak256, normalize_v,
};

use super::scan::{Members, SyntaxError, Value};
use chain_view::PooledTransaction;

/// The result of reading one full announcement.
#[derive(Debug)]
pub enum FullAnnouncement {
    /// A transaction that is complete as announced.
    Transaction(Box<FullTransaction>),
    /// To be requested by its hash: a blob transaction (reth and geth announce it without its
    /// sidecar; anvil's sidecar is not read), or one of an unknown type.
    FetchRaw(B256),
    /// The announcement cannot be used.
    Malformed {
        /// The announced hash, if that much could be read.
        hash: Option<B256>,
        /// Why.
        reason: ObjectError,
    },
}

/// A transaction whose content matches its hash, with the sender that the node claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTransaction {
    /// The transaction: legacy, EIP-2930, EIP-1559 or EIP-7702.
    pub tx: PooledTransaction,
    /// Its EIP-2718 encoding.
    pub raw: Bytes,
    /// The field `from`. The hash does not cover it: anyone who can write to the connection can
    /// name any sender here.
    pub claimed_sender: Address,
}

impl FullTransaction {
    /// Uses the sender that the node claims. The signature is not verified.
    #[must_use]
    pub fn trust_sender(self) -> (Recovered<PooledTransaction>, Bytes) {
        (Recovered::new_unchecked(self.tx, self.claimed_sender), self.raw)
    }

    /// Recovers the sender from the signature, about 34 us; the claimed one is ignored.
    ///
    /// # Errors
    /// The signature is invalid.
    pub fn recover_sender(self) -> Result<(Recovered<PooledTransaction>, Bytes), RecoveryError> {
        let sender = self.tx.recover_signer()?;
        Ok((Recovered::new_unchecked(self.tx, sender), self.raw))
    }
}

/// Why the object of a full announcement cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The text is not a JSON object.
    #[error("not a JSON object, at byte {at}")]
    NotAnObject {
        /// The first byte that does not fit.
        at: usize,
    },
    /// A field that the transaction's type requires is missing.
    #[error("`{field}` is missing")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field's value cannot be decoded.
    #[error("`{field}` cannot be decoded")]
    Undecodable {
        /// The field.
        field: &'static str,
    },
    /// The signature's `v` of a legacy transaction names another chain than `chainId`.
    #[error("`v` is for chain {in_v}, `chainId` is {chain_id}")]
    OtherChainInV {
        /// The chain id in `v`.
        in_v: u64,
        /// The chain id in `chainId`.
        chain_id: u64,
    },
    /// The object describes another transaction than the hash that it names.
    #[error("announced as {announced}, the object is transaction {found}")]
    OtherTransaction {
        /// The field `hash`.
        announced: B256,
        /// The hash of the object's transaction.
        found: B256,
    },
}

/// Reads the object of one full announcement. Accepts what alloy's `Transaction` accepts, in any order of
/// fields; a field that appears twice counts with its later value. Never panics, whatever the
/// bytes.
#[must_use]
pub fn read_object(json: &[u8]) -> FullAnnouncement {
    let fields = match Fields::split(json) {
        Ok(fields) => fields,
        Err(SyntaxError { at }) => {
            let reason = ObjectError::NotAnObject { at };
            return FullAnnouncement::Malformed { hash: None, reason };
        }
    };
    let hash = match required("hash", &fields.hash, value::fixed) {
        Ok(hash) => hash,
        Err(reason) => return FullAnnouncement::Malformed { hash: None, reason },
    };
    match fields.transaction(hash) {
        Ok(Some(transaction)) => FullAnnouncement::Transaction(Box::new(transaction)),
        Ok(None) => FullAnnouncement::FetchRaw(hash),
        Err(reason) => FullAnnouncement::Malformed { hash: Some(hash), reason },
    }
}

/// The hash that an object names; nothing else is read.
pub(crate) fn announced_hash(json: &[u8]) -> Option<B256> {
    Fields::split(json).ok().and_then(|fields| value::fixed(&fields.hash?))
}

type Field<'a> = Option<Value<'a>>;

/// The values of the fields that some type of transaction needs. They are decoded only when the
/// type is known: the order of fields is free, and a type that is unknown here may use the same
/// names in another way.
#[derive(Debug, Default)]
struct Fields<'a> {
    tx_type: Field<'a>,
    hash: Field<'a>,
    from: Field<'a>,
    chain_id: Field<'a>,
    nonce: Field<'a>,
    gas_price: Field<'a>,
    max_fee_per_gas: Field<'a>,
    max_priority_fee_per_gas: Field<'a>,
    gas: Field<'a>,
    to: Field<'a>,
    value: Field<'a>,
    input: Field<'a>,
    access_list: Field<'a>,
    authorization_list: Field<'a>,
    r: Field<'a>,
    s: Field<'a>,
    v: Field<'a>,
    y_parity: Field<'a>,
}

impl<'a> Fields<'a> {
    fn split(json: &'a [u8]) -> Result<Self, SyntaxError> {
        let mut fields = Self::default();
        let mut members = Members::new(json)?;
        while let Some((key, value)) = members.next()? {
            if let Some(field) = fields.field(&key) {
                *field = Some(value);
            }
        }
        Ok(fields)
    }

    fn field(&mut self, key: &[u8]) -> Option<&mut Field<'a>> {
        Some(match key {
            b"type" => &mut self.tx_type,
            b"hash" => &mut self.hash,
            b"from" => &mut self.from,
            b"chainId" => &mut self.chain_id,
            b"nonce" => &mut self.nonce,
            b"gasPrice" => &mut self.gas_price,
            b"maxFeePerGas" => &mut self.max_fee_per_gas,
            b"maxPriorityFeePerGas" => &mut self.max_priority_fee_per_gas,
            b"gas" | b"gasLimit" => &mut self.gas,
            b"to" => &mut self.to,
            b"value" => &mut self.value,
            b"input" => &mut self.input,
            b"accessList" => &mut self.access_list,
            b"authorizationList" => &mut self.authorization_list,
            b"r" => &mut self.r,
            b"s" => &mut self.s,
            b"v" => &mut self.v,
            b"yParity" => &mut self.y_parity,
            _ => return None,
        })
    }

    /// The transaction, or `None` if it has to be requested by its hash.
    fn transaction(&self, hash: B256) -> Result<Option<FullTransaction>, ObjectError> {
        let tx_type = match &self.tx_type {
            // Only legacy transactions come without a type.
            None | Some(Value::Null) => b"0x0",
            Some(Value::Text(text)) => text.as_ref(),
            Some(_) => return Ok(None),
        };
        let tx: PooledTransaction = match tx_type {
            b"0x0" | b"0x00" => self.legacy(hash)?.into(),
            b"0x1" | b"0x01" => self.typed(self.eip2930()?, hash)?.into(),
            b"0x2" | b"0x02" => self.typed(self.eip1559()?, hash)?.into(),
            b"0x4" | b"0x04" => self.typed(self.eip7702()?, hash)?.into(),
            _ => return Ok(None),
        };
        let claimed_sender = required("from", &self.from, value::address)?;
        let mut raw = Vec::with_capacity(tx.encode_2718_len());
        tx.encode_2718(&mut raw);
        let found = keccak256(&raw);
        if found != hash {
            return Err(ObjectError::OtherTransaction { announced: hash, found });
        }
        Ok(Some(FullTransaction { tx, raw: raw.into(), claimed_sender }))
    }

    fn legacy(&self, hash: B256) -> Result<Signed<TxLegacy>, ObjectError> {
        let mut tx = TxLegacy {
            chain_id: optional("chainId", &self.chain_id, u64)?,
            nonce: required("nonce", &self.nonce, u64)?,
            // 256 bits, as in alloy, for chains on which it can be larger; the hash check covers
            // the rest.
            gas_price: required("gasPrice", &self.gas_price, value::uint::<256, 4>)?
                .saturating_to(),
            gas_limit: self.gas_limit()?,
            to: self.kind()?,
            value: self.value()?,
            input: self.input()?,
        };
        let (r, s) = self.r_and_s()?;
        let v: U128 = required("v", &self.v, value::uint)?;
        // All zero: a system transaction, which the chain itself made.
        let signature = if v.is_zero() && r.is_zero() && s.is_zero() {
            Signature::new(r, s, false)
        } else {
            let (parity, in_v) =
                from_eip155_value(v.to()).ok_or(ObjectError::Undecodable { field: "v" })?;
            // Nodes include `chainId` for an unprotected transaction too, so `v` decides.
            if let Some((chain_id, in_v)) = tx.chain_id.zip(in_v)
                && chain_id != in_v
            {
                return Err(ObjectError::OtherChainInV { in_v, chain_id });
            }
            tx.chain_id = in_v;
            Signature::new(r, s, parity)
        };
        Ok(Signed::new_unchecked(tx, signature, hash))
    }

    fn eip2930(&self) -> Result<TxEip2930, ObjectError> {
        Ok(TxEip2930 {
            chain_id: required("chainId", &self.chain_id, u64)?,
            nonce: required("nonce", &self.nonce, u64)?,
            gas_price: required("gasPrice", &self.gas_price, u128)?,
            gas_limit: self.gas_limit()?,
            to: self.kind()?,
            value: self.value()?,
            access_list: required("accessList", &self.access_list, value::access_list)?,
            input: self.input()?,
        })
    }

    fn eip1559(&self) -> Result<TxEip1559, ObjectError> {
        let access_list = match &self.access_list {
            // alloy allows it here and in no other type.
            Some(Value::Null) => AccessList::default(),
            list => required("accessList", list, value::access_list)?,
        };
        Ok(TxEip1559 {
            chain_id: required("chainId", &self.chain_id, u64)?,
            nonce: required("nonce", &self.nonce, u64)?,
            gas_limit: self.gas_limit()?,
            max_fee_per_gas: required("maxFeePerGas", &self.max_fee_per_gas, u128)?,
            max_priority_fee_per_gas: self.max_priority_fee()?,
            to: self.kind()?,
            value: self.value()?,
            access_list,
            input: self.input()?,
        })
    }

    fn eip7702(&self) -> Result<TxEip7702, ObjectError> {
        Ok(TxEip7702 {
            chain_id: required("chainId", &self.chain_id, u64)?,
            nonce: required("nonce", &self.nonce, u64)?,
            gas_limit: self.gas_limit()?,
            max_fee_per_gas: required("maxFeePerGas", &self.max_fee_per_gas, u128)?,
            max_priority_fee_per_gas: self.max_priority_fee()?,
            to: required("to", &self.to, value::address)?,
            value: self.value()?,
            access_list: required("accessList", &self.access_list, value::access_list)?,
            authorization_list: required(
                "authorizationList",
                &self.authorization_list,
                value::authorizations,
            )?,
            input: self.input()?,
        })
    }

    /// Signs a typed transaction with `r`, `s` and `yParity`, or `v` where that is missing.
    fn typed<T>(&self, tx: T, hash: B256) -> Result<Signed<T>, ObjectError> {
        let (r, s) = self.r_and_s()?;
        let v = optional("v", &self.v, u64)?;
        let parity = match optional("yParity", &self.y_parity, u64)? {
            Some(0) => false,
            Some(1) => true,
            Some(_) => return Err(ObjectError::Undecodable { field: "yParity" }),
            None => {
                let v = v.ok_or(ObjectError::Missing { field: "yParity" })?;
                normalize_v(v).ok_or(ObjectError::Undecodable { field: "v" })?
            }
        };
        Ok(Signed::new_unchecked(tx, Signature::new(r, s, parity), hash))
    }

    fn r_and_s(&self) -> Result<(U256, U256), ObjectError> {
        Ok((required("r", &self.r, value::uint)?, required("s", &self.s, value::uint)?))
    }

    fn gas_limit(&self) -> Result<u64, ObjectError> {
        required("gas", &self.gas, u64)
    }

    fn max_priority_fee(&self) -> Result<u128, ObjectError> {
        required("maxPriorityFeePerGas", &self.max_priority_fee_per_gas, u128)
    }

    /// The recipient; null or missing creates a contract.
    fn kind(&self) -> Result<TxKind, ObjectError> {
        optional("to", &self.to, value::address).map(TxKind::from)
    }

    fn value(&self) -> Result<U256, ObjectError> {
        required("value", &self.value, value::uint)
    }

    fn input(&self) -> Result<Bytes, ObjectError> {
        required("input", &self.input, value::data)
    }
}

fn required<T>(
    name: &'static str,
    field: &Field<'_>,
    decode: impl Fn(&Value<'_>) -> Option<T>,
) -> Result<T, ObjectError> {
    let value = field.as_ref().ok_or(ObjectError::Missing { field: name })?;
    decode(value).ok_or(ObjectError::Undecodable { field: name })
}

fn optional<T>(
    name: &'static str,
    field: &Field<'_>,
    decode: impl Fn(&Value<'_>) -> Option<T>,
) -> Result<Option<T>, ObjectError> {
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(value) => decode(value).map(Some).ok_or(ObjectError::Undecodable { field: name }),
    }
}

fn u64(value: &Value<'_>) -> Option<u64> {
    value::uint::<64, 1>(value).map(|value: U64| value.to())
}

fn u128(value: &Value<'_>) -> Option<u128> {
    value::uint::<128, 2>(value).map(|value: U128| value.to())
}

#[cfg(test)]
mod tests;
