//! A real node as a child process.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use mock_node::{DEFAULT_ACCOUNTS, DEV_CHAIN_ID};

use crate::{
    error::{RealNodeError, io_error},
    genesis::genesis,
    process::{Process, START_TIMEOUT, controls, find_binary, open_log, path_text, strings},
};

/// Gas of a block: with it, both nodes take 2,000 transactions/s.
const GAS_LIMIT: u64 = 60_000_000;

/// Which node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RealNodeKind {
    /// Foundry's development node.
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

controls!(RealNode);

impl RealNode {
    /// Starts a node with its socket, its log and its chain in `dir`, and with so much time between blocks; it answers when
    /// this returns. With no time anvil mines at each transaction, geth whenever something is pending. A geth that finds
    /// its chain goes on with it; else it has every fork up to Osaka from the beginning.
    ///
    /// # Errors
    /// [`RealNodeError`], see there.
    pub fn start(
        kind: RealNodeKind,
        dir: &Path,
        block_time: Duration,
    ) -> Result<Self, RealNodeError> {
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

    /// Its socket.
    pub fn ipc_path(&self) -> &Path {
        &self.ipc_path
    }

    /// Waits until the socket answers a request.
    fn wait_ready(&mut self, timeout: Duration) -> Result<(), RealNodeError> {
        let path = &self.ipc_path;
        self.process.wait(timeout, &path.to_string_lossy(), || answers(path).is_ok())
    }
}

fn init_geth(binary: &Path, dir: &Path, data: &Path) -> Result<(), RealNodeError> {
    let path = dir.join("genesis.json");
    let text = genesis(DEFAULT_ACCOUNTS, GAS_LIMIT).to_string();
    fs::write(&path, text).map_err(io_error("write the genesis"))?;
    let log_path = dir.join("geth-init.log");
    let log = open_log(&log_path)?;
    let errors = log.try_clone().map_err(io_error("share the log"))?;
    let status = Command::new(binary)
        .arg("--datadir")
        .arg(data)
        .arg("init")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .status()
        .map_err(io_error(format!("run {}", binary.display())))?;
    if status.success() {
        Ok(())
    } else {
        Err(RealNodeError::exited("geth init", status, &log_path))
    }
}

fn answers(path: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.contains("\"result\"") { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
