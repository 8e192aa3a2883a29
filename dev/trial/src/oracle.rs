//! The rules: what a builder's pool must hold, and what it must not. Pure; times are nanoseconds of one clock.
//!
//! The oracle knows what was put in: which transactions the nodes hold and have mined, and what honest searchers sent and
//! were answered. A promise is due [`GRACE_NS`] after the moment from which it holds; where a fault touched the way of an
//! order ([`Trouble`]), so long after the written bound of that fault ([`crate::world::What::touches`]).

use std::{collections::BTreeSet, time::Duration};

use alloy_primitives::B256;

use crate::world::Part;

/// For the way to a builder on a busy machine.
pub(crate) const GRACE_NS: u64 = 2_500_000_000;

/// So long a node that does not respond holds up what another one has too: a hash waits for a slot until the fetcher's
/// timeout for a request frees one, and is then requested of that node itself.
pub(crate) const ASKED_ELSEWHERE_NS: u64 = 4_000_000_000;

/// A bundle for the next block that comes later before the next head may not reach the builders of a fleet in time.
const NEXT_BLOCK_NS: u64 = 500_000_000;

/// Blocks whose transactions must stay away, and after which an order is forgotten.
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

    /// In the order of their begin, as [`due`] wants them.
    pub(crate) fn add_to(self, troubles: &mut Vec<Self>) {
        let before = troubles.partition_point(|other| other.from <= self.from);
        troubles.insert(before, self);
    }
}

/// When what came at `from` on a way over these parts must be there.
pub(crate) fn due(from: u64, way: &[Part], troubles: &[Trouble]) -> u64 {
    let mut due = from + GRACE_NS;
    // In the order of their begin: one that strikes while another is being recovered from extends it.
    for trouble in troubles {
        let touches = trouble.part == Part::All || way.contains(&trouble.part);
        if touches && trouble.from <= due && trouble.until >= from {
            due = due.max(trouble.until + GRACE_NS);
        }
    }
    due
}

/// Whether a fault touched the way.
pub(crate) fn is_touched(from: u64, way: &[Part], troubles: &[Trouble]) -> bool {
    due(from, way, troubles) > from + GRACE_NS
}

/// How a message to a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Accepted,
    /// It changes nothing.
    Refused,
    /// No answer came, or its machine was killed before the answer was sure to be known elsewhere: it may have taken
    /// effect, or not.
    InDoubt,
}

/// A message of a searcher, as one builder sees it: what its order is from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The order's content; `None` after a cancellation.
    pub(crate) makes: Option<B256>,
    pub(crate) outcome: Outcome,
    /// When it must have taken effect.
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
    /// It came while it was there.
    Twice,
    /// **Known**: the counts of hashes do not add up, or the builder's reader and its pool differ.
    Counts,
    /// Resident memory, open files or threads have grown over the run.
    Grown,
}

/// Something that is not as promised.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) wrong: Wrong,
    pub(crate) member: usize,
    pub(crate) hash: B256,
    pub(crate) text: String,
}

/// What a look at a builder has found.
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

    /// A promise: once it is due it counts, and if it is not kept, this is wrong.
    pub(crate) fn ask(&mut self, due: u64, is_kept: bool, wrong: Wrong, hash: B256) {
        if due <= self.now {
            self.checks += 1;
            self.wrong.extend((!is_kept).then_some((wrong, hash)));
        }
    }
}

/// What each part knows of an order, in the order of time, in seconds from `begin`.
pub(crate) fn life(mut lines: Vec<(u64, String)>, begin: u64, troubles: &[Trouble]) -> String {
    let seconds = |at: u64| (at as f64 - begin as f64) / 1e9;
    lines.extend(troubles.iter().map(|Trouble { part, from, until }| {
        (*from, format!("{part:?} is touched until {:.1} s", seconds(*until)))
    }));
    lines.sort();
    lines.iter().map(|(at, line)| format!("    {:8.3} s  {line}\n", seconds(*at))).collect()
}

/// Resident memory beside its orders and the hashes that it remembers, open files and threads at the looks of a process that ran for the whole run, which must
/// not have grown by more than a tenth and 16 MB, or two files or threads, between the first third and the last, once the pool's and the fetcher's memory of
/// hashes has filled. Of each third the looks with the least to do count: what attackers send comes and goes.
pub(crate) fn grown(uses: &[[usize; 3]]) -> Option<Wrong> {
    let quiet = |part: &[[usize; 3]], of: usize| {
        let mut values: Vec<_> = part.iter().map(|uses| uses[of]).collect();
        values.sort_unstable();
        values[values.len() / 10]
    };
    let third = uses.len() / 3;
    let (early, late) = (uses.get(..third)?, uses.get(uses.len() - third..)?);
    if early.is_empty() {
        return None;
    }
    let is_larger = quiet(late, 0) as f64 > 1.1 * quiet(early, 0) as f64 + 16e6;
    let has_more = quiet(late, 1) > quiet(early, 1) + 2 || quiet(late, 2) > quiet(early, 2) + 2;
    (is_larger || has_more).then_some(Wrong::Grown)
}

/// The head at a time, and when the next one came.
fn head_at(heads: &[(u64, u64)], time: u64) -> (Option<u64>, Option<u64>) {
    let known = heads.partition_point(|(_, at)| *at <= time);
    let number = heads[..known].last().map(|(number, _)| *number);
    (number, heads.get(known).map(|(_, at)| *at))
}

/// Whether a bundle for the next block that a machine accepted must come to the other builders of a fleet: the machine had
/// `known` the chain's head, and the next one came later than [`NEXT_BLOCK_NS`] after. Heads are numbers, each with its time.
pub(crate) fn is_for_next_block(known: &[(u64, u64)], chain: &[(u64, u64)], answered: u64) -> bool {
    let (latest, next) = head_at(chain, answered);
    let is_close = |at: u64| at - answered <= NEXT_BLOCK_NS;
    head_at(known, answered).0 == latest && !next.is_some_and(is_close)
}

/// What a builder knows of the time of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Its block is to come.
    Open,
    /// Its block is being told, or one that contains it: it may be there or not.
    Ending,
    /// The builder has known for a while that its block is over, or that a block contains it.
    Over,
}

/// A searcher's order, all of whose versions are for one block: `there` are those that the pool holds.
pub(crate) fn order(messages: &[Message], now: u64, time: Time, there: &[B256]) -> Option<Wrong> {
    if time == Time::Over {
        return (!there.is_empty()).then_some(Wrong::Over);
    }
    // What it can be by now: the effect of the last message that must have taken effect, or of any later one.
    let mut possible = vec![None];
    for message in messages {
        match message.outcome {
            Outcome::Refused => continue,
            Outcome::Accepted if message.due <= now => possible.clear(),
            _ => {}
        }
        possible.push(message.makes);
    }
    let is_possible = |what: Option<B256>| possible.contains(&what);
    match there {
        [] if time == Time::Ending || is_possible(None) => None,
        [] => Some(Wrong::Missing),
        [one] if is_possible(Some(*one)) => None,
        // Two versions while one takes the other's place.
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
        let mut found = Findings::new(5);
        for (due, is_kept) in [(6, false), (5, true), (5, false)] {
            found.ask(due, is_kept, Wrong::Missing, A);
        }
        assert_eq!((found.checks, found.wrong), (2, [(Wrong::Missing, A)].into()));
    }
}
