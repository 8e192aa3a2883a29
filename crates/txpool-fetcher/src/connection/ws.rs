//! A WebSocket behind a Unix socket: a task passes the text of each message on, so that everything
//! else knows one kind of socket.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{SinkExt as _, StreamExt as _, stream::SplitSink, stream::SplitStream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream, UnixStream,
        unix::{ReadHalf, WriteHalf},
    },
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{self, Message, protocol::WebSocketConfig},
};

use super::{BlockingSocket, Frames};
use crate::error::{ConnectError, LossReason};

type WsStream = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a WebSocket whose messages have at most `max_bytes`. The future passes them on to its end.
pub(super) async fn open(
    url: &str,
    max_bytes: usize,
    limit: Duration,
) -> Result<(BlockingSocket, impl Future<Output = ()> + use<>), ConnectError> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(max_bytes))
        .max_frame_size(Some(max_bytes));
    let connect = tokio_tungstenite::connect_async_with_config(url, Some(config), true);
    let connected = timeout(limit, connect).await.map_err(|_| ConnectError::NoAnswer {
        endpoint: url.to_owned(),
        method: "the WebSocket handshake",
        timeout: limit,
    })?;
    let failed = |error| ConnectError::io(&url, error);
    let (messages, _) =
        connected.map_err(|error| failed(std::io::Error::other(error.to_string())))?;
    let (ours, mut theirs) = UnixStream::pair().map_err(failed)?;
    let ended = Arc::new(OnceLock::new());
    let socket = ours.into_std().and_then(|ours| BlockingSocket::new(ours, Arc::clone(&ended)));
    let pass_on = async move {
        let (requests, responses) = messages.split();
        let (from_us, to_us) = theirs.split();
        // Separate branches, so that reading continues while the peer does not read.
        let Err(reason) = tokio::select! {
            end = pass_in(responses, to_us, max_bytes) => end,
            end = pass_out(from_us, requests) => end,
        };
        // Before the socket is closed; nobody else sets it.
        let _ = ended.set(reason);
    };
    Ok((socket.map_err(failed)?, pass_on))
}

async fn pass_in(
    mut messages: SplitStream<WsStream>,
    mut socket: WriteHalf<'_>,
    max_bytes: usize,
) -> Result<Infallible, LossReason> {
    loop {
        match messages.next().await {
            Some(Ok(Message::Text(text))) => {
                // If this fails, our side has ended.
                socket.write_all(text.as_bytes()).await.map_err(|_| LossReason::Closed)?;
            }
            Some(Ok(Message::Close(_))) | None => return Err(LossReason::Closed),
            // Pings and pongs of the WebSocket protocol.
            Some(Ok(_)) => {}
            Some(Err(tungstenite::Error::Capacity(_))) => {
                return Err(LossReason::Oversized(max_bytes));
            }
            Some(Err(error)) => return Err(reason(&error)),
        }
    }
}

/// Sends each request in a message of its own; those at hand together.
async fn pass_out(
    mut socket: ReadHalf<'_>,
    mut messages: SplitSink<WsStream, Message>,
) -> Result<Infallible, LossReason> {
    let mut requests = Frames::new(usize::MAX);
    loop {
        let count = socket.read(requests.spare()).await.unwrap_or(0);
        if count == 0 {
            return Err(LossReason::Closed);
        }
        requests.filled(count);
        while let Some(request) = requests.next()? {
            let message = Message::text(String::from_utf8_lossy(request).into_owned());
            messages.feed(message).await.map_err(|error| reason(&error))?;
        }
        messages.flush().await.map_err(|error| reason(&error))?;
    }
}

fn reason(error: &tungstenite::Error) -> LossReason {
    match error {
        tungstenite::Error::Io(error) => LossReason::from_io(error),
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            LossReason::Closed
        }
        other => LossReason::garbage(other.to_string().as_bytes()),
    }
}
