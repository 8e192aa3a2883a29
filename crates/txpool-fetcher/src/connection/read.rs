//! Reads connections, and passes on what comes.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{io, sync::Arc, thread, time::Instant};

use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use super::{
    BlockingSocket, Frames, Listener, NotAResponse, Shared, WsStream, response::Incoming, text_of,
    write_all,
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
pub(super) fn spawn(name: &str, mut sockets: Vec<SocketReader>, alive: Alive) -> io::Result<()> {
    let body = move || {
        let _alive = alive;
        while !sockets.is_empty() {
            // A socket that is read alone needs no poll: only pings are written into it.
            let readable = match &*sockets {
                [one, other] => BlockingSocket::wait_both([&one.socket, &other.socket]),
                _ => Ok([true; 2]),
            };
            // An error of the wait is one of a socket's, and its read says which.
            let mut readable = readable.unwrap_or([true; 2]).into_iter();
            sockets.retain_mut(|socket| {
                !readable.next().unwrap_or(true) || {
                    let read = socket.socket.read(socket.frames.spare());
                    socket.has_read(read)
                }
            });
            sockets.iter_mut().for_each(|socket| socket.reader.idle());
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// Reads one connection over a Unix socket.
pub(super) struct SocketReader {
    reader: Reader,
    socket: Arc<BlockingSocket>,
    frames: Frames,
}

impl SocketReader {
    pub(super) fn new(
        shared: &Arc<Shared>,
        socket: Arc<BlockingSocket>,
        max_frame_bytes: usize,
    ) -> Self {
        Self { reader: Reader::new(shared), socket, frames: Frames::new(max_frame_bytes) }
    }

    /// Takes every value that is complete after a read. False if the connection has ended.
    fn has_read(&mut self, read: io::Result<usize>) -> bool {
        let taken = self.take_values(read);
        if let Err(reason) = &taken {
            self.reader.shared.end(reason.clone());
        }
        taken.is_ok()
    }

    fn take_values(&mut self, read: io::Result<usize>) -> Result<(), LossReason> {
        match read {
            Ok(0) => return Err(LossReason::Closed),
            Ok(count) => self.frames.filled(count),
            Err(error) => return Err(LossReason::from_io(&error)),
        }
        let read_at = Instant::now();
        while let Some(value) = self.frames.next()? {
            self.reader.take(value, read_at)?;
        }
        Ok(())
    }
}

/// Reads and writes a WebSocket until the connection ends.
pub(super) async fn pump(stream: WsStream, requests: mpsc::Receiver<String>, mut reader: Reader) {
    let shared = Arc::clone(&reader.shared);
    let (write, mut read) = stream.split();
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
            match text_of(message)
                .map(|text| text.map(|text| reader.take(text.as_bytes(), read_at)))
            {
                Ok(Some(Ok(()))) => taken = taken.saturating_add(1),
                Ok(None) => reader.shared.framed(read_at),
                Ok(Some(Err(reason))) | Err(reason) => return reason,
            }
        }
    };
    // Separate branches, so that reading continues while the peer does not read.
    let reason = tokio::select! {
        biased;
        reason = shared.ended.wait() => reason,
        reason = reading => reason,
        reason = write_all(write, requests) => reason,
    };
    shared.end(reason);
}
