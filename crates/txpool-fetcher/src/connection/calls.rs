//! All requests but those for transactions: calls, whose callers wait for them, and subscriptions.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::bytes::BufMut as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{
    Connection, End,
    read::Responses,
    response::{Incoming, Notification},
};
use crate::{
    error::{CallError, LossReason},
    sync::OnDrop,
};

/// Takes the notifications of a subscription, in their order, on the reader of the connection. It is dropped
/// with the connection, and must not wait.
pub(crate) trait Listener: Send + 'static {
    /// Takes the `result` of a notification that was read at `read_at`.
    fn on_notification(&mut self, json: &str, read_at: Instant);

    /// Everything that was read has been taken.
    fn on_idle(&mut self) {}
}

/// A call in flight.
pub(crate) struct Call {
    reply: oneshot::Sender<Result<Box<RawValue>, CallError>>,
    /// Of a call that subscribes.
    listener: Option<Box<dyn Listener>>,
}

impl Connection<Call> {
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

    #[expect(clippy::expect_used, reason = "what our own calls send")]
    async fn request(
        &self,
        method: &'static str,
        params: impl Serialize,
        listener: Option<Box<dyn Listener>>,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let (reply, response) = oneshot::channel();
        let submitted = self.submit(method, Call { reply, listener }, |bytes| {
            serde_json::to_writer(bytes.writer(), &params)
                .expect("hashes, numbers and strings serialise");
        });
        let id = submitted.map_err(|_| CallError::ConnectionLost)?;
        let _in_flight = OnDrop(|| _ = self.handle(id, drop));
        self.flush();
        // Without a reply if the response has ended the connection.
        self.await_within(limit, response).await?.unwrap_or(Err(CallError::ConnectionLost))
    }
}

/// The listeners of a connection, with the ids that the node gave them, as they were written.
pub(super) struct Subscriptions {
    by_id: Vec<(Box<str>, Box<dyn Listener>)>,
    ended: Arc<End>,
}

impl Subscriptions {
    pub(super) fn new(ended: &Arc<End>) -> Self {
        Self { by_id: Vec::new(), ended: Arc::clone(ended) }
    }
}

impl Responses<Call> for Subscriptions {
    /// They are few, and each has a limit of its own.
    const ARE_FETCHES: bool = false;

    fn on_response(&mut self, call: Call, _: Instant, response: &Incoming<'_>) {
        let response = response.value();
        if let (Ok(id), Some(listener)) = (&response, call.listener) {
            let id = Box::from(id.get());
            if self.by_id.iter().any(|(of, _)| *of == id) {
                let said = "one id for two subscriptions".to_owned();
                return self.ended.set(LossReason::Garbage(said));
            }
            self.by_id.push((id, listener));
        }
        // The caller may have stopped waiting.
        let _ = call.reply.send(response);
    }

    fn on_notification(&mut self, note: &Notification<'_>, read_at: Instant) {
        let id = note.subscription.get();
        if let Some((_, listener)) = self.by_id.iter_mut().find(|(of, _)| **of == *id) {
            listener.on_notification(note.result.get(), read_at);
        }
    }

    fn on_idle(&mut self) {
        self.by_id.iter_mut().for_each(|(_, listener)| listener.on_idle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Endpoint,
        connection::{Calls, dial},
        limits::Limits,
        tasks::Tasks,
    };
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

    async fn open(path: &Path) -> Calls {
        let endpoint = Endpoint::Ipc(path.into());
        let tasks = Tasks::new(Handle::current(), CancellationToken::new());
        let dialed =
            dial(&endpoint, (&Limits::default(), &Arc::default()), false, ("test", &tasks)).await;
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
        connection: &Connection<Call>,
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
