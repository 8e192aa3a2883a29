//! Counters, for the process itself and through the `metrics` facade.

use load_control::metric_set;
use metrics::Label;

use crate::config::Flow;

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. Each has the label `flow`: public or private.
    pub const METRICS;

    #[derive(Debug)]
    pub(crate) struct PublisherCounters {
        gauge state[1] = "order_stream_state", Count, "state, by `side`: publisher, source (`State::code`)",
            "side": ["publisher"];
        gauge clock_offset[1] = "order_stream_clock_offset_seconds", Seconds,
            "by how much this machine's clock is ahead of the server's, by `side`", "side": ["publisher"];
        count connects[1] = "order_stream_connects_total", Count, "connections that were opened, by `side`",
            "side": ["publisher"];
        count published = "order_stream_published_total", Count, "messages published for the first time";
        counter bytes = "order_stream_published_bytes_total", Bytes, "their payload";
        count acknowledged[2] = "order_stream_acknowledged_total", Count,
            "messages that the stream has, by `outcome`: stored, duplicate", "outcome": ["stored", "duplicate"];
        count refused[RefuseReason::ALL.len()] = "order_stream_refused_total", Count,
            "messages that are not published again, by `reason` (`RefuseReason::ALL`)", "reason": RefuseReason::ALL;
        gauge unfinished = "order_stream_unfinished", Count, "messages that are published and not acknowledged";
        level waiting = "order_stream_waiting", Count,
            "orders and cancellations of callers of whom only the address is known, whose turn has not come";
        count unsent = "order_stream_unsent_total", Count,
            "of these, orders that left the pool before it, but for their sender, and cancellations that had no room to wait; not what another caller had sent before";
        count republished = "order_stream_republished_total", Count, "messages published once more";
        count lost_events = "order_stream_lost_events_total", Count, "events that left the pool's log unread";
        count comparisons = "order_stream_comparisons_total", Count, "comparisons with the pool";
        count resets = "order_stream_stream_resets_total", Count, "streams that were found to have lost messages";
    }

    #[derive(Debug)]
    pub(crate) struct SourceCounters {
        gauge state[1] = "order_stream_state", Count, "state, by `side`: publisher, source (`State::code`)",
            "side": ["source"];
        gauge clock_offset[1] = "order_stream_clock_offset_seconds", Seconds,
            "by how much this machine's clock is ahead of the server's, by `side`", "side": ["source"];
        count connects[1] = "order_stream_connects_total", Count, "connections that were opened, by `side`",
            "side": ["source"];
        count delivered[Delivered::ALL.len()] = "order_stream_delivered_total", Count,
            "messages of the stream, by `outcome`: pooled, known, superseded, refused, malformed",
            "outcome": Delivered::ALL.map(Delivered::as_str);
        count missed = "order_stream_missed_total", Count,
            "messages that the stream no longer had when they were to be read";
        count cut = "order_stream_cut_total", Count,
            "times that a stream was read from its start and had lost its oldest messages before their age, for space";
        count resets = "order_stream_stream_resets_total", Count, "streams that were found to have lost messages";
        level behind = "order_stream_behind", Count, "messages of the stream that are not read yet";
    }
}

/// Why a message that was published is not published again. What is not stored for the time being, because the
/// stream is full or the subject denied, is not refused: it stays unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefuseReason {
    /// It is longer than `max_payload` of the server or the limit of the stream.
    TooLarge,
    /// The stream refused it for another reason, which is logged.
    Rejected,
    /// It is a head that is far below a new one. The stream may have it.
    Withdrawn,
}

impl RefuseReason {
    /// The labels of `order_stream_refused_total`, in the order of the variants and of [`PublisherStats::refused`].
    pub const ALL: [&'static str; 3] = ["too_large", "rejected", "withdrawn"];
}

load_control::labels! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Delivered {
        Pooled = "pooled",
        Known = "known",
        Superseded = "superseded",
        Refused = "refused",
        Malformed = "malformed",
    }
}

/// The counts of a [`Publisher`](crate::Publisher) so far, for which always holds
/// `published = stored + duplicate + refused + unfinished`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherStats {
    /// Messages that were published for the first time: `order_stream_published_total`.
    pub published: u64,
    /// Of these, the stream stored this publisher's: `order_stream_acknowledged_total{outcome="stored"}`.
    pub stored: u64,
    /// Of these, the stream had the same message before, another machine's or this one's: `outcome="duplicate"`.
    pub duplicate: u64,
    /// Messages that are not published again, by the reasons of [`RefuseReason::ALL`]:
    /// `order_stream_refused_total`.
    pub refused: [u64; RefuseReason::ALL.len()],
    /// Messages that are not acknowledged yet: `order_stream_unfinished`.
    pub unfinished: u64,
    /// Orders and cancellations of callers of whom only the address is known, whose turn has not come: they are not published
    /// yet. `order_stream_waiting`.
    pub waiting: u64,
    /// Of these, orders that left the pool before their turn, neither replaced nor cancelled nor public as far as the publisher
    /// knows, and cancellations for which there was no room: they are not published. What another caller had sent before is
    /// published for that one, and not counted. `order_stream_unsent_total`.
    pub unsent: u64,
    /// Messages that were published once more: `order_stream_republished_total`.
    pub republished: u64,
    /// Events that left the pool's log unread; a comparison follows: `order_stream_lost_events_total`.
    pub lost_events: u64,
    /// Comparisons with the pool, one for each connection among them: `order_stream_comparisons_total`.
    pub comparisons: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
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

/// The label that every metric has.
pub(crate) const fn label(flow: Flow) -> Label {
    Label::from_static_parts("flow", flow.as_str())
}

impl PublisherCounters {
    pub(crate) fn stats(&self) -> PublisherStats {
        let [stored, duplicate] = self.acknowledged.each_ref().map(metric_set::Count::get);
        let refused = self.refused.each_ref().map(metric_set::Count::get);
        // Read last: each message is counted here before it has an outcome.
        let published = self.published.get();
        let finished = stored + duplicate + refused.iter().sum::<u64>();
        PublisherStats {
            published: published.max(finished),
            stored,
            duplicate,
            refused,
            unfinished: published.saturating_sub(finished),
            waiting: self.waiting.get(),
            unsent: self.unsent.get(),
            republished: self.republished.get(),
            lost_events: self.lost_events.get(),
            comparisons: self.comparisons.get(),
            connects: self.connects[0].get(),
            resets: self.resets.get(),
        }
    }
}

/// The counts of a [`Source`](crate::Source) so far, for which always holds
/// `received = pooled + known + superseded + refused + malformed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStats {
    /// Messages that were processed, the sum of the next five.
    pub received: u64,
    /// Orders that the pool accepted, and cancellations and heads that took effect:
    /// `order_stream_delivered_total{outcome="pooled"}`.
    pub pooled: u64,
    /// What the pool had before: `outcome="known"`.
    pub known: u64,
    /// Bundles, private transactions and cancellations that came behind a later message of their key, so that the pool
    /// did not take them: `outcome="superseded"`.
    pub superseded: u64,
    /// What the pool did not take, or the configuration does not let in: `outcome="refused"`.
    pub refused: u64,
    /// Messages that do not decode, or are not what they claim to be: `outcome="malformed"`.
    pub malformed: u64,
    /// Messages that the stream no longer had when they were to be read, by age, by size or because
    /// someone deleted them: `order_stream_missed_total`.
    pub missed: u64,
    /// Times that a stream was read from its start, by a source that started or because it is another one, and had lost its
    /// oldest messages before their age, for space. How many is not known: `order_stream_cut_total`.
    pub cut: u64,
    /// Times that the stream was found to be another, or to have lost its end: `order_stream_stream_resets_total`.
    pub resets: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
    /// Messages of the stream that are not read yet, as of the latest message: `order_stream_behind`.
    pub behind: u64,
}

impl SourceCounters {
    pub(crate) fn stats(&self) -> SourceStats {
        let delivered = self.delivered.each_ref().map(metric_set::Count::get);
        let [pooled, known, superseded, refused, malformed] = delivered;
        SourceStats {
            received: delivered.iter().sum(),
            pooled,
            known,
            superseded,
            refused,
            malformed,
            missed: self.missed.get(),
            cut: self.cut.get(),
            resets: self.resets.get(),
            connects: self.connects[0].get(),
            behind: self.behind.get(),
        }
    }
}
