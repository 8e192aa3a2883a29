//! `--record` writes the pool's transactions to files; `--replay` reads such files in place of a
//! node.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::B256;
use futures::stream;
use mempool_ingest::{
    Ingest, OrderPool,
    txpool_fetcher::{
        AnnouncementStream, BlockStream, Endpoint, InProcess, InProcessPool, MinedBlock,
        PooledHashes, PooledTransaction,
    },
};
use mempool_recorder::{
    BadRow, Recorder, RecorderConfig, RecorderEnd, RecorderStats, Recording, RecordingConfig,
    Replay, ReplayCounts, ReplayError, Speed,
};
use serde_json::{Value, json};

use crate::{
    Failure, announcers,
    options::Options,
    print::{print_line, print_warning, with_causes},
    time_left,
};

/// The flags of recordings.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Record the pooled transactions into this folder: Parquet files with the columns of
    /// mempool-dumpster
    #[arg(long, value_name = "FOLDER", help_heading = "Recordings")]
    record: Option<PathBuf>,
    /// Replay a Parquet file, or a folder of them, instead of a node
    #[arg(long, value_name = "PATH", conflicts_with_all = ["ipc", "ws"])]
    #[arg(help_heading = "Recordings")]
    replay: Option<PathBuf>,
    /// With --replay: 1 for the recorded speed, 10 for ten times as fast, or max
    #[arg(long, requires = "replay", default_value_t = Speed::RECORDED)]
    #[arg(help_heading = "Recordings")]
    speed: Speed,
}

impl Args {
    pub(crate) fn set(&self, options: &mut Options) -> Result<(), String> {
        if let Some(folder) = &self.record {
            let recorder = options.recorder.get_or_insert_with(|| RecorderConfig::new(""));
            recorder.folder.clone_from(folder);
        }
        if let Some(path) = &self.replay {
            let chain_id = recorded_chain(path).map_err(|error| with_causes(&error))?;
            options.fetcher.sources = vec![empty_source(chain_id)];
            // The file may be that of a live flow. A fleet would take the replayed transactions,
            // which were mined long ago, for pending ones.
            #[cfg(feature = "rpc")]
            drop(options.rpc.take());
            #[cfg(feature = "fleet")]
            {
                options.publish.clear();
                options.streams.clear();
            }
        }
        Ok(())
    }
}

/// Returns the chain of the first transaction of a recording that names one, or 1.
fn recorded_chain(path: &Path) -> Result<u64, ReplayError> {
    let rows = Recording::open(path, RecordingConfig::default())?;
    Ok(rows.filter_map(Result::ok).find_map(|row| row.tx.inner().chain_id()).unwrap_or(1))
}

/// The recorder and the replay, each with its path.
pub(crate) struct Files {
    recorder: Option<(PathBuf, Recorder)>,
    replay: Option<(PathBuf, Replay)>,
}

/// The results of recording and replay.
#[derive(Default)]
pub(crate) struct FilesEnd {
    /// The recorder's counts for `--json`, `None` without `--record`.
    pub(crate) recorded: Option<Value>,
    /// The replay's counts for `--json`, `None` without `--replay`.
    pub(crate) replayed: Option<Value>,
    /// What was lost, each with the next step for the operator.
    pub(crate) failures: Vec<String>,
}

impl Files {
    pub(crate) fn start(args: &Args, options: &Options, ingest: &Ingest) -> Result<Self, Failure> {
        let pool = ingest.pool();
        let mut files = Self { recorder: None, replay: None };
        if let Some(config) = &options.recorder {
            let recorder = Recorder::start_with(pool, config.clone(), announcers(ingest))?;
            files.recorder = Some((config.folder.clone(), recorder));
        }
        if let Some(path) = &args.replay {
            let recording = Recording::open(path, RecordingConfig::default())?;
            let replay = Replay::start(recording, args.speed, pool.clone())?;
            files.replay = Some((path.clone(), replay));
        }
        Ok(files)
    }

    /// Returns the number of transactions that a replay has brought into the pool.
    pub(crate) fn replayed(&self) -> u64 {
        self.replay.as_ref().map_or(0, |(_, replay)| replay.counts().pooled)
    }

    /// Returns the time until the next row of a replay is due.
    pub(crate) fn time_to_next_row(&self) -> Option<Duration> {
        self.replay.as_ref().and_then(|(_, replay)| replay.next_row())
    }

    /// Returns whether a replay has ended.
    pub(crate) fn has_replay_ended(&self) -> bool {
        self.replay.as_ref().is_some_and(|(_, replay)| replay.end_reason().is_some())
    }

    /// Stops both, waiting until `deadline` at most.
    pub(crate) fn shutdown(self, deadline: Instant, pool: &OrderPool) -> FilesEnd {
        let mut ended = FilesEnd::default();
        if let Some((path, replay)) = self.replay {
            let time = replay.elapsed();
            let end = replay.shutdown(time_left(deadline));
            if !end.ended {
                print_warning!("the replay has not stopped");
            }
            ended.replayed = Some(report_replay(&end.counts, time, pool.len() as u64));
            ended.failures.extend(replay_failure(&path, &end.counts));
        }
        if let Some((folder, recorder)) = self.recorder {
            let end = recorder.shutdown(time_left(deadline));
            ended.recorded = Some(report_recording(&end.stats));
            ended.failures.extend(recording_failure(&folder, &end));
        }
        ended
    }
}

/// Returns what is missing in the recording and the next step, or `None` if nothing is missing.
fn recording_failure(folder: &Path, end: &RecorderEnd) -> Option<String> {
    let RecorderStats { lost_events, lost_rows, .. } = end.stats;
    let mut holes = Vec::new();
    if lost_rows > 0 {
        holes.push(format!("{lost_rows} rows could not be written: make room on the disk"));
    }
    if lost_events > 0 {
        holes.push(format!(
            "{lost_events} events of the pool were not read in time: give the process more CPU, or \
             raise `log_bytes`"
        ));
    }
    if !end.ended {
        holes.push("its last segment was not written in time: look whether the disk hangs".into());
    }
    let holes = holes.join("; ");
    (!holes.is_empty())
        .then(|| format!("the recording in {} has a hole: {holes}", folder.display()))
}

/// Returns an error if the recording has rows and none of them entered the pool.
fn replay_failure(path: &Path, counts: &ReplayCounts) -> Option<String> {
    let ReplayCounts { pooled, known, mined, refused, postponed, .. } = *counts;
    let rows = known + mined + refused + postponed + counts.bad_rows();
    (pooled == 0 && rows > 0).then(|| {
        format!(
            "nothing of {} was replayed: of its rows {} cannot be read, and the pool took none of \
             {}; RUST_LOG=mempool_recorder=debug says why",
            path.display(),
            counts.bad_rows(),
            known + mined + refused + postponed,
        )
    })
}

/// Prints the counts of the recorder, and returns them for `--json`.
fn report_recording(stats: &RecorderStats) -> Value {
    let RecorderStats { rows, bytes, segments, lost_events, lost_rows, .. } = *stats;
    print_line!(
        "recorded {rows} transactions in {segments} segments, {:.1} MB; lost {lost_events} events, \
         {lost_rows} rows",
        bytes as f64 / 1e6,
    );
    json!({
        "rows": rows, "bytes": bytes, "segments": segments,
        "lost_events": lost_events, "lost_rows": lost_rows,
    })
}

/// Prints the counts of the replay, and returns them for `--json`. `pooled_now` is the number of
/// transactions that the pool still holds.
fn report_replay(counts: &ReplayCounts, time: Duration, pooled_now: u64) -> Value {
    let bad: Vec<_> =
        BadRow::REASONS.into_iter().zip(counts.bad).filter(|(_, count)| *count > 0).collect();
    let ReplayCounts { pooled, known, refused, postponed, left_out, cut_gaps, .. } = *counts;
    let removed = pooled.saturating_sub(pooled_now);
    // The time from the first row to the last one, or to the stop.
    let seconds = time.as_secs_f64();
    print_line!(
        "replayed {pooled} transactions in {seconds:.1} s: {pooled_now} are pooled, {removed} removed \
         since; known {known}, refused {refused}, no room {postponed}, bad rows {bad:?}, gaps cut \
         {cut_gaps}",
    );
    json!({
        "pooled": pooled, "removed": removed, "known": known, "refused": refused,
        "postponed": postponed, "left_out": left_out, "cut_gaps": cut_gaps,
        "bad_rows": counts.bad_rows(), "seconds": seconds,
    })
}

/// Returns the source of a replay: a pool that is always empty, so that the ingestion runs without
/// a node.
fn empty_source(chain_id: u64) -> Endpoint {
    struct Empty(u64);
    impl InProcessPool for Empty {
        fn chain_id(&self) -> u64 {
            self.0
        }
        fn announcements(&self) -> AnnouncementStream {
            Box::pin(stream::pending())
        }
        fn blocks(&self) -> BlockStream {
            Box::pin(stream::pending())
        }
        fn latest_block(&self) -> Option<MinedBlock> {
            None
        }
        fn block(&self, _: &B256) -> Option<MinedBlock> {
            None
        }
        fn pooled(&self) -> PooledHashes {
            PooledHashes::default()
        }
        fn get(&self, _: &B256) -> Option<Recovered<PooledTransaction>> {
            None
        }
    }
    Endpoint::InProcess(InProcess::new("replay", Arc::new(Empty(chain_id))))
}

#[cfg(all(test, feature = "rpc"))]
mod tests {
    use mempool_ingest::{
        FetcherConfig, Ingest, IngestConfig, IngestError, NodeAdmissionConfig, PoolConfig,
    };

    use super::*;

    #[tokio::test]
    async fn an_in_process_pool_cannot_serve_node_admission() {
        let mut config =
            IngestConfig::new(FetcherConfig::new([empty_source(1)]), PoolConfig::default());
        config.node_admission = Some(NodeAdmissionConfig::default());
        assert!(matches!(Ingest::start(config).await, Err(IngestError::NoNodeToAsk)));
    }
}
