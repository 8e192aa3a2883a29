//! Connections to a node over alloy's pub-sub service, for subscriptions and for all calls but the
//! fetches. Entry: [`dial`].
//!
//! A connection is opened with a typed error, records when it last received something, ends with a
//! reason, and never reconnects by itself: its source must see every loss.
//!
//! **The size of the announcement buffer is asserted, not assumed.** alloy sets a channel's size at
//! the first subscription, and shares the channel between equal subscriptions. So
//! [`Connection::subscribe_announcements`] has probes pushed behind the response: they are all
//! received only if the buffer has the requested capacity.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | [`ReadTimes`] | the connection's task, the announcement reader, `status()` | one entry of a ring |
//! | probe, frontend | the connection's task and its callers | one field |
//! | socket, trace (in `backend`) | only the connection's task | one move; the records of one read |

mod backend;
mod chain_id;
mod end;
mod open;
mod read_times;

use std::{
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
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use self::open::NodeInfo;
pub(crate) use self::{
    chain_id::ChainId,
    end::End,
    open::{WsStream, closed_too_early, dial, no_socket, open_ipc, open_ws_stream},
    read_times::ReadTimes,
};
use crate::{
    error::{CallError, LossReason},
    sync::lock,
};

/// A connection to a node that was probed when it was opened.
#[derive(Debug)]
pub(crate) struct Connection {
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
        let sent = self.frontend()?.send(request);
        let response = tokio::select! {
            // A response that has come counts.
            biased;
            response = timeout(limit, sent) => response,
            _ = self.closed() => return Err(CallError::ConnectionLost),
        };
        match response {
            Err(_) => Err(CallError::Timeout(limit)),
            // The only error of the service: the connection ended, and it dropped what was in
            // flight.
            Ok(Err(_)) => Err(CallError::ConnectionLost),
            Ok(Ok(response)) => match response.payload {
                ResponsePayload::Success(result) => Ok(result),
                ResponsePayload::Failure(error) => {
                    let message = clip(&error.message, 200);
                    Err(CallError::Rpc { code: error.code, message })
                }
            },
        }
    }

    /// Subscribes to the hashes or objects of pending transactions with a buffer of `slots`, and verifies that the buffer has
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
        objects: bool,
        slots: usize,
        limit: Duration,
    ) -> Result<Result<RawSubscription, usize>, CallError> {
        self.frontend()?.set_channel_size(slots);
        let probes = slots / 2 + 1;
        let id = self.next_id.fetch_add(1, Relaxed);
        let max_bytes = if objects { MAX_OBJECT_BYTES } else { MAX_HASH_BYTES };
        *lock(&self.shared.probe) = Some(Probe { id, probes, max_bytes });
        const KIND: &str = "newPendingTransactions";
        let mut subscription = match objects {
            false => self.subscribe((KIND,), id, limit).await?,
            true => self.subscribe((KIND, true), id, limit).await?,
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
        self.frontend()?.set_channel_size(slots);
        let id = self.next_id.fetch_add(1, Relaxed);
        self.shared.heads_request.store(id, Relaxed);
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
        match timeout(limit, self.frontend()?.get_subscription(alias)).await {
            Err(_) => Err(CallError::Timeout(limit)),
            Ok(Err(_)) => Err(CallError::ConnectionLost),
            Ok(Ok(subscription)) => Ok(subscription),
        }
    }

    fn frontend(&self) -> Result<PubSubFrontend, CallError> {
        lock(&self.shared.frontend).clone().ok_or(CallError::ConnectionLost)
    }

    /// When the last complete JSON value was received. Single bytes do not count: after a truncated response,
    /// everything that follows is read as a part of it.
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
        self.shared.ended.wait().await
    }

    /// When announcements were read from the socket.
    pub(crate) fn read_times(&self) -> Arc<ReadTimes> {
        Arc::clone(&self.shared.read_times)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.kill(LossReason::Closed);
    }
}

/// Longest announcement of a hash that is kept until it is read; a hash has 68 bytes. A longer one is
/// replaced by the announcement of its hash, as for an object.
const MAX_HASH_BYTES: usize = 128;

/// Longest announcement of an object that is kept until it is read. Of a longer one only the hash is
/// kept, and the transaction is requested: few transactions carry 8 kB of data, and anvil announces
/// blob transactions with their sidecars.
const MAX_OBJECT_BYTES: usize = 16 * 1024;

/// Most bytes of all announcements that wait to be read: 16,384 objects of 4 kB. While so many wait,
/// only the hash is kept of a further object.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// What the backend does with the response to the subscription to announcements.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The id of the request.
    id: u64,
    /// How many probes to push behind the response.
    probes: usize,
    /// Longest announcement that is kept.
    max_bytes: usize,
}

/// The state that a connection shares with its backend task.
#[derive(Debug)]
struct ConnectionShared {
    opened: Instant,
    /// Nanoseconds since `opened`.
    last_frame: AtomicU64,
    read_times: Arc<ReadTimes>,
    ended: End,
    killed: CancellationToken,
    probe: Mutex<Option<Probe>>,
    /// The id of the request that subscribes to heads; 0, which is never used, until it is sent.
    heads_request: AtomicU64,
    /// `None` once the connection has ended. alloy's service takes the end of its backend for a fault and
    /// logs two errors, but ends silently when all its request senders are dropped.
    frontend: Mutex<Option<PubSubFrontend>>,
}

impl ConnectionShared {
    fn new(announcement_slots: usize) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            last_frame: AtomicU64::new(0),
            read_times: Arc::new(ReadTimes::new(announcement_slots)),
            ended: End::new(),
            killed: CancellationToken::new(),
            probe: Mutex::new(None),
            heads_request: AtomicU64::new(0),
            frontend: Mutex::new(None),
        })
    }

    fn framed(&self, now: Instant) {
        // Relaxed: a slightly older value does no harm.
        self.last_frame.store(now.duration_since(self.opened).as_nanos() as u64, Relaxed);
    }

    fn last_frame(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_frame.load(Relaxed))
    }

    /// Sets the reason of the end, unless there is one already, and lets the service end.
    fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        // Dropped after the lock is released: the drop wakes the service.
        let _frontend = lock(&self.frontend).take();
    }
}

/// The first `max` characters.
fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Endpoint, limits::Limits};
    use serde_json::{Value, json};
    use std::{
        io::Write as _,
        os::unix::net::{UnixListener, UnixStream},
        path::Path,
    };
    use tracing::{
        Level, Metadata, Subscriber,
        span::{Attributes, Record},
    };

    /// Serves each connection as a node does whose answers to the two subscriptions are `ids`, and then
    /// writes `notes`.
    fn node(path: &Path, ids: [&'static str; 2], notes: Vec<String>) {
        let listener = UnixListener::bind(path).expect("a fresh path");
        let serve = move |stream: UnixStream| {
            let mut writer = stream.try_clone().expect("a second handle");
            let requests = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
            for request in requests.map_while(Result::ok) {
                let first = &request["params"][0];
                let result = match request["method"].as_str().expect("a method") {
                    "eth_chainId" => json!("0x1"),
                    "web3_clientVersion" => json!("fake/1"),
                    "eth_subscribe" if first == "newHeads" => json!(ids[1]),
                    "eth_subscribe" => json!(ids[0]),
                    _ => Value::Null,
                };
                let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                // The other side may have had enough.
                let _ = writer.write_all(answer.to_string().as_bytes());
                if first == "newHeads" {
                    let _ = notes.iter().try_for_each(|note| writer.write_all(note.as_bytes()));
                }
            }
        };
        std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(serve));
    }

    fn note(id: &str, result: &Value) -> String {
        let params = json!({ "subscription": id, "result": result });
        json!({ "jsonrpc": "2.0", "method": "eth_subscription", "params": params }).to_string()
    }

    async fn open(path: &Path) -> Connection {
        let endpoint = Endpoint::Ipc(path.into());
        let limits = Limits::default();
        let dialed = dial(&endpoint, &limits, false).await;
        dialed.expect("the node responds")
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_waits_to_be_read_is_bounded_and_only_what_is_delivered_is_counted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.ipc");
        let (hash, long) = (json!(B256::ZERO), json!("0".repeat(2 << 20)));
        let notes = vec![
            note("0x7", &hash),
            note("0xa", &long),
            note("0xb", &long),
            note("0xa", &hash),
            note("0xb", &json!("end")),
        ];
        node(&path, ["0xa", "0xb"], notes);
        let connection = open(&path).await;
        let subscribed = connection.subscribe_announcements(false, 16, LIMIT).await;
        let mut hashes = subscribed.expect("subscribed").expect("16 slots");
        let mut heads = connection.subscribe_heads(16, LIMIT).await.expect("subscribed");
        assert_eq!(heads.recv().await.unwrap().get(), "null", "of 2 MiB");
        assert_eq!(heads.recv().await.unwrap().get(), "\"end\"");
        let read_times = connection.read_times();
        assert_eq!((read_times.read(), read_times.waiting_bytes()), (2, 4 + 68));
        assert_eq!(hashes.recv().await.unwrap().get(), "null", "of 2 MiB");
        assert_eq!(hashes.recv().await.unwrap().get(), hash.to_string());
    }

    #[tokio::test]
    async fn a_node_that_gives_two_subscriptions_one_id_is_left() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.ipc");
        node(&path, ["0xa", "0x0a"], vec![]);
        let connection = open(&path).await;
        let subscribed = connection.subscribe_announcements(false, 16, LIMIT).await;
        subscribed.expect("subscribed").expect("16 slots");
        let error = connection.subscribe_heads(16, LIMIT).await.unwrap_err();
        assert!(matches!(error, CallError::ConnectionLost), "{error}");
        assert!(matches!(connection.closed().await, LossReason::Garbage(_)));
    }

    /// Counts the errors that are logged on this thread.
    #[derive(Clone, Debug, Default)]
    struct LoggedErrors(Arc<AtomicU64>);

    impl Subscriber for LoggedErrors {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::ERROR
        }

        fn new_span(&self, _: &Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Relaxed);
        }

        fn enter(&self, _: &tracing::Id) {}

        fn exit(&self, _: &tracing::Id) {}
    }

    #[tokio::test]
    async fn a_connection_that_is_given_up_ends_without_an_error_in_the_hosts_log() {
        let errors = LoggedErrors::default();
        let _logs = tracing::subscriber::set_default(errors.clone());
        tracing::error!("is counted");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.ipc");
        node(&path, ["0xa", "0xb"], vec![]);
        let connection = Arc::new(open(&path).await);
        let mut heads = connection.subscribe_heads(16, LIMIT).await.expect("subscribed");
        let waiting = Arc::clone(&connection);
        let call = tokio::spawn(async move { waiting.call("eth_none", (), LIMIT).await });
        tokio::task::yield_now().await;
        connection.kill(LossReason::Unresponsive(Duration::ZERO));
        // The service has ended when its subscriptions have.
        assert!(heads.recv().await.is_err());
        assert!(!matches!(call.await.expect("no panic"), Err(CallError::Timeout(_))));
        assert_eq!(errors.0.load(Relaxed), 1);
    }

    #[test]
    fn a_read_time_is_found_by_the_number_of_its_announcement() {
        let read_times = ReadTimes::new(4);
        let start = Instant::now();
        for n in 0..6 {
            read_times.push(start + Duration::from_secs(n), 10);
        }
        assert_eq!((read_times.read(), read_times.waiting_bytes()), (6, 40));
        assert_eq!(read_times.take(1), None, "forgotten with the slot");
        assert_eq!(read_times.take(3), Some(start + Duration::from_secs(3)));
        assert_eq!(read_times.take(3), None, "taken");
        assert_eq!(read_times.take(5), Some(start + Duration::from_secs(5)));
        assert_eq!(read_times.take(6), None, "not read yet");
        assert_eq!(read_times.waiting_bytes(), 0);
    }
}
