//! The block that is being built, as the EVM needs it.

use alloy_consensus::Header;
use alloy_eips::eip7840::BlobParams;
use alloy_primitives::{Address, U256, keccak256};
use mempool_ingest::order_pool::Head;
use revm::{
    Context, Database, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv},
    handler::{MainnetContext, MainnetEvm},
    primitives::hardfork::SpecId,
};

#[derive(Clone, Debug)]
pub(crate) struct NextBlock {
    pub(crate) parent: Head,
    pub(crate) env: BlockEnv,
    pub(crate) cfg: CfgEnv,
    pub(crate) max_blobs: u64,
}

impl NextBlock {
    /// The block after `parent` as far as it is known: fees by EIP-1559, 4844 and 7918, the rules
    /// of Osaka. A relay or consensus client would supply the timestamp and `prevrandao`; here the
    /// first is `slot_s` later and the second is derived from the parent's hash. A block that is submitted begins with
    /// the system calls of EIP-4788 and EIP-2935, which are left out here.
    pub(crate) fn after(parent: Head, chain_id: u64, fee_recipient: Address, slot_s: u64) -> Self {
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
        let mut cfg = CfgEnv::new_with_spec(SpecId::OSAKA);
        cfg.chain_id = chain_id;
        cfg.max_blobs_per_tx = Some(blobs.max_blobs_per_tx);
        Self { parent, env, cfg, max_blobs: blobs.max_blob_count }
    }

    pub(crate) const fn number(&self) -> u64 {
        self.parent.number + 1
    }

    /// An EVM for this block over a state.
    pub(crate) fn evm<DB: Database, I>(
        &self,
        db: DB,
        inspector: I,
    ) -> MainnetEvm<MainnetContext<DB>, I> {
        let context = Context::mainnet().with_db(db).with_cfg(self.cfg.clone());
        context.with_block(self.env.clone()).build_mainnet_with_inspector(inspector)
    }
}
