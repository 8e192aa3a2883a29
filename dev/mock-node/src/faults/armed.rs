//! Which faults are armed. The server checks at every point where one may strike.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::faults::BadAnswer;

/// Armed faults; a number is how often it still strikes.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    pub(crate) close_on_accept: u32,
    pub(crate) close_after_subscribe: u32,
    pub(crate) drop_notifications: u32,
    pub(crate) drop_objects: u32,
    pub(crate) duplicate: u32,
    pub(crate) answers: VecDeque<(BadAnswer, u32)>,
    pub(crate) table_full_until: Option<Instant>,
    /// For how long it is down, and whether it leaves its file. The last one asked for wins.
    pub(crate) restart: Option<(Duration, bool)>,
}

impl Armed {
    /// How the next raw answer is to be wrong.
    pub(crate) fn next_answer(&mut self) -> Option<BadAnswer> {
        while self.answers.pop_front_if(|(_, left)| *left == 0).is_some() {}
        let (bad, left) = self.answers.front_mut()?;
        *left -= 1;
        Some(*bad)
    }
}

/// True as often as was armed.
pub(crate) const fn take_one(left: &mut u32) -> bool {
    let strikes = *left > 0;
    *left = left.saturating_sub(1);
    strikes
}
