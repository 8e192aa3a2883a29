//! Accounts as the node's latest block has them: a cache, and the thread that fills it.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, U256};
use order_pool::OrderPool;
use tokio::sync::oneshot;
use txpool_fetcher::Endpoint;

use super::link::Link;

/// Accounts in one batch: 1,000 calls are what geth answers in one, and there are two for each and one for
/// the block number.
const MAX_ACCOUNTS_PER_BATCH: usize = 256;

/// Accounts that wait for the next batch. Whoever finds no room gets no verdict: an attacker who fills it
/// gains that orders are pooled without one.
const MAX_WAITING: usize = 4_096;

/// A node that owes an answer for this long is slow: until it has answered, nobody else waits for it.
const SLOW_AFTER: Duration = Duration::from_millis(50);

/// What an account has at the node's latest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) balance_wei: U256,
    pub(super) next_nonce: u64,
}

/// Who wants to know of an account. It is sent nothing if the node says nothing.
struct Ask {
    address: Address,
    answer: oneshot::Sender<Account>,
}

/// What both sides share.
#[derive(Debug)]
struct Shared {
    pool: OrderPool,
    cache: Mutex<Cache>,
    /// When the batch was sent that the node has not answered.
    asked_at: Mutex<Option<Instant>>,
}

/// The accounts that were asked for since a head.
#[derive(Debug)]
struct Cache {
    head: Option<B256>,
    accounts: HashMap<Address, (Account, Instant)>,
    max_accounts: usize,
}

#[derive(Debug)]
pub(super) struct Accounts {
    shared: Arc<Shared>,
    asks: SyncSender<Ask>,
}

/// The thread that asks the node. It ends when its [`Accounts`] are dropped and the node has answered or
/// was given up.
#[derive(Debug)]
pub(crate) struct AccountsThread {
    thread: JoinHandle<()>,
    ended: Receiver<Infallible>,
}

impl AccountsThread {
    /// Waits for its end, for at most so long; says whether it has ended.
    pub(crate) fn join(self, timeout: Duration) -> bool {
        let Self { thread, ended } = self;
        let has_ended = ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected);
        if has_ended {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
        has_ended
    }
}

impl Accounts {
    pub(super) fn start(
        endpoint: Endpoint,
        max_accounts: usize,
        pool: OrderPool,
    ) -> io::Result<(Self, AccountsThread)> {
        let (asks, asked) = mpsc::sync_channel(MAX_WAITING);
        let (ends, ended) = mpsc::sync_channel(0);
        let cache = Cache { head: None, accounts: HashMap::new(), max_accounts };
        let shared = Shared { pool, cache: Mutex::new(cache), asked_at: Mutex::default() };
        let shared = Arc::new(shared);
        let thread = {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name("mempool-admission".to_owned());
            builder.spawn(move || {
                let _ends = ends;
                shared.answer(&asked, Link::new(endpoint));
            })?
        };
        Ok((Self { shared, asks }, AccountsThread { thread, ended }))
    }

    /// What is known of an account since the head, and for how long.
    pub(super) fn cached(&self, address: &Address) -> Option<(Account, Duration)> {
        let head = self.shared.head();
        let cache = self.shared.cache();
        let (account, at) = cache.accounts.get(address).filter(|_| cache.head == head)?;
        Some((*account, at.elapsed()))
    }

    /// Asks the node; `None` if it does not say.
    pub(super) async fn ask(&self, address: Address) -> Option<Account> {
        let asked_at = *self.shared.asked_at();
        if asked_at.is_some_and(|at| at.elapsed() >= SLOW_AFTER) {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        self.asks.try_send(Ask { address, answer }).ok()?;
        answered.await.ok()
    }
}

impl Shared {
    fn head(&self) -> Option<B256> {
        self.pool.head().map(|head| head.hash)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // Whole entries go in and out: valid after each statement.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until nobody can ask any more: all that wait with one batch.
    fn answer(&self, asked: &Receiver<Ask>, mut link: Link) {
        while let Ok(first) = asked.recv() {
            let mut waiting: HashMap<Address, Vec<oneshot::Sender<Account>>> = HashMap::new();
            let mut next = Some(first);
            while let Some(ask) = next {
                // Whoever has gone is not asked for.
                if !ask.answer.is_closed() {
                    waiting.entry(ask.address).or_default().push(ask.answer);
                }
                next = (waiting.len() < MAX_ACCOUNTS_PER_BATCH)
                    .then(|| asked.try_recv().ok())
                    .flatten();
            }
            if waiting.is_empty() {
                continue;
            }
            let addresses: Vec<Address> = waiting.keys().copied().collect();
            let head = self.pool.head();
            *self.asked_at() = Some(Instant::now());
            let answered = link.accounts(&addresses);
            *self.asked_at() = None;
            let Some(answered) = answered else { continue };
            // A node that is behind the head says what was, not what is.
            if head.is_some_and(|head| answered.block < head.number) {
                continue;
            }
            let known = addresses.iter().zip(answered.accounts);
            let known = known.filter_map(|(address, account)| Some((*address, account?)));
            let known: Vec<(Address, Account)> = known.collect();
            self.remember(head.map(|head| head.hash), &known);
            for (address, account) in known {
                for answer in waiting.remove(&address).into_iter().flatten() {
                    // Whoever asked may have gone.
                    let _ = answer.send(account);
                }
            }
        }
    }

    /// Keeps what was answered while this was the head, if it still is.
    fn remember(&self, head: Option<B256>, known: &[(Address, Account)]) {
        let now = Instant::now();
        let is_head = self.head() == head;
        let mut cache = self.cache();
        if cache.head != head {
            cache.head = head;
            cache.accounts.clear();
        }
        if !is_head {
            return;
        }
        for (address, account) in known {
            let has_room = cache.accounts.len() < cache.max_accounts;
            if has_room || cache.accounts.contains_key(address) {
                cache.accounts.insert(*address, (*account, now));
            }
        }
    }
}
