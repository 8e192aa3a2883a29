//! A count with an upper bound, and the shares of it that callers hold.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use metrics::Gauge;

use crate::sync::AtomicUsize;

/// A count with an upper bound. Holders have shares of it, which grow and shrink.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    limit: usize,
    level: Gauge,
}

impl Budget {
    /// Makes an empty budget.
    pub fn new(limit: usize) -> Arc<Self> {
        Self::with_level(limit, Gauge::noop())
    }

    /// Makes a budget whose used part is also shown by a gauge.
    pub(crate) fn with_level(limit: usize, level: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit, level })
    }

    /// The sum of all shares.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Whether `more` could be taken now, with at least `keep_free` left for others.
    pub fn fits(&self, more: usize, keep_free: usize) -> bool {
        self.raised(self.used(), more, keep_free).is_some()
    }

    /// Returns the sum of all shares after `more` is added, if that leaves `keep_free` for others.
    fn raised(&self, used: usize, more: usize, keep_free: usize) -> Option<usize> {
        let limit = self.limit.saturating_sub(keep_free);
        used.checked_add(more).filter(|raised| *raised <= limit)
    }

    /// Returns a share of size zero, to be grown later. It exists even while the limit is exceeded.
    pub fn empty(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), count: 0 }
    }

    /// Returns a share of size `count`, or `None` if less than that is left.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<Share> {
        let mut share = self.empty();
        share.try_add(count, 0).then_some(share)
    }
}

/// A part of a budget, released when dropped, which includes a cancelled future and a panic.
#[derive(Debug)]
#[must_use = "dropping it releases the share at once"]
pub struct Share {
    budget: Arc<Budget>,
    count: usize,
}

impl Share {
    /// The size of the share.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Adds `more` to the share if that leaves at least `keep_free` of the budget for others.
    /// Returns whether it was added.
    ///
    /// The limit is never exceeded, and nothing is refused while there is room. The count is not
    /// raised first and compared afterwards, because then two callers could refuse each other.
    pub fn try_add(&mut self, more: usize, keep_free: usize) -> bool {
        let raise = |used| self.budget.raised(used, more, keep_free);
        // Relaxed: no other memory depends on this count.
        let added = self.budget.used.fetch_update(Relaxed, Relaxed, raise).is_ok();
        if added {
            self.count += more;
            self.budget.level.increment(more as f64);
        }
        added
    }

    /// Returns the budget of which this is a part.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Sets the size of the share, even beyond the limit. Use it for memory that is already in use.
    pub fn resize(&mut self, count: usize) {
        if count > self.count {
            self.budget.used.fetch_add(count - self.count, Relaxed);
        } else {
            self.budget.used.fetch_sub(self.count - count, Relaxed);
        }
        self.budget.level.increment(count as f64 - self.count as f64);
        self.count = count;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_every_share_is_returned() {
        let budget = Budget::new(10);
        let mut one = budget.take(4).unwrap();
        assert!(!one.try_add(5, 2), "two are kept free");
        assert!(one.try_add(4, 2));
        assert!(budget.take(3).is_none());
        let other = budget.take(2).unwrap();
        one.resize(1);
        assert_eq!(budget.used(), 3);
        one.resize(12);
        assert_eq!((one.count(), budget.used()), (12, 14));
        drop((one, other));
        assert_eq!(budget.used(), 0);
    }

    /// A response may be longer than its request. While such responses exceeded the limit, each new
    /// request panicked, because not even a share of size zero fitted.
    #[test]
    fn an_empty_share_exists_while_the_limit_is_exceeded() {
        let budget = Budget::new(10);
        let mut response = budget.take(10).unwrap();
        response.resize(12);
        let mut next = budget.empty();
        assert!(!next.try_add(1, 0), "the limit is exceeded");
        drop(response);
        assert!(next.try_add(1, 0));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    #[test]
    fn the_limit_holds_and_the_last_place_is_given_in_every_interleaving() {
        loom::model(|| {
            let budget = Budget::new(1);
            let entered = Arc::new(AtomicUsize::new(0));
            let enter = {
                let (budget, entered) = (Arc::clone(&budget), Arc::clone(&entered));
                move || {
                    let Some(share) = budget.take(1) else { return false };
                    assert_eq!(entered.fetch_add(1, Relaxed), 0);
                    entered.fetch_sub(1, Relaxed);
                    drop(share);
                    true
                }
            };
            let other = thread::spawn(enter.clone());
            let first_entered = enter();
            let second_entered = other.join().unwrap();
            assert!(first_entered || second_entered);
            assert_eq!(budget.used(), 0);
        });
    }
}
