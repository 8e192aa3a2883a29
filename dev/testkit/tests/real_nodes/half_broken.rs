//! Ten minutes behind a proxy that is half broken: a fetcher may lag, and may not stand still in
//! silence.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    time::{Duration, Instant},
};

use alloy::{
    primitives::B256,
    providers::{DynProvider, IpcConnect, Provider as _, ProviderBuilder},
};
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool,
    txpool_fetcher::{Endpoint, SourceState},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use testkit::{
    devnet::{RealNode, RealNodeKind},
    ingest::{eventually, roomy},
};

use crate::{
    load::Load,
    proxy::{Fault, Proxy},
};

const RUN: Duration = Duration::from_secs(600);
const FAULT: Duration = Duration::from_secs(24);
/// Long enough that transactions which were announced during a fault are still pending after it.
const BLOCK_TIME: Duration = Duration::from_secs(18);
/// How long after a fault transactions may be missing.
const MISSING_LIMIT: Duration = Duration::from_secs(60);
/// How long a source may be live beside an empty pool and a node that lists transactions: ten
/// seconds until failed requests count, after the first has timed out, and the time of two looks.
const EMPTY_LIMIT: Duration = Duration::from_secs(15);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const TPS: u32 = 20;

const FAULTS: [Fault; 15] = [
    Fault::Delay(Duration::from_millis(2_500)),
    Fault::FreezeToClient,
    Fault::FreezeToNode,
    Fault::DropNotifications("hashes"),
    Fault::DropNotifications("objects"),
    Fault::DropNotifications("heads"),
    Fault::DropAnswers("eth_getRawTransactionByHash"),
    Fault::DropAnswers("txpool_content"),
    Fault::DropAnswers("txpool_status"),
    Fault::DropAnswers("eth_getBlockByHash"),
    Fault::DropAnswers("eth_getBlockByNumber"),
    Fault::DropAnswers("eth_blockNumber"),
    Fault::DropAnswers("eth_syncing"),
    Fault::DropAnswers("eth_subscribe"),
    Fault::DropAnswers("web3_clientVersion"),
];

#[tokio::test]
#[ignore = "takes ten minutes: scripts/real-nodes.sh --proxy"]
async fn behind_a_half_broken_proxy_nothing_stays_missing_anvil() {
    run(RealNodeKind::Anvil).await;
}

#[tokio::test]
#[ignore = "takes ten minutes: scripts/real-nodes.sh --proxy"]
async fn behind_a_half_broken_proxy_nothing_stays_missing_geth() {
    run(RealNodeKind::Geth).await;
}

/// The fetcher behind the proxy, and what the node itself says.
struct Run {
    fetcher: Fetcher,
    pool: OrderPool,
    node: DynProvider,
    /// Since when the source has been live beside an empty pool, while the node listed something.
    empty_since: Option<Instant>,
    longest_empty: Duration,
    states: BTreeSet<&'static str>,
}

async fn run(kind: RealNodeKind) {
    let folder = tempfile::tempdir().unwrap();
    let real = RealNode::start(kind, folder.path(), BLOCK_TIME).unwrap();
    let proxy = Proxy::start(folder.path().join("proxy.ipc"), real.ipc_path()).unwrap();
    let pool = OrderPool::new(roomy()).unwrap();
    let config = FetcherConfig::new([Endpoint::Ipc(proxy.path().to_owned())]);
    let fetcher = Fetcher::start(config, pool.clone()).await.unwrap();
    eventually("the source is live", || fetcher.is_live()).await;
    let node = connect(real.ipc_path()).await;
    let states = BTreeSet::new();
    let mut run =
        Run { fetcher, pool, node, empty_since: None, longest_empty: Duration::ZERO, states };
    let load = Load::start(real.ipc_path(), TPS, RUN + Duration::from_secs(600));
    load.wait_started(&run.fetcher);
    let start = Instant::now();
    let [mut slowest, mut longest] = [Duration::ZERO; 2];
    for fault in FAULTS.into_iter().cycle() {
        if start.elapsed() >= RUN {
            break;
        }
        proxy.set(Some(fault));
        run.look_for(FAULT).await;
        let missing = run.missing().await;
        proxy.set(None);
        let healed_at = Instant::now();
        let states = std::mem::take(&mut run.states);
        let error = run.fetcher.status()[0].last_error.as_ref().map(ToString::to_string);
        while !run.is_complete().await {
            assert!(
                healed_at.elapsed() < MISSING_LIMIT,
                "{fault:?}: {} missing, {:?}",
                run.missing().await,
                run.fetcher.status()
            );
            run.look_for(LOOK_INTERVAL).await;
        }
        let took = healed_at.elapsed();
        slowest = slowest.max(took);
        let empty = std::mem::take(&mut run.longest_empty);
        longest = longest.max(empty);
        println!(
            "{kind:?} {:>3} s: {fault:?}: {missing} missing at its end, complete and live {:.1} s \
             later; live beside an empty pool for {empty:.1?}; {states:?}, {}",
            start.elapsed().as_secs(),
            took.as_secs_f64(),
            error.unwrap_or_default(),
        );
        run.look_for(Duration::from_secs(2)).await;
        run.states.clear();
    }
    println!(
        "{kind:?}: slowest recovery {slowest:.1?}, longest live beside an empty pool {longest:.1?}, \
         {:?}",
        run.fetcher.counts()
    );
    assert!(longest < EMPTY_LIMIT, "live beside an empty pool for {longest:?}");
    assert_eq!(run.fetcher.counts().balance(), 0);
}

async fn connect(path: &Path) -> DynProvider {
    ProviderBuilder::new().connect_ipc(IpcConnect::new(path.to_owned())).await.unwrap().erased()
}

impl Run {
    /// The pending transactions that the node lists, asked directly.
    async fn listed(&self) -> HashSet<B256> {
        #[derive(Deserialize)]
        struct Content {
            pending: std::collections::HashMap<String, std::collections::HashMap<String, Listed>>,
        }
        #[derive(Deserialize)]
        struct Listed {
            hash: B256,
        }
        let content: Box<RawValue> =
            self.node.raw_request("txpool_content".into(), ()).await.unwrap();
        let content: Content = serde_json::from_str(content.get()).unwrap();
        content.pending.into_values().flat_map(|txs| txs.into_values()).map(|tx| tx.hash).collect()
    }

    /// How many transactions the node has listed for a second that the pool does not hold.
    async fn missing(&self) -> usize {
        let before = self.listed().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = self.listed().await;
        before.intersection(&after).filter(|hash| !self.pool.contains(hash)).count()
    }

    async fn is_complete(&self) -> bool {
        self.missing().await == 0 && self.fetcher.status()[0].state == SourceState::Live
    }

    /// Watches the state for a while.
    async fn look_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let state = self.fetcher.status()[0].state;
            self.states.insert(state.as_str());
            let is_silent = state == SourceState::Live
                && self.pool.is_empty()
                && !self.listed().await.is_empty();
            let since = is_silent.then(|| self.empty_since.unwrap_or_else(Instant::now));
            self.empty_since = since;
            let lasted = since.map_or(Duration::ZERO, |since| since.elapsed());
            self.longest_empty = self.longest_empty.max(lasted);
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}
