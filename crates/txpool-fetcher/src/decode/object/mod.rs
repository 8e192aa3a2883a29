//! From the object of a full announcement to a transaction.
//!
//! A subscription to `newPendingTransactions` with `true` delivers objects instead of hashes.
//! alloy's own type reads them through serde's flattening, which first builds a map of the object;
//! this reads each value from where it stands, with alloy's type of the field. The transaction is encoded
//! again and hashed, so only an object that describes exactly the announced transaction is accepted. The hash
//! does not cover `from`: it is the node's claim, see [`FullTransaction`].

use alloy_consensus::{
    Signed, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    crypto::RecoveryError,
    transaction::{Recovered, SignerRecoverable, from_eip155_value},
};
use alloy_eips::{Encodable2718, eip2930::AccessList};
use alloy_primitives::{
    Address, B256, Bytes, Signature, TxKind, U64, U128, U256, keccak256, normalize_v,
};
use chain_view::PooledTransaction;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

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
    /// The text is not a JSON object, or names one of the fields twice.
    #[error("not a JSON object, at column {at}")]
    NotAnObject {
        /// The column of what does not fit.
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
/// fields. Never panics, whatever the bytes.
#[must_use]
pub fn read_object(json: &[u8]) -> FullAnnouncement {
    let mut hash = None;
    let mut read = || -> Result<_, ObjectError> {
        let fields = Fields::read(json)?;
        let announced = required("hash", fields.hash)?;
        hash = Some(announced);
        Ok(match fields.transaction(announced)? {
            Some(transaction) => FullAnnouncement::Transaction(Box::new(transaction)),
            None => FullAnnouncement::FetchRaw(announced),
        })
    };
    read().unwrap_or_else(|reason| FullAnnouncement::Malformed { hash, reason })
}

/// The hash that an object names.
pub(crate) fn announced_hash(json: &[u8]) -> Option<B256> {
    required("hash", Fields::read(json).ok()?.hash).ok()
}

/// The values of the fields that some type of transaction needs. They are decoded only when the
/// type is known: the order of fields is free, and a type that is unknown here may use the same
/// names in another way.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<V> {
    #[serde(rename = "type")]
    tx_type: Option<V>,
    hash: Option<V>,
    from: Option<V>,
    chain_id: Option<V>,
    nonce: Option<V>,
    gas_price: Option<V>,
    max_fee_per_gas: Option<V>,
    max_priority_fee_per_gas: Option<V>,
    #[serde(alias = "gasLimit")]
    gas: Option<V>,
    to: Option<V>,
    value: Option<V>,
    input: Option<V>,
    access_list: Option<V>,
    authorization_list: Option<V>,
    r: Option<V>,
    s: Option<V>,
    v: Option<V>,
    y_parity: Option<V>,
}

/// `null` is none.
type Field<'a> = Option<&'a RawValue>;

impl<'a> Fields<&'a RawValue> {
    fn read(json: &'a [u8]) -> Result<Self, ObjectError> {
        // serde takes an array for a struct too.
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(ObjectError::NotAnObject { at: 0 });
        }
        serde_json::from_slice(json)
            .map_err(|error| ObjectError::NotAnObject { at: error.column() })
    }

    /// The transaction, or `None` if it has to be requested by its hash.
    fn transaction(&self, hash: B256) -> Result<Option<FullTransaction>, ObjectError> {
        let tx: PooledTransaction = match self.tx_type.map(RawValue::get) {
            // Only legacy transactions come without a type.
            None | Some(r#""0x0""# | r#""0x00""#) => self.legacy(hash)?.into(),
            Some(r#""0x1""# | r#""0x01""#) => self.typed(self.eip2930()?, hash)?.into(),
            Some(r#""0x2""# | r#""0x02""#) => self.typed(self.eip1559()?, hash)?.into(),
            Some(r#""0x4""# | r#""0x04""#) => self.typed(self.eip7702()?, hash)?.into(),
            Some(_) => return Ok(None),
        };
        let claimed_sender = required("from", self.from)?;
        let mut raw = Vec::with_capacity(tx.encode_2718_len());
        tx.encode_2718(&mut raw);
        let found = keccak256(&raw);
        if found != hash {
            return Err(ObjectError::OtherTransaction { announced: hash, found });
        }
        Ok(Some(FullTransaction { tx, raw: raw.into(), claimed_sender }))
    }

    fn legacy(&self, hash: B256) -> Result<Signed<TxLegacy>, ObjectError> {
        let gas_price: U256 = required("gasPrice", self.gas_price)?;
        let mut tx = TxLegacy {
            chain_id: optional::<U64>("chainId", self.chain_id)?.map(|id| id.to()),
            nonce: u64("nonce", self.nonce)?,
            // 256 bits, as in alloy, for chains on which it can be larger; the hash check covers
            // the rest.
            gas_price: gas_price.saturating_to(),
            gas_limit: u64("gas", self.gas)?,
            to: self.kind()?,
            value: required("value", self.value)?,
            input: required("input", self.input)?,
        };
        let (r, s) = self.r_and_s()?;
        let v: U128 = required("v", self.v)?;
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
            chain_id: u64("chainId", self.chain_id)?,
            nonce: u64("nonce", self.nonce)?,
            gas_price: u128("gasPrice", self.gas_price)?,
            gas_limit: u64("gas", self.gas)?,
            to: self.kind()?,
            value: required("value", self.value)?,
            access_list: self.access_list()?,
            input: required("input", self.input)?,
        })
    }

    fn eip1559(&self) -> Result<TxEip1559, ObjectError> {
        Ok(TxEip1559 {
            chain_id: u64("chainId", self.chain_id)?,
            nonce: u64("nonce", self.nonce)?,
            gas_limit: u64("gas", self.gas)?,
            max_fee_per_gas: u128("maxFeePerGas", self.max_fee_per_gas)?,
            max_priority_fee_per_gas: self.max_priority_fee()?,
            to: self.kind()?,
            value: required("value", self.value)?,
            access_list: self.access_list()?,
            input: required("input", self.input)?,
        })
    }

    fn eip7702(&self) -> Result<TxEip7702, ObjectError> {
        Ok(TxEip7702 {
            chain_id: u64("chainId", self.chain_id)?,
            nonce: u64("nonce", self.nonce)?,
            gas_limit: u64("gas", self.gas)?,
            max_fee_per_gas: u128("maxFeePerGas", self.max_fee_per_gas)?,
            max_priority_fee_per_gas: self.max_priority_fee()?,
            to: required("to", self.to)?,
            value: required("value", self.value)?,
            access_list: self.access_list()?,
            authorization_list: required("authorizationList", self.authorization_list)?,
            input: required("input", self.input)?,
        })
    }

    /// Signs a typed transaction with `r`, `s` and `yParity`, or `v` where that is missing.
    fn typed<T>(&self, tx: T, hash: B256) -> Result<Signed<T>, ObjectError> {
        let (r, s) = self.r_and_s()?;
        let v: Option<U64> = optional("v", self.v)?;
        let parity = match optional::<U64>("yParity", self.y_parity)?.map(|parity| parity.to()) {
            Some(0_u64) => false,
            Some(1) => true,
            Some(_) => return Err(ObjectError::Undecodable { field: "yParity" }),
            None => {
                let v = v.ok_or(ObjectError::Missing { field: "yParity" })?;
                normalize_v(v.to()).ok_or(ObjectError::Undecodable { field: "v" })?
            }
        };
        Ok(Signed::new_unchecked(tx, Signature::new(r, s, parity), hash))
    }

    fn r_and_s(&self) -> Result<(U256, U256), ObjectError> {
        Ok((required("r", self.r)?, required("s", self.s)?))
    }

    fn max_priority_fee(&self) -> Result<u128, ObjectError> {
        u128("maxPriorityFeePerGas", self.max_priority_fee_per_gas)
    }

    /// The recipient; none creates a contract.
    fn kind(&self) -> Result<TxKind, ObjectError> {
        optional::<Address>("to", self.to).map(TxKind::from)
    }

    fn access_list(&self) -> Result<AccessList, ObjectError> {
        optional("accessList", self.access_list).map(Option::unwrap_or_default)
    }
}

fn required<T: DeserializeOwned>(name: &'static str, field: Field<'_>) -> Result<T, ObjectError> {
    optional(name, field)?.ok_or(ObjectError::Missing { field: name })
}

fn optional<T: DeserializeOwned>(
    name: &'static str,
    field: Field<'_>,
) -> Result<Option<T>, ObjectError> {
    let decoded = field.map(|value| serde_json::from_str(value.get())).transpose();
    decoded.map_err(|_| ObjectError::Undecodable { field: name })
}

fn u64(name: &'static str, field: Field<'_>) -> Result<u64, ObjectError> {
    required::<U64>(name, field).map(|value| value.to())
}

fn u128(name: &'static str, field: Field<'_>) -> Result<u128, ObjectError> {
    required::<U128>(name, field).map(|value| value.to())
}

#[cfg(test)]
mod tests;
