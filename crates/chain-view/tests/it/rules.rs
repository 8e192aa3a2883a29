//! What the model does not reach: absurd numbers, and blocks that are longer than the memory.

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
fn a_child_whose_number_is_not_the_next_one_is_refused() {
    let mut recent = RecentBlocks::new(64);
    recent.push(block(1, 1, 0, &[]));
    for number in [0, 1, 3, u64::MAX] {
        assert_eq!(recent.push(block(number, 9, 1, &[100])).relation, Relation::Inconsistent);
    }
    assert_eq!(recent.head().map(|head| head.number), Some(1));
    assert!(!recent.is_mined(&h(100)));
}

#[test]
fn an_unknown_parent_is_a_gap_after_which_no_block_before_it_counts() {
    let mut recent = RecentBlocks::new(64);
    for n in 1..=5 {
        recent.push(block(n, n, n - 1, &[100 + n]));
    }
    let pushed = recent.push(block(4, 44, 33, &[]));
    assert_eq!(pushed.relation, Relation::Gap { replaced: 3 }, "3 is not the parent either");
    // Nothing proves that 1 and 2 are ancestors: they are not put back, and take nothing any more.
    let forgotten: Vec<_> = pushed.forgotten.iter().map(|block| block.head.number).collect();
    assert_eq!((pushed.undone.len(), forgotten), (3, vec![1, 2]));
    assert!(!recent.is_mined(&h(102)) && !recent.is_mined(&h(103)));
    assert_eq!(recent.push(block(u64::MAX, 7, 8, &[])).relation, Relation::Gap { replaced: 0 });
    assert_eq!(recent.push(block(0, 70, 80, &[])).relation, Relation::Gap { replaced: 1 });
}

#[test]
fn the_memory_is_bounded_in_hashes_however_long_the_blocks_are() {
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
    // One that is longer than all of them may be is kept alone, and goes with the next.
    let longest: Vec<_> = (0..=MAX_RECENT_HASHES as u64).collect();
    let pushed = recent.push(block(11, 11, 10, &longest));
    assert_eq!((pushed.forgotten.len(), recent.iter().len()), (4, 1));
    let pushed = recent.push(block(12, 12, 11, &[1]));
    assert_eq!((pushed.relation, pushed.forgotten.len()), (Relation::Next, 1));
    assert!(recent.is_mined(&h(1)) && !recent.is_mined(&h(2)));
}
