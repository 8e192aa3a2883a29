//! Heads of several machines whose nodes disagree, on one stream, with a source that has no node.

use std::{
    collections::{HashMap, VecDeque},
    ops::RangeInclusive,
    time::{Instant, SystemTime},
};

use chain_view::{Block, Head};
use order_pool::{OrderPool, Subscription};
use proptest::prelude::*;

use crate::{
    clock::ServerClock,
    config::Flow,
    deliver::Deliverer,
    follow::{Follower, Item},
    tests::{self, deliverer, message, pool, stored_now},
    wire::Record,
};

/// The id of a block. Branch 0 is the trunk; the first block of branch `n` is block `100 + n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockId {
    number: u64,
    branch: u64,
}

impl BlockId {
    fn new(number: u64, branch: u64) -> Self {
        Self { number, branch }
    }

    /// The block at this height of a branch, which is on the trunk below the first block of the
    /// branch.
    fn on_branch(number: u64, branch: u64) -> Self {
        Self { number, branch: if number >= 100 + branch { branch } else { 0 } }
    }

    fn parent(self) -> Self {
        let branch = if self.number > 100 + self.branch { self.branch } else { 0 };
        Self { number: self.number - 1, branch }
    }

    /// This block and its ancestors down to block 99.
    fn with_ancestors(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |block| (block.number > 99).then(|| block.parent()))
    }

    fn block(self) -> Block {
        Block::new(tests::head(self.number, self.branch, self.parent().branch), [])
    }
}

struct Machine {
    pool: OrderPool,
    events: Subscription,
    follower: Follower,
    name: String,
    /// The block that its node stands on.
    node_head: BlockId,
    /// The messages that it has not published yet.
    outbox: VecDeque<Item>,
}

impl Machine {
    fn read_events(&mut self) {
        while let Some(event) = self.events.try_next() {
            let event = event.expect("no lag");
            self.outbox.extend(self.follower.on_event(&event, &self.pool));
        }
    }
}

struct Fleet {
    machines: Vec<Machine>,
    /// The sequence numbers of the stored messages, by their ids.
    stored: HashMap<String, u64>,
    source: Deliverer,
}

impl Fleet {
    /// A fleet whose machines all stand on block 100.
    fn new(machine_count: usize) -> Self {
        let machine = |n: usize| {
            let pool = pool();
            Machine {
                events: pool.subscribe_all(),
                pool,
                follower: Follower::new(Flow::Public, true),
                name: n.to_string(),
                node_head: BlockId::new(99, 0),
                outbox: VecDeque::new(),
            }
        };
        let machines: Vec<_> = (0..machine_count).map(machine).collect();
        let mut fleet = Self { machines, stored: HashMap::new(), source: deliverer(true) };
        for n in 0..machine_count {
            fleet.move_and_publish(n, BlockId::new(100, 0));
        }
        fleet
    }

    /// Moves a machine's node to a block, through all blocks that are new to it. Does nothing if
    /// the node stands on that block or above it.
    fn move_node(&mut self, n: usize, target: BlockId) {
        let machine = &mut self.machines[n];
        let old: Vec<_> = machine.node_head.with_ancestors().collect();
        if old.contains(&target) {
            return;
        }
        let new: Vec<_> =
            target.with_ancestors().take_while(|block| !old.contains(block)).collect();
        for block in new.into_iter().rev() {
            machine.pool.on_head(block.block());
            machine.read_events();
        }
        machine.node_head = target;
    }

    /// Lets a machine publish one message. Returns whether it had any.
    fn publish_one(&mut self, n: usize) -> bool {
        let Machine { pool, follower, name, outbox, .. } = &mut self.machines[n];
        let Some(item) = outbox.pop_front() else { return false };
        let encoded = item.encode(Instant::now(), &ServerClock::default()).expect("a message");
        let mut id = alloy_primitives::hex::encode(encoded.id);
        id.push_str(&item.message_id_suffix(name).unwrap_or_default());
        let next = self.stored.len() as u64 + 1;
        let sequence = *self.stored.entry(id.clone()).or_insert(next);
        outbox.extend(follower.on_stored(&item, sequence, pool));
        if sequence == next {
            let times = stored_now(SystemTime::UNIX_EPOCH);
            self.source.deliver(&message(&id, encoded.payload), times);
        }
        true
    }

    /// Moves a machine's node to a block, and lets the machine publish everything.
    fn move_and_publish(&mut self, n: usize, target: BlockId) {
        self.move_node(n, target);
        while self.publish_one(n) {}
    }

    fn source_head(&self) -> Option<Head> {
        self.source.pool.head()
    }
}

#[test]
fn a_head_of_two_machines_on_one_chain_is_stored_once() {
    let mut fleet = Fleet::new(2);
    let before = fleet.stored.len();
    for number in 101..=110 {
        let first = usize::from(number % 2 == 0);
        fleet.move_and_publish(first, BlockId::new(number, 0));
        fleet.move_and_publish(1 - first, BlockId::new(number, 0));
    }
    // The second machine is some blocks behind for a while.
    for n in 0..2 {
        for number in 111..=120 {
            fleet.move_and_publish(n, BlockId::new(number, 0));
        }
    }
    assert_eq!(fleet.stored.len(), before + 20);
}

/// Checks that the first machine publishes the heads of these numbers, and that the stream stores
/// each of them.
fn check_published(fleet: &mut Fleet, expected: RangeInclusive<u64>) {
    let before = fleet.stored.len();
    let number = |item: &Item| match &item.record {
        Record::Head(record) => record.head.number,
        other => panic!("{other:?}"),
    };
    assert!(fleet.machines[0].outbox.iter().map(number).eq(expected.clone()), "{expected:?}");
    while fleet.publish_one(0) {}
    assert_eq!(fleet.stored.len(), before + expected.count(), "a duplicate");
}

/// Blocks below the branching are not published again, because builders would take them for another
/// chain. Blocks that come back must not be duplicates of those that the stream has stored.
#[test]
fn a_reorg_publishes_only_the_blocks_of_the_new_branch() {
    let mut fleet = Fleet::new(1);
    for (number, branch, expected) in
        [(104, 0, 101..=104), (104, 4, 104..=104), (105, 3, 103..=105), (105, 0, 103..=105)]
    {
        fleet.move_node(0, BlockId::new(number, branch));
        check_published(&mut fleet, expected);
    }
    fleet.move_node(0, BlockId::new(105, 3));
    check_published(&mut fleet, 103..=105);
    // The machine comes back to the trunk while nothing can be published.
    let machine = &mut fleet.machines[0];
    for number in 103..=106 {
        machine.pool.on_head(BlockId::new(number, 0).block());
    }
    machine.events = machine.pool.subscribe_all();
    machine.read_events();
    check_published(&mut fleet, 103..=106);
}

proptest! {
    /// The stream dropped as a duplicate a head that was published before its machine came back to
    /// it, and the builder stood on the block before. A builder that had forgotten the branching
    /// took the first block of a branch for an old one.
    #[test]
    fn a_builder_reaches_the_head_on_which_all_machines_agree(
        steps in prop::collection::vec((0..3_usize, 0..3_u64, 101..106_u64, any::<bool>()), 1..40),
        (final_branch, final_number) in (0..3_u64, 104..107_u64),
        machine_order in Just([0, 1, 2]).prop_shuffle(),
    ) {
        let mut fleet = Fleet::new(3);
        let agreed = BlockId::on_branch(final_number, final_branch);
        for (n, branch, number, publishes) in steps {
            // No machine goes above the block on which they agree.
            if branch != final_branch || number <= agreed.number {
                fleet.move_node(n, BlockId::on_branch(number, branch));
            }
            if publishes {
                fleet.publish_one(n);
            }
        }
        for n in machine_order {
            fleet.move_and_publish(n, agreed);
        }
        prop_assert_eq!(fleet.source_head(), Some(agreed.block().head));
    }
}
