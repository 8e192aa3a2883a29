//! Opens a connection, and decides whether the peer is an execution node that can be used.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{B256, U64};
use serde::de::DeserializeOwned;
#[cfg(feature = "ipc")]
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Connection, clip};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError},
    limits::Limits,
};

/// The client version and the chain id of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The result of `web3_clientVersion`, such as `reth/v2.5.1` or `Geth/v1.16.9`, at most 120
    /// characters; "unknown" for a node without this method. It is only displayed.
    pub client: String,
    /// The result of `eth_chainId` (EIP-155).
    pub chain_id: u64,
}

/// A connection whose peer has shown that it is an execution node.
pub(crate) struct Dialed {
    pub(crate) connection: Arc<Connection>,
    pub(crate) node: NodeInfo,
}

/// Opens a connection and probes it: the peer must be an execution node with
/// `eth_getRawTransactionByHash`. The caller checks its chain with
/// [`ChainId::check`](super::ChainId::check).
///
/// `was_connected` says that the source was connected before. Then no raw transaction is requested,
/// because a node that only responds slowly to such requests is still an execution node, and can
/// answer all other calls.
///
/// # Errors
/// See [`ConnectError`]. Each of four steps has the ping time-out.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    limits: &Limits,
    was_connected: bool,
) -> Result<Dialed, ConnectError> {
    let connection = Arc::new(Connection::open(endpoint, limits).await?);
    let limit = limits.ping_timeout;
    let chain_id: U64 = first_call(&connection, endpoint, "eth_chainId", limit).await?;
    let client = match connection.call("web3_clientVersion", (), limit).await {
        Ok(response) => serde_json::from_str::<String>(response.get()).ok(),
        Err(CallError::Timeout(timeout)) => {
            return Err(ConnectError::no_answer(endpoint, "web3_clientVersion", timeout));
        }
        Err(_) => None,
    };
    if !was_connected && let Some(error) = probe(&connection, limit).await.err() {
        return Err(probe_error(endpoint, error).await);
    }
    let client = client.map_or_else(|| "unknown".to_owned(), |client| clip(&client, 120));
    Ok(Dialed { connection, node: NodeInfo { client, chain_id: chain_id.to() } })
}

const RAW_TRANSACTION: &str = "eth_getRawTransactionByHash";

/// Checks that the node has the method with which transactions are requested. Only the code -32601
/// says that it does not, and on anvil -32602, since the hash is well formed. Any other error comes
/// from a node that has the method: for an unknown hash, Nethermind answers 4444 and some proxies
/// 1, and geth returns an error while it builds its transaction index.
async fn probe(connection: &Connection, limit: Duration) -> Result<(), CallError> {
    match connection.call(RAW_TRANSACTION, (B256::ZERO,), limit).await {
        Err(CallError::Rpc { code, .. }) if !matches!(code, -32601 | -32602) => Ok(()),
        response => response.map(drop),
    }
}

/// Converts the error of the probe.
async fn probe_error(endpoint: &Endpoint, error: CallError) -> ConnectError {
    match error {
        CallError::Rpc { code, message } => ConnectError::NoRawTransactions {
            endpoint: endpoint.to_string(),
            method: RAW_TRANSACTION,
            code,
            message,
        },
        other => connect_error(endpoint, RAW_TRANSACTION, other).await,
    }
}

/// Makes the first call of a connection, whose errors show what the peer is.
async fn first_call<T: DeserializeOwned>(
    connection: &Connection,
    endpoint: &Endpoint,
    method: &'static str,
    limit: Duration,
) -> Result<T, ConnectError> {
    match connection.call(method, (), limit).await {
        Ok(response) => serde_json::from_str(response.get())
            .map_err(|_| not_ethereum(endpoint, method, response.get())),
        Err(error) => Err(connect_error(endpoint, method, error).await),
    }
}

/// Converts the error of a call to a peer that has not shown that it is a node.
async fn connect_error(
    endpoint: &Endpoint,
    method: &'static str,
    error: CallError,
) -> ConnectError {
    match error {
        CallError::Timeout(timeout) => match first_message(endpoint).await {
            // The peer responds, but alloy does not accept that as the response: its id is a text,
            // for one.
            Some(received) => {
                ConnectError::NotUnderstood { endpoint: endpoint.to_string(), received }
            }
            None => ConnectError::no_answer(endpoint, method, timeout),
        },
        CallError::Rpc { message, .. } => not_ethereum(endpoint, method, &message),
        CallError::Unreadable { response } => not_ethereum(endpoint, method, &response),
        CallError::ConnectionLost => match first_message(endpoint).await {
            Some(received) => {
                ConnectError::NotUnderstood { endpoint: endpoint.to_string(), received }
            }
            None => ConnectError::ClosedAtOnce { endpoint: endpoint.to_string() },
        },
    }
}

/// Returns the first message of the peer to one request, at most 120 characters. alloy reports only
/// that a message was of no use, and an operator has to see it: "Too many connections", HTML, or
/// JSON.
#[cfg(feature = "ipc")]
async fn first_message(endpoint: &Endpoint) -> Option<String> {
    const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    const LIMIT: Duration = Duration::from_secs(1);
    let Endpoint::Ipc(path) = endpoint else { return None };
    let read = async {
        let mut socket = tokio::net::UnixStream::connect(path).await.ok()?;
        // The error may mean that the peer has sent its message and closed the connection.
        let _ = socket.write_all(REQUEST).await;
        let mut bytes = [0; 480];
        let count = socket.read(&mut bytes).await.ok()?;
        Some(clip(String::from_utf8_lossy(bytes.get(..count)?).trim_end(), 120))
    };
    let message = tokio::time::timeout(LIMIT, read).await.ok()??;
    (!message.is_empty()).then_some(message)
}

#[cfg(not(feature = "ipc"))]
async fn first_message(_endpoint: &Endpoint) -> Option<String> {
    None
}

/// Makes the error of a peer that is not an execution node, with the start of its response.
pub(crate) fn not_ethereum(
    endpoint: &Endpoint,
    method: &'static str,
    response: &str,
) -> ConnectError {
    let answer = clip(response, 120);
    ConnectError::NotEthereum { endpoint: endpoint.to_string(), method, answer }
}
