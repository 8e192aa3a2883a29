//! A node that announces whole transactions: the same outcomes, gaps and audits as with hashes.

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_primitives::{Address, Signature, U256};
use load_control::{Gate, GateConfig};
use mock_node::{DEV_CHAIN_ID, FullObjects, workload::TxKind};

use super::*;

fn full(node: &Node) -> FetcherConfig {
    configured(node.fetcher(), |config| config.announcements = Announcements::Full)
}

/// Starts a fetcher that does not request a transaction because its object is late on a busy
/// machine.
async fn ingest_patiently(config: FetcherConfig) -> (Fetcher, OrderPool) {
    ingest_with(config, Limits { object_wait: PATIENCE, ..Limits::default() }).await
}

#[tokio::test]
async fn with_full_announcements_only_blob_transactions_are_requested() {
    for (announcements, trust) in [
        (Announcements::Hashes, None),
        (Announcements::Full, Some(true)),
        (Announcements::Full, Some(false)),
    ] {
        let mix = Mix { blobs_per_mille: 20, six_blobs_per_mille: 300, ..Mix::default() };
        let node = Node::with_mix(600, mix, |config| config);
        let gate = Gate::new(GateConfig::default()).unwrap();
        let config = configured(node.fetcher(), |config| {
            config.announcements = announcements;
            config.trust_node_sender = trust;
            config.gate = Some(gate);
        });
        let (fetcher, pool) = ingest_patiently(config).await;
        let counts = pool_all(&node, &fetcher).await;
        assert_eq!((counts.announced, counts.lagged, counts.objects_missed), (600, 0, 0));
        let types = arrived_whole(&pool, &node.txs);
        assert_eq!(types, BTreeSet::from([0, 1, 2, 3, 4]));
        let is_blob = |kind| matches!(kind, TxKind::Blob | TxKind::SixBlobs);
        let is_requested = |kind| announcements == Announcements::Hashes || is_blob(kind);
        let requested = node.txs.iter().filter(|tx| is_requested(tx.kind)).count();
        assert!(requested > 0);
        assert_eq!(node.node.stats().raw_found, requested as u64);
        let report = compare(&fetcher).await;
        assert_eq!((report.missing, report.removed), (0, 0));
    }
}

#[tokio::test]
async fn an_invented_sender_reaches_the_sink_only_with_trust() {
    for trust in [true, false] {
        let node = Node::start(1, |config| config);
        let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(8);
        let config = configured(full(&node), |config| config.trust_node_sender = Some(trust));
        let fetcher = Fetcher::start(config, sink).await.unwrap();
        eventually("live", || fetcher.is_live()).await;
        // The object with the invented sender is announced before the transaction itself.
        let liar = Node::start(1, |config| config);
        liar.submit_all();
        let sent = &liar.txs[0];
        let object = liar.node.object(sent.hash).expect("it is pending");
        let invented = Address::repeat_byte(0x66);
        let lie = object.replace(&format!("{:#x}", sent.sender), &format!("{invented:#x}"));
        assert_ne!(lie, object);
        node.node.announce_object(&lie);
        let fetched = transactions.recv().await.expect("it is delivered");
        assert_eq!(fetched.hash(), sent.hash);
        assert_eq!(fetched.raw(), sent.raw);
        assert_eq!(fetched.tx.signer(), if trust { invented } else { sent.sender });
    }
}

#[tokio::test]
async fn an_object_with_an_invalid_signature_is_malformed_without_trust() {
    let node = Node::start(1, |config| config);
    let config = configured(full(&node), |config| config.trust_node_sender = Some(false));
    let (fetcher, _pool) = ingest(config).await;
    let invalid = Signature::new(U256::ZERO, U256::ZERO, false);
    let tx = TxEip1559 { chain_id: DEV_CHAIN_ID, ..TxEip1559::default() }.into_signed(invalid);
    let mut object = json!(TxEnvelope::from(tx));
    object["from"] = json!(Address::ZERO);
    node.node.announce_object(&object.to_string());
    settled(&fetcher, "malformed", |counts| counts.malformed == 1).await;
}

#[tokio::test]
async fn an_object_that_is_another_transaction_is_malformed() {
    let node = Node::start(2, |config| config);
    let (fetcher, pool) = ingest(full(&node)).await;
    let [first, second] = &node.txs[..] else { panic!("two") };
    node.node.submit(first.raw.clone()).unwrap();
    settled(&fetcher, "one pooled", |counts| counts.pooled == 1).await;
    let object = node.node.object(first.hash).expect("it is pending");
    node.node.announce_object(&object.replace(&first.hash.to_string(), &second.hash.to_string()));
    let counts = settled(&fetcher, "a lie", |counts| counts.malformed == 1).await;
    assert_eq!((counts.announced, counts.pooled), (2, 1));
    assert!(!pool.contains(&second.hash));
    // The hash may be announced again, and is then fetched.
    node.node.submit(second.raw.clone()).unwrap();
    settled(&fetcher, "both pooled", |counts| counts.pooled == 2).await;
    assert!(pool.contains(&second.hash));
}

#[tokio::test]
async fn repeated_late_and_odd_objects_have_their_outcomes() {
    let node = Node::start(3, |config| config);
    let (fetcher, pool) = ingest_patiently(full(&node)).await;
    for odd in ["null", "{}", "[1]", "7", r#""0xzz""#, r#"{"hash":7}"#] {
        node.node.announce_object(odd);
    }
    node.submit_all();
    let object = node.node.object(node.txs[0].hash).expect("it is pending");
    let counts = settled(&fetcher, "3 pooled", |counts| counts.pooled == 3).await;
    assert_eq!((counts.announced, counts.malformed, pool.len()), (3, 0, 3));
    assert_eq!(fetcher.status()[0].backlog, 0, "all announcements are processed");
    for tx in &node.txs {
        node.node.announce_again(tx.hash).unwrap();
    }
    settled(&fetcher, "3 known", |counts| counts.known == 3).await;
    assert_eq!(node.node.stats().raw_found, 0, "nothing was requested");
    // Hashes on the subscription to objects are requested.
    node.node.announce_object(&format!("\"{:#x}\"", B256::repeat_byte(7)));
    settled(&fetcher, "a hash that is gone", |counts| counts.gone == 1).await;
    node.node.mine();
    eventually("the pool is empty", || pool.is_empty()).await;
    node.node.announce_object(&object);
    let counts = settled(&fetcher, "a late object", |counts| counts.announced == 8).await;
    assert_eq!(counts.mined, 1, "known from its block");
    assert!(pool.is_empty());
}

#[tokio::test]
async fn a_transaction_whose_object_is_too_long_is_requested() {
    let node = Node::start(1, |config| config);
    // Nobody is subscribed yet, so this does not announce it.
    node.submit_all();
    let sent = &node.txs[0];
    let object = node.node.object(sent.hash).expect("it is pending");
    let config = configured(full(&node), |config| config.backfill = Backfill::Off);
    let (fetcher, pool) = ingest(config).await;
    let long = object.replacen('{', &format!(r#"{{"blobs":["0x{}"],"#, "ab".repeat(100_000)), 1);
    node.node.announce_object(&long);
    let counts = settled(&fetcher, "1 pooled", |counts| counts.pooled == 1).await;
    assert_eq!(counts.announced, 1);
    assert_eq!(node.node.stats().raw_found, 1);
    assert!(pool.contains(&sent.hash));
}

#[tokio::test]
async fn transactions_whose_objects_the_node_drops_are_requested() {
    const SENT: u64 = 4_000;
    for (per_mille, run) in [(200, 1), (500, 2_000), (1_000, 1)] {
        // With the default seed of the node, the second run drops objects too.
        let full_objects = FullObjects::Dropped { per_mille, run };
        let name = format!("{full_objects:?}");
        let configure = |config| NodeConfig { full_objects, ..config };
        let node = Node::start(SENT as usize, configure);
        let limits = Limits { object_wait: Duration::from_secs(1), ..settles_fast() };
        let (fetcher, _pool) = ingest_with(full(&node), limits).await;
        node.submit_all();
        let counts = settled(&fetcher, &name, |counts| counts.pooled == SENT).await;
        assert_eq!((counts.announced, counts.known), (SENT, 0), "{name}");
        let dropped = node.node.stats().objects_dropped;
        assert!(dropped > 0 && (dropped < SENT || per_mille == 1_000), "{name}: {dropped}");
        assert!(counts.objects_missed >= dropped, "{name}: {dropped}, {counts:?}");
        assert_eq!((counts.lagged, counts.audit_recovered), (0, 0), "{name}");
        assert_eq!(compare(&fetcher).await.missing, 0, "{name}");
    }
}

/// Before the fix the first request without a slot held up all objects behind it.
#[tokio::test]
async fn a_request_without_a_slot_does_not_hold_up_later_objects() {
    let mix = Mix { blobs_per_mille: 500, six_blobs_per_mille: 0, ..Mix::default() };
    let node = Node::with_mix(30, mix, |config| config);
    let plain = node.txs.iter().filter(|tx| tx.kind != TxKind::Blob).count();
    assert!((1..node.txs.len() - 2).contains(&plain), "{plain}");
    let config = configured(full(&node), |config| config.fetch_slots = 2);
    let limits = Limits {
        object_wait: PATIENCE,
        fetch_timeout: PATIENCE,
        ping_timeout: PATIENCE,
        ..Limits::default()
    };
    let (fetcher, pool) = ingest_with(config, limits).await;
    node.node.inject(Fault::GoDead(Target::Request));
    node.submit_all();
    eventually("all whole objects are pooled", || pool.len() == plain).await;
    assert_eq!(fetcher.counts().objects_missed, 0);
}

#[tokio::test]
async fn the_loss_of_either_connection_reopens_both() {
    for lost in [Target::Hashes, Target::Objects] {
        let node = Node::start(30, |config| config);
        let (fetcher, pool) = ingest_patiently(full(&node)).await;
        submit(&node, &node.txs[..10]);
        settled(&fetcher, "10 pooled", |counts| counts.pooled == 10).await;
        node.node.inject(Fault::Close(lost));
        submit(&node, &node.txs[10..20]);
        eventually("it was lost and is back", || {
            let status = &fetcher.status()[0];
            status.reconnects == 1 && status.state == SourceState::Live
        })
        .await;
        submit(&node, &node.txs[20..]);
        let counts = settled(&fetcher, "30 pooled", |counts| counts.pooled == 30).await;
        assert_eq!(counts.failed, 0, "{lost:?}");
        let status = &fetcher.status()[0];
        assert_eq!(status.announcements, Announcements::Full, "{lost:?}");
        assert!(status.gaps.iter().any(|gap| gap.reason == GapReason::Reconnect), "{lost:?}");
        let error = status.last_error.as_deref();
        assert!(matches!(error, Some(SourceError::Lost(LossReason::Closed))), "{error:?}");
        eventually("one connection each", || node.node.stats().connections_open >= 4).await;
        assert_eq!(pool.len(), 30, "{lost:?}");
    }
}

#[tokio::test]
async fn hashes_are_used_at_a_node_without_objects() {
    for (announcements, full_objects) in [
        (Announcements::Auto, FullObjects::Refused),
        (Announcements::Auto, FullObjects::Ignored),
        (Announcements::Full, FullObjects::Ignored),
    ] {
        let name = format!("{announcements:?}, full objects of the node: {full_objects:?}");
        let node = Node::start(50, |config| NodeConfig { full_objects, ..config });
        let config = configured(node.fetcher(), |config| config.announcements = announcements);
        let (fetcher, pool) = ingest_patiently(config).await;
        let counts = pool_all(&node, &fetcher).await;
        let status = &fetcher.status()[0];
        if announcements == Announcements::Auto {
            assert_eq!(
                (status.announcements, counts.objects_missed),
                (Announcements::Hashes, 0),
                "{name}"
            );
        }
        assert_eq!((status.reconnects, status.state), (0, SourceState::Live), "{name}");
        assert_eq!((counts.announced, pool.len()), (50, 50), "{name}");
        assert_eq!(node.node.stats().raw_found, 50, "{name}");
    }
}

#[tokio::test]
async fn full_announcements_are_an_error_at_a_node_that_refuses_them() {
    let full_objects = FullObjects::Refused;
    let node = Node::start(0, |config| NodeConfig { full_objects, ..config });
    let (sink, _transactions) = mpsc::channel::<FetchedTransaction>(1);
    let error = Fetcher::start(full(&node), sink).await.unwrap_err().to_string();
    assert!(error.contains("eth_subscribe"), "{error}");
}
