//! The client: requests in flight, and what is still to be sent. Whoever sends a request never waits.

use std::{
    fmt::Write as _,
    io::ErrorKind,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{
    B256,
    bytes::{Buf as _, BytesMut},
    map::HashMap,
};
use tokio::{sync::Notify, time::sleep};

use super::{BlockingSocket, End};
use crate::{
    config::MAX_FETCH_SLOTS,
    error::{CallError, LossReason},
    sync::lock,
};

/// The only method that is called for each transaction.
pub(super) const RAW_TRANSACTION: &str = "eth_getRawTransactionByHash";

/// The id of pings, which are in no [`InFlight`]. Every other id is used once, so a late response finds nothing.
pub(super) const PING_ID: u64 = 0;

/// Most bytes that wait for a node that does not read: two requests of 150 bytes for each of the
/// most fetch slots. One beyond that is not written, and times out.
const OUTBOX_BYTES: usize = 2 * MAX_FETCH_SLOTS * 150;

/// A connection to a node with its requests in flight; `R` is kept with each. Its reader holds it too: see [`Open`].
pub(crate) struct Connection<R> {
    requests: Mutex<InFlight<R>>,
    /// Their number, and the response in hand: connections are compared without their locks.
    in_flight: AtomicUsize,
    pub(super) socket: BlockingSocket,
    /// Formatted requests that were not sent yet.
    outbox: Mutex<BytesMut>,
    /// Notified of each response to a ping.
    ponged: Notify,
    pub(crate) ended: Arc<End>,
}

impl<R> Connection<R> {
    pub(super) fn new(socket: BlockingSocket) -> Arc<Self> {
        Arc::new(Self {
            requests: Mutex::new(InFlight {
                by_id: HashMap::default(),
                last_id: PING_ID,
                is_closed: false,
            }),
            in_flight: AtomicUsize::new(0),
            socket,
            outbox: Mutex::default(),
            ponged: Notify::new(),
            ended: Arc::default(),
        })
    }

    /// Adds the request for a transaction, as [`Self::submit`] does.
    pub(crate) fn submit_fetch(&self, hash: &B256, request: R) -> Result<u64, R> {
        self.submit(RAW_TRANSACTION, request, |bytes| {
            bytes.extend_from_slice(b"[\"");
            let mut hex = const_hex::Buffer::<32, true>::new();
            bytes.extend_from_slice(hex.format(hash).as_bytes());
            bytes.extend_from_slice(b"\"]");
        })
    }

    /// Adds a request and formats it, and returns its id. The next [`Self::flush`] writes it, so that many are sent
    /// together. Returned when the connection has ended. A request that finds no room in the outbox times out like one
    /// that the node does not answer.
    pub(super) fn submit(
        &self,
        method: &str,
        request: R,
        params: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, R> {
        let mut requests = lock(&self.requests);
        if requests.is_closed {
            return Err(request);
        }
        requests.last_id = requests.last_id.wrapping_add(1);
        let id = requests.last_id;
        requests.by_id.insert(id, (request, Instant::now()));
        // Counted under the lock, so that it is not removed before.
        self.in_flight.fetch_add(1, Relaxed);
        drop(requests);
        self.format(id, method, params);
        Ok(id)
    }

    /// Appends `{"jsonrpc":"2.0","method":"…","params":…,"id":…}` to what is to be sent, if there is room. Nodes need no
    /// separator between two requests.
    #[expect(clippy::expect_used, reason = "bytes of our own")]
    fn format(&self, id: u64, method: &str, params: impl FnOnce(&mut BytesMut)) {
        let mut outbox = lock(&self.outbox);
        if outbox.len() >= OUTBOX_BYTES {
            drop(outbox);
            return tracing::debug!(method, "the node does not read its requests");
        }
        outbox.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
        outbox.extend_from_slice(method.as_bytes());
        outbox.extend_from_slice(br#"","params":"#);
        params(&mut outbox);
        write!(outbox, r#","id":{id}}}"#).expect("a buffer takes every write");
    }

    /// Writes the formatted requests, as far as the socket has room now. The rest is written with the next request, or
    /// when the thread that reads the connection looks for late ones: at most 100 ms after the node has made room.
    pub(crate) fn flush(&self) {
        let mut outbox = lock(&self.outbox);
        while !outbox.is_empty() {
            match self.socket.send(&outbox) {
                Ok(count) => outbox.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The connection has ended; its reader finds out why, and nothing is sent any more.
                Err(_) => outbox.clear(),
            }
        }
    }

    /// Requests without a response, including the one whose response is being processed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Removes the requests that were sent `timeout` before `until` or earlier, the oldest first.
    pub(super) fn take_expired(&self, timeout: Duration, until: Instant) -> Vec<R> {
        let Some(due) = until.checked_sub(timeout) else { return Vec::new() };
        self.take_sent_by(due, &mut lock(&self.requests))
    }

    /// Removes all requests, the oldest first; no more are accepted.
    pub(crate) fn take_all(&self) -> Vec<R> {
        let mut requests = lock(&self.requests);
        requests.is_closed = true;
        self.take_sent_by(Instant::now(), &mut requests)
    }

    fn take_sent_by(&self, due: Instant, InFlight { by_id, .. }: &mut InFlight<R>) -> Vec<R> {
        let expired = by_id.iter().filter(|(_, (_, sent))| *sent <= due);
        let mut ids: Vec<u64> = expired.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        self.in_flight.fetch_sub(ids.len(), Relaxed);
        ids.into_iter().filter_map(|id| Some(by_id.remove(&id)?.0)).collect()
    }

    /// If the outbox has no room for it, the silence is detected without a ping.
    pub(super) fn ping(&self) {
        self.format(PING_ID, "eth_blockNumber", |bytes| bytes.extend_from_slice(b"[]"));
        self.flush();
    }

    /// Pings a new connection, and waits for the response: a node at its limit of connections accepts
    /// one more, sends an error and closes it, which must not count as a connection that was up.
    ///
    /// # Errors
    /// It has ended, or there was no response within `limit`.
    pub(crate) async fn greet(&self, limit: Duration) -> Result<(), CallError> {
        self.ping();
        self.await_within(limit, self.ponged.notified()).await
    }

    pub(super) async fn await_within<T>(
        &self,
        limit: Duration,
        response: impl Future<Output = T>,
    ) -> Result<T, CallError> {
        tokio::select! {
            // A response that has come counts.
            biased;
            response = response => Ok(response),
            _ = self.ended.wait() => Err(CallError::ConnectionLost),
            () = sleep(limit) => Err(CallError::Timeout(limit)),
        }
    }

    /// Removes the request with this id, which has its response, and calls `handle` with it and when it was sent.
    /// False if there is none.
    pub(super) fn handle(&self, id: u64, handle: impl FnOnce((R, Instant))) -> bool {
        let found = lock(&self.requests).by_id.remove(&id);
        if id == PING_ID {
            // An error is an answer too.
            self.ponged.notify_one();
        }
        let Some(found) = found else { return false };
        handle(found);
        self.in_flight.fetch_sub(1, Relaxed);
        true
    }

    /// Ends the connection; the first reason stands. Its reader wakes up and ends.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        self.socket.end();
    }
}

/// A connection that ends when this is dropped: its reader holds it too, and would wait for ever.
pub(crate) struct Open<R>(pub(crate) Arc<Connection<R>>);

impl<R> Deref for Open<R> {
    type Target = Connection<R>;

    fn deref(&self) -> &Connection<R> {
        &self.0
    }
}

impl<R> Drop for Open<R> {
    fn drop(&mut self) {
        self.0.end(LossReason::Closed);
    }
}

/// The requests with the time at which each was sent. Each but a call holds a fetch slot, which bounds their number.
struct InFlight<R> {
    /// The ids ascend.
    by_id: HashMap<u64, (R, Instant)>,
    last_id: u64,
    is_closed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// To a node that does not read.
    fn connection() -> (Arc<Connection<u64>>, UnixStream) {
        let (ours, node) = UnixStream::pair().unwrap();
        (Connection::new(BlockingSocket::new(ours, Arc::default()).unwrap()), node)
    }

    #[test]
    fn each_request_leaves_once_by_its_id_or_its_age_and_none_enters_after_the_end() {
        let (connection, _node) = connection();
        let submit = |n| connection.submit_fetch(&B256::ZERO, n);
        let ids: Vec<u64> = (0..10).map(|n| submit(n).expect("open")).collect();
        assert!(!ids.contains(&PING_ID) && ids.is_sorted());
        assert!(connection.handle(ids[3], |(n, _)| assert_eq!(n, 3)));
        for id in [ids[3], PING_ID, u64::MAX] {
            assert!(!connection.handle(id, |_| unreachable!("it has left")));
        }
        let minute = Duration::from_secs(60);
        let sent = lock(&connection.requests).by_id[&ids[4]].1;
        assert!(connection.take_expired(minute, sent).is_empty());
        let expired = connection.take_expired(minute, sent + minute);
        assert_eq!(expired[..4], [0, 1, 2, 4]);
        let again = submit(10).expect("open");
        assert!(!ids.contains(&again), "an id is never used twice");
        assert_eq!(expired.len() + connection.take_all().len(), 10);
        assert!(matches!(submit(0), Err(0)));
        assert_eq!(connection.in_flight(), 0);
    }

    #[test]
    fn what_a_node_does_not_read_is_bounded_and_what_it_reads_makes_room() {
        let (connection, _node) = connection();
        let fill = || {
            for n in 0..OUTBOX_BYTES as u64 / 100 {
                connection.submit_fetch(&B256::ZERO, n).unwrap();
            }
            assert!(lock(&connection.outbox).len() < OUTBOX_BYTES + 200);
        };
        for _ in 0..100 {
            fill();
            lock(&connection.outbox).advance(OUTBOX_BYTES / 2);
        }
        assert!(lock(&connection.outbox).capacity() < 3 * OUTBOX_BYTES);
        lock(&connection.outbox).clear();
        fill();
        assert!(lock(&connection.outbox).len() >= OUTBOX_BYTES);
    }
}
