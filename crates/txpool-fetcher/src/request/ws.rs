//! Request connections over a WebSocket: a task reads the socket, a thread processes the answers.
//!
//! The WebSocket protocol runs on the runtime, so each message is passed to the thread of the
//! connection. Everything else is the same as over a Unix socket.

use std::{io, sync::Arc, time::Instant};

use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::{
    client::{RequestConnection, Responses, WsRequest},
    outbox::{write_ping, write_request},
    slab::MAX_IN_FLIGHT,
};
use crate::{connection::WsStream, error::LossReason};

/// Messages that may wait for the thread. While the queue is full the socket is not read, so the
/// node waits; only answers are delayed by that.
const MESSAGES_WAITING: usize = 64;

/// Messages are counted against the budget in units of this.
const UNIT_BYTES: usize = 1024;

/// A message on its way to the thread.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) text: Utf8Bytes,
    pub(super) read_at: Instant,
    _bytes: OwnedSemaphorePermit,
}

/// Starts the thread, and returns the connection with the task that has to run meanwhile.
pub(crate) fn open<T: Send + 'static>(
    stream: WsStream,
    responses: impl Responses<T>,
    max_frame_bytes: usize,
) -> io::Result<(Arc<RequestConnection<T>>, impl Future<Output = ()> + Send + 'static)> {
    let (requests_tx, requests) = mpsc::channel(MAX_IN_FLIGHT);
    let (incoming_tx, incoming) = mpsc::channel(MESSAGES_WAITING);
    let connection = Arc::new(RequestConnection::over_ws(requests_tx));
    connection.spawn(responses, move |connection, responses| {
        connection.read_messages(incoming, responses)
    })?;
    let owner = Arc::clone(&connection);
    Ok((connection, async move {
        let reason = tokio::select! {
            reason = pump(stream, requests, incoming_tx, units(max_frame_bytes)) => reason,
            reason = owner.closed() => reason,
        };
        owner.end(reason);
    }))
}

fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize)) as u32
}

/// `max_units` is the budget of messages that wait: one of the largest, or many small ones.
async fn pump(
    stream: WsStream,
    mut requests: mpsc::Receiver<WsRequest>,
    incoming: mpsc::Sender<Incoming>,
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
                    if incoming.send(Incoming { text, read_at, _bytes: bytes }).await.is_err() {
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
