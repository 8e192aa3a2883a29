//! A connection that only requests transactions.
//!
//! Requests are submitted on the thread of the sockets, and a submit never waits: it formats the
//! request into the outbox, and one call writes as much of the outbox as the socket has room for.
//! The rest is written with the next request, or when the thread that reads the connection looks for late ones
//! (`reader`): at most 100 ms after the node has made room.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::{sync::Notify, time::sleep};

use super::{
    in_flight::{InFlight, PING_ID},
    outbox::Outbox,
    reader::{Reader, Responses},
};
use crate::{
    connection::{BlockingSocket, End},
    error::LossReason,
    limits::Limits,
    sync::lock,
};

/// A connection with its requests in flight. `T` is kept with each request.
pub(crate) struct RequestConnection<T> {
    requests: Mutex<InFlight<T>>,
    /// Their number, with that of the response that is being processed, so that connections can be compared without
    /// their locks.
    in_flight: AtomicUsize,
    socket: BlockingSocket,
    outbox: Mutex<Outbox>,
    /// Notified of each response to a ping.
    ponged: Notify,
    ended: End,
}

impl<T: Send + 'static> RequestConnection<T> {
    /// Starts the thread that reads the socket.
    pub(super) fn open(
        socket: BlockingSocket,
        responses: impl Responses<T>,
        limits: &Limits,
    ) -> io::Result<Arc<Self>> {
        let connection = Arc::new(Self {
            requests: Mutex::new(InFlight::new()),
            in_flight: AtomicUsize::new(0),
            socket,
            outbox: Mutex::default(),
            ponged: Notify::new(),
            ended: End::new(),
        });
        Reader::spawn(&connection, responses, limits)?;
        Ok(connection)
    }

    /// Adds a request and formats it. The next [`Self::flush`] writes it, so that many are sent
    /// together. Returned when the connection has ended. A request that finds no room in the outbox times out like one that the node does
    /// not answer.
    pub(crate) fn submit(&self, hash: &B256, request: T) -> Result<(), T> {
        let id = {
            // Counted under the lock, so that it is not removed before.
            let mut requests = lock(&self.requests);
            let id = requests.insert(request)?;
            self.in_flight.fetch_add(1, Relaxed);
            id
        };
        if !lock(&self.outbox).push(id, hash) {
            tracing::debug!(%hash, "the node does not read its requests");
        }
        Ok(())
    }

    /// Writes the formatted requests, as far as the socket has room now. Never waits.
    pub(crate) fn flush(&self) {
        lock(&self.outbox).send(&self.socket);
    }

    /// Requests without a response, including the one whose response is being processed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Removes the requests that were sent `timeout` before `until` or earlier.
    pub(super) fn take_expired(&self, timeout: Duration, until: Instant) -> Vec<T> {
        let expired = lock(&self.requests).take_expired(timeout, until);
        self.in_flight.fetch_sub(expired.len(), Relaxed);
        expired
    }

    pub(super) fn ping(&self) {
        // If the outbox has no room for it, the silence is detected without a ping.
        let _ = lock(&self.outbox).push_ping();
        self.flush();
    }

    /// Pings a new connection, and waits for the response: a node at its limit of connections accepts
    /// one more, sends an error and closes it, which must not count as a connection that was up.
    ///
    /// # Errors
    /// Why it has ended, or `None` if there was no response within `limit`.
    pub(super) async fn greet(&self, limit: Duration) -> Result<(), Option<LossReason>> {
        self.ping();
        tokio::select! {
            // A response that has come counts.
            biased;
            () = self.ponged.notified() => Ok(()),
            reason = self.closed() => Err(Some(reason)),
            () = sleep(limit) => Err(None),
        }
    }

    pub(super) fn socket(&self) -> &BlockingSocket {
        &self.socket
    }

    /// Ends the connection; the first reason stands. Its thread wakes up and ends.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        self.socket.end();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Whether the peer has ended it.
    pub(crate) fn is_ended_by_peer(&self) -> bool {
        self.ended.is_by_peer()
    }

    /// Waits for the end. Cancel safe.
    pub(crate) async fn closed(&self) -> LossReason {
        self.ended.wait().await
    }

    /// Removes all requests, the oldest first; no more are accepted.
    pub(crate) fn take_all(&self) -> Vec<T> {
        let all = lock(&self.requests).close();
        self.in_flight.fetch_sub(all.len(), Relaxed);
        all
    }

    /// Removes the request with this id, which has its response, and calls `handle` with it and when it was sent.
    /// False if there is none.
    pub(super) fn handle(&self, id: u64, handle: impl FnOnce((T, Instant))) -> bool {
        let found = lock(&self.requests).remove(id);
        if id == PING_ID {
            // An error is an answer too.
            self.ponged.notify_one();
        }
        let Some(found) = found else { return false };
        handle(found);
        self.in_flight.fetch_sub(1, Relaxed);
        true
    }
}
