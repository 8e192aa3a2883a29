//! The state that the load runs on, and the blocks of transactions.

use std::{
    convert::Infallible,
    sync::LazyLock,
    time::{Duration, Instant},
};

use mock_node::workload::{SWAP_SELECTOR, routers, test_accounts, tokens};
use revm::{
    DatabaseRef,
    bytecode::Bytecode,
    context::TxEnv,
    primitives::{Address, B256, Bytes, TxKind, U256},
    state::AccountInfo,
};
use testkit::state::{World, contracts, genesis, pool_of};

const COMPUTE: Address = Address::repeat_byte(0xa5);
pub(crate) const TXS: u64 = 200;
const SENDERS: usize = 60;
const RECIPIENTS: u64 = 500;
const COMPUTE_ROUNDS: u64 = 120;

static SENDER: LazyLock<Vec<Address>> =
    LazyLock::new(|| test_accounts(SENDERS).iter().map(|account| account.address).collect());

/// Accounts that hold something, as a node's state. Each read takes `read_time`; the cache that
/// stands in front of it for each block makes the second read of a thing free.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    state: World,
    pub(crate) read_time: Duration,
}

impl Node {
    pub(crate) fn new(read_time: Duration) -> Self {
        let mut state = genesis(SENDERS);
        for n in 0..RECIPIENTS {
            state.insert_account_info(recipient(n), AccountInfo::from_balance(U256::ONE));
            let slot = contracts::slot_of(recipient(n), U256::ZERO);
            let Ok(()) = state.insert_account_storage(tokens()[0], slot, U256::ONE);
        }
        let code = Bytecode::new_legacy(contracts::compute());
        let compute = AccountInfo::new(U256::ZERO, 1, code.hash_slow(), code);
        state.insert_account_info(COMPUTE, compute);
        Self { state, read_time }
    }

    /// Sleeping is far too coarse for microseconds.
    fn wait(&self) {
        if !self.read_time.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.read_time {
                std::hint::spin_loop();
            }
        }
    }
}

impl DatabaseRef for Node {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        self.wait();
        self.state.basic_ref(address)
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<Bytecode, Infallible> {
        unreachable!("accounts carry their code")
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, Infallible> {
        self.wait();
        self.state.storage_ref(address, index)
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        Ok(B256::ZERO)
    }
}

/// The same block every time: 35 % transfers, 40 % tokens, 20 % swaps, 5 % compute, our guess at a
/// block's public part. So short that most are not interrupted: a few milliseconds.
pub(crate) fn block() -> Vec<TxEnv> {
    (0..TXS).map(transaction).collect()
}

fn transaction(n: u64) -> TxEnv {
    let (from, to) = (n as usize % SENDERS, recipient(n * 7 % RECIPIENTS));
    let word = |value: u64| U256::from(value).to_be_bytes::<32>();
    // Every twentieth of each, spread over the block.
    let (to, value, data) = match n * 7 % 20 {
        0..7 => (to, 1, Bytes::new()),
        7..15 => (tokens()[0], 0, contracts::transfer_input(to, 1 + n)),
        15..19 => {
            let input = [&SWAP_SELECTOR[..], &word(0), &word(1_000_000 + n)].concat();
            (routers()[0], 0, input.into())
        }
        _ => (COMPUTE, 0, word(COMPUTE_ROUNDS).into()),
    };
    TxEnv::builder()
        .caller(SENDER[from])
        .kind(TxKind::Call(to))
        .value(U256::from(value))
        .data(data)
        .nonce(n / SENDERS as u64)
        .gas_limit(1_000_000)
        .gas_price(20)
        .build_fill()
}

/// An account that swaps reach without naming it.
pub(crate) fn reached_by_swaps_alone() -> Address {
    pool_of(0)
}

fn recipient(n: u64) -> Address {
    numbered(0x52, n)
}

/// Spread over the address space, as real addresses are.
pub(crate) fn numbered(kind: u8, n: u64) -> Address {
    Address::from_word(revm::primitives::keccak256([&[kind][..], &n.to_be_bytes()].concat()))
}
