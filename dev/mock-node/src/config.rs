//! The configuration of a mock node.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    error::NodeError,
    faults::FaultPlan,
    timing::Capacity,
    workload::{Mix, SidecarForm, SignedLoad, WorkloadConfig},
};

/// The chain id of reth's, geth's and this node's development chain.
pub const DEV_CHAIN_ID: u64 = 1337;

/// Default number of sending accounts: as many as anvil has with `--accounts 1000`.
pub const DEFAULT_ACCOUNTS: usize = 1000;

/// Default gas of a block: as on mainnet. It holds about 1,000 transactions of the mix. To mine
/// everything that it announces for hours, at 2,000 transactions/s and 12 s blocks, a node needs
/// two billion.
pub const DEFAULT_BLOCK_GAS_LIMIT: u64 = 60_000_000;

/// Default cap on transactions in pool and queue together: about 400 MB of small ones. Above it
/// sends are refused.
pub const DEFAULT_POOL_LIMIT: usize = 500_000;

/// Default number of blocks whose transactions can still be requested: at 2,000 transactions/s and
/// 12 s blocks 770,000 transactions, about 500 MB. Older ones are dropped, as a pruned node does.
pub const DEFAULT_HISTORY_BLOCKS: usize = 32;

/// Default number of connections, that of reth 2.5.1; the next one gets a line of plain text and is
/// closed.
pub const DEFAULT_MAX_CONNECTIONS: usize = 500;

/// Default cap on the bytes that wait for one slow reader before its connection is closed. reth
/// queues for a slow reader without a bound, which could exhaust a test machine.
pub const DEFAULT_MAX_QUEUED_BYTES: usize = 256 << 20;

/// Most bytes of a request over IPC in reth 2.5.1.
pub const MAX_REQUEST_BYTES: usize = 15 << 20;

/// How long the node takes to answer `eth_getRawTransactionByHash`. Each response is delayed
/// separately: many wait at the same time, and they are sent out of order where the delays differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Latency {
    /// No delay, in the order of the requests.
    #[default]
    None,
    /// Always the same.
    Fixed(Duration),
    /// Log-normal, given by two of its quantiles. Draws are capped at ten times `p99`.
    LogNormal {
        /// Half of the answers take longer.
        median: Duration,
        /// One in a hundred takes longer.
        p99: Duration,
    },
}

/// When the paced load begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LoadStart {
    /// When the node listens.
    #[default]
    AtOnce,
    /// When the first subscription to `newPendingTransactions` exists, so that every announcement
    /// has a receiver.
    FirstSubscription,
}

/// The answer to `eth_getRawTransactionByHash` for a hash that the node does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum UnknownRaw {
    /// `null`, as reth and anvil answer.
    #[default]
    Null,
    /// `"0x"`, as geth answers.
    EmptyHex,
}

/// A mock node's configuration.
///
/// ```
/// use std::time::Duration;
/// use mock_node::{Latency, NodeConfig};
///
/// let config = NodeConfig::new("/tmp/node.ipc")
///     .with_tps(2000)
///     .with_block_time(Duration::from_secs(12))
///     .with_latency(Latency::Fixed(Duration::from_millis(2)));
/// assert_eq!(config.chain_id, mock_node::DEV_CHAIN_ID);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Where the socket is created. A file of that name is removed first, as reth does.
    pub ipc_path: PathBuf,
    /// Default [`DEV_CHAIN_ID`].
    pub chain_id: u64,
    /// The seed of the transactions, the latencies and the faults. Default 1.
    pub seed: u64,
    /// Accounts of the test mnemonic that send. Default [`DEFAULT_ACCOUNTS`].
    pub accounts: usize,
    /// Transactions per second that the node announces by itself; 0, the default, is none.
    pub tps: u32,
    /// Paced announcements after which the load ends; `None` (default): never.
    pub count: Option<u64>,
    /// When the paced load begins. Default at once.
    pub load_start: LoadStart,
    /// Time between the start that `load_start` names and the first announcement. Default none.
    pub start_delay: Duration,
    /// Time between blocks; zero, the default, mines only by `MockNode::mine`.
    pub block_time: Duration,
    /// Gas of a block. Default [`DEFAULT_BLOCK_GAS_LIMIT`].
    pub block_gas_limit: u64,
    /// Transactions of a block. Default unlimited.
    pub block_max_txs: usize,
    /// Delay of answers to `eth_getRawTransactionByHash`. Default none.
    pub latency: Latency,
    /// How many requests the node processes at once; `None` (default): no bound.
    pub capacity: Option<Capacity>,
    /// How long `txpool_content` takes. Meanwhile nothing else is answered, as in anvil. Default
    /// none.
    pub list_time: Duration,
    /// How many of a thousand transactions of the paced load carry blobs. Default 0.
    pub blobs_per_mille: u32,
    /// How many of a thousand blob transactions carry six blobs; the others carry one. Default 200.
    pub six_blobs_per_mille: u32,
    /// The sidecars of the paced load. Default [`SidecarForm::CellProofs`], which nodes serve after Osaka.
    pub sidecar_form: SidecarForm,
    /// Whether `eth_sendRawTransaction` accepts a sidecar with blob proofs (the form before Osaka).
    /// reth refuses it, which is the default.
    pub accept_old_sidecars: bool,
    /// Whether the objects for subscribers to full transactions are rendered when the load is
    /// signed, so that the node's time for it is not part of a measurement. Takes about 1 kB for
    /// each. Default no.
    pub render_ahead: bool,
    /// Transactions that are pending before the socket exists. Default 0.
    pub preload: usize,
    /// The first transactions, if they are already signed. They must be those of
    /// [`workload`](Self::workload). Not serialized.
    #[serde(skip)]
    pub signed_load: Option<SignedLoad>,
    /// Whether blocks are executed, so that balances, nonces, code and storage can be requested at
    /// each recent block. Costs about 15 us of CPU time for each mined transaction. Default no.
    pub state: bool,
    /// How many of a thousand transactions of the paced load reach one of
    /// [`listed`](crate::workload::listed). Default 0.
    pub listed_per_mille: u32,
    /// Whether transactions that a reorg un-mines are announced again, as reth's pool does. Default
    /// yes.
    pub announce_unmined: bool,
    /// Faults that occur by themselves, timed from the start of the load. Default none.
    pub faults: Option<FaultPlan>,
    /// Default `null`.
    pub unknown_raw: UnknownRaw,
    /// The answer to `web3_clientVersion`. Default `reth/v2.5.1-mock/x86_64-unknown-linux-gnu`.
    pub client_version: String,
    /// Cap on pending and queued transactions together. Default [`DEFAULT_POOL_LIMIT`].
    pub pool_limit: usize,
    /// Blocks kept with their transactions. Default [`DEFAULT_HISTORY_BLOCKS`].
    pub history_blocks: usize,
    /// Default [`DEFAULT_MAX_CONNECTIONS`].
    pub max_connections: usize,
    /// Default [`DEFAULT_MAX_QUEUED_BYTES`].
    pub max_queued_bytes: usize,
}

impl NodeConfig {
    /// A node without a load at this path, with the defaults.
    pub fn new(ipc_path: impl Into<PathBuf>) -> Self {
        Self {
            ipc_path: ipc_path.into(),
            chain_id: DEV_CHAIN_ID,
            seed: 1,
            accounts: DEFAULT_ACCOUNTS,
            tps: 0,
            count: None,
            load_start: LoadStart::default(),
            start_delay: Duration::ZERO,
            block_time: Duration::ZERO,
            block_gas_limit: DEFAULT_BLOCK_GAS_LIMIT,
            block_max_txs: usize::MAX,
            latency: Latency::default(),
            capacity: None,
            list_time: Duration::ZERO,
            blobs_per_mille: 0,
            six_blobs_per_mille: Mix::default().six_blobs_per_mille,
            sidecar_form: SidecarForm::default(),
            accept_old_sidecars: false,
            render_ahead: false,
            preload: 0,
            signed_load: None,
            state: false,
            listed_per_mille: 0,
            announce_unmined: true,
            faults: None,
            unknown_raw: UnknownRaw::default(),
            client_version: "reth/v2.5.1-mock/x86_64-unknown-linux-gnu".to_owned(),
            pool_limit: DEFAULT_POOL_LIMIT,
            history_blocks: DEFAULT_HISTORY_BLOCKS,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            max_queued_bytes: DEFAULT_MAX_QUEUED_BYTES,
        }
    }

    /// The load that this configuration describes; the same seed gives the same transactions.
    pub fn workload(&self) -> WorkloadConfig {
        WorkloadConfig::new(self.seed, self.chain_id)
            .with_accounts(self.accounts)
            .with_sidecar_form(self.sidecar_form)
            .with_mix(Mix {
                blobs_per_mille: self.blobs_per_mille,
                six_blobs_per_mille: self.six_blobs_per_mille,
                listed_per_mille: self.listed_per_mille,
                ..Mix::default()
            })
    }

    pub(crate) fn validate(&self) -> Result<(), NodeError> {
        let refuse =
            |field, value: String, expected| Err(NodeError::Config { field, value, expected });
        if self.accounts < 2 {
            return refuse(
                "accounts",
                self.accounts.to_string(),
                "at least 2 are needed, one of them for blobs",
            );
        }
        if self.blobs_per_mille > 1000 {
            return refuse(
                "blobs_per_mille",
                self.blobs_per_mille.to_string(),
                "0 to 1000 are accepted",
            );
        }
        if self.six_blobs_per_mille > 1000 {
            return refuse(
                "six_blobs_per_mille",
                self.six_blobs_per_mille.to_string(),
                "0 to 1000 are accepted",
            );
        }
        if self.listed_per_mille > 1000 {
            return refuse(
                "listed_per_mille",
                self.listed_per_mille.to_string(),
                "0 to 1000 are accepted",
            );
        }
        if let Some(capacity) = self.capacity
            && (capacity.at_once == 0 || capacity.service < Duration::from_micros(1))
        {
            return refuse(
                "capacity",
                format!("{} at once, {:?} each", capacity.at_once, capacity.service),
                "at least 1 at once, each at least 1us",
            );
        }
        if self.signed_load.as_ref().is_some_and(|load| *load.config() != self.workload()) {
            return refuse(
                "signed_load",
                "of another workload".into(),
                "its seed, chain id, accounts and mix must be the node's",
            );
        }
        if self.history_blocks == 0 {
            return refuse("history_blocks", "0".into(), "at least 1 block must be kept");
        }
        if let Latency::LogNormal { median, p99 } = self.latency
            && (median.is_zero() || p99 < median)
        {
            return refuse("latency", format!("{median:?},{p99:?}"), "needs 0 < median <= p99");
        }
        Ok(())
    }
}

macro_rules! setters {
    ($($setter:ident: $field:ident: $ty:ty),* $(,)?) => {
        impl NodeConfig {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $setter(mut self, value: $ty) -> Self {
                    self.$field = value;
                    self
                }
            )*
        }
    };
}

setters! {
    with_ipc_path: ipc_path: PathBuf,
    with_chain_id: chain_id: u64,
    with_seed: seed: u64,
    with_accounts: accounts: usize,
    with_tps: tps: u32,
    with_count: count: Option<u64>,
    with_load_start: load_start: LoadStart,
    with_start_delay: start_delay: Duration,
    with_block_time: block_time: Duration,
    with_block_gas_limit: block_gas_limit: u64,
    with_block_max_txs: block_max_txs: usize,
    with_latency: latency: Latency,
    with_capacity: capacity: Option<Capacity>,
    with_list_time: list_time: Duration,
    with_blobs_per_mille: blobs_per_mille: u32,
    with_six_blobs_per_mille: six_blobs_per_mille: u32,
    with_sidecar_form: sidecar_form: SidecarForm,
    with_accept_old_sidecars: accept_old_sidecars: bool,
    with_render_ahead: render_ahead: bool,
    with_preload: preload: usize,
    with_signed_load: signed_load: Option<SignedLoad>,
    with_state: state: bool,
    with_listed_per_mille: listed_per_mille: u32,
    with_announce_unmined: announce_unmined: bool,
    with_faults: faults: Option<FaultPlan>,
    with_unknown_raw: unknown_raw: UnknownRaw,
    with_client_version: client_version: String,
    with_pool_limit: pool_limit: usize,
    with_history_blocks: history_blocks: usize,
    with_max_connections: max_connections: usize,
    with_max_queued_bytes: max_queued_bytes: usize,
}
