//! Opens a connection for alloy-pubsub, and prevents its reconnect.

use std::{io, sync::Arc};

use alloy_pubsub::{ConnectionHandle, PubSubConnect};
use alloy_transport::{RpcError, TransportError, TransportErrorKind, TransportResult};

use super::End;
use crate::{config::Endpoint, error::ConnectError};

/// Connects once. When alloy asks for a reconnect, the connection is lost, and it ends.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub(super) endpoint: Endpoint,
    pub(super) ended: Arc<End>,
    /// Longest WebSocket message. alloy's IPC transport has no such limit.
    #[cfg_attr(not(feature = "ws"), expect(dead_code, reason = "only WebSockets have a limit"))]
    pub(super) max_message_bytes: usize,
}

impl PubSubConnect for Connector {
    fn is_local(&self) -> bool {
        matches!(self.endpoint, Endpoint::Ipc(_))
    }

    async fn connect(&self) -> TransportResult<ConnectionHandle> {
        let handle: TransportResult<ConnectionHandle> = match &self.endpoint {
            #[cfg(feature = "ipc")]
            Endpoint::Ipc(path) => {
                alloy_transport_ipc::IpcConnect::new(path.clone()).connect().await
            }
            #[cfg(feature = "ws")]
            Endpoint::Ws(url) => {
                use alloy_transport_ws::{WebSocketConfig, WsConnect};
                let config = WebSocketConfig::default()
                    .max_message_size(Some(self.max_message_bytes))
                    .max_frame_size(Some(self.max_message_bytes));
                WsConnect::new(url).with_config(config).connect().await
            }
            other => Err(TransportErrorKind::custom(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("this build has no transport for {other}"),
            ))),
        };
        // alloy gives up after the first failed reconnect, and `try_reconnect` always fails.
        Ok(handle?.with_max_retries(1))
    }

    async fn try_reconnect(&self) -> TransportResult<ConnectionHandle> {
        self.ended.set_by_peer();
        Err(TransportErrorKind::backend_gone())
    }
}

/// Converts the error of a connection that could not be opened: into that of the operating system,
/// if there is one.
pub(super) fn connect_error(endpoint: &Endpoint, error: TransportError) -> ConnectError {
    let error = match error {
        RpcError::Transport(TransportErrorKind::Custom(error)) => {
            error.downcast().map_or_else(io::Error::other, |error| *error)
        }
        other => io::Error::other(other.to_string()),
    };
    ConnectError::io(endpoint, error)
}
