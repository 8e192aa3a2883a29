//! Charges work to the quotas of callers, of IPv6 sites and of signers.
//!
//! # Locks
//! The three `QuotaTable`s: each is taken by a request for its caller, its site or its signer, for
//! one look-up; never across an await or with another lock.

use std::{
    hash::Hash,
    net::Ipv6Addr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::Address;

use super::{
    callers::{CallerId, SHARES_PER_SITE},
    settings::Limits,
    token_buckets::TokenBuckets,
};
use crate::{
    config::{Quota, WORK_PER_FORGERY},
    reply::{ErrorResponse, Reason},
};

/// Who pays for a call and owns its order, and when it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) caller: CallerId,
    /// The verified signer of the request; `None` without a signature, and before it is verified.
    pub(crate) signer: Option<Address>,
    /// When the head of the request was read. A request that waits for longer does not count as a
    /// later one.
    pub(crate) arrived_at: SystemTime,
}

/// The quotas of all callers, sites and signers. A front has none.
#[derive(Debug)]
pub(crate) struct Quotas {
    callers: QuotaTable<CallerId>,
    /// The quota of all callers of an IPv6 /48 together.
    sites: QuotaTable<Ipv6Addr>,
    /// The quota of a signer at each caller, so that a copy of a request that is sent from another
    /// address spends nothing at the signer's own.
    signers: QuotaTable<(Address, CallerId)>,
}

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Self {
        let shares = SHARES_PER_SITE as u32;
        let site_quota = limits.config.caller_quota.map(|quota| Quota {
            per_second: quota.per_second.saturating_mul(shares),
            burst: quota.burst.saturating_mul(shares),
        });
        Self {
            callers: QuotaTable::new(limits.config.caller_quota, limits),
            sites: QuotaTable::new(site_quota, limits),
            signers: QuotaTable::new(limits.config.quota, limits),
        }
    }

    /// Checks that a caller could pay for this work now, without charging it.
    ///
    /// # Errors
    /// The quota of the caller or of its site is spent.
    pub(crate) fn check_caller(&self, caller: CallerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        self.callers.check(caller, work, Reason::CallerQuota)?;
        match caller.site() {
            Some(site) => self.sites.check(site, work, Reason::CallerQuota),
            None => Ok(()),
        }
    }

    /// Charges work to the quota of a caller and of its site.
    ///
    /// # Errors
    /// One of the two is spent.
    pub(crate) fn charge_caller(&self, caller: CallerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        // In this order, because what a caller cannot pay for must not spend its site's quota.
        self.callers.take(caller, work, Reason::CallerQuota)?;
        match caller.site() {
            Some(site) => self.sites.take(site, work, Reason::CallerQuota),
            None => Ok(()),
        }
    }

    /// Charges work to the quota of a caller, and of the signer if the signature was verified.
    ///
    /// # Errors
    /// One of them is spent.
    pub(crate) fn charge(&self, requester: Requester, work: usize) -> Result<(), ErrorResponse> {
        self.charge_caller(requester.caller, work)?;
        match requester.signer {
            Some(signer) => self.signers.take((signer, requester.caller), work, Reason::Quota),
            None => Ok(()),
        }
    }

    /// Checks that a claimed signer has any quota left. It charges nothing, because the claim is
    /// not verified yet.
    ///
    /// # Errors
    /// The signer's quota is spent.
    pub(crate) fn check_signer(
        &self,
        claimed_signer: Address,
        caller: CallerId,
    ) -> Result<(), ErrorResponse> {
        self.signers.check((claimed_signer, caller), 1, Reason::Quota)
    }

    /// Charges a caller for a request that its claimed signer did not sign, because the claim may
    /// have had it served before others. A caller with less quota goes into debt, and then its site
    /// is not charged.
    pub(crate) fn charge_forgery(&self, caller: CallerId) {
        if caller.is_front {
            return;
        }
        if self.callers.take(caller, WORK_PER_FORGERY, Reason::CallerQuota).is_err() {
            self.callers.debit(caller, WORK_PER_FORGERY);
        } else if let Some(site) = caller.site() {
            self.sites.debit(site, WORK_PER_FORGERY);
        }
    }
}

/// The token buckets of one kind of key; `None` if there is no limit.
#[derive(Debug)]
struct QuotaTable<K>(Option<Mutex<TokenBuckets<K>>>);

impl<K: Copy + Eq + Hash> QuotaTable<K> {
    fn new(quota: Option<Quota>, limits: &Limits) -> Self {
        Self(
            quota.map(|quota| {
                Mutex::new(TokenBuckets::new(quota, limits.max_quotas, Instant::now()))
            }),
        )
    }

    fn lock(&self) -> Option<MutexGuard<'_, TokenBuckets<K>>> {
        let buckets = self.0.as_ref()?;
        Some(buckets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, key: K, work: usize, reason: Reason) -> Result<(), ErrorResponse> {
        let Some(buckets) = self.lock() else { return Ok(()) };
        let checked = buckets.check(key, work, Instant::now());
        checked.map_err(|wait| quota_spent(reason, wait))
    }

    fn take(&self, key: K, work: usize, reason: Reason) -> Result<(), ErrorResponse> {
        let Some(mut buckets) = self.lock() else { return Ok(()) };
        let taken = buckets.take(key, work, Instant::now());
        taken.map_err(|wait| quota_spent(reason, wait))
    }

    fn debit(&self, key: K, work: usize) {
        if let Some(mut buckets) = self.lock() {
            buckets.debit(key, work, Instant::now());
        }
    }
}

fn quota_spent(reason: Reason, wait: Duration) -> ErrorResponse {
    ErrorResponse::retry_later(reason, wait, reason.refusal())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::config::OrderRpcConfig;

    /// Each network of a site had a quota of its own.
    #[test]
    fn all_callers_of_an_ipv6_site_have_four_quotas() {
        let caller_quota = Some(Quota { per_second: 1, burst: 200 });
        let limits = Limits::new(OrderRpcConfig { caller_quota, ..OrderRpcConfig::new(1) });
        let quotas = Quotas::new(&limits);
        let caller = |number: u16| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, number << 8, 0, 0, 0, 1);
            CallerId::from(IpAddr::from(address))
        };
        let charged = (0..256).filter(|n| quotas.charge_caller(caller(*n), 200).is_ok()).count();
        assert_eq!(charged, SHARES_PER_SITE);
        assert!(quotas.check_caller(caller(255), 200).is_err());
        let neighbour = CallerId::from(IpAddr::from(Ipv6Addr::from_bits(1 << 80)));
        assert!(quotas.charge_caller(neighbour, 200).is_ok());
    }

    /// Requests that its own quota refused, and forgeries, spent the quota of the whole site.
    #[test]
    fn a_caller_without_quota_spends_nothing_of_its_site() {
        let caller_quota = Some(Quota { per_second: 1, burst: 200 });
        let limits = Limits::new(OrderRpcConfig { caller_quota, ..OrderRpcConfig::new(1) });
        let caller = |number: u16| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, number << 8, 0, 0, 0, 1);
            CallerId::from(IpAddr::from(address))
        };
        for forges in [false, true] {
            let quotas = Quotas::new(&limits);
            quotas.charge_caller(caller(0), 200).unwrap();
            for _ in 0..10 {
                if forges {
                    quotas.charge_forgery(caller(0));
                } else {
                    assert!(quotas.charge_caller(caller(0), 200).is_err());
                }
            }
            let neighbours = (1..SHARES_PER_SITE as u16).map(caller);
            let refused = neighbours.filter(|id| quotas.charge_caller(*id, 200).is_err()).count();
            assert_eq!(refused, 0, "neighbours, with forgeries: {forges}");
        }
    }
}
