//! From a decoded transaction to an outcome, on the thread that has it.

use std::{sync::Arc, time::SystemTime};

use alloy_consensus::transaction::Recovered;
use alloy_primitives::{B256, Bytes};
use chain_view::PooledTransaction;
use load_control::WorkPermit;

use super::{Arrival, Hashes, Seen, Ticket};
use crate::{
    connection::ChainId,
    decode::{Malformed, RawTransaction, is_on_chain, read_hex, verify_blob_proofs},
    metrics::Metrics,
    outcome::Outcome,
    settings::Settings,
    sink::{Delivery, FetchedTransaction, SinkCaller, TransactionSink},
};

/// Where transactions are delivered, and what is checked before.
#[derive(Debug)]
pub(crate) struct Deliverer<S> {
    pub(crate) settings: Arc<Settings>,
    pub(crate) hashes: Arc<Hashes>,
    pub(crate) chain_id: Arc<ChainId>,
    pub(crate) sink: Arc<SinkCaller<S>>,
    pub(crate) metrics: Arc<Metrics>,
}

impl<S: TransactionSink> Deliverer<S> {
    /// A permit for CPU work, if there is a gate: a sink that waits must not hold one meanwhile. Other
    /// holders may keep the permits for any length of time; calls `about_to_wait` before it waits.
    /// `None`: the fetcher stops.
    pub(crate) fn work_permit(&self, about_to_wait: impl FnMut()) -> Option<Option<WorkPermit>> {
        match &self.settings.config.gate {
            None => Some(None),
            Some(gate) => {
                self.sink.tasks.wait_for(gate.acquire_internal(), about_to_wait).map(Some)
            }
        }
    }
}

/// A hash on its way to the sink. If it is dropped without an outcome, it counts as failed.
pub(crate) struct DeliveryTask<'a, S: TransactionSink> {
    deliverer: &'a Deliverer<S>,
    arrival: Arrival,
    ticket: Ticket,
}

impl<'a, S: TransactionSink> DeliveryTask<'a, S> {
    pub(crate) fn new(deliverer: &'a Deliverer<S>, arrival: Arrival, ticket: Ticket) -> Self {
        Self { deliverer, arrival, ticket }
    }

    /// Calls `about_to_wait` before it waits for a permit or for the sink.
    pub(super) fn decode_and_deliver(self, hex: Option<&str>, mut about_to_wait: impl FnMut()) {
        let deliverer = self.deliverer;
        let Some(permit) = deliverer.work_permit(&mut about_to_wait) else { return };
        let hash = self.arrival.hash;
        let mut read =
            hex.map_or(RawTransaction::Malformed(Malformed::NotHex), |hex| read_hex(hex, hash));
        if deliverer.settings.config.verify_blob_proofs
            && let RawTransaction::Decoded(tx, _) = &read
            && let Err(reason) = verify_blob_proofs(tx.inner())
        {
            read = RawTransaction::Malformed(reason.into());
        }
        drop(permit);
        match read {
            RawTransaction::Gone => self.finish(Outcome::Gone, None),
            RawTransaction::Mined => self.finish(Outcome::Mined, Some(Seen::Mined)),
            RawTransaction::Malformed(reason) => self.malformed(&reason),
            RawTransaction::Decoded(tx, raw) => self.deliver(*tx, Some(raw), about_to_wait),
        }
    }

    /// The hash that was requested.
    pub(crate) fn hash(&self) -> B256 {
        self.arrival.hash
    }

    /// A pool in this process does not have the transaction. Unlike a node, it does not return
    /// mined ones.
    pub(crate) fn gone(self) {
        if self.deliverer.hashes.is_mined(&self.arrival.hash) {
            self.finish(Outcome::Mined, Some(Seen::Mined));
        } else {
            self.finish(Outcome::Gone, None);
        }
    }

    /// The announcement or the response cannot be used.
    pub(crate) fn malformed(self, reason: &dyn std::error::Error) {
        tracing::debug!(hash = %self.arrival.hash, %reason, "malformed transaction");
        self.finish(Outcome::Malformed, None);
    }

    /// Delivers a transaction whose hash was verified to the sink, unless it is of another chain or
    /// mined. Calls `about_to_wait` before it waits for the sink.
    pub(crate) fn deliver(
        self,
        tx: Recovered<PooledTransaction>,
        raw: Option<Bytes>,
        about_to_wait: impl FnMut(),
    ) {
        let deliverer = self.deliverer;
        let hash = self.arrival.hash;
        if deliverer.chain_id.get().is_some_and(|chain_id| !is_on_chain(tx.inner(), chain_id)) {
            tracing::debug!(%hash, "transaction of another chain");
            return self.finish(Outcome::Malformed, None);
        }
        if deliverer.hashes.is_taken(&tx) {
            return self.finish(Outcome::Mined, Some(Seen::Mined));
        }
        let Arrival { entry, source, at, .. } = self.arrival;
        let now = SystemTime::now();
        let first_seen = now.checked_sub(at.elapsed()).unwrap_or(now);
        let fetched = FetchedTransaction { tx, raw, entry, source, announced_at: at, first_seen };
        let Some(delivered) = deliverer.sink.deliver(fetched, about_to_wait) else {
            return self.finish(Outcome::Failed, None);
        };
        // `None`: the fetcher stops, and does not wait for a sink that waits (a full channel).
        let Some(delivery) = delivered else { return };
        deliverer.metrics.deliver_seconds.record(at.elapsed().as_secs_f64());
        let (outcome, seen) = match delivery {
            Delivery::Pooled => (Outcome::Pooled, Some(Seen::Delivered)),
            Delivery::Known => (Outcome::Known, Some(Seen::Delivered)),
            Delivery::Mined => (Outcome::Mined, Some(Seen::Mined)),
            Delivery::Refused(reason) => {
                tracing::debug!(%hash, reason, "refused by the sink");
                (Outcome::Refused, Some(Seen::Refused))
            }
            Delivery::Postponed(reason) => {
                tracing::debug!(%hash, reason, "postponed by the sink");
                (Outcome::Postponed, Some(Seen::Postponed))
            }
            Delivery::Closed => {
                deliverer.sink.closed.cancel();
                (Outcome::Refused, None)
            }
        };
        self.finish(outcome, seen);
    }

    fn finish(self, outcome: Outcome, seen: Option<Seen>) {
        self.deliverer.hashes.finish(self.arrival.hash, self.ticket, outcome, seen);
    }
}
