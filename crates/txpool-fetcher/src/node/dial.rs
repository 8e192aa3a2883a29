//! Opens a connection, and finds out whether an execution node is behind it.

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
    /// The answer to `web3_clientVersion`, such as `reth/v2.5.1` or `Geth/v1.16.9`; "unknown" from a
    /// node without this method. For display alone.
    pub client: String,
    /// The answer to `eth_chainId`.
    pub chain_id: u64,
}

/// A connection that has shown that an execution node is behind it.
pub(crate) struct Dialed {
    pub(crate) connection: Arc<Connection>,
    pub(crate) node: NodeInfo,
}

/// Opens a connection and probes it: the peer must be an execution node with
/// `eth_getRawTransactionByHash`. Its chain is not checked yet: see [`ChainId::check`](super::ChainId::check).
///
/// `known` says that the source was up before. Then no raw transaction is requested: a node that is
/// slow to answer such requests is still an execution node, and can answer all other ones.
///
/// # Errors
/// See [`ConnectError`]. Takes at most the ping time-out for each of four steps.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    limits: &Limits,
    known: bool,
) -> Result<Dialed, ConnectError> {
    let connection = Arc::new(Connection::open(endpoint, limits).await?);
    let limit = limits.ping_timeout;
    let chain_id: U64 = first_answer(&connection, endpoint, "eth_chainId", limit).await?;
    let client = match connection.call("web3_clientVersion", (), limit).await {
        Ok(answer) => serde_json::from_str::<String>(answer.get()).ok(),
        Err(CallError::Timeout(timeout)) => {
            return Err(ConnectError::no_answer(endpoint, "web3_clientVersion", timeout));
        }
        Err(_) => None,
    };
    if !known && let Some(error) = probe(&connection, limit).await.err() {
        return Err(unusable(endpoint, error).await);
    }
    let client = client.map_or_else(|| "unknown".to_owned(), |client| clip(&client, 120));
    Ok(Dialed { connection, node: NodeInfo { client, chain_id: chain_id.to() } })
}

const RAW_TRANSACTION: &str = "eth_getRawTransactionByHash";

/// Finds out whether the node has the method with which transactions are requested. Only -32601 says
/// that it has not, and anvil's -32602, since the hash is well formed. Any other error comes from a
/// node that has it: Nethermind answers 4444 and some proxies 1 for a hash that they do not know, and
/// geth has one while it builds its transaction index.
async fn probe(connection: &Connection, limit: Duration) -> Result<(), CallError> {
    match connection.call(RAW_TRANSACTION, (B256::ZERO,), limit).await {
        Err(CallError::Rpc { code, .. }) if !matches!(code, -32601 | -32602) => Ok(()),
        answer => answer.map(drop),
    }
}

async fn unusable(endpoint: &Endpoint, error: CallError) -> ConnectError {
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

async fn first_answer<T: DeserializeOwned>(
    connection: &Connection,
    endpoint: &Endpoint,
    method: &'static str,
    limit: Duration,
) -> Result<T, ConnectError> {
    match connection.call(method, (), limit).await {
        Ok(answer) => serde_json::from_str(answer.get())
            .map_err(|_| not_ethereum(endpoint, method, answer.get())),
        Err(error) => Err(connect_error(endpoint, method, error).await),
    }
}

/// The error of a peer that has not shown that it is a node: how the call of `method` failed.
async fn connect_error(
    endpoint: &Endpoint,
    method: &'static str,
    error: CallError,
) -> ConnectError {
    match error {
        CallError::Timeout(timeout) => match first_words(endpoint).await {
            // It answers, and alloy does not take it for the answer: an id that is a text, for one.
            Some(said) => ConnectError::NotUnderstood { endpoint: endpoint.to_string(), said },
            None => ConnectError::no_answer(endpoint, method, timeout),
        },
        CallError::Rpc { message, .. } => not_ethereum(endpoint, method, &message),
        CallError::Unreadable { said } => not_ethereum(endpoint, method, &said),
        CallError::ConnectionLost => match first_words(endpoint).await {
            Some(said) => ConnectError::NotUnderstood { endpoint: endpoint.to_string(), said },
            None => ConnectError::ClosedAtOnce { endpoint: endpoint.to_string() },
        },
    }
}

/// What the peer answers to one request, at most 120 characters. alloy says that a first answer was of
/// no use and not what it was, and an operator has to see it: "Too many connections", HTML, or JSON.
#[cfg(feature = "ipc")]
async fn first_words(endpoint: &Endpoint) -> Option<String> {
    const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
    const LIMIT: Duration = Duration::from_secs(1);
    let Endpoint::Ipc(path) = endpoint else { return None };
    let read = async {
        let mut socket = tokio::net::UnixStream::connect(path).await.ok()?;
        // Some peers speak first and close at once.
        let _ = socket.write_all(REQUEST).await;
        let mut bytes = [0; 480];
        let count = socket.read(&mut bytes).await.ok()?;
        Some(clip(String::from_utf8_lossy(bytes.get(..count)?).trim_end(), 120))
    };
    let said = tokio::time::timeout(LIMIT, read).await.ok()??;
    (!said.is_empty()).then_some(said)
}

#[cfg(not(feature = "ipc"))]
async fn first_words(_endpoint: &Endpoint) -> Option<String> {
    None
}

pub(crate) fn not_ethereum(endpoint: &Endpoint, method: &'static str, said: &str) -> ConnectError {
    let answer = clip(said, 120);
    ConnectError::NotEthereum { endpoint: endpoint.to_string(), method, answer }
}
