//! The block that is being built, and the state of its parent, read from the node over IPC and
//! cached.

use std::{cell::Cell, time::Duration};

use alloy::{
    consensus::Header,
    eips::{BlockId, eip7840::BlobParams},
    primitives::{Address, B256, U256, keccak256},
    providers::{DynProvider, Provider as _},
    transports::TransportError,
};
use mempool_ingest::order_pool::Head;
use revm::{
    Context, Database, DatabaseRef, MainBuilder, MainContext,
    bytecode::Bytecode,
    context::{BlockEnv, CfgEnv},
    database::CacheDB,
    handler::{MainnetContext, MainnetEvm},
    primitives::hardfork::SpecId,
    state::AccountInfo,
};
use tokio::{runtime::Handle, time::timeout};

/// The block that is being built, as the EVM needs it.
#[derive(Clone, Debug)]
pub(crate) struct NextBlock {
    pub(crate) parent: Head,
    pub(crate) env: BlockEnv,
    pub(crate) cfg: CfgEnv,
    pub(crate) max_blobs: u64,
}

/// When the forks BPO1 and BPO2 (EIP-7892), which only change the blob schedule, took effect on a
/// public chain.
struct BlobForks {
    chain_id: u64,
    bpo1: u64,
    bpo2: u64,
}

/// From `params/config.go` of go-ethereum: mainnet, Sepolia, Hoodi.
const BLOB_FORKS: [BlobForks; 3] = [
    BlobForks { chain_id: 1, bpo1: 1_765_290_071, bpo2: 1_767_747_671 },
    BlobForks { chain_id: 11_155_111, bpo1: 1_761_017_184, bpo2: 1_761_607_008 },
    BlobForks { chain_id: 560_048, bpo1: 1_762_365_720, bpo2: 1_762_955_544 },
];

/// The blob schedule of a block with this timestamp. Development chains have that of Osaka, with
/// which they begin.
fn blob_params(chain_id: u64, timestamp: u64) -> BlobParams {
    let forks = BLOB_FORKS.iter().find(|forks| forks.chain_id == chain_id);
    match forks {
        Some(forks) if timestamp >= forks.bpo2 => BlobParams::bpo2(),
        Some(forks) if timestamp >= forks.bpo1 => BlobParams::bpo1(),
        _ => BlobParams::osaka(),
    }
}

impl NextBlock {
    /// Makes the block after `parent`, as far as it is known: with fees by EIP-1559, 4844 and 7918,
    /// and with the rules of Osaka and the blob schedule of the chain at the time of the block
    /// ([`blob_params`]).
    ///
    /// A relay or consensus client would supply the timestamp and `prevrandao`. Here the timestamp
    /// is `slot_s` later than the parent's, and `prevrandao` is derived from the parent's hash. The
    /// system calls of EIP-4788 and EIP-2935, with which a submitted block begins, are left out.
    pub(crate) fn after(parent: Head, chain_id: u64, fee_recipient: Address, slot_s: u64) -> Self {
        let header = Header {
            base_fee_per_gas: Some(parent.base_fee_wei.unwrap_or_default()),
            blob_gas_used: Some(parent.blob_gas_used.unwrap_or_default()),
            excess_blob_gas: Some(parent.excess_blob_gas.unwrap_or_default()),
            ..Header::default()
        };
        let timestamp = parent.timestamp + slot_s.max(1);
        let blobs = blob_params(chain_id, timestamp);
        let mut env = BlockEnv {
            number: U256::from(parent.number + 1),
            beneficiary: fee_recipient,
            timestamp: U256::from(timestamp),
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

    /// Makes an EVM for this block on a state.
    pub(crate) fn evm<DB: Database, I>(
        &self,
        db: DB,
        inspector: I,
    ) -> MainnetEvm<MainnetContext<DB>, I> {
        let context = Context::mainnet().with_db(db).with_cfg(self.cfg.clone());
        context.with_block(self.env.clone()).build_mainnet_with_inspector(inspector)
    }
}

/// The time-out of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The reason why the state of the node could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the node does not answer within {READ_TIMEOUT:?}")]
    Timeout,
    #[error("cannot read the state: {0}")]
    Transport(#[from] TransportError),
}

impl revm::database_interface::DBErrorMarker for ReadError {}

/// The state at one block, with a cache of everything that was read.
pub(crate) type NodeState = CacheDB<Reads>;

/// Reads the state at one block. Each request names the block by its hash, so all values belong to
/// the same block.
#[derive(Debug)]
pub(crate) struct Reads {
    node: DynProvider,
    runtime: Handle,
    block: BlockId,
    pub(crate) count: Cell<u64>,
}

impl Reads {
    pub(crate) fn new(node: DynProvider, runtime: Handle, block: B256) -> Self {
        Self { node, runtime, block: BlockId::hash(block), count: Cell::new(0) }
    }

    fn wait<T>(
        &self,
        response: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, ReadError> {
        self.count.set(self.count.get() + 1);
        let response = self.runtime.block_on(async { timeout(READ_TIMEOUT, response).await });
        Ok(response.map_err(|_| ReadError::Timeout)??)
    }
}

impl DatabaseRef for Reads {
    type Error = ReadError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        let (node, block) = (&self.node, self.block);
        let (balance, nonce, code) = self.wait(async {
            tokio::try_join!(
                node.get_balance(address).block_id(block).into_future(),
                node.get_transaction_count(address).block_id(block).into_future(),
                node.get_code_at(address).block_id(block).into_future(),
            )
        })?;
        // Code that begins like a delegation but is not one is treated as legacy code.
        let code =
            Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code));
        let info = AccountInfo::new(balance, nonce, code.hash_slow(), code);
        // Since EIP-161 an empty account does not exist.
        Ok((!info.is_empty()).then_some(info))
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<Bytecode, ReadError> {
        unreachable!("accounts come with their code")
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, ReadError> {
        self.wait(self.node.get_storage_at(address, index).block_id(self.block).into_future())
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, ReadError> {
        let block = self.wait(self.node.get_block_by_number(number.into()).into_future())?;
        Ok(block.map_or(B256::ZERO, |block| block.header.hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(chain_id: u64, timestamp: u64) -> NextBlock {
        let parent = Head {
            number: 24_000_000,
            timestamp,
            gas_limit: 60_000_000,
            base_fee_wei: Some(10_000_000),
            next_base_fee_wei: Some(10_000_000),
            // 170 million of excess: with Osaka's schedule 5e14 wei, with that of BPO2 two million.
            excess_blob_gas: Some(170_000_000),
            blob_gas_used: Some(14 * 131_072),
            ..Head::default()
        };
        NextBlock::after(parent, chain_id, Address::ZERO, 12)
    }

    /// The schedule of Osaka used to apply: nine blobs, and a price that was wrong by eight orders
    /// of magnitude.
    #[test]
    fn blobs_are_priced_with_the_schedule_of_the_current_fork() {
        let price =
            |block: &NextBlock| block.env.blob_excess_gas_and_price.expect("set").blob_gasprice;
        let bpo2 = next(1, 1_767_747_671);
        assert_eq!(bpo2.max_blobs, 21);
        // The target is 14 blobs, so the excess stays; e^(170,000,000 / 11,684,671) is 2.08
        // million.
        let expected = (170_000_000.0_f64 / 11_684_671.0).exp();
        assert!(
            (price(&bpo2) as f64 / expected - 1.0).abs() < 0.001,
            "{} {expected}",
            price(&bpo2)
        );
        // The block is twelve seconds later than its parent.
        assert_eq!(next(1, 1_767_747_671 - 13).max_blobs, 15);
        assert_eq!(next(1, 1_765_290_071 - 13).max_blobs, 9);
        assert_eq!(next(1337, 1_800_000_000).max_blobs, 9);
    }
}
