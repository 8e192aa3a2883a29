//! WebSockets: each message is a separate request that passes the same gate.

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    FutureExt, SinkExt, StreamExt,
    future::BoxFuture,
    stream::{FuturesUnordered, SplitSink},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    body::Held,
    config::SignatureMode,
    context::RpcContext,
    dispatch::signature_error,
    envelope,
    metrics::OpenCount,
    peers::Peer,
    reply::{ErrorResponse, Reason},
    route::{Connection, http_error},
    signature::SignatureError,
};

/// The tasks of all connections, and the token that ends them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    pub(crate) tasks: TaskTracker,
    pub(crate) end: CancellationToken,
}

/// Bytes that a WebSocket buffers for reading when idle: a raw transaction fits.
const READ_BUFFER_BYTES: usize = 4_096;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(crate) fn is_upgrade<B>(request: &Request<B>) -> bool {
    let has = |name, word: &str| {
        let values = request.headers().get_all(name).iter();
        let mut words =
            values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        words.any(|value| value.trim().eq_ignore_ascii_case(word))
    };
    has(header::UPGRADE, "websocket") && has(header::CONNECTION, "upgrade")
}

/// Responds to the handshake and starts the connection's task.
pub(crate) fn upgrade<B>(
    connection: Connection,
    mut request: Request<B>,
) -> Result<Response<Full<Bytes>>, ErrorResponse> {
    let context = &connection.context;
    if context.active.is_closed() {
        let refusal = context.host.gate.refuse_closed(std::time::Instant::now());
        return Err(ErrorResponse::refusal(&refusal));
    }
    if context.config.signatures == SignatureMode::Required {
        // Messages have no headers, so none can be signed.
        return Err(signature_error(SignatureError::Missing));
    }
    let accept = accept_key(request.headers())?;
    let caller = connection.caller(request.headers());
    let Some(of_peer) = caller.websockets.take(1) else {
        let message = "too many WebSockets from this address are open";
        return Err(context.retry_later(Reason::PeerWebSockets, message));
    };
    let Some(of_all) = context.websockets.take(1) else {
        return Err(context.retry_later(Reason::WebSockets, "too many WebSockets are open"));
    };
    let upgrading = hyper::upgrade::on(&mut request);
    let tasks = connection.connections.tasks.clone();
    tasks.spawn(async move {
        let _count = OpenCount::new(&connection.context.metrics.websockets);
        serve(&connection, &caller, upgrading).await;
        drop((of_peer, of_all));
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, ErrorResponse> {
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    match (version, key) {
        (Some(b"13"), Some(key)) => {
            let accept = derive_accept_key(key.as_bytes());
            Ok(HeaderValue::from_str(&accept).expect("base64 is a valid header value"))
        }
        _ => Err(http_error(
            StatusCode::BAD_REQUEST,
            "a WebSocket needs Sec-WebSocket-Version: 13 and Sec-WebSocket-Key".to_owned(),
        )),
    }
}

async fn serve(connection: &Connection, caller: &Peer, upgrading: OnUpgrade) {
    let (config, end) = (&connection.context.config, &connection.connections.end);
    let upgraded = tokio::select! {
        // A client that never finishes the handshake ends with its connection or at the shutdown.
        upgraded = timeout(config.header_timeout, upgrading) => upgraded,
        () = end.cancelled() => return,
    };
    let Ok(Ok(upgraded)) = upgraded else { return };
    let limits = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(config.max_message_bytes))
        .max_frame_size(Some(config.max_message_bytes));
    let io = TokioIo::new(upgraded);
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(limits)).await;
    let ended = talk(&connection.context, caller, socket, end).await;
    tracing::trace!(%ended, "a WebSocket ended");
}

/// Why a WebSocket ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("closed")]
    Closed,
    #[error("broken: {0}")]
    Broken(#[from] Error),
    #[error("it read no response, or sent nothing, for too long")]
    Silent,
}

async fn talk(
    context: &Arc<RpcContext>,
    caller: &Peer,
    socket: Socket,
    end: &CancellationToken,
) -> Ended {
    let config = &context.config;
    let max_in_flight = config.max_in_flight_per_websocket;
    let (sink, mut stream) = socket.split();
    let mut answers = Answers {
        sink,
        within: config.send_timeout,
        open: FuturesUnordered::new(),
        finished: VecDeque::new(),
    };
    let start = Instant::now() + config.ping_interval;
    let mut pings = interval_at(start, config.ping_interval);
    let (mut heard, mut ending) = (true, false);
    let reason = loop {
        // Responses are sent before more is read: from a client that does not read its responses,
        // nothing is read.
        while let Some((answer, _held)) = answers.finished.pop_front() {
            if let Err(ended) = answers.send(Message::text(answer)).await {
                return ended;
            }
        }
        if ending && answers.open.is_empty() {
            break Ended::Closed;
        }
        // In this order, for the same reason. No branch consumes an item before it is ready.
        tokio::select! {
            biased;
            Some(answer) = answers.open.next() => answers.finished.push_back(answer),
            () = end.cancelled(), if !ending => ending = true,
            _ = pings.tick() => {
                if !std::mem::take(&mut heard) {
                    break Ended::Silent;
                }
                if let Err(ended) = answers.send(Message::Ping(Bytes::new())).await {
                    return ended;
                }
            }
            // One refusal above the limit has to be sent before the next message is read.
            message = stream.next(), if !ending && answers.open.len() <= max_in_flight => {
                heard = true;
                let body = match message {
                    None | Some(Ok(Message::Close(_))) => {
                        ending = true;
                        continue;
                    }
                    Some(Ok(Message::Text(text))) => Bytes::from(text),
                    Some(Ok(Message::Binary(bytes))) => bytes,
                    // tungstenite answers pings itself.
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return too_large(context, error),
                };
                let busy = answers.open.len() >= max_in_flight;
                answers.open.push(answer(context, caller, body, busy).boxed());
            }
        }
    };
    let Answers { mut sink, open, .. } = answers;
    // No client receives these responses any more.
    drop(open);
    // A client that does not read the close frame does not matter.
    let _ = timeout(config.send_timeout, sink.close()).await;
    reason
}

fn too_large(context: &RpcContext, error: Error) -> Ended {
    if matches!(error, Error::Capacity(_)) {
        context.metrics.count(Reason::BodyTooLarge);
    }
    Ended::Broken(error)
}

/// A response, and its bytes until it is sent.
type HeldAnswer = (String, Option<Held>);

/// The responses on one WebSocket.
struct Answers<'a> {
    sink: SplitSink<Socket, Message>,
    /// Time to send each message.
    within: Duration,
    /// Requests in progress: at most [`max_in_flight_per_websocket`] and a refusal.
    ///
    /// [`max_in_flight_per_websocket`]: crate::OrderRpcConfig::max_in_flight_per_websocket
    open: FuturesUnordered<BoxFuture<'a, HeldAnswer>>,
    /// Responses to be sent. Each was in `open`, and nothing is read before all of them are sent,
    /// so their number has the same bound as `open`.
    finished: VecDeque<HeldAnswer>,
}

impl Answers<'_> {
    /// Sends a message. The requests are polled meanwhile: otherwise a request that was granted a
    /// permit would hold it unused for as long as the client does not read.
    async fn send(&mut self, message: Message) -> Result<(), Ended> {
        let mut sending = pin!(timeout(self.within, self.sink.send(message)));
        loop {
            // The order is irrelevant: neither branch consumes an item before it is ready.
            tokio::select! {
                sent = sending.as_mut() => {
                    return sent.map_err(|_| Ended::Silent)?.map_err(Ended::Broken);
                }
                Some(answer) = self.open.next() => self.finished.push_back(answer),
            }
        }
    }
}

async fn answer(context: &Arc<RpcContext>, caller: &Peer, body: Bytes, busy: bool) -> HeldAnswer {
    match serve_message(context, caller, &body, busy).await {
        Ok((answer, held)) => (answer, Some(held)),
        // The id tells the caller which request was refused.
        Err(error) => (context.refuse(error, &envelope::id_of(&body)).text, None),
    }
}

async fn serve_message(
    context: &Arc<RpcContext>,
    caller: &Peer,
    body: &Bytes,
    busy: bool,
) -> Result<(String, Held), ErrorResponse> {
    if busy {
        let message = "too many requests are in flight on this WebSocket";
        return Err(context.retry_later(Reason::WebSocketInFlight, message));
    }
    let mut entered = context.enter(caller, false)?;
    let mut held = Held::new(context, caller);
    held.add(body.len(), context)?;
    let answer = context.serve(body.clone(), None, &mut entered).await?;
    held.response(answer.text.len());
    Ok((answer.text, held))
}
