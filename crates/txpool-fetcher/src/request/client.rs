//! A connection that only requests transactions. Whoever submits a request never waits.

use std::{
    io::{self, ErrorKind, Write as _},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{B256, map::HashMap};
use tokio::{sync::Notify, time::sleep};

use super::reader::{Reader, Responses};
use crate::{
    config::MAX_FETCH_SLOTS,
    connection::{BlockingSocket, End, Ends},
    error::{CallError, LossReason},
    limits::Limits,
    sync::lock,
    tasks::Tasks,
};

/// The id of pings, which are in no [`InFlight`]. Every other id is used once, so a late response finds nothing.
pub(super) const PING_ID: u64 = 0;

/// Most bytes that wait for a node that does not read: two requests for each of the most fetch
/// slots, at about 150 bytes each. A request beyond that is not written, and times out like one
/// that the node has not read.
const OUTBOX_BYTES: usize = 2 * MAX_FETCH_SLOTS * 150;

/// A connection with its requests in flight. `T` is kept with each request.
pub(crate) struct RequestConnection<T> {
    requests: Mutex<InFlight<T>>,
    /// Their number, with that of the response that is being processed, so that connections can be compared without
    /// their locks.
    in_flight: AtomicUsize,
    pub(super) socket: BlockingSocket,
    outbox: Mutex<Outbox>,
    /// Notified of each response to a ping.
    ponged: Notify,
    pub(super) ended: End,
}

impl<T: Send + 'static> RequestConnection<T> {
    /// Starts the thread that reads the socket.
    pub(super) fn open(
        socket: BlockingSocket,
        responses: impl Responses<T>,
        limits: &Limits,
        tasks: &Tasks,
    ) -> io::Result<Arc<Self>> {
        let connection = Arc::new(Self {
            requests: Mutex::new(InFlight::new()),
            in_flight: AtomicUsize::new(0),
            socket,
            outbox: Mutex::default(),
            ponged: Notify::new(),
            ended: End::new(),
        });
        Reader::spawn(&connection, responses, limits, tasks)?;
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

    /// Writes the formatted requests, as far as the socket has room now. The rest is written with the next request, or
    /// when the thread that reads the connection looks for late ones: at most 100 ms after the node has made room.
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
    /// It has ended, or there was no response within `limit`.
    pub(super) async fn greet(&self, limit: Duration) -> Result<(), CallError> {
        self.ping();
        tokio::select! {
            // A response that has come counts.
            biased;
            () = self.ponged.notified() => Ok(()),
            _ = self.ended.wait() => Err(CallError::ConnectionLost),
            () = sleep(limit) => Err(CallError::Timeout(limit)),
        }
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
        let found = lock(&self.requests).requests.remove(&id);
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

impl<T> Ends for RequestConnection<T> {
    /// Its thread wakes up and ends.
    fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        self.socket.end();
    }
}

/// The requests by id, which ascend, with the time at which each was sent. Each holds a fetch slot, which
/// bounds their number.
struct InFlight<T> {
    requests: HashMap<u64, (T, Instant)>,
    last_id: u64,
    is_closed: bool,
}

impl<T> InFlight<T> {
    fn new() -> Self {
        Self { requests: HashMap::default(), last_id: PING_ID, is_closed: false }
    }

    /// Inserts a request that is sent now, and returns its id; returns the request when the connection has
    /// ended.
    fn insert(&mut self, request: T) -> Result<u64, T> {
        if self.is_closed {
            return Err(request);
        }
        self.last_id = self.last_id.wrapping_add(1);
        self.requests.insert(self.last_id, (request, Instant::now()));
        Ok(self.last_id)
    }

    /// Removes the requests that were sent `timeout` before `until` or earlier, the oldest first.
    fn take_expired(&mut self, timeout: Duration, until: Instant) -> Vec<T> {
        let Some(due) = until.checked_sub(timeout) else { return Vec::new() };
        let expired = self.requests.iter().filter(|(_, (_, sent))| *sent <= due);
        let mut ids: Vec<u64> = expired.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| Some(self.requests.remove(&id)?.0)).collect()
    }

    /// Removes all requests, the oldest first, and accepts no more.
    fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        self.take_expired(Duration::ZERO, Instant::now())
    }
}

/// Formatted requests that were not sent yet.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "positions in bytes of our own"
)]
impl Outbox {
    /// Appends the request for a transaction,
    /// `{"jsonrpc":"2.0","method":"eth_getRawTransactionByHash","params":["0x…"],"id":…}`. False when there is no room.
    /// Nodes need no separator between two requests.
    fn push(&mut self, id: u64, hash: &B256) -> bool {
        self.append(|bytes| {
            bytes.extend_from_slice(
                br#"{"jsonrpc":"2.0","method":"eth_getRawTransactionByHash","params":["0x"#,
            );
            let hex = bytes.len();
            bytes.resize(hex + 64, 0);
            const_hex::encode_to_slice(hash, &mut bytes[hex..]).expect("32 bytes are 64 digits");
            write!(bytes, r#""],"id":{}}}"#, id).expect("a vector takes every write");
        })
    }

    fn push_ping(&mut self) -> bool {
        let (id, method) = (PING_ID, "eth_blockNumber");
        self.append(|bytes| {
            write!(bytes, r#"{{"jsonrpc":"2.0","method":"{method}","params":[],"id":{id}}}"#)
                .expect("a vector takes every write");
        })
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.unsent().len() >= OUTBOX_BYTES {
            return false;
        }
        if self.sent > OUTBOX_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        write(&mut self.bytes);
        true
    }

    /// Sends as much as the socket has room for.
    fn send(&mut self, socket: &BlockingSocket) {
        while !self.unsent().is_empty() {
            match socket.send(self.unsent()) {
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The connection has ended; its reader finds out why, and nothing is sent any more.
                Err(_) => self.advance(self.unsent().len()),
            }
        }
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_request_leaves_once_by_its_id_or_its_age_and_none_enters_after_the_end() {
        let mut in_flight = InFlight::new();
        let ids: Vec<u64> = (0..10).map(|n| in_flight.insert(n).expect("open")).collect();
        assert!(!ids.contains(&PING_ID) && ids.is_sorted());
        assert_eq!(in_flight.requests.remove(&ids[3]).map(|(n, _)| n), Some(3));
        for id in [ids[3], PING_ID, u64::MAX] {
            assert!(in_flight.requests.remove(&id).is_none());
        }
        let minute = Duration::from_secs(60);
        let sent = in_flight.requests[&ids[4]].1;
        assert!(in_flight.take_expired(minute, sent).is_empty());
        let expired = in_flight.take_expired(minute, sent + minute);
        assert_eq!(expired[..4], [0, 1, 2, 4]);
        let again = in_flight.insert(10).expect("open");
        assert!(!ids.contains(&again), "an id is never used twice");
        assert_eq!(expired.len() + in_flight.close().len(), 10);
        assert!(matches!(in_flight.insert(0), Err(0)));
    }

    #[test]
    fn a_request_is_the_json_that_a_node_expects() {
        let hash = B256::repeat_byte(0xab);
        let mut outbox = Outbox::default();
        assert!(outbox.push(70_000, &hash) && outbox.push_ping());
        let mut values = serde_json::Deserializer::from_slice(outbox.unsent()).into_iter::<Value>();
        let request = values.next().unwrap().unwrap();
        assert_eq!(
            request,
            json!({
                "jsonrpc": "2.0", "id": 70_000, "method": "eth_getRawTransactionByHash",
                "params": [hash],
            })
        );
        assert_eq!(values.next().unwrap().unwrap()["method"], "eth_blockNumber");
        assert!(values.next().is_none());
    }

    #[test]
    fn what_a_node_does_not_read_is_bounded_and_what_it_reads_makes_room() {
        let mut outbox = Outbox::default();
        let id = 70_000;
        while outbox.push(id, &B256::ZERO) {}
        assert!(outbox.bytes.len() < OUTBOX_BYTES + 200 && !outbox.push_ping());
        for _ in 0..10_000 {
            outbox.advance(150);
            outbox.push(id, &B256::ZERO);
            assert!(outbox.bytes.len() < 3 * OUTBOX_BYTES);
        }
        let rest = outbox.unsent().len();
        outbox.advance(rest);
        assert!(outbox.unsent().is_empty() && outbox.push(id, &B256::ZERO));
    }
}
