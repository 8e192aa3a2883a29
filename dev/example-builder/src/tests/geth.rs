//! On geth, installed by `scripts/real-nodes.sh`: what the builder executes, geth executes alike. It fails, never skips,
//! when geth is missing.

use alloy_primitives::{U64, U256};
use devnet::{RealNode, RealNodeConfig};
use mock_node::workload::{Workload, WorkloadConfig};
use mock_state::contracts::token;
use serde_json::{Value, json};

use super::*;

const LOAD_ACCOUNTS: usize = 200;

/// Code that returns what follows it.
fn creation(code: &Bytes) -> Bytes {
    let length = u16::try_from(code.len()).expect("a small contract").to_be_bytes();
    // PUSH2 length, DUP1, PUSH1 12, PUSH0, CODECOPY, PUSH0, RETURN, and STOP up to byte 12.
    let copy = [0x61, length[0], length[1], 0x80, 0x60, 12, 0x5f, 0x39, 0x5f, 0xf3, 0x00, 0x00];
    [&copy, code.as_ref()].concat().into()
}

/// The transaction as `eth_simulateV1` takes it.
fn simulated(tx: &revm::context::TxEnv) -> Value {
    let mut call = json!({
        "from": tx.caller,
        "to": tx.kind.to(),
        "value": tx.value,
        "input": tx.data,
        "nonce": U64::from(tx.nonce),
        "gas": U64::from(tx.gas_limit),
    });
    match tx.gas_priority_fee {
        Some(tip) => {
            call["maxFeePerGas"] = json!(U256::from(tx.gas_price));
            call["maxPriorityFeePerGas"] = json!(U256::from(tip));
        }
        None => call["gasPrice"] = json!(U256::from(tx.gas_price)),
    }
    if tx.tx_type == 1 {
        call["accessList"] = json!(tx.access_list);
    }
    call
}

#[test]
fn a_built_block_uses_the_gas_and_has_the_statuses_that_geth_finds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = RealNodeConfig {
        accounts: LOAD_ACCOUNTS + 40,
        block_time: Duration::from_secs(2),
        extra_args: ["--rpc.gascap", "0", "--rpc.evmtimeout", "0"].map(Into::into).into(),
        ..RealNodeConfig::default()
    };
    let geth = RealNode::geth(folder.path(), &config).expect("geth runs");
    let world = World::new(geth.ipc_path());
    let client = {
        let connect =
            ProviderBuilder::new().connect_ipc(IpcConnect::new(geth.ipc_path().to_owned()));
        world.runtime.block_on(connect).expect("it listens")
    };
    let send = |raw: &Bytes| {
        drop(world.runtime.block_on(client.send_raw_transaction(raw)).expect("geth takes it"));
    };
    // A token, whose transfers of nothing succeed and of something revert.
    let callers = test_accounts(LOAD_ACCOUNTS + 40).split_off(LOAD_ACCOUNTS);
    let (deployer, callers) = callers.split_first().expect("there are 40");
    send(&sign(deployer, 0, 3, TxKind::Create, creation(&token())).1);
    let token = deployer.address.create(0);
    let has_code = || world.runtime.block_on(client.get_code_at(token).into_future());
    while has_code().expect("geth answers").is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    let config =
        WorkloadConfig { accounts: LOAD_ACCOUNTS, ..WorkloadConfig::new(11, DEV_CHAIN_ID) };
    let mut load = Workload::new(config);
    let (mut blocks, mut failed, mut nonce) = (0, 0, 0);
    while blocks < 3 {
        let (block, state) = world.block();
        for tx in load.prepare(300) {
            send(&tx.raw);
        }
        for (number, caller) in callers.iter().enumerate() {
            let input = transfer_input(Address::with_last_byte(7), u64::from(number % 3 == 0));
            send(&sign(caller, nonce, 3, token.into(), input).1);
        }
        nonce += 1;
        let mut candidates = world.candidates(&block);
        prefetch(&block, &state, &mut candidates, Instant::now() + PATIENCE).expect("it answers");
        // Authorizations have no signature any more in the executed form; blobs cannot be simulated.
        candidates.all.retain(|_, candidate| {
            candidate
                .txs
                .iter()
                .all(|tx| tx.env.authorization_list.is_empty() && tx.env.blob_hashes.is_empty())
        });
        let built = fill(Way::OURS, &block, &guard(), &candidates, &state).expect("it fills");
        if built.txs.len() < 100 {
            continue;
        }
        let calls: Vec<Value> = built.txs.iter().map(|(tx, ..)| simulated(&tx.env)).collect();
        let overrides = json!({
            "number": U256::from(block.number()),
            "time": U64::from(block.env.timestamp.to::<u64>()),
            "gasLimit": U64::from(block.env.gas_limit),
            "feeRecipient": block.env.beneficiary,
            "prevRandao": block.env.prevrandao,
            "baseFeePerGas": U256::from(block.env.basefee),
        });
        let request = (
            json!({ "blockStateCalls": [{ "blockOverrides": overrides, "calls": calls }], "validation": true }),
            json!({ "blockHash": block.parent.hash }),
        );
        let request = client.raw_request::<_, Value>("eth_simulateV1".into(), request);
        let found = world.runtime.block_on(request).expect("geth simulates");
        let found: Vec<(U64, bool)> = found[0]["calls"]
            .as_array()
            .expect("a result for each call")
            .iter()
            .map(|call| {
                let gas = serde_json::from_value(call["gasUsed"].clone()).expect("a number");
                (gas, call["status"] == "0x1")
            })
            .collect();
        let ours: Vec<_> =
            built.txs.iter().map(|(_, gas, success)| (U64::from(*gas), *success)).collect();
        assert_eq!(ours, found);
        blocks += 1;
        failed += built.txs.iter().filter(|(.., success)| !success).count();
    }
    assert!(failed > 0, "a status that is always 1 proves little");
}
