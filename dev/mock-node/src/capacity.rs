//! A node that can do only so much at once: requests wait in a queue, and its blocks with them.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Requests for raw transactions and the import of blocks share one queue, first come, first served: a client that
/// sends too many requests at once delays the node's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// How many are served at once, at least 1.
    pub at_once: usize,
    /// How long each takes, at least 1 us.
    pub service: Duration,
    /// So many may wait. A request beyond it is answered with -32005 at once.
    pub may_wait: usize,
}

/// The queue. It holds no entries: when a request is served follows from those that came before it.
#[derive(Debug)]
pub(crate) struct Line {
    capacity: Capacity,
    free: Vec<Instant>,
}

impl Line {
    pub(crate) fn new(capacity: Capacity) -> Self {
        assert!(capacity.at_once > 0 && capacity.service >= Duration::from_micros(1));
        Self { capacity, free: vec![Instant::now(); capacity.at_once] }
    }

    /// A request that came at `now`: how long until it is answered; `None` when the queue is full.
    pub(crate) fn request(&mut self, now: Instant) -> Option<Duration> {
        let left = self.free.iter().map(|at| at.saturating_duration_since(now));
        // One being served, and one service time of work for each that has not begun.
        let service = self.capacity.service;
        let held: usize = left.map(|left| left.div_duration_f64(service).ceil() as usize).sum();
        let has_room = held < self.capacity.at_once.saturating_add(self.capacity.may_wait);
        has_room.then(|| self.block(now) + service)
    }

    /// A block that is there at `now`, which always finds a place: how long until its turn. Who is free first serves next.
    pub(crate) fn block(&mut self, now: Instant) -> Duration {
        let next = self.free.iter_mut().min().expect("at least one serves");
        let start = (*next).max(now);
        *next = start + self.capacity.service;
        start - now
    }
}
