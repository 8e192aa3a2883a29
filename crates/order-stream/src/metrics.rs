//! The metrics of publishers and sources, also as plain counts for the process itself.

use load_control::metric_set;
use metrics::Label;

use crate::config::Flow;

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. Each has the label `flow`:
    /// public or private.
    pub const METRICS;

    #[derive(Debug)]
    pub(crate) struct PublisherCounters {
        gauge state[1] = "order_stream_state", Count,
            "state, by `side`: publisher, source (`State::code`)",
            "side": ["publisher"];
        gauge clock_offset[1] = "order_stream_clock_offset_seconds", Seconds,
            "by how much this machine's clock is ahead of the server's, by `side`",
            "side": ["publisher"];
        count connects[1] = "order_stream_connects_total", Count,
            "connections that were opened, by `side`",
            "side": ["publisher"];
        count published = "order_stream_published_total", Count,
            "different messages; a repeated order is one, an attempt to publish again is not";
        count repeated = "order_stream_repeated_total", Count,
            "of them, orders that the pool still holds 30 s after they were published";
        counter bytes = "order_stream_published_bytes_total", Bytes, "their payload";
        count acknowledged[2] = "order_stream_acknowledged_total", Count,
            "messages that the stream has, by `outcome`: stored, duplicate",
            "outcome": ["stored", "duplicate"];
        count refused[RefuseReason::ALL.len()] = "order_stream_refused_total", Count,
            "messages that were given up, by `reason` (`RefuseReason::ALL`)",
            "reason": RefuseReason::ALL;
        gauge unfinished = "order_stream_unfinished", Count,
            "messages that are not acknowledged, and orders of the pool that wait for a connection";
        level unpublished = "order_stream_unpublished", Count,
            "orders of the pool that wait for a connection";
        level waiting = "order_stream_waiting", Count,
            "orders and cancellations of unknown callers that are not published yet";
        count unsent = "order_stream_unsent_total", Count,
            "orders of unknown callers that left the pool while they waited, and cancellations \
             without room to wait";
        count republished = "order_stream_republished_total", Count,
            "messages published once more because the stream may not have them";
        count lost_events = "order_stream_lost_events_total", Count,
            "events that left the pool's log before they were read";
        count comparisons = "order_stream_comparisons_total", Count, "comparisons with the pool";
        count resets = "order_stream_stream_resets_total", Count,
            "streams that were found to have lost messages";
    }

    #[derive(Debug)]
    pub(crate) struct SourceCounters {
        gauge state[1] = "order_stream_state", Count,
            "state, by `side`: publisher, source (`State::code`)",
            "side": ["source"];
        gauge clock_offset[1] = "order_stream_clock_offset_seconds", Seconds,
            "by how much this machine's clock is ahead of the server's, by `side`",
            "side": ["source"];
        count connects[1] = "order_stream_connects_total", Count,
            "connections that were opened, by `side`",
            "side": ["source"];
        count delivered[Delivered::ALL.len()] = "order_stream_delivered_total", Count,
            "messages of the stream, by `outcome`: pooled, known, superseded, refused, malformed",
            "outcome": Delivered::ALL.map(Delivered::as_str);
        count missed = "order_stream_missed_total", Count,
            "messages that left the stream before they were read";
        count cut = "order_stream_cut_total", Count,
            "how often a stream that was read from its start had deleted messages for space";
        count resets = "order_stream_stream_resets_total", Count,
            "streams that were found to have lost messages";
        level behind = "order_stream_behind", Count,
            "messages of the stream that are not read yet";
    }
}

/// Why a message that was published is given up. A message that cannot be stored for the time
/// being, because the stream is full or the subject denied, is not refused: it stays unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefuseReason {
    /// It is larger than the server's `max_payload` or the stream's limit.
    TooLarge,
    /// The stream rejected it for another reason, which is logged.
    Rejected,
    /// It is a head far below a new head, and must not be stored behind it. The stream may have it.
    Withdrawn,
}

impl RefuseReason {
    /// The labels of `order_stream_refused_total`, in the order of the variants and of
    /// [`PublisherStats::refused`].
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

/// The counts of a [`Publisher`](crate::Publisher) so far. At all times
/// `published + unpublished = stored + duplicate + refused + unfinished`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublisherStats {
    /// Different messages: `order_stream_published_total`. An order that is
    /// [repeated](Self::repeated) is one of its own; another attempt to publish a message
    /// ([`Self::republished`]) is not.
    pub published: u64,
    /// How many of [`Self::published`] repeat an order that the pool still holds 30 s after it was
    /// published: `order_stream_repeated_total`.
    pub repeated: u64,
    /// Messages that the stream stored from this publisher:
    /// `order_stream_acknowledged_total{outcome="stored"}`.
    pub stored: u64,
    /// Messages that the stream had already, from another machine or from this one:
    /// `order_stream_acknowledged_total{outcome="duplicate"}`.
    pub duplicate: u64,
    /// Messages that were given up, by the reasons of [`RefuseReason::ALL`]:
    /// `order_stream_refused_total`.
    pub refused: [u64; RefuseReason::ALL.len()],
    /// Messages that are published and not acknowledged yet, and [`Self::unpublished`]:
    /// `order_stream_unfinished`.
    pub unfinished: u64,
    /// Orders of the pool that wait for a connection, for instance behind a refused login, as of
    /// the latest attempt to connect. 0 while there is a connection. `order_stream_unpublished`.
    pub unpublished: u64,
    /// Orders and cancellations of unknown callers that wait in the fair queue and are not
    /// published yet: `order_stream_waiting`.
    pub waiting: u64,
    /// Orders that left the pool while they waited, and cancellations for which the fair queue had
    /// no room. They are not published. Orders that were replaced or cancelled, or became public as
    /// far as the publisher knows, are not counted, nor are those that another caller had sent
    /// before, because they are published for that one. `order_stream_unsent_total`.
    pub unsent: u64,
    /// How often a message was published once more because the stream may not have it:
    /// `order_stream_republished_total`.
    pub republished: u64,
    /// Events that left the pool's log before they were read. A comparison follows.
    /// `order_stream_lost_events_total`.
    pub lost_events: u64,
    /// Comparisons with the pool, including one for each connection:
    /// `order_stream_comparisons_total`.
    pub comparisons: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
    /// How often the stream was found to have lost messages: `order_stream_stream_resets_total`.
    pub resets: u64,
}

impl PublisherStats {
    /// Returns the sum of [`Self::refused`].
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }
}

/// Returns the label that every metric of a flow has.
pub(crate) const fn flow_label(flow: Flow) -> Label {
    Label::from_static_parts("flow", flow.as_str())
}

impl PublisherCounters {
    pub(crate) fn stats(&self) -> PublisherStats {
        let [stored, duplicate] = self.acknowledged.each_ref().map(metric_set::Count::get);
        let refused = self.refused.each_ref().map(metric_set::Count::get);
        // It is read last: a message is counted here before its outcome is.
        let published = self.published.get();
        let finished = stored + duplicate + refused.iter().sum::<u64>();
        let unpublished = self.unpublished.get();
        PublisherStats {
            published: published.max(finished),
            repeated: self.repeated.get(),
            stored,
            duplicate,
            refused,
            unfinished: published.saturating_sub(finished) + unpublished,
            unpublished,
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

/// The counts of a [`Source`](crate::Source) so far. At all times
/// `received = pooled + known + superseded + refused + malformed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStats {
    /// Messages that were processed: the sum of the next five counts.
    pub received: u64,
    /// Orders that the pool accepted, and cancellations and heads that took effect:
    /// `order_stream_delivered_total{outcome="pooled"}`.
    pub pooled: u64,
    /// Messages that the pool knew already: `order_stream_delivered_total{outcome="known"}`.
    pub known: u64,
    /// Bundles, private transactions and cancellations that the pool did not accept because it had
    /// received a later message of their key: `order_stream_delivered_total{outcome="superseded"}`.
    pub superseded: u64,
    /// Messages that the pool refused or the configuration excludes:
    /// `order_stream_delivered_total{outcome="refused"}`.
    pub refused: u64,
    /// Messages that cannot be decoded or contradict their id:
    /// `order_stream_delivered_total{outcome="malformed"}`.
    pub malformed: u64,
    /// Messages that left the stream before they were read, by age, by size or because somebody
    /// deleted them: `order_stream_missed_total`.
    pub missed: u64,
    /// How often a stream was read from its start, by a source that started or because the stream
    /// was reset, and had deleted its oldest messages for space. How many is not known.
    /// `order_stream_cut_total`.
    pub cut: u64,
    /// How often the stream was found to be reset or to have lost its end:
    /// `order_stream_stream_resets_total`.
    pub resets: u64,
    /// Connections that were opened: `order_stream_connects_total`.
    pub connects: u64,
    /// Messages of the stream that are not read yet, as of the latest message:
    /// `order_stream_behind`.
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
