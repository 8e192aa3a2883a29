//! The standing of a request's signer.

use alloy_primitives::Address;

/// What the host knows of a signer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// The host named it.
    AllowListed,
    /// Its orders have been in blocks.
    Proven,
    /// The host does not know it.
    #[default]
    Unknown,
}

/// Returns the standing of a signer, which decides the order in which requests get work permits.
pub trait SignerStanding: Send + Sync {
    /// Called for each request with a signature, before the signature is verified. A caller that
    /// claims another signer gets its work permit as early, within the shares of its address, and
    /// then an error response. Called on a thread that serves connections, so it must not block.
    fn standing(&self, signer: Address) -> Standing;
}

/// Every signer is unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strangers;

impl SignerStanding for Strangers {
    fn standing(&self, _: Address) -> Standing {
        Standing::Unknown
    }
}
