//! One connection to a node: calls with a time-out, raw transactions, subscriptions.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
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
    End, Meter, Notification, clip,
    connector::{Connector, connect_error},
};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
};

/// A connection to a node. It ends when the node closes it, or by [`Self::end`]; dropping it closes it.
pub(crate) struct Connection {
    client: RpcClient,
    pub(crate) ended: Arc<End>,
    opened: Instant,
    /// When the latest message came, in milliseconds since `opened`. Relaxed: a time, and nothing else
    /// is published with it.
    heard_ms: AtomicU64,
    /// Raw transactions that are requested and not answered. Relaxed, as a count of its own.
    in_flight: Arc<AtomicUsize>,
}

impl Connection {
    /// Opens a connection. The backend task of alloy runs on the current runtime.
    pub(crate) async fn open(endpoint: &Endpoint, limits: &Limits) -> Result<Self, ConnectError> {
        Self::open_for(endpoint, limits.max_frame_bytes, limits.ping_timeout).await
    }

    /// As [`Self::open`], with other limits: for an answer of which the size is not that of a call.
    pub(crate) async fn open_for(
        endpoint: &Endpoint,
        max_message_bytes: usize,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let ended = Arc::<End>::default();
        let connector =
            Connector { endpoint: endpoint.clone(), ended: Arc::clone(&ended), max_message_bytes };
        let client = match timeout(limit, RpcClient::connect_pubsub(connector)).await {
            Ok(client) => client.map_err(|error| connect_error(endpoint, error))?,
            Err(_) => return Err(ConnectError::no_answer(endpoint, "connect", limit)),
        };
        Ok(Self {
            client,
            ended,
            opened: Instant::now(),
            heard_ms: AtomicU64::new(0),
            in_flight: Arc::default(),
        })
    }

    /// Ends the connection for this reason, unless it has ended already. alloy closes the socket when
    /// the last user of the connection has dropped it.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason);
    }

    /// Notes that a message came.
    pub(crate) fn heard(&self) {
        self.heard_ms.store(self.opened.elapsed().as_millis() as u64, Relaxed);
    }

    /// When the latest message came.
    pub(crate) fn heard_at(&self) -> Instant {
        self.opened + Duration::from_millis(self.heard_ms.load(Relaxed))
    }

    /// How many raw transactions are requested and not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Calls a method, and waits at most `limit` for the response.
    ///
    /// # Cancel safety
    /// Cancel safe; the node still answers, and alloy discards the answer.
    pub(crate) async fn call(
        &self,
        method: &'static str,
        params: impl RpcSend,
        limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        let call = self.client.request::<_, Box<RawValue>>(method, params);
        self.within(limit, call).await
    }

    /// Requests the raw form of a pending transaction (`eth_getRawTransactionByHash`), which is empty on
    /// geth and absent elsewhere if the node does not have it. Without a time-out.
    pub(crate) fn raw_transaction(self: &Arc<Self>, hash: B256) -> RawTransactionCall {
        self.in_flight.fetch_add(1, Relaxed);
        RawTransactionCall {
            call: self.client.request(RAW_TRANSACTION, (hash,)),
            connection: Arc::clone(self),
        }
    }

    /// Subscribes with a broadcast buffer of `buffer` notifications.
    pub(crate) async fn subscribe(
        &self,
        params: impl RpcSend,
        buffer: usize,
        limit: Duration,
    ) -> Result<Notifications, CallError> {
        // The default is 16. alloy reads it when the request is sent, and keeps it for later ones.
        self.client.set_channel_size(buffer);
        assert_eq!(self.client.channel_size(), buffer, "alloy takes the size of the buffer");
        let mut call = self.client.request::<_, B256>("eth_subscribe", params);
        call.set_is_subscription();
        let local_id = self.within(limit, call).await?;
        let frontend = self.client.pubsub_frontend().ok_or(CallError::ConnectionLost)?;
        let subscription = frontend.get_subscription(local_id).await.map_err(call_error)?;
        Ok(Notifications::new(subscription, buffer))
    }

    async fn within<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, CallError> {
        tokio::select! {
            // A response that has come counts, whatever has happened since.
            biased;
            response = call => {
                let response = response.map_err(call_error);
                if !matches!(response, Err(CallError::ConnectionLost)) {
                    self.heard();
                }
                response
            }
            _ = self.ended.wait() => Err(CallError::ConnectionLost),
            () = tokio::time::sleep(limit) => Err(CallError::Timeout(limit)),
        }
    }
}

/// The method with which a transaction is requested.
pub(super) const RAW_TRANSACTION: &str = "eth_getRawTransactionByHash";

/// A request for a raw transaction. Moving it does not disturb it, so it can be kept after a time-out.
pub(crate) struct RawTransactionCall {
    call: RpcCall<(B256,), Option<Bytes>>,
    connection: Arc<Connection>,
}

impl Future for RawTransactionCall {
    type Output = Result<Option<Bytes>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(Pin::new(&mut self.call).poll(context)).map_err(call_error);
        if !matches!(response, Err(CallError::ConnectionLost)) {
            self.connection.heard();
        }
        Poll::Ready(response)
    }
}

impl Drop for RawTransactionCall {
    fn drop(&mut self) {
        self.connection.in_flight.fetch_sub(1, Relaxed);
    }
}

fn call_error(error: TransportError) -> CallError {
    match error {
        RpcError::ErrorResp(error) => {
            CallError::Rpc { code: error.code, message: clip(&error.message, 200) }
        }
        RpcError::DeserError { text, .. } => CallError::Unreadable { said: clip(&text, 120) },
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
        let meter = Meter::of_subscription(buffer, &subscription.rx);
        Self { subscription, meter: meter.into() }
    }

    /// Counts what is read and what waits.
    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.subscription.rx.is_empty()
    }

    /// Waits for the next notification. `None` after the last one of a connection that has ended.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Notification> {
        self.meter.look();
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
