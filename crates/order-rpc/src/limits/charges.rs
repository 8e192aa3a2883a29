//! Who pays how much: the quotas of callers, of IPv6 sites and of signers.
//!
//! # Locks
//! Quotas: three, each taken by a request for its caller, its site or its signer, for one look-up;
//! never across an await or with another lock.

use std::{
    hash::Hash,
    net::Ipv6Addr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::Address;

use super::{CallerId, Limits, Requester, callers::SHARES_PER_SITE, quota::Quotas};
use crate::{
    config::{Quota, WORK_OF_FORGERY},
    reply::{ErrorResponse, Reason},
};

/// The quotas. A front has none.
#[derive(Debug)]
pub(crate) struct Charges {
    callers: QuotaTable<CallerId>,
    /// Of all callers of an IPv6 /48 together.
    sites: QuotaTable<Ipv6Addr>,
    /// Of signers, at each caller: whoever sends a copy of a request spends nothing elsewhere.
    signers: QuotaTable<(Address, CallerId)>,
}

impl Charges {
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

    /// Whether a caller can pay for so much work now. It spends nothing.
    ///
    /// # Errors
    /// The quota of the caller or of its site is spent.
    pub(crate) fn check_caller(&self, caller: CallerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        self.callers.spend(Reason::CallerQuota, |quotas, now| quotas.check(caller, work, now))?;
        let Some(site) = caller.site() else { return Ok(()) };
        self.sites.spend(Reason::CallerQuota, |quotas, now| quotas.check(site, work, now))
    }

    /// Spends from the quota of a caller, and of its site.
    ///
    /// # Errors
    /// One of them is spent.
    pub(crate) fn charge_caller(&self, caller: CallerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        if let Some(site) = caller.site() {
            self.sites.spend(Reason::CallerQuota, |quotas, now| quotas.take(site, work, now))?;
        }
        self.callers.spend(Reason::CallerQuota, |quotas, now| quotas.take(caller, work, now))
    }

    /// Spends from the quota of a caller, and of its signer, whose signature was verified.
    ///
    /// # Errors
    /// One of them is spent.
    pub(crate) fn charge(&self, requester: Requester, work: usize) -> Result<(), ErrorResponse> {
        self.charge_caller(requester.caller, work)?;
        let Some(signer) = requester.signer else { return Ok(()) };
        let signer = (signer, requester.caller);
        self.signers.spend(Reason::Quota, |quotas, now| quotas.take(signer, work, now))
    }

    /// Whether a signer has any quota left. It spends nothing, since the claim is not verified yet.
    ///
    /// # Errors
    /// The signer's quota is spent.
    pub(crate) fn check_signer(
        &self,
        claimed: Address,
        caller: CallerId,
    ) -> Result<(), ErrorResponse> {
        let signer = (claimed, caller);
        self.signers.spend(Reason::Quota, |quotas, now| quotas.check(signer, 1, now))
    }

    /// Charges a caller for a request that its claimed signer did not sign, since it may have been
    /// served before others for that claim. The caller goes into debt if it has less.
    pub(crate) fn charge_forgery(&self, caller: CallerId) {
        if caller.is_front {
            return;
        }
        self.callers.debit(caller, WORK_OF_FORGERY);
        if let Some(site) = caller.site() {
            self.sites.debit(site, WORK_OF_FORGERY);
        }
    }
}

/// The buckets of one kind of key; `None` without a limit.
#[derive(Debug)]
struct QuotaTable<K>(Option<Mutex<Quotas<K>>>);

impl<K: Copy + Eq + Hash> QuotaTable<K> {
    fn new(quota: Option<Quota>, limits: &Limits) -> Self {
        let quotas = |quota| Mutex::new(Quotas::new(quota, limits.max_quotas, Instant::now()));
        Self(quota.map(quotas))
    }

    fn spend(
        &self,
        reason: Reason,
        spending: impl FnOnce(&mut Quotas<K>, Instant) -> Result<(), Duration>,
    ) -> Result<(), ErrorResponse> {
        let Some(quotas) = &self.0 else { return Ok(()) };
        let mut quotas = quotas.lock().unwrap_or_else(PoisonError::into_inner);
        spending(&mut quotas, Instant::now())
            .map_err(|wait| ErrorResponse::retry_later(reason, wait, reason.refusal()))
    }

    fn debit(&self, key: K, work: usize) {
        let Some(quotas) = &self.0 else { return };
        let mut quotas = quotas.lock().unwrap_or_else(PoisonError::into_inner);
        quotas.debit(key, work, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OrderRpcConfig;

    /// Each of its networks had a quota of its own.
    #[test]
    fn all_callers_of_an_ipv6_site_have_the_quota_of_four() {
        let caller_quota = Some(Quota { per_second: 1, burst: 200 });
        let limits = Limits::new(OrderRpcConfig { caller_quota, ..OrderRpcConfig::new(1) });
        let charges = Charges::new(&limits);
        let caller = |number: u16| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, number << 8, 0, 0, 0, 1);
            CallerId::from(std::net::IpAddr::from(address))
        };
        let paid = (0..256).filter(|n| charges.charge_caller(caller(*n), 200).is_ok()).count();
        assert_eq!(paid, SHARES_PER_SITE);
        assert!(charges.check_caller(caller(255), 200).is_err());
        let neighbour = CallerId::from(std::net::IpAddr::from(Ipv6Addr::from_bits(1 << 80)));
        assert!(charges.charge_caller(neighbour, 200).is_ok());
    }
}
