use alloy_primitives::Address;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const UNAVAILABLE: Answer = Answer::Later(Trouble::Unavailable);
const FULL: Answer = Answer::Later(Trouble::Full);

fn outbox() -> Outbox {
    let backoff = Backoff { base: SECOND, cap: 4 * SECOND };
    let limits = OutboxLimits { window: 4, window_bytes: 1_000, ack_timeout: 5 * SECOND, backoff };
    Outbox::new(limits)
}

fn item(n: u8) -> (Item, B256) {
    let hash = B256::repeat_byte(n);
    (Item::CancelPrivate { hash, signer: Address::ZERO, again: 0 }, hash)
}

fn add(outbox: &mut Outbox, n: u8, now: Instant) -> u64 {
    let (item, id) = item(n);
    outbox.add(item, id, 100, now)
}

/// The numbers of what is published again now.
fn due(outbox: &mut Outbox, now: Instant) -> Vec<u64> {
    std::iter::from_fn(|| outbox.next_due(now, 1.0).map(|(number, ..)| number)).collect()
}

fn outcome(outbox: &mut Outbox, number: u64, answer: Answer, now: Instant) -> Option<Outcome> {
    outbox.answer(number, answer, now, 1.0).map(|(_, outcome)| outcome)
}

#[test]
fn a_message_leaves_with_one_outcome_and_frees_its_place() {
    let (mut outbox, now) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..4).map(|n| add(&mut outbox, n, now)).collect();
    assert!(!outbox.has_room(now), "the window is full");
    assert_eq!(outcome(&mut outbox, numbers[1], Answer::Stored, now), Some(Outcome::Stored));
    assert_eq!(outcome(&mut outbox, numbers[1], Answer::Duplicate, now), None, "a late answer");
    let expected = Some(Outcome::Duplicate { by_another: true });
    assert_eq!(outcome(&mut outbox, numbers[0], Answer::Duplicate, now), expected);
    let too_large = Answer::Refused(RefuseReason::TooLarge);
    let expected = Some(Outcome::Refused(RefuseReason::TooLarge));
    assert_eq!(outcome(&mut outbox, numbers[2], too_large, now), expected);
    assert_eq!((outbox.len(), outbox.bytes, outbox.has_room(now)), (1, 100, true));
    let (big, id) = item(9);
    outbox.add(big, id, 900, now);
    assert!(outbox.is_full(), "by bytes");
}

#[test]
fn a_new_connection_publishes_everything_again_in_its_order_and_a_duplicate_may_then_be_our_own() {
    let (mut outbox, now) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..3).map(|n| add(&mut outbox, n, now)).collect();
    assert!(due(&mut outbox, now).is_empty());
    let later = now + SECOND;
    outbox.connected(later);
    assert_eq!(due(&mut outbox, later), numbers);
    assert!(due(&mut outbox, later).is_empty(), "once");
    let expected = Some(Outcome::Duplicate { by_another: false });
    assert_eq!(outcome(&mut outbox, numbers[0], Answer::Duplicate, later), expected);
}

#[test]
fn a_stream_without_a_leader_gets_one_message_at_a_time_after_pauses_that_grow() {
    let (mut outbox, start) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..3).map(|n| add(&mut outbox, n, start)).collect();
    for number in &numbers {
        assert_eq!(outcome(&mut outbox, *number, UNAVAILABLE, start), None);
    }
    assert_eq!(outbox.trouble(), Some(Trouble::Unavailable));
    let mut now = start;
    for pause in [1, 2, 4, 4] {
        assert!(due(&mut outbox, now).is_empty() && !outbox.has_room(now));
        assert_eq!(outbox.next_wake(now), Some(now + pause * SECOND));
        now += pause * SECOND;
        assert_eq!(due(&mut outbox, now), [numbers[0]], "the oldest alone");
        outcome(&mut outbox, numbers[0], UNAVAILABLE, now);
    }
    now += 4 * SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]]);
    let expected = Some(Outcome::Stored);
    assert_eq!(outcome(&mut outbox, numbers[0], Answer::Stored, now), expected);
    assert_eq!(outbox.trouble(), None);
    assert_eq!(due(&mut outbox, now), numbers[1..], "the others at once");
}

#[test]
fn silence_counts_as_no_leader_and_one_lost_message_does_not() {
    let (mut outbox, start) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..2).map(|n| add(&mut outbox, n, start)).collect();
    let now = start + SECOND;
    outcome(&mut outbox, numbers[1], Answer::Stored, now);
    let now = start + 5 * SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]], "others were answered meanwhile");
    assert_eq!(outbox.trouble(), None);
    let now = now + 5 * SECOND;
    assert!(due(&mut outbox, now).is_empty());
    assert_eq!(outbox.trouble(), Some(Trouble::Unavailable), "nothing was answered");
    let now = now + SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]]);
    let now = now + 5 * SECOND;
    assert!(due(&mut outbox, now).is_empty(), "the probe timed out");
    assert_eq!(outbox.next_wake(now), Some(now + 2 * SECOND));
}

#[test]
fn a_full_stream_keeps_its_messages_and_gets_them_when_it_has_room() {
    let (mut outbox, now) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..3).map(|n| add(&mut outbox, n, now)).collect();
    for number in &numbers {
        assert_eq!(outcome(&mut outbox, *number, FULL, now), None);
    }
    assert_eq!((outbox.len(), outbox.trouble()), (3, Some(Trouble::Full)));
    assert!(!outbox.has_room(now));
    assert_eq!(outbox.next_wake(now), Some(now + SECOND));
    let now = now + SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]], "the oldest first");
    assert_eq!(outcome(&mut outbox, numbers[0], FULL, now), None);
    let now = now + 2 * SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[1]], "then another, which may be smaller");
    assert_eq!(outcome(&mut outbox, numbers[1], FULL, now), None);
    let now = now + 4 * SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]]);
    assert_eq!(outcome(&mut outbox, numbers[0], Answer::Stored, now), Some(Outcome::Stored));
    assert_eq!((outbox.trouble(), due(&mut outbox, now)), (None, numbers[1..].to_vec()));
}

#[test]
fn a_message_that_never_has_room_does_not_hold_up_the_others_and_is_refused_in_the_end() {
    let (mut outbox, mut now) = (outbox(), Instant::now());
    let large = add(&mut outbox, 0, now);
    for stored_between in 1..MAX_FULL {
        assert_eq!(outcome(&mut outbox, large, FULL, now), None, "{stored_between}");
        assert_eq!(outcome(&mut outbox, large, FULL, now), None, "the same, as nothing was stored");
        let small = add(&mut outbox, 1, now);
        assert_eq!(outcome(&mut outbox, small, Answer::Stored, now), Some(Outcome::Stored));
        now += SECOND;
        assert_eq!(due(&mut outbox, now), [large], "at once with the stream open again");
    }
    let refused = Some(Outcome::Refused(RefuseReason::Full));
    assert_eq!(outcome(&mut outbox, large, FULL, now), refused);
}

#[test]
fn a_subject_that_is_denied_keeps_its_messages_and_tries_one() {
    let (mut outbox, now) = (outbox(), Instant::now());
    outbox.denied(now, 1.0);
    assert_eq!(outbox.trouble(), None, "nothing was published");
    let numbers: Vec<_> = (0..2).map(|n| add(&mut outbox, n, now)).collect();
    outbox.denied(now, 1.0);
    assert_eq!((outbox.trouble(), outbox.len()), (Some(Trouble::Denied), 2));
    let now = now + SECOND;
    assert_eq!(due(&mut outbox, now), [numbers[0]]);
    outbox.denied(now, 1.0);
    assert_eq!(outbox.next_wake(now), Some(now + 2 * SECOND));
}

#[test]
fn what_is_withdrawn_is_not_published_again_and_its_late_answer_is_ignored() {
    let (mut outbox, now) = (outbox(), Instant::now());
    let numbers: Vec<_> = (0..2).map(|n| add(&mut outbox, n, now)).collect();
    let first = item(0).1;
    let is_first = |item: &Item| matches!(item, Item::CancelPrivate { hash, .. } if *hash == first);
    assert_eq!(outbox.withdraw(is_first), 1);
    outbox.connected(now);
    assert_eq!(due(&mut outbox, now), numbers[1..]);
    assert_eq!(outcome(&mut outbox, numbers[0], Answer::Stored, now), None);
}

#[test]
fn a_message_in_process_is_published_again_after_a_second() {
    let (mut outbox, now) = (outbox(), Instant::now());
    let number = add(&mut outbox, 0, now);
    assert_eq!(outcome(&mut outbox, number, Answer::InProcess, now), None);
    assert!(due(&mut outbox, now).is_empty() && outbox.has_room(now));
    let now = now + SECOND;
    assert_eq!(due(&mut outbox, now), [number]);
    let expected = Some(Outcome::Duplicate { by_another: false });
    assert_eq!(outcome(&mut outbox, number, Answer::Duplicate, now), expected);
}
