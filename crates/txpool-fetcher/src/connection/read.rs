//! Reads connections, and passes on what comes.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{io, sync::Arc, thread, time::Instant};

use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use super::{
    BlockingSocket, Frame, Frames, Listener, NotAResponse, Shared, Writer, WsStream,
    response::Incoming,
};
use crate::{
    error::{CallError, LossReason},
    tasks::Alive,
};

/// Messages that are taken before the task yields, which takes about 0.1 ms, so that a burst on one
/// connection does not block the thread for the other ones.
const MESSAGES_PER_TURN: usize = 64;

/// What the reader of one connection knows. The connection ends with it.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// With the ids that the node gave them, as they were written.
    subscriptions: Vec<(Box<str>, Box<dyn Listener>)>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Also after a panic. The first reason stands.
        self.shared.end(LossReason::Closed);
    }
}

impl Reader {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), subscriptions: Vec::new() }
    }

    /// Takes one complete value.
    fn take(&mut self, value: &[u8], read_at: Instant) -> Result<(), LossReason> {
        self.shared.framed(read_at);
        let incoming = match Incoming::read(value) {
            Ok(incoming) => incoming,
            Err(NotAResponse::NoId) => return Ok(()),
            Err(NotAResponse::NotJson) => return Err(LossReason::garbage(value)),
        };
        if let Some(note) = &incoming.params {
            let id = note.subscription.get();
            if let Some((_, listener)) = self.subscriptions.iter_mut().find(|(of, _)| **of == *id) {
                listener.on_notification(note.result.get(), read_at);
            }
            return Ok(());
        }
        let Some(call) = incoming.id().and_then(|id| self.shared.take_call(id)) else {
            return Ok(());
        };
        let response = match (incoming.error(), incoming.result) {
            (Some(error), _) => Err(CallError::Rpc { code: error.code, message: error.message }),
            (None, Some(result)) => Ok(result.to_owned()),
            (None, None) => {
                let message = "neither a result nor an error".to_owned();
                Err(CallError::Rpc { code: 0, message })
            }
        };
        if let (Ok(id), Some(listener)) = (&response, call.listener) {
            let id = Box::from(id.get());
            if self.subscriptions.iter().any(|(of, _)| *of == id) {
                return Err(LossReason::Garbage("one id for two subscriptions".to_owned()));
            }
            self.subscriptions.push((id, listener));
        }
        // The caller may have stopped waiting.
        let _ = call.reply.send(response);
        Ok(())
    }

    fn idle(&mut self) {
        self.subscriptions.iter_mut().for_each(|(_, listener)| listener.on_idle());
    }
}

/// Starts the thread that reads these connections until all have ended.
pub(super) fn spawn(
    name: &'static str,
    connections: &[Arc<Shared>],
    max_frame_bytes: usize,
    alive: Alive,
) -> io::Result<()> {
    let mut sockets: Vec<_> = connections
        .iter()
        .map(|shared| Socket {
            reader: Reader::new(shared),
            frames: Frames::new(max_frame_bytes),
            max_frame_bytes,
        })
        .collect();
    let body = move || {
        let _alive = alive;
        while !sockets.is_empty() {
            // A socket that is read alone needs no poll: only pings are written into it.
            let readable = match &*sockets {
                [one, other] => match (one.socket(), other.socket()) {
                    (Some(one), Some(other)) => BlockingSocket::wait_readable([one, other]),
                    _ => Ok([true; 2]),
                },
                _ => Ok([true; 2]),
            };
            // An error of the wait is one of a socket's, and its read says which.
            let mut readable = readable.unwrap_or([true; 2]).into_iter().cycle();
            sockets.retain_mut(|socket| {
                if readable.next() == Some(false) {
                    return true;
                }
                let read = socket.read();
                if let Err(reason) = &read {
                    socket.reader.shared.end(reason.clone());
                }
                read.is_ok()
            });
            sockets.iter_mut().for_each(|socket| socket.reader.idle());
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

struct Socket {
    reader: Reader,
    frames: Frames,
    max_frame_bytes: usize,
}

impl Socket {
    fn socket(&self) -> Option<&BlockingSocket> {
        match &self.reader.shared.writer {
            Writer::Ipc(socket) => Some(socket),
            Writer::Ws(_) => None,
        }
    }

    /// Reads once, and takes every value that is complete.
    fn read(&mut self) -> Result<(), LossReason> {
        let Self { reader, frames, max_frame_bytes } = self;
        let shared = Arc::clone(&reader.shared);
        let Writer::Ipc(socket) = &shared.writer else { return Err(LossReason::Closed) };
        match socket.read(frames.spare()) {
            Ok(0) => return Err(LossReason::Closed),
            Ok(count) => frames.filled(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(LossReason::from_io(&error)),
        }
        let read_at = Instant::now();
        while let Some(frame) = frames.next()? {
            match frame {
                Frame::Value(value) => reader.take(value, read_at)?,
                Frame::Oversized { .. } => return Err(LossReason::Oversized(*max_frame_bytes)),
            }
        }
        Ok(())
    }
}

/// Reads and writes a WebSocket until the connection ends.
pub(super) async fn pump(
    stream: WsStream,
    mut requests: mpsc::Receiver<String>,
    mut reader: Reader,
) {
    let shared = Arc::clone(&reader.shared);
    let (mut write, mut read) = stream.split();
    let reading = async {
        let mut taken = 0_usize;
        loop {
            // All messages at hand are taken together.
            let message = match read.next().now_or_never() {
                Some(message) if taken < MESSAGES_PER_TURN => message,
                message => {
                    taken = 0;
                    reader.idle();
                    match message {
                        Some(message) => {
                            tokio::task::yield_now().await;
                            message
                        }
                        None => read.next().await,
                    }
                }
            };
            let read_at = Instant::now();
            match message {
                Some(Ok(Message::Text(text))) => {
                    if let Err(reason) = reader.take(text.as_bytes(), read_at) {
                        return reason;
                    }
                    taken = taken.saturating_add(1);
                }
                Some(Ok(Message::Close(_))) | None => return LossReason::Closed,
                // Pings and pongs of the WebSocket protocol.
                Some(Ok(_)) => reader.shared.framed(read_at),
                Some(Err(error)) => return LossReason::from_ws(&error),
            }
        }
    };
    let writing = async {
        while let Some(request) = requests.recv().await {
            if let Err(error) = write.send(Message::text(request)).await {
                return LossReason::from_ws(&error);
            }
        }
        LossReason::Closed
    };
    // Separate branches, so that reading continues while the peer does not read.
    let reason = tokio::select! {
        biased;
        reason = shared.ended.wait() => reason,
        reason = reading => reason,
        reason = writing => reason,
    };
    shared.end(reason);
}
