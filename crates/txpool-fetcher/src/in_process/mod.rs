//! A pool in this process as a source. Entry: [`subscribe`] for its announcements and blocks,
//! [`start`] for the threads that get transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. Only the two ends differ.
//!
//! - Its two streams stand for the subscription connection of a node; the end or the panic of either counts
//!   as a lost connection. A thread `mempool-announce` reads the announcements.
//! - That thread also gets and delivers the last of the hashes at hand: with one transaction at a time no other
//!   thread has to wake up, which costs more than everything else.
//! - The other requests go to one of two queues, live and deferrable, which the threads `mempool-get` read.
//! - There are no time-outs and no pings: a stream that stays open and silent is found by the audit and
//!   by the rule for stale sources.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | stream of announcements | its thread; `mempool-io` while a transaction holds that thread up | a poll of the stream, and to take in the hash it gave |

mod streams;

use std::{sync::Arc, time::Instant};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Encodable2718 as _;
use chain_view::PooledTransaction;
use crossbeam_channel::never;

pub(crate) use self::streams::subscribe;
use crate::{
    decode::{Malformed, verify_blob_proofs},
    error::ConnectError,
    fetch::{Deliverer, FetchRequest, FetchTask, Ticket},
    in_process_pool::InProcess,
    request::{PoolQueues, next_of},
    sink::TransactionSink,
    sync::contain,
};

/// Starts the threads, which end when the queues are dropped.
///
/// # Errors
/// A thread cannot be started. Those that were already started end.
pub(crate) fn start<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    pool: &InProcess,
) -> Result<PoolQueues<FetchRequest>, ConnectError> {
    let fetch = &deliverer.fetch;
    let config = &fetch.settings.config;
    // Every submitted request holds a slot, so neither queue is ever full.
    let (queues, requests) = PoolQueues::new(config.fetch_slots);
    for thread in 0..config.request_connections {
        // The other threads stay free for live transactions, however slow a backfill is.
        let takes_deferrable = thread < fetch.settings.deferrable_connections();
        let (live, deferrable) = requests.clone();
        let requests = (live, if takes_deferrable { deferrable } else { never() });
        let (deliverer, called) = (Arc::clone(deliverer), pool.clone());
        let run = move || {
            // Deferrable requests that still wait at the end are dropped, and count as failed.
            while let Some(request) = next_of(&requests) {
                get(&deliverer, &called, request);
            }
        };
        let spawned = fetch.tasks.spawn_thread("mempool-get", run);
        spawned.map_err(|error| ConnectError::io(pool, error))?;
    }
    Ok(queues)
}

/// Carries out a request, on a thread that may block: the pool may read a sidecar from the disk, and the sink may wait.
fn get<S: TransactionSink>(deliverer: &Deliverer<S>, pool: &InProcess, request: FetchRequest) {
    // Requests that wait at a stop stay unfinished.
    let fetch = &deliverer.fetch;
    if fetch.tasks.stop.is_cancelled() {
        return;
    }
    let (hash, requested_at) = (request.hash(), Instant::now());
    let found = pool.catch("get", |pool| pool.get(&hash));
    let is_gone = matches!(found, Ok(None));
    let answered = fetch.answered(request, requested_at, is_gone);
    let Some(FetchTask { ticket, mut slot, .. }) = answered else { return };
    match found {
        // It counts as failed.
        Err(_) => {}
        Ok(None) => ticket.gone(),
        Ok(Some(tx)) => {
            fetch.slots.set_response_bytes(&mut slot, tx.inner().encode_2718_len());
            contain(|| deliver(deliverer, ticket, tx));
        }
    }
}

fn deliver<S: TransactionSink>(
    deliverer: &Deliverer<S>,
    ticket: Ticket,
    tx: Recovered<PooledTransaction>,
) {
    let (requested, found) = (ticket.arrival.hash, *tx.inner().hash());
    if found != requested {
        return ticket.malformed(&Malformed::OtherTransaction { requested, found });
    }
    if deliverer.fetch.settings.config.verify_blob_proofs {
        let Some(permit) = deliverer.work_permit(|| {}) else { return };
        let verified = verify_blob_proofs(tx.inner());
        drop(permit);
        if let Err(reason) = verified {
            return ticket.malformed(&Malformed::from(reason));
        }
    }
    deliverer.deliver(ticket, tx, None, || {});
}
