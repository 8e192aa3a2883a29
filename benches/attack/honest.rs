//! Those who must not notice anything: searchers with a key each, and a monitor.

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::{
    figures::{Times, histogram},
    http::{self, Answer, Connection},
    process::{Process, serve},
};
use tokio::{task::LocalSet, time::sleep_until};

use crate::signed::{call, key, raw, transfer};

pub(crate) const ROLE: &str = "__honest";

pub(crate) const SEARCHERS: usize = 50;
/// Bundles of each.
pub(crate) const PER_SECOND: usize = 5;
/// So many addresses have as many searchers each.
const ADDRESSES: usize = 10;
/// How often the monitor asks.
const MONITOR: Duration = Duration::from_millis(20);
/// Far enough for no head of a run to reach it.
const BLOCK: &str = "0x20";

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Sign(Duration),
    Run(SocketAddr, Duration),
}

/// What they saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    sent: u64,
    accepted: u64,
    /// One answer that was no success, or one failure to get one.
    failure: Option<String>,
    pub(crate) bundles: Times,
    pub(crate) health: Times,
}

impl Tally {
    pub(crate) const fn lost(&self) -> u64 {
        self.sent - self.accepted
    }
}

/// The process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Honest {
    process: Process,
    run: Request,
}

impl Honest {
    /// With so much to send, all of it signed.
    pub(crate) fn spawn(server: SocketAddr, lasts: Duration) -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        process.request::<Tally>(&Request::Sign(lasts))?;
        Ok(Self { process, run: Request::Run(server, lasts) })
    }

    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.process.send(&self.run)
    }

    pub(crate) fn finish(&mut self) -> io::Result<Tally> {
        self.process.receive()
    }
}

/// Runs as the honest callers.
pub(crate) fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut bundles = Vec::new();
    serve(|request| match request {
        Request::Sign(lasts) => {
            let each = (lasts.as_secs_f64() * PER_SECOND as f64).ceil() as u64;
            bundles = (0..SEARCHERS as u64)
                .map(|searcher| (0..each).map(|nonce| bundle(searcher, nonce)).collect())
                .collect();
            Ok(Tally::default())
        }
        Request::Run(server, lasts) => {
            LocalSet::new().block_on(&runtime, run(server, lasts, std::mem::take(&mut bundles)))
        }
    })
}

fn bundle(searcher: u64, nonce: u64) -> Vec<u8> {
    let key = key(searcher);
    let bundle = json!([{ "txs": [raw(transfer(nonce), &key)], "blockNumber": BLOCK }]);
    call("eth_sendBundle", &bundle, Some(&key))
}

struct Seen {
    tally: Tally,
    bundles: Histogram<u64>,
    health: Histogram<u64>,
}

async fn run(server: SocketAddr, lasts: Duration, bundles: Vec<Vec<Vec<u8>>>) -> io::Result<Tally> {
    let seen = Seen { tally: Tally::default(), bundles: histogram(), health: histogram() };
    let seen = Rc::new(RefCell::new(seen));
    let start = Instant::now();
    let between = Duration::from_secs(1) / PER_SECOND as u32;
    let mut all = Vec::new();
    for (searcher, bundles) in bundles.into_iter().enumerate() {
        let from = Ipv4Addr::new(127, 0, 2, 1 + (searcher % ADDRESSES) as u8);
        // They do not all send at the same moment.
        let first = start + between * searcher as u32 / SEARCHERS as u32;
        let seen = Rc::clone(&seen);
        all.push(tokio::task::spawn_local(async move {
            ask(from, server, first, between, &bundles, |took, answer| {
                let Seen { tally, bundles, .. } = &mut *seen.borrow_mut();
                bundles.saturating_record(took.as_nanos() as u64);
                tally.sent += 1;
                match answer {
                    Ok(answer) if answer.is_accepted() => tally.accepted += 1,
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
