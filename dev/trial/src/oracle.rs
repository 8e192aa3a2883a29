//! The rules: what a builder's pool must hold, and what it must not. Pure; times are nanoseconds of one clock.
//!
//! The oracle knows what was put in: which transactions the nodes hold and have mined, what honest searchers sent, and
//! how they were answered. Before each head it asks of every builder:
//!
//! | question | wrong if not |
//! |---|---|
//! | Does it hold what a node of its lists, and what a searcher was answered with success? | [`Wrong::Missing`] |
//! | Is what a block contains gone, what was replaced or cancelled, and what was for a block that is over? | [`Wrong::Mined`], [`Wrong::Replaced`], [`Wrong::Cancelled`], [`Wrong::Over`] |
//! | Was every honest searcher accepted, unless a machine had no time? | [`Wrong::Refused`] |
//! | Does it know the chain's head? | [`Wrong::Behind`] |
//! | Did each order come once, do the counts add up, has nothing grown? | [`Wrong::Twice`], [`Wrong::Counts`], [`Wrong::Grown`] |
//! | Is what was there, and what a node still lists, still there? | [`Wrong::Dropped`] |
//! | Do all builders of a fleet hold the same? | [`Wrong::Differs`] |
//! | Does no machine say that it is ready, and no source that it is live, in vain? | [`Wrong::ReadyInVain`], [`Wrong::LiveInVain`] |
//!
//! A promise is due [`GRACE_NS`] after the moment from which it holds. If a fault touched the way of an order
//! ([`Trouble`]), the promise is due that long after the fault's written bound ([`crate::world::What::touches`]). No fault
//! extends the answers to the last three questions but the one about the fleet. They are asked with
//! `--hazards questions`.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    time::Duration,
};

use alloy_primitives::B256;

use crate::world::Part;

/// How long an order may take to a builder on a busy machine.
pub(crate) const GRACE_NS: u64 = 2_500_000_000;

/// How long a node that does not respond delays what another node has too: a hash waits for a slot until the fetcher's
/// request times out, and is then requested from the other node.
pub(crate) const ASKED_ELSEWHERE_NS: u64 = 4_000_000_000;

/// A bundle for the next block reaches the builders of a fleet in time if the next head comes this much later.
const NEXT_BLOCK_NS: u64 = 500_000_000;

/// A source must not say for longer that it is live while the pool has nothing of what its node lists.
pub(crate) const LIVE_NS: u64 = 10_000_000_000;

/// A machine must not say for longer that it is ready while what it accepts reaches nobody.
pub(crate) const READY_NS: u64 = 2_000_000_000;

/// The number of recent blocks whose transactions must not come back. Older orders are forgotten.
pub(crate) const REMEMBERED: u64 = 30;

/// A time in which a part may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) part: Part,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Trouble {
    pub(crate) const fn new(part: Part, from: u64, lasts: Duration) -> Self {
        Self { part, from, until: from + lasts.as_nanos() as u64 }
    }

    /// Inserts it in the order in which the troubles begin, which [`due`] needs.
    pub(crate) fn add_to(self, troubles: &mut Vec<Self>) {
        let before = troubles.partition_point(|other| other.from <= self.from);
        troubles.insert(before, self);
    }
}

/// Returns when an order that came at `from` must be there, if its way leads over these parts.
pub(crate) fn due(from: u64, way: &[Part], troubles: &[Trouble]) -> u64 {
    let mut due = from + GRACE_NS;
    // In the order in which they begin: a fault during the recovery from another one extends it.
    for trouble in troubles {
        let touches = trouble.part == Part::All || way.contains(&trouble.part);
        if touches && trouble.from <= due && trouble.until >= from {
            due = due.max(trouble.until + GRACE_NS);
        }
    }
    due
}

/// Whether a fault touched the way of an order that came at `from`.
pub(crate) fn is_touched(from: u64, way: &[Part], troubles: &[Trouble]) -> bool {
    due(from, way, troubles) > from + GRACE_NS
}

/// How a server answered a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    /// The message changes nothing.
    Refused,
    /// No answer came, or the machine was killed before it was sure to have published the order: the message may have
    /// taken effect, or not.
    InDoubt,
}

/// A searcher's message, as one builder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The content that the order has from then on; `None` after a cancellation.
    pub(crate) makes: Option<B256>,
    pub(crate) outcome: Outcome,
    /// When the message must have taken effect.
    pub(crate) due: u64,
}

/// What is wrong with an order in a builder's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// **Kept**: it is not there.
    Missing,
    /// **Gone**: a block contains it, and it is there.
    Mined,
    /// **Gone**: it was replaced, and is there.
    Replaced,
    /// **Gone**: it was cancelled, and is there.
    Cancelled,
    /// **Gone**: its block is over, and it is there.
    Over,
    /// **Kept**: an honest searcher was refused, and not because its machine had no time.
    Refused,
    /// **Gone**: the builder does not know the chain's head.
    Behind,
    /// **Known**: it came again while it was there.
    Twice,
    /// **Known**: the counts of hashes do not add up, or the builder's reader and its pool differ.
    Counts,
    /// **Known**: resident memory, open files or threads have grown over the run.
    Grown,
    /// **Kept**: it was there and is gone, and a node still lists it.
    Dropped,
    /// **Kept**: another builder of the fleet holds it, and this one does not.
    Differs,
    /// **Known**: a machine says that it is ready while what it has accepted reaches no builder.
    ReadyInVain,
    /// **Known**: a source says that it is live while its node lists transactions and the pool has none of them.
    LiveInVain,
}

/// Something that is not as promised.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) wrong: Wrong,
    pub(crate) member: usize,
    pub(crate) hash: B256,
    pub(crate) text: String,
}

/// The result of a look at a builder.
#[derive(Debug)]
pub(crate) struct Findings {
    now: u64,
    /// Promises that were due.
    pub(crate) checks: u64,
    pub(crate) wrong: BTreeSet<(Wrong, B256)>,
}

impl Findings {
    pub(crate) const fn new(now: u64) -> Self {
        Self { now, checks: 0, wrong: BTreeSet::new() }
    }

    /// Counts a promise once it is due. If it is not kept, `wrong` is found.
    pub(crate) fn ask(&mut self, due: u64, is_kept: bool, wrong: Wrong, hash: B256) {
        if due <= self.now {
            self.checks += 1;
            self.wrong.extend((!is_kept).then_some((wrong, hash)));
        }
    }
}

/// Conditions that held at each look since some time.
#[derive(Debug)]
pub(crate) struct Lasting<Key>(HashMap<Key, u64>);

impl<Key> Default for Lasting<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<Key: Copy + Eq + Hash> Lasting<Key> {
    /// Takes the conditions that hold at the look `now`. Returns each with the time of the first look of its series.
    pub(crate) fn look(
        &mut self,
        now: u64,
        found: impl IntoIterator<Item = Key>,
    ) -> Vec<(Key, u64)> {
        let found = found.into_iter().map(|key| (key, self.0.get(&key).copied().unwrap_or(now)));
        self.0 = found.collect();
        self.0.iter().map(|(key, since)| (*key, *since)).collect()
    }
}

/// Returns the orders that some builder of a fleet holds and another lacks, each with the number of the builder that
/// lacks it.
pub(crate) fn differences(held: &[(usize, HashSet<B256>)]) -> Vec<(usize, B256)> {
    let all: HashSet<_> = held.iter().flat_map(|(_, orders)| orders).collect();
    let missing = |(builder, orders): &(usize, HashSet<B256>)| {
        let missing = all.iter().filter(|hash| !orders.contains(**hash));
        missing.map(|hash| (*builder, **hash)).collect::<Vec<_>>()
    };
    held.iter().flat_map(missing).collect()
}

/// The story of an order as all parts know it, in the order of time, in seconds from `begin`.
pub(crate) fn life(mut lines: Vec<(u64, String)>, begin: u64, troubles: &[Trouble]) -> String {
    let seconds = |at: u64| (at as f64 - begin as f64) / 1e9;
    lines.extend(troubles.iter().map(|Trouble { part, from, until }| {
        (*from, format!("{part:?} is touched until {:.1} s", seconds(*until)))
    }));
    lines.sort();
    lines.iter().map(|(at, line)| format!("    {:8.3} s  {line}\n", seconds(*at))).collect()
}

/// Whether a process has grown. Each look has its resident memory without orders and remembered hashes, its open files
/// and its threads. Between the first third of the looks and the last, memory must not grow by more than a tenth and
/// 16 MB, files and threads by no more than two. The process has filled its memory of hashes before the first look.
pub(crate) fn grown(uses: &[[usize; 3]]) -> Option<Wrong> {
    let third = uses.len() / 3;
    let (early, late) = (uses.get(..third)?, uses.get(uses.len() - third..)?);
    if early.is_empty() {
        return None;
    }
    let is_larger = quiet_use(late, 0) as f64 > 1.1 * quiet_use(early, 0) as f64 + 16e6;
    let has_more = (1..3).any(|index| quiet_use(late, index) > quiet_use(early, index) + 2);
    (is_larger || has_more).then_some(Wrong::Grown)
}

/// The use at the quiet looks, the lowest tenth: what attackers send comes and goes.
fn quiet_use(looks: &[[usize; 3]], index: usize) -> usize {
    let mut values: Vec<_> = looks.iter().map(|uses| uses[index]).collect();
    values.sort_unstable();
    values[values.len() / 10]
}

/// The head at a time, and when the next one came.
fn head_at(heads: &[(u64, u64)], time: u64) -> (Option<u64>, Option<u64>) {
    let known = heads.partition_point(|(_, at)| *at <= time);
    let number = heads[..known].last().map(|(number, _)| *number);
    (number, heads.get(known).map(|(_, at)| *at))
}

/// Whether a bundle for the next block that a machine accepted must reach the other builders of a fleet: the machine knew
/// the chain's head, and the next head came more than [`NEXT_BLOCK_NS`] later. Heads are numbers, each with its time.
pub(crate) fn is_for_next_block(known: &[(u64, u64)], chain: &[(u64, u64)], answered: u64) -> bool {
    let (latest, next) = head_at(chain, answered);
    let is_close = |at: u64| at - answered <= NEXT_BLOCK_NS;
    head_at(known, answered).0 == latest && !next.is_some_and(is_close)
}

/// Where the chain that a builder knows stands, compared with the block of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// The block is still to come.
    Open,
    /// The block, or one that contains the order, is being announced: the order may be there or not.
    Ending,
    /// The builder has known for a while that the block is over, or that a block contains the order.
    Over,
}

/// Judges a searcher's order, all of whose versions are for one block. `there` are the versions that the pool holds.
pub(crate) fn order(messages: &[Message], now: u64, time: Time, there: &[B256]) -> Option<Wrong> {
    if time == Time::Over {
        return (!there.is_empty()).then_some(Wrong::Over);
    }
    // The order can be what the last message made of it that must have taken effect, or any later message.
    let mut possible = vec![None];
    for message in messages {
        match message.outcome {
            Outcome::Refused => continue,
            Outcome::Accepted if message.due <= now => possible.clear(),
            _ => {}
        }
        possible.push(message.makes);
    }
    let is_possible = |version: Option<B256>| possible.contains(&version);
    match there {
        [] if time == Time::Ending || is_possible(None) => None,
        [] => Some(Wrong::Missing),
        [one] if is_possible(Some(*one)) => None,
        // Two versions are there while one replaces the other.
        several if several.iter().all(|one| is_possible(Some(*one))) => None,
        _ if possible.iter().any(Option::is_some) => Some(Wrong::Replaced),
        _ => Some(Wrong::Cancelled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: B256 = B256::repeat_byte(1);
    const B: B256 = B256::repeat_byte(2);

    fn message(makes: Option<B256>, outcome: Outcome, due: u64) -> Message {
        Message { makes, outcome, due }
    }

    #[test]
    fn a_fault_on_the_way_extends_what_is_due_and_one_beside_it_does_not() {
        let trouble = |part, from, until| Trouble { part, from, until };
        let troubles = [
            trouble(Part::Node(0), 5, 100),
            trouble(Part::Member(1), GRACE_NS + 50, GRACE_NS + 900),
            trouble(Part::Fleet, 0, 10 * GRACE_NS),
        ];
        assert_eq!(due(10, &[Part::Node(1)], &troubles), 10 + GRACE_NS);
        assert_eq!(due(10, &[Part::Node(0)], &troubles), 100 + GRACE_NS);
        assert_eq!(due(200, &[Part::Node(0)], &troubles), 200 + GRACE_NS, "it was over");
        let way = [Part::Node(0), Part::Member(1)];
        assert_eq!(due(10, &way, &troubles), 2 * GRACE_NS + 900, "one fault during another");
    }

    #[test]
    fn an_order_is_what_the_last_message_made_of_it() {
        use Outcome::{Accepted, InDoubt, Refused};
        use Time::{Ending, Open, Over};
        let sent = message(Some(A), Accepted, 10);
        let replaced = message(Some(B), Accepted, 20);
        let cancelled = message(None, Accepted, 30);
        type Case<'a> = (&'a [Message], u64, Time, &'a [B256], Option<Wrong>);
        let cases: [Case<'_>; 19] = [
            (&[sent], 9, Open, &[], None),
            (&[sent], 10, Open, &[], Some(Wrong::Missing)),
            (&[sent], 10, Open, &[A], None),
            (&[sent], 10, Ending, &[], None),
            (&[sent], 10, Over, &[A], Some(Wrong::Over)),
            (&[sent], 10, Over, &[], None),
            (&[sent, replaced], 15, Open, &[A], None),
            (&[sent, replaced], 15, Open, &[B], None),
            (&[sent, replaced], 15, Open, &[A, B], None),
            (&[sent, replaced], 15, Open, &[], Some(Wrong::Missing)),
            (&[sent, replaced], 20, Open, &[A], Some(Wrong::Replaced)),
            (&[sent, replaced], 20, Ending, &[A, B], Some(Wrong::Replaced)),
            (&[sent, cancelled], 30, Open, &[A], Some(Wrong::Cancelled)),
            (&[sent, cancelled], 30, Open, &[], None),
            (&[sent, cancelled], 29, Open, &[A], None),
            (&[message(Some(A), Refused, 0)], 10, Open, &[], None),
            (&[message(Some(A), InDoubt, 0)], 10, Open, &[A], None),
            (&[sent, message(None, InDoubt, 0)], 10, Open, &[], None),
            (&[cancelled, message(Some(B), Refused, 0)], 30, Open, &[B], Some(Wrong::Cancelled)),
        ];
        for (messages, now, time, there, wrong) in cases {
            let found = order(messages, now, time, there);
            assert_eq!(found, wrong, "{messages:?} {now} {time:?} {there:?}");
        }
        let uses = |late| [vec![[100 << 20, 9, 9]; 20], vec![late; 10]].concat();
        assert_eq!(grown(&uses([110 << 20, 11, 9])), None);
        for late in [[150 << 20, 9, 9], [100 << 20, 12, 9], [100 << 20, 9, 12]] {
            assert_eq!(grown(&uses(late)), Some(Wrong::Grown));
        }
        let chain = [(7, 10), (8, 1_000_000_000)];
        for (machine, answered, is_for_next) in [
            (&[(7, 20)][..], 400_000_000, true),
            (&[(7, 20)], 500_000_000, false),
            (&[(7, 20)], 1_100_000_000, false),
            (&[(7, 20), (8, 1_050_000_000)], 1_100_000_000, true),
            (&[], 400_000_000, false),
        ] {
            assert_eq!(is_for_next_block(machine, &chain, answered), is_for_next, "{answered}");
        }
        let mut lasting = Lasting::default();
        assert_eq!(lasting.look(1, [7]), [(7, 1)]);
        assert_eq!(lasting.look(2, [7]), [(7, 1)]);
        lasting.look(3, []);
        assert_eq!(lasting.look(4, [7]), [(7, 4)], "it was not so in between");
        let held = [(0, HashSet::from([A, B])), (1, HashSet::from([A])), (2, HashSet::from([A]))];
        assert_eq!(differences(&held), [(1, B), (2, B)]);
        let mut found = Findings::new(5);
        for (due, is_kept) in [(6, false), (5, true), (5, false)] {
            found.ask(due, is_kept, Wrong::Missing, A);
        }
        assert_eq!((found.checks, found.wrong), (2, [(Wrong::Missing, A)].into()));
    }
}
