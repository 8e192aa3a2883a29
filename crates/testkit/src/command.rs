//! A command under test in a process of its own, which a signal ends: the running test binary again, with one of its
//! ignored tests, which calls the command.

use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

pub use nix::sys::signal::Signal;
use nix::{sys::signal::kill, unistd::Pid};

/// The environment variable that holds the arguments, one a line.
const ARGS: &str = "TESTKIT_COMMAND_ARGS";

/// Longest wait for the end of a command, which is then killed: only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code of the test harness: 0 if the child test passed.
    pub status: ExitStatus,
    /// With the lines of the test harness.
    pub stdout: String,
    /// Of the command alone.
    pub stderr: String,
}

impl Ended {
    /// The first JSON object on stdout; `None` if there is none.
    pub fn json(&self) -> Option<serde_json::Value> {
        // The harness may name the test on the same line.
        let objects = self.stdout.lines().filter_map(|line| line.get(line.find('{')?..));
        objects.filter_map(|text| serde_json::from_str(text).ok()).next()
    }
}

/// In the child: the command line, whose first part stands for the program.
///
/// # Panics
/// This process was not started by [`end_by_signal`].
pub fn command_line() -> Vec<String> {
    let args = std::env::var(ARGS).expect("run by another test, which sets the arguments");
    std::iter::once("command").chain(args.lines()).map(Into::into).collect()
}

/// Runs the ignored test `child` in a process of its own with these arguments, sends `signal` once it has written a
/// line to stderr that `is_ready` accepts, and waits for its end. Kills it after 180 s.
///
/// # Errors
/// The process does not start, writes other than UTF-8, or cannot be signalled.
pub fn end_by_signal(
    child: &str,
    args: impl IntoIterator<Item = String>,
    is_ready: impl Fn(&str) -> bool,
    signal: Signal,
) -> io::Result<Ended> {
    let args: Vec<String> = args.into_iter().collect();
    let mut process = Command::new(std::env::current_exe()?)
        .args(["--exact", child, "--ignored", "--nocapture"])
        .env(ARGS, args.join("\n"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = Pid::from_raw(process.id().try_into().map_err(io::Error::other)?);
    let (ended, end) = sync_channel::<()>(0);
    let watchdog = thread::spawn(move || {
        if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // Nobody has waited for it yet, so the id is still its own.
            kill(pid, Signal::SIGKILL).expect("it runs");
        }
    });
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let mut is_signalled = false;
    for line in BufReader::new(process.stderr.take().expect("it is piped")).lines() {
        let line = line?;
        if !is_signalled && is_ready(&line) {
            kill(pid, signal)?;
            is_signalled = true;
        }
        stderr.push_str(&line);
        stderr.push('\n');
    }
    // A pipe holds 64 KiB: a summary did not wait for this.
    process.stdout.take().expect("it is piped").read_to_string(&mut stdout)?;
    drop(ended);
    watchdog.join().map_err(|_| io::Error::other("cannot be killed"))?;
    Ok(Ended { status: process.wait()?, stdout, stderr })
}
