//! The follower against what an honest node knows, with other nodes that lag, import old blocks, tell
//! high numbers, repeat a head, are on another branch, do not answer for ancestors, go and come back.
//!
//! `cargo test` runs 2,000 seeds. For an hour or so:
//! `MEMPOOL_INGEST_CHAIN_SEEDS=4000000 cargo test --release -p txpool-fetcher --lib follower`.
//! A failure names its seed; `MEMPOOL_INGEST_CHAIN_FIRST=SEED MEMPOOL_INGEST_CHAIN_SEEDS=1` replays it.

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

/// The honest node's place among the sources.
const HONEST: usize = 0;

/// Blocks before the simulation: none of them has a transaction.
const OLD_BLOCKS: u64 = 150;

/// The least number of a head from which the honest node goes back to a snapshot: no transaction is in
/// a block below that.
const LEAST: u64 = 100 + OLD_BLOCKS / 2 + RECENT_BLOCKS as u64 + 15;

/// What a node does beside telling heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Honest,
    /// Tells the honest node's heads, later.
    Lags,
    /// Tells old blocks, one after another.
    Imports,
    /// Tells numbers that no chain has, with a parent that nobody has.
    TellsHigh,
    Repeats,
    /// On a branch of its own, not higher than the honest one for long.
    OtherBranch,
    /// Tells the honest node's heads, and is not sure to answer for their ancestors.
    DoesNotAnswer,
    /// Tells the honest node's heads before it does.
    Faster,
}

const OTHERS: [Kind; 7] = [
    Kind::Lags,
    Kind::Imports,
    Kind::TellsHigh,
    Kind::Repeats,
    Kind::OtherBranch,
    Kind::DoesNotAnswer,
    Kind::Faster,
];

impl Kind {
    /// How often it does not answer for a block.
    const fn fails(self) -> f64 {
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
    /// A block that its branch needs.
    needs: Option<B256>,
    /// A block that the branch needed could not be read.
    has_failed: bool,
    /// Since when its chain has been higher than what the leader told.
    higher_since: Option<Instant>,
}

struct World {
    rng: SmallRng,
    now: Instant,
    blocks: B256HashMap<Block>,
    made: u64,
    /// In seconds.
    block_time: u64,
    /// All transactions that were sent.
    txs: Vec<B256>,
    nodes: Vec<Node>,
    follower: Follower,
    chain: RecentBlocks,
    /// What the sink knows by the heads that it was told.
    sink: RecentBlocks,
    pending: HashSet<B256>,
    /// What counts as mined when it is announced.
    seen_mined: HashSet<B256>,
    /// The next block of the honest node, which another one told before.
    upcoming: Option<B256>,
    /// The honest node's latest head that was processed.
    processed: Option<B256>,
    has_led: bool,
    /// Every node answers from now on.
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

    /// The chain that ends with a block, from its end to where no block has transactions: no reorg
    /// of the simulation goes deeper.
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

    /// The last block of the chain that a head descends from, if it stays one of the recent ones.
    fn known_ancestor(&self, head: B256) -> Option<B256> {
        let parent = |block: &&Block| self.blocks.get(&block.head.parent_hash);
        std::iter::successors(self.blocks.get(&head), parent)
            .take(RECENT_BLOCKS)
            .map(|block| block.head.hash)
            .find(|hash| self.chain.block(hash).is_some())
    }

    /// A child of a block, with new transactions and some that its chain has not mined.
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

    /// A transaction becomes pending at the honest node and is announced.
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

    fn tell(&mut self, node: usize, head: Head) {
        if self.nodes[node].is_up {
            self.nodes[node].waiting.push_back(head.into());
        }
    }

    fn tell_tip(&mut self, node: usize, tip: B256) {
        self.nodes[node].tip = tip;
        self.tell(node, self.blocks[&tip].head);
    }

    /// The honest node has a new block, or changes its branch, once or several times in a row.
    fn honest_event(&mut self) {
        let tip = self.nodes[HONEST].tip;
        match self.rng.random_range(0..10) {
            0 => {
                let depth = self.rng.random_range(1..5);
                let mut tip = self.ancestor(tip, depth);
                for _ in 0..self.rng.random_range(1..=depth + 1) {
                    tip = self.extend(tip);
                    self.tell_tip(HONEST, tip);
                }
            }
            1 => {
                // There and back.
                let depth = self.rng.random_range(1..4);
                let other = self.extend(self.ancestor(tip, depth));
                self.tell_tip(HONEST, other);
                for back in (0..depth).rev() {
                    self.tell_tip(HONEST, self.ancestor(tip, back));
                }
            }
            2 if self.nodes.len() == 1 && self.number(tip) > LEAST && self.rng.random_bool(0.2) => {
                // It is restarted from an older snapshot. With others, it would catch up with them.
                let depth = self.rng.random_range(1..RECENT_BLOCKS as u64 + 9);
                self.set_up(HONEST, false);
                self.nodes[HONEST].waiting.clear();
                (self.nodes[HONEST].branch, self.nodes[HONEST].needs) = (None, None);
                self.nodes[HONEST].tip = self.ancestor(tip, depth);
                self.set_up(HONEST, true);
            }
            2 => {
                // Some heads are never told.
                let missed =
                    if self.rng.random_bool(0.1) { 80 } else { self.rng.random_range(1..9) };
                let last = (0..missed).fold(tip, |tip, _| self.extend(tip));
                self.tell_tip(HONEST, last);
            }
            3 => {
                // It changes to the chain of another node, block by block; the other may have gone.
                let other = self.rng.random_range(0..self.nodes.len());
                let to = self.nodes[other].tip;
                let own: HashSet<_> = self.branch_of(tip).map(|block| block.head.hash).collect();
                let blocks = self.branch_of(to).map(|block| block.head.hash);
                let blocks: Vec<_> = blocks.take_while(|hash| !own.contains(hash)).collect();
                if self.number(to) < self.number(tip) || blocks.is_empty() {
                    return;
                }
                let stays = self.rng.random_bool(0.5);
                self.set_up(other, stays);
                for block in blocks.into_iter().rev() {
                    self.tell_tip(HONEST, block);
                    self.settle(HONEST);
                    self.now += Duration::from_millis(self.rng.random_range(0..8_000));
                }
            }
            _ => {
                let next = self.next();
                self.tell_tip(HONEST, next);
            }
        }
    }

    /// The next block of the honest node: the one that another has told before, if there is one.
    fn next(&mut self) -> B256 {
        let tip = self.nodes[HONEST].tip;
        let upcoming = self.upcoming.take().filter(|next| self.ancestor(*next, 1) == tip);
        upcoming.unwrap_or_else(|| self.extend(tip))
    }

    fn other_event(&mut self, node: usize) {
        let honest = self.nodes[HONEST].tip;
        let (tip, number) = (self.nodes[node].tip, self.number(honest));
        match self.nodes[node].kind {
            Kind::Honest => unreachable!("the others"),
            Kind::Lags => {
                let depth = self.rng.random_range(0..9);
                self.tell_tip(node, self.ancestor(honest, depth));
            }
            Kind::DoesNotAnswer => self.tell_tip(node, honest),
            Kind::Imports => {
                let next = self.number(tip) + 1;
                if next <= number {
                    self.tell_tip(node, self.ancestor(honest, number - next));
                }
            }
            Kind::TellsHigh => {
                let above = [1, 20, 63, 64, 65, 1 << 40, u64::MAX - number];
                let above = *above.choose(&mut self.rng).expect("some");
                self.made += 1;
                let (own, mut parent) = (hash(self.made << 20 | 3), hash(self.made << 20 | 4));
                if self.rng.random_bool(0.3) {
                    // A parent that follows the honest chain, and has another number than it must.
                    parent = self.make(number + 1, honest, Vec::new());
                }
                let head = Head::new(number + above, own, parent);
                for _ in 0..self.rng.random_range(1..4) {
                    self.tell(node, head);
                }
            }
            Kind::Faster => {
                let next = self.next();
                self.upcoming = Some(next);
                self.tell_tip(node, next);
            }
            Kind::Repeats => self.tell(node, self.blocks[&tip].head),
            Kind::OtherBranch => {
                if tip == honest || self.number(tip) + 9 < number {
                    let depth = self.rng.random_range(0..6);
                    let fork = self.ancestor(honest, depth);
                    self.nodes[node].tip = self.extend(fork);
                } else if self.number(tip) <= number {
                    self.nodes[node].tip = self.extend(tip);
                }
                self.tell_tip(node, self.nodes[node].tip);
            }
        }
    }

    /// One step of the task that follows a node. False if it has nothing to do.
    fn work(&mut self, node: usize) -> bool {
        if let Some(hash) = self.nodes[node].needs.take() {
            // The honest one may be busy for a while, though not when it comes.
            let may_fail = !self.is_over && (node != HONEST || self.has_led);
            let fails = may_fail && self.rng.random_bool(self.nodes[node].kind.fails());
            self.nodes[node].has_failed |= fails;
            let found = self.blocks.get(&hash).filter(|_| !fails).cloned();
            let read = found.map(Into::into).ok_or(Unread::Missing);
            self.nodes[node].branch.as_mut().expect("it needs it").read(hash, read);
        }
        if self.nodes[node].branch.is_none() {
            let Some(announced) = self.nodes[node].waiting.pop_front() else { return false };
            self.nodes[node].branch = self.follower.tell(node, announced, self.now);
            // From when it is told, not from when it is read.
            self.note_higher();
            self.nodes[node].has_failed = false;
            if self.nodes[node].branch.is_none() {
                return true;
            }
        }
        let mut branch = self.nodes[node].branch.take().expect("just seen");
        let led_before = self.leader();
        let latest = self.chain.head().map(|head| head.number);
        let was_doubtful = self.follower.doubtful_above.is_some();
        let known = self.known_ancestor(branch.hash());
        let step = self.follower.step(&mut self.chain, &mut branch, self.now);
        if let Step::Read(hash) = step {
            self.nodes[node].needs = Some(hash);
            self.nodes[node].branch = Some(branch);
            return true;
        }
        let has_changed = matches!(step, Step::Applied(_)) || node == HONEST;
        if let Step::Applied(applied) = step {
            // Of a head that could not be linked the number proves nothing.
            let honest_led =
                led_before == Some(HONEST) && self.nodes[HONEST].is_up && !was_doubtful;
            assert!(
                latest <= self.chain.head().map(|head| head.number)
                    || node == HONEST
                    || !honest_led,
                "the head goes back"
            );
            self.apply(applied, node);
            let is_kept = known.is_none_or(|known| self.chain.block(&known).is_some());
            assert!(is_kept || self.nodes[node].has_failed, "linked blocks are forgotten");
        } else if let Step::Ignored(Some(_)) = step {
            // An ancestor could not be read, and the head is far above the latest one.
            assert!(node != HONEST || self.nodes[node].has_failed, "an honest head is refused");
            if node == HONEST {
                (self.processed, self.has_led) = (None, false);
            }
            return true;
        }
        if node == HONEST {
            self.processed = Some(branch.hash());
        }
        if has_changed {
            self.check(was_doubtful);
        }
        self.note_higher();
        true
    }

    /// What the sink does with the heads: an order pool's rule.
    fn apply(&mut self, applied: Applied, node: usize) {
        for tx in &applied.unmined {
            assert!(self.seen_mined.remove(tx), "it was not mined");
            assert!(!self.chain.is_mined(tx), "it is mined");
        }
        assert!(self.sink.head().is_some() || applied.blocks.len() == 1, "it starts in the past");
        let mut carried = applied.mined_before;
        for read in applied.blocks {
            carried.extend(read.block.mined.iter());
            let told = Block::new(read.block.head, std::mem::take(&mut carried));
            let pushed = self.sink.push(told.clone());
            if !matches!(pushed.relation, Relation::Gap { .. }) {
                // An announcement of what is too old does no harm: a comparison asks the sink.
                let old = pushed.forgotten.iter().flat_map(|block| block.mined.iter());
                old.for_each(|tx| _ = self.seen_mined.remove(tx));
            }
            let undone = pushed.undone.iter().flat_map(|block| block.mined.iter());
            self.pending.extend(undone.filter(|tx| self.txs.contains(tx)));
            for tx in told.mined.iter() {
                self.pending.remove(tx);
                self.seen_mined.insert(*tx);
            }
        }
        self.pending.retain(|tx| !self.sink.is_mined(tx));
        // Of another node the pool is listed, which is not the honest one's.
        if applied.gap.is_some() && node == HONEST {
            self.compare();
        }
    }

    fn note_higher(&mut self) {
        let Some(Leader { number, .. }) = self.follower.leader else { return };
        let number = self.follower.doubtful_above.unwrap_or(number);
        for node in 0..self.nodes.len() {
            // As it has told, not as it will.
            let told = self.follower.told[node].head;
            let is_higher = told.is_some_and(|head| head.number > number);
            let since = &mut self.nodes[node].higher_since;
            *since = is_higher.then(|| since.unwrap_or(self.now));
        }
    }

    fn check(&mut self, was_doubtful: bool) {
        // It has no blocks of before the first head.
        let heads = |chain: &RecentBlocks| chain.iter().map(|block| block.head).collect::<Vec<_>>();
        let (chain, sink) = (heads(&self.chain), heads(&self.sink));
        assert!(chain.ends_with(&sink), "the sink has another chain");
        assert_eq!(chain.is_empty(), sink.is_empty());
        for (parent, child) in self.chain.iter().zip(self.chain.iter().skip(1)) {
            assert_eq!(child.head.parent_hash, parent.head.hash, "not a chain");
        }
        let leader = self.leader();
        let leads = leader == Some(HONEST);
        // One that is on the honest chain and further may lead, and one that has been higher for long.
        let may_be_higher = leader.is_some_and(|leader| {
            let Node { kind, tip, higher_since, .. } = self.nodes[leader];
            let has_waited = higher_since.is_some_and(|at| self.now >= at + LEAD_TIMEOUT);
            let is_higher = self.number(tip) > self.number(self.nodes[HONEST].tip);
            match kind {
                Kind::TellsHigh => false,
                Kind::OtherBranch => was_doubtful || has_waited,
                _ => was_doubtful || has_waited || is_higher,
            }
        });
        assert!(leads || !self.has_led || may_be_higher, "the honest node has lost the lead");
        self.has_led = leads && self.nodes[HONEST].is_up;
        let Some(told) = self.processed.filter(|_| self.has_led) else { return };
        let number = self.number(told);
        assert!(self.chain.block(&told).is_some(), "the honest node's head is not in the chain");
        let faster = self.chain.iter().filter(|block| block.head.number > number);
        let faster: HashSet<B256> = faster.flat_map(|block| block.mined.to_vec()).collect();
        // What a block has that could not be read is known by the node's list, which may be later.
        let read: HashSet<B256> =
            self.chain.iter().flat_map(|block| block.mined.to_vec()).collect();
        let read: HashSet<_> = self.mined_by(told).intersection(&read).copied().collect();
        let (mined, mined_later) = (self.mined_by(told), self.mined_by(self.nodes[HONEST].tip));
        for tx in &self.txs {
            if read.contains(tx) || mined.contains(tx) && mined_later.contains(tx) {
                assert!(!self.pending.contains(tx), "mined and pending for the sink");
            } else if !mined.contains(tx) && !mined_later.contains(tx) && !faster.contains(tx) {
                assert!(self.pending.contains(tx), "pending, and not for the sink");
                assert!(!self.seen_mined.contains(tx), "pending, and taken for mined");
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
                // Its heads are processed before time passes.
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
        // Whatever has happened: the honest node leads once the others have nothing to tell.
        self.is_over = true;
        self.set_up(HONEST, true);
        (0..self.nodes.len()).for_each(|node| self.settle(node));
        // A reorg may have put it below another branch.
        let highest = self.nodes.iter().map(|node| self.number(node.tip)).max().expect("some");
        for _ in self.number(self.nodes[HONEST].tip)..highest + 4 {
            self.now += LEAD_TIMEOUT;
            let next = self.extend(self.nodes[HONEST].tip);
            self.tell_tip(HONEST, next);
            self.settle(HONEST);
        }
        let head = self.chain.head().map(|head| head.hash);
        assert_eq!(head, Some(self.nodes[HONEST].tip), "it is followed in the end");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Seeds that have failed.
const KEPT: [u64; 6] = [5_031_556, 7_017_206, 8_387_592, 13_081_458, 13_443_482, 30_033_989];

#[test]
fn the_chain_is_that_of_the_honest_node_that_leads() {
    let first = number("MEMPOOL_INGEST_CHAIN_FIRST", 0);
    let seeds = first..first + number("MEMPOOL_INGEST_CHAIN_SEEDS", 2_000);
    for seed in KEPT.into_iter().chain(seeds) {
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

    /// One tells block `n`, on block `n - 1`, with transaction `1000 + n`; no other block can be read.
    fn step(&mut self, source: usize, number: u64, n: u64, now: Instant) -> Step {
        let Self(follower, chain) = self;
        let head = Head::new(number, hash(n), hash(n - 1));
        let mut branch = follower.tell(source, head.into(), now).expect("it is new");
        loop {
            match follower.step(chain, &mut branch, now) {
                Step::Read(own) if own == head.hash => {
                    branch.read(own, Ok(Block::new(head, [hash(1000 + n)]).into()));
                }
                Step::Read(other) => branch.read(other, Err(Unread::Missing)),
                step => return step,
            }
        }
    }
}

/// What the block contains is pending at a source that has gone back: if it was compared then and not
/// again, that stayed pending.
#[test]
fn a_source_is_compared_whenever_it_tells_a_block_that_could_not_be_read() {
    let mut two = Two::new();
    two.step(0, 0, 10, Instant::now());
    let unread = Some(GapReason::UnreadBlock);
    for number in [1, 2] {
        let Two(follower, chain) = &mut two;
        let head = Head::new(number, hash(10 + number), hash(9 + number));
        let mut branch = follower.tell(0, head.into(), Instant::now()).expect("it is new");
        branch.read(head.hash, Err(Unread::Missing));
        let step = follower.step(chain, &mut branch, Instant::now());
        assert!(matches!(step, Step::Applied(Applied { gap, .. }) if gap == unread));
    }
    // Its nonces are requested once: they are read one block after another, for all sources.
    for (number, gap, nonces) in
        [(1, unread, 1), (2, unread, 1), (0, None, 0), (1, unread, 0), (2, unread, 0)]
    {
        let Step::Applied(applied) = two.step(1, number, 10 + number, Instant::now()) else {
            panic!("{number}");
        };
        assert_eq!((applied.gap, applied.untold.len()), (gap, nonces), "{number}");
    }
}

#[test]
fn what_blocks_before_the_first_head_mined_is_told_with_it_and_again_when_it_is_undone() {
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
    let mut tell = |n: u64| {
        let find =
            |hash| blocks.iter().find(|block| block.head.hash == hash).expect("it is asked for");
        let head = find(hash(n)).head;
        let mut branch = follower.tell(0, head.into(), Instant::now()).expect("it is new");
        loop {
            match follower.step(&mut chain, &mut branch, Instant::now()) {
                Step::Read(hash) => branch.read(hash, Ok(find(hash).clone().into())),
                Step::Applied(applied) => break applied,
                step => panic!("{step:?}"),
            }
        }
    };
    for (n, untold, before) in [(12, 2, vec![tx]), (22, 2, vec![tx]), (23, 0, vec![])] {
        let applied = tell(n);
        let told: Vec<_> = applied.blocks.iter().map(|read| read.block.head.hash).collect();
        assert_eq!((told, applied.untold.len()), (vec![hash(n)], untold));
        assert_eq!(applied.mined_before, before);
    }
}

/// One of the numbers, or the time since one, made the other lead or the chain end elsewhere.
#[test]
fn the_leader_stays_and_its_chain_is_extended() {
    let last = RECENT_BLOCKS as u64 + 1;
    let blocks = (1..=last).map(|number| (0, 1, number, 10 + number));
    // After how many seconds who tells which number and block; then the chain's latest number.
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

/// The comparison after the connect may have come before, and left out what counted as mined.
#[test]
fn what_a_gap_forgets_is_mined_no_more_and_its_source_is_compared_after_a_connect_too() {
    let (mut two, now) = (Two::new(), Instant::now());
    two.step(0, 0, 10, now);
    let Two(follower, chain) = &mut two;
    let head = |number: u64| Head::new(number, hash(10 + number), hash(9 + number));
    let told = AnnouncedHead { head: head(99), block: None, was_requested: true };
    let mut branch = follower.tell(0, told, now).expect("it is new");
    for number in (99 - RECENT_BLOCKS as u64..=99).rev() {
        branch.read(hash(10 + number), Ok(Block::new(head(number), []).into()));
    }
    let Step::Applied(applied) = follower.step(chain, &mut branch, now) else { panic!() };
    assert_eq!((applied.unmined, applied.gap), (vec![hash(1010)], Some(GapReason::MissedHeads)));
}
