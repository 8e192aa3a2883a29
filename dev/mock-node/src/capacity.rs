//! A node with a limited capacity: its requests and its blocks wait in one queue.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Requests for raw transactions and the import of blocks share one queue, first come, first
/// served. A client that sends too many requests at once delays the node's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// How many requests are served concurrently, at least 1.
    pub concurrency: usize,
    /// How long a request or block takes, at least 1 us.
    pub service_time: Duration,
    /// How many requests may wait. Further ones are answered with error -32005 at once.
    pub max_waiting: usize,
}

/// The queue of requests and blocks. It holds no entries, only when each server is free again: that
/// decides when the next request is served.
#[derive(Debug)]
pub(crate) struct Line {
    capacity: Capacity,
    /// When each of the concurrent servers is free.
    free_at: Vec<Instant>,
}

impl Line {
    pub(crate) fn new(capacity: Capacity) -> Self {
        assert!(capacity.concurrency > 0 && capacity.service_time >= Duration::from_micros(1));
        Self { capacity, free_at: vec![Instant::now(); capacity.concurrency] }
    }

    /// Queues a request that arrives at `now`. Returns how long it takes until it is answered, or
    /// `None` if the queue is full.
    pub(crate) fn request(&mut self, now: Instant) -> Option<Duration> {
        let service_time = self.capacity.service_time;
        // The work left for a server is one request that is being served, and one service time for
        // each request that has not begun.
        let requests_left = |free_at: &Instant| {
            let left = free_at.saturating_duration_since(now);
            left.div_duration_f64(service_time).ceil() as usize
        };
        let held: usize = self.free_at.iter().map(requests_left).sum();
        let limit = self.capacity.concurrency.saturating_add(self.capacity.max_waiting);
        (held < limit).then(|| self.block(now) + service_time)
    }

    /// Queues a block that arrives at `now`, which is never refused. Returns how long it waits for
    /// its turn. The server that is free first serves it.
    pub(crate) fn block(&mut self, now: Instant) -> Duration {
        let next = self.free_at.iter_mut().min().expect("at least one serves");
        let start = (*next).max(now);
        *next = start + self.capacity.service_time;
        start - now
    }
}
