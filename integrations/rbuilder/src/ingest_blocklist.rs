//! The list behind rbuilder's trait, and the check where its `AccessListInspector` stands.

use std::{sync::Arc, time::SystemTime};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::Address;
use ::blocklist::{BlockGuard, SharedBlocklist};

// In rbuilder:
// use super::block_list_provider::{BlockList, BlockListProvider, Error};
// use crate::{building::TransactionErr, telemetry::update_blocklist_metrics};
// use reth_primitives::TransactionSigned;
use crate::rbuilder::{
    BlockList, BlockListProvider, Error, TransactionErr, TransactionSigned,
    update_blocklist_metrics,
};

/// A list that is reloaded elsewhere, as rbuilder's components ask for it.
#[derive(Debug, Clone)]
pub struct IngestBlockList(Arc<SharedBlocklist>);

impl IngestBlockList {
    /// For the list in force, whose length and hash go to rbuilder's own two metrics. Call [`Self::was_reloaded`] after each
    /// reload.
    pub fn new(list: Arc<SharedBlocklist>) -> Self {
        let provider = Self(list);
        provider.was_reloaded();
        provider
    }

    /// Sets rbuilder's metrics of the list anew, as its own providers do. Of a list that is too old they stay.
    pub fn was_reloaded(&self) {
        if let Ok(list) = self.get_blocklist() {
            update_blocklist_metrics(&list);
        }
    }
}

impl BlockListProvider for IngestBlockList {
    fn get_blocklist(&self) -> Result<BlockList, Error> {
        let list = self.0.current(SystemTime::now()).map_err(|_| Error::UnableToUpdateList)?;
        Ok(list.iter().copied().collect())
    }

    fn current_list_contains(&self, address: &Address) -> Result<bool, Error> {
        let list = self.0.current(SystemTime::now()).map_err(|_| Error::UnableToUpdateList)?;
        Ok(list.contains(address))
    }
}

/// The check before the execution, where `commit_tx_inner` of rbuilder's `building/order_commit.rs` looks up sender and recipient;
/// `guard.check_addresses` is the one after it.
///
/// # Errors
/// What rbuilder's own look-up returns.
pub fn precheck(
    guard: &BlockGuard,
    tx: &Recovered<TransactionSigned>,
) -> Result<(), TransactionErr> {
    let access_list = tx.access_list().into_iter().flat_map(|list| list.iter());
    let authorizations = tx.authorization_list().unwrap_or_default().iter();
    guard
        .precheck_addresses(
            tx.signer(),
            tx.to(),
            access_list.map(|item| item.address),
            authorizations.map(|signed| (signed.recover_authority().ok(), *signed.address())),
        )
        .map_err(|_| TransactionErr::Blocklist)
}
