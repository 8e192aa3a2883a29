//! Measures resident memory, which belongs to the whole process. Memory that other tests freed
//! would hide what a test takes, so each test that uses this is a program of its own.

use order_pool::{InsertOutcome, OrderPool, Subscription, Transaction};
pub(crate) use testkit::usage::resident_bytes;

use super::{Spec, tx};

/// Returns the `n`th transaction. It pays more than those before it, so a full pool accepts it.
pub(crate) fn rising(n: u64, input_bytes: usize) -> Transaction {
    let fee = 1_000 + u128::from(n);
    tx(Spec { sender: n, max_fee: fee, max_tip: fee, input_bytes, ..Default::default() })
}

/// Inserts transactions, and returns the most bytes that were resident meanwhile.
pub(crate) fn insert(pool: &OrderPool, range: std::ops::Range<u64>, input_bytes: usize) -> usize {
    let mut most = 0;
    for n in range {
        assert_eq!(pool.insert_transaction(rising(n, input_bytes)), InsertOutcome::Added);
        if n % 512 == 0 {
            most = most.max(resident_bytes());
        }
    }
    most.max(resident_bytes())
}

/// Reads everything, and checks that missed and read events are all the events.
pub(crate) fn read_late(mut reader: Subscription, pool: &OrderPool) {
    let stats = pool.stats();
    let events = stats.inserted + stats.evicted;
    let mut read = 0;
    let Some(Err(lagged)) = reader.try_next() else { panic!("the log is shorter") };
    while let Some(event) = reader.try_next() {
        event.expect("it lags once");
        read += 1;
    }
    assert_eq!(lagged.missed + read, events);
}
