//! The load as a process of its own.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mempool_ingest::Fetcher;
use serde::Deserialize;

pub(crate) struct Load {
    child: Child,
    tps: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) accepted: u64,
}

impl Load {
    pub(crate) fn start(ipc: &Path, tps: u32, duration: Duration) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_devnet"))
            .args(["load", "--ipc"])
            .arg(ipc)
            .args(["--tps", &tps.to_string()])
            .args(["--duration", &format!("{}ms", duration.as_millis())])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the load starts");
        Self { child, tps }
    }

    /// Waits, without the host's runtime, until announcements come; returns their count.
    pub(crate) fn wait_started(&self, fetcher: &Fetcher) -> u64 {
        let before = fetcher.counts().announced;
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let announced = fetcher.counts().announced;
            if announced > before + u64::from(self.tps) {
                return announced;
            }
            assert!(Instant::now() < deadline, "the load does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn finish(self) -> Report {
        let output = self.child.wait_with_output().expect("the load ends");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().last().unwrap_or_default();
        println!("load at {} TPS: {line}", self.tps);
        serde_json::from_str(line).expect("a line of JSON")
    }

    pub(crate) fn abandon(mut self) {
        // It may have ended with its node.
        let _ = self.child.kill();
        self.child.wait().expect("it was started");
    }
}
