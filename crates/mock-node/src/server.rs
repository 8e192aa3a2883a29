//! The socket: accepts, reads requests, writes what is queued.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use alloy_primitives::bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task,
};

use crate::{
    config::MAX_REQUEST_BYTES,
    framing::Splitter,
    outbox::{Next, Outbox},
    rpc::{self, Handled, Reply},
    shared::{Shared, Subscription, Topic},
};

/// What reth writes to a connection that is one too many.
const TOO_MANY: &[u8] = b"Too many connections. Please try again later.";

/// Accepts until the runtime ends.
pub(crate) async fn accept(shared: Arc<Shared>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let number = shared.counters.connections.fetch_add(1, Relaxed) + 1;
                let open = shared.counters.connections_open.fetch_add(1, Relaxed) + 1;
                let shared = shared.clone();
                task::spawn(async move {
                    if open > shared.config.max_connections as u64 {
                        shared.counters.connections_refused.fetch_add(1, Relaxed);
                        turn_away(stream).await;
                    } else {
                        serve(&shared, stream, number).await;
                    }
                    shared.counters.connections_open.fetch_sub(1, Relaxed);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Out of file descriptors, most likely: give others time to go.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn turn_away(mut stream: UnixStream) {
    // The peer may have gone already; then there is nobody to tell.
    let _ = stream.write_all(TOO_MANY).await;
}

async fn serve(shared: &Arc<Shared>, stream: UnixStream, number: u64) {
    let outbox = Arc::new(Outbox::new(shared.config.max_queued_bytes));
    let (reader, writer) = stream.into_split();
    let connection = Connection { shared: shared.clone(), outbox: outbox.clone(), number };
    {
        let write = write(&outbox, writer);
        tokio::pin!(write);
        // Either may end first: the reader when the peer has closed its side, the writer when the peer is gone or
        // was too slow. What is queued for a peer that only stopped asking is still written.
        tokio::select! {
            _ = &mut write => {}
            result = connection.read(reader) => {
                if let Err(error) = result {
                    tracing::debug!(number, %error, "a connection broke");
                }
                outbox.finish();
                // A peer that is gone makes this fail, which ends it as well.
                let _ = write.await;
            }
        }
    }
    outbox.close();
    shared.lock().subscriptions.retain(|subscription| subscription.connection != number);
}

async fn write(outbox: &Outbox, mut writer: OwnedWriteHalf) -> io::Result<()> {
    loop {
        match outbox.take() {
            Next::Write(chunks) => {
                for chunk in chunks {
                    writer.write_all(&chunk).await?;
                    outbox.written(chunk.len());
                }
            }
            Next::Wait => outbox.changed().await,
            Next::Close => return Ok(()),
        }
    }
}

/// One client's connection.
#[derive(Clone, Debug)]
struct Connection {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    number: u64,
}

impl Connection {
    async fn read(&self, mut reader: OwnedReadHalf) -> io::Result<()> {
        let mut buffer = BytesMut::with_capacity(64 << 10);
        let mut splitter = Splitter::default();
        loop {
            buffer.reserve(16 << 10);
            if reader.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            while let Some(len) = splitter.next(&buffer) {
                let frame = buffer.split_to(len);
                self.take(&frame);
            }
            if buffer.len() > MAX_REQUEST_BYTES {
                tracing::debug!(self.number, "a request is larger than {MAX_REQUEST_BYTES} bytes");
                return Ok(());
            }
            if buffer.iter().all(u8::is_ascii_whitespace) {
                buffer.advance(buffer.len());
                splitter = Splitter::default();
            }
        }
    }

    fn take(&self, frame: &[u8]) {
        if frame.trim_ascii().is_empty() {
            return;
        }
        match rpc::handle(&self.shared, self.number, frame, false) {
            Handled::Now(reply) => self.answer(reply),
            Handled::Heavy => {
                let (connection, frame) = (self.clone(), frame.to_vec());
                task::spawn_blocking(move || {
                    let handled = rpc::handle(&connection.shared, connection.number, &frame, true);
                    if let Handled::Now(reply) = handled {
                        connection.answer(reply);
                    }
                });
            }
        }
    }

    fn answer(&self, reply: Option<Reply>) {
        let Some(reply) = reply else { return };
        if reply.delay.is_zero() {
            return self.send(reply);
        }
        let connection = self.clone();
        self.shared.delays.hold(reply.delay, move || connection.send(reply));
    }

    fn send(&self, reply: Reply) {
        let shared = &self.shared;
        if reply.begin.is_empty() {
            shared.push(&self.outbox, reply.message);
        } else {
            // Under the lock, so that nothing is announced between the answer and the subscription.
            let mut state = shared.lock();
            shared.push(&self.outbox, reply.message);
            let wants_hashes = reply.begin.iter().any(|(_, topic)| *topic != Topic::Heads);
            state.subscriptions.extend(reply.begin.into_iter().map(|(id, topic)| Subscription {
                id,
                topic,
                connection: self.number,
                outbox: self.outbox.clone(),
            }));
            drop(state);
            if wants_hashes {
                shared.signals.set(|flags| flags.subscribed = true);
            }
        }
        shared.counters.raw_ends(reply.raws);
    }
}
