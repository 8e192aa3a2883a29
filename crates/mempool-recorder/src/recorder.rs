//! The thread that follows the pool and writes segments.
//!
//! # Why it is so
//!
//! - **A segment is one row group and one file.** One long file would need a repair after a crash,
//!   for which no other tool exists, and an ever-growing list of its row groups in memory.
//! - **Orders are collected by reference.** Encoding and compression happen when a group is full, column by
//!   column, on a thread of low priority. The Parquet library compresses a page in one go, a megabyte in 15 ms, and
//!   Linux lets a running thread finish its slice even if one of a higher priority wakes on its core. So our own
//!   code compresses pages, 8 KiB at a time, and offers the core after each step, unless the recorder is behind.
//! - **A group does not wait for the blocks that take its transactions**: that would keep rows
//!   where a crash loses them.
//! - **A file is outside input.** The footer is walked through before the Parquet library parses it
//!   ([`crate::footer`]). The library's gzip codec inflates without a bound, so our own code decompresses pages, up to
//!   a limit. A panic of the library is caught.
//! - **A replay delivers to a sink and is not a source of the fetcher.** The fetcher requests 64 transactions at
//!   once, and they arrive in any order; a replay must have one order, so that the same pool results each time.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use order_pool::{Lagged, OrderPool, Subscription};

use crate::{
    columns::{Announcers, Encoding},
    config::{MAX_GROUP_BYTES, MAX_GROUP_ROWS, POLL_INTERVAL, RecorderConfig},
    error::RecorderError,
    group::{Group, Limits},
    metrics::{IO, LAGGED, RecorderCounters, RecorderStats},
    segment::Segments,
};

/// Records every transaction that the pool accepts: first those already in it, then every new one.
/// When dropped, it writes what it has and ends, and nothing waits for that.
///
/// The pool does not wait for it: events that leave the pool's log before they are read are lost
/// and counted ([`RecorderStats::lost_events`]).
#[derive(Debug)]
pub struct Recorder {
    stop: SyncSender<()>,
    ended: Receiver<()>,
    counters: Arc<RecorderCounters>,
}

/// The end of a [`Recorder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderEnd {
    /// The final counts; without the last group if that was not written in time.
    pub stats: RecorderStats,
    /// Whether the last group was written, and its thread ended, before the deadline.
    pub ended: bool,
}

impl Recorder {
    /// Starts recording.
    ///
    /// # Errors
    /// The configuration is out of bounds, the folder cannot be written to, or the thread cannot be
    /// started.
    pub fn start(pool: &OrderPool, config: RecorderConfig) -> Result<Self, RecorderError> {
        Self::start_with(pool, config, |_| Vec::new())
    }

    /// As [`Self::start`], with a function that names the nodes that have announced a transaction, for
    /// the column `sources`: for instance the host's names for what `FetcherHandle::announcers` returns.
    /// It is called for each transaction when its group is written, on the recorder's thread.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        pool: &OrderPool,
        config: RecorderConfig,
        announcers: impl Fn(&B256) -> Vec<String> + Send + 'static,
    ) -> Result<Self, RecorderError> {
        config.validate()?;
        let counters = Arc::new(RecorderCounters::new());
        let mut follower = Follower::new(pool.subscribe_all(), config, Arc::clone(&counters))?;
        follower.announcers = Box::new(announcers);
        let (stop, stopped) = mpsc::sync_channel(1);
        let (end, ended) = mpsc::sync_channel(1);
        let run = move || {
            lower_priority();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(POLL_INTERVAL) {
                follower.follow(Instant::now());
            }
            follower.follow(Instant::now());
            follower.write();
            drop(follower);
            // If the handle was dropped, nothing waits for the end.
            let _ = end.send(());
        };
        let thread = thread::Builder::new().name("mempool-recorder".into());
        thread.spawn(run).map_err(RecorderError::Thread)?;
        Ok(Self { stop, ended, counters })
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> RecorderStats {
        self.counters.stats()
    }

    /// Records everything that the pool has accepted until now, writes the last group, and waits
    /// for that for at most `deadline`.
    pub fn shutdown(self, deadline: Duration) -> RecorderEnd {
        // Full only if the stop was sent before, and closed only if the thread has panicked: then
        // there is nothing to wait for.
        let _ = self.stop.try_send(());
        let ended = self.ended.recv_timeout(deadline).is_ok();
        RecorderEnd { stats: self.counters.stats(), ended }
    }
}

/// About a tenth of the share of a thread of niceness 0. With the lowest priority, a seventieth, a full machine left the
/// recorder too little to keep up with 2,000 transactions/s.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets every thread that handles transactions go first.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // On Linux each thread has its own.
        let me = Some(rustix::thread::gettid());
        if let Err(error) = rustix::process::setpriority_process(me, NICENESS) {
            tracing::debug!(%error, "the recorder's thread keeps the priority of the process");
        }
    }
}

/// The recorder without its thread and its clock.
struct Follower {
    subscription: Subscription,
    blobs: bool,
    external: bool,
    announcers: Box<Announcers>,
    limits: Limits,
    group: Group,
    segments: Segments,
    counters: Arc<RecorderCounters>,
}

impl Follower {
    fn new(
        subscription: Subscription,
        config: RecorderConfig,
        counters: Arc<RecorderCounters>,
    ) -> Result<Self, RecorderError> {
        let RecorderConfig { folder, blobs, external, group_age } = config;
        let segments = Segments::create(folder.clone(), SystemTime::now())
            .map_err(|source| RecorderError::Folder { path: folder, source })?;
        let limits = Limits { rows: MAX_GROUP_ROWS, bytes: MAX_GROUP_BYTES, age: group_age };
        let group = Group::default();
        let announcers = Box::new(|_: &B256| Vec::new());
        Ok(Self { subscription, blobs, external, announcers, limits, group, segments, counters })
    }

    /// Reads all new events, and writes the group if it is due.
    ///
    /// One event at a time: a batch of events may hold any number of bytes.
    fn follow(&mut self, now: Instant) {
        while let Some(event) = self.subscription.try_next() {
            match event {
                Ok(event) => self.group.take(&event, now),
                // The next read continues with the rest of the replay, if that is not finished, and the oldest
                // event in the log.
                Err(Lagged { missed, .. }) => {
                    tracing::warn!(missed, "the recorder was too slow for the pool's log");
                    self.counters.lost[LAGGED].add(missed);
                    self.group.forget_mined();
                }
            }
            if self.group.is_due(&self.limits, now) {
                self.write();
            }
        }
        if self.group.is_due(&self.limits, now) {
            self.write();
        }
    }

    fn write(&mut self) {
        let start = Instant::now();
        let pause = || {
            if may_pause(&self.subscription, start.elapsed()) {
                // Lets the threads that wait for this core go first.
                thread::yield_now();
            }
        };
        let all = self.group.rows().count() as u64;
        let rows = self.group.rows().filter(|(tx, _)| self.external || tx.is_public());
        let rows: Vec<_> = rows.collect();
        let count = rows.len() as u64;
        self.counters.skipped.add(all - count);
        if count > 0 {
            let how = Encoding { blobs: self.blobs, announcers: &*self.announcers, pause: &pause };
            match self.segments.write(&rows, how) {
                Ok(bytes) => {
                    self.counters.rows.add(count);
                    self.counters.bytes.add(bytes);
                    self.counters.segments.add(1);
                }
                Err(error) => {
                    tracing::error!(
                        %error,
                        folder = %self.segments.folder().display(),
                        rows = count,
                        "cannot write a segment, whose rows are lost: make room on the disk"
                    );
                    self.counters.lost[IO].add(count);
                }
            }
        }
        drop(rows);
        self.group.clear(&pause);
    }
}

/// How many unread events end the pauses: four seconds of 2,000 transactions/s that come and go, a
/// sixteenth of what the pool's log holds by default.
const MAX_BEHIND: u64 = 16_384;

/// How long a group is written with pauses: three times as long as one of 16 MiB takes.
const MAX_PAUSING: Duration = Duration::from_secs(1);

/// Whether others go first while a group is written. On a machine without idle time a pause costs a
/// whole slice of each thread that waits, and with all pauses the recorder would lose its place in
/// the log. So it insists on its share once it is behind.
fn may_pause(subscription: &Subscription, writing: Duration) -> bool {
    subscription.behind() < MAX_BEHIND && writing < MAX_PAUSING
}

#[cfg(test)]
mod tests;
