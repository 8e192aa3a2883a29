//! What a node announces: subscribes, and reads hashes, whole transactions and heads. Entry:
//! [`subscribe`], then `read` of what it returns.
//!
//! Announcements wait in alloy's broadcast channel, which is bounded and reports how many it has
//! lost; the time at which each was read from the socket is kept in a ring beside it, under its
//! number on the connection. While no fetch slot is free its reader waits. So announcements can be
//! lost on our side in only one place, which has one counter: [`Counts::lagged`](crate::Counts::lagged).
//! alloy's stream adapter reports a lag only as a debug line, so it is never used.
//!
//! The announcement reader of a lost connection continues until it has processed everything that
//! connection delivered, and the reader of the new connection waits for it; the announcements that
//! wait for either are the [`Backlog`]. If a connection is lost before its reader's turn, the
//! announcements that it delivered count as lagged.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | readers (in [`Backlog`]) | the source's shell, comparisons, `status()` | to add up the backlog of at most two readers |
//!
//! The announcement readers of one source take turns with an async mutex of tokio's, the only lock
//! that is held across awaits; it protects nothing but their order.
//!
//! With full announcements a transaction is not requested: `mempool-io` passes its object to `mempool-object`,
//! which reads it in place, encodes it again, compares the hash and delivers it. The buffer keeps at most 16 KiB
//! of an announcement; of a longer one it keeps the hash. An announcement that is only a hash, a blob transaction
//! or a transaction of an unknown type is requested. Announcements that wait for the thread stay
//! in the broadcast buffer, so this is still the only place where announcements can be lost.

mod backlog;
mod objects;
mod subscription;

pub(crate) use self::{
    backlog::{Backlog, Progress},
    subscription::{HashBuffer, read_hashes, report, subscribe},
};
