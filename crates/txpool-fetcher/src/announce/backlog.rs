//! How far the announcement readers of a source are behind its sockets.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::sync::OwnedMutexGuard;

use crate::{connection::ReadTimes, error::LossReason, sync::lock};

/// Held by the announcement readers of one subscription, while they process.
pub(super) type Turn = Arc<OwnedMutexGuard<()>>;

/// How far the announcement reader is behind one subscription connection.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) read_times: Arc<ReadTimes>,
    taken: AtomicU64,
}

impl Progress {
    pub(crate) fn new(read_times: Arc<ReadTimes>) -> Arc<Self> {
        Arc::new(Self { read_times, taken: AtomicU64::new(0) })
    }

    /// Records that `count` announcements were processed, or are known to be lost.
    pub(super) fn take(&self, count: u64) {
        self.taken.fetch_add(count, Relaxed);
    }

    /// Announcements read from the socket and not yet processed.
    pub(super) fn backlog(&self) -> u64 {
        self.read_times.read().saturating_sub(self.taken.load(Relaxed))
    }
}

/// The announcement readers of one source.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// One for each live announcement reader: those of the connections that are up (with full
    /// announcements the reader of hashes comes last), and possibly some that still process the
    /// announcements of lost connections.
    readers: Mutex<Vec<Weak<Progress>>>,
    /// Held by the announcement reader that is processing, so that they run one after another.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl Backlog {
    /// Counts this reader's unprocessed announcements as backlog, until it is dropped.
    pub(crate) fn add_reader(&self, reader: &Arc<Progress>) {
        let mut readers = lock(&self.readers);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(reader));
    }

    /// How many announcements the latest connection has delivered.
    pub(crate) fn read(&self) -> u64 {
        let latest = lock(&self.readers).last().and_then(Weak::upgrade);
        latest.map_or(0, |progress| progress.read_times.read())
    }

    /// Announcements read from the sockets and not yet processed.
    pub(crate) fn len(&self) -> u64 {
        let readers = lock(&self.readers);
        readers.iter().filter_map(Weak::upgrade).map(|progress| progress.backlog()).sum()
    }

    /// Waits until the reader of a lost connection has processed that connection's announcements: it
    /// waits for something, such as a slot, that the next reader would wait for too. If the
    /// connection is lost before its turn comes, its announcements are lost with it, and their number
    /// is returned; so at most two such buffers exist, however often connections are lost meanwhile.
    pub(crate) async fn wait_for_turn(
        &self,
        progress: &Progress,
        lost: impl Future<Output = LossReason>,
    ) -> Result<Turn, u64> {
        tokio::select! {
            // If the turn comes together with the loss, it is taken, so that nothing is lost.
            biased;
            turn = Arc::clone(&self.reading).lock_owned() => Ok(Arc::new(turn)),
            _ = lost => {
                let unread = progress.backlog();
                progress.take(unread);
                Err(unread)
            }
        }
    }
}
