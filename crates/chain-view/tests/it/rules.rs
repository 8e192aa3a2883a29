//! Cases that the model does not reach: absurd numbers, and blocks with too many transactions.

use alloy_primitives::B256;
use chain_view::{Block, Head, MAX_RECENT_HASHES, RecentBlocks, Relation};

fn h(n: u64) -> B256 {
    B256::left_padding_from(&n.to_be_bytes())
}

fn block(number: u64, hash: u64, parent: u64, mined: &[u64]) -> Block {
    let mined: Vec<B256> = mined.iter().map(|n| h(*n)).collect();
    Block::new(Head::new(number, h(hash), h(parent)), mined)
}

#[test]
fn a_block_with_an_unknown_parent_may_have_any_number() {
    let mut recent = RecentBlocks::new(64);
    recent.push(block(5, 5, 4, &[]));
    for (number, replaced) in [(u64::MAX, 0), (0, 1), (u64::MAX, 0)] {
        let relation = recent.push(block(number, number ^ 7, number ^ 8, &[])).relation;
        assert_eq!(relation, Relation::Gap { replaced });
    }
}

#[test]
fn the_memory_is_bounded_in_hashes() {
    let quarter = (MAX_RECENT_HASHES / 4) as u64;
    let long = |n: u64| (n * quarter..(n + 1) * quarter).collect::<Vec<_>>();
    let mut recent = RecentBlocks::new(64);
    for n in 1..=10 {
        let pushed = recent.push(block(n, n, n - 1, &long(n)));
        assert_eq!(pushed.relation, Relation::Next);
        let forgotten: Vec<_> = pushed.forgotten.iter().map(|block| block.head.number).collect();
        assert_eq!(forgotten, n.checked_sub(4).filter(|n| *n > 0).into_iter().collect::<Vec<_>>());
    }
    assert!(!recent.is_mined(&h(7 * quarter - 1)) && recent.is_mined(&h(7 * quarter)));
    // A single block with more hashes than the bound is kept alone, and is removed with the next
    // one.
    let longest: Vec<_> = (0..=MAX_RECENT_HASHES as u64).collect();
    let pushed = recent.push(block(11, 11, 10, &longest));
    assert_eq!((pushed.forgotten.len(), recent.iter().len()), (4, 1));
    let pushed = recent.push(block(12, 12, 11, &[1]));
    assert_eq!((pushed.relation, pushed.forgotten.len()), (Relation::Next, 1));
    assert!(recent.is_mined(&h(1)) && !recent.is_mined(&h(2)));
}
