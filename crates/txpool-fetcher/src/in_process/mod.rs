//! A pool in this process as a source. Entry: [`subscribe`] for its announcements and blocks,
//! [`start`] for the threads that get transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. Only the two ends differ.
//!
//! - Its two streams stand for the subscription connection of a node. They are polled on
//!   `mempool-io`, and the end or the panic of either counts as a lost connection. A pool's stream
//!   may drop hashes without a signal, so it is drained at once as a socket is, by the same function:
//!   what has to wait for a slot waits in the same buffer.
//! - A request goes to one of two queues, live and deferrable, which the threads `mempool-get` read.
//!   Each queued request holds a slot, so the queues never fill. Some of the threads never take
//!   deferrable requests.
//! - Blocks come with their hashes and nonces. A missed block is requested by its hash.
//! - Nothing is encoded: `FetchedTransaction::raw` does it when it is called.
//! - A function call cannot be abandoned, so it has no time-out, and there are no pings: a stream
//!   that stays open and silent is found by the audit and by the rule for stale sources.

mod streams;
mod threads;

pub(crate) use self::{
    streams::{PoolSubscription, subscribe},
    threads::start,
};
