//! What a node announces: subscribes, and takes in hashes, whole transactions and heads. Entry:
//! [`subscribe`], and [`process_waiting`] for each source.
//!
//! A [`HashReader`] leaves a hash in the buffer of the source, the [`Backlog`], while no fetch slot is free;
//! [`process_waiting`] waits for slots for them: in their order, or, of more than 1,024 hashes without objects, for
//! the newest first. That is the only place where announcements can be lost on our side:
//! [`Counts::lagged`](crate::Counts::lagged).
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | pairs | who reads hashes, the thread of objects | a few look-ups; the locks of a hash that enters (`fetch`) and of the objects' buffer are taken under it |
//!
//! With full announcements there are two subscriptions, each on a connection of its own, which one thread reads and
//! which end together: to hashes, which is the truth, and to objects, of which a node may drop some. A hash whose
//! object does not come in time is requested: [`pairs`] says when. So an overrun of the objects' buffer loses nothing.

mod backlog;
mod hashes;
mod objects;
mod pairs;
mod subscription;

pub(crate) use self::{
    backlog::Backlog,
    hashes::{HashReader, process_waiting},
    subscription::subscribe,
};
