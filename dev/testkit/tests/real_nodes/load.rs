//! The load, in its own process.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use mempool_ingest::Fetcher;
use testkit::command::Running;

/// A running load, which is killed when dropped.
pub(crate) struct Load {
    running: Running,
    tps: u32,
}

impl Load {
    pub(crate) fn start(ipc: &Path, tps: u32, duration: Duration) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_devnet"));
        command.args(["load", "--ipc"]).arg(ipc).args(["--tps", &tps.to_string()]);
        command.args(["--duration", &format!("{}ms", duration.as_millis())]);
        Self { running: Running::spawn(command).expect("the load starts"), tps }
    }

    /// Waits until announcements arrive, without using the runtime of the host. Returns their
    /// count.
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

    /// Waits for the end of the load. Returns how many transactions the node accepted.
    pub(crate) fn finish(self) -> u64 {
        let ended = self.running.end(None).expect("the load ends");
        println!("load at {} TPS: {ended:?}", self.tps);
        let accepted = ended.json().and_then(|report| report["accepted"].as_u64());
        accepted.expect("a line of JSON")
    }
}
