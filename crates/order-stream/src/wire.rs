//! The encoding of the messages: versioned, binary, with raw transactions in it as a node sends them.
//!
//! A message begins with its version and its kind, one byte each. Numbers are big-endian, ages are nanoseconds, lists
//! begin with their length, and a byte before an optional field says whether it is there. There is one encoding of each
//! record, so what is decoded encodes to the same bytes again.
//!
//! A message has no time, since the clocks of machines differ: it has its age when it was sent. A reader subtracts that
//! from the time at which the server stored the message, so that all readers agree on the time ([`Decoded`]).

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod bytes;
mod records;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::bytes::Bytes;
use alloy_eips::eip2718::Eip2718Error;
use alloy_primitives::{B256, Keccak256};
use order_pool::{
    BundleError, Cancellation, Holder, Order, PrivateCancellation, PrivateTerms, Transaction,
};

use self::bytes::Reader;
pub use self::records::HeadRecord;

/// The version of the encoding. A decoder refuses every other.
pub const VERSION: u8 = 2;

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

/// When an order or a cancellation was sent, as its publisher knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The time between the arrival of the order at the machine and the sending of the message.
    pub age: Duration,
    /// The time of its arrival by the machine's own clock, in microseconds since the Unix epoch. It orders the messages
    /// of one machine about one key, and means nothing for those of another machine. Only messages that can replace or
    /// cancel others have it; it is 0 in all others.
    pub local_micros: u64,
}

impl Sent {
    /// Of a transaction that has waited for so long in the pool of its publisher.
    #[must_use]
    pub fn transaction(tx: &Transaction, age: Duration) -> Self {
        Self { age, local_micros: micros(tx.first_seen()) }
    }

    fn time(&self, stored: SystemTime) -> SystemTime {
        stored.checked_sub(self.age).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Microseconds since the Unix epoch.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A message as it was decoded.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The content. Its times are [`Self::time`].
    pub record: Record,
    /// What the publisher says of its time.
    pub sent: Sent,
    /// When it was sent, by the clock of the server: the time at which the server stored it, less its age.
    pub time: SystemTime,
}

/// What a message says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Record {
    /// A transaction or a bundle, with the sender, origin and sidecar that the publisher says. A bundle has the block that
    /// the publisher's pool assigned, and its searcher's replacement nonce. One without a nonce gets one in each pool that
    /// it reaches, by its time, which is the same in all of them; the nonce that the publisher's pool has assigned is
    /// [`Sent::local_micros`].
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
    pub fn encode(&self, sent: &Sent) -> Option<Encoded> {
        Some(match self {
            Self::Order(order) => {
                let terms = order.as_tx().and_then(Transaction::private_terms);
                return encode_order(order, order.holder(), terms, sent);
            }
            Self::Cancellation(cancellation) => records::encode_cancellation(cancellation, sent),
            Self::CancelPrivate(cancellation) => records::encode_cancel_private(cancellation, sent),
            Self::Head(record) => records::encode_head(record),
        })
    }

    /// When it arrived by the clock of this machine, in microseconds since the Unix epoch; of a bundle without a nonce of
    /// its searcher's, the nonce that the pool has assigned. See [`Sent::local_micros`].
    pub(crate) fn local_micros(&self) -> u64 {
        match self {
            Self::Order(order) => match &**order {
                Order::Bundle(bundle) if bundle.has_assigned_nonce() => {
                    bundle.nonce().unwrap_or_default()
                }
                order => first_seen(order).map_or(0, micros),
            },
            Self::Cancellation(cancellation) => match cancellation.sent_at {
                Some(_) => cancellation.nonce.unwrap_or_default(),
                None => 0,
            },
            Self::CancelPrivate(cancellation) => micros(cancellation.cancelled_at),
            Self::Head(_) => 0,
        }
    }

    /// When it arrived by the clock of this machine, if that matters to builders.
    pub(crate) fn arrived(&self) -> Option<SystemTime> {
        match self {
            Self::Order(order) => first_seen(order),
            Self::Cancellation(cancellation) => cancellation.sent_at,
            Self::CancelPrivate(cancellation) => Some(cancellation.cancelled_at),
            Self::Head(_) => None,
        }
    }

    /// Decodes a message and compares its content with its message id. Allocates no more than a few times the message's
    /// length. `stored` is the time at which the server stored the message.
    ///
    /// The id covers what decides how an order is executed: all of a transaction but its sidecar, all of a bundle with its
    /// sidecars. It does not cover the sender, times, origins and holders, which are as the publisher says.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub fn decode(id: &B256, payload: &[u8], stored: SystemTime) -> Result<Decoded, WireError> {
        if payload.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::Value { field: "length", value: payload.len() as u64 });
        }
        let mut reader = Reader::new(payload);
        let [version, kind] = reader.array()?;
        if version != VERSION {
            return Err(WireError::Value { field: "version", value: version.into() });
        }
        let (record, sent) = match kind {
            KIND_TX => {
                let (tx, sent) = records::read_tx(&mut reader, stored)?;
                (Self::Order(Arc::new(Order::Tx(tx))), sent)
            }
            KIND_BUNDLE => {
                let (bundle, sent) = records::read_bundle(&mut reader, stored)?;
                (Self::Order(Arc::new(Order::Bundle(bundle))), sent)
            }
            KIND_CANCELLATION => {
                let (cancellation, sent) = records::read_cancellation(&mut reader, stored)?;
                (Self::Cancellation(cancellation), sent)
            }
            KIND_CANCEL_PRIVATE => {
                let (cancellation, sent) = records::read_cancel_private(&mut reader, stored)?;
                (Self::CancelPrivate(cancellation), sent)
            }
            KIND_HEAD => (Self::Head(records::read_head(&mut reader)?.into()), Sent::default()),
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
        if found == *id {
            Ok(Decoded { record, sent, time: sent.time(stored) })
        } else {
            Err(WireError::Id { found, expected: *id })
        }
    }
}

/// Encodes what is published of a pooled transaction: origin, age, sender and holder, 30 to 50 bytes; of one that no node
/// has announced also its local time, and of a private one its terms; then the transaction in EIP-2718 form, with its
/// sidecar if it has blobs. One that a node has announced counts as announced, whoever sent it first, and its terms are
/// void. The message id is its hash.
#[must_use]
pub fn encode_transaction(tx: &Transaction, age: Duration) -> Encoded {
    records::encode_tx(tx, tx.holder(), tx.private_terms(), &Sent::transaction(tx, age))
}

fn first_seen(order: &Order) -> Option<SystemTime> {
    match order {
        Order::Tx(tx) => Some(tx.first_seen()),
        Order::Bundle(bundle) => Some(bundle.first_seen()),
        _ => None,
    }
}

/// Encodes an order as this holder has sent it, a private transaction on these terms; `None` if its kind is not known here.
pub(crate) fn encode_order(
    order: &Order,
    holder: Holder,
    terms: Option<&PrivateTerms>,
    sent: &Sent,
) -> Option<Encoded> {
    match order {
        Order::Tx(tx) => Some(records::encode_tx(tx, holder, terms, sent)),
        Order::Bundle(bundle) => Some(records::encode_bundle(bundle, holder, sent)),
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
