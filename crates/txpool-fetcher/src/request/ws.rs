//! Request connections over a WebSocket: a task reads the socket, a thread processes the answers.
//!
//! The WebSocket protocol runs on the runtime, so each message is passed to the thread of the
//! connection. Everything else is the same as over a Unix socket.

use std::{io, sync::Arc, time::Instant};

use crossbeam_channel::{Sender, bounded};
use futures::{StreamExt as _, stream::SplitStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::{
    client::RequestConnection,
    in_flight::MAX_IN_FLIGHT,
    reader::{Reader, Responses},
};
use crate::{
    connection::{WsStream, text_of, write_all},
    error::LossReason,
    limits::Limits,
};

/// Messages that wait for the thread are counted against a budget in units of this: one of the largest, or as
/// many small ones as it has units. While there is none the socket is not read, so the node waits; only answers
/// are delayed by that.
const UNIT_BYTES: usize = 16 * 1024;

/// A message on its way to the thread.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) text: Utf8Bytes,
    pub(super) read_at: Instant,
    _bytes: OwnedSemaphorePermit,
}

/// Starts the thread, and a task that ends with the connection, or with its runtime.
pub(super) fn open<T: Send + 'static>(
    stream: WsStream,
    responses: impl Responses<T>,
    limits: &Limits,
) -> io::Result<Arc<RequestConnection<T>>> {
    let max_units = units(limits.max_frame_bytes);
    let (requests_tx, requests) = mpsc::channel(MAX_IN_FLIGHT);
    let (incoming_tx, incoming) = bounded(max_units as usize);
    let connection = RequestConnection::over_ws(requests_tx);
    Reader::spawn(&connection, responses, limits, move |reader| reader.read_messages(&incoming))?;
    let owner = Arc::clone(&connection);
    let (write, read) = stream.split();
    tokio::spawn(async move {
        // Separate branches, so that reading continues while the peer does not read.
        let reason = tokio::select! {
            reason = pass_on(read, incoming_tx, max_units) => reason,
            reason = write_all(write, requests) => reason,
            reason = owner.closed() => reason,
        };
        owner.end(reason);
    });
    Ok(connection)
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT_BYTES).clamp(1, u16::MAX.into()) as u32
}

/// Passes messages on to the thread.
async fn pass_on(
    mut stream: SplitStream<WsStream>,
    incoming: Sender<Incoming>,
    max_units: u32,
) -> LossReason {
    let budget = Arc::new(Semaphore::new(max_units as usize));
    loop {
        let text = match text_of(stream.next().await) {
            Ok(Some(text)) => text,
            Ok(None) => continue,
            Err(reason) => return reason,
        };
        let read_at = Instant::now();
        let count = units(text.len()).min(max_units);
        // The budget is never closed.
        let Ok(bytes) = Arc::clone(&budget).acquire_many_owned(count).await else {
            return LossReason::Closed;
        };
        // There is room: each message has a unit at least.
        if incoming.try_send(Incoming { text, read_at, _bytes: bytes }).is_err() {
            return LossReason::Closed;
        }
    }
}
