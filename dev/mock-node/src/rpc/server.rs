//! The socket: accepts connections, reads requests, and writes queued messages.

use std::{
    fs, io,
    os::unix::net::UnixListener as StdListener,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::bytes::BytesMut;
use serde::de::IgnoredAny;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task,
};

use super::{Reply, handle, is_heavy};
use crate::{
    config::MAX_REQUEST_BYTES,
    faults::{Restart, take_one},
    outbox::{Freeze, Outbox},
    quirks::Topic,
    shared::{Connected, Shared, notification},
};

/// The line that reth writes to a connection beyond its limit.
pub(super) const TOO_MANY: &[u8] = b"Too many connections. Please try again later.";

/// The line that replaces the first answer of a connection with
/// [`Quirks::html_first`](crate::Quirks::html_first).
const HTML: &[u8] = b"<html>502 Bad Gateway</html>";

/// Accepts connections until the runtime ends. After a restart it accepts on a new socket.
pub(crate) async fn run(shared: Arc<Shared>, mut listener: UnixListener) {
    loop {
        // The order is irrelevant: a connection that is not accepted before a restart is refused by
        // it.
        tokio::select! {
            () = accept(&shared, &listener) => {}
            () = shared.restart.notified() => {}
        }
        let restart = shared.lock().armed.restart.take();
        if let Some(restart) = restart {
            match restarted(&shared, listener, restart).await {
                Ok(next) => listener = next,
                Err(error) => return tracing::error!(%error, "the socket did not come back"),
            }
        }
    }
}

async fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    let mut stream = match listener.accept().await {
        Ok((stream, _)) => stream,
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            // Most likely there are no file descriptors left, so other connections get time to end.
            return tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (number, is_full, closes) = {
        let state = &mut *shared.lock();
        state.stats.connections += 1;
        state.stats.connections_open += 1;
        let is_full = state.armed.table_full_until.is_some_and(|until| Instant::now() < until);
        let closes = !is_full && take_one(&mut state.armed.close_on_accept);
        (state.stats.connections, is_full, closes)
    };
    let shared = shared.clone();
    task::spawn(async move {
        if is_full {
            // It fails if the peer has already disconnected.
            let _ = stream.write_all(TOO_MANY).await;
        } else if closes {
            drop(stream);
        } else {
            serve(&shared, stream, number).await;
        }
        shared.lock().stats.connections_open -= 1;
    });
}

/// Restarts the node: connections end, pending transactions are mined without a notification, and
/// the path gets a new socket.
async fn restarted(
    shared: &Shared,
    listener: UnixListener,
    restart: Restart,
) -> io::Result<UnixListener> {
    drop(listener);
    let path = &shared.config.ipc_path;
    if !restart.leaves_file {
        fs::remove_file(path)?;
    }
    shared.lock().connections.iter_mut().for_each(|connected| connected.subscriptions.clear());
    if restart.has_new_genesis {
        shared.reset();
    } else {
        shared.mine();
    }
    shared.lock().connections.iter().for_each(|connected| connected.outbox.close());
    tokio::time::sleep(restart.down).await;
    shared.lock().stats.restarts += 1;
    UnixListener::from_std(listen(path)?)
}

/// Creates the socket, removing a file that is in its place.
pub(crate) fn listen(path: &Path) -> io::Result<StdListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(shared: &Arc<Shared>, stream: UnixStream, number: u64) {
    let outbox = Arc::new(Outbox::default());
    let connected = Connected { number, outbox: outbox.clone(), subscriptions: Vec::new() };
    shared.lock().connections.push(connected);
    let (reader, writer) = stream.into_split();
    let connection = Connection {
        shared: shared.clone(),
        outbox: outbox.clone(),
        number,
        has_answered: Arc::default(),
    };
    {
        let write = write(&outbox, writer);
        tokio::pin!(write);
        // Either may end first: the reader when the peer has closed its side, the writer when the
        // peer has disconnected or was too slow. A peer that only stopped sending requests still
        // gets its queued messages.
        let result = tokio::select! {
            result = &mut write => result,
            result = connection.read(reader) => {
                outbox.finish();
                // It fails if the peer has disconnected, which is the usual end of a connection.
                let _ = write.await;
                result
            }
        };
        if let Err(error) = result {
            tracing::debug!(number, %error, "a connection broke");
        }
    }
    outbox.close();
    shared.lock().connections.retain(|connected| connected.number != number);
}

async fn write(outbox: &Outbox, mut writer: OwnedWriteHalf) -> io::Result<()> {
    while let Some(chunks) = outbox.next().await {
        for chunk in chunks {
            writer.write_all(&chunk).await?;
            outbox.written(chunk.len());
        }
    }
    Ok(())
}

/// Returns the length of the first JSON value in the buffer; `None` if more bytes are needed.
/// Requests may follow each other with or without a separator. Text that is not JSON counts as a
/// value up to the end of its line: the node answers it with one error.
fn next_value(buffer: &[u8]) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_slice(buffer).into_iter::<IgnoredAny>();
    match values.next()? {
        Ok(_) => Some(values.byte_offset()),
        Err(error) if error.is_eof() => None,
        Err(_) => Some(buffer.iter().position(|byte| *byte == b'\n')? + 1),
    }
}

#[derive(Clone, Debug)]
struct Connection {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    number: u64,
    has_answered: Arc<AtomicBool>,
}

impl Connection {
    async fn read(&self, mut reader: OwnedReadHalf) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(64 << 10);
        loop {
            buffer.reserve(16 << 10);
            if reader.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            match self.outbox.frozen() {
                Freeze::No => {}
                Freeze::Until(until) => tokio::time::sleep_until(until.into()).await,
                // The peer is ignored until this side closes the connection.
                Freeze::Forever => std::future::pending().await,
            }
            while let Some(len) = next_value(&buffer) {
                let frame = buffer.split_to(len);
                self.take(&frame);
            }
            if buffer.len() > MAX_REQUEST_BYTES {
                tracing::debug!(self.number, "a request is larger than {MAX_REQUEST_BYTES} bytes");
                return Ok(());
            }
        }
    }

    fn take(&self, frame: &[u8]) {
        if frame.trim_ascii().is_empty() {
            return;
        }
        if !is_heavy(frame) {
            return self.answer(handle(&self.shared, frame));
        }
        let (connection, frame) = (self.clone(), frame.to_vec());
        // Nobody waits for it: the answer goes to the outbox. After a panic, which is printed to
        // stderr, the request has no answer, as in a node whose handler died.
        task::spawn_blocking(move || connection.answer(handle(&connection.shared, &frame)));
    }

    fn answer(&self, reply: Option<Reply>) {
        let Some(mut reply) = reply else { return };
        // Relaxed: no other memory depends on it.
        let is_first = !self.has_answered.swap(true, Relaxed);
        if is_first && reply.is_html_if_first {
            let message = HTML.to_vec();
            reply = Reply { message, delay: reply.delay, closes: reply.closes, ..Reply::default() };
        }
        reply.message.push(b'\n');
        if reply.is_sent_twice {
            reply.message.extend_from_within(..);
        }
        let delay = reply.delay.max(self.shared.list_ends_in());
        if delay.is_zero() {
            return self.send(reply);
        }
        let (connection, due) = (self.clone(), Instant::now() + delay);
        if let Some(delays) = &self.shared.lock().delays {
            // It fails only if the node has stopped.
            _ = delays.send((due, Box::new(move || connection.send(reply))));
        }
    }

    fn send(&self, reply: Reply) {
        if reply.subscriptions.is_empty() {
            self.outbox.push(reply.message, reply.singles);
            if reply.closes {
                self.outbox.finish();
            }
            return;
        }
        // The lock is held, so that nothing is announced between the answer and the beginning of
        // the subscription.
        let state = &mut *self.shared.lock();
        for (id, topic) in reply.subscriptions.iter().filter(|_| state.quirks.notifies_before_reply)
        {
            if let Some(latest) = state.latest(*topic) {
                self.outbox.push(notification(id, "result", &latest), 0);
            }
        }
        self.outbox.push(reply.message, reply.singles);
        if reply.closes || take_one(&mut state.armed.close_after_subscribe) {
            return self.outbox.finish();
        }
        state.was_subscribed |= reply.subscriptions.iter().any(|(_, topic)| *topic != Topic::Heads);
        let silenced = &mut state.armed.silence_subscriptions;
        let heard = reply.subscriptions.into_iter();
        let heard = heard.filter(|(_, topic)| *topic == Topic::Heads || !take_one(silenced));
        let number = self.number;
        if let Some(connected) = state.connections.iter_mut().find(|other| other.number == number) {
            connected.subscriptions.extend(heard);
        }
        self.shared.changed.notify_all();
    }
}
