//! The rules one by one.

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, MAX_RECENT_HASHES, NonceUpdate, RecentBlocks, Relation, Taken};

fn h(n: u64) -> B256 {
    B256::left_padding_from(&n.to_be_bytes())
}

fn block(number: u64, hash: u64, parent: u64, mined: &[u64]) -> Block {
    let mined: Vec<B256> = mined.iter().map(|n| h(*n)).collect();
    Block::new(Head::new(number, h(hash), h(parent)), mined)
}

const SENDER: Address = Address::repeat_byte(7);

#[test]
fn a_hash_is_mined_until_its_block_is_undone() {
    let mut recent = RecentBlocks::new(64);
    recent.push(block(1, 1, 0, &[101, 102]));
    recent.push(block(2, 2, 1, &[103]));
    let pushed = recent.push(block(2, 22, 1, &[104]));
    assert_eq!(pushed.relation, Relation::Reorg { replaced: 1 });
    assert_eq!(pushed.undone, [block(2, 2, 1, &[103])]);
    assert!(recent.is_mined(&h(101)) && recent.is_mined(&h(104)) && !recent.is_mined(&h(103)));
    assert_eq!(recent.head().map(|head| head.hash), Some(h(22)));
}

#[test]
fn the_nonces_of_a_block_leave_with_it_also_when_it_has_no_hashes() {
    let mut recent = RecentBlocks::new(64);
    recent.push(block(1, 1, 0, &[]));
    recent.raise(&h(1), NonceUpdate::new(SENDER, 3));
    recent.push(block(2, 2, 1, &[]));
    assert_eq!(recent.raise(&h(2), NonceUpdate::new(SENDER, 5)), Some(true));
    assert_eq!(recent.taken(&h(9), &SENDER, 4), Some(Taken::StaleNonce { next_nonce: 5 }));
    recent.push(block(2, 22, 1, &[]));
    assert_eq!(recent.taken(&h(9), &SENDER, 2), Some(Taken::StaleNonce { next_nonce: 3 }));
    assert_eq!(recent.taken(&h(9), &SENDER, 3), None);
    assert_eq!(recent.raise(&h(2), NonceUpdate::new(SENDER, 5)), None, "it is undone");
}

#[test]
fn a_known_ancestor_told_again_changes_nothing() {
    let mut recent = RecentBlocks::new(64);
    recent.push(block(1, 1, 0, &[]));
    recent.push(block(2, 2, 1, &[]));
    assert_eq!(recent.push(block(1, 1, 0, &[])).relation, Relation::Repeat);
    assert_eq!(recent.head().map(|head| head.number), Some(2));
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
fn an_unknown_parent_is_a_gap_and_undoes_what_cannot_be_an_ancestor() {
    let mut recent = RecentBlocks::new(64);
    for n in 1..=5 {
        recent.push(block(n, n, n - 1, &[100 + n]));
    }
    let pushed = recent.push(block(4, 44, 33, &[]));
    assert_eq!(pushed.relation, Relation::Gap { replaced: 3 }, "3 is not the parent either");
    assert!(recent.is_mined(&h(102)) && !recent.is_mined(&h(103)));
    assert_eq!(recent.push(block(u64::MAX, 7, 8, &[])).relation, Relation::Gap { replaced: 0 });
    assert_eq!(recent.push(block(0, 70, 80, &[])).relation, Relation::Gap { replaced: 4 });
}

#[test]
fn the_memory_is_bounded_in_blocks() {
    let mut recent = RecentBlocks::new(64);
    for n in 1..1_000 {
        let pushed = recent.push(block(n, n, n - 1, &[n + 10_000]));
        recent.raise(&h(n), NonceUpdate::new(Address::left_padding_from(&n.to_be_bytes()), n));
        assert_eq!(pushed.forgotten.len(), usize::from(n > 64));
    }
    assert_eq!(recent.iter().len(), 64);
    assert_eq!((0..20_000).filter(|n| recent.is_mined(&h(*n))).count(), 64);
    let known = |n: &u64| recent.next_nonce(&Address::left_padding_from(&n.to_be_bytes()));
    assert_eq!((1..1_000).filter_map(|n| known(&n)).count(), 64);
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
