//! One caller's share of a limit, within the share of its IPv6 site.

use std::sync::Arc;

use load_control::{Budget, Share};

/// The budget of one caller. What a caller of an IPv6 /48 holds also counts for the budget of the
/// /48.
#[derive(Debug)]
pub(crate) struct CallerBudget {
    own: Arc<Budget>,
    site: Option<Arc<Budget>>,
}

impl CallerBudget {
    pub(crate) fn new(limit: usize, site: Option<&Arc<Budget>>) -> Self {
        Self { own: Budget::new(limit), site: site.cloned() }
    }

    /// Whether `more` would be admitted now.
    pub(crate) fn fits(&self, more: usize) -> bool {
        self.own.fits(more, 0) && self.site.as_ref().is_none_or(|site| site.fits(more, 0))
    }

    /// What the caller holds now, or all callers of its IPv6 /48.
    pub(crate) fn used(&self) -> usize {
        self.own.used().max(self.site.as_ref().map_or(0, |site| site.used()))
    }

    /// Returns a share of size 0, which can grow.
    pub(crate) fn empty(&self) -> CallerShare {
        let site = self.site.as_ref().map(Budget::empty);
        CallerShare { own: self.own.empty(), site }
    }

    /// Returns a share of this size, or `None` if less is left.
    pub(crate) fn take(&self, count: usize) -> Option<CallerShare> {
        let mut share = self.empty();
        share.try_add(count).then_some(share)
    }
}

/// A part of a [`CallerBudget`], released when dropped.
#[derive(Debug)]
pub(crate) struct CallerShare {
    own: Share,
    site: Option<Share>,
}

impl CallerShare {
    /// See [`CallerBudget::used`].
    pub(crate) fn used_by_caller(&self) -> usize {
        let site = self.site.as_ref().map_or(0, |site| site.budget().used());
        self.own.budget().used().max(site)
    }

    /// Adds all of `more` or nothing, and returns whether it was added.
    pub(crate) fn try_add(&mut self, more: usize) -> bool {
        let before = self.own.count();
        if !self.own.try_add(more, 0) {
            return false;
        }
        let fits_site = self.site.as_mut().is_none_or(|site| site.try_add(more, 0));
        if !fits_site {
            self.own.resize(before);
        }
        fits_site
    }

    /// Sets the size, even beyond the limits: for memory that is already in use.
    pub(crate) fn resize(&mut self, count: usize) {
        self.own.resize(count);
        if let Some(site) = &mut self.site {
            site.resize(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_the_site_refuses_is_returned_to_the_caller() {
        let site = Budget::new(3);
        let one = CallerBudget::new(2, Some(&site));
        let other = CallerBudget::new(2, Some(&site));
        let _held = one.take(2).unwrap();
        assert!(!other.fits(2) && other.take(2).is_none());
        let mut last = other.take(1).unwrap();
        assert!(!last.try_add(1), "the site has no more");
        assert_eq!((other.own.used(), site.used()), (1, 3));
        drop(last);
        assert_eq!((other.own.used(), site.used()), (0, 2));
    }
}
