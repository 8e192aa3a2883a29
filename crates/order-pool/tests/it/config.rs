//! Every limit of the pool: its bound, and the error that names it.

use std::time::Duration;

use order_pool::{ConfigError, MAX_COUNT, MIN_TX_BYTES, OrderPool, PoolConfig};

type Set = fn(PoolConfig, usize) -> PoolConfig;

/// Every field that is a count, the least it may be, and how it is set.
const COUNTS: [(&str, usize, Set); 16] = [
    ("max_txs", 1, |config, value| config.with_max_txs(value)),
    ("max_tx_bytes", MIN_TX_BYTES, |config, value| config.with_max_tx_bytes(value)),
    ("max_external_txs", 1, |config, value| config.with_max_external_txs(value)),
    ("max_external_tx_bytes", MIN_TX_BYTES, |config, value| {
        config.with_max_external_tx_bytes(value)
    }),
    ("dedupe_window", 1, |config, value| config.with_dedupe_window(value)),
    ("recent_blocks", 1, |config, value| config.with_recent_blocks(value)),
    ("log_events", 1, |config, value| config.with_log_events(value)),
    ("max_bundles", 1, |config, value| config.with_max_bundles(value)),
    ("max_bundle_bytes", MIN_TX_BYTES, |config, value| config.with_max_bundle_bytes(value)),
    ("max_bundles_per_signer", 1, |config, value| config.with_max_bundles_per_signer(value)),
    ("max_bundle_bytes_per_signer", MIN_TX_BYTES, |config, value| {
        config.with_max_bundle_bytes_per_signer(value)
    }),
    ("max_unsigned_bundles", 1, |config, value| config.with_max_unsigned_bundles(value)),
    ("max_txs_per_bundle", 1, |config, value| config.with_max_txs_per_bundle(value)),
    ("max_blocks_ahead", 1, |config, value| config.with_max_blocks_ahead(value as u64)),
    ("max_cancellations", 1, |config, value| config.with_max_cancellations(value)),
    ("max_cancellations_per_signer", 1, |config, value| {
        config.with_max_cancellations_per_signer(value)
    }),
];

#[test]
fn a_count_below_its_bound_is_refused_with_both_and_the_bound_itself_is_taken() {
    for (field, least, set) in COUNTS {
        assert_eq!(set(PoolConfig::default(), least).validate(), Ok(()), "{field}");
        let value = least - 1;
        let config = set(PoolConfig::default(), value);
        let expected = ConfigError::TooSmall { field, value, least };
        assert_eq!(config.validate(), Err(expected.clone()));
        assert_eq!(OrderPool::new(config).expect_err("no pool comes of it"), expected);
        assert_eq!(expected.to_string(), format!("{field} is {value}, the least is {least}"));
    }
}

#[test]
fn a_count_above_any_memory_is_refused_with_the_most_it_may_be() {
    for (field, _, set) in COUNTS {
        assert_eq!(set(PoolConfig::default(), MAX_COUNT).validate(), Ok(()), "{field}");
        let value = MAX_COUNT + 1;
        let expected = ConfigError::TooLarge { field, value, most: MAX_COUNT };
        assert_eq!(set(PoolConfig::default(), value).validate(), Err(expected.clone()));
        assert_eq!(expected.to_string(), format!("{field} is {value}, the most is {MAX_COUNT}"));
    }
}

#[test]
fn orders_must_be_kept_for_some_time() {
    let config = PoolConfig::default().with_tx_retention(Duration::ZERO);
    let expected = ConfigError::ZeroDuration { field: "tx_retention" };
    assert_eq!(config.validate(), Err(expected.clone()));
    assert_eq!(expected.to_string(), "tx_retention is zero, it must be longer");
}

#[test]
fn what_may_be_none_may_be_none() {
    let config = PoolConfig::default().with_log_bytes(0).with_max_unmine_bytes(0);
    assert_eq!(config.with_cancellation_retention(Duration::ZERO).validate(), Ok(()));
}

#[test]
fn the_bound_on_memory_grows_with_each_limit_and_does_not_overflow() {
    let least =
        COUNTS.iter().fold(PoolConfig::default(), |config, (_, least, set)| set(config, *least));
    let least = least.with_log_bytes(0).with_max_unmine_bytes(0);
    let bounded = COUNTS.iter().filter(|(field, ..)| {
        // These bound nothing by themselves: bytes do.
        let bounded_otherwise = [
            "max_txs",
            "max_external_txs",
            "max_txs_per_bundle",
            "max_blocks_ahead",
            "max_bundles_per_signer",
            "max_bundle_bytes_per_signer",
            "max_unsigned_bundles",
            "max_cancellations_per_signer",
        ];
        !bounded_otherwise.contains(field)
    });
    for (field, least_value, set) in bounded {
        let more = set(least.clone(), least_value * 1_000);
        assert!(more.memory_bound_bytes() > least.memory_bound_bytes(), "{field}");
    }
    let most = COUNTS.iter().fold(least, |config, (_, _, set)| set(config, usize::MAX));
    assert_eq!(most.memory_bound_bytes(), usize::MAX);
}
