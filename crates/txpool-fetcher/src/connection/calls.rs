//! All requests but those for transactions: calls, whose callers wait for them, and subscriptions.

use std::time::{Duration, Instant};

use alloy_primitives::bytes::BufMut as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{
    Connection,
    read::Responses,
    response::{Incoming, Notification},
};
use crate::{error::CallError, sync::OnDrop};

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
        // Without a reply if its reader has panicked.
        self.await_within(limit, response).await?.unwrap_or(Err(CallError::ConnectionLost))
    }
}

/// The listeners of a connection, with the ids that the node gave them, as they were written.
#[derive(Default)]
pub(super) struct Subscriptions(Vec<(Box<str>, Box<dyn Listener>)>);

impl Responses<Call> for Subscriptions {
    /// They are few, and each has a limit of its own.
    const ARE_FETCHES: bool = false;

    fn on_response(&mut self, call: Call, _: Instant, response: &Incoming<'_>) {
        let mut response = response.value();
        if let (Ok(id), Some(listener)) = (&response, call.listener) {
            let id = Box::from(id.get());
            if self.0.iter().any(|(of, _)| *of == id) {
                let message = "one id for two subscriptions".to_owned();
                response = Err(CallError::Rpc { code: 0, message });
            } else {
                self.0.push((id, listener));
            }
        }
        // The caller may have stopped waiting.
        let _ = call.reply.send(response);
    }

    fn on_notification(&mut self, note: &Notification<'_>, read_at: Instant) {
        let id = note.subscription.get();
        if let Some((_, listener)) = self.0.iter_mut().find(|(of, _)| **of == *id) {
            listener.on_notification(note.result.get(), read_at);
        }
    }

    fn on_idle(&mut self) {
        self.0.iter_mut().for_each(|(_, listener)| listener.on_idle());
    }
}
