//! Every transaction that the node announces becomes one command, with its sender recovered once.
//!
//! 2,000 transactions a second for `RBUILDER_SECONDS` seconds, by default 2.

use std::{
    collections::HashMap,
    env,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::txpool_fetcher::FetcherConfig;
use alloy_consensus::crypto::{RecoveryError, backend};
use alloy_primitives::{Address, B256, keccak256};
use mock_node::{LoadStart, MockNode, NodeConfig};
use rbuilder_integration::{
    Order,
    live_builder::order_input::{
        MempoolSource, OrderInputConfig, ReplaceableOrderPoolCommand,
        txpool_fetcher::{fetch, subscribe_to_txpool_with_blobs},
    },
    telemetry::{ORDERS_RECEIVED, TXFETCHER_TRANSACTION_COUNTER},
};
use secp256k1::{Message, SECP256K1, ecdsa::RecoverableSignature, ecdsa::RecoveryId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const TPS: u32 = 2_000;

static RECOVERIES: AtomicUsize = AtomicUsize::new(0);

/// Recovers senders as alloy does, and counts.
struct Counting;

impl backend::CryptoProvider for Counting {
    fn recover_signer_unchecked(
        &self,
        signature: &[u8; 65],
        message: &[u8; 32],
    ) -> Result<Address, RecoveryError> {
        RECOVERIES.fetch_add(1, Relaxed);
        let parity =
            RecoveryId::try_from(i32::from(signature[64])).map_err(RecoveryError::from_source)?;
        let recovered = RecoverableSignature::from_compact(&signature[..64], parity)
            .and_then(|signature| {
                SECP256K1.recover_ecdsa(&Message::from_digest(*message), &signature)
            })
            .map_err(RecoveryError::from_source)?;
        let key = recovered.serialize_uncompressed();
        Ok(Address::from_slice(&keccak256(&key[1..])[12..]))
    }

    fn verify_and_compute_signer_unchecked(
        &self,
        _pubkey: &[u8; 65],
        _signature: &[u8; 64],
        _message: &[u8; 32],
    ) -> Result<Address, RecoveryError> {
        panic!("nobody hands in a public key")
    }
}

struct Rbuilder {
    node: MockNode,
    commands: mpsc::Receiver<ReplaceableOrderPoolCommand>,
    cancel: CancellationToken,
    job: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

async fn start(tps: u32, count: u64) -> Rbuilder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.ipc");
    let node = NodeConfig {
        tps,
        count: Some(count),
        load_start: LoadStart::FirstSubscription,
        pool_limit: 1_000_000,
        blobs_per_mille: 2,
        ..NodeConfig::new(&path)
    };
    let node = MockNode::start(node).unwrap();
    // As rbuilder sizes it.
    let (results, commands) = mpsc::channel(10_000);
    let cancel = CancellationToken::new();
    let mut config = FetcherConfig::ipc(&path);
    config.reconnect_limit = Some(2);
    let job = fetch(config, results, cancel.clone()).await.unwrap();
    Rbuilder { node, commands, cancel, job, _folder: folder }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_announced_transaction_is_one_command_with_one_recovery() {
    let seconds = env::var("RBUILDER_SECONDS").map_or(2, |value| value.parse().expect("seconds"));
    let count = u64::from(TPS) * seconds;
    assert!(backend::install_default_provider(Arc::new(Counting)).is_ok(), "it is the first");
    let mut rbuilder = start(TPS, count).await;

    let mut received: HashMap<B256, usize> = HashMap::new();
    let mut blobs = 0;
    while received.len() < count as usize {
        let limit = Duration::from_secs(10);
        let command = tokio::time::timeout(limit, rbuilder.commands.recv()).await;
        let command = command.expect("within the time limit").expect("the job runs");
        let ReplaceableOrderPoolCommand::Order(order) = command;
        let Order::Tx(tx) = order.as_ref();
        let tx = &tx.tx_with_blobs;
        assert_ne!(tx.signer(), Address::ZERO);
        blobs += usize::from(!tx.blobs_sidecar.blobs().is_empty());
        *received.entry(tx.hash()).or_default() += 1;
    }
    rbuilder.cancel.cancel();
    rbuilder.job.await.unwrap();
    // What came after the last one that was missing.
    while let Some(ReplaceableOrderPoolCommand::Order(order)) = rbuilder.commands.recv().await {
        let Order::Tx(tx) = order.as_ref();
        *received.entry(tx.tx_with_blobs.hash()).or_default() += 1;
    }
    let (pending, queued) = (rbuilder.node.pending(), rbuilder.node.queued());
    assert_eq!(pending.len() + queued.len(), count as usize);
    for hash in pending.iter().chain(&queued) {
        assert_eq!(received.get(hash), Some(&1), "{hash}");
    }
    assert!(blobs > 0, "the load has some");
    println!("{count} announced, {} recoveries", RECOVERIES.load(Relaxed));
    assert_eq!(RECOVERIES.load(Relaxed), count as usize);
    assert_eq!(TXFETCHER_TRANSACTION_COUNTER.load(Relaxed), count as usize);
    assert_eq!(ORDERS_RECEIVED.load(Relaxed), count as usize);
}

#[tokio::test]
async fn a_mempool_that_is_gone_for_good_cancels_rbuilder() {
    let rbuilder = start(0, 0).await;
    rbuilder.node.shutdown();
    tokio::time::timeout(Duration::from_secs(10), rbuilder.job).await.unwrap().unwrap();
    assert!(rbuilder.cancel.is_cancelled());
}

#[tokio::test]
async fn the_source_is_that_of_the_configuration_and_none_is_an_error_of_the_start() {
    let (results, _commands) = mpsc::channel(1);
    let cannot = async |mempool_source| {
        let config = OrderInputConfig { mempool_source };
        let job = subscribe_to_txpool_with_blobs(config, results.clone(), CancellationToken::new());
        job.await.expect_err("there is no node").to_string()
    };
    let path = "/nonexistent/node.ipc";
    assert!(cannot(Some(MempoolSource::Ipc(path.into()))).await.starts_with(path));
    let url = "ws://127.0.0.1:1";
    assert!(cannot(Some(MempoolSource::Ws(url.into()))).await.starts_with(url));
    assert_eq!(cannot(None).await, "No txpool source configured");
}
