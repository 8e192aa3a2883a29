//! The progress of a node: decides whether it follows the chain, and whether this machine's clock
//! seems to be ahead.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use chain_view::Head;

use crate::limits::MAX_HEAD_AGE;

/// A head that comes sooner than this after the one before is not compared with the clock.
const HEAD_SPACING: Duration = Duration::from_secs(5);

/// The shortest time over which the heads are compared with the clock: a block of 12 s, whose
/// announcement may be late by two seconds.
const MIN_PACE_TIME: Duration = Duration::from_secs(10);

/// The timestamps of the heads of a node that follows the chain advance at most this many times as
/// fast as the clock, plus [`PACE_SLACK`]: a head may come some seconds late, and the next one in
/// time.
const MAX_PACE: f64 = 1.5;

/// See [`MAX_PACE`].
const PACE_SLACK: Duration = Duration::from_secs(2);

/// The response of a node that was asked for its progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncResponse {
    pub(super) says_syncing: bool,
    pub(super) head: Option<Head>,
}

/// The progress of a node on the chain.
#[derive(Debug, Default)]
pub(super) struct SyncState {
    says_syncing: bool,
    head: Option<Head>,
    /// The latest timestamp of all its heads.
    latest_timestamp: Duration,
    /// The timestamps of heads of the last minute, and the times at which they came.
    recent: VecDeque<(Duration, Instant)>,
    /// How much this machine's clock is ahead, while it seems to be.
    ahead: Option<Duration>,
    is_ahead_reported: bool,
}

impl SyncState {
    pub(super) const fn head(&self) -> Option<Head> {
        self.head
    }

    pub(super) const fn set_says_syncing(&mut self, says_syncing: bool) {
        self.says_syncing = says_syncing;
    }

    /// Records a head that the node announced or returned.
    pub(super) fn record(&mut self, head: Head, now: Instant) {
        let is_new = self.head.is_none_or(|before| before.hash != head.hash);
        self.head = Some(head);
        self.latest_timestamp = self.latest_timestamp.max(timestamp(&head));
        let is_spaced = self
            .recent
            .back()
            .is_none_or(|(_, seen_at)| now.saturating_duration_since(*seen_at) >= HEAD_SPACING);
        if is_new && is_spaced {
            self.recent.push_back((Duration::from_secs(head.timestamp), now));
        }
    }

    /// Returns whether the node is behind the chain: its head is older than [`MAX_HEAD_AGE`] by
    /// this machine's clock, or by an earlier head of the same node if the clock is behind, and
    /// - it says that it is syncing, and its heads do not keep the pace of the clock, or
    /// - another source has a head that is newer by more than [`MAX_HEAD_AGE`].
    ///
    /// An old head alone proves nothing: a development chain may mine nothing for days, and this
    /// machine's clock may be wrong. Neither does the node's word: geth says for hours that it is
    /// syncing while it indexes transactions, although it follows the chain.
    ///
    /// If the head is old and the heads keep the pace of the clock, this machine's clock seems to
    /// be ahead, which [`Self::newly_ahead`] then reports.
    ///
    /// `latest_timestamp` is the timestamp of the newest head of any source, in seconds.
    /// `unix_time` is the time of this machine's clock.
    pub(super) fn is_behind(
        &mut self,
        latest_timestamp: Option<u64>,
        unix_time: Duration,
        now: Instant,
    ) -> bool {
        self.recent.retain(|(_, seen_at)| now.saturating_duration_since(*seen_at) <= MAX_HEAD_AGE);
        let Some(head) = self.head else { return false };
        let age = unix_time.saturating_sub(timestamp(&head));
        let is_old_by_clock = age > MAX_HEAD_AGE;
        let keeps_pace = self.keeps_pace();
        self.ahead = (is_old_by_clock && keeps_pace).then_some(age);
        self.is_ahead_reported &= is_old_by_clock;
        if keeps_pace {
            // An earlier head may have had a timestamp in the future.
            self.latest_timestamp = timestamp(&head);
        }
        let is_old = self.latest_timestamp > timestamp(&head).saturating_add(MAX_HEAD_AGE);
        if !is_old_by_clock && !is_old {
            return false;
        }
        let max_lead = MAX_HEAD_AGE.as_secs();
        let is_another_newer =
            latest_timestamp.is_some_and(|latest| latest > head.timestamp.saturating_add(max_lead));
        self.says_syncing && !keeps_pace || is_another_newer
    }

    /// Returns how much this machine's clock seems to be ahead, once each time that it begins to
    /// seem so.
    pub(super) fn newly_ahead(&mut self) -> Option<Duration> {
        let ahead = self.ahead.filter(|_| !self.is_ahead_reported)?;
        self.is_ahead_reported = true;
        Some(ahead)
    }

    /// Returns whether the timestamps of the heads of the last minute advance about as fast as the
    /// monotonic clock. Those of a node that is syncing advance much faster. Without enough heads,
    /// the result is false.
    fn keeps_pace(&self) -> bool {
        let (Some((first, first_seen)), Some((last, last_seen))) =
            (self.recent.front(), self.recent.back())
        else {
            return false;
        };
        let took = last_seen.saturating_duration_since(*first_seen);
        took >= MIN_PACE_TIME && last.saturating_sub(*first) <= took.mul_f64(MAX_PACE) + PACE_SLACK
    }
}

/// Returns the age of a head by this machine's clock.
pub(super) fn age(head: &Head) -> Duration {
    since_epoch().saturating_sub(timestamp(head))
}

/// Returns the time of this machine's clock. With a clock before 1970, every head counts as recent.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn timestamp(head: &Head) -> Duration {
    Duration::from_secs(head.timestamp)
}

#[cfg(test)]
mod tests {
    use alloy_primitives::B256;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Plays the heads of a node, each with its timestamp and the seconds after which it comes, by
    /// a clock that is `ahead`. Returns the state, and whether it counted as behind after each
    /// head.
    fn heads(says_syncing: bool, ahead: u64, heads: &[(u64, f64)]) -> (SyncState, Vec<bool>) {
        let mut state = SyncState { says_syncing, ..SyncState::default() };
        let start = Instant::now();
        let behind = heads.iter().map(|(timestamp, after)| {
            let now = start + S.mul_f64(*after);
            let head = Head {
                number: *timestamp,
                hash: B256::left_padding_from(&timestamp.to_be_bytes()),
                timestamp: 1_000_000 + timestamp,
                ..Head::default()
            };
            state.record(head, now);
            let unix_time = S * (1_000_000 + ahead as u32) + S.mul_f64(*after);
            state.is_behind(Some(head.timestamp), unix_time, now)
        });
        let behind = behind.collect();
        (state, behind)
    }

    #[test]
    fn a_syncing_node_is_behind_unless_its_heads_keep_pace() {
        // A second apart, each block 12 s long: it is syncing.
        let fast = Vec::from_iter((0..40).map(|i| (12 * i, i as f64)));
        let (state, behind) = heads(true, 600, &fast);
        assert_eq!((state.ahead, behind), (None, vec![true; 40]));
        // It follows the chain, and the clock is 90 s ahead.
        let paced = [(0, 0.0), (12, 13.5), (24, 24.1), (48, 48.0)];
        let (mut state, behind) = heads(true, 90, &paced);
        assert_eq!(behind, [true, false, false, false]);
        assert_eq!(state.newly_ahead().map(|ahead| ahead.as_secs()), Some(90));
        assert_eq!(state.newly_ahead(), None, "once");
        // No new head for more than a minute.
        let (mut state, _) = heads(true, 90, &paced);
        let later = Instant::now() + 120 * S;
        assert!(state.is_behind(None, S * 1_000_400, later));
        // A node that does not say that it is syncing is not judged by the clock alone.
        assert_eq!(heads(false, 90, &fast).1, vec![false; 40]);
    }

    /// Its old blocks counted as a reorg, and everything that was mined as pending again.
    #[test]
    fn a_node_that_imports_old_blocks_is_behind_although_the_clock_is_an_hour_behind() {
        let (mut state, behind) = heads(false, 0, &[(0, 0.0), (12, 12.0), (3_600, 3_600.0)]);
        assert_eq!(behind, [false; 3]);
        let now = Instant::now() + 3_600 * S;
        state.set_says_syncing(true);
        for (timestamp, is_behind) in [(3_612, false), (0, true), (3_551, true), (3_552, false)] {
            state.record(Head { timestamp: 1_000_000 + timestamp, ..Head::default() }, now);
            assert_eq!(state.is_behind(None, S * 1_000_000, now), is_behind, "{timestamp}");
        }
        assert_eq!(state.newly_ahead(), None);
    }

    #[test]
    fn a_node_is_behind_another_one_whose_head_is_a_minute_newer() {
        let (mut state, _) = heads(false, 90, &[(0, 0.0)]);
        let (unix_time, now) = (S * 1_000_090, Instant::now());
        for (newer, is_behind) in [(0, false), (12, false), (60, false), (61, true)] {
            assert_eq!(state.is_behind(Some(1_000_000 + newer), unix_time, now), is_behind);
        }
        // With a correct clock its own head is recent, whatever another node announces.
        assert!(!state.is_behind(Some(u64::MAX), S * 1_000_012, now));
    }
}
