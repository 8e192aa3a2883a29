use std::time::{Duration, Instant, SystemTime};

use order_pool::{
    BundleParts, CancelPrivateOutcome, Holder, InsertOutcome, OrderPool, PoolConfig, PrivateTerms,
    Transaction,
};
use uuid::Uuid;

use super::common::{address, bundle, head, nth, variant};
use crate::arrival::ArrivalClock;

/// Before the fix it followed the wall clock where that was set ahead, and stood still until the
/// wall clock had caught up where that was set back. So an order that was published later seemed
/// older or newer than it was.
#[test]
fn the_time_between_two_arrivals_is_that_of_the_monotonic_clock() {
    let (wall, start) = (SystemTime::now(), Instant::now());
    let clock = ArrivalClock::new((wall, start));
    for micros in [0, 1, 7_500_000, 60_000_000] {
        let passed = Duration::from_micros(micros);
        for (time, instant) in [(wall + passed, start + passed), (wall - passed, start - passed)] {
            assert_eq!((clock.time_at(instant), clock.instant_of(time)), (time, instant));
        }
    }
    let first = clock.next(start);
    let later = clock.next(start + Duration::from_secs(7));
    assert_eq!(later.duration_since(first).unwrap(), Duration::from_secs(7));
}

/// When messages arrive, in microseconds: some at the same time, and two before an earlier one of
/// another thread.
const ARRIVALS: [u64; 6] = [10, 10, 10, 5, 4, 1_000];

#[test]
fn later_messages_win_although_they_arrive_at_the_same_time() {
    let start = Instant::now();
    let clock = ArrivalClock::new((SystemTime::now(), start));
    let arrivals = ARRIVALS.map(|micros| clock.next(start + Duration::from_micros(micros)));
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
