//! Decodes the response to `eth_getRawTransactionByHash` into a transaction with its sender.

use alloy_consensus::{
    TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::Decodable2718;
use alloy_primitives::{B256, Bytes};
use chain_view::PooledTransaction;

use super::sidecar::{self, SidecarError};

/// The content of one response to `eth_getRawTransactionByHash`.
#[derive(Debug)]
pub enum RawTransaction {
    /// The requested transaction, with its sender and its encoded form.
    Decoded(Box<Recovered<PooledTransaction>>, Bytes),
    /// `null`, or geth's `"0x"`: the transaction is no longer in the node's pool.
    Gone,
    /// A blob transaction without its sidecar, or with a sidecar without blobs. It has the first
    /// form in a block, and both forms occur in the pool of a node that has not fetched its blobs
    /// yet.
    NoSidecar,
    /// The response cannot be used.
    Malformed(Malformed),
}

/// Why a response cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The response is neither null nor a string of 0x and hex digits.
    #[error("the response is not hex")]
    NotHex,
    /// The bytes are not exactly one encoded transaction.
    #[error("the response is not a transaction: {0}")]
    NotATransaction(String),
    /// The bytes are another transaction than the requested one.
    #[error("the response is transaction {found}, the requested one is {requested}")]
    OtherTransaction {
        /// The hash that was requested.
        requested: B256,
        /// The hash of the transaction in the response.
        found: B256,
    },
    /// The signature is invalid: no sender can be recovered from it.
    #[error("the signature is invalid")]
    Signature,
    /// The sidecar of a blob transaction does not match it.
    #[error("the sidecar does not match the transaction: {0}")]
    Sidecar(SidecarError),
}

impl From<SidecarError> for Malformed {
    fn from(error: SidecarError) -> Self {
        Self::Sidecar(error)
    }
}

/// Decodes the JSON result of a request for the transaction with the hash `requested`. It takes
/// about 35 us of CPU for a small transaction, nearly all for the recovery of the sender, and 2 ms
/// with six blobs. No input causes a panic.
#[must_use]
pub fn read_response(json: &str, requested: B256) -> RawTransaction {
    let json = json.trim();
    if json == "null" {
        return RawTransaction::Gone;
    }
    let Some(hex) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return RawTransaction::Malformed(Malformed::NotHex);
    };
    read_hex(hex, requested)
}

/// Decodes the content of the JSON string.
fn read_hex(hex: &str, requested: B256) -> RawTransaction {
    if hex == "0x" {
        return RawTransaction::Gone;
    }
    match hex.strip_prefix("0x").map(const_hex::decode) {
        Some(Ok(raw)) => read_raw(raw.into(), requested),
        _ => RawTransaction::Malformed(Malformed::NotHex),
    }
}

/// Decodes an EIP-2718 encoded transaction, a blob transaction in the network form with its
/// sidecar. `requested` is the hash that it must have. The sidecar is compared with the versioned
/// hashes. KZG proofs are not verified: see [`verify_blob_proofs`](crate::verify_blob_proofs).
#[must_use]
pub fn read_raw(raw: Bytes, requested: B256) -> RawTransaction {
    let tx = match PooledTransaction::decode_2718_exact(&raw) {
        Ok(tx) => tx,
        Err(error) => {
            // Versions of Nethermind, Besu and reth returned the bytes of a typed transaction in an
            // RLP string. Reading that is safe because the hash is compared.
            if let Some(inner) = rlp_string_content(&raw) {
                return read_raw(inner, requested);
            }
            // A blob transaction in the form of a block does not decode above, because it has no
            // sidecar.
            return match TxEnvelope::decode_2718_exact(&raw) {
                Ok(TxEnvelope::Eip4844(tx)) if *tx.hash() == requested => RawTransaction::NoSidecar,
                Ok(other) if *other.hash() != requested => {
                    other_transaction(requested, *other.hash())
                }
                _ => RawTransaction::Malformed(Malformed::NotATransaction(error.to_string())),
            };
        }
    };
    // The hash of a blob transaction does not cover its sidecar, which is compared below.
    if *tx.hash() != requested {
        return other_transaction(requested, *tx.hash());
    }
    if let PooledTransaction::Eip4844(signed) = &tx
        && let Err(reason) = sidecar::check_sidecar(signed.tx())
    {
        // Nodes of sparse pools keep a transaction without its blobs for a while.
        let has_no_blobs = matches!(reason, SidecarError::Count { part: "blobs", found: 0, .. });
        return if has_no_blobs {
            RawTransaction::NoSidecar
        } else {
            RawTransaction::Malformed(reason.into())
        };
    }
    match tx.try_into_recovered() {
        Ok(recovered) => RawTransaction::Decoded(Box::new(recovered), raw),
        Err(_) => RawTransaction::Malformed(Malformed::Signature),
    }
}

/// Returns the content of `raw` if it is one RLP string that may contain a typed transaction.
fn rlp_string_content(raw: &Bytes) -> Option<Bytes> {
    let mut rest = &raw[..];
    let content = alloy_rlp::Header::decode_bytes(&mut rest, false).ok()?;
    let is_typed = matches!(content.first(), Some(1..=0x7f)) && content.len() > 1;
    (rest.is_empty() && is_typed).then(|| raw.slice_ref(content))
}

fn other_transaction(requested: B256, found: B256) -> RawTransaction {
    RawTransaction::Malformed(Malformed::OtherTransaction { requested, found })
}

#[cfg(test)]
mod tests {
    use alloy_eips::Encodable2718 as _;
    use alloy_primitives::keccak256;
    use proptest::prelude::*;
    use testkit::corpus::{Seed, damaged, seeds};

    use super::*;

    /// The transactions of the corpus, which are stored as hex.
    fn corpus() -> Vec<Seed> {
        let decode = |seed: Seed| {
            let bytes = const_hex::decode(seed.bytes.trim_ascii()).expect("hex");
            Seed { bytes, ..seed }
        };
        seeds("transactions").into_iter().map(decode).collect()
    }

    /// The transactions of the corpus, and some with a whole blob, which are too long for it.
    fn raws() -> Vec<Vec<u8>> {
        let mut raws: Vec<_> = corpus().into_iter().map(|seed| seed.bytes).collect();
        raws.extend(sidecar::tests::with_one_blob());
        raws
    }

    /// Returns the hash of the bytes if they are a transaction.
    fn hash_of(raw: &[u8]) -> B256 {
        match read_raw(Bytes::copy_from_slice(raw), B256::ZERO) {
            RawTransaction::Malformed(Malformed::OtherTransaction { found, .. }) => found,
            _ => B256::ZERO,
        }
    }

    #[test]
    fn the_corpus_of_transactions_is_read_or_refused() {
        for seed in corpus() {
            let response = read_raw(seed.bytes.clone().into(), hash_of(&seed.bytes));
            let is_read =
                matches!(response, RawTransaction::Decoded(..) | RawTransaction::NoSidecar);
            assert_eq!(is_read, seed.is_good(), "{}: {response:?}", seed.name);
        }
    }

    proptest! {
        #[test]
        fn a_damaged_transaction_is_refused_or_encodes_to_its_bytes(raw in damaged(raws())) {
            let hash = hash_of(&raw);
            if let RawTransaction::Decoded(tx, bytes) = read_raw(raw.clone().into(), hash) {
                prop_assert_eq!(&bytes[..], &raw[..]);
                prop_assert_eq!(tx.inner().encoded_2718(), raw.clone());
                prop_assert_eq!(*tx.inner().hash(), hash);
                // The hash of a blob transaction does not cover its sidecar.
                if !matches!(tx.inner(), PooledTransaction::Eip4844(_)) {
                    prop_assert_eq!(keccak256(&raw), hash);
                }
            }
        }
    }
}
