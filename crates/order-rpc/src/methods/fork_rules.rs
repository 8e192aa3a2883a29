//! The rules for transactions that change with the fork of the next block.

use std::time::{Duration, SystemTime};

use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use order_pool::Head;

use crate::config::OrderRpcConfig;

/// The time from one block to the next (mainnet).
const SLOT: Duration = Duration::from_secs(12);

/// What the next block permits of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkRules {
    pub(crate) chain_id: u64,
    /// Maximum gas of a transaction; `None`: only the block's own limit applies.
    pub(crate) max_gas: Option<u64>,
    /// Intrinsic gas of a transaction without input.
    pub(crate) base_gas: u64,
    /// Additional intrinsic gas of a contract creation.
    pub(crate) create_gas: u64,
    /// Intrinsic gas of each address in the access list.
    pub(crate) access_list_address_gas: u64,
    /// Intrinsic gas of each storage key in the access list.
    pub(crate) access_list_key_gas: u64,
    /// Intrinsic gas of each authorization (EIP-7702).
    pub(crate) authorization_gas: u64,
    pub(crate) max_init_code_bytes: usize,
    /// Maximum blobs of a transaction.
    pub(crate) max_blobs: usize,
}

impl ForkRules {
    /// Returns the rules of the block after this head; without a head, of a block built now.
    pub(crate) fn after(head: Option<&Head>, config: &OrderRpcConfig) -> Self {
        let next_timestamp = match head {
            Some(head) => head.timestamp.saturating_add(SLOT.as_secs()),
            // A clock before 1970 counts as 1970.
            None => SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs()),
        };
        if config.amsterdam_time != 0 && next_timestamp >= config.amsterdam_time {
            Self::amsterdam(config.chain_id)
        } else if next_timestamp >= config.osaka_time {
            Self::osaka(config.chain_id)
        } else {
            Self::prague(config.chain_id)
        }
    }

    const fn prague(chain_id: u64) -> Self {
        Self {
            chain_id,
            max_gas: None,
            // Yellow Paper, G_transaction.
            base_gas: 21_000,
            // EIP-2.
            create_gas: 32_000,
            // EIP-2930.
            access_list_address_gas: 2_400,
            access_list_key_gas: 1_900,
            // EIP-7702, PER_EMPTY_ACCOUNT_COST.
            authorization_gas: 25_000,
            // EIP-3860.
            max_init_code_bytes: 49_152,
            // EIP-7691: the maximum of a block.
            max_blobs: 9,
        }
    }

    const fn osaka(chain_id: u64) -> Self {
        Self {
            // EIP-7825.
            max_gas: Some(MAX_TX_GAS_LIMIT_OSAKA),
            // EIP-7594. The blobs of a block change with each later schedule (EIP-7892), those of a
            // transaction do not.
            max_blobs: 6,
            ..Self::prague(chain_id)
        }
    }

    /// As in revm 43, which follows the devnets before the fork. A price that may still change or
    /// depends on the state is 0, so that nothing is refused that a block could contain.
    const fn amsterdam(chain_id: u64) -> Self {
        Self {
            // EIP-8037: gas above the cap of EIP-7825 pays for state.
            max_gas: None,
            // EIP-2780, TX_BASE.
            base_gas: 12_000,
            create_gas: 0,
            access_list_address_gas: 0,
            access_list_key_gas: 0,
            authorization_gas: 0,
            // EIP-7954.
            max_init_code_bytes: 131_072,
            ..Self::osaka(chain_id)
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::B256;

    use super::*;

    fn after(timestamp: u64, config: &OrderRpcConfig) -> ForkRules {
        let head = Head { timestamp, ..Head::new(1, B256::ZERO, B256::ZERO) };
        ForkRules::after(Some(&head), config)
    }

    #[test]
    fn the_rules_are_those_of_the_block_after_the_head() {
        let config =
            OrderRpcConfig { osaka_time: 1_000, amsterdam_time: 2_000, ..OrderRpcConfig::new(1) };
        for (timestamp, expected) in [
            (987, ForkRules::prague(1)),
            (988, ForkRules::osaka(1)),
            (1_987, ForkRules::osaka(1)),
            (1_988, ForkRules::amsterdam(1)),
        ] {
            assert_eq!(after(timestamp, &config), expected, "{timestamp}");
        }
        // By default every block is after Osaka, and none after Amsterdam.
        let default = OrderRpcConfig::new(1);
        assert_eq!([0, u64::MAX].map(|time| after(time, &default)), [ForkRules::osaka(1); 2]);
        assert_eq!(ForkRules::after(None, &default), ForkRules::osaka(1));
        let past = OrderRpcConfig { amsterdam_time: 1, ..default };
        assert_eq!(ForkRules::after(None, &past), ForkRules::amsterdam(1));
    }
}
