//! A node with a limited capacity: the fetcher notices, sends fewer requests, and loses nothing.

use mock_node::{Capacity, Stats};
use txpool_fetcher::ADAPTIVE_FLOOR;

use super::{
    fake::{Fake, Reply, config_of},
    *,
};

/// The time that the node needs for a request: with four at once, it serves 2,000 requests a
/// second.
const SERVICE: Duration = Duration::from_millis(2);

fn capacity(concurrency: usize, max_waiting: usize) -> Option<Capacity> {
    Some(Capacity { concurrency, service_time: SERVICE, max_waiting })
}

/// Limits with time-outs longer than a test waits, so that no time-out frees a slot.
fn patient() -> Limits {
    let never = 2 * PATIENCE;
    Limits { fetch_timeout: never, ping_timeout: never, ..Limits::default() }
}

/// Gives the node the transactions of some of the twenty accounts.
fn submit_accounts(node: &Node, accounts: std::ops::Range<usize>) {
    let txs = node.txs.iter().enumerate().filter(|(n, _)| accounts.contains(&(n % 20)));
    submit(node, txs.map(|(_, tx)| tx));
}

/// The node has room for 16 requests, and the fetcher 64 slots. Without an adaptive limit the node
/// would refuse 48 requests of each burst.
#[tokio::test]
async fn a_busy_node_gets_no_more_requests_than_it_can_hold() {
    let node =
        Node::start(1_000, |config: NodeConfig| NodeConfig { capacity: capacity(4, 12), ..config });
    let config = configured(node.fetcher(), |config| config.audit_interval = None);
    let (fetcher, pool) = ingest(config).await;
    let limit = || fetcher.status()[0].fetch_limit;
    assert_eq!(limit(), 64);
    let (mut announced, mut refused) = (0, Vec::new());
    for burst in node.txs.chunks(200) {
        let before = node.node.stats().raw_busy;
        submit(&node, burst);
        announced += burst.len() as u64;
        settled(&fetcher, "all have left", |counts| counts.announced == announced).await;
        refused.push(node.node.stats().raw_busy - before);
    }
    assert!((1..24).contains(&refused[4]), "{refused:?}");
    assert!((ADAPTIVE_FLOOR..=32).contains(&limit()), "{}", limit());
    while pool.len() < 1_000 {
        let report = recover(&fetcher).await;
        assert!(
            report.missing > 0,
            "transactions that are not in the pool are known to be missing"
        );
        settled(&fetcher, "nothing under way", |_| true).await;
    }
}

/// Before the fix its requests held all slots until they timed out.
#[tokio::test]
async fn a_silent_node_blocks_half_of_the_slots_at_most() {
    let [silent, other] = [0; 2].map(|_| Node::start(500, |config| config));
    let config = configured(sources([&silent, &other]), |config| config.backfill = Backfill::Off);
    let (fetcher, pool) = ingest_all(config, patient()).await;
    silent.node.inject(Fault::GoDead(Target::Request));
    submit_accounts(&silent, 0..10);
    eventually("all slots are taken", || fetcher.status()[0].backlog > 150).await;
    assert!(pool.is_empty());
    // The other node's hashes wait for a slot at first.
    submit_accounts(&other, 10..20);
    submit_accounts(&other, 0..10);
    eventually("those of the other slots are in", || pool.len() >= 500 - 32).await;
}

/// Before the fix each hash waited for its node with a slot, until all slots were in use.
#[tokio::test]
async fn silent_nodes_leave_slots_for_the_hashes_of_another_one() {
    let nodes = [0; 3].map(|_| Node::start(500, |config| config));
    let config = configured(sources(&nodes), |config| config.backfill = Backfill::Off);
    let (fetcher, pool) = ingest_all(config, patient()).await;
    for (index, node) in nodes[..2].iter().enumerate() {
        node.node.inject(Fault::GoDead(Target::Request));
        submit_accounts(node, 6 * index..6 * index + 6);
        eventually("its share is taken", || fetcher.status()[index].backlog > 80).await;
    }
    submit_accounts(&nodes[2], 12..18);
    eventually("those of the other one are in", || pool.len() == 150).await;
}

/// Before the fix the response of another node, which does not have it, decided.
#[tokio::test]
async fn a_node_that_fails_once_is_asked_again_if_others_lack_it() {
    for bad in [BadAnswer::Never, BadAnswer::Busy] {
        let nodes = [0; 2].map(|_| Node::start(1, |config| config));
        let (backfill, audit_interval) = (Backfill::Off, None);
        let config = configured(sources(&nodes), |config| {
            config.backfill = backfill;
            config.audit_interval = audit_interval;
        });
        let limits = Limits { fetch_timeout: Duration::from_millis(200), ..Limits::default() };
        let (fetcher, pool) = ingest_all(config, limits).await;
        nodes[0].node.inject(Fault::Answers { bad, count: 1 });
        nodes[0].submit_all();
        eventually("it is in", || pool.len() == 1).await;
        assert_eq!(fetcher.counts().gone, 0);
    }
}

/// Starts a fetcher with two sources, without backfill and audits.
async fn ingest_from_both(first: &Fake, other: &Fake) -> (Fetcher, OrderPool) {
    let (backfill, audit_interval) = (Backfill::Off, None);
    let config = configured(config_of([first, other]), |config| {
        config.backfill = backfill;
        config.audit_interval = audit_interval;
    });
    ingest_all(config, Limits::default()).await
}

/// Before the fix it waited, with a slot, for a node that never had it.
#[tokio::test]
async fn a_hash_is_not_requested_from_a_node_that_never_announced_it() {
    let (first, silent) = (Fake::start(), Fake::start());
    let (fetcher, _pool) = ingest_from_both(&first, &silent).await;
    silent.lock().stands_still = true;
    first.announce_hash(B256::repeat_byte(1));
    let counts = settled(&fetcher, "gone", |counts| counts.gone == 1).await;
    assert_eq!((counts.failed, counts.announced), (0, 1));
}

/// Before the fix the response of the other node, which never had it, decided while the announcer
/// was disconnected.
#[tokio::test]
async fn a_hash_of_a_lost_node_has_failed_and_is_not_gone() {
    for busy in 0..2 {
        let [first, other] = [0; 2].map(|_| Node::start(1, |config| config));
        let (backfill, audit_interval) = (Backfill::Off, None);
        let config = configured(sources([&first, &other]), |config| {
            config.backfill = backfill;
            config.audit_interval = audit_interval;
        });
        let (fetcher, _pool) = ingest_all(config, Limits::default()).await;
        first.node.inject(Fault::Answers { bad: BadAnswer::Never, count: 1 });
        other.node.inject(Fault::Answers { bad: BadAnswer::Busy, count: busy });
        first.submit_all();
        eventually("announced", || fetcher.counts().unfinished == 1).await;
        drop(first);
        let counts = settled(&fetcher, "over", |counts| counts.announced == 1).await;
        assert_eq!((counts.failed, counts.gone), (1, 0), "{busy}");
    }
}

/// The announcement comes while its response is under way.
#[tokio::test]
async fn a_node_that_announces_while_it_answers_null_is_asked_again() {
    let (first, other) = (Fake::start(), Fake::start());
    let (_fetcher, pool) = ingest_from_both(&first, &other).await;
    let tx = Node::start(1, |config| config).txs[0].clone();
    let busy = json!({ "code": -32000, "message": "busy" });
    first.lock().replies.insert(tx.hash, Reply::Busy(busy));
    other.lock().replies.insert(tx.hash, Reply::NotYet(tx.raw.clone()));
    first.announce_hash(tx.hash);
    eventually("it is in", || pool.contains(&tx.hash)).await;
}

/// Before the fix each of them was asked for the whole pool.
#[tokio::test]
async fn a_backfill_from_several_nodes_with_equal_pools_requests_each_transaction_once() {
    let nodes = [(); 3].map(|()| Node::start(1_000, |config| config));
    nodes.iter().for_each(Node::submit_all);
    let config = configured(sources(&nodes), |config| config.audit_interval = None);
    let (fetcher, pool) = ingest_all(config, Limits::default()).await;
    settled(&fetcher, "all are in", |_| pool.len() == 1_000).await;
    let requests: Vec<u64> = nodes.iter().map(|node| node.node.stats().raw_found).collect();
    assert_eq!(requests.iter().sum::<u64>(), 1_000, "{requests:?}");
}

/// Before the fix its transactions took both deferrable slots most of the time.
#[tokio::test]
async fn a_slow_node_does_not_hold_back_the_backfill_from_another_one() {
    let slow = Capacity { concurrency: 8, service_time: Duration::from_secs(1), max_waiting: 0 };
    let [slow, other] = [Some(slow), None]
        .map(|capacity| Node::start(600, |config: NodeConfig| NodeConfig { capacity, ..config }));
    submit_accounts(&slow, 0..10);
    submit_accounts(&other, 10..20);
    let live = tokio::time::timeout(Duration::from_secs(10), ingest(sources([&slow, &other])));
    let (fetcher, pool) = live.await.expect("the backfill from the other one is complete");
    let states: Vec<_> = fetcher.status().iter().map(|source| source.state).collect();
    assert_eq!(states, [SourceState::Backfilling, SourceState::Live]);
    assert!(pool.len() >= 300, "{}", pool.len());
}

/// Backfills 2,000 transactions from a node that serves 8 requests at once, whose blocks wait in
/// the same queue.
async fn backfill(limits: Limits) -> Stats {
    let node = Node::start(2_000, |config: NodeConfig| NodeConfig {
        capacity: capacity(8, usize::MAX >> 1),
        block_time: Duration::from_millis(10),
        block_max_txs: 1,
        ..config
    });
    node.submit_all();
    let (_fetcher, _pool) = ingest_with(node.fetcher(), limits).await;
    node.node.stats()
}

#[tokio::test]
async fn a_backfill_does_not_delay_the_blocks_of_its_node() {
    let ours = backfill(Limits::default()).await;
    let greedy = backfill(Limits { deferrable_slots: Some(64), ..Limits::default() }).await;
    for stats in [&ours, &greedy] {
        assert!(stats.blocks > 0 && stats.raw_found >= 1_000, "{stats:?}");
    }
    // Counts, not times: deferrable requests and a block together never exceed the 8 servers.
    assert_eq!(ours.import_wait_us_max, 0);
    assert!(greedy.import_wait_us_max > SERVICE.as_micros() as u64);
}
