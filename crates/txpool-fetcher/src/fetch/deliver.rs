//! From a response, or a decoded transaction, to an outcome, on the thread that has it.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Instant, SystemTime},
};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::Bytes;
use chain_view::PooledTransaction;
use load_control::WorkPermit;

use super::{Arrival, Fetch, FetchRequest, FetchTask, Seen, Slot, Ticket};
use crate::{
    connection::{ChainId, Incoming, Responses},
    decode::{Malformed, RawTransaction, read_hex, verify_blob_proofs},
    error::CallError,
    outcome::Outcome,
    sink::{Delivery, FetchedTransaction, SinkCaller, TransactionSink},
    sync::{contain, lock},
};

/// Where transactions are delivered, and what is checked before.
pub(crate) struct Deliverer<S> {
    pub(crate) fetch: Arc<Fetch>,
    pub(crate) chain_id: Arc<ChainId>,
    pub(crate) sink: Arc<SinkCaller<S>>,
}

impl<S: TransactionSink> Deliverer<S> {
    /// A permit for CPU work, if there is a gate: a sink that waits must not hold one meanwhile.
    /// Calls `about_to_wait` before it waits, for any length of time. `None`: the fetcher stops.
    pub(crate) fn work_permit(&self, about_to_wait: impl FnMut()) -> Option<Option<WorkPermit>> {
        let Some(gate) = &self.fetch.settings.config.gate else { return Some(None) };
        self.fetch.tasks.wait_for(gate.acquire_internal(), about_to_wait).map(Some)
    }

    /// Returns the slot, unless another source is asked, because the response of this one cannot be
    /// used: what that one announced meanwhile, it does not announce again.
    fn decode_and_deliver(
        &self,
        mut task: FetchTask,
        hex: Option<&str>,
        mut about_to_wait: impl FnMut(),
    ) -> Option<Slot> {
        // What is gone needs none: the sooner it is settled, the sooner another announcement counts.
        let permit = match hex {
            Some("0x") => None,
            _ => self.work_permit(&mut about_to_wait)?,
        };
        let hash = task.ticket.arrival.hash;
        let mut read =
            hex.map_or(RawTransaction::Malformed(Malformed::NotHex), |hex| read_hex(hex, hash));
        if self.fetch.settings.config.verify_blob_proofs
            && let RawTransaction::Decoded(tx, _) = &read
            && let Err(reason) = verify_blob_proofs(tx.inner())
        {
            read = RawTransaction::Malformed(reason.into());
        }
        drop(permit);
        let is_unusable = match &read {
            RawTransaction::Malformed(_) => true,
            // In a block that only this source may have.
            RawTransaction::Mined => !self.fetch.hashes.is_mined(&hash),
            RawTransaction::Gone | RawTransaction::Decoded(..) => false,
        };
        if is_unusable {
            task = self.fetch.ask_other(task)?;
        }
        let FetchTask { ticket, slot, .. } = task;
        match read {
            RawTransaction::Gone => ticket.finish(Outcome::Gone, None),
            RawTransaction::Mined => ticket.finish(Outcome::Mined, Some(Seen::Mined)),
            RawTransaction::Malformed(reason) => ticket.malformed(&reason),
            RawTransaction::Decoded(tx, raw) => self.deliver(ticket, *tx, Some(raw), about_to_wait),
        }
        Some(slot)
    }

    /// Delivers a transaction whose hash was verified, unless it is of another chain or mined.
    pub(crate) fn deliver(
        &self,
        ticket: Ticket,
        tx: Recovered<PooledTransaction>,
        raw: Option<Bytes>,
        about_to_wait: impl FnMut(),
    ) {
        let Arrival { hash, entry, source, at } = ticket.arrival;
        // A legacy transaction without one, from before EIP-155, is valid on every chain.
        let chain_ids = tx.inner().chain_id().zip(self.chain_id.get());
        if chain_ids.is_some_and(|(found, expected)| found != expected) {
            tracing::debug!(%hash, "transaction of another chain");
            return ticket.finish(Outcome::Malformed, None);
        }
        let (sender, nonce) = (tx.signer(), tx.inner().nonce());
        if lock(&self.fetch.hashes.blocks).taken(&hash, &sender, nonce).is_some() {
            return ticket.finish(Outcome::Mined, Some(Seen::Mined));
        }
        if tx.inner().is_eip4844() {
            // Relaxed: a comparison reads it long after the deliveries that it looks at.
            self.fetch.had_blobs.store(true, Relaxed);
        }
        let now = SystemTime::now();
        let first_seen = now.checked_sub(at.elapsed()).unwrap_or(now);
        let fetched = FetchedTransaction { tx, raw, entry, source, announced_at: at, first_seen };
        // It has failed if the sink has panicked. A stop leaves it unfinished while the sink waits.
        let Some(delivery) = self.sink.deliver(fetched, about_to_wait) else { return };
        self.fetch.metrics.deliver_seconds.record(at.elapsed().as_secs_f64());
        if let Delivery::Refused(_) | Delivery::Postponed(_) = delivery {
            tracing::debug!(%hash, ?delivery, "not taken by the sink");
        }
        let (outcome, seen) = match delivery {
            Delivery::Pooled => (Outcome::Pooled, Some(Seen::Delivered)),
            Delivery::Known => (Outcome::Known, Some(Seen::Delivered)),
            Delivery::Mined => (Outcome::Mined, Some(Seen::Mined)),
            Delivery::Refused(_) => (Outcome::Refused, Some(Seen::Refused)),
            Delivery::Postponed(_) => (Outcome::Postponed, Some(Seen::Postponed)),
            Delivery::Closed => {
                self.sink.closed.cancel();
                (Outcome::Refused, None)
            }
        };
        ticket.finish(outcome, seen);
    }
}

/// Slots are released together, at the latest when this many are waiting, a quarter of the default
/// number: while announcements wait for a slot, each release wakes the thread of the sockets.
const RELEASED_TOGETHER: usize = 16;

pub(crate) struct ResponseReader<S: TransactionSink> {
    deliverer: Arc<Deliverer<S>>,
    /// Slots of finished fetches.
    released: Vec<Slot>,
    release_at: usize,
}

impl<S: TransactionSink> ResponseReader<S> {
    pub(crate) fn new(deliverer: &Arc<Deliverer<S>>) -> Self {
        let slots = deliverer.fetch.settings.config.fetch_slots;
        Self {
            released: Vec::with_capacity(RELEASED_TOGETHER),
            release_at: RELEASED_TOGETHER.min(slots.div_ceil(4)),
            deliverer: Arc::clone(deliverer),
        }
    }
}

impl<S: TransactionSink> Responses<FetchRequest> for ResponseReader<S> {
    fn on_response(&mut self, request: FetchRequest, sent: Instant, response: &Incoming<'_>) {
        let text = match response.text() {
            Err(error) => return self.deliverer.fetch.failed(request, error),
            Ok(text) => text,
        };
        let is_gone = text.as_deref() == Some("0x");
        let Some(mut task) = self.deliverer.fetch.answered(request, sent, is_gone) else { return };
        let bytes = text.as_ref().map_or(0, |text| text.len());
        self.deliverer.fetch.slots.set_response_bytes(&mut task.slot, bytes);
        let (deliverer, released) = (&self.deliverer, &mut self.released);
        let done =
            contain(|| deliverer.decode_and_deliver(task, text.as_deref(), || released.clear()));
        self.released.extend(done.flatten());
        if self.released.len() >= self.release_at {
            self.released.clear();
        }
    }

    fn on_timeout(&mut self, request: FetchRequest) {
        let fetch = &self.deliverer.fetch;
        fetch.failed(request, CallError::Timeout(fetch.settings.limits.fetch_timeout));
    }

    fn on_late(&mut self) {
        self.deliverer.fetch.metrics.late_answers.increment(1);
    }

    fn on_idle(&mut self) {
        self.released.clear();
    }
}
