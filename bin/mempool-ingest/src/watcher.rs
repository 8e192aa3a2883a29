//! A subscriber of the pool, such as a builder.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    OrderPool,
    order_pool::{Event, Order, Origin, Subscription, Transaction},
};

use crate::say::say_warning;

/// The transaction types that a pool may hold, by their number.
pub(crate) const TYPES: [&str; 5] = ["legacy", "2930", "1559", "blob", "7702"];

/// Lower bounds of the classes of tips, in wei, and their names in gwei.
pub(crate) const TIPS: [(u128, &str); 5] = [
    (10_000_000_000, "10 and more"),
    (1_000_000_000, "1 to 10"),
    (100_000_000, "0.1 to 1"),
    (10_000_000, "0.01 to 0.1"),
    (0, "below 0.01"),
];

/// It measures the age of each order when it sees it, and counts the pool's transactions by type
/// and tip. With `--hashes` it writes the hash of each order, one a line, in the pool's order.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<io::Result<()>>,
}

struct Shared {
    latency: Mutex<Histogram<u64>>,
    orders: AtomicU64,
    cancelled: AtomicU64,
    lagged: AtomicU64,
    by_type: [AtomicU64; TYPES.len()],
    by_tip: [AtomicU64; TIPS.len()],
    stop: AtomicBool,
}

/// The transactions of the pool. They are classed by the highest tip that each offers, which does
/// not depend on the base fee, so that a transaction stays in its class and the pool need not be
/// scanned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Content {
    pub(crate) by_type: [u64; TYPES.len()],
    pub(crate) by_tip: [u64; TIPS.len()],
}

impl Watcher {
    pub(crate) fn start(pool: &OrderPool, hashes: Option<&Path>) -> io::Result<Self> {
        let hashes = hashes.map(File::create).transpose()?;
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order");
        let shared = Arc::new(Shared {
            latency: Mutex::new(latency),
            orders: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            lagged: AtomicU64::default(),
            by_type: Default::default(),
            by_tip: Default::default(),
            stop: AtomicBool::default(),
        });
        let (watching, orders) = (Arc::clone(&shared), pool.subscribe_all());
        let thread = std::thread::spawn(move || watching.run(orders, hashes));
        Ok(Self { shared, thread })
    }

    pub(crate) fn latency(&self) -> Histogram<u64> {
        self.shared.latency.lock().expect("nobody panics with it").clone()
    }

    /// Orders from the RPC server that it saw.
    pub(crate) fn orders(&self) -> u64 {
        self.shared.orders.load(Relaxed)
    }

    /// Cancellations that it saw.
    pub(crate) fn cancelled(&self) -> u64 {
        self.shared.cancelled.load(Relaxed)
    }

    pub(crate) fn content(&self) -> Content {
        let read = |count: &AtomicU64| count.load(Relaxed);
        Content {
            by_type: self.shared.by_type.each_ref().map(read),
            by_tip: self.shared.by_tip.each_ref().map(read),
        }
    }

    pub(crate) fn stop(self) {
        self.shared.stop.store(true, Relaxed);
        let panicked = |_| Err(io::Error::other("it has panicked"));
        if let Err(error) = self.thread.join().unwrap_or_else(panicked) {
            say_warning!("the subscriber: {error}");
        }
        let lagged = self.shared.lagged.load(Relaxed);
        if lagged > 0 {
            say_warning!("the subscriber lagged and started anew, {lagged} times");
        }
    }
}

impl Shared {
    fn run(&self, mut orders: Subscription, hashes: Option<File>) -> io::Result<()> {
        let (mut hashes, mut written) = (hashes.map(BufWriter::new), Ok(()));
        loop {
            // Before reading, so that everything from before the end is seen.
            let last = self.stop.load(Relaxed);
            let event = orders.try_next().or_else(|| {
                // Whoever looks at the file meanwhile finds all that was pooled.
                if let Some(Err(error)) = hashes.as_mut().map(BufWriter::flush) {
                    (hashes, written) = (None, Err(error));
                }
                (!last).then(|| orders.next_timeout(Duration::from_millis(50))).flatten()
            });
            match event {
                Some(Ok(Event::Added(order))) => {
                    self.added(&order);
                    let line = |file: &mut BufWriter<_>| writeln!(file, "{}", order.id().hash());
                    if let Some(Err(error)) = hashes.as_mut().map(line) {
                        (hashes, written) = (None, Err(error));
                    }
                }
                Some(Ok(Event::Removed { order, .. })) => {
                    if let Order::Tx(tx) = order.as_ref() {
                        for count in self.counts_of(tx) {
                            count.fetch_sub(1, Relaxed);
                        }
                    }
                }
                Some(Ok(Event::Cancelled(_))) => {
                    self.cancelled.fetch_add(1, Relaxed);
                }
                Some(Err(_)) => {
                    self.lagged.fetch_add(1, Relaxed);
                    // A replay delivers all orders again.
                    let counts = self.by_type.iter().chain(&self.by_tip);
                    counts.for_each(|count| count.store(0, Relaxed));
                    orders.resync();
                    if hashes.take().is_some() {
                        written = Err(io::Error::other("it lagged, and writes no further hashes"));
                    }
                }
                Some(Ok(_)) => {}
                None if last => return written,
                None => {}
            }
        }
    }

    fn added(&self, order: &Order) {
        if let Order::Tx(tx) = order {
            for count in self.counts_of(tx) {
                count.fetch_add(1, Relaxed);
            }
            if tx.origin() != Origin::Rpc {
                if let Ok(age) = SystemTime::now().duration_since(tx.first_seen()) {
                    let mut latency = self.latency.lock().expect("nobody panics with it");
                    latency.saturating_record(age.as_nanos() as u64);
                }
                return;
            }
        }
        // Only the RPC server brings bundles.
        self.orders.fetch_add(1, Relaxed);
    }

    /// The two counters of this transaction.
    fn counts_of(&self, tx: &Transaction) -> [&AtomicU64; 2] {
        let kind = tx.recovered().inner().tx_type() as usize;
        let tip = tx.max_tip_wei();
        let class = TIPS.iter().position(|(least, _)| tip >= *least).expect("the last is 0");
        [&self.by_type[kind], &self.by_tip[class]]
    }
}
