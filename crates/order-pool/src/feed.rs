//! The sources that feed a pool: subscribers learn when the last one has ended.

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering::SeqCst},
};

use crate::{
    core::Effect,
    event::Event,
    pool::{OrderPool, PoolShared},
};

/// A source that feeds a pool, for as long as this lives: see [`OrderPool::feed`].
#[must_use = "dropping it tells subscribers that the source has ended"]
pub struct Feed {
    /// A source must not keep the pool alive.
    pool: Weak<PoolShared>,
}

impl OrderPool {
    /// Notes that a source of pending transactions feeds the pool, until the returned value is
    /// dropped. When no source is left, every subscriber receives [`Event::FeedEnded`].
    ///
    /// A fetcher, a replay and the source of a public stream call this themselves. A host with a
    /// source of its own should do so too: otherwise its subscribers cannot tell a quiet mempool
    /// from a source that has ended. Callers of an RPC server do not count as a source, because
    /// their orders are no substitute for those of a node.
    pub fn feed(&self) -> Feed {
        let shared = &self.shared;
        shared.write(|core| {
            core.feeds += 1;
            shared.tables.has_feed_ended.store(false, SeqCst);
        });
        Feed { pool: Arc::downgrade(shared) }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let Some(shared) = self.pool.upgrade() else { return };
        shared.write(|core| {
            core.feeds -= 1;
            if core.feeds == 0 {
                // Before the event is published: a replay that begins after it shows it too.
                shared.tables.has_feed_ended.store(true, SeqCst);
                core.publish(Effect::Transient(Event::FeedEnded));
            }
        });
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}
