//! Tests of the policy that a finished block must pass.

use std::{sync::Arc, time::SystemTime};

use blocklist::{
    BlockGuard, Blocked, Blocklist, BlocklistConfig, Finished, How, Policy, SharedBlocklist,
};
use testkit::configured;

use super::{LISTED_IN_A as LISTED, LISTED_IN_B as OTHER, UNLISTED as FEE_RECIPIENT};

fn guard(policy: Policy) -> BlockGuard {
    let now = SystemTime::UNIX_EPOCH;
    let config = configured(BlocklistConfig::default(), |config| config.policy = policy);
    let shared = SharedBlocklist::new(LISTED.to_string().as_bytes(), now, config, now);
    let begun = shared.expect("a good list").begin_block(FEE_RECIPIENT, Some(OTHER), now);
    begun.expect("neither is listed")
}

#[test]
fn a_finished_block_is_submittable_under_the_default_policy() {
    let list = Blocklist::from_addresses([LISTED], &BlocklistConfig::default()).expect("one");
    let fixed = BlockGuard::new(Arc::new(list), FEE_RECIPIENT).expect("not listed");
    for guard in [guard(Policy::PostState), fixed] {
        let Finished::Submittable(submittable) = guard.finish("a block") else {
            panic!("{guard:?}");
        };
        assert_eq!(submittable.block(), &"a block");
        assert_eq!(submittable.into_block(), "a block");
    }
}

#[test]
fn a_strict_block_is_submittable_only_after_its_verification() {
    let guard = guard(Policy::Strict);
    let unverified = || match guard.finish("a block") {
        Finished::Unverified(unverified) => unverified,
        other => panic!("{other:?} was not verified"),
    };
    assert_eq!(unverified().block(), &"a block");
    let blocked = unverified().verify_addresses([&OTHER, &LISTED, &FEE_RECIPIENT]).map(drop);
    assert_eq!(blocked, Err(Blocked { address: LISTED, how: How::AttemptedByExecution }));
    let passed = unverified().verify_addresses([&OTHER, &FEE_RECIPIENT]).expect("not listed");
    assert_eq!(passed.into_block(), "a block");
}
