//! Every fault that a node can show at its socket, alone and combined by seeds: at the end no
//! transaction is missing, and every hash is accounted for.
//!
//! `cargo test` runs each fault alone and a few seeds. To run the whole matrix:
//! `MEMPOOL_INGEST_FAULT_SEEDS=300 cargo test --release --test it faults -- --nocapture`. A failure
//! names its seed; `MEMPOOL_INGEST_FAULT_FIRST=SEED MEMPOOL_INGEST_FAULT_SEEDS=1` replays it.

use std::{path::PathBuf, sync::OnceLock};

use futures::{StreamExt as _, stream};
use load_control::Backoff;
use mock_node::{FaultPlan, LoadStart, MockNode, workload::SignedLoad};
use txpool_fetcher::SourceStatus;

use super::*;

/// The simulated time of one seed.
const SIMULATED: Duration = Duration::from_secs(10);

/// Transactions a second, in simulated time.
const TPS: u32 = 2000;

/// How much faster the tests run than the simulated time: the node's times, the fetcher's, and the
/// time between two transactions are divided by it.
const FACTOR: u32 = 5;

/// The number of seeds that run at once: each waits most of its time, for heads, backoffs and
/// audits.
const CONCURRENT_SEEDS: usize = 4;

pub(super) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Makes a configuration with times that are shortened like the simulation.
fn config(
    endpoints: impl IntoIterator<Item = Endpoint>,
    announcements: Announcements,
) -> FetcherConfig {
    configured(FetcherConfig::new(endpoints), |config| {
        config.start = StartPolicy::WaitForNode;
        config.announcements = announcements;
        config.audit_interval = Some(Duration::from_secs(2));
        config.request_connections = 1;
    })
}

fn limits() -> Limits {
    let millis = Duration::from_millis;
    Limits {
        fetch_timeout: millis(200),
        call_timeout: millis(1000),
        ping_interval: millis(100),
        // Ten seconds in simulated time. With less, a node that shares two cores with three others
        // was taken for dead again and again while it listed its pool.
        ping_timeout: millis(2_000),
        retry_backoff: Backoff { base: millis(5), cap: millis(50) },
        reconnect: Backoff { base: millis(10), cap: millis(100) },
        audit_settle: millis(50),
        ..Limits::default()
    }
}

/// The transactions that all nodes announce. They are signed once, because signing them for each
/// node would take most of the time. They are enough for one run, except for bursts, which are
/// signed as they come.
fn signed() -> SignedLoad {
    static SIGNED: OnceLock<SignedLoad> = OnceLock::new();
    let count = (SIMULATED.as_secs_f64() * f64::from(TPS)) as usize;
    SIGNED.get_or_init(|| SignedLoad::new(basis(PathBuf::new()).workload(), count)).clone()
}

fn basis(path: PathBuf) -> NodeConfig {
    NodeConfig { accounts: 100, ..NodeConfig::new(path) }
}

/// Runs a fetcher at nodes with the same load, each with its plan of faults, up to a final audit,
/// which must find nothing missing.
async fn run(
    name: &str,
    plans: Vec<FaultPlan>,
    announcements: Announcements,
    tps: u32,
    time: Duration,
) -> (Counts, Vec<SourceStatus>) {
    let is_alone = plans.len() == 1;
    let start = move |plan| {
        let (folder, path) = socket();
        let config = NodeConfig {
            signed_load: Some(signed()),
            render_ahead: announcements == Announcements::Full,
            tps,
            count: Some((f64::from(tps) * time.as_secs_f64()) as u64),
            // Two mock nodes have no common chain, so they mine no blocks.
            block_time: if is_alone { time / 5 } else { Duration::ZERO },
            // Small blocks, so that missed transactions are not mined before the audit.
            block_max_txs: 20,
            load_start: LoadStart::FirstSubscription,
            faults: Some(plan),
            ..basis(path)
        };
        (MockNode::start(config).expect("the mock node starts"), folder)
    };
    let started =
        tokio::task::spawn_blocking(move || plans.into_iter().map(start).collect::<Vec<_>>());
    let nodes = Arc::new(started.await.expect("no panic"));
    let pool = order_pool();
    let endpoints = nodes.iter().map(|(node, _)| Endpoint::Ipc(node.ipc_path().to_owned()));
    let fetcher = Fetcher::start_with(config(endpoints, announcements), limits(), pool);
    let fetcher = fetcher.await.expect("it waits for the node");
    let waiting = Arc::clone(&nodes);
    let finished = tokio::task::spawn_blocking(move || {
        waiting.iter().all(|(node, _)| {
            node.wait_load_finished(PATIENCE) && node.wait_faults_finished(PATIENCE)
        })
    });
    assert!(finished.await.expect("no panic"), "{name}: load and faults end");
    // A hash in flight is not missing for the audit. One that waits for a late response of a node
    // that never answers fails seconds after the load has ended.
    settled(&fetcher, name, |_| true).await;
    // Wait until the source is live, and audit once. With full announcements hardly any transaction
    // is requested before the audit, so the wrong responses that the node still has to give, more
    // than a hundred, are given to the audit. A transaction uses up four of them and then fails,
    // which is left to the next audit.
    let audits = if announcements == Announcements::Full { 100 } else { 1 };
    let (mut missing, mut removed) = (0, 0);
    for source in 0..nodes.len() {
        let mut report = AuditReport::default();
        for _ in 0..audits {
            audit(name, &fetcher, source, AuditMode::Recover).await;
            // A hash in flight is not missing for the audit, and may get a wrong response
            // afterwards.
            settled(&fetcher, name, |_| true).await;
            report = audit(name, &fetcher, source, AuditMode::CompareOnly).await;
            if report.missing == 0 {
                break;
            }
        }
        (missing, removed) = (missing + report.missing, removed + report.removed);
    }
    let counts = settled(&fetcher, name, |_| true).await;
    let status = fetcher.status();
    let last = fetcher.shutdown(Duration::from_secs(5)).await.counts;
    assert_eq!((missing, removed), (0, 0), "{name}: {counts:?} {status:?}");
    assert_eq!((counts.balance(), last.balance()), (0, 0), "{name}: {counts:?} {last:?}");
    assert!(counts.pooled > 0, "{name}: {counts:?}");
    (counts, status)
}

/// Audits until the node lists its pool: a pending fault may still end the connection.
async fn audit(name: &str, fetcher: &Fetcher, source: usize, mode: AuditMode) -> AuditReport {
    let listed = async {
        loop {
            eventually(name, || fetcher.status()[source].state == SourceState::Live).await;
            if let Ok(report) = fetcher.audit(source, mode).await {
                return report;
            }
        }
    };
    let in_time = timeout(PATIENCE, listed).await;
    in_time.unwrap_or_else(|_| panic!("{name}: {:?} {:?}", fetcher.status(), fetcher.counts()))
}

/// Runs all futures, `count` at a time.
async fn run_concurrently<T: Send + 'static>(
    count: usize,
    runs: impl Iterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let spawned = stream::iter(runs.map(tokio::spawn)).buffer_unordered(count);
    spawned.map(|joined| joined.expect("the run does not panic")).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_alone_leaves_nothing_missing() {
    let time = Duration::from_secs(2);
    let alone = |fault| async move {
        let mut steps = vec![(time / 4, fault)];
        let strikes_new_connections = matches!(
            fault,
            Fault::CloseOnAccept { .. }
                | Fault::CloseAfterSubscribe { .. }
                | Fault::TableFull { .. }
        );
        if strikes_new_connections {
            steps.push((time / 4 + Duration::from_millis(1), Fault::Close(Target::All)));
        }
        let announcements = match fault {
            Fault::DropObjects { .. } => Announcements::Full,
            _ => Announcements::Hashes,
        };
        let plans = vec![FaultPlan::new(steps)];
        let (_, status) = run(&format!("{fault:?}"), plans, announcements, 500, time).await;
        assert!(
            !strikes_new_connections || status[0].reconnects > 0,
            "{fault:?} has struck no connection"
        );
    };
    run_concurrently(3, Fault::all().into_iter().map(alone)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_of_combined_faults_leave_nothing_missing() {
    combined(Announcements::Hashes, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_of_combined_faults_leave_nothing_missing_with_full_announcements() {
    // One seed, because objects are five times as long as hashes, which makes a debug build slow.
    combined(Announcements::Full, 1).await;
}

async fn combined(announcements: Announcements, seeds: u64) {
    let seeds = number("MEMPOOL_INGEST_FAULT_SEEDS", seeds);
    let first = number("MEMPOOL_INGEST_FAULT_FIRST", 1);
    let start = Instant::now();
    let one = |seed: u64| async move {
        // Every third seed has two nodes.
        let both = [seed, seed + 1_000_000];
        let plans = both[..1 + usize::from(seed.is_multiple_of(3))].iter();
        let plans: Vec<_> =
            plans.map(|seed| FaultPlan::from_seed(*seed, SIMULATED).compressed(FACTOR)).collect();
        let steps = format!("{:?}", plans.iter().map(FaultPlan::steps).collect::<Vec<_>>());
        let tps = TPS * FACTOR / plans.len() as u32;
        let name = format!("{announcements:?}, seed {seed}, {steps}");
        let (counts, status) = run(&name, plans, announcements, tps, SIMULATED / FACTOR).await;
        (counts.announced, status.iter().map(|source| source.reconnects).sum::<u64>())
    };
    let ends = run_concurrently(CONCURRENT_SEEDS, (first..first + seeds).map(one)).await;
    let announced: u64 = ends.iter().map(|(announced, _)| announced).sum();
    let reconnects: u64 = ends.iter().map(|(_, reconnects)| reconnects).sum();
    let took = start.elapsed();
    println!(
        "{announcements:?}: {seeds} seeds in {took:?}: {announced} announced, {reconnects} reconnects"
    );
    assert!(reconnects > 0, "the faults struck");
}
