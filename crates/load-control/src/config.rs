//! The options of the monitor and of the gate, with the arithmetic behind each default.

use std::{thread, time::Duration};

use crate::error::ConfigError;

/// Default of [`MonitorConfig::elevated_percent`]: a quarter of the queue is free while the host
/// reacts.
pub const DEFAULT_ELEVATED_PERCENT: u8 = 75;
/// Default of [`MonitorConfig::critical_percent`]: the queue is about to overflow.
pub const DEFAULT_CRITICAL_PERCENT: u8 = 90;
/// Default of [`MonitorConfig::critical_until_percent`]: 20 below [`DEFAULT_CRITICAL_PERCENT`].
pub const DEFAULT_CRITICAL_UNTIL_PERCENT: u8 = 70;
/// Default of [`MonitorConfig::elevated_until_percent`]: 25 below [`DEFAULT_ELEVATED_PERCENT`].
pub const DEFAULT_ELEVATED_UNTIL_PERCENT: u8 = 50;

/// Requests in flight per core under [`Limit::Auto`]: a request mostly waits for bytes, so a core
/// can serve many. Erigon uses the same number for its concurrent database readers.
pub const AUTO_REQUESTS_PER_CORE: usize = 64;
/// Lower bound of [`Limit::Auto`]: even a small machine must admit a burst in which each of several
/// hundred searchers sends a bundle. The server bounds the bytes that they hold.
pub const MIN_AUTO_REQUESTS: usize = 1_024;
/// Upper bound of [`Limit::Auto`], whatever the number of cores.
pub const MAX_AUTO_REQUESTS: usize = 9_000;
/// Upper bound of [`Limit::Number`]. For more requests than this use [`Limit::Unlimited`].
pub const MAX_REQUESTS: usize = 1_000_000;

/// Work permits per core by default: one for work that runs and one for the next.
pub const DEFAULT_WORK_PERMITS_PER_CORE: usize = 2;
/// The fewest work permits by default. On the smallest machine, external callers may hold one, and
/// three are reserved for internal work. The fetcher decodes on two threads with one node, so it
/// uses at most two at a time.
pub const MIN_DEFAULT_WORK_PERMITS: usize = 4;
/// Upper bound of [`GateConfig::work_permits`].
pub const MAX_WORK_PERMITS: usize = 65_536;
/// Cores that external callers leave to internal work by default. They may hold one work permit
/// less than there are cores, and at least one, so that a live announcement finds a free core.
pub const DEFAULT_CORES_LEFT_FREE: usize = 1;

/// Default of [`GateConfig::permit_wait`]. One permit verifies a signed bundle of three
/// transactions in 200 us, and in 450 us on a slow virtual machine: even there 512 waiting callers
/// are served in this time, which is short compared with the 12 s of a slot.
pub const DEFAULT_PERMIT_WAIT: Duration = Duration::from_millis(250);
/// Default of [`GateConfig::burst_wait`]: a refused caller would not retry earlier, and nobody is
/// refused because the machine gave this process no core for some hundred milliseconds.
pub const DEFAULT_BURST_WAIT: Duration = RETRY_AFTER;
/// Upper bound of [`GateConfig::permit_wait`] and of [`GateConfig::burst_wait`].
pub const MAX_PERMIT_WAIT: Duration = Duration::from_secs(60);
/// The most external callers that may wait for a work permit: as many as the smallest
/// [`Limit::Auto`] admits. Each costs about 300 bytes in addition to its request. When the queue is
/// full, the last caller with a lower priority than the new one is refused; if there is none, the
/// new one is. The refusal is counted as `permit_queue_full`.
pub const MAX_PERMIT_WAITERS: usize = MIN_AUTO_REQUESTS;

/// How long a refused caller should wait before it retries.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most that is added to [`RETRY_AFTER`] at random, so that callers do not all retry at once.
pub const RETRY_JITTER: Duration = Duration::from_secs(1);
/// A shedding episode ends when no caller was refused for this long.
pub const SHED_QUIET: Duration = Duration::from_secs(1);
/// How long an episode must have lasted before [`Gate::is_shedding`](crate::Gate::is_shedding)
/// returns true: longer than a burst at the start of a slot, and short compared with the probe
/// interval of a load balancer.
pub const SHED_SUSTAINED: Duration = Duration::from_secs(2);

/// The thresholds of a queue's load, in percent of its capacity.
///
/// The gap between the two thresholds of a state keeps it from changing with every item.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct MonitorConfig {
    /// At or above this, normal becomes elevated. Default [`DEFAULT_ELEVATED_PERCENT`]; 1 to 100.
    pub elevated_percent: u8,
    /// At or above this, the load becomes critical. Default [`DEFAULT_CRITICAL_PERCENT`]; at least
    /// `elevated_percent`.
    pub critical_percent: u8,
    /// Below this, critical becomes elevated. Default [`DEFAULT_CRITICAL_UNTIL_PERCENT`]; below
    /// `critical_percent`.
    pub critical_until_percent: u8,
    /// Below this, elevated becomes normal. Default [`DEFAULT_ELEVATED_UNTIL_PERCENT`]; below
    /// `elevated_percent`, and at most `critical_until_percent`.
    pub elevated_until_percent: u8,
    /// The kill switch: while off, the load is always normal. [`LoadMonitor::set_enabled`] changes
    /// it at run time.
    ///
    /// [`LoadMonitor::set_enabled`]: crate::LoadMonitor::set_enabled
    pub enabled: bool,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            elevated_percent: DEFAULT_ELEVATED_PERCENT,
            critical_percent: DEFAULT_CRITICAL_PERCENT,
            critical_until_percent: DEFAULT_CRITICAL_UNTIL_PERCENT,
            elevated_until_percent: DEFAULT_ELEVATED_UNTIL_PERCENT,
            enabled: true,
        }
    }
}

impl MonitorConfig {
    /// Checks the bounds and the order of the thresholds.
    ///
    /// # Errors
    /// Names the first threshold that is out of bounds or in the wrong order.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let thresholds = [
            ("elevated_percent", self.elevated_percent),
            ("critical_percent", self.critical_percent),
            ("critical_until_percent", self.critical_until_percent),
            ("elevated_until_percent", self.elevated_until_percent),
        ];
        for (field, value) in thresholds {
            check_bounds(field, u64::from(value), 1, 100)?;
        }
        let [elevated, critical, critical_until, elevated_until] = thresholds;
        check_order(elevated, "at most", critical)?;
        check_order(critical_until, "below", critical)?;
        check_order(elevated_until, "below", elevated)?;
        check_order(elevated_until, "at most", critical_until)
    }
}

/// How many requests may be in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Limit {
    /// [`AUTO_REQUESTS_PER_CORE`] for each core, at least [`MIN_AUTO_REQUESTS`] and at most
    /// [`MAX_AUTO_REQUESTS`].
    #[default]
    Auto,
    /// This many: 1 to [`MAX_REQUESTS`].
    Number(usize),
    /// No admission control: no caller is refused, external callers wait for a work permit in one
    /// queue with internal work, and no permit is reserved. For comparison, not for operation.
    Unlimited,
}

impl Limit {
    /// The limit for a machine with this many cores; `None` if there is no limit.
    pub fn resolve(self, cores: usize) -> Option<usize> {
        match self {
            Self::Auto => {
                let requests = cores.saturating_mul(AUTO_REQUESTS_PER_CORE);
                Some(requests.clamp(MIN_AUTO_REQUESTS, MAX_AUTO_REQUESTS))
            }
            Self::Number(number) => Some(number),
            Self::Unlimited => None,
        }
    }
}

/// The limits of a `Gate`.
///
/// The defaults suit a machine that runs nothing else under load. Set fewer permits if the node
/// runs on the same machine, and shorter waits if callers prefer early refusals.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct GateConfig {
    /// How many external requests may be in flight. Default [`Limit::Auto`].
    pub requests: Limit,
    /// Permits for CPU-heavy work, for internal work and external callers together: 2 to
    /// [`MAX_WORK_PERMITS`], or from 1 on under [`Limit::Unlimited`]. Default
    /// [`DEFAULT_WORK_PERMITS_PER_CORE`] for each core, at least [`MIN_DEFAULT_WORK_PERMITS`]. An
    /// RPC server starts a thread for each one that external callers may use.
    pub work_permits: usize,
    /// How many of the work permits only internal work may use: 1 to `work_permits - 1`. By default
    /// external callers may use one permit less than there are cores ([`DEFAULT_CORES_LEFT_FREE`]),
    /// and at least 1; all others are reserved. Ignored under [`Limit::Unlimited`].
    pub reserved_permits: usize,
    /// How long an external caller waits for a work permit in an overload: up to
    /// [`MAX_PERMIT_WAIT`], default [`DEFAULT_PERMIT_WAIT`]. After that it is refused, counted as
    /// `no_permit`. An overload begins when the queue of callers has not been empty for
    /// [`Self::burst_wait`].
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub permit_wait: Duration,
    /// How long an external caller waits for a work permit otherwise: up to [`MAX_PERMIT_WAIT`],
    /// default [`DEFAULT_BURST_WAIT`]; a value below `permit_wait` counts as `permit_wait`. If both
    /// are 0, callers do not wait at all.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub burst_wait: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self::for_cores(cores())
    }
}

impl GateConfig {
    /// The default for a machine with this many cores.
    pub fn for_cores(cores: usize) -> Self {
        let permits = cores
            .saturating_mul(DEFAULT_WORK_PERMITS_PER_CORE)
            .clamp(MIN_DEFAULT_WORK_PERMITS, MAX_WORK_PERMITS);
        let external = cores.saturating_sub(DEFAULT_CORES_LEFT_FREE).clamp(1, permits - 1);
        Self {
            requests: Limit::Auto,
            work_permits: permits,
            reserved_permits: permits - external,
            permit_wait: DEFAULT_PERMIT_WAIT,
            burst_wait: DEFAULT_BURST_WAIT,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first field that is out of bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Limit::Number(number) = self.requests {
            check_bounds("requests", number as u64, 1, MAX_REQUESTS as u64)?;
        }
        let (work, reserved) = (self.work_permits as u64, self.reserved_permits as u64);
        let is_limited = self.requests != Limit::Unlimited;
        // With a limit, at least one permit is for internal work, and one for external callers.
        let min_work = if is_limited { 2 } else { 1 };
        check_bounds("work_permits", work, min_work, MAX_WORK_PERMITS as u64)?;
        for (field, wait) in
            [("permit_wait (ms)", self.permit_wait), ("burst_wait (ms)", self.burst_wait)]
        {
            check_bounds(field, as_millis(wait), 0, as_millis(MAX_PERMIT_WAIT))?;
        }
        if is_limited { check_bounds("reserved_permits", reserved, 1, work - 1) } else { Ok(()) }
    }
}

/// The number of cores that this process may use; 1 if the system does not report it.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn as_millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

fn check_bounds(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfBounds { field, value, min, max })
    }
}

/// The name of a threshold, and its value in percent.
type Threshold = (&'static str, u8);

/// Checks that a threshold is `below` or `at most` another one, as `relation` says.
fn check_order(
    threshold: Threshold,
    relation: &'static str,
    bound: Threshold,
) -> Result<(), ConfigError> {
    let (field, value) = threshold;
    let (other, limit) = bound;
    if value < limit || value == limit && relation == "at most" {
        Ok(())
    } else {
        Err(ConfigError::Order { field, value, relation, other, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_on_every_machine() {
        MonitorConfig::default().validate().unwrap();
        for cores in [0, 1, 2, 3, 4, 64, 1_000, usize::MAX] {
            GateConfig::for_cores(cores).validate().unwrap();
        }
    }

    #[test]
    fn external_callers_may_hold_fewer_work_permits_than_there_are_cores() {
        for (cores, external) in [(0, 1), (1, 1), (2, 1), (3, 2), (16, 15)] {
            let config = GateConfig::for_cores(cores);
            assert_eq!(config.work_permits - config.reserved_permits, external, "{cores} cores");
        }
    }

    #[test]
    fn auto_is_64_for_each_core_at_least_1024_and_at_most_9000() {
        for (cores, limit) in [(0, 1_024), (16, 1_024), (17, 1_088), (140, 8_960), (141, 9_000)] {
            assert_eq!(Limit::Auto.resolve(cores), Some(limit), "{cores} cores");
        }
        assert_eq!(Limit::Number(7).resolve(64), Some(7));
        assert_eq!(Limit::Unlimited.resolve(64), None);
    }

    #[test]
    fn a_bad_threshold_is_named_with_its_value_and_limit() {
        let thresholds = |elevated, critical, critical_until, elevated_until| MonitorConfig {
            elevated_percent: elevated,
            critical_percent: critical,
            critical_until_percent: critical_until,
            elevated_until_percent: elevated_until,
            enabled: true,
        };
        let cases = [
            ((75, 90, 70, 0), "elevated_until_percent is 0, must be between 1 and 100"),
            ((75, 101, 70, 50), "critical_percent is 101, must be between 1 and 100"),
            (
                (95, 90, 70, 50),
                "elevated_percent is 95, must be at most critical_percent, which is 90",
            ),
            (
                (75, 90, 90, 50),
                "critical_until_percent is 90, must be below critical_percent, which is 90",
            ),
            (
                (75, 90, 70, 75),
                "elevated_until_percent is 75, must be below elevated_percent, which is 75",
            ),
            (
                (75, 90, 40, 50),
                "elevated_until_percent is 50, must be at most critical_until_percent, which is 40",
            ),
        ];
        for ((elevated, critical, critical_until, elevated_until), message) in cases {
            let config = thresholds(elevated, critical, critical_until, elevated_until);
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_gate_needs_permits_for_internal_and_for_external_work() {
        let base = GateConfig::for_cores(2);
        for reserved_permits in [0, 4, 5] {
            let error = GateConfig { reserved_permits, ..base }.validate().unwrap_err().to_string();
            let expected =
                format!("reserved_permits is {reserved_permits}, must be between 1 and 3");
            assert_eq!(error, expected);
        }
        for config in [
            GateConfig { work_permits: 1, ..base },
            GateConfig { requests: Limit::Number(0), ..base },
            GateConfig { permit_wait: Duration::MAX, ..base },
            GateConfig { burst_wait: Duration::MAX, ..base },
        ] {
            assert!(matches!(config.validate(), Err(ConfigError::OutOfBounds { .. })));
        }
    }
}
