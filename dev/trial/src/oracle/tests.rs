use super::*;
use crate::world::Part;

const A: B256 = B256::repeat_byte(1);
const B: B256 = B256::repeat_byte(2);

fn message(content: Option<B256>, outcome: Outcome, deadline: u64) -> Message {
    Message { content, outcome, deadline }
}

#[test]
fn a_fault_extends_the_deadline_of_orders_on_its_path_only() {
    let disturbance = |part, begins, ends| Disturbance { part, begins, ends };
    let disturbances = [
        disturbance(Part::Node(0), 5, 100),
        disturbance(Part::Member(1), GRACE_NS + 50, GRACE_NS + 900),
        disturbance(Part::Fleet, 0, 10 * GRACE_NS),
    ];
    assert_eq!(deadline(10, &[Part::Node(1)], &disturbances), 10 + GRACE_NS);
    assert_eq!(deadline(10, &[Part::Node(0)], &disturbances), 100 + GRACE_NS);
    assert_eq!(deadline(200, &[Part::Node(0)], &disturbances), 200 + GRACE_NS, "it was over");
    let path = [Part::Node(0), Part::Member(1)];
    assert_eq!(deadline(10, &path, &disturbances), 2 * GRACE_NS + 900, "one during another");
}

#[test]
fn an_order_is_what_its_last_message_made_of_it() {
    use BlockPhase::{Ending, Open, Over};
    use Outcome::{Accepted, InDoubt, Refused};
    let sent = message(Some(A), Accepted, 10);
    let replaced = message(Some(B), Accepted, 20);
    let cancelled = message(None, Accepted, 30);
    type Case<'a> = (&'a [Message], u64, BlockPhase, &'a [B256], Option<Breach>);
    let cases: [Case<'_>; 20] = [
        (&[sent], 9, Open, &[], None),
        (&[sent], 10, Open, &[], Some(Breach::Missing)),
        (&[sent], 10, Open, &[A], None),
        (&[sent], 10, Ending, &[], None),
        (&[sent], 10, Over, &[A], Some(Breach::Over)),
        (&[sent], 10, Over, &[], None),
        (&[sent, replaced], 15, Open, &[A], None),
        (&[sent, replaced], 15, Open, &[B], None),
        (&[sent, replaced], 15, Open, &[A, B], None),
        (&[sent, replaced], 15, Open, &[], Some(Breach::Missing)),
        (&[sent, replaced], 20, Open, &[A], Some(Breach::Replaced)),
        (&[sent, replaced], 20, Open, &[A, B], Some(Breach::Replaced)),
        (&[sent, replaced], 20, Ending, &[A, B], Some(Breach::Replaced)),
        (&[sent, cancelled], 30, Open, &[A], Some(Breach::Cancelled)),
        (&[sent, cancelled], 30, Open, &[], None),
        (&[sent, cancelled], 29, Open, &[A], None),
        (&[message(Some(A), Refused, 0)], 10, Open, &[], None),
        (&[message(Some(A), InDoubt, 0)], 10, Open, &[A], None),
        (&[sent, message(None, InDoubt, 0)], 10, Open, &[], None),
        (&[cancelled, message(Some(B), Refused, 0)], 30, Open, &[B], Some(Breach::Cancelled)),
    ];
    for (messages, now, phase, held, breach) in cases {
        let found = searcher_order::judge(messages, now, phase, held);
        assert_eq!(found, breach, "{messages:?} {now} {phase:?} {held:?}");
    }
}

#[test]
fn a_bundle_for_the_next_block_needs_time_and_a_machine_at_the_head() {
    let chain = [(7, 10), (8, 1_000_000_000)];
    for (machine, answered_at, is_for_next) in [
        (&[(7, 20)][..], 400_000_000, true),
        (&[(7, 20)], 500_000_000, false),
        (&[(7, 20)], 1_100_000_000, false),
        (&[(7, 20), (8, 1_050_000_000)], 1_100_000_000, true),
        (&[], 400_000_000, false),
    ] {
        assert_eq!(is_for_next_block(machine, &chain, answered_at), is_for_next, "{answered_at}");
    }
}

/// A builder of which nothing is wrong.
fn kept(now: u64) -> Facts {
    let tx = |hash, deadline, is_held| MinedTx { hash, deadline, is_held };
    let listed = |hash, deadline, is_held, is_mined| ListedTx {
        hash,
        deadline,
        is_held,
        is_mined,
        has_old_sidecar: false,
    };
    let order = OrderFacts {
        tx: A,
        is_known_signer: true,
        was_displaced: false,
        messages: vec![message(Some(A), Outcome::Accepted, 1)],
        target: OrderTarget::Block { phase: BlockPhase::Open, held: vec![A], latest: A },
    };
    Facts {
        now,
        listed: vec![
            listed(A, 1, true, false),
            listed(B, 1, false, true),
            listed(B, now + 1, false, false),
        ],
        mined: vec![tx(A, 1, false), tx(B, now + 1, true)],
        heads: vec![(1, true), (now + 1, false)],
        orders: vec![order],
        dropped: vec![(A, now - GRACE_NS + 1)],
        differing: vec![(A, now + 1)],
        live_in_vain_since: Some(now - LIVE_NS + 1),
        objects_in_vain_since: Some(now - LIVE_NS + 1),
        ..Facts::default()
    }
}

#[test]
fn each_promise_is_broken_by_one_fact_once_its_deadline_has_passed() {
    let now = 2 * LIVE_NS;
    let verdict = judge(&kept(now));
    assert_eq!(verdict.breaches, BTreeSet::new());
    assert_eq!(verdict.kept.map(|kept| (kept.due, kept.kept)), [(2, 2), (0, 0), (1, 1)]);
    type Edit = fn(&mut Facts);
    let edits: [(Breach, Edit); 16] = [
        (Breach::Missing, |facts| facts.listed[0].is_held = false),
        (Breach::OldSidecar, |facts| facts.listed[0].has_old_sidecar = true),
        (Breach::LateInVain, |facts| facts.is_late_in_vain = true),
        (Breach::Mined, |facts| facts.mined[0].is_held = true),
        (Breach::Behind, |facts| facts.heads[0].1 = false),
        (Breach::Refused, |facts| facts.orders[0].was_displaced = true),
        (Breach::Cancelled, |facts| facts.orders[0].messages[0].content = None),
        (Breach::Replaced, |facts| facts.orders[0].messages[0].content = Some(B)),
        (Breach::Over, |facts| {
            let phase = BlockPhase::Over;
            facts.orders[0].target = OrderTarget::Block { phase, held: vec![A], latest: A };
        }),
        (Breach::Missing, |facts| {
            facts.orders[0].target =
                OrderTarget::NextBlock { bundle: A, must_be_seen: true, was_seen: false };
        }),
        (Breach::Twice, |facts| facts.added_twice.push(A)),
        (Breach::Counts, |facts| facts.is_miscounted = true),
        (Breach::Dropped, |facts| facts.dropped[0].1 -= 1),
        (Breach::Differs, |facts| facts.differing[0].1 -= 1),
        (Breach::LiveInVain, |facts| {
            facts.live_in_vain_since = facts.live_in_vain_since.map(|since| since - 1);
        }),
        (Breach::ObjectsInVain, |facts| {
            facts.objects_in_vain_since = facts.objects_in_vain_since.map(|since| since - 1);
        }),
    ];
    for (breach, edit) in edits {
        let mut facts = kept(now);
        edit(&mut facts);
        let found: Vec<_> = judge(&facts).breaches.into_iter().map(|(breach, _)| breach).collect();
        assert_eq!(found, [breach]);
    }
    let facts = Facts { accepted_in_vain: Some(A), ..kept(now) };
    assert_eq!(judge(&facts).breaches, [(Breach::ReadyInVain, A)].into());
    let facts = Facts { stores_nothing: true, ..kept(now) };
    assert_eq!(judge(&facts).breaches, [(Breach::ReadyInVain, B256::ZERO)].into());
}
