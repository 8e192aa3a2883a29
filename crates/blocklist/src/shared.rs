use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};
use arc_swap::ArcSwap;

use crate::{BlockGuard, Blocklist, BlocklistConfig, Error, metrics::Metrics};

/// How far in the future a list may be dated: what two machines with a time service differ by, and
/// far more than the resolution of a file system's clock. A list from further ahead would outlive
/// its maximum age by as much, so it is refused.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// The list in force, replaced atomically while others read it.
///
/// It fails closed: an unusable text never replaces a list, a failed reload never prolongs the life
/// of the one in force, and past [`BlocklistConfig::max_age`] nothing is handed out any more. Reads
/// no clock: the time is an argument, of the wall clock, since a list's date is. Should that clock
/// jump back by more than [`CLOCK_TOLERANCE`] behind the list's date, building stops too.
#[derive(Debug)]
pub struct SharedBlocklist {
    // The list and its date in one pointer: a reader never pairs one with the other's.
    in_force: ArcSwap<Loaded>,
    config: BlocklistConfig,
    metrics: Metrics,
}

#[derive(Debug)]
struct Loaded {
    list: Arc<Blocklist>,
    as_of: SystemTime,
}

/// What a successful reload did. In both cases the list's date is now that of the new text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reloaded {
    /// Another set of addresses is in force from now on.
    Changed {
        /// Content hash of the list before.
        from: B256,
        /// Content hash of the list now.
        to: B256,
    },
    /// The same set of addresses.
    Unchanged {
        /// Its content hash.
        hash: B256,
    },
}

impl SharedBlocklist {
    /// Parses the first list. `as_of` is the moment for which the text was true: a file's
    /// modification time, or when a server confirmed it.
    ///
    /// # Errors
    /// Start-up must fail: [`Error::Config`], whatever [`Blocklist::parse`] returns,
    /// [`Error::Stale`], [`Error::FromTheFuture`].
    pub fn new(
        text: &[u8],
        as_of: SystemTime,
        config: BlocklistConfig,
        now: SystemTime,
    ) -> Result<Self, Error> {
        config.validate()?;
        check_age(as_of, &config, now)?;
        let list = Arc::new(Blocklist::parse(text, &config)?);
        let metrics = Metrics::new();
        metrics.in_force(&list, as_of);
        Ok(Self { in_force: ArcSwap::from_pointee(Loaded { list, as_of }), config, metrics })
    }

    /// Replaces the list in force, for every block begun from now on. Not to be called from several
    /// threads at once: each call is atomic, but which of two comes last is then open.
    ///
    /// # Errors
    /// As [`Self::new`]. The list in force stays, and keeps its date: it is used up to its maximum
    /// age and not longer. Counted in `blocklist_reloads_total{outcome="failed"}`.
    pub fn reload(
        &self,
        text: &[u8],
        as_of: SystemTime,
        now: SystemTime,
    ) -> Result<Reloaded, Error> {
        check_age(as_of, &self.config, now)
            .and_then(|()| Blocklist::parse(text, &self.config))
            .map(|list| self.replace(list, as_of))
            .map_err(|error| self.failed(error))
    }

    /// The list in force.
    ///
    /// # Errors
    /// [`Error::Stale`] or [`Error::FromTheFuture`]: do not build.
    pub fn current(&self, now: SystemTime) -> Result<Arc<Blocklist>, Error> {
        let loaded = self.in_force.load();
        check_age(loaded.as_of, &self.config, now).inspect_err(|e| self.metrics.refused(e))?;
        Ok(Arc::clone(&loaded.list))
    }

    /// Checks the fee recipient of a block about to be built, and returns what checks its
    /// transactions.
    ///
    /// # Errors
    /// [`Error::FeeRecipientListed`], and those of [`Self::current`]: do not build.
    pub fn begin_block(
        &self,
        fee_recipient: Address,
        now: SystemTime,
    ) -> Result<BlockGuard, Error> {
        let list = self.current(now)?;
        BlockGuard::with_metrics(list, fee_recipient, self.config.policy, self.metrics.clone())
    }

    /// The moment for which the list in force was true.
    pub fn as_of(&self) -> SystemTime {
        self.in_force.load().as_of
    }

    /// The configuration.
    pub const fn config(&self) -> &BlocklistConfig {
        &self.config
    }

    fn replace(&self, list: Blocklist, as_of: SystemTime) -> Reloaded {
        let to = list.hash();
        self.metrics.in_force(&list, as_of);
        let before = self.in_force.swap(Arc::new(Loaded { list: Arc::new(list), as_of }));
        let from = before.list.hash();
        self.metrics.reloaded(from != to);
        if from == to { Reloaded::Unchanged { hash: to } } else { Reloaded::Changed { from, to } }
    }

    pub(crate) fn failed(&self, error: Error) -> Error {
        self.metrics.reload_failed();
        error
    }
}

fn check_age(as_of: SystemTime, config: &BlocklistConfig, now: SystemTime) -> Result<(), Error> {
    let Some(max_age) = config.max_age else {
        return Ok(());
    };
    match now.duration_since(as_of) {
        Ok(age) if age > max_age => Err(Error::Stale { age, max_age }),
        Ok(_) => Ok(()),
        Err(error) if error.duration() > CLOCK_TOLERANCE => {
            Err(Error::FromTheFuture { ahead: error.duration(), tolerance: CLOCK_TOLERANCE })
        }
        Err(_) => Ok(()),
    }
}
