//! Who an order of an external caller is counted against.

use std::net::{IpAddr, Ipv6Addr};

use alloy_primitives::Address;

/// Who holds an order of an external caller. The pool counts by holder first, then by signer: at a
/// cap the holder with the most loses, and keys, which cost nothing, gain nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// The host, or someone it answers for. Half of each cap is for the host and the signers that
    /// it knows.
    #[default]
    Host,
    /// A signer that the host knows.
    Signer(Address),
    /// A caller of whom the host knows the network address only: see [`Self::caller`].
    Caller(IpAddr),
}

impl Holder {
    /// The holder for a network address: IPv4, or the first 64 bits of IPv6, which is what one
    /// subscriber is given.
    pub fn caller(address: IpAddr) -> Self {
        Self::Caller(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }

    /// Whether it shares the half that callers cannot take.
    pub(crate) const fn is_known(&self) -> bool {
        !matches!(self, Self::Caller(_))
    }
}
