//! Remembers who was the first to send each request that a known signer has signed. A signature
//! names no server, so whoever has seen such a request can send copies of it from anywhere.
//!
//! # Locks
//! `FirstSenders`: taken by a request that claims a known signer, for one look-up or to add one
//! signature; every 10,000 signatures it frees as many; never across an await or with another lock.

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use alloy_primitives::{Signature, map::HashMap};

use super::callers::CallerId;

/// Maximum of remembered signatures, at 100 bytes each. At least the last half of them are kept:
/// 100 requests a second for 100 s.
const MAX_REMEMBERED: usize = 20_000;

/// The callers that were the first to send a request of a known signer, by its signature.
#[derive(Debug, Default)]
pub(crate) struct FirstSenders(Mutex<Generations>);

/// The remembered signatures, in two generations.
#[derive(Debug, Default)]
struct Generations {
    current: HashMap<Signature, CallerId>,
    previous: HashMap<Signature, CallerId>,
}

impl FirstSenders {
    /// Whether another caller was the first to send the request with this signature.
    pub(crate) fn is_another(&self, signature: &Signature, caller: CallerId) -> bool {
        let senders = self.lock();
        let first = senders.current.get(signature).or_else(|| senders.previous.get(signature));
        first.is_some_and(|first| *first != caller)
    }

    /// Remembers the caller of a verified signature, unless there was one before.
    pub(crate) fn add(&self, signature: Signature, caller: CallerId) {
        let mut senders = self.lock();
        if senders.current.contains_key(&signature) || senders.previous.contains_key(&signature) {
            return;
        }
        if senders.current.len() >= MAX_REMEMBERED / 2 {
            senders.previous = mem::take(&mut senders.current);
        }
        senders.current.insert(signature, caller);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use alloy_primitives::U256;

    use super::*;

    #[test]
    fn the_first_sender_of_each_recent_request_is_kept_in_bounded_memory() {
        let senders = FirstSenders::default();
        let [one, other] = [1, 2].map(|n| CallerId::from(IpAddr::from([10, 0, 0, n])));
        let signature = |n: usize| Signature::new(U256::from(n), U256::from(1), false);
        for number in 0..3 * MAX_REMEMBERED {
            senders.add(signature(number), one);
            senders.add(signature(number), other);
            assert!(senders.is_another(&signature(number), other));
            assert!(!senders.is_another(&signature(number), one));
        }
        let recent = 3 * MAX_REMEMBERED - MAX_REMEMBERED / 2;
        assert!(senders.is_another(&signature(recent), other));
        assert!(!senders.is_another(&signature(0), other), "the oldest are forgotten");
        let kept = senders.lock();
        assert!(kept.current.len() + kept.previous.len() <= MAX_REMEMBERED);
    }
}
