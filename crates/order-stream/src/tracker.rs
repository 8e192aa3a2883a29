//! The position in one stream: what comes next, and what is missing. Pure.

/// How often a gap is asked for before its messages count as missed: once more than a consumer that another
/// process has moved explains.
const MAX_ASKS: u32 = 2;

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Deliver,
    /// It was delivered before.
    Repeated,
    /// Messages before it are missing: read again from [`Tracker::next`].
    Hole,
    /// The stream does not have this many messages before it. Deliver it.
    Missed(u64),
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

#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// 0 until anything is known: the oldest message, whatever its number.
    next: u64,
    asked: u32,
    created: Option<i128>,
}

impl Tracker {
    /// The sequence number to read from; `None` is from the oldest.
    pub(crate) const fn next(&self) -> Option<u64> {
        if self.next == 0 { None } else { Some(self.next) }
    }

    /// Reading begins, for the first time or after a loss.
    pub(crate) fn begin(&mut self, extent: Extent) -> Begun {
        let Extent { created, first, last, messages } = extent;
        let is_other = self.created.is_some_and(|before| before != created);
        // A stream may also lose its end, if its only server did.
        let reset = is_other || self.next > last.saturating_add(1);
        self.created = Some(created);
        if reset {
            (self.next, self.asked) = (0, 0);
        }
        if self.next == 0 && messages == 0 {
            self.next = last.saturating_add(1);
        }
        let mut missed = 0;
        if self.next != 0 && first > self.next {
            missed = first - self.next;
            self.next = first;
        }
        let behind = match self.next {
            0 => messages,
            next => last.saturating_add(1).saturating_sub(next),
        };
        Begun { reset, missed, behind }
    }

    /// A message of the stream.
    pub(crate) fn on(&mut self, sequence: u64) -> Step {
        let missed = match self.next {
            0 => 0,
            next if sequence < next => return Step::Repeated,
            next => sequence - next,
        };
        if missed > 0 && self.asked < MAX_ASKS {
            self.asked += 1;
            return Step::Hole;
        }
        (self.next, self.asked) = (sequence.saturating_add(1), 0);
        if missed > 0 { Step::Missed(missed) } else { Step::Deliver }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, last: u64) -> Extent {
        Extent { created: 1, first, last, messages: (last + 1).saturating_sub(first) }
    }

    #[test]
    fn a_new_reader_begins_with_the_oldest_message_and_misses_nothing() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.begin(extent(5, 9)), Begun { behind: 5, ..Begun::default() });
        assert_eq!(tracker.next(), None);
        assert_eq!(tracker.on(6), Step::Deliver, "the fifth has expired meanwhile");
        assert_eq!(tracker.on(7), Step::Deliver);
        assert_eq!(tracker.on(6), Step::Repeated);
        assert_eq!(tracker.next(), Some(8));
    }

    #[test]
    fn an_empty_stream_begins_with_its_next_message() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.begin(extent(10, 9)), Begun::default());
        assert_eq!(tracker.next(), Some(10));
        let found = tracker.begin(extent(12, 15));
        assert_eq!(found, Begun { missed: 2, behind: 4, reset: false }, "two came and expired");
    }

    #[test]
    fn a_hole_is_asked_for_and_counts_as_missed_only_if_it_stays() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        assert_eq!(tracker.on(1), Step::Deliver);
        assert_eq!(tracker.on(4), Step::Hole);
        assert_eq!(tracker.next(), Some(2));
        assert_eq!(
            [2, 3, 4].map(|sequence| tracker.on(sequence)),
            [Step::Deliver; 3],
            "there it was"
        );
        assert_eq!(tracker.on(7), Step::Hole);
        assert_eq!(tracker.on(7), Step::Hole);
        assert_eq!(tracker.on(7), Step::Missed(2));
        assert_eq!(tracker.on(8), Step::Deliver);
    }

    #[test]
    fn a_stream_that_was_made_anew_or_lost_its_end_is_read_from_its_start() {
        let mut tracker = Tracker::default();
        tracker.begin(extent(1, 9));
        (1..=9).for_each(|sequence| assert_eq!(tracker.on(sequence), Step::Deliver));
        assert_eq!(tracker.begin(extent(1, 9)), Begun::default());
        let anew = Extent { created: 2, ..extent(1, 20) };
        assert_eq!(tracker.begin(anew), Begun { reset: true, missed: 0, behind: 20 });
        assert_eq!(tracker.on(1), Step::Deliver);
        let shorter = Extent { created: 2, ..extent(1, 0) };
        assert_eq!(tracker.begin(shorter), Begun { reset: true, missed: 0, behind: 0 });
        assert_eq!(tracker.next(), Some(1));
    }
}
