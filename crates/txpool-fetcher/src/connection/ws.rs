//! What the connections of both kinds do with a WebSocket.

use futures::{SinkExt as _, stream::SplitSink};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use super::WsStream;
use crate::error::LossReason;

/// The text of what was received; `None` for a ping or pong of the WebSocket protocol.
pub(crate) fn text_of(
    received: Option<tungstenite::Result<Message>>,
) -> Result<Option<Utf8Bytes>, LossReason> {
    match received {
        Some(Ok(Message::Text(text))) => Ok(Some(text)),
        Some(Ok(Message::Close(_))) | None => Err(LossReason::Closed),
        Some(Ok(_)) => Ok(None),
        Some(Err(error)) => Err(LossReason::from_ws(&error)),
    }
}

/// Writes requests until the connection ends; those at hand together.
pub(crate) async fn write_all(
    mut stream: SplitSink<WsStream, Message>,
    mut requests: mpsc::Receiver<String>,
) -> LossReason {
    while let Some(request) = requests.recv().await {
        let written = async {
            stream.feed(Message::text(request)).await?;
            while let Ok(next) = requests.try_recv() {
                stream.feed(Message::text(next)).await?;
            }
            stream.flush().await
        };
        if let Err(error) = written.await {
            return LossReason::from_ws(&error);
        }
    }
    LossReason::Closed
}
