//! What the host knows of who signs requests.

use alloy_primitives::Address;

/// What is known of a signer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// The host named it.
    AllowListed,
    /// Its orders have been in blocks.
    Proven,
    /// Nothing is known of it.
    #[default]
    Unknown,
}

/// Says what is known of a signer. Builders rank searchers; by this the RPC server serves them in that
/// order.
pub trait SignerStanding: Send + Sync {
    /// Asked for each request with a signature, before the signature is verified: who claims to be another
    /// gets a work permit as early, within the shares of its address, and then an error response. Called
    /// on a thread that serves connections, so it must not block.
    fn standing(&self, signer: Address) -> Standing;
}

/// Nothing is known of anyone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strangers;

impl SignerStanding for Strangers {
    fn standing(&self, _: Address) -> Standing {
        Standing::Unknown
    }
}
