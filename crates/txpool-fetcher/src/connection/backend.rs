//! The task that moves bytes between a socket and alloy's pub-sub service.
//!
//! alloy's own IPC task would do for asking, but not here, for four reasons: it stops reading
//! while it writes (two peers that both write and neither reads stand still, and geth freezes all
//! its subscribers meanwhile), it hides why a connection ended, it reconnects by itself, losing
//! what was announced in between without a sign, and it does not say when a notification was read.
//! Framing ([`ReadJsonStream`]), the service and its channels are alloy's.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
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
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{self, Message},
};

use super::{ConnectionShared, clip};
use crate::{error::LossReason, sync::lock};

/// Bytes read from the socket with one call: room for 400 announcements.
const READ_BYTES: usize = 64 * 1024;

/// Requests are taken from alloy's queue while less than this waits to be written, so that a node
/// that does not read leaves them there, where dropping the connection drops them.
const OUTBOX_BYTES: usize = 256 * 1024;

/// Items handed over before the task yields, so that a burst on one connection does not keep the
/// thread from the others: about 0.1 ms.
const ITEMS_PER_TURN: u32 = 64;

/// An open socket.
#[derive(Debug)]
pub(super) enum Socket {
    Ipc(UnixStream),
    Ws(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
}

/// Hands one open socket to alloy's service, once.
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
        // A second call would be a reconnect: a loss has to surface, so there is none.
        let socket = lock(&self.socket).take().ok_or_else(no_reconnect)?;
        let (handle, interface) = ConnectionHandle::new();
        let backend = Backend { interface, shared: Arc::clone(&self.shared), turn: 0 };
        let max_frame_bytes = self.max_frame_bytes;
        // Detached on purpose: the task ends when the service drops its end of the interface,
        // which it does when the last `Connection` goes, or with its runtime.
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
    TransportErrorKind::non_retryable_str("a new connection is the source's business")
}

struct Backend {
    interface: ConnectionInterface,
    shared: Arc<ConnectionShared>,
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
                // Reading before writing before taking in more to write: what the node has sent
                // must be gone from its socket before it is asked for more. No branch loses an
                // item when dropped: a frame is complete when it is returned, bytes leave the
                // outbox when written, a request leaves alloy's queue when received.
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
                    Err(error) => break Some(io_loss(&error)),
                },
                request = self.interface.recv_from_frontend(), if outbox.len() < OUTBOX_BYTES => {
                    let Some(request) = request else { break None };
                    outbox.extend_from_slice(request.get().as_bytes());
                    // What else is waiting goes out with the same write.
                    while outbox.len() < OUTBOX_BYTES {
                        match self.interface.recv_from_frontend().now_or_never() {
                            Some(Some(request)) => outbox.extend_from_slice(request.get().as_bytes()),
                            _ => break,
                        }
                    }
                }
            }
        };
        self.finish(reason);
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
                            Err(_) => break Some(LossReason::Garbage(clip(text.as_str(), 120))),
                        }
                    }
                    Some(Ok(Message::Close(_))) | None => break Some(LossReason::Closed),
                    // Pings and pongs of the protocol itself.
                    Some(Ok(_)) => self.shared.framed(Instant::now()),
                    Some(Err(error)) => break Some(ws_loss(&error)),
                },
                // Flushing and taking in are apart, so that reading goes on while the peer does not
                // read; a message started is kept by the sink when this branch is dropped.
                flushed = write.flush(), if unflushed => match flushed {
                    Ok(()) => unflushed = false,
                    Err(error) => break Some(ws_loss(&error)),
                },
                request = self.interface.recv_from_frontend(), if !unflushed => {
                    let Some(request) = request else { break None };
                    // Never waits: the sink is flushed, so it has room.
                    if let Err(error) = write.feed(Message::text(request.get().to_owned())).await {
                        break Some(ws_loss(&error));
                    }
                    unflushed = true;
                }
            }
        };
        self.finish(reason);
    }

    /// Hands an item to the service; false when nobody is there any more.
    async fn forward(&mut self, item: PubSubItem, read_at: Instant) -> bool {
        self.shared.framed(read_at);
        let mut probe = None;
        match &item {
            PubSubItem::Notification(notification) => {
                // A hash is a string, a head an object.
                if notification.result.get().starts_with('"') {
                    self.shared.read_times.push(read_at);
                }
            }
            PubSubItem::Response(response) => {
                let mut armed = lock(&self.shared.probe);
                if let Some((id, probes)) = *armed
                    && response.id == Id::Number(id)
                {
                    *armed = None;
                    if let ResponsePayload::Success(subscription) = &response.payload {
                        probe =
                            serde_json::from_str(subscription.get()).ok().map(|id| (id, probes));
                    }
                }
            }
        }
        if self.interface.send_to_frontend(item).is_err() {
            return false;
        }
        if let Some((subscription, probes)) = probe {
            self.push_probes(&subscription, probes);
        }
        self.turn += 1;
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
                // The service is gone; the next read says so too.
                return;
            }
        }
    }

    fn finish(self, reason: Option<LossReason>) {
        if let Some(reason) = reason {
            self.shared.end(reason);
        }
        self.shared.end(LossReason::Closed);
        self.interface.close_with_transport_error(no_reconnect());
    }
}

fn io_loss(error: &io::Error) -> LossReason {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LossReason::Closed,
        kind => LossReason::Io(kind),
    }
}

fn ws_loss(error: &tungstenite::Error) -> LossReason {
    match error {
        tungstenite::Error::Io(error) => io_loss(error),
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            LossReason::Closed
        }
        tungstenite::Error::Capacity(_) => LossReason::Oversized(0),
        other => LossReason::Garbage(clip(&other.to_string(), 120)),
    }
}

/// What the reader saw, for the reason of the end.
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
            // A frame was under way that never became JSON, or the plain text of a refusal.
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

/// A reader that takes notes.
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
            Err(error) => trace.ended = Some(io_loss(error)),
            Ok(()) => {
                let read = &buf.filled()[before..];
                if read.is_empty() {
                    trace.ended = Some(LossReason::Closed);
                } else {
                    trace.read_at = Instant::now();
                    trace.unframed += read.len();
                    trace.latest.clear();
                    trace.latest.extend_from_slice(&read[..read.len().min(Trace::LATEST)]);
                    if trace.unframed > trace.max_frame_bytes + READ_BYTES {
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
