//! From a hash to an outcome with a pool in this process, on threads that call it.
//!
//! `get` may read a sidecar from the disk, and the sink may block, so neither runs on the thread
//! that reads the sockets. Nothing is encoded or decoded.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Instant,
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Encodable2718 as _;
use chain_view::PooledTransaction;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, never, select_biased};

use crate::{
    decode::{Malformed, verify_blob_proofs},
    error::CallError,
    fetch::{Alive, FetchContext, FetchRequest, FetchTask, deliver::DeliveryTask, retry::NoAnswer},
    in_process_pool::InProcess,
    request::NotInserted,
    sink::TransactionSink,
};

/// Takes the requests to a pool in this process. Its threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct PoolReader {
    live: Sender<FetchRequest>,
    deferrable: Sender<FetchRequest>,
}

impl PoolReader {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started. Those that were already started end.
    pub(crate) fn start<S: TransactionSink>(
        context: &Arc<FetchContext<S>>,
        pool: &InProcess,
    ) -> io::Result<Self> {
        let config = &context.config;
        // Every submitted request holds a slot, so neither channel is ever full.
        let (live, live_requests) = bounded(config.fetch_slots);
        let (deferrable, deferrable_requests) = bounded(config.fetch_slots);
        for thread in 0..config.request_connections {
            // The other threads stay free for live transactions, however slow a backfill is.
            let takes_deferrable = thread < config.deferrable_connections;
            let worker = Worker {
                context: Arc::clone(context),
                pool: pool.clone(),
                live: live_requests.clone(),
                deferrable: if takes_deferrable { deferrable_requests.clone() } else { never() },
                _alive: context.alive.clone(),
            };
            thread::Builder::new().name("mempool-get".into()).spawn(move || worker.run())?;
        }
        Ok(Self { live, deferrable })
    }

    #[expect(clippy::result_large_err, reason = "a box would cost an allocation for each hash")]
    pub(crate) fn submit(
        &self,
        request: FetchRequest,
        deferrable: bool,
    ) -> Result<(), NotInserted<FetchRequest>> {
        let requests = if deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(|refused| match refused {
            TrySendError::Full(request) => NotInserted::Full(request),
            TrySendError::Disconnected(request) => NotInserted::Closed(request),
        })
    }
}

struct Worker<S> {
    context: Arc<FetchContext<S>>,
    pool: InProcess,
    live: Receiver<FetchRequest>,
    deferrable: Receiver<FetchRequest>,
    _alive: Alive,
}

impl<S: TransactionSink> Worker<S> {
    fn run(self) {
        loop {
            // Live transactions first.
            let request = select_biased! {
                recv(self.live) -> request => request,
                recv(self.deferrable) -> request => request,
            };
            // Deferrable requests that still wait are dropped, and count as failed.
            let Ok(request) = request else { return };
            // Requests that wait at a stop stay unfinished.
            if !self.context.stop.is_cancelled() {
                self.take(request);
            }
        }
    }

    fn take(&self, request: FetchRequest) {
        let context = &self.context;
        let FetchRequest { mut task, source, permit } = request;
        let hash = task.arrival.hash;
        let requested = Instant::now();
        let found = self.pool.catch("get", |pool| pool.get(&hash));
        permit.record(&Ok::<_, CallError>(()));
        context.tally.metrics.fetch_seconds.record(requested.elapsed().as_secs_f64());
        if let Ok(None) = found {
            task.untried.remove(source);
            if context.has_other_source(&task) {
                return context.spawn_retry(task, source, NoAnswer::Gone);
            }
        }
        let FetchTask { arrival, ticket, mut slot, .. } = task;
        // If it is dropped without an outcome, it counts as failed.
        let delivery = DeliveryTask::new(context, arrival, ticket);
        match found {
            Err(_) => {}
            Ok(None) => delivery.gone(),
            Ok(Some(tx)) => {
                context.slots.set_answer_bytes(&mut slot, tx.inner().encode_2718_len());
                let work = || self.deliver(delivery, tx);
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    tracing::error!("a transaction could not be processed");
                }
            }
        }
    }

    fn deliver(&self, delivery: DeliveryTask<'_, S>, tx: Recovered<PooledTransaction>) {
        let (requested, found) = (delivery.hash(), *tx.inner().hash());
        if found != requested {
            return delivery.malformed(&Malformed::OtherTransaction { requested, found });
        }
        if self.context.config.verify_blob_proofs {
            let permit = match &self.context.config.gate {
                None => None,
                Some(gate) => match self.context.wait_for(gate.acquire_internal(), || {}) {
                    Some(permit) => Some(permit),
                    None => return,
                },
            };
            let verified = verify_blob_proofs(tx.inner());
            drop(permit);
            if let Err(reason) = verified {
                return delivery.malformed(&Malformed::from(reason));
            }
        }
        delivery.deliver(tx, None, || {});
    }
}
