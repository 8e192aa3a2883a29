//! The pool against a naive model: plain lists and sorted scans, random sequences of operations,
//! equal after every step.

use std::{
    collections::{BTreeMap, HashSet, VecDeque, btree_map::Entry},
    ops::Range,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256, keccak256};
use order_pool::{
    Block, Bundle, BundleParts, CancelOutcome, CancelPrivateOutcome, Clock, Event, Head, Holder,
    InsertOutcome, OrderPool, OrderStatus, Origin, PoolConfig, PrivateTerms, Relation,
    ReplacementKey, Subscription, Transaction,
};
use proptest::prelude::*;
use uuid::Uuid;

use self::{ops::*, reader::*, run::*, state::*};
use super::common::{Spec, address, cancellation, hash, nth, private_from, tx_from, variant};
use crate::core::{Division, Limits, Size};

mod bundles;
mod heads;
mod keys;
mod ops;
mod reader;
mod room;
mod run;
mod state;
mod txs;

/// What one holder may have, by the caps of a class.
fn cap_of(holder: Holder, [half, per_signer, per_caller]: [usize; 3]) -> usize {
    match holder {
        Holder::Host => half,
        Holder::Signer(_) => per_signer,
        Holder::Caller(_) => per_caller,
    }
}

fn holder(n: u8) -> Holder {
    match n {
        0 => Holder::Host,
        1 => Holder::Signer(address(50)),
        n => Holder::caller([10, 0, 0, n].into()),
    }
}

const MAX_TXS: usize = 12;
/// Raw ones, in each half.
const MAX_EXTERNAL: usize = 4;
const MAX_OF_SENDER: usize = 3;
/// Of all of a class, of a known signer, of a caller.
const PRIVATE: [usize; 3] = [5, 4, 3];
const BUNDLES: [usize; 3] = [5, 3, 2];
const KEYS: [usize; 3] = [3, 2, 1];
const DEDUPE: usize = 40;
const BLOCKS: usize = 4;
const RETENTION: u64 = 50;
const EXPIRED_PAUSE: u64 = 30;
const LOG_EVENTS: usize = 64;
const MAX_AHEAD: u64 = 3;
/// A reorg may lower the head by as many blocks as are remembered.
const MAX_KEPT_AHEAD: u64 = MAX_AHEAD + BLOCKS as u64;
/// What private transactions pay at most, and some of the others.
const PRIVATE_FEE: u128 = 19;
/// The bundle that has no transactions, if it has a key.
const EMPTY: u64 = 6;
/// How many more blocks a private transaction is kept that has become public.
const PUBLIC_BLOCKS: u64 = 5;

fn limits() -> Limits {
    let options = PoolConfig {
        max_txs: MAX_TXS,
        max_external_txs: 2 * MAX_EXTERNAL,
        tx_retention: Duration::from_secs(RETENTION),
        log_events: LOG_EVENTS,
        ..PoolConfig::default()
    };
    let division = |counts: [usize; 3]| {
        let [half, per_signer, per_caller] = counts.map(|count| Size { count, bytes: usize::MAX });
        Division { half, per_signer, per_caller }
    };
    Limits {
        private_txs: division(PRIVATE),
        max_private_per_sender: MAX_OF_SENDER,
        bundles: division(BUNDLES),
        keys: division(KEYS),
        dedupe_window: DEDUPE,
        recent_blocks: BLOCKS,
        expired_pause: Duration::from_secs(EXPIRED_PAUSE),
        cancellation_retention: Duration::from_secs(RETENTION / 2),
        max_blocks_ahead: MAX_AHEAD,
        ..options.into()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_pool_equals_a_naive_model_after_every_step(
        ops in prop::collection::vec(op(), 200),
    ) {
        let mut run = Run::new();
        for op in ops {
            run.step(op);
            run.check();
        }
        // In the end everyone reads everything.
        for reader in &mut run.readers {
            reader.read(&run.model, run.model.log.len() + reader.replay.len() + 1);
        }
    }
}
