//! Executes the blocks of a mock node, and serves the state at each recent block.
//!
//! The pool of the mock node checks no balances, so the EVM may refuse a mined transaction. Such a
//! transaction only raises the nonce of its sender, so that nonces stay those of the chain.

pub mod contracts;
mod world;

use std::collections::VecDeque;

use alloy_consensus::{
    Header, Transaction, TxEnvelope, crypto::secp256k1::recover_signer, transaction::Recovered,
};
use alloy_eips::eip7702::{RecoveredAuthority, RecoveredAuthorization};
use alloy_primitives::{Address, B256, U256};
use mock_node::{
    HISTORY_BLOCKS, MockNode, NodeConfig, NodeError,
    state::{Execute, StateRequest},
};
use parking_lot::Mutex;
use revm::{
    Context, DatabaseRef as _, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv, TxEnv, either::Either},
    database::AccountState,
    primitives::hardfork::SpecId,
};
use serde_json::{Value, json};

pub use self::world::{World, genesis, pool_of};

/// Starts a node, which executes its blocks if [`NodeConfig::state`] is set.
pub fn start(config: NodeConfig) -> Result<MockNode, NodeError> {
    let state = config.state.then_some(Keeper::at_genesis as _);
    MockNode::with_state(config, state)
}

/// The states at the recent blocks. Each is a whole copy, because this world is small. There is
/// always at least one. A block is executed when it is pushed.
///
/// The lock is held for a look-up, or for the execution of a block.
#[derive(Debug)]
struct Keeper {
    chain_id: u64,
    history: Mutex<VecDeque<(B256, World)>>,
}

impl Keeper {
    /// Makes the state at genesis.
    fn at_genesis(config: &NodeConfig, hash: B256) -> Box<dyn Execute> {
        let history = Mutex::new([(hash, genesis(config.accounts))].into());
        Box::new(Self { chain_id: config.chain_id, history })
    }
}

impl Execute for Keeper {
    fn push(&self, hash: B256, header: &Header, txs: Vec<&Recovered<TxEnvelope>>) {
        let mut history = self.history.lock();
        while history.len() > 1 && history.back().is_some_and(|(top, _)| *top != header.parent_hash)
        {
            history.pop_back();
        }
        let (_, parent) = history.back().expect("the oldest state is kept");
        let state = execute(parent.clone(), self.chain_id, header, txs);
        history.push_back((hash, state));
        if history.len() > HISTORY_BLOCKS + 1 {
            history.pop_front();
        }
    }

    fn value(&self, block: &B256, request: StateRequest) -> Option<Value> {
        let history = self.history.lock();
        let state = history.iter().rfind(|(hash, _)| hash == block);
        state.map(|(_, state)| look_up(state, request))
    }
}

fn look_up(state: &World, request: StateRequest) -> Value {
    let account = |address| {
        let Ok(info) = state.basic_ref(address);
        info.unwrap_or_default()
    };
    match request {
        StateRequest::Balance(address) => json!(account(address).balance),
        StateRequest::Nonce(address) => json!(U256::from(account(address).nonce)),
        StateRequest::Code(address) => {
            let Ok(code) = state.code_by_hash_ref(account(address).code_hash);
            json!(code.original_bytes())
        }
        StateRequest::Slot(address, index) => {
            let Ok(word) = state.storage_ref(address, index);
            json!(B256::from(word))
        }
    }
}

/// Returns the state after a block, whose parent has this state.
fn execute(state: World, chain_id: u64, head: &Header, txs: Vec<&Recovered<TxEnvelope>>) -> World {
    let mut cfg = CfgEnv::new_with_spec(SpecId::OSAKA);
    cfg.chain_id = chain_id;
    let mut env = BlockEnv {
        number: U256::from(head.number),
        beneficiary: head.beneficiary,
        timestamp: U256::from(head.timestamp),
        gas_limit: head.gas_limit,
        basefee: head.base_fee_per_gas.unwrap_or_default(),
        prevrandao: Some(head.mix_hash),
        ..BlockEnv::default()
    };
    let fraction = alloy_eips::eip7840::BlobParams::osaka().update_fraction;
    env.set_blob_excess_gas_and_price(head.excess_blob_gas.unwrap_or_default(), fraction as u64);
    let context = Context::mainnet().with_db(state).with_cfg(cfg).with_block(env);
    let mut evm = context.build_mainnet();
    for tx in txs {
        if let Err(error) = evm.transact_commit(tx_env(tx.inner(), tx.signer())) {
            tracing::debug!(hash = %tx.tx_hash(), %error, "a mined transaction cannot be executed");
            let db = &mut evm.ctx.journaled_state.database;
            let account = db.load_account(tx.signer()).expect("memory does not fail");
            account.info.nonce = tx.nonce() + 1;
            account.account_state = AccountState::Touched;
        }
    }
    evm.ctx.journaled_state.database
}

/// Converts a transaction for the EVM.
///
/// Authorities are recovered here, once, by libsecp256k1. The EVM would recover them in every
/// execution, and more slowly.
pub fn tx_env(tx: &impl Transaction, sender: Address) -> TxEnv {
    TxEnv {
        tx_type: tx.ty(),
        caller: sender,
        gas_limit: tx.gas_limit(),
        gas_price: tx.max_fee_per_gas(),
        kind: tx.kind(),
        value: tx.value(),
        data: tx.input().clone(),
        nonce: tx.nonce(),
        chain_id: tx.chain_id(),
        access_list: tx.access_list().cloned().unwrap_or_default(),
        gas_priority_fee: tx.max_priority_fee_per_gas(),
        blob_hashes: tx.blob_versioned_hashes().unwrap_or_default().to_vec(),
        max_fee_per_blob_gas: tx.max_fee_per_blob_gas().unwrap_or_default(),
        authorization_list: tx
            .authorization_list()
            .unwrap_or_default()
            .iter()
            .map(|signed| {
                let authority = signed
                    .signature()
                    .ok()
                    .and_then(|signature| recover_signer(&signature, signed.signature_hash()).ok());
                let authority =
                    authority.map_or(RecoveredAuthority::Invalid, RecoveredAuthority::Valid);
                let inner = signed.inner().clone();
                Either::Right(RecoveredAuthorization::new_unchecked(inner, authority))
            })
            .collect(),
    }
}
