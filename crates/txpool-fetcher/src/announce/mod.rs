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
//! | readers (in [`Backlog`]) | the source's shell, comparisons, `status()` | to add up the backlog of at most four readers |
//! | pairs | the reader of hashes, the thread of objects | a few look-ups; the locks of a hash that enters (`fetch`) are taken under it |
//!
//! The announcement readers of one source take turns with an async mutex of tokio's, the only lock
//! that is held across awaits; it protects nothing but their order.
//!
//! With full announcements there are two subscriptions, each on a connection of its own: to hashes, which is the
//! truth, and to objects, of which a node may drop some. A transaction whose object comes is not requested:
//! `mempool-io` passes the object to `mempool-object`, which reads it in place, encodes it again, compares the hash
//! and delivers it. The buffer keeps at most 16 KiB of an object; of a longer one it keeps the hash. A blob
//! transaction or a transaction of an unknown type is requested, and so is a hash whose object does not come in
//! time: [`pairs`] says when. An overrun of the objects' buffer therefore loses nothing, and that of the hashes is
//! still the only place where announcements can be lost. The two connections end together.

mod backlog;
mod buffer;
mod hashes;
mod objects;
mod pairs;
mod subscription;

pub(crate) use self::{
    backlog::Backlog,
    hashes::{HashReader, process_waiting},
    subscription::{report, subscribe},
};
