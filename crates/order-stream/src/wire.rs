//! The encoding of the messages: versioned, binary, with raw transactions in it as a node sends them.
//!
//! A message begins with its version and its kind, one byte each. Numbers are big-endian, times are nanoseconds since
//! the Unix epoch, lists begin with their length, and a byte before an optional field says whether it is there. There is
//! one encoding of each record, so what is decoded encodes to the same bytes again.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod bytes;
mod records;

use std::{sync::Arc, time::SystemTime};

use ::bytes::Bytes;
use alloy_eips::eip2718::Eip2718Error;
use alloy_primitives::{B256, Keccak256};
use order_pool::{
    BundleError, Cancellation, Holder, Order, PrivateCancellation, PrivateTerms, Transaction,
};

use self::bytes::Reader;
pub use self::records::{HeadRecord, encode_transaction};

/// The version of the encoding. A decoder refuses every other.
pub const VERSION: u8 = 1;

/// The longest message that is decoded, in bytes: the highest `max_payload` that the NATS server recommends.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

const KIND_TX: u8 = 1;
const KIND_BUNDLE: u8 = 2;
const KIND_CANCELLATION: u8 = 3;
const KIND_CANCEL_PRIVATE: u8 = 4;
const KIND_HEAD: u8 = 5;

/// A message that is ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The message id, by which the stream recognises what it has stored: the hash of a transaction; of anything else a
    /// hash of its content, the same on every machine.
    pub id: B256,
    /// The encoded record.
    pub payload: Bytes,
}

/// What a message says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Record {
    /// A transaction or a bundle, with the sender, origin and sidecar that the publisher says. A bundle has the block and
    /// the nonce that the publisher's pool assigned. Those count as sent from then on, so a bundle whose searcher left
    /// them open has another [`Bundle::id`](order_pool::Bundle::id) in the pools that it reaches, the same in all of them.
    Order(Arc<Order>),
    /// The cancellation of bundles.
    Cancellation(Cancellation),
    /// The cancellation of a private transaction.
    CancelPrivate(PrivateCancellation),
    /// A new head, in a box: it is larger than all others.
    Head(Box<HeadRecord>),
}

impl Record {
    /// Encodes it, with its message id; `None` for an order of a kind that is not known here.
    #[must_use]
    pub fn encode(&self) -> Option<Encoded> {
        Some(match self {
            Self::Order(order) => {
                let terms = order.as_tx().and_then(Transaction::private_terms);
                return encode_order(order, order.holder(), terms);
            }
            Self::Cancellation(cancellation) => records::encode_cancellation(cancellation),
            Self::CancelPrivate(cancellation) => records::encode_cancel_private(cancellation),
            Self::Head(record) => records::encode_head(record),
        })
    }

    /// Decodes a message and compares its content with its message id. Allocates no more than a few times the message's
    /// length. A time after `now` becomes `now`.
    ///
    /// The id covers what decides how an order is executed: all of a transaction but its sidecar, all of a bundle with its
    /// sidecars. It does not cover the sender, times, origins and holders, which are as the publisher says.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub fn decode(id: &B256, payload: &[u8], now: SystemTime) -> Result<Self, WireError> {
        if payload.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::Value { field: "length", value: payload.len() as u64 });
        }
        let mut reader = Reader::new(payload);
        let [version, kind] = reader.array()?;
        if version != VERSION {
            return Err(WireError::Value { field: "version", value: version.into() });
        }
        let record = match kind {
            KIND_TX => Self::Order(Arc::new(Order::Tx(records::read_tx(&mut reader, now)?))),
            KIND_BUNDLE => {
                Self::Order(Arc::new(Order::Bundle(records::read_bundle(&mut reader, now)?)))
            }
            KIND_CANCELLATION => Self::Cancellation(records::read_cancellation(&mut reader)?),
            KIND_CANCEL_PRIVATE => {
                Self::CancelPrivate(records::read_cancel_private(&mut reader, now)?)
            }
            KIND_HEAD => Self::Head(records::read_head(&mut reader)?.into()),
            _ => return Err(WireError::Value { field: "kind", value: kind.into() }),
        };
        if !reader.rest.is_empty() {
            let value = reader.rest.len() as u64;
            return Err(WireError::Value { field: "bytes behind the end", value });
        }
        let found = match &record {
            Self::Order(order) if kind == KIND_TX => *order.id().hash(),
            _ => content_id(kind, reader.content),
        };
        if found == *id { Ok(record) } else { Err(WireError::Id { found, expected: *id }) }
    }
}

/// Encodes an order as this holder has sent it, a private transaction on these terms; `None` if its kind is not known here.
pub(crate) fn encode_order(
    order: &Order,
    holder: Holder,
    terms: Option<&PrivateTerms>,
) -> Option<Encoded> {
    match order {
        Order::Tx(tx) => Some(records::encode_tx(tx, holder, terms)),
        Order::Bundle(bundle) => Some(records::encode_bundle(bundle, holder)),
        _ => None,
    }
}

/// The message id of everything but a transaction: a hash of its kind and its content.
fn content_id(kind: u8, content: &[u8]) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update([kind]);
    hasher.update(content);
    hasher.finalize()
}

/// Why a message does not decode, or is not what it claims to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends within a field.
    #[error("the next field needs {needed} bytes, {left} are left")]
    Truncated {
        /// Its bytes.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A field has a value that is not accepted.
    #[error("{field} is {value}, which is not accepted")]
    Value {
        /// The field; `kind` and `version` may be those of a newer publisher.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A transaction does not decode.
    #[error("txs[{index}] does not decode as a signed transaction: {source}")]
    Undecodable {
        /// Its index; 0 unless it is one of a bundle.
        index: usize,
        /// The decoder's error.
        source: Eip2718Error,
    },
    /// The content has another id than the message.
    #[error("the content has the id {found}, the message has {expected}")]
    Id {
        /// The id of the content.
        found: B256,
        /// The message id.
        expected: B256,
    },
    /// The message has no id, or one that is not 64 hexadecimal digits.
    #[error("Nats-Msg-Id is missing or not 64 hexadecimal digits")]
    NoId,
    /// The fields do not form a bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

#[cfg(test)]
mod tests;
