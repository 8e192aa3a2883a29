//! Accounts as of the node's latest block: a cache, and the thread that fills it.
//!
//! # Locks
//! The requests: taken by an order that asks for an account, and by the thread `mempool-admission`
//! before a batch, for one push, or one batch; never across an await or with another lock. The
//! cache: taken by an order whose sender is looked up, and by the thread `mempool-admission` around
//! a batch, for one look-up, or the accounts of one batch; never across an await or with another
//! lock.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256};
use load_control::build_runtime;
use order_pool::{Funds, Holder, OrderPool};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    runtime::Builder,
    sync::{Notify, oneshot},
};
use txpool_fetcher::Endpoint;

use super::{client::AccountClient, turns::Turns};

/// The most accounts in one batch. The node answers such a batch within some milliseconds, so a
/// request that comes meanwhile waits no longer than that.
const MAX_ACCOUNTS_PER_BATCH: usize = 256;

/// The most accounts of one holder in one batch: a quarter, so that others find room.
const MAX_ACCOUNTS_PER_HOLDER: usize = MAX_ACCOUNTS_PER_BATCH / 4;

/// A node that has not answered a batch for this long is slow: until it answers, no further order
/// waits for it.
const SLOW_AFTER: Duration = Duration::from_millis(50);

/// Accounts that are cached until the next head: ten times the senders of a busy head. At about 150
/// bytes each, 10 MB. Beyond that, each order causes its own calls.
const MAX_CACHED_ACCOUNTS: usize = 65_536;

/// A request for an account.
#[derive(Debug)]
struct Request {
    address: Address,
    /// Gets no response if the node does not respond.
    response: oneshot::Sender<Account>,
}

/// The response to a request for an account.
#[derive(Clone, Copy, Debug)]
pub(super) enum Account {
    /// The account at the node's latest block.
    Known(Funds),
    /// Too many accounts of the same holder wait, so the node is not asked.
    HolderBusy,
    /// The node does not respond, or is behind the pool.
    Unknown,
}

/// The state that both sides share.
#[derive(Debug)]
struct Shared {
    pool: OrderPool,
    requests: Mutex<Requests>,
    /// Notified when a request comes, and when [`Requests::is_closed`] is set.
    requested: Notify,
    cache: Mutex<Cache>,
}

/// The requests that wait for a batch.
#[derive(Debug, Default)]
struct Requests {
    turns: Turns<Request>,
    /// Nobody asks any more.
    is_closed: bool,
}

/// The accounts that were requested since a head.
#[derive(Debug, Default)]
struct Cache {
    head: Option<B256>,
    accounts: HashMap<Address, (Funds, Instant)>,
    /// When the outstanding batch was sent.
    sent_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Accounts {
    shared: Arc<Shared>,
}

impl Drop for Accounts {
    fn drop(&mut self) {
        self.shared.requests().is_closed = true;
        self.shared.requested.notify_one();
    }
}

/// Disconnected when the thread that asks the node has ended: its [`Accounts`] are dropped, and the
/// node has answered or timed out.
pub(crate) type Ended = Receiver<Infallible>;

impl Accounts {
    /// Starts the thread that asks the node.
    pub(super) fn start(
        endpoint: Endpoint,
        pool: OrderPool,
        max_nonces_ahead: u8,
    ) -> io::Result<(Self, Ended)> {
        let (ends, ended) = mpsc::sync_channel(0);
        let shared = Arc::new(Shared::new(pool));
        let served = Arc::clone(&shared);
        // One blocking thread, which looks up the host of a WebSocket.
        let mut builder = Builder::new_current_thread();
        let runtime = build_runtime(builder.enable_all().thread_name("mempool-lookup"), 1)?;
        let serve = move || {
            let _ends = ends;
            runtime.block_on(served.serve(AccountClient::new(endpoint, max_nonces_ahead)));
        };
        thread::Builder::new().name("mempool-admission".to_owned()).spawn(serve)?;
        Ok((Self { shared }, ended))
    }

    /// A cached account, and the age of the response.
    pub(super) fn cached(&self, address: &Address) -> Option<(Funds, Duration)> {
        let head = self.shared.head();
        let cache = self.shared.cache();
        let (account, requested_at) = cache.accounts.get(address).filter(|_| cache.head == head)?;
        Some((*account, requested_at.elapsed()))
    }

    /// Asks the node about an account, for an order of this holder.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node is not asked, unless it has been.
    pub(super) async fn request(&self, address: Address, holder: Holder) -> Account {
        let sent_at = self.shared.cache().sent_at;
        if sent_at.is_some_and(|sent_at| sent_at.elapsed() >= SLOW_AFTER) {
            return Account::Unknown;
        }
        let (response, responded) = oneshot::channel();
        let pushed = self.shared.requests().turns.push(holder, Request { address, response });
        self.shared.requested.notify_one();
        if let Err(excess) = pushed {
            // The error means that the order does not wait for its account any more.
            let _ = excess.response.send(Account::HolderBusy);
        }
        responded.await.unwrap_or(Account::Unknown)
    }
}

impl Shared {
    fn new(pool: OrderPool) -> Self {
        let (requests, requested) = (Mutex::default(), Notify::new());
        Self { pool, requests, requested, cache: Mutex::default() }
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock()
    }

    /// Waits for requests, and returns those of the next batch. `None` if none is left and nobody
    /// asks any more.
    async fn next_batch(&self) -> Option<Vec<Request>> {
        loop {
            // The lock is released before the wait.
            {
                let mut requests = self.requests();
                if !requests.turns.is_empty() {
                    let (max, max_per_holder) = (MAX_ACCOUNTS_PER_BATCH, MAX_ACCOUNTS_PER_HOLDER);
                    return Some(requests.turns.take(max, max_per_holder));
                }
                if requests.is_closed {
                    return None;
                }
            }
            // Returns at once if a request has come since the lock was released: `Notify` keeps one
            // notification.
            self.requested.notified().await;
        }
    }

    fn head(&self) -> Option<B256> {
        self.pool.head().map(|head| head.hash)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock()
    }

    /// Serves requests until nobody asks any more.
    async fn serve(&self, mut client: AccountClient) {
        while let Some(batch) = self.next_batch().await {
            let mut waiting: HashMap<Address, Vec<oneshot::Sender<Account>>> = HashMap::new();
            for Request { address, response } in batch {
                // Skips requests whose caller no longer waits.
                if !response.is_closed() {
                    waiting.entry(address).or_default().push(response);
                }
            }
            if waiting.is_empty() {
                continue;
            }
            let addresses: Vec<Address> = waiting.keys().copied().collect();
            let head = self.pool.head();
            self.cache().sent_at = Some(Instant::now());
            let response = client.accounts(&addresses).await;
            self.cache().sent_at = None;
            let Some((block, accounts)) = response else { continue };
            // A node that is behind the head reports an outdated account.
            if head.is_some_and(|head| block < head.number) {
                continue;
            }
            let known = addresses.iter().zip(accounts);
            let known = known.filter_map(|(address, account)| Some((*address, account?)));
            let known: Vec<(Address, Funds)> = known.collect();
            self.remember(head.map(|head| head.hash), &known);
            for (address, account) in known {
                for response in waiting.remove(&address).into_iter().flatten() {
                    // The caller may no longer wait.
                    let _ = response.send(Account::Known(account));
                }
            }
        }
    }

    /// Caches the responses that were received while `head` was the head, if it still is.
    fn remember(&self, head: Option<B256>, known: &[(Address, Funds)]) {
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
            let has_room = cache.accounts.len() < MAX_CACHED_ACCOUNTS;
            if has_room || cache.accounts.contains_key(address) {
                cache.accounts.insert(*address, (*account, now));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::U256;
    use order_pool::PoolConfig;

    /// Beyond its bound an account is not kept, so each order asks for it again.
    #[test]
    fn the_cache_keeps_so_many_accounts_and_updates_those() {
        let pool = OrderPool::new(PoolConfig::default()).unwrap();
        let shared = Shared::new(pool);
        let address = |number: usize| Address::left_padding_from(&number.to_be_bytes());
        let account =
            |next_nonce| Funds { balance_wei: U256::ZERO, next_nonce, max_nonces_ahead: 0 };
        let all: Vec<_> =
            (0..=MAX_CACHED_ACCOUNTS).map(|number| (address(number), account(0))).collect();
        shared.remember(None, &all);
        shared.remember(None, &[(address(0), account(7))]);
        let cache = shared.cache();
        assert_eq!(cache.accounts.len(), MAX_CACHED_ACCOUNTS);
        assert!(!cache.accounts.contains_key(&address(MAX_CACHED_ACCOUNTS)));
        assert_eq!(cache.accounts[&address(0)].0.next_nonce, 7);
    }
}
