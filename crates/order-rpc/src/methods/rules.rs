//! The rules for transactions that change with the fork of the next block.

use std::time::{Duration, SystemTime};

use alloy_eips::eip7825::MAX_TX_GAS_LIMIT_OSAKA;
use order_pool::Head;

use crate::config::OrderRpcConfig;

/// The time from one block to the next.
const SLOT: Duration = Duration::from_secs(12);

/// What the next block admits of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) chain_id: u64,
    /// The most gas of a transaction; `None`: as much as a block has.
    pub(crate) max_gas: Option<u64>,
    /// The least gas of a transaction, before its input.
    pub(crate) base_gas: u64,
    /// Gas of a contract creation on top.
    pub(crate) create_gas: u64,
    /// Gas of an address and of a storage key in an access list, and of an authorization.
    pub(crate) list_gas: ListGas,
    pub(crate) max_init_code_bytes: usize,
    pub(crate) max_blobs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListGas {
    pub(crate) address: u64,
    pub(crate) storage_key: u64,
    pub(crate) authorization: u64,
}

impl Rules {
    /// The rules of the block after this head; without a head, of one that comes now.
    pub(crate) fn after(head: Option<&Head>, config: &OrderRpcConfig) -> Self {
        let next = match head {
            Some(head) => head.timestamp.saturating_add(SLOT.as_secs()),
            // A clock before 1970 is as early as can be.
            None => SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs()),
        };
        let is_amsterdam = config.amsterdam_time != 0 && next >= config.amsterdam_time;
        if is_amsterdam {
            Self::amsterdam(config.chain_id)
        } else if next >= config.osaka_time {
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
            // EIP-2930; EIP-7702, PER_EMPTY_ACCOUNT_COST.
            list_gas: ListGas { address: 2_400, storage_key: 1_900, authorization: 25_000 },
            // EIP-3860.
            max_init_code_bytes: 49_152,
            // EIP-7691: what a block has.
            max_blobs: 9,
        }
    }

    const fn osaka(chain_id: u64) -> Self {
        // EIP-7825; EIP-7594. The blobs of a block change with each later schedule (EIP-7892), those
        // of a transaction do not.
        Self { max_gas: Some(MAX_TX_GAS_LIMIT_OSAKA), max_blobs: 6, ..Self::prague(chain_id) }
    }

    /// As of revm 43, by the devnets before the fork. Where a price may still change, or depends on the
    /// state, it is left out: what is refused here no block can contain.
    const fn amsterdam(chain_id: u64) -> Self {
        Self {
            // EIP-8037: above the cap it is for state.
            max_gas: None,
            // EIP-2780, TX_BASE.
            base_gas: 12_000,
            create_gas: 0,
            list_gas: ListGas { address: 0, storage_key: 0, authorization: 0 },
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

    #[test]
    fn the_rules_are_those_of_the_block_after_the_head() {
        let config =
            OrderRpcConfig { osaka_time: 1_000, amsterdam_time: 2_000, ..OrderRpcConfig::new(1) };
        let at = |timestamp, config: &OrderRpcConfig| {
            let head = Head { timestamp, ..Head::new(1, B256::ZERO, B256::ZERO) };
            Rules::after(Some(&head), config)
        };
        for (timestamp, expected) in [
            (987, Rules::prague(1)),
            (988, Rules::osaka(1)),
            (1_987, Rules::osaka(1)),
            (1_988, Rules::amsterdam(1)),
        ] {
            assert_eq!(at(timestamp, &config), expected, "{timestamp}");
        }
        // By default no block follows Amsterdam, and each follows Osaka.
        let default = OrderRpcConfig::new(1);
        assert_eq!([0, u64::MAX].map(|time| at(time, &default)), [Rules::osaka(1); 2]);
        assert_eq!(Rules::after(None, &default), Rules::osaka(1));
        let past = OrderRpcConfig { amsterdam_time: 1, ..default };
        assert_eq!(Rules::after(None, &past), Rules::amsterdam(1));
    }
}
