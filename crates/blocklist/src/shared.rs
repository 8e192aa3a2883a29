//! The list in force: how it is replaced, and how its age is bounded.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};
use arc_swap::ArcSwap;

use crate::{
    BlockGuard, Blocklist, BlocklistConfig, Error,
    metrics::{CHANGED, FAILED, Metrics, UNCHANGED},
};

/// How far in the future a list may be dated. It covers the difference between the clocks of two
/// synchronized machines, and far more than the resolution of file times. A list that is dated
/// further ahead would stay in force longer than its maximum age, and no list with a true date
/// could replace it until then, so it is refused, also without a maximum age.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);

/// The list in force, replaced atomically while others read it.
///
/// It fails closed: an unusable text never replaces a list, a failed reload never prolongs the life
/// of the one in force, and after [`BlocklistConfig::max_age`] every access is an error. It reads
/// no clock: the time is an argument, taken from the wall clock like a list's date. If that clock
/// jumps back to more than [`CLOCK_TOLERANCE`] before the list's date, building stops too.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use alloy_primitives::address;
/// use blocklist::{BlocklistConfig, Error, SharedBlocklist};
///
/// let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
/// let mut config = BlocklistConfig::default();
/// config.max_age = Some(hour);
/// let text = b"0x00000000000000000000000000000000000000bb # one address a line";
/// let shared = SharedBlocklist::new(text, now, config, now)?;
///
/// // Another thread reloads it, for instance once a minute.
/// let more = br#"[
///     "0x00000000000000000000000000000000000000bb",
///     "0x00000000000000000000000000000000000000cc"
/// ]"#;
/// shared.reload(more, now, now)?;
/// assert!(shared.reload(b"<html>502 Bad Gateway</html>", now, now).is_err());
///
/// // The builder takes a guard for each block. Two hours later nobody has renewed the list, and
/// // no block may be built.
/// let fee_recipient = address!("0x00000000000000000000000000000000000000fe");
/// assert_eq!(shared.begin_block(fee_recipient, None, now)?.list().len(), 2);
/// let refused = shared.begin_block(fee_recipient, None, now + 2 * hour);
/// assert!(matches!(refused, Err(Error::Stale { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct SharedBlocklist {
    /// The list and its date are behind one pointer, so that a reader never combines the list of
    /// one reload with the date of another.
    in_force: ArcSwap<Loaded>,
    config: BlocklistConfig,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Loaded {
    list: Arc<Blocklist>,
    as_of: SystemTime,
}

/// The result of a successful reload. In both cases the list now has the date of the new text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reloaded {
    /// A different set of addresses is in force now.
    Changed {
        /// The content hash of the list before the reload.
        previous_hash: B256,
        /// The content hash of the list after the reload.
        hash: B256,
    },
    /// The set of addresses is the same as before.
    Unchanged {
        /// Its content hash.
        hash: B256,
    },
}

impl Reloaded {
    /// The content hash of the list in force after the reload.
    #[must_use]
    pub const fn hash(&self) -> B256 {
        match self {
            Self::Changed { hash, .. } | Self::Unchanged { hash } => *hash,
        }
    }
}

impl SharedBlocklist {
    /// Parses the first list. `as_of` is the date of the text, when it was known to be current: a
    /// file's modification time, or the time at which a server confirmed it.
    ///
    /// # Errors
    /// The start must fail: [`Error::Config`], any error of [`Blocklist::parse`], [`Error::Stale`],
    /// [`Error::FromTheFuture`].
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
        let metrics = Arc::new(Metrics::new());
        metrics.in_force(&list, as_of);
        Ok(Self { in_force: ArcSwap::from_pointee(Loaded { list, as_of }), config, metrics })
    }

    /// Replaces the list in force, for every block that begins from now on. Of two concurrent calls
    /// the one with the later date wins; the gauges may then show the other until the next reload.
    ///
    /// # Errors
    /// As [`Self::new`], and [`Error::Older`]. The list in force stays and keeps its date, so it is
    /// used until its maximum age and not longer. Counted in
    /// `blocklist_reloads_total{outcome="failed"}`.
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

    /// Renews the date of the list in force without a text, because its publisher confirms it.
    /// `hash` is the [`Blocklist::hash`] of the confirmed list; the result is `None` if that list
    /// is not in force.
    ///
    /// # Errors
    /// The errors of [`Self::reload`] about dates, counted in the same way.
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
        check_age(loaded.as_of, &self.config, now)
            .inspect_err(|error| self.metrics.refused(error))?;
        Ok(Arc::clone(&loaded.list))
    }

    /// Checks the recipients that the next block will pay, and returns the guard for its
    /// transactions.
    ///
    /// `proposer` is the fee recipient that the block's proposer registered with the relay, paid by
    /// the block's last transaction: if it is listed, this fails now and not after the whole block
    /// is built. `None` if no transaction pays the proposer.
    ///
    /// # Errors
    /// [`Error::FeeRecipientListed`], [`Error::ProposerListed`], and those of [`Self::current`]: do
    /// not build.
    pub fn begin_block(
        &self,
        fee_recipient: Address,
        proposer: Option<Address>,
        now: SystemTime,
    ) -> Result<BlockGuard, Error> {
        let (list, metrics) = (self.current(now)?, Arc::clone(&self.metrics));
        let guard = BlockGuard::with_metrics(list, fee_recipient, self.config.policy, metrics)?;
        match proposer {
            Some(proposer) => guard.for_proposer(proposer),
            None => Ok(guard),
        }
    }

    /// The date of the list in force: when it was known to be current.
    pub fn as_of(&self) -> SystemTime {
        self.in_force.load().as_of
    }

    /// The configuration.
    pub const fn config(&self) -> &BlocklistConfig {
        &self.config
    }

    /// Puts the list that `next` returns in force, with the date `as_of`. `next` is called with the
    /// list in force, and may return that one to change only its date, or `None` to change nothing;
    /// then the result is `None`. It is called again if another thread replaces the list in the
    /// meantime.
    ///
    /// # Errors
    /// [`Error::Older`] if the list in force has a later date.
    fn replace(
        &self,
        as_of: SystemTime,
        next: impl Fn(&Arc<Blocklist>) -> Option<Arc<Blocklist>>,
    ) -> Result<Option<Reloaded>, Error> {
        let mut before = self.in_force.load();
        let list = loop {
            let Some(list) = next(&before.list) else { return Ok(None) };
            // An older list may lack later additions: a file was replaced by an older one, or a
            // mirror lags behind.
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
        let previous_hash = before.list.hash();
        let hash = list.hash();
        self.metrics.in_force(&list, as_of);
        if previous_hash == hash {
            self.metrics.reloads[UNCHANGED].increment(1);
            return Ok(Some(Reloaded::Unchanged { hash }));
        }
        self.metrics.reloads[CHANGED].increment(1);
        warn_of_duplicates(&list);
        Ok(Some(Reloaded::Changed { previous_hash, hash }))
    }

    /// Counts a failed reload, and returns its error.
    pub(crate) fn failed(&self, error: Error) -> Error {
        self.metrics.reloads[FAILED].increment(1);
        error
    }
}

/// Logs repeated addresses. Called once for each list that comes into force, not for every reload
/// of the same list.
fn warn_of_duplicates(list: &Blocklist) {
    if let Some(duplicates) = list.duplicates() {
        tracing::warn!("the blocklist {duplicates}");
    }
}

fn check_age(as_of: SystemTime, config: &BlocklistConfig, now: SystemTime) -> Result<(), Error> {
    match (now.duration_since(as_of), config.max_age) {
        (Ok(age), Some(max_age)) if age > max_age => Err(Error::Stale { age, max_age }),
        (Err(error), _) if error.duration() > CLOCK_TOLERANCE => {
            Err(Error::FromTheFuture { ahead: error.duration(), tolerance: CLOCK_TOLERANCE })
        }
        _ => Ok(()),
    }
}
