//! What is published and not yet acknowledged. Pure: it takes answers and the time, and opens no socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use alloy_primitives::B256;

use crate::{backoff::Backoff, follow::Item, metrics::RefuseReason};

/// Before a message that another machine was publishing at the same moment is published again.
const IN_PROCESS_PAUSE: Duration = Duration::from_secs(1);

/// The oldest message is refused if the stream had no room for it as often, and stored others in between: it may be
/// larger than what ever becomes free.
const MAX_FULL: u32 = 8;

/// What the stream answers to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Stored,
    Duplicate,
    /// The same message is being stored for another publisher (JetStream error 10158); whether it will be is not
    /// known yet.
    InProcess,
    /// It is not stored now and may be later.
    Later(Trouble),
    Refused(RefuseReason),
}

/// How a message left the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Stored,
    Duplicate {
        /// It was published once, so another publisher's message came first. Otherwise it may be our own.
        by_another: bool,
    },
    Refused(RefuseReason),
}

/// Why the stream takes nothing on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    /// No leader, or a stopping server.
    Unavailable,
    /// The stream is at its limit, or the server's storage is full.
    Full,
    /// The user may not publish on the subject.
    Denied,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboxLimits {
    pub(crate) window: usize,
    pub(crate) window_bytes: usize,
    pub(crate) ack_timeout: Duration,
    pub(crate) backoff: Backoff,
}

#[derive(Debug)]
struct Slot {
    item: Item,
    id: B256,
    size: usize,
    attempts: u32,
    sent_at: Instant,
    /// When it is to be published again.
    due: Instant,
    /// How often the stream had no room for it, and how many messages it had stored when it last had none.
    full: (u32, u64),
}

/// The window of unacknowledged messages of one subject, in the order in which they were published first.
///
/// A message stays until the stream has it, or will never have it. While the stream takes nothing ([`Trouble`]), one
/// message at a time is published, after pauses that grow.
#[derive(Debug)]
pub(crate) struct Outbox {
    limits: OutboxLimits,
    slots: BTreeMap<u64, Slot>,
    by_due: BTreeSet<(Instant, u64)>,
    bytes: usize,
    next: u64,
    trouble: Option<Trouble>,
    /// Failures since the last good answer.
    failures: u32,
    closed_until: Option<Instant>,
    probe: Option<u64>,
    last_probe: u64,
    /// When the latest answer of any kind came.
    answered_at: Option<Instant>,
    good_answers: u64,
}

impl Outbox {
    pub(crate) const fn new(limits: OutboxLimits) -> Self {
        Self {
            limits,
            slots: BTreeMap::new(),
            by_due: BTreeSet::new(),
            bytes: 0,
            next: 0,
            trouble: None,
            failures: 0,
            closed_until: None,
            probe: None,
            last_probe: 0,
            answered_at: None,
            good_answers: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) const fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    /// When [`Self::has_room`] may be true, if no message tries a subject that takes nothing; `None` if one does.
    pub(crate) fn opens_after(&self, now: Instant) -> Option<Instant> {
        match self.trouble {
            None => Some(now),
            Some(_) if self.slots.is_empty() => {
                Some(self.closed_until.map_or(now, |until| until.max(now)))
            }
            Some(_) => None,
        }
    }

    pub(crate) fn holds(&self, is_it: impl Fn(&Item) -> bool) -> bool {
        self.slots.values().any(|slot| is_it(&slot.item))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= self.limits.window || self.bytes >= self.limits.window_bytes
    }

    /// Whether a new message may be published.
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        !self.is_full() && !self.is_closed(now) && (self.failures == 0 || self.slots.is_empty())
    }

    fn is_closed(&self, now: Instant) -> bool {
        self.closed_until.is_some_and(|until| now < until)
    }

    /// Takes a message that is being published for the first time. Returns its number.
    pub(crate) fn add(&mut self, item: Item, id: B256, size: usize, now: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        let due = now + self.limits.ack_timeout;
        let slot = Slot { item, id, size, attempts: 1, sent_at: now, due, full: (0, 0) };
        self.slots.insert(number, slot);
        self.by_due.insert((due, number));
        self.bytes += size;
        if self.failures > 0 {
            self.probe = Some(number);
        }
        number
    }

    /// A message that is to be published again now. It counts as published.
    pub(crate) fn next_due(&mut self, now: Instant, jitter: f64) -> Option<(u64, &Item, B256)> {
        if self.is_closed(now) {
            return None;
        }
        let number = if self.failures > 0 {
            match self.probe.and_then(|probe| self.slots.get(&probe)) {
                Some(probe) if probe.due <= now => {
                    self.close(self.trouble.unwrap_or(Trouble::Unavailable), now, jitter);
                    return None;
                }
                Some(_) => return None,
                None => self.next_probe()?,
            }
        } else {
            let &(due, number) = self.by_due.first()?;
            if due > now {
                return None;
            }
            let sent_at = self.slots.get(&number)?.sent_at;
            if self.answered_at.is_none_or(|at| at < sent_at) {
                // Nothing has been answered since it was published: the others would time out as well.
                self.close(Trouble::Unavailable, now, jitter);
                return None;
            }
            number
        };
        if self.failures > 0 {
            self.probe = Some(number);
        }
        self.set_due(number, now + self.limits.ack_timeout);
        let slot = self.slots.get_mut(&number)?;
        slot.attempts += 1;
        slot.sent_at = now;
        Some((number, &slot.item, slot.id))
    }

    /// The oldest, whatever its time is. In a full stream every second time another one: it may be smaller.
    fn next_probe(&mut self) -> Option<u64> {
        let oldest = *self.slots.first_key_value()?.0;
        if self.trouble != Some(Trouble::Full) || !self.failures.is_multiple_of(2) {
            return Some(oldest);
        }
        let after = self.last_probe.max(oldest) + 1;
        self.last_probe = self.slots.range(after..).next().map_or(oldest, |(number, _)| *number);
        Some(self.last_probe)
    }

    /// When [`Self::next_due`] and [`Self::has_room`] may answer otherwise without an event.
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.failures == 0 {
            return self.by_due.first().map(|(due, _)| *due);
        }
        if self.is_closed(now) {
            return self.closed_until;
        }
        match self.probe.and_then(|probe| self.slots.get(&probe)) {
            Some(probe) => Some(probe.due),
            None => (!self.slots.is_empty()).then_some(now),
        }
    }

    fn set_due(&mut self, number: u64, due: Instant) {
        if let Some(slot) = self.slots.get_mut(&number) {
            self.by_due.remove(&(slot.due, number));
            slot.due = due;
            self.by_due.insert((due, number));
        }
    }

    fn remove(&mut self, number: u64) -> Option<Slot> {
        let slot = self.slots.remove(&number)?;
        self.by_due.remove(&(slot.due, number));
        self.bytes -= slot.size;
        if self.probe == Some(number) {
            self.probe = None;
        }
        Some(slot)
    }

    /// The stream answered message `number`. Returns the message if it has left; a late answer to one that
    /// has left is ignored.
    pub(crate) fn answer(
        &mut self,
        number: u64,
        answer: Answer,
        now: Instant,
        jitter: f64,
    ) -> Option<(Item, Outcome)> {
        self.slots.get(&number)?;
        self.answered_at = Some(now);
        match answer {
            Answer::Stored | Answer::Duplicate => {
                let slot = self.remove(number)?;
                self.open(now);
                let by_another = slot.attempts == 1;
                let outcome = match answer {
                    Answer::Stored => Outcome::Stored,
                    _ => Outcome::Duplicate { by_another },
                };
                Some((slot.item, outcome))
            }
            Answer::InProcess => {
                self.open(now);
                self.set_due(number, now + IN_PROCESS_PAUSE);
                None
            }
            Answer::Later(trouble) => {
                self.close(trouble, now, jitter);
                let is_refused = trouble == Trouble::Full && self.had_no_room(number);
                let slot = is_refused.then(|| self.remove(number))??;
                Some((slot.item, Outcome::Refused(RefuseReason::Full)))
            }
            Answer::Refused(reason) => {
                let slot = self.remove(number)?;
                Some((slot.item, Outcome::Refused(reason)))
            }
        }
    }

    /// Whether that was once too often.
    fn had_no_room(&mut self, number: u64) -> bool {
        let Some(mut oldest) = self.slots.first_entry().filter(|slot| *slot.key() == number) else {
            return false;
        };
        let slot = oldest.get_mut();
        if slot.full.0 == 0 || slot.full.1 < self.good_answers {
            slot.full = (slot.full.0 + 1, self.good_answers);
        }
        slot.full.0 >= MAX_FULL
    }

    /// Takes out what is not to be published again. A late answer to it is ignored.
    pub(crate) fn withdraw(&mut self, is_withdrawn: impl Fn(&Item) -> bool) -> usize {
        let found: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| is_withdrawn(&slot.item))
            .map(|(n, _)| *n)
            .collect();
        found.iter().filter_map(|number| self.remove(*number)).count()
    }

    /// The server does not let this user publish on the subject: no message is answered.
    pub(crate) fn denied(&mut self, now: Instant, jitter: f64) {
        if !self.slots.is_empty() {
            self.answered_at = Some(now);
            self.close(Trouble::Denied, now, jitter);
        }
    }

    /// Publishes nothing for a while; then one message at a time, until an answer is good.
    fn close(&mut self, trouble: Trouble, now: Instant, jitter: f64) {
        // Answers to the messages that were on their way tell nothing new.
        if self.is_closed(now) {
            return;
        }
        self.closed_until = Some(now + self.limits.backoff.delay(self.failures, jitter));
        self.failures = self.failures.saturating_add(1);
        self.trouble = Some(trouble);
        self.probe = None;
    }

    fn open(&mut self, now: Instant) {
        self.good_answers += 1;
        if self.failures == 0 {
            return;
        }
        (self.failures, self.closed_until, self.probe, self.trouble) = (0, None, None, None);
        // What was published into the silence.
        let old: Vec<_> = self.slots.keys().copied().collect();
        for number in old {
            self.make_due(number, now);
        }
    }

    /// To be published again at once, without looking like a time-out.
    fn make_due(&mut self, number: u64, now: Instant) {
        self.set_due(number, now);
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.sent_at = now;
        }
    }

    /// A new connection: everything that is not acknowledged is published again, in its order.
    pub(crate) fn connected(&mut self, now: Instant) {
        (self.failures, self.closed_until, self.probe, self.trouble) = (0, None, None, None);
        self.answered_at = Some(now);
        let numbers: Vec<_> = self.slots.keys().copied().collect();
        for number in numbers {
            self.make_due(number, now);
        }
    }
}

#[cfg(test)]
mod tests;
