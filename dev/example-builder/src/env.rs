//! Converts a head and a transaction into the EVM's inputs.

use alloy_consensus::{Header, Transaction as _, crypto::secp256k1::recover_signer};
use alloy_eips::{
    eip7702::{RecoveredAuthority, RecoveredAuthorization},
    eip7840::BlobParams,
};
use alloy_primitives::{Address, U256, keccak256};
use mempool_ingest::order_pool::{Head, Transaction};
use revm::{
    context::{BlockEnv, CfgEnv, TxEnv, either::Either},
    primitives::hardfork::SpecId,
};

/// The block that is being built.
#[derive(Clone, Debug)]
pub(crate) struct NextBlock {
    pub(crate) parent: Head,
    pub(crate) chain_id: u64,
    pub(crate) env: BlockEnv,
    /// Gas limit of the block: the configured one, but not more than its parent's.
    pub(crate) gas_limit: u64,
    pub(crate) max_blobs: u64,
}

impl NextBlock {
    /// The block after `parent` as far as it is known: fees by EIP-1559, 4844 and 7918, the rules
    /// of Osaka. A relay or consensus client would supply the timestamp and `prevrandao`; here the
    /// first is `slot_s` later and the second is derived from the parent's hash.
    pub(crate) fn after(
        parent: Head,
        chain_id: u64,
        fee_recipient: Address,
        gas_limit: u64,
        slot_s: u64,
    ) -> Self {
        let header = Header {
            base_fee_per_gas: Some(parent.base_fee_wei.unwrap_or_default()),
            blob_gas_used: Some(parent.blob_gas_used.unwrap_or_default()),
            excess_blob_gas: Some(parent.excess_blob_gas.unwrap_or_default()),
            ..Header::default()
        };
        let blobs = BlobParams::osaka();
        let mut env = BlockEnv {
            number: U256::from(parent.number + 1),
            beneficiary: fee_recipient,
            timestamp: U256::from(parent.timestamp + slot_s.max(1)),
            gas_limit: parent.gas_limit,
            basefee: parent.next_base_fee_wei.unwrap_or_default(),
            prevrandao: Some(keccak256(parent.hash)),
            ..BlockEnv::default()
        };
        let excess = header.next_block_excess_blob_gas(blobs).unwrap_or_default();
        env.set_blob_excess_gas_and_price(excess, blobs.update_fraction as u64);
        let gas_limit = gas_limit.min(parent.gas_limit);
        Self { parent, chain_id, env, gas_limit, max_blobs: blobs.max_blob_count }
    }

    pub(crate) fn number(&self) -> u64 {
        self.parent.number + 1
    }

    pub(crate) fn base_fee_wei(&self) -> u64 {
        self.env.basefee
    }

    pub(crate) fn cfg(&self) -> CfgEnv {
        let mut cfg = CfgEnv::new_with_spec(SpecId::OSAKA);
        cfg.chain_id = self.chain_id;
        cfg.max_blobs_per_tx = Some(BlobParams::osaka().max_blobs_per_tx);
        cfg
    }
}

/// Authorities are recovered here, once, by libsecp256k1: the EVM would recover them at every
/// execution, and more slowly.
pub(crate) fn tx_env(order: &Transaction) -> TxEnv {
    let tx = order.envelope();
    TxEnv {
        tx_type: tx.tx_type() as u8,
        caller: order.sender(),
        gas_limit: tx.gas_limit(),
        gas_price: tx.max_fee_per_gas(),
        kind: tx.kind(),
        value: tx.value(),
        data: tx.input().clone(),
        nonce: tx.nonce(),
        chain_id: tx.chain_id(),
        access_list: tx.access_list().cloned().unwrap_or_default(),
        gas_priority_fee: tx.max_priority_fee_per_gas(),
        blob_hashes: tx.blob_versioned_hashes().unwrap_or_default().to_vec(),
        max_fee_per_blob_gas: tx.max_fee_per_blob_gas().unwrap_or_default(),
        authorization_list: tx
            .authorization_list()
            .unwrap_or_default()
            .iter()
            .map(|signed| {
                let authority = signed
                    .signature()
                    .ok()
                    .and_then(|signature| recover_signer(&signature, signed.signature_hash()).ok())
                    .map_or(RecoveredAuthority::Invalid, RecoveredAuthority::Valid);
                let inner = signed.inner().clone();
                Either::Right(RecoveredAuthorization::new_unchecked(inner, authority))
            })
            .collect(),
    }
}
