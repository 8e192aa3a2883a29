//! From the object of a full announcement to a transaction.
//!
//! A subscription to `newPendingTransactions` with `true` delivers objects instead of hashes.
//! alloy's own type reads them through serde's flattening, which first builds a map of the object;
//! this borrows the fields of all types from the text. The transaction is encoded again and hashed, so only an
//! object that describes exactly the announced transaction is accepted. The hash does not cover `from`: it
//! is the node's claim, see [`FullTransaction`].

use alloy_consensus::{
    Signed, TxEip1559, TxEip2930, TxEip7702, TxLegacy,
    crypto::RecoveryError,
    transaction::{Recovered, SignerRecoverable, from_eip155_value},
};
use alloy_eips::{Encodable2718, eip2930::AccessList, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, keccak256, normalize_v};
use chain_view::PooledTransaction;
use serde::Deserialize;

/// The result of reading one full announcement.
#[derive(Debug)]
pub enum FullAnnouncement {
    /// A transaction that is complete as announced.
    Transaction(Box<FullTransaction>),
    /// To be requested by its hash: a blob transaction (reth and geth announce it without its
    /// sidecar; anvil's sidecar is not read), one of an unknown type, or one with a field that cannot be decoded.
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
    /// The text is not a JSON object with a hash.
    #[error("not an object with a hash")]
    NoHash,
    /// The object describes another transaction than the hash that it names.
    #[error("announced as {announced}, the object is transaction {found}")]
    OtherTransaction {
        /// The field `hash`.
        announced: B256,
        /// The hash of the object's transaction.
        found: B256,
    },
}

/// Reads the object of one full announcement: what alloy's `Transaction` writes, in any order of fields. Never
/// panics, whatever the text.
#[must_use]
pub fn read_object(json: &str) -> FullAnnouncement {
    let fields: Option<Fields<'_>> = parse(json);
    let hash = match &fields {
        Some(fields) => fixed(fields.hash).map(B256::new),
        None => announced_hash(json),
    };
    let Some(hash) = hash else {
        return FullAnnouncement::Malformed { hash: None, reason: ObjectError::NoHash };
    };
    let Some((tx, claimed_sender)) = fields.and_then(|fields| fields.transaction(hash)) else {
        return FullAnnouncement::FetchRaw(hash);
    };
    let mut raw = Vec::with_capacity(tx.encode_2718_len());
    tx.encode_2718(&mut raw);
    let found = keccak256(&raw);
    if found != hash {
        let reason = ObjectError::OtherTransaction { announced: hash, found };
        return FullAnnouncement::Malformed { hash: Some(hash), reason };
    }
    let transaction = FullTransaction { tx, raw: raw.into(), claimed_sender };
    FullAnnouncement::Transaction(Box::new(transaction))
}

/// The hash that an object names; no other field is decoded.
pub(crate) fn announced_hash(json: &str) -> Option<B256> {
    #[derive(Deserialize)]
    struct Named {
        hash: B256,
    }
    parse(json).map(|Named { hash }| hash)
}

fn parse<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    // serde takes an array for a struct too.
    let is_object = json.trim_ascii_start().starts_with('{');
    is_object.then(|| serde_json::from_str(json).ok()).flatten()
}

/// The fields that some type of transaction needs, without escapes, which no node writes here. `null` is none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(rename = "type")]
    tx_type: Option<&'a str>,
    hash: Option<&'a str>,
    from: Option<&'a str>,
    chain_id: Option<&'a str>,
    nonce: Option<&'a str>,
    gas_price: Option<&'a str>,
    max_fee_per_gas: Option<&'a str>,
    max_priority_fee_per_gas: Option<&'a str>,
    #[serde(alias = "gasLimit")]
    gas: Option<&'a str>,
    to: Option<&'a str>,
    value: Option<&'a str>,
    input: Option<&'a str>,
    access_list: Option<AccessList>,
    authorization_list: Option<Vec<SignedAuthorization>>,
    r: Option<&'a str>,
    s: Option<&'a str>,
    v: Option<&'a str>,
    y_parity: Option<&'a str>,
}

impl Fields<'_> {
    /// The transaction and its sender. `None`: it has to be requested by its hash.
    fn transaction(mut self, hash: B256) -> Option<(PooledTransaction, Address)> {
        let sender = fixed(self.from).map(Address::new)?;
        // Only legacy transactions come without a type.
        let tx = match self.tx_type.unwrap_or("0x0") {
            "0x0" | "0x00" => self.legacy(hash)?.into(),
            "0x1" | "0x01" => self.sign(Self::eip2930, hash)?.into(),
            "0x2" | "0x02" => self.sign(Self::eip1559, hash)?.into(),
            "0x4" | "0x04" => self.sign(Self::eip7702, hash)?.into(),
            _ => return None,
        };
        Some((tx, sender))
    }

    fn legacy(&self, hash: B256) -> Option<Signed<TxLegacy>> {
        let (r, s, v) = (word(self.r)?, word(self.s)?, number(self.v)?);
        let chain_id = match self.chain_id {
            None => None,
            id => Some(number(id)?),
        };
        // All zero: a system transaction, which the chain itself made.
        let (parity, in_v) = if v == 0 && r.is_zero() && s.is_zero() {
            (false, chain_id)
        } else {
            from_eip155_value(v.into())?
        };
        // Nodes include `chainId` for an unprotected transaction too, so `v` decides.
        if chain_id.zip(in_v).is_some_and(|(chain_id, in_v)| chain_id != in_v) {
            return None;
        }
        let tx = TxLegacy {
            chain_id: in_v,
            nonce: number(self.nonce)?,
            gas_price: wei(self.gas_price)?,
            gas_limit: number(self.gas)?,
            to: self.kind()?,
            value: word(self.value)?,
            input: self.input()?,
        };
        Some(Signed::new_unchecked(tx, Signature::new(r, s, parity), hash))
    }

    fn eip2930(&mut self) -> Option<TxEip2930> {
        Some(TxEip2930 {
            chain_id: number(self.chain_id)?,
            nonce: number(self.nonce)?,
            gas_price: wei(self.gas_price)?,
            gas_limit: number(self.gas)?,
            to: self.kind()?,
            value: word(self.value)?,
            access_list: self.access_list.take()?,
            input: self.input()?,
        })
    }

    fn eip1559(&mut self) -> Option<TxEip1559> {
        Some(TxEip1559 {
            chain_id: number(self.chain_id)?,
            nonce: number(self.nonce)?,
            gas_limit: number(self.gas)?,
            max_fee_per_gas: wei(self.max_fee_per_gas)?,
            max_priority_fee_per_gas: wei(self.max_priority_fee_per_gas)?,
            to: self.kind()?,
            value: word(self.value)?,
            access_list: self.access_list.take()?,
            input: self.input()?,
        })
    }

    fn eip7702(&mut self) -> Option<TxEip7702> {
        Some(TxEip7702 {
            chain_id: number(self.chain_id)?,
            nonce: number(self.nonce)?,
            gas_limit: number(self.gas)?,
            max_fee_per_gas: wei(self.max_fee_per_gas)?,
            max_priority_fee_per_gas: wei(self.max_priority_fee_per_gas)?,
            to: fixed(self.to)?.into(),
            value: word(self.value)?,
            access_list: self.access_list.take()?,
            authorization_list: self.authorization_list.take()?,
            input: self.input()?,
        })
    }

    /// Signs a typed transaction with `r`, `s` and `yParity`, or `v` where that is missing.
    fn sign<T>(&mut self, tx: fn(&mut Self) -> Option<T>, hash: B256) -> Option<Signed<T>> {
        let parity = match self.y_parity {
            None => normalize_v(number(self.v)?)?,
            parity => [false, true].get(usize::try_from(number(parity)?).ok()?).copied()?,
        };
        let signature = Signature::new(word(self.r)?, word(self.s)?, parity);
        Some(Signed::new_unchecked(tx(self)?, signature, hash))
    }

    /// The recipient; none creates a contract.
    fn kind(&self) -> Option<TxKind> {
        match self.to {
            None => Some(TxKind::Create),
            to => fixed(to).map(|to| TxKind::Call(to.into())),
        }
    }

    fn input(&self) -> Option<Bytes> {
        const_hex::decode(self.input?).ok().map(Bytes::from)
    }
}

fn number(text: Option<&str>) -> Option<u64> {
    u64::from_str_radix(text?.strip_prefix("0x")?, 16).ok()
}

fn wei(text: Option<&str>) -> Option<u128> {
    u128::from_str_radix(text?.strip_prefix("0x")?, 16).ok()
}

fn word(text: Option<&str>) -> Option<U256> {
    let digits = text?.strip_prefix("0x")?.as_bytes();
    let mut padded = [b'0'; 64];
    padded.get_mut(64_usize.checked_sub(digits.len())?..)?.copy_from_slice(digits);
    const_hex::decode_to_array(padded).ok().map(U256::from_be_bytes::<32>)
}

fn fixed<const N: usize>(text: Option<&str>) -> Option<[u8; N]> {
    const_hex::decode_to_array(text?).ok()
}

#[cfg(test)]
mod tests;
