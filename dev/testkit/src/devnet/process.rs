//! A child process that is killed when dropped, and that can be restarted.

use std::{
    env,
    fmt::Display,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The environment variable with the directory of `anvil`, `geth` and `nats-server`, instead of
/// `target/nodes/bin`.
const NODES_VARIABLE: &str = "MEMPOOL_INGEST_NODES";

/// How long a process may take until it answers. geth takes about two seconds, and more on a busy
/// machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval between two attempts to reach a process that does not answer yet; there is no event
/// to wait for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A command, and its process while it runs. The process is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    command: Command,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Makes a command of an installed binary, without arguments. Its stdin is empty, and its
    /// output is appended to the log.
    pub fn new(name: &'static str, log: PathBuf) -> io::Result<Self> {
        let end = File::options().create(true).append(true).open(&log);
        let end = end.map_err(cannot("open the log"))?;
        let errors = end.try_clone().map_err(cannot("share the log"))?;
        let mut command = Command::new(find_binary(name)?);
        command.stdin(Stdio::null()).stdout(end).stderr(errors);
        Ok(Self { name, command, log, child: None })
    }

    pub const fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the process with SIGKILL, so that it cannot clean up and its files stay as they are.
    /// Does nothing if it does not run.
    pub fn kill9(&mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A stopped process is killed too.
        let killed = child.kill().and_then(|()| child.wait());
        killed.map(drop).map_err(cannot(format!("kill {}", self.name)))
    }

    /// Suspends the process with SIGSTOP; its sockets stay open.
    pub fn sigstop(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn sigcont(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends SIGHUP, on which a NATS server reloads its configuration.
    pub fn sighup(&self) -> io::Result<()> {
        self.signal(Signal::SIGHUP)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?;
        let sent = kill(Pid::from_raw(pid.try_into().map_err(io::Error::other)?), signal);
        sent.map_err(io::Error::from).map_err(cannot(format!("send {signal} to {}", self.name)))
    }

    /// Starts the process, after killing it if it runs, with the same arguments, ports and files.
    /// It may not answer yet. geth and NATS keep their chain or store (the pool of geth is empty),
    /// and anvil begins a new chain.
    pub fn spawn(&mut self) -> io::Result<()> {
        self.kill9()?;
        self.child = Some(self.command.spawn().map_err(cannot(format!("run {}", self.name)))?);
        Ok(())
    }

    /// Runs the process until it ends; fails if its exit status is not 0.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let status = self.command.status().map_err(cannot(format!("run {}", self.name)))?;
        if status.success() { Ok(()) } else { Err(self.exited(status)) }
    }

    fn exited(&self, status: ExitStatus) -> io::Error {
        io::Error::other(format!("{} ended with {status}; {}", self.name, self.tail()))
    }

    /// Returns the end of the log, because the folder of the log may be deleted when the test
    /// fails.
    fn tail(&self) -> String {
        const MAX_BYTES: usize = 2048;
        let bytes = fs::read(&self.log).unwrap_or_default();
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]);
        format!("the end of its log {}:\n{tail}", self.log.display())
    }

    /// Waits until `is_ready` returns true. The error names the `endpoint` that did not answer.
    pub(crate) fn wait(&mut self, endpoint: &str, is_ready: impl Fn() -> bool) -> io::Result<()> {
        let begin = Instant::now();
        while !is_ready() {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                self.child = None;
                return Err(self.exited(status));
            }
            if begin.elapsed() > START_TIMEOUT {
                let late =
                    format!("no answer on {endpoint} after {START_TIMEOUT:?}; {}", self.tail());
                return Err(io::Error::other(late));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody can handle the error.
        let _ = self.kill9();
    }
}

/// Where a binary is that `scripts/real-nodes.sh` installs.
pub(crate) fn find_binary(name: &str) -> io::Result<PathBuf> {
    let dir = env::var_os(NODES_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nodes/bin"),
        PathBuf::from,
    );
    let path = dir.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(io::Error::other(format!(
        "{} is missing: run scripts/real-nodes.sh, or set {NODES_VARIABLE} to its directory",
        path.display()
    )))
}

/// Adds to an error which action failed.
pub(crate) fn cannot(action: impl Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {action}: {error}"))
}
