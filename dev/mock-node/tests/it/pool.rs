use mock_node::{
    NodeError, TxRefused,
    workload::{PreparedTx, Workload, WorkloadConfig},
};
use serde_json::json;

use crate::client::subscribed;

/// Nonces 0, 1, 2.. of one account; `fee` is the cap in gwei.
fn row(seed: u64, fee: u128, count: usize) -> Vec<PreparedTx> {
    let gwei = 1_000_000_000;
    let mut mix = mock_node::workload::Mix::default();
    // One shape, so that replacements differ in their fee alone.
    (mix.legacy_per_mille, mix.access_list_per_mille) = (1000, 0);
    (mix.token_per_mille, mix.swap_per_mille, mix.set_code_per_mille) = (0, 0, 0);
    let config = WorkloadConfig { accounts: 1, mix, ..WorkloadConfig::new(seed, 1337) };
    Workload::new(WorkloadConfig {
        max_fee_wei: fee * gwei * 4,
        max_tip_wei: gwei,
        max_blob_fee_wei: gwei,
        ..config
    })
    .prepare(count)
}

#[test]
fn a_gap_is_silent_until_it_is_filled_and_then_the_filler_comes_first() {
    let (_dir, node, mut client) = subscribed(|config| config);
    let txs = row(1, 10, 3);
    for tx in [&txs[2], &txs[1]] {
        node.submit(tx.raw.clone()).expect("it may wait");
        assert_eq!(node.raw(tx.hash), Some(tx.raw.clone()), "queued ones can be requested");
    }
    assert_eq!((node.pending().len(), node.queued().len()), (0, 2));
    node.submit(txs[0].raw.clone()).expect("the filler");
    for tx in &txs {
        assert_eq!(client.announced(), tx.hash);
    }
    let count = client.result("eth_getTransactionCount", json!([txs[0].sender, "pending"]));
    assert_eq!(count, "0x3");
    let count = client.result("eth_getTransactionCount", json!([txs[0].sender, "latest"]));
    assert_eq!(count, "0x0");
}

#[test]
fn a_replacement_pays_a_tenth_more_and_the_old_one_is_gone() {
    let (_dir, node, mut client) = subscribed(|config| config);
    let (old, cheap, new) = (row(1, 100, 2), row(2, 109, 1).remove(0), row(3, 110, 1).remove(0));
    for tx in &old {
        node.submit(tx.raw.clone()).expect("taken");
        assert_eq!(client.announced(), tx.hash);
    }
    let refused = node.submit(cheap.raw).unwrap_err();
    assert!(matches!(refused, TxRefused::Underpriced { stays, .. } if stays == old[0].hash));
    node.submit(new.raw).expect("enough");
    assert_eq!(client.announced(), new.hash);
    assert_eq!(node.raw(old[0].hash), None);
    assert_eq!(node.mine().txs, [new.hash, old[1].hash], "nonces keep their order");
}

#[test]
fn private_transactions_are_mined_unannounced_and_push_out_what_they_overtake() {
    let (_dir, node, mut client) = subscribed(|config| config);
    client.subscribe(json!(["newHeads"]));
    let (public, private) = (row(1, 100, 3), row(2, 100, 2));
    node.submit(public[0].raw.clone()).expect("taken");
    assert_eq!(client.announced(), public[0].hash);
    node.submit(public[2].raw.clone()).expect("it may wait");
    let block = node.mine_private(private.iter().map(|tx| tx.raw.clone())).expect("they follow");
    assert_eq!(client.notification().1["hash"], json!(block.hash));
    // The third was waiting for what the private ones brought.
    assert_eq!(client.announced(), public[2].hash);
    assert_eq!(node.raw(public[0].hash), None);
    let late = node.submit(public[1].raw.clone()).unwrap_err();
    assert_eq!(late, TxRefused::NonceTooLow { has: 1, expected: 2 });
    let again = node.mine_private([private[0].raw.clone()]).unwrap_err();
    assert!(matches!(again, NodeError::Refused(TxRefused::NonceTooLow { has: 0, expected: 2 })));
}

#[test]
fn a_reorg_tells_new_heads_and_gives_back_what_it_unmined() {
    let (_dir, node, mut client) = subscribed(|config| config);
    client.subscribe(json!(["newHeads"]));
    let txs = row(1, 100, 4);
    for (index, tx) in txs.iter().enumerate() {
        node.submit(tx.raw.clone()).expect("taken");
        assert_eq!(client.announced(), tx.hash);
        if index < 3 {
            assert_eq!(node.mine().txs, [tx.hash]);
            client.notification();
        }
    }
    let before = node.head();
    let reorg = node.reorg(2).expect("two blocks can go");
    assert_eq!(reorg.removed.last(), Some(&before));
    assert_eq!(reorg.added.len(), 2);
    for block in &reorg.added {
        assert_eq!(client.notification().1["hash"], json!(block.hash));
    }
    assert_ne!(node.head().hash, before.hash);
    assert_eq!(node.head().number, before.number);
    let announced = [client.announced(), client.announced()];
    assert_eq!(announced, [txs[1].hash, txs[2].hash]);
    assert_eq!(node.mine().txs, [txs[1].hash, txs[2].hash, txs[3].hash]);
    assert!(matches!(node.reorg(99), Err(NodeError::ReorgTooDeep { available: 4, .. })));
}
