//! The admission gate: external callers wait for a bounded time, internal work without a limit.
//!
//! It has two levels because the two resources differ. Requests in flight cost memory, so the outer
//! gate refuses before the body is read. Work permits cost CPU, so the inner gate is entered just
//! before verification. Searchers send in bursts, most of all at the start of a slot, so an
//! external caller waits for a permit in a bounded queue, ordered by [`Priority`], and longer in a
//! burst than in an overload. External callers may hold fewer permits than there are cores; the
//! others are reserved for internal work. A request whose work is deferred stays in flight.
//!
//! There are two locks: that of a shedding episode ([`crate::shedding`]) and that of the external
//! permits ([`crate::work`]). Each protects a few fields; neither is held across an await, or
//! together with the other. The count of requests is an atomic, and loom checks every interleaving
//! of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use metrics::Label;

use crate::{
    budget::{Budget, Share},
    config::{GateConfig, Limit, RETRY_AFTER, RETRY_JITTER, cores},
    error::ConfigError,
    metric_set::Count,
    metrics::GateMetrics,
    refusal::{GateName, Refusal, RefusalReason, WorkError},
    shedding::Shedding,
    work::{Priority, WorkPermit, WorkPermits},
};

/// Limits the requests in flight and the CPU-heavy work. Cloning gives another handle to the same
/// gate.
///
/// An external request passes two gates: [`check`](Self::check) before its body is read and
/// [`enter`](Self::enter) once it is complete, and
/// [`acquire_external`](Self::acquire_external), before its CPU-heavy work. Internal work (mempool,
/// heads) only calls [`acquire_internal`](Self::acquire_internal). Every permit is released when
/// dropped; the gate has no thread of its own. [`Limit::Unlimited`] switches admission control off.
#[derive(Clone, Debug)]
pub struct Gate {
    shared: Arc<GateShared>,
}

#[derive(Debug)]
struct GateShared {
    requests: Arc<Budget>,
    work: Arc<WorkPermits>,
    closed: AtomicBool,
    config: GateConfig,
    gates: [GateState; GateName::ALL.len()],
}

/// The metrics and the shedding episode of one of the two gates.
#[derive(Debug)]
struct GateState {
    metrics: GateMetrics,
    shedding: Shedding,
}

impl GateState {
    fn new(gate: GateName) -> Self {
        let metrics = GateMetrics::labelled(&[Label::new("gate", gate.as_str())]);
        Self { metrics, shedding: Shedding::new(gate) }
    }

    fn refused(&self) -> u64 {
        self.metrics.refused.iter().map(Count::get).sum()
    }
}

/// The counts of a gate since it was made, and the permits that are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// Admitted external requests; each element of a batch counts.
    pub requests_admitted: u64,
    /// External requests refused by the outer gate.
    pub requests_refused: u64,
    /// External requests in flight.
    pub requests_in_flight: usize,
    /// Work permits acquired by external callers.
    pub work_admitted: u64,
    /// External callers refused by the inner gate.
    pub work_refused: u64,
    /// External callers that waited for a work permit, or were refused for lack of one.
    pub work_waited: u64,
    /// Work permits held, by internal work and by external callers.
    pub work_in_use: usize,
    /// Work permits acquired by internal work.
    pub internal_admitted: u64,
    /// Work permits that internal work had to wait for.
    pub internal_waited: u64,
}

impl Gate {
    /// Makes a gate.
    ///
    /// # Errors
    /// As [`GateConfig::validate`].
    pub fn new(config: GateConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let limit = config.requests.resolve(cores());
        let reserved = limit.map_or(0, |_| config.reserved_permits);
        let gates = GateName::ALL.map(GateState::new);
        let [requests_level, work_level] = gates.each_ref().map(|gate| gate.metrics.in_use.clone());
        let shared = GateShared {
            requests: Budget::with_level(limit.unwrap_or(usize::MAX), requests_level),
            work: WorkPermits::new(config, config.work_permits - reserved, work_level),
            closed: AtomicBool::new(false),
            config,
            gates,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Admits an external request, without waiting. The request is in flight until the share is
    /// dropped.
    ///
    /// # Errors
    /// [`RefusalReason::TooManyRequests`], [`RefusalReason::ShuttingDown`].
    pub fn enter(&self, now: Instant) -> Result<Share, Refusal> {
        let gate = GateName::Requests;
        if self.is_closed() {
            return Err(self.refuse(gate, RefusalReason::ShuttingDown, now));
        }
        let Some(request) = self.shared.requests.take(1) else {
            return Err(self.refuse(gate, RefusalReason::TooManyRequests, now));
        };
        self.admit(gate, 1, now);
        Ok(request)
    }

    /// Checks whether [`Self::enter`] would admit a request now. It reserves nothing; a refusal is
    /// counted.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub fn check(&self, now: Instant) -> Result<(), Refusal> {
        let gate = GateName::Requests;
        if self.is_closed() {
            return Err(self.refuse(gate, RefusalReason::ShuttingDown, now));
        }
        if !self.shared.requests.fits(1, 0) {
            return Err(self.refuse(gate, RefusalReason::TooManyRequests, now));
        }
        Ok(())
    }

    /// Makes a request count as `elements` requests, once the size of a batch is known. If that is
    /// refused, it counts as before.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub fn enter_batch(
        &self,
        request: &mut Share,
        elements: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        let gate = GateName::Requests;
        let more = elements.saturating_sub(request.count());
        if request.try_add(more, 0) {
            self.admit(gate, more as u64, now);
            Ok(())
        } else {
            Err(self.refuse(gate, RefusalReason::TooManyRequests, now))
        }
    }

    /// Acquires a work permit for an external caller. The caller waits for at most
    /// [`GateConfig::burst_wait`], or [`GateConfig::permit_wait`] in an overload. At most
    /// [`MAX_PERMIT_WAITERS`](crate::MAX_PERMIT_WAITERS) callers wait, and those of a higher
    /// priority are served first. Under [`Limit::Unlimited`](crate::Limit::Unlimited) the caller
    /// waits in the queue of all work, without a time limit.
    ///
    /// # Errors
    /// [`RefusalReason::NoPermit`] after that time, [`RefusalReason::QueueFull`],
    /// [`RefusalReason::ShuttingDown`].
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, it leaves the queue and holds nothing.
    pub async fn acquire_external(
        &self,
        priority: Priority,
        now: Instant,
    ) -> Result<WorkPermit, Refusal> {
        let shared = &self.shared;
        let refuse = |reason| Err(self.refuse(GateName::Work, reason, Instant::now()));
        if self.is_closed() {
            return refuse(RefusalReason::ShuttingDown);
        }
        let permit = match shared.work.try_acquire_external() {
            Some(permit) => permit,
            None if shared.config.requests == Limit::Unlimited => shared.work.acquire().await,
            // The queue reads no clock, so the caller's time is passed to it.
            None => match shared.work.acquire_external(priority, now.into()).await {
                Ok(permit) => permit,
                Err(reason) => return refuse(reason),
            },
        };
        if self.is_closed() {
            return refuse(RefusalReason::ShuttingDown);
        }
        self.admit(GateName::Work, 1, now);
        Ok(permit)
    }

    /// Runs CPU-heavy work of an external caller on a blocking thread: one of the current tokio
    /// runtime, or that of another caller, maybe in another runtime, which has just finished such
    /// work and continues with the next waiting one, so that no permit is idle in between. The work
    /// holds the given permit, or one for which it waits as [`Self::acquire_external`] does.
    ///
    /// # Errors
    /// [`WorkError::Refused`] as [`Self::acquire_external`], [`WorkError::Lost`] if the work panics
    /// or the runtime shuts down.
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, it leaves the queue and holds nothing. Work that
    /// has begun continues to its end and holds its permit until then.
    pub async fn run_external<T: Send + 'static>(
        &self,
        permit: Option<WorkPermit>,
        priority: Priority,
        now: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let shared = &self.shared;
        let permit = match permit {
            Some(permit) => Some(permit),
            None if self.is_closed() || shared.config.requests == Limit::Unlimited => {
                Some(self.acquire_external(priority, now).await?)
            }
            None => {
                shared.work.try_acquire_external().inspect(|_| self.admit(GateName::Work, 1, now))
            }
        };
        let must_wait = permit.is_none();
        let gate = self.clone();
        let work = move || {
            if must_wait {
                if gate.is_closed() {
                    return Err(RefusalReason::ShuttingDown);
                }
                gate.admit(GateName::Work, 1, now);
            }
            Ok(work())
        };
        let ran = shared.work.run_external(permit, priority, now.into(), work).await;
        let refuse = |reason| self.refuse(GateName::Work, reason, Instant::now());
        ran.ok_or(WorkError::Lost)?.map_err(|reason| refuse(reason).into())
    }

    /// Acquires a work permit for work of an external caller that was deferred because of the load.
    /// It waits without a time limit and is never refused, not even after [`Self::close`]. The
    /// permit counts among those that external callers may hold.
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, it leaves the queue and holds nothing.
    pub async fn acquire_external_deferred(&self) -> WorkPermit {
        let permit = self.shared.work.acquire_external_deferred(Instant::now().into()).await;
        self.shared.gates[GateName::Work as usize].metrics.admitted.add(1);
        permit
    }

    /// Acquires a work permit for internal work. It waits without a time limit, first come first
    /// served, and is never refused, not even after [`Self::close`].
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, it leaves the queue and holds nothing.
    pub async fn acquire_internal(&self) -> WorkPermit {
        let work = &self.shared.work;
        let permit = match work.try_acquire_internal() {
            Some(permit) => permit,
            None => {
                work.metrics.internal_waited.add(1);
                work.acquire().await
            }
        };
        work.metrics.internal_admitted.add(1);
        permit
    }

    /// Counts and returns a refusal of work that would have to be deferred and has no room to wait.
    pub fn refuse_deferred(&self, now: Instant) -> Refusal {
        self.refuse(GateName::Work, RefusalReason::Deferred, now)
    }

    /// Counts and returns a refusal of work that was not finished before the shutdown.
    pub fn refuse_closed(&self, now: Instant) -> Refusal {
        self.refuse(GateName::Work, RefusalReason::ShuttingDown, now)
    }

    /// Refuses every external caller from now on. Permits that are held stay valid.
    pub fn close(&self) {
        // Relaxed: a caller that arrives at the same instant may be admitted or refused.
        self.shared.closed.store(true, Relaxed);
    }

    /// Whether [`Self::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Relaxed)
    }

    /// Whether this gate has been refusing callers for at least
    /// [`SHED_SUSTAINED`](crate::SHED_SUSTAINED), without a pause of
    /// [`SHED_QUIET`](crate::SHED_QUIET). Call it regularly, for instance from a readiness probe:
    /// it also logs the end of a shedding episode, which otherwise is logged only when the next
    /// caller arrives.
    pub fn is_shedding(&self, now: Instant) -> bool {
        // `|` does not short-circuit: both calls may end an episode.
        let [requests, work] = &self.shared.gates;
        requests.shedding.is_sustained(now) | work.shedding.is_sustained(now)
    }

    /// Returns a time after which to retry, for refusals by other limits. It is drawn at random for
    /// each call.
    pub fn retry_after(&self) -> Duration {
        RETRY_AFTER + RETRY_JITTER.mul_f64(rand::random())
    }

    /// The number of requests that may be in flight; `None` if there is no limit.
    pub fn request_limit(&self) -> Option<usize> {
        self.shared.config.requests.resolve(cores())
    }

    /// The configuration of this gate.
    pub fn config(&self) -> &GateConfig {
        &self.shared.config
    }

    /// The counts of this gate. They are read one by one, not as a snapshot.
    pub fn stats(&self) -> GateStats {
        let shared = &self.shared;
        let [requests, work] = &shared.gates;
        let permits = &shared.work.metrics;
        GateStats {
            requests_admitted: requests.metrics.admitted.get(),
            requests_refused: requests.refused(),
            requests_in_flight: shared.requests.used(),
            work_admitted: work.metrics.admitted.get(),
            work_refused: work.refused(),
            work_waited: permits.external_waited.get(),
            work_in_use: shared.work.in_use(),
            internal_admitted: permits.internal_admitted.get(),
            internal_waited: permits.internal_waited.get(),
        }
    }

    fn admit(&self, gate: GateName, count: u64, now: Instant) {
        let gate = &self.shared.gates[gate as usize];
        gate.metrics.admitted.add(count);
        // The ended episode is not needed: the call is for its log line.
        let _ = gate.shedding.end_if_quiet(now);
    }

    fn refuse(&self, gate: GateName, reason: RefusalReason, now: Instant) -> Refusal {
        let state = &self.shared.gates[gate as usize];
        state.metrics.refused[reason as usize].add(1);
        state.shedding.refused(now);
        Refusal { gate, reason, retry_after: self.retry_after() }
    }
}
