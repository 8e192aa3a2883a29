//! Bounds what callers may hold at the same time, and how much work they may cause.
//!
//! The gate of `load-control` bounds what all callers hold together: requests in flight and work
//! permits. Within it each caller has a share of connections, requests in flight, buffered bytes
//! and work. All callers of an IPv6 /48 together have the shares of four callers.
//!
//! A signer has a quota of its own at each caller. The caller's quota still applies, so fresh keys
//! gain nothing. A signature that the claimed signer did not make costs its caller more than the
//! work that it causes, because requests of known signers are served first.
//!
//! In reading order, where each module uses only earlier ones: `settings` (the limits), `budget`
//! and `callers` (who a caller is and what it holds), `first_senders` (which requests are copies),
//! `token_buckets` and `quotas` (work), `slow_bodies`, `buffered_bytes`, and `limiter`, which
//! admits requests by all of them.

mod budget;
mod buffered_bytes;
mod callers;
mod first_senders;
mod limiter;
mod quotas;
mod settings;
mod slow_bodies;
mod token_buckets;

pub(crate) use self::{
    buffered_bytes::{HeldBytes, SMALL_BODY_BYTES},
    callers::{Caller, CallerId, Network, forwarded_for},
    limiter::{AdmittedHead, Limiter, RequestInFlight, run_blocking},
    quotas::Requester,
    settings::Limits,
    slow_bodies::{Progress, SlowBodyPlace},
};
