//! A pool in this process as a source. Entry: [`subscribe`] for its announcements and blocks,
//! [`start`] for the threads that get transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. Only the two ends differ.
//!
//! - Its two streams stand for the subscription connection of a node; the end or the panic of either counts
//!   as a lost connection. A thread `mempool-announce` reads the announcements. A pool's stream may drop hashes
//!   without a signal, so it is drained at once as a socket is, by the same function: what has to wait for
//!   a slot waits in the same buffer.
//! - That thread also gets and delivers the last of the hashes at hand: with one transaction at a time no other
//!   thread has to wake up, which costs more than everything else. While one transaction holds it up for
//!   100 ms, `mempool-io` reads in its place.
//! - The other requests go to one of two queues, live and deferrable, which the threads `mempool-get` read.
//!   Each queued request holds a slot, so the queues never fill. Some of the threads never take
//!   deferrable requests.
//! - Blocks come with their hashes and nonces. A missed block is requested by its hash.
//! - Nothing is encoded: `FetchedTransaction::raw` does it when it is called.
//! - A function call cannot be abandoned, so it has no time-out, and there are no pings: a stream
//!   that stays open and silent is found by the audit and by the rule for stale sources.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | stream of announcements | its thread; `mempool-io` while a transaction holds that thread up | a poll of the stream, and to take in the hash it gave |

mod streams;
mod threads;

pub(crate) use self::{
    streams::{PoolSubscription, subscribe},
    threads::start,
};
