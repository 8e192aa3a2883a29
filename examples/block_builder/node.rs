//! The mock node as a child process: this program again, under another first argument.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
};

use crate::args::Args;

/// The first argument that makes this program the node.
const CHILD: &str = "__mock-node";

/// Runs as the node if that is what we were started for.
pub(crate) fn run_if_child() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let program = args.next()?;
    if args.next()? != CHILD {
        return None;
    }
    let code = mock_node::cli::run(std::iter::once(program).chain(args));
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A running node. Its stdin closes when this is dropped, or when we die in any way: then it ends.
pub(crate) struct ChildNode {
    child: Child,
    path: PathBuf,
}

impl ChildNode {
    pub(crate) fn start(args: &Args) -> Result<Self, Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("block-builder-{}.ipc", std::process::id()));
        eprintln!("starting a mock node: {} transactions/s at {}", args.tps, path.display());
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(CHILD)
            .arg("--ipc")
            .arg(&path)
            .args(["--exit-with-stdin", "--start-on-subscription", "--state"])
            .args(["--tps", &args.tps.to_string()])
            .args(["--blobs-per-mille", &args.blobs_per_mille.to_string()])
            .args(["--listed-per-mille", &args.listed_per_mille.to_string()])
            .args(["--block-time", &args.block_time])
            .args(["--preload", &args.preload.to_string()])
            .args(["--seed", &args.seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(duration) = args.duration {
            command.args(["--duration", &format!("{}ms", duration.as_millis())]);
        }
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("the node has no stdout")?;
        let mut line = String::new();
        // Signing takes 30 us for each transaction, before the clock starts.
        BufReader::new(stdout).read_line(&mut line)?;
        if !line.starts_with(mock_node::cli::READY) {
            let status = child.wait()?;
            return Err(format!("the mock node did not start ({status})").into());
        }
        Ok(Self { child, path })
    }

    pub(crate) fn path(&self) -> &Path {
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
