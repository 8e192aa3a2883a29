//! The command `mempool-ingest` as a process of its own, whose log nobody reads: what a supervisor
//! does that has hung. It reads the first node, and writes its orders to stdout, which is read.

use std::{
    collections::HashSet,
    io::{self, BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use clap::Parser;
use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use testkit::{member::AUDIT, usage::now_ns};

use crate::{
    lock,
    oracle::{Facts, ListedTx},
};

pub(crate) const ROLE: &str = "__command";

/// The size of the pipe of stderr, so that a few lines fill it.
const LOG_BYTES: i32 = 4_096;

/// The command must end within ten seconds after a signal (`docs/operations.md`), and a moment more
/// on a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(13);

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: mempool_ingest_cli::Args,
}

/// Runs the command, in the child.
pub(crate) fn run() -> ExitCode {
    let args = std::env::args_os().skip(1);
    mempool_ingest_cli::run(&Line::parse_from(args).args, |_| Ok(()))
}

/// A line on stdout.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Added { hash: B256 },
    Removed { hash: B256 },
    Missed {},
    AddedBundle {},
}

/// The running command; killed when dropped.
pub(crate) struct UnreadCommand {
    child: Child,
    started_at: u64,
    held: Arc<Mutex<HashSet<B256>>>,
}

impl UnreadCommand {
    pub(crate) fn start(node: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(ROLE).arg("--ipc").arg(node).args(["--orders", "ndjson", "--plain"]);
        command.args(["--audit", &format!("{}s", AUDIT.as_secs())]);
        command.env("RUST_LOG", "info,txpool_fetcher=debug");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let log = child.stderr.as_ref().expect("it is piped");
        fcntl(log, FcntlArg::F_SETPIPE_SZ(LOG_BYTES))?;
        let held = Arc::default();
        let (orders, shared) = (child.stdout.take().expect("it is piped"), Arc::clone(&held));
        thread::spawn(move || follow(orders, &shared));
        Ok(Self { child, started_at: now_ns(), held })
    }

    /// Returns what the oracle must know of the transactions that its node lists, each with the
    /// time since when. `deadline` returns that of a transaction which came at a time.
    pub(crate) fn facts(
        &self,
        listed: &[(B256, u64)],
        deadline: impl Fn(u64) -> u64,
        is_mined: impl Fn(&B256) -> bool,
    ) -> Facts {
        let now = now_ns();
        let held = lock(&self.held);
        let listed = listed.iter().map(|&(hash, since)| {
            let deadline = deadline(since.max(self.started_at));
            let is_held = held.contains(&hash);
            let is_mined = !is_held && deadline <= now && is_mined(&hash);
            ListedTx { hash, deadline, is_held, is_mined, has_old_sidecar: false }
        });
        Facts { now, listed: listed.collect(), ..Facts::default() }
    }

    pub(crate) const fn started_at(&self) -> u64 {
        self.started_at
    }

    /// Ends it by a signal. Returns whether it ended in time.
    pub(crate) fn end(&mut self) -> io::Result<bool> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        let begin = Instant::now();
        while begin.elapsed() < ENDS_WITHIN {
            if self.child.try_wait()?.is_some() {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }
}

impl Drop for UnreadCommand {
    fn drop(&mut self) {
        // Both fail if it has ended.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Reads the orders to their end.
fn follow(orders: ChildStdout, held: &Mutex<HashSet<B256>>) {
    for line in BufReader::new(orders).lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(Event::Added { hash }) => _ = lock(held).insert(hash),
            Ok(Event::Removed { hash }) => _ = lock(held).remove(&hash),
            Ok(Event::Missed {} | Event::AddedBundle {}) => {}
            Err(error) => eprintln!("warning: a line of the command: {error}: {line}"),
        }
    }
}
