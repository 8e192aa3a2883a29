//! Request connections over a WebSocket: a task reads the socket, a thread processes the answers.
//!
//! The WebSocket protocol runs on the runtime, so each message is passed to the thread of the
//! connection. Everything else is the same as over a Unix socket.

use std::{io, sync::Arc, time::Instant};

use crossbeam_channel::{Sender, bounded};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{
    client::{RequestConnection, WsRequest},
    in_flight::MAX_IN_FLIGHT,
    outbox::{write_ping, write_request},
    reader::{Reader, Responses},
};
use crate::{connection::WsStream, error::LossReason, limits::Limits};

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
    tokio::spawn(async move {
        let reason = tokio::select! {
            reason = pump(stream, requests, incoming_tx, max_units) => reason,
            reason = owner.closed() => reason,
        };
        owner.end(reason);
    });
    Ok(connection)
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT_BYTES).clamp(1, u16::MAX.into()) as u32
}

async fn pump(
    stream: WsStream,
    mut requests: mpsc::Receiver<WsRequest>,
    incoming: Sender<Incoming>,
    max_units: u32,
) -> LossReason {
    let budget = Arc::new(Semaphore::new(max_units as usize));
    let (mut write, mut read) = stream.split();
    let reading = async {
        loop {
            match read.next().await {
                Some(Ok(Message::Text(text))) => {
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
                Some(Ok(Message::Close(_))) | None => return LossReason::Closed,
                // Pings and pongs of the protocol itself.
                Some(Ok(_)) => {}
                Some(Err(error)) => return LossReason::from_ws(&error),
            }
        }
    };
    let writing = async {
        let mut text = Vec::new();
        loop {
            let Some(mut request) = requests.recv().await else { return LossReason::Closed };
            // All requests at hand are written together.
            loop {
                text.clear();
                match request {
                    WsRequest::Transaction(id, hash) => write_request(&mut text, id, &hash),
                    WsRequest::Ping => write_ping(&mut text),
                }
                let message = String::from_utf8_lossy(&text).into_owned();
                if let Err(error) = write.feed(Message::text(message)).await {
                    return LossReason::from_ws(&error);
                }
                match requests.try_recv() {
                    Ok(next) => request = next,
                    Err(_) => break,
                }
            }
            if let Err(error) = write.flush().await {
                return LossReason::from_ws(&error);
            }
        }
    };
    // Separate branches, so that reading continues while the peer does not read.
    tokio::select! {
        reason = reading => reason,
        reason = writing => reason,
    }
}
