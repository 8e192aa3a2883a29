//! Node admission: the node is asked whether senders can pay before an order is pooled.

use std::os::unix::net::UnixListener;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Bytes, TxKind, U256};
use mempool_ingest::NodeAdmissionConfig;
use mock_node::workload::test_accounts;
use txpool_fetcher::Endpoint;

use super::{
    rpc::{DEADLINE, address, call, request_json},
    *,
};

/// The number of accounts of the node's own load. The account after them is funded too.
const LOAD_ACCOUNTS: usize = 20;

/// Signs a transaction with a funded account, and returns its hash and bytes.
fn funded(edit: impl FnOnce(&mut TxEip1559)) -> (B256, Bytes) {
    signed(&test_accounts(LOAD_ACCOUNTS + 1).pop().expect("an account"), edit)
}

/// The balance of the funded account, in wei.
fn million_ether() -> U256 {
    U256::from(1_000_000) * U256::from(10).pow(U256::from(18))
}

/// Starts an RPC server that asks the node, which has as much time as the test.
async fn start(fetcher: FetcherConfig, admission: NodeAdmissionConfig) -> Ingest {
    let rpc =
        configured(OrderRpcConfig::new(DEV_CHAIN_ID), |config| config.admission_timeout = PATIENCE);
    let mut config = IngestConfig::new(fetcher, PoolConfig::default());
    config.node_admission = Some(admission);
    config.rpc = Some(rpc);
    let ingest = Ingest::start(config).await.expect("all parts start");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    ingest
}

/// Starts a node that executes its blocks, and an RPC server that asks it and knows its head.
async fn start_with_state() -> (Node, Ingest) {
    let node = Node::start(0, |config| NodeConfig { state: true, ..config });
    let ingest = start(node.fetcher(), NodeAdmissionConfig::default()).await;
    wait_for_head(&ingest, &node).await;
    (node, ingest)
}

async fn wait_for_head(ingest: &Ingest, node: &Node) {
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
fn assert_refused(response: &Value, message_prefix: &str) {
    let Value::String(message) = &response["error"]["message"] else { panic!("{response}") };
    assert!(message.starts_with(message_prefix), "{response}");
    assert_eq!(response["error"]["data"]["reason"], "admission", "{response}");
}

#[track_caller]
fn assert_accepted(response: &Value) {
    let result = &response["result"];
    assert!(result.is_string() || result["bundleHash"].is_string(), "{response}");
}

async fn end(ingest: Ingest) {
    let end = ingest.shutdown(DEADLINE).await;
    assert!(end.ended, "{end:?}");
}

#[tokio::test]
async fn only_senders_who_can_pay_are_accepted() {
    let (node, ingest) = start_with_state().await;
    let next = node.node.head().number + 1;
    let poor = Account::from_entropy(7, 0);
    let (hash, unfunded_tx) = signed(&poor, |_| {});
    let (_, funded_tx) = funded(|_| {});
    assert_refused(&send(&ingest, &unfunded_tx).await, "insufficient funds");
    assert_accepted(&send(&ingest, &funded_tx).await);
    // The value and the fees together exceed the balance.
    let (_, whole_balance) = funded(|tx| tx.value = million_ether());
    assert_refused(&send(&ingest, &whole_balance).await, "insufficient funds");

    // An earlier transaction of the bundle, or an earlier block, may fund the sender.
    assert_refused(
        &send_bundle(&ingest, next, &[&unfunded_tx, &funded_tx]).await,
        "insufficient funds",
    );
    for (block, raws) in
        [(next, [&funded_tx, &unfunded_tx]), (next + 1, [&unfunded_tx, &funded_tx])]
    {
        assert_accepted(&send_bundle(&ingest, block, &raws.map(|raw| &raw[..])).await);
    }

    // The sender can pay after a block has funded it.
    let (_, funding) = funded(|tx| {
        (tx.to, tx.value) = (TxKind::Call(poor.address), U256::from(10).pow(U256::from(18)));
    });
    node.node.mine_private([funding]).expect("a block");
    wait_for_head(&ingest, &node).await;
    let sent = send(&ingest, &unfunded_tx).await;
    assert_eq!(sent["result"], json!(hash), "{sent}");
    end(ingest).await;
}

#[tokio::test]
async fn a_used_nonce_is_refused_unless_the_transaction_is_optional() {
    let node = Node::start(0, |config| NodeConfig { state: true, ..config });
    // The pool does not know nonces of blocks that were mined before it started.
    node.node.mine_private([funded(|_| {}).1]).expect("a block");
    node.node.mine();
    let ingest = start(node.fetcher(), NodeAdmissionConfig::default()).await;
    wait_for_head(&ingest, &node).await;
    let next = node.node.head().number + 1;
    let (hash, used) = funded(|tx| tx.value = U256::ONE);
    let (_, fresh) = funded(|tx| tx.nonce = 1);
    assert_refused(&send(&ingest, &used).await, "nonce too low");
    assert_refused(&send_bundle(&ingest, next + 5, &[&fresh, &used]).await, "nonce too low");
    let txs: Vec<_> = [&fresh, &used].map(hex::encode_prefixed).into();
    let optional = json!([{ "txs": txs, "droppingTxHashes": [hash] }]);
    assert_accepted(&call(address(&ingest), "eth_sendBundle", optional).await);
    end(ingest).await;
}

#[tokio::test]
async fn all_pooled_orders_of_a_sender_count_against_its_balance() {
    let (node, ingest) = start_with_state().await;
    let next = node.node.head().number + 1;
    let share = |parts: u64| million_ether() / U256::from(parts);
    let costing = |nonce, wei: U256, tip| {
        funded(|tx| {
            (tx.nonce, tx.value, tx.max_priority_fee_per_gas) = (nonce, wei, tip);
        })
        .1
    };
    // Of several transactions with one nonce, only the most expensive counts, in whatever order
    // they arrive.
    for (nonce, parts, tip) in [(0, 3, 1), (0, 4, 2), (0, 4, 3), (1, 3, 1)] {
        assert_accepted(&send(&ingest, &costing(nonce, share(parts), tip)).await);
    }
    let third = costing(2, share(3), 1);
    assert_refused(&send(&ingest, &third).await, "insufficient funds");
    assert_refused(&send_bundle(&ingest, next, &[&third]).await, "insufficient funds");
    assert_accepted(&send_bundle(&ingest, next, &[&costing(2, share(4), 1)]).await);
    // The bundle counts too.
    assert_refused(&send(&ingest, &costing(3, share(8), 1)).await, "insufficient funds");

    let far = costing(17, U256::ZERO, 1);
    for answer in [send(&ingest, &far).await, send_bundle(&ingest, next + 5, &[&far]).await] {
        assert_refused(&answer, "nonce too high");
        assert!(answer.to_string().contains("at most 16 ahead"), "{answer}");
    }
    assert_accepted(&send_bundle(&ingest, next + 5, &[&costing(16, U256::ZERO, 1)]).await);
    end(ingest).await;
}

/// The host decides on all orders of a batch before any of them is pooled.
#[tokio::test]
async fn the_orders_of_one_batch_count_together() {
    let (_node, ingest) = start_with_state().await;
    let third = million_ether() / U256::from(3);
    let request = |nonce| {
        let (_, raw) = funded(|tx| (tx.nonce, tx.value) = (nonce, third));
        json!({
            "jsonrpc": "2.0",
            "id": nonce,
            "method": "eth_sendRawTransaction",
            "params": [hex::encode_prefixed(raw)],
        })
    };
    let batch = Value::from_iter((0..5).map(request)).to_string();
    let sent = request_json(address(&ingest), &http::post(&batch, None)).await;
    let (pooled, rest) = sent.as_array().expect("a batch").split_at(2);
    for response in pooled {
        assert_accepted(response);
    }
    for response in rest {
        assert_refused(response, "insufficient funds");
    }
    assert_eq!(ingest.pool().len(), 2);
    end(ingest).await;
}

#[tokio::test]
async fn an_account_is_requested_once_per_head() {
    let (node, ingest) = start_with_state().await;
    let requests = || node.node.stats().methods["eth_getBalance"];
    for nonce in 0..5 {
        assert_accepted(&send(&ingest, &funded(|tx| tx.nonce = nonce).1).await);
    }
    assert_eq!(requests(), 1);
    node.node.mine();
    wait_for_head(&ingest, &node).await;
    assert_accepted(&send(&ingest, &funded(|tx| tx.nonce = 5).1).await);
    assert_eq!(requests(), 2);
    end(ingest).await;
}

#[tokio::test]
async fn without_an_answer_orders_are_pooled_or_refused_as_configured() {
    // A node without state, one that never answers, and one that does not exist.
    let node = Node::start(0, |config| config);
    let (_folder, silent) = socket();
    let _listens = UnixListener::bind(&silent).expect("a free path");
    let (_elsewhere, absent) = socket();
    let endpoints = [node.node.ipc_path().to_owned(), silent, absent];
    for (endpoint, fails_open) in
        endpoints.into_iter().flat_map(|path| [(path.clone(), true), (path, false)])
    {
        let admission = configured(NodeAdmissionConfig::default(), |config| {
            config.endpoint = Some(Endpoint::Ipc(endpoint.clone()));
            config.fails_open = fails_open;
        });
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
