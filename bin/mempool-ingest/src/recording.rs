//! What `--record` and `--replay` add: the recording, and the replay that replaces a node.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use futures::stream;
use mempool_ingest::{
    Ingest,
    txpool_fetcher::{
        AnnouncementStream, BlockStream, Endpoint, InProcess, InProcessPool, MinedBlock,
        PooledHashes, PooledTransaction,
    },
};
use mempool_recorder::{
    BadRow, Recorder, RecorderConfig, RecorderStats, Recording, RecordingConfig, Replay,
    ReplayCounts, Speed,
};
use serde_json::{Value, json};

use crate::{
    Failure, left,
    options::Options,
    say::{say, say_warning},
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
    #[arg(long, value_name = "PATH", conflicts_with_all = ["ipc", "ws"], help_heading = "Recordings")]
    replay: Option<PathBuf>,
    /// With --replay: 1 for the recorded speed, 10 for ten times as fast, or max
    #[arg(long, requires = "replay", default_value_t = Speed::RECORDED, help_heading = "Recordings")]
    speed: Speed,
}

impl Args {
    pub(crate) fn set(&self, options: &mut Options) {
        if let Some(folder) = &self.record {
            let recorder = options.recorder.get_or_insert_with(|| RecorderConfig::new(""));
            recorder.folder.clone_from(folder);
        }
        if self.replay.is_some() {
            options.fetcher.sources = vec![no_node()];
            #[cfg(feature = "rpc")]
            {
                options.rpc = None;
            }
        }
    }
}

/// The recorder and the replay beside the ingestion.
pub(crate) struct Files {
    recorder: Option<Recorder>,
    replay: Option<Replay>,
}

impl Files {
    pub(crate) fn start(args: &Args, options: &Options, ingest: &Ingest) -> Result<Self, Failure> {
        let pool = ingest.pool();
        let recorder = match &options.recorder {
            Some(config) => {
                let (announcers, status) =
                    (ingest.fetcher().announcers(), ingest.fetcher().status());
                let names: Vec<_> =
                    status.into_iter().map(|source| source.endpoint.to_string()).collect();
                let named = move |hash: &B256| {
                    announcers(hash).into_iter().map(|source| names[source].clone()).collect()
                };
                Some(Recorder::start_with(pool, config.clone(), named)?)
            }
            None => None,
        };
        let replay = match &args.replay {
            Some(path) => {
                let recording = Recording::open(path, RecordingConfig::default())?;
                Some(Replay::start(recording, args.speed, pool.clone())?)
            }
            None => None,
        };
        Ok(Self { recorder, replay })
    }

    /// Whether a replay has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.end_reason().is_some())
    }

    /// Stops both, until this time, and returns the counts of the recording and of the replay, as `--json` prints them.
    pub(crate) fn end(self, by: Instant) -> (Option<Value>, Option<Value>) {
        let replayed = self.replay.map(|replay| {
            let time = replay.elapsed();
            let end = replay.shutdown(left(by));
            if !end.ended {
                say_warning!("the replay has not stopped");
            }
            replayed(&end.counts, time)
        });
        let recorded = self.recorder.map(|recorder| {
            let end = recorder.shutdown(left(by));
            if !end.ended {
                say_warning!(
                    "the last segment of the recording is not written in time, and is lost"
                );
            }
            recorded(&end.stats)
        });
        (recorded, replayed)
    }
}

fn recorded(stats: &RecorderStats) -> Value {
    let RecorderStats { rows, bytes, segments, lost_events, lost_rows, .. } = *stats;
    say!(
        "recorded {rows} transactions in {segments} segments, {:.1} MB; lost {lost_events} events, {lost_rows} rows",
        bytes as f64 / 1e6,
    );
    json!({
        "rows": rows,
        "bytes": bytes,
        "segments": segments,
        "lost_events": lost_events,
        "lost_rows": lost_rows,
    })
}

fn replayed(counts: &ReplayCounts, time: Duration) -> Value {
    let bad: Vec<_> =
        BadRow::REASONS.into_iter().zip(counts.bad).filter(|(_, count)| *count > 0).collect();
    let ReplayCounts { pooled, known, refused, postponed, left_out, .. } = *counts;
    // From the first row to the last one, or to the stop.
    let seconds = time.as_secs_f64();
    say!(
        "replayed {pooled} transactions in {seconds:.1} s; known {known}, refused {refused}, no room {postponed}, \
         bad rows {bad:?}",
    );
    json!({
        "pooled": pooled,
        "known": known,
        "refused": refused,
        "postponed": postponed,
        "left_out": left_out,
        "bad_rows": counts.bad_rows(),
        "seconds": seconds,
    })
}

/// The source of a replay: a pool that is always empty, so that the ingestion runs without a node.
fn no_node() -> Endpoint {
    struct Empty;
    impl InProcessPool for Empty {
        fn chain_id(&self) -> u64 {
            1
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
        fn get(
            &self,
            _: &B256,
        ) -> Option<alloy_consensus::transaction::Recovered<PooledTransaction>> {
            None
        }
    }
    Endpoint::InProcess(InProcess::new("replay", Arc::new(Empty)))
}

#[cfg(all(test, feature = "rpc"))]
mod tests {
    use mempool_ingest::{
        FetcherConfig, Ingest, IngestConfig, IngestError, NodeAdmissionConfig, PoolConfig,
    };

    use super::*;

    #[tokio::test]
    async fn a_pool_in_this_process_cannot_be_asked_whether_senders_can_pay() {
        let mut config = IngestConfig::new(FetcherConfig::new([no_node()]), PoolConfig::default());
        config.node_admission = Some(NodeAdmissionConfig::default());
        assert!(matches!(Ingest::start(config).await, Err(IngestError::NoNodeToAsk)));
    }
}
