//! Requests the genesis block of a node. A development chain that was reset has another genesis
//! block under the same chain id.

use std::time::Duration;

use alloy_primitives::{B256, U64};
use serde::Deserialize;

use super::Connection;

/// Requests the hash of the node's genesis block. `None` if the node does not return it in time.
pub(crate) async fn genesis_of(connection: &Connection, limit: Duration) -> Option<B256> {
    #[derive(Deserialize)]
    struct Block {
        number: U64,
        hash: B256,
    }
    let response = connection.call("eth_getBlockByNumber", ("0x0", false), limit).await.ok()?;
    let block: Block = serde_json::from_str(response.get()).ok()?;
    block.number.is_zero().then_some(block.hash)
}
