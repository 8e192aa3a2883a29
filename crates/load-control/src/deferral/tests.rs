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
    /// Of every other item.
    Withdraw,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Offer),
        4 => Just(Step::Pop),
        2 => (0..60_u64).prop_map(Step::Wait),
        2 => any::<bool>().prop_map(Step::Press),
        1 => Just(Step::Drain),
        1 => Just(Step::Withdraw),
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
                Step::Withdraw => {
                    let before = waiting.len();
                    waiting.retain(|(item, _)| item % 2 == 0);
                    let gone = before - waiting.len();
                    prop_assert_eq!(queue.withdraw(|item| item % 2 == 1), gone);
                    seen.withdrawn += gone as u64;
                }
            }
            prop_assert_eq!(queue.must_wait(pressed), pressed || !waiting.is_empty());
            prop_assert_eq!(queue.next_due(), waiting.front().map(|(_, since)| *since + ms(100)));
            seen.waiting = waiting.len() as u64;
            seen.oldest_age = waiting.front().map_or(Duration::ZERO, |(_, since)| now - *since);
            prop_assert_eq!(queue.stats(now), seen);
            prop_assert_eq!(
                seen.deferred,
                seen.run_calm + seen.run_aged + seen.drained + seen.withdrawn + seen.waiting
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
