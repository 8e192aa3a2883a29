//! On geth, installed by `scripts/real-nodes.sh`: what the builder executes, geth executes alike. It fails, never skips,
//! when geth is missing.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction as _, TxEip1559};
use alloy_eips::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind, U64, U256, address};
use blocklist::{BlockGuard, Blocklist, BlocklistConfig};
use devnet::{RealNode, RealNodeConfig};
use mempool_ingest::{FetcherConfig, Ingest, IngestConfig, PoolConfig};
use mock_node::{
    contracts::{token, transfer_input},
    workload::{Account, Workload, WorkloadConfig, test_accounts},
};
use revm::context::TxEnv;
use serde_json::{Value, json};

use crate::{
    candidates::Candidates,
    env::NextBlock,
    fill::{Built, Way, fill},
    heads::Heads,
    rpc::{Call, Rpc},
    state::{Codes, NodeState},
    warm::warm,
};

const FEE_RECIPIENT: Address = address!("0x00000000000000000000000000000000000fee00");
const TPS: u32 = 500;
const LOAD_ACCOUNTS: usize = 200;
const PATIENCE: Duration = Duration::from_secs(60);

fn answer(rpc: &Rpc, method: &'static str, params: Value) -> Value {
    let answer = rpc.one(Call(method, params.to_string()));
    serde_json::from_str(answer.expect(method).get()).expect("JSON")
}

fn sign(account: &Account, nonce: u64, to: TxKind, gas_limit: u64, input: Bytes) -> Bytes {
    let tx = TxEip1559 {
        chain_id: mock_node::DEV_CHAIN_ID,
        nonce,
        gas_limit,
        max_fee_per_gas: 200_000_000_000,
        max_priority_fee_per_gas: 3_000_000_000,
        to,
        value: U256::ZERO,
        input,
        ..TxEip1559::default()
    };
    let signature = account.sign_hash(tx.signature_hash());
    tx.into_signed(signature).encoded_2718().into()
}

/// Code that returns what follows it.
fn creation(code: &Bytes) -> Bytes {
    let length = u16::try_from(code.len()).expect("a small contract").to_be_bytes();
    // PUSH2 length, DUP1, PUSH1 12, PUSH1 0, CODECOPY, PUSH1 0, RETURN, and STOP up to byte 12.
    let copy = [0x61, length[0], length[1], 0x80, 0x60, 12, 0x5f, 0x39, 0x5f, 0xf3, 0x00, 0x00];
    [&copy, code.as_ref()].concat().into()
}

/// A token on the chain, whose transfers of nothing succeed and of something revert.
fn deploy(rpc: &Rpc, account: &Account) -> Address {
    let raw = sign(account, 0, TxKind::Create, 2_000_000, creation(&token()));
    answer(rpc, "eth_sendRawTransaction", json!([raw]));
    let address = account.address.create(0);
    let deadline = Instant::now() + PATIENCE;
    while answer(rpc, "eth_getCode", json!([address, "latest"])) == "0x" {
        assert!(Instant::now() < deadline, "the token is not mined");
        std::thread::sleep(Duration::from_millis(50));
    }
    address
}

/// Sends the workload and calls of the token, each transaction at its time.
fn load(path: &Path, token: Address, callers: &[Account], stop: &AtomicBool) -> u64 {
    let rpc = Rpc::connect(path, PATIENCE).expect("geth listens");
    let config = WorkloadConfig {
        accounts: LOAD_ACCOUNTS,
        ..WorkloadConfig::new(11, mock_node::DEV_CHAIN_ID)
    };
    let mut workload = Workload::new(config);
    let start = Instant::now();
    let mut sent = 0;
    while !stop.load(SeqCst) {
        let due = (start.elapsed().as_secs_f64() * f64::from(TPS)) as u64;
        let behind = usize::try_from(due.saturating_sub(sent)).unwrap_or(0).min(250);
        let mut raws: Vec<Bytes> =
            workload.prepare(behind * 9 / 10).into_iter().map(|tx| tx.raw).collect();
        let second = sent / u64::from(TPS);
        for number in raws.len() as u64..behind as u64 {
            let call = sent + number;
            let caller = &callers[call as usize % callers.len()];
            let nonce = NONCES.with_borrow_mut(|nonces| {
                let nonce = nonces.entry(caller.address).or_insert(0);
                *nonce += 1;
                *nonce - 1
            });
            let to = Address::from_word(B256::from(U256::from(call + 0x1_0000)));
            let input = transfer_input(to, u64::from(call % 3 == 0) * (second + 1));
            raws.push(sign(caller, nonce, TxKind::Call(token), 90_000, input));
        }
        let calls: Vec<Call> = raws
            .iter()
            .map(|raw| Call("eth_sendRawTransaction", json!([raw]).to_string()))
            .collect();
        for sent in rpc.batch(&calls).expect("geth answers") {
            sent.expect("geth takes it");
        }
        sent += raws.len() as u64;
        std::thread::sleep(Duration::from_millis(10));
    }
    sent
}

thread_local! {
    static NONCES: std::cell::RefCell<std::collections::BTreeMap<Address, u64>> = Default::default();
}

/// The transaction as `eth_simulateV1` takes it.
fn simulated(tx: &TxEnv) -> Value {
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
        let item = |item: &alloy_eips::eip2930::AccessListItem| json!({ "address": item.address, "storageKeys": item.storage_keys });
        call["accessList"] = tx.access_list.iter().map(item).collect();
    }
    call
}

/// Left out: authorizations, which in the executed form have no signature any more, and blobs.
fn can_be_simulated(tx: &TxEnv) -> bool {
    tx.authorization_list.is_empty() && tx.blob_hashes.is_empty()
}

#[test]
fn a_built_block_uses_the_gas_and_has_the_statuses_that_geth_finds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = RealNodeConfig::default()
        .with_accounts(LOAD_ACCOUNTS + 40)
        .with_block_time(Duration::from_secs(2))
        .with_extra_args(["--rpc.gascap", "0", "--rpc.evmtimeout", "0"]);
    let node = RealNode::geth(folder.path(), &config).expect("geth runs");
    let rpc = Arc::new(Rpc::connect(node.ipc_path(), PATIENCE).expect("geth listens"));
    let mut callers = test_accounts(LOAD_ACCOUNTS + 40).split_off(LOAD_ACCOUNTS);
    let deployer = callers.pop().expect("there are 40");
    let token = deploy(&rpc, &deployer);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let fetcher = FetcherConfig::ipc(node.ipc_path());
    let ingest = runtime
        .block_on(Ingest::start(IngestConfig::new(fetcher, PoolConfig::default())))
        .expect("it starts");
    let heads = Heads::follow(ingest.pool()).expect("a thread");
    let stop = AtomicBool::new(false);
    let guard = {
        let nobody = [Address::repeat_byte(0xbb)];
        let list = Blocklist::from_addresses(nobody, &BlocklistConfig::default());
        BlockGuard::new(Arc::new(list.expect("a list")), FEE_RECIPIENT).expect("not listed")
    };
    let (blocks, txs, failed) = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(node.ipc_path(), token, &callers, &stop));
        let (mut blocks, mut txs, mut failed) = (0, 0, 0);
        while blocks < 5 {
            let (head, told) = heads.next_timeout(PATIENCE).expect("a head");
            let block =
                NextBlock::after(head, mock_node::DEV_CHAIN_ID, FEE_RECIPIENT, 60_000_000, 2);
            let mut pool = ingest.pool().subscribe(block.number());
            let state = NodeState::new(Arc::clone(&rpc), block.parent.hash, Codes::default());
            let mut candidates = Candidates::default();
            let fill_at = told + Duration::from_millis(1_200);
            while Instant::now() < fill_at {
                candidates.follow(&mut pool);
                warm(&state, &block, candidates.take_new()).expect("geth answers");
                std::thread::sleep(Duration::from_millis(25));
            }
            candidates.follow(&mut pool);
            candidates.txs.retain(|_, tx| can_be_simulated(&tx.env));
            let built = fill(Way::OURS, &block, &guard, &candidates, &state).expect("it fills");
            if built.txs.len() < 200 {
                continue;
            }
            assert_eq!((built.unread, built.blocked.len()), (0, 0));
            compare(&rpc, &block, &candidates, &built);
            blocks += 1;
            txs += built.txs.len();
            failed += built.txs.iter().filter(|(tx, _)| !tx.success).count();
        }
        stop.store(true, SeqCst);
        println!("{} transactions sent", load.join().expect("the load does not panic"));
        (blocks, txs, failed)
    });
    println!("{blocks} blocks of {txs} transactions, {failed} of them failed, are alike on geth");
    assert!(failed > 0, "a status that is always 1 proves little");
    runtime.block_on(ingest.shutdown(Duration::from_secs(10)));
}

fn compare(rpc: &Rpc, block: &NextBlock, candidates: &Candidates, built: &Built) {
    let calls: Vec<Value> = built
        .txs
        .iter()
        .map(|(tx, _)| simulated(&candidates.env_of(&tx.hash).expect("it was a candidate")))
        .collect();
    let overrides = json!({
        "number": U256::from(block.number()),
        "time": U64::from(block.env.timestamp.to::<u64>()),
        "gasLimit": U64::from(block.env.gas_limit),
        "feeRecipient": block.env.beneficiary,
        "prevRandao": block.env.prevrandao,
        "baseFeePerGas": U256::from(block.env.basefee),
    });
    let request = json!([
        { "blockStateCalls": [{ "blockOverrides": overrides, "calls": calls }], "validation": true },
        { "blockHash": block.parent.hash },
    ]);
    let simulated = answer(rpc, "eth_simulateV1", request);
    let results = simulated[0]["calls"].as_array().expect("a result for each call");
    assert_eq!(results.len(), built.txs.len());
    for ((tx, _), result) in built.txs.iter().zip(results) {
        let number = |field: &str| -> u64 {
            serde_json::from_value::<U64>(result[field].clone()).expect("a number").to()
        };
        let found = (number("gasUsed"), number("status") == 1);
        assert_eq!((tx.gas_used, tx.success), found, "{}: {result}", tx.hash);
    }
    let total: U64 = serde_json::from_value(simulated[0]["gasUsed"].clone()).expect("a number");
    assert_eq!(total.to::<u64>(), built.gas_used);
}
