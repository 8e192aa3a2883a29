//! Whether a stream is still the one that has stored this publisher's messages. Pure.

use std::time::{Duration, Instant};

use crate::{clock::ClockOffset, position::Extent};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) sequence: u64,
    pub(crate) message_id: String,
    /// When, if it was stored then; not if it was a duplicate.
    pub(crate) stored_at: Option<Instant>,
}

/// What the server says of the stream, and of what stands in it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) extent: Extent,
    pub(crate) max_age: Duration,
    /// Whether messages leave it because it is full.
    pub(crate) is_full: bool,
    /// The highest acknowledged message when the server was asked: others may have come before it responded.
    pub(crate) asked: Option<Acknowledged>,
    /// The id of the message in its place, if it was found.
    pub(crate) in_its_place: Option<String>,
    pub(crate) clock_offset: ClockOffset,
}

/// What is known of a stream by its acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    created: Option<i128>,
    pub(crate) highest: Option<Acknowledged>,
    /// The highest sequence number before this connection.
    before: u64,
    /// The message that was the highest at the latest comparison, or the first one since: it is to be there still.
    witness: Option<Acknowledged>,
}

impl Identity {
    /// A new connection, maybe to a server that has less.
    pub(crate) fn connected(&mut self) {
        self.before = self.highest.as_ref().map_or(0, |highest| highest.sequence);
    }

    /// The stream has a message. Returns whether it has lost its end: a new message stands where another one was stored
    /// before.
    pub(crate) fn acknowledged(&mut self, message: Acknowledged) -> bool {
        let is_reset = message.stored_at.is_some() && message.sequence <= self.before;
        if is_reset {
            (self.before, self.highest, self.witness) = (0, None, None);
        }
        if message.stored_at.is_some() && self.witness.is_none() {
            self.witness = Some(message.clone());
        }
        if self.highest.as_ref().is_none_or(|highest| highest.sequence < message.sequence) {
            self.highest = Some(message);
        }
        is_reset
    }

    /// Compares the stream with what it acknowledged. Returns whether it was made anew or has lost messages before their
    /// age: then it has to get everything again.
    pub(crate) fn is_reset(&mut self, found: &Found, now: Instant) -> bool {
        let created = found.extent.created;
        let is_other = self.created.replace(created).is_some_and(|before| before != created);
        let is_reset = is_other || self.has_lost(found, now);
        if is_reset {
            (self.before, self.highest, self.witness) = (0, None, None);
        } else if found.asked.is_some() {
            self.witness.clone_from(&found.asked);
        }
        is_reset
    }

    fn has_lost(&self, found: &Found, now: Instant) -> bool {
        let is_other = found.asked.as_ref().is_some_and(|asked| {
            let id = found.in_its_place.as_ref();
            asked.sequence > found.extent.last || id.is_some_and(|id| *id != asked.message_id)
        });
        // One that is gone has left by its age, since the stream was full, or because someone purged the stream.
        let is_purged = self.witness.as_ref().is_some_and(|witness| {
            let age = witness.stored_at.map(|at| now.saturating_duration_since(at));
            witness.sequence < found.extent.first
                && !found.is_full
                && age.is_some_and(|age| age < found.max_age.mul_f64(0.9))
        });
        is_other || is_purged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, is_new: bool, now: Instant) -> Acknowledged {
        let stored_at = is_new.then_some(now);
        Acknowledged { sequence, message_id: sequence.to_string(), stored_at }
    }

    fn found(identity: &Identity, created: i128, first: u64, last: u64) -> Found {
        let (max_age, asked) = (Duration::from_secs(60), identity.highest.clone());
        let extent = Extent { created, first, last, messages: 0 };
        let clock_offset = ClockOffset::default();
        Found { extent, max_age, is_full: false, asked, in_its_place: None, clock_offset }
    }

    #[test]
    fn a_stream_is_not_taken_for_another_because_the_response_came_behind_acknowledgements() {
        let (mut identity, now) = (Identity::default(), Instant::now());
        assert!(!identity.is_reset(&found(&identity, 1, 1, 10), now));
        identity.acknowledged(message(20, true, now));
        let early = found(&identity, 1, 1, 25);
        identity.acknowledged(message(30, true, now));
        assert!(!identity.is_reset(&early, now), "it had 25 when it responded");
        assert!(identity.is_reset(&found(&identity, 1, 1, 25), now), "it has lost its end");
        assert!(!identity.is_reset(&found(&identity, 1, 1, 25), now), "once");
        assert!(identity.is_reset(&found(&identity, 2, 1, 25), now), "it was made anew");
    }

    #[test]
    fn a_stream_that_was_purged_is_told_from_one_whose_messages_have_left_by_age_or_size() {
        let now = Instant::now();
        let is_reset = |change: &dyn Fn(&mut Found), is_new, later| {
            let mut identity = Identity::default();
            identity.acknowledged(message(20, is_new, now));
            let mut found = found(&identity, 1, 21, 20);
            change(&mut found);
            identity.is_reset(&found, now + Duration::from_secs(later))
        };
        assert!(is_reset(&|_| {}, true, 1), "purged");
        assert!(!is_reset(&|_| {}, true, 60), "by age");
        assert!(!is_reset(&|found| found.is_full = true, true, 1), "by size");
        assert!(!is_reset(&|_| {}, false, 1), "of a duplicate the age is not known");
    }

    #[test]
    fn a_new_message_in_the_place_of_an_older_one_shows_that_a_stream_has_lost_its_end() {
        let (mut identity, now) = (Identity::default(), Instant::now());
        assert!(!identity.acknowledged(message(1_000, true, now)), "of this connection");
        identity.connected();
        assert!(
            !identity.acknowledged(message(998, false, now)),
            "a duplicate may be an old message"
        );
        assert!(!identity.acknowledged(message(1_001, true, now)));
        assert!(identity.acknowledged(message(996, true, now)));
        assert!(!identity.acknowledged(message(997, true, now)), "once");
        assert_eq!(identity.highest.map(|highest| highest.sequence), Some(997));
    }
}
