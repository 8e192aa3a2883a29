//! Opens and supervises the request connections of a source.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    Greeting, RequestConnection, open_ws,
    set::{OpenConnection, RequestSet, Requests},
};
use crate::{
    announce::subscription::dial_on_chain,
    config::Endpoint,
    connection::{no_socket, open_ipc, open_ws_stream, read_refusal},
    error::{ConnectError, LossReason},
    fetch::{AnswerReader, FetchContext},
    sink::TransactionSink,
    source::status::SourceShared,
};

/// Opens all request connections of a source.
pub(crate) async fn dial_requests<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    known: bool,
) -> Result<Opened, ConnectError> {
    let config = &context.config;
    let calls = Arc::new(dial_on_chain(context, index, known).await?);
    let mut tasks = JoinSet::new();
    let mut fetches = Vec::new();
    let mut busy_poll_cores = config.busy_poll_cores.iter().cycle();
    for _ in 0..config.request_connections {
        let core = busy_poll_cores.next().copied();
        fetches.push(dial_fetches(context, index, core, &mut tasks).await?);
    }
    let deferrable = config.deferrable_connections;
    let set = Arc::new(RequestSet { calls, fetches: fetches.into(), deferrable });
    Ok(Opened { set, tasks })
}

/// Request connections with the tasks that write the bytes for which their sockets had no room.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) set: Arc<RequestSet>,
    tasks: JoinSet<()>,
}

async fn dial_fetches<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    busy_poll_core: Option<usize>,
    tasks: &mut JoinSet<()>,
) -> Result<OpenConnection, ConnectError> {
    let config = &context.config;
    let endpoint = &config.sources[index];
    let answers = AnswerReader::new(context);
    let thread = |source: io::Error| ConnectError::Io {
        endpoint: endpoint.to_string(),
        source: source.into(),
    };
    match endpoint {
        Endpoint::Ipc(path) => {
            let mut stream = open_ipc(path).await?;
            greet(&mut stream, endpoint, config.ping_timeout).await?;
            let stream = stream.into_std().map_err(thread)?;
            // Its reader has a thread of its own.
            stream.set_nonblocking(false).map_err(thread)?;
            let connection = Arc::new(RequestConnection::over_ipc(stream));
            let max_frame_bytes = config.max_frame_bytes;
            connection.read_ipc(answers, max_frame_bytes, busy_poll_core).map_err(thread)?;
            let writer = Arc::clone(&connection);
            tasks.spawn(async move {
                if let Err(error) = writer.flush_when_writable().await {
                    writer.end(LossReason::from_io(&error));
                }
            });
            Ok(OpenConnection(connection))
        }
        Endpoint::Ws(url) => {
            let stream = open_ws_stream(url, config.max_frame_bytes, config.ping_timeout).await?;
            let (connection, pump) =
                open_ws(stream, answers, config.max_frame_bytes).map_err(thread)?;
            tasks.spawn(pump);
            Ok(OpenConnection(connection))
        }
        Endpoint::InProcess(_) => Err(no_socket(endpoint)),
    }
}

/// Waits for the answer to one request: a node at its limit of connections accepts one more, sends
/// an error and closes it, which must not count as a connection that was up.
async fn greet(
    stream: &mut UnixStream,
    endpoint: &Endpoint,
    limit: Duration,
) -> Result<(), ConnectError> {
    let mut greeting = Greeting::new();
    let exchange = async {
        let io = |error: io::Error| LossReason::from_io(&error);
        stream.write_all(&greeting.request()).await.map_err(io)?;
        while !greeting.is_answered() {
            let count = stream.read(greeting.spare()).await.map_err(io)?;
            if count == 0 {
                return Err(LossReason::Closed);
            }
            greeting.read(count)?;
        }
        Ok(())
    };
    let name = || endpoint.to_string();
    match timeout(limit, exchange).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(LossReason::Garbage(said))) => {
            Err(ConnectError::NotJsonRpc { endpoint: name(), said })
        }
        Ok(Err(LossReason::Io(kind))) => {
            Err(ConnectError::Io { endpoint: name(), source: io::Error::from(kind).into() })
        }
        Ok(Err(_)) => match read_refusal(endpoint).await {
            Some(said) => Err(ConnectError::NotJsonRpc { endpoint: name(), said }),
            None => Err(ConnectError::ClosedAtOnce { endpoint: name() }),
        },
        Err(_) => Err(ConnectError::NoAnswer {
            endpoint: name(),
            method: Greeting::METHOD,
            timeout: limit,
        }),
    }
}

/// Times requests out and pings silent connections until one of the set is lost; then closes the
/// others, passes the requests in flight on, and returns the reason.
pub(crate) async fn watch_requests<S: TransactionSink>(
    context: Arc<FetchContext<S>>,
    index: usize,
    shared: Arc<SourceShared>,
    opened: Opened,
) -> LossReason {
    let Opened { set, tasks: _tasks } = opened;
    // On every path, also when the source is stopped meanwhile.
    let hands_on = HandsOn { context: &context, index, set: &set };
    let config = &context.config;
    let grain = config.fetch_timeout / 16;
    let mut ticks = interval(grain.clamp(Duration::from_millis(1), Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sweep = async {
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let mut limit = config.ping_timeout;
            // While it lists its pool, a node may be slow with everything.
            if shared.is_listing() {
                limit += config.snapshot_timeout;
            }
            for connection in &set.fetches {
                while let Some((request, _)) = connection.pop_expired(config.fetch_timeout, now) {
                    context.expired(request);
                }
                connection.supervise(config.ping_interval, limit, now);
                let late = connection.take_late_answers();
                if late > 0 {
                    context.tally.metrics.late_answers.increment(late);
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

struct HandsOn<'a, S: TransactionSink> {
    context: &'a Arc<FetchContext<S>>,
    index: usize,
    set: &'a Arc<RequestSet>,
}

impl<S: TransactionSink> Drop for HandsOn<'_, S> {
    fn drop(&mut self) {
        self.context.requests.remove(self.index, &Requests::Node(Arc::clone(self.set)));
        self.set.end(&LossReason::Closed);
        for connection in &self.set.fetches {
            for request in connection.take_all() {
                self.context.lost(request);
            }
        }
    }
}
