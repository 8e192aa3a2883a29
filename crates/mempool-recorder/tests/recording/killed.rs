//! A recorder in a process of its own, which is killed. The process is this test binary again.

use std::{
    fs,
    io::{LineWriter, Write as _},
};

use alloy_primitives::B256;
use mempool_recorder::{POLL_INTERVAL, Recorder, RecorderConfig};
use mock_node::workload::{Mix, Workload, WorkloadConfig};
use testkit::{
    command::{Running, Signal, command_line},
    configured,
};

use crate::files::{LONG, all, insert, pool, segments};

/// The number of segments after which the child is killed.
const SEGMENTS: u64 = 4;

#[test]
#[ignore = "run by the test below, in a process that it kills"]
fn a_recorder_that_does_not_end() {
    let folder = command_line().remove(1);
    let pool = pool();
    let config = configured(RecorderConfig::new(folder), |config| config.group_age = POLL_INTERVAL);
    let recorder = Recorder::start(&pool, config).expect("a folder");
    let mut out = LineWriter::new(std::io::stderr());
    let mut has_reported = false;
    let mix = Mix { blobs_per_mille: 10, six_blobs_per_mille: 0, ..Mix::default() };
    let mut load = Workload::new(WorkloadConfig { mix, ..WorkloadConfig::new(7, 1337) });
    // Without the parent its writes fail, which ends the process.
    for pooled in (200..).step_by(200) {
        for tx in load.prepare(200) {
            insert(&pool, &tx);
            writeln!(out, "pooled {}", tx.hash).expect("the parent reads");
        }
        if !has_reported && recorder.stats().segments >= SEGMENTS {
            has_reported = true;
            writeln!(out, "enough").expect("the parent reads");
        }
        // On a busy machine the pool would be full before the recorder has written the rows.
        while recorder.stats().rows + 20_000 < pooled {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[test]
fn a_killed_recorder_leaves_all_rows_of_its_complete_segments() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = [folder.path().to_str().expect("text").to_owned()];
    let mut running = Running::start("killed::a_recorder_that_does_not_end", args).expect("starts");
    running.line(|line| (line == "enough").then_some(())).expect("segments");
    let ended = running.end(Some(Signal::SIGKILL)).expect("it ends");
    assert!(!ended.status.success(), "it was not killed");
    let reported = ended.stderr.lines().filter_map(|line| line.strip_prefix("pooled "));
    let pooled: Vec<B256> = reported.map(|hash| hash.parse().expect("a hash")).collect();
    let recorded: Vec<B256> =
        all(folder.path()).iter().map(|row| *row.tx.inner().tx_hash()).collect();
    let complete = segments(folder.path()).len();
    assert!(complete as u64 >= SEGMENTS, "{complete}");
    assert!(recorded.len() >= complete, "{} rows in {complete} segments", recorded.len());
    // A transaction is pooled before it is reported, so one row may be ahead.
    assert!(recorded.len() <= pooled.len() + 1, "{} of {}", recorded.len(), pooled.len());
    let common = recorded.len().min(pooled.len());
    assert_eq!(recorded[..common], pooled[..common]);
}

#[test]
fn only_unfinished_files_of_killed_recorders_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("0000000000001-00000000.unfinished"), "PAR1").expect("a file");
    let start = || Recorder::start(&pool(), RecorderConfig::new(folder.path())).expect("a folder");
    let files = || fs::read_dir(folder.path()).expect("a folder").count();
    let first = start();
    assert_eq!(files(), 1, "its own");
    // A file is named after the millisecond in which its recorder started.
    std::thread::sleep(POLL_INTERVAL);
    let second = start();
    assert_eq!(files(), 2);
    assert!(first.shutdown(LONG).ended && second.shutdown(LONG).ended);
    assert_eq!(files(), 0);
}
