//! A real node as a child process.

use std::{
    env, fs,
    fs::File,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use mock_node::{DEFAULT_ACCOUNTS, DEV_CHAIN_ID};

use crate::genesis::genesis;

/// Names a directory with `anvil` and `geth` in it, instead of `target/nodes/bin`.
pub const NODES_VARIABLE: &str = "MEMPOOL_INGEST_NODES";

/// A node that was started must answer within this time. geth takes about two seconds, on a busy machine more.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two looks at a socket that does not answer yet: another process gives no sign to wait for.
const LOOK: Duration = Duration::from_millis(20);

/// Why a real node is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealNodeError {
    /// Not installed.
    #[error("{} is missing: run scripts/real-nodes.sh, or set {NODES_VARIABLE} to a directory that has it", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file or process could not be made.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended, or a command of its ended badly.
    #[error("{what} ended with {status}; its log is {}", log.display())]
    Exited {
        /// Which command.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// Where it wrote.
        log: PathBuf,
    },
    /// It runs and does not answer.
    #[error("no answer on {} after {waited:?}; its log is {}", path.display(), log.display())]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// For how long it was asked.
        waited: Duration,
        /// Where it wrote.
        log: PathBuf,
    },
}

/// How a node is run. The defaults are those under which both take 2,000 transactions/s.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RealNodeConfig {
    /// Accounts of the test mnemonic that own a million ether. Default 1000.
    pub accounts: usize,
    /// Between blocks. Default 12 s. Zero: anvil mines at each transaction, geth whenever something is pending.
    pub block_time: Duration,
    /// Whether blocks are made at all; only anvil can do without (geth ignores it). Default yes.
    pub mining: bool,
    /// Gas of a block. Default 60 million.
    pub gas_limit: u64,
    /// Further arguments, after all others.
    pub extra_args: Vec<String>,
}

impl Default for RealNodeConfig {
    fn default() -> Self {
        Self {
            accounts: DEFAULT_ACCOUNTS,
            block_time: Duration::from_secs(12),
            mining: true,
            gas_limit: 60_000_000,
            extra_args: Vec::new(),
        }
    }
}

impl RealNodeConfig {
    /// Sets [`block_time`](Self::block_time).
    #[must_use]
    pub const fn with_block_time(mut self, block_time: Duration) -> Self {
        self.block_time = block_time;
        self
    }

    /// Sets [`mining`](Self::mining).
    #[must_use]
    pub const fn with_mining(mut self, mining: bool) -> Self {
        self.mining = mining;
        self
    }

    /// Sets [`accounts`](Self::accounts).
    #[must_use]
    pub const fn with_accounts(mut self, accounts: usize) -> Self {
        self.accounts = accounts;
        self
    }

    /// Sets [`gas_limit`](Self::gas_limit).
    #[must_use]
    pub const fn with_gas_limit(mut self, gas_limit: u64) -> Self {
        self.gas_limit = gas_limit;
        self
    }

    /// Sets [`extra_args`](Self::extra_args).
    #[must_use]
    pub fn with_extra_args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.extra_args = args.into_iter().map(Into::into).collect();
        self
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
    kind: RealNodeKind,
    binary: PathBuf,
    args: Vec<String>,
    ipc_path: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

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
        args.extend(strings(["--gas-limit", &config.gas_limit.to_string()]));
        if !config.mining {
            args.push("--no-mining".into());
        } else if !config.block_time.is_zero() {
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
        let binary = find(RealNodeKind::Geth)?;
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
        args.extend(strings(["--miner.gaslimit", &config.gas_limit.to_string()]));
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
        let binary = find(kind)?;
        let mut node = Self { kind, binary, args, ipc_path, log, child: None };
        node.restart()?;
        Ok(node)
    }

    /// Which node this is.
    pub const fn kind(&self) -> RealNodeKind {
        self.kind
    }

    /// Its socket.
    pub fn ipc_path(&self) -> &Path {
        &self.ipc_path
    }

    /// Where its output goes.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Its process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills it with SIGKILL: no clean-up, the socket file stays. Does nothing when it does not run.
    ///
    /// # Errors
    /// [`RealNodeError::Io`] when the system refuses.
    pub fn kill9(&mut self) -> Result<(), RealNodeError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A stopped process is killed too.
        child.kill().and_then(|()| child.wait()).map_err(io_error("kill the node"))?;
        Ok(())
    }

    /// Stops the process in its tracks (SIGSTOP); its sockets stay open.
    ///
    /// # Errors
    /// [`RealNodeError::Io`] when it does not run or the system refuses.
    pub fn sigstop(&self) -> Result<(), RealNodeError> {
        self.signal("-STOP")
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// [`RealNodeError::Io`] when it does not run or the system refuses.
    pub fn sigcont(&self) -> Result<(), RealNodeError> {
        self.signal("-CONT")
    }

    fn signal(&self, signal: &str) -> Result<(), RealNodeError> {
        let what = || io_error(format!("send {signal} to {}", self.kind.name()));
        let pid = self.pid().ok_or_else(|| what()(io::ErrorKind::NotFound.into()))?;
        let status =
            Command::new("kill").args([signal, &pid.to_string()]).status().map_err(what())?;
        if status.success() {
            Ok(())
        } else {
            Err(what()(io::Error::other(format!("kill ended with {status}"))))
        }
    }

    /// Kills it if it runs and starts it again with the same arguments; it answers when this returns. geth finds its
    /// chain again (its pool is empty), anvil begins from nothing.
    ///
    /// # Errors
    /// [`RealNodeError`], see there.
    pub fn restart(&mut self) -> Result<(), RealNodeError> {
        self.spawn()?;
        self.wait_ready(START_TIMEOUT)
    }

    /// Like [`restart`](Self::restart), without waiting for it to answer.
    ///
    /// # Errors
    /// [`RealNodeError::Io`] when it cannot be started.
    pub fn spawn(&mut self) -> Result<(), RealNodeError> {
        self.kill9()?;
        let log = open_log(&self.log)?;
        let errors = log.try_clone().map_err(io_error("share the log"))?;
        let child = Command::new(&self.binary)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(io_error(format!("run {}", self.binary.display())))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the socket answers a request.
    ///
    /// # Errors
    /// [`RealNodeError::Exited`] when the process has ended, [`RealNodeError::Silent`] after `timeout`.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<(), RealNodeError> {
        let begin = Instant::now();
        loop {
            if answers(&self.ipc_path).is_ok() {
                return Ok(());
            }
            let child = self.child.as_mut();
            if let Some(Ok(Some(status))) = child.map(Child::try_wait) {
                self.child = None;
                let what = self.kind.name().to_owned();
                return Err(RealNodeError::Exited { what, status, log: self.log.clone() });
            }
            if begin.elapsed() > timeout {
                let (path, log) = (self.ipc_path.clone(), self.log.clone());
                return Err(RealNodeError::Silent { path, waited: timeout, log });
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // Nobody is left to be told; the process is a child and is gone with us at the latest.
        let _ = self.kill9();
    }
}

/// Where a node's binary is.
///
/// # Errors
/// [`RealNodeError::Missing`], which names the script that installs it.
pub fn find(kind: RealNodeKind) -> Result<PathBuf, RealNodeError> {
    let dir = env::var_os(NODES_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nodes/bin"),
        PathBuf::from,
    );
    find_in(&dir, kind)
}

fn find_in(dir: &Path, kind: RealNodeKind) -> Result<PathBuf, RealNodeError> {
    let path = dir.join(kind.name());
    if path.is_file() { Ok(path) } else { Err(RealNodeError::Missing { path }) }
}

fn init_geth(
    binary: &Path,
    dir: &Path,
    data: &Path,
    config: &RealNodeConfig,
) -> Result<(), RealNodeError> {
    let path = dir.join("genesis.json");
    let text = genesis(config.accounts, config.gas_limit).to_string();
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
        Err(RealNodeError::Exited { what: "geth init".into(), status, log: log_path })
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

fn open_log(path: &Path) -> Result<File, RealNodeError> {
    File::options().create(true).append(true).open(path).map_err(io_error("open the log"))
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RealNodeError {
    let what = what.into();
    move |source| RealNodeError::Io { what, source }
}

fn strings<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).into()
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_names_the_script_that_installs_it() {
        let error = find_in(Path::new("/nowhere"), RealNodeKind::Geth).unwrap_err().to_string();
        assert!(
            error.contains("/nowhere/geth") && error.contains("scripts/real-nodes.sh"),
            "{error}"
        );
        let script = include_str!("../../../scripts/real-nodes.sh");
        assert!(script.contains(NODES_VARIABLE) && script.contains("target/nodes"));
    }
}
