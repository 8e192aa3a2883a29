//! The set of listed addresses, and the two pure checks over addresses.

use alloy_primitives::{Address, B256, Keccak256, map::AddressSet};

use crate::{Blocked, BlocklistConfig, Duplicates, Error, How};

/// A set of addresses that no transaction of a block may reach. Two lists are equal if their
/// addresses are.
///
/// The two checks are pure functions of their arguments: first
/// [`precheck_addresses`](Self::precheck_addresses), then the execution, then
/// [`check_addresses`](Self::check_addresses), and the commit.
#[derive(Clone)]
pub struct Blocklist {
    addresses: AddressSet,
    hash: B256,
    pub(crate) duplicates: Option<Duplicates>,
}

impl PartialEq for Blocklist {
    fn eq(&self, other: &Self) -> bool {
        self.addresses == other.addresses
    }
}

impl Eq for Blocklist {}

impl Blocklist {
    /// Makes a list of parsed addresses. A repeated address counts once, and is not reported by
    /// [`Self::duplicates`]. Of `config`, only `min_addresses` is used.
    ///
    /// # Errors
    /// [`Error::TooFew`] if there are fewer than `config.min_addresses`.
    pub fn from_addresses(
        addresses: impl IntoIterator<Item = Address>,
        config: &BlocklistConfig,
    ) -> Result<Self, Error> {
        let mut addresses: AddressSet = addresses.into_iter().collect();
        if addresses.len() < config.min_addresses {
            return Err(Error::TooFew { found: addresses.len(), min: config.min_addresses });
        }
        // Nearly every look-up is for an address that is not listed, and ends at the first free
        // slot of the table. While the table is at most half full, it costs half as much as in a
        // full one. The price is 20 bytes per address.
        addresses.reserve(addresses.len());
        let hash = content_hash(&addresses);
        Ok(Self { addresses, hash, duplicates: None })
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The Keccak-256 hash of the addresses, 20 bytes each, in ascending order. It depends only on
    /// the set, not on the format, order, case and comments of the text.
    pub const fn hash(&self) -> B256 {
        self.hash
    }

    /// The entries of the text that repeat an address, if there are any. Each address counts once,
    /// but a duplicate may show that two lists were joined, or that an edit went wrong. When the
    /// list comes into force, they are logged as a warning, and `blocklist_duplicate_entries` shows
    /// their number.
    pub const fn duplicates(&self) -> Option<Duplicates> {
        self.duplicates
    }

    /// Whether the address is listed.
    #[inline]
    pub fn contains(&self, address: &Address) -> bool {
        self.addresses.contains(address)
    }

    /// The addresses, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
    }

    /// Checks the addresses that the transaction itself names, which its execution may never load:
    /// the sender, the recipient (a creation has none), every address of the access list, and for
    /// every EIP-7702 authorization both its signer and its delegation target, valid or not. The
    /// authority is `None` if the signature yields no address; the EVM skips such an authorization.
    ///
    /// It needs no state and costs one look-up per address. No iterator is advanced after the first
    /// listed address, or if the list is empty.
    ///
    /// # Errors
    /// The first listed address.
    pub fn precheck_addresses(
        &self,
        sender: Address,
        recipient: Option<Address>,
        access_list: impl IntoIterator<Item = Address>,
        authorizations: impl IntoIterator<Item = (Option<Address>, Address)>,
    ) -> Result<(), Blocked> {
        if self.is_empty() {
            return Ok(());
        }
        self.refuse(sender, How::Sender)?;
        if let Some(recipient) = recipient {
            self.refuse(recipient, How::Recipient)?;
        }
        for address in access_list {
            self.refuse(address, How::AccessList)?;
        }
        for (authority, target) in authorizations {
            if let Some(authority) = authority {
                self.refuse(authority, How::Authority)?;
            }
            self.refuse(target, How::DelegationTarget)?;
        }
        Ok(())
    }

    /// Checks every account that the execution of one transaction loaded: **all** keys of the state
    /// that revm's `transact` or `inspect` returned for that transaction, before it is committed. A
    /// host that caches execution results must keep these keys with each result.
    ///
    /// Do not pass a subset of them. `Account::is_touched` is false for accounts whose balance or
    /// code was only read, for code that ran through `DELEGATECALL`, `CALLCODE` or an EIP-7702
    /// delegation, and for everything inside a reverted frame. Do not pass another map either: the
    /// state that a `State` or `CacheDB` collects lacks read-only accounts or holds those of the
    /// whole block.
    ///
    /// Every transaction loads the block's fee recipient to pay it, so it is skipped here and must
    /// be checked once per block, which the constructors of [`BlockGuard`](crate::BlockGuard) do.
    ///
    /// # Errors
    /// The numerically lowest listed address among the keys.
    #[inline]
    pub fn check_addresses<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a Address>,
        fee_recipient: Address,
    ) -> Result<(), Blocked> {
        let mut addresses = addresses.into_iter();
        // An empty set answers without hashing, so an empty list costs almost nothing.
        while let Some(address) = addresses.next() {
            if self.contains(address) && *address != fee_recipient {
                return Err(self.lowest(*address, addresses, fee_recipient));
            }
        }
        Ok(())
    }

    /// Returns the lowest listed address, so that the result does not depend on the order of a hash
    /// map's keys. `first` is the first listed address, and `others` follow it. It is a function of
    /// its own because it is outside the hot path.
    #[cold]
    fn lowest<'a>(
        &self,
        first: Address,
        others: impl Iterator<Item = &'a Address>,
        fee_recipient: Address,
    ) -> Blocked {
        let listed = others.filter(|a| self.contains(a) && **a != fee_recipient);
        Blocked { address: listed.fold(first, |a, b| a.min(*b)), how: How::TouchedByExecution }
    }

    #[inline]
    fn refuse(&self, address: Address, how: How) -> Result<(), Blocked> {
        if self.contains(&address) { Err(Blocked { address, how }) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Blocklist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A log line should not contain thousands of addresses.
        f.debug_struct("Blocklist").field("len", &self.len()).field("hash", &self.hash).finish()
    }
}

fn content_hash(addresses: &AddressSet) -> B256 {
    let mut sorted: Vec<&Address> = addresses.iter().collect();
    sorted.sort_unstable();
    let mut hasher = Keccak256::new();
    sorted.into_iter().for_each(|address| hasher.update(address));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(bytes: &[u8]) -> Blocklist {
        let config = BlocklistConfig { min_addresses: 0, ..BlocklistConfig::default() };
        Blocklist::from_addresses(bytes.iter().map(|b| Address::repeat_byte(*b)), &config)
            .expect("any number is allowed")
    }

    fn check(listed: &[u8], loaded: &[u8], fee_recipient: u8) -> Result<(), Blocked> {
        let loaded: Vec<_> = loaded.iter().map(|b| Address::repeat_byte(*b)).collect();
        list(listed).check_addresses(&loaded, Address::repeat_byte(fee_recipient))
    }

    #[test]
    fn the_hash_depends_on_the_set_and_not_on_its_order() {
        assert_eq!(list(&[1, 2, 3]).hash(), list(&[3, 1, 2]).hash());
        assert_ne!(list(&[1, 2, 3]).hash(), list(&[1, 2]).hash());
        let joined = [[1_u8; 20], [2; 20]].concat();
        assert_eq!(list(&[2, 1]).hash(), alloy_primitives::keccak256(joined));
        assert_eq!(list(&[]).hash(), alloy_primitives::KECCAK256_EMPTY);
    }

    #[test]
    fn the_lowest_listed_address_is_named_in_any_order() {
        let expected = Blocked { address: Address::repeat_byte(4), how: How::TouchedByExecution };
        for loaded in [[1, 9, 7, 4, 200], [4, 7, 9, 200, 1], [9, 4, 1, 7, 200]] {
            assert_eq!(check(&[9, 4, 7], &loaded, 0), Err(expected), "{loaded:?}");
        }
    }

    #[test]
    fn only_the_fee_recipient_is_skipped() {
        assert_eq!(check(&[4, 7], &[1, 7], 7), Ok(()));
        assert!(check(&[4, 7], &[1, 4, 7], 7).is_err());
        assert!(check(&[4, 7], &[1, 7], 4).is_err());
    }

    #[test]
    fn the_precheck_stops_at_the_first_listed_address() {
        let address = Address::repeat_byte;
        let first = |listed: &[u8]| {
            let mut taken = 0;
            let authorizations = [(Some(address(4)), address(5)), (None, address(6))];
            let counted = authorizations.into_iter().inspect(|_| taken += 1);
            let access_list = [address(3), address(3)];
            let verdict =
                list(listed).precheck_addresses(address(1), Some(address(2)), access_list, counted);
            (verdict.err().map(|blocked| (blocked.address, blocked.how)), taken)
        };
        assert_eq!(first(&[6, 5, 4, 3, 2, 1]), (Some((address(1), How::Sender)), 0));
        assert_eq!(first(&[6, 5, 4, 3, 2]), (Some((address(2), How::Recipient)), 0));
        assert_eq!(first(&[6, 5, 4, 3]), (Some((address(3), How::AccessList)), 0));
        assert_eq!(first(&[6, 5, 4]), (Some((address(4), How::Authority)), 1));
        assert_eq!(first(&[6, 5]), (Some((address(5), How::DelegationTarget)), 1));
        assert_eq!(first(&[6]), (Some((address(6), How::DelegationTarget)), 2));
        assert_eq!(first(&[7]), (None, 2));
        assert_eq!(first(&[]), (None, 0));
        assert_eq!(list(&[2]).precheck_addresses(address(1), None, [], []), Ok(()));
    }
}
