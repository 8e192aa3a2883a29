//! The state that the load runs on, and the blocks of transactions.

use std::{
    collections::HashMap,
    convert::Infallible,
    time::{Duration, Instant},
};

use mock_state::contracts;
use revm::{
    DatabaseRef,
    bytecode::Bytecode,
    context::TxEnv,
    primitives::{Address, B256, Bytes, TxKind, U256, map::foldhash::fast::FixedState},
    state::AccountInfo,
};

const TOKEN_IN: Address = Address::repeat_byte(0xa1);
const TOKEN_OUT: Address = Address::repeat_byte(0xa2);
const POOL: Address = Address::repeat_byte(0xa3);
const ROUTER: Address = Address::repeat_byte(0xa4);
const COMPUTE: Address = Address::repeat_byte(0xa5);
const SENDERS: u64 = 60;
const RECIPIENTS: u64 = 500;
const COMPUTE_ROUNDS: u64 = 120;

/// Accounts that hold something, as a node's state. Each read takes `read_time`; the cache that
/// stands in front of it for each block makes the second read of a thing free.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    accounts: HashMap<Address, AccountInfo, FixedState>,
    storage: HashMap<(Address, U256), U256, FixedState>,
    pub(crate) read_time: Duration,
}

impl Node {
    pub(crate) fn new(read_time: Duration) -> Self {
        let mut node =
            Self { accounts: HashMap::default(), storage: HashMap::default(), read_time };
        let deposit = U256::from(10).pow(U256::from(24));
        for n in 0..SENDERS {
            node.accounts.insert(sender(n), AccountInfo::from_balance(deposit));
            for token in [TOKEN_IN, TOKEN_OUT] {
                node.storage.insert((token, contracts::slot_of(sender(n), U256::ZERO)), deposit);
            }
            let allowances = contracts::slot_of(sender(n), U256::ONE);
            node.storage.insert((TOKEN_IN, contracts::slot_of(ROUTER, allowances)), U256::MAX);
        }
        for n in 0..RECIPIENTS {
            node.accounts.insert(recipient(n), AccountInfo::from_balance(U256::ONE));
            let slot = contracts::slot_of(recipient(n), U256::ZERO);
            node.storage.insert((TOKEN_IN, slot), U256::ONE);
        }
        for (number, token) in [(0, TOKEN_IN), (1, TOKEN_OUT)] {
            node.storage.insert((token, contracts::slot_of(POOL, U256::ZERO)), deposit);
            node.storage.insert((POOL, U256::from(number)), deposit);
        }
        for (address, code) in [
            (TOKEN_IN, contracts::token()),
            (TOKEN_OUT, contracts::token()),
            (POOL, contracts::pool(TOKEN_IN, TOKEN_OUT)),
            (ROUTER, contracts::router(TOKEN_IN, POOL, [0; 4], 0)),
            (COMPUTE, contracts::compute()),
        ] {
            let code = Bytecode::new_legacy(code);
            let info = AccountInfo::new(U256::ZERO, 1, code.hash_slow(), code);
            node.accounts.insert(address, info);
        }
        node
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
        Ok(self.accounts.get(&address).cloned())
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<Bytecode, Infallible> {
        unreachable!("accounts carry their code")
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, Infallible> {
        self.wait();
        Ok(self.storage.get(&(address, index)).copied().unwrap_or_default())
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        Ok(B256::ZERO)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Transfer,
    Token,
    Swap,
    Compute,
    /// 35 % transfers, 40 % tokens, 20 % swaps, 5 % compute: our guess at a block's public part.
    Mix,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Transfer, Self::Token, Self::Swap, Self::Compute, Self::Mix];

    /// Blocks short enough that most are not interrupted: a few milliseconds.
    pub(crate) const fn txs(self) -> u64 {
        match self {
            Self::Transfer | Self::Token | Self::Mix => 200,
            Self::Swap => 100,
            Self::Compute => 40,
        }
    }

    /// The same block every time.
    pub(crate) fn block(self) -> Vec<TxEnv> {
        let mut nonces: HashMap<u64, u64> = HashMap::new();
        (0..self.txs())
            .map(|n| {
                let from = n % SENDERS;
                let nonce = nonces.entry(from).or_default();
                let tx = self.transaction(n, from, *nonce);
                *nonce += 1;
                tx
            })
            .collect()
    }

    fn transaction(self, n: u64, from: u64, nonce: u64) -> TxEnv {
        let to = recipient(n * 7 % RECIPIENTS);
        let word = |value: u64| Bytes::from(U256::from(value).to_be_bytes::<32>());
        let (to, value, data) = match self {
            Self::Transfer => (to, 1, Bytes::new()),
            Self::Token => (TOKEN_IN, 0, contracts::transfer_input(to, 1 + n)),
            Self::Swap => (ROUTER, 0, word(1_000_000 + n)),
            Self::Compute => (COMPUTE, 0, word(COMPUTE_ROUNDS)),
            Self::Mix => {
                // Every twentieth of each, spread over the block.
                let kind = match n * 7 % 20 {
                    0..7 => Self::Transfer,
                    7..15 => Self::Token,
                    15..19 => Self::Swap,
                    _ => Self::Compute,
                };
                return kind.transaction(n, from, nonce);
            }
        };
        TxEnv::builder()
            .caller(sender(from))
            .kind(TxKind::Call(to))
            .value(U256::from(value))
            .data(data)
            .nonce(nonce)
            .gas_limit(1_000_000)
            .gas_price(20)
            .build_fill()
    }
}

/// An account that the token and swap kinds reach without naming it.
pub(crate) const fn reached_by_swaps_alone() -> Address {
    POOL
}

fn sender(n: u64) -> Address {
    numbered(0x51, n)
}

fn recipient(n: u64) -> Address {
    numbered(0x52, n)
}

/// Spread over the address space, as real addresses are.
pub(crate) fn numbered(kind: u8, n: u64) -> Address {
    Address::from_word(revm::primitives::keccak256([&[kind][..], &n.to_be_bytes()].concat()))
}
