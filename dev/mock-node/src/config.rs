//! The configuration of a mock node.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    capacity::Capacity,
    faults::FaultPlan,
    quirks::Quirks,
    workload::{DEFAULT_ACCOUNTS, Mix, SignedLoad, Workload, WorkloadConfig},
};

/// The chain id of reth's, geth's and this node's development chain.
pub const DEV_CHAIN_ID: u64 = 1337;

/// The response to `web3_clientVersion`.
pub(crate) const CLIENT_VERSION: &str = "reth/v2.5.1-mock/x86_64-unknown-linux-gnu";

/// The largest request over IPC that reth 2.5.1 accepts, in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 15 << 20;

/// When the paced load begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadStart {
    #[default]
    AtOnce,
    /// When the first subscription to `newPendingTransactions` exists, so that every announcement
    /// has a receiver.
    FirstSubscription,
}

/// How the node responds to a subscription to whole transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FullObjects {
    #[default]
    Announced,
    /// They are announced, except for runs of this length at random places of the load.
    Dropped {
        /// How many of a thousand runs are dropped.
        per_mille: u32,
        /// The number of objects in a run, at least 1.
        run: u32,
    },
    Refused,
    /// Hashes are announced instead.
    Ignored,
}

/// The configuration of a node. [`NodeConfig::new`] has the defaults; all fields of
/// `NodeConfig::default()` are zero, which is no valid configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeConfig {
    /// The path of the socket. A file at this path is removed first, as reth does.
    pub ipc_path: PathBuf,
    /// Default [`DEV_CHAIN_ID`].
    pub chain_id: u64,
    /// The seed of the transactions, the latencies and the faults. Default 1.
    pub seed: u64,
    /// How many accounts of the test mnemonic send transactions. Default [`DEFAULT_ACCOUNTS`].
    pub accounts: usize,
    /// Transactions per second that the node announces by itself; 0, the default, is none. Above
    /// about 20,000 transactions/s there is no time to sign between them, and only
    /// [`signed_ahead`](Self::signed_ahead) keeps the pace.
    pub tps: u32,
    /// The number of paced announcements after which the load ends; `None` (default): never.
    pub count: Option<u64>,
    /// When the paced load begins. Default at once.
    pub load_start: LoadStart,
    /// The time of the genesis block, in seconds since the Unix epoch. Default: the start of the
    /// node.
    pub genesis_s: Option<u64>,
    /// Time between blocks; zero, the default, mines only by `MockNode::mine`.
    pub block_time: Duration,
    /// Gas limit of a block. Default 60 million, as on mainnet: about 1,000 transactions of the
    /// mix. At 2,000 transactions/s and 12 s blocks a node needs two billion to mine everything
    /// that it announces.
    pub block_gas_limit: u64,
    /// The most transactions of a block. Default unlimited.
    pub block_max_txs: usize,
    /// Delay of each answer to `eth_getRawTransactionByHash`; answers are delayed concurrently.
    /// Default none.
    pub latency: Duration,
    /// How many requests the node can process; `None` (default): any number.
    pub capacity: Option<Capacity>,
    /// How long `txpool_content` takes. Nothing else is answered during this time, as in anvil.
    /// Default none.
    pub list_time: Duration,
    /// How many of a thousand transactions of the paced load carry blobs. Default 0.
    pub blobs_per_mille: u32,
    /// How the node responds to a subscription to whole transactions. Default: it announces them.
    pub full_objects: FullObjects,
    /// Whether the JSON objects of transactions that are signed ahead, for subscribers to full
    /// transactions, are also rendered ahead. This takes about 1 kB for each. Default no.
    pub render_ahead: bool,
    /// Transactions that are pending before the socket exists. Default 0.
    pub preload: usize,
    /// Further transactions of the load that are signed before the socket exists, so that signing
    /// is not part of a measurement. Default 0; the others are signed shortly before their turn.
    pub signed_ahead: usize,
    /// The first transactions, if they are already signed. They must be those of
    /// [`workload`](Self::workload). Not serialized.
    #[serde(skip)]
    pub signed_load: Option<SignedLoad>,
    /// Whether blocks are executed, so that balances, nonces, code and storage can be requested at
    /// each recent block. Costs about 15 us of CPU time for each mined transaction. Default no.
    pub state: bool,
    /// Whether `eth_getBalance` answers a million ether for every account while no state is kept.
    /// Default no: it answers with an error.
    pub answers_balances: bool,
    /// How many of a thousand transactions of the paced load reach one of
    /// [`listed`](crate::workload::listed). Default 0.
    pub listed_per_mille: u32,
    /// Faults that occur by themselves, timed from the start of the load. The largest burst is
    /// signed before the socket exists. Default none.
    pub faults: Option<FaultPlan>,
    /// Whether `eth_getRawTransactionByHash` answers `"0x"` for an unknown hash, as geth does,
    /// instead of `null`, as reth and anvil do. Default no.
    pub unknown_is_empty: bool,
    /// How the node differs from a healthy reth from its start. Default: not at all.
    pub quirks: Quirks,
    /// The most pending and queued transactions together; further ones are refused. Default
    /// 500,000: about 400 MB of small transactions.
    pub pool_limit: usize,
}

impl NodeConfig {
    /// Makes the default configuration of a node at this path, which has no load.
    pub fn new(ipc_path: impl Into<PathBuf>) -> Self {
        Self {
            ipc_path: ipc_path.into(),
            chain_id: DEV_CHAIN_ID,
            seed: 1,
            accounts: DEFAULT_ACCOUNTS,
            block_gas_limit: 60_000_000,
            block_max_txs: usize::MAX,
            pool_limit: 500_000,
            ..Self::default()
        }
    }

    /// The load that this configuration describes; the same seed gives the same transactions.
    pub fn workload(&self) -> WorkloadConfig {
        WorkloadConfig {
            accounts: self.accounts,
            mix: Mix {
                blobs_per_mille: self.blobs_per_mille,
                listed_per_mille: self.listed_per_mille,
                ..Mix::default()
            },
            ..WorkloadConfig::new(self.seed, self.chain_id)
        }
    }

    /// The number of transactions in the largest burst of the plan. They are signed ahead, because
    /// signing them during the burst would delay the paced load.
    pub(crate) fn largest_burst(&self) -> usize {
        self.faults.as_ref().map_or(0, FaultPlan::largest_burst)
    }

    /// Makes the load, and signs the transactions that are needed first.
    pub(crate) fn load(&self) -> Workload {
        let config = self.workload();
        let mut load = match self.signed_load.clone() {
            Some(SignedLoad(signed)) => signed,
            None => Workload::new(config.clone()),
        };
        assert_eq!(load.config, config, "the signed load must be that of the node");
        let signed = load.sign_up_to(self.preload + self.signed_ahead + self.largest_burst());
        if self.render_ahead {
            signed.iter().for_each(|(_, tx)| _ = tx.pending_object());
        }
        load
    }
}
