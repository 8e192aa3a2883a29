use std::time::{Duration, SystemTime};

use order_pool::{
    BundleParts, CancelPrivateOutcome, Holder, InsertOutcome, OrderPool, PoolConfig, PrivateTerms,
    Transaction,
};
use uuid::Uuid;

use super::common::{address, bundle, head, nth, variant};
use crate::arrival::ArrivalClock;

/// The wall clock at each step, in seconds: it is set back, then ahead by an hour, and back again.
const STEPS: [i64; 6] = [0, -5, -4, 3_600, 3_601, 10];

#[test]
fn later_messages_win_however_the_wall_clock_steps() {
    let (clock, start) = (ArrivalClock::new(), SystemTime::now());
    let arrivals = STEPS.map(|seconds| {
        let step = Duration::from_secs(seconds.unsigned_abs());
        clock.next(if seconds < 0 { start - step } else { start + step })
    });
    assert!(arrivals.is_sorted_by(|one, other| one < other), "{arrivals:?}");
    let pool = OrderPool::new(PoolConfig::default()).expect("valid");
    pool.on_head(head(10, 0, 0, &[]));
    for (n, pair) in arrivals.windows(2).enumerate() {
        let terms = PrivateTerms { signer: Some(address(7)), max_block: 20 };
        let tx = nth(n as u64);
        let private = Transaction::private(tx.recovered().clone(), terms, pair[0]);
        assert_eq!(pool.insert_transaction(private), InsertOutcome::Added);
        let cancelled = pool.cancel_private(tx.hash(), address(7), Holder::Host, pair[1]);
        assert_eq!(cancelled, CancelPrivateOutcome::Cancelled, "{n}");
    }
    for (n, first_seen) in arrivals.into_iter().enumerate() {
        let parts = BundleParts {
            txs: vec![nth(100 + n as u64)],
            block: Some(11),
            uuid: Some(Uuid::nil()),
            signer: Some(address(7)),
            first_seen: Some(first_seen),
            ..Default::default()
        };
        let expected = if n == 0 { "Added" } else { "Replaced" };
        assert_eq!(variant(pool.insert_bundle(bundle(parts))), expected, "{n}");
    }
}
