//! What callers may have at once, and how much work they may cause.
//!
//! The gate of `load-control` bounds what all callers have together: requests in flight and work
//! permits. Each caller has a share of connections, requests in flight, buffered bytes and work. All
//! callers of an IPv6 /48 together have the shares of four.
//!
//! A signer has a second quota at each caller, and the quota of the caller still applies, so new
//! keys gain nothing. A signature that its claimed signer has not made costs its caller more than
//! the work, because a known signer's requests are served first.

mod budget;
mod bytes;
mod callers;
mod charges;
mod limiter;
mod quota;
mod settings;
mod slow_bodies;

pub(crate) use self::{
    budget::CallerBudget,
    bytes::{HeldBytes, SMALL_BODY_BYTES},
    callers::{Caller, CallerId, Callers, Network, forwarded_for},
    charges::Charges,
    limiter::{Arrival, Entered, Limiter, Requester, on_thread},
    settings::Limits,
    slow_bodies::{Progress, SlowBodies},
};
