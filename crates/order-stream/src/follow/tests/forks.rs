//! Several machines whose nodes disagree, one stream, and a source that has no node.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    time::SystemTime,
};

use chain_view::{Block, Head};
use order_pool::{OrderPool, Subscription};
use proptest::prelude::*;

use crate::{
    config::Flow,
    deliver::Deliverer,
    follow::{Follower, Item},
    tests::{self, deliverer, message, pool},
    wire::Record,
};

/// A block by its number and its branch. Branch 0 is the trunk; the first block of branch `n` is block `100 + n`.
type At = (u64, u64);

fn parent((number, branch): At) -> At {
    (number - 1, if number > 100 + branch { branch } else { 0 })
}

fn block(at: At) -> Block {
    Block::new(tests::head(at.0, at.1, parent(at).1), [])
}

struct Machine {
    pool: OrderPool,
    events: Subscription,
    follower: Follower,
    name: String,
    at: At,
    /// What it has not published yet.
    held: VecDeque<Item>,
}

impl Machine {
    fn follow(&mut self) {
        while let Some(event) = self.events.try_next() {
            let event = event.expect("no lag");
            self.held.extend(self.follower.on(&event, &self.pool));
        }
    }
}

struct Fleet {
    machines: Vec<Machine>,
    /// The message ids and their numbers.
    stored: HashMap<String, u64>,
    source: Deliverer,
}

impl Fleet {
    /// All are at block 100.
    fn new(machines: usize) -> Self {
        let machine = |n: usize| {
            let pool = pool();
            let (events, follower) = (pool.subscribe_all(), Follower::new(Flow::Public, true));
            Machine { pool, events, follower, name: n.to_string(), at: (99, 0), held: [].into() }
        };
        let machines: Vec<_> = (0..machines).map(machine).collect();
        let mut fleet = Self { machines, stored: HashMap::new(), source: deliverer(true) };
        (0..fleet.machines.len()).for_each(|n| fleet.tell(n, (100, 0)));
        fleet
    }

    /// A machine's node goes to a block, by all that are new to it, unless it stands on a child of that block.
    fn go(&mut self, n: usize, to: At) {
        let machine = &mut self.machines[n];
        let ancestors =
            |at: At| std::iter::successors(Some(at), |at| (at.0 > 99).then(|| parent(*at)));
        if ancestors(machine.at).any(|at| at == to) {
            return;
        }
        let new: Vec<_> =
            ancestors(to).take_while(|at| !ancestors(machine.at).any(|old| old == *at)).collect();
        for at in new.into_iter().rev() {
            machine.pool.on_head(block(at));
            machine.follow();
        }
        machine.at = to;
    }

    /// A machine publishes one message. Returns whether it had any.
    fn publish(&mut self, n: usize) -> bool {
        let Machine { pool, follower, name, held, .. } = &mut self.machines[n];
        let Some(item) = held.pop_front() else { return false };
        let encoded = item.encode(std::time::Instant::now()).expect("a message");
        let mut id = alloy_primitives::hex::encode(encoded.id);
        id.push_str(&item.suffix(name).unwrap_or_default());
        let next = self.stored.len() as u64 + 1;
        let sequence = *self.stored.entry(id.clone()).or_insert(next);
        held.extend(follower.acknowledged(&item, sequence, pool));
        if sequence == next {
            let times = crate::tests::stored_now(SystemTime::UNIX_EPOCH);
            self.source.message(&message(&id, encoded.payload), times);
        }
        true
    }

    /// The same, and the machine publishes it and all that it holds.
    fn tell(&mut self, n: usize, to: At) {
        self.go(n, to);
        while self.publish(n) {}
    }

    fn head(&self) -> Option<Head> {
        self.source.pool.head()
    }
}

#[test]
fn a_head_of_two_machines_on_one_chain_is_stored_once() {
    let mut fleet = Fleet::new(2);
    let before = fleet.stored.len();
    for number in 101..=110 {
        let first = usize::from(number % 2 == 0);
        fleet.tell(first, (number, 0));
        fleet.tell(1 - first, (number, 0));
    }
    // The second is three blocks behind for a while.
    (111..=120).for_each(|number| fleet.tell(0, (number, 0)));
    (111..=120).for_each(|number| fleet.tell(1, (number, 0)));
    assert_eq!(fleet.stored.len(), before + 20);
}

/// What is below the branching is not published again: builders would take it for a chain of its own. What comes back is
/// no duplicate of what the stream has stored.
#[test]
fn a_reorg_publishes_the_blocks_of_the_new_branch_alone_and_a_flip_back_those_of_the_old_one() {
    let mut fleet = Fleet::new(1);
    let check = |fleet: &mut Fleet, expected: RangeInclusive<u64>| {
        let before = fleet.stored.len();
        let number = |item: &Item| match &item.record {
            Record::Head(record) => record.head.number,
            other => panic!("{other:?}"),
        };
        assert!(fleet.machines[0].held.iter().map(number).eq(expected.clone()), "{expected:?}");
        while fleet.publish(0) {}
        assert_eq!(fleet.stored.len(), before + expected.count(), "a duplicate");
    };
    for (to, expected) in [
        ((104, 0), 101..=104),
        ((104, 4), 104..=104),
        ((105, 3), 103..=105),
        ((105, 0), 103..=105),
        ((105, 3), 103..=105),
    ] {
        fleet.go(0, to);
        check(&mut fleet, expected);
    }
    // The return comes while nothing can be published.
    let machine = &mut fleet.machines[0];
    (103..=106).for_each(|number| _ = machine.pool.on_head(block((number, 0))));
    machine.events = machine.pool.subscribe_all();
    machine.follow();
    check(&mut fleet, 103..=106);
}

proptest! {
    /// A head that was told before its machine came back to it was dropped as a duplicate, and the
    /// builder stood on the block before. And a builder that had forgotten the branching took the
    /// first block of a branch for an old one.
    #[test]
    fn a_builder_stands_where_all_machines_do_as_soon_as_they_agree(
        steps in prop::collection::vec((0..3_usize, 0..3_u64, 101..106_u64, any::<bool>()), 1..40),
        last in (0..3_u64, 104..107_u64),
        order in Just([0, 1, 2]).prop_shuffle(),
    ) {
        let mut fleet = Fleet::new(3);
        let at = |branch, number: u64| (number, if number >= 100 + branch { branch } else { 0 });
        let agreed = at(last.0, last.1);
        for (n, branch, number, is_told) in steps {
            // Nobody is above the block on which they agree.
            let to = at(branch, number);
            if branch != last.0 || number <= agreed.0 {
                fleet.go(n, to);
            }
            if is_told {
                fleet.publish(n);
            }
        }
        for n in order {
            fleet.tell(n, agreed);
        }
        prop_assert_eq!(fleet.head(), Some(block(agreed).head));
    }
}
