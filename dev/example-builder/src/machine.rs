//! The ways to execute a transaction: how it is checked, whether reads are cached, and whether the
//! EVM is reused.

use alloy_eips::{eip2935, eip4788};
use alloy_primitives::{Address, B256, Bytes, U256, map::AddressMap};
use blocklist::{BlockGuard, Blocked, ExecuteError, How};
use revm::{
    Context, Database, DatabaseCommit, DatabaseRef, ExecuteCommitEvm, ExecuteEvm, InspectEvm,
    MainBuilder, MainContext, SystemCallCommitEvm,
    bytecode::Bytecode,
    context::{
        TxEnv,
        result::{EVMError, ExecutionResult, InvalidTransaction},
    },
    database::CacheDB,
    handler::{MainnetContext, MainnetEvm},
    state::{Account, AccountInfo},
};
use revm_inspectors::access_list::AccessListInspector;

use crate::{env::NextBlock, rpc::ReadError};

/// Why a transaction is not in the block. Nothing was written.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It reaches a listed address.
    Blocked(Blocked),
    /// Its nonce has been used; the sender's next ones may still be valid.
    NonceTooLow,
    /// It is invalid at this place of the block.
    Invalid(InvalidTransaction),
    /// The node did not answer: this order is left out, the others continue.
    Unread(ReadError),
    /// A defect of the EVM's set-up.
    Other(String),
}

pub(crate) type Evm<DB, I> = MainnetEvm<MainnetContext<DB>, I>;

/// Decides by the result of an execution whether it is committed.
pub(crate) type Keep<'k> = &'k dyn Fn(&ExecutionResult) -> bool;

/// The state below a block's own writes.
pub(crate) trait Under: DatabaseRef<Error = ReadError> + std::fmt::Debug {}
impl<T: DatabaseRef<Error = ReadError> + std::fmt::Debug> Under for T {}

/// A block's writes over that state.
pub(crate) trait Store<U: Under>:
    Database<Error = ReadError> + DatabaseCommit + std::fmt::Debug
{
    fn writes(&self) -> &CacheDB<U>;
    fn writes_mut(&mut self) -> &mut CacheDB<U>;
}

/// Whether reads of one transaction are cached for the next.
pub(crate) trait Reads {
    type Store<U: Under>: Store<U>;
    fn over<U: Under>(under: U) -> Self::Store<U>;
}

/// They are cached.
pub(crate) struct Remembered;

/// Only writes are kept.
pub(crate) struct Forgotten;

impl Reads for Remembered {
    type Store<U: Under> = CacheDB<U>;

    fn over<U: Under>(under: U) -> CacheDB<U> {
        CacheDB::new(under)
    }
}

impl<U: Under> Store<U> for CacheDB<U> {
    fn writes(&self) -> &Self {
        self
    }

    fn writes_mut(&mut self) -> &mut Self {
        self
    }
}

/// Keeps only changed accounts of a commit: an account that was only called would be a cached read.
#[derive(Debug)]
pub(crate) struct Forgetting<U>(CacheDB<U>);

impl Reads for Forgotten {
    type Store<U: Under> = Forgetting<U>;

    fn over<U: Under>(under: U) -> Forgetting<U> {
        Forgetting(CacheDB::new(under))
    }
}

impl<U: Under> Store<U> for Forgetting<U> {
    fn writes(&self) -> &CacheDB<U> {
        &self.0
    }

    fn writes_mut(&mut self) -> &mut CacheDB<U> {
        &mut self.0
    }
}

/// Used by reference, a [`CacheDB`] caches nothing.
impl<U: Under> Database for Forgetting<U> {
    type Error = ReadError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        self.0.basic_ref(address)
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, ReadError> {
        self.0.code_by_hash_ref(hash)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, ReadError> {
        self.0.storage_ref(address, index)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadError> {
        self.0.block_hash_ref(number)
    }
}

impl<U: Under> DatabaseCommit for Forgetting<U> {
    fn commit(&mut self, mut changes: AddressMap<Account>) {
        changes.retain(|_, account| {
            account.storage.retain(|_, slot| slot.is_changed());
            !account.storage.is_empty()
                || account.is_created()
                || account.is_selfdestructed()
                || account.info != account.original_info()
        });
        self.0.commit(changes);
    }
}

/// How a listed address is detected.
pub(crate) trait Check {
    type Inspector: Default;

    /// Executes, checks, and commits if it passes and `keep` agrees. Returns whether it did.
    fn run<DB: Database<Error = ReadError> + DatabaseCommit>(
        evm: &mut Evm<DB, Self::Inspector>,
        guard: &BlockGuard,
        tx: TxEnv,
        keep: Keep<'_>,
    ) -> Result<(ExecutionResult, bool), Refusal>;
}

/// By the state after the execution: [`BlockGuard::execute`].
pub(crate) struct ByState;

impl Check for ByState {
    type Inspector = ();

    fn run<DB: Database<Error = ReadError> + DatabaseCommit>(
        evm: &mut Evm<DB, ()>,
        guard: &BlockGuard,
        tx: TxEnv,
        keep: Keep<'_>,
    ) -> Result<(ExecutionResult, bool), Refusal> {
        let checked = guard.execute(evm, tx).map_err(|error| match error {
            ExecuteError::Blocked(blocked) => Refusal::Blocked(blocked),
            ExecuteError::Evm(error) => refusal(error),
            other => Refusal::Other(other.to_string()),
        })?;
        let kept = keep(checked.output());
        Ok((if kept { checked.commit() } else { checked.discard() }, kept))
    }
}

/// By an inspector under every opcode, the classic way. The pre-check is the same.
pub(crate) struct ByInspector;

impl Check for ByInspector {
    type Inspector = AccessListInspector;

    fn run<DB: Database<Error = ReadError> + DatabaseCommit>(
        evm: &mut Evm<DB, AccessListInspector>,
        guard: &BlockGuard,
        tx: TxEnv,
        keep: Keep<'_>,
    ) -> Result<(ExecutionResult, bool), Refusal> {
        guard.precheck(&tx).map_err(Refusal::Blocked)?;
        let executed = match evm.inspect(tx, AccessListInspector::default()) {
            Ok(executed) => executed,
            Err(error) => {
                drop(evm.finalize());
                return Err(refusal(error));
            }
        };
        let seen = std::mem::take(&mut evm.inspector);
        let listed = seen.touched_slots().keys().filter(|address| guard.list().contains(address));
        if let Some(address) = listed.min() {
            let how = How::TouchedByExecution;
            return Err(Refusal::Blocked(Blocked { address: *address, how }));
        }
        let kept = keep(&executed.result);
        if kept {
            evm.commit(executed.state);
        }
        Ok((executed.result, kept))
    }
}

fn refusal(error: EVMError<ReadError>) -> Refusal {
    match error {
        EVMError::Transaction(InvalidTransaction::NonceTooLow { .. }) => Refusal::NonceTooLow,
        EVMError::Transaction(invalid) => Refusal::Invalid(invalid),
        EVMError::Database(error) => Refusal::Unread(error),
        other => Refusal::Other(other.to_string()),
    }
}

pub(crate) fn context<DB: Database>(db: DB, block: &NextBlock) -> MainnetContext<DB> {
    Context::mainnet().with_db(db).with_cfg(block.cfg()).with_block(block.env.clone())
}

/// An EVM over a store.
pub(crate) struct Machine<'b, S: Database, C: Check> {
    /// `None` only while it is replaced by a fresh one.
    evm: Option<Evm<S, C::Inspector>>,
    block: &'b NextBlock,
    guard: &'b BlockGuard,
    fresh: bool,
}

impl<'b, S: Database<Error = ReadError> + DatabaseCommit, C: Check> Machine<'b, S, C> {
    pub(crate) fn new(store: S, block: &'b NextBlock, guard: &'b BlockGuard, fresh: bool) -> Self {
        let evm = context(store, block).build_mainnet_with_inspector(C::Inspector::default());
        Self { evm: Some(evm), block, guard, fresh }
    }

    /// See [`begin`].
    pub(crate) fn begin(&mut self) -> Result<(), ReadError> {
        let block = self.block;
        begin(self.evm(), block)
    }

    pub(crate) fn execute(
        &mut self,
        tx: TxEnv,
        keep: Keep<'_>,
    ) -> Result<(ExecutionResult, bool), Refusal> {
        if self.fresh
            && let Some(used) = self.evm.take()
        {
            let store = used.ctx.journaled_state.database;
            let context = context(store, self.block);
            self.evm = Some(context.build_mainnet_with_inspector(C::Inspector::default()));
        }
        let guard = self.guard;
        C::run(self.evm(), guard, tx, keep)
    }

    fn evm(&mut self) -> &mut Evm<S, C::Inspector> {
        self.evm.as_mut().expect("it is put back where it was taken")
    }

    pub(crate) fn store(&mut self) -> &mut S {
        &mut self.evm().ctx.journaled_state.database
    }
}

/// The system calls before the first transaction of a block, which store the beacon chain's root
/// (EIP-4788) and the parent's hash (EIP-2935). A builder without a consensus client does not know
/// the root; it stores zero, as geth's simulation does.
pub(crate) fn begin<DB: Database<Error = ReadError> + DatabaseCommit, I>(
    evm: &mut Evm<DB, I>,
    block: &NextBlock,
) -> Result<(), ReadError> {
    let calls: [(_, B256); 2] = [
        (eip4788::BEACON_ROOTS_ADDRESS, B256::ZERO),
        (eip2935::HISTORY_STORAGE_ADDRESS, block.parent.hash),
    ];
    for (contract, word) in calls {
        let data = Bytes::copy_from_slice(word.as_slice());
        // On a chain without the contract nothing happens, and a call that fails writes nothing.
        if let Err(EVMError::Database(error)) = evm.system_call_commit(contract, data) {
            return Err(error);
        }
    }
    Ok(())
}
