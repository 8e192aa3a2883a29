//! Connections to a node for subscriptions, and for all calls but the fetches. Entry: [`dial`].
//!
//! ```text
//!  who calls                                     the reader of the connection
//!  call: an id, the request into the socket --> node ---> read, split, parse
//!        response <-- oneshot ------------------------------- a response: to its caller
//!                                                             a notification: to the listener of its subscription
//! ```
//! A connection never reconnects by itself: its source must see every loss. The reader is a thread; one reads
//! both sockets of a subscription. It never waits for anything but the node. So a [`Listener`] must not wait, and neither
//! does a write: a request for which the socket has no room times out like one without a response. A
//! WebSocket is reached through a Unix socket too, behind which a task passes its messages on (`ws`).
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | calls | callers and the reader | one entry of a map |

mod chain_id;
mod frame;
mod listings;
mod open;
mod read;
mod response;
mod socket;
mod ws;

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

pub use self::open::NodeInfo;
pub(crate) use self::{
    chain_id::ChainId,
    frame::Frames,
    listings::Listings,
    open::{connect_error, dial, open_socket},
    response::{Payload, Response, read_error},
    socket::BlockingSocket,
};
use crate::{
    error::{CallError, LossReason},
    sync::{OnDrop, lock},
};

/// Takes the notifications of a subscription, in their order, on the reader of the connection. It is dropped
/// with the connection, and must not wait.
pub(crate) trait Listener: Send + 'static {
    /// Takes the `result` of a notification that was read at `read_at`.
    fn on_notification(&mut self, json: &str, read_at: Instant);

    /// Everything that was read has been taken.
    fn on_idle(&mut self) {}
}

/// A connection to a node for all but the fetches. Its reader holds it too: see [`Open`].
pub(crate) struct Connection {
    socket: BlockingSocket,
    next_id: AtomicU64,
    /// Those without a response; `None` once the connection has ended.
    calls: Mutex<Option<HashMap<u64, Call>>>,
    opened: Instant,
    /// Nanoseconds since `opened`.
    last_frame: AtomicU64,
    pub(crate) ended: Arc<End>,
}

struct Call {
    reply: oneshot::Sender<Result<Box<RawValue>, CallError>>,
    /// Of a call that subscribes.
    listener: Option<Box<dyn Listener>>,
}

#[derive(Serialize)]
struct Request<P> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: P,
}

impl Connection {
    fn new(socket: BlockingSocket) -> Arc<Self> {
        Arc::new(Self {
            socket,
            next_id: AtomicU64::new(1),
            calls: Mutex::new(Some(HashMap::new())),
            opened: Instant::now(),
            last_frame: AtomicU64::new(0),
            ended: End::new().into(),
        })
    }

    /// Sends a request, and waits for the response at most `limit`.
    ///
    /// # Cancel safety
    /// The node still answers a dropped call, and the answer is discarded.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        params: impl Serialize,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        self.request(method, params, None, limit).await
    }

    /// Subscribes. `listener` gets every notification that follows the node's response.
    pub(crate) async fn subscribe(
        &self,
        params: impl Serialize,
        listener: impl Listener,
        limit: Duration,
    ) -> Result<(), CallError> {
        let listener = Some(Box::new(listener) as _);
        self.request("eth_subscribe", params, listener, limit).await.map(drop)
    }

    /// When the last complete JSON value was received. Single bytes do not count: after a truncated response,
    /// everything that follows is read as a part of it.
    pub(crate) fn last_frame(&self) -> Instant {
        // Relaxed: a slightly older value does no harm.
        self.opened + Duration::from_nanos(self.last_frame.load(Relaxed))
    }

    async fn request(
        &self,
        method: &'static str,
        params: impl Serialize,
        listener: Option<Box<dyn Listener>>,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let id = self.next_id.fetch_add(1, Relaxed);
        let request = serde_json::to_string(&Request { jsonrpc: "2.0", id, method, params })
            .expect("hashes, numbers and strings serialise");
        let (reply, response) = oneshot::channel();
        lock(&self.calls)
            .as_mut()
            .ok_or(CallError::ConnectionLost)?
            .insert(id, Call { reply, listener });
        // Forgets the call when it is over.
        let _in_flight = OnDrop(|| drop(self.take_call(id)));
        self.write(&request);
        match timeout(limit, response).await {
            Err(_) => Err(CallError::Timeout(limit)),
            Ok(response) => response.unwrap_or(Err(CallError::ConnectionLost)),
        }
    }

    fn write(&self, request: &str) {
        match self.socket.send(request.as_bytes()) {
            Ok(count) if count == request.len() => {}
            // Nothing may follow it.
            Ok(_) => self.end(LossReason::Io(std::io::ErrorKind::WriteZero)),
            // If the connection has ended, its reader finds out why.
            Err(_) => tracing::debug!("the node does not read its requests"),
        }
    }

    fn take_call(&self, id: u64) -> Option<Call> {
        lock(&self.calls).as_mut()?.remove(&id)
    }

    fn framed(&self, at: Instant) {
        let nanos = at.saturating_duration_since(self.opened).as_nanos() as u64;
        self.last_frame.store(nanos, Relaxed);
    }
}

impl Ends for Connection {
    /// Calls without a response fail.
    fn end(&self, reason: LossReason) {
        self.ended.set(reason);
        self.socket.end();
        // Dropped after the lock is released, with its listeners.
        let _calls = lock(&self.calls).take();
    }
}

/// A connection that ends when this is dropped. Its thread holds the connection too, and would otherwise wait for what
/// comes for ever.
pub(crate) struct Open<C: Ends>(pub(crate) Arc<C>);

/// What a dropped [`Open`] does to its connection.
pub(crate) trait Ends {
    /// Ends the connection; the first reason stands.
    fn end(&self, reason: LossReason);
}

impl<C: Ends> Deref for Open<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

impl<C: Ends> Drop for Open<C> {
    fn drop(&mut self) {
        self.0.end(LossReason::Closed);
    }
}

/// Whether a connection has ended, and why. The first reason stands.
pub(crate) struct End(watch::Sender<Option<LossReason>>);

impl End {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(reason);
            is_first
        });
    }

    pub(crate) fn reason(&self) -> Option<LossReason> {
        self.0.borrow().clone()
    }

    /// Waits for the end, and returns the reason. Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        let mut ended = self.0.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or(LossReason::Closed)
    }
}

/// Where a source's announcements are read.
pub(crate) struct Subscription {
    pub(crate) node: NodeInfo,
    pub(crate) ended: Arc<End>,
    /// To a node: for hashes and heads, and that for objects, which ends with it.
    pub(crate) connections: Vec<Arc<Open<Connection>>>,
}

impl Subscription {
    pub(crate) fn kill(&self, reason: LossReason) {
        match self.connections.first() {
            Some(connection) => connection.end(reason),
            None => self.ended.set(reason),
        }
    }
}

/// The first `max` characters.
fn clip(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Endpoint, limits::Limits, tasks::Tasks};
    use serde_json::{Value, json};
    use std::{
        io::Write as _,
        os::unix::net::{UnixListener, UnixStream},
        path::Path,
    };
    use tokio::{
        runtime::Handle,
        sync::mpsc::{self, UnboundedReceiver},
    };
    use tokio_util::sync::CancellationToken;

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

    async fn open(path: &Path) -> Open<Connection> {
        let endpoint = Endpoint::Ipc(path.into());
        let tasks = Tasks::new(Handle::current(), CancellationToken::new());
        let dialed = dial(&endpoint, &Limits::default(), false, ("test", &tasks)).await;
        let [(connection, _)] = dialed.expect("the node responds");
        connection
    }

    struct Notes(mpsc::UnboundedSender<String>);

    impl Listener for Notes {
        fn on_notification(&mut self, json: &str, _: Instant) {
            self.0.send(json.to_owned()).expect("the test reads");
        }
    }

    async fn subscribe(
        connection: &Connection,
        kind: &str,
    ) -> Result<UnboundedReceiver<String>, CallError> {
        let (notes, received) = mpsc::unbounded_channel();
        connection.subscribe((kind,), Notes(notes), LIMIT).await.map(|()| received)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_notification_goes_to_its_subscription_and_ends_with_the_connection() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.ipc");
        let notes = vec![
            note("0x7", &json!("of no subscription")),
            note("0xa", &json!(1)),
            r#"{"jsonrpc":"2.0","method":"eth_subscription","params":["0xa"]}"#.to_owned(),
            note("0xb", &json!(2)),
            note("0xa", &json!({ "three": [3] })),
            r#"{"id":"0xa","result":null} []"#.to_owned(),
        ];
        node(&path, ["0xa", "0xb"], notes);
        let connection = open(&path).await;
        let mut hashes = subscribe(&connection, "newPendingTransactions").await.expect("one");
        let mut heads = subscribe(&connection, "newHeads").await.expect("another");
        assert_eq!(heads.recv().await.as_deref(), Some("2"));
        assert_eq!(hashes.recv().await.as_deref(), Some("1"));
        assert_eq!(hashes.recv().await.as_deref(), Some(r#"{"three":[3]}"#));
        connection.call("eth_none", (), LIMIT).await.expect("it is still up");
        connection.end(LossReason::Closed);
        assert_eq!((hashes.recv().await, heads.recv().await), (None, None));
    }

    #[tokio::test]
    async fn a_node_that_gives_two_subscriptions_one_id_is_left() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.ipc");
        node(&path, ["0xa", "0xa"], vec![]);
        let connection = open(&path).await;
        let _hashes = subscribe(&connection, "newPendingTransactions").await.expect("one");
        let error = subscribe(&connection, "newHeads").await.unwrap_err();
        assert!(matches!(error, CallError::ConnectionLost), "{error}");
        assert!(matches!(connection.ended.wait().await, LossReason::Garbage(_)));
    }
}
