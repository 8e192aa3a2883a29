//! Decides against whom the orders of an external caller are counted.

use std::net::{IpAddr, Ipv6Addr};

use alloy_primitives::Address;

/// The party that holds an order of an external caller.
///
/// The pool counts by holder first, then by signer. At a cap the holder with the most loses an
/// order, so further keys, which cost nothing, gain nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// The host itself. Half of each cap is for the host and the signers that it knows.
    #[default]
    Host,
    /// A signer that the host knows.
    Signer(Address),
    /// A caller of whom the host knows only the network address: see [`Self::caller`].
    Caller(IpAddr),
    /// A signer that the host does not know, behind a front (a trusted machine that forwards the
    /// requests of many signers).
    Forwarded {
        /// The address of the front.
        front: IpAddr,
        /// The signer; `None` if the request is not signed.
        signer: Option<Address>,
    },
}

/// A group of holders that one person can own, so that together they have a bounded number of
/// callers' shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Network {
    /// The first 48 bits of an IPv6 address.
    Site(Ipv6Addr),
    /// All signers behind a front that the host does not know.
    Front(IpAddr),
}

impl Holder {
    /// Returns the holder for a network address: an IPv4 address, or the first 56 bits of an IPv6
    /// address, which is the least that a provider gives to one subscriber (RIPE-690). The callers
    /// of one /48 have the shares of four callers together.
    pub fn caller(address: IpAddr) -> Self {
        Self::Caller(match address.to_canonical() {
            IpAddr::V6(address) => prefix(address, 56).into(),
            address => address,
        })
    }

    /// Whether it counts in the half of the host and the signers that it knows, which callers
    /// cannot use.
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Host | Self::Signer(_))
    }

    /// Returns the network to which it belongs; `None` for an IPv4 address, which costs money, and
    /// for a known holder.
    pub(crate) fn network(&self) -> Option<Network> {
        match *self {
            Self::Host | Self::Signer(_) | Self::Caller(IpAddr::V4(_)) => None,
            Self::Caller(IpAddr::V6(address)) => Some(Network::Site(prefix(address, 48))),
            Self::Forwarded { front, .. } => Some(Network::Front(front)),
        }
    }
}

fn prefix(address: Ipv6Addr, bits: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - bits)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_56_is_one_caller_and_a_48_one_network() {
        let holder = |address: &str| Holder::caller(address.parse().expect("an address"));
        let one = holder("2001:db8:1:ab01::1");
        assert_eq!(one, holder("2001:db8:1:abff:ffff::2"), "the same /56");
        let neighbour = holder("2001:db8:1:ac00::1");
        assert_ne!(one, neighbour);
        assert_eq!(one.network(), neighbour.network(), "the same /48");
        assert_ne!(one.network(), holder("2001:db8:2::1").network());
        assert_eq!(holder("::ffff:10.0.0.1"), holder("10.0.0.1"));
        assert_eq!(holder("10.0.0.1").network(), None);
    }
}
