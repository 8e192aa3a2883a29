//! Tests of the fetcher on anvil and geth, also under load.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use alloy::{
    primitives::{B256, Bytes, U64},
    providers::{DynProvider, IpcConnect, Provider as _, ProviderBuilder},
};
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool,
    order_pool::OrderStatus,
    txpool_fetcher::{
        Announcements, AuditMode, Counts, Endpoint, Limits, RawTransaction, read_response,
    },
};
use mock_node::workload::{Account, Mix, Workload, WorkloadConfig, test_accounts};
use serde_json::value::RawValue;
use tempfile::TempDir;
use testkit::{
    devnet::{RealNode, RealNodeKind},
    ingest::{arrived_whole, eventually, roomy, settled},
    sign::signed,
    usage::cpu_of,
};

use crate::load::Load;

const BOTH: [RealNodeKind; 2] = [RealNodeKind::Anvil, RealNodeKind::Geth];

struct Setup {
    kind: RealNodeKind,
    node: RealNode,
    fetcher: Fetcher,
    pool: OrderPool,
    _folder: TempDir,
}

impl Setup {
    async fn new(kind: RealNodeKind, block_time: Duration) -> Self {
        Self::in_mode(kind, block_time, Announcements::Hashes).await
    }

    async fn in_mode(
        kind: RealNodeKind,
        block_time: Duration,
        announcements: Announcements,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = RealNode::start(kind, folder.path(), block_time).unwrap();
        let (fetcher, pool) = start(&node, announcements).await;
        eventually("the source is live", || fetcher.is_live()).await;
        println!("{kind:?}: {}", fetcher.status()[0].node.as_ref().unwrap().client);
        Self { kind, node, fetcher, pool, _folder: folder }
    }

    async fn client(&self) -> DynProvider {
        let socket = IpcConnect::new(self.node.ipc_path().to_owned());
        ProviderBuilder::new().connect_ipc(socket).await.unwrap().erased()
    }

    async fn send(&self, raw: &[u8]) -> B256 {
        let sent = self.client().await.send_raw_transaction(raw).await;
        *sent.unwrap_or_else(|error| panic!("{:?}: {error}", self.kind)).tx_hash()
    }

    async fn pooled(&self, hash: B256) {
        eventually(&format!("{:?}: {hash} is pooled", self.kind), || self.pool.contains(&hash))
            .await;
    }

    /// Asserts that no transaction is missing and that the counts balance.
    async fn assert_complete(&self, description: &str) -> Counts {
        settled(&self.fetcher, description, |_| true).await;
        let report = self.fetcher.audit(0, AuditMode::CompareOnly).await.unwrap();
        // The counts are read again, because the comparison waited for announcements that were
        // outstanding when the load ended.
        let counts = settled(&self.fetcher, description, |_| true).await;
        println!("{:?}: {description}: {counts:?}, {report:?}", self.kind);
        assert_eq!(report.missing, 0, "{description}: {:?}", report.missing_sample);
        assert_eq!(self.fetcher.counts().balance(), 0, "{description}");
        counts
    }
}

async fn start(node: &RealNode, announcements: Announcements) -> (Fetcher, OrderPool) {
    let pool = OrderPool::new(roomy()).unwrap();
    let endpoint = Endpoint::Ipc(node.ipc_path().to_owned());
    let mut config = FetcherConfig::new([endpoint]);
    config.announcements = announcements;
    // The limit is generous for slow machines: anvil takes half a minute to list 120,000
    // transactions.
    let limits = Limits { snapshot_timeout: Duration::from_secs(300), ..Limits::default() };
    let fetcher = Fetcher::start_with(config, limits, pool.clone()).await.unwrap();
    (fetcher, pool)
}

/// Signs a transfer with a tip of `gwei`.
fn transfer(account: &Account, nonce: u64, gwei: u128) -> (B256, Bytes) {
    signed(account, |tx| {
        tx.nonce = nonce;
        // The fee cap grows with the tip, because a replacement must raise both by a tenth.
        tx.max_fee_per_gas = gwei * 50_000_000_000;
        tx.max_priority_fee_per_gas = gwei * 1_000_000_000;
    })
}

#[tokio::test]
async fn normal_and_blob_transactions_arrive_whole() {
    for kind in BOTH {
        // No block may be mined during the test, because mined transactions leave the pool, and
        // anvil takes seconds for the blobs.
        let setup = Setup::new(kind, Duration::from_secs(600)).await;
        let mix = Mix { blobs_per_mille: 100, six_blobs_per_mille: 300, ..Mix::default() };
        let chain_id = setup.client().await.get_chain_id().await.unwrap();
        let workload = WorkloadConfig { accounts: 100, ..WorkloadConfig::new(3, chain_id) };
        let txs = Workload::new(WorkloadConfig { mix, ..workload }).prepare(150);
        for tx in &txs {
            assert_eq!(setup.send(&tx.raw).await, tx.hash, "{kind:?}: {:?}", tx.kind);
        }
        for tx in &txs {
            setup.pooled(tx.hash).await;
        }
        let types = arrived_whole(&setup.pool, &txs);
        assert!(types.contains(&3), "{kind:?}: {types:?}");
        setup.assert_complete("all kinds").await;
    }
}

#[tokio::test]
async fn a_replacement_is_pooled_and_the_replaced_transaction_is_gone() {
    for kind in BOTH {
        let setup = Setup::new(kind, Duration::from_secs(60)).await;
        let account = &test_accounts(1)[0];
        let (old, raw) = transfer(account, 0, 2);
        setup.send(&raw).await;
        setup.pooled(old).await;
        let (new, raw) = transfer(account, 0, 9);
        setup.send(&raw).await;
        setup.pooled(new).await;
        for gone in [old, B256::repeat_byte(0x5a)] {
            let method = "eth_getRawTransactionByHash".into();
            let raw: Box<RawValue> =
                setup.client().await.raw_request(method, [gone]).await.unwrap();
            let read = read_response(raw.get(), gone);
            assert!(matches!(read, RawTransaction::Gone), "{kind:?}: {raw}");
        }
        let report = setup.fetcher.audit(0, AuditMode::Recover).await.unwrap();
        assert_eq!((report.vanished, report.missing), (1, 0), "{kind:?}");
    }
}

#[tokio::test]
async fn a_queued_transaction_is_pooled_when_its_nonce_gap_is_filled() {
    for kind in BOTH {
        let setup = Setup::new(kind, Duration::from_secs(60)).await;
        let accounts = test_accounts(2);
        let (second, raw) = transfer(&accounts[0], 1, 2);
        setup.send(&raw).await;
        // A transaction of another sender arrives. If the queued one had been announced, it would
        // have arrived before.
        let (other, raw) = transfer(&accounts[1], 0, 2);
        setup.send(&raw).await;
        setup.pooled(other).await;
        assert!(!setup.pool.contains(&second), "{kind:?}");
        let (first, raw) = transfer(&accounts[0], 0, 2);
        setup.send(&raw).await;
        setup.pooled(first).await;
        setup.pooled(second).await;
        assert_eq!(setup.assert_complete("gap filled").await.announced, 3);
    }
}

#[tokio::test]
async fn a_block_empties_the_pool() {
    for kind in BOTH {
        let setup = Setup::new(kind, Duration::from_secs(3)).await;
        let accounts = test_accounts(50);
        for account in &accounts {
            setup.send(&transfer(account, 0, 2).1).await;
        }
        let counts =
            settled(&setup.fetcher, "all announced", |counts| counts.announced == 50).await;
        assert_eq!(counts.pooled + counts.mined, 50, "{kind:?}: {counts:?}");
        eventually("mined", || setup.pool.is_empty()).await;
        // The full block sets the nonces, so a rival of a mined transaction is stale.
        let (late, _) = transfer(&accounts[0], 0, 2);
        assert_ne!(setup.pool.status(&late), OrderStatus::Unknown);
    }
}

/// Makes a separate test of each case, so that one can be selected, because each takes minutes.
macro_rules! under_load {
    ($($name:ident: $kind:ident, $tps:literal, $announcements:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            nothing_is_lost(RealNodeKind::$kind, $tps, Announcements::$announcements).await;
        }
    )*}
}

under_load! {
    under_load_of_1000_hashes_anvil: Anvil, 1_000, Hashes;
    under_load_of_2000_hashes_anvil: Anvil, 2_000, Hashes;
    under_load_of_2000_objects_anvil: Anvil, 2_000, Full;
    under_load_of_1000_hashes_geth: Geth, 1_000, Hashes;
    under_load_of_2000_hashes_geth: Geth, 2_000, Hashes;
    under_load_of_2000_objects_geth: Geth, 2_000, Full;
}

async fn nothing_is_lost(kind: RealNodeKind, tps: u32, announcements: Announcements) {
    let setup = Setup::in_mode(kind, Duration::from_secs(12), announcements).await;
    let accepted = Load::start(setup.node.ipc_path(), tps, Duration::from_secs(30)).finish();
    let case = format!("{announcements:?}, {tps} TPS");
    let counts = setup.assert_complete(&case).await;
    assert_eq!((counts.lagged, counts.failed, counts.malformed), (0, 0, 0));
    // Reconnects are permitted: on a slow machine anvil hangs for longer than the time-out of a
    // ping. Only missing transactions fail the test.
    println!("{kind:?}: {case}: reconnects {}", setup.fetcher.status()[0].reconnects);
    let entered = counts.announced + counts.backfilled + counts.audit_recovered;
    // anvil queues transactions that arrive before an earlier nonce of their sender, and never
    // announces them.
    let client = setup.client().await;
    let status = client.raw_request::<_, BTreeMap<String, U64>>("txpool_status".into(), ()).await;
    let queued = status.unwrap()["queued"].to::<u64>();
    let missed = counts.objects_missed;
    println!("{kind:?}: {case}: queued by the node {queued}, objects missed {missed}");
    assert!(
        (entered + queued) * 100 >= accepted * 99,
        "{kind:?}: {case}: {entered} entered and {queued} queued of {accepted} accepted",
    );
}

#[tokio::test]
async fn under_load_each_mode_costs_the_node_anvil() {
    costs(RealNodeKind::Anvil).await;
}

#[tokio::test]
async fn under_load_each_mode_costs_the_node_geth() {
    costs(RealNodeKind::Geth).await;
}

/// Subscribes to whole transactions, and discards them until the node closes the connection.
fn drain_objects(node: &RealNode) {
    let mut stream = UnixStream::connect(node.ipc_path()).unwrap();
    let params = r#"["newPendingTransactions",true]"#;
    let request =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":{params}}}"#);
    stream.write_all(request.as_bytes()).unwrap();
    std::thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
}

/// Prints the CPU time of the node for each transaction, which includes accepting and mining it.
async fn costs(kind: RealNodeKind) {
    let modes = [
        ("without a subscriber", None, false),
        ("full objects, read by a subscriber and discarded", None, true),
        ("hashes, each requested", Some(Announcements::Hashes), false),
        ("full objects and hashes", Some(Announcements::Full), false),
    ];
    for (mode, announcements, drains) in modes {
        let folder = tempfile::tempdir().unwrap();
        let node = RealNode::start(kind, folder.path(), Duration::from_secs(12)).unwrap();
        let fetcher = match announcements {
            None => None,
            Some(announcements) => Some(start(&node, announcements).await.0),
        };
        if drains {
            drain_objects(&node);
        }
        let pid = node.pid().unwrap();
        let before = cpu_of(pid);
        let accepted = Load::start(node.ipc_path(), 2_000, Duration::from_secs(20)).finish();
        let mut missed = 0;
        if let Some(fetcher) = fetcher {
            let all = accepted * 99 / 100;
            let counts = settled(&fetcher, mode, |counts| counts.pooled >= all).await;
            missed = counts.objects_missed;
        }
        let us = (cpu_of(pid) - before).as_micros() as f64 / accepted.max(1) as f64;
        println!(
            "{kind:?}: 2000 TPS, {mode}: {us:.0} us of the node for each, {missed} objects missed"
        );
        assert!(us > 0.0, "the node used CPU time");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_host_that_blocks_its_runtime_for_15_seconds_loses_nothing() {
    let setup = Setup::new(RealNodeKind::Geth, Duration::from_secs(12)).await;
    let load = Load::start(setup.node.ipc_path(), 500, Duration::from_secs(25));
    let before = load.wait_started(&setup.fetcher);
    // This blocks the only thread of the runtime. geth disconnects a reader after 10 s.
    std::thread::sleep(Duration::from_secs(15));
    let during = setup.fetcher.counts().announced - before;
    assert!(during > 5000, "only {during} while the host was blocked");
    load.finish();
    let counts = setup.assert_complete("blocked host").await;
    assert_eq!((counts.lagged, counts.failed), (0, 0));
    assert_eq!(setup.fetcher.status()[0].reconnects, 0);
}

/// Suspends the node under load, or kills and restarts it. Asserts that the fetcher catches up
/// afterwards.
async fn assert_catches_up(kind: RealNodeKind, is_killed: bool, time: Duration) {
    let mut setup = Setup::new(kind, Duration::from_secs(2)).await;
    let load = Load::start(setup.node.ipc_path(), 500, Duration::from_secs(600));
    load.wait_started(&setup.fetcher);
    if is_killed {
        setup.node.kill9().unwrap();
        eventually("the fetcher notices the loss", || !setup.fetcher.is_live()).await;
    } else {
        setup.node.sigstop().unwrap();
    }
    tokio::time::sleep(time).await;
    if is_killed {
        drop(load);
        setup.node.restart().unwrap();
    } else {
        setup.node.sigcont().unwrap();
        setup.client().await.get_chain_id().await.unwrap();
        drop(load);
    }
    let answered = Instant::now();
    eventually("live again", || setup.fetcher.is_live()).await;
    let took = answered.elapsed();
    println!("{kind:?}: away for {time:?}: live {took:?} after it answers (goal: 5 s)");
    Load::start(setup.node.ipc_path(), 500, Duration::from_secs(5)).finish();
    setup.assert_complete("back").await;
}

#[tokio::test]
async fn the_fetcher_catches_up_after_a_node_was_stopped_or_killed() {
    for kind in BOTH {
        assert_catches_up(kind, false, Duration::from_secs(20)).await;
    }
    // This is longer than the 195 s after which alloy's own reconnect gives up. Both nodes are
    // tested at once, because the test only waits.
    let killed = |kind| assert_catches_up(kind, true, Duration::from_secs(200));
    tokio::join!(killed(RealNodeKind::Anvil), killed(RealNodeKind::Geth));
}

#[tokio::test]
async fn ten_thousand_pending_transactions_are_backfilled_at_the_start() {
    for kind in BOTH {
        let folder = tempfile::tempdir().unwrap();
        let node = RealNode::start(kind, folder.path(), Duration::from_secs(60)).unwrap();
        Load::start(node.ipc_path(), 2000, Duration::from_secs(5)).finish();
        let begin = Instant::now();
        let (fetcher, pool) = start(&node, Announcements::Hashes).await;
        eventually("live", || fetcher.is_live()).await;
        let counts = fetcher.counts();
        println!("{kind:?}: {} pending backfilled in {:?}", counts.backfilled, begin.elapsed());
        assert!(counts.backfilled > 9_000, "{counts:?}");
        let setup = Setup { kind, node, fetcher, pool, _folder: folder };
        setup.assert_complete("after the backfill").await;
    }
}
