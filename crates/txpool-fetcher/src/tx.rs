//! From the node's answer to a transaction with its sender.

mod sidecar;

use alloy_consensus::{
    EthereumTxEnvelope, Transaction as _, TxEip4844WithSidecar, TxEnvelope,
    transaction::{Recovered, SignerRecoverable},
};
use alloy_eips::{Decodable2718, eip7594::BlobTransactionSidecarVariant};
use alloy_primitives::{B256, Bytes};

pub use self::sidecar::{SidecarError, verify_blob_proofs};

/// A transaction as a node's pool holds it: legacy to EIP-7702, a blob transaction with its
/// sidecar in the EIP-4844 form (a proof per blob) or the EIP-7594 form (cell proofs).
pub type PooledTransaction =
    EthereumTxEnvelope<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>;

/// What one answer to `eth_getRawTransactionByHash` turned out to be.
#[derive(Debug)]
pub enum Answer {
    /// The transaction that was asked for, with its sender and its encoded form.
    Transaction(Box<Recovered<PooledTransaction>>, Bytes),
    /// `null`, or geth's `"0x"`: the node has it no longer.
    Gone,
    /// A blob transaction without its sidecar: the form it has in a block.
    Mined,
    /// Nothing that can be used.
    Malformed(Malformed),
}

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Neither null nor a string of 0x and hex digits.
    #[error("the answer is not hex")]
    NotHex,
    /// Hex that is no transaction.
    #[error("the answer is no transaction: {0}")]
    NotATransaction(String),
    /// Bytes follow the transaction.
    #[error("{0} bytes follow the transaction")]
    TrailingBytes(usize),
    /// Another transaction than the one asked for.
    #[error("the answer is transaction {found}, asked was {asked}")]
    OtherTransaction {
        /// The hash that was asked for.
        asked: B256,
        /// The hash of what came.
        found: B256,
    },
    /// No sender can be recovered from the signature.
    #[error("the signature is invalid")]
    Signature,
    /// A blob transaction with a sidecar that is not its own.
    #[error("the sidecar is of other blobs: {0}")]
    Sidecar(#[from] SidecarError),
}

/// Reads the JSON of an answer. Takes about 35 us of CPU for a small transaction, nearly all of
/// it the recovery of the sender; 2 ms for one with six blobs. Never panics, whatever the bytes.
#[must_use]
pub fn read_answer(json: &str, asked: B256) -> Answer {
    let json = json.trim();
    if json == "null" {
        return Answer::Gone;
    }
    let Some(hex) = json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return Answer::Malformed(Malformed::NotHex);
    };
    if hex == "0x" {
        return Answer::Gone;
    }
    match hex.strip_prefix("0x").map(const_hex::decode) {
        Some(Ok(raw)) => read_raw(raw.into(), asked),
        _ => Answer::Malformed(Malformed::NotHex),
    }
}

/// Reads an encoded transaction: EIP-2718, a blob transaction in network form, whose sidecar is
/// compared with its versioned hashes. KZG proofs are not verified, see [`verify_blob_proofs`].
#[must_use]
pub fn read_raw(raw: Bytes, asked: B256) -> Answer {
    let mut rest = raw.as_ref();
    let tx = match PooledTransaction::decode_2718(&mut rest) {
        Ok(tx) => tx,
        Err(error) => {
            // A blob transaction in its mined form has no sidecar to decode.
            let mined = TxEnvelope::decode_2718_exact(raw.as_ref());
            return match mined {
                Ok(TxEnvelope::Eip4844(tx)) if *tx.hash() == asked => Answer::Mined,
                Ok(other) if *other.hash() != asked => other_transaction(asked, *other.hash()),
                _ => Answer::Malformed(Malformed::NotATransaction(error.to_string())),
            };
        }
    };
    if !rest.is_empty() {
        return Answer::Malformed(Malformed::TrailingBytes(rest.len()));
    }
    // The hash of a blob transaction is over its mined form, which the envelope encodes.
    if *tx.hash() != asked {
        return other_transaction(asked, *tx.hash());
    }
    if let PooledTransaction::Eip4844(signed) = &tx
        && let Err(reason) = sidecar::check_sidecar(signed.tx())
    {
        return Answer::Malformed(reason.into());
    }
    match tx.try_into_recovered() {
        Ok(recovered) => Answer::Transaction(Box::new(recovered), raw),
        Err(_) => Answer::Malformed(Malformed::Signature),
    }
}

fn other_transaction(asked: B256, found: B256) -> Answer {
    Answer::Malformed(Malformed::OtherTransaction { asked, found })
}

/// Whether a transaction is public to this chain: unprotected legacy ones (without a chain id)
/// count as such.
pub(crate) fn is_on_chain(tx: &PooledTransaction, chain_id: u64) -> bool {
    tx.chain_id().is_none_or(|id| id == chain_id)
}
