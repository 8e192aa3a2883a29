//! The files of a run: the recording, the replay that replaces a node, and the hashes of both.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use alloy_primitives::B256;
use futures::stream;
use mempool_ingest::{
    OrderPool,
    order_pool::Event,
    txpool_fetcher::{
        AnnouncementStream, BlockStream, Endpoint, InProcess, InProcessPool, MinedBlock,
        PooledHashes, PooledTransaction,
    },
};
use mempool_recorder::{
    BadRow, Recorder, RecorderConfig, RecorderStats, Recording, RecordingConfig, Replay,
    ReplayCounts,
};
use serde::Serialize;

use crate::args::Args;

/// How long the end waits for the last segment.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// The interval at which the thread that writes hashes reads the pool.
const LOOK: Duration = Duration::from_millis(50);

/// The recording's counts, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(crate) struct RecordedSummary {
    rows: u64,
    bytes: u64,
    segments: u64,
    lost_events: u64,
    lost_rows: u64,
}

/// The replay's counts, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayedSummary {
    pooled: u64,
    known: u64,
    refused: u64,
    postponed: u64,
    left_out: u64,
    bad_rows: u64,
    /// From the first row to the last one, or to the stop.
    seconds: f64,
}

/// The recorder, the replay and the writer of hashes beside the ingestion.
pub(crate) struct Files {
    recorder: Option<Recorder>,
    replay: Option<Replay>,
    hashes: Option<Hashes>,
}

impl Files {
    pub(crate) fn start(args: &Args, pool: &OrderPool) -> Result<Self, Box<dyn std::error::Error>> {
        // Before the first transaction arrives.
        let hashes = args.hashes.as_deref().map(|path| Hashes::start(path, pool)).transpose()?;
        let recorder = match &args.record {
            Some(folder) => Some(Recorder::start(pool, RecorderConfig::new(folder))?),
            None => None,
        };
        let replay = match &args.replay {
            Some(path) => {
                let recording = Recording::open(path, RecordingConfig::default())?;
                Some(Replay::start(recording, args.speed, pool.clone())?)
            }
            None => None,
        };
        Ok(Self { recorder, replay, hashes })
    }

    /// Whether a replay has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.end_reason().is_some())
    }

    /// Stops all of them and returns their counts.
    pub(crate) fn end(self) -> (Option<RecordedSummary>, Option<ReplayedSummary>) {
        let replayed = self.replay.map(|replay| {
            let time = replay.elapsed();
            let end = replay.shutdown(STOP_DEADLINE);
            if !end.ended {
                eprintln!("warning: the replay has not stopped");
            }
            replayed(&end.counts, time)
        });
        let recorded = self.recorder.map(|recorder| {
            let end = recorder.shutdown(STOP_DEADLINE);
            if !end.ended {
                eprintln!("warning: the last segment is not written after {STOP_DEADLINE:?}");
            }
            recorded(&end.stats)
        });
        if let Some(Err(error)) = self.hashes.map(Hashes::stop) {
            eprintln!("warning: --hashes: {error}");
        }
        (recorded, replayed)
    }
}

fn recorded(stats: &RecorderStats) -> RecordedSummary {
    eprintln!(
        "recorded {} transactions in {} segments, {:.1} MB; lost {} events, {} rows",
        stats.rows,
        stats.segments,
        stats.bytes as f64 / 1e6,
        stats.lost_events,
        stats.lost_rows,
    );
    RecordedSummary {
        rows: stats.rows,
        bytes: stats.bytes,
        segments: stats.segments,
        lost_events: stats.lost_events,
        lost_rows: stats.lost_rows,
    }
}

fn replayed(counts: &ReplayCounts, time: Duration) -> ReplayedSummary {
    let bad: Vec<_> =
        BadRow::REASONS.into_iter().zip(counts.bad).filter(|(_, count)| *count > 0).collect();
    eprintln!(
        "replayed {} transactions in {:.1} s; known {}, refused {}, no room {}, bad rows {bad:?}",
        counts.pooled,
        time.as_secs_f64(),
        counts.known,
        counts.refused,
        counts.postponed,
    );
    ReplayedSummary {
        pooled: counts.pooled,
        known: counts.known,
        refused: counts.refused,
        postponed: counts.postponed,
        left_out: counts.left_out,
        bad_rows: counts.bad_rows(),
        seconds: time.as_secs_f64(),
    }
}

/// A subscriber that writes the hash of each order, one a line, in the pool's order.
struct Hashes {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Hashes {
    fn start(path: &Path, pool: &OrderPool) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let mut orders = pool.subscribe_all();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            loop {
                // Before reading, so that everything from before the end is written.
                let last = stopped.load(Relaxed);
                let mut lines = String::new();
                loop {
                    let read = orders.visit(usize::MAX, |event| {
                        if let Event::Added(order) = event {
                            lines += &format!("{}\n", order.id().hash());
                        }
                    });
                    if read.map_err(io::Error::other)? == 0 {
                        break;
                    }
                }
                file.write_all(lines.as_bytes())?;
                if last {
                    return Ok(());
                }
                std::thread::park_timeout(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("hashes".into()).spawn(run)?;
        Ok(Self { stop, thread })
    }

    fn stop(self) -> io::Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has panicked")))
    }
}

/// The source of a replay: a pool that is always empty, so that the ingestion runs without a node.
pub(crate) fn no_node() -> Endpoint {
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
