//! Opens and supervises the request connections of a source.

#![expect(clippy::arithmetic_side_effects, reason = "times of our own clock")]

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use futures::FutureExt as _;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    client::{RequestConnection, Responses},
    set::{OpenConnection, Opener, RequestConnections, RequestSet, Requests},
    slab::NotInserted,
    ws,
};
use crate::{
    config::Endpoint,
    connection::{
        BlockingSocket, Connection, closed_too_early, no_socket, open_ipc, open_ws_stream,
    },
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
    settings::Settings,
};

/// Request connections with the tasks that write the bytes for which their sockets had no room.
#[derive(Debug)]
pub(crate) struct Opened<T: Send + 'static> {
    pub(crate) set: Arc<RequestSet<T>>,
    tasks: JoinSet<()>,
}

/// Opens all request connections of a source beside the one for calls; `responses` makes the reader
/// of each.
pub(crate) async fn open<T: Send + 'static, R: Responses<T>>(
    settings: &Arc<Settings>,
    endpoint: &Endpoint,
    calls: Connection,
    responses: impl Fn() -> R + Send + Sync + 'static,
) -> Result<Opened<T>, ConnectError> {
    let mut tasks = JoinSet::new();
    let mut fetches = Vec::new();
    for _ in 0..settings.config.request_connections {
        fetches.push(open_one(endpoint, &settings.limits, responses(), &mut tasks).await?);
    }
    let deferrable = settings.deferrable_connections();
    let (settings, endpoint) = (Arc::clone(settings), endpoint.clone());
    let opener = Opener(Box::new(move || {
        let (settings, endpoint, responses) =
            (Arc::clone(&settings), endpoint.clone(), responses());
        async move {
            let mut tasks = JoinSet::new();
            let opened = open_one(&endpoint, &settings.limits, responses, &mut tasks).await?;
            Ok((opened, tasks))
        }
        .boxed()
    }));
    let set = RequestSet { calls: Arc::new(calls), fetches: fetches.into(), deferrable, opener };
    Ok(Opened { set: Arc::new(set), tasks })
}

async fn open_one<T: Send + 'static>(
    endpoint: &Endpoint,
    limits: &Limits,
    responses: impl Responses<T>,
    tasks: &mut JoinSet<()>,
) -> Result<OpenConnection<T>, ConnectError> {
    let failed = |error: io::Error| ConnectError::io(endpoint, error);
    let opened = match endpoint {
        Endpoint::Ipc(path) => {
            let stream = open_ipc(path).await?.into_std();
            let socket = stream.and_then(BlockingSocket::new).map_err(failed)?;
            let opened = OpenConnection(Arc::new(RequestConnection::over_ipc(socket)));
            opened.0.read_ipc(responses, limits.max_frame_bytes).map_err(failed)?;
            let writer = Arc::clone(&opened.0);
            tasks.spawn(async move {
                if let Err(error) = writer.flush_when_writable().await {
                    writer.end(LossReason::from_io(&error));
                }
            });
            opened
        }
        Endpoint::Ws(url) => {
            let stream = open_ws_stream(url, limits.max_frame_bytes, limits.ping_timeout).await?;
            let (connection, pump) =
                ws::open(stream, responses, limits.max_frame_bytes).map_err(failed)?;
            tasks.spawn(pump);
            OpenConnection(connection)
        }
        Endpoint::InProcess(_) => return Err(no_socket(endpoint)),
    };
    match opened.greet(limits.ping_timeout).await {
        Ok(()) => Ok(opened),
        Err(Some(reason)) => Err(closed_too_early(endpoint, reason).await),
        Err(None) => Err(ConnectError::NoAnswer {
            endpoint: endpoint.to_string(),
            method: "eth_blockNumber",
            timeout: limits.ping_timeout,
        }),
    }
}

impl<T: Send + 'static> Opened<T> {
    /// Times requests out and pings silent connections until one of the set is lost; then closes the
    /// others and returns the reason. `on_failure` gets the requests that timed out or were in flight, `on_late` the
    /// number of responses that came after their requests had timed out, or that match no request.
    pub(crate) async fn watch(
        self,
        limits: &Limits,
        connections: &RequestConnections<T>,
        index: usize,
        on_failure: &impl Fn(T, CallError),
        on_late: impl Fn(u64),
        is_listing: impl Fn() -> bool,
    ) -> LossReason {
        let Self { set, tasks: _tasks } = self;
        // On every path, also when the source is stopped meanwhile.
        let hands_on = HandsOn { connections, index, set: &set, on_failure };
        let timeout = limits.fetch_timeout;
        let grain = timeout / 16;
        let mut ticks = interval(grain.clamp(Duration::from_millis(1), Duration::from_millis(100)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let sweep = async {
            loop {
                ticks.tick().await;
                let now = Instant::now();
                let mut limit = limits.ping_timeout;
                // While it lists its pool, a node may be slow with everything.
                if is_listing() {
                    limit += limits.snapshot_timeout;
                }
                for connection in &set.fetches {
                    while let Some((request, _)) = connection.pop_expired(timeout, now) {
                        on_failure(request, CallError::Timeout(timeout));
                    }
                    connection.supervise(limits.ping_interval, limit, now);
                    let late = connection.take_late_responses();
                    if late > 0 {
                        on_late(late);
                    }
                }
            }
        };
        let reason = tokio::select! {
            reason = set.closed() => reason,
            never = sweep => never,
        };
        drop(hands_on);
        reason
    }
}

/// How often a request over a connection of its own is looked at.
const ALONE_TICK: Duration = Duration::from_millis(10);

impl<T: Send + 'static> RequestSet<T> {
    /// Sends a request over a connection of its own, with whose end nothing else is lost, and waits
    /// until the response is processed.
    ///
    /// # Errors
    /// The request, if there is no response: [`CallError::Suspect`] if the node has ended the
    /// connection, a time-out also if none could be opened.
    pub(crate) async fn request_alone(
        &self,
        timeout: Duration,
        hash: &B256,
        request: T,
    ) -> Result<(), (T, CallError)> {
        let late = CallError::Timeout(timeout);
        let opening = (self.opener.0)();
        let Ok(Ok((connection, _tasks))) = tokio::time::timeout(timeout, opening).await else {
            return Err((request, late));
        };
        match connection.submit(hash, request) {
            Ok(()) => connection.flush(),
            Err(NotInserted::Closed(request) | NotInserted::Full(request)) => {
                return Err((request, late));
            }
        }
        let mut ticks = interval(ALONE_TICK);
        loop {
            tokio::select! {
                // The order is irrelevant: a request is in the slab or its response was read.
                _ = connection.closed() => break,
                _ = ticks.tick() => {
                    if let Some((request, _)) = connection.pop_expired(timeout, Instant::now()) {
                        return Err((request, late));
                    }
                    if connection.in_flight() == 0 {
                        return Ok(());
                    }
                }
            }
        }
        connection.take_all().pop().map_or(Ok(()), |request| Err((request, CallError::Suspect)))
    }
}

struct HandsOn<'a, T: Send + 'static, F: Fn(T, CallError)> {
    connections: &'a RequestConnections<T>,
    index: usize,
    set: &'a Arc<RequestSet<T>>,
    on_failure: &'a F,
}

impl<T: Send + 'static, F: Fn(T, CallError)> Drop for HandsOn<'_, T, F> {
    fn drop(&mut self) {
        self.connections.remove(self.index, &Requests::Node(Arc::clone(self.set)));
        // Before all are ended.
        let suspects: Vec<bool> =
            self.set.fetches.iter().map(|connection| connection.is_ended_by_peer()).collect();
        self.set.end(&LossReason::Closed);
        for (connection, is_suspect) in self.set.fetches.iter().zip(suspects) {
            let error = if is_suspect { CallError::Suspect } else { CallError::ConnectionLost };
            for request in connection.take_all() {
                (self.on_failure)(request, error.clone());
            }
        }
    }
}
