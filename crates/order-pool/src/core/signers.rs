//! The holdings of signers.

use std::collections::BTreeSet;

use alloy_primitives::Address;

use super::Core;

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
