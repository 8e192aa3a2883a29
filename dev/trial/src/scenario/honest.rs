//! Those who must not notice anything: searchers with a key each, and a monitor.
//!
//! Each second a searcher sends a bundle for the next block, one for a later block, one with a uuid and its
//! replacement, and a private transaction.

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, B256, U256, keccak256};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::{
    figures::{Times, histogram},
    http::{self, Answer, Connection},
    process::{Process, serve},
};
use tokio::{task::LocalSet, time::sleep_until};

use crate::{
    attack,
    signed::{call, key, raw, raw_and_hash, transfer},
};

pub(crate) const ROLE: &str = "__honest";

pub(crate) const SEARCHERS: usize = 50;
/// Orders of each: four bundles, then a private transaction.
pub(crate) const PER_SECOND: usize = 5;
/// So many addresses have as many searchers each, except those beside the attacker.
const ADDRESSES: usize = 10;
/// Between two orders of one.
const BETWEEN: Duration = Duration::from_millis(1_000 / PER_SECOND as u64);
/// How often the monitor asks.
const MONITOR: Duration = Duration::from_millis(20);
/// How many blocks ahead what names its block is for.
const AHEAD: u64 = 3;
/// As many transactions of an account as a builder that asks its node accepts.
const NONCES: u64 = 16;

/// Who a searcher is to the builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The host knows its signer.
    Known,
    /// At an address that no attacker has.
    Unknown,
    /// At an address of the attacker.
    Beside,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Known, Self::Unknown, Self::Beside];

    const fn of(searcher: usize) -> Self {
        match searcher % 5 {
            0 | 1 => Self::Known,
            2 | 3 => Self::Unknown,
            _ => Self::Beside,
        }
    }
}

/// The signers that the host knows.
pub(crate) fn known() -> Vec<Address> {
    let known = (0..SEARCHERS).filter(|searcher| Kind::of(*searcher) == Kind::Known);
    known.map(|searcher| key(searcher as u64).address()).collect()
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Sign(Plan),
    Run(SocketAddr, Duration),
    /// Sends a bundle of each uuid that was cancelled before.
    Revive(SocketAddr),
}

/// When they send what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) lasts: Duration,
    /// Between two heads; the first comes so long after the start, and is block 1.
    pub(crate) slot: Duration,
    /// Their accounts own nothing, so a builder that asks the node refuses their private transactions and what
    /// is for the next block.
    pub(crate) may_pay: bool,
}

/// What one kind of searchers saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OfKind {
    pub(crate) sent: u64,
    /// What was answered with success and not replaced since: bundle hashes and hashes of private transactions.
    pub(crate) accepted: Vec<B256>,
    /// Bundle hashes of those whose replacement was answered with success.
    pub(crate) replaced: Vec<B256>,
}

/// What they saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// In the order of [`Kind::ALL`].
    pub(crate) kinds: [OfKind; 3],
    /// Permanent cancellations that were answered with success, by the searcher.
    pub(crate) cancelled: Vec<usize>,
    /// One answer that was no success, or one failure to get one.
    pub(crate) failure: Option<String>,
    pub(crate) bundles: Times,
    /// Of known signers alone.
    pub(crate) known: Times,
    pub(crate) health: Times,
}

impl Tally {
    /// What was refused.
    pub(crate) fn refused(&self, kind: Kind) -> u64 {
        let OfKind { sent, accepted, replaced } = &self.kinds[kind as usize];
        sent - (accepted.len() + replaced.len()) as u64
    }
}

/// The process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Honest {
    process: Process,
    run: Request,
}

impl Honest {
    /// With everything signed that they will send.
    pub(crate) fn spawn(server: SocketAddr, plan: Plan) -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        process.request::<Tally>(&Request::Sign(plan))?;
        Ok(Self { process, run: Request::Run(server, plan.lasts) })
    }

    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.process.send(&self.run)
    }

    pub(crate) fn finish(&mut self) -> io::Result<Tally> {
        self.process.receive()
    }

    /// How many cancelled bundles are accepted again, of those who are at no address of the attacker.
    pub(crate) fn revived(&mut self, server: SocketAddr) -> io::Result<usize> {
        let tally: Tally = self.process.request(&Request::Revive(server))?;
        let of = |kind| tally.kinds[kind as usize].accepted.len();
        Ok(of(Kind::Known) + of(Kind::Unknown))
    }
}

/// A signed order.
struct Order {
    request: Vec<u8>,
    hash: B256,
    /// The bundle that it replaces.
    replaces: Option<B256>,
}

/// Runs as the honest callers.
pub(crate) fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut orders = Vec::new();
    let mut cancelled = Vec::new();
    serve(|request| match request {
        Request::Sign(plan) => {
            orders = (0..SEARCHERS).map(|searcher| sign(searcher, plan)).collect();
            Ok(Tally::default())
        }
        Request::Run(server, lasts) => {
            let run = run(server, lasts, std::mem::take(&mut orders));
            let tally = LocalSet::new().block_on(&runtime, run)?;
            cancelled.clone_from(&tally.cancelled);
            Ok(tally)
        }
        Request::Revive(server) => runtime.block_on(revive(server, &cancelled)),
    })
}

/// What a searcher sends, in turn.
fn sign(searcher: usize, Plan { lasts, slot, may_pay }: Plan) -> Vec<Order> {
    let key = key(searcher as u64);
    let each = (lasts.as_secs_f64() * PER_SECOND as f64).ceil() as u32;
    // The head when a searcher sends its `n`th, and the block so many ahead of it.
    let ahead = |n: u32, blocks: u64| {
        let due = first(searcher) + BETWEEN * n;
        format!("{:#x}", due.div_duration_f64(slot) as u64 + blocks)
    };
    let mut before = B256::ZERO;
    let sent = |n: u32| {
        let tx = TxEip1559 { value: U256::from(n), ..transfer(u64::from(n) % NONCES) };
        let (raw, tx) = raw_and_hash(tx, &key);
        if may_pay && n % 5 == 4 {
            let private = json!([{ "tx": raw, "maxBlockNumber": ahead(n, AHEAD) }]);
            let request = call("eth_sendPrivateTransaction", &private, Some(&key));
            return Order { request, hash: tx, replaces: None };
        }
        let mut bundle = json!({ "txs": [raw] });
        if !may_pay || !n.is_multiple_of(5) {
            // The replacement is for the same block.
            bundle["blockNumber"] = ahead(n - u32::from(n % 5 == 3), AHEAD).into();
        }
        if n % 5 == 2 || n % 5 == 3 {
            bundle["replacementUuid"] = uuid(searcher + SEARCHERS * (1 + n as usize / 5)).into();
        }
        let hash = keccak256(tx);
        let replaced = std::mem::replace(&mut before, hash);
        let request = call("eth_sendBundle", &json!([bundle]), Some(&key));
        Order { request, hash, replaces: (n % 5 == 3).then_some(replaced) }
    };
    (0..each).map(sent).collect()
}

/// When a searcher begins: they do not all send at the same moment.
fn first(searcher: usize) -> Duration {
    BETWEEN * searcher as u32 / SEARCHERS as u32
}

fn uuid(searcher: usize) -> String {
    format!("11111111-0000-4000-8000-{searcher:012x}")
}

/// Where a searcher connects from.
fn address(searcher: usize) -> Ipv4Addr {
    match Kind::of(searcher) {
        Kind::Beside => attack::address(searcher),
        _ => Ipv4Addr::new(127, 0, 2, 1 + (searcher % ADDRESSES) as u8),
    }
}

async fn revive(server: SocketAddr, cancelled: &[usize]) -> io::Result<Tally> {
    let mut tally = Tally::default();
    for searcher in cancelled {
        let key = key(*searcher as u64);
        let bundle = json!([{
            "txs": [raw(transfer(1 << 20), &key)],
            "blockNumber": "0x20",
            "replacementUuid": uuid(*searcher),
        }]);
        let request = call("eth_sendBundle", &bundle, Some(&key));
        let answer = send(&mut None, address(*searcher), server, &request).await?;
        if answer.is_accepted() {
            tally.kinds[Kind::of(*searcher) as usize].accepted.push(B256::ZERO);
        }
    }
    Ok(tally)
}

struct Seen {
    tally: Tally,
    bundles: Histogram<u64>,
    known: Histogram<u64>,
    health: Histogram<u64>,
}

async fn run(server: SocketAddr, lasts: Duration, orders: Vec<Vec<Order>>) -> io::Result<Tally> {
    let [bundles, known, health] = [histogram(), histogram(), histogram()];
    let seen = Rc::new(RefCell::new(Seen { tally: Tally::default(), bundles, known, health }));
    let start = Instant::now();
    let mut all = Vec::new();
    for (searcher, orders) in orders.into_iter().enumerate() {
        let first = start + first(searcher);
        let seen = Rc::clone(&seen);
        all.push(tokio::task::spawn_local(async move {
            let cancellation = json!([{ "replacementUuid": uuid(searcher) }]);
            let cancellation = call("eth_cancelBundle", &cancellation, Some(&key(searcher as u64)));
            let answer = send(&mut None, address(searcher), server, &cancellation).await;
            if answer.is_ok_and(|answer| answer.is_accepted()) {
                seen.borrow_mut().tally.cancelled.push(searcher);
            }
            let signed =
                orders.into_iter().map(|order| (order.request, (order.hash, order.replaces)));
            let (requests, orders): (Vec<_>, Vec<_>) = signed.unzip();
            let mut orders = orders.into_iter();
            ask(address(searcher), server, first, BETWEEN, &requests, |took, answer| {
                let Seen { tally, bundles, known, .. } = &mut *seen.borrow_mut();
                bundles.saturating_record(took.as_nanos() as u64);
                if Kind::of(searcher) == Kind::Known {
                    known.saturating_record(took.as_nanos() as u64);
                }
                let of = &mut tally.kinds[Kind::of(searcher) as usize];
                of.sent += 1;
                let (hash, replaces) = orders.next().expect("an answer to each");
                match answer {
                    Ok(answer) if answer.is_accepted() => {
                        let before = of.accepted.len();
                        of.accepted.retain(|hash| Some(*hash) != replaces);
                        if of.accepted.len() < before {
                            of.replaced.extend(replaces);
                        }
                        of.accepted.push(hash);
                    }
                    Ok(answer) => tally.failure = Some(format!("{answer:?}")),
                    Err(error) => tally.failure = Some(error.to_string()),
                }
            })
            .await;
        }));
    }
    let looks = vec![http::request("/healthz", "", None); lasts.div_duration_f64(MONITOR) as usize];
    let monitored = Rc::clone(&seen);
    all.push(tokio::task::spawn_local(async move {
        let from = Ipv4Addr::new(127, 0, 3, 1);
        ask(from, server, start, MONITOR, &looks, |took, answer| {
            let Seen { tally, health, .. } = &mut *monitored.borrow_mut();
            health.saturating_record(took.as_nanos() as u64);
            if !answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                tally.failure = Some(format!("/healthz: {answer:?}"));
            }
        })
        .await;
    }));
    for task in all {
        task.await.map_err(io::Error::other)?;
    }
    let mut seen = seen.borrow_mut();
    seen.tally.bundles = Times::from(&seen.bundles);
    seen.tally.known = Times::from(&seen.known);
    seen.tally.health = Times::from(&seen.health);
    Ok(seen.tally.clone())
}

/// Sends each when it is due, and tells how long after that its answer came.
async fn ask(
    from: Ipv4Addr,
    server: SocketAddr,
    first: Instant,
    between: Duration,
    requests: &[Vec<u8>],
    mut tell: impl FnMut(Duration, io::Result<Answer>),
) {
    let mut connection = None;
    for (number, request) in requests.iter().enumerate() {
        let due = first + between * number as u32;
        sleep_until(due.into()).await;
        let answer = send(&mut connection, from, server, request).await;
        if answer.as_ref().map_or(true, |answer| answer.closes) {
            connection = None;
        }
        tell(due.elapsed(), answer);
    }
}

async fn send(
    connection: &mut Option<Connection>,
    from: Ipv4Addr,
    server: SocketAddr,
    request: &[u8],
) -> io::Result<Answer> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(from, server).await?),
    };
    open.request(request).await
}
