//! What a node has done so far.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::lock;

/// Declares each count once: in the node, where it is counted, and in the copy that callers get.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        // Every count is a statistic: read alone, ordering nothing. Hence `Relaxed` throughout.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            raw_in_flight: AtomicU64,
            methods: Mutex<BTreeMap<String, u64>>,
        }

        /// Counts since the node started.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Calls per method, each call of a batch for itself.
            pub methods: BTreeMap<String, u64>,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    $($name: self.$name.load(Relaxed),)*
                    methods: lock(&self.methods).clone(),
                }
            }
        }
    };
}

counts! {
    /// Announcements, whether or not there was a subscription; repeats count again.
    announced,
    /// Transactions that the pool refused.
    refused,
    /// Announcements that a fault kept from every subscriber.
    notifications_dropped,
    /// Objects that were not announced though their hashes were.
    objects_dropped,
    /// Responses with a raw transaction that a fault made wrong.
    bad_answers,
    /// Times that the socket was gone and came back.
    restarts,
    blocks,
    mined,
    /// Raw transactions that were found.
    raw_found,
    /// Requests for raw transactions that came when the queue was full, see [`Capacity`](crate::Capacity).
    raw_busy,
    /// The longest that a block mined on time waited for its turn in that queue, in microseconds.
    import_wait_us_max,
    /// The most `eth_getRawTransactionByHash` in flight at one time.
    max_concurrent_raw,
    connections,
    connections_open,
}

impl Counters {
    pub(crate) fn method(&self, name: &str) {
        let mut methods = lock(&self.methods);
        *methods.entry(name.to_owned()).or_default() += 1;
    }

    pub(crate) fn raw_begins(&self) {
        let now = self.raw_in_flight.fetch_add(1, Relaxed) + 1;
        self.max_concurrent_raw.fetch_max(now, Relaxed);
    }

    pub(crate) fn raw_ends(&self, count: u64) {
        self.raw_in_flight.fetch_sub(count, Relaxed);
    }
}
