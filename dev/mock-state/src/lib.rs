//! The state of a mock node: blocks are executed on a thread of its own after they are announced, and read at the block
//! that a request names.
//!
//! A transaction that the EVM refuses (the pool looks at no balance) raises its sender's nonce and does nothing else,
//! so that nonces stay those of the chain.

pub mod contracts;
mod history;
mod world;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use alloy_consensus::{Transaction, TxEnvelope, crypto::secp256k1::recover_signer};
use alloy_eips::{
    Decodable2718 as _,
    eip7702::{RecoveredAuthority, RecoveredAuthorization},
};
use alloy_primitives::{Address, B256, U256};
use mock_node::{
    MockNode, NodeConfig, NodeError,
    state::{ExecutableBlock, Execute, StateRequest, StateValue},
};
use revm::{
    Context, ExecuteCommitEvm, MainBuilder, MainContext,
    context::{BlockEnv, CfgEnv, TxEnv, either::Either},
    database::{AccountState, Cache, CacheDB},
    primitives::hardfork::SpecId,
};

use crate::history::History;

/// Starts a node, which executes its blocks if [`NodeConfig::state`] says so.
///
/// # Errors
/// As of [`MockNode::start`].
pub fn start(config: NodeConfig) -> Result<MockNode, NodeError> {
    let state = config.state.then_some(Keeper::at_genesis as _);
    MockNode::with_state(config, state)
}

/// The state of recent blocks.
#[derive(Debug)]
struct Keeper {
    chain_id: u64,
    history: RwLock<History>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Blocks that wait for their execution, for a look without a lock.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    blocks: VecDeque<Arc<ExecutableBlock>>,
    stopped: bool,
}

impl Keeper {
    /// The state at genesis.
    fn at_genesis(config: &NodeConfig, genesis: B256) -> Box<dyn Execute> {
        let values = world::genesis(config.accounts);
        Box::new(Self {
            chain_id: config.chain_id,
            history: RwLock::new(History::new(genesis, values)),
            queue: Mutex::default(),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    fn apply(&self, block: &ExecutableBlock) {
        {
            let mut history = self.history.write().unwrap_or_else(PoisonError::into_inner);
            while history.top() != block.header.parent_hash && history.pop() {}
        }
        // Readers of other blocks are not held up by the execution.
        let written = execute(&self.read(), self.chain_id, block);
        self.history.write().unwrap_or_else(PoisonError::into_inner).push(block.hash, written);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, History> {
        self.history.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Execute for Keeper {
    fn push(&self, block: ExecutableBlock) {
        self.waiting.fetch_add(1, SeqCst);
        self.lock().blocks.push_back(Arc::new(block));
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn is_behind(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    fn run(&self) {
        loop {
            let block = {
                let mut queue = self.lock();
                loop {
                    if queue.stopped {
                        return;
                    }
                    if let Some(block) = queue.blocks.front() {
                        break block.clone();
                    }
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.apply(&block);
            self.lock().blocks.pop_front();
            self.waiting.fetch_sub(1, SeqCst);
            self.changed.notify_all();
        }
    }

    fn value(&self, block: &B256, request: StateRequest) -> Option<StateValue> {
        loop {
            {
                let history = self.read();
                if let Some(depth) = history.depth(block) {
                    return Some(look_up(&history, depth, request));
                }
            }
            let queue = self.lock();
            let due = queue.blocks.iter().any(|queued| queued.hash == *block);
            if !due || queue.stopped {
                // It may have been executed between the two looks.
                let history = self.read();
                return history.depth(block).map(|depth| look_up(&history, depth, request));
            }
            drop(self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

fn look_up(history: &History, depth: usize, request: StateRequest) -> StateValue {
    let account = |address| history.account(depth, address);
    match request {
        StateRequest::Balance(address) => {
            StateValue::Quantity(account(&address).map_or(U256::ZERO, |info| info.balance))
        }
        StateRequest::Nonce(address) => {
            StateValue::Quantity(U256::from(account(&address).map_or(0, |info| info.nonce)))
        }
        StateRequest::Code(address) => {
            let code = account(&address).and_then(|info| history.code(&info.code_hash));
            StateValue::Code(code.map(|code| code.original_bytes()).unwrap_or_default())
        }
        StateRequest::Slot(address, index) => {
            StateValue::Word(history.slot(depth, (address, index)).into())
        }
    }
}

/// What the block writes.
fn execute(history: &History, chain_id: u64, block: &ExecutableBlock) -> Cache {
    let header = &block.header;
    let mut cfg = CfgEnv::new_with_spec(SpecId::OSAKA);
    cfg.chain_id = chain_id;
    let mut env = BlockEnv {
        number: U256::from(header.number),
        beneficiary: header.beneficiary,
        timestamp: U256::from(header.timestamp),
        gas_limit: header.gas_limit,
        basefee: header.base_fee_per_gas.unwrap_or_default(),
        prevrandao: Some(header.mix_hash),
        ..BlockEnv::default()
    };
    let fraction = alloy_eips::eip7840::BlobParams::osaka().update_fraction;
    env.set_blob_excess_gas_and_price(header.excess_blob_gas.unwrap_or_default(), fraction as u64);
    let context = Context::mainnet().with_db(CacheDB::new(history)).with_cfg(cfg).with_block(env);
    let mut evm = context.build_mainnet();
    for (sender, raw) in &block.txs {
        let tx = TxEnvelope::decode_2718_exact(raw)
            .expect("these bytes were decoded or encoded by the node before");
        if let Err(error) = evm.transact_commit(tx_env(&tx, *sender)) {
            tracing::debug!(hash = %tx.tx_hash(), %error, "a mined transaction cannot be executed");
            let db = &mut evm.ctx.journaled_state.database;
            let account = db.load_account(*sender).expect("memory does not fail");
            account.info.nonce = tx.nonce() + 1;
            account.account_state = AccountState::Touched;
        }
    }
    evm.ctx.journaled_state.database.cache
}

/// A transaction as the EVM takes it.
///
/// Authorities are recovered here, once, by libsecp256k1: the EVM would recover them at every execution, and more
/// slowly.
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
