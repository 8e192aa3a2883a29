//! Subscribes to the pool, as a builder does, and measures the latency of its orders.
//!
//! The lock of the statistics is held for one event by the watcher's thread, and for a copy by the
//! thread that shows them.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    OrderPool,
    order_pool::{Event, Order, Origin, Subscription, Transaction, arrival_at},
};
use parking_lot::Mutex;

use crate::print::print_warning;

/// The names of the transaction types, by type number.
pub(crate) const TYPES: [&str; 5] = ["legacy", "2930", "1559", "blob", "7702"];

/// The lower bounds of the tip classes in wei, and their names in gwei.
pub(crate) const TIPS: [(u128, &str); 5] = [
    (10_000_000_000, "10 and more"),
    (1_000_000_000, "1 to 10"),
    (100_000_000, "0.1 to 1"),
    (10_000_000, "0.01 to 0.1"),
    (0, "below 0.01"),
];

/// Measures the age of each order, and counts the pool's transactions by type and tip. With
/// `--hashes` it writes the hash of each order, one per line, in the pool's order.
pub(crate) struct Watcher {
    stats: Arc<Mutex<WatcherStats>>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<io::Result<()>>,
}

/// What the watcher has measured so far.
#[derive(Clone, Debug)]
pub(crate) struct WatcherStats {
    /// The ages of orders in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// The number of orders from the RPC server.
    pub(crate) orders: u64,
    pub(crate) cancelled: u64,
    lagged: u64,
    pub(crate) content: PoolContent,
}

/// The number of pooled transactions by type and tip. The tip is the highest that a transaction
/// offers, which does not depend on the base fee: a transaction stays in its class, and the pool
/// need not be scanned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolContent {
    pub(crate) by_type: [u64; TYPES.len()],
    pub(crate) by_tip: [u64; TIPS.len()],
}

impl Watcher {
    pub(crate) fn start(pool: &OrderPool, hashes: Option<&Path>) -> Result<Self, String> {
        let hashes = hashes.map(create_hash_file).transpose()?;
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds in order");
        let stats = Arc::new(Mutex::new(WatcherStats {
            latency,
            orders: 0,
            cancelled: 0,
            lagged: 0,
            content: PoolContent::default(),
        }));
        let stop = Arc::<AtomicBool>::default();
        let thread_stats = Arc::clone(&stats);
        let thread_stop = Arc::clone(&stop);
        let orders = pool.subscribe_all();
        let thread = std::thread::spawn(move || run(&thread_stats, &thread_stop, orders, hashes));
        Ok(Self { stats, stop, thread })
    }

    pub(crate) fn stats(&self) -> WatcherStats {
        self.stats.lock().clone()
    }

    /// Waits until the thread has read every event from before this call.
    pub(crate) fn stop(self) {
        self.stop.store(true, Relaxed);
        match self.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => print_warning!("the subscriber: {error}"),
            Err(_) => print_warning!("the subscriber: its thread has panicked"),
        }
        let lagged = self.stats.lock().lagged;
        if lagged > 0 {
            print_warning!("the subscriber lagged and started anew, {lagged} times");
        }
    }
}

fn create_hash_file(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("--hashes {}: {error}", path.display()))
}

fn run(
    stats: &Mutex<WatcherStats>,
    stop: &AtomicBool,
    mut orders: Subscription,
    hashes: Option<File>,
) -> io::Result<()> {
    let mut hashes = hashes.map(BufWriter::new);
    let mut written = Ok(());
    // Orders from before the subscription have waited for it, so their age is no latency.
    let mut measured_from = arrival_at(Instant::now());
    loop {
        // Load this before reading, so that every event from before the stop is read.
        let is_stopping = stop.load(Relaxed);
        let event = orders.try_next().or_else(|| {
            // Flush while no event waits: the file then has every hash.
            if let Some(Err(error)) = hashes.as_mut().map(BufWriter::flush) {
                hashes = None;
                written = Err(error);
            }
            (!is_stopping).then(|| orders.next_timeout(Duration::from_millis(50))).flatten()
        });
        match event {
            Some(Ok(Event::Added(order))) => {
                stats.lock().add(&order, measured_from);
                if let Some(file) = &mut hashes
                    && let Err(error) = writeln!(file, "{}", order.id().hash())
                {
                    hashes = None;
                    written = Err(error);
                }
            }
            Some(Ok(Event::Removed { order, .. })) => {
                if let Order::Tx(tx) = order.as_ref() {
                    for count in stats.lock().content.counts_mut(tx) {
                        *count -= 1;
                    }
                }
            }
            Some(Ok(Event::Cancelled(_))) => stats.lock().cancelled += 1,
            Some(Err(_)) => {
                let mut stats = stats.lock();
                stats.lagged += 1;
                // After `resync` every live order is delivered again.
                stats.content = PoolContent::default();
                measured_from = arrival_at(Instant::now());
                orders.resync();
                if hashes.take().is_some() {
                    written = Err(io::Error::other("it lagged, and writes no further hashes"));
                }
            }
            Some(Ok(_)) => {}
            None if is_stopping => return written,
            None => {}
        }
    }
}

impl WatcherStats {
    /// Counts an order, and records its latency if it was first seen after `measured_from`.
    fn add(&mut self, order: &Order, measured_from: SystemTime) {
        if let Order::Tx(tx) = order {
            for count in self.content.counts_mut(tx) {
                *count += 1;
            }
            if tx.origin() != Origin::Rpc {
                let age = arrival_at(Instant::now()).duration_since(tx.first_seen());
                if let Ok(age) = age
                    && tx.first_seen() >= measured_from
                {
                    self.latency.saturating_record(age.as_nanos() as u64);
                }
                return;
            }
        }
        // Only the RPC server accepts bundles and transactions of this origin.
        self.orders += 1;
    }
}

impl PoolContent {
    /// Returns the counts of this transaction's type and tip class.
    fn counts_mut(&mut self, tx: &Transaction) -> [&mut u64; 2] {
        let kind = tx.recovered().inner().tx_type() as usize;
        let tip = tx.max_tip_wei();
        let class = TIPS.iter().position(|(least, _)| tip >= *least).expect("the last bound is 0");
        [&mut self.by_type[kind], &mut self.by_tip[class]]
    }
}
