//! Opening a connection, and finding out whether a node is behind it.

use std::{
    io,
    os::unix::fs::FileTypeExt,
    path::Path,
    sync::atomic::{AtomicU64, AtomicUsize},
    time::Duration,
};

use alloy_primitives::{B256, U64};
use alloy_pubsub::PubSubConnect;
use tokio::{io::AsyncReadExt, net::UnixStream, time::timeout};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::{
    Connection, ConnectionShared,
    backend::{Connector, Socket},
    clip,
};
use crate::{
    config::{Endpoint, FetcherConfig},
    error::{CallError, ConnectError, LossReason},
};

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The answer to `web3_clientVersion`, such as `reth/v2.5.1` or `Geth/v1.16.9`.
    pub client: String,
    /// The answer to `eth_chainId`.
    pub chain_id: u64,
}

/// Opens a connection and probes it: the peer must be an execution node that hands out raw
/// transactions.
///
/// # Errors
/// See [`ConnectError`]: each names the endpoint and the likely cause. Takes at most the ping
/// time-out for each of the three questions.
///
/// With `known`, the source was up before: it is not asked for a raw transaction again, since a
/// node that is slow with those is a node, and is of use for all else.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    config: &FetcherConfig,
    known: bool,
) -> Result<Connection, ConnectError> {
    let socket = match endpoint {
        Endpoint::Ipc(path) => Socket::Ipc(open_ipc(path).await?),
        Endpoint::Ws(url) => open_ws(url, config).await?,
    };
    let shared = ConnectionShared::new(config.announcement_buffer);
    let connector = Connector::new(socket, shared.clone(), config.max_frame_bytes);
    let frontend = connector
        .into_service()
        .await
        .map_err(|error| io_error(endpoint, io::Error::other(error.to_string())))?;
    let mut connection = Connection {
        frontend,
        next_id: AtomicU64::new(1),
        in_flight: AtomicUsize::new(0),
        shared,
        node: NodeInfo { client: String::new(), chain_id: 0 },
    };
    let probe = Probe { connection: &connection, endpoint, config };
    let chain_id: U64 = probe.request("eth_chainId", ()).await?;
    let client: String = probe.request("web3_clientVersion", ()).await?;
    if !known {
        probe.hands_out_raw_transactions().await?;
    }
    connection.node = NodeInfo { client: clip(&client, 120), chain_id: chain_id.to() };
    Ok(connection)
}

struct Probe<'a> {
    connection: &'a Connection,
    endpoint: &'a Endpoint,
    config: &'a FetcherConfig,
}

impl Probe<'_> {
    async fn request<T: serde::de::DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl serde::Serialize,
    ) -> Result<T, ConnectError> {
        match self.connection.call(method, params, self.config.ping_timeout).await {
            Ok(answer) => serde_json::from_str(answer.get())
                .map_err(|_| self.not_ethereum(method, answer.get())),
            Err(error) => Err(self.refusal(method, error).await),
        }
    }

    /// Nodes without the method are of no use, and better found now than at every transaction. Any
    /// other error is a node's: geth answers an unknown hash with one while it builds its index.
    async fn hands_out_raw_transactions(&self) -> Result<(), ConnectError> {
        const METHOD: &str = "eth_getRawTransactionByHash";
        match self.connection.call(METHOD, (B256::ZERO,), self.config.ping_timeout).await {
            Ok(_) | Err(CallError::Rpc { code: -32603..=-32000, .. }) => Ok(()),
            Err(error) => Err(self.refusal(METHOD, error).await),
        }
    }

    async fn refusal(&self, method: &'static str, error: CallError) -> ConnectError {
        let endpoint = self.endpoint.to_string();
        match error {
            CallError::Timeout(timeout) => ConnectError::NoAnswer { endpoint, method, timeout },
            CallError::Rpc { message, .. } => self.not_ethereum(method, &message),
            CallError::ConnectionLost => match self.connection.closed().await {
                LossReason::Garbage(said) => ConnectError::NotJsonRpc { endpoint, said },
                LossReason::Io(kind) => ConnectError::Io { endpoint, source: kind.into() },
                _ => match hear_refusal(self.endpoint).await {
                    Some(said) => ConnectError::NotJsonRpc { endpoint, said },
                    None => ConnectError::ClosedAtOnce { endpoint },
                },
            },
        }
    }

    fn not_ethereum(&self, method: &'static str, answer: &str) -> ConnectError {
        ConnectError::NotEthereum {
            endpoint: self.endpoint.to_string(),
            method,
            answer: clip(answer, 120),
        }
    }
}

/// Connects once more and only listens: a peer that refuses with a line of text (reth at its limit
/// of connections) and closes while our question is unread takes its words back with it.
async fn hear_refusal(endpoint: &Endpoint) -> Option<String> {
    let Endpoint::Ipc(path) = endpoint else { return None };
    let mut stream = UnixStream::connect(path).await.ok()?;
    let mut said = vec![0; 120];
    let count = timeout(Duration::from_millis(200), stream.read(&mut said)).await.ok()?.ok()?;
    (count > 0).then(|| String::from_utf8_lossy(&said[..count]).into_owned())
}

/// Opens the Unix socket at `path`, anew each time: nodes delete and re-create it at start.
pub(crate) async fn open_ipc(path: &Path) -> Result<UnixStream, ConnectError> {
    UnixStream::connect(path).await.map_err(|error| explain(path, error))
}

fn explain(path: &Path, error: io::Error) -> ConnectError {
    let endpoint = path.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => ConnectError::Missing { endpoint },
        io::ErrorKind::PermissionDenied => ConnectError::PermissionDenied { endpoint },
        // Linux answers "refused" both for a stale socket and for what is no socket at all.
        _ if path.metadata().is_ok_and(|meta| !meta.file_type().is_socket()) => {
            ConnectError::NotASocket { endpoint }
        }
        io::ErrorKind::ConnectionRefused => ConnectError::Refused { endpoint },
        _ => ConnectError::Io { endpoint, source: error },
    }
}

async fn open_ws(url: &str, config: &FetcherConfig) -> Result<Socket, ConnectError> {
    let limits = WebSocketConfig::default()
        .max_message_size(Some(config.max_frame_bytes))
        .max_frame_size(Some(config.max_frame_bytes));
    let connect = tokio_tungstenite::connect_async_with_config(url, Some(limits), true);
    match timeout(config.ping_timeout, connect).await {
        Ok(Ok((stream, _))) => Ok(Socket::Ws(Box::new(stream))),
        Ok(Err(error)) => Err(ConnectError::Io {
            endpoint: url.to_owned(),
            source: io::Error::other(error.to_string()),
        }),
        Err(_) => Err(ConnectError::NoAnswer {
            endpoint: url.to_owned(),
            method: "the WebSocket handshake",
            timeout: config.ping_timeout,
        }),
    }
}

fn io_error(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    ConnectError::Io { endpoint: endpoint.to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_denied_names_the_path_and_the_cure() {
        // Not over a real socket: the tests may run as root, who is denied nothing.
        let error = explain(Path::new("/n.ipc"), io::ErrorKind::PermissionDenied.into());
        assert!(matches!(error, ConnectError::PermissionDenied { .. }));
        assert!(error.to_string().starts_with("/n.ipc: permission denied"));
    }
}
