//! One connection to a node. It is opened with a typed error, records when it last received
//! something, ends with a reason, and never reconnects by itself.

mod backend;
mod open;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_json_rpc::{Id, Request, ResponsePayload};
use alloy_primitives::B256;
use alloy_pubsub::{PubSubFrontend, RawSubscription};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::open::NodeInfo;
pub(crate) use self::open::{dial, no_socket, open_ipc, open_ws_stream, read_refusal};
use crate::{
    config::Announcements,
    error::{CallError, LossReason},
    sync::lock,
};

/// A connection to a node that was probed when it was opened.
#[derive(Debug)]
pub(crate) struct Connection {
    frontend: PubSubFrontend,
    next_id: AtomicU64,
    shared: Arc<ConnectionShared>,
    pub(crate) node: NodeInfo,
}

impl Connection {
    /// Sends a request, and waits for the response at most `limit`.
    ///
    /// # Errors
    /// See [`CallError`].
    ///
    /// # Cancel safety
    /// The node still answers a dropped call, and the answer is discarded.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        params: impl Serialize,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        self.request(method, params, self.next_id.fetch_add(1, Relaxed), limit).await
    }

    async fn request(
        &self,
        method: &'static str,
        params: impl Serialize,
        id: u64,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let request = serde_json::value::to_raw_value(&params)
            .and_then(|params| Request::new(method, Id::Number(id), params).serialize())
            .expect("hashes, numbers and strings serialise");
        match timeout(limit, self.frontend.send(request)).await {
            Err(_) => Err(CallError::Timeout(limit)),
            // The only error of the service: the connection ended, and it dropped what was in
            // flight.
            Ok(Err(_)) => Err(CallError::ConnectionLost),
            Ok(Ok(response)) => match response.payload {
                ResponsePayload::Success(result) => Ok(result),
                ResponsePayload::Failure(error) => {
                    let retry_after =
                        error.data.as_deref().and_then(|data| retry_after(data.get()));
                    let message = clip(&error.message, 200);
                    Err(CallError::Rpc { code: error.code, message, retry_after })
                }
            },
        }
    }

    /// Subscribes to pending transactions with a buffer of `slots`, and verifies that the buffer has
    /// that size.
    ///
    /// alloy creates the buffer when the response to the subscription arrives. An earlier
    /// subscription with the same parameters would have fixed its size, at 16 by default, without
    /// an error. So the backend pushes `slots / 2 + 1` probes into the same channel, before the
    /// node's first notification. Sizes are powers of two, so a channel that holds all probes has
    /// `slots`.
    ///
    /// # Errors
    /// The call's error, or how many probes were pushed when one got lost.
    pub(crate) async fn subscribe_announcements(
        &self,
        announcements: Announcements,
        slots: usize,
        limit: Duration,
    ) -> Result<Result<RawSubscription, usize>, CallError> {
        self.frontend.set_channel_size(slots);
        let probes = slots / 2 + 1;
        let id = self.next_id.fetch_add(1, Relaxed);
        self.shared.arm_probe(id, probes);
        const KIND: &str = "newPendingTransactions";
        let mut subscription = match announcements {
            Announcements::Hashes => self.subscribe((KIND,), id, limit).await?,
            Announcements::Full => self.subscribe((KIND, true), id, limit).await?,
        };
        for _ in 0..probes {
            match subscription.try_recv() {
                Ok(_) => {}
                Err(_) => return Ok(Err(probes)),
            }
        }
        Ok(Ok(subscription))
    }

    /// Subscribes to new heads.
    pub(crate) async fn subscribe_heads(
        &self,
        slots: usize,
        limit: Duration,
    ) -> Result<RawSubscription, CallError> {
        self.frontend.set_channel_size(slots);
        let id = self.next_id.fetch_add(1, Relaxed);
        self.subscribe(("newHeads",), id, limit).await
    }

    async fn subscribe(
        &self,
        params: impl Serialize,
        id: u64,
        limit: Duration,
    ) -> Result<RawSubscription, CallError> {
        let alias = self.request("eth_subscribe", params, id, limit).await?;
        let alias: B256 = serde_json::from_str(alias.get())
            .expect("alloy answers a subscription with its own 32-byte alias");
        match timeout(limit, self.frontend.get_subscription(alias)).await {
            Err(_) => Err(CallError::Timeout(limit)),
            Ok(Err(_)) => Err(CallError::ConnectionLost),
            Ok(Ok(subscription)) => Ok(subscription),
        }
    }

    /// When the last complete JSON value was received. Bytes alone are no sign of life: after a
    /// truncated answer, all that follows is read as a part of it.
    pub(crate) fn last_frame(&self) -> Instant {
        self.shared.last_frame()
    }

    /// Closes the connection, for a reason on our side.
    pub(crate) fn kill(&self, reason: LossReason) {
        self.shared.end(reason);
        self.shared.killed.cancel();
    }

    /// Waits until the connection has ended, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn closed(&self) -> LossReason {
        let mut ended = self.shared.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or(LossReason::Closed)
    }

    /// When announcements were read from the socket.
    pub(crate) fn read_times(&self) -> Arc<ReadTimes> {
        Arc::clone(&self.shared.read_times)
    }
}

/// The state that a connection shares with its backend task.
#[derive(Debug)]
struct ConnectionShared {
    opened: Instant,
    /// Nanoseconds since `opened`.
    last_frame: AtomicU64,
    read_times: Arc<ReadTimes>,
    ended: watch::Sender<Option<LossReason>>,
    killed: CancellationToken,
    /// The id of the request that subscribes to announcements, and how many probes to push behind
    /// the response.
    probe: Mutex<Option<(u64, usize)>>,
}

impl ConnectionShared {
    fn new(announcement_slots: usize) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            last_frame: AtomicU64::new(0),
            read_times: Arc::new(ReadTimes::new(announcement_slots)),
            ended: watch::Sender::new(None),
            killed: CancellationToken::new(),
            probe: Mutex::new(None),
        })
    }

    fn framed(&self, now: Instant) {
        // Relaxed: a slightly older value does no harm.
        self.last_frame.store(now.duration_since(self.opened).as_nanos() as u64, Relaxed);
    }

    fn last_frame(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_frame.load(Relaxed))
    }

    /// Sets the reason of the end, unless there is one already.
    fn end(&self, reason: LossReason) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(reason);
            }
            first
        });
    }

    fn arm_probe(&self, id: u64, probes: usize) {
        *lock(&self.probe) = Some((id, probes));
    }
}

/// When the latest announcements were read from the socket, by their number on the connection.
///
/// The broadcast channel carries the announcements and this carries their times, in the same order. The
/// reader counts those that it received and those that were reported as lost, so it knows the
/// number of each.
#[derive(Debug)]
pub(crate) struct ReadTimes {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    times: VecDeque<Instant>,
    next: u64,
    slots: usize,
}

impl ReadTimes {
    pub(crate) fn new(slots: usize) -> Self {
        Self { ring: Mutex::new(Ring { times: VecDeque::new(), next: 0, slots }) }
    }

    pub(crate) fn push(&self, now: Instant) {
        let mut ring = lock(&self.ring);
        if ring.times.len() == ring.slots {
            // The channel, which has as many slots, has lost the oldest one too.
            ring.times.pop_front();
        }
        ring.times.push_back(now);
        ring.next += 1;
    }

    /// The time of announcement `number`. Forgets it and all before it.
    pub(crate) fn take(&self, number: u64) -> Option<Instant> {
        let mut ring = lock(&self.ring);
        let first = ring.next - ring.times.len() as u64;
        let index = number.checked_sub(first)? as usize;
        if index >= ring.times.len() {
            return None;
        }
        ring.times.drain(..=index).next_back()
    }

    /// How many announcements were read from the socket.
    pub(crate) fn read(&self) -> u64 {
        lock(&self.ring).next
    }
}

/// When the node wants the request to be repeated. JSON-RPC has no field for this. It is the one
/// that our own RPC server sends; data of any other shape is ignored.
pub(crate) fn retry_after(data: &str) -> Option<Duration> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Data {
        retry_after_ms: u64,
    }
    let data: Data = serde_json::from_str(data).ok()?;
    Some(Duration::from_millis(data.retry_after_ms))
}

/// The first `max` characters.
fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_from_the_data_of_an_error_and_from_no_other_shape() {
        let read = retry_after;
        let said = read(r#"{"reason":"in_flight","retryAfterMs":250}"#);
        assert_eq!(said, Some(Duration::from_millis(250)));
        for other in [r#""later""#, "7", "null", r#"{"retryAfterMs":-1}"#, "{}"] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn a_read_time_is_found_by_the_number_of_its_announcement() {
        let read_times = ReadTimes::new(4);
        let start = Instant::now();
        for n in 0..6 {
            read_times.push(start + Duration::from_secs(n));
        }
        assert_eq!(read_times.read(), 6);
        assert_eq!(read_times.take(1), None, "forgotten with the slot");
        assert_eq!(read_times.take(3), Some(start + Duration::from_secs(3)));
        assert_eq!(read_times.take(3), None, "taken");
        assert_eq!(read_times.take(5), Some(start + Duration::from_secs(5)));
        assert_eq!(read_times.take(6), None, "not read yet");
    }
}
