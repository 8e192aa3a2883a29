//! Honest searchers: eight whom the hosts know, eight unknown at addresses of their own, eight behind one address. They send
//! bundles and private transactions, replace with and without nonces, and cancel, each time at any machine; now and then a
//! bundle that was cancelled comes again, as a request does that was long under way. Their log is what the oracle knows of them.

use std::{
    collections::BTreeMap,
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
/// The first of the keys that sign transactions: each has one, so that no order depends on another.
const SENDERS: u64 = 1 << 20;
/// A request without an answer is given up.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often the monitor of a scenario asks.
const MONITOR: Duration = Duration::from_millis(20);

/// A message, and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) machine: usize,
    pub(crate) makes: Option<B256>,
    pub(crate) outcome: Outcome,
    pub(crate) sent: u64,
    /// Of the answer; far ahead as long as there is none.
    pub(crate) answered: u64,
    pub(crate) answer: String,
    /// It repeats what a cancellation has ended.
    pub(crate) is_late: bool,
}

impl Sent {
    /// Whether it was refused though the machine had time for it, knew a head, and was not so late that the block was over:
    /// something of others has its place.
    pub(crate) fn is_displaced(&self) -> bool {
        let untimely = ["no_permit", "head_unknown", "shutting_down", "params"];
        let is_untimely = untimely.iter().any(|word| self.answer.ends_with(word));
        self.outcome == Outcome::Refused && !is_untimely && !self.is_late
    }
}

/// What a searcher wants of one uuid, or of one private transaction.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) searcher: u64,
    uuid: Option<String>,
    is_numbered: bool,
    pub(crate) is_private: bool,
    /// Its block, or the last one of a private transaction; of a bundle for the next block none.
    pub(crate) block: Option<u64>,
    pub(crate) messages: Vec<Sent>,
    /// No message is sent any more.
    is_closed: bool,
    /// The latest transaction.
    pub(crate) raw: Bytes,
    pub(crate) tx: B256,
    /// The block that contains its transaction.
    pub(crate) mined: Option<u64>,
    /// Its transaction became public by a reorg: nothing is promised of it.
    pub(crate) is_void: bool,
}

impl Wish {
    pub(crate) fn versions(&self) -> impl Iterator<Item = B256> {
        self.messages.iter().filter_map(|message| message.makes)
    }

    /// Whether it is a bundle, and a cancellation was the last of its messages. A private transaction that is sent again is
    /// one that is wanted again.
    fn is_cancelled_bundle(&self) -> bool {
        let [.., before, last] = &self.messages[..] else { return false };
        let are_sure = [before, last].iter().all(|sent| sent.outcome == Outcome::Accepted);
        are_sure && last.makes.is_none() && self.uuid.is_some()
    }

    /// Whether it can be replaced or cancelled.
    const fn is_open(&self) -> bool {
        let can_change = self.uuid.is_some() || self.is_private;
        can_change && !self.is_closed && self.mined.is_none()
    }

    /// With its uuid and nonce, as far as it has them.
    fn named(&self, mut params: Value, nonce: Option<u64>) -> Value {
        if let Some(uuid) = &self.uuid {
            params["replacementUuid"] = uuid.as_str().into();
        }
        if let Some(nonce) = nonce {
            params["replacementNonce"] = nonce.into();
        }
        params
    }

    /// That sends it with this transaction.
    fn request(&self, raw: &Bytes, nonce: Option<u64>, signer: &Account) -> Vec<u8> {
        let block = self.block.map(|block| format!("{block:#x}"));
        if self.is_private {
            let private = json!([{ "tx": raw, "maxBlockNumber": block }]);
            return call("eth_sendPrivateTransaction", &private, Some(signer));
        }
        let mut bundle = json!({ "txs": [raw] });
        if let Some(block) = block {
            bundle["blockNumber"] = block.into();
        }
        call("eth_sendBundle", &json!([self.named(bundle, nonce)]), Some(signer))
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) wishes: Vec<Wish>,
    /// By what came of them: `new`, `replaced`, `cancelled` if accepted, and the reasons if not.
    pub(crate) counts: BTreeMap<String, u64>,
    /// From when a request was due to its answer, if it was accepted; of unknown signers, and of known ones.
    pub(crate) took: [Histogram<u64>; 2],
    /// Refused or without an answer, of unknown signers and of known ones.
    pub(crate) refused: [u64; 2],
    /// Of the monitor's requests.
    pub(crate) health: Histogram<u64>,
}

impl Log {
    /// Messages that were answered with success, late ones aside.
    pub(crate) fn accepted(&self) -> u64 {
        ["new", "replaced", "cancelled"].iter().filter_map(|kind| self.counts.get(*kind)).sum()
    }
}

/// What all searchers share.
#[derive(Debug)]
pub(crate) struct Searchers {
    log: Mutex<Log>,
    /// Where the machines listen, as the searchers know them.
    machines: Vec<(usize, SocketAddr)>,
    pub(crate) head: AtomicU64,
    keys: AtomicU64,
    pub(crate) stop: AtomicBool,
    /// Further bytes of each transaction.
    upload_bytes: usize,
}

pub(crate) const fn is_known(searcher: u64) -> bool {
    searcher.is_multiple_of(3)
}

pub(crate) fn known_signers() -> Vec<Address> {
    (0..SEARCHERS).filter(|number| is_known(*number)).map(|number| key(number).address).collect()
}

/// Keys from numbers, so that every run sends the same.
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
    pub(crate) fn start(machines: Vec<(usize, SocketAddr)>, head: u64, world: &World) -> Arc<Self> {
        let World { seed, searchers_tps: tps, .. } = *world;
        let log = Log {
            wishes: Vec::new(),
            counts: BTreeMap::new(),
            took: [histogram(), histogram()],
            refused: [0; 2],
            health: histogram(),
        };
        let all = Arc::new(Self {
            log: Mutex::new(log),
            machines,
            head: head.into(),
            keys: AtomicU64::new(SENDERS),
            stop: AtomicBool::new(false),
            upload_bytes: world.upload_bytes,
        });
        if world.setup != Setup::Small {
            tokio::spawn(Arc::clone(&all).watch_health());
        }
        for searcher in 0..SEARCHERS {
            let rng = ChaCha8Rng::seed_from_u64(seed ^ (searcher + 1).wrapping_mul(0x9e37_79b9));
            tokio::spawn(Arc::clone(&all).act(searcher, rng, SEARCHERS as f64 / tps));
        }
        all
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    async fn act(self: Arc<Self>, searcher: u64, mut rng: ChaCha8Rng, between_s: f64) {
        let signer = key(searcher);
        let mut connections: BTreeMap<usize, Connection> = BTreeMap::new();
        // A server that stands still is not asked less often.
        let mut due = Instant::now();
        while !self.stop.load(Relaxed) {
            due += Duration::from_secs_f64(between_s * rng.random_range(0.2..1.8));
            sleep_until(due).await;
            let (wish, kind, request) = self.choose(searcher, &signer, &mut rng);
            let (machine, address) = self.machines[rng.random_range(0..self.machines.len())];
            if let Some(message) = self.log().wishes[wish].messages.last_mut() {
                (message.machine, message.sent) = (machine, now_ns());
            }
            let sending = send(&mut connections, machine, searcher, address, &request);
            let answer = timeout(PATIENCE, sending).await;
            if !matches!(&answer, Ok(Ok(answer)) if !answer.closes) {
                connections.remove(&machine);
            }
            self.note(wish, kind, due.elapsed(), answer.ok().and_then(Result::ok));
        }
    }

    /// Asks the first machine how it is.
    async fn watch_health(self: Arc<Self>) {
        let request = http::request("/healthz", "", None);
        let (mut due, mut connection) = (Instant::now(), BTreeMap::new());
        while !self.stop.load(Relaxed) {
            due += MONITOR;
            sleep_until(due).await;
            let answer = send(&mut connection, 0, 0, self.machines[0].1, &request).await;
            if !answer.is_ok_and(|answer| answer.status == 200 && !answer.closes) {
                connection.clear();
            }
            self.log().health.saturating_record(due.elapsed().as_nanos() as u64);
        }
    }

    /// Decides on a message, and notes it as sent without an answer.
    fn choose(
        &self,
        searcher: u64,
        signer: &Account,
        rng: &mut ChaCha8Rng,
    ) -> (usize, &'static str, Vec<u8>) {
        let head = self.head.load(Relaxed);
        let key = key(self.keys.fetch_add(1, Relaxed));
        let (tx, raw) = signed(&key, |tx| {
            tx.value = U256::from(rng.random::<u32>());
            if self.upload_bytes > 0 {
                // Ten gas for each byte that is zero (EIP-7623).
                tx.gas_limit += 10 * self.upload_bytes as u64;
                tx.input = vec![0; self.upload_bytes].into();
            }
        });
        let mut log = self.log();
        // Its recent ones whose block is not too near for another message.
        let recent = log.wishes.len().saturating_sub(2_000);
        let is_own = |wish: &Wish| {
            wish.searcher == searcher && wish.block.is_some_and(|block| block >= head + 2)
        };
        let own: Vec<_> =
            (recent..log.wishes.len()).filter(|at| is_own(&log.wishes[*at])).collect();
        let what = rng.random_range(0..100);
        let new_message = |makes| Sent {
            machine: 0,
            makes,
            outcome: Outcome::InDoubt,
            sent: now_ns(),
            answered: u64::MAX,
            answer: String::new(),
            is_late: false,
        };
        if what < 4
            && let Some(at) = own.iter().copied().rfind(|at| log.wishes[*at].is_cancelled_bundle())
        {
            let wish = &mut log.wishes[at];
            let nonce = wish.is_numbered.then_some(wish.messages.len() as u64 - 1);
            let makes = wish.messages[wish.messages.len() - 2].makes;
            let request = wish.request(&wish.raw, nonce, signer);
            wish.messages.push(Sent { is_late: true, ..new_message(makes) });
            return (at, "late", request);
        }
        let open: Vec<_> = own.into_iter().filter(|at| log.wishes[*at].is_open()).collect();
        if what >= 55 && !open.is_empty() {
            let at = open[rng.random_range(0..open.len())];
            let wish = &mut log.wishes[at];
            let nonce = (wish.is_numbered).then_some(wish.messages.len() as u64 + 1);
            if what < 80 && wish.uuid.is_some() {
                wish.messages.push(new_message(Some(keccak256(tx))));
                (wish.raw, wish.tx) = (raw, tx);
                return (at, "replaced", wish.request(&wish.raw, nonce, signer));
            }
            wish.messages.push(new_message(None));
            wish.is_closed = true;
            let request = if wish.is_private {
                call("eth_cancelPrivateTransaction", &json!([{ "txHash": wish.tx }]), Some(signer))
            } else {
                let cancel = wish.named(json!({}), nonce);
                call("eth_cancelBundle", &json!([cancel]), Some(signer))
            };
            return (at, "cancelled", request);
        }
        let at = log.wishes.len();
        let is_private = what % 5 == 0;
        let has_uuid = !is_private && what % 5 != 1;
        let is_next = !is_private && !has_uuid && what % 2 == 0;
        let wish = Wish {
            searcher,
            uuid: has_uuid.then(|| format!("33333333-0000-4000-8000-{at:012x}")),
            is_numbered: what % 2 == 0,
            is_private,
            block: (!is_next).then(|| head + rng.random_range(2..=8)),
            messages: vec![new_message(Some(if is_private { tx } else { keccak256(tx) }))],
            is_closed: false,
            raw,
            tx,
            mined: None,
            is_void: false,
        };
        let nonce = (has_uuid && wish.is_numbered).then_some(1);
        let request = wish.request(&wish.raw, nonce, signer);
        log.wishes.push(wish);
        (at, "new", request)
    }

    fn note(&self, wish: usize, kind: &str, took: Duration, answer: Option<Answer>) {
        let now = now_ns();
        let mut log = self.log();
        let outcome = match &answer {
            None => Outcome::InDoubt,
            Some(answer) if answer.is_accepted() => Outcome::Accepted,
            // It takes effect at the other machines of a fleet.
            Some(answer) if answer.reason() == Some("unknown_private") => Outcome::Accepted,
            Some(_) => Outcome::Refused,
        };
        let count = match &answer {
            None => "no answer".to_owned(),
            Some(_) if outcome == Outcome::Refused && kind == "late" => "late, refused".to_owned(),
            Some(answer) if outcome == Outcome::Refused => {
                format!("refused: {}", answer.reason().unwrap_or(&answer.body))
            }
            _ => kind.to_owned(),
        };
        *log.counts.entry(count.clone()).or_default() += 1;
        let known = usize::from(is_known(log.wishes[wish].searcher));
        if outcome == Outcome::Accepted {
            log.took[known].saturating_record(took.as_nanos() as u64);
        } else if kind != "late" {
            log.refused[known] += 1;
        }
        let wish = &mut log.wishes[wish];
        // What may still be on its way must not overtake a later message.
        wish.is_closed |=
            outcome == Outcome::InDoubt || wish.messages.len() == 1 && outcome == Outcome::Refused;
        wish.is_void |= count.contains("became_public");
        let message = wish.messages.last_mut().expect("it was sent");
        (message.outcome, message.answered, message.answer) = (outcome, now, count);
    }
}

async fn send(
    connections: &mut BTreeMap<usize, Connection>,
    machine: usize,
    searcher: u64,
    server: SocketAddr,
    request: &[u8],
) -> std::io::Result<Answer> {
    if let std::collections::btree_map::Entry::Vacant(entry) = connections.entry(machine) {
        entry.insert(Connection::open(address(searcher), server).await?);
    }
    connections.get_mut(&machine).expect("just opened").request(request).await
}
