//! One connection to a node over alloy: calls with a time-out, requests for raw transactions, and
//! subscriptions.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use alloy_json_rpc::{RpcError, RpcSend};
use alloy_primitives::{B256, Bytes};
use alloy_pubsub::RawSubscription;
use alloy_rpc_client::{RpcCall, RpcClient};
use alloy_transport::TransportError;
use serde_json::value::RawValue;
use tokio::{sync::broadcast::error::RecvError, time::timeout};

use super::{
    End, LastMessage, Meter, Notification, clip,
    connector::{Connector, connect_error},
};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
};

/// A connection to a node. It ends when the node closes it, or by [`Self::end`]. Dropping it closes
/// it.
pub(crate) struct Connection {
    client: RpcClient,
    pub(crate) ended: Arc<End>,
    last_message: Arc<LastMessage>,
    /// The number of requests for raw transactions without a response. Relaxed: a count of its own.
    in_flight: Arc<AtomicUsize>,
    /// The number of requests that were given up without a response. alloy keeps each until it has
    /// one, or until the connection ends. Relaxed: a count of its own.
    unanswered: AtomicUsize,
    /// See [`Limits::max_unanswered`].
    max_unanswered: usize,
}

impl Connection {
    /// Opens a connection. alloy's task for it runs on the current runtime.
    pub(crate) async fn open(endpoint: &Endpoint, limits: &Limits) -> Result<Self, ConnectError> {
        let (max_bytes, time_limit) = (limits.max_frame_bytes, limits.ping_timeout);
        let connection = Self::open_with(endpoint, max_bytes, time_limit).await?;
        Ok(Self { max_unanswered: limits.max_unanswered, ..connection })
    }

    /// Like [`Self::open`], with other limits, for a response that is larger and takes longer than
    /// others, and for any number of requests without one. Connecting ends with an error after
    /// `time_limit`.
    pub(crate) async fn open_with(
        endpoint: &Endpoint,
        max_message_bytes: usize,
        time_limit: Duration,
    ) -> Result<Self, ConnectError> {
        let ended = Arc::<End>::default();
        let connector =
            Connector { endpoint: endpoint.clone(), ended: Arc::clone(&ended), max_message_bytes };
        let client = match timeout(time_limit, RpcClient::connect_pubsub(connector)).await {
            Ok(client) => client.map_err(|error| connect_error(endpoint, error))?,
            Err(_) => return Err(ConnectError::no_answer(endpoint, "connect", time_limit)),
        };
        Ok(Self {
            client,
            ended,
            last_message: Arc::new(LastMessage::new()),
            in_flight: Arc::default(),
            unanswered: AtomicUsize::new(0),
            max_unanswered: usize::MAX,
        })
    }

    /// Ends the connection, unless it has ended already. alloy closes the socket when the last user
    /// of the connection has dropped it.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason);
    }

    /// Returns the time of the latest message, for the readers of its subscriptions.
    pub(crate) fn last_message(&self) -> &Arc<LastMessage> {
        &self.last_message
    }

    /// Returns when the latest message came.
    pub(crate) fn last_message_at(&self) -> Instant {
        self.last_message.time()
    }

    /// Returns the number of requests for raw transactions without a response.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Calls a method, and waits for the response for at most `limit`.
    ///
    /// # Cancel safety
    /// Cancel safe. The node still responds, and alloy discards the response.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        params: impl RpcSend,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let call = self.client.request::<_, Box<RawValue>>(method, params);
        self.with_limit(limit, call).await
    }

    /// Requests the raw form of a pending transaction (`eth_getRawTransactionByHash`), without a
    /// time-out. If the node does not have the transaction, the result is empty on geth, and absent
    /// on other clients.
    pub(crate) fn raw_transaction(self: &Arc<Self>, hash: B256) -> RawTransactionCall {
        self.in_flight.fetch_add(1, Relaxed);
        RawTransactionCall {
            call: self.client.request(RAW_TRANSACTION, (hash,)),
            connection: Arc::clone(self),
            is_answered: false,
        }
    }

    /// Counts a request that is given up without a response, and ends the connection when alloy
    /// keeps too many.
    fn count_unanswered(&self) {
        let requests = self.unanswered.fetch_add(1, Relaxed) + 1;
        if requests >= self.max_unanswered {
            self.end(LossReason::Unanswered { requests });
        }
    }

    /// Subscribes, with a broadcast buffer of `buffer` notifications.
    pub(crate) async fn subscribe(
        &self,
        params: impl RpcSend,
        buffer: usize,
        limit: Duration,
    ) -> Result<Notifications, CallError> {
        // alloy's default is 16. The value applies to all later subscriptions of the client.
        self.client.set_channel_size(buffer);
        assert_eq!(self.client.channel_size(), buffer, "alloy accepts the size of the buffer");
        let mut call = self.client.request::<_, B256>("eth_subscribe", params);
        call.set_is_subscription();
        let local_id = self.with_limit(limit, call).await?;
        let frontend = self.client.pubsub_frontend().ok_or(CallError::ConnectionLost)?;
        let subscription = frontend.get_subscription(local_id).await.map_err(call_error)?;
        Ok(Notifications::new(subscription, buffer))
    }

    /// Waits for a response until the limit, or until the connection ends.
    async fn with_limit<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, CallError> {
        let mut pending = PendingCall(Some(self));
        tokio::select! {
            // A response that has come counts, whatever has happened since then.
            biased;
            response = call => {
                pending.0 = None;
                let response = response.map_err(call_error);
                if !matches!(response, Err(CallError::ConnectionLost)) {
                    self.last_message.record();
                }
                response
            }
            _ = self.ended.wait() => Err(CallError::ConnectionLost),
            () = tokio::time::sleep(limit) => Err(CallError::Timeout(limit)),
        }
    }
}

/// A call without a response. It is given up when this is dropped, also because its caller is.
struct PendingCall<'a>(Option<&'a Connection>);

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.count_unanswered();
        }
    }
}

/// The method with which a transaction is requested.
pub(super) const RAW_TRANSACTION: &str = "eth_getRawTransactionByHash";

/// A request for a raw transaction. It can be moved, and so kept after a time-out.
pub(crate) struct RawTransactionCall {
    call: RpcCall<(B256,), Option<Bytes>>,
    connection: Arc<Connection>,
    is_answered: bool,
}

impl Future for RawTransactionCall {
    type Output = Result<Option<Bytes>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.call).poll(context)).map_err(call_error);
        self.is_answered = true;
        if !matches!(response, Err(CallError::ConnectionLost)) {
            self.connection.last_message.record();
        }
        Poll::Ready(response)
    }
}

impl Drop for RawTransactionCall {
    fn drop(&mut self) {
        self.connection.in_flight.fetch_sub(1, Relaxed);
        if !self.is_answered {
            self.connection.count_unanswered();
        }
    }
}

/// Converts an error of alloy.
fn call_error(error: TransportError) -> CallError {
    match error {
        RpcError::ErrorResp(error) => {
            CallError::Rpc { code: error.code, message: clip(&error.message, 200) }
        }
        RpcError::DeserError { text, .. } => CallError::Unreadable { response: clip(&text, 120) },
        _ => CallError::ConnectionLost,
    }
}

/// The notifications of a subscription, with the time at which each was read from the socket.
pub(crate) struct Notifications {
    subscription: RawSubscription,
    meter: Arc<Meter>,
}

impl Notifications {
    fn new(subscription: RawSubscription, buffer: usize) -> Self {
        let meter = Meter::for_subscription(buffer, &subscription.rx);
        Self { subscription, meter: meter.into() }
    }

    /// Returns the meter, which counts the notifications that were read and that wait.
    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Returns whether no notification waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.subscription.rx.is_empty()
    }

    /// Waits for the next notification. Returns `None` after the last one of a connection that has
    /// ended.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Notification> {
        self.meter.sample();
        match self.subscription.recv().await {
            Ok(json) => Some(Notification::Read(json, self.meter.take())),
            Err(RecvError::Lagged(count)) => {
                self.meter.skip(count);
                Some(Notification::Lagged)
            }
            Err(RecvError::Closed) => None,
        }
    }
}
