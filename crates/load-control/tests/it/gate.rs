//! Tests of the gate: who is refused, who waits and in which order, and that every permit is
//! returned.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Wake},
    thread,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all, poll};
use load_control::{
    Gate, GateConfig, GateName, Limit, MAX_PERMIT_WAITERS, Priority, Refusal, RefusalReason,
    WorkError, WorkPermit,
};
use tokio::task::JoinHandle;

/// A configuration with one reserved permit among the work permits.
fn config(requests: usize, work_permits: usize) -> GateConfig {
    let mut config = GateConfig::for_cores(2);
    config.requests = Limit::Number(requests);
    config.work_permits = work_permits;
    config.reserved_permits = 1;
    config
}

fn without_bursts(mut config: GateConfig, permit_wait: Duration) -> GateConfig {
    config.permit_wait = permit_wait;
    config.burst_wait = Duration::ZERO;
    config
}

fn gate(requests: usize, permits: usize) -> Gate {
    Gate::new(config(requests, permits)).unwrap()
}

/// Acquires a permit, by the clock of a paused runtime.
async fn acquire(gate: &Gate, priority: Priority) -> Result<WorkPermit, RefusalReason> {
    let now = tokio::time::Instant::now().into_std();
    gate.acquire_external(priority, now).await.map_err(|refusal| refusal.reason)
}

/// Returns a permit for an external caller, if one is free.
fn external(gate: &Gate) -> Option<WorkPermit> {
    acquire(gate, Priority::Unsigned).now_or_never()?.ok()
}

/// Returns a permit for internal work, if one is free.
fn internal(gate: &Gate) -> Option<WorkPermit> {
    gate.acquire_internal().now_or_never()
}

async fn run<T: Send + 'static>(
    gate: &Gate,
    priority: Priority,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    gate.run_external(None, priority, Instant::now(), work).await
}

/// Polls a future once, and asserts that it waits.
fn begin<F: Future>(waiting: F) -> Pin<Box<F>> {
    let mut waiting = Box::pin(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    waiting
}

async fn until(condition: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {condition}");
        tokio::task::yield_now().await;
    }
}

/// Whether nothing is held. It becomes true with a delay after a panic, and after work whose caller
/// has left.
fn is_empty(gate: &Gate) -> bool {
    let stats = gate.stats();
    (stats.requests_in_flight, stats.work_in_use) == (0, 0)
}

#[test]
fn a_request_above_the_limit_is_refused_with_a_time_to_retry() {
    let (gate, now) = (gate(2, 2), Instant::now());
    let first = gate.enter(now).unwrap();
    let _second = gate.enter(now).unwrap();
    let refusals: Vec<_> = (0..100).map(|_| gate.enter(now).unwrap_err()).collect();
    let expected = (GateName::Requests, RefusalReason::TooManyRequests);
    assert!(refusals.iter().all(|refusal| (refusal.gate, refusal.reason) == expected));
    // Callers get different times, so that they do not all retry at once.
    let times: HashSet<_> = refusals.iter().map(|refusal| refusal.retry_after).collect();
    assert!(times.len() > 90, "{}", times.len());
    let allowed = Duration::from_secs(1)..Duration::from_secs(2);
    assert!(times.iter().all(|time| allowed.contains(time)));
    drop(first);
    let _third = gate.enter(now).unwrap();
    let stats = gate.stats();
    assert_eq!((stats.requests_admitted, stats.requests_refused), (3, 100));
    assert_eq!(stats.requests_in_flight, 2);
}

#[test]
fn a_batch_counts_as_its_elements_all_or_none() {
    let (gate, now) = (gate(10, 2), Instant::now());
    let mut batch = gate.enter(now).unwrap();
    gate.enter_batch(&mut batch, 8, now).unwrap();
    assert_eq!((batch.count(), gate.stats().requests_in_flight), (8, 8));
    let mut other = gate.enter(now).unwrap();
    assert!(gate.enter_batch(&mut other, 3, now).is_err());
    assert_eq!((other.count(), gate.stats().requests_in_flight), (1, 9));
    gate.enter_batch(&mut other, 2, now).unwrap();
    drop((batch, other));
    assert!(is_empty(&gate));
    assert_eq!(gate.stats().requests_admitted, 10);
}

#[tokio::test]
async fn a_released_permit_goes_to_internal_work_first() {
    let gate = gate(100, 2);
    let (caller, held) = (external(&gate).unwrap(), internal(&gate).unwrap());
    let waiting = begin(gate.acquire_internal());
    drop(caller);
    assert!(external(&gate).is_none(), "the permit is assigned to the internal work already");
    drop((waiting.await, held));
    assert_eq!(gate.stats().internal_waited, 1);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn a_closed_gate_serves_only_internal_work() {
    let (gate, now) = (gate(4, 2), Instant::now());
    let (request, permit) = (gate.enter(now).unwrap(), external(&gate).unwrap());
    gate.close();
    assert_eq!(gate.enter(now).unwrap_err().reason, RefusalReason::ShuttingDown);
    let refused = acquire(&gate, Priority::Known).await;
    assert_eq!(refused.unwrap_err(), RefusalReason::ShuttingDown);
    drop(gate.acquire_internal().await);
    assert_eq!((gate.stats().requests_in_flight, gate.stats().work_in_use), (1, 1));
    drop((request, permit));
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn without_a_limit_external_callers_wait_and_none_is_refused() {
    let mut config = config(1, 1);
    config.requests = Limit::Unlimited;
    let (gate, now) = (Gate::new(config).unwrap(), Instant::now());
    let requests: Vec<_> = (0..20_000).map(|_| gate.enter(now).unwrap()).collect();
    let held = external(&gate).unwrap();
    let caller = begin(acquire(&gate, Priority::Unsigned));
    let mut internal = begin(gate.acquire_internal());
    drop(held);
    assert!(poll!(&mut internal).is_pending(), "one queue for all");
    let held = caller.await.unwrap();
    let waiting = begin(acquire(&gate, Priority::Unsigned));
    assert!(poll!(&mut internal).is_pending());
    gate.close();
    drop((held, requests));
    drop(internal.await);
    assert_eq!(waiting.await.unwrap_err(), RefusalReason::ShuttingDown);
    assert!(is_empty(&gate));
}

#[tokio::test]
async fn deferred_work_of_external_callers_waits_within_their_share() {
    let gate = gate(4, 3);
    let held = (external(&gate).unwrap(), external(&gate).unwrap());
    // The reserved permit is free, but not for external callers.
    let deferred = begin(gate.acquire_external_deferred());
    drop(internal(&gate).expect("and it does not delay internal work"));
    drop(held.0);
    let permit = deferred.now_or_never().expect("the share has room");
    assert!(external(&gate).is_none());
    drop((permit, held.1));
    assert!(is_empty(&gate));
}

/// A machine may be stalled for longer than callers wait in an overload.
#[tokio::test(start_paused = true)]
async fn callers_of_a_burst_wait_longer_than_callers_in_an_overload() {
    let (permit_wait, burst_wait) = (Duration::from_millis(250), Duration::from_secs(1));
    let mut config = config(100, 2);
    config.permit_wait = permit_wait;
    config.burst_wait = burst_wait;
    let gate = Gate::new(config).unwrap();
    let waits = async || {
        let start = tokio::time::Instant::now();
        (acquire(&gate, Priority::Signed).await.map(drop), start.elapsed())
    };
    // The burst.
    let held = external(&gate).unwrap();
    let burst = [0; 3].map(|_| begin(waits()));
    tokio::time::advance(Duration::from_millis(900)).await;
    drop(held);
    for waiting in burst {
        assert_eq!(waiting.await, (Ok(()), Duration::from_millis(900)), "nobody is refused");
    }
    // The overload: the queue is never empty.
    let held = external(&gate).unwrap();
    let first = begin(waits());
    tokio::time::advance(burst_wait).await;
    let second = begin(waits());
    assert_eq!(first.await, (Err(RefusalReason::NoPermit), burst_wait));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(waits().await, (Err(RefusalReason::NoPermit), permit_wait));
    // The overload is over once the queue has been empty.
    assert_eq!(second.await.0, Err(RefusalReason::NoPermit));
    assert_eq!(waits().await, (Err(RefusalReason::NoPermit), burst_wait));
    drop(held);
    assert!(is_empty(&gate));
}

#[tokio::test(start_paused = true)]
async fn a_higher_priority_goes_first_and_displaces_a_lower_one() {
    let gate = gate(100, 2);
    let held = external(&gate).unwrap();
    let acquire = |priority| acquire(&gate, priority);
    // These wait before all others until they are dropped.
    let others: Vec<_> = (3..MAX_PERMIT_WAITERS).map(|_| begin(acquire(Priority::Known))).collect();
    let mut unsigned = begin(acquire(Priority::Unsigned));
    let later = begin(acquire(Priority::Unsigned));
    let mut signed = begin(acquire(Priority::Signed));
    let beyond = acquire(Priority::Unsigned).await;
    assert_eq!(beyond.unwrap_err(), RefusalReason::QueueFull);
    let known = begin(acquire(Priority::Known));
    let evicted = later.now_or_never().expect("it is refused at once");
    assert_eq!(evicted.unwrap_err(), RefusalReason::QueueFull);
    drop((others, held));
    let first = known.now_or_never().expect("first").unwrap();
    assert!(poll!(&mut signed).is_pending() && poll!(&mut unsigned).is_pending());
    drop(first);
    let second = signed.now_or_never().expect("second").unwrap();
    // A caller that leaves gives its turn to the next one.
    let next = begin(acquire(Priority::Unsigned));
    drop(unsigned);
    drop(second);
    drop(next.now_or_never().expect("third").unwrap());
    assert!(is_empty(&gate));
}

/// Internal work that waits for a permit sleeps until there is one.
#[tokio::test]
async fn internal_work_that_waits_does_not_spin() {
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let gate = gate(1, 2);
    let held = [0; 2].map(|_| internal(&gate).unwrap());
    let mut waiting = Box::pin(gate.acquire_internal());
    let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
    let waker = Arc::clone(&wakes).into();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // External callers that come and go do not wake it.
    for _ in 0..1_000 {
        assert!(external(&gate).is_none());
    }
    assert_eq!(wakes.0.load(SeqCst), 0);
    drop(held);
    assert_eq!(wakes.0.load(SeqCst), 1);
    drop(waiting.await);
}

/// Work that holds the only external permit of a gate until it is finished.
struct Busy(mpsc::Sender<()>, JoinHandle<()>);

impl Busy {
    /// Starts the work, on a gate whose callers wait this long for the permit.
    async fn start(wait: Duration) -> (Gate, Self) {
        let gate = Gate::new(without_bursts(config(100, 2), wait)).unwrap();
        let (release, released) = mpsc::channel();
        let working = gate.clone();
        let held = tokio::spawn(async move {
            run(&working, Priority::Known, move || released.recv().unwrap()).await.unwrap();
        });
        until("it has the permit", || gate.stats().work_in_use == 1).await;
        (gate, Self(release, held))
    }

    fn finish(self) -> JoinHandle<()> {
        self.0.send(()).unwrap();
        self.1
    }
}

const LONG: Duration = Duration::from_secs(60);

/// Asserts that work is refused for this reason, and not run.
async fn assert_refused(gate: &Gate, priority: Priority, expected: RefusalReason) {
    match run(gate, priority, || unreachable!("it was refused")).await {
        Err(WorkError::Refused(Refusal { reason, .. })) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_thread_runs_all_waiting_work_by_priority() {
    let (gate, busy) = Busy::start(LONG).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let priorities = [Priority::Unsigned, Priority::Signed, Priority::Unsigned, Priority::Known];
    let mut number = 0..;
    let running = priorities.map(|priority| {
        let (number, done) = (number.next().unwrap(), Arc::clone(&done));
        begin(run(&gate, priority, move || {
            done.lock().unwrap().push(number);
            thread::current().id()
        }))
    });
    // A caller that waits for a permit, without work, stands in the same queue.
    let permit = begin(acquire(&gate, Priority::Signed));
    let held = busy.finish();
    drop(permit.await.unwrap());
    let threads: Vec<_> = join_all(running).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(*done.lock().unwrap(), [3, 1, 0, 2]);
    assert_eq!(
        (threads[3], threads[0]),
        (threads[1], threads[2]),
        "no other thread was woken between them"
    );
    held.await.unwrap();
    let stats = gate.stats();
    assert_eq!((stats.work_admitted, stats.work_waited, stats.work_refused), (6, 5, 0));
    assert!(is_empty(&gate));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_refused_is_never_run() {
    let (gate, busy) = Busy::start(LONG).await;
    let others: Vec<_> =
        (1..MAX_PERMIT_WAITERS).map(|_| begin(acquire(&gate, Priority::Known))).collect();
    // Work is displaced, finds no room, is cancelled by its caller, and meets a closed gate.
    let displaced = begin(assert_refused(&gate, Priority::Unsigned, RefusalReason::QueueFull));
    assert_refused(&gate, Priority::Unsigned, RefusalReason::QueueFull).await;
    let cancelled = begin(run(&gate, Priority::Signed, || unreachable!("nobody waits for it")));
    displaced.await;
    drop((cancelled, others));
    let late = begin(assert_refused(&gate, Priority::Signed, RefusalReason::ShuttingDown));
    gate.close();
    assert_refused(&gate, Priority::Known, RefusalReason::ShuttingDown).await;
    let held = busy.finish();
    late.await;
    held.await.unwrap();
    assert!(is_empty(&gate));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_waits_too_long_is_refused_and_never_done() {
    let wait = Duration::from_millis(20);
    let (gate, busy) = Busy::start(wait).await;
    let start = Instant::now();
    assert_refused(&gate, Priority::Signed, RefusalReason::NoPermit).await;
    assert!(start.elapsed() >= wait);
    busy.finish().await.unwrap();
    // The external permit is free, but internal work holds both permits of the semaphore.
    let all = (gate.acquire_internal().await, gate.acquire_internal().await);
    assert_refused(&gate, Priority::Signed, RefusalReason::NoPermit).await;
    drop(all);
    assert_eq!(run(&gate, Priority::Signed, || 5).await.unwrap(), 5);
    assert!(is_empty(&gate));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_its_own_work_alone() {
    let (gate, busy) = Busy::start(LONG).await;
    let first = begin(run(&gate, Priority::Signed, || -> u32 { panic!("expected by this test") }));
    let second = begin(run(&gate, Priority::Signed, || 1));
    let held = busy.finish();
    assert!(matches!(first.await, Err(WorkError::Lost)));
    assert_eq!(second.await.unwrap(), 1);
    held.await.unwrap();
    until("all permits are back", || is_empty(&gate)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_internal_work_runs_between_external_work() {
    let (gate, busy) = Busy::start(LONG).await;
    let internal = gate.acquire_internal().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let external = {
        let (gate, order) = (gate.clone(), Arc::clone(&order));
        let work = move || order.lock().unwrap().push("external");
        tokio::spawn(begin(async move { run(&gate, Priority::Known, work).await.unwrap() }))
    };
    let waiting = begin(gate.acquire_internal());
    busy.finish().await.unwrap();
    let permit = waiting.await;
    order.lock().unwrap().push("internal");
    drop((permit, internal));
    external.await.unwrap();
    assert_eq!(*order.lock().unwrap(), ["internal", "external"]);
    until("all permits are back", || is_empty(&gate)).await;
}

/// Threads acquire, cancel, release and pass on work in every order. No permit may be lost or
/// duplicated.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_permit_is_not_lost_when_its_waiter_leaves() {
    const PERMITS: usize = 2;
    let config = without_bursts(config(100, PERMITS + 1), Duration::from_micros(50));
    let gate = Gate::new(config).unwrap();
    let (held, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = [0; 8].map(|_| {
        let (gate, held, done) = (gate.clone(), Arc::clone(&held), Arc::clone(&done));
        tokio::spawn(async move {
            for number in 0..2_000 {
                let (in_work, work_done) = (Arc::clone(&held), Arc::clone(&done));
                let mut run = Box::pin(run(&gate, Priority::Signed, move || {
                    assert!(in_work.fetch_add(1, SeqCst) < PERMITS);
                    thread::yield_now();
                    in_work.fetch_sub(1, SeqCst);
                    work_done.fetch_add(1, SeqCst);
                }));
                if number % 7 == 0 {
                    // Cancels the work, at whatever point it is.
                    let _ = poll!(run.as_mut());
                    continue;
                }
                let ended = run.await;
                assert!(!matches!(ended, Err(WorkError::Lost)), "{ended:?}");
                if number % 5 == 0 {
                    let _ = poll!(Box::pin(gate.acquire_internal()));
                    drop(gate.acquire_internal().await);
                }
                let permit = acquire(&gate, Priority::Signed).await;
                if permit.is_ok() {
                    assert!(held.fetch_add(1, SeqCst) < PERMITS);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, SeqCst);
                }
            }
        })
    });
    for ended in join_all(tasks).await {
        ended.unwrap();
    }
    until("all permits are back", || is_empty(&gate)).await;
    // Cancelled work may still be running.
    let mut back = Vec::new();
    until("every external permit is back", || {
        back.extend(external(&gate));
        back.len() == PERMITS
    })
    .await;
    assert!(external(&gate).is_none(), "and no more than there are");
    assert!(done.load(SeqCst) > 0);
}
