//! Bundles: all transactions or none, except those that the sender marked as optional.

use std::time::SystemTime;

use blocklist::{BlockGuard, Blocked};
use mempool_ingest::order_pool::Bundle;
use revm::{
    DatabaseRef,
    context::result::ExecutionResult,
    database::{AccountState, Cache, CacheDB},
};

use crate::{
    candidates::CandidateBundle,
    env::NextBlock,
    fill::BuiltTx,
    machine::{Check, Machine, Reads, Refusal, Store, Under},
};

/// The result of a bundle. Nothing is written unless it is included.
#[derive(Debug)]
pub(crate) enum BundleEnd {
    In {
        txs: Vec<(BuiltTx, SystemTime)>,
        gas_used: u64,
        blobs: u64,
        tips_wei: u128,
    },
    Blocked(Blocked),
    Unread,
    /// One of its transactions reverts, is invalid or does not fit, and is not optional.
    Out,
}

/// Whether its conditions on the block hold. A bundle that wants a refund is left out, because this
/// builder pays none.
pub(crate) fn may_be_in(bundle: &Bundle, block: &NextBlock) -> bool {
    let timestamp = block.env.timestamp.saturating_to::<u64>();
    let parts = bundle.parts();
    bundle.block().is_none_or(|number| number == block.number())
        && parts.min_timestamp.is_none_or(|min| min <= timestamp)
        && parts.max_timestamp.is_none_or(|max| timestamp <= max)
        && parts.refund_percent.unwrap_or(0) == 0
}

/// Executes it on a layer of its own over the block's writes, and keeps the layer if it succeeds.
///
/// A transaction that reverts stays in the block if `revertingTxHashes` names it, is left out if
/// only `droppingTxHashes` does, and otherwise ends the bundle. An invalid or blocked transaction
/// can only be left out.
pub(crate) fn take<'b, R: Reads, C: Check, U: Under>(
    machine: &mut Machine<'b, R::Store<U>, C>,
    (block, guard, fresh): (&'b NextBlock, &'b BlockGuard, bool),
    bundle: &CandidateBundle,
    (gas_left, blobs_left): (u64, u64),
) -> BundleEnd {
    let parts = bundle.bundle().parts();
    let (mut txs, mut used_gas, mut used_blobs, mut tips_wei) = (Vec::new(), 0, 0, 0u128);
    let written = {
        let under = machine.store().writes();
        let mut layer: Machine<'_, R::Store<_>, C> =
            Machine::new(R::over(under), block, guard, fresh);
        for tx in &bundle.txs {
            if tx.gas_limit > gas_left - used_gas || tx.blobs > blobs_left - used_blobs {
                return BundleEnd::Out;
            }
            let may_revert = parts.reverting_tx_hashes.contains(&tx.hash);
            let may_be_left_out = parts.dropping_tx_hashes.contains(&tx.hash);
            let keep = |result: &ExecutionResult| result.is_success() || may_revert;
            match layer.execute(tx.env.clone(), &keep) {
                Ok((result, true)) => {
                    let gas_used = result.tx_gas_used();
                    let success = result.is_success();
                    txs.push((BuiltTx { hash: tx.hash, gas_used, success }, tx.first_seen));
                    used_gas += gas_used;
                    used_blobs += tx.blobs;
                    let tip_wei = tx.tip_wei(block.base_fee_wei()).unwrap_or(0);
                    tips_wei += tip_wei.saturating_mul(gas_used.into());
                }
                Ok((_, false)) | Err(_) if may_be_left_out => {}
                Err(Refusal::Blocked(blocked)) => return BundleEnd::Blocked(blocked),
                Err(Refusal::Unread(_)) => return BundleEnd::Unread,
                Ok((_, false)) | Err(_) => return BundleEnd::Out,
            }
        }
        if txs.is_empty() {
            return BundleEnd::Out;
        }
        std::mem::take(&mut layer.store().writes_mut().cache)
    };
    merge(machine.store().writes_mut(), written);
    BundleEnd::In { txs, gas_used: used_gas, blobs: used_blobs, tips_wei }
}

/// Applies a layer's writes, without its reads, to the state below it.
fn merge<U: DatabaseRef>(under: &mut CacheDB<U>, layer: Cache) {
    for (address, account) in layer.accounts {
        match account.account_state {
            AccountState::None => {}
            // Read and found not to exist; or destroyed, together with its storage.
            AccountState::NotExisting => {
                under.cache.accounts.insert(address, account);
            }
            AccountState::StorageCleared => {
                under.cache.accounts.insert(address, account);
            }
            AccountState::Touched => {
                let below = under.cache.accounts.entry(address).or_default();
                below.info = account.info;
                if !below.account_state.is_storage_cleared() {
                    below.account_state = AccountState::Touched;
                }
                below.storage.extend(account.storage);
            }
        }
    }
    under.cache.contracts.extend(layer.contracts);
}
