//! Runs a command under test in its own process, which a signal may end. The process is the current
//! test binary, with one of its ignored tests, which calls the command.

use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

pub use nix::sys::signal::Signal;
use nix::{sys::signal::kill, unistd::Pid};

/// The environment variable with the arguments, one per line.
const ARGS: &str = "TESTKIT_COMMAND_ARGS";

/// How long a test waits for a line or for the end before it fails.
const PATIENCE: Duration = Duration::from_secs(180);

/// The output of a command, and how it ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status. For a child test it is that of the test harness: 0 if it passed.
    pub status: ExitStatus,
    /// The standard output, including the lines of the test harness.
    pub stdout: String,
    /// The standard error of the command.
    pub stderr: String,
}

impl Ended {
    /// The first JSON object on stdout; `None` if there is none.
    pub fn json(&self) -> Option<serde_json::Value> {
        // The harness may have printed the name of the test on the same line.
        let objects = self.stdout.lines().filter_map(|line| line.get(line.find('{')?..));
        objects.filter_map(|text| serde_json::from_str(text).ok()).next()
    }
}

/// Returns the command line, in the child. Its first part stands for the program.
pub fn command_line() -> Vec<String> {
    let args = std::env::var(ARGS).expect("run by another test, which sets the arguments");
    std::iter::once("command").chain(args.lines()).map(Into::into).collect()
}

/// A running command. It is killed when dropped.
#[derive(Debug)]
pub struct Running {
    process: Child,
    lines: Receiver<io::Result<String>>,
    stderr: String,
}

impl Running {
    /// Runs the ignored test `child` in its own process with these arguments.
    pub fn start(child: &str, args: impl IntoIterator<Item = String>) -> io::Result<Self> {
        let args: Vec<String> = args.into_iter().collect();
        let mut process = Command::new(std::env::current_exe()?);
        process.args(["--exact", child, "--ignored", "--nocapture"]).env(ARGS, args.join("\n"));
        Self::spawn(process)
    }

    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stderr = BufReader::new(process.stderr.take().expect("it is piped"));
        // The queue is bounded by the output of a command under test. The thread ends with the
        // process, or when the receiver is dropped.
        let (sender, lines) = channel();
        thread::spawn(move || stderr.lines().try_for_each(|line| sender.send(line)));
        Ok(Self { process, lines, stderr: String::new() })
    }

    /// Waits for the next line on stderr for which `find` returns a value.
    pub fn line<T>(&mut self, mut find: impl FnMut(&str) -> Option<T>) -> io::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        while let Some(line) = self.next(deadline)? {
            if let Some(found) = find(&line) {
                return Ok(found);
            }
        }
        Err(io::Error::other(format!("the line is not in the output:\n{}", self.stderr)))
    }

    /// Reads the next line; `None` at the end of stderr and at the deadline.
    fn next(&mut self, deadline: Instant) -> io::Result<Option<String>> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let line = line?;
                self.stderr.push_str(&line);
                self.stderr.push('\n');
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // Nobody has waited for the process yet, so its id cannot belong to another one.
        Ok(kill(Pid::from_raw(self.process.id().try_into().map_err(io::Error::other)?), signal)?)
    }

    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Closes the reading end of the pipe of stderr; further lines are lost.
    pub fn close_stderr(&mut self) {
        // The reading thread ends when it cannot send the next line, and closes the pipe.
        self.lines = channel().1;
    }

    /// Sends a signal, if one is given, and waits for the end. Kills the process after 180 s.
    pub fn end(mut self, signal: Option<Signal>) -> io::Result<Ended> {
        if let Some(signal) = signal {
            self.signal(signal)?;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.next(deadline)?.is_some() {}
        if Instant::now() >= deadline {
            self.process.kill()?;
        }
        let mut stdout = String::new();
        // A pipe holds 64 KiB, so the process did not wait for its summary to be read.
        self.process.stdout.take().expect("it is piped").read_to_string(&mut stdout)?;
        let status = self.process.wait()?;
        Ok(Ended { status, stdout, stderr: std::mem::take(&mut self.stderr) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = (self.process.kill(), self.process.wait());
    }
}
