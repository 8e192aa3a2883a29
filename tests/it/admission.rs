//! Whether the senders of what searchers send can pay: the node is asked before an order is pooled.

use std::os::unix::net::UnixListener;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Bytes, TxKind, U256};
use mempool_ingest::NodeAdmissionConfig;
use mock_node::workload::test_accounts;
use txpool_fetcher::Endpoint;

use super::{
    rpc::{DEADLINE, address, call, read},
    *,
};

/// Accounts of the node's own load; the one after them is funded too.
const LOAD_ACCOUNTS: usize = 20;

/// By an account that the node has funded.
fn funded(edit: impl FnOnce(&mut TxEip1559)) -> (B256, Bytes) {
    signed(&test_accounts(LOAD_ACCOUNTS + 1).pop().expect("it was asked for"), edit)
}

/// What the funded account has, in wei.
fn million_ether() -> U256 {
    U256::from(1_000_000) * U256::from(10).pow(U256::from(18))
}

/// With an RPC server that asks the node. It has as much time as the test.
async fn start(fetcher: FetcherConfig, admission: NodeAdmissionConfig) -> Ingest {
    let rpc = OrderRpcConfig { admission_timeout: PATIENCE, ..OrderRpcConfig::new(DEV_CHAIN_ID) };
    let mut config = IngestConfig::new(fetcher, PoolConfig::default());
    (config.node_admission, config.rpc) = (Some(admission), Some(rpc));
    let ingest = Ingest::start(config).await.expect("all parts start");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    ingest
}

/// It asks a node that executes its blocks, whose head it knows.
async fn asking() -> (Node, Ingest) {
    let node = Node::start(0, |config| NodeConfig { state: true, ..config });
    let ingest = start(node.fetcher(), NodeAdmissionConfig::default()).await;
    knows_head(&ingest, &node).await;
    (node, ingest)
}

async fn knows_head(ingest: &Ingest, node: &Node) {
    let hash = node.node.head().hash;
    eventually("the head", || ingest.head().is_some_and(|head| head.hash == hash)).await;
}

async fn send(ingest: &Ingest, raw: &[u8]) -> Value {
    let params = json!([hex::encode_prefixed(raw)]);
    call(address(ingest), "eth_sendRawTransaction", params).await
}

async fn send_bundle(ingest: &Ingest, block: u64, raws: &[&[u8]]) -> Value {
    let txs: Vec<_> = raws.iter().map(hex::encode_prefixed).collect();
    let params = json!([{ "txs": txs, "blockNumber": format!("{block:#x}") }]);
    call(address(ingest), "eth_sendBundle", params).await
}

#[track_caller]
fn refused(answer: &Value, why: &str) {
    let Value::String(message) = &answer["error"]["message"] else { panic!("{answer}") };
    assert!(message.starts_with(why), "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "admission", "{answer}");
}

/// With the hash of the transaction or the bundle.
#[track_caller]
fn accepted(answer: &Value) {
    let result = &answer["result"];
    assert!(result.is_string() || result["bundleHash"].is_string(), "{answer}");
}

async fn end(ingest: Ingest) {
    let end = ingest.shutdown(DEADLINE).await;
    assert!(end.ended, "{end:?}");
}

#[tokio::test]
async fn a_sender_who_cannot_pay_is_refused_and_one_who_can_is_not() {
    let (node, ingest) = asking().await;
    let next = node.node.head().number + 1;
    let poor = Account::from_entropy(7, 0);
    let (hash, theirs) = signed(&poor, |_| {});
    let (_, ours) = funded(|_| {});
    refused(&send(&ingest, &theirs).await, "insufficient funds");
    accepted(&send(&ingest, &ours).await);
    // All that it may cost counts, not only what it sends.
    let (_, all) = funded(|tx| tx.value = million_ether());
    refused(&send(&ingest, &all).await, "insufficient funds");

    // What is before a transaction in its bundle, or in the blocks before its block, may pay for it.
    refused(&send_bundle(&ingest, next, &[&theirs, &ours]).await, "insufficient funds");
    for (block, raws) in [(next, [&ours, &theirs]), (next + 1, [&theirs, &ours])] {
        accepted(&send_bundle(&ingest, block, &raws.map(|raw| &raw[..])).await);
    }

    // Once a block has funded it, it can pay.
    let (_, funding) = funded(|tx| {
        (tx.to, tx.value) = (TxKind::Call(poor.address), U256::from(10).pow(U256::from(18)));
    });
    node.node.mine_private([funding]).expect("a block");
    knows_head(&ingest, &node).await;
    let sent = send(&ingest, &theirs).await;
    assert_eq!(sent["result"], json!(hash), "{sent}");
    end(ingest).await;
}

#[tokio::test]
async fn a_nonce_that_is_used_is_refused_where_it_cannot_be_left_out() {
    let node = Node::start(0, |config| NodeConfig { state: true, ..config });
    // The pool does not know the nonces of blocks before the head at its start.
    node.node.mine_private([funded(|_| {}).1]).expect("a block");
    node.node.mine();
    let ingest = start(node.fetcher(), NodeAdmissionConfig::default()).await;
    knows_head(&ingest, &node).await;
    let next = node.node.head().number + 1;
    let (hash, used) = funded(|tx| tx.value = U256::ONE);
    let (_, fresh) = funded(|tx| tx.nonce = 1);
    refused(&send(&ingest, &used).await, "nonce too low");
    refused(&send_bundle(&ingest, next + 5, &[&fresh, &used]).await, "nonce too low");
    let txs: Vec<_> = [&fresh, &used].map(hex::encode_prefixed).into();
    let optional = json!([{ "txs": txs, "droppingTxHashes": [hash] }]);
    accepted(&call(address(&ingest), "eth_sendBundle", optional).await);
    end(ingest).await;
}

#[tokio::test]
async fn a_sender_pays_for_all_its_pooled_orders_and_its_nonces_are_not_far_ahead() {
    let (node, ingest) = asking().await;
    let next = node.node.head().number + 1;
    let share = |parts: u64| million_ether() / U256::from(parts);
    let costing = |nonce, wei: U256, tip| {
        funded(|tx| {
            (tx.nonce, tx.value, tx.max_priority_fee_per_gas) = (nonce, wei, tip);
        })
        .1
    };
    // Of one nonce only the dearest counts, whoever sends it and in whatever order.
    for (nonce, parts, tip) in [(0, 3, 1), (0, 4, 2), (0, 4, 3), (1, 3, 1)] {
        accepted(&send(&ingest, &costing(nonce, share(parts), tip)).await);
    }
    let third = costing(2, share(3), 1);
    refused(&send(&ingest, &third).await, "insufficient funds");
    refused(&send_bundle(&ingest, next, &[&third]).await, "insufficient funds");
    accepted(&send_bundle(&ingest, next, &[&costing(2, share(4), 1)]).await);
    // The bundle counts too.
    refused(&send(&ingest, &costing(3, share(8), 1)).await, "insufficient funds");

    let far = costing(17, U256::ZERO, 1);
    for answer in [send(&ingest, &far).await, send_bundle(&ingest, next + 5, &[&far]).await] {
        refused(&answer, "nonce too high");
        assert!(answer.to_string().contains("at most 16 ahead"), "{answer}");
    }
    accepted(&send_bundle(&ingest, next + 5, &[&costing(16, U256::ZERO, 1)]).await);
    end(ingest).await;
}

/// They are decided on together, before any of them is pooled.
#[tokio::test]
async fn the_orders_of_one_batch_are_paid_for_together() {
    let (_node, ingest) = asking().await;
    let third = million_ether() / U256::from(3);
    let one = |nonce| {
        let (_, raw) = funded(|tx| (tx.nonce, tx.value) = (nonce, third));
        json!({
            "jsonrpc": "2.0",
            "id": nonce,
            "method": "eth_sendRawTransaction",
            "params": [hex::encode_prefixed(raw)],
        })
    };
    let batch = Value::from_iter((0..5).map(one)).to_string();
    let sent = read(address(&ingest), &http::post(&batch, None)).await;
    let (pooled, rest) = sent.as_array().expect("a batch").split_at(2);
    pooled.iter().for_each(accepted);
    rest.iter().for_each(|answer| refused(answer, "insufficient funds"));
    assert_eq!(ingest.pool().len(), 2);
    end(ingest).await;
}

#[tokio::test]
async fn an_account_is_asked_for_once_in_a_head() {
    let (node, ingest) = asking().await;
    let asked = || node.node.stats().methods["eth_getBalance"];
    for nonce in 0..5 {
        accepted(&send(&ingest, &funded(|tx| tx.nonce = nonce).1).await);
    }
    assert_eq!(asked(), 1);
    node.node.mine();
    knows_head(&ingest, &node).await;
    accepted(&send(&ingest, &funded(|tx| tx.nonce = 5).1).await);
    assert_eq!(asked(), 2);
    end(ingest).await;
}

#[tokio::test]
async fn while_the_node_does_not_say_orders_are_pooled_or_refused_as_configured() {
    // One that keeps no state, one that never answers, and one that is not there.
    let node = Node::start(0, |config| config);
    let (_folder, silent) = socket();
    let _listens = UnixListener::bind(&silent).expect("a free path");
    let (_elsewhere, absent) = socket();
    let endpoints = [node.node.ipc_path().to_owned(), silent, absent];
    for (endpoint, fails_open) in
        endpoints.into_iter().flat_map(|path| [(path.clone(), true), (path, false)])
    {
        let admission = NodeAdmissionConfig {
            endpoint: Some(Endpoint::Ipc(endpoint.clone())),
            fails_open,
            ..NodeAdmissionConfig::default()
        };
        let ingest = start(node.fetcher(), admission).await;
        for number in 0..2 {
            let (hash, raw) = signed(&Account::from_entropy(7, number), |_| {});
            let sent = send(&ingest, &raw).await;
            if fails_open {
                assert_eq!(sent["result"], json!(hash), "{sent} by {endpoint:?}");
                assert!(ingest.pool().contains(&hash));
            } else {
                let reason = &sent["error"]["data"]["reason"];
                assert_eq!(reason, "admission_unavailable", "{sent} by {endpoint:?}");
            }
        }
        end(ingest).await;
    }
}
