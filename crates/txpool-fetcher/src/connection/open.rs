//! Opens a connection, and finds out whether an execution node is behind it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use alloy_primitives::{B256, U64};
use tokio::sync::watch;

use super::{
    Calls, Connection, End, Listings, Open, Responses, calls::Subscriptions,
    client::RAW_TRANSACTION, clip, open_socket, read::Reader,
};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
    tasks::Tasks,
};

/// The client version and the chain id of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The answer to `web3_clientVersion`, such as `reth/v2.5.1` or `Geth/v1.16.9`.
    pub client: String,
    /// The answer to `eth_chainId`.
    pub chain_id: u64,
}

/// The chain of the configuration, or that of the first listed source. It never changes.
pub(crate) struct ChainId {
    pinned: OnceLock<u64>,
    /// Of each source, whether an attempt to connect has ended.
    tried: watch::Sender<Box<[bool]>>,
}

#[expect(clippy::indexing_slicing, reason = "indices of the configured sources")]
impl ChainId {
    pub(crate) fn new(configured: Option<u64>, sources: usize) -> Self {
        let pinned = configured.map_or_else(OnceLock::new, OnceLock::from);
        Self { pinned, tried: watch::Sender::new(vec![false; sources].into()) }
    }

    pub(crate) fn get(&self) -> Option<u64> {
        self.pinned.get().copied()
    }

    /// Checks the chain of a source. If none was configured, a later source waits until those before it
    /// were reached, or have failed once: the chain does not depend on which node responds first.
    pub(crate) async fn check(
        &self,
        source: usize,
        endpoint: &Endpoint,
        found: u64,
    ) -> Result<(), ConnectError> {
        let mut tried = self.tried.subscribe();
        // The sender lives as long as `self`.
        let _ = tried
            .wait_for(|tried| self.get().is_some() || tried[..source].iter().all(|tried| *tried))
            .await;
        let expected = *self.pinned.get_or_init(|| found);
        self.tried(source);
        if found == expected {
            return Ok(());
        }
        Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
    }

    pub(crate) fn tried(&self, source: usize) {
        self.tried.send_if_modified(|tried| !std::mem::replace(&mut tried[source], true));
    }
}

/// Opens `N` connections, one or two, with one reader, and probes each: the peer must be an execution node
/// with `eth_getRawTransactionByHash`. Its chain is not checked yet: see [`ChainId::check`].
/// The reader is a thread of this name.
///
/// # Errors
/// See [`ConnectError`]. Takes at most the ping time-out for each of the three requests.
///
/// `known` says that the source was up before. Then no raw transaction is requested: a node that is
/// slow to answer such requests is still an execution node, and can answer all other ones.
#[expect(clippy::unreachable, reason = "as many as were opened")]
pub(crate) async fn dial<const N: usize>(
    endpoint: &Endpoint,
    (limits, listings): (&Limits, &Arc<Listings>),
    known: bool,
    (thread, tasks): (&str, &Tasks),
) -> Result<[(Calls, NodeInfo); N], ConnectError> {
    let (mut opened, mut readers, mut dialed) = (Vec::new(), Vec::new(), Vec::with_capacity(N));
    for _ in 0..N {
        let socket =
            open_socket(endpoint, limits.max_frame_bytes, limits.ping_timeout, None).await?;
        let calls = Open(Connection::new(socket));
        readers.push(Reader::new(&calls.0, Subscriptions::default(), limits, listings));
        opened.push(calls);
    }
    Reader::spawn(thread, readers, tasks).map_err(|error| ConnectError::io(endpoint, error))?;
    for calls in opened {
        let limit = limits.ping_timeout;
        let chain_id: U64 = ask(&calls, endpoint, "eth_chainId", limit).await?;
        let client: String = ask(&calls, endpoint, "web3_clientVersion", limit).await?;
        // A node without the method cannot be used. Any other error response comes from a node that
        // has it: geth sends one for an unknown hash while it builds its transaction index.
        if !known
            && let Err(error) = calls.call(RAW_TRANSACTION, (B256::ZERO,), limit).await
            && !matches!(error, CallError::Rpc { code: -32603..=-32000, .. })
        {
            return Err(connect_error(endpoint, RAW_TRANSACTION, error, &calls.ended).await);
        }
        let node = NodeInfo { client: clip(&client, 120), chain_id: chain_id.to() };
        dialed.push((calls, node));
    }
    Ok(dialed.try_into().unwrap_or_else(|_| unreachable!()))
}

/// Opens a connection for the fetches, with a thread of its own, and waits until the node has answered a ping.
pub(crate) async fn open<R: Send + 'static>(
    endpoint: &Endpoint,
    (limits, listings): (&Limits, &Arc<Listings>),
    responses: impl Responses<R>,
    tasks: &Tasks,
) -> Result<Open<R>, ConnectError> {
    let socket = open_socket(endpoint, limits.max_frame_bytes, limits.ping_timeout, None).await?;
    let opened = Open(Connection::new(socket));
    let reader = Reader::new(&opened.0, responses, limits, listings);
    Reader::spawn("mempool-request", vec![reader], tasks)
        .map_err(|error| ConnectError::io(endpoint, error))?;
    match opened.greet(limits.ping_timeout).await {
        Ok(()) => Ok(opened),
        Err(error) => Err(connect_error(endpoint, "eth_blockNumber", error, &opened.ended).await),
    }
}

async fn ask<T: serde::de::DeserializeOwned>(
    calls: &Calls,
    endpoint: &Endpoint,
    method: &'static str,
    limit: Duration,
) -> Result<T, ConnectError> {
    match calls.call(method, (), limit).await {
        Ok(answer) => serde_json::from_str(answer.get())
            .map_err(|_| not_ethereum(endpoint, method, answer.get())),
        Err(error) => Err(connect_error(endpoint, method, error, &calls.ended).await),
    }
}

/// The error of a peer that has not shown that it is a node: how the call of `method` failed, or why the connection has
/// `ended`.
async fn connect_error(
    endpoint: &Endpoint,
    method: &'static str,
    error: CallError,
    ended: &End,
) -> ConnectError {
    let name = endpoint.to_string();
    match error {
        CallError::Timeout(timeout) => ConnectError::NoAnswer { endpoint: name, method, timeout },
        CallError::Rpc { message, .. } => not_ethereum(endpoint, method, &message),
        CallError::ConnectionLost | CallError::Suspect => match ended.wait().await {
            LossReason::Garbage(said) => ConnectError::NotJsonRpc { endpoint: name, said },
            LossReason::Io(kind) => ConnectError::io(endpoint, kind.into()),
            _ => ConnectError::ClosedAtOnce { endpoint: name },
        },
    }
}

pub(crate) fn not_ethereum(endpoint: &Endpoint, method: &'static str, said: &str) -> ConnectError {
    let answer = clip(said, 120);
    ConnectError::NotEthereum { endpoint: endpoint.to_string(), method, answer }
}
