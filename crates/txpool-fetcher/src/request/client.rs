//! A connection that only requests transactions, and the thread that reads its responses.
//!
//! Requests are submitted on the thread of the sockets, and a submit never waits: it formats the
//! request into the outbox, and one call writes as much of the outbox as the socket has room for.
//! The thread of the connection waits for responses, and passes each response to [`Responses`] itself: no
//! other thread has to wake up between the socket and the sink.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "times of our own clock, and counts of what was read"
)]

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use tokio::{
    io::Interest,
    sync::{Notify, mpsc},
    time::sleep,
};

use super::{
    outbox::Outbox,
    pulse::Pulse,
    slab::{NotInserted, RequestId, Slab},
    ws::Incoming,
};
use crate::{
    connection::{BlockingSocket, End, Frame, Frames, NotAResponse, Payload, Response},
    error::LossReason,
    sync::lock,
};

/// The stack of a thread that reads responses, the default size of a thread. A blob transaction lives
/// on the heap; the sink may use the rest.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// Processes the responses of one connection, on the thread of that connection.
pub(crate) trait Responses<T>: Send + 'static {
    /// Processes the response to a request that was sent at `sent`. May block; meanwhile the
    /// time-outs of the connection's other requests are suspended. A panic ends the connection.
    fn on_response(&mut self, request: T, sent: Instant, payload: Payload<'_>);

    /// Every response that was read has been processed; the thread is about to wait.
    fn on_idle(&mut self);
}

/// A connection with its requests in flight. `T` is kept with each request.
#[derive(Debug)]
pub(crate) struct RequestConnection<T> {
    slab: Mutex<Slab<T>>,
    /// The length of the slab, so that connections can be compared without their locks.
    in_flight: AtomicUsize,
    /// A response is being processed.
    is_handling: AtomicBool,
    writer: Writer,
    pulse: Pulse,
    pinged: Mutex<Option<Instant>>,
    /// Notified of each response to a ping.
    ponged: Notify,
    late_responses: AtomicU64,
    ended: End,
}

#[derive(Debug)]
enum Writer {
    Ipc { socket: BlockingSocket, outbox: Mutex<Unsent>, blocked: Notify },
    Ws(mpsc::Sender<WsRequest>),
}

#[derive(Debug, Default)]
struct Unsent {
    outbox: Outbox,
    /// The socket is full: [`RequestConnection::flush_when_writable`] continues once it has room.
    is_blocked: bool,
}

/// A request on its way to the task that owns the WebSocket.
#[derive(Clone, Copy, Debug)]
pub(super) enum WsRequest {
    Transaction(RequestId, B256),
    Ping,
}

impl<T: Send + 'static> RequestConnection<T> {
    pub(crate) fn over_ipc(socket: BlockingSocket) -> Self {
        let (outbox, blocked) = (Mutex::default(), Notify::new());
        Self::new(Writer::Ipc { socket, outbox, blocked })
    }

    pub(super) fn over_ws(requests: mpsc::Sender<WsRequest>) -> Self {
        Self::new(Writer::Ws(requests))
    }

    fn new(writer: Writer) -> Self {
        Self {
            slab: Mutex::new(Slab::new()),
            in_flight: AtomicUsize::new(0),
            is_handling: AtomicBool::new(false),
            writer,
            pulse: Pulse::new(Instant::now()),
            pinged: Mutex::new(None),
            ponged: Notify::new(),
            late_responses: AtomicU64::new(0),
            ended: End::new(),
        }
    }

    /// Adds a request and formats it. The next [`Self::flush`] writes it, so that many are sent
    /// together. A request that finds no room in the outbox times out like one that the node does
    /// not answer.
    pub(crate) fn submit(&self, hash: &B256, request: T) -> Result<(), NotInserted<T>> {
        let id = {
            let mut slab = lock(&self.slab);
            // Read under the lock, so that the times in the slab ascend.
            let id = slab.insert(request, Instant::now())?;
            self.in_flight.store(slab.len(), Relaxed);
            id
        };
        let is_queued = match &self.writer {
            Writer::Ipc { outbox, .. } => lock(outbox).outbox.push(id, hash),
            Writer::Ws(requests) => requests.try_send(WsRequest::Transaction(id, *hash)).is_ok(),
        };
        if !is_queued {
            tracing::debug!(%hash, "the node does not read its requests");
        }
        Ok(())
    }

    /// Writes the formatted requests, as far as the socket has room now. Never waits.
    pub(crate) fn flush(&self) {
        if let Writer::Ipc { socket, outbox, blocked } = &self.writer {
            let mut unsent = lock(outbox);
            if !unsent.is_blocked && !unsent.send(socket) {
                blocked.notify_one();
            }
        }
    }

    /// Writes the rest whenever the socket has room again. Runs until the connection ends.
    ///
    /// The descriptor is registered with the runtime only while bytes wait: otherwise the runtime's
    /// thread would wake up each time the node reads a request.
    pub(crate) async fn flush_when_writable(&self) -> io::Result<()> {
        let Writer::Ipc { socket, outbox, blocked } = &self.writer else { return Ok(()) };
        let write = async {
            loop {
                blocked.notified().await;
                let send = || match lock(outbox).send(socket) {
                    true => Ok(()),
                    false => Err(io::ErrorKind::WouldBlock.into()),
                };
                socket.when_ready(Interest::WRITABLE, send).await?;
            }
        };
        tokio::select! {
            result = write => result,
            _ = self.closed() => Ok(()),
        }
    }

    /// Requests without a response, including the one whose response is being processed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed) + usize::from(self.is_handling.load(Relaxed))
    }

    /// Responses since the last call that came after their request had timed out, or that match no
    /// request.
    pub(crate) fn take_late_responses(&self) -> u64 {
        self.late_responses.swap(0, Relaxed)
    }

    /// Removes a request that was sent `timeout` ago or earlier and has no response, although
    /// everything that has arrived was read. While our own reader is behind, no request times out.
    pub(crate) fn pop_expired(&self, timeout: Duration, now: Instant) -> Option<(T, Instant)> {
        let horizon = self.pulse.read_until(now);
        let mut slab = lock(&self.slab);
        let expired = slab.pop_expired(timeout, horizon);
        self.in_flight.store(slab.len(), Relaxed);
        expired
    }

    /// Pings a connection that has been silent for `every`, and ends one that has not sent a
    /// complete value for `limit` after that.
    pub(crate) fn supervise(&self, every: Duration, limit: Duration, now: Instant) {
        let last = self.pulse.last_frame();
        let mut pinged = lock(&self.pinged);
        match *pinged {
            Some(at) if last >= at => *pinged = None,
            // Measured up to the last read, so that a busy thread of ours does not make the node
            // look dead.
            Some(at) if self.pulse.read_until(now) >= at + limit => {
                drop(pinged);
                self.end(LossReason::Unresponsive(now - at));
            }
            Some(_) => {}
            None if now.saturating_duration_since(last) >= every => {
                *pinged = Some(now);
                drop(pinged);
                self.ping();
            }
            None => {}
        }
    }

    fn ping(&self) {
        match &self.writer {
            // If the outbox has no room for it, the silence is detected without a ping.
            Writer::Ipc { outbox, .. } => _ = lock(outbox).outbox.push_ping(),
            Writer::Ws(requests) => _ = requests.try_send(WsRequest::Ping),
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
        if let Writer::Ipc { socket, .. } = &self.writer {
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
        let all = lock(&self.slab).close();
        self.in_flight.store(0, Relaxed);
        all.into_iter().map(|(request, _)| request).collect()
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        lock(&self.slab).entries()
    }

    #[cfg(test)]
    pub(super) fn is_pinged(&self) -> bool {
        lock(&self.pinged).is_some()
    }

    /// Starts the thread. It ends with the connection, and drops `responses` with everything that it
    /// holds.
    pub(super) fn spawn<R: Responses<T>>(
        self: &Arc<Self>,
        responses: R,
        read: impl FnOnce(&Self, &mut R) -> LossReason + Send + 'static,
    ) -> io::Result<()> {
        let connection = Arc::clone(self);
        let body = move || {
            let mut responses = responses;
            // Also after a panic: the requests in flight must learn of the end.
            let read = catch_unwind(AssertUnwindSafe(|| read(&connection, &mut responses)));
            connection.end(read.unwrap_or(LossReason::Closed));
        };
        thread::Builder::new()
            .name("mempool-request".into())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map(drop)
    }

    /// Starts the thread of a connection over a Unix socket.
    pub(crate) fn read_ipc(
        self: &Arc<Self>,
        responses: impl Responses<T>,
        max_frame_bytes: usize,
    ) -> io::Result<()> {
        self.spawn(responses, move |connection, responses| {
            connection.read_socket(responses, max_frame_bytes)
        })
    }

    fn read_socket(&self, responses: &mut impl Responses<T>, max_frame_bytes: usize) -> LossReason {
        let Writer::Ipc { socket, .. } = &self.writer else { return LossReason::Closed };
        let mut frames = Frames::new(max_frame_bytes);
        // When the fill of the socket's receive queue was read, and how many of those bytes are
        // unread. A node that fills each read never lets the queue run empty; its requests must
        // time out all the same.
        let mut queued: Option<(Instant, u64)> = None;
        loop {
            let spare = frames.spare();
            let room = spare.len();
            self.pulse.waits(Instant::now());
            let read = BlockingSocket::wait_readable([socket]).and_then(|_| socket.read(spare));
            let read_at = self.pulse.reads();
            let count = match read {
                Ok(0) => return LossReason::Closed,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return LossReason::from_io(&error),
            };
            frames.filled(count);
            loop {
                match frames.next() {
                    Ok(Some(Frame::Value(value))) => {
                        self.pulse.framed(read_at);
                        if let Err(reason) = self.take_value(value, responses) {
                            return reason;
                        }
                    }
                    Ok(Some(Frame::Oversized { id })) => {
                        let request = id.and_then(|id| self.take(RequestId::from(id)));
                        tracing::warn!(max_frame_bytes, "a response above the limit was dropped");
                        if let Some((request, sent)) = request {
                            self.handle(responses, request, sent, Payload::Oversized);
                        }
                    }
                    Ok(None) => break,
                    Err(reason) => return reason,
                }
                if self.is_ended() {
                    return LossReason::Closed;
                }
            }
            responses.on_idle();
            // A read that does not fill the buffer has emptied the socket.
            if count < room {
                self.pulse.has_read_until(read_at);
                queued = None;
                continue;
            }
            queued = match queued {
                Some((at, left)) if left > count as u64 => Some((at, left - count as u64)),
                Some((at, _)) => {
                    self.pulse.has_read_until(at);
                    None
                }
                None => {
                    let at = Instant::now();
                    socket.unread().map(|left| (at, left))
                }
            };
        }
    }

    pub(super) fn read_messages(
        &self,
        mut incoming: mpsc::Receiver<Incoming>,
        responses: &mut impl Responses<T>,
    ) -> LossReason {
        loop {
            let message = match incoming.try_recv() {
                Ok(message) => message,
                Err(_) => {
                    let now = Instant::now();
                    responses.on_idle();
                    self.pulse.has_read_until(now);
                    self.pulse.waits(Instant::now());
                    let message = incoming.blocking_recv();
                    self.pulse.reads();
                    match message {
                        Some(message) => message,
                        None => return LossReason::Closed,
                    }
                }
            };
            self.pulse.framed(message.read_at);
            if let Err(reason) = self.take_value(message.text.as_bytes(), responses) {
                return reason;
            }
            // Messages arrive in order.
            self.pulse.has_read_until(message.read_at);
            if self.is_ended() {
                return LossReason::Closed;
            }
        }
    }

    fn take_value(
        &self,
        value: &[u8],
        responses: &mut impl Responses<T>,
    ) -> Result<(), LossReason> {
        match Response::read(value) {
            Ok(Response { id, payload }) => {
                if let Some((request, sent)) = self.take(RequestId::from(id)) {
                    self.handle(responses, request, sent, payload);
                }
                Ok(())
            }
            Err(NotAResponse::NoId) => {
                tracing::debug!(bytes = value.len(), "no response to a request");
                Ok(())
            }
            Err(NotAResponse::NotJson) => Err(LossReason::garbage(value)),
        }
    }

    fn handle(
        &self,
        responses: &mut impl Responses<T>,
        request: T,
        sent: Instant,
        payload: Payload<'_>,
    ) {
        self.is_handling.store(true, Relaxed);
        responses.on_response(request, sent, payload);
        self.is_handling.store(false, Relaxed);
    }

    fn take(&self, id: RequestId) -> Option<(T, Instant)> {
        let mut slab = lock(&self.slab);
        let found = slab.remove(id);
        self.in_flight.store(slab.len(), Relaxed);
        drop(slab);
        if id == RequestId::PING {
            // An error is an answer too.
            self.ponged.notify_one();
        } else if found.is_none() {
            self.late_responses.fetch_add(1, Relaxed);
        }
        found
    }
}

impl Unsent {
    /// False when the socket has room for no more.
    fn send(&mut self, socket: &BlockingSocket) -> bool {
        self.is_blocked = false;
        while !self.outbox.unsent().is_empty() {
            match socket.send(self.outbox.unsent()) {
                Ok(count) => self.outbox.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return false;
                }
                // The connection has ended; its reader finds out why, and nothing is sent any more.
                Err(_) => {
                    let count = self.outbox.unsent().len();
                    self.outbox.advance(count);
                }
            }
        }
        true
    }
}
