use alloy_primitives::{Address, B256, Keccak256, map::AddressSet};
use revm::{
    context_interface::{
        Transaction,
        transaction::{AccessListItemTr, AuthorizationTr},
    },
    state::EvmState,
};

use crate::{Blocked, BlocklistConfig, Error, How};

/// A set of addresses that no transaction of a block may reach.
///
/// The two checks are pure functions of their arguments. They have an order (first
/// [`precheck`](Self::precheck), then execution, then [`check`](Self::check), then the commit), which
/// [`BlockGuard::execute`](crate::BlockGuard::execute) keeps for you.
#[derive(Clone, PartialEq, Eq)]
pub struct Blocklist {
    addresses: AddressSet,
    hash: B256,
}

impl Blocklist {
    /// From addresses that are already parsed; a repeated one counts once.
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
        // Nearly every look-up is of an address that is not here, and ends at the first free place: a
        // table half empty halves what it costs, for 20 bytes an address.
        addresses.reserve(addresses.len());
        let hash = content_hash(&addresses);
        Ok(Self { addresses, hash })
    }

    /// Number of addresses.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Keccak-256 of the addresses' 20 bytes each, in ascending order: the same for the same set,
    /// whatever the format, the order, the case and the comments of the text were.
    pub const fn hash(&self) -> B256 {
        self.hash
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

    /// Checks what the transaction itself names, which its execution may never load: the sender, the
    /// recipient, the access list, and of EIP-7702 authorizations both who signed and who is
    /// delegated to, valid or not. An authorization whose signature yields no address names no
    /// authority; the EVM skips it.
    ///
    /// Needs no state. Costs a look-up per address named, and a signature recovery (some 35 us) per
    /// authorization that was not recovered before: give it `RecoveredAuthorization`s, from which the
    /// EVM gains too.
    ///
    /// # Errors
    /// The first listed address.
    pub fn precheck(&self, tx: &impl Transaction) -> Result<(), Blocked> {
        if self.is_empty() {
            return Ok(());
        }
        self.refuse(tx.caller(), How::Sender)?;
        if let Some(recipient) = tx.kind().to() {
            self.refuse(*recipient, How::Recipient)?;
        }
        for item in tx.access_list().into_iter().flatten() {
            self.refuse(*item.address(), How::AccessList)?;
        }
        for authorization in tx.authorization_list() {
            if let Some(authority) = authorization.authority() {
                self.refuse(authority, How::Authority)?;
            }
            self.refuse(authorization.address(), How::DelegationTarget)?;
        }
        Ok(())
    }

    /// Checks every account that the execution of one transaction loaded: **all** keys of the state
    /// that `transact` or `inspect` returned for that transaction, before it is committed.
    ///
    /// Not a subset of them. `Account::is_touched` is false for accounts whose balance or code was
    /// only read, for code that ran through `DELEGATECALL`, `CALLCODE` or an EIP-7702 delegation, and
    /// for all that happened inside a reverted frame. And not another map: the state that a `State`
    /// or `CacheDB` collects lacks read-only accounts or holds those of the whole block.
    ///
    /// `coinbase` is the block's fee recipient. Every transaction loads it to pay it, so it is
    /// skipped here and must be checked once per block, which is how
    /// [`BlockGuard`](crate::BlockGuard) comes to be.
    ///
    /// # Errors
    /// The numerically lowest listed address among the keys.
    #[inline]
    pub fn check(&self, state: &EvmState, coinbase: Address) -> Result<(), Blocked> {
        // An empty map answers without hashing, so an empty list costs next to nothing.
        for address in state.keys() {
            if self.contains(address) && *address != coinbase {
                return Err(self.lowest(state, coinbase));
            }
        }
        Ok(())
    }

    /// Out of the hot path: the order of a hash map's keys is no reason to print.
    #[cold]
    fn lowest(&self, state: &EvmState, coinbase: Address) -> Blocked {
        let listed = state.keys().filter(|a| self.contains(a) && **a != coinbase).min();
        Blocked {
            address: *listed.expect("called because one of the keys is listed"),
            how: How::TouchedByExecution,
        }
    }

    #[inline]
    fn refuse(&self, address: Address, how: How) -> Result<(), Blocked> {
        if self.contains(&address) { Err(Blocked { address, how }) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Blocklist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Thousands of addresses help nobody in a log line.
        f.debug_struct("Blocklist").field("len", &self.len()).field("hash", &self.hash).finish()
    }
}

fn content_hash(addresses: &AddressSet) -> B256 {
    let mut sorted: Vec<&Address> = addresses.iter().collect();
    sorted.sort_unstable();
    let mut hasher = Keccak256::new();
    for address in sorted {
        hasher.update(address);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(bytes: &[u8]) -> Blocklist {
        let config = BlocklistConfig::default().with_min_addresses(0);
        Blocklist::from_addresses(bytes.iter().map(|b| Address::repeat_byte(*b)), &config)
            .expect("any number is allowed")
    }

    fn state(bytes: &[u8]) -> EvmState {
        bytes.iter().map(|b| (Address::repeat_byte(*b), Default::default())).collect()
    }

    #[test]
    fn the_hash_is_that_of_the_set_and_not_of_its_order() {
        assert_eq!(list(&[1, 2, 3]).hash(), list(&[3, 1, 2]).hash());
        assert_ne!(list(&[1, 2, 3]).hash(), list(&[1, 2]).hash());
        let joined = [[1_u8; 20], [2; 20]].concat();
        assert_eq!(list(&[2, 1]).hash(), alloy_primitives::keccak256(joined));
        assert_eq!(list(&[]).hash(), alloy_primitives::KECCAK256_EMPTY);
    }

    #[test]
    fn of_several_listed_keys_the_lowest_is_named() {
        let blocked = list(&[9, 4, 7]).check(&state(&[1, 9, 7, 4, 200]), Address::ZERO);
        let expected = Blocked { address: Address::repeat_byte(4), how: How::TouchedByExecution };
        assert_eq!(blocked, Err(expected));
    }

    #[test]
    fn the_coinbase_alone_is_skipped() {
        let list = list(&[4, 7]);
        assert_eq!(list.check(&state(&[1, 7]), Address::repeat_byte(7)), Ok(()));
        assert!(list.check(&state(&[1, 4, 7]), Address::repeat_byte(7)).is_err());
        assert!(list.check(&state(&[1, 7]), Address::repeat_byte(4)).is_err());
    }

    #[test]
    fn too_few_addresses_are_an_error() {
        let config = BlocklistConfig::default();
        let error = Blocklist::from_addresses([], &config).expect_err("empty");
        assert!(matches!(error, Error::TooFew { found: 0, min: 1 }), "{error}");
    }
}
