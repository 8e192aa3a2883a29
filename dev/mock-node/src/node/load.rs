//! The node's own load, announced on an exact schedule.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;

use crate::{error::TxRefused, shared::Shared, tx::SignedTx};

/// How many transactions are kept signed in addition to the largest burst, for a thread that wakes
/// late. Signing them takes half a millisecond.
const AHEAD: usize = 16;

/// Announces the load on schedule: transaction i is due at start + i / tps, however late the ones
/// before it were.
pub(super) fn pace(shared: &Shared) {
    let config = &shared.config;
    let ahead = config.largest_burst() + AHEAD;
    shared.load.lock().sign_up_to(ahead);
    if shared.wait_for_start() {
        return;
    }
    let start = Instant::now();
    for number in 0..config.count.unwrap_or(u64::MAX) {
        let due = start + Duration::from_secs_f64(number as f64 / f64::from(config.tps));
        // One is signed at a time, so that a due transaction waits for one signature at most.
        while Instant::now() < due && shared.load.lock().sign_one(ahead) {}
        if shared.sleep_until(due) {
            return;
        }
        for (kind, tx) in shared.take(1) {
            if let Err(error) = shared.submit(Arc::clone(&tx)) {
                tracing::warn!(%error, "the node's own load was refused");
                if matches!(error, TxRefused::Full { .. }) {
                    // It is sent again: without it, all later transactions of its sender would stay
                    // queued.
                    shared.load.lock().put_back((kind, tx));
                }
            }
        }
    }
    shared.signal(|state| state.load_finished = true);
}

/// Announces the next transactions of the load at once. Returns those that the pool accepted.
pub(super) fn burst(shared: &Shared, count: usize) -> Vec<B256> {
    let submit = |(_, tx): (_, Arc<SignedTx>)| shared.submit(Arc::clone(&tx)).map(|()| tx.hash);
    let submitted = shared.take(count).into_iter().map(submit);
    let warn = |error: &_| tracing::warn!(%error, "a burst's transaction was refused");
    submitted.filter_map(|submitted| submitted.inspect_err(warn).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, FaultPlan, MockNode, NodeConfig};

    /// A burst used to be signed when it was due, which delayed the paced load.
    #[test]
    fn the_largest_burst_is_signed_ahead_and_again_after_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let bursts = [20, 100].map(|count| (Duration::ZERO, Fault::Burst { count }));
        let config = NodeConfig {
            accounts: 20,
            tps: 1,
            faults: Some(FaultPlan::new(bursts)),
            ..NodeConfig::new(dir.path().join("node.ipc"))
        };
        assert_eq!(config.load().sign_up_to(0).len(), 100);
        let node = MockNode::start(config).expect("the node starts");
        let end = Instant::now() + Duration::from_secs(20);
        assert!(node.shared.wait(end, |state| state.plan_finished));
        while node.shared.load.lock().sign_up_to(0).len() < 100 {
            assert!(Instant::now() < end, "nothing is signed");
            std::thread::yield_now();
        }
    }
}
