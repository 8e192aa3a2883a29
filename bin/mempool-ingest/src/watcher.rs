//! A subscriber of the pool, such as a builder.
//!
//! The lock of what it has seen is held for one event by its thread, and for a copy by whoever shows it.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    OrderPool,
    order_pool::{Event, Order, Origin, Subscription, Transaction},
};
use parking_lot::Mutex;

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
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<io::Result<()>>,
}

/// What it has seen so far.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Ages in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Orders from the RPC server.
    pub(crate) orders: u64,
    pub(crate) cancelled: u64,
    lagged: u64,
    pub(crate) content: Content,
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
    pub(crate) fn start(pool: &OrderPool, hashes: Option<&Path>) -> Result<Self, String> {
        let create = |path: &Path| {
            File::create(path).map_err(|error| format!("--hashes {}: {error}", path.display()))
        };
        let hashes = hashes.map(create).transpose()?;
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order");
        let (orders, cancelled, lagged, content) = (0, 0, 0, Content::default());
        let seen = Arc::new(Mutex::new(Seen { latency, orders, cancelled, lagged, content }));
        let stop = Arc::<AtomicBool>::default();
        let (watching, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let orders = pool.subscribe_all();
        let thread = std::thread::spawn(move || run(&watching, &stopped, orders, hashes));
        Ok(Self { seen, stop, thread })
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Relaxed);
        let panicked = |_| Err(io::Error::other("it has panicked"));
        if let Err(error) = self.thread.join().unwrap_or_else(panicked) {
            say_warning!("the subscriber: {error}");
        }
        let lagged = self.seen.lock().lagged;
        if lagged > 0 {
            say_warning!("the subscriber lagged and started anew, {lagged} times");
        }
    }
}

fn run(
    seen: &Mutex<Seen>,
    stop: &AtomicBool,
    mut orders: Subscription,
    hashes: Option<File>,
) -> io::Result<()> {
    let (mut hashes, mut written) = (hashes.map(BufWriter::new), Ok(()));
    // What was there before has waited for this subscriber, and says nothing of a latency.
    let mut since = SystemTime::now();
    loop {
        // Before reading, so that everything from before the end is seen.
        let last = stop.load(Relaxed);
        let event = orders.try_next().or_else(|| {
            // Whoever looks at the file meanwhile finds all that was pooled.
            if let Some(Err(error)) = hashes.as_mut().map(BufWriter::flush) {
                (hashes, written) = (None, Err(error));
            }
            (!last).then(|| orders.next_timeout(Duration::from_millis(50))).flatten()
        });
        match event {
            Some(Ok(Event::Added(order))) => {
                seen.lock().added(&order, since);
                let line = |file: &mut BufWriter<_>| writeln!(file, "{}", order.id().hash());
                if let Some(Err(error)) = hashes.as_mut().map(line) {
                    (hashes, written) = (None, Err(error));
                }
            }
            Some(Ok(Event::Removed { order, .. })) => {
                if let Order::Tx(tx) = order.as_ref() {
                    for count in seen.lock().content.counts_of(tx) {
                        *count -= 1;
                    }
                }
            }
            Some(Ok(Event::Cancelled(_))) => seen.lock().cancelled += 1,
            Some(Err(_)) => {
                let mut seen = seen.lock();
                seen.lagged += 1;
                // A replay delivers all orders again.
                seen.content = Content::default();
                since = SystemTime::now();
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

impl Seen {
    /// The latency counts of what was first seen since this subscriber began, or began anew.
    fn added(&mut self, order: &Order, since: SystemTime) {
        if let Order::Tx(tx) = order {
            for count in self.content.counts_of(tx) {
                *count += 1;
            }
            if tx.origin() != Origin::Rpc {
                let age = SystemTime::now().duration_since(tx.first_seen());
                if let Ok(age) = age
                    && tx.first_seen() >= since
                {
                    self.latency.saturating_record(age.as_nanos() as u64);
                }
                return;
            }
        }
        // Only the RPC server brings bundles.
        self.orders += 1;
    }
}

impl Content {
    /// The two counts of this transaction.
    fn counts_of(&mut self, tx: &Transaction) -> [&mut u64; 2] {
        let kind = tx.recovered().inner().tx_type() as usize;
        let tip = tx.max_tip_wei();
        let class = TIPS.iter().position(|(least, _)| tip >= *least).expect("the last is 0");
        [&mut self.by_type[kind], &mut self.by_tip[class]]
    }
}
