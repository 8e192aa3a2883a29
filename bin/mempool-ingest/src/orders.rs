//! `--orders ndjson`: one JSON object a line on stdout for each order that enters or leaves the pool, for a program in any
//! language.
//!
//! The thread that writes is a subscriber of the pool. A reader that is slow delays that thread alone: events that leave the
//! pool's log before they are written are counted, on stdout too, where an object says how many are missing.

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
    order_pool::{Event, Lagged, Order, RemoveReason, Subscription, Transaction},
};
use serde::Serialize;

/// The form of `--orders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OrdersFormat {
    /// One JSON object a line
    Ndjson,
}

/// How long the thread waits for an event before it looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// Bytes that are collected before they are written; what is there is written whenever no event waits.
const BUFFER_BYTES: usize = 1 << 16;

/// What a line says. `first_seen_ms` counts from 1970.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    /// A transaction is in the pool from here on.
    Added {
        kind: &'static str,
        hash: &'a B256,
        sender: Address,
        first_seen_ms: u128,
        /// The nodes that have announced it.
        sources: Vec<String>,
        /// EIP-2718; of a blob transaction with its blobs.
        raw: Bytes,
    },
    /// A bundle is in the pool from here on.
    AddedBundle {
        kind: &'static str,
        hash: &'a B256,
        signer: Option<Address>,
        block: Option<u64>,
        first_seen_ms: u128,
        raw: Vec<Bytes>,
    },
    /// The order is not in the pool any more.
    Removed { kind: &'static str, hash: &'a B256, reason: String },
    /// So many events left the pool's log before they were written: the reader is too slow.
    Missed { events: u64 },
}

/// Names the nodes that have announced a transaction.
pub(crate) type Announcers = Box<dyn Fn(&B256) -> Vec<String> + Send>;

/// The thread that writes.
pub(crate) struct Orders {
    stop: Arc<AtomicBool>,
    ended: Receiver<io::Result<()>>,
    missed: Arc<AtomicU64>,
    result: Option<io::Result<()>>,
}

impl Orders {
    pub(crate) fn start(pool: &OrderPool, announcers: Announcers) -> io::Result<Self> {
        let (sender, ended) = sync_channel(1);
        let (stop, missed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&missed));
        let mut subscription = pool.subscribe_all();
        thread::Builder::new().name("orders".into()).spawn(move || {
            let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
            let written = write(&mut out, &mut subscription, &announcers, &stopped, &counted);
            // What a closed pipe did not take is not written when this is dropped.
            let _ = out.into_parts();
            // The command may have stopped waiting.
            let _ = sender.send(written);
        })?;
        Ok(Self { stop, ended, missed, result: None })
    }

    /// Whether it cannot write any more: whoever reads stdout has gone, or the disk is full.
    pub(crate) fn has_ended(&mut self) -> bool {
        if self.result.is_none() {
            self.result = self.ended.try_recv().ok();
        }
        self.result.is_some()
    }

    /// Events that the reader was too slow for.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    /// Writes what is left, for at most `limit`, and returns what was lost.
    pub(crate) fn end(mut self, limit: Duration) -> Option<String> {
        self.stop.store(true, Relaxed);
        let result = self.result.take().map_or_else(|| self.ended.recv_timeout(limit), Ok);
        match result {
            Ok(Ok(())) => None,
            // A pipeline ends with its last part.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Ok(Err(error)) => Some(format!("--orders: cannot write to stdout: {error}")),
            Err(RecvTimeoutError::Timeout) => Some(format!(
                "--orders: the last events are not written, because stdout was not read for {limit:?}"
            )),
            Err(RecvTimeoutError::Disconnected) => {
                Some("--orders: the thread that writes has panicked".into())
            }
        }
    }
}

fn write(
    out: &mut impl Write,
    subscription: &mut Subscription,
    announcers: &Announcers,
    stop: &AtomicBool,
    missed: &AtomicU64,
) -> io::Result<()> {
    loop {
        // Before reading, so that everything from before the end is written.
        let is_last = stop.load(Relaxed);
        let event = match subscription.try_next() {
            Some(event) => event,
            None => {
                out.flush()?;
                if is_last {
                    return Ok(());
                }
                match subscription.next_timeout(POLL) {
                    Some(event) => event,
                    None => continue,
                }
            }
        };
        match event {
            Ok(Event::Added(order)) => match order.as_ref() {
                Order::Tx(tx) => line(out, &added(tx, announcers(tx.hash())))?,
                Order::Bundle(bundle) => line(
                    out,
                    &Line::AddedBundle {
                        kind: "bundle",
                        hash: bundle.id(),
                        signer: bundle.parts().signer,
                        block: bundle.block(),
                        first_seen_ms: milliseconds(bundle.first_seen()),
                        raw: bundle.txs().iter().map(raw).collect(),
                    },
                )?,
                _ => {}
            },
            Ok(Event::Removed { order, reason }) => {
                let kind = if order.as_tx().is_some() { "tx" } else { "bundle" };
                let reason = snake_case(reason);
                line(out, &Line::Removed { kind, hash: order.id().hash(), reason })?;
            }
            // Heads and cancellations: what they do to orders is told as removals.
            Ok(_) => {}
            // The next event is the oldest in the log.
            Err(Lagged { missed: events, .. }) => {
                missed.fetch_add(events, Relaxed);
                line(out, &Line::Missed { events })?;
            }
        }
    }
}

fn added(tx: &Transaction, sources: Vec<String>) -> Line<'_> {
    Line::Added {
        kind: "tx",
        hash: tx.hash(),
        sender: tx.sender(),
        first_seen_ms: milliseconds(tx.first_seen()),
        sources,
        raw: raw(tx),
    }
}

fn line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn raw(tx: &Transaction) -> Bytes {
    tx.envelope().encoded_2718().into()
}

fn milliseconds(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// `StaleNonce` as `stale_nonce`: the names of `RemoveReason`, which says what they mean.
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
