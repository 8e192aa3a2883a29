//! The follower against an honest node's view of the chain, with other nodes that lag, import old
//! blocks, announce high numbers, repeat a head, follow another branch, do not return ancestors,
//! disconnect and reconnect.
//!
//! `cargo test` runs 2,000 seeds. For about an hour: `MEMPOOL_INGEST_CHAIN_SEEDS=4000000 cargo test
//! --release -p txpool-fetcher --lib follower`. A failure names its seed;
//! `MEMPOOL_INGEST_CHAIN_FIRST=SEED MEMPOOL_INGEST_CHAIN_SEEDS=1` replays it.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use alloy_primitives::{B256, map::B256HashMap};
use chain_view::{Block, Head, RecentBlocks, Relation};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};

use super::{AnnouncedHead, Applied, Branch, Follower, Leader, Step, Unread};
use crate::{gap::GapReason, limits::RECENT_BLOCKS};

const LEAD_TIMEOUT: Duration = Duration::from_secs(15);

/// The index of the honest node among the sources.
const HONEST: usize = 0;

/// The number of blocks before the simulation, without transactions.
const OLD_BLOCKS: u64 = 150;

/// The lowest number of a head from which the honest node goes back to a snapshot: no block below
/// it contains a transaction.
const LOWEST: u64 = 100 + OLD_BLOCKS / 2 + RECENT_BLOCKS as u64 + 15;

/// The behaviour of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Honest,
    /// Announces the honest node's heads later.
    Lags,
    /// Announces old blocks, one after another.
    Imports,
    /// Announces numbers that no chain has, with a parent that no node has.
    AnnouncesHigh,
    /// Announces the same head again.
    Repeats,
    /// Follows its own branch, which is not higher than the honest one for long.
    OtherBranch,
    /// Announces the honest node's heads, and sometimes does not return their ancestors.
    DoesNotAnswer,
    /// Announces the honest node's heads before the honest node.
    Faster,
}

const OTHERS: [Kind; 7] = [
    Kind::Lags,
    Kind::Imports,
    Kind::AnnouncesHigh,
    Kind::Repeats,
    Kind::OtherBranch,
    Kind::DoesNotAnswer,
    Kind::Faster,
];

impl Kind {
    /// The probability that it does not return a block.
    const fn failure_rate(self) -> f64 {
        match self {
            Self::DoesNotAnswer => 0.3,
            Self::Honest => 0.02,
            _ => 0.0,
        }
    }
}

#[derive(Debug, Default)]
struct Node {
    kind: Kind,
    is_up: bool,
    /// The end of its chain.
    tip: B256,
    waiting: VecDeque<AnnouncedHead>,
    branch: Option<Branch>,
    /// The block that its branch needs next.
    needs: Option<B256>,
    /// A block that its branch needed could not be read.
    has_failed: bool,
    /// Since when its chain has been higher than the leader's head.
    higher_since: Option<Instant>,
}

struct World {
    rng: SmallRng,
    now: Instant,
    blocks: B256HashMap<Block>,
    /// The number of blocks and transactions made, from which their hashes follow.
    made: u64,
    /// The time between two blocks in seconds.
    block_time: u64,
    /// All transactions that were sent.
    txs: Vec<B256>,
    nodes: Vec<Node>,
    follower: Follower,
    chain: RecentBlocks,
    /// The chain as the sink knows it.
    sink: RecentBlocks,
    /// The transactions that are pending for the sink.
    pending: HashSet<B256>,
    /// The transactions whose announcement counts as mined.
    seen_mined: HashSet<B256>,
    /// The next block of the honest node, if another node announced it before.
    upcoming: Option<B256>,
    /// The honest node's latest head that was processed.
    processed: Option<B256>,
    has_led: bool,
    /// Every node returns every block from now on.
    is_over: bool,
}

fn hash(n: u64) -> B256 {
    B256::left_padding_from(&n.to_be_bytes())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = rng.random_range(1..=4);
        let kinds: Vec<_> = std::iter::once(Kind::Honest)
            .chain((1..count).map(|_| *OTHERS.choose(&mut rng).expect("some")))
            .collect();
        let block_time = *[0, 1, 12].choose(&mut rng).expect("some");
        let mut world = Self {
            block_time,
            rng,
            now: Instant::now(),
            blocks: B256HashMap::default(),
            made: 0,
            txs: Vec::new(),
            nodes: Vec::new(),
            follower: Follower::new(count, LEAD_TIMEOUT),
            chain: RecentBlocks::new(RECENT_BLOCKS),
            sink: RecentBlocks::new(RECENT_BLOCKS),
            pending: HashSet::new(),
            seen_mined: HashSet::new(),
            upcoming: None,
            processed: None,
            has_led: false,
            is_over: false,
        };
        let mut tip = hash(u64::MAX);
        let mut old = Vec::new();
        for number in 100..100 + OLD_BLOCKS {
            tip = world.make(number, tip, Vec::new());
            old.push(tip);
        }
        for kind in kinds {
            let tip = match kind {
                Kind::Imports => old[world.rng.random_range(0..old.len())],
                _ => tip,
            };
            world.nodes.push(Node { kind, tip, ..Node::default() });
        }
        world
    }

    fn make(&mut self, number: u64, parent: B256, txs: Vec<B256>) -> B256 {
        self.made += 1;
        let hash = hash(self.made << 20);
        let mut head = Head::new(number, hash, parent);
        head.timestamp = number * self.block_time;
        self.blocks.insert(hash, Block::new(head, txs));
        hash
    }

    /// Iterates over the chain that ends with a block, from its end to the blocks without
    /// transactions. No reorg of the simulation goes deeper.
    fn branch_of(&self, tip: B256) -> impl Iterator<Item = &Block> {
        let parent = |block: &&Block| self.blocks.get(&block.head.parent_hash);
        std::iter::successors(self.blocks.get(&tip), parent)
            .take_while(|block| block.head.number >= 100 + OLD_BLOCKS / 2)
    }

    fn mined_by(&self, tip: B256) -> HashSet<B256> {
        self.branch_of(tip).flat_map(|block| block.mined.to_vec()).collect()
    }

    fn number(&self, hash: B256) -> u64 {
        self.blocks[&hash].head.number
    }

    fn ancestor(&self, mut hash: B256, depth: u64) -> B256 {
        for _ in 0..depth {
            hash = self.blocks[&hash].head.parent_hash;
        }
        hash
    }

    /// Returns the last block of the chain from which a head descends, if it stays among the recent
    /// ones.
    fn known_ancestor(&self, head: B256) -> Option<B256> {
        let parent = |block: &&Block| self.blocks.get(&block.head.parent_hash);
        std::iter::successors(self.blocks.get(&head), parent)
            .take(RECENT_BLOCKS)
            .map(|block| block.head.hash)
            .find(|hash| self.chain.block(hash).is_some())
    }

    /// Makes a child of a block, with new transactions and some that its chain has not mined.
    fn extend(&mut self, parent: B256) -> B256 {
        let mined = self.mined_by(parent);
        let mut txs: Vec<B256> =
            self.txs.iter().filter(|tx| !mined.contains(*tx)).copied().collect();
        txs.retain(|_| self.rng.random_bool(0.5));
        if self.rng.random_bool(0.2) {
            self.made += 1;
            txs.push(hash(self.made << 20 | 1));
        }
        self.make(self.number(parent) + 1, parent, txs)
    }

    fn leader(&self) -> Option<usize> {
        self.follower.leader.map(|Leader { source, .. }| source)
    }

    /// Makes a transaction pending at the honest node, and announces it.
    fn send(&mut self) {
        self.made += 1;
        let tx = hash(self.made << 20 | 2);
        self.txs.push(tx);
        if !self.sink.is_mined(&tx) {
            self.pending.insert(tx);
        }
    }

    /// Compares the sink with the honest node's pool.
    fn compare(&mut self) {
        let mined = self.mined_by(self.nodes[HONEST].tip);
        let listed = self.txs.iter().filter(|tx| !mined.contains(*tx));
        self.pending = listed.filter(|tx| !self.chain.is_mined(tx)).copied().collect();
    }

    fn set_up(&mut self, node: usize, is_up: bool) {
        if self.nodes[node].is_up == is_up {
            return;
        }
        (self.nodes[node].is_up, self.nodes[node].higher_since) = (is_up, None);
        self.follower.set_may_lead(node, is_up);
        if node == HONEST {
            (self.processed, self.has_led) = (None, false);
            if is_up {
                self.compare();
            }
        }
        if is_up {
            let head = self.blocks[&self.nodes[node].tip].head;
            let latest = AnnouncedHead { head, block: None, was_requested: true };
            self.nodes[node].waiting.push_back(latest);
        }
    }

    fn announce(&mut self, node: usize, head: Head) {
        if self.nodes[node].is_up {
            self.nodes[node].waiting.push_back(head.into());
        }
    }

    fn announce_tip(&mut self, node: usize, tip: B256) {
        self.nodes[node].tip = tip;
        self.announce(node, self.blocks[&tip].head);
    }

    /// Gives the honest node a new block, or changes its branch, once or several times in a row.
    fn honest_event(&mut self) {
        let tip = self.nodes[HONEST].tip;
        match self.rng.random_range(0..10) {
            0 => {
                let depth = self.rng.random_range(1..5);
                let mut tip = self.ancestor(tip, depth);
                for _ in 0..self.rng.random_range(1..=depth + 1) {
                    tip = self.extend(tip);
                    self.announce_tip(HONEST, tip);
                }
            }
            1 => {
                // To another branch and back.
                let depth = self.rng.random_range(1..4);
                let other = self.extend(self.ancestor(tip, depth));
                self.announce_tip(HONEST, other);
                for back in (0..depth).rev() {
                    self.announce_tip(HONEST, self.ancestor(tip, back));
                }
            }
            2 if self.nodes.len() == 1
                && self.number(tip) > LOWEST
                && self.rng.random_bool(0.2) =>
            {
                // A restart from an older snapshot. With other nodes, it would catch up with them.
                let depth = self.rng.random_range(1..RECENT_BLOCKS as u64 + 9);
                self.set_up(HONEST, false);
                self.nodes[HONEST].waiting.clear();
                (self.nodes[HONEST].branch, self.nodes[HONEST].needs) = (None, None);
                self.nodes[HONEST].tip = self.ancestor(tip, depth);
                self.set_up(HONEST, true);
            }
            2 => {
                // Some heads are never announced.
                let missed =
                    if self.rng.random_bool(0.1) { 80 } else { self.rng.random_range(1..9) };
                let last = (0..missed).fold(tip, |tip, _| self.extend(tip));
                self.announce_tip(HONEST, last);
            }
            3 => {
                // It changes to the chain of another node, block by block. The other may be
                // disconnected.
                let other = self.rng.random_range(0..self.nodes.len());
                let target = self.nodes[other].tip;
                let own: HashSet<_> = self.branch_of(tip).map(|block| block.head.hash).collect();
                let blocks = self.branch_of(target).map(|block| block.head.hash);
                let blocks: Vec<_> = blocks.take_while(|hash| !own.contains(hash)).collect();
                if self.number(target) < self.number(tip) || blocks.is_empty() {
                    return;
                }
                let stays = self.rng.random_bool(0.5);
                self.set_up(other, stays);
                for block in blocks.into_iter().rev() {
                    self.announce_tip(HONEST, block);
                    self.settle(HONEST);
                    self.now += Duration::from_millis(self.rng.random_range(0..8_000));
                }
            }
            _ => {
                let next = self.next();
                self.announce_tip(HONEST, next);
            }
        }
    }

    /// Returns the next block of the honest node: the one that another node announced before, if
    /// any.
    fn next(&mut self) -> B256 {
        let tip = self.nodes[HONEST].tip;
        let upcoming = self.upcoming.take().filter(|next| self.ancestor(*next, 1) == tip);
        upcoming.unwrap_or_else(|| self.extend(tip))
    }

    fn other_event(&mut self, node: usize) {
        let honest = self.nodes[HONEST].tip;
        let (tip, number) = (self.nodes[node].tip, self.number(honest));
        match self.nodes[node].kind {
            Kind::Honest => unreachable!("only the other nodes"),
            Kind::Lags => {
                let depth = self.rng.random_range(0..9);
                self.announce_tip(node, self.ancestor(honest, depth));
            }
            Kind::DoesNotAnswer => self.announce_tip(node, honest),
            Kind::Imports => {
                let next = self.number(tip) + 1;
                if next <= number {
                    self.announce_tip(node, self.ancestor(honest, number - next));
                }
            }
            Kind::AnnouncesHigh => {
                let above = [1, 20, 63, 64, 65, 1 << 40, u64::MAX - number];
                let above = *above.choose(&mut self.rng).expect("some");
                self.made += 1;
                let (own, mut parent) = (hash(self.made << 20 | 3), hash(self.made << 20 | 4));
                if self.rng.random_bool(0.3) {
                    // A parent on the honest chain whose number does not fit.
                    parent = self.make(number + 1, honest, Vec::new());
                }
                let head = Head::new(number + above, own, parent);
                for _ in 0..self.rng.random_range(1..4) {
                    self.announce(node, head);
                }
            }
            Kind::Faster => {
                let next = self.next();
                self.upcoming = Some(next);
                self.announce_tip(node, next);
            }
            Kind::Repeats => self.announce(node, self.blocks[&tip].head),
            Kind::OtherBranch => {
                if tip == honest || self.number(tip) + 9 < number {
                    let depth = self.rng.random_range(0..6);
                    let fork = self.ancestor(honest, depth);
                    self.nodes[node].tip = self.extend(fork);
                } else if self.number(tip) <= number {
                    self.nodes[node].tip = self.extend(tip);
                }
                self.announce_tip(node, self.nodes[node].tip);
            }
        }
    }

    /// Performs one step of the task that follows a node. Returns false if it has nothing to do.
    fn work(&mut self, node: usize) -> bool {
        if let Some(hash) = self.nodes[node].needs.take() {
            // The honest node may be busy for a while, but not before it leads.
            let may_fail = !self.is_over && (node != HONEST || self.has_led);
            let fails = may_fail && self.rng.random_bool(self.nodes[node].kind.failure_rate());
            self.nodes[node].has_failed |= fails;
            let found = self.blocks.get(&hash).filter(|_| !fails).cloned();
            let read = found.map(Into::into).ok_or(Unread::Missing);
            self.nodes[node].branch.as_mut().expect("it needs a block").add_read(hash, read);
        }
        if self.nodes[node].branch.is_none() {
            let Some(announced) = self.nodes[node].waiting.pop_front() else { return false };
            self.nodes[node].branch = self.follower.on_head(node, announced, self.now);
            // The time counts from the announcement, not from the read.
            self.update_higher_since();
            self.nodes[node].has_failed = false;
            if self.nodes[node].branch.is_none() {
                return true;
            }
        }
        let mut branch = self.nodes[node].branch.take().expect("just seen");
        let led_before = self.leader();
        let latest = self.chain.head().map(|head| head.number);
        let was_unproven = self.follower.proven_up_to.is_some();
        let known = self.known_ancestor(branch.hash());
        let step = self.follower.step(&mut self.chain, &mut branch, self.now);
        if let Step::Read(hash) = step {
            self.nodes[node].needs = Some(hash);
            self.nodes[node].branch = Some(branch);
            return true;
        }
        let has_changed = matches!(step, Step::Applied(_)) || node == HONEST;
        if let Step::Applied(applied) = step {
            // The number of a head that could not be linked proves nothing.
            let honest_led =
                led_before == Some(HONEST) && self.nodes[HONEST].is_up && !was_unproven;
            assert!(
                latest <= self.chain.head().map(|head| head.number)
                    || node == HONEST
                    || !honest_led,
                "the number of the head falls"
            );
            self.apply(applied, node);
            let is_kept = known.is_none_or(|known| self.chain.block(&known).is_some());
            assert!(is_kept || self.nodes[node].has_failed, "linked blocks are forgotten");
        } else if let Step::Ignored(Some(_)) = step {
            // An ancestor could not be read, and the head is far above the latest one.
            assert!(node != HONEST || self.nodes[node].has_failed, "an honest head is rejected");
            if node == HONEST {
                (self.processed, self.has_led) = (None, false);
            }
            return true;
        }
        if node == HONEST {
            self.processed = Some(branch.hash());
        }
        if has_changed {
            self.check(was_unproven);
        }
        self.update_higher_since();
        true
    }

    /// Applies a change of the chain to the sink, with the rule of the order pool.
    fn apply(&mut self, applied: Applied, node: usize) {
        for tx in &applied.unmined {
            assert!(self.seen_mined.remove(tx), "it was not mined");
            assert!(!self.chain.is_mined(tx), "it is mined");
        }
        assert!(
            self.sink.head().is_some() || applied.blocks.len() == 1,
            "the first event has several heads"
        );
        let mut carried = applied.mined_before;
        for read in applied.blocks {
            carried.extend(read.block.mined.iter());
            let reported = Block::new(read.block.head, std::mem::take(&mut carried));
            let pushed = self.sink.push(reported.clone());
            if !matches!(pushed.relation, Relation::Gap { .. }) {
                // The announcement of a forgotten hash does no harm: a comparison asks the sink.
                let old = pushed.forgotten.iter().flat_map(|block| block.mined.iter());
                old.for_each(|tx| _ = self.seen_mined.remove(tx));
            }
            let undone = pushed.undone.iter().flat_map(|block| block.mined.iter());
            self.pending.extend(undone.filter(|tx| self.txs.contains(tx)));
            for tx in reported.mined.iter() {
                self.pending.remove(tx);
                self.seen_mined.insert(*tx);
            }
        }
        self.pending.retain(|tx| !self.sink.is_mined(tx));
        // A gap of another node only compares that node's pool.
        if applied.gap.is_some() && node == HONEST {
            self.compare();
        }
    }

    fn update_higher_since(&mut self) {
        let Some(Leader { number, .. }) = self.follower.leader else { return };
        let number = self.follower.proven_up_to.unwrap_or(number);
        for node in 0..self.nodes.len() {
            // Its announced head counts, not its tip.
            let announced = self.follower.candidates[node].head;
            let is_higher = announced.is_some_and(|head| head.number > number);
            let since = &mut self.nodes[node].higher_since;
            *since = is_higher.then(|| since.unwrap_or(self.now));
        }
    }

    fn check(&mut self, was_unproven: bool) {
        // The sink has no blocks from before the first head.
        let heads = |chain: &RecentBlocks| chain.iter().map(|block| block.head).collect::<Vec<_>>();
        let (chain, sink) = (heads(&self.chain), heads(&self.sink));
        assert!(chain.ends_with(&sink), "the sink has another chain");
        assert_eq!(chain.is_empty(), sink.is_empty());
        for (parent, child) in self.chain.iter().zip(self.chain.iter().skip(1)) {
            assert_eq!(
                child.head.parent_hash, parent.head.hash,
                "a block is not the child of the one before it"
            );
        }
        let leader = self.leader();
        let leads = leader == Some(HONEST);
        // Another node may lead if it is ahead on the honest chain, or has been higher for long.
        let may_be_higher = leader.is_some_and(|leader| {
            let Node { kind, tip, higher_since, .. } = self.nodes[leader];
            let has_waited = higher_since.is_some_and(|since| self.now >= since + LEAD_TIMEOUT);
            let is_higher = self.number(tip) > self.number(self.nodes[HONEST].tip);
            match kind {
                Kind::AnnouncesHigh => false,
                Kind::OtherBranch => was_unproven || has_waited,
                _ => was_unproven || has_waited || is_higher,
            }
        });
        assert!(leads || !self.has_led || may_be_higher, "the honest node has lost the lead");
        self.has_led = leads && self.nodes[HONEST].is_up;
        let Some(head) = self.processed.filter(|_| self.has_led) else { return };
        let number = self.number(head);
        assert!(self.chain.block(&head).is_some(), "the honest node's head is not in the chain");
        let faster = self.chain.iter().filter(|block| block.head.number > number);
        let faster: HashSet<B256> = faster.flat_map(|block| block.mined.to_vec()).collect();
        // The hashes of an unread block are only known from the node's list, which may be later.
        let read: HashSet<B256> =
            self.chain.iter().flat_map(|block| block.mined.to_vec()).collect();
        let read: HashSet<_> = self.mined_by(head).intersection(&read).copied().collect();
        let (mined, mined_later) = (self.mined_by(head), self.mined_by(self.nodes[HONEST].tip));
        for tx in &self.txs {
            if read.contains(tx) || mined.contains(tx) && mined_later.contains(tx) {
                assert!(!self.pending.contains(tx), "mined and pending for the sink");
            } else if !mined.contains(tx) && !mined_later.contains(tx) && !faster.contains(tx) {
                assert!(self.pending.contains(tx), "pending, and not for the sink");
                assert!(!self.seen_mined.contains(tx), "pending, and counts as mined");
            }
        }
    }

    fn settle(&mut self, node: usize) {
        while self.work(node) {}
    }

    fn step(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        match self.rng.random_range(0..100) {
            0..4 => self.set_up(node, !self.nodes[node].is_up),
            4..14 => self.send(),
            14..26 => {
                // The honest node's heads are processed before time passes.
                self.settle(HONEST);
                self.now += Duration::from_millis(self.rng.random_range(0..8_000));
                let faster = |node: &Node| node.kind == Kind::Faster;
                if let Some(faster) = self.nodes.iter().position(faster)
                    && self.rng.random_bool(0.8)
                {
                    self.other_event(faster);
                    self.settle(faster);
                }
                self.honest_event();
            }
            26..46 if node != HONEST => self.other_event(node),
            _ => _ = self.work(node),
        }
    }

    fn run(&mut self) {
        for node in 0..self.nodes.len() {
            if self.rng.random_bool(0.7) {
                self.set_up(node, true);
            }
        }
        for _ in 0..self.rng.random_range(50..250) {
            self.step();
        }
        // Whatever has happened, the honest node leads once the others announce nothing more.
        self.is_over = true;
        self.set_up(HONEST, true);
        (0..self.nodes.len()).for_each(|node| self.settle(node));
        // A reorg may have put it below another branch.
        let highest = self.nodes.iter().map(|node| self.number(node.tip)).max().expect("some");
        for _ in self.number(self.nodes[HONEST].tip)..highest + 4 {
            self.now += LEAD_TIMEOUT;
            let next = self.extend(self.nodes[HONEST].tip);
            self.announce_tip(HONEST, next);
            self.settle(HONEST);
        }
        let head = self.chain.head().map(|head| head.hash);
        assert_eq!(head, Some(self.nodes[HONEST].tip), "the honest node is followed in the end");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Seeds that failed before.
const FAILED_SEEDS: [u64; 6] =
    [5_031_556, 7_017_206, 8_387_592, 13_081_458, 13_443_482, 30_033_989];

#[test]
fn the_chain_is_that_of_the_honest_node_that_leads() {
    let first = number("MEMPOOL_INGEST_CHAIN_FIRST", 0);
    let seeds = first..first + number("MEMPOOL_INGEST_CHAIN_SEEDS", 2_000);
    for seed in FAILED_SEEDS.into_iter().chain(seeds) {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// Two sources that may lead, and their chain.
struct Two(Follower, RecentBlocks);

impl Two {
    fn new() -> Self {
        let mut follower = Follower::new(2, LEAD_TIMEOUT);
        (0..2).for_each(|source| _ = follower.set_may_lead(source, true));
        Self(follower, RecentBlocks::new(RECENT_BLOCKS))
    }

    /// A source announces block `n`, on block `n - 1`, with transaction `1000 + n`. No other block
    /// can be read.
    fn step(&mut self, source: usize, number: u64, n: u64, now: Instant) -> Step {
        let Self(follower, chain) = self;
        let head = Head::new(number, hash(n), hash(n - 1));
        let mut branch = follower.on_head(source, head.into(), now).expect("it is new");
        loop {
            match follower.step(chain, &mut branch, now) {
                Step::Read(own) if own == head.hash => {
                    branch.add_read(own, Ok(Block::new(head, [hash(1000 + n)]).into()));
                }
                Step::Read(other) => branch.add_read(other, Err(Unread::Missing)),
                step => return step,
            }
        }
    }
}

/// The transactions of the block are pending at a source that has gone back. If the source was
/// compared then and not again, they stayed pending.
#[test]
fn a_source_is_compared_each_time_it_announces_an_unread_block() {
    let mut two = Two::new();
    two.step(0, 0, 10, Instant::now());
    let unread = Some(GapReason::UnreadBlock);
    for number in [1, 2] {
        let Two(follower, chain) = &mut two;
        let head = Head::new(number, hash(10 + number), hash(9 + number));
        let mut branch = follower.on_head(0, head.into(), Instant::now()).expect("it is new");
        branch.add_read(head.hash, Err(Unread::Missing));
        let step = follower.step(chain, &mut branch, Instant::now());
        assert!(matches!(step, Step::Applied(Applied { gap, .. }) if gap == unread));
    }
    // Its nonces are requested once, because full blocks are read one after another for all
    // sources.
    for (number, gap, nonces) in
        [(1, unread, 1), (2, unread, 1), (0, None, 0), (1, unread, 0), (2, unread, 0)]
    {
        let Step::Applied(applied) = two.step(1, number, 10 + number, Instant::now()) else {
            panic!("{number}");
        };
        assert_eq!((applied.gap, applied.unreported.len()), (gap, nonces), "{number}");
    }
}

#[test]
fn hashes_from_before_the_first_head_are_reported_with_it_and_its_reorg() {
    let mut follower = Follower::new(2, LEAD_TIMEOUT);
    let mut chain = RecentBlocks::new(RECENT_BLOCKS);
    follower.set_may_lead(0, true);
    let tx = hash(99);
    let block = |number, n, parent, txs: &[B256]| {
        Block::new(Head::new(number, hash(n), hash(parent)), txs.to_vec())
    };
    let blocks = [
        block(0, 10, 9, &[]),
        block(1, 11, 10, &[tx]),
        block(2, 12, 11, &[]),
        block(2, 22, 11, &[]),
        block(3, 23, 22, &[]),
    ];
    let mut apply = |n: u64| {
        let find = |hash| {
            blocks.iter().find(|block| block.head.hash == hash).expect("a block of the test")
        };
        let head = find(hash(n)).head;
        let mut branch = follower.on_head(0, head.into(), Instant::now()).expect("it is new");
        loop {
            match follower.step(&mut chain, &mut branch, Instant::now()) {
                Step::Read(hash) => branch.add_read(hash, Ok(find(hash).clone().into())),
                Step::Applied(applied) => break applied,
                step => panic!("{step:?}"),
            }
        }
    };
    for (n, unreported, before) in [(12, 2, vec![tx]), (22, 2, vec![tx]), (23, 0, vec![])] {
        let applied = apply(n);
        let reported: Vec<_> = applied.blocks.iter().map(|read| read.block.head.hash).collect();
        assert_eq!((reported, applied.unreported.len()), (vec![hash(n)], unreported));
        assert_eq!(applied.mined_before, before);
    }
}

/// Before the fix one of the numbers, or the time since one, made the other source lead or the
/// chain end elsewhere.
#[test]
fn the_leader_stays_and_its_chain_is_extended() {
    let last = RECENT_BLOCKS as u64 + 1;
    let blocks = (1..=last).map(|number| (0, 1, number, 10 + number));
    // Heads (seconds, source, number, block), then the chain's latest number.
    let cases = [
        ("a huge number of the leader", vec![(0, 0, 1 << 40, 60), (0, 1, 1, 11)], 1),
        (
            "huge numbers of the other",
            vec![(0, 1, 1 << 40, 60), (0, 1, 1 << 41, 80), (15, 1, 1, 11), (15, 1, 2, 12)],
            2,
        ),
        (
            "heads of the other without ancestors",
            vec![(0, 1, 1, 21), (0, 1, 2, 32), (15, 1, 3, 43)],
            0,
        ),
        (
            "the other is no higher in between",
            vec![(0, 0, 1, 11), (0, 1, 2, 32), (15, 1, 1, 21), (15, 1, 2, 12)],
            2,
        ),
        ("a block that is not remembered any more", blocks.chain([(0, 0, 1, 11)]).collect(), last),
    ];
    for (case, heads, latest) in cases {
        let (mut two, start) = (Two::new(), Instant::now());
        two.step(0, 0, 10, start);
        for (seconds, source, number, n) in heads {
            two.step(source, number, n, start + Duration::from_secs(seconds));
        }
        let leader = two.0.leader.map(|leader| leader.source);
        let head = two.1.head().map(|head| head.number);
        assert_eq!((leader, head), (Some(0), Some(latest)), "{case}");
    }
}

/// The comparison after the connect may have come before, and skipped hashes that counted as mined.
#[test]
fn hashes_that_a_gap_forgets_are_compared_also_after_a_connect() {
    let (mut two, now) = (Two::new(), Instant::now());
    two.step(0, 0, 10, now);
    let Two(follower, chain) = &mut two;
    let head = |number: u64| Head::new(number, hash(10 + number), hash(9 + number));
    let requested = AnnouncedHead { head: head(99), block: None, was_requested: true };
    let mut branch = follower.on_head(0, requested, now).expect("it is new");
    for number in (99 - RECENT_BLOCKS as u64..=99).rev() {
        branch.add_read(hash(10 + number), Ok(Block::new(head(number), []).into()));
    }
    let Step::Applied(applied) = follower.step(chain, &mut branch, now) else { panic!() };
    assert_eq!((applied.unmined, applied.gap), (vec![hash(1010)], Some(GapReason::MissedHeads)));
}
