//! The queue of deferred work, which drops none.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use metric_set::Count;
use metrics::{Gauge, counter, gauge};

use crate::{config::DeferralConfig, error::ConfigError, metrics::describe};

/// Defers work while the load is not normal.
///
/// A state machine without clock or task: its owner offers each item before running it, and pops
/// when the load falls, when [`Self::next_due`] has come, and after each popped item. Every offered
/// item is in exactly one place: returned at once, in the queue, or popped.
///
/// Items leave in the order of arrival. So that no item overtakes an earlier one (of the same
/// sender, for example), an item is also deferred under normal load while earlier ones wait.
#[derive(Debug)]
pub struct DeferralQueue<T> {
    items: VecDeque<Deferred<T>>,
    config: DeferralConfig,
    deferred: Count,
    handed_back: Count,
    run_calm: Count,
    run_aged: Count,
    drained: Count,
    withdrawn: Count,
    depth: Gauge,
}

#[derive(Debug)]
struct Deferred<T> {
    item: T,
    since: Instant,
}

/// The result of offering an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an item that was not deferred is in here"]
pub enum Offered<T> {
    /// The load allows it: run it now.
    Run(T),
    /// It waits in the queue.
    Deferred,
    /// It should wait, but the queue is full. The caller runs it, refuses it or offers it again.
    HandedBack(T),
}

/// The counts of a [`DeferralQueue`].
///
/// `deferred = run_calm + run_aged + drained + withdrawn + waiting`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferralStats {
    /// Items that entered the queue.
    pub deferred: u64,
    /// Items for which there was no room, in the queue or by a bound of its owner.
    pub handed_back: u64,
    /// Items that left because the load was normal again.
    pub run_calm: u64,
    /// Items that left because they had reached the maximum age.
    pub run_aged: u64,
    /// Items that left by [`DeferralQueue::drain`].
    pub drained: u64,
    /// Items that left by [`DeferralQueue::withdraw`].
    pub withdrawn: u64,
    /// Items in the queue.
    pub waiting: u64,
    /// How long the oldest of these has waited.
    pub oldest_age: Duration,
}

impl<T> DeferralQueue<T> {
    /// Makes an empty queue. `name` is the value of its metrics' `queue` label.
    ///
    /// # Errors
    /// If the configuration is out of bounds: see [`DeferralConfig::validate`].
    pub fn new(name: &'static str, config: DeferralConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        describe();
        let run = |reason: &'static str| {
            let run = "load_control_deferred_run_total";
            Count::new(counter!(run, "queue" => name, "reason" => reason))
        };
        Ok(Self {
            items: VecDeque::new(),
            config,
            deferred: Count::new(counter!("load_control_deferred_total", "queue" => name)),
            handed_back: Count::new(
                counter!("load_control_deferred_handed_back_total", "queue" => name),
            ),
            run_calm: run("calm"),
            run_aged: run("age"),
            drained: run("drained"),
            withdrawn: run("withdrawn"),
            depth: gauge!("load_control_deferred_depth", "queue" => name),
        })
    }

    /// Decides whether an item may run. `pressed` is [`LoadMonitor::is_pressed`].
    ///
    /// `now` must not go backwards from one call to the next, or ages are wrong by as much.
    ///
    /// [`LoadMonitor::is_pressed`]: crate::LoadMonitor::is_pressed
    pub fn offer(&mut self, item: T, now: Instant, pressed: bool) -> Offered<T> {
        if !self.must_wait(pressed) {
            return Offered::Run(item);
        }
        if self.items.len() >= self.config.capacity {
            self.count_handed_back();
            return Offered::HandedBack(item);
        }
        self.items.push_back(Deferred { item, since: now });
        self.deferred.add(1);
        self.depth.increment(1);
        Offered::Deferred
    }

    /// Whether an item that is offered now would wait or be returned.
    pub fn must_wait(&self, pressed: bool) -> bool {
        pressed || !self.items.is_empty()
    }

    /// Counts an item that must wait but that the owner does not offer, because a bound of the
    /// owner leaves no room for it.
    pub fn count_handed_back(&mut self) {
        self.handed_back.add(1);
    }

    /// Removes and returns the oldest item, if the load or its age allows it to run.
    pub fn pop(&mut self, now: Instant, pressed: bool) -> Option<T> {
        let aged = self.due(now)?;
        let count = match (pressed, aged) {
            (false, _) => &self.run_calm,
            (true, true) => &self.run_aged,
            (true, false) => return None,
        };
        let oldest = self.items.pop_front()?;
        count.add(1);
        self.depth.decrement(1);
        Some(oldest.item)
    }

    /// When the oldest item must run whatever the load; `None` if nothing waits.
    pub fn next_due(&self) -> Option<Instant> {
        // If the clock cannot represent the time, it never comes.
        self.items.front()?.since.checked_add(self.config.max_age)
    }

    /// Removes and returns all items, for shutdown: the caller decides what to do with them.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = T> {
        let items = std::mem::take(&mut self.items);
        self.drained.add(items.len() as u64);
        self.depth.decrement(items.len() as f64);
        items.into_iter().map(|deferred| deferred.item)
    }

    /// Removes the items whose caller no longer waits; visits every item. Returns how many.
    pub fn withdraw(&mut self, is_gone: impl Fn(&T) -> bool) -> usize {
        let before = self.items.len();
        self.items.retain(|deferred| !is_gone(&deferred.item));
        let gone = before - self.items.len();
        self.withdrawn.add(gone as u64);
        self.depth.decrement(gone as f64);
        gone
    }

    /// Items in the queue.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Exact counts.
    pub fn stats(&self, now: Instant) -> DeferralStats {
        let age = |oldest: &Deferred<T>| now.saturating_duration_since(oldest.since);
        DeferralStats {
            deferred: self.deferred.get(),
            handed_back: self.handed_back.get(),
            run_calm: self.run_calm.get(),
            run_aged: self.run_aged.get(),
            drained: self.drained.get(),
            withdrawn: self.withdrawn.get(),
            waiting: self.items.len() as u64,
            oldest_age: self.items.front().map(age).unwrap_or_default(),
        }
    }

    /// Whether the oldest item has reached the maximum age; `None` if nothing waits.
    fn due(&self, now: Instant) -> Option<bool> {
        let oldest = self.items.front()?;
        Some(now.saturating_duration_since(oldest.since) >= self.config.max_age)
    }
}

impl<T> Drop for DeferralQueue<T> {
    fn drop(&mut self) {
        // Relative, because a later queue of the same name shares the gauge.
        self.depth.decrement(self.items.len() as f64);
    }
}

#[cfg(test)]
mod tests;
