//! Tests of the state that blocks leave behind.

use alloy_consensus::{Transaction as _, TxEnvelope, transaction::SignerRecoverable};
use alloy_eips::Decodable2718;
use alloy_primitives::{Address, B256, U256};
use mock_node::{
    MockNode, NodeConfig,
    workload::{SWAP_SELECTOR, listed, routers, tokens},
};
use serde_json::{Value, json};
use testkit::state::contracts::slot_of;

use crate::client::{Client, connected};

fn transactions(node: &MockNode) -> Vec<TxEnvelope> {
    let raws = node.pending().into_iter().map(|hash| node.raw(hash).expect("pending"));
    raws.map(|raw| TxEnvelope::decode_2718_exact(&raw).expect("it decodes")).collect()
}

fn slot(client: &mut Client, address: Address, slot: U256, block: &Value) -> U256 {
    let word = client.result("eth_getStorageAt", json!([address, slot, block]));
    assert_eq!(word.as_str().expect("text").len(), 66, "all 32 bytes are written");
    serde_json::from_value::<B256>(word).expect("a word").into()
}

fn quantity(client: &mut Client, method: &str, address: Address, block: &Value) -> U256 {
    let value = client.result(method, json!([address, block]));
    serde_json::from_value(value).expect("a quantity")
}

/// The balance of the receiver of a token transfer, and the amount of the transfer.
fn received(client: &mut Client, tx: &TxEnvelope, block: &Value) -> (U256, U256) {
    let (token, input) = (tx.to().expect("a token"), tx.input());
    let balance = slot_of(Address::from_slice(&input[16..36]), U256::ZERO);
    (slot(client, token, balance, block), U256::from_be_slice(&input[36..68]))
}

#[test]
fn the_load_changes_the_state_and_a_reorg_undoes_it() {
    let (_dir, node, mut client) =
        connected(|config| NodeConfig { state: true, preload: 400, ..config });
    let txs = transactions(&node);
    // Checks that all effects are in the state of a block, or none. Returns the numbers of
    // transfers, token calls and swaps.
    let mut check = |block: B256, is_mined: bool| {
        let block = json!({ "blockHash": block, "requireCanonical": true });
        let or_zero = |value| if is_mined { value } else { U256::ZERO };
        let mut counts = [0; 3];
        for tx in &txs {
            let to = tx.to().expect("the load creates no contract");
            if tokens().contains(&to) {
                let (balance, amount) = received(&mut client, tx, &block);
                assert_eq!(balance, or_zero(amount), "{}", tx.tx_hash());
                assert_ne!(client.result("eth_getCode", json!([to, block])), "0x");
                counts[1] += 1;
            } else if tx.input().starts_with(&SWAP_SELECTOR) {
                counts[2] += 1;
            } else if !routers().contains(&to) {
                let balance = quantity(&mut client, "eth_getBalance", to, &block);
                assert_eq!(balance, or_zero(tx.value()));
                counts[0] += 1;
            }
            let sender = tx.recover_signer().expect("a signature");
            let nonce = quantity(&mut client, "eth_getTransactionCount", sender, &block);
            assert_eq!(nonce > U256::from(tx.nonce()), is_mined);
        }
        counts
    };
    let before = node.head().hash;
    let block = node.mine();
    assert_eq!(block.txs.len(), 400);
    check(before, false);
    let counts = check(block.hash, true);
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    let reorg = node.reorg(1).expect("one block is kept");
    check(reorg.added[0].hash, false);
    check(node.mine().hash, true);
    // The undone block is no longer known.
    let undone = json!({ "blockHash": block.hash });
    assert!(client.call("eth_getBalance", json!([listed()[0], undone]))["error"].is_object());
}

#[test]
fn without_state_only_requests_for_nonces_are_answered() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 1, ..config });
    let sender = transactions(&node)[0].recover_signer().expect("a signature");
    let answer = client.call("eth_getBalance", json!([sender, "latest"]));
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
    assert_eq!(client.result("eth_getTransactionCount", json!([sender, "pending"])), "0x1");
    assert_eq!(client.result("eth_getTransactionCount", json!([sender, "latest"])), "0x0");
}

#[test]
fn without_state_every_account_can_have_a_million_ether() {
    let (_dir, _node, mut client) =
        connected(|config| NodeConfig { answers_balances: true, ..config });
    let balance = quantity(&mut client, "eth_getBalance", Address::ZERO, &json!("latest"));
    assert_eq!(balance, U256::from(10).pow(U256::from(24)));
}
