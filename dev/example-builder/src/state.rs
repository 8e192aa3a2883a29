//! The node's state at one block, read over IPC and cached.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use alloy_primitives::{
    Address, B256, Bytes, U64, U256, keccak256,
    map::{AddressMap, B256Map, HashMap, HashSet},
};
use revm::{DatabaseRef, bytecode::Bytecode, state::AccountInfo};
use serde::de::DeserializeOwned;

use crate::rpc::{Answer, Call, ReadError, Rpc};

/// An item of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// Balance, nonce and code, in one batch.
    Account(Address),
    Slot(Address, U256),
    BlockHash(u64),
}

/// Contracts' code with its jump table, by hash; outlives the block.
pub(crate) type Codes = Rc<RefCell<B256Map<Bytecode>>>;

/// What to do about an item that is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnMiss {
    /// Request it, and wait for the response.
    Request,
    /// Fail, and record it.
    Note,
}

/// The state at one block. Every read names that block by its hash, so no item can be of another
/// block.
pub(crate) struct NodeState {
    rpc: Arc<Rpc>,
    /// The block, as the last parameter of every request.
    at: String,
    codes: Codes,
    accounts: RefCell<AddressMap<Option<AccountInfo>>>,
    slots: RefCell<HashMap<(Address, U256), U256>>,
    hashes: RefCell<HashMap<u64, B256>>,
    on_miss: Cell<OnMiss>,
    noted: RefCell<HashSet<Key>>,
    /// Requests that an execution waited for.
    waited_for: Cell<u64>,
}

impl NodeState {
    pub(crate) fn new(rpc: Arc<Rpc>, block: B256, codes: Codes) -> Self {
        Self {
            rpc,
            at: format!(r#"{{"blockHash":"{block}"}}"#),
            codes,
            accounts: RefCell::default(),
            slots: RefCell::default(),
            hashes: RefCell::default(),
            on_miss: Cell::new(OnMiss::Request),
            noted: RefCell::default(),
            waited_for: Cell::new(0),
        }
    }

    /// The same block, with nothing read yet.
    pub(crate) fn cold(&self) -> Self {
        Self {
            rpc: Arc::clone(&self.rpc),
            at: self.at.clone(),
            codes: Rc::clone(&self.codes),
            accounts: RefCell::default(),
            slots: RefCell::default(),
            hashes: RefCell::default(),
            on_miss: Cell::new(OnMiss::Request),
            noted: RefCell::default(),
            waited_for: Cell::new(0),
        }
    }

    /// Requests that executions had to wait for so far.
    pub(crate) fn waited_for(&self) -> u64 {
        self.waited_for.get()
    }

    /// Runs `execute` with every miss as an error; returns the misses.
    pub(crate) fn noting(&self, execute: impl FnOnce()) -> Vec<Key> {
        self.on_miss.set(OnMiss::Note);
        execute();
        self.on_miss.set(OnMiss::Request);
        self.noted.take().into_iter().collect()
    }

    fn has(&self, key: &Key) -> bool {
        match key {
            Key::Account(address) => self.accounts.borrow().contains_key(address),
            Key::Slot(address, index) => self.slots.borrow().contains_key(&(*address, *index)),
            Key::BlockHash(number) => self.hashes.borrow().contains_key(number),
        }
    }

    /// Requests all missing items at once. Items that cannot be read stay unknown.
    ///
    /// # Errors
    /// Only if there was no response at all.
    pub(crate) fn fetch(&self, keys: impl IntoIterator<Item = Key>) -> Result<usize, ReadError> {
        let mut keys: Vec<Key> = keys.into_iter().filter(|key| !self.has(key)).collect();
        keys.sort_unstable_by_key(|key| match key {
            Key::Account(address) => (0, *address, U256::ZERO),
            Key::Slot(address, index) => (1, *address, *index),
            Key::BlockHash(number) => (2, Address::ZERO, U256::from(*number)),
        });
        keys.dedup();
        let calls: Vec<Call> = keys.iter().flat_map(|key| self.calls(key)).collect();
        let mut answers = self.rpc.batch(&calls)?.into_iter();
        for key in &keys {
            match key {
                Key::Account(address) => {
                    if let Ok(info) = self.read_account(&mut answers) {
                        self.accounts.borrow_mut().insert(*address, info);
                    }
                }
                Key::Slot(address, index) => {
                    if let Ok(word) = next::<B256>(&mut answers, "32 bytes") {
                        self.slots.borrow_mut().insert((*address, *index), word.into());
                    }
                }
                Key::BlockHash(number) => {
                    if let Ok(hash) = read_hash(&mut answers) {
                        self.hashes.borrow_mut().insert(*number, hash);
                    }
                }
            }
        }
        Ok(calls.len())
    }

    fn calls(&self, key: &Key) -> Vec<Call> {
        let at = &self.at;
        match key {
            Key::Account(address) => ["eth_getBalance", "eth_getTransactionCount", "eth_getCode"]
                .map(|method| Call(method, format!(r#"["{address:?}",{at}]"#)))
                .into(),
            Key::Slot(address, index) => {
                let index = B256::from(*index);
                vec![Call("eth_getStorageAt", format!(r#"["{address:?}","{index}",{at}]"#))]
            }
            Key::BlockHash(number) => {
                vec![Call("eth_getBlockByNumber", format!(r#"["{number:#x}",false]"#))]
            }
        }
    }

    fn read_account(
        &self,
        answers: &mut impl Iterator<Item = Answer>,
    ) -> Result<Option<AccountInfo>, ReadError> {
        // All three are taken from the responses, even if the first is an error.
        let (balance, nonce, code) = (
            next::<U256>(answers, "a balance"),
            next::<U64>(answers, "a nonce"),
            next::<Bytes>(answers, "code"),
        );
        let (balance, nonce, code) = (balance?, nonce?.to(), code?);
        if code.is_empty() {
            // Since EIP-161 an empty account does not exist.
            let exists = !balance.is_zero() || nonce != 0;
            let info = AccountInfo { nonce, ..AccountInfo::from_balance(balance) };
            return Ok(exists.then_some(info));
        }
        let hash = keccak256(&code);
        let code = self.codes.borrow_mut().entry(hash).or_insert_with(|| bytecode(code)).clone();
        Ok(Some(AccountInfo::new(balance, nonce, hash, code)))
    }

    /// Requests one item while an execution waits for it.
    fn request<T>(
        &self,
        key: Key,
        read: impl FnOnce(&mut std::vec::IntoIter<Answer>) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        if self.on_miss.get() == OnMiss::Note {
            self.noted.borrow_mut().insert(key);
            return Err(ReadError::NotReadYet);
        }
        self.waited_for.set(self.waited_for.get() + 1);
        read(&mut self.rpc.batch(&self.calls(&key))?.into_iter())
    }
}

fn bytecode(code: Bytes) -> Bytecode {
    // Code that begins like a delegation but is none is still code.
    Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code))
}

fn next<T: DeserializeOwned>(
    answers: &mut impl Iterator<Item = Answer>,
    expected: &'static str,
) -> Result<T, ReadError> {
    let json = answers.next().unwrap_or(Err(ReadError::Closed))?;
    serde_json::from_str(json.get()).map_err(|_| ReadError::Malformed {
        found: json.get().chars().take(80).collect(),
        expected,
    })
}

fn read_hash(answers: &mut impl Iterator<Item = Answer>) -> Result<B256, ReadError> {
    #[derive(serde::Deserialize)]
    struct Block {
        hash: B256,
    }
    next::<Block>(answers, "a block").map(|block| block.hash)
}

/// The state as an execution reads it.
#[derive(Clone, Copy)]
pub(crate) struct View<'s> {
    pub(crate) state: &'s NodeState,
    /// Whether reads are cached; otherwise they are requested every time.
    pub(crate) cached: bool,
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("at", &self.state.at).finish_non_exhaustive()
    }
}

impl DatabaseRef for View<'_> {
    type Error = ReadError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        let state = self.state;
        if self.cached
            && let Some(info) = state.accounts.borrow().get(&address)
        {
            return Ok(info.clone());
        }
        let info = state.request(Key::Account(address), |answers| state.read_account(answers))?;
        if self.cached {
            state.accounts.borrow_mut().insert(address, info.clone());
        }
        Ok(info)
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, ReadError> {
        // Accounts come with their code.
        Ok(self.state.codes.borrow().get(&hash).cloned().unwrap_or_default())
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, ReadError> {
        let state = self.state;
        if self.cached
            && let Some(value) = state.slots.borrow().get(&(address, index))
        {
            return Ok(*value);
        }
        let word: B256 =
            state.request(Key::Slot(address, index), |answers| next(answers, "32 bytes"))?;
        if self.cached {
            state.slots.borrow_mut().insert((address, index), word.into());
        }
        Ok(word.into())
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, ReadError> {
        let state = self.state;
        if self.cached
            && let Some(hash) = state.hashes.borrow().get(&number)
        {
            return Ok(*hash);
        }
        let hash = state.request(Key::BlockHash(number), read_hash)?;
        if self.cached {
            state.hashes.borrow_mut().insert(number, hash);
        }
        Ok(hash)
    }
}
