//! Honest searchers, and the log of their messages: what the oracle knows of searchers' orders.
//!
//! Eight are known to the hosts, eight are unknown at addresses of their own, and eight are unknown
//! behind one address. They send bundles and private transactions, replace with and without nonces,
//! and cancel, each time at any machine. In a fleet one of the known ones, the busy searcher,
//! cancels most of its orders, so many of its cancellations are of orders that the machine does not
//! know. Now and then a bundle that was cancelled comes again, as a
//! request does that was delayed.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use hdrhistogram::Histogram;
use mock_node::workload::Account;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use testkit::{
    figures::histogram,
    http::{self, Answer, Connection, call},
    member::Setup,
    sign::signed,
    usage::now_ns,
};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{lock, oracle::Outcome, world::World};

const SEARCHERS: u64 = 24;

/// The busy searcher.
const BUSY: u64 = 0;

/// The first of the keys that sign transactions: each transaction has its own, so that no order
/// depends on another.
const SENDER_KEYS: u64 = 1 << 20;

/// The least time between an answer and the next message of the same searcher, which may go to
/// another machine: what `docs/fleet.md` says that machines need to agree on their sequence.
const MESSAGE_PAUSE: Duration = Duration::from_millis(10);

/// A request without an answer is given up after this long.
const PATIENCE: Duration = Duration::from_secs(4);

/// The time between two requests of the monitor, in a scenario.
const MONITOR_INTERVAL: Duration = Duration::from_millis(20);

/// Requests with these reasons were refused for want of time, were too late, or contained a
/// transaction of a block. Any other refusal means that orders of others have the place.
const OWN_REASONS: [&str; 5] = ["no_permit", "head_unknown", "shutting_down", "params", "mined"];

/// A message, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct SentMessage {
    pub(crate) machine: usize,
    /// The content that the order has from then on; `None` after a cancellation.
    pub(crate) content: Option<B256>,
    pub(crate) outcome: Outcome,
    pub(crate) sent_at: u64,
    /// When the answer came; far ahead while there is none.
    pub(crate) answered_at: u64,
    pub(crate) answer: String,
    /// Whether it repeats what a cancellation has ended.
    pub(crate) is_late: bool,
}

impl SentMessage {
    /// Whether it was refused because orders of others have its place.
    pub(crate) fn is_displaced(&self) -> bool {
        let has_own_reason = OWN_REASONS.iter().any(|reason| self.answer.ends_with(reason));
        self.outcome == Outcome::Refused && !has_own_reason && !self.is_late
    }
}

/// An order of a searcher: a bundle with its replacements, or a private transaction.
#[derive(Clone, Debug)]
pub(crate) struct SearcherOrder {
    pub(crate) searcher: u64,
    uuid: Option<String>,
    /// Whether its messages have replacement nonces.
    is_numbered: bool,
    pub(crate) is_private: bool,
    /// Its block, or the last one of a private transaction; `None` for a bundle for the next block.
    pub(crate) block: Option<u64>,
    pub(crate) messages: Vec<SentMessage>,
    /// Whether no further message is sent.
    is_closed: bool,
    /// The latest transaction.
    pub(crate) raw: Bytes,
    pub(crate) tx: B256,
    /// The block that contains its transaction.
    pub(crate) mined_in: Option<u64>,
    /// Whether a reorg made its transaction public: nothing is promised any more.
    pub(crate) is_void: bool,
}

impl SearcherOrder {
    /// Returns the contents that it has had.
    pub(crate) fn versions(&self) -> impl Iterator<Item = B256> {
        self.messages.iter().filter_map(|message| message.content)
    }

    /// Whether it is a bundle whose last message was a cancellation. A private transaction that is
    /// sent again is one that is wanted again.
    fn is_cancelled_bundle(&self) -> bool {
        let [.., before, last] = &self.messages[..] else { return false };
        let are_sure = [before, last].iter().all(|sent| sent.outcome == Outcome::Accepted);
        are_sure && last.content.is_none() && self.uuid.is_some()
    }

    /// Whether it can be replaced or cancelled.
    const fn is_open(&self) -> bool {
        let can_change = self.uuid.is_some() || self.is_private;
        can_change && !self.is_closed && self.mined_in.is_none()
    }

    /// Adds its uuid and the nonce, as far as it has them.
    fn with_key(&self, mut params: Value, nonce: Option<u64>) -> Value {
        if let Some(uuid) = &self.uuid {
            params["replacementUuid"] = uuid.as_str().into();
        }
        if let Some(nonce) = nonce {
            params["replacementNonce"] = nonce.into();
        }
        params
    }

    /// Returns the request that sends it with its latest transaction.
    fn request(&self, shared: Option<&Bytes>, nonce: Option<u64>, signer: &Account) -> Vec<u8> {
        let raw = &self.raw;
        let block = self.block.map(|block| format!("{block:#x}"));
        if self.is_private {
            let private = json!([{ "tx": raw, "maxBlockNumber": block }]);
            return call("eth_sendPrivateTransaction", &private, Some(signer));
        }
        let txs: Vec<_> = shared.into_iter().chain([raw]).collect();
        let mut bundle = json!({ "txs": txs });
        if let Some(block) = block {
            bundle["blockNumber"] = block.into();
        }
        call("eth_sendBundle", &json!([self.with_key(bundle, nonce)]), Some(signer))
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) orders: Vec<SearcherOrder>,
    /// Messages by their result: `new`, `replaced`, `cancelled` if accepted, and the reason if not.
    pub(crate) counts: BTreeMap<String, u64>,
    /// The time of accepted requests from when they were due to their answer; of unknown signers,
    /// and of known ones.
    pub(crate) answer_times: [Histogram<u64>; 2],
    /// Requests that were refused or not answered, of unknown signers and of known ones.
    pub(crate) refused: [u64; 2],
    /// The times of the monitor's requests.
    pub(crate) health_times: Histogram<u64>,
}

impl Log {
    /// Returns the number of messages that were answered with success, late ones aside.
    pub(crate) fn accepted(&self) -> u64 {
        ["new", "replaced", "cancelled"].iter().filter_map(|kind| self.counts.get(*kind)).sum()
    }
}

/// The state that all searchers share.
#[derive(Debug)]
pub(crate) struct Searchers {
    log: Mutex<Log>,
    /// The members with an RPC server, and where the searchers reach them.
    machines: Vec<(usize, SocketAddr)>,
    pub(crate) head: AtomicU64,
    next_key: AtomicU64,
    pub(crate) must_stop: AtomicBool,
    /// Further bytes of each transaction.
    upload_bytes: usize,
    /// Whether one searcher cancels most of its orders.
    has_busy: bool,
    /// The transaction that all bundles contain besides their own.
    shared_tx: Option<(B256, Bytes)>,
}

pub(crate) const fn is_known(searcher: u64) -> bool {
    searcher.is_multiple_of(3)
}

pub(crate) fn known_signers() -> Vec<Address> {
    (0..SEARCHERS).filter(|number| is_known(*number)).map(|number| key(number).address).collect()
}

/// Derives a key from a number, so that every run sends the same.
fn key(number: u64) -> Account {
    Account::from_entropy(0, number)
}

fn address(searcher: u64) -> Ipv4Addr {
    match searcher % 3 {
        0 | 1 => Ipv4Addr::new(127, 0, 2, 1 + searcher as u8),
        _ => Ipv4Addr::new(127, 0, 3, 1),
    }
}

impl Searchers {
    pub(crate) fn start(
        machines: Vec<(usize, SocketAddr)>,
        head: u64,
        shared_tx: Option<(B256, Bytes)>,
        world: &World,
    ) -> Arc<Self> {
        let World { seed, searchers_tps, busy_tps, .. } = *world;
        let log = Log {
            orders: Vec::new(),
            counts: BTreeMap::new(),
            answer_times: [histogram(), histogram()],
            refused: [0; 2],
            health_times: histogram(),
        };
        let searchers = Arc::new(Self {
            log: Mutex::new(log),
            machines,
            head: head.into(),
            next_key: AtomicU64::new(SENDER_KEYS),
            must_stop: AtomicBool::new(false),
            upload_bytes: world.upload_bytes,
            has_busy: world.busy_tps > 0.0,
            shared_tx,
        });
        if world.setup != Setup::Small {
            tokio::spawn(Arc::clone(&searchers).monitor_health(world.link_delay));
        }
        for searcher in 0..SEARCHERS {
            let rng = ChaCha8Rng::seed_from_u64(seed ^ (searcher + 1).wrapping_mul(0x9e37_79b9));
            let is_busy = searcher == BUSY && busy_tps > 0.0;
            let tps = if is_busy { busy_tps } else { searchers_tps / SEARCHERS as f64 };
            let interval_s = 1.0 / tps;
            tokio::spawn(Arc::clone(&searchers).send_messages(searcher, rng, interval_s));
        }
        searchers
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    async fn send_messages(self: Arc<Self>, searcher: u64, mut rng: ChaCha8Rng, interval_s: f64) {
        let signer = key(searcher);
        let mut connections: BTreeMap<usize, Connection> = BTreeMap::new();
        // A server that does not answer is not asked less often.
        let mut due = Instant::now();
        let mut answered_at = due;
        while !self.must_stop.load(Relaxed) {
            due += Duration::from_secs_f64(interval_s * rng.random_range(0.2..1.8));
            sleep_until(due.max(answered_at + MESSAGE_PAUSE)).await;
            let (order, kind, request) = self.choose(searcher, &signer, &mut rng);
            let (machine, server) = self.machines[rng.random_range(0..self.machines.len())];
            if let Some(message) = self.log().orders[order].messages.last_mut() {
                (message.machine, message.sent_at) = (machine, now_ns());
            }
            let sending = send(&mut connections, machine, searcher, server, &request);
            let answer = timeout(PATIENCE, sending).await;
            answered_at = Instant::now();
            if !matches!(&answer, Ok(Ok(answer)) if !answer.closes) {
                connections.remove(&machine);
            }
            self.record(order, kind, due.elapsed(), answer.ok().and_then(Result::ok));
        }
    }

    /// Asks the first machine for its health, again and again.
    async fn monitor_health(self: Arc<Self>, link_delay: Duration) {
        let request = http::request("/healthz", "", None);
        let (mut due, mut connection) = (Instant::now(), BTreeMap::new());
        while !self.must_stop.load(Relaxed) {
            // A request is answered before the next one is due, although the link delays it.
            due += MONITOR_INTERVAL + link_delay;
            sleep_until(due).await;
            let answer = send(&mut connection, 0, 0, self.machines[0].1, &request).await;
            if !answer.is_ok_and(|answer| answer.status == 200 && !answer.closes) {
                connection.clear();
            }
            let took = due.elapsed().saturating_sub(link_delay);
            self.log().health_times.saturating_record(took.as_nanos() as u64);
        }
    }

    /// Returns the bundle hash of a bundle with this transaction.
    fn bundle_hash(&self, tx: B256) -> B256 {
        let shared = self.shared_tx.iter().map(|(hash, _)| *hash);
        keccak256(shared.chain([tx]).flat_map(|hash| hash.0).collect::<Vec<u8>>())
    }

    /// Decides on a message, and logs it as sent without an answer. Returns its order, its kind and
    /// the request.
    fn choose(
        &self,
        searcher: u64,
        signer: &Account,
        rng: &mut ChaCha8Rng,
    ) -> (usize, &'static str, Vec<u8>) {
        let head = self.head.load(Relaxed);
        let cancels_most = self.has_busy && searcher == BUSY;
        let shared = self.shared_tx.as_ref().map(|(_, raw)| raw);
        let key = key(self.next_key.fetch_add(1, Relaxed));
        let (tx, raw) = signed(&key, |tx| {
            tx.value = U256::from(rng.random::<u32>());
            if self.upload_bytes > 0 {
                // Ten gas for each byte that is zero (EIP-7623).
                tx.gas_limit += 10 * self.upload_bytes as u64;
                tx.input = vec![0; self.upload_bytes].into();
            }
        });
        let mut log = self.log();
        // The searcher's recent orders whose block leaves time for another message.
        let recent = log.orders.len().saturating_sub(2_000);
        let is_own = |order: &SearcherOrder| {
            order.searcher == searcher && order.block.is_some_and(|block| block >= head + 2)
        };
        let own: Vec<_> =
            (recent..log.orders.len()).filter(|index| is_own(&log.orders[*index])).collect();
        let mut draw = rng.random_range(0..100);
        let new_message = |content| SentMessage {
            machine: 0,
            content,
            outcome: Outcome::InDoubt,
            sent_at: now_ns(),
            answered_at: u64::MAX,
            answer: String::new(),
            is_late: false,
        };
        let mut cancelled = own.iter().copied();
        if draw < 4
            && let Some(index) = cancelled.rfind(|index| log.orders[*index].is_cancelled_bundle())
        {
            let order = &mut log.orders[index];
            let nonce = order.is_numbered.then_some(order.messages.len() as u64 - 1);
            let content = order.messages[order.messages.len() - 2].content;
            let request = order.request(shared, nonce, signer);
            order.messages.push(SentMessage { is_late: true, ..new_message(content) });
            return (index, "late", request);
        }
        let open: Vec<_> = own.into_iter().filter(|index| log.orders[*index].is_open()).collect();
        if cancels_most {
            draw = if draw >= 20 && !open.is_empty() { 99 } else { draw % 55 };
        }
        if draw >= 55 && !open.is_empty() {
            let index = open[rng.random_range(0..open.len())];
            let order = &mut log.orders[index];
            let nonce = (order.is_numbered).then_some(order.messages.len() as u64 + 1);
            if draw < 80 && order.uuid.is_some() {
                order.messages.push(new_message(Some(self.bundle_hash(tx))));
                (order.raw, order.tx) = (raw, tx);
                return (index, "replaced", order.request(shared, nonce, signer));
            }
            order.messages.push(new_message(None));
            order.is_closed = true;
            let request = if order.is_private {
                call("eth_cancelPrivateTransaction", &json!([{ "txHash": order.tx }]), Some(signer))
            } else {
                let cancel = order.with_key(json!({}), nonce);
                call("eth_cancelBundle", &json!([cancel]), Some(signer))
            };
            return (index, "cancelled", request);
        }
        let index = log.orders.len();
        let is_private = draw % 5 == 0;
        let has_uuid = !is_private && draw % 5 != 1;
        let is_next = !is_private && !has_uuid && draw % 2 == 0;
        let content = if is_private { tx } else { self.bundle_hash(tx) };
        let order = SearcherOrder {
            searcher,
            uuid: has_uuid.then(|| format!("33333333-0000-4000-8000-{index:012x}")),
            is_numbered: draw % 2 == 0,
            is_private,
            block: (!is_next).then(|| head + rng.random_range(2..=8)),
            messages: vec![new_message(Some(content))],
            is_closed: false,
            raw,
            tx,
            mined_in: None,
            is_void: false,
        };
        let nonce = (has_uuid && order.is_numbered).then_some(1);
        let request = order.request(shared, nonce, signer);
        log.orders.push(order);
        (index, "new", request)
    }

    /// Logs the answer to the last message of an order.
    fn record(&self, order: usize, kind: &str, took: Duration, answer: Option<Answer>) {
        let now = now_ns();
        let mut log = self.log();
        let outcome = match &answer {
            None => Outcome::InDoubt,
            Some(answer) if answer.is_accepted() => Outcome::Accepted,
            // It takes effect at the other machines of a fleet.
            Some(answer) if answer.reason() == Some("unknown_private") => Outcome::Accepted,
            Some(_) => Outcome::Refused,
        };
        let result = match &answer {
            None => "no answer".to_owned(),
            Some(_) if outcome == Outcome::Refused && kind == "late" => "late, refused".to_owned(),
            Some(answer) if outcome == Outcome::Refused => {
                format!("refused: {}", answer.reason().unwrap_or(&answer.body))
            }
            _ => kind.to_owned(),
        };
        *log.counts.entry(result.clone()).or_default() += 1;
        let known = usize::from(is_known(log.orders[order].searcher));
        if outcome == Outcome::Accepted {
            log.answer_times[known].saturating_record(took.as_nanos() as u64);
        } else if kind != "late" {
            log.refused[known] += 1;
        }
        let order = &mut log.orders[order];
        // A message that may still be on its way must not overtake a later one.
        let is_first_refused = order.messages.len() == 1 && outcome == Outcome::Refused;
        order.is_closed |= outcome == Outcome::InDoubt || is_first_refused;
        order.is_void |= result.contains("became_public");
        let message = order.messages.last_mut().expect("it was sent");
        (message.outcome, message.answered_at, message.answer) = (outcome, now, result);
    }
}

async fn send(
    connections: &mut BTreeMap<usize, Connection>,
    machine: usize,
    searcher: u64,
    server: SocketAddr,
    request: &[u8],
) -> io::Result<Answer> {
    if let Entry::Vacant(entry) = connections.entry(machine) {
        entry.insert(Connection::open(address(searcher), server).await?);
    }
    connections.get_mut(&machine).expect("just opened").request(request).await
}
