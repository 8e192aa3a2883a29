//! What a node announces: subscribes, and takes in hashes, whole transactions and heads. Entry:
//! [`subscribe`], and [`process_waiting`] for each source.
//!
//! A [`HashReader`] leaves a hash in the buffer of the source, the [`Backlog`], while no fetch slot is free;
//! [`process_waiting`] waits for slots for them: in their order, or, of more than 1,024 hashes without objects, for
//! the newest first. That is the only place where announcements can be lost on our side, displaced by later ones or at
//! the end of the source: [`Counts::lagged`](crate::Counts::lagged).
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | pairs | who reads hashes, the thread of objects | a few look-ups; the locks of a hash that enters (`fetch`), of all hashes that wait and of the objects' buffer are taken under it |
//!
//! With full announcements there are two subscriptions, each on a connection of its own, which one thread reads and
//! which end together: to hashes, which is the truth, and to objects, of which a node may drop some. A hash whose
//! object does not come in time is requested: [`pairs`] says when. So an overrun of the objects' buffer loses nothing.

mod hashes;
mod objects;
mod pairs;
mod subscription;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use alloy_primitives::B256;
use tokio::sync::mpsc;

pub(crate) use self::{
    hashes::{HashReader, process_waiting},
    objects::process_objects,
    subscription::subscribe,
};
use self::{objects::Object, pairs::Pairs};
use crate::{
    buffer::Buffer,
    chain::{HEADS_WAITING, HeadQueue},
    gap::Report,
};

/// The announcements of a source that wait, whichever of its connections they came over: what a lost
/// connection has delivered is processed all the same.
pub(crate) struct Backlog {
    hashes: Buffer<Hash>,
    objects: Buffer<Object>,
    pub(crate) heads: Arc<HeadQueue>,
    /// To the source.
    pub(crate) reports: mpsc::Sender<Report>,
    /// Announcements that were read; with full announcements those of hashes.
    pub(crate) read: AtomicU64,
}

/// The part of the buffer above which the newest announcement is processed first.
const CROWDED: usize = 16;

/// An announced hash, and when it was read from the socket.
struct Hash {
    hash: B256,
    at: Instant,
    /// With full announcements: where its object may have come.
    pairs: Option<Arc<Pairs>>,
}

impl Backlog {
    /// `slots` for announcements of hashes, and as many for those of objects. With objects the hashes keep the
    /// node's order, by which it is known which objects are overdue.
    pub(crate) fn new(slots: usize, has_objects: bool, reports: mpsc::Sender<Report>) -> Self {
        let few = if has_objects { slots } else { slots / CROWDED };
        Self {
            hashes: Buffer::newest_first_above(few, slots),
            objects: Buffer::new(slots),
            heads: Buffer::new(HEADS_WAITING).into(),
            reports,
            read: AtomicU64::new(0),
        }
    }

    /// Reports to the source. Cannot deadlock: the source never waits for a task that reports.
    pub(crate) async fn report(&self, report: Report) {
        // A closed channel means that the source has ended, which makes the report irrelevant.
        let _ = self.reports.send(report).await;
    }

    /// Announcements read from the sockets and not yet processed.
    pub(crate) fn len(&self) -> u64 {
        self.hashes.len() + self.objects.len()
    }

    /// The source has ended. Returns how many of its hashes nobody takes out any more.
    pub(crate) fn close(&self) -> u64 {
        self.objects.close();
        self.hashes.close()
    }
}
