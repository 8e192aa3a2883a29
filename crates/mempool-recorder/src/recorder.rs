//! The recorder: follows the pool on a thread of its own and writes segments.
//!
//! # Why recorder and replay are built this way
//!
//! - **A segment is one row group and one file.** One long file would need a repair after a crash,
//!   for which no other tool exists, and an ever-growing list of its row groups in memory.
//! - **Orders are collected by reference.** They are encoded and compressed when a group is full,
//!   column by column, on a thread of low priority. The Parquet library compresses a page in one
//!   go, a megabyte in 15 ms, and Linux lets a running thread finish its slice even if a thread of
//!   higher priority wakes on its core. So our own code compresses pages, 8 KiB at a time, and
//!   yields the core after each step, unless the recorder is behind.
//! - **A group does not wait for the blocks that include its transactions.** It would keep rows in
//!   memory, where a crash loses them.
//! - **A file is outside input.** The footer is checked before the Parquet library parses it
//!   ([`crate::footer`]). The library's gzip codec decompresses without a bound, so our own code
//!   decompresses pages, up to a limit. A panic of the library is caught.
//! - **A replay delivers to a sink and is not a source of the fetcher.** The fetcher requests 64
//!   transactions at once, and they arrive in any order. A replay must have one order, so that each
//!   run results in the same pool.

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
/// When it is dropped, it writes what it has and ends, and the drop does not wait for that.
///
/// The pool does not wait for the recorder: events that leave the pool's log before they are read
/// are lost and counted ([`RecorderStats::lost_events`]).
#[derive(Debug)]
pub struct Recorder {
    stop: SyncSender<()>,
    ended: Receiver<()>,
    counters: Arc<RecorderCounters>,
}

/// How a [`Recorder`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderEnd {
    /// The final counts. They lack the last group if it was not written before the deadline.
    pub stats: RecorderStats,
    /// Whether the last group was written and the thread ended before the deadline.
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

    /// Starts recording, with a function that names the nodes that have announced a transaction,
    /// for the column `sources`: for instance the host's names for the sources that
    /// `FetcherHandle::announcers` returns. It is called for each transaction when its group is
    /// written, on the recorder's thread.
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
        let (stop, stop_receiver) = mpsc::sync_channel(1);
        let (ended_sender, ended) = mpsc::sync_channel(1);
        let run = move || {
            lower_priority();
            while let Err(RecvTimeoutError::Timeout) = stop_receiver.recv_timeout(POLL_INTERVAL) {
                follower.read_events(Instant::now());
            }
            follower.read_events(Instant::now());
            follower.write_group();
            drop(follower);
            // If the recorder was dropped, nobody waits for the end.
            let _ = ended_sender.send(());
        };
        thread::Builder::new()
            .name("mempool-recorder".into())
            .spawn(run)
            .map_err(RecorderError::Thread)?;
        Ok(Self { stop, ended, counters })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn stats(&self) -> RecorderStats {
        self.counters.stats()
    }

    /// Records everything that the pool has accepted until now, writes the last group, and waits
    /// for it, for at most `deadline`.
    pub fn shutdown(self, deadline: Duration) -> RecorderEnd {
        // An error needs no handling. The channel is full if a stop was sent before, and closed if
        // the thread has panicked, when there is nothing to wait for.
        let _ = self.stop.try_send(());
        let ended = self.ended.recv_timeout(deadline).is_ok();
        RecorderEnd { stats: self.counters.stats(), ended }
    }
}

/// It gives the recorder about a tenth of the share of a thread with niceness 0. With the lowest
/// priority, a seventieth, the recorder could not keep up with 2,000 transactions/s on a busy
/// machine.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lowers the priority of this thread, so that threads which handle transactions go first.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // On Linux each thread has a priority of its own.
        let thread = Some(rustix::thread::gettid());
        if let Err(error) = rustix::process::setpriority_process(thread, NICENESS) {
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
        Ok(Self {
            subscription,
            blobs,
            external,
            announcers: Box::new(|_: &B256| Vec::new()),
            limits,
            group: Group::default(),
            segments,
            counters,
        })
    }

    /// Reads all new events, and writes the group whenever it is due.
    ///
    /// It reads one event at a time, because a batch of events may hold any number of bytes.
    fn read_events(&mut self, now: Instant) {
        while let Some(event) = self.subscription.try_next() {
            match event {
                Ok(event) => self.group.on_event(&event, now),
                // The next read continues with the rest of the replay, if there is any, and then
                // with the oldest event in the log.
                Err(Lagged { missed, .. }) => {
                    tracing::warn!(missed, "events left the pool's log before they were recorded");
                    self.counters.lost[LAGGED].add(missed);
                    self.group.forget_mined();
                }
            }
            if self.group.is_due(&self.limits, now) {
                self.write_group();
            }
        }
        if self.group.is_due(&self.limits, now) {
            self.write_group();
        }
    }

    fn write_group(&mut self) {
        let start = Instant::now();
        let pause = || {
            if may_pause(&self.subscription, start.elapsed()) {
                // Threads that wait for this core go first.
                thread::yield_now();
            }
        };
        let total = self.group.rows().count() as u64;
        let rows: Vec<_> =
            self.group.rows().filter(|row| self.external || row.tx.is_public()).collect();
        let count = rows.len() as u64;
        self.counters.skipped.add(total - count);
        if count > 0 {
            let encoding =
                Encoding { blobs: self.blobs, announcers: &*self.announcers, pause: &pause };
            match self.segments.write(&rows, encoding) {
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
                        "a segment cannot be written and its rows are lost: make room on the disk"
                    );
                    self.counters.lost[IO].add(count);
                }
            }
        }
        drop(rows);
        self.group.clear(&pause);
    }
}

/// With this many unread events the recorder does not pause: four seconds of 2,000 transactions/s
/// that come and go, a sixteenth of what the pool's log holds by default.
const MAX_BEHIND_EVENTS: u64 = 16_384;

/// How long a group is written with pauses: three times as long as a group of 16 MiB takes.
const MAX_PAUSING: Duration = Duration::from_secs(1);

/// Whether the recorder pauses while it writes a group, so that other threads go first. On a
/// machine without idle time a pause costs a whole slice of each waiting thread, and the recorder
/// could fall out of the pool's log. So it stops pausing once it is behind.
fn may_pause(subscription: &Subscription, writing_for: Duration) -> bool {
    subscription.behind() < MAX_BEHIND_EVENTS && writing_for < MAX_PAUSING
}

#[cfg(test)]
mod tests;
