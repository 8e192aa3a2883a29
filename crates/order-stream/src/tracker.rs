//! The position in one stream: what comes next, and what is missing. Pure.

/// After as many consumers in a row that brought nothing new, or left out the same messages, messages are read
/// without one: once more than a consumer that another process has moved explains.
const MAX_TRIES: u32 = 2;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Deliver,
    /// It is the latest one that was delivered: the stream is the one that it was.
    Latest,
    /// It was delivered before.
    Repeated,
    /// It stands where another one was delivered: the stream lost its end and was filled again. Read
    /// everything.
    Refilled,
    /// Messages before it are missing: read again from [`Tracker::start`].
    Hole,
    /// The stream does not have this many messages before it. Deliver it.
    Missed(u64),
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    /// When the server stored it, in any unit.
    pub(crate) stored: i128,
    /// Whether the stream itself was asked for the next message. A consumer can leave out some: it may have
    /// been moved, and the client hides messages with some headers.
    pub(crate) is_certain: bool,
}

/// The stream when reading begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// When it was made, in any unit.
    pub(crate) created: i128,
    /// The sequence number of its oldest message.
    pub(crate) first: u64,
    /// That of the latest message that it ever had.
    pub(crate) last: u64,
    pub(crate) messages: u64,
}

/// What [`Tracker::begin`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    /// The stream was made anew: everything in it is read.
    pub(crate) reset: bool,
    /// Messages that it no longer has.
    pub(crate) missed: u64,
    /// Messages that it has and that are to be read.
    pub(crate) behind: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker {
    /// 0 until anything is known: the oldest message, whatever its number.
    next: u64,
    /// When the message before `next` was stored, if a consumer brought it: then it can again.
    latest: Option<i128>,
    /// Consumers in a row that brought nothing new.
    tries: u32,
    /// Of the stream when reading began.
    created: Option<i128>,
    last: u64,
}

impl Tracker {
    /// The sequence number to read from, that of the latest message again if it can be compared; `None` is
    /// from the oldest.
    pub(crate) const fn start(&self) -> Option<u64> {
        match (self.next, self.latest) {
            (0, _) => None,
            (next, None) => Some(next),
            (next, Some(_)) => Some(next - 1),
        }
    }

    /// Reading begins, for the first time or after a loss.
    pub(crate) fn begin(&mut self, extent: Extent) -> Begun {
        let Extent { created, first, last, messages } = extent;
        let is_other = self.created.is_some_and(|before| before != created);
        // A stream may also lose its end, if its only server did.
        let reset = is_other || self.next > last.saturating_add(1);
        if reset {
            self.reset();
        }
        (self.created, self.last) = (Some(created), last);
        if self.next == 0 && messages == 0 {
            self.next = last.saturating_add(1);
        }
        let mut missed = 0;
        if self.next != 0 && first > self.next {
            missed = first - self.next;
            (self.next, self.latest) = (first, None);
        }
        let behind = match self.next {
            0 => messages,
            next => last.saturating_add(1).saturating_sub(next),
        };
        Begun { reset, missed, behind }
    }

    fn reset(&mut self) {
        (self.next, self.latest, self.tries) = (0, None, 0);
    }

    /// A consumer is used: in vain, until it brings something new. Those of a stream without `pending` messages
    /// count as one.
    pub(crate) const fn try_consumer(&mut self, pending: u64) {
        self.tries = if pending > 0 { self.tries.saturating_add(1) } else { 1 };
    }

    /// Whether consumers have been tried in vain.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.tries >= MAX_TRIES
    }

    /// A consumer does not bring what the stream should have.
    pub(crate) const fn give_up_consumer(&mut self) {
        self.tries = MAX_TRIES;
    }

    /// The stream itself has nothing more to read. Returns how many messages it had when reading began.
    pub(crate) fn at_end(&mut self) -> u64 {
        let end = self.last.saturating_add(1).max(self.next);
        let missed = if self.next == 0 { 0 } else { end - self.next };
        (self.next, self.latest, self.tries) = (end, None, 0);
        missed
    }

    /// A message of the stream.
    pub(crate) fn on(&mut self, place: Place) -> Step {
        let Place { sequence, stored, is_certain } = place;
        let latest = (!is_certain).then_some(stored);
        let missed = match self.next {
            0 => 0,
            next if sequence.saturating_add(1) == next && self.latest.is_some() => {
                if self.latest != Some(stored) {
                    self.reset();
                    return Step::Refilled;
                }
                self.latest = latest;
                return Step::Latest;
            }
            next if sequence < next => return Step::Repeated,
            next => sequence - next,
        };
        if missed > 0 && !is_certain && self.tries <= MAX_TRIES {
            self.tries = self.tries.max(1);
            return Step::Hole;
        }
        (self.next, self.latest, self.tries) = (sequence.saturating_add(1), latest, 0);
        if missed > 0 { Step::Missed(missed) } else { Step::Deliver }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, last: u64) -> Extent {
        Extent { created: 1, first, last, messages: (last + 1).saturating_sub(first) }
    }

    /// A message that a consumer brings, stored at the time of its number.
    fn at(sequence: u64) -> Place {
        Place { sequence, stored: sequence.into(), is_certain: false }
    }

    #[test]
    fn a_new_reader_begins_with_the_oldest_message_and_misses_nothing() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.begin(extent(5, 9)), Begun { behind: 5, ..Begun::default() });
        assert_eq!(tracker.start(), None);
        assert_eq!(tracker.on(at(6)), Step::Deliver, "the fifth has expired meanwhile");
        assert_eq!(tracker.on(at(7)), Step::Deliver);
        assert_eq!(tracker.on(at(6)), Step::Repeated);
        assert_eq!(tracker.start(), Some(7), "the seventh is compared");
    }

    #[test]
    fn an_empty_stream_begins_with_its_next_message() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.begin(extent(10, 9)), Begun::default());
        assert_eq!(tracker.start(), Some(10));
        let found = tracker.begin(extent(12, 15));
        assert_eq!(found, Begun { missed: 2, behind: 4, reset: false }, "two came and expired");
    }

    #[test]
    fn a_hole_is_asked_for_twice_and_then_the_stream_itself() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        tracker.try_consumer(1);
        assert_eq!(tracker.on(at(1)), Step::Deliver);
        assert_eq!(tracker.on(at(4)), Step::Hole);
        assert_eq!(tracker.start(), Some(1));
        tracker.try_consumer(1);
        assert_eq!(
            [1, 2, 3, 4].map(|sequence| tracker.on(at(sequence))),
            [Step::Latest, Step::Deliver, Step::Deliver, Step::Deliver],
            "there they were"
        );
        assert_eq!(tracker.on(at(7)), Step::Hole);
        tracker.try_consumer(1);
        assert_eq!((tracker.on(at(4)), tracker.on(at(7))), (Step::Latest, Step::Hole));
        assert!(tracker.is_stuck());
        let single = Place { is_certain: true, ..at(6) };
        assert_eq!(tracker.clone().on(single), Step::Missed(1), "the sixth was hidden");
        // Without the right to ask the stream, a third consumer decides.
        tracker.try_consumer(1);
        assert_eq!((tracker.on(at(4)), tracker.on(at(7))), (Step::Latest, Step::Missed(2)));
        assert_eq!(tracker.on(at(8)), Step::Deliver);
    }

    #[test]
    fn two_consumers_that_bring_nothing_new_are_enough() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        for sequence in 1..=3 {
            tracker.try_consumer(1);
            assert!(!tracker.is_stuck());
            assert_eq!(tracker.on(at(sequence)), Step::Deliver, "each brings something new");
        }
        tracker.try_consumer(1);
        assert_eq!(tracker.on(at(3)), Step::Latest, "nothing new");
        assert!(!tracker.is_stuck());
        (0..3).for_each(|_| tracker.try_consumer(0));
        assert!(!tracker.is_stuck(), "connections were lost while there was nothing to bring");
        tracker.try_consumer(1);
        assert!(tracker.is_stuck());
        // A consumer might fail again with what was read without one: it is not compared.
        assert_eq!(tracker.on(Place { is_certain: true, ..at(3) }), Step::Latest);
        assert_eq!(tracker.start(), Some(4));
        assert_eq!(tracker.on(Place { is_certain: true, ..at(4) }), Step::Deliver);
        assert_eq!((tracker.start(), tracker.is_stuck()), (Some(5), false));
    }

    #[test]
    fn a_stream_that_was_made_anew_or_lost_its_end_is_read_from_its_start() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        (1..=9).for_each(|sequence| assert_eq!(tracker.on(at(sequence)), Step::Deliver));
        assert_eq!(tracker.begin(extent(1, 9)), Begun::default());
        let anew = Extent { created: 2, ..extent(1, 20) };
        assert_eq!(tracker.begin(anew), Begun { reset: true, missed: 0, behind: 20 });
        assert_eq!(tracker.on(at(1)), Step::Deliver);
        let shorter = Extent { created: 2, ..extent(1, 0) };
        assert_eq!(tracker.begin(shorter), Begun { reset: true, missed: 0, behind: 0 });
        assert_eq!(tracker.start(), Some(1));
    }

    #[test]
    fn a_stream_that_lost_its_end_and_was_filled_again_is_read_from_its_start() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        (1..=9).for_each(|sequence| assert_eq!(tracker.on(at(sequence)), Step::Deliver));
        // As long as before, or longer: its extent alone does not show it.
        assert_eq!(tracker.begin(extent(1, 12)), Begun { behind: 3, ..Begun::default() });
        assert_eq!(tracker.start(), Some(9));
        assert_eq!(tracker.on(Place { stored: 99, ..at(9) }), Step::Refilled);
        assert_eq!(tracker.begin(extent(1, 12)), Begun { behind: 12, ..Begun::default() });
        assert_eq!((tracker.start(), tracker.on(at(1))), (None, Step::Deliver));
    }

    #[test]
    fn the_latest_message_is_not_compared_when_the_stream_no_longer_has_it() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 3));
        (1..=3).for_each(|sequence| assert_eq!(tracker.on(at(sequence)), Step::Deliver));
        assert_eq!(tracker.begin(extent(6, 9)), Begun { missed: 2, behind: 4, reset: false });
        assert_eq!((tracker.start(), tracker.on(at(6))), (Some(6), Step::Deliver));
    }

    #[test]
    fn what_the_stream_no_longer_has_is_missed_once() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        tracker.try_consumer(1);
        assert_eq!(tracker.on(at(1)), Step::Deliver);
        tracker.give_up_consumer();
        assert!(tracker.is_stuck());
        // Expired meanwhile, or deleted behind the first.
        let mut other = tracker.clone();
        assert_eq!(other.begin(extent(10, 9)), Begun { missed: 8, behind: 0, reset: false });
        assert_eq!(tracker.at_end(), 8);
        for mut tracker in [tracker, other] {
            assert_eq!(tracker.begin(extent(1, 9)), Begun::default());
            assert_eq!((tracker.start(), tracker.at_end()), (Some(10), 0));
            assert_eq!(tracker.on(at(10)), Step::Deliver);
        }
        // A reader that has seen nothing misses nothing.
        let mut new = Tracker::default();
        new.begin(extent(1, 9));
        assert_eq!((new.at_end(), new.start()), (0, Some(10)));
    }
}
