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

/// Gas of a block.
const GAS_LIMIT: u64 = 60_000_000;

/// How a node is run. The defaults are those under which both take 2,000 transactions/s.
#[derive(Clone, Debug)]
pub struct RealNodeConfig {
    /// Accounts of the test mnemonic that own a million ether. Default 1000.
    pub accounts: usize,
    /// Between blocks. Default 12 s. Zero: anvil mines at each transaction, geth whenever something is pending.
    pub block_time: Duration,
    /// Further arguments, after all others.
    pub extra_args: Vec<String>,
}

impl Default for RealNodeConfig {
    fn default() -> Self {
        Self {
            accounts: DEFAULT_ACCOUNTS,
            block_time: Duration::from_secs(12),
            extra_args: Vec::new(),
        }
    }
}

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
    /// Its binary's name.
    pub const fn name(self) -> &'static str {
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
    /// Starts anvil with its socket and log in `dir`; it answers when this returns.
    ///
    /// # Errors
    /// [`RealNodeError`], see there.
    pub fn anvil(dir: &Path, config: &RealNodeConfig) -> Result<Self, RealNodeError> {
        let ipc_path = dir.join("anvil.ipc");
        let mut args = strings(["--ipc", &path_text(&ipc_path), "--port", "0", "--silent"]);
        args.extend(strings(["--accounts", &config.accounts.to_string()]));
        args.extend(strings(["--balance", "1000000"]));
        args.extend(strings(["--chain-id", &DEV_CHAIN_ID.to_string()]));
        args.extend(strings(["--gas-limit", &GAS_LIMIT.to_string()]));
        if !config.block_time.is_zero() {
            args.extend(strings(["--block-time", &config.block_time.as_secs_f64().to_string()]));
        }
        args.extend(config.extra_args.iter().cloned());
        Self::start(RealNodeKind::Anvil, dir, ipc_path, args)
    }

    /// Makes a chain in `dir` if there is none yet, with every fork up to Osaka from the beginning, and starts geth
    /// on it; it answers when this returns.
    ///
    /// # Errors
    /// [`RealNodeError`], see there.
    pub fn geth(dir: &Path, config: &RealNodeConfig) -> Result<Self, RealNodeError> {
        let binary = find_binary(RealNodeKind::Geth.name())?;
        let data = dir.join("geth-data");
        if !data.join("geth").exists() {
            init_geth(&binary, dir, &data, config)?;
        }
        let ipc_path = dir.join("geth.ipc");
        let mut args = strings(["--dev", "--datadir", &path_text(&data)]);
        args.extend(strings(["--dev.period", &config.block_time.as_secs().to_string()]));
        args.extend(strings(["--ipcpath", &path_text(&ipc_path), "--verbosity", "2"]));
        args.extend(strings(["--nodiscover", "--maxpeers", "0", "--port", "0"]));
        args.extend(strings(["--authrpc.port", "0"]));
        args.extend(strings(["--miner.gaslimit", &GAS_LIMIT.to_string()]));
        // With its default limits geth loses transactions of a fast load without a word.
        args.extend(strings(["--txpool.globalslots", "300000", "--txpool.accountslots", "1000"]));
        args.extend(strings(["--txpool.globalqueue", "100000", "--txpool.accountqueue", "1000"]));
        args.extend(config.extra_args.iter().cloned());
        Self::start(RealNodeKind::Geth, dir, ipc_path, args)
    }

    /// Starts either, by name.
    ///
    /// # Errors
    /// [`RealNodeError`], see there.
    pub fn of_kind(
        kind: RealNodeKind,
        dir: &Path,
        config: &RealNodeConfig,
    ) -> Result<Self, RealNodeError> {
        match kind {
            RealNodeKind::Anvil => Self::anvil(dir, config),
            RealNodeKind::Geth => Self::geth(dir, config),
        }
    }

    fn start(
        kind: RealNodeKind,
        dir: &Path,
        ipc_path: PathBuf,
        args: Vec<String>,
    ) -> Result<Self, RealNodeError> {
        let log = dir.join(format!("{}.log", kind.name()));
        let process = Process::new(kind.name(), args, Vec::new(), log)?;
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

fn init_geth(
    binary: &Path,
    dir: &Path,
    data: &Path,
    config: &RealNodeConfig,
) -> Result<(), RealNodeError> {
    let path = dir.join("genesis.json");
    let text = genesis(config.accounts, GAS_LIMIT).to_string();
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
