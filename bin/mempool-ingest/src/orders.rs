//! `--orders ndjson`: writes one JSON object per line to stdout for each order that enters or
//! leaves the pool, for a program in any language.
//!
//! The thread that writes is a subscriber of the pool, and a slow reader delays that thread alone.
//! Events that leave the pool's log before they are written are counted, and an object on stdout
//! says how many are missing.

use std::{
    io::{self, BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, SystemTime},
};

use alloy_eips::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes};
use mempool_ingest::{
    OrderPool,
    order_pool::{Bundle, Event, Lagged, Order, RemoveReason, Subscription, Transaction},
};
use serde::Serialize;

/// The form of `--orders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OrdersFormat {
    /// One JSON object a line
    Ndjson,
}

/// How long the thread waits for an event before it checks whether it must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The size of the buffer, which is also flushed whenever no event waits.
const BUFFER_BYTES: usize = 1 << 16;

/// The JSON object of a line. `first_seen_ms` is in milliseconds since the Unix epoch.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    /// A transaction entered the pool.
    Added {
        kind: &'static str,
        hash: &'a B256,
        sender: Address,
        first_seen_ms: u128,
        /// The endpoints of the nodes that have announced it.
        sources: Vec<String>,
        /// The EIP-2718 encoding, with blobs.
        raw: Bytes,
    },
    /// A bundle entered the pool.
    AddedBundle {
        kind: &'static str,
        hash: &'a B256,
        signer: Option<Address>,
        block: Option<u64>,
        first_seen_ms: u128,
        raw: Vec<Bytes>,
    },
    /// The order left the pool.
    Removed { kind: &'static str, hash: &'a B256, reason: String },
    /// The reader is too slow: this number of events left the pool's log before they were written.
    Missed { events: u64 },
}

/// Returns the endpoints of the nodes that have announced a transaction.
pub(crate) type Announcers = Box<dyn Fn(&B256) -> Vec<String> + Send>;

/// Writes orders to stdout on a thread of its own.
pub(crate) struct Orders {
    stop: Arc<AtomicBool>,
    ended: Receiver<io::Result<()>>,
    missed: Arc<AtomicU64>,
    /// The thread's result, once it has been received.
    result: Option<io::Result<()>>,
}

impl Orders {
    pub(crate) fn start(pool: &OrderPool, announcers: Announcers) -> io::Result<Self> {
        let (sender, ended) = sync_channel(1);
        let stop = Arc::<AtomicBool>::default();
        let missed = Arc::<AtomicU64>::default();
        let thread_stop = Arc::clone(&stop);
        let thread_missed = Arc::clone(&missed);
        let mut subscription = pool.subscribe_all();
        thread::Builder::new().name("orders".into()).spawn(move || {
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
            let result = write_orders(
                &mut out,
                &mut subscription,
                &announcers,
                &thread_stop,
                &thread_missed,
            );
            // Discard the rest, so that dropping the buffer does not write to a closed pipe again.
            let _ = out.into_parts();
            // Nobody receives this if the command has stopped waiting.
            let _ = sender.send(result);
        })?;
        Ok(Self { stop, ended, missed, result: None })
    }

    /// Returns whether the thread has ended: the reader of stdout is gone, or the disk is full.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.result.is_none() {
            self.result = self.ended.try_recv().ok();
        }
        self.result.is_some()
    }

    /// Returns the number of events for which the reader was too slow.
    pub(crate) fn missed_events(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// Writes the rest, for at most `limit`, and returns what was lost.
    pub(crate) fn shutdown(mut self, limit: Duration) -> Option<String> {
        self.stop.store(true, Relaxed);
        let result = self.result.take().map_or_else(|| self.ended.recv_timeout(limit), Ok);
        match result {
            Ok(Ok(())) => None,
            // A closed pipe is no failure: `mempool-ingest --orders ndjson | head` ends in this
            // way.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Ok(Err(error)) => Some(format!("--orders: cannot write to stdout: {error}")),
            Err(RecvTimeoutError::Timeout) => Some(format!(
                "--orders: the last events are not written, because stdout was not read for \
                 {limit:?}"
            )),
            Err(RecvTimeoutError::Disconnected) => {
                Some("--orders: the thread that writes has panicked".into())
            }
        }
    }
}

fn write_orders(
    out: &mut impl Write,
    subscription: &mut Subscription,
    announcers: &Announcers,
    stop: &AtomicBool,
    missed: &AtomicU64,
) -> io::Result<()> {
    loop {
        // Load this before reading, so that every event from before the stop is written.
        let is_stopping = stop.load(Relaxed);
        let event = match subscription.try_next() {
            Some(event) => event,
            None => {
                out.flush()?;
                if is_stopping {
                    return Ok(());
                }
                match subscription.next_timeout(POLL_INTERVAL) {
                    Some(event) => event,
                    None => continue,
                }
            }
        };
        match event {
            Ok(Event::Added(order)) => match order.as_ref() {
                Order::Tx(tx) => write_line(out, &added_line(tx, announcers(tx.hash())))?,
                Order::Bundle(bundle) => write_line(out, &added_bundle_line(bundle))?,
                _ => {}
            },
            Ok(Event::Removed { order, reason }) => {
                let kind = if order.as_tx().is_some() { "tx" } else { "bundle" };
                let reason = snake_case(reason);
                write_line(out, &Line::Removed { kind, hash: order.id().hash(), reason })?;
            }
            // Heads and cancellations: removals report their effects on orders.
            Ok(_) => {}
            // The subscription continues with the oldest event in the log.
            Err(Lagged { missed: events, .. }) => {
                missed.fetch_add(events, Relaxed);
                write_line(out, &Line::Missed { events })?;
            }
        }
    }
}

fn added_line(tx: &Transaction, sources: Vec<String>) -> Line<'_> {
    Line::Added {
        kind: "tx",
        hash: tx.hash(),
        sender: tx.sender(),
        first_seen_ms: milliseconds(tx.first_seen()),
        sources,
        raw: raw(tx),
    }
}

fn added_bundle_line(bundle: &Bundle) -> Line<'_> {
    Line::AddedBundle {
        kind: "bundle",
        hash: bundle.id(),
        signer: bundle.parts().signer,
        block: bundle.block(),
        first_seen_ms: milliseconds(bundle.first_seen()),
        raw: bundle.txs().iter().map(raw).collect(),
    }
}

fn write_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn raw(tx: &Transaction) -> Bytes {
    tx.envelope().encoded_2718().into()
}

fn milliseconds(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Converts `StaleNonce` to `stale_nonce`. `RemoveReason` documents the names.
fn snake_case(reason: RemoveReason) -> String {
    let mut text = String::new();
    for letter in format!("{reason:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
