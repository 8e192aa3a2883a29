//! Reads connections, and passes on what comes.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{io, sync::Arc, thread, time::Instant};

use super::{BlockingSocket, Frames, Listener, Shared, response::Incoming};
use crate::{
    error::{CallError, LossReason},
    tasks::Alive,
};

/// What the reader of one connection knows. The connection ends with it.
struct Reader {
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
    /// Takes one complete value.
    fn take(&mut self, value: &[u8], read_at: Instant) -> Result<(), LossReason> {
        self.shared.framed(read_at);
        let Some(incoming) = Incoming::read(value)? else { return Ok(()) };
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
            (Some(error), _) => Err(error),
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
}

/// Starts the thread that reads these connections until all have ended.
pub(super) fn spawn(name: &str, mut sockets: Vec<SocketReader>, alive: Alive) -> io::Result<()> {
    let body = move || {
        let _alive = alive;
        while !sockets.is_empty() {
            // A socket that is read alone needs no poll: only pings are written into it.
            let readable = match &*sockets {
                [one, other] => BlockingSocket::wait_both([one.socket(), other.socket()]),
                _ => [true; 2],
            };
            let mut readable = readable.into_iter();
            sockets.retain_mut(|socket| !readable.next().unwrap_or(true) || socket.read());
            for socket in &mut sockets {
                socket.reader.subscriptions.iter_mut().for_each(|(_, listener)| listener.on_idle());
            }
        }
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// Reads one connection.
pub(super) struct SocketReader {
    reader: Reader,
    frames: Frames,
}

impl SocketReader {
    pub(super) fn new(shared: &Arc<Shared>, max_frame_bytes: usize) -> Self {
        let reader = Reader { shared: Arc::clone(shared), subscriptions: Vec::new() };
        Self { reader, frames: Frames::new(max_frame_bytes) }
    }

    fn socket(&self) -> &BlockingSocket {
        &self.reader.shared.socket
    }

    /// Takes every value that is complete after a read. False if the connection has ended.
    fn read(&mut self) -> bool {
        let taken = self.take_values();
        if let Err(reason) = &taken {
            self.reader.shared.end(reason.clone());
        }
        taken.is_ok()
    }

    fn take_values(&mut self) -> Result<(), LossReason> {
        let count = self.reader.shared.socket.read(self.frames.spare())?;
        self.frames.filled(count);
        let read_at = Instant::now();
        while let Some(value) = self.frames.next()? {
            self.reader.take(value, read_at)?;
        }
        Ok(())
    }
}
