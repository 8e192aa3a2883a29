//! The blocklist's checks before and after an execution. rbuilder's providers keep the list, reload
//! it and set its metrics.

use std::sync::Arc;

use alloy_consensus::{Transaction, transaction::Recovered};
use alloy_primitives::Address;
use blocklist::{BlockGuard, Blocklist, BlocklistConfig};

use super::TransactionErr;
use crate::live_builder::block_list_provider::BlockList;

/// Returns the guard of one block, or `None` if the list contains its fee recipient: such a block
/// must not be built.
pub fn guard(list: &BlockList, fee_recipient: Address) -> Option<BlockGuard> {
    let mut config = BlocklistConfig::default();
    // rbuilder's provider has checked the length of the list, and may allow an empty one.
    config.min_addresses = 0;
    let list = Blocklist::from_addresses(list.iter().copied(), &config);
    let guard = list.and_then(|list| BlockGuard::new(Arc::new(list), fee_recipient));
    guard.inspect_err(|error| tracing::error!(%error, "No block is built")).ok()
}

/// Checks the addresses that a transaction names before it is executed: sender, recipient, access
/// list, EIP-7702 authorities and delegation targets. After the execution call
/// [`BlockGuard::check_addresses`].
///
/// # Errors
/// [`TransactionErr::Blocklist`], as rbuilder's own check of sender and recipient returns it.
pub fn precheck<T: Transaction>(
    guard: &BlockGuard,
    tx: &Recovered<T>,
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
