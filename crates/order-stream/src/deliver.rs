//! From a message to the pool, on the thread that does nothing else.

use std::{sync::Arc, time::SystemTime};

use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use async_nats::{Message, header::NATS_MESSAGE_ID};
use order_pool::{CancelOutcome, CancelPrivateOutcome, InsertOutcome, OrderPool};
use tokio::sync::watch;

use crate::{
    config::Flow,
    machines::{MachineStats, Machines},
    metrics::SourceCounters,
    subjects::machine_of,
    wire::{Record, WireError, decode_seen},
};

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    Pooled,
    Known,
    Refused,
}

impl From<InsertOutcome> for Delivered {
    fn from(outcome: InsertOutcome) -> Self {
        match outcome {
            InsertOutcome::Added | InsertOutcome::Replaced { .. } | InsertOutcome::Cancelled => {
                Self::Pooled
            }
            InsertOutcome::Known
            | InsertOutcome::AlreadyRemoved
            | InsertOutcome::Superseded { .. }
            | InsertOutcome::CancelledPermanently => Self::Known,
            // In a block, stale, or without room.
            _ => Self::Refused,
        }
    }
}

/// Decodes messages and passes them to the pool, in their order.
#[derive(Debug)]
pub(crate) struct Deliverer {
    pub(crate) pool: OrderPool,
    pub(crate) flow: Flow,
    pub(crate) chain_id: u64,
    pub(crate) heads: bool,
    pub(crate) machines: Machines,
    pub(crate) shown: watch::Sender<Vec<MachineStats>>,
    pub(crate) counters: Arc<SourceCounters>,
}

impl Deliverer {
    /// One message of the stream.
    pub(crate) fn message(&mut self, message: &Message, now: SystemTime) {
        let machine = machine_of(&message.subject);
        let delivered = self.deliver(message, machine, now);
        let counters = &self.counters;
        let outcome = match delivered {
            Ok(Delivered::Pooled) => &counters.pooled,
            Ok(Delivered::Known) => &counters.known,
            Ok(Delivered::Refused) => &counters.refused,
            Err(error) => {
                tracing::warn!(%error, machine, "a malformed message");
                &counters.malformed
            }
        };
        counters.processed(outcome, message.payload.len());
    }

    fn deliver(
        &mut self,
        message: &Message,
        machine: &str,
        now: SystemTime,
    ) -> Result<Delivered, WireError> {
        let id = message_id(message).ok_or(WireError::NoId)?;
        match Record::decode(&id, &message.payload)? {
            Record::Tx(record) => {
                let is_other = record.tx.chain_id().is_some_and(|id| id != self.chain_id);
                // Private orders come by the private stream alone.
                if is_other || (record.private.is_some() && self.flow == Flow::Public) {
                    return Ok(Delivered::Refused);
                }
                let seen = record.first_seen;
                let tx = record.resolve(now);
                if self.flow == Flow::Public {
                    self.machines.stored(machine, *tx.hash(), seen);
                }
                Ok(self.pool.insert_transaction(tx).into())
            }
            Record::Head(record) => {
                if !self.heads || self.flow != Flow::Public {
                    return Ok(Delivered::Refused);
                }
                let relation = self.pool.on_head(record.into_block());
                Ok(match relation {
                    _ if relation.is_new() => Delivered::Pooled,
                    order_pool::Relation::Repeat => Delivered::Known,
                    _ => Delivered::Refused,
                })
            }
            _ if self.flow != Flow::Private => Ok(Delivered::Refused),
            Record::Bundle(record) => Ok(self.pool.insert_bundle(record.resolve(now)?).into()),
            Record::Cancellation(cancellation) => {
                let outcome = self.pool.cancel_bundle(cancellation.key, cancellation.nonce);
                Ok(match outcome {
                    CancelOutcome::Cancelled { .. } => Delivered::Pooled,
                    _ => Delivered::Known,
                })
            }
            Record::CancelPrivate { hash, signer } => {
                Ok(match self.pool.cancel_private(&hash, signer) {
                    CancelPrivateOutcome::Cancelled => Delivered::Pooled,
                    CancelPrivateOutcome::Unknown => Delivered::Known,
                    _ => Delivered::Refused,
                })
            }
        }
    }

    /// A report of a machine that was not the first to publish.
    pub(crate) fn report(&mut self, message: &Message) {
        let machine = machine_of(&message.subject);
        match decode_seen(&message.payload) {
            Ok(entries) => {
                for (hash, seen) in entries {
                    self.machines.reported(machine, &hash, seen);
                }
            }
            Err(error) => tracing::debug!(%error, machine, "a malformed report"),
        }
    }

    /// Makes visible what is known of the machines.
    pub(crate) fn show(&self) {
        self.shown.send_if_modified(|shown| {
            shown.clear();
            shown.extend_from_slice(self.machines.stats());
            false
        });
    }
}

fn message_id(message: &Message) -> Option<B256> {
    let header = message.headers.as_ref()?.get(NATS_MESSAGE_ID)?.as_str();
    let mut id = B256::ZERO;
    // What follows a hyphen tells the copies of a message from each other that are not duplicates.
    let digits = header.split_once('-').map_or(header, |(digits, _)| digits);
    (digits.len() == 64).then_some(())?;
    alloy_primitives::hex::decode_to_slice(digits, id.as_mut_slice()).ok()?;
    Some(id)
}

#[cfg(test)]
mod tests;
