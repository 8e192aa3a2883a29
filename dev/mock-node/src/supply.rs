//! The node's own load, signed ahead of its turn.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::{
    config::NodeConfig,
    lock,
    tx::SignedTx,
    workload::{SignedLoad, Workload},
};

/// Signed at a time at least, in half a millisecond: so long the next announcement of the pace may wait.
const CHUNK: usize = 16;

/// Signed transactions, in the order of the workload: the seed decides it, not when they were signed.
#[derive(Debug)]
pub(crate) struct Supply(Mutex<(VecDeque<Arc<SignedTx>>, Workload)>);

impl Supply {
    /// Signs what the configuration needs first.
    pub(crate) fn new(config: &NodeConfig) -> Self {
        let load = config.workload();
        let signed = config.signed_load.clone().unwrap_or_else(|| SignedLoad::new(load.clone(), 0));
        assert_eq!(*signed.config(), load, "the signed load is not the node's");
        let supply = Self(Mutex::new(signed.into_parts()));
        for tx in &supply.ready(config.preload + config.signed_ahead).0 {
            if config.render_ahead {
                tx.pending_object();
            }
        }
        supply
    }

    /// With so many ready, signed now if they are not.
    pub(crate) fn ready(
        &self,
        count: usize,
    ) -> MutexGuard<'_, (VecDeque<Arc<SignedTx>>, Workload)> {
        let mut guard = lock(&self.0);
        let (ready, workload) = &mut *guard;
        if ready.len() < count {
            let signed = workload.sign(CHUNK.max(count - ready.len()));
            ready.extend(signed.into_iter().map(|(_, tx)| tx));
        }
        guard
    }

    pub(crate) fn take(&self, count: usize) -> Vec<Arc<SignedTx>> {
        self.ready(count).0.drain(..count).collect()
    }

    pub(crate) fn put_back(&self, tx: Arc<SignedTx>) {
        lock(&self.0).0.push_front(tx);
    }
}
