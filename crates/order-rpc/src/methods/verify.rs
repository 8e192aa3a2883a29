//! The checks of a transaction that need no state.

use std::time::SystemTime;

use alloy_consensus::{Transaction as _, transaction::SignerRecoverable};
use alloy_eips::eip2718::{Decodable2718, EIP4844_TX_TYPE_ID};
use alloy_primitives::{B256, U256};
use order_pool::{Origin, PooledTransaction, PrivateTerms, SidecarError, Transaction};

use super::rules::{ListGas, Rules};
use crate::reply::{ErrorResponse, Reason};

/// Bytes of a transaction without its blobs: the most of geth's pool (txMaxSize, 1.16).
const MAX_TX_BYTES: usize = 128 << 10;
/// Gas of a zero byte of input (Yellow Paper).
const ZERO_BYTE_GAS: u64 = 4;
/// Tokens of EIP-7623 for any other byte of input, which costs so many zero bytes (EIP-2028).
const TOKENS_PER_NONZERO_BYTE: u64 = 4;
/// The least gas per token of input (EIP-7623).
const FLOOR_GAS_PER_TOKEN: u64 = 10;
/// Gas of a word of init code (EIP-3860).
const INITCODE_WORD_GAS: u64 = 2;

/// Bytes of a blob with its commitment and its 128 cell proofs (EIP-7594), in RLP.
const BLOB_BYTES: usize = 131_072 + 48 + 128 * 48 + 256;

/// Whether these are the bytes of a blob transaction.
pub(crate) fn has_blobs(raw: &[u8]) -> bool {
    raw.first() == Some(&EIP4844_TX_TYPE_ID)
}

/// Decodes and runs the checks that need no signature, cheap ones first: 10 us, and 10 per blob.
pub(crate) fn decode(
    raw: &[u8],
    field: &str,
    rules: &Rules,
) -> Result<PooledTransaction, ErrorResponse> {
    let blobs = if has_blobs(raw) { rules.max_blobs } else { 0 };
    let limit = MAX_TX_BYTES.saturating_add(blobs.saturating_mul(BLOB_BYTES));
    if raw.len() > limit {
        let length = raw.len();
        let message = format!("{field} has {length} bytes, the most is {limit}");
        return Err(ErrorResponse::field(Reason::TransactionTooLarge, field, message));
    }
    let tx = PooledTransaction::decode_2718_exact(raw).map_err(|error| {
        let message = format!("{field} does not decode as a signed transaction: {error}");
        ErrorResponse::field(Reason::Undecodable, field, message)
    })?;
    fits(&tx, raw.len(), field, rules)?;
    Ok(tx)
}

/// Recovers the sender, and compares the blobs' commitments, but verifies no proofs: about 50 us.
pub(crate) fn transaction(
    tx: PooledTransaction,
    field: &str,
    terms: Option<PrivateTerms>,
    first_seen: SystemTime,
) -> Result<Transaction, ErrorResponse> {
    let hash = *tx.tx_hash();
    let tx = tx.try_into_recovered().map_err(|_| {
        let message = format!("{field} ({hash}) has an invalid signature");
        ErrorResponse::field(Reason::TransactionSignature, field, message)
    })?;
    let tx = match terms {
        Some(terms) => Transaction::private(tx, terms, first_seen),
        None => Transaction::new(tx, Origin::Rpc, first_seen),
    };
    tx.check_commitments().map_err(|error| sidecar(field, &hash, &error))?;
    Ok(tx)
}

pub(crate) fn sidecar(field: &str, hash: &B256, error: &SidecarError) -> ErrorResponse {
    ErrorResponse::field(Reason::Sidecar, field, format!("{field} ({hash}): {error}"))
}

fn fits(
    tx: &PooledTransaction,
    encoded_bytes: usize,
    field: &str,
    rules: &Rules,
) -> Result<(), ErrorResponse> {
    let chain_id = rules.chain_id;
    let hash = tx.tx_hash();
    let refused = |reason, what: String| {
        Err(ErrorResponse::field(reason, field, format!("{field} ({hash}): {what}")))
    };
    // Without one it is valid on every chain (before EIP-155), so anyone who sees it can replay it.
    if tx.chain_id() != Some(chain_id) {
        let id = tx.chain_id().map_or("absent".to_owned(), |id| id.to_string());
        return refused(Reason::ChainId, format!("chainId is {id}, must be {chain_id}"));
    }
    let (blobs, limit) = (tx.blob_versioned_hashes().map(<[_]>::len), rules.max_blobs);
    // An empty sidecar would match it, but no block may contain it (EIP-4844: at least one blob).
    if blobs == Some(0) {
        return refused(Reason::Sidecar, "blobVersionedHashes is empty, must have one".to_owned());
    }
    if let Some(blobs) = blobs.filter(|blobs| *blobs > limit) {
        let what = format!("blobVersionedHashes has {blobs} entries, the most is {limit}");
        return refused(Reason::TooManyBlobs, what);
    }
    if let PooledTransaction::Eip4844(signed) = tx {
        // The rest without the blobs.
        let bytes = encoded_bytes.saturating_sub(signed.tx().sidecar().size());
        if bytes > MAX_TX_BYTES {
            let what =
                format!("it has {bytes} bytes without its blobs, the most is {MAX_TX_BYTES}");
            return refused(Reason::TransactionTooLarge, what);
        }
    }
    if tx.authorization_list().is_some_and(<[_]>::is_empty) {
        let what = "authorizationList is empty, must have one".to_owned();
        return refused(Reason::NoAuthorization, what);
    }
    let (bytes, most) = (tx.input().len(), rules.max_init_code_bytes);
    if tx.is_create() && bytes > most {
        let what = format!("init code has {bytes} bytes, the most is {most}");
        return refused(Reason::InitCodeTooLarge, what);
    }
    if tx.nonce() == u64::MAX {
        let most = u64::MAX.saturating_sub(1);
        return refused(Reason::NonceTooHigh, format!("nonce is {}, the most is {most}", u64::MAX));
    }
    if highest_cost(tx).is_none() {
        let what = "value plus the most that its gas and blobs may cost is above 2^256 - 1";
        return refused(Reason::CostTooHigh, what.to_owned());
    }
    let (gas, least) = (tx.gas_limit(), intrinsic_gas(tx, rules));
    if let Some(most) = rules.max_gas.filter(|most| gas > *most) {
        return refused(Reason::GasLimit, format!("gas is {gas}, the most is {most}"));
    }
    if let (Some(tip), fee) = (tx.max_priority_fee_per_gas(), tx.max_fee_per_gas())
        && tip > fee
    {
        let what = format!("maxPriorityFeePerGas is {tip}, above the maxFeePerGas of {fee}");
        return refused(Reason::TipAboveFee, what);
    }
    if gas < least {
        return refused(Reason::IntrinsicGas, format!("gas is {gas}, must be at least {least}"));
    }
    Ok(())
}

/// The most wei that a transaction may spend, which its sender must have; `None` above 2^256 - 1.
fn highest_cost(tx: &PooledTransaction) -> Option<U256> {
    let gas = U256::from(tx.gas_limit()).checked_mul(U256::from(tx.max_fee_per_gas()))?;
    let blob_gas = U256::from(tx.blob_gas_used().unwrap_or_default());
    let blob_fee = U256::from(tx.max_fee_per_blob_gas().unwrap_or_default());
    tx.value().checked_add(gas)?.checked_add(blob_gas.checked_mul(blob_fee)?)
}

/// The intrinsic gas of a transaction.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "sums of lengths of a body of at most a gigabyte do not overflow at these prices"
)]
fn intrinsic_gas(tx: &PooledTransaction, rules: &Rules) -> u64 {
    let input = tx.input();
    let zeros = input.iter().filter(|byte| **byte == 0).count() as u64;
    let tokens = zeros + (input.len() as u64 - zeros) * TOKENS_PER_NONZERO_BYTE;
    let mut gas = rules.base_gas + tokens * ZERO_BYTE_GAS;
    if tx.is_create() {
        gas += rules.create_gas + (input.len() as u64).div_ceil(32) * INITCODE_WORD_GAS;
    }
    if let Some(list) = tx.access_list() {
        let keys: usize = list.iter().map(|item| item.storage_keys.len()).sum();
        let ListGas { address, storage_key, .. } = rules.list_gas;
        gas += list.len() as u64 * address + keys as u64 * storage_key;
    }
    gas +=
        tx.authorization_list().map_or(0, |list| list.len() as u64) * rules.list_gas.authorization;
    gas.max(rules.base_gas + tokens * FLOOR_GAS_PER_TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::{SignableTransaction, TxEip1559};
    use alloy_eips::eip2930::{AccessList, AccessListItem};
    use alloy_primitives::{Address, Signature, TxKind};

    fn gas(to: TxKind, input: Vec<u8>, access_list: AccessList) -> u64 {
        let tx = TxEip1559 { to, input: input.into(), access_list, ..TxEip1559::default() };
        let signature = Signature::new(U256::from(1), U256::from(1), false);
        let osaka = Rules::after(None, &crate::OrderRpcConfig::new(1));
        intrinsic_gas(&tx.into_signed(signature).into(), &osaka)
    }

    #[test]
    fn intrinsic_gas_is_what_the_rules_add_up_to() {
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
