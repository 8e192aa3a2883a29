//! The binary encoding of the messages: a version, a kind, and raw transactions in EIP-2718 form.
//!
//! A message begins with its version and its kind, one byte each. Integers are big-endian, ages are
//! in nanoseconds, times in microseconds since the Unix epoch, lists begin with their length, and a
//! byte before an optional field says whether the field is present. Each record has exactly one
//! encoding, so a decoded message encodes to the same bytes again.
//!
//! The clocks of machines differ, so a message carries no time of its machine that is compared with
//! others. It carries its age when it was sent, and the time of the server's clock before which it
//! was sent. A reader subtracts the age from the earlier of this time and the time at which the
//! server stored the message, so all readers compute the same time ([`Decoded::stream_time`]).

// This module reads bytes from outside, which must not cause a panic.
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

/// The version of the encoding. A decoder refuses every other, so when it changes, stop all
/// machines of a fleet and purge the streams.
pub const VERSION: u8 = 3;

/// The longest message that is decoded, in bytes: the highest `max_payload` that the NATS server
/// recommends.
pub const MAX_MESSAGE_BYTES: usize = 8 << 20;

/// The longest time between sending and storing that is believed. A publisher leaves a server that
/// is silent for four seconds, but what it has written to the connection may arrive when a cut
/// ends: Linux sends the data of a closed connection again for 102 seconds (`tcp_orphan_retries`).
/// If the time seems longer, the server's clock was probably set, or another server with another
/// clock leads the stream now. If the clocks differ by less, a publisher's messages seem that much
/// older until it reads the clock again, which takes three seconds.
const MAX_TRANSIT: Duration = Duration::from_secs(120);

const KIND_TX: u8 = 1;
const KIND_BUNDLE: u8 = 2;
const KIND_CANCELLATION: u8 = 3;
const KIND_CANCEL_PRIVATE: u8 = 4;
const KIND_HEAD: u8 = 5;

/// A message that is ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The message id, by which the stream recognises duplicates: the hash of a transaction, or a
    /// hash of the content of anything else. It is the same on every machine.
    pub id: B256,
    /// The encoded record.
    pub payload: Bytes,
}

/// When an order or a cancellation was sent, as its publisher reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherTime {
    /// The time between the arrival of the order at the machine and the sending of the message.
    pub age: Duration,
    /// The arrival by the machine's own clock, in microseconds since the Unix epoch. It orders the
    /// messages of one machine about one key, and has no meaning for messages of other machines.
    /// It is 0 for messages that can neither replace nor cancel others.
    pub local_micros: u64,
    /// A time of the server's clock before which the message was sent, by no more than a round
    /// trip; `None` if the publisher does not know the server's clock. The server may store
    /// the message much later, if it or the connection hangs meanwhile.
    pub sent_before: Option<SystemTime>,
}

impl PublisherTime {
    /// Returns the time of a transaction that has waited in its publisher's pool for `age`.
    #[must_use]
    pub fn of_transaction(tx: &Transaction, age: Duration) -> Self {
        Self { age, local_micros: micros(tx.first_seen()), sent_before: None }
    }

    fn stream_time(&self, stored_at: SystemTime) -> SystemTime {
        let is_plausible = |sent_before: &SystemTime| {
            stored_at.duration_since(*sent_before).is_ok_and(|transit| transit <= MAX_TRANSIT)
        };
        let sent_at = self.sent_before.filter(is_plausible).unwrap_or(stored_at);
        sent_at.checked_sub(self.age).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Converts a time to microseconds since the Unix epoch.
pub(crate) fn micros(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// A decoded message.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The content. Its times are [`Self::stream_time`].
    pub record: Record,
    /// The time as the publisher reports it.
    pub publisher_time: PublisherTime,
    /// The time of the server's clock at which the message was sent, less its age. All readers
    /// compute the same.
    pub stream_time: SystemTime,
}

/// The content of a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Record {
    /// A transaction or a bundle, with the sender, origin and sidecar that the publisher reports. A
    /// bundle has the block that the publisher's pool assigned and the searcher's replacement
    /// nonce. A bundle without a nonce gets one in each pool that it reaches, from its stream time,
    /// which is the same in all pools. The nonce that the publisher's pool assigned is
    /// [`PublisherTime::local_micros`].
    Order(Arc<Order>),
    /// The cancellation of bundles.
    Cancellation(Cancellation),
    /// The cancellation of a private transaction.
    CancelPrivate(PrivateCancellation),
    /// A new head. It is boxed because it is larger than the other variants.
    Head(Box<HeadRecord>),
}

impl Record {
    /// Encodes the record and computes its message id. Returns `None` for an order of a kind that
    /// this version cannot encode.
    #[must_use]
    pub fn encode(&self, publisher_time: &PublisherTime) -> Option<Encoded> {
        Some(match self {
            Self::Order(order) => {
                let terms = order.as_tx().and_then(Transaction::private_terms);
                return encode_order(order, order.holder(), terms, publisher_time);
            }
            Self::Cancellation(cancellation) => {
                records::encode_cancellation(cancellation, publisher_time)
            }
            Self::CancelPrivate(cancellation) => {
                records::encode_cancel_private(cancellation, publisher_time)
            }
            Self::Head(record) => records::encode_head(record),
        })
    }

    /// Returns [`PublisherTime::local_micros`]: the arrival by this machine's clock, or for a
    /// bundle whose searcher chose no nonce, the nonce that the pool assigned.
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

    /// Returns when the record arrived by this machine's clock; `None` if builders do not need it.
    pub(crate) fn received_at(&self) -> Option<SystemTime> {
        match self {
            Self::Order(order) => first_seen(order),
            Self::Cancellation(cancellation) => cancellation.sent_at,
            Self::CancelPrivate(cancellation) => Some(cancellation.cancelled_at),
            Self::Head(_) => None,
        }
    }

    /// Decodes a message and compares its content with its message id. Allocates at most a few
    /// times the length of the message. `stored_at` is the time at which the server stored the
    /// message.
    ///
    /// The id covers what decides how an order is executed: all of a transaction but its sidecar,
    /// all of a bundle with its sidecars. It does not cover sender, times, origin and holder, for
    /// which the publisher is trusted.
    ///
    /// # Errors
    /// The message cannot be decoded, or its content has another id.
    pub fn decode(id: &B256, payload: &[u8], stored_at: SystemTime) -> Result<Decoded, WireError> {
        if payload.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::Value { field: "length", value: payload.len() as u64 });
        }
        let mut reader = Reader::new(payload);
        let [version, kind] = reader.array()?;
        if version != VERSION {
            return Err(WireError::Value { field: "version", value: version.into() });
        }
        let (record, publisher_time) = match kind {
            KIND_TX => {
                let (tx, publisher_time) = records::read_tx(&mut reader, stored_at)?;
                (Self::Order(Arc::new(Order::Tx(tx))), publisher_time)
            }
            KIND_BUNDLE => {
                let (bundle, publisher_time) = records::read_bundle(&mut reader, stored_at)?;
                (Self::Order(Arc::new(Order::Bundle(bundle))), publisher_time)
            }
            KIND_CANCELLATION => {
                let (cancellation, publisher_time) =
                    records::read_cancellation(&mut reader, stored_at)?;
                (Self::Cancellation(cancellation), publisher_time)
            }
            KIND_CANCEL_PRIVATE => {
                let (cancellation, publisher_time) =
                    records::read_cancel_private(&mut reader, stored_at)?;
                (Self::CancelPrivate(cancellation), publisher_time)
            }
            KIND_HEAD => {
                (Self::Head(records::read_head(&mut reader)?.into()), PublisherTime::default())
            }
            _ => return Err(WireError::Value { field: "kind", value: kind.into() }),
        };
        if !reader.rest.is_empty() {
            let value = reader.rest.len() as u64;
            return Err(WireError::Value { field: "number of bytes after the record", value });
        }
        let content_id = match &record {
            Self::Order(order) if kind == KIND_TX => *order.id().hash(),
            _ => hash_content(kind, reader.content),
        };
        if content_id != *id {
            return Err(WireError::Id { found: content_id, expected: *id });
        }
        Ok(Decoded { record, publisher_time, stream_time: publisher_time.stream_time(stored_at) })
    }
}

/// Encodes a pooled transaction.
///
/// The encoding consists of origin, age, time of sending, sender and holder, in 38 to 75 bytes, the
/// local time unless a node has announced the transaction, the terms of a private transaction, and
/// then the transaction in EIP-2718 form with its sidecar. A transaction that a node has announced
/// is encoded as announced, whoever sent it first, and without terms. The message id is its hash.
#[must_use]
pub fn encode_transaction(tx: &Transaction, age: Duration) -> Encoded {
    let publisher_time = PublisherTime::of_transaction(tx, age);
    records::encode_tx(tx, tx.holder(), tx.private_terms(), &publisher_time)
}

fn first_seen(order: &Order) -> Option<SystemTime> {
    match order {
        Order::Tx(tx) => Some(tx.first_seen()),
        Order::Bundle(bundle) => Some(bundle.first_seen()),
        _ => None,
    }
}

/// Encodes an order as `holder` has sent it, a private transaction with the `terms` of that holder.
/// Returns `None` for an order of a kind that this version cannot encode.
pub(crate) fn encode_order(
    order: &Order,
    holder: Holder,
    terms: Option<&PrivateTerms>,
    publisher_time: &PublisherTime,
) -> Option<Encoded> {
    match order {
        Order::Tx(tx) => Some(records::encode_tx(tx, holder, terms, publisher_time)),
        Order::Bundle(bundle) => Some(records::encode_bundle(bundle, holder, publisher_time)),
        _ => None,
    }
}

/// Computes the message id of everything but a transaction: a hash of the kind and the content.
fn hash_content(kind: u8, content: &[u8]) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update([kind]);
    hasher.update(content);
    hasher.finalize()
}

/// Why a message cannot be decoded, or contradicts its message id.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends within a field.
    #[error("the next field needs {needed} bytes, {left} are left")]
    Truncated {
        /// The size of the field in bytes.
        needed: usize,
        /// The bytes that are left.
        left: usize,
    },
    /// A field has a value that is not accepted.
    #[error("{field} is {value}, which is not accepted")]
    Value {
        /// The field. An unknown `kind` or `version` may come from a newer publisher.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A transaction cannot be decoded.
    #[error("txs[{index}] cannot be decoded as a signed transaction: {source}")]
    Undecodable {
        /// Its index in the bundle; 0 outside of a bundle.
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
