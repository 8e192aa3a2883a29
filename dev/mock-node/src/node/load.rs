//! The node's own load: signed ahead of time, announced on an exact schedule.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use alloy_primitives::B256;

use crate::{
    config::{LoadStart, NodeConfig},
    error::TxRefused,
    faults::FaultPlan,
    shared::Shared,
    tx::SignedTx,
    workload::Workload,
};

/// Seconds of paced load that are signed before an endless load begins; kept ready from then on.
const AHEAD_S: usize = 10;

/// The most that is signed before the start even when the count is known: 1,000 s of 2,000 transactions/s, about
/// 1 GB. What is beyond it is signed while the clock runs, ahead of its turn.
const MAX_AHEAD: usize = 2_000_000;

/// Signed at a time by the thread that keeps an endless load ahead.
const CHUNK: usize = 256;

/// Later than this counts as behind.
const LATE: Duration = Duration::from_millis(5);

/// Signed transactions, in the order of their making.
#[derive(Debug)]
pub(crate) struct Supply {
    /// Taken before `workload` by nobody: who holds `workload` may take `ready`, not the other way round.
    ready: Mutex<VecDeque<Arc<SignedTx>>>,
    workload: Mutex<Workload>,
    low: Condvar,
    low_mark: usize,
    render_ahead: bool,
}

impl Supply {
    /// Signs what the configuration will need first.
    pub(crate) fn new(config: &NodeConfig) -> Self {
        let endless = config.tps as usize * AHEAD_S;
        let paced = match (config.tps, config.count) {
            (0, _) => 0,
            (_, Some(count)) => usize::try_from(count).unwrap_or(usize::MAX).min(MAX_AHEAD),
            (_, None) => endless,
        };
        let bursts: usize = config.faults.iter().map(FaultPlan::burst_txs).sum();
        let (ready, workload) = match config.signed_load.clone() {
            Some(load) => {
                let (txs, rest) = load.into_parts();
                (txs.iter().cloned().collect(), rest)
            }
            None => (VecDeque::new(), Workload::new(config.workload())),
        };
        let missing = (config.preload + paced + bursts).saturating_sub(ready.len());
        let supply = Self {
            ready: Mutex::new(ready),
            workload: Mutex::new(workload),
            low: Condvar::new(),
            low_mark: endless,
            render_ahead: config.render_ahead,
        };
        if config.render_ahead {
            for tx in lock(&supply.ready).iter() {
                tx.pending_object();
            }
        }
        supply.sign(&mut lock(&supply.workload), missing);
        supply
    }

    /// The next transactions, signing what is not ready before it returns.
    pub(crate) fn take(&self, count: usize) -> Vec<Arc<SignedTx>> {
        let mut workload = lock(&self.workload);
        let mut txs: Vec<_> = {
            let mut ready = lock(&self.ready);
            let there = ready.len().min(count);
            ready.drain(..there).collect()
        };
        // Not by way of `ready`, where the pacer would take them first.
        let missing = count - txs.len();
        txs.extend(workload.sign(missing).into_iter().map(|(_, tx)| tx));
        txs
    }

    fn next(&self) -> Arc<SignedTx> {
        let ready = {
            let mut ready = lock(&self.ready);
            if ready.len() <= self.low_mark {
                self.low.notify_one();
            }
            ready.pop_front()
        };
        ready.unwrap_or_else(|| self.take(1).remove(0))
    }

    fn put_back(&self, tx: Arc<SignedTx>) {
        lock(&self.ready).push_front(tx);
    }

    fn sign(&self, workload: &mut Workload, count: usize) {
        if count > 0 {
            let signed = workload.sign(count);
            if self.render_ahead {
                for (_, tx) in &signed {
                    tx.pending_object();
                }
            }
            lock(&self.ready).extend(signed.into_iter().map(|(_, tx)| tx));
        }
    }

    /// Keeps the supply above its mark until the node stops.
    pub(crate) fn refill(&self, shared: &Shared) {
        while !shared.signals.wait(Some(Instant::now()), |_| false).stopped {
            let ready = lock(&self.ready);
            if ready.len() >= self.low_mark {
                // Woken by the pacer at each step below the mark, or by the time, so that a stop is seen.
                drop(self.low.wait_timeout(ready, Duration::from_millis(100)));
                continue;
            }
            drop(ready);
            let mut workload = lock(&self.workload);
            self.sign(&mut workload, CHUNK);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Announces on schedule: transaction i is due at start + i / tps, whatever happened to those before it.
pub(crate) fn pace(shared: &Shared, supply: &Supply) {
    let config = &shared.config;
    let signals = &shared.signals;
    if wait_for_start(shared) {
        return;
    }
    let start = Instant::now();
    for number in 0..config.count.unwrap_or(u64::MAX) {
        let due = start + due_after(number, config.tps);
        if signals.sleep_until(due) {
            return;
        }
        if due.elapsed() > LATE {
            shared.counters.load_behind.fetch_add(1, Relaxed);
        }
        let tx = supply.next();
        if let Err(error) = shared.submit(Arc::clone(&tx)) {
            tracing::warn!(%error, "the node's own load was refused");
            if matches!(error, TxRefused::Full { .. }) {
                // Left out, it would keep all that its sender sends after it queued for ever.
                supply.put_back(tx);
            }
        }
    }
    signals.set(|flags| flags.load_finished = true);
}

/// Waits for the occasion on which the load begins; true when the node is stopped before.
pub(crate) fn wait_for_start(shared: &Shared) -> bool {
    let (config, signals) = (&shared.config, &shared.signals);
    if config.load_start == LoadStart::FirstSubscription
        && signals.wait(None, |flags| flags.subscribed || flags.stopped).stopped
    {
        return true;
    }
    signals.sleep(config.start_delay)
}

/// Announces the next transactions of the load at once; returns those that were taken.
pub(crate) fn burst(shared: &Shared, supply: &Supply, count: usize) -> Vec<B256> {
    let txs = supply.take(count);
    txs.into_iter()
        .filter_map(|tx| {
            let hash = tx.hash;
            match shared.submit(tx) {
                Ok(()) => Some(hash),
                Err(error) => {
                    tracing::warn!(%error, "a burst's transaction was refused");
                    None
                }
            }
        })
        .collect()
}

fn due_after(number: u64, tps: u32) -> Duration {
    let (seconds, rest) = (number / u64::from(tps), number % u64::from(tps));
    Duration::from_secs(seconds) + Duration::from_nanos(rest * 1_000_000_000 / u64::from(tps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_does_not_drift() {
        assert_eq!(due_after(0, 3), Duration::ZERO);
        assert_eq!(due_after(3, 3), Duration::from_secs(1));
        assert_eq!(due_after(3 * 86_400 * 365, 3), Duration::from_secs(86_400 * 365));
        assert_eq!(due_after(1, 5_000), Duration::from_micros(200));
    }
}
