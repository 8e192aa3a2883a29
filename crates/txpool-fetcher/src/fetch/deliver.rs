//! Decodes a response, recovers the sender, calls the sink, and records the outcome. Decides
//! whether that happens on the current thread or on the delivery thread (`mempool-deliver`).

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::SystemTime,
};

use alloy_consensus::{
    Transaction as _,
    transaction::{Recovered, SignerRecoverable as _},
};
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes};
use chain_view::PooledTransaction;
use futures::FutureExt as _;
use load_control::WorkPermit;

use super::{
    Arrival, Fetch, Seen, Ticket,
    delivery_thread::{BUSY, LARGE_BYTES},
    transaction::FetchTask,
};
use crate::{
    decode::{Malformed, RawTransaction, read_raw, verify_blob_proofs},
    outcome::{Entry, Outcome},
    sink::{Delivery, FetchedTransaction, Job},
    sync::lock,
};

/// A transaction that a node announced whole.
pub(crate) struct AnnouncedTransaction {
    pub(crate) tx: PooledTransaction,
    pub(crate) raw: Bytes,
    /// The sender that the node claims, if the node is trusted. Otherwise the sender is recovered.
    pub(crate) trusted_sender: Option<Address>,
}

impl Fetch {
    /// Reads a response and delivers its transaction, here or on the delivery thread.
    pub(super) async fn read_and_deliver(self: Arc<Self>, mut task: FetchTask, raw: Bytes) {
        if let Some(slot) = &mut task.slot {
            self.slots.set_response_bytes(slot, raw.len());
        }
        let hands_over = raw.len() > LARGE_BYTES || self.should_hand_over();
        // Boxed, so that the task of a fetch is small while it waits for its response.
        let work = Arc::clone(&self).read_and_deliver_here(task, raw).boxed();
        if hands_over {
            self.delivery_thread.run(work).await;
        } else {
            work.await;
        }
    }

    /// Returns whether decoding and delivering here would delay the reading of the sockets.
    fn should_hand_over(&self) -> bool {
        self.context.sink.may_block()
            || self.slots.in_use() >= BUSY && !self.delivery_thread.is_behind()
    }

    /// Reads and delivers on the current thread, which may have no runtime: it must not await
    /// timers or sockets.
    async fn read_and_deliver_here(self: Arc<Self>, task: FetchTask, raw: Bytes) {
        let hash = task.ticket.arrival.hash;
        let permit = self.work_permit().await;
        let mut read = read_raw(raw, hash);
        if let RawTransaction::Decoded(tx, _) = &read
            && let Err(reason) = self.verify(tx.inner())
        {
            read = RawTransaction::Malformed(reason);
        }
        drop(permit);
        if !matches!(read, RawTransaction::Malformed(_)) {
            // What cannot be decoded counts like no response: the source must not look healthy.
            self.limits[task.source()].record_transaction();
        }
        match read {
            RawTransaction::Decoded(tx, raw) => self.deliver(task.ticket, *tx, Some(raw)).await,
            RawTransaction::Gone => task.ticket.finish(Outcome::Gone, None),
            RawTransaction::NoSidecar if self.context.hashes.is_mined(&hash) => {
                task.finish_mined();
            }
            RawTransaction::NoSidecar => self.request_sidecar(task),
            RawTransaction::Malformed(reason) => self.request_elsewhere(task, reason),
        }
    }

    /// Verifies the blob proofs, if that is configured.
    fn verify(&self, tx: &PooledTransaction) -> Result<(), Malformed> {
        if self.context.settings.config.verify_blob_proofs {
            verify_blob_proofs(tx)?;
        }
        Ok(())
    }

    /// Waits for a permit for CPU work, if there is a gate. The permit is released before the sink
    /// is called, which may wait.
    async fn work_permit(&self) -> Option<WorkPermit> {
        match &self.context.settings.config.gate {
            Some(gate) => Some(gate.acquire_internal().await),
            None => None,
        }
    }

    /// Delivers a transaction that a node announced whole, here or on the delivery thread.
    /// `is_behind`: many announced transactions wait.
    pub(crate) async fn deliver_announced(
        self: &Arc<Self>,
        ticket: Ticket,
        announced: AnnouncedTransaction,
        is_behind: bool,
    ) {
        let fetch = Arc::clone(self);
        let work = async move {
            let AnnouncedTransaction { tx, raw, trusted_sender } = announced;
            let permit = fetch.work_permit().await;
            let sender = trusted_sender.map_or_else(|| tx.recover_signer(), Ok);
            drop(permit);
            match sender {
                Ok(sender) => {
                    fetch.deliver(ticket, Recovered::new_unchecked(tx, sender), Some(raw)).await;
                }
                Err(_) => ticket.finish_malformed(&Malformed::Signature),
            }
        };
        if is_behind || self.should_hand_over() {
            self.delivery_thread.run(work.boxed()).await;
        } else {
            work.await;
        }
    }

    /// Delivers a transaction of a pool in this process, on the thread that called the pool.
    pub(crate) async fn deliver_in_process(
        &self,
        mut task: FetchTask,
        tx: Recovered<PooledTransaction>,
    ) {
        if let Some(slot) = &mut task.slot {
            self.slots.set_response_bytes(slot, tx.inner().encode_2718_len());
        }
        let (requested, found) = (task.ticket.arrival.hash, *tx.inner().hash());
        if found != requested {
            let reason = Malformed::OtherTransaction { requested, found };
            return task.ticket.finish_malformed(&reason);
        }
        let permit = self.work_permit().await;
        let verified = self.verify(tx.inner());
        drop(permit);
        match verified {
            Ok(()) => self.deliver(task.ticket, tx, None).await,
            Err(reason) => task.ticket.finish_malformed(&reason),
        }
    }

    /// Returns whether audits will find a transaction of this source in its list, and report when
    /// it is no longer there. So audits must be configured, and the node's lists complete.
    fn lists_its_pool(&self, source: usize, is_blob: bool) -> bool {
        self.context.settings.config.audit_interval.is_some()
            && self.context.listings[source].has(is_blob)
    }

    /// Returns whether a source that has announced a transaction lists its pool.
    fn is_listed_by_announcer(&self, arrival: &Arrival, is_blob: bool) -> bool {
        self.lists_its_pool(arrival.source, is_blob) || {
            let announcers = self.context.hashes.seen.sources(&arrival.hash);
            announcers.iter().any(|source| self.lists_its_pool(source, is_blob))
        }
    }

    /// Reports to the sink that a node lists what it has announced lately, after a source that does
    /// not list its pool.
    pub(crate) fn report_listed_announcements(&self, source: usize) {
        let hashes = &self.context.hashes;
        let is_news = |hash: &B256| {
            let is_blob = hashes.seen.get(hash).is_some_and(Seen::is_blob);
            self.lists_its_pool(source, is_blob) && hashes.seen.set_delivered_listed(hash)
        };
        let listed: Vec<B256> = hashes.take_unlisted(source).into_iter().filter(is_news).collect();
        if !listed.is_empty() {
            self.context.sink.queue.push(Job::Listed(listed));
        }
    }

    /// Delivers a transaction whose hash was verified, unless it is mined or belongs to another
    /// chain.
    ///
    /// The sink is called before this function returns, and the returned future only waits for the
    /// sink's result. So neither this future nor those that contain it have to hold the
    /// transaction, which is large.
    fn deliver(
        &self,
        ticket: Ticket,
        tx: Recovered<PooledTransaction>,
        raw: Option<Bytes>,
    ) -> impl Future<Output = ()> + Send {
        let is_blob = tx.inner().is_eip4844();
        let mut is_listed = true;
        let result = match self.undeliverable(&ticket.arrival.hash, &tx) {
            Some(undeliverable) => Err(undeliverable),
            None => {
                let fetched = self.fetched(&ticket.arrival, tx, raw);
                is_listed = fetched.is_listed;
                Ok(self.context.sink.deliver(fetched))
            }
        };
        async move {
            let (outcome, seen) = match result {
                Err(undeliverable) => undeliverable,
                Ok(delivery) => {
                    // `None` if the sink has panicked: the dropped ticket counts as failed. If the
                    // fetcher stops while the sink waits, this future is dropped, and the hash
                    // stays unfinished.
                    let Some(delivery) = delivery.await else { return };
                    let seen = Seen::delivered(is_blob, is_listed);
                    self.record_delivery(&ticket.arrival, delivery, seen)
                }
            };
            let arrival = ticket.arrival;
            ticket.finish(outcome, seen);
            // The first list of a node's pool may have been completed meanwhile, or another source
            // may have announced it. What was delivered before is reported then, so this is looked
            // at afterwards.
            if !is_listed
                && self.is_listed_by_announcer(&arrival, is_blob)
                && self.context.hashes.seen.set_delivered_listed(&arrival.hash)
            {
                self.context.sink.queue.push(Job::Listed(vec![arrival.hash]));
            }
        }
    }

    /// Returns the outcome, and the state in which the hash is remembered, if the transaction must
    /// not be delivered, because it belongs to another chain, or because a recent block contains it
    /// or has used its nonce.
    fn undeliverable(
        &self,
        hash: &B256,
        tx: &Recovered<PooledTransaction>,
    ) -> Option<(Outcome, Option<Seen>)> {
        // A legacy transaction without a chain id, from before EIP-155, is valid on every chain.
        let chain_ids = tx.inner().chain_id().zip(self.context.chain_id.get());
        if chain_ids.is_some_and(|(found, expected)| found != expected) {
            tracing::debug!(%hash, ?chain_ids, "malformed transaction: it is of another chain");
            return Some((Outcome::Malformed, None));
        }
        let (sender, nonce) = (tx.signer(), tx.inner().nonce());
        let reason = lock(&self.context.hashes.blocks).obsolete_reason(hash, &sender, nonce);
        reason.map(|_| (Outcome::Mined, Some(Seen::Mined)))
    }

    /// Makes the [`FetchedTransaction`] that the sink receives.
    fn fetched(
        &self,
        arrival: &Arrival,
        tx: Recovered<PooledTransaction>,
        raw: Option<Bytes>,
    ) -> FetchedTransaction {
        let Arrival { entry, source, received_at, .. } = *arrival;
        let is_blob = tx.inner().is_eip4844();
        if is_blob {
            self.had_blobs.store(true, Relaxed);
        }
        let now = SystemTime::now();
        let first_seen = now.checked_sub(received_at.elapsed()).unwrap_or(now);
        let is_listed = entry != Entry::Announced || self.is_listed_by_announcer(arrival, is_blob);
        FetchedTransaction {
            tx,
            raw,
            entry,
            source,
            is_listed,
            announced_at: received_at,
            first_seen,
        }
    }

    /// Records what the sink did with a transaction. Returns the outcome of its hash, and the state
    /// in which the hash is remembered (`None`: it is forgotten): `delivered`, if the sink holds
    /// it.
    fn record_delivery(
        &self,
        arrival: &Arrival,
        delivery: Delivery,
        delivered: Seen,
    ) -> (Outcome, Option<Seen>) {
        let Arrival { hash, received_at, .. } = arrival;
        self.context.metrics.deliver_seconds.record(received_at.elapsed().as_secs_f64());
        if let Delivery::Refused(_) | Delivery::Postponed(_) = delivery {
            tracing::debug!(%hash, ?delivery, "the sink did not accept a transaction");
        }
        match delivery {
            Delivery::Pooled => (Outcome::Pooled, Some(delivered)),
            Delivery::Known => (Outcome::Known, Some(delivered)),
            Delivery::Mined => (Outcome::Mined, Some(Seen::Mined)),
            Delivery::Refused(_) => (Outcome::Refused, Some(Seen::Refused)),
            Delivery::Postponed(_) => (Outcome::Postponed, Some(Seen::Postponed)),
            Delivery::Closed => {
                self.context.sink.closed.cancel();
                (Outcome::Refused, None)
            }
        }
    }
}
