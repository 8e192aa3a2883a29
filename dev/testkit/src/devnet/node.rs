//! A real node (anvil or geth) as a child process.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    ops::{Deref, DerefMut},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use mock_node::{DEFAULT_ACCOUNTS, DEV_CHAIN_ID};

use super::{
    genesis::genesis,
    process::{Process, cannot},
};

/// The gas limit of a block, with which both nodes accept 2,000 transactions/s.
const GAS_LIMIT: u64 = 60_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RealNodeKind {
    Anvil,
    /// go-ethereum in its development mode.
    Geth,
}

impl RealNodeKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Anvil => "anvil",
            Self::Geth => "geth",
        }
    }
}

/// A node that runs as a child process; killed when dropped.
#[derive(Debug)]
pub struct RealNode {
    ipc_path: PathBuf,
    process: Process,
}

impl Deref for RealNode {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for RealNode {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl RealNode {
    /// Starts a node with its socket, log and chain in `dir`, and with this time between blocks. It
    /// answers when this returns. With a block time of zero anvil mines after each transaction, and
    /// geth whenever a transaction is pending. geth continues an existing chain; a new chain has
    /// every fork up to Osaka from its genesis.
    pub fn start(kind: RealNodeKind, dir: &Path, block_time: Duration) -> io::Result<Self> {
        let (name, gas_limit) = (kind.name(), GAS_LIMIT.to_string());
        let ipc_path = dir.join(format!("{name}.ipc"));
        let mut process = Process::new(name, dir.join(format!("{name}.log")))?;
        let command = process.command();
        match kind {
            RealNodeKind::Anvil => {
                command.arg("--ipc").arg(&ipc_path).args(["--port", "0", "--silent"]);
                command.args(["--accounts", &DEFAULT_ACCOUNTS.to_string()]);
                command.args(["--balance", "1000000", "--gas-limit", &gas_limit]);
                command.args(["--chain-id", &DEV_CHAIN_ID.to_string()]);
                if !block_time.is_zero() {
                    command.args(["--block-time", &block_time.as_secs_f64().to_string()]);
                }
            }
            RealNodeKind::Geth => {
                let data = dir.join("geth-data");
                if !data.join("geth").exists() {
                    init_geth(dir, &data)?;
                }
                command.arg("--dev").arg("--datadir").arg(data);
                command.args(["--dev.period", &block_time.as_secs().to_string()]);
                command.arg("--ipcpath").arg(&ipc_path).args(["--verbosity", "2"]);
                command.args(["--nodiscover", "--maxpeers", "0", "--port", "0"]);
                command.args(["--authrpc.port", "0", "--miner.gaslimit", &gas_limit]);
                // With its default limits geth silently drops transactions of a fast load.
                command.args(["--txpool.globalslots", "300000", "--txpool.accountslots", "1000"]);
                command.args(["--txpool.globalqueue", "100000", "--txpool.accountqueue", "1000"]);
            }
        }
        let mut node = Self { ipc_path, process };
        node.restart()?;
        Ok(node)
    }

    pub fn ipc_path(&self) -> &Path {
        &self.ipc_path
    }

    /// Like [`Process::spawn`]; the node answers when this returns.
    pub fn restart(&mut self) -> io::Result<()> {
        self.spawn()?;
        let path = &self.ipc_path;
        self.process.wait(&path.to_string_lossy(), || answers(path).is_ok())
    }
}

fn init_geth(dir: &Path, data: &Path) -> io::Result<()> {
    let path = dir.join("genesis.json");
    let text = genesis(DEFAULT_ACCOUNTS, GAS_LIMIT).to_string();
    fs::write(&path, text).map_err(cannot("write the genesis"))?;
    let mut process = Process::new("geth", dir.join("geth-init.log"))?;
    process.command().arg("--datadir").arg(data).arg("init").arg(&path);
    process.run()
}

fn answers(path: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.contains("\"result\"") { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
