//! A real node as a child process.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    ops::{Deref, DerefMut},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use mock_node::{DEFAULT_ACCOUNTS, DEV_CHAIN_ID};

use crate::{
    genesis::genesis,
    process::{
        Process, START_TIMEOUT, cannot, exited, find_binary, path_text, run, strings, to_log,
    },
};

/// Gas of a block: with it, both nodes take 2,000 transactions/s.
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
    /// Starts a node with its socket, its log and its chain in `dir`, and with so much time between blocks; it answers when
    /// this returns. With no time anvil mines at each transaction, geth whenever something is pending. A geth that finds
    /// its chain goes on with it; else it has every fork up to Osaka from the beginning.
    pub fn start(kind: RealNodeKind, dir: &Path, block_time: Duration) -> io::Result<Self> {
        let (name, gas_limit) = (kind.name(), GAS_LIMIT.to_string());
        let ipc_path = dir.join(format!("{name}.ipc"));
        let ipc = path_text(&ipc_path);
        let mut args = Vec::new();
        match kind {
            RealNodeKind::Anvil => {
                args.extend(strings(["--ipc", &ipc, "--port", "0", "--silent"]));
                args.extend(strings(["--accounts", &DEFAULT_ACCOUNTS.to_string()]));
                args.extend(strings(["--balance", "1000000", "--gas-limit", &gas_limit]));
                args.extend(strings(["--chain-id", &DEV_CHAIN_ID.to_string()]));
                if !block_time.is_zero() {
                    args.extend(strings(["--block-time", &block_time.as_secs_f64().to_string()]));
                }
            }
            RealNodeKind::Geth => {
                let data = dir.join("geth-data");
                if !data.join("geth").exists() {
                    init_geth(&find_binary(name)?, dir, &data)?;
                }
                args.extend(strings(["--dev", "--datadir", &path_text(&data)]));
                args.extend(strings(["--dev.period", &block_time.as_secs().to_string()]));
                args.extend(strings(["--ipcpath", &ipc, "--verbosity", "2"]));
                args.extend(strings(["--nodiscover", "--maxpeers", "0", "--port", "0"]));
                args.extend(strings(["--authrpc.port", "0", "--miner.gaslimit", &gas_limit]));
                // With its default limits geth loses transactions of a fast load without a word.
                let (pending, queued) = ("--txpool.globalslots", "--txpool.globalqueue");
                args.extend(strings([pending, "300000", "--txpool.accountslots", "1000"]));
                args.extend(strings([queued, "100000", "--txpool.accountqueue", "1000"]));
            }
        }
        let process = Process::new(name, args, Vec::new(), dir.join(format!("{name}.log")))?;
        let mut node = Self { ipc_path, process };
        node.restart()?;
        Ok(node)
    }

    pub fn ipc_path(&self) -> &Path {
        &self.ipc_path
    }

    /// As [`Process::spawn`]; it answers when this returns.
    pub fn restart(&mut self) -> io::Result<()> {
        self.spawn()?;
        let path = &self.ipc_path;
        self.process.wait(START_TIMEOUT, &path.to_string_lossy(), || answers(path).is_ok())
    }
}

fn init_geth(binary: &Path, dir: &Path, data: &Path) -> io::Result<()> {
    let path = dir.join("genesis.json");
    let text = genesis(DEFAULT_ACCOUNTS, GAS_LIMIT).to_string();
    fs::write(&path, text).map_err(cannot("write the genesis"))?;
    let log = dir.join("geth-init.log");
    let mut command = Command::new(binary);
    command.arg("--datadir").arg(data).arg("init").arg(&path);
    let status = to_log(&mut command, &log)?.status().map_err(cannot(run(binary)))?;
    if status.success() { Ok(()) } else { Err(exited("geth init", status, &log)) }
}

fn answers(path: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.contains("\"result\"") { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
