//! Compares the pool with a naive model (plain lists and sorted scans) after every step of random
//! sequences of operations.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque, btree_map::Entry},
    net::{IpAddr, Ipv6Addr},
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
use crate::core::{Limits, ShareCaps, Size};

mod bundles;
mod heads;
mod keys;
mod ops;
mod reader;
mod room;
mod run;
mod state;
mod txs;

/// The caps on a half, on one of its holders, on a network, and on the claims of a half.
#[derive(Clone, Copy, Debug)]
struct Caps {
    half: usize,
    signer: usize,
    caller: usize,
    site: usize,
    front: usize,
    claims: usize,
}

impl Caps {
    fn for_holder(self, holder: Holder) -> usize {
        match holder {
            Holder::Host => self.half,
            Holder::Signer(_) => self.signer,
            Holder::Caller(_) | Holder::Forwarded { .. } => self.caller,
        }
    }

    fn for_network(self, holder: Holder) -> usize {
        match holder {
            Holder::Caller(IpAddr::V6(_)) => self.site,
            Holder::Forwarded { .. } => self.front,
            _ => usize::MAX,
        }
    }
}

/// Returns a number for all holders that share a network.
fn network(holder: Holder) -> Option<u8> {
    match holder {
        Holder::Caller(IpAddr::V6(_)) => Some(6),
        Holder::Forwarded { .. } => Some(0),
        _ => None,
    }
}

const HOLDERS: u8 = 9;

fn holder(n: u8) -> Holder {
    match n {
        0 => Holder::Host,
        1 => Holder::Signer(address(50)),
        // Three holders of one /48.
        2..5 => {
            Holder::caller(Ipv6Addr::new(0x2001, 0xdb8, 1, u16::from(n) << 8, 0, 0, 0, 0).into())
        }
        5..7 => {
            Holder::Forwarded { front: [10, 1, 0, 0].into(), signer: Some(address(u64::from(n))) }
        }
        n => Holder::caller([10, 0, 0, n].into()),
    }
}

const MAX_TXS: usize = 12;
const MAX_OF_SENDER: usize = 3;
const EXTERNAL: Caps = Caps { half: 5, signer: 4, caller: 3, site: 4, front: 4, claims: 8 };
const BUNDLES: Caps = Caps { half: 5, signer: 3, caller: 2, site: 3, front: 3, claims: 7 };
const KEYS: Caps = Caps { half: 3, signer: 2, caller: 1, site: 2, front: 2, claims: 0 };
/// The most claims that are kept with an order that a block removed.
const MAX_RETAINED_CLAIMS: usize = 4;
const DEDUPE: usize = 40;
const BLOCKS: usize = 4;
const RETENTION: u64 = 50;
/// A copy keeps a transaction longer only if that adds as much.
const LEAST_EXTENSION: u64 = RETENTION / 5;
const LOG_EVENTS: usize = 64;
const MAX_AHEAD: u64 = 3;
/// A reorg may lower the head by as many blocks as are remembered.
const MAX_KEPT_AHEAD: u64 = MAX_AHEAD + BLOCKS as u64;
/// The fee cap of private transactions, and of some of the others.
const PRIVATE_FEE: u128 = 19;
/// The number of the bundle that has no transactions, if it has a key.
const EMPTY: u64 = 6;

fn limits() -> Limits {
    let options = PoolConfig {
        max_txs: MAX_TXS,
        tx_retention: Duration::from_secs(RETENTION),
        log_events: LOG_EVENTS,
        ..PoolConfig::default()
    };
    let size = |count: usize| Size { count, bytes: usize::MAX };
    let division = |Caps { half, signer, caller, site, front, claims }: Caps| ShareCaps {
        half: size(half),
        per_signer: size(signer),
        per_caller: size(caller),
        per_site: size(site),
        per_front: size(front),
        claims,
    };
    Limits {
        external_txs: division(EXTERNAL),
        max_private_per_sender: MAX_OF_SENDER,
        bundles: division(BUNDLES),
        keys: division(KEYS),
        dedupe_window: DEDUPE,
        recent_blocks: BLOCKS,
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
        // In the end every reader reads everything.
        for reader in &mut run.readers {
            reader.read(&run.model, run.model.log.len() + reader.replay.len() + 1);
        }
    }
}
