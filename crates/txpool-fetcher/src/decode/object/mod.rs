//! From the object of a full announcement to a transaction.
//!
//! A subscription to `newPendingTransactions` with `true` delivers objects instead of hashes.
//! alloy's own type for them reads through serde's flattening, which first builds a map of the object; this reads the
//! text twice instead: for the signature, and for the type that it names. The transaction is encoded again and
//! hashed, so only an object that describes exactly the announced transaction is accepted.

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
    /// To be requested by its hash: a blob transaction (reth and geth announce it without its
    /// sidecar; anvil's sidecar is not read), one of an unknown type, or one with a field that cannot be decoded.
    FetchRaw(B256),
    /// The object describes another transaction than the hash that it names.
    Malformed(B256, Malformed),
    /// No object with a hash.
    NoHash,
}

/// A transaction whose content matches its hash, with the sender that the node claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FullTransaction {
    /// The transaction: legacy, EIP-2930, EIP-1559 or EIP-7702.
    pub(crate) tx: PooledTransaction,
    /// Its EIP-2718 encoding.
    pub(crate) raw: Bytes,
    /// The field `from`. The hash does not cover it: who can write to the connection chooses it.
    pub(crate) claimed_sender: Address,
}

/// Reads a full announcement: what alloy's `Transaction` writes, in any order. Never panics.
pub(crate) fn read_object(json: &str) -> FullAnnouncement {
    let Some(fields) = parse::<Fields<'_>>(json) else {
        return announced_hash(json).map_or(FullAnnouncement::NoHash, FullAnnouncement::FetchRaw);
    };
    let (hash, claimed_sender) = (fields.hash, fields.from);
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

/// The fields that no type of transaction has itself; the type without escapes, which no node writes there.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(rename = "type")]
    tx_type: Option<&'a str>,
    hash: B256,
    from: Address,
    r: U256,
    s: U256,
    v: Option<U64>,
    y_parity: Option<U64>,
}

impl Fields<'_> {
    /// The transaction. `None`: it has to be requested by its hash.
    fn transaction(&self, json: &str) -> Option<PooledTransaction> {
        // Only legacy transactions come without a type.
        let tx = match self.tx_type.unwrap_or("0x0") {
            "0x0" | "0x00" => self.legacy(json)?.into(),
            "0x1" | "0x01" => self.sign::<TxEip2930>(json)?.into(),
            "0x2" | "0x02" => self.sign::<TxEip1559>(json)?.into(),
            "0x4" | "0x04" => self.sign::<TxEip7702>(json)?.into(),
            _ => return None,
        };
        Some(tx)
    }

    fn legacy(&self, json: &str) -> Option<Signed<TxLegacy>> {
        let mut tx: TxLegacy = parse(json)?;
        let v: u64 = self.v?.to();
        // All zero: a system transaction, which the chain itself made.
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

    /// Signs a typed transaction with `r`, `s` and `yParity`, or `v` where that is missing.
    fn sign<'a, T: Deserialize<'a>>(&self, json: &'a str) -> Option<Signed<T>> {
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
