//! When the latest message of a connection came.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The time of the latest message of a connection, which its ping looks at.
///
/// The readers of a subscription hold this and not the connection. alloy closes a socket, which
/// ends its subscriptions, when the last user of the connection has dropped it. A reader that held
/// the connection would keep its subscription alive after everybody else has dropped it.
pub(crate) struct LastMessage {
    opened_at: Instant,
    /// In nanoseconds since `opened_at`, because a node answers a ping within a fraction of a
    /// millisecond. Relaxed: no other memory is published with it.
    elapsed_ns: AtomicU64,
}

impl LastMessage {
    /// Starts with the time of the connect.
    pub(super) fn new() -> Self {
        Self { opened_at: Instant::now(), elapsed_ns: AtomicU64::new(0) }
    }

    /// Records that a message came.
    pub(crate) fn record(&self) {
        self.elapsed_ns.store(self.opened_at.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Returns when the latest message came.
    pub(super) fn time(&self) -> Instant {
        self.opened_at + Duration::from_nanos(self.elapsed_ns.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the fix the time was cut to a millisecond: the response to a ping was taken for a
    /// message from before it, and a connection without other messages was ended.
    #[test]
    fn a_message_is_not_older_than_what_it_responds_to() {
        let last = LastMessage::new();
        for _ in 0..100 {
            let pinged_at = Instant::now();
            last.record();
            assert!(last.time() >= pinged_at);
        }
    }
}
