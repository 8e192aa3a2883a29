//! A child process that is killed with its owner, and started again.

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

/// Names a directory with `anvil`, `geth` and `nats-server` in it, instead of `target/nodes/bin`.
const NODES_VARIABLE: &str = "MEMPOOL_INGEST_NODES";

/// What was started must answer within this time. geth takes about two seconds, on a busy machine more.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two looks at a socket that does not answer yet: another process gives no sign to wait for.
const LOOK: Duration = Duration::from_millis(20);

/// A command, and its process while it runs; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    command: Command,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Of an installed binary, without arguments yet. Nothing to read, and all that it writes at the end of the log.
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

    /// Kills it with SIGKILL: no clean-up, its files stay as they are. Does nothing when it does not run.
    pub fn kill9(&mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A stopped process is killed too.
        let killed = child.kill().and_then(|()| child.wait());
        killed.map(drop).map_err(cannot(format!("kill {}", self.name)))
    }

    /// Stops the process in its tracks (SIGSTOP); its sockets stay open.
    pub fn sigstop(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn sigcont(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// A NATS server reads its configuration again.
    pub fn sighup(&self) -> io::Result<()> {
        self.signal(Signal::SIGHUP)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?;
        let sent = kill(Pid::from_raw(pid.try_into().map_err(io::Error::other)?), signal);
        sent.map_err(io::Error::from).map_err(cannot(format!("send {signal} to {}", self.name)))
    }

    /// Kills it if it runs, and starts it again with the same arguments, on the same ports and files; it may not answer
    /// yet. geth and NATS find their chain or store again (geth's pool is empty), anvil begins from nothing.
    pub fn spawn(&mut self) -> io::Result<()> {
        self.kill9()?;
        self.child = Some(self.command.spawn().map_err(cannot(format!("run {}", self.name)))?);
        Ok(())
    }

    /// Runs it to its end, which is to be a good one.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let status = self.command.status().map_err(cannot(format!("run {}", self.name)))?;
        if status.success() { Ok(()) } else { Err(self.exited(status)) }
    }

    fn exited(&self, status: ExitStatus) -> io::Error {
        io::Error::other(format!("{} ended with {status}; {}", self.name, self.tail()))
    }

    /// The end of its log, which may lie in a folder that is deleted with the test that failed.
    fn tail(&self) -> String {
        const MAX_BYTES: usize = 2048;
        let bytes = fs::read(&self.log).unwrap_or_default();
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]);
        format!("the end of its log {}:\n{tail}", self.log.display())
    }

    /// Waits until `is_ready`. `at` names in the error what did not answer.
    pub(crate) fn wait(&mut self, at: &str, is_ready: impl Fn() -> bool) -> io::Result<()> {
        let begin = Instant::now();
        while !is_ready() {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                self.child = None;
                return Err(self.exited(status));
            }
            if begin.elapsed() > START_TIMEOUT {
                let late = format!("no answer on {at} after {START_TIMEOUT:?}; {}", self.tail());
                return Err(io::Error::other(late));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to be told; the process is a child and is gone with us at the latest.
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
        "{} is missing: run scripts/real-nodes.sh, or set {NODES_VARIABLE} to a directory that has it",
        path.display()
    )))
}

pub(crate) fn cannot(what: impl Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}
