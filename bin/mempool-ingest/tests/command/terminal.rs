//! The command in a terminal.

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

use crate::{config::written, ipc, node_of, until};

/// Enters the alternate screen.
const ENTERS: &str = "\x1b[?1049h";
/// Leaves it.
const LEAVES: &str = "\x1b[?1049l";
/// Shows the cursor again, which is the last thing.
const SHOWS_CURSOR: &str = "\x1b[?25h";

/// A command in a terminal of its own, whose other end is here. As in a session that is closed, it gets SIGHUP when that
/// end is dropped. Killed when dropped.
struct Terminal {
    process: Child,
    end: Option<File>,
    shown: String,
}

impl Terminal {
    fn start(term: &str, args: &[&str]) -> Self {
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        fcntl(&pty.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("it can be set");
        for side in [&pty.master, &pty.slave] {
            // No child holds them open.
            fcntl(side, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("it can be set");
        }
        let side = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let process = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_mempool-ingest")])
            .args(args)
            .env("TERM", term)
            .env_remove("RUST_LOG")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("setsid runs");
        Self { process, end: Some(pty.master.into()), shown: String::new() }
    }

    /// Waits until it has shown a text.
    fn wait_for(&mut self, text: &str) {
        let (end, shown) = (self.end.as_mut().expect("it is open"), &mut self.shown);
        let mut bytes = [0; 4096];
        until(|| {
            if shown.contains(text) {
                return Ok(());
            }
            match end.read(&mut bytes) {
                Ok(count) => shown.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The command has ended.
                Err(error) => panic!("{error}, no {text:?} in {shown}"),
            }
            Err(format!("no {text:?} in {shown}"))
        });
    }

    /// Its exit code.
    fn end(&mut self) -> Option<i32> {
        let (process, shown) = (&mut self.process, &self.shown);
        let mut ended = || process.try_wait().expect("it can be asked");
        until(|| ended().ok_or_else(|| format!("it runs on: {shown}"))).code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = (self.process.kill(), self.process.wait());
    }
}

#[test]
fn a_key_ends_the_live_view_which_restores_the_terminal_before_the_summary() {
    let node = node_of(3);
    node.submit_all();
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), "[pool]\nmax_txs = 4\n");
    let mut terminal = Terminal::start("xterm", &["--config", &file, "--ipc", ipc(&node)]);
    terminal.wait_for(ENTERS);
    terminal.wait_for("live");
    // Of the pool that was configured.
    terminal.wait_for("75 %");
    terminal.end.as_mut().expect("it is open").write_all(b"q").expect("it takes it");
    terminal.wait_for(LEAVES);
    terminal.wait_for(SHOWS_CURSOR);
    terminal.wait_for(" missing;");
    let (_, after) = terminal.shown.rsplit_once(SHOWS_CURSOR).expect("it is shown");
    assert!(!after.contains('\x1b'), "{after}");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_terminal_that_can_do_nothing_is_shown_lines() {
    let node = node_of(0);
    // The first line may come before the first head.
    let args = ["--ipc", ipc(&node), "--duration", "3s", "--status-interval", "1s"];
    let mut terminal = Terminal::start("dumb", &args);
    terminal.wait_for(" chain=1337 head=");
    terminal.wait_for(" missing;");
    assert!(!terminal.shown.contains('\x1b'), "{}", terminal.shown);
    assert_eq!(terminal.end(), Some(0));
}

/// The thread that ends the command waited for the keyboard of a terminal that was gone, and the recording was lost.
#[test]
fn a_terminal_that_is_closed_ends_the_command_in_order() {
    let node = node_of(20);
    node.submit_all();
    for plain in [&[][..], &["--plain"]] {
        let folder = tempfile::tempdir().expect("a folder");
        let hashes = folder.path().join("hashes");
        let [record, list] = [folder.path(), &hashes].map(|path| path.to_str().expect("text"));
        let args = ["--ipc", ipc(&node), "--record", record, "--hashes", list];
        let mut terminal = Terminal::start("xterm", &[&args, plain].concat());
        // What the whole pool holds: the view shows a part of it.
        until(|| {
            let lines = std::fs::read_to_string(&hashes).map_or(0, |text| text.lines().count());
            if lines < 20 { Err(format!("{lines} of 20")) } else { Ok(()) }
        });
        let began = Instant::now();
        drop(terminal.end.take());
        assert_eq!(terminal.end(), Some(0), "{plain:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{plain:?}: {:?}", began.elapsed());
        let rows = Recording::open(record, RecordingConfig::default()).expect("it opens");
        assert_eq!(rows.filter_map(Result::ok).count(), 20, "{plain:?}");
    }
}
