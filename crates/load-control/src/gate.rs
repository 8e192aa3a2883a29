//! The admission gate: outsiders fail fast, the inside waits.

use crate::{
    config::{GateConfig, cores},
    error::ConfigError,
    in_flight::{InFlight, RequestPermit},
    jitter::Jitter,
    metrics::{Count, Level},
    refusal::{GateName, Refusal, RefusalReason},
    shedding::Shedding,
    slots::{SlotPermit, Slots},
};
use metrics::{Counter, counter, gauge};
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

/// Decides who may come in and who may work. Cloning gives another handle to the same gate.
///
/// An outside request passes twice: [`enter`](Self::enter) before its body is read, which bounds
/// what is in flight, and [`try_outside`](Self::try_outside) before its CPU-heavy part. Both answer
/// at once. The inside (mempool, heads) only calls [`inside`](Self::inside), which waits for a slot,
/// first come first served, and always gets one; a reserve of slots is never an outsider's, so an
/// insider that finds it free waits for nobody.
///
/// Every permit is given back when dropped; the gate holds no task and no thread.
///
/// Under [`Limit::Unlimited`](crate::Limit::Unlimited) there is no admission control: `enter` always
/// succeeds, there is no reserve, and [`outside`](Self::outside) waits in line with the inside.
#[derive(Clone, Debug)]
pub struct Gate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requests: Arc<InFlight>,
    slots: Slots,
    limited: bool,
    closed: AtomicBool,
    config: GateConfig,
    chance: Jitter,
    sides: [Side; GateName::ALL.len()],
    inside_admitted: Count,
    inside_waited: Count,
}

/// What is kept of each of the two gates.
#[derive(Debug)]
struct Side {
    admitted: Count,
    refused: [Count; RefusalReason::ALL.len()],
    shedding: Shedding,
}

impl Side {
    fn new(gate: GateName, config: &GateConfig) -> Self {
        let name = gate.as_str();
        let refused = RefusalReason::ALL.map(|reason| {
            // The reasons this gate does not have get no series.
            let possible = match reason {
                RefusalReason::TooManyRequests => gate == GateName::Requests,
                RefusalReason::NoSlot | RefusalReason::Deferred => gate == GateName::Slots,
                RefusalReason::ShuttingDown => true,
            };
            let reason = reason.as_str();
            Count::new(if possible {
                counter!("load_control_gate_refused_total", "gate" => name, "reason" => reason)
            } else {
                Counter::noop()
            })
        });
        Self {
            admitted: Count::new(counter!("load_control_gate_admitted_total", "gate" => name)),
            refused,
            shedding: Shedding::new(gate, config.shed_quiet),
        }
    }
}

/// What a gate did since it was made, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStats {
    /// Outside requests that came in, elements of batches counted one by one.
    pub requests_admitted: u64,
    /// Outside requests refused at the outer gate.
    pub requests_refused: u64,
    /// Outside requests in flight.
    pub requests_in_flight: usize,
    /// Slots given to outsiders.
    pub slots_admitted: u64,
    /// Outsiders refused at the inner gate.
    pub slots_refused: u64,
    /// Slots in use, of insiders and outsiders.
    pub slots_in_use: usize,
    /// Slots given to the inside.
    pub inside_admitted: u64,
    /// Of these, for how many it had to wait.
    pub inside_waited: u64,
}

impl Gate {
    /// Makes a gate.
    ///
    /// # Errors
    /// If the configuration is out of bounds or the slots cannot be shared out between a reserve
    /// and outsiders: see [`GateConfig::validate`].
    pub fn new(config: GateConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let limit = config.requests.resolve(cores());
        let outside = match limit {
            Some(_) => config.slots - config.reserve,
            None => config.slots,
        };
        let in_use = |gate: GateName| {
            Level::new(gauge!("load_control_gate_in_use", "gate" => gate.as_str()))
        };
        let requests = InFlight::new(limit.unwrap_or(usize::MAX), in_use(GateName::Requests));
        let shared = Shared {
            requests: Arc::new(requests),
            slots: Slots::new(config.slots, outside, in_use(GateName::Slots)),
            limited: limit.is_some(),
            closed: AtomicBool::new(false),
            config,
            chance: Jitter::random(),
            sides: GateName::ALL.map(|gate| Side::new(gate, &config)),
            inside_admitted: Count::new(counter!("load_control_inside_admitted_total")),
            inside_waited: Count::new(counter!("load_control_inside_waited_total")),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Lets an outside request in, before its body is read. Never waits.
    ///
    /// # Errors
    /// [`RefusalReason::TooManyRequests`], [`RefusalReason::ShuttingDown`].
    pub fn enter(&self, now: Instant) -> Result<RequestPermit, Refusal> {
        let gate = GateName::Requests;
        if self.is_closed() {
            return Err(self.refuse(gate, RefusalReason::ShuttingDown, now));
        }
        match RequestPermit::try_new(&self.shared.requests) {
            Some(permit) => {
                self.admit(gate, 1, now);
                Ok(permit)
            }
            None => Err(self.refuse(gate, RefusalReason::TooManyRequests, now)),
        }
    }

    /// Makes a request count as `elements` of them, once a batch is known to have so many. All of
    /// it or nothing: if refused, it counts as before.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub fn enter_batch(
        &self,
        permit: &mut RequestPermit,
        elements: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        let gate = GateName::Requests;
        let before = permit.weight();
        if permit.try_grow(elements) {
            self.admit(gate, (permit.weight() - before) as u64, now);
            Ok(())
        } else {
            Err(self.refuse(gate, RefusalReason::TooManyRequests, now))
        }
    }

    /// A slot for an outsider, if one is free that is not of the reserve. Never waits.
    ///
    /// # Errors
    /// [`RefusalReason::NoSlot`], [`RefusalReason::ShuttingDown`].
    pub fn try_outside(&self, now: Instant) -> Result<SlotPermit, Refusal> {
        let gate = GateName::Slots;
        if self.is_closed() {
            return Err(self.refuse(gate, RefusalReason::ShuttingDown, now));
        }
        match self.shared.slots.try_outside() {
            Some(permit) => {
                self.admit(gate, 1, now);
                Ok(permit)
            }
            None => Err(self.refuse(gate, RefusalReason::NoSlot, now)),
        }
    }

    /// As [`Self::try_outside`], and at once ready, except under
    /// [`Limit::Unlimited`](crate::Limit::Unlimited): then it waits in line.
    ///
    /// # Errors
    /// As for [`Self::try_outside`].
    ///
    /// # Cancel safety
    /// Dropped while waiting, it gives up its place in line and holds nothing.
    pub async fn outside(&self, now: Instant) -> Result<SlotPermit, Refusal> {
        if self.shared.limited {
            return self.try_outside(now);
        }
        let permit = self.shared.slots.wait().await;
        if self.is_closed() {
            return Err(self.refuse(GateName::Slots, RefusalReason::ShuttingDown, now));
        }
        self.admit(GateName::Slots, 1, now);
        Ok(permit)
    }

    /// A slot for an outsider's work that a [`DeferralQueue`](crate::DeferralQueue) held back: it was
    /// told to wait, so it waits, within what outsiders may have. Also after [`Self::close`].
    ///
    /// # Cancel safety
    /// Dropped while waiting, it gives up its place in line and holds nothing.
    pub async fn outside_deferred(&self) -> SlotPermit {
        let permit = self.shared.slots.wait_outside().await;
        self.shared.sides[GateName::Slots as usize].admitted.add(1);
        permit
    }

    /// A slot for the inside. Waits as long as it takes, first come first served; never refused,
    /// not even after [`Self::close`].
    ///
    /// # Cancel safety
    /// Dropped while waiting, it gives up its place in line and holds nothing.
    pub async fn inside(&self) -> SlotPermit {
        let shared = &self.shared;
        let permit = match shared.slots.try_inside() {
            Some(permit) => permit,
            None => {
                shared.inside_waited.add(1);
                shared.slots.wait().await
            }
        };
        shared.inside_admitted.add(1);
        permit
    }

    /// As [`Self::inside`], for a thread that may block: it sleeps until the slot is its own.
    pub fn inside_blocking(&self) -> SlotPermit {
        let mut waiting = pin!(self.inside());
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match waiting.as_mut().poll(&mut context) {
                Poll::Ready(permit) => return permit,
                // A wake-up before this line makes it return at once, so none is missed.
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Counts a refusal of deferrable work for which a [`DeferralQueue`](crate::DeferralQueue) had
    /// no room, and gives what the caller is to be told.
    pub fn refuse_deferred(&self, now: Instant) -> Refusal {
        self.refuse(GateName::Slots, RefusalReason::Deferred, now)
    }

    /// Counts a refusal of work that could not be finished before the shutdown.
    pub fn refuse_closed(&self, now: Instant) -> Refusal {
        self.refuse(GateName::Slots, RefusalReason::ShuttingDown, now)
    }

    /// Refuses every outside caller from now on. Permits that are out stay good.
    pub fn close(&self) {
        // Relaxed: a caller that comes at the same instant may be on either side of it.
        self.shared.closed.store(true, Relaxed);
    }

    /// Whether [`Self::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Relaxed)
    }

    /// Whether it refused someone within the last [`GateConfig::shed_quiet`]. Call it now and then
    /// (a readiness probe does): it also writes the line that says that shedding is over, which is
    /// otherwise left to the next caller.
    pub fn is_shedding(&self, now: Instant) -> bool {
        // Both are asked: each may have a row to end.
        let [requests, slots] = &self.shared.sides;
        requests.shedding.is_open(now) | slots.shedding.is_open(now)
    }

    /// When a caller who is refused now should come back, drawn anew each time: for refusals of
    /// other limits than this gate's.
    pub fn retry_after(&self) -> Duration {
        let config = &self.shared.config;
        config.retry_after + self.shared.chance.up_to(config.retry_jitter)
    }

    /// Requests that may be in flight; `None` if there is no limit.
    pub fn request_limit(&self) -> Option<usize> {
        self.shared.config.requests.resolve(cores())
    }

    /// What it was made with.
    pub fn config(&self) -> &GateConfig {
        &self.shared.config
    }

    /// Its counts. They are read one by one while others come and go.
    pub fn stats(&self) -> GateStats {
        let shared = &self.shared;
        let refused = |side: &Side| side.refused.iter().map(Count::get).sum();
        let [requests, slots] = &shared.sides;
        GateStats {
            requests_admitted: requests.admitted.get(),
            requests_refused: refused(requests),
            requests_in_flight: shared.requests.get(),
            slots_admitted: slots.admitted.get(),
            slots_refused: refused(slots),
            slots_in_use: shared.slots.in_use(),
            inside_admitted: shared.inside_admitted.get(),
            inside_waited: shared.inside_waited.get(),
        }
    }

    fn admit(&self, gate: GateName, count: u64, now: Instant) {
        let side = &self.shared.sides[gate as usize];
        side.admitted.add(count);
        // The log line is the effect.
        let _ = side.shedding.ended(now);
    }

    fn refuse(&self, gate: GateName, reason: RefusalReason, now: Instant) -> Refusal {
        let shared = &self.shared;
        let side = &shared.sides[gate as usize];
        side.refused[reason as usize].add(1);
        side.shedding.refused(now);
        Refusal { gate, reason, retry_after: self.retry_after() }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
