//! A connection that only requests transactions.
//!
//! Requests are submitted on the thread of the sockets, and a submit never waits: it formats the
//! request into the outbox, and one call writes as much of the outbox as the socket has room for.
//! The rest is written with the next request, or when the thread that reads the connection looks for late ones (`reader`).

#![expect(clippy::arithmetic_side_effects, reason = "counts of requests")]

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::{
    sync::{Notify, mpsc},
    time::sleep,
};

use super::{
    in_flight::{InFlight, NotInserted, PING_ID},
    outbox::{Outbox, write_ping, write_request},
    reader::{Reader, Responses},
};
use crate::{
    connection::{BlockingSocket, End},
    error::LossReason,
    limits::Limits,
    sync::lock,
};

/// A connection with its requests in flight. `T` is kept with each request.
#[derive(Debug)]
pub(crate) struct RequestConnection<T> {
    requests: Mutex<InFlight<T>>,
    /// Their number, so that connections can be compared without their locks.
    in_flight: AtomicUsize,
    /// A response is being processed.
    is_handling: AtomicBool,
    writer: Writer,
    /// Notified of each response to a ping.
    ponged: Notify,
    ended: End,
}

#[derive(Debug)]
enum Writer {
    Ipc(Arc<BlockingSocket>, Mutex<Outbox>),
    /// To the task that owns the WebSocket.
    Ws(mpsc::Sender<String>),
}

impl<T: Send + 'static> RequestConnection<T> {
    /// Over a Unix socket, with the thread that reads it.
    pub(super) fn over_ipc(
        socket: BlockingSocket,
        responses: impl Responses<T>,
        limits: &Limits,
    ) -> io::Result<Arc<Self>> {
        let socket = Arc::new(socket);
        let connection = Self::new(Writer::Ipc(Arc::clone(&socket), Mutex::default()));
        Reader::spawn(&connection, responses, limits, move |reader| reader.read_socket(&socket))?;
        Ok(connection)
    }

    pub(super) fn over_ws(requests: mpsc::Sender<String>) -> Arc<Self> {
        Self::new(Writer::Ws(requests))
    }

    fn new(writer: Writer) -> Arc<Self> {
        Arc::new(Self {
            requests: Mutex::new(InFlight::new()),
            in_flight: AtomicUsize::new(0),
            is_handling: AtomicBool::new(false),
            writer,
            ponged: Notify::new(),
            ended: End::new(),
        })
    }

    /// Adds a request and formats it. The next [`Self::flush`] writes it, so that many are sent
    /// together. A request that finds no room in the outbox times out like one that the node does
    /// not answer.
    pub(crate) fn submit(&self, hash: &B256, request: T) -> Result<(), NotInserted<T>> {
        let id = {
            let mut requests = lock(&self.requests);
            let id = requests.insert(request)?;
            self.in_flight.store(requests.len(), Relaxed);
            id
        };
        let is_queued = match &self.writer {
            Writer::Ipc(_, outbox) => lock(outbox).push(id, hash),
            Writer::Ws(requests) => {
                requests.try_send(text(|bytes| write_request(bytes, id, hash))).is_ok()
            }
        };
        if !is_queued {
            tracing::debug!(%hash, "the node does not read its requests");
        }
        Ok(())
    }

    /// Writes the formatted requests, as far as the socket has room now. Never waits.
    pub(crate) fn flush(&self) {
        if let Writer::Ipc(socket, outbox) = &self.writer {
            lock(outbox).send(socket);
        }
    }

    /// Requests without a response, including the one whose response is being processed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed) + usize::from(self.is_handling.load(Relaxed))
    }

    /// Removes the requests that were sent `timeout` before `until` or earlier.
    pub(super) fn take_expired(&self, timeout: Duration, until: Instant) -> Vec<T> {
        let mut requests = lock(&self.requests);
        let expired = requests.take_expired(timeout, until);
        self.in_flight.store(requests.len(), Relaxed);
        expired
    }

    pub(super) fn ping(&self) {
        match &self.writer {
            // If the outbox has no room for it, the silence is detected without a ping.
            Writer::Ipc(_, outbox) => _ = lock(outbox).push_ping(),
            Writer::Ws(requests) => _ = requests.try_send(text(write_ping)),
        }
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

    /// Ends the connection; the first reason stands. Its thread wakes up and ends.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        if let Writer::Ipc(socket, _) = &self.writer {
            socket.end();
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Whether the peer has ended it.
    pub(crate) fn is_ended_by_peer(&self) -> bool {
        self.ended.is_by_peer()
    }

    /// Waits for the end.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn closed(&self) -> LossReason {
        self.ended.wait().await
    }

    /// Removes all requests, the oldest first; no more are accepted.
    pub(crate) fn take_all(&self) -> Vec<T> {
        let all = lock(&self.requests).close();
        self.in_flight.store(0, Relaxed);
        all
    }

    /// Removes the request with this id, which has its response, and calls `handle` with it and when it was sent.
    /// False if there is none.
    pub(super) fn handle(&self, id: u64, handle: impl FnOnce((T, Instant))) -> bool {
        let found = {
            let mut requests = lock(&self.requests);
            let found = requests.remove(id);
            self.is_handling.store(found.is_some(), Relaxed);
            self.in_flight.store(requests.len(), Relaxed);
            found
        };
        if id == PING_ID {
            // An error is an answer too.
            self.ponged.notify_one();
        }
        let Some(found) = found else { return false };
        handle(found);
        self.is_handling.store(false, Relaxed);
        true
    }
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
