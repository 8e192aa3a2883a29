//! What a node announces: subscribes, and takes in hashes, whole transactions and heads. Entry:
//! [`subscribe`], and [`process_waiting`] for each source.
//!
//! The reader of the subscription's connection passes each hash to a [`HashReader`], which submits its
//! request at once if a fetch slot is free, and else leaves it in the buffer of the source. Hashes wait there
//! with the time of their read, and [`process_waiting`] waits for slots for them: in their order, or, of more than
//! 1,024 hashes without objects, for the newest first. So announcements can be lost on our side in only one place, which has one counter:
//! [`Counts::lagged`](crate::Counts::lagged). The buffer is the source's, not the connection's: what a lost
//! connection has delivered is processed all the same. What waits is the [`Backlog`].
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | pairs | who reads hashes, the thread of objects | a few look-ups; the locks of a hash that enters (`fetch`) and of the objects' buffer are taken under it |
//!
//! With full announcements there are two subscriptions, each on a connection of its own, which one thread reads: to
//! hashes, which is the truth, and to objects, of which a node may drop some. A transaction whose object comes is
//! not requested: the object goes to the thread `mempool-object`, which reads it in place, encodes it again, compares
//! the hash and delivers it. The buffer keeps at most 16 KiB of an object; of a longer one it keeps the hash. A blob
//! transaction or a transaction of an unknown type is requested, and so is a hash whose object does not come in
//! time: [`pairs`] says when. An overrun of the objects' buffer therefore loses nothing, and that of the hashes is
//! still the only place where announcements can be lost. The two connections end together.

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
