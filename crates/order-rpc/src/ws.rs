//! WebSockets: each message is a request of its own, through the same gate.
//!
//! Not jsonrpsee's: it takes in messages without end while their answers are not read, and closes
//! without a word at its caps.

use crate::{
    admission::{Admission, Rpc, http_no, into_text, signature_no},
    body::Share,
    config::SignatureMode,
    reply::{No, Reason},
    signature::SignatureError,
};
use bytes::Bytes;
use futures::{
    FutureExt, SinkExt, StreamExt,
    stream::{FuturesUnordered, SplitSink},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use jsonrpsee::server::HttpBody;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, interval_at, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The tasks of connections, and the word to end them.
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

/// Answers the handshake and starts the connection's task.
pub(crate) fn upgrade<S: Rpc, B>(
    admission: Admission<S>,
    mut request: Request<B>,
) -> Result<Response<HttpBody>, No> {
    let intake = &admission.intake;
    if intake.drain.is_closed() {
        let refusal = intake.host.gate.refuse_closed(std::time::Instant::now());
        return Err(No::refusal(&refusal));
    }
    if intake.config.signatures == SignatureMode::Required {
        // Messages have no headers, so none can be signed.
        return Err(signature_no(SignatureError::Missing));
    }
    let accept = accept_key(request.headers())?;
    let Ok(place) = intake.websockets.clone().try_acquire_owned() else {
        return Err(intake.later(Reason::WebSockets, "too many WebSockets are open"));
    };
    let upgrading = hyper::upgrade::on(&mut request);
    let connections = admission.connections.clone();
    let end = connections.end.clone();
    connections.tasks.spawn(async move {
        admission.intake.metrics.websockets.increment(1);
        let metrics = admission.intake.clone();
        serve(admission, upgrading, end, place).await;
        metrics.metrics.websockets.decrement(1);
    });
    let mut response = Response::new(HttpBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, No> {
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    match (version, key) {
        (Some(b"13"), Some(key)) => {
            let accept = derive_accept_key(key.as_bytes());
            Ok(HeaderValue::from_str(&accept).expect("base64 is a valid header value"))
        }
        _ => Err(http_no(
            StatusCode::BAD_REQUEST,
            "a WebSocket needs Sec-WebSocket-Version: 13 and Sec-WebSocket-Key".to_owned(),
        )),
    }
}

async fn serve<S: Rpc>(
    admission: Admission<S>,
    upgrading: OnUpgrade,
    end: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let config = &admission.intake.config;
    let upgraded = tokio::select! {
        // A client that never finishes the handshake ends with its connection or with us.
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
    let ended = talk(&admission, socket, end).await;
    tracing::trace!(%ended, "a WebSocket ended");
}

/// Why a conversation ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("closed")]
    Closed,
    #[error("broken: {0}")]
    Broken(#[from] Error),
    #[error("it took no answer, or said nothing, for too long")]
    Silent,
}

async fn talk<S: Rpc>(admission: &Admission<S>, socket: Socket, end: CancellationToken) -> Ended {
    let config = &admission.intake.config;
    let (mut sink, mut stream) = socket.split();
    let mut answers = FuturesUnordered::new();
    let start = Instant::now() + config.ping_interval;
    let mut pings = interval_at(start, config.ping_interval);
    let (mut heard, mut ending) = (true, false);
    let reason = loop {
        if ending && answers.is_empty() {
            break Ended::Closed;
        }
        // In this order: answers leave before more is read, so a client that does not read its
        // answers is not read from. No branch takes an item before it is ready.
        tokio::select! {
            biased;
            Some(answer) = answers.next() => {
                let answer = Message::text::<String>(answer);
                if let Err(ended) = send(&mut sink, answer, config.send_timeout).await {
                    return ended;
                }
            }
            () = end.cancelled(), if !ending => ending = true,
            _ = pings.tick() => {
                if !std::mem::take(&mut heard) {
                    break Ended::Silent;
                }
                let ping = Message::Ping(Bytes::new());
                if let Err(ended) = send(&mut sink, ping, config.send_timeout).await {
                    return ended;
                }
            }
            message = stream.next(), if !ending => {
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
                    Some(Err(error)) => return too_large(admission, error),
                };
                let busy = answers.len() >= config.max_in_flight_per_websocket;
                answers.push(answer(admission, body, busy).boxed());
            }
        }
    };
    // A close frame is a courtesy.
    let _ = timeout(config.send_timeout, sink.close()).await;
    reason
}

fn too_large<S>(admission: &Admission<S>, error: Error) -> Ended {
    if matches!(error, Error::Capacity(_)) {
        admission.intake.metrics.count(Reason::BodyTooLarge);
    }
    Ended::Broken(error)
}

async fn send(
    sink: &mut SplitSink<Socket, Message>,
    message: Message,
    within: std::time::Duration,
) -> Result<(), Ended> {
    timeout(within, sink.send(message)).await.map_err(|_| Ended::Silent)?.map_err(Ended::Broken)
}

async fn answer<S: Rpc>(admission: &Admission<S>, body: Bytes, busy: bool) -> String {
    match serve_message(admission, body.clone(), busy).await {
        Ok(response) => into_text(response).await,
        Err(no) => {
            admission.intake.metrics.count(no.reason);
            no.json_with_id(id_of(&body))
        }
    }
}

async fn serve_message<S: Rpc>(
    admission: &Admission<S>,
    body: Bytes,
    busy: bool,
) -> Result<Response<HttpBody>, No> {
    let intake = &admission.intake;
    if busy {
        let message = "too many requests are in flight on this WebSocket";
        return Err(intake.later(Reason::WebSocketInFlight, message));
    }
    let (_active, permit) = admission.enter()?;
    let mut share = Share::new(&intake.buffered);
    if !share.try_add(body.len()) {
        return Err(intake.later(Reason::BufferedBytes, "too much is being read"));
    }
    admission.serve(body, permit, None).await
}

/// The id of a single request, so that its caller knows which was refused.
fn id_of(body: &[u8]) -> Value {
    #[derive(Deserialize)]
    struct HasId {
        #[serde(default)]
        id: Value,
    }
    match serde_json::from_slice::<HasId>(body) {
        Ok(HasId { id: id @ (Value::Number(_) | Value::String(_)) }) => id,
        _ => Value::Null,
    }
}
