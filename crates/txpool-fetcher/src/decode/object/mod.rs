//! Decodes an announced object into a transaction.
//!
//! A subscription to `newPendingTransactions` with `true` delivers objects instead of hashes.
//! alloy's own type for them uses serde's flattening, which first builds a map of the object. This
//! module reads the text twice instead: once for the signature, and once for the type that the
//! object names. The transaction is encoded again and hashed, so only an object that describes
//! exactly the announced transaction is accepted.

use alloy_consensus::{
    Signed, TxEip1559, TxEip2930, TxEip7702, TxLegacy, transaction::from_eip155_value,
};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, U64, U256, keccak256, normalize_v};
use chain_view::PooledTransaction;
use serde::Deserialize;

use super::Malformed;

/// The result of reading one full announcement.
#[derive(Debug)]
pub(crate) enum FullAnnouncement {
    /// A transaction that is complete as announced.
    Transaction(Box<FullTransaction>),
    /// The transaction has to be requested by its hash: it is a blob transaction (reth and geth
    /// announce it without its sidecar, and anvil's sidecar is not read), it has an unknown type,
    /// or a field cannot be decoded.
    FetchRaw(B256),
    /// The object describes another transaction than the hash that it names.
    Malformed(B256, Malformed),
    /// The announcement has no hash that can be read.
    NoHash,
}

/// A transaction whose content matches its hash, with the sender that the node claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FullTransaction {
    /// The transaction: legacy, EIP-2930, EIP-1559 or EIP-7702.
    pub(crate) tx: PooledTransaction,
    /// The EIP-2718 encoding of the transaction.
    pub(crate) raw: Bytes,
    /// The field `from`. The hash does not cover it, so anybody who can write to the connection can
    /// choose it.
    pub(crate) claimed_sender: Address,
}

/// Reads an announced object with the fields that alloy's `Transaction` writes, in any order. No
/// input causes a panic.
pub(crate) fn read_object(json: &str) -> FullAnnouncement {
    let Some(fields) = parse::<Fields<'_>>(json) else {
        return announced_hash(json).map_or(FullAnnouncement::NoHash, FullAnnouncement::FetchRaw);
    };
    let (hash, claimed_sender) = (fields.hash, fields.sender);
    let Some(tx) = fields.transaction(json) else { return FullAnnouncement::FetchRaw(hash) };
    let mut raw = Vec::with_capacity(tx.encode_2718_len());
    tx.encode_2718(&mut raw);
    let found = keccak256(&raw);
    if found != hash {
        let reason = Malformed::OtherTransaction { requested: hash, found };
        return FullAnnouncement::Malformed(hash, reason);
    }
    let transaction = FullTransaction { tx, raw: raw.into(), claimed_sender };
    FullAnnouncement::Transaction(Box::new(transaction))
}

/// Reads the hash of an object, and no other field.
pub(crate) fn announced_hash(json: &str) -> Option<B256> {
    #[derive(Deserialize)]
    struct HashField {
        hash: B256,
    }
    parse(json).map(|HashField { hash }| hash)
}

fn parse<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    // serde would also accept an array for a struct.
    let is_object = json.trim_ascii_start().starts_with('{');
    is_object.then(|| serde_json::from_str(json).ok()).flatten()
}

/// The fields that alloy's types for unsigned transactions do not have. `tx_type` borrows the text,
/// so a type with escapes, which no node writes, is an error.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(rename = "type")]
    tx_type: Option<&'a str>,
    hash: B256,
    #[serde(rename = "from")]
    sender: Address,
    r: U256,
    s: U256,
    v: Option<U64>,
    y_parity: Option<U64>,
}

impl Fields<'_> {
    /// Decodes the transaction. `None` if it has to be requested by its hash.
    fn transaction(&self, json: &str) -> Option<PooledTransaction> {
        // Only legacy transactions come without a type.
        let tx = match self.tx_type.unwrap_or("0x0") {
            "0x0" | "0x00" => self.legacy(json)?.into(),
            "0x1" | "0x01" => self.typed::<TxEip2930>(json)?.into(),
            "0x2" | "0x02" => self.typed::<TxEip1559>(json)?.into(),
            "0x4" | "0x04" => self.typed::<TxEip7702>(json)?.into(),
            _ => return None,
        };
        Some(tx)
    }

    /// Decodes a legacy transaction, whose `v` contains the parity and, from EIP-155 on, the chain
    /// id.
    fn legacy(&self, json: &str) -> Option<Signed<TxLegacy>> {
        let mut tx: TxLegacy = parse(json)?;
        let v: u64 = self.v?.to();
        // All values are zero in a system transaction, which the chain itself makes.
        let (parity, in_v) = if v == 0 && self.r.is_zero() && self.s.is_zero() {
            (false, tx.chain_id)
        } else {
            from_eip155_value(v.into())?
        };
        // Nodes include `chainId` for an unprotected transaction too, so `v` decides.
        if tx.chain_id.zip(in_v).is_some_and(|(chain_id, in_v)| chain_id != in_v) {
            return None;
        }
        tx.chain_id = in_v;
        let signature = Signature::new(self.r, self.s, parity);
        Some(Signed::new_unchecked(tx, signature, self.hash))
    }

    /// Decodes a typed transaction with its signature `r`, `s` and `yParity`, or `v` if that is
    /// missing.
    fn typed<'a, T: Deserialize<'a>>(&self, json: &'a str) -> Option<Signed<T>> {
        let parity = match self.y_parity {
            None => normalize_v(self.v?.to())?,
            Some(parity) => [false, true].get(usize::try_from(parity).ok()?).copied()?,
        };
        let signature = Signature::new(self.r, self.s, parity);
        Some(Signed::new_unchecked(parse(json)?, signature, self.hash))
    }
}

#[cfg(test)]
mod tests;
