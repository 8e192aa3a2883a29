//! Samples of a long run, as lines of a CSV file.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use mempool_ingest::Ingest;

use crate::{summary::Latency, usage::resident_bytes};

/// Time between two lines. A quantile covers the orders seen in between.
const EVERY: Duration = Duration::from_secs(10);

pub(crate) struct Samples {
    file: File,
    start: Instant,
    at: Instant,
    before: Histogram<u64>,
}

impl Samples {
    pub(crate) fn create(path: &Path, latency: Histogram<u64>) -> io::Result<Self> {
        let mut file = File::create(path)?;
        writeln!(
            file,
            "elapsed_s,resident_bytes,open_files,p50_us,p99_us,announced,pooled,lagged,reconnects,pool_txs,pool_bytes"
        )?;
        let now = Instant::now();
        Ok(Self { file, start: now, at: now, before: latency })
    }

    /// Writes a line if one is due.
    pub(crate) fn take(&mut self, ingest: &Ingest, latency: Histogram<u64>) -> io::Result<()> {
        if self.at.elapsed() < EVERY {
            return Ok(());
        }
        self.at = Instant::now();
        let mut since = latency.clone();
        // An earlier copy of the same histogram, so each of its counts is at most as high.
        since.subtract(&self.before).expect("counts only rise");
        self.before = latency;
        let Latency { p50, p99, .. } = Latency::of(&since);
        let counts = ingest.fetcher().counts();
        let reconnects: u64 =
            ingest.fetcher().status().iter().map(|source| source.reconnects).sum();
        let stats = ingest.pool().stats();
        writeln!(
            self.file,
            "{:.0},{},{},{p50:.0},{p99:.0},{},{},{},{reconnects},{},{}",
            self.start.elapsed().as_secs_f64(),
            resident_bytes(),
            fs::read_dir("/proc/self/fd")?.count(),
            counts.announced,
            counts.pooled,
            counts.lagged,
            stats.txs,
            stats.bytes,
        )
    }
}
