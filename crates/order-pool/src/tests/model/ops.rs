//! The random operations.

use super::*;

/// The number of a uuid and its signer, and the replacement nonce.
pub(super) type Keyed = (usize, Option<u64>);

// The comments are no doc comments, so that each operation stands on one line.
#[derive(Clone, Debug)]
pub(super) enum Op {
    // Without a holder it was announced by the node.
    Insert {
        sender: u64,
        nonce: u64,
        max_fee: u128,
        max_tip: u128,
        holder: Option<u8>,
        listed: bool,
    },
    // `count` private transactions, until `ahead` blocks after the head.
    Private {
        sender: u64,
        nonce: u64,
        count: u64,
        max_tip: u128,
        ahead: u64,
        holder: u8,
    },
    // The cancellation of a transaction that is pooled or that a block removed.
    CancelPrivate {
        which: usize,
        signer: u64,
    },
    // A pooled order is sent again: without a holder by the node, with `ahead` as a private one.
    Again {
        which: usize,
        holder: Option<u8>,
        ahead: Option<u64>,
        listed: bool,
    },
    // A node lists some of the pooled transactions, or no longer lists them.
    Listed {
        mask: u8,
        is_listed: bool,
    },
    // Many at once, so that the log wraps and caps are reached.
    Burst {
        salt: u64,
    },
    // `signer` is for a bundle without a key; it is sent at microsecond `sent_at`.
    Bundle {
        n: u64,
        ahead: Option<u64>,
        key: Option<Keyed>,
        signer: Option<u64>,
        caller: u8,
        sent_at: u8,
    },
    Cancel {
        key: Keyed,
        holder: u8,
    },
    // A block on the newest one, with some pooled transactions and some others.
    Head {
        mined: u8,
        unknown: u64,
        base_fee: Option<u64>,
    },
    // A block that replaces the newest `depth` blocks.
    Reorg {
        depth: usize,
        mined: u8,
    },
    // A block that was undone or forgotten is reported again.
    Return {
        which: usize,
    },
    // A head whose parent is unknown.
    Gap {
        skip: u64,
    },
    Nonces {
        back: usize,
        sender: u64,
        next: u64,
    },
    Pass {
        seconds: u64,
    },
    Upkeep,
    Subscribe {
        ahead: Option<u64>,
    },
    Read {
        which: usize,
        max: usize,
    },
    Resync {
        which: usize,
    },
    Drop {
        which: usize,
    },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let key = || (0_usize..6, prop::option::weighted(0.8, 0_u64..8));
    let (ahead, signer) = (prop::option::of(0_u64..6), prop::option::of(2_u64..5));
    // Few values, so that the same transaction is sent again.
    let fee = prop::sample::select(vec![3_u128, 11, PRIVATE_FEE]);
    // Sometimes as many as a sender may have.
    let few = prop::sample::select(vec![1, 1, 1, MAX_OF_SENDER as u64]);
    prop_oneof![
        12 => (
            0_u64..5,
            0_u64..4,
            fee,
            0_u128..8,
            prop::option::weighted(0.4, 0..HOLDERS),
            any::<bool>(),
        )
            .prop_map(|(sender, nonce, max_fee, max_tip, holder, listed)| {
                Op::Insert { sender, nonce, max_fee, max_tip, holder, listed }
            }),
        6 => (0_u64..5, 0_u64..4, few, 0_u128..8, 0_u64..6, 0..HOLDERS)
            .prop_map(|(sender, nonce, count, max_tip, ahead, holder)| {
                Op::Private { sender, nonce, count, max_tip, ahead, holder }
            }),
        2 => (0_usize..20, 0_u64..2)
            .prop_map(|(which, signer)| Op::CancelPrivate { which, signer }),
        8 => (
            0_usize..20,
            prop::option::weighted(0.8, 0..HOLDERS),
            prop::option::of(0_u64..6),
            any::<bool>(),
        )
            .prop_map(|(which, holder, ahead, listed)| Op::Again { which, holder, ahead, listed }),
        2 => (0_u8..8, any::<bool>()).prop_map(|(mask, is_listed)| Op::Listed { mask, is_listed }),
        1 => (0_u64..4).prop_map(|salt| Op::Burst { salt }),
        6 => (0_u64..=EMPTY, ahead, prop::option::of(key()), signer, 0..HOLDERS, 0_u8..4)
            .prop_map(|(n, ahead, key, signer, caller, sent_at)| {
                Op::Bundle { n, ahead, key, signer, caller, sent_at }
            }),
        3 => (key(), 0..HOLDERS).prop_map(|(key, holder)| Op::Cancel { key, holder }),
        // At an absurd base fee no transaction pays, and nothing overflows.
        4 => (0_u8..8, 0_u64..40, prop::option::of(prop_oneof![20 => 0_u64..20, 1 => Just(u64::MAX)]))
            .prop_map(|(mined, unknown, base_fee)| Op::Head { mined, unknown, base_fee }),
        2 => (1_usize..4, 0_u8..8).prop_map(|(depth, mined)| Op::Reorg { depth, mined }),
        2 => (0_usize..4).prop_map(|which| Op::Return { which }),
        1 => (1_u64..3).prop_map(|skip| Op::Gap { skip }),
        3 => (0_usize..3, 0_u64..17, 0_u64..5)
            .prop_map(|(back, sender, next)| Op::Nonces { back, sender, next }),
        3 => (1_u64..20).prop_map(|seconds| Op::Pass { seconds }),
        3 => Just(Op::Upkeep),
        2 => prop::option::of(0_u64..4).prop_map(|ahead| Op::Subscribe { ahead }),
        6 => (0_usize..4, 1_usize..40).prop_map(|(which, max)| Op::Read { which, max }),
        1 => (0_usize..4).prop_map(|which| Op::Resync { which }),
        1 => (0_usize..4).prop_map(|which| Op::Drop { which }),
    ]
}
