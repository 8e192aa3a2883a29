//! The gate from outside: nobody waits who should be refused, nobody is refused who should wait,
//! and every permit comes back.

use futures::{FutureExt, future::join_all, poll};
use load_control::{Gate, GateConfig, GateName, Limit, RefusalReason};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

fn config(requests: usize, slots: usize, reserve: usize) -> GateConfig {
    GateConfig { requests: Limit::Number(requests), slots, reserve, ..GateConfig::for_cores(2) }
}

fn gate(requests: usize, slots: usize, reserve: usize) -> Gate {
    Gate::new(config(requests, slots, reserve)).unwrap()
}

fn is_empty(gate: &Gate) -> bool {
    let stats = gate.stats();
    (stats.requests_in_flight, stats.slots_in_use) == (0, 0)
}

#[test]
fn a_gate_that_leaves_no_slot_does_not_start() {
    for (slots, reserve) in [(1, 1), (4, 4), (4, 0), (0, 0)] {
        assert!(Gate::new(config(1, slots, reserve)).is_err(), "{reserve} of {slots}");
    }
    assert!(Gate::new(config(1, 2, 1)).is_ok());
}

#[test]
fn one_request_more_than_the_limit_is_refused_with_when_to_come_back() {
    let (gate, now) = (gate(2, 2, 1), Instant::now());
    let first = gate.enter(now).unwrap();
    let _second = gate.enter(now).unwrap();
    let refusal = gate.enter(now).unwrap_err();
    assert_eq!(
        (refusal.gate, refusal.reason),
        (GateName::Requests, RefusalReason::TooManyRequests)
    );
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&refusal.retry_after));
    drop(first);
    let _third = gate.enter(now).unwrap();
    let stats = gate.stats();
    assert_eq!(
        (stats.requests_admitted, stats.requests_refused, stats.requests_in_flight),
        (3, 1, 2)
    );
}

#[test]
fn the_refused_are_told_different_times() {
    let (gate, now) = (gate(1, 2, 1), Instant::now());
    let _permit = gate.enter(now).unwrap();
    let times: std::collections::HashSet<_> =
        (0..100).map(|_| gate.enter(now).unwrap_err().retry_after).collect();
    assert!(times.len() > 90, "{}", times.len());
}

#[test]
fn a_batch_counts_as_its_elements_all_or_none() {
    let (gate, now) = (gate(10, 2, 1), Instant::now());
    let mut batch = gate.enter(now).unwrap();
    gate.enter_batch(&mut batch, 8, now).unwrap();
    assert_eq!((batch.weight(), gate.stats().requests_in_flight), (8, 8));
    let mut other = gate.enter(now).unwrap();
    assert!(gate.enter_batch(&mut other, 3, now).is_err());
    assert_eq!((other.weight(), gate.stats().requests_in_flight), (1, 9));
    gate.enter_batch(&mut other, 2, now).unwrap();
    drop(batch);
    drop(other);
    assert!(is_empty(&gate));
    assert_eq!(gate.stats().requests_admitted, 10);
}

#[test]
fn outsiders_get_all_slots_but_the_reserve_and_the_inside_gets_the_rest() {
    let (gate, now) = (gate(100, 4, 1), Instant::now());
    let outsiders: Vec<_> = (0..3).map(|_| gate.try_outside(now).unwrap()).collect();
    assert_eq!(gate.try_outside(now).unwrap_err().reason, RefusalReason::NoSlot);
    let insider = gate.inside().now_or_never().expect("the reserve is free");
    assert!(gate.inside().now_or_never().is_none());
    drop(insider);
    drop(outsiders);
    let all: Vec<_> = (0..4).map(|_| gate.inside().now_or_never().unwrap()).collect();
    assert!(gate.try_outside(now).is_err());
    drop(all);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn a_free_slot_goes_to_the_insider_that_waits_and_not_to_an_outsider_that_tries() {
    let (gate, now) = (gate(100, 2, 1), Instant::now());
    let outsider = gate.try_outside(now).unwrap();
    let held = gate.inside().await;
    let mut waiting = pin!(gate.inside());
    assert!(poll!(waiting.as_mut()).is_pending());
    drop(outsider);
    assert!(gate.try_outside(now).is_err(), "the slot is the insider's already");
    let permit = waiting.await;
    drop(held);
    drop(permit);
    assert_eq!(gate.stats().inside_waited, 1);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn insiders_are_served_in_the_order_in_which_they_came() {
    let gate = gate(100, 2, 1);
    let held = (gate.inside().await, gate.inside().await);
    let mut first = pin!(gate.inside());
    let mut second = pin!(gate.inside());
    assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
    drop(held.0);
    assert!(poll!(second.as_mut()).is_pending());
    assert!(poll!(first.as_mut()).is_ready());
}

#[tokio::test]
async fn a_cancelled_wait_leaves_its_place_to_the_next_and_leaks_nothing() {
    let gate = gate(100, 2, 1);
    let held = (gate.inside().await, gate.inside().await);
    let mut next = pin!(gate.inside());
    {
        let mut cancelled = pin!(gate.inside());
        assert!(poll!(cancelled.as_mut()).is_pending());
        assert!(poll!(next.as_mut()).is_pending());
        // Its turn comes, and it is dropped before it is polled again.
        drop(held.0);
    }
    drop(next.now_or_never().expect("the cancelled one gave its slot on"));
    drop(held.1);
    assert!(is_empty(&gate));
}

#[test]
fn a_panic_gives_every_permit_back() {
    let (gate, now) = (gate(1, 2, 1), Instant::now());
    for _ in 0..10 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _request = gate.enter(now).unwrap();
            let _slot = gate.try_outside(now).unwrap();
            panic!("as code does");
        }));
        assert!(panicked.is_err());
    }
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn an_aborted_task_gives_every_permit_back() {
    let gate = gate(4, 4, 1);
    let ready = Arc::new(tokio::sync::Barrier::new(4));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (gate, ready) = (gate.clone(), Arc::clone(&ready));
            tokio::spawn(async move {
                let _request = gate.enter(Instant::now()).unwrap();
                let _slot = gate.outside(Instant::now()).await.unwrap();
                ready.wait().await;
                std::future::pending::<()>().await;
            })
        })
        .collect();
    ready.wait().await;
    assert_eq!((gate.stats().requests_in_flight, gate.stats().slots_in_use), (3, 3));
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn a_closed_gate_refuses_outsiders_keeps_its_permits_good_and_still_serves_the_inside() {
    let (gate, now) = (gate(4, 2, 1), Instant::now());
    let request = gate.enter(now).unwrap();
    let slot = gate.try_outside(now).unwrap();
    gate.close();
    assert_eq!(gate.enter(now).unwrap_err().reason, RefusalReason::ShuttingDown);
    assert_eq!(gate.try_outside(now).unwrap_err().reason, RefusalReason::ShuttingDown);
    drop(gate.inside().await);
    assert_eq!((gate.stats().requests_in_flight, gate.stats().slots_in_use), (1, 1));
    drop((request, slot));
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn without_a_limit_outsiders_wait_in_line_and_none_is_refused() {
    let unlimited =
        GateConfig { requests: Limit::Unlimited, slots: 1, reserve: 0, ..GateConfig::default() };
    let (gate, now) = (Gate::new(unlimited).unwrap(), Instant::now());
    let requests: Vec<_> = (0..20_000).map(|_| gate.enter(now).unwrap()).collect();
    let held = gate.outside(now).await.unwrap();
    let mut outsider = pin!(gate.outside(now));
    let mut insider = pin!(gate.inside());
    assert!(poll!(outsider.as_mut()).is_pending() && poll!(insider.as_mut()).is_pending());
    drop(held);
    assert!(poll!(insider.as_mut()).is_pending(), "one line for all");
    drop(outsider.await.unwrap());
    drop(insider.await);
    drop(requests);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn without_a_limit_a_waiting_outsider_is_refused_when_the_gate_closes() {
    let unlimited =
        GateConfig { requests: Limit::Unlimited, slots: 1, reserve: 0, ..GateConfig::default() };
    let (gate, now) = (Gate::new(unlimited).unwrap(), Instant::now());
    let held = gate.outside(now).await.unwrap();
    let mut waiting = pin!(gate.outside(now));
    assert!(poll!(waiting.as_mut()).is_pending());
    gate.close();
    drop(held);
    assert_eq!(waiting.await.unwrap_err().reason, RefusalReason::ShuttingDown);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn deferred_work_of_outsiders_waits_within_their_share() {
    let (gate, now) = (gate(4, 3, 1), Instant::now());
    let held = (gate.try_outside(now).unwrap(), gate.try_outside(now).unwrap());
    let mut deferred = pin!(gate.outside_deferred());
    assert!(poll!(deferred.as_mut()).is_pending(), "the reserve is free, and not for it");
    drop(gate.inside().now_or_never().expect("nor does it stand in the way of the inside"));
    drop(held.0);
    let permit = deferred.now_or_never().expect("the share has room");
    assert!(gate.try_outside(now).is_err());
    drop((permit, held.1));
    assert!(is_empty(&gate));
}

#[test]
fn shedding_begins_with_a_refusal_and_ends_after_a_quiet_time() {
    let (gate, now) = (gate(1, 2, 1), Instant::now());
    assert!(!gate.is_shedding(now));
    let _permit = gate.enter(now).unwrap();
    assert!(gate.enter(now).is_err());
    assert!(gate.is_shedding(now + Duration::from_millis(999)));
    assert!(!gate.is_shedding(now + Duration::from_secs(1)));
}

/// Every slot an outsider may have is held, by threads that wait at a barrier; then many more
/// outsiders try while insiders come and go.
#[test]
fn saturated_the_gate_refuses_outsiders_at_once_and_the_inside_never() {
    const SLOTS: usize = 4;
    let gate = gate(10_000, SLOTS, 1);
    let (held, done) = (Barrier::new(SLOTS), Barrier::new(SLOTS));
    let (refused, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..SLOTS - 1 {
            scope.spawn(|| {
                let _slot = gate.try_outside(Instant::now()).unwrap();
                held.wait();
                done.wait();
            });
        }
        held.wait();
        // Nobody lets go before `done`: whoever returned did not wait for a slot of theirs.
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let refusal = gate.try_outside(Instant::now()).unwrap_err();
                        assert_eq!(refusal.reason, RefusalReason::NoSlot);
                        refused.fetch_add(1, SeqCst);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..500 {
                        drop(gate.inside_blocking());
                        served.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!((refused.load(SeqCst), served.load(SeqCst)), (2_000, 2_000));
        done.wait();
    });
    let stats = gate.stats();
    assert_eq!(
        (stats.slots_refused, stats.inside_admitted, stats.slots_admitted),
        (2_000, 2_000, 3)
    );
    assert!(is_empty(&gate));
}

/// A thread that waits for a slot sleeps: its own processor time does not grow while it waits.
#[test]
fn an_insider_that_waits_does_not_spin() {
    let gate = gate(1, 2, 1);
    let held = (gate.inside_blocking(), gate.inside_blocking());
    let polls = Arc::new(AtomicUsize::new(0));
    let waiting = thread::spawn({
        let (gate, polls) = (gate.clone(), Arc::clone(&polls));
        move || {
            let mut waiting = pin!(gate.inside());
            futures::executor::block_on(std::future::poll_fn(|context| {
                polls.fetch_add(1, SeqCst);
                waiting.as_mut().poll(context).map(drop)
            }));
        }
    });
    while polls.load(SeqCst) == 0 {
        thread::yield_now();
    }
    // Refusals happen while it waits; none of them wakes it.
    for _ in 0..1_000 {
        assert!(gate.try_outside(Instant::now()).is_err());
    }
    assert_eq!(polls.load(SeqCst), 1);
    drop(held);
    waiting.join().unwrap();
    assert_eq!(polls.load(SeqCst), 2);
}

#[test]
fn with_one_worker_thread_nothing_livelocks() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let gate = gate(64, 2, 1);
    let served = runtime.block_on(async {
        let insiders = (0..200).map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let _slot = gate.inside().await;
                tokio::task::yield_now().await;
                true
            })
        });
        let outsiders = (0..200).map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let Ok(_request) = gate.enter(Instant::now()) else { return false };
                tokio::task::yield_now().await;
                let slot = gate.outside(Instant::now()).await;
                tokio::task::yield_now().await;
                slot.is_ok()
            })
        });
        let tasks: Vec<_> = insiders.chain(outsiders).collect();
        join_all(tasks).await.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    });
    assert!(served[..200].iter().all(|served| *served), "the inside is never refused");
    let stats = gate.stats();
    assert_eq!(stats.inside_admitted, 200);
    assert_eq!(stats.slots_admitted, served[200..].iter().filter(|served| **served).count() as u64);
    assert_eq!(stats.requests_admitted + stats.requests_refused, 200);
    assert!(is_empty(&gate));
}

#[test]
fn the_futures_of_a_gate_can_be_sent_to_other_threads() {
    fn send<T: Send>(_: &T) {}
    let gate = gate(1, 2, 1);
    send(&gate.inside());
    send(&gate.outside(Instant::now()));
    send(&gate.try_outside(Instant::now()));
}
