//! A child process that is killed with its owner, and started again.

use std::{
    env,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::error::{NODES_VARIABLE, RealNodeError, io_error};

/// What was started must answer within this time. geth takes about two seconds, on a busy machine more.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two looks at a socket that does not answer yet: another process gives no sign to wait for.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// What a caller does with the process of a node or server; `wait_ready` is its own.
macro_rules! controls {
    ($owner:ident) => {
        impl $owner {
            /// Where its output goes.
            pub fn log_path(&self) -> &Path {
                self.process.log_path()
            }

            /// Its process, if it runs.
            pub fn pid(&self) -> Option<u32> {
                self.process.pid()
            }

            /// Kills it with SIGKILL: no clean-up, its files stay as they are. Does nothing when it does not run.
            ///
            /// # Errors
            /// [`RealNodeError::Io`] when the system refuses.
            pub fn kill9(&mut self) -> Result<(), RealNodeError> {
                self.process.kill9()
            }

            /// Stops the process in its tracks (SIGSTOP); its sockets stay open.
            ///
            /// # Errors
            /// [`RealNodeError::Io`] when it does not run or the system refuses.
            pub fn sigstop(&self) -> Result<(), RealNodeError> {
                self.process.signal("-STOP")
            }

            /// Lets it go on (SIGCONT).
            ///
            /// # Errors
            /// [`RealNodeError::Io`] when it does not run or the system refuses.
            pub fn sigcont(&self) -> Result<(), RealNodeError> {
                self.process.signal("-CONT")
            }

            /// Kills it if it runs and starts it again with the same arguments, on the same ports and files; it
            /// answers when this returns. geth and NATS find their chain or store again (geth's pool is empty), anvil
            /// begins from nothing.
            ///
            /// # Errors
            /// [`RealNodeError`], see there.
            pub fn restart(&mut self) -> Result<(), RealNodeError> {
                self.spawn()?;
                self.wait_ready(START_TIMEOUT)
            }

            /// Like [`restart`](Self::restart), without waiting.
            ///
            /// # Errors
            /// [`RealNodeError::Io`] when it cannot be started.
            pub fn spawn(&mut self) -> Result<(), RealNodeError> {
                self.process.spawn()
            }
        }
    };
}
pub(crate) use controls;

/// A command, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    binary: PathBuf,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Does not start it.
    pub(crate) fn new(
        name: &'static str,
        args: Vec<String>,
        envs: Vec<(String, String)>,
        log: PathBuf,
    ) -> Result<Self, RealNodeError> {
        Ok(Self { name, binary: find_binary(name)?, args, envs, log, child: None })
    }

    pub(crate) fn log_path(&self) -> &Path {
        &self.log
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Does nothing when it does not run.
    pub(crate) fn kill9(&mut self) -> Result<(), RealNodeError> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A stopped process is killed too.
        let killed = child.kill().and_then(|()| child.wait());
        killed.map(drop).map_err(io_error(format!("kill {}", self.name)))
    }

    /// Sends a signal by its name for `kill`, such as `-STOP`.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), RealNodeError> {
        let what = || io_error(format!("send {signal} to {}", self.name));
        let pid = self.pid().ok_or_else(|| what()(io::ErrorKind::NotFound.into()))?;
        let status =
            Command::new("kill").args([signal, &pid.to_string()]).status().map_err(what())?;
        if status.success() {
            Ok(())
        } else {
            Err(what()(io::Error::other(format!("kill ended with {status}"))))
        }
    }

    /// Kills it if it runs, and starts it.
    pub(crate) fn spawn(&mut self) -> Result<(), RealNodeError> {
        self.kill9()?;
        let log = open_log(&self.log)?;
        let errors = log.try_clone().map_err(io_error("share the log"))?;
        let child = Command::new(&self.binary)
            .args(&self.args)
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(io_error(format!("run {}", self.binary.display())))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until `is_ready`. `at` names in the error what did not answer.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        at: &str,
        is_ready: impl Fn() -> bool,
    ) -> Result<(), RealNodeError> {
        let begin = Instant::now();
        while !is_ready() {
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                self.child = None;
                return Err(RealNodeError::exited(self.name, status, &self.log));
            }
            if begin.elapsed() > timeout {
                return Err(RealNodeError::silent(at, timeout, &self.log));
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
pub(crate) fn find_binary(name: &str) -> Result<PathBuf, RealNodeError> {
    let dir = env::var_os(NODES_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nodes/bin"),
        PathBuf::from,
    );
    find_in(&dir, name)
}

fn find_in(dir: &Path, name: &str) -> Result<PathBuf, RealNodeError> {
    let path = dir.join(name);
    if path.is_file() { Ok(path) } else { Err(RealNodeError::Missing { path }) }
}

pub(crate) fn open_log(path: &Path) -> Result<File, RealNodeError> {
    File::options().create(true).append(true).open(path).map_err(io_error("open the log"))
}

pub(crate) fn strings<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).into()
}

pub(crate) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_names_the_script_that_installs_it() {
        let error = find_in(Path::new("/nowhere"), "geth").unwrap_err().to_string();
        assert!(
            error.contains("/nowhere/geth") && error.contains("scripts/real-nodes.sh"),
            "{error}"
        );
        let script = include_str!("../../../scripts/real-nodes.sh");
        assert!(script.contains(NODES_VARIABLE) && script.contains("target/nodes"));
    }
}
