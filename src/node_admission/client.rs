//! Requests accounts from a node, over a connection that is opened again after a failure.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, U64, U256};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use order_pool::Funds;
use txpool_fetcher::{CallError, ConnectError, Endpoint, NodeClient};

/// Time for a batch, including the connect. A connection whose responses are later is closed.
const BATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a node that did not answer is not asked again. One attempt a second needs no further
/// backoff.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Accounts of a batch that are requested at the same time, each with two calls: few enough that
/// the node reads all of them while it answers.
const ACCOUNTS_IN_FLIGHT: usize = 32;

/// The number of the node's latest block, and the accounts in the order of the addresses; `None`
/// for an account for which the node returned an error.
type Accounts = (u64, Vec<Option<Funds>>);

/// Why a batch failed.
#[derive(Debug, thiserror::Error)]
enum BatchError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A node, and the connection to it while there is one.
#[derive(Debug)]
pub(super) struct AccountClient {
    endpoint: Endpoint,
    /// [`Funds::max_nonces_ahead`] of every account.
    max_nonces_ahead: u8,
    connected: Option<NodeClient>,
    failed_at: Option<Instant>,
}

impl AccountClient {
    pub(super) const fn new(endpoint: Endpoint, max_nonces_ahead: u8) -> Self {
        Self { endpoint, max_nonces_ahead, connected: None, failed_at: None }
    }

    /// Requests accounts; `None` if the node does not answer in time, or with anything else.
    pub(super) async fn accounts(&mut self, addresses: &[Address]) -> Option<Accounts> {
        if self.failed_at.is_some_and(|failed_at| failed_at.elapsed() < PAUSE_AFTER_FAILURE) {
            return None;
        }
        let batch = tokio::time::timeout(BATCH_TIMEOUT, self.request(addresses)).await;
        match batch.unwrap_or(Err(CallError::Timeout(BATCH_TIMEOUT).into())) {
            Ok(accounts) => {
                if self.failed_at.take().is_some() {
                    tracing::info!(endpoint = %self.endpoint, "the node returns accounts again");
                }
                Some(accounts)
            }
            Err(error) => {
                if self.failed_at.replace(Instant::now()).is_none() {
                    tracing::warn!(
                        %error,
                        endpoint = %self.endpoint,
                        "the node does not return accounts",
                    );
                }
                self.connected = None;
                None
            }
        }
    }

    /// The block comes first, so that no account is older than it.
    async fn request(&mut self, addresses: &[Address]) -> Result<Accounts, BatchError> {
        let client = match &mut self.connected {
            Some(client) => client,
            none => none.insert(NodeClient::connect(&self.endpoint, BATCH_TIMEOUT).await?),
        };
        let block: U64 = client.call("eth_blockNumber", (), BATCH_TIMEOUT).await?;
        let accounts = stream::iter(addresses)
            .map(|address| account(client, *address, self.max_nonces_ahead))
            .buffered(ACCOUNTS_IN_FLIGHT)
            .try_collect()
            .await?;
        Ok((block.to(), accounts))
    }
}

/// Requests one account; `None` if the node returns an error for it.
async fn account(
    client: &NodeClient,
    address: Address,
    max_nonces_ahead: u8,
) -> Result<Option<Funds>, CallError> {
    let params = (address, "latest");
    let requested = future::try_join(
        client.call::<U256>("eth_getBalance", params, BATCH_TIMEOUT),
        client.call::<U64>("eth_getTransactionCount", params, BATCH_TIMEOUT),
    );
    match requested.await {
        Ok((balance_wei, next_nonce)) => {
            Ok(Some(Funds { balance_wei, next_nonce: next_nonce.to(), max_nonces_ahead }))
        }
        Err(CallError::Rpc { .. } | CallError::Unreadable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
