//! Opens the request connections of a source, and hands on what was in flight at their end.

use std::{future::pending, sync::Arc, time::Duration};

use alloy_primitives::B256;
use futures::FutureExt as _;
use tokio::time::{interval, timeout};

use super::{
    client::RequestConnection,
    reader::Responses,
    set::{OpenConnection, Opener, RequestConnections, RequestSet, Requests},
};
use crate::{
    config::Endpoint,
    connection::{Connection, connect_error, open_socket},
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
    settings::Settings,
    sync::OnDrop,
};

/// Opens all request connections of a source beside the one for calls; `responses` makes the reader
/// of each.
pub(crate) async fn open<T: Send + 'static, R: Responses<T>>(
    settings: &Settings,
    endpoint: &Endpoint,
    calls: Connection,
    responses: impl Fn() -> R + Send + Sync + 'static,
) -> Result<RequestSet<T>, ConnectError> {
    let (limits, endpoint) = (settings.limits.clone(), endpoint.clone());
    let opener: Opener<T> = Box::new(move || {
        let (limits, endpoint, responses) = (limits.clone(), endpoint.clone(), responses());
        async move { open_one(&endpoint, &limits, responses).await }.boxed()
    });
    let mut fetches = Vec::new();
    for _ in 0..settings.config.request_connections {
        fetches.push(opener().await?);
    }
    let deferrable = settings.deferrable_connections();
    Ok(RequestSet { calls: calls.into(), fetches: fetches.into(), deferrable, opener })
}

async fn open_one<T: Send + 'static>(
    endpoint: &Endpoint,
    limits: &Limits,
    responses: impl Responses<T>,
) -> Result<OpenConnection<T>, ConnectError> {
    let socket = open_socket(endpoint, limits.max_frame_bytes, limits.ping_timeout, None).await?;
    let opened = RequestConnection::open(socket, responses, limits)
        .map(OpenConnection)
        .map_err(|error| ConnectError::io(endpoint, error))?;
    match opened.greet(limits.ping_timeout).await {
        Ok(()) => Ok(opened),
        Err(error) => Err(connect_error(endpoint, "eth_blockNumber", error, &opened.ended).await),
    }
}

/// How often a request over a connection of its own is looked at.
const ALONE_TICK: Duration = Duration::from_millis(10);

impl<T: Send + 'static> Requests<T> {
    /// Waits until one of the connections is lost; then closes the others and returns the reason. `on_failure` gets
    /// the requests that were in flight.
    pub(crate) async fn watch(
        self: Arc<Self>,
        connections: &RequestConnections<T>,
        index: usize,
        on_failure: impl Fn(T, CallError) + Send + Sync,
    ) -> LossReason {
        // On every path, also when the source is stopped meanwhile.
        let _hands_on = OnDrop(|| {
            connections.remove(index, &self);
            if let Self::Node(set) = &*self {
                set.hand_on(&on_failure);
            }
        });
        match &*self {
            Self::Node(set) => set.closed().await,
            Self::InProcess(_) => pending().await,
        }
    }
}

impl<T: Send + 'static> RequestSet<T> {
    fn hand_on(&self, on_failure: impl Fn(T, CallError)) {
        let reason = |connection: &OpenConnection<T>| connection.ended.reason();
        // Before all are ended.
        let reasons: Vec<_> = self.fetches.iter().map(reason).collect();
        self.calls.kill(LossReason::Closed);
        for (connection, reason) in self.fetches.iter().zip(reasons) {
            let is_suspect = reason.is_some_and(|reason| reason.is_by_peer());
            let error = if is_suspect { CallError::Suspect } else { CallError::ConnectionLost };
            connection.end(LossReason::Closed);
            for request in connection.take_all() {
                on_failure(request, error.clone());
            }
        }
    }

    /// Sends a request over a connection of its own, with whose end nothing else is lost, and waits
    /// until the response or the time-out is processed.
    ///
    /// # Errors
    /// The request, if there is no response: [`CallError::Suspect`] if the node has ended the
    /// connection, a time-out if none could be opened.
    pub(crate) async fn request_alone(
        &self,
        limit: Duration,
        hash: &B256,
        request: T,
    ) -> Result<(), (T, CallError)> {
        let late = CallError::Timeout(limit);
        let opening = (self.opener)();
        let Ok(Ok(connection)) = timeout(limit, opening).await else {
            return Err((request, late));
        };
        connection.submit(hash, request).map_err(|request| (request, late))?;
        connection.flush();
        let mut ticks = interval(ALONE_TICK);
        loop {
            tokio::select! {
                // The order is irrelevant: a request is in flight or is processed.
                _ = connection.ended.wait() => break,
                _ = ticks.tick() => {
                    if connection.in_flight() == 0 {
                        return Ok(());
                    }
                }
            }
        }
        connection.take_all().pop().map_or(Ok(()), |request| Err((request, CallError::Suspect)))
    }
}
