//! Decodes a transaction, recovers its sender, and runs the checks that need no state.

use std::time::SystemTime;

use alloy_consensus::{Transaction as _, transaction::SignerRecoverable};
use alloy_eips::{
    eip2718::{Decodable2718, EIP4844_TX_TYPE_ID},
    eip7594::Encodable7594 as _,
};
use alloy_primitives::{B256, U256};
use order_pool::{Origin, PooledTransaction, PrivateTerms, SidecarError, Transaction};

use super::fork_rules::ForkRules;
use crate::reply::{ErrorResponse, Reason};

/// Maximum bytes of a transaction without its blobs: that of geth's pool (txMaxSize, 1.16).
const MAX_TX_BYTES: usize = 128 << 10;
/// Gas of a token of input (EIP-7623). A zero byte is one token.
const GAS_PER_TOKEN: u64 = 4;
/// Tokens of a byte of input that is not zero (EIP-7623).
const TOKENS_PER_NONZERO_BYTE: u64 = 4;
/// The least gas per token of input (EIP-7623).
const FLOOR_GAS_PER_TOKEN: u64 = 10;
/// Gas of a word of init code (EIP-3860).
const INITCODE_WORD_GAS: u64 = 2;

/// Bytes of a blob with its commitment and its 128 cell proofs (EIP-7594), and 256 for their RLP.
const BLOB_BYTES: usize = 131_072 + 48 + 128 * 48 + 256;

/// Whether these are the bytes of a blob transaction.
pub(crate) fn has_blobs(raw: &[u8]) -> bool {
    raw.first() == Some(&EIP4844_TX_TYPE_ID)
}

/// Decodes a transaction and runs the checks that need no signature, cheap ones first. Takes about
/// 10 us, and 10 us more for each blob.
pub(crate) fn decode(
    raw: &[u8],
    field: &str,
    rules: &ForkRules,
) -> Result<PooledTransaction, ErrorResponse> {
    let max_blobs = if has_blobs(raw) { rules.max_blobs } else { 0 };
    let limit = MAX_TX_BYTES.saturating_add(max_blobs.saturating_mul(BLOB_BYTES));
    if raw.len() > limit {
        let length = raw.len();
        let message = format!("{field} has {length} bytes, the most is {limit}");
        return Err(ErrorResponse::field(Reason::TransactionTooLarge, field, message));
    }
    let tx = PooledTransaction::decode_2718_exact(raw).map_err(|error| {
        let message = format!("{field} does not decode as a signed transaction: {error}");
        ErrorResponse::field(Reason::Undecodable, field, message)
    })?;
    match check(&tx, raw.len(), rules) {
        Ok(()) => Ok(tx),
        Err((reason, problem)) => {
            let message = format!("{field} ({}): {problem}", tx.tx_hash());
            Err(ErrorResponse::field(reason, field, message))
        }
    }
}

/// Recovers the sender, and compares the commitments of the blobs with their hashes, but verifies
/// no blob proofs: about 50 us.
pub(crate) fn recover(
    tx: PooledTransaction,
    field: &str,
    private_terms: Option<PrivateTerms>,
    first_seen: SystemTime,
) -> Result<Transaction, ErrorResponse> {
    let hash = *tx.tx_hash();
    let tx = tx.try_into_recovered().map_err(|_| {
        let message = format!("{field} ({hash}) has an invalid signature");
        ErrorResponse::field(Reason::TransactionSignature, field, message)
    })?;
    let tx = match private_terms {
        Some(terms) => Transaction::private(tx, terms, first_seen),
        None => Transaction::new(tx, Origin::Rpc, first_seen),
    };
    tx.check_commitments().map_err(|error| sidecar_error(field, &hash, &error))?;
    Ok(tx)
}

pub(crate) fn sidecar_error(field: &str, hash: &B256, error: &SidecarError) -> ErrorResponse {
    ErrorResponse::field(Reason::Sidecar, field, format!("{field} ({hash}): {error}"))
}

/// Checks that the next block could contain a transaction of `encoded_bytes`.
///
/// # Errors
/// The reason, and the value and its limit as text.
fn check(
    tx: &PooledTransaction,
    encoded_bytes: usize,
    rules: &ForkRules,
) -> Result<(), (Reason, String)> {
    // A transaction without a chain id (before EIP-155) is valid on every chain, so anyone who sees
    // it could replay it.
    let required = rules.chain_id;
    match tx.chain_id() {
        Some(id) if id == required => {}
        Some(id) => {
            return Err((Reason::ChainId, format!("chainId is {id}, must be {required}")));
        }
        None => return Err((Reason::ChainId, format!("chainId is absent, must be {required}"))),
    }
    check_blobs(tx, encoded_bytes, rules)?;
    if tx.authorization_list().is_some_and(<[_]>::is_empty) {
        let problem = "authorizationList is empty, must have at least one entry".to_owned();
        return Err((Reason::NoAuthorization, problem));
    }
    let bytes = tx.input().len();
    let limit = rules.max_init_code_bytes;
    if tx.is_create() && bytes > limit {
        let problem = format!("init code has {bytes} bytes, the most is {limit}");
        return Err((Reason::InitCodeTooLarge, problem));
    }
    if tx.nonce() == u64::MAX {
        let limit = u64::MAX.saturating_sub(1);
        return Err((Reason::NonceTooHigh, format!("nonce is {}, the most is {limit}", u64::MAX)));
    }
    if max_cost(tx).is_none() {
        let problem = "value plus the maximum cost of its gas and blobs is above 2^256 - 1";
        return Err((Reason::CostTooHigh, problem.to_owned()));
    }
    check_gas_and_fees(tx, rules)
}

/// Checks the number of blobs, and the length of a blob transaction without its blobs.
fn check_blobs(
    tx: &PooledTransaction,
    encoded_bytes: usize,
    rules: &ForkRules,
) -> Result<(), (Reason, String)> {
    // `None` if it is not a blob transaction.
    let blob_count = tx.blob_versioned_hashes().map(<[_]>::len);
    // A transaction without blobs would pass the checks of its sidecar, which is empty too, but no
    // block may contain it (EIP-4844: at least one blob).
    if blob_count == Some(0) {
        let problem = "blobVersionedHashes is empty, must have at least one entry".to_owned();
        return Err((Reason::Sidecar, problem));
    }
    let limit = rules.max_blobs;
    if let Some(count) = blob_count.filter(|count| *count > limit) {
        let problem = format!("blobVersionedHashes has {count} entries, the most is {limit}");
        return Err((Reason::TooManyBlobs, problem));
    }
    if let PooledTransaction::Eip4844(signed) = tx {
        // The limit in `decode` has room for the most blobs that are permitted. A transaction with
        // fewer blobs must not use that room for its input. `BlobTransactionSidecar::size` does not
        // serve here: it counts memory, which may be twice as much.
        let bytes = encoded_bytes.saturating_sub(signed.tx().sidecar().encode_7594_len());
        if bytes > MAX_TX_BYTES {
            let problem =
                format!("it has {bytes} bytes without its blobs, the most is {MAX_TX_BYTES}");
            return Err((Reason::TransactionTooLarge, problem));
        }
    }
    Ok(())
}

fn check_gas_and_fees(tx: &PooledTransaction, rules: &ForkRules) -> Result<(), (Reason, String)> {
    let gas = tx.gas_limit();
    if let Some(limit) = rules.max_gas.filter(|limit| gas > *limit) {
        return Err((Reason::GasLimit, format!("gas is {gas}, the most is {limit}")));
    }
    let max_fee = tx.max_fee_per_gas();
    if let Some(tip) = tx.max_priority_fee_per_gas().filter(|tip| *tip > max_fee) {
        let problem = format!("maxPriorityFeePerGas is {tip}, above the maxFeePerGas of {max_fee}");
        return Err((Reason::TipAboveFee, problem));
    }
    let least = intrinsic_gas(tx, rules);
    if gas < least {
        return Err((Reason::IntrinsicGas, format!("gas is {gas}, must be at least {least}")));
    }
    Ok(())
}

/// Returns the most wei that a transaction may spend, which its sender must have; `None` above
/// 2^256 - 1.
fn max_cost(tx: &PooledTransaction) -> Option<U256> {
    let gas_cost = U256::from(tx.gas_limit()).checked_mul(U256::from(tx.max_fee_per_gas()))?;
    let blob_gas = U256::from(tx.blob_gas_used().unwrap_or_default());
    let blob_fee = U256::from(tx.max_fee_per_blob_gas().unwrap_or_default());
    let blob_cost = blob_gas.checked_mul(blob_fee)?;
    tx.value().checked_add(gas_cost)?.checked_add(blob_cost)
}

/// Returns the intrinsic gas of a transaction.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "sums of lengths of a body of at most a gigabyte do not overflow at these prices"
)]
fn intrinsic_gas(tx: &PooledTransaction, rules: &ForkRules) -> u64 {
    let input = tx.input();
    let zero_bytes = input.iter().filter(|byte| **byte == 0).count() as u64;
    let nonzero_bytes = input.len() as u64 - zero_bytes;
    let tokens = zero_bytes + nonzero_bytes * TOKENS_PER_NONZERO_BYTE;
    let mut gas = rules.base_gas + tokens * GAS_PER_TOKEN;
    if tx.is_create() {
        gas += rules.create_gas + (input.len() as u64).div_ceil(32) * INITCODE_WORD_GAS;
    }
    if let Some(list) = tx.access_list() {
        let keys: usize = list.iter().map(|item| item.storage_keys.len()).sum();
        gas += list.len() as u64 * rules.access_list_address_gas;
        gas += keys as u64 * rules.access_list_key_gas;
    }
    let authorizations = tx.authorization_list().map_or(0, <[_]>::len);
    gas += authorizations as u64 * rules.authorization_gas;
    gas.max(rules.base_gas + tokens * FLOOR_GAS_PER_TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844, TxEip4844WithSidecar};
    use alloy_eips::{
        eip2718::Encodable2718 as _,
        eip2930::{AccessList, AccessListItem},
        eip4844::{Blob, Bytes48},
        eip7594::{
            BlobTransactionSidecarEip7594, BlobTransactionSidecarVariant, CELLS_PER_EXT_BLOB,
        },
    };
    use alloy_primitives::{Address, Signature, TxKind};

    fn gas(to: TxKind, input: Vec<u8>, access_list: AccessList) -> u64 {
        let tx = TxEip1559 { to, input: input.into(), access_list, ..TxEip1559::default() };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let osaka = ForkRules::after(None, &crate::OrderRpcConfig::new(1));
        intrinsic_gas(&tx.into_signed(signature).into(), &osaka)
    }

    /// Returns an encoded transaction with three blobs and this many bytes of input.
    fn with_three_blobs(input_bytes: usize) -> Vec<u8> {
        let sidecar = BlobTransactionSidecarEip7594 {
            blobs: vec![Blob::ZERO; 3],
            commitments: vec![Bytes48::ZERO; 3],
            cell_proofs: vec![Bytes48::ZERO; 3 * CELLS_PER_EXT_BLOB],
        };
        let sidecar = BlobTransactionSidecarVariant::Eip7594(sidecar);
        let tx = TxEip4844 {
            chain_id: 1,
            gas_limit: 10_000_000,
            blob_versioned_hashes: vec![B256::ZERO; 3],
            input: vec![0; input_bytes].into(),
            ..TxEip4844::default()
        };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let tx = TxEip4844WithSidecar { tx, sidecar }.into_signed(signature);
        PooledTransaction::Eip4844(tx).encoded_2718()
    }

    /// Decoding three blobs allocates room for four.
    #[test]
    fn input_does_not_use_the_room_for_blobs() {
        let rules = ForkRules::after(None, &crate::OrderRpcConfig::new(1));
        let fits = decode(&with_three_blobs(MAX_TX_BYTES - 1_024), "params[0]", &rules);
        assert!(fits.is_ok(), "{fits:?}");
        let refused = decode(&with_three_blobs(MAX_TX_BYTES), "params[0]", &rules);
        assert_eq!(refused.expect_err("too long").reason, Reason::TransactionTooLarge);
    }

    #[test]
    fn intrinsic_gas_is_the_sum_of_its_parts_or_the_floor() {
        let call = TxKind::Call(Address::ZERO);
        let none = AccessList::default;
        assert_eq!(gas(call, vec![], none()), 21_000);
        // The floor of 10 per token is above the 4 of the plain price.
        assert_eq!(gas(call, vec![0; 10], none()), 21_000 + 10 * 10);
        assert_eq!(gas(call, vec![1; 10], none()), 21_000 + 40 * 10);
        // 32,000 for the creation, 2 words of init code, 33 bytes at 16.
        assert_eq!(gas(TxKind::Create, vec![1; 33], none()), 53_000 + 4 + 33 * 16);
        let item = AccessListItem { storage_keys: vec![B256::ZERO; 3], ..Default::default() };
        let list = AccessList(vec![item.clone(), item]);
        assert_eq!(gas(call, vec![], list), 21_000 + 2 * 2_400 + 6 * 1_900);
    }
}
