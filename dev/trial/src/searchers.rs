//! Honest searchers: eight whom the hosts know, eight unknown at addresses of their own, eight behind one address. They send
//! bundles and private transactions, replace with and without nonces, and cancel, each time at any machine. Their log is
//! what the oracle knows of them.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use alloy_signer_local::PrivateKeySigner;
use hdrhistogram::Histogram;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use testkit::{
    figures::histogram,
    http::{Answer, Connection},
    usage::now_ns,
};
use tokio::time::{sleep, timeout};

use crate::{
    oracle::Outcome,
    signed::{call, key, raw_and_hash, transfer},
    world::World,
};

const SEARCHERS: u64 = 24;
/// The first of the keys that sign transactions: each has one, so that no order depends on another.
const SENDERS: u64 = 1 << 20;
/// A request without an answer is given up.
const PATIENCE: Duration = Duration::from_secs(4);

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
}

impl Sent {
    /// Whether it was refused though the machine had time for it and knew a head: something of others has its place.
    pub(crate) fn is_displaced(&self) -> bool {
        let is_busy = ["no_permit", "head_unknown", "shutting_down"]
            .iter()
            .any(|word| self.answer.ends_with(word));
        self.outcome == Outcome::Refused && !is_busy
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
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) wishes: Vec<Wish>,
    /// By what came of them: `new`, `replaced`, `cancelled` if accepted, and the reasons if not.
    pub(crate) counts: BTreeMap<String, u64>,
    /// From when a request was due to its answer.
    pub(crate) took: Histogram<u64>,
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
}

pub(crate) fn known_signers() -> Vec<Address> {
    (0..SEARCHERS).filter(|number| number % 3 == 0).map(|number| key(number).address()).collect()
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
        let log = Log { wishes: Vec::new(), counts: BTreeMap::new(), took: histogram() };
        let all = Arc::new(Self {
            log: Mutex::new(log),
            machines,
            head: head.into(),
            keys: AtomicU64::new(SENDERS),
            stop: AtomicBool::new(false),
        });
        for searcher in 0..SEARCHERS {
            let rng = ChaCha8Rng::seed_from_u64(seed ^ (searcher + 1).wrapping_mul(0x9e37_79b9));
            tokio::spawn(Arc::clone(&all).act(searcher, rng, SEARCHERS as f64 / tps));
        }
        all
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn act(self: Arc<Self>, searcher: u64, mut rng: ChaCha8Rng, between_s: f64) {
        let signer = key(searcher);
        let mut connections: BTreeMap<usize, Connection> = BTreeMap::new();
        while !self.stop.load(Relaxed) {
            sleep(Duration::from_secs_f64(between_s * rng.random_range(0.2..1.8))).await;
            let Some((wish, kind, request)) = self.choose(searcher, &signer, &mut rng) else {
                continue;
            };
            let (machine, address) = self.machines[rng.random_range(0..self.machines.len())];
            let due = {
                let now = now_ns();
                let message = self.log().wishes[wish].messages.last_mut().map(|message| {
                    (message.machine, message.sent) = (machine, now);
                });
                message.expect("it was chosen");
                now
            };
            let answer =
                timeout(PATIENCE, send(&mut connections, machine, searcher, address, &request))
                    .await;
            if !matches!(&answer, Ok(Ok(answer)) if !answer.closes) {
                connections.remove(&machine);
            }
            self.note(wish, kind, due, answer.ok().and_then(Result::ok));
        }
    }

    /// Decides on a message, and notes it as sent without an answer.
    fn choose(
        &self,
        searcher: u64,
        signer: &PrivateKeySigner,
        rng: &mut ChaCha8Rng,
    ) -> Option<(usize, &'static str, Vec<u8>)> {
        let head = self.head.load(Relaxed);
        let (raw, tx) = self.transaction(rng);
        let bytes = Bytes::from(hex::decode(&raw).expect("hex"));
        let mut log = self.log();
        let recent = log.wishes.len().saturating_sub(2_000);
        let open: Vec<_> = (recent..log.wishes.len())
            .filter(|at| {
                let wish = &log.wishes[*at];
                let can_change = wish.uuid.is_some() || wish.is_private;
                let is_open = !wish.is_closed && wish.mined.is_none() && can_change;
                is_open
                    && wish.searcher == searcher
                    && wish.block.is_some_and(|block| block >= head + 2)
            })
            .collect();
        let what = rng.random_range(0..100);
        let new_message = |makes| Sent {
            machine: 0,
            makes,
            outcome: Outcome::InDoubt,
            sent: now_ns(),
            answered: u64::MAX,
            answer: String::new(),
        };
        if what >= 55 && !open.is_empty() {
            let at = open[rng.random_range(0..open.len())];
            let wish = &mut log.wishes[at];
            let nonce = (wish.is_numbered).then_some(wish.messages.len() as u64 + 1);
            if what < 80 && wish.uuid.is_some() {
                wish.messages.push(new_message(Some(keccak256(tx))));
                (wish.raw, wish.tx) = (bytes, tx);
                let bundle = bundle(&raw, wish, nonce);
                return Some((
                    at,
                    "replaced",
                    call("eth_sendBundle", &json!([bundle]), Some(signer)),
                ));
            }
            wish.messages.push(new_message(None));
            wish.is_closed = true;
            let request = if wish.is_private {
                call("eth_cancelPrivateTransaction", &json!([{ "txHash": wish.tx }]), Some(signer))
            } else {
                let mut cancel = json!({ "replacementUuid": wish.uuid });
                if let Some(nonce) = nonce {
                    cancel["replacementNonce"] = nonce.into();
                }
                call("eth_cancelBundle", &json!([cancel]), Some(signer))
            };
            return Some((at, "cancelled", request));
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
            raw: bytes,
            tx,
            mined: None,
            is_void: false,
        };
        let request = if is_private {
            let max = format!("{:#x}", wish.block.expect("private ones have one"));
            let private = json!([{ "tx": raw, "maxBlockNumber": max }]);
            call("eth_sendPrivateTransaction", &private, Some(signer))
        } else {
            let nonce = (has_uuid && wish.is_numbered).then_some(1);
            call("eth_sendBundle", &json!([bundle(&raw, &wish, nonce)]), Some(signer))
        };
        log.wishes.push(wish);
        Some((at, "new", request))
    }

    fn transaction(&self, rng: &mut ChaCha8Rng) -> (String, B256) {
        let key = key(self.keys.fetch_add(1, Relaxed));
        raw_and_hash(TxEip1559 { value: U256::from(rng.random::<u32>()), ..transfer(0) }, &key)
    }

    fn note(&self, wish: usize, kind: &str, due: u64, answer: Option<Answer>) {
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
            Some(answer) if outcome == Outcome::Refused => {
                format!("refused: {}", answer.reason().unwrap_or(&answer.body))
            }
            _ => kind.to_owned(),
        };
        *log.counts.entry(count.clone()).or_default() += 1;
        if outcome == Outcome::Accepted {
            log.took.saturating_record(now - due);
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

fn bundle(raw: &str, wish: &Wish, nonce: Option<u64>) -> serde_json::Value {
    let mut bundle = json!({ "txs": [raw] });
    if let Some(block) = wish.block {
        bundle["blockNumber"] = format!("{block:#x}").into();
    }
    if let Some(uuid) = &wish.uuid {
        bundle["replacementUuid"] = uuid.as_str().into();
    }
    if let Some(nonce) = nonce {
        bundle["replacementNonce"] = nonce.into();
    }
    bundle
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
