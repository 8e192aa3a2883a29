//! Which machine saw a transaction first, and by how much. Pure.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime},
};

use alloy_primitives::B256;

/// Most machines that are told apart; what others say is ignored.
pub const MAX_MACHINES: usize = 64;

/// Transactions of which it is remembered who saw them first: half a minute at 2,000/s, 6 MB.
const RECENT: usize = 1 << 16;

/// What one machine saw, by its own clock: the differences are as exact as the machines' clocks are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineStats {
    /// Its name.
    pub machine: String,
    /// Transactions of which the stream has this machine's message.
    pub stored: u64,
    /// Transactions that it saw first, as far as the others have reported.
    pub first: u64,
    /// Transactions that another machine saw first.
    pub later: u64,
    /// By how much those were later, added up.
    pub behind: Duration,
    /// By how much the latest of them was.
    pub max_behind: Duration,
}

impl MachineStats {
    /// The mean of what it was later by; `None` if it was never later.
    #[must_use]
    pub fn mean_behind(&self) -> Option<Duration> {
        let behind = self.behind.as_nanos().checked_div(self.later.into())?;
        Some(Duration::from_nanos(u64::try_from(behind).unwrap_or(u64::MAX)))
    }

    fn was_later(&mut self, by: Duration) {
        self.later += 1;
        self.behind = self.behind.saturating_add(by);
        self.max_behind = self.max_behind.max(by);
    }
}

/// The recent transactions, each with the machine that saw it first and when.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    stats: Vec<MachineStats>,
    recent: HashMap<B256, (usize, SystemTime)>,
    order: VecDeque<B256>,
}

impl Machines {
    pub(crate) fn stats(&self) -> &[MachineStats] {
        &self.stats
    }

    fn index(&mut self, machine: &str) -> Option<usize> {
        if let Some(index) = self.stats.iter().position(|stats| stats.machine == machine) {
            return Some(index);
        }
        if self.stats.len() >= MAX_MACHINES {
            return None;
        }
        self.stats.push(MachineStats { machine: machine.to_owned(), ..MachineStats::default() });
        Some(self.stats.len() - 1)
    }

    /// The stream has this machine's message of a transaction.
    pub(crate) fn stored(&mut self, machine: &str, hash: B256, seen: SystemTime) {
        let Some(index) = self.index(machine) else { return };
        // It is read again, or was stored again behind the duplicate window.
        if self.recent.contains_key(&hash) {
            return;
        }
        self.recent.insert(hash, (index, seen));
        self.order.push_back(hash);
        if self.order.len() > RECENT
            && let Some(oldest) = self.order.pop_front()
        {
            self.recent.remove(&oldest);
        }
        let stats = &mut self.stats[index];
        stats.stored += 1;
        stats.first += 1;
    }

    /// This machine saw it too. Reports of a transaction that is not remembered are ignored.
    pub(crate) fn reported(&mut self, machine: &str, hash: &B256, seen: SystemTime) {
        let Some(index) = self.index(machine) else { return };
        let Some(first) = self.recent.get_mut(hash).filter(|(first, _)| *first != index) else {
            return;
        };
        match seen.duration_since(first.1) {
            Ok(by) => self.stats[index].was_later(by),
            Err(earlier) => {
                let (before, _) = std::mem::replace(first, (index, seen));
                self.stats[index].first += 1;
                let before = &mut self.stats[before];
                before.first = before.first.saturating_sub(1);
                before.was_later(earlier.duration());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn the_machine_that_saw_it_first_is_first_whoever_was_stored() {
        let (mut machines, hash) = (Machines::default(), B256::repeat_byte(1));
        machines.stored("a", hash, at(100));
        machines.stored("a", hash, at(100));
        machines.reported("b", &hash, at(130));
        machines.reported("c", &hash, at(90));
        machines.reported("a", &B256::repeat_byte(2), at(1));
        let of = |name: &str| machines.stats().iter().find(|stats| stats.machine == name).cloned();
        let (a, b, c) = (of("a").expect("a"), of("b").expect("b"), of("c").expect("c"));
        assert_eq!((a.stored, a.first, a.later, a.behind), (1, 0, 1, Duration::from_millis(10)));
        assert_eq!((b.first, b.later, b.mean_behind()), (0, 1, Some(Duration::from_millis(30))));
        assert_eq!((c.stored, c.first, c.later, c.mean_behind()), (0, 1, 0, None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut machines = Machines::default();
        for n in 0..RECENT + 10 {
            let hash = B256::left_padding_from(&n.to_be_bytes());
            machines.stored(&format!("m{}", n % 100), hash, at(1));
        }
        assert_eq!(machines.stats().len(), MAX_MACHINES);
        assert!(machines.recent.len() <= RECENT && machines.order.len() == machines.recent.len());
    }
}
