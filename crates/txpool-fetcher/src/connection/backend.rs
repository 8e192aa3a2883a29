//! The task that moves bytes between a socket and alloy's pub-sub service.
//!
//! It replaces the task of alloy's IPC transport; framing ([`ReadJsonStream`]), the service and its
//! channels are still alloy's. There are four reasons. alloy's task
//!
//! - stops reading while it writes: two peers that both write and do not read deadlock, and geth meanwhile
//!   blocks all its subscribers. Ours polls the socket for reading first, for writing second and takes new
//!   requests last, and never waits in a write;
//! - reconnects by itself, in up to ten attempts, and loses what was announced in between without a signal.
//!   Ours does not reconnect, so a loss is reported at once and the source decides;
//! - hides why a connection ended. Ours distinguishes a close, invalid data, a plain-text refusal, an
//!   oversized value and an I/O error;
//! - does not report when a notification was read, which is where the measured latency starts.
//!
//! Requests are taken from alloy's unbounded queue only while less than 256 KiB wait to be written. The rest
//! stays in that queue, which is freed with the connection if the node never reads. After 64 items the task
//! yields, so that a burst on one connection does not starve the others.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Instant,
};

use alloy_json_rpc::{EthNotification, Id, PubSubItem, ResponsePayload, SubId};
use alloy_pubsub::{ConnectionHandle, ConnectionInterface, PubSubConnect};
use alloy_transport::{TransportErrorKind, TransportResult};
use alloy_transport_ipc::ReadJsonStream;
use bytes::{Buf, BytesMut};
use futures::{FutureExt, SinkExt, StreamExt};
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncRead, AsyncWriteExt, BufReader, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, tungstenite::Message};

use super::{ConnectionShared, MAX_HASH_BYTES, MAX_WAITING_BYTES, Probe};
use crate::{decode::announced_hash, error::LossReason, sync::lock};

/// Most bytes read from the socket with one call: enough for 400 announcements.
const READ_BYTES: usize = 64 * 1024;

/// Requests are taken from alloy's queue while fewer bytes than this wait to be written. If a node
/// does not read, they stay in that queue, and are dropped with the connection.
const OUTBOX_BYTES: usize = 256 * 1024;

/// Longest head that is kept until it is read; a longer one counts as malformed. anvil's heads carry
/// the hashes of their transactions: 200 kB for 3,000.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

/// Items passed on before the task yields, which takes about 0.1 ms, so that a burst on one
/// connection does not block the thread for the other ones.
const ITEMS_PER_TURN: u32 = 64;

/// An open socket.
#[derive(Debug)]
pub(super) enum Socket {
    Ipc(UnixStream),
    Ws(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
}

/// Gives one open socket to alloy's service, once.
#[derive(Debug)]
pub(super) struct Connector {
    socket: Mutex<Option<Socket>>,
    shared: Arc<ConnectionShared>,
    max_frame_bytes: usize,
}

impl Connector {
    pub(super) fn new(
        socket: Socket,
        shared: Arc<ConnectionShared>,
        max_frame_bytes: usize,
    ) -> Self {
        Self { socket: Mutex::new(Some(socket)), shared, max_frame_bytes }
    }
}

impl PubSubConnect for Connector {
    fn is_local(&self) -> bool {
        true
    }

    async fn connect(&self) -> TransportResult<ConnectionHandle> {
        // A second call would be a reconnect, which is refused: the source must see every loss.
        let socket = lock(&self.socket).take().ok_or_else(no_reconnect)?;
        let (handle, interface) = ConnectionHandle::new();
        let shared = Arc::clone(&self.shared);
        let backend = Backend { interface, shared, announcements: None, turn: 0 };
        let max_frame_bytes = self.max_frame_bytes;
        // Detached on purpose: the task ends when the service drops its end of the interface,
        // which it does when the last `Connection` is dropped, or with its runtime.
        tokio::spawn(async move {
            match socket {
                Socket::Ipc(stream) => backend.run_ipc(stream, max_frame_bytes).await,
                Socket::Ws(stream) => backend.run_ws(*stream).await,
            }
        });
        Ok(handle)
    }

    async fn try_reconnect(&self) -> TransportResult<ConnectionHandle> {
        Err(no_reconnect())
    }
}

fn no_reconnect() -> alloy_transport::TransportError {
    TransportErrorKind::non_retryable_str("the source opens new connections, not the transport")
}

struct Backend {
    interface: ConnectionInterface,
    shared: Arc<ConnectionShared>,
    /// The subscription whose notifications are announcements, and the longest one that is kept.
    announcements: Option<(SubId, usize)>,
    turn: u32,
}

impl Backend {
    async fn run_ipc(mut self, stream: UnixStream, max_frame_bytes: usize) {
        let (read, mut write) = stream.into_split();
        let tap = Arc::new(Mutex::new(Trace::new(max_frame_bytes)));
        let tapped = Tap { inner: read, trace: Arc::clone(&tap) };
        let mut frames =
            ReadJsonStream::<_, PubSubItem>::from(BufReader::with_capacity(READ_BYTES, tapped));
        let mut outbox = BytesMut::new();
        let killed = self.shared.killed.clone();
        let reason = loop {
            tokio::select! {
                // First read, then write, then take more requests: what the node has sent must
                // be read from its socket before more is requested. No branch loses an item when
                // dropped: a frame is complete when it is returned, bytes leave the outbox when
                // they are written, and a request leaves alloy's queue when it is received.
                biased;
                () = killed.cancelled() => break None,
                item = frames.next() => match item {
                    Some(item) => {
                        let read_at = {
                            let mut trace = lock(&tap);
                            trace.unframed = 0;
                            trace.read_at
                        };
                        if !self.forward(item, read_at).await {
                            break None;
                        }
                    }
                    None => break Some(lock(&tap).loss()),
                },
                written = write.write(&outbox), if !outbox.is_empty() => match written {
                    Ok(0) => break Some(LossReason::Closed),
                    Ok(count) => outbox.advance(count),
                    Err(error) => break Some(LossReason::from_io(&error)),
                },
                request = self.interface.recv_from_frontend(), if outbox.len() < OUTBOX_BYTES => {
                    let Some(request) = request else { break None };
                    outbox.extend_from_slice(request.get().as_bytes());
                    // Other requests that wait are written with the same call.
                    while outbox.len() < OUTBOX_BYTES {
                        match self.interface.recv_from_frontend().now_or_never() {
                            Some(Some(request)) => outbox.extend_from_slice(request.get().as_bytes()),
                            _ => break,
                        }
                    }
                }
            }
        };
        drop((frames, write));
        self.finish(reason).await;
    }

    async fn run_ws(mut self, stream: WebSocketStream<MaybeTlsStream<TcpStream>>) {
        let (mut write, mut read) = stream.split();
        let killed = self.shared.killed.clone();
        let mut unflushed = false;
        let reason = loop {
            tokio::select! {
                biased;
                () = killed.cancelled() => break None,
                message = read.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        let now = Instant::now();
                        match serde_json::from_str(text.as_str()) {
                            Ok(item) => if !self.forward(item, now).await { break None },
                            Err(_) => break Some(LossReason::garbage(text.as_bytes())),
                        }
                    }
                    Some(Ok(Message::Close(_))) | None => break Some(LossReason::Closed),
                    // Pings and pongs of the WebSocket protocol.
                    Some(Ok(_)) => self.shared.framed(Instant::now()),
                    Some(Err(error)) => break Some(LossReason::from_ws(&error)),
                },
                // Flushing and taking requests are separate branches, so that we read on while the
                // peer does not read. The sink keeps a message that it has begun to write when this
                // branch is dropped.
                flushed = write.flush(), if unflushed => match flushed {
                    Ok(()) => unflushed = false,
                    Err(error) => break Some(LossReason::from_ws(&error)),
                },
                request = self.interface.recv_from_frontend(), if !unflushed => {
                    let Some(request) = request else { break None };
                    // Does not wait: the sink was flushed, so it has room.
                    if let Err(error) = write.feed(Message::text(request.get().to_owned())).await {
                        break Some(LossReason::from_ws(&error));
                    }
                    unflushed = true;
                }
            }
        };
        drop((read, write));
        self.finish(reason).await;
    }

    /// Passes an item on to the service; false when the service or the connection has ended.
    async fn forward(&mut self, mut item: PubSubItem, read_at: Instant) -> bool {
        self.shared.framed(read_at);
        let mut probe = None;
        match &mut item {
            PubSubItem::Notification(notification) => {
                let bytes = notification.result.get().len();
                match &self.announcements {
                    Some((id, max_bytes)) if *id == notification.subscription => {
                        let read_times = &self.shared.read_times;
                        let is_too_much = bytes > MAX_HASH_BYTES
                            && read_times.waiting_bytes().saturating_add(bytes) > MAX_WAITING_BYTES;
                        if bytes > *max_bytes || is_too_much {
                            let of_objects = *max_bytes > MAX_HASH_BYTES;
                            notification.result = hash_alone(&notification.result, of_objects);
                        }
                        // Every announcement gets a read time, whatever it contains: the reader counts them
                        // in the same way.
                        read_times.push(read_at, notification.result.get().len());
                    }
                    _ if bytes > MAX_HEAD_BYTES => {
                        notification.result = RawValue::NULL.to_owned();
                    }
                    _ => {}
                }
            }
            PubSubItem::Response(response) => {
                let subscribed = || match &response.payload {
                    ResponsePayload::Success(id) => serde_json::from_str::<SubId>(id.get()).ok(),
                    ResponsePayload::Failure(_) => None,
                };
                let is_armed = |probe: &mut Probe| response.id == Id::Number(probe.id);
                let armed = lock(&self.shared.probe).take_if(is_armed);
                if armed.is_some() {
                    probe = subscribed().zip(armed);
                } else if response.id == Id::Number(self.shared.heads_request.load(Relaxed))
                    && let Some((announcements, _)) = &self.announcements
                    && subscribed().as_ref() == Some(announcements)
                {
                    // alloy would deliver the announcements as heads, and no announcement would ever reach
                    // its reader.
                    let said = "one id for two subscriptions".to_owned();
                    self.shared.end(LossReason::Garbage(said));
                    return false;
                }
            }
        }
        if self.interface.send_to_frontend(item).is_err() {
            return false;
        }
        if let Some((subscription, Probe { probes, max_bytes, .. })) = probe {
            self.push_probes(&subscription, probes);
            self.announcements = Some((subscription, max_bytes));
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(ITEMS_PER_TURN) {
            tokio::task::yield_now().await;
        }
        true
    }

    fn push_probes(&self, subscription: &SubId, probes: usize) {
        for _ in 0..probes {
            let item = PubSubItem::Notification(EthNotification {
                subscription: subscription.clone(),
                result: RawValue::NULL.to_owned(),
            });
            if self.interface.send_to_frontend(item).is_err() {
                // The service has ended; the next item will report it too.
                return;
            }
        }
    }

    /// Reports why the connection has ended, and stays until the service has ended too: the service would
    /// take an earlier end for a fault of the backend.
    async fn finish(mut self, reason: Option<LossReason>) {
        self.shared.end(reason.unwrap_or(LossReason::Closed));
        while self.interface.recv_from_frontend().await.is_some() {}
    }
}

/// The announcement of a hash, in place of an object's announcement; null when the object names none. Among
/// objects it is an object of a type that nobody knows: a hash would mean that the node announces no objects.
fn hash_alone(object: &RawValue, of_objects: bool) -> Box<RawValue> {
    let shortened = announced_hash(object.get().as_bytes()).map(|hash| match of_objects {
        true => format!(r#"{{"hash":"{hash}","type":"0xff"}}"#),
        false => format!("\"{hash}\""),
    });
    shortened
        .and_then(|json| RawValue::from_string(json).ok())
        .unwrap_or_else(|| RawValue::NULL.to_owned())
}

/// The last bytes that were read, from which the reason of the end is derived.
#[derive(Debug)]
struct Trace {
    read_at: Instant,
    /// Bytes since the last complete value.
    unframed: usize,
    max_frame_bytes: usize,
    ended: Option<LossReason>,
    /// The latest bytes, at most [`Self::LATEST`].
    latest: Vec<u8>,
}

impl Trace {
    const LATEST: usize = 120;

    fn new(max_frame_bytes: usize) -> Self {
        Self {
            read_at: Instant::now(),
            unframed: 0,
            max_frame_bytes,
            ended: None,
            latest: Vec::new(),
        }
    }

    fn loss(&self) -> LossReason {
        match &self.ended {
            // The bytes since the last value are no JSON: the plain text of a refusal, for example.
            Some(LossReason::Closed) if self.unframed > 0 && !self.latest.starts_with(b"{") => {
                self.garbage()
            }
            Some(reason) => reason.clone(),
            None => self.garbage(),
        }
    }

    fn garbage(&self) -> LossReason {
        LossReason::Garbage(String::from_utf8_lossy(&self.latest).into_owned())
    }
}

/// A reader that records what it reads in a [`Trace`].
struct Tap<R> {
    inner: R,
    trace: Arc<Mutex<Trace>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Tap<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, buf));
        let mut trace = lock(&self.trace);
        match &result {
            Err(error) => trace.ended = Some(LossReason::from_io(error)),
            Ok(()) => {
                let read = buf.filled().get(before..).unwrap_or_default();
                if read.is_empty() {
                    trace.ended = Some(LossReason::Closed);
                } else {
                    trace.read_at = Instant::now();
                    trace.unframed = trace.unframed.saturating_add(read.len());
                    trace.latest.clear();
                    trace.latest.extend_from_slice(read.get(..Trace::LATEST).unwrap_or(read));
                    if trace.unframed > trace.max_frame_bytes.saturating_add(READ_BYTES) {
                        let limit = trace.max_frame_bytes;
                        trace.ended = Some(LossReason::Oversized(limit));
                        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                    }
                }
            }
        }
        Poll::Ready(result)
    }
}
