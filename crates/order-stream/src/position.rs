//! Tracks the position of a source in its stream: which message comes next, and which are missing.
//! Pure.
//!
//! The creation time and the first sequence number do not suffice to recognise a stream. A stream
//! that lost its messages keeps both and fills the same sequence numbers again, so the latest
//! processed message is compared too; without that,
//! `a_stream_that_lost_everything_and_grew_again_is_read_anew` fails.

use async_nats::jetstream::stream::Info;

/// What to do with a message that the consumer delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Process it. The stream no longer has `missed` messages before it.
    Process { missed: u64 },
    /// It was processed before. It shows that the stream is still the same.
    AlreadyProcessed,
    /// The consumer has left out a message. Read again from [`Position::start`].
    Gap,
    /// The stream has another message at a sequence number that was processed: it lost its end and
    /// was filled again. Read it from its start.
    Rewritten,
}

/// The sequence numbers of a delivered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// The sequence number in the stream.
    pub(crate) stream_sequence: u64,
    /// The number among the messages that its consumer has delivered, from 1.
    pub(crate) consumer_sequence: u64,
    /// When the server stored the message, in nanoseconds since the Unix epoch.
    pub(crate) stored_at: i128,
}

/// What the server reports about the messages of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// When the stream was created, in nanoseconds since the Unix epoch.
    pub(crate) created: i128,
    /// The sequence number of its oldest message.
    pub(crate) first: u64,
    /// The sequence number of the latest message that it ever had.
    pub(crate) last: u64,
    /// How many messages it holds.
    pub(crate) messages: u64,
}

impl From<&Info> for Extent {
    fn from(Info { created, state, .. }: &Info) -> Self {
        Self {
            created: created.unix_timestamp_nanos(),
            first: state.first_sequence,
            last: state.last_sequence,
            messages: state.messages,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    /// The sequence number of the next message; 0 before anything is known, which stands for the
    /// oldest message, whatever its number is.
    next: u64,
    /// When the message before `next` was stored, if it was processed.
    previous_stored_at: Option<i128>,
    /// How many messages the current consumer has delivered.
    delivered: u64,
    /// When the stream was created.
    created: Option<i128>,
    has_lifetimes: bool,
    /// Gaps below this sequence number are not counted as missed. Where messages have lifetimes of
    /// their own, a stream has gaps before anybody begins to read it.
    count_from: u64,
}

impl Position {
    /// Returns the position before the first message of a stream whose messages have lifetimes of
    /// their own, or not.
    pub(crate) fn new(has_lifetimes: bool) -> Self {
        Self { has_lifetimes, ..Self::default() }
    }

    /// Returns the sequence number to read from; `None` stands for the oldest message. The latest
    /// processed message is read again, to compare it.
    pub(crate) const fn start(&self) -> Option<u64> {
        match (self.next, self.previous_stored_at) {
            (0, _) => None,
            (next, None) => Some(next),
            (next, Some(_)) => Some(next - 1),
        }
    }

    /// Whether the stream was recreated or has lost its end. The extent must not be older than this
    /// position.
    pub(crate) fn is_reset(&self, extent: &Extent) -> bool {
        self.created.is_some_and(|created| created != extent.created)
            || self.next > extent.last.saturating_add(1)
    }

    /// Begins to read with a new consumer, for the first time or after a failure. Returns how many
    /// messages the stream no longer has, or `None` if it was reset, so that it is read from its
    /// start.
    pub(crate) fn begin(&mut self, extent: &Extent) -> Option<u64> {
        let is_reset = self.is_reset(extent);
        if is_reset {
            self.restart();
        }
        self.created = Some(extent.created);
        self.delivered = 0;
        if self.next == 0 && self.has_lifetimes {
            self.count_from = extent.last.saturating_add(1);
        }
        if self.next == 0 && extent.messages == 0 {
            self.next = extent.last.saturating_add(1);
        }
        let mut missed = 0;
        if self.next != 0 && extent.first > self.next {
            missed = extent.first - self.next;
            self.next = extent.first;
            self.previous_stored_at = None;
        }
        (!is_reset).then_some(missed)
    }

    /// Decides about a message that the consumer delivers. Consumer sequence numbers have no gaps.
    /// Stream sequence numbers have gaps where messages were deleted or have expired.
    pub(crate) fn on_delivery(&mut self, delivery: Delivery) -> Step {
        let sequence = delivery.stream_sequence;
        if delivery.consumer_sequence != self.delivered + 1 {
            return Step::Gap;
        }
        self.delivered += 1;
        let missed = if self.next == 0 {
            0
        } else if sequence.saturating_add(1) == self.next
            && self.previous_stored_at == Some(delivery.stored_at)
        {
            return Step::AlreadyProcessed;
        } else if sequence < self.next {
            self.restart();
            return Step::Rewritten;
        } else {
            sequence.saturating_sub(self.next.max(self.count_from))
        };
        self.next = sequence.saturating_add(1);
        self.previous_stored_at = Some(delivery.stored_at);
        Step::Process { missed }
    }

    /// The stream is read from its start again.
    fn restart(&mut self) {
        self.next = 0;
        self.previous_stored_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, last: u64) -> Extent {
        Extent { created: 1, first, last, messages: (last + 1).saturating_sub(first) }
    }

    /// A message that was stored at the time that equals its sequence number.
    fn delivery(stream_sequence: u64, consumer_sequence: u64) -> Delivery {
        Delivery { stream_sequence, consumer_sequence, stored_at: stream_sequence.into() }
    }

    const PROCESS: Step = Step::Process { missed: 0 };

    fn after_nine_messages() -> Position {
        let mut position = Position::default();
        assert_eq!(position.begin(&extent(1, 9)), Some(0));
        for sequence in 1..=9 {
            assert_eq!(position.on_delivery(delivery(sequence, sequence)), PROCESS);
        }
        position
    }

    #[test]
    fn a_new_source_begins_with_the_oldest_message_and_misses_none() {
        let mut position = Position::default();
        assert_eq!((position.begin(&extent(5, 9)), position.start()), (Some(0), None));
        assert_eq!(position.on_delivery(delivery(6, 1)), PROCESS, "the fifth has just expired");
        assert_eq!(position.on_delivery(delivery(7, 2)), PROCESS);
        assert_eq!(position.start(), Some(7), "the seventh is compared");
    }

    #[test]
    fn gaps_of_lifetimes_that_ended_before_the_start_are_not_counted() {
        for (has_lifetimes, missed_before_start) in [(true, 0), (false, 2)] {
            let mut position = Position::new(has_lifetimes);
            assert_eq!(position.begin(&extent(1, 9)), Some(0));
            let missed =
                [(1, 1), (4, 2), (12, 3), (15, 4)].map(|(sequence, number)| {
                    match position.on_delivery(delivery(sequence, number)) {
                        Step::Process { missed } => missed,
                        step => panic!("{step:?}"),
                    }
                });
            let across_the_start = if has_lifetimes { 2 } else { 7 };
            assert_eq!(missed, [0, missed_before_start, across_the_start, 2]);
        }
    }

    #[test]
    fn an_empty_stream_begins_with_its_next_message() {
        let mut position = Position::default();
        assert_eq!((position.begin(&extent(10, 9)), position.start()), (Some(0), Some(10)));
        assert_eq!(position.begin(&extent(12, 15)), Some(2), "two came and expired");
        assert_eq!(position.start(), Some(12));
        assert_eq!(position.on_delivery(delivery(12, 1)), PROCESS);
    }

    #[test]
    fn only_gaps_of_the_consumer_are_read_again() {
        let mut position = after_nine_messages();
        let after_two_deleted = position.on_delivery(delivery(12, 10));
        assert_eq!(after_two_deleted, Step::Process { missed: 2 });
        let without_the_eleventh_delivery = position.on_delivery(delivery(14, 12));
        assert_eq!(without_the_eleventh_delivery, Step::Gap);
        assert_eq!((position.begin(&extent(1, 20)), position.start()), (Some(0), Some(12)));
        let again = [delivery(12, 1), delivery(13, 2), delivery(14, 3)]
            .map(|delivery| position.on_delivery(delivery));
        assert_eq!(again, [Step::AlreadyProcessed, PROCESS, PROCESS]);
        assert_eq!(position.begin(&extent(18, 20)), Some(3), "it was away for too long");
        assert_eq!(position.start(), Some(18));
        assert_eq!(position.on_delivery(delivery(18, 1)), PROCESS);
    }

    #[test]
    fn a_recreated_or_shortened_stream_is_read_from_its_start() {
        for reset in [Extent { created: 2, ..extent(1, 20) }, extent(1, 5)] {
            let mut position = after_nine_messages();
            assert_eq!((position.is_reset(&reset), position.begin(&reset)), (true, None));
            assert_eq!(position.start(), None);
            assert_eq!(position.on_delivery(delivery(1, 1)), PROCESS);
        }
        let mut position = after_nine_messages();
        assert_eq!(position.begin(&Extent { created: 2, ..extent(4, 3) }), None);
        assert_eq!(position.start(), Some(4), "it is empty");
    }

    #[test]
    fn a_shortened_stream_that_grew_again_is_read_from_its_start() {
        let mut position = after_nine_messages();
        // It is as long as before or longer, so its extent does not show the loss.
        assert_eq!((position.begin(&extent(1, 12)), position.start()), (Some(0), Some(9)));
        let other = Delivery { stored_at: 99, ..delivery(9, 1) };
        assert_eq!(position.on_delivery(other), Step::Rewritten);
        assert_eq!((position.begin(&extent(1, 12)), position.start()), (Some(0), None));
        assert_eq!(position.on_delivery(delivery(1, 1)), PROCESS);
        let mut position = after_nine_messages();
        let earlier = position.on_delivery(delivery(4, 10));
        assert_eq!(earlier, Step::Rewritten, "it happened while the stream was read");
    }
}
