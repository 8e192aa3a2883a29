//! Views that need the writer's lock: dependencies between orders, and the holdings of signers.

use std::{collections::BTreeSet, sync::Arc};

use alloy_primitives::{Address, B256};

use super::Core;
use crate::order::{Order, Transaction};

/// How an order relates to the other pooled ones.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Relations {
    /// Single transactions of its senders with lower nonces, which must come before it in the
    /// block, alone or in a bundle. In the order of the order's own transactions, then by nonce.
    pub before: Vec<Arc<Order>>,
    /// Orders that exclude it from the same block: those with another transaction of the same
    /// sender and nonce, and bundles that contain one of its own transactions. In order of
    /// acceptance. Bundles that may omit the transaction are listed too.
    pub conflicts: Vec<Arc<Order>>,
}

/// The holdings of one signer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignerStats {
    /// The signer; `None` for all unsigned bundles together.
    pub signer: Option<Address>,
    /// Pooled bundles.
    pub bundles: usize,
    /// Their memory, in bytes.
    pub bundle_bytes: usize,
    /// Replacement keys that are remembered without a bundle: cancelled ones, and those whose
    /// bundle was removed.
    pub idle_keys: usize,
}

impl Core {
    pub(crate) fn relations(&self, hash: &B256) -> Option<Relations> {
        let seq = self.find(hash)?;
        let order = self.order(seq)?;
        let txs: &[Transaction] = match &**order {
            Order::Tx(tx) => std::slice::from_ref(tx),
            Order::Bundle(bundle) => bundle.txs(),
        };
        let own: BTreeSet<B256> = txs.iter().map(|tx| *tx.hash()).collect();
        let mut before = Vec::new();
        let mut conflicts = BTreeSet::new();
        for tx in txs {
            let (sender, nonce) = (tx.sender(), tx.nonce());
            for seq in self.senders.of(&sender, 0, Some(nonce)) {
                // Its own transactions are in it already.
                let order = self.order(seq).filter(|order| !own.contains(order.id().hash()));
                before.extend(order.map(|order| (seq, Arc::clone(order))));
            }
            conflicts.extend(self.senders.of(&sender, nonce, nonce.checked_add(1)));
            conflicts.extend(self.bundles.with_nonce(sender, nonce));
        }
        conflicts.remove(&seq);
        let mut seen = BTreeSet::new();
        before.retain(|(seq, _)| seen.insert(*seq));
        Some(Relations {
            before: before.into_iter().map(|(_, order)| order).collect(),
            conflicts: conflicts.iter().filter_map(|seq| self.order(*seq).cloned()).collect(),
        })
    }

    pub(crate) fn signer_stats(&self, signer: Option<Address>) -> SignerStats {
        let shares = self.bundles.shares();
        SignerStats {
            signer,
            bundles: shares.count(&signer),
            bundle_bytes: shares.bytes(&signer),
            idle_keys: signer.map_or(0, |signer| self.keys.idle_of(&signer)),
        }
    }

    pub(crate) fn signers(&self) -> Vec<SignerStats> {
        let idle = self.keys.idle_signers().map(|signer| Some(*signer));
        let all: BTreeSet<_> = self.bundles.shares().holders().copied().chain(idle).collect();
        all.into_iter().map(|signer| self.signer_stats(signer)).collect()
    }
}
