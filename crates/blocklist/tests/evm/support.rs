//! A world in memory that records which accounts are read, and EVMs on it.
#![allow(unreachable_pub, reason = "private to these tests")]

pub mod asm;
pub mod random;

use std::{collections::BTreeSet, sync::Arc};

use blocklist::{BlockGuard, Blocked, Blocklist, BlocklistConfig};
use revm::{
    Context, Database, DatabaseCommit, ExecuteCommitEvm, ExecuteEvm, MainBuilder, MainContext,
    bytecode::{Bytecode, opcode},
    context::{BlockEnv, CfgEnv, TxEnv},
    context_interface::{
        Transaction,
        either::Either,
        transaction::{
            Authorization, AuthorizationTr, RecoveredAuthority, RecoveredAuthorization,
            SignedAuthorization,
        },
    },
    database::{CacheDB, EmptyDB},
    database_interface::DBErrorMarker,
    handler::{MainnetContext, MainnetEvm},
    primitives::{
        Address, B256, Bytes, U256, address, eip4844::BLOB_BASE_FEE_UPDATE_FRACTION_CANCUN,
        hardfork::SpecId,
    },
    state::{AccountInfo, EvmState},
};
use testkit::configured;

pub const SENDER: Address = address!("0x5e00000000000000000000000000000000000001");
pub const COINBASE: Address = address!("0xfe00000000000000000000000000000000000001");
pub const VICTIM: Address = address!("0xbb00000000000000000000000000000000000001");
pub const ROUTER: Address = address!("0xc000000000000000000000000000000000000001");
pub const OTHER: Address = address!("0xaa00000000000000000000000000000000000002");
pub const BASE_FEE: u64 = 7;

/// Every fork from Berlin to the newest that this revm knows.
pub fn forks() -> impl Iterator<Item = SpecId> {
    (SpecId::BERLIN as u8..).map_while(SpecId::try_from_u8)
}

/// A database that records which accounts were read, and how often it was written to.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub inner: CacheDB<EmptyDB>,
    pub accounts: BTreeSet<Address>,
    pub storage_owners: BTreeSet<Address>,
    pub commits: usize,
    /// An account whose reads fail.
    pub lost: Option<Address>,
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("account {0} is lost")]
pub struct Lost(pub Address);

impl DBErrorMarker for Lost {}

pub type TestEvm<INSP = ()> = MainnetEvm<MainnetContext<World>, INSP>;

impl World {
    /// A funded [`SENDER`] and nothing else.
    pub fn new() -> Self {
        let mut world = Self::default();
        world.fund(SENDER, U256::from(10).pow(U256::from(20)));
        world
    }

    pub fn fund(&mut self, address: Address, balance: U256) {
        self.inner.insert_account_info(address, AccountInfo::from_balance(balance));
    }

    pub fn contract(&mut self, address: Address, code: Bytes) {
        self.put(address, Bytecode::new_legacy(code));
    }

    /// An account whose code is the delegation to `target`.
    pub fn delegated(&mut self, address: Address, target: Address) {
        self.put(address, Bytecode::new_eip7702(target));
    }

    fn put(&mut self, address: Address, code: Bytecode) {
        let info = AccountInfo::new(U256::from(1000), 1, code.hash_slow(), code);
        self.inner.insert_account_info(address, info);
    }

    pub fn forget_reads(&mut self) {
        self.accounts.clear();
        self.storage_owners.clear();
    }
}

/// A world in which [`ROUTER`] has this code.
pub fn with_router(code: asm::Asm) -> World {
    let mut world = World::new();
    world.contract(ROUTER, code.bytes());
    world
}

/// A world in which [`ROUTER`] reads the balance of [`VICTIM`].
pub fn reader() -> World {
    with_router(asm::Asm::new().address(VICTIM).op(opcode::BALANCE))
}

impl Database for World {
    type Error = Lost;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Lost> {
        if self.lost == Some(address) {
            return Err(Lost(address));
        }
        self.accounts.insert(address);
        Ok(self.inner.basic(address).expect("in memory"))
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, Lost> {
        Ok(self.inner.code_by_hash(code_hash).expect("in memory"))
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, Lost> {
        self.storage_owners.insert(address);
        Ok(self.inner.storage(address, index).expect("in memory"))
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Lost> {
        Ok(self.inner.block_hash(number).expect("in memory"))
    }
}

impl DatabaseCommit for World {
    fn commit(&mut self, changes: EvmState) {
        self.commits += 1;
        self.inner.commit(changes);
    }
}

pub fn evm(world: World, spec: SpecId) -> TestEvm {
    evm_with(world, spec, COINBASE, ())
}

pub fn evm_with<I>(world: World, spec: SpecId, coinbase: Address, inspector: I) -> TestEvm<I> {
    let mut block = BlockEnv {
        number: U256::from(1000),
        beneficiary: coinbase,
        timestamp: U256::from(1_800_000_000),
        gas_limit: 1_000_000_000,
        basefee: BASE_FEE,
        prevrandao: Some(B256::repeat_byte(1)),
        ..BlockEnv::default()
    };
    block.set_blob_excess_gas_and_price(0, BLOB_BASE_FEE_UPDATE_FRACTION_CANCUN);
    Context::mainnet()
        .with_db(world)
        .with_cfg(CfgEnv::new_with_spec(spec))
        .with_block(block)
        .build_mainnet_with_inspector(inspector)
}

/// The world that an EVM runs over.
pub const fn world_of<I>(evm: &TestEvm<I>) -> &World {
    &evm.ctx.journaled_state.database
}

/// A legacy transaction of [`SENDER`], with a tip.
pub fn tx(to: Address) -> TxEnv {
    TxEnv::builder().caller(SENDER).to(to).gas_limit(10_000_000).gas_price(20).build_fill()
}

/// An authorization, whose signature is invalid without an `authority`.
pub fn authorization(
    chain_id: u64,
    authority: Option<Address>,
    address: Address,
    nonce: u64,
) -> Either<SignedAuthorization, RecoveredAuthorization> {
    let inner = Authorization { chain_id: U256::from(chain_id), address, nonce };
    let authority = authority.map_or(RecoveredAuthority::Invalid, RecoveredAuthority::Valid);
    Either::Right(RecoveredAuthorization::new_unchecked(inner, authority))
}

pub fn keys(state: &EvmState) -> BTreeSet<Address> {
    state.keys().copied().collect()
}

pub fn guard(listed: &[Address]) -> BlockGuard {
    guard_for(listed, COINBASE)
}

pub fn guard_for(listed: &[Address], coinbase: Address) -> BlockGuard {
    let config = configured(BlocklistConfig::default(), |config| config.min_addresses = 0);
    let list = Blocklist::from_addresses(listed.iter().copied(), &config).expect("any number");
    BlockGuard::new(Arc::new(list), coinbase).expect("the coinbase is not listed")
}

/// The steps of a builder that executes by its own means: the pre-check over addresses, the
/// execution, the check of the state, and the commit.
pub fn execute_as_host(guard: &BlockGuard, evm: &mut TestEvm, tx: TxEnv) -> Result<(), Blocked> {
    guard.precheck_addresses(
        tx.caller,
        tx.kind.to().copied(),
        tx.access_list.0.iter().map(|item| item.address),
        tx.authorization_list().map(|signed| (signed.authority(), signed.address())),
    )?;
    let executed = evm.transact(tx).expect("valid");
    guard.check_addresses(executed.state.keys())?;
    evm.commit(executed.state);
    Ok(())
}
