//! The node's own load, signed ahead of its turn.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use crate::{
    config::NodeConfig, faults::FaultPlan, lock, shared::Shared, tx::SignedTx, workload::Workload,
};

/// Seconds of paced load that a thread keeps signed ahead.
const AHEAD_S: usize = 10;

/// Signed at a time by that thread: a burst waits no longer than 2 ms for it.
const CHUNK: usize = 64;

/// Signed transactions, in the order of the workload: the seed decides it, not when they were signed.
#[derive(Debug)]
pub(super) struct Supply {
    /// Who holds `workload` may take `ready`, not the other way round.
    ready: Mutex<VecDeque<Arc<SignedTx>>>,
    workload: Mutex<Workload>,
    low: Condvar,
    /// Below so many, the thread signs: the next seconds of the pace, and the largest burst of the plan.
    low_mark: usize,
    /// How many the thread signs in all.
    rest: usize,
    render_ahead: bool,
}

impl Supply {
    /// Signs what the configuration needs first; [`refill`](Self::refill) the rest.
    pub(super) fn new(config: &NodeConfig) -> Self {
        let (ready, workload) = match config.signed_load.clone() {
            Some(load) => {
                let (txs, rest) = load.into_parts();
                (txs.iter().cloned().collect(), rest)
            }
            None => (VecDeque::new(), Workload::new(config.workload())),
        };
        let tps = config.tps as usize;
        let count = config.count.map_or(usize::MAX, |count| count as usize);
        let bursts = || config.faults.iter().flat_map(FaultPlan::bursts);
        let first = config.signed_ahead.max(tps.min(count));
        let supply = Self {
            ready: Mutex::new(ready),
            workload: Mutex::new(workload),
            low: Condvar::new(),
            low_mark: tps.saturating_mul(AHEAD_S) + bursts().max().unwrap_or(0),
            rest: 0,
            render_ahead: config.render_ahead,
        };
        if config.render_ahead {
            lock(&supply.ready).iter().for_each(|tx| _ = tx.pending_object());
        }
        let (there, first) = (lock(&supply.ready).len(), config.preload + first);
        supply.sign(first.saturating_sub(there));
        let all = count.saturating_add(config.preload).saturating_add(bursts().sum());
        Self { rest: all.saturating_sub(first.max(there)), ..supply }
    }

    /// The next transactions, signing what is not ready before it returns.
    pub(super) fn take(&self, count: usize) -> Vec<Arc<SignedTx>> {
        let mut workload = lock(&self.workload);
        let mut txs: Vec<_> = {
            let mut ready = lock(&self.ready);
            let there = ready.len().min(count);
            ready.drain(..there).collect()
        };
        // Not by way of `ready`, where the pacer would take them first.
        txs.extend(workload.sign(count - txs.len()).into_iter().map(|(_, tx)| tx));
        txs
    }

    pub(super) fn next(&self) -> Arc<SignedTx> {
        let ready = {
            let mut ready = lock(&self.ready);
            if ready.len() <= self.low_mark {
                self.low.notify_one();
            }
            ready.pop_front()
        };
        ready.unwrap_or_else(|| self.take(1).remove(0))
    }

    pub(super) fn put_back(&self, tx: Arc<SignedTx>) {
        lock(&self.ready).push_front(tx);
    }

    fn sign(&self, count: usize) {
        let mut workload = lock(&self.workload);
        let signed = workload.sign(count);
        if self.render_ahead {
            signed.iter().for_each(|(_, tx)| _ = tx.pending_object());
        }
        lock(&self.ready).extend(signed.into_iter().map(|(_, tx)| tx));
    }

    /// Keeps the supply above its mark until the load's end or the node's.
    pub(super) fn refill(&self, shared: &Shared) {
        let mut rest = self.rest;
        while rest > 0 && !shared.signals.wait(Some(Instant::now()), |_| false).stopped {
            let ready = lock(&self.ready);
            if ready.len() >= self.low_mark {
                // Woken by the pacer at each step below the mark, or by the time, so that a stop is seen.
                drop(self.low.wait_timeout(ready, Duration::from_millis(100)));
                continue;
            }
            drop(ready);
            self.sign(CHUNK.min(rest));
            rest -= CHUNK.min(rest);
        }
    }
}
