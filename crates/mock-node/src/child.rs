//! The node as a child process of an example or a bench, which is the node's program too.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use crate::{
    cli::{self, READY},
    error::ChildError,
};

/// The first argument that makes a program the node.
const CHILD: &str = "__mock-node";

/// A node in a process of its own: the program that starts it, again, under another first argument. So what is
/// measured shares neither a runtime nor an allocator with the node, and nothing has to be installed.
///
/// The node ends when this is dropped, or when the program dies in any way: its stdin closes.
#[derive(Debug)]
pub struct ChildNode {
    child: Child,
    path: PathBuf,
}

impl ChildNode {
    /// Runs as the node if that is what this process was started for, until its end. The first thing that a program
    /// does which calls [`Self::start`].
    #[must_use = "the node's exit code is the process's"]
    pub fn run_if_child() -> Option<ExitCode> {
        let mut args = std::env::args_os();
        let program = args.next()?;
        if args.next()? != CHILD {
            return None;
        }
        let code = cli::run(std::iter::once(program).chain(args));
        Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    }

    /// Starts the node at `path` with further arguments of the [command line](cli), and returns when it listens.
    /// Blocks that long: what is preloaded is signed before, at 30 us for each transaction.
    ///
    /// # Errors
    /// The process does not start, or ends before its socket listens.
    pub fn start(
        path: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Self, ChildError> {
        let path = path.into();
        let mut child = Command::new(std::env::current_exe()?)
            .arg(CHILD)
            .arg("--ipc")
            .arg(&path)
            .arg("--exit-with-stdin")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        // From here on dropping ends it.
        let mut node = Self { child, path };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if !line.starts_with(READY) {
            let status = node.child.wait()?;
            return Err(ChildError::Ended { status });
        }
        Ok(node)
    }

    /// Its socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("warning: waiting for the mock node: {error}");
        }
    }
}
