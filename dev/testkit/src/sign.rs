//! Transactions that a test makes.

use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind};
use mock_node::{DEV_CHAIN_ID, workload::Account};

/// Signs a transaction of an account on the development chain, and returns its hash and bytes. It
/// calls an account without code; `edit` may change anything.
pub fn signed(account: &Account, edit: impl FnOnce(&mut TxEip1559)) -> (B256, Bytes) {
    let mut tx = TxEip1559 {
        chain_id: DEV_CHAIN_ID,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..TxEip1559::default()
    };
    edit(&mut tx);
    let signature = account.sign_hash(tx.signature_hash());
    let signed = tx.into_signed(signature);
    (*signed.hash(), signed.encoded_2718().into())
}
