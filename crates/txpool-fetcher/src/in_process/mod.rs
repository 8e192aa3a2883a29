//! A pool in this process as a source. Entry: [`subscribe`] for its announcements and blocks,
//! [`start`] for the threads that get transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. Only the two ends differ.
//!
//! - Its two streams stand for the subscription connection of a node; the end or the panic of either counts
//!   as a lost connection. A thread `mempool-announce` reads the announcements.
//! - That thread also gets and delivers the last of the hashes at hand: with one transaction at a time no other
//!   thread has to wake up, which costs more than everything else.
//! - The other requests go to one of two queues, live and deferrable, which the threads `mempool-get` read.
//! - There are no time-outs and no pings: a stream that stays open and silent is found by the audit and
//!   by the rule for stale sources.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | stream of announcements | its thread; `mempool-io` while a transaction holds that thread up | a poll of the stream, and to take in the hash it gave |

mod streams;
mod threads;

pub(crate) use self::{streams::subscribe, threads::start};
