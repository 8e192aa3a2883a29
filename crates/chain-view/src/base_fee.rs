//! Computes the base fee by EIP-1559, so that no header makes it overflow.

use std::cmp::Ordering;

/// The gas limit divided by the gas target (EIP-1559, `ELASTICITY_MULTIPLIER`).
const ELASTICITY: u64 = 2;

/// The base fee changes by at most this fraction of itself (EIP-1559,
/// `BASE_FEE_MAX_CHANGE_DENOMINATOR`).
const MAX_CHANGE_DENOMINATOR: u128 = 8;

/// Returns the base fee of the block after one with this header, in wei per gas, by EIP-1559 with
/// mainnet's parameters.
///
/// It is `None` if the gas limit is below 2, or if the fee exceeds `u64`. Headers come from
/// outside, so neither may panic.
#[must_use]
pub fn next_base_fee_wei(base_fee_wei: u64, gas_used: u64, gas_limit: u64) -> Option<u64> {
    let target = gas_limit / ELASTICITY;
    if target == 0 {
        return None;
    }
    let base_fee = u128::from(base_fee_wei);
    // A product of two u64 fits into a u128, and so does an eighth of it plus a u64.
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
