//! The encoding of the messages: versioned, binary, with raw transactions in it as a node sends them.
//!
//! A message begins with its version and its kind, one byte each. Numbers are big-endian, times are
//! nanoseconds since the Unix epoch, lists begin with the number of their entries. There is one
//! encoding of each record, so what is decoded encodes to the same bytes again.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod bytes;
mod error;
mod head;
mod private;
mod tx;

use ::bytes::Bytes;
use alloy_primitives::{Address, B256, Keccak256};
use order_pool::Cancellation;

use self::bytes::{Reader, Writer};
pub use self::{
    error::WireError,
    head::{HeadRecord, MAX_MINED},
    private::{BundleRecord, MAX_BUNDLE_TXS, encode_bundle},
    tx::{TxRecord, encode_transaction},
};

/// The version of the encoding. A decoder refuses every other.
pub const VERSION: u8 = 1;

/// The longest message that is decoded, in bytes: the highest `max_payload` that the NATS server recommends.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

const KIND_TX: u8 = 1;
const KIND_PRIVATE_TX: u8 = 2;
const KIND_BUNDLE: u8 = 3;
const KIND_CANCELLATION: u8 = 4;
const KIND_CANCEL_PRIVATE: u8 = 5;
const KIND_HEAD: u8 = 6;

/// A message that is ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The message id, by which the stream recognises what it has stored: the hash of a
    /// transaction; of anything else a hash of its content, the same on every machine.
    pub id: B256,
    /// The encoded record.
    pub payload: Bytes,
}

/// A decoded message.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all records are transactions: a box would cost an allocation for each"
)]
pub enum Record {
    /// A transaction. Private if it has terms.
    Tx(TxRecord),
    /// A bundle.
    Bundle(BundleRecord),
    /// The cancellation of bundles.
    Cancellation(Cancellation),
    /// The cancellation of a private transaction.
    CancelPrivate {
        /// The transaction's hash.
        hash: B256,
        /// The signer of its terms.
        signer: Address,
    },
    /// A new head.
    Head(HeadRecord),
}

impl Record {
    /// Encodes it, with its message id.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        match self {
            Self::Tx(record) => record.encode(),
            Self::Bundle(record) => record.encode(),
            Self::Cancellation(cancellation) => private::encode_cancellation(cancellation),
            Self::CancelPrivate { hash, signer } => private::encode_cancel_private(hash, *signer),
            Self::Head(record) => record.encode(),
        }
    }

    /// Decodes a message and compares its content with its message id. Allocates no more than a few times the
    /// message's length.
    ///
    /// The id covers what decides how an order is executed: all of a transaction but its sidecar,
    /// all of a bundle with its sidecars. It does not cover the sender, times and origins, which
    /// are as the publisher says.
    ///
    /// # Errors
    /// Names the field.
    pub fn decode(id: &B256, payload: &[u8]) -> Result<Self, WireError> {
        let (kind, mut reader) = open(payload)?;
        let (record, found) = match kind {
            KIND_TX | KIND_PRIVATE_TX => {
                let record = TxRecord::read(&mut reader, kind == KIND_PRIVATE_TX)?;
                let hash = *record.tx.tx_hash();
                (Self::Tx(record), hash)
            }
            KIND_BUNDLE => {
                let first_seen = reader.time("first_seen")?;
                let found = content_id(KIND_BUNDLE, reader.rest());
                (Self::Bundle(BundleRecord::read(&mut reader, first_seen)?), found)
            }
            KIND_CANCELLATION => {
                let found = content_id(kind, reader.rest());
                (Self::Cancellation(private::read_cancellation(&mut reader)?), found)
            }
            KIND_CANCEL_PRIVATE => {
                let found = content_id(kind, reader.rest());
                let (hash, signer) = (reader.hash("hash")?, reader.address("signer")?);
                (Self::CancelPrivate { hash, signer }, found)
            }
            KIND_HEAD => {
                let (record, found) = HeadRecord::read(&mut reader)?;
                (Self::Head(record), found)
            }
            found => return Err(WireError::Kind { found }),
        };
        reader.end()?;
        if found == *id { Ok(record) } else { Err(WireError::Id { found, expected: *id }) }
    }
}

/// The kind of a message, and a reader behind it.
fn open(payload: &[u8]) -> Result<(u8, Reader<'_>), WireError> {
    if payload.len() > MAX_MESSAGE_BYTES {
        let (value, limit) = (payload.len(), MAX_MESSAGE_BYTES);
        return Err(WireError::TooLong { field: "message", value, limit });
    }
    let mut reader = Reader::new(payload);
    match reader.u8("version")? {
        VERSION => Ok((reader.u8("kind")?, reader)),
        found => Err(WireError::Version { found }),
    }
}

fn start(kind: u8, capacity: usize) -> Writer {
    let mut writer = Writer::with_capacity(capacity);
    writer.u8(VERSION);
    writer.u8(kind);
    writer
}

/// The message id of everything but a transaction: a hash of its kind and its content.
fn content_id(kind: u8, content: &[u8]) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update([kind]);
    hasher.update(content);
    hasher.finalize()
}

#[cfg(test)]
mod tests;
