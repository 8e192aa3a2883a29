//! Compares random forks, gaps, repeats and late nonces with plain lists after every step.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, NonceUpdate, ObsoleteReason, RecentBlocks, Relation};
use proptest::{prelude::*, sample::Index};

const MAX_BLOCKS: usize = 5;
const HASHES: u64 = 12;
const SENDERS: u64 = 4;
const NONCES: u64 = 6;

#[derive(Clone, Debug)]
enum Op {
    /// Makes a block with the number of its parent plus `distance`, which is one for a child. If it
    /// is not pushed, its children come with a gap.
    Make { parent: Parent, distance: u64, mined: Vec<u64>, is_pushed: bool },
    /// Pushes a block that was made before: it may be known, undone, forgotten, or never pushed.
    Again { block: Index },
    /// Raises a nonce of any block that was made, or of an unknown one.
    Nonce { block: Option<Index>, sender: u64, next: u64 },
}

#[derive(Clone, Debug)]
enum Parent {
    Newest,
    /// Any block that was made, pushed or not.
    Made(Index),
    /// An unknown block with a number around the newest one's.
    Unknown(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let mined = prop::collection::vec(0..HASHES, 0..4);
    let parent = prop_oneof![
        8 => Just(Parent::Newest),
        4 => any::<Index>().prop_map(Parent::Made),
        1 => (0_u64..20).prop_map(Parent::Unknown),
    ];
    let distance = prop_oneof![12 => Just(1), 1 => Just(0), 1 => 2_u64..6];
    prop_oneof![
        13 => (parent, distance, mined, prop::bool::weighted(0.9)).prop_map(
            |(parent, distance, mined, is_pushed)| Op::Make { parent, distance, mined, is_pushed }),
        2 => any::<Index>().prop_map(|block| Op::Again { block }),
        9 => (prop::option::weighted(0.9, any::<Index>()), 0..SENDERS, 0..NONCES)
            .prop_map(|(block, sender, next)| Op::Nonce { block, sender, next }),
    ]
}

fn hash(n: u64) -> B256 {
    B256::left_padding_from(&(n + 1).to_be_bytes())
}

fn sender(n: u64) -> Address {
    Address::left_padding_from(&n.to_be_bytes())
}

#[derive(Debug)]
struct Run {
    real: RecentBlocks,
    /// The known blocks, the oldest first, each with the nonces that it raised.
    known: Vec<(Block, BTreeMap<Address, u64>)>,
    /// All blocks that were made.
    made: Vec<Block>,
}

impl Run {
    fn new() -> Self {
        let genesis = Block::new(Head::new(7, hash(1_000), hash(999)), []);
        let mut run = Self { real: RecentBlocks::new(MAX_BLOCKS), known: vec![], made: vec![] };
        run.made.push(genesis.clone());
        run.push(genesis);
        run
    }

    fn push(&mut self, block: Block) {
        let head = block.head;
        let parent = self.known.iter().position(|(known, _)| known.head.hash == head.parent_hash);
        let keep = if self.known.iter().any(|(known, _)| known.head.hash == head.hash) {
            Err(Relation::Repeat)
        } else if let Some(parent) = parent {
            let follows = self.known[parent].0.head.number.checked_add(1) == Some(head.number);
            if follows { Ok(parent + 1) } else { Err(Relation::Inconsistent) }
        } else {
            Ok(self.known.iter().filter(|(known, _)| known.head.number + 1 < head.number).count())
        };
        let (related, pushed) = (self.real.relate(&head), self.real.push(block.clone()));
        assert_eq!(related, pushed.relation);
        let keep = match keep {
            Ok(keep) => keep,
            Err(relation) => {
                assert_eq!(pushed.relation, relation);
                assert!(pushed.undone.is_empty() && pushed.forgotten.is_empty());
                return;
            }
        };
        let replaced = self.known.len() - keep;
        let relation = match parent {
            _ if self.known.is_empty() => Relation::Next,
            Some(_) if replaced == 0 => Relation::Next,
            Some(_) => Relation::Reorg { replaced },
            None => Relation::Gap { replaced },
        };
        assert_eq!(pushed.relation, relation);
        let undone: Vec<Block> = self.known.drain(keep..).map(|(block, _)| block).collect();
        assert_eq!(pushed.undone, undone);
        self.known.push((block, BTreeMap::new()));
        let kept = if matches!(relation, Relation::Gap { .. }) { 1 } else { MAX_BLOCKS };
        let too_many = self.known.len().saturating_sub(kept);
        let forgotten: Vec<_> = self.known.drain(..too_many).map(|(block, _)| block).collect();
        assert_eq!(pushed.forgotten, forgotten);
    }

    fn raise(&mut self, block: B256, sender: Address, next: u64) {
        let before = self.next_nonce(&sender);
        let is_news = self.real.raise(&block, NonceUpdate::new(sender, next));
        let known = self.known.iter_mut().find(|(known, _)| known.head.hash == block);
        let Some((_, nonces)) = known else {
            return assert_eq!(is_news, None);
        };
        let highest = nonces.entry(sender).or_default();
        *highest = next.max(*highest);
        assert_eq!(is_news, Some(before.is_none_or(|before| before < next)));
    }

    fn next_nonce(&self, sender: &Address) -> Option<u64> {
        self.known.iter().filter_map(|(_, nonces)| nonces.get(sender)).max().copied()
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Make { parent, distance, mined, is_pushed } => {
                let newest = self.known.last().expect("there is always one").0.head;
                let fresh = |base: u64| hash(base + self.made.len() as u64);
                let Head { number, hash: parent, .. } = match parent {
                    Parent::Newest => newest,
                    Parent::Made(block) => block.get(&self.made).head,
                    Parent::Unknown(number) => {
                        let number = (newest.number + number).saturating_sub(9);
                        Head::new(number, fresh(5_000), B256::ZERO)
                    }
                };
                let head = Head::new(number + distance, fresh(1_000), parent);
                let mined: Vec<_> = mined.into_iter().map(hash).collect();
                let block = Block::new(head, mined);
                self.made.push(block.clone());
                if is_pushed {
                    self.push(block);
                }
            }
            Op::Again { block } => self.push(block.get(&self.made).clone()),
            Op::Nonce { block, sender: number, next } => {
                let block = block.map(|block| block.get(&self.made).head.hash);
                self.raise(block.unwrap_or(hash(9_999)), sender(number), next);
            }
        }
    }

    fn check(&self) {
        for (parent, child) in self.real.iter().zip(self.real.iter().skip(1)) {
            assert_eq!(child.head.parent_hash, parent.head.hash);
        }
        assert!(self.real.iter().eq(self.known.iter().map(|(block, _)| block)));
        assert_eq!(self.real.head(), self.known.last().map(|(block, _)| &block.head));
        for block in &self.made {
            let known = self.known.iter().map(|(block, _)| block);
            let known = known.into_iter().find(|known| known.head.hash == block.head.hash);
            assert_eq!(self.real.block(&block.head.hash), known);
        }
        for n in 0..HASHES {
            let mined = self.known.iter().any(|(block, _)| block.mined.contains(&hash(n)));
            assert_eq!(self.real.is_mined(&hash(n)), mined);
            for sender in (0..SENDERS).map(sender) {
                let next = self.next_nonce(&sender);
                assert_eq!(self.real.next_nonce(&sender), next);
                for nonce in 0..NONCES {
                    let stale = next.filter(|next| nonce < *next);
                    let stale = stale.map(|next_nonce| ObsoleteReason::StaleNonce { next_nonce });
                    let expected = if mined { Some(ObsoleteReason::Mined) } else { stale };
                    assert_eq!(self.real.obsolete_reason(&hash(n), &sender, nonce), expected);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_recent_blocks_equal_a_naive_model_after_every_step(
        ops in prop::collection::vec(op(), 100),
    ) {
        let mut run = Run::new();
        run.check();
        for op in ops {
            run.step(op);
            run.check();
        }
    }
}
