//! Who an order of an external caller is counted against.

use std::net::{IpAddr, Ipv6Addr};

use alloy_primitives::Address;

/// Who holds an order of an external caller. The pool counts by holder first, then by signer: at a
/// cap the holder with the most loses, and keys, which cost nothing, gain nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// The host itself. Half of each cap is for the host and the signers that it knows.
    #[default]
    Host,
    /// A signer that the host knows.
    Signer(Address),
    /// A caller of whom the host knows the network address only: see [`Self::caller`].
    Caller(IpAddr),
    /// A signer that the host does not know, behind a front.
    Forwarded {
        /// The address of the front.
        front: IpAddr,
        /// The signer; `None` for what is not signed.
        signer: Option<Address>,
    },
}

/// Holders of which one person can have many, so that together they have a bounded number of
/// callers' shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Network {
    /// The first 48 bits of an IPv6 address.
    Site(Ipv6Addr),
    /// All that a front forwards for signers that the host does not know.
    Front(IpAddr),
}

impl Holder {
    /// The holder for a network address: IPv4, or the first 56 bits of IPv6, which is the least that
    /// a provider gives to one subscriber (RIPE-690). All of one /48 have the shares of four.
    pub fn caller(address: IpAddr) -> Self {
        Self::Caller(match address.to_canonical() {
            IpAddr::V6(address) => prefix(address, 56).into(),
            address => address,
        })
    }

    /// Whether it counts in the half of the host and the signers that it knows, which callers cannot
    /// take.
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Host | Self::Signer(_))
    }

    /// The network of which it is one of many; `None` for an IPv4 address, which costs money, and
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
    fn an_ipv6_subscriber_is_one_caller_and_a_site_one_network() {
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
