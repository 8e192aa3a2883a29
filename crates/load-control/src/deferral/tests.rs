use proptest::prelude::*;

use super::*;

fn queue(capacity: usize, max_age_ms: u64) -> DeferralQueue<u32> {
    let max_age = Duration::from_millis(max_age_ms);
    DeferralQueue::new("test", DeferralConfig { capacity, max_age }).unwrap()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn under_normal_load_items_run_and_nothing_is_counted() {
    let (mut queue, now) = (queue(2, 100), Instant::now());
    assert_eq!(queue.offer(1, now, false), Offered::Run(1));
    assert_eq!(queue.stats(now), DeferralStats::default());
    assert_eq!((queue.pop(now, false), queue.next_due()), (None, None));
}

#[test]
fn under_pressure_items_wait_in_order_and_leave_when_it_ends() {
    let (mut queue, now) = (queue(8, 100), Instant::now());
    for item in 0..3 {
        assert_eq!(queue.offer(item, now, true), Offered::Deferred);
    }
    assert_eq!(queue.pop(now + ms(99), true), None);
    assert_eq!(
        (0..4).map(|_| queue.pop(now + ms(99), false)).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), None]
    );
}

#[test]
fn the_age_cap_lets_an_item_run_under_any_load() {
    let (mut queue, now) = (queue(8, 100), Instant::now());
    let _ = queue.offer(1, now, true);
    let _ = queue.offer(2, now + ms(50), true);
    assert_eq!(queue.next_due(), Some(now + ms(100)));
    assert_eq!(queue.pop(now + ms(99), true), None);
    assert_eq!(queue.pop(now + ms(100), true), Some(1));
    assert_eq!(queue.pop(now + ms(100), true), None);
    assert_eq!(queue.next_due(), Some(now + ms(150)));
    assert_eq!(queue.pop(now + ms(150), true), Some(2));
    assert_eq!(queue.stats(now).run_aged, 2);
}

#[test]
fn what_does_not_fit_is_handed_back_and_counted() {
    let (mut queue, now) = (queue(2, 100), Instant::now());
    let offered: Vec<_> = (0..4).map(|item| queue.offer(item, now, true)).collect();
    let expected =
        [Offered::Deferred, Offered::Deferred, Offered::HandedBack(2), Offered::HandedBack(3)];
    assert_eq!(offered, expected);
    let stats = queue.stats(now + ms(7));
    assert_eq!((stats.deferred, stats.handed_back, stats.waiting), (2, 2, 2));
    assert_eq!(stats.oldest_age, ms(7));
}

#[test]
fn an_item_does_not_overtake_those_that_wait() {
    let (mut queue, now) = (queue(8, 100), Instant::now());
    let _ = queue.offer(1, now, true);
    assert_eq!(queue.offer(2, now, false), Offered::Deferred);
    assert_eq!(queue.pop(now, false), Some(1));
    assert_eq!(queue.pop(now, false), Some(2));
}

#[test]
fn a_queue_without_room_is_a_configuration_error() {
    let config = DeferralConfig { capacity: 0, max_age: Duration::ZERO };
    assert!(DeferralQueue::<u32>::new("test", config).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Offer,
    Pop,
    Wait(u64),
    Press(bool),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Offer),
        4 => Just(Step::Pop),
        2 => (0..60_u64).prop_map(Step::Wait),
        2 => any::<bool>().prop_map(Step::Press),
        1 => Just(Step::Drain),
    ]
}

proptest! {
    /// Whatever happens, each item is in exactly one place, in order, and the counts say so.
    #[test]
    fn no_item_is_lost_doubled_or_overtaken(steps in prop::collection::vec(step(), 0..200)) {
        let mut queue = queue(5, 100);
        let (mut now, mut pressed) = (Instant::now(), false);
        let mut waiting: VecDeque<(u32, Instant)> = VecDeque::new();
        let mut seen = DeferralStats::default();
        for (item, step) in (0..).zip(steps) {
            match step {
                Step::Offer => match queue.offer(item, now, pressed) {
                    Offered::Run(back) => prop_assert!(
                        back == item && !pressed && waiting.is_empty()
                    ),
                    Offered::Deferred => {
                        waiting.push_back((item, now));
                        seen.deferred += 1;
                    }
                    Offered::HandedBack(back) => {
                        prop_assert!(back == item && waiting.len() == 5);
                        seen.handed_back += 1;
                    }
                },
                Step::Pop => {
                    let aged = waiting.front().is_some_and(|(_, since)| now - *since >= ms(100));
                    let expected = (!pressed || aged).then(|| waiting.pop_front()).flatten();
                    prop_assert_eq!(queue.pop(now, pressed), expected.map(|(item, _)| item));
                    if expected.is_some() {
                        *if pressed { &mut seen.run_aged } else { &mut seen.run_calm } += 1;
                    }
                }
                Step::Wait(millis) => now += ms(millis),
                Step::Press(on) => pressed = on,
                Step::Drain => {
                    let drained: Vec<_> = queue.drain().collect();
                    let expected: Vec<_> = waiting.drain(..).map(|(item, _)| item).collect();
                    seen.drained += drained.len() as u64;
                    prop_assert_eq!(drained, expected);
                }
            }
            seen.waiting = waiting.len() as u64;
            seen.oldest_age = waiting.front().map_or(Duration::ZERO, |(_, since)| now - *since);
            prop_assert_eq!(queue.stats(now), seen);
            prop_assert_eq!(
                seen.deferred,
                seen.run_calm + seen.run_aged + seen.drained + seen.waiting
            );
        }
    }
}

#[test]
fn what_its_owner_has_no_room_for_is_counted_as_handed_back() {
    let (mut queue, now) =
        (DeferralQueue::new("test", DeferralConfig::default()).unwrap(), Instant::now());
    assert!(queue.must_wait(true) && !queue.must_wait(false));
    assert_eq!(queue.offer(1, now, true), Offered::Deferred);
    assert!(queue.must_wait(false), "or it would overtake the one that waits");
    queue.count_handed_back();
    let stats = queue.stats(now);
    assert_eq!((stats.deferred, stats.handed_back, stats.waiting), (1, 1, 1));
}

#[test]
fn what_is_withdrawn_leaves_its_place_and_is_counted() {
    let start = Instant::now();
    let mut queue =
        DeferralQueue::new("test", DeferralConfig { capacity: 2, ..DeferralConfig::default() })
            .unwrap();
    assert_eq!(queue.offer(1, start, true), Offered::Deferred);
    assert_eq!(queue.offer(2, start, true), Offered::Deferred);
    assert_eq!(queue.offer(3, start, true), Offered::HandedBack(3));
    assert_eq!(queue.withdraw(|item| *item == 1), 1);
    assert_eq!(queue.offer(3, start, true), Offered::Deferred);
    let stats = queue.stats(start);
    assert_eq!((stats.deferred, stats.withdrawn, stats.waiting), (3, 1, 2));
    assert_eq!((queue.pop(start, false), queue.pop(start, false)), (Some(2), Some(3)));
}
