//! Transactions.

use std::time::SystemTime;

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::{Decodable2718 as _, Encodable2718 as _};
use alloy_primitives::Address;
use chain_view::PooledTransaction;
use order_pool::{Origin, PrivateTerms, Transaction};

use super::{Encoded, KIND_PRIVATE_TX, KIND_TX, bytes::Reader, error::WireError, start};

const ORIGIN_MEMPOOL: u8 = 0;
const ORIGIN_RPC: u8 = 1;

/// A transaction as it was published. Its bytes: origin, first-seen time and sender, 29 bytes; of a
/// private one its terms; then the transaction in EIP-2718 form, with its sidecar if it has blobs.
#[derive(Clone, Debug)]
pub struct TxRecord {
    /// The transaction, with a hash that was computed from its bytes.
    pub tx: PooledTransaction,
    /// Its sender, as the publisher says.
    pub sender: Address,
    /// Its origin, as the publisher says: [`Origin::Private`] if it has [terms](Self::private).
    pub origin: Origin,
    /// When the publisher's machine first received it, on that machine's clock.
    pub first_seen: SystemTime,
    /// The terms of a private transaction.
    pub private: Option<PrivateTerms>,
}

impl TxRecord {
    /// What is published of a pooled transaction. One that a node has announced counts as
    /// announced, whoever sent it first, and its terms are void. Copies its blobs, unlike
    /// [`encode_transaction`].
    #[must_use]
    pub fn of(tx: &Transaction) -> Self {
        let (origin, private) = published_as(tx);
        let (sender, first_seen) = (tx.sender(), tx.first_seen());
        Self { tx: tx.envelope().clone(), sender, origin, first_seen, private }
    }

    /// Encodes it; the message id is the transaction's hash.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let Self { tx, sender, origin, first_seen, private } = self;
        encode(tx, *sender, *origin, *first_seen, private.as_ref())
    }

    pub(super) fn read(reader: &mut Reader<'_>, is_private: bool) -> Result<Self, WireError> {
        let (origin, private) = if is_private {
            let flags = reader.flags("private", 1)?;
            let signer = if flags.has(0) { Some(reader.address("private.signer")?) } else { None };
            let max_block = reader.u64("private.max_block")?;
            (Origin::Private, Some(PrivateTerms { signer, max_block }))
        } else {
            let origin = match reader.u8("origin")? {
                ORIGIN_MEMPOOL => Origin::Mempool,
                ORIGIN_RPC => Origin::Rpc,
                value => return Err(WireError::Value { field: "origin", value: value.into() }),
            };
            (origin, None)
        };
        let first_seen = reader.time("first_seen")?;
        let sender = reader.address("sender")?;
        let tx = decode(0, reader.take_rest())?;
        Ok(Self { tx, sender, origin, first_seen, private })
    }

    /// The transaction for a pool, with the sender, the origin and the sidecar that the publisher says. A first-seen
    /// time after `now` becomes `now`.
    #[must_use]
    pub fn resolve(self, now: SystemTime) -> Transaction {
        let Self { tx, sender, origin, first_seen, private } = self;
        let first_seen = first_seen.min(now);
        let tx = Recovered::new_unchecked(tx, sender);
        match private {
            Some(terms) => Transaction::private(tx, terms, first_seen),
            None => Transaction::new(tx, origin, first_seen),
        }
    }
}

/// Encodes what is published of a pooled transaction, as [`TxRecord::of`] and [`TxRecord::encode`] do.
#[must_use]
pub fn encode_transaction(tx: &Transaction) -> Encoded {
    let (origin, private) = published_as(tx);
    encode(tx.envelope(), tx.sender(), origin, tx.first_seen(), private.as_ref())
}

fn published_as(tx: &Transaction) -> (Origin, Option<PrivateTerms>) {
    let private = tx.private_terms().copied().filter(|_| !tx.is_public());
    let origin = match private {
        Some(_) => Origin::Private,
        None if tx.is_public() => Origin::Mempool,
        None => Origin::Rpc,
    };
    (origin, private)
}

fn encode(
    tx: &PooledTransaction,
    sender: Address,
    origin: Origin,
    first_seen: SystemTime,
    private: Option<&PrivateTerms>,
) -> Encoded {
    let kind = if private.is_some() { KIND_PRIVATE_TX } else { KIND_TX };
    let mut writer = start(kind, tx.encode_2718_len().saturating_add(64));
    if let Some(terms) = private {
        writer.flags(&[terms.signer.is_some()]);
        if let Some(signer) = &terms.signer {
            writer.bytes(signer.as_slice());
        }
        writer.u64(terms.max_block);
    } else {
        writer.u8(if origin == Origin::Mempool { ORIGIN_MEMPOOL } else { ORIGIN_RPC });
    }
    writer.time(first_seen);
    writer.bytes(sender.as_slice());
    tx.encode_2718(writer.buffer());
    Encoded { id: *tx.tx_hash(), payload: writer.finish() }
}

pub(super) fn decode(index: usize, raw: &[u8]) -> Result<PooledTransaction, WireError> {
    PooledTransaction::decode_2718_exact(raw)
        .map_err(|source| WireError::Undecodable { index, source })
}
