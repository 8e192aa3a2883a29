//! From an answer to an outcome, on the thread that read the answer.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Instant, SystemTime},
};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::{B256, Bytes};
use chain_view::PooledTransaction;

use super::{Alive, Arrival, FetchContext, FetchRequest, FetchTask, retry::NoAnswer};
use crate::{
    decode::{Answer, Malformed, is_on_chain, read_hex, verify_blob_proofs},
    error::CallError,
    fetch::seen::Seen,
    fetch::slots::Slot,
    outcome::{Outcome, Ticket},
    request::{self, Answers, Payload, RpcError},
    sink::{Delivery, FetchedTransaction, TransactionSink},
    sync::{block_on, lock},
};

/// Slots are released together, at the latest when this many are waiting: while announcements wait
/// for a slot, each single release wakes the thread of the sockets. A quarter of the default number
/// of slots.
const RELEASED_TOGETHER: usize = 16;

/// Processes the answers of one connection.
#[derive(Debug)]
pub(crate) struct AnswerReader<S: TransactionSink> {
    context: Arc<FetchContext<S>>,
    /// Slots of finished fetches.
    released: Vec<Slot>,
    release_at: usize,
    _alive: Alive,
}

impl<S: TransactionSink> AnswerReader<S> {
    pub(crate) fn new(context: &Arc<FetchContext<S>>) -> Self {
        Self {
            context: Arc::clone(context),
            released: Vec::with_capacity(RELEASED_TOGETHER),
            release_at: RELEASED_TOGETHER.min(context.config.fetch_slots.div_ceil(4)),
            _alive: context.alive.clone(),
        }
    }
}

impl<S: TransactionSink> Answers<FetchRequest> for AnswerReader<S> {
    fn on_answer(&mut self, request: FetchRequest, sent: Instant, answer: request::Answer<'_>) {
        let context = &self.context;
        let text = match answer {
            request::Answer::Payload(Payload::Error(error)) => {
                return context.failed(request, call_error(error));
            }
            request::Answer::Payload(Payload::Null) => Some("0x".into()),
            request::Answer::Payload(Payload::Text(text)) => Some(text),
            request::Answer::Payload(Payload::Other) => None,
            request::Answer::Oversized => {
                context.tally.metrics.oversized_answers.increment(1);
                None
            }
        };
        let FetchRequest { mut task, source, permit } = request;
        permit.record(&Ok::<_, CallError>(()));
        context.tally.metrics.fetch_seconds.record(sent.elapsed().as_secs_f64());
        if text.as_deref() == Some("0x") {
            task.untried.remove(source);
            if context.has_other_source(&task) {
                return context.spawn_retry(task, source, NoAnswer::Gone);
            }
        }
        let FetchTask { arrival, ticket, mut slot, .. } = task;
        context.slots.set_answer_bytes(&mut slot, text.as_ref().map_or(0, |text| text.len()));
        let delivery = DeliveryTask::new(context, arrival, ticket);
        // The transaction counts as failed, and the thread goes on. The unwinding drops the
        // captured values; they are not used again.
        let released = &mut self.released;
        let work = || delivery.decode_and_deliver(text.as_deref(), || released.clear());
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("an answer could not be processed");
        }
        self.released.push(slot);
        if self.released.len() >= self.release_at {
            self.released.clear();
        }
    }

    fn on_idle(&mut self) {
        self.released.clear();
    }
}

fn call_error(error: RpcError) -> CallError {
    CallError::Rpc { code: error.code, message: error.message }
}

/// A hash with its answer.
pub(crate) struct DeliveryTask<'a, S: TransactionSink> {
    context: &'a FetchContext<S>,
    arrival: Arrival,
    ticket: Ticket,
}

impl<'a, S: TransactionSink> DeliveryTask<'a, S> {
    pub(crate) fn new(context: &'a FetchContext<S>, arrival: Arrival, ticket: Ticket) -> Self {
        Self { context, arrival, ticket }
    }

    /// Calls `about_to_wait` before it waits for a permit or for the sink.
    fn decode_and_deliver(self, hex: Option<&str>, mut about_to_wait: impl FnMut()) {
        let context = self.context;
        // For CPU work only: a sink that waits must not hold a permit meanwhile.
        let permit = match &context.config.gate {
            None => None,
            // Other holders may keep the permits for any length of time.
            Some(gate) => match context.wait_for(gate.acquire_internal(), &mut about_to_wait) {
                Some(permit) => Some(permit),
                None => return,
            },
        };
        let hash = self.arrival.hash;
        let mut read = hex.map_or(Answer::Malformed(Malformed::NotHex), |hex| read_hex(hex, hash));
        if context.config.verify_blob_proofs
            && let Answer::Transaction(tx, _) = &read
            && let Err(reason) = verify_blob_proofs(tx.inner())
        {
            read = Answer::Malformed(reason.into());
        }
        drop(permit);
        match read {
            Answer::Gone => self.finish(Outcome::Gone, None),
            Answer::Mined => self.finish(Outcome::Mined, Some(Seen::Mined)),
            Answer::Malformed(reason) => self.malformed(&reason),
            Answer::Transaction(tx, raw) => self.deliver(*tx, Some(raw), about_to_wait),
        }
    }

    /// The hash that was requested.
    pub(crate) fn hash(&self) -> B256 {
        self.arrival.hash
    }

    /// A pool in this process does not have the transaction. Unlike a node, it does not return
    /// mined ones.
    pub(crate) fn gone(self) {
        if self.context.is_mined(&self.arrival.hash) {
            self.finish(Outcome::Mined, Some(Seen::Mined));
        } else {
            self.finish(Outcome::Gone, None);
        }
    }

    /// The announcement or the answer cannot be used.
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
        let context = self.context;
        let hash = self.arrival.hash;
        let expected_chain = *lock(&context.chain_id);
        if expected_chain.is_some_and(|chain_id| !is_on_chain(tx.inner(), chain_id)) {
            tracing::debug!(%hash, "transaction of another chain");
            return self.finish(Outcome::Malformed, None);
        }
        if context.is_taken(&tx) {
            return self.finish(Outcome::Mined, Some(Seen::Mined));
        }
        let fetched = self.fetched(tx, raw);
        // The call is inside the future too, because `deliver` is the sink's code even before its
        // future is polled.
        let call = async { context.sink.deliver(fetched).await };
        let Some(delivered) =
            context.sink_queue.guard("deliver", || context.wait_for(call, about_to_wait))
        else {
            return self.finish(Outcome::Failed, None);
        };
        // `None`: the fetcher stops, and does not wait for a sink that waits (a full channel).
        let Some(delivery) = delivered else { return };
        context.tally.metrics.deliver_seconds.record(self.arrival.at.elapsed().as_secs_f64());
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
                context.sink_closed.cancel();
                (Outcome::Refused, None)
            }
        };
        self.finish(outcome, seen);
    }

    fn fetched(&self, tx: Recovered<PooledTransaction>, raw: Option<Bytes>) -> FetchedTransaction {
        let Arrival { entry, source, at, .. } = self.arrival;
        let now = SystemTime::now();
        let first_seen = now.checked_sub(at.elapsed()).unwrap_or(now);
        FetchedTransaction { tx, raw, entry, source, announced_at: at, first_seen }
    }

    fn finish(self, outcome: Outcome, seen: Option<Seen>) {
        self.context.finish(self.arrival.hash, self.ticket, outcome, seen);
    }
}

impl<S> FetchContext<S> {
    /// Runs a future that is usually ready at once. Otherwise it blocks this thread until the
    /// future is ready, or until the fetcher stops: then it returns `None`.
    pub(crate) fn wait_for<T>(
        &self,
        future: impl Future<Output = T>,
        mut about_to_wait: impl FnMut(),
    ) -> Option<T> {
        let mut future = pin!(future);
        if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(ready);
        }
        about_to_wait();
        // Without a runtime: the sink may block, and at the end the runtime is dropped before this
        // thread ends.
        block_on(async {
            tokio::select! {
                biased;
                ready = poll_fn(|context| future.as_mut().poll(context)) => Some(ready),
                () = self.stop.cancelled() => None,
            }
        })
    }

    /// Whether a recent block contains the transaction, or another transaction with its sender and
    /// nonce.
    fn is_taken(&self, tx: &Recovered<PooledTransaction>) -> bool {
        lock(&self.mined).taken(tx.inner().hash(), &tx.signer(), tx.inner().nonce()).is_some()
    }
}
