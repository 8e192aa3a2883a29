//! Accounts as of the node's latest block: a cache, and the thread that fills it.

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

/// Accounts in one batch: geth accepts 1,000 calls, and each account takes two, plus one for the
/// block number.
const MAX_ACCOUNTS_PER_BATCH: usize = 256;

/// Accounts that wait for the next batch. When it is full, further ones get no verdict: an attacker
/// who fills it achieves that orders are pooled without one.
const MAX_WAITING: usize = 4_096;

/// A node that has not answered a batch for this long is slow: until it answers, no further order
/// waits for it.
const SLOW_AFTER: Duration = Duration::from_millis(50);

/// An account as of the node's latest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) balance_wei: U256,
    pub(super) next_nonce: u64,
}

/// A request for an account. It gets no response if the node does not answer.
struct Ask {
    address: Address,
    answer: oneshot::Sender<Account>,
}

/// The state that both sides share.
#[derive(Debug)]
struct Shared {
    pool: OrderPool,
    cache: Mutex<Cache>,
    /// When the outstanding batch was sent.
    asked_at: Mutex<Option<Instant>>,
}

/// The accounts that were requested since a head.
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

/// The thread that asks the node. It ends when its [`Accounts`] are dropped and the node has
/// answered or timed out.
#[derive(Debug)]
pub(crate) struct AccountsThread {
    thread: JoinHandle<()>,
    ended: Receiver<Infallible>,
}

impl AccountsThread {
    /// Waits for its end, for at most `timeout`; returns whether it has ended.
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

    /// A cached account, and the age of the response.
    pub(super) fn cached(&self, address: &Address) -> Option<(Account, Duration)> {
        let head = self.shared.head();
        let cache = self.shared.cache();
        let (account, at) = cache.accounts.get(address).filter(|_| cache.head == head)?;
        Some((*account, at.elapsed()))
    }

    /// Asks the node; `None` if it does not answer.
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
        // Entries are inserted and removed as a whole, so the cache is valid after each statement.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests until all senders are dropped: all waiting ones with one batch.
    fn answer(&self, asked: &Receiver<Ask>, mut link: Link) {
        while let Ok(first) = asked.recv() {
            let mut waiting: HashMap<Address, Vec<oneshot::Sender<Account>>> = HashMap::new();
            let mut next = Some(first);
            while let Some(ask) = next {
                // Skips requests whose caller no longer waits.
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
            // A node that is behind the head reports an outdated account.
            if head.is_some_and(|head| answered.block < head.number) {
                continue;
            }
            let known = addresses.iter().zip(answered.accounts);
            let known = known.filter_map(|(address, account)| Some((*address, account?)));
            let known: Vec<(Address, Account)> = known.collect();
            self.remember(head.map(|head| head.hash), &known);
            for (address, account) in known {
                for answer in waiting.remove(&address).into_iter().flatten() {
                    // The caller may no longer wait.
                    let _ = answer.send(account);
                }
            }
        }
    }

    /// Caches the responses that were received while `head` was the head, if it still is.
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
