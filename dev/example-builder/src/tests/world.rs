//! A mock node with a state, and a pool of orders to build from.

use std::{sync::Arc, time::Duration, time::SystemTime};

use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address};
use blocklist::{BlockGuard, Blocklist, BlocklistConfig};
use mempool_ingest::{
    OrderPool, PoolConfig,
    order_pool::{Head, InsertOutcome, Origin, RawBundle, Transaction, next_base_fee_wei},
    txpool_fetcher::{RawTransaction, read_raw},
};
use mock_node::{
    MockNode, NodeConfig,
    workload::{Account, listed, test_accounts},
};
use tempfile::TempDir;

use crate::{
    candidates::Candidates,
    env::NextBlock,
    rpc::Rpc,
    state::{Codes, NodeState},
};

pub(crate) const FEE_RECIPIENT: Address = address!("0x00000000000000000000000000000000000fee00");
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Accounts of the mock node's own load; those after them are funded too.
const LOAD_ACCOUNTS: usize = 20;

pub(crate) struct World {
    pub(crate) node: MockNode,
    pub(crate) pool: OrderPool,
    pub(crate) rpc: Arc<Rpc>,
    _folder: TempDir,
}

impl World {
    pub(crate) fn new(configure: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = NodeConfig::new(folder.path().join("node.ipc"));
        let config = NodeConfig { accounts: LOAD_ACCOUNTS, state: true, ..config };
        let node = MockNode::start(configure(config)).expect("the mock node starts");
        let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
        let rpc = Arc::new(Rpc::connect(node.ipc_path(), TIMEOUT).expect("the node listens"));
        Self { node, pool, rpc, _folder: folder }
    }

    /// Everything that is pending in the node, as the fetcher would bring it.
    pub(crate) fn ingest_pending(&self) {
        for hash in self.node.pending() {
            let raw = self.node.raw(hash).expect("it is pending");
            self.pool(raw);
        }
    }

    pub(crate) fn pool(&self, raw: Bytes) -> B256 {
        let tx = pooled(raw);
        let hash = *tx.hash();
        assert_eq!(self.pool.insert_transaction(tx), InsertOutcome::Added);
        hash
    }

    pub(crate) fn bundle(&self, bundle: RawBundle) {
        let bundle = bundle.resolve(None, 100, SystemTime::now()).expect("it resolves");
        assert_eq!(self.pool.insert_bundle(bundle), InsertOutcome::Added);
    }

    /// The node's head, as the fetcher would tell it.
    pub(crate) fn head(&self) -> Head {
        let answer =
            self.rpc.one(crate::rpc::Call("eth_getBlockByNumber", r#"["latest",false]"#.into()));
        let block: serde_json::Value =
            serde_json::from_str(answer.expect("an answer").get()).expect("a block");
        let hash = |field: &str| block[field].as_str().expect("a hash").parse().expect("a hash");
        let number = |field: &str| {
            let digits = block[field].as_str().and_then(|text| text.strip_prefix("0x"));
            u64::from_str_radix(digits.expect("a number"), 16).expect("a number")
        };
        let base_fee_wei = number("baseFeePerGas");
        let (used, limit) = (number("gasUsed"), number("gasLimit"));
        Head::new(number("number"), hash("hash"), hash("parentHash"))
            .with_timestamp(number("timestamp"))
            .with_gas_limit(limit)
            .with_base_fee_wei(Some(base_fee_wei))
            .with_next_base_fee_wei(next_base_fee_wei(base_fee_wei, used, limit))
            .with_blob_gas_used(Some(number("blobGasUsed")))
            .with_excess_blob_gas(Some(number("excessBlobGas")))
    }

    /// The block after the node's head, with a gas limit.
    pub(crate) fn next_block(&self, gas_limit: u64) -> NextBlock {
        NextBlock::after(self.head(), self.node.config().chain_id, FEE_RECIPIENT, gas_limit, 12)
    }

    pub(crate) fn state(&self, block: &NextBlock) -> NodeState {
        NodeState::new(Arc::clone(&self.rpc), block.parent.hash, Codes::default())
    }

    pub(crate) fn candidates(&self, block: &NextBlock) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.follow(&mut self.pool.subscribe(block.number()));
        candidates
    }
}

/// A guard over the addresses that the load reaches.
pub(crate) fn guard() -> BlockGuard {
    let list = Blocklist::from_addresses(listed().iter().copied(), &BlocklistConfig::default());
    BlockGuard::new(Arc::new(list.expect("a good list")), FEE_RECIPIENT).expect("not listed")
}

fn pooled(raw: Bytes) -> Transaction {
    use alloy_consensus::{TxEnvelope, transaction::SignerRecoverable as _};
    use alloy_eips::Decodable2718 as _;
    let envelope = TxEnvelope::decode_2718_exact(&raw).expect("it decodes");
    envelope.recover_signer().expect("a signature");
    match read_raw(raw, *envelope.tx_hash()) {
        RawTransaction::Decoded(tx, _) => Transaction::new(*tx, Origin::Mempool, SystemTime::now()),
        other => panic!("{other:?}"),
    }
}

/// Funded accounts that the node's own load does not use.
pub(crate) fn spare_accounts() -> Vec<Account> {
    test_accounts(LOAD_ACCOUNTS + 8).split_off(LOAD_ACCOUNTS)
}

pub(crate) struct Wanted {
    pub(crate) nonce: u64,
    pub(crate) tip_gwei: u128,
    pub(crate) to: Address,
    pub(crate) input: Bytes,
}

pub(crate) fn sign(account: &Account, wanted: Wanted) -> (B256, Bytes) {
    let tx = TxEip1559 {
        chain_id: mock_node::DEV_CHAIN_ID,
        nonce: wanted.nonce,
        gas_limit: 100_000,
        max_fee_per_gas: 200_000_000_000,
        max_priority_fee_per_gas: wanted.tip_gwei * 1_000_000_000,
        to: TxKind::Call(wanted.to),
        value: U256::ZERO,
        input: wanted.input,
        ..TxEip1559::default()
    };
    let signature = account.sign_hash(tx.signature_hash());
    let signed = tx.into_signed(signature);
    (*signed.hash(), signed.encoded_2718().into())
}
