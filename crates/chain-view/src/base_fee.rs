//! EIP-1559, without a header that could make it overflow.

use std::cmp::Ordering;

/// Gas limit by gas target (EIP-1559, `ELASTICITY_MULTIPLIER`).
const ELASTICITY: u64 = 2;

/// The part of the base fee by which it changes at most (EIP-1559,
/// `BASE_FEE_MAX_CHANGE_DENOMINATOR`).
const MAX_CHANGE_DENOMINATOR: u128 = 8;

/// The base fee of the block after one with this header, in wei per gas, by EIP-1559 with mainnet's
/// parameters.
///
/// `None` if the header allows none: a gas limit under 2, or a fee beyond `u64`. A header comes from
/// outside, so neither may panic.
#[must_use]
pub fn next_base_fee_wei(base_fee_wei: u64, gas_used: u64, gas_limit: u64) -> Option<u64> {
    let target = gas_limit / ELASTICITY;
    if target == 0 {
        return None;
    }
    let base_fee = u128::from(base_fee_wei);
    // A product of two u64 fits into a u128, and so does its eighth with a u64 added.
    let change =
        |gas: u64| base_fee * u128::from(gas) / u128::from(target) / MAX_CHANGE_DENOMINATOR;
    let next = match gas_used.cmp(&target) {
        Ordering::Equal => base_fee,
        Ordering::Greater => base_fee + change(gas_used - target).max(1),
        // At most an eighth of the base fee.
        Ordering::Less => base_fee - change(target - gas_used),
    };
    u64::try_from(next).ok()
}
