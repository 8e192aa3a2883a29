//! Reads connections, and passes on what comes.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{io, sync::Arc, time::Instant};

use super::{BlockingSocket, Connection, Ends as _, Frames, Listener, response::Incoming};
use crate::{
    error::{CallError, LossReason},
    tasks::Tasks,
};

/// Starts the thread that reads these connections until all have ended.
pub(super) fn spawn(name: &str, mut sockets: Vec<SocketReader>, tasks: &Tasks) -> io::Result<()> {
    tasks.spawn_thread(name, move || {
        while !sockets.is_empty() {
            // A socket that is read alone needs no poll: only pings are written into it.
            let readable = match &*sockets {
                [one, other] => {
                    BlockingSocket::wait_both([&one.connection.socket, &other.connection.socket])
                }
                _ => [true; 2],
            };
            let mut readable = readable.into_iter();
            sockets.retain_mut(|socket| !readable.next().unwrap_or(true) || socket.read());
            for socket in &mut sockets {
                socket.subscriptions.iter_mut().for_each(|(_, listener)| listener.on_idle());
            }
        }
    })
}

/// The listeners, with the ids that the node gave them, as they were written.
type Subscriptions = Vec<(Box<str>, Box<dyn Listener>)>;

/// Reads one connection, which ends with it.
pub(super) struct SocketReader {
    connection: Arc<Connection>,
    frames: Frames,
    subscriptions: Subscriptions,
}

impl SocketReader {
    pub(super) fn new(connection: &Arc<Connection>, max_frame_bytes: usize) -> Self {
        let frames = Frames::new(max_frame_bytes);
        Self { connection: Arc::clone(connection), frames, subscriptions: Vec::new() }
    }

    /// Takes every value that is complete after a read. False if the connection has ended.
    fn read(&mut self) -> bool {
        self.take_values().inspect_err(|reason| self.connection.end(reason.clone())).is_ok()
    }

    fn take_values(&mut self) -> Result<(), LossReason> {
        let count = self.connection.socket.read(self.frames.spare())?;
        self.frames.filled(count);
        let read_at = Instant::now();
        while let Some(value) = self.frames.next()? {
            take(&self.connection, &mut self.subscriptions, value, read_at)?;
        }
        Ok(())
    }
}

impl Drop for SocketReader {
    fn drop(&mut self) {
        // Also after a panic. The first reason stands.
        self.connection.end(LossReason::Closed);
    }
}

fn take(
    connection: &Connection,
    subscriptions: &mut Subscriptions,
    value: &[u8],
    read_at: Instant,
) -> Result<(), LossReason> {
    connection.framed(read_at);
    let Some(incoming) = Incoming::read(value)? else { return Ok(()) };
    if let Some(note) = &incoming.params {
        let id = note.subscription.get();
        if let Some((_, listener)) = subscriptions.iter_mut().find(|(of, _)| **of == *id) {
            listener.on_notification(note.result.get(), read_at);
        }
        return Ok(());
    }
    let Some(call) = incoming.id().and_then(|id| connection.take_call(id)) else {
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
        if subscriptions.iter().any(|(of, _)| *of == id) {
            return Err(LossReason::Garbage("one id for two subscriptions".to_owned()));
        }
        subscriptions.push((id, listener));
    }
    // The caller may have stopped waiting.
    let _ = call.reply.send(response);
    Ok(())
}
