//! The genesis block of each source's chain: decides whether a development chain was reset, which
//! then has another genesis block under the same chain id.

use std::{sync::Mutex, time::Duration};

use alloy_primitives::{B256, U64};
use serde::Deserialize;

use super::Connection;
use crate::sync::lock;

/// The hash of each source's genesis block, once its node has returned it.
#[derive(Debug)]
pub(crate) struct Genesis(Mutex<Box<[Option<B256>]>>);

impl Genesis {
    pub(crate) fn new(sources: usize) -> Self {
        Self(Mutex::new(vec![None; sources].into()))
    }

    /// Records the genesis block of a source. Returns the previous one, if it is another block.
    pub(crate) fn replace(&self, source: usize, found: B256) -> Option<B256> {
        let before = lock(&self.0)[source].replace(found)?;
        (before != found).then_some(before)
    }
}

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
