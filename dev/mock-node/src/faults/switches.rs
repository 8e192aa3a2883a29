//! Which faults are armed. The server checks at every point where one may strike.

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::{faults::BadAnswer, lock};

/// Armed faults. Counters are taken by whoever comes first; nothing else is ordered by them, hence `Relaxed`.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    pub(crate) close_on_accept: Countdown,
    pub(crate) close_after_subscribe: Countdown,
    pub(crate) drop_notifications: Countdown,
    pub(crate) drop_objects: Countdown,
    pub(crate) duplicate: Countdown,
    answers: Mutex<VecDeque<(BadAnswer, u32)>>,
    table_full_until: Mutex<Option<Instant>>,
    /// For how long it is down, and whether it leaves its file.
    restart: Mutex<Option<(Duration, bool)>>,
    restart_asked: Notify,
}

impl Switches {
    pub(crate) fn arm_answers(&self, bad: BadAnswer, count: u32) {
        lock(&self.answers).push_back((bad, count));
    }

    /// How the next raw answer is to be wrong.
    pub(crate) fn next_answer(&self) -> Option<BadAnswer> {
        let mut answers = lock(&self.answers);
        while answers.pop_front_if(|(_, left)| *left == 0).is_some() {}
        let (bad, left) = answers.front_mut()?;
        *left -= 1;
        Some(*bad)
    }

    pub(crate) fn fill_table(&self, until: Instant) {
        *lock(&self.table_full_until) = Some(until);
    }

    pub(crate) fn table_is_full(&self) -> bool {
        lock(&self.table_full_until).is_some_and(|until| Instant::now() < until)
    }

    /// The last one asked for wins when several are asked for before the server sees the first.
    pub(crate) fn ask_restart(&self, down: Duration, leaves_file: bool) {
        *lock(&self.restart) = Some((down, leaves_file));
        self.restart_asked.notify_one();
    }

    /// Cancel safe: what was asked for stays until it is returned.
    pub(crate) async fn restart(&self) -> (Duration, bool) {
        loop {
            if let Some(restart) = lock(&self.restart).take() {
                return restart;
            }
            self.restart_asked.notified().await;
        }
    }
}

/// A number of times that something still happens.
#[derive(Debug, Default)]
pub(crate) struct Countdown(AtomicU32);

impl Countdown {
    pub(crate) fn add(&self, count: u32) {
        self.0.fetch_add(count, Relaxed);
    }

    /// True as often as was added.
    pub(crate) fn take(&self) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}
