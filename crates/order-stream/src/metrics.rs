//! Counters, for the process itself and through the `metrics` facade. Handles are made once.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::config::Flow;

/// The name, the unit and the meaning of every metric of this crate. Names that end in `_total` are counters,
/// the others gauges. Each has the label `flow`: public or private.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("order_stream_state", Unit::Count, "state, by `side`: publisher, source (`State::code`)"),
    ("order_stream_connects_total", Unit::Count, "connections that were opened, by `side`"),
    ("order_stream_published_total", Unit::Count, "messages published for the first time"),
    ("order_stream_published_bytes_total", Unit::Bytes, "their payload"),
    (
        "order_stream_acknowledged_total",
        Unit::Count,
        "messages that the stream has, by `outcome`: stored, duplicate",
    ),
    (
        "order_stream_refused_total",
        Unit::Count,
        "messages that are not published again, by `reason` (`RefuseReason::ALL`)",
    ),
    ("order_stream_unfinished", Unit::Count, "messages that are published and not answered"),
    ("order_stream_republished_total", Unit::Count, "messages published once more"),
    (
        "order_stream_in_process_total",
        Unit::Count,
        "answers that another publisher's copy was being stored",
    ),
    ("order_stream_lost_events_total", Unit::Count, "events that left the pool's log unread"),
    ("order_stream_comparisons_total", Unit::Count, "comparisons with the pool"),
    ("order_stream_received_total", Unit::Count, "messages of the stream that were processed"),
    ("order_stream_received_bytes_total", Unit::Bytes, "their payload"),
    (
        "order_stream_delivered_total",
        Unit::Count,
        "processed messages, by `outcome`: pooled, known, refused, malformed",
    ),
    (
        "order_stream_repeated_total",
        Unit::Count,
        "messages received again, which are not processed",
    ),
    (
        "order_stream_holes_total",
        Unit::Count,
        "gaps between sequence numbers, each asked for again",
    ),
    (
        "order_stream_missed_total",
        Unit::Count,
        "messages that the stream no longer had when they were to be read",
    ),
    ("order_stream_stream_resets_total", Unit::Count, "streams that were found to be made anew"),
    ("order_stream_behind", Unit::Count, "messages that are not in the pool yet"),
    ("order_stream_unprocessed", Unit::Count, "messages that were read and are not processed"),
];

fn describe() {
    for (name, unit, text) in METRICS {
        if name.ends_with("_total") {
            describe_counter!(*name, *unit, *text);
        } else {
            describe_gauge!(*name, *unit, *text);
        }
    }
}

/// Why a message that was published is not published again. What is not stored for the time being, because the
/// stream is full or the subject denied, is not refused: it stays unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefuseReason {
    /// It is longer than `max_payload` of the server or the limit of the stream.
    TooLarge,
    /// A full stream had no room for it eight times while it stored others in between.
    Full,
    /// The stream refused it for another reason, which is logged.
    Rejected,
    /// Its order was cancelled before the stream answered, and the cancellation follows; or it is a head that is far
    /// below a new one. The stream may have it.
    Withdrawn,
}

impl RefuseReason {
    /// The labels of `order_stream_refused_total`, in the order of [`PublisherStats::refused`].
    pub const ALL: [&'static str; 4] = ["too_large", "full", "rejected", "withdrawn"];

    /// Its index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::TooLarge => 0,
            Self::Full => 1,
            Self::Rejected => 2,
            Self::Withdrawn => 3,
        }
    }
}

/// One count, kept for the stats and for the metrics exporter.
pub(crate) struct Count {
    value: AtomicU64,
    exported: Counter,
}

impl Count {
    const fn new(exported: Counter) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, more: u64) {
        // Relaxed: no other memory is published through it.
        self.value.fetch_add(more, Relaxed);
        self.exported.increment(more);
    }

    fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A present value.
pub(crate) struct Level {
    value: AtomicU64,
    exported: Gauge,
}

impl Level {
    const fn new(exported: Gauge) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn set(&self, value: u64) {
        // Relaxed: as above.
        self.value.store(value, Relaxed);
        self.exported.set(value as f64);
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The counts of a [`Publisher`](crate::Publisher) so far, for which always holds
/// `published = stored + duplicate + refused + unfinished`, once it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherStats {
    /// Messages that were published for the first time, orders, cancellations and heads:
    /// `order_stream_published_total`.
    pub published: u64,
    /// Of these, the stream stored this publisher's: `order_stream_acknowledged_total{outcome="stored"}`.
    pub stored: u64,
    /// Of these, the stream had the same message before: `outcome="duplicate"`.
    pub duplicate: u64,
    /// Of the duplicates, those that another machine published first for certain: they were published
    /// once. Of the others, the stored message may be this publisher's own.
    pub not_first: u64,
    /// Messages that are not published again, by the reasons of [`RefuseReason::ALL`]:
    /// `order_stream_refused_total`.
    pub refused: [u64; RefuseReason::ALL.len()],
    /// Messages that are not answered yet: `order_stream_unfinished`.
    pub unfinished: u64,
    /// Messages that were published once more: `order_stream_republished_total`.
    pub republished: u64,
    /// Answers that the message was being stored for another publisher: `order_stream_in_process_total`.
    pub in_process: u64,
    /// Events that left the pool's log before they were read; a comparison follows:
    /// `order_stream_lost_events_total`.
    pub lost_events: u64,
    /// Comparisons with the pool, one for each connection among them: `order_stream_comparisons_total`.
    pub comparisons: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
    /// Payload of the published messages, in bytes: `order_stream_published_bytes_total`.
    pub bytes: u64,
    /// Times that the stream was found to have lost messages: `order_stream_stream_resets_total`.
    pub resets: u64,
}

impl PublisherStats {
    /// All of [`Self::refused`].
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }
}

#[derive(Debug)]
pub(crate) struct PublisherCounters {
    pub(crate) state: Level,
    pub(crate) published: Count,
    pub(crate) stored: Count,
    pub(crate) duplicate: Count,
    pub(crate) not_first: AtomicU64,
    pub(crate) refused: [Count; RefuseReason::ALL.len()],
    pub(crate) unfinished: Level,
    pub(crate) republished: Count,
    pub(crate) in_process: Count,
    pub(crate) lost_events: Count,
    pub(crate) comparisons: Count,
    pub(crate) connects: Count,
    pub(crate) bytes: Count,
    pub(crate) resets: Count,
}

impl PublisherCounters {
    pub(crate) fn new(flow: Flow) -> Self {
        describe();
        let flow = flow.as_str();
        let count = |name: &'static str| Count::new(counter!(name, "flow" => flow));
        let acknowledged = |outcome: &'static str| {
            let name = "order_stream_acknowledged_total";
            Count::new(counter!(name, "flow" => flow, "outcome" => outcome))
        };
        let refused = |reason: &'static str| {
            let name = "order_stream_refused_total";
            Count::new(counter!(name, "flow" => flow, "reason" => reason))
        };
        let side = "publisher";
        let state = gauge!("order_stream_state", "flow" => flow, "side" => side);
        let connects = counter!("order_stream_connects_total", "flow" => flow, "side" => side);
        Self {
            state: Level::new(state),
            published: count("order_stream_published_total"),
            stored: acknowledged("stored"),
            duplicate: acknowledged("duplicate"),
            not_first: AtomicU64::new(0),
            refused: RefuseReason::ALL.map(refused),
            unfinished: Level::new(gauge!("order_stream_unfinished", "flow" => flow)),
            republished: count("order_stream_republished_total"),
            in_process: count("order_stream_in_process_total"),
            lost_events: count("order_stream_lost_events_total"),
            comparisons: count("order_stream_comparisons_total"),
            connects: Count::new(connects),
            bytes: count("order_stream_published_bytes_total"),
            resets: count("order_stream_stream_resets_total"),
        }
    }

    pub(crate) fn stats(&self) -> PublisherStats {
        PublisherStats {
            published: self.published.get(),
            stored: self.stored.get(),
            duplicate: self.duplicate.get(),
            not_first: self.not_first.load(Relaxed),
            refused: std::array::from_fn(|index| self.refused[index].get()),
            unfinished: self.unfinished.value.load(Relaxed),
            republished: self.republished.get(),
            in_process: self.in_process.get(),
            lost_events: self.lost_events.get(),
            comparisons: self.comparisons.get(),
            connects: self.connects.get(),
            bytes: self.bytes.get(),
            resets: self.resets.get(),
        }
    }
}

/// The counts of a [`Source`](crate::Source) so far, for which always holds
/// `received = pooled + known + refused + malformed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStats {
    /// Messages that were processed, the sum of the next four: `order_stream_received_total`.
    pub received: u64,
    /// Orders that the pool accepted, and cancellations and heads that took effect:
    /// `order_stream_delivered_total{outcome="pooled"}`.
    pub pooled: u64,
    /// What the pool had before: `outcome="known"`.
    pub known: u64,
    /// What the pool did not take, or the configuration does not let in: `outcome="refused"`.
    pub refused: u64,
    /// Messages that do not decode, or are not what they claim to be: `outcome="malformed"`.
    pub malformed: u64,
    /// Payload of the processed messages, in bytes: `order_stream_received_bytes_total`.
    pub bytes: u64,
    /// Messages that were received again, and ignored: `order_stream_repeated_total`.
    pub repeated: u64,
    /// Gaps between sequence numbers, each asked for again: `order_stream_holes_total`.
    pub holes: u64,
    /// Messages that the stream no longer had when they were to be read, by age, by size or because
    /// someone deleted them: `order_stream_missed_total`.
    pub missed: u64,
    /// Streams that were found to be made anew: `order_stream_stream_resets_total`.
    pub resets: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
    /// Messages of the streams that are not in the pool yet, as of the latest message:
    /// `order_stream_behind`.
    pub behind: u64,
    /// Messages that were read and are not processed; once the source has ended, those that were dropped
    /// because the time of its shutdown was over, or that it was processing then:
    /// `order_stream_unprocessed`.
    pub unfinished: u64,
}

#[derive(Debug)]
pub(crate) struct SourceCounters {
    pub(crate) state: Level,
    /// Messages that were passed on to be processed.
    read: AtomicU64,
    received: Counter,
    pub(crate) pooled: Count,
    pub(crate) known: Count,
    pub(crate) refused: Count,
    pub(crate) malformed: Count,
    bytes: Count,
    pub(crate) repeated: Count,
    pub(crate) holes: Count,
    pub(crate) missed: Count,
    pub(crate) resets: Count,
    pub(crate) connects: Count,
    pub(crate) behind: Level,
    unprocessed: Gauge,
}

impl SourceCounters {
    pub(crate) fn new(flow: Flow) -> Self {
        describe();
        let flow = flow.as_str();
        let count = |name: &'static str| Count::new(counter!(name, "flow" => flow));
        let delivered = |outcome: &'static str| {
            let name = "order_stream_delivered_total";
            Count::new(counter!(name, "flow" => flow, "outcome" => outcome))
        };
        let side = "source";
        let state = gauge!("order_stream_state", "flow" => flow, "side" => side);
        let connects = counter!("order_stream_connects_total", "flow" => flow, "side" => side);
        Self {
            state: Level::new(state),
            read: AtomicU64::new(0),
            received: counter!("order_stream_received_total", "flow" => flow),
            pooled: delivered("pooled"),
            known: delivered("known"),
            refused: delivered("refused"),
            malformed: delivered("malformed"),
            bytes: count("order_stream_received_bytes_total"),
            repeated: count("order_stream_repeated_total"),
            holes: count("order_stream_holes_total"),
            missed: count("order_stream_missed_total"),
            resets: count("order_stream_stream_resets_total"),
            connects: Count::new(connects),
            behind: Level::new(gauge!("order_stream_behind", "flow" => flow)),
            unprocessed: gauge!("order_stream_unprocessed", "flow" => flow),
        }
    }

    /// A message is passed on to be processed.
    pub(crate) fn read(&self) {
        // Relaxed: no other memory is published through it.
        self.read.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_total(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// A message was processed, with one of the four outcomes.
    pub(crate) fn processed(&self, outcome: &Count, bytes: usize) {
        self.bytes.add(bytes as u64);
        self.received.increment(1);
        outcome.add(1);
    }

    /// Messages that were read and are not processed, which the exporter is told.
    pub(crate) fn show_unfinished(&self) -> u64 {
        let unfinished = self.stats().unfinished;
        self.unprocessed.set(unfinished as f64);
        unfinished
    }

    pub(crate) fn stats(&self) -> SourceStats {
        let (pooled, known) = (self.pooled.get(), self.known.get());
        let (refused, malformed) = (self.refused.get(), self.malformed.get());
        let received = pooled + known + refused + malformed;
        SourceStats {
            received,
            pooled,
            known,
            refused,
            malformed,
            bytes: self.bytes.get(),
            repeated: self.repeated.get(),
            holes: self.holes.get(),
            missed: self.missed.get(),
            resets: self.resets.get(),
            connects: self.connects.get(),
            behind: self.behind.value.load(Relaxed),
            // Messages are counted before their outcomes, and seldom another thread sees it in another order.
            unfinished: self.read_total().saturating_sub(received),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_has_read_is_processed_or_unfinished() {
        let counters = SourceCounters::new(Flow::Public);
        let outcomes = [&counters.pooled, &counters.known, &counters.refused, &counters.malformed];
        for outcome in outcomes {
            counters.read();
            assert_eq!(counters.show_unfinished(), 1);
            counters.processed(outcome, 10);
        }
        // The shutdown is over: two are in the queue, and the third is being processed.
        (0..3).for_each(|_| counters.read());
        let stats = counters.stats();
        assert_eq!((stats.received, stats.unfinished, stats.bytes), (4, 3, 40));
        assert_eq!((stats.pooled, stats.known, stats.refused, stats.malformed), (1, 1, 1, 1));
    }
}
