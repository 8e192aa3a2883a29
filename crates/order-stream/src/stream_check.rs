//! Decides whether a stream still has the messages that it acknowledged to this publisher. Pure.
//!
//! The creation time and the first sequence number do not suffice. A stream that was rolled back
//! keeps both, so the message id at the highest acknowledged sequence number is compared too;
//! without that, `a_stream_that_was_rolled_back_and_grew_longer_gets_everything_again` fails.

use std::time::{Duration, Instant};

use crate::{
    clock::{ClockOffset, ServerClockReading},
    position::Extent,
};

/// A message that the stream has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) sequence: u64,
    pub(crate) message_id: String,
    /// When it was acknowledged; `None` for a duplicate, whose age is not known.
    pub(crate) stored_at: Option<Instant>,
    /// How long the stream keeps it; `None` stands for the age of the stream.
    pub(crate) lifetime: Option<Duration>,
}

/// What the server reports about the stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamReport {
    pub(crate) extent: Extent,
    pub(crate) max_age: Duration,
    /// Whether messages may leave the stream because it is full.
    pub(crate) is_full: bool,
    /// The acknowledged message with the highest sequence number when the server was asked. Later
    /// messages may have been acknowledged before the server responded.
    pub(crate) highest_when_asked: Option<Acknowledged>,
    /// The id of the message that the stream now has at that sequence number, if the server
    /// returned one.
    pub(crate) id_at_sequence: Option<String>,
    pub(crate) clock_offset: ClockOffset,
    pub(crate) server_clock: Option<ServerClockReading>,
}

/// What the publisher knows about the stream from its acknowledgements.
#[derive(Debug, Default)]
pub(crate) struct StreamCheck {
    created: Option<i128>,
    pub(crate) highest: Option<Acknowledged>,
    /// A message that the stream must still have until it expires: the highest one at a check, or
    /// the first one acknowledged since. Never a duplicate, whose age is not known: the slower of
    /// two machines would then not notice a purge.
    witness: Option<Acknowledged>,
}

impl StreamCheck {
    /// Records an acknowledgement.
    pub(crate) fn on_acknowledged(&mut self, message: Acknowledged) {
        if message.stored_at.is_some() && self.witness.is_none() {
            self.witness = Some(message.clone());
        }
        if self.highest.as_ref().is_none_or(|highest| highest.sequence < message.sequence) {
            self.highest = Some(message);
        }
    }

    /// Compares what the server reports with the acknowledgements. Returns whether the stream was
    /// recreated or has lost messages before their age. Then everything is to be published again.
    pub(crate) fn is_reset(&mut self, report: &StreamReport, now: Instant) -> bool {
        let created = report.extent.created;
        let is_other_stream =
            self.created.replace(created).is_some_and(|previous| previous != created);
        let is_reset = is_other_stream || has_lost_end(report) || self.is_purged(report, now);
        if is_reset {
            self.highest = None;
            self.witness = None;
        } else if let Some(highest) = &report.highest_when_asked
            && highest.stored_at.is_some()
        {
            self.witness = Some(highest.clone());
        }
        is_reset
    }

    /// Whether somebody purged the stream: the witness is gone, and neither its age nor a full
    /// stream explains it.
    fn is_purged(&self, report: &StreamReport, now: Instant) -> bool {
        let Some(witness) = &self.witness else { return false };
        let Some(stored_at) = witness.stored_at else { return false };
        let is_gone = witness.sequence < report.extent.first;
        let kept_for = witness.lifetime.map_or(report.max_age, |own| own.min(report.max_age));
        // A tenth of the age allows for the server's delay.
        let is_young = now.saturating_duration_since(stored_at) < kept_for.mul_f64(0.9);
        is_gone && is_young && !report.is_full
    }
}

/// Whether the stream ends before the highest acknowledged message, or has another message there.
fn has_lost_end(report: &StreamReport) -> bool {
    let Some(highest) = &report.highest_when_asked else { return false };
    let has_other_id = report.id_at_sequence.as_ref().is_some_and(|id| *id != highest.message_id);
    highest.sequence > report.extent.last || has_other_id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, is_new: bool, now: Instant) -> Acknowledged {
        let stored_at = is_new.then_some(now);
        Acknowledged { sequence, message_id: sequence.to_string(), stored_at, lifetime: None }
    }

    fn report(check: &StreamCheck, created: i128, first: u64, last: u64) -> StreamReport {
        StreamReport {
            extent: Extent { created, first, last, messages: 0 },
            max_age: Duration::from_secs(60),
            is_full: false,
            highest_when_asked: check.highest.clone(),
            id_at_sequence: None,
            clock_offset: ClockOffset::default(),
            server_clock: None,
        }
    }

    #[test]
    fn a_report_older_than_the_latest_acknowledgements_shows_no_reset() {
        let (mut check, now) = (StreamCheck::default(), Instant::now());
        assert!(!check.is_reset(&report(&check, 1, 1, 10), now));
        check.on_acknowledged(message(20, true, now));
        let early = report(&check, 1, 1, 25);
        check.on_acknowledged(message(30, true, now));
        assert!(!check.is_reset(&early, now), "it had 25 when it responded");
        assert!(check.is_reset(&report(&check, 1, 1, 25), now), "it has lost its end");
        assert!(!check.is_reset(&report(&check, 1, 1, 25), now), "it is reported once");
        assert!(check.is_reset(&report(&check, 2, 1, 25), now), "it was recreated");
    }

    /// Whether a stream whose only message left it `seconds` after its acknowledgement was reset.
    fn is_reset_after(seconds: u64, is_new: bool, is_full: bool) -> bool {
        is_reset_with_lifetime(seconds, is_new, is_full, None)
    }

    fn is_reset_with_lifetime(
        seconds: u64,
        is_new: bool,
        is_full: bool,
        lifetime: Option<Duration>,
    ) -> bool {
        let (mut check, now) = (StreamCheck::default(), Instant::now());
        check.on_acknowledged(Acknowledged { lifetime, ..message(20, is_new, now) });
        let report = StreamReport { is_full, ..report(&check, 1, 21, 20) };
        check.is_reset(&report, now + Duration::from_secs(seconds))
    }

    /// The slower of two machines forgot the message that it had stored.
    #[test]
    fn a_purge_is_noticed_after_the_acknowledgement_of_a_duplicate() {
        let (mut check, now) = (StreamCheck::default(), Instant::now());
        check.on_acknowledged(message(20, true, now));
        check.on_acknowledged(message(21, false, now));
        assert!(!check.is_reset(&report(&check, 1, 1, 21), now));
        let later = now + Duration::from_secs(1);
        assert!(check.is_reset(&report(&check, 1, 22, 21), later), "both are gone");
    }

    #[test]
    fn messages_that_left_by_age_or_size_show_no_purge() {
        assert!(is_reset_after(1, true, false), "purged");
        assert!(!is_reset_after(60, true, false), "by age");
        assert!(!is_reset_after(1, true, true), "by size");
        assert!(!is_reset_after(1, false, false), "the age of a duplicate is not known");
        let with_lifetime = |seconds, lifetime| {
            is_reset_with_lifetime(seconds, true, false, Some(Duration::from_secs(lifetime)))
        };
        assert!(!with_lifetime(20, 20), "by its own lifetime");
        assert!(with_lifetime(10, 20), "purged before its own lifetime");
        assert!(!with_lifetime(60, 900), "the stream keeps it for less");
    }
}
