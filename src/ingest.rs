//! The parts wired together: a node's transactions into an order pool.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use order_pool::{OrderPool, PoolConfig};
use txpool_fetcher::{Counts, EndReason, Fetcher, FetcherConfig};

/// Time between two rounds of the pool's upkeep. A transaction that has expired is gone at most
/// this much later.
pub const UPKEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Why [`Ingest::start`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The pool's configuration is out of bounds.
    #[error("pool: {0}")]
    Pool(#[from] order_pool::ConfigError),
    /// The fetcher could not start.
    #[error(transparent)]
    Fetcher(#[from] txpool_fetcher::StartError),
    /// The upkeep's thread could not be made.
    #[error("cannot start the `mempool-upkeep` thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// A node's mempool flowing into a pool.
#[derive(Debug)]
pub struct Ingest {
    pool: OrderPool,
    fetcher: Fetcher,
    upkeep: Upkeep,
}

impl Ingest {
    /// Makes the pool and starts the fetcher and the pool's upkeep.
    ///
    /// # Errors
    /// See [`IngestError`]. Nothing runs afterwards.
    ///
    /// # Cancel safety
    /// Dropped before it returns, it stops what it has started.
    pub async fn start(fetcher: FetcherConfig, pool: PoolConfig) -> Result<Self, IngestError> {
        let pool = OrderPool::new(pool)?;
        let upkeep = Upkeep::start(pool.clone()).map_err(IngestError::Thread)?;
        let fetcher = Fetcher::start(fetcher, pool.clone()).await?;
        Ok(Self { pool, fetcher, upkeep })
    }

    /// The pool. Clones of it stay readable after the end.
    #[must_use]
    pub const fn pool(&self) -> &OrderPool {
        &self.pool
    }

    /// The fetcher, for its counts, its status and its audits.
    #[must_use]
    pub const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Stops the fetcher, then the upkeep, and waits for both, at most `deadline`.
    ///
    /// # Cancel safety
    /// The stop goes on when this is dropped.
    pub async fn shutdown(self, deadline: Duration) -> (EndReason, Counts) {
        let ended = self.fetcher.shutdown(deadline).await;
        drop(self.upkeep);
        ended
    }
}

/// The thread that lets go of what the pool has kept long enough. Stops when dropped.
#[derive(Debug)]
struct Upkeep {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    fn start(pool: OrderPool) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread =
            std::thread::Builder::new().name("mempool-upkeep".into()).spawn(move || {
                while stopped.recv_timeout(UPKEEP_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    // Bounded steps: inserts pass between them.
                    while pool.upkeep() {}
                }
            })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the pool's upkeep has panicked");
        }
    }
}
