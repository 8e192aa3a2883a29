//! The next base fee.

use alloy_eips::{calc_next_block_base_fee, eip1559::BaseFeeParams};
use chain_view::next_base_fee_wei;
use proptest::prelude::*;

#[test]
fn an_absurd_header_has_no_next_base_fee() {
    assert_eq!(next_base_fee_wei(u64::MAX, 30_000_000, 30_000_000), None);
    assert_eq!(next_base_fee_wei(u64::MAX, u64::MAX, 2), None);
    assert_eq!(next_base_fee_wei(7, 1, 0), None);
    assert_eq!(next_base_fee_wei(7, u64::MAX, 1), None);
    assert_eq!(next_base_fee_wei(u64::MAX, 15_000_000, 30_000_000), Some(u64::MAX));
    assert_eq!(next_base_fee_wei(0, 30_000_000, 30_000_000), Some(1));
}

proptest! {
    #[test]
    fn the_base_fee_equals_alloys_on_possible_headers(
        base_fee in 0..1_u64 << 50,
        gas_limit in 5_000..1_u64 << 40,
        used in 0.0..=1.0_f64,
    ) {
        let gas_used = (gas_limit as f64 * used) as u64;
        let params = BaseFeeParams::ethereum();
        let expected = calc_next_block_base_fee(gas_used, gas_limit, base_fee, params);
        prop_assert_eq!(next_base_fee_wei(base_fee, gas_used, gas_limit), Some(expected));
    }

    #[test]
    fn no_header_makes_the_base_fee_panic(base_fee: u64, gas_used: u64, gas_limit: u64) {
        let _ = next_base_fee_wei(base_fee, gas_used, gas_limit);
    }
}
