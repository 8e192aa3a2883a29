//! The position in a stream: what comes next, and what is missing. Pure.

use async_nats::jetstream::stream::Info;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Deliver it. The stream no longer has this many messages before it.
    Deliver { missed: u64 },
    /// It is the latest one that was delivered: the stream is still the same.
    Latest,
    /// The consumer left something out: read again from [`Position::start`].
    Hole,
    /// Another message was delivered in its place: the stream lost its end and was filled again. Read everything.
    Refilled,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    /// Its number among the messages that its consumer has delivered, from 1.
    pub(crate) delivery: u64,
    /// When the server stored it, in nanoseconds.
    pub(crate) stored: i128,
}

/// What the server says of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// When it was made, in nanoseconds.
    pub(crate) created: i128,
    /// The sequence number of its oldest message.
    pub(crate) first: u64,
    /// That of the latest message that it ever had.
    pub(crate) last: u64,
    pub(crate) messages: u64,
}

impl From<&Info> for Extent {
    fn from(Info { created, state, .. }: &Info) -> Self {
        let (first, last, messages) = (state.first_sequence, state.last_sequence, state.messages);
        Self { created: created.unix_timestamp_nanos(), first, last, messages }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Position {
    /// 0 until anything is known: the oldest message, whatever its number.
    next: u64,
    /// When the message before `next` was stored, if it was delivered.
    latest: Option<i128>,
    /// Messages that the present consumer has delivered.
    delivered: u64,
    /// When the stream was made.
    created: Option<i128>,
}

impl Position {
    /// The sequence number to read from: that of the latest message again, which is compared; `None` is from the
    /// oldest.
    pub(crate) const fn start(&self) -> Option<u64> {
        match (self.next, self.latest) {
            (0, _) => None,
            (next, None) => Some(next),
            (next, Some(_)) => Some(next - 1),
        }
    }

    /// Whether this is another stream than before, or one that has lost its end.
    pub(crate) fn is_other(&self, extent: &Extent) -> bool {
        self.created.is_some_and(|created| created != extent.created)
            || self.next > extent.last.saturating_add(1)
    }

    /// Reading begins with a new consumer, for the first time or after a failure. Returns how many messages the stream no
    /// longer has, or `None` if it is another one, which is read from its start.
    pub(crate) fn begin(&mut self, extent: &Extent) -> Option<u64> {
        let is_other = self.is_other(extent);
        if is_other {
            (self.next, self.latest) = (0, None);
        }
        (self.created, self.delivered) = (Some(extent.created), 0);
        if self.next == 0 && extent.messages == 0 {
            self.next = extent.last.saturating_add(1);
        }
        let mut missed = 0;
        if self.next != 0 && extent.first > self.next {
            missed = extent.first - self.next;
            (self.next, self.latest) = (extent.first, None);
        }
        (!is_other).then_some(missed)
    }

    /// A message that the consumer delivers. Its numbers have no holes, while those of the stream have one where messages
    /// were deleted or have expired.
    pub(crate) fn on(&mut self, place: Place) -> Step {
        if place.delivery != self.delivered + 1 {
            return Step::Hole;
        }
        self.delivered += 1;
        let missed = match self.next {
            0 => 0,
            next if place.sequence.saturating_add(1) == next
                && self.latest == Some(place.stored) =>
            {
                return Step::Latest;
            }
            next if place.sequence < next => {
                (self.next, self.latest) = (0, None);
                return Step::Refilled;
            }
            next => place.sequence - next,
        };
        (self.next, self.latest) = (place.sequence.saturating_add(1), Some(place.stored));
        Step::Deliver { missed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, last: u64) -> Extent {
        Extent { created: 1, first, last, messages: (last + 1).saturating_sub(first) }
    }

    /// A message that was stored at the time of its number.
    fn at(sequence: u64, delivery: u64) -> Place {
        Place { sequence, delivery, stored: sequence.into() }
    }

    const NEXT: Step = Step::Deliver { missed: 0 };

    fn after_nine() -> Position {
        let mut position = Position::default();
        assert_eq!(position.begin(&extent(1, 9)), Some(0));
        (1..=9).for_each(|n| assert_eq!(position.on(at(n, n)), NEXT));
        position
    }

    #[test]
    fn a_new_source_begins_with_the_oldest_message_and_misses_nothing() {
        let mut position = Position::default();
        assert_eq!((position.begin(&extent(5, 9)), position.start()), (Some(0), None));
        assert_eq!(position.on(at(6, 1)), NEXT, "the fifth has expired meanwhile");
        assert_eq!(position.on(at(7, 2)), NEXT);
        assert_eq!(position.start(), Some(7), "the seventh is compared");
    }

    #[test]
    fn an_empty_stream_begins_with_its_next_message() {
        let mut position = Position::default();
        assert_eq!((position.begin(&extent(10, 9)), position.start()), (Some(0), Some(10)));
        assert_eq!(position.begin(&extent(12, 15)), Some(2), "two came and expired");
        assert_eq!((position.start(), position.on(at(12, 1))), (Some(12), NEXT));
    }

    #[test]
    fn what_the_stream_no_longer_has_is_missed_and_what_a_consumer_leaves_out_is_read_again() {
        let mut position = after_nine();
        assert_eq!(position.on(at(12, 10)), Step::Deliver { missed: 2 }, "two were deleted");
        assert_eq!(position.on(at(14, 12)), Step::Hole, "the eleventh delivery is missing");
        assert_eq!((position.begin(&extent(1, 20)), position.start()), (Some(0), Some(12)));
        let again = [at(12, 1), at(13, 2), at(14, 3)].map(|place| position.on(place));
        assert_eq!(again, [Step::Latest, NEXT, NEXT]);
        assert_eq!(position.begin(&extent(18, 20)), Some(3), "it was away for too long");
        assert_eq!((position.start(), position.on(at(18, 1))), (Some(18), NEXT));
    }

    #[test]
    fn a_stream_that_was_made_anew_or_lost_its_end_is_read_from_its_start() {
        for other in [Extent { created: 2, ..extent(1, 20) }, extent(1, 5)] {
            let mut position = after_nine();
            assert_eq!((position.is_other(&other), position.begin(&other)), (true, None));
            assert_eq!((position.start(), position.on(at(1, 1))), (None, NEXT));
        }
        let mut position = after_nine();
        assert_eq!(position.begin(&Extent { created: 2, ..extent(4, 3) }), None);
        assert_eq!(position.start(), Some(4), "and it is empty");
    }

    #[test]
    fn a_stream_that_lost_its_end_and_was_filled_again_is_read_from_its_start() {
        let mut position = after_nine();
        // As long as before, or longer: its extent alone does not show it.
        assert_eq!((position.begin(&extent(1, 12)), position.start()), (Some(0), Some(9)));
        assert_eq!(position.on(Place { stored: 99, ..at(9, 1) }), Step::Refilled);
        assert_eq!((position.begin(&extent(1, 12)), position.start()), (Some(0), None));
        assert_eq!(position.on(at(1, 1)), NEXT);
        let mut position = after_nine();
        assert_eq!(position.on(at(4, 10)), Step::Refilled, "while it was read");
    }
}
