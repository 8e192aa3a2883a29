//! Every option of the pool: its bound, and the error that names it.

use std::time::Duration;

use order_pool::{ConfigError, MAX_COUNT, MIN_TX_BYTES, OrderPool, PoolConfig};
use testkit::configured;

type Field = fn(&mut PoolConfig) -> &mut usize;

/// Every field that is a count, with its lower bound.
const COUNTS: [(&str, usize, Field); 8] = [
    ("max_txs", 1, |config| &mut config.max_txs),
    ("max_tx_bytes", MIN_TX_BYTES, |config| &mut config.max_tx_bytes),
    ("max_external_txs", 1, |config| &mut config.max_external_txs),
    ("max_external_tx_bytes", MIN_TX_BYTES, |config| &mut config.max_external_tx_bytes),
    ("log_events", 1, |config| &mut config.log_events),
    ("max_bundles", 1, |config| &mut config.max_bundles),
    ("max_bundle_bytes", MIN_TX_BYTES, |config| &mut config.max_bundle_bytes),
    ("max_cancellations", 1, |config| &mut config.max_cancellations),
];

fn with(field: Field, value: usize) -> PoolConfig {
    let mut config = PoolConfig::default();
    *field(&mut config) = value;
    config
}

#[test]
fn a_count_out_of_bounds_is_refused_with_value_and_bound() {
    for (field, least, accessor) in COUNTS {
        let small = ConfigError::TooSmall { field, value: least - 1, least };
        let large = ConfigError::TooLarge { field, value: MAX_COUNT + 1, most: MAX_COUNT };
        for (value, expected) in [(least - 1, small), (MAX_COUNT + 1, large)] {
            assert_eq!(
                OrderPool::new(with(accessor, value)).expect_err("it is out of bounds"),
                expected
            );
        }
    }
}

#[test]
fn a_zero_retention_is_refused_and_zero_log_bytes_are_allowed() {
    let config = configured(PoolConfig::default(), |config| config.tx_retention = Duration::ZERO);
    let expected = ConfigError::ZeroDuration { field: "tx_retention" };
    assert_eq!(config.validate(), Err(expected.clone()));
    assert_eq!(expected.to_string(), "tx_retention is zero, it must be longer");
    assert_eq!(configured(PoolConfig::default(), |config| config.log_bytes = 0).validate(), Ok(()));
}

#[test]
fn the_memory_bound_grows_with_each_limit_and_does_not_overflow() {
    let bound = PoolConfig::default().memory_bound_bytes();
    for (field, _, accessor) in COUNTS {
        // The bytes bound the transactions, and the least dedupe window is counted anyway.
        let is_bounded_otherwise = field == "max_txs";
        let value = *accessor(&mut PoolConfig::default()) * 2;
        assert_eq!(
            with(accessor, value).memory_bound_bytes() > bound,
            !is_bounded_otherwise,
            "{field}"
        );
    }
    // From 524,288 transactions on, the dedupe window is larger.
    let many = configured(PoolConfig::default(), |config| config.max_txs = 1 << 20);
    assert!(many.memory_bound_bytes() > bound);
    let mut most = PoolConfig::default();
    COUNTS.iter().for_each(|(_, _, accessor)| *accessor(&mut most) = usize::MAX);
    assert_eq!(most.memory_bound_bytes(), usize::MAX);
}
