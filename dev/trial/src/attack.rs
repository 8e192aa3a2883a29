//! The attacker, in a process of its own: one thread, at most half a core.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    ops::AddAssign,
    rc::Rc,
    time::{Duration, Instant},
};

use alloy_consensus::{Signed, TxEip4844Variant, TxEnvelope};
use alloy_eips::{
    Decodable2718 as _, Encodable2718 as _,
    eip4844::{BlobTransactionSidecar, env_settings::EnvKzgSettings},
    eip7594::BlobTransactionSidecarVariant,
};
use alloy_primitives::Bytes;
use hdrhistogram::Histogram;
use mock_node::{
    DEV_CHAIN_ID,
    workload::{Account, Mix, PreparedTx, Workload, WorkloadConfig, test_accounts},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use testkit::{
    figures::{Times, histogram},
    http::{self, Answer, Connection, call, post},
    process::serve,
    sign::signed,
    usage::process_cpu,
};
use tokio::{
    io::AsyncWriteExt as _,
    task::LocalSet,
    time::{sleep, sleep_until, timeout_at},
};

use crate::network;

pub(crate) const ROLE: &str = "__attacker";

/// The cores that the attacker may use: more would slow down the machine that it attacks.
const CPU_CAP: f64 = 0.5;

/// The largest body that the server accepts, less one byte.
const LARGE_BYTES: usize = (8 << 20) - 1;

/// The first of its keys, which are not those of honest searchers.
const FIRST_KEY: u64 = 1 << 32;

/// How many transactions it copies before the nodes announce them: those of a few seconds.
const COPIED_TXS: usize = 2_000;

/// The most different requests in the quick pass.
pub(crate) const QUICK_REQUESTS: u64 = 64;

/// One way to harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Attack {
    /// Nobody attacks: the baseline of the others.
    None,
    /// Transactions of 120 KB from accounts that own nothing, with a tip above all others: first
    /// with impossible gas, then with as much as a transaction may have.
    UnfundedTransactions,
    /// 20,000 variants of one bundle, by one signer, for a block far ahead.
    BundleVariants,
    /// Requests of 4.7 MB with one long unknown field; the responses are not read.
    UnreadResponses,
    /// `eth_cancelBundle` with an object of 8 MB, again and again.
    WideObjects,
    /// Bodies of 8 MB that lack their last byte.
    StalledBodies,
    /// 128 connections that send each body slowly enough to occupy a place, and fast enough to be
    /// accepted.
    SlowBodies,
    /// As many connections as two addresses can open.
    IdleConnections,
    /// Requests whose callers hang up at once.
    HangUps,
    /// Bundles that are signed by a key each, as their transactions are, for the last block that is
    /// accepted.
    FreshKeys,
    /// Transactions of six blobs, one of which has a wrong proof: what fails is not remembered.
    ForgedBlobs,
    /// Transactions of six blobs, again and again.
    BlobReplays,
    /// Bundles whose list of transactions is 8 MB of empty strings.
    LongLists,
    /// Bodies of 8 MB that do not parse, whether or not the quota is spent.
    BrokenBodies,
    /// Signed cancellations of bundles that nobody has sent, 100 in a request.
    UnknownCancellations,
    /// The same, by a fresh key each.
    FreshCancellations,
    /// Private transactions with increasing nonces, of one key that owns nothing.
    PrivateFlood,
    /// The same, of 40 KB each.
    LargePrivateFlood,
    /// Bundles with the same 16 transactions of keys that own nothing, by three signers, for blocks
    /// that come soon and one that does not.
    SharedTransactions,
    /// 512 bundles of three transactions from 512 signers at 64 addresses at once: no attack at
    /// all.
    HonestBurst,
    /// 64 callers at as many addresses send raw transactions as fast as they can, whatever the
    /// answers.
    Crowd,
    /// 41 bundles, each by a key of its own, from all addresses again and again. The number is odd,
    /// so that each of 256 addresses sends all of them: more claims than the half has orders, while
    /// an honest caller may have more bundles than each of these addresses.
    FewBundles,
    /// Bodies of 80 KB that come at 25 bytes a second.
    TrickledBodies,
    /// Bundles of 10,000 signers for blocks that come soon, as a trusted front forwards them.
    FrontKeys,
    /// The transactions that the nodes are about to announce: as private transactions whose last
    /// block comes soon, and raw.
    EarlyCopies,
    /// `/healthz` on 1,920 connections, 50 requests at a time.
    PipelinedGets,
    /// Small bodies that lack their last byte, on as many connections as there are places for
    /// requests.
    IncompleteBodies,
    /// The blob transactions that the nodes are about to announce, with the proofs of EIP-4844.
    OldSidecars,
    /// Bundles of 100 transactions from as many senders, about each of whom the node must be asked.
    ManySenders,
    /// Bundles with the transaction that all searchers' bundles contain, just before a block
    /// contains it and a reorg undoes that.
    AroundShared,
}

/// The addresses that an attacker's requests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Addresses {
    /// This many of the loopback network.
    Ipv4(usize),
    /// Each request comes from another /64 of one /48, as a trusted proxy says.
    Ipv6Prefix,
}

/// The proxy and the front that the machines trust.
pub(crate) const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 8, 1);
pub(crate) const FRONT: Ipv4Addr = Ipv4Addr::new(127, 0, 8, 2);

impl Attack {
    /// Each with its name, and how many connections it uses at the same time.
    pub(crate) const ALL: [(Self, &str, usize); 21] = [
        (Self::None, "none", 0),
        (Self::UnfundedTransactions, "unfunded transactions", 8),
        (Self::BundleVariants, "bundle variants", 16),
        (Self::UnreadResponses, "unread responses", 40),
        (Self::WideObjects, "wide objects", 8),
        (Self::StalledBodies, "stalled bodies", 16),
        (Self::SlowBodies, "slow bodies", 128),
        (Self::IdleConnections, "idle connections", 2_048),
        (Self::HangUps, "hang-ups", 16),
        (Self::FreshKeys, "fresh keys", 16),
        (Self::ForgedBlobs, "forged blobs", 8),
        (Self::BlobReplays, "blob replays", 8),
        (Self::LongLists, "long lists", 8),
        (Self::BrokenBodies, "broken bodies", 8),
        (Self::UnknownCancellations, "unknown cancellations", 16),
        (Self::FreshCancellations, "cancellations by fresh keys", 16),
        (Self::PrivateFlood, "private flood", 16),
        (Self::LargePrivateFlood, "private flood of 40 KB", 16),
        (Self::SharedTransactions, "shared transactions", 16),
        (Self::HonestBurst, "honest burst of 512", 512),
        (Self::Crowd, "crowd of 64", 64),
    ];

    /// The same of the attacks that are run from one, eight and 256 IPv4 addresses and from an IPv6
    /// /48.
    pub(crate) const FROM_EVERYWHERE: [(Self, &str, usize); 9] = [
        (Self::FewBundles, "copies of few bundles", 16),
        (Self::TrickledBodies, "trickled bodies", 60),
        (Self::FrontKeys, "10,000 keys behind a front", 16),
        (Self::EarlyCopies, "copies with early last blocks", 8),
        (Self::PipelinedGets, "pipelined gets", 1_920),
        (Self::IncompleteBodies, "incomplete bodies", 512),
        (Self::OldSidecars, "blobs with old proofs", 4),
        (Self::ManySenders, "bundles of 100 senders", 16),
        (Self::AroundShared, "bundles around a mined transaction", 16),
    ];

    fn row(self) -> (Self, &'static str, usize) {
        let mut rows = Self::ALL.into_iter().chain(Self::FROM_EVERYWHERE);
        rows.find(|row| row.0 == self).expect("each attack has a row")
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the number of connections; in the quick pass at most 64 of those that only wait.
    fn connections(self, most_requests: u64) -> usize {
        let (.., connections) = self.row();
        let is_many = matches!(self, Self::IdleConnections | Self::PipelinedGets);
        if is_many && most_requests <= QUICK_REQUESTS { 64 } else { connections }
    }

    /// Returns the requests that it sends in turn, in this state of the chain and of the nodes.
    fn requests(self, most_requests: u64, target: &Target) -> Vec<Vec<u8>> {
        let head = target.head;
        let ahead = |blocks: u64| format!("{:#x}", head + blocks);
        let many = |count: u64, request: &dyn Fn(u64) -> Vec<u8>| -> Vec<_> {
            (0..count.min(most_requests)).map(request).collect()
        };
        let fresh = |number: u64| Account::from_entropy(0, FIRST_KEY + number);
        let eve = fresh(0);
        let bundle = |number: u64| {
            let (key, block) = (fresh(number), ahead(64));
            send_bundle(json!({ "txs": [transfer(&key, number)], "blockNumber": block }), &key)
        };
        match self {
            Self::None => Vec::new(),
            Self::UnfundedTransactions => {
                let sent = |number: u64, gas_limit: u64| {
                    let (_, raw) = signed(&fresh(number), |tx| {
                        (tx.nonce, tx.gas_limit) = (number, gas_limit);
                        (tx.max_fee_per_gas, tx.max_priority_fee_per_gas) = (ETHER_WEI, ETHER_WEI);
                        tx.input = vec![0; 120_000].into();
                    });
                    send_raw(&raw)
                };
                let impossible = many(26, &|number| sent(number, u64::MAX));
                [impossible, many(700, &|number| sent(number, 1 << 24))].concat()
            }
            Self::BundleVariants => {
                let (txs, block) = ([transfer(&eve, 0)], ahead(63));
                many(20_000, &|number| {
                    let variant =
                        json!({ "txs": txs, "blockNumber": block, "minTimestamp": number });
                    send_bundle(variant, &eve)
                })
            }
            Self::UnreadResponses => {
                let name = "x".repeat(4_700_000);
                vec![call("eth_sendBundle", &json!([{ name: 1 }]), None)]
            }
            Self::WideObjects => {
                // Twelve bytes each, and what stands around them.
                let names = (0..LARGE_BYTES / 12 - 100).map(|number| format!("{number:07}"));
                let object: Map<_, _> = names.map(|name| (name, Value::from(1))).collect();
                vec![call("eth_cancelBundle", &json!([object]), Some(&eve))]
            }
            Self::LongLists => {
                let txs = vec![""; LARGE_BYTES / 3 - 100];
                vec![send_bundle(json!({ "txs": txs }), &eve)]
            }
            Self::BrokenBodies => vec![post(&"[".repeat(LARGE_BYTES), Some(&eve))],
            Self::StalledBodies => {
                let mut request = http::request("/", "", Some(&" ".repeat(LARGE_BYTES)));
                request.pop();
                vec![request]
            }
            Self::SlowBodies => vec![bundle(0)],
            Self::IdleConnections => vec![Vec::new()],
            Self::HangUps => many(1_000, &|nonce| send_raw(&transfer(&eve, nonce))),
            Self::FreshKeys => many(20_000, &bundle),
            Self::ForgedBlobs | Self::BlobReplays => {
                let six = 1_000;
                let mix =
                    Mix { blobs_per_mille: 1_000, six_blobs_per_mille: six, ..Mix::default() };
                let config = WorkloadConfig::new(99, DEV_CHAIN_ID);
                let config = WorkloadConfig { accounts: 4_000, mix, ..config };
                let txs = Workload::new(config).prepare(if most_requests <= QUICK_REQUESTS {
                    2
                } else {
                    16
                });
                let sent = |tx: &PreparedTx| {
                    let mut raw = tx.raw.to_vec();
                    // Inside a blob: they are nearly all of it.
                    let middle = raw.len() / 2;
                    raw[middle] ^= u8::from(self == Self::ForgedBlobs);
                    send_raw(&raw.into())
                };
                txs.iter().map(sent).collect()
            }
            Self::UnknownCancellations => many(700, &|number| {
                let one = |place: u64| {
                    let uuid = format!("00000000-0000-4000-8000-{:012x}", number * 100 + place);
                    let params = json!([{ "replacementUuid": uuid }]);
                    json!({ "jsonrpc": "2.0", "id": place, "method": "eth_cancelBundle", "params": params })
                };
                post(&Value::from_iter((0..100).map(one)).to_string(), Some(&eve))
            }),
            Self::FreshCancellations => many(20_000, &|number| {
                let cancel = json!([{ "replacementUuid": "22222222-0000-4000-8000-000000000000" }]);
                call("eth_cancelBundle", &cancel, Some(&fresh(number)))
            }),
            Self::PrivateFlood | Self::LargePrivateFlood => {
                let is_large = self == Self::LargePrivateFlood;
                let (count, bytes) = if is_large { (1_700, 40_000) } else { (18_000, 0) };
                many(count, &|number| {
                    let (_, raw) = signed(&eve, |tx| {
                        (tx.nonce, tx.gas_limit) = (1 + number, 1 << 20);
                        tx.max_priority_fee_per_gas = 50_000_000_000;
                        tx.input = vec![0; bytes].into();
                    });
                    let private = json!([{ "tx": raw, "maxBlockNumber": ahead(24) }]);
                    call("eth_sendPrivateTransaction", &private, None)
                })
            }
            Self::SharedTransactions => {
                let txs: Vec<_> = (0..16).map(|number| transfer(&fresh(number), 0)).collect();
                many(6_000, &|number| {
                    let block = ahead([4, 7, 24][(number / 3 % 3) as usize]);
                    let variant =
                        json!({ "txs": txs, "blockNumber": block, "minTimestamp": number });
                    send_bundle(variant, &fresh(100 + number % 3))
                })
            }
            Self::FewBundles => many(41, &bundle),
            Self::TrickledBodies => vec![post(&" ".repeat(80_000), None)],
            Self::FrontKeys => many(10_000, &|number| {
                let (key, block) = (fresh(number), ahead(2 + number % 6));
                let signer = key.address;
                let txs = [transfer(&key, 0)];
                let one = json!({ "txs": txs, "blockNumber": block, "signingAddress": signer });
                call("eth_sendBundle", &json!([one]), None)
            }),
            Self::EarlyCopies => {
                let txs = target.next_txs();
                let copies = txs.iter().zip(0..).flat_map(|(tx, number)| {
                    let last = ahead(1 + number % 4);
                    let private = json!([{ "tx": tx.raw, "maxBlockNumber": last }]);
                    [call("eth_sendPrivateTransaction", &private, None), send_raw(&tx.raw)]
                });
                copies.collect()
            }
            Self::OldSidecars => {
                let mut sidecars = BTreeMap::new();
                let txs = target.next_txs();
                let copies = txs.iter().filter_map(|tx| with_old_sidecar(&tx.raw, &mut sidecars));
                copies.map(|raw| send_raw(&raw)).collect()
            }
            Self::ManySenders => many(600, &|number| {
                let txs = (0..100).map(|place| transfer(&fresh(100 * number + place), 0));
                let txs: Vec<_> = txs.collect();
                send_bundle(json!({ "txs": txs, "blockNumber": ahead(24) }), &fresh(100 * number))
            }),
            Self::AroundShared => many(6_000, &|number| {
                let (key, block) = (fresh(number), ahead(3 + number % 6));
                let txs: Vec<_> = target.shared_tx.clone().into_iter().collect();
                let txs = [txs, vec![transfer(&key, 0)]].concat();
                send_bundle(json!({ "txs": txs, "blockNumber": block }), &key)
            }),
            Self::PipelinedGets => vec![http::request("/healthz", "", None).repeat(50)],
            Self::IncompleteBodies => {
                let mut request = bundle(0);
                request.pop();
                vec![request]
            }
            Self::HonestBurst => {
                let sent = |number| {
                    let key = fresh(number);
                    let txs = [0, 1, 2].map(|nonce| transfer(&key, nonce));
                    send_bundle(json!({ "txs": txs, "blockNumber": ahead(32) }), &key)
                };
                (0..512).map(sent).collect()
            }
            Self::Crowd => {
                let accounts = test_accounts(3_000).split_off(2_000);
                let sent = |number: usize| {
                    let (_, raw) = signed(&accounts[number % accounts.len()], |tx| {
                        tx.nonce = (number / accounts.len()) as u64;
                        tx.max_priority_fee_per_gas += number as u128;
                        (tx.gas_limit, tx.input) = (60_000, vec![0x11; 68].into());
                    });
                    send_raw(&raw)
                };
                (0..most_requests.saturating_mul(10).min(40_000) as usize).map(sent).collect()
            }
        }
    }

    /// Whether it is many callers rather than a stranger with a few addresses: they are to be
    /// refused quickly, or to wait their turn.
    pub(crate) const fn is_crowd(self) -> bool {
        matches!(self, Self::HonestBurst | Self::Crowd)
    }
}

const ETHER_WEI: u128 = 10_u128.pow(18);

fn send_raw(raw: &Bytes) -> Vec<u8> {
    call("eth_sendRawTransaction", &json!([raw]), None)
}

fn send_bundle(bundle: Value, signer: &Account) -> Vec<u8> {
    call("eth_sendBundle", &json!([bundle]), Some(signer))
}

/// Returns an account's transfer with this nonce.
fn transfer(account: &Account, nonce: u64) -> Bytes {
    signed(account, |tx| tx.nonce = nonce).1
}

/// Returns a blob transaction with the proofs of EIP-4844; `None` for other transactions.
/// `sidecars` keeps the computed ones by their number of blobs, since the blobs of the load are
/// always the same.
fn with_old_sidecar(
    raw: &[u8],
    sidecars: &mut BTreeMap<usize, BlobTransactionSidecar>,
) -> Option<Bytes> {
    let envelope = TxEnvelope::decode_2718_exact(raw).expect("it was signed here");
    let TxEnvelope::Eip4844(signed) = envelope else { return None };
    let (variant, signature, hash) = signed.into_parts();
    let TxEip4844Variant::TxEip4844WithSidecar(mut tx) = variant else { return None };
    let BlobTransactionSidecarVariant::Eip7594(new) = &tx.sidecar else { return None };
    let sidecar = sidecars.entry(new.blobs.len()).or_insert_with(|| {
        let settings = EnvKzgSettings::Default.get();
        let sidecar =
            BlobTransactionSidecar::try_from_blobs_with_settings(new.blobs.clone(), settings);
        sidecar.expect("the blobs are valid")
    });
    tx.sidecar = BlobTransactionSidecarVariant::Eip4844(sidecar.clone());
    Some(Signed::new_unchecked(tx, signature, hash).encoded_2718().into())
}

/// What an attacker knows of the chain and of the nodes when it prepares its requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The latest block: orders that name a block are for one after it.
    pub(crate) head: u64,
    /// The seed of the nodes' load.
    pub(crate) seed: u64,
    /// Of a thousand transactions, those with blobs; of a thousand of these, those with six.
    pub(crate) blobs_per_mille: [u32; 2],
    /// How many transactions the nodes have announced.
    pub(crate) announced: usize,
    /// The transaction that all bundles of searchers contain.
    pub(crate) shared_tx: Option<Bytes>,
}

impl Target {
    /// Returns the transactions that the nodes will announce next.
    fn next_txs(&self) -> Vec<PreparedTx> {
        let [blobs_per_mille, six_blobs_per_mille] = self.blobs_per_mille;
        let mix = Mix { blobs_per_mille, six_blobs_per_mille, ..Mix::default() };
        let mut load = Workload::new(network::load_config(self.seed, mix));
        load.prepare(self.announced + COPIED_TXS).split_off(self.announced)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Writes and signs the requests, which are sent again and again.
    Prepare { attack: Attack, most_requests: u64, target: Target },
    /// Attacks for this long, from these addresses.
    Run { server: SocketAddr, duration: Duration, addresses: Addresses },
}

/// Returns the `number`th address of the attacker.
pub(crate) fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 9 + (number / 250) as u8, 1 + (number % 250) as u8)
}

/// The result of an attack, as the attacker saw it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) bytes: u64,
    /// The CPU time of the attacker's process.
    pub(crate) cpu: Duration,
    pub(crate) accepted: u64,
    /// Refused requests by the reason in the response; `cut` if the connection ended without one.
    pub(crate) refused: BTreeMap<String, u64>,
    /// The time until the response: of all requests of the burst, of the refused ones of the crowd.
    pub(crate) p99_ms: Option<f64>,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.bytes += other.bytes;
        self.cpu += other.cpu;
        self.accepted += other.accepted;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.p99_ms = self.p99_ms.or(other.p99_ms);
    }
}

impl Tally {
    /// Returns the refusals by their reason, and the time until the response, as texts.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let refused = self.refused.iter().map(|(reason, count)| format!("{reason} {count}"));
        refused.chain(self.p99_ms.map(|ms| format!("p99 {ms:.1} ms")))
    }
}

/// Runs as the attacker until the conductor ends.
pub(crate) fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut prepared = None;
    serve(|request| match request {
        Request::Prepare { attack, most_requests, target } => {
            let requests = attack.requests(most_requests, &target);
            prepared = Some((attack, requests, attack.connections(most_requests)));
            Ok(Tally::default())
        }
        Request::Run { server, duration, addresses } => {
            let prepared =
                prepared.take().ok_or_else(|| io::Error::other("no attack is prepared"))?;
            let (attack, requests, connections) = prepared;
            let attacker = Attacker {
                attack,
                server,
                requests,
                // Every address takes part, if the attack has connections at all.
                connections: match addresses {
                    Addresses::Ipv4(count) if connections > 0 => connections.max(count),
                    _ => connections,
                },
                addresses,
                start: Instant::now(),
                end: Instant::now() + duration,
                cpu: process_cpu(),
                tally: RefCell::default(),
                response_times: RefCell::new(histogram()),
            };
            LocalSet::new().block_on(&runtime, run(Rc::new(attacker)))
        }
    })
}

struct Attacker {
    attack: Attack,
    server: SocketAddr,
    requests: Vec<Vec<u8>>,
    connections: usize,
    addresses: Addresses,
    start: Instant,
    end: Instant,
    cpu: Duration,
    tally: RefCell<Tally>,
    response_times: RefCell<Histogram<u64>>,
}

async fn run(attacker: Rc<Attacker>) -> io::Result<Tally> {
    let all: Vec<_> = (0..attacker.connections)
        .map(|number| tokio::task::spawn_local(Rc::clone(&attacker).connection(number)))
        .collect();
    for task in all {
        task.await.map_err(io::Error::other)?;
    }
    sleep_until(attacker.end.into()).await;
    let times = Times::from(&*attacker.response_times.borrow());
    let mut tally = attacker.tally.take();
    tally.p99_ms = (times.count > 0).then_some(times.p99 / 1e3);
    tally.cpu = process_cpu() - attacker.cpu;
    Ok(tally)
}

impl Attacker {
    /// Opens one connection after the other until the time is over. An error is a refusal by the
    /// server.
    async fn connection(self: Rc<Self>, number: usize) {
        let is_crowd = self.attack.is_crowd();
        let crowd = Ipv4Addr::new(127, 0, 4, 1 + (number % 64) as u8);
        let source = match self.addresses {
            _ if is_crowd => crowd,
            _ if self.attack == Attack::FrontKeys => FRONT,
            Addresses::Ipv4(count) => address(number % count),
            Addresses::Ipv6Prefix => PROXY,
        };
        let mut next = number;
        while Instant::now() < self.end {
            self.spare_cpu().await;
            let Ok(mut connection) = Connection::open(source, self.server).await else {
                self.count_refusal("cut");
                continue;
            };
            let ended = match self.attack {
                Attack::HonestBurst => return self.burst(&mut connection, number).await,
                Attack::IdleConnections
                | Attack::StalledBodies
                | Attack::IncompleteBodies
                | Attack::UnreadResponses => self.stall(&mut connection, &mut next).await,
                Attack::TrickledBodies => self.trickle(&mut connection, &mut next).await,
                Attack::HangUps => connection.stream.write_all(&self.next(&mut next)).await,
                _ => self.request(&mut connection, &mut next).await,
            };
            if ended.is_err() && Instant::now() < self.end {
                self.count_refusal("cut");
            }
        }
    }

    /// Waits while it has used more CPU time than it may.
    async fn spare_cpu(&self) {
        while process_cpu() - self.cpu > self.start.elapsed().mul_f64(CPU_CAP)
            && Instant::now() < self.end
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns the next request, and counts it as sent.
    fn next(&self, next: &mut usize) -> Cow<'_, [u8]> {
        let request = &self.requests[*next % self.requests.len()];
        let request = match self.addresses {
            Addresses::Ipv6Prefix if !request.is_empty() => forwarded(request, *next),
            _ => request.into(),
        };
        *next += self.connections;
        let mut tally = self.tally.borrow_mut();
        tally.sent += 1;
        tally.bytes += request.len() as u64;
        request
    }

    /// Counts an answer. That to a batch counts by its first element.
    fn count_answer(&self, answer: &Answer) {
        if answer.is_accepted() {
            self.tally.borrow_mut().accepted += 1;
        } else {
            self.count_refusal(answer.reason().unwrap_or("no reason"));
        }
    }

    fn count_refusal(&self, reason: &str) {
        *self.tally.borrow_mut().refused.entry(reason.to_owned()).or_default() += 1;
    }

    /// Sends, waits for the response, and sends the next.
    async fn request(&self, connection: &mut Connection, next: &mut usize) -> io::Result<()> {
        while Instant::now() < self.end {
            self.spare_cpu().await;
            let (begin, request) = (Instant::now(), self.next(next));
            let answer = match self.attack {
                Attack::SlowBodies => request_slowly(connection, &request).await?,
                _ => connection.request(&request).await?,
            };
            if self.attack == Attack::Crowd && !answer.is_accepted() {
                self.response_times
                    .borrow_mut()
                    .saturating_record(begin.elapsed().as_nanos() as u64);
            }
            self.count_answer(&answer);
            if answer.closes {
                break;
            }
        }
        Ok(())
    }

    /// Sends one request at the same time as all other connections.
    async fn burst(&self, connection: &mut Connection, number: usize) {
        let send_at = self.start + (self.end - self.start) / 4;
        sleep_until(send_at.into()).await;
        let answer = connection.request(&self.next(&mut number.clone())).await;
        self.response_times.borrow_mut().saturating_record(send_at.elapsed().as_nanos() as u64);
        match answer {
            Ok(answer) => self.count_answer(&answer),
            Err(_) => self.count_refusal("cut"),
        }
    }

    /// Sends a head, then a byte of the body every 40 ms, until the server or the time ends it.
    async fn trickle(&self, connection: &mut Connection, next: &mut usize) -> io::Result<()> {
        let request = self.next(next);
        let head =
            request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |start| start + 4);
        connection.stream.write_all(&request[..head]).await?;
        for byte in request[head..].chunks(1) {
            if Instant::now() > self.end {
                break;
            }
            connection.stream.write_all(byte).await?;
            sleep(Duration::from_millis(40)).await;
        }
        Ok(())
    }

    /// Sends an incomplete request, or nothing, and waits for the end: the server answers only to
    /// refuse. Or sends a whole request, and does not read the response.
    async fn stall(&self, connection: &mut Connection, next: &mut usize) -> io::Result<()> {
        let until_end = async {
            connection.stream.write_all(&self.next(next)).await?;
            if self.attack == Attack::UnreadResponses {
                std::future::pending::<()>().await;
            }
            self.count_answer(&connection.answer().await?);
            Ok(())
        };
        timeout_at(self.end.into(), until_end).await.unwrap_or(Ok(()))
    }
}

/// Returns the request as a proxy forwards it, for the `number`th /64 of one /48.
fn forwarded(request: &[u8], number: usize) -> Cow<'static, [u8]> {
    let end_of_line =
        request.windows(2).position(|two| two == b"\r\n").map_or(0, |start| start + 2);
    let (line, rest) = request.split_at(end_of_line);
    // Neighbours are in different /56s.
    let subnet = (number as u16).rotate_left(8);
    let header = format!("x-forwarded-for: 2001:db8:0:{subnet:x}::1\r\n");
    [line, header.as_bytes(), rest].concat().into()
}

/// Sends a request in ten pieces within 95 ms.
async fn request_slowly(connection: &mut Connection, request: &[u8]) -> io::Result<Answer> {
    let begin = Instant::now();
    for (piece, bytes) in request.chunks(request.len().div_ceil(10)).enumerate() {
        let due = begin + Duration::from_micros(9_500) * piece as u32;
        sleep_until(due.into()).await;
        connection.stream.write_all(bytes).await?;
    }
    connection.answer().await
}
