//! Counts with an upper bound, and the shares of them that callers hold.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// A count with an upper bound, of which holders have shares that grow and shrink. The gate's
/// [`InFlightPermit`](load_control::InFlightPermit) counts requests alone: it explains its refusals
/// and knows whether it sheds load.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    limit: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), limit })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Whether `more` would leave `keep_free` of it to others, now.
    pub(crate) fn fits(&self, more: usize, keep_free: usize) -> bool {
        self.raised(self.used(), more, keep_free).is_some()
    }

    fn raised(&self, used: usize, more: usize, keep_free: usize) -> Option<usize> {
        let limit = self.limit.saturating_sub(keep_free);
        used.checked_add(more).filter(|raised| *raised <= limit)
    }

    /// A share of nothing, to be added to. It exists also while more than the limit is held.
    pub(crate) fn empty(self: &Arc<Self>) -> Share {
        Share { of: Arc::clone(self), count: 0 }
    }

    /// A share of `count`, if that much is left.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Option<Share> {
        let mut share = self.empty();
        share.try_add(count, 0).then_some(share)
    }
}

/// A part of a budget, released when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Budget>,
    count: usize,
}

impl Share {
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Adds all of `more` or nothing, and leaves `keep_free` of the budget to others.
    pub(crate) fn try_add(&mut self, more: usize, keep_free: usize) -> bool {
        let raise = |used| self.of.raised(used, more, keep_free);
        // Relaxed: no other memory depends on this count.
        let added = self.of.used.fetch_update(Relaxed, Relaxed, raise).is_ok();
        if added {
            self.count += more;
        }
        added
    }

    /// Sets its size, even beyond the limit: for memory that is already in use.
    pub(crate) fn resize(&mut self, count: usize) {
        if count > self.count {
            self.of.used.fetch_add(count - self.count, Relaxed);
        } else {
            self.of.used.fetch_sub(self.count - count, Relaxed);
        }
        self.count = count;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded_and_every_share_comes_back() {
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

    /// A response may be longer than its request was. While such responses held more than the limit, each further
    /// request panicked: its share of nothing did not fit.
    #[test]
    fn a_share_of_nothing_exists_while_more_than_the_limit_is_held() {
        let budget = Budget::new(10);
        let mut response = budget.take(10).unwrap();
        response.resize(12);
        let mut next = budget.empty();
        assert!(!next.try_add(1, 0), "it is refused");
        drop(response);
        assert!(next.try_add(1, 0));
    }
}
