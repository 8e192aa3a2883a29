//! Runs the command in a terminal.

use std::{
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mempool_recorder::{Recording, RecordingConfig};
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    pty::{Winsize, openpty},
};

use crate::{config::written, ipc, start_node, until};

/// The escape sequence that enters the alternate screen.
const ENTERS: &str = "\x1b[?1049h";
/// The escape sequence that leaves it.
const LEAVES: &str = "\x1b[?1049l";
/// The escape sequence that shows the cursor again, the last one of the live view.
const SHOWS_CURSOR: &str = "\x1b[?25h";

/// A command in a pseudoterminal. It gets SIGHUP when `master` is dropped, as when a session is
/// closed, and is killed when this is dropped.
struct Terminal {
    process: Child,
    master: Option<File>,
    output: String,
}

impl Terminal {
    fn start(term: &str, args: &[&str]) -> Self {
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        fcntl(&pty.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("the flag is set");
        for side in [&pty.master, &pty.slave] {
            // Children of other tests must not hold the terminal open.
            fcntl(side, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("the flag is set");
        }
        let slave = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let process = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_mempool-ingest")])
            .args(args)
            .env("TERM", term)
            .env_remove("RUST_LOG")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .expect("setsid runs");
        Self { process, master: Some(pty.master.into()), output: String::new() }
    }

    /// Waits until the output contains a text.
    fn wait_for(&mut self, text: &str) {
        let master = self.master.as_mut().expect("the terminal is open");
        let output = &mut self.output;
        let mut bytes = [0; 4096];
        until(|| {
            if output.contains(text) {
                return Ok(());
            }
            match master.read(&mut bytes) {
                Ok(count) => output.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The command has ended.
                Err(error) => panic!("{error}, no {text:?} in {output}"),
            }
            Err(format!("no {text:?} in {output}"))
        });
    }

    /// Waits for the end of the command, and returns its exit code.
    fn exit_code(&mut self) -> Option<i32> {
        until(|| {
            let status = self.process.try_wait().expect("a status");
            status.ok_or_else(|| format!("the command still runs: {}", self.output))
        })
        .code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // These fail only if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_key_restores_the_terminal_before_the_summary() {
    let node = start_node(3);
    node.submit_all();
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), "[pool]\nmax_txs = 4\n");
    let mut terminal = Terminal::start("xterm", &["--config", &file, "--ipc", ipc(&node)]);
    terminal.wait_for(ENTERS);
    terminal.wait_for("live");
    // Three transactions of the four that the configured pool may hold.
    terminal.wait_for("75 %");
    terminal.master.as_mut().expect("it is open").write_all(b"q").expect("the key is sent");
    terminal.wait_for(LEAVES);
    terminal.wait_for(SHOWS_CURSOR);
    terminal.wait_for(" missing;");
    let (_, after) = terminal.output.rsplit_once(SHOWS_CURSOR).expect("the cursor");
    assert!(!after.contains('\x1b'), "{after}");
    assert_eq!(terminal.exit_code(), Some(0));
}

#[test]
fn a_dumb_terminal_shows_status_lines() {
    let node = start_node(0);
    // The first status line may come before the first head.
    let args = ["--ipc", ipc(&node), "--duration", "3s", "--status-interval", "1s"];
    let mut terminal = Terminal::start("dumb", &args);
    terminal.wait_for(" chain=1337 head=");
    terminal.wait_for(" missing;");
    assert!(!terminal.output.contains('\x1b'), "{}", terminal.output);
    assert_eq!(terminal.exit_code(), Some(0));
}

/// The stop once waited for the keyboard of the closed terminal, and the recording was lost.
#[test]
fn a_closed_terminal_ends_the_command_in_order() {
    let node = start_node(20);
    node.submit_all();
    for plain in [&[][..], &["--plain"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let hashes = folder.path().join("hashes");
        let [record, list] = [folder.path(), &hashes].map(|path| path.to_str().expect("text"));
        let args = ["--ipc", ipc(&node), "--record", record, "--hashes", list];
        let mut terminal = Terminal::start("xterm", &[&args, plain].concat());
        // The file has the hash of every order, of which the view shows only a part.
        until(|| {
            let lines = std::fs::read_to_string(&hashes).map_or(0, |text| text.lines().count());
            if lines < 20 { Err(format!("{lines} of 20")) } else { Ok(()) }
        });
        let start = Instant::now();
        drop(terminal.master.take());
        assert_eq!(terminal.exit_code(), Some(0), "{plain:?}");
        assert!(start.elapsed() < Duration::from_secs(10), "{plain:?}: {:?}", start.elapsed());
        let rows = Recording::open(record, RecordingConfig::default()).expect("it opens");
        assert_eq!(rows.filter_map(Result::ok).count(), 20, "{plain:?}");
    }
}
