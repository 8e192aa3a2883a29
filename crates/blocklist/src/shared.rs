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

impl Reloaded {
    /// Content hash of the list in force after the reload.
    #[must_use]
    pub const fn hash(&self) -> B256 {
        match self {
            Self::Changed { to: hash, .. } | Self::Unchanged { hash } => *hash,
        }
    }
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
        warn_of_duplicates(&list);
        let metrics = Metrics::new();
        metrics.in_force(&list, as_of);
        Ok(Self { in_force: ArcSwap::from_pointee(Loaded { list, as_of }), config, metrics })
    }

    /// Replaces the list in force, for every block begun from now on. Of two calls at once the one with
    /// the later date wins; the gauges may then show the other until the next reload.
    ///
    /// # Errors
    /// As [`Self::new`], and [`Error::Older`]. The list in force stays, and keeps its date: it is used up
    /// to its maximum age and not longer. Counted in `blocklist_reloads_total{outcome="failed"}`.
    pub fn reload(
        &self,
        text: &[u8],
        as_of: SystemTime,
        now: SystemTime,
    ) -> Result<Reloaded, Error> {
        check_age(as_of, &self.config, now)
            .and_then(|()| Blocklist::parse(text, &self.config))
            .and_then(|list| {
                let list = Arc::new(list);
                let replaced = self.replace(as_of, |_| Some(Arc::clone(&list)))?;
                Ok(replaced.expect("there is always a next list"))
            })
            .map_err(|error| self.failed(error))
    }

    /// Dates the list in force anew, without a text: whoever publishes it says that it still holds.
    /// `hash` is the [`Blocklist::hash`] of what was confirmed; `None` if that is not in force.
    ///
    /// # Errors
    /// Those of a date in [`Self::reload`], counted as there.
    #[cfg(feature = "url")]
    pub(crate) fn confirm(
        &self,
        hash: B256,
        as_of: SystemTime,
        now: SystemTime,
    ) -> Result<Option<Reloaded>, Error> {
        check_age(as_of, &self.config, now)
            .and_then(|()| {
                self.replace(as_of, |list| (list.hash() == hash).then(|| Arc::clone(list)))
            })
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

    /// Checks whom a block about to be built will pay, and returns what checks its transactions.
    ///
    /// `proposer` is the fee recipient that the block's proposer registered with the relay, paid by the
    /// block's last transaction: listed, it would be found when all else is done. `None` where nobody is
    /// paid by a transaction.
    ///
    /// # Errors
    /// [`Error::FeeRecipientListed`], [`Error::ProposerListed`], and those of [`Self::current`]: do not
    /// build.
    pub fn begin_block(
        &self,
        fee_recipient: Address,
        proposer: Option<Address>,
        now: SystemTime,
    ) -> Result<BlockGuard, Error> {
        let (list, metrics) = (self.current(now)?, self.metrics.clone());
        let guard = BlockGuard::with_metrics(list, fee_recipient, self.config.policy, metrics)?;
        match proposer {
            Some(proposer) => guard.for_proposer(proposer),
            None => Ok(guard),
        }
    }

    /// The moment for which the list in force was true.
    pub fn as_of(&self) -> SystemTime {
        self.in_force.load().as_of
    }

    /// The configuration.
    pub const fn config(&self) -> &BlocklistConfig {
        &self.config
    }

    /// Puts another list in force, or the same under another date. `next` is given the list in force,
    /// and may be called again if another thread replaces that meanwhile.
    fn replace(
        &self,
        as_of: SystemTime,
        next: impl Fn(&Arc<Blocklist>) -> Option<Arc<Blocklist>>,
    ) -> Result<Option<Reloaded>, Error> {
        let mut before = self.in_force.load();
        let list = loop {
            let Some(list) = next(&before.list) else {
                return Ok(None);
            };
            // An old file put back, or a mirror that lags behind: it may lack what was added since.
            if let Ok(behind) = before.as_of.duration_since(as_of)
                && !behind.is_zero()
            {
                return Err(Error::Older { behind });
            }
            let new = Arc::new(Loaded { list: Arc::clone(&list), as_of });
            let found = self.in_force.compare_and_swap(&*before, new);
            if Arc::ptr_eq(&found, &before) {
                break list;
            }
            before = found;
        };
        let (from, to) = (before.list.hash(), list.hash());
        self.metrics.in_force(&list, as_of);
        self.metrics.reloaded(from != to);
        if from == to {
            return Ok(Some(Reloaded::Unchanged { hash: to }));
        }
        warn_of_duplicates(&list);
        Ok(Some(Reloaded::Changed { from, to }))
    }

    pub(crate) fn failed(&self, error: Error) -> Error {
        self.metrics.reload_failed();
        error
    }
}

/// Once for each list that comes into force, not for every reload of the same.
fn warn_of_duplicates(list: &Blocklist) {
    if let Some(duplicates) = list.duplicates() {
        tracing::warn!("blocklist {duplicates}");
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
