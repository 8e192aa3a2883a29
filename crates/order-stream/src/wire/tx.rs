//! Transactions.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::{Decodable2718 as _, Encodable2718 as _};
use chain_view::PooledTransaction;
use order_pool::{Holder, Origin, PrivateTerms, Transaction};

use super::{
    Encoded, KIND_TX,
    bytes::{Reader, Writer},
    error::WireError,
};

const ORIGIN_MEMPOOL: u8 = 0;
const ORIGIN_RPC: u8 = 1;
const ORIGIN_PRIVATE: u8 = 2;

/// Encodes what is published of a pooled transaction: origin, first-seen time, sender and holder, 30 to 50
/// bytes; of a private one its
/// terms; then the transaction in EIP-2718 form, with its sidecar if it has blobs. One that a node has announced counts
/// as announced, whoever sent it first, and its terms are void. The message id is its hash.
#[must_use]
pub fn encode_transaction(tx: &Transaction) -> Encoded {
    encode(tx, tx.holder(), tx.private_terms())
}

/// The same, as another holder has sent it.
pub(super) fn encode(tx: &Transaction, holder: Holder, terms: Option<&PrivateTerms>) -> Encoded {
    let mut writer = Writer::new(KIND_TX, tx.envelope().encode_2718_len().saturating_add(64));
    let terms = terms.filter(|_| !tx.is_public());
    writer.put([match terms {
        Some(_) => ORIGIN_PRIVATE,
        None if tx.is_public() => ORIGIN_MEMPOOL,
        None => ORIGIN_RPC,
    }]);
    writer.time(tx.first_seen());
    writer.put(tx.sender());
    writer.holder(holder);
    if let Some(PrivateTerms { signer, max_block }) = terms {
        writer.option(*signer);
        writer.put(max_block.to_be_bytes());
    }
    tx.envelope().encode_2718(&mut writer.bytes);
    Encoded { id: *tx.hash(), payload: writer.bytes.freeze() }
}

pub(super) fn read(reader: &mut Reader<'_>, now: SystemTime) -> Result<Transaction, WireError> {
    let [origin] = reader.array()?;
    let first_seen = reader.time()?.min(now);
    let sender = reader.address()?;
    let holder = reader.holder()?;
    let terms = match origin {
        ORIGIN_PRIVATE => {
            let (signer, max_block) = (reader.option(Reader::address)?, reader.u64()?);
            Some(PrivateTerms { signer, max_block })
        }
        _ => None,
    };
    let raw = reader.take(reader.0.len())?;
    let tx = Recovered::new_unchecked(decode(0, raw)?, sender);
    let tx = match (terms, origin) {
        (Some(terms), _) => Transaction::private(tx, terms, first_seen),
        (None, ORIGIN_MEMPOOL) => Transaction::new(tx, Origin::Mempool, first_seen),
        (None, ORIGIN_RPC) => Transaction::new(tx, Origin::Rpc, first_seen),
        _ => return Err(WireError::Value { field: "origin", value: origin.into() }),
    };
    Ok(tx.held_by(holder))
}

pub(super) fn decode(index: usize, raw: &[u8]) -> Result<PooledTransaction, WireError> {
    PooledTransaction::decode_2718_exact(raw)
        .map_err(|source| WireError::Undecodable { index, source })
}
