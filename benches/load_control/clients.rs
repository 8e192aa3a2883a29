//! The external callers, in a process of their own: `eth_sendRawTransaction` over HTTP/1.1 connections that
//! stay open, one thread. A refused transaction is sent again at once, as by a caller who does not
//! care what `Retry-After` says.
//!
//! As many as they can means: each connection sends the next request as soon as it has its response, as far as all
//! of them together stay within a share of one core. Without that bound the clients of a quick server
//! would be what slows the machine down.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use testkit::{
    figures::histogram,
    http::{self, Answer, Connection},
    process::{Process, serve},
    sign::{EXTERNAL, Signer},
    usage::process_cpu,
};
use tokio::{
    task::LocalSet,
    time::{sleep, sleep_until},
};

pub(crate) const ROLE: &str = "__clients";

/// What the clients may burn, in cores.
pub(crate) const CPU_CAP: f64 = 0.5;

/// How often they look at what they have burnt.
const LOOK: Duration = Duration::from_millis(1);

/// So long at one rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Phase {
    pub(crate) lasts: Duration,
    /// Requests a second; `None` is as many as they can.
    pub(crate) rate: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Sign so many: each is sent until it is accepted.
    Sign(usize),
    Run {
        server: SocketAddr,
        connections: usize,
        phases: Vec<Phase>,
    },
}

/// What the clients saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) offered: u64,
    pub(crate) accepted: u64,
    /// Accepted and not accepted before.
    pub(crate) distinct: u64,
    pub(crate) refused: u64,
    /// Of these, by the outer gate.
    pub(crate) refused_outer: u64,
    /// Neither, and one of these.
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
    pub(crate) refusal_p50_ns: u64,
    pub(crate) refusal_p99_ns: u64,
    pub(crate) outer_p99_ns: u64,
    pub(crate) accepted_p99_ns: u64,
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
}

/// The clients' process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Clients(Process);

impl Clients {
    pub(crate) fn spawn(txs: usize) -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        process.request::<Sent>(&Request::Sign(txs))?;
        Ok(Self(process))
    }

    /// Lets them loose; [`Self::sent`] waits for their end.
    pub(crate) fn run(
        &mut self,
        server: SocketAddr,
        connections: usize,
        phases: &[Phase],
    ) -> io::Result<()> {
        self.0.send(&Request::Run { server, connections, phases: phases.to_vec() })
    }

    pub(crate) fn sent(&mut self) -> io::Result<Sent> {
        self.0.receive()
    }
}

/// Runs as the clients.
pub(crate) fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut requests = Rc::default();
    serve(|order| match order {
        Request::Sign(count) => {
            let txs = Signer::new(EXTERNAL).sign(count);
            requests = Rc::new(txs.iter().map(|tx| request(&tx.raw)).collect());
            Ok(Sent::default())
        }
        Request::Run { server, connections, phases } => LocalSet::new()
            .block_on(&runtime, run(server, connections, phases, Rc::clone(&requests))),
    })
}

fn request(raw: &[u8]) -> Vec<u8> {
    let raw = alloy_primitives::hex::encode_prefixed(raw);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["{raw}"]}}"#
    );
    http::request("/", "", Some(&body))
}

/// What all connections share.
struct Crowd {
    server: SocketAddr,
    connections: usize,
    phases: Vec<Phase>,
    requests: Rc<Vec<Vec<u8>>>,
    start: Instant,
    cpu: Duration,
    /// Requests that were given their time, of the phases with a rate.
    due: Cell<(usize, u64)>,
    over_cap: Cell<bool>,
    seen: RefCell<Seen>,
}

struct Seen {
    sent: Sent,
    refusals: Histogram<u64>,
    outer: Histogram<u64>,
    acceptances: Histogram<u64>,
}

async fn run(
    server: SocketAddr,
    connections: usize,
    phases: Vec<Phase>,
    requests: Rc<Vec<Vec<u8>>>,
) -> io::Result<Sent> {
    let sent = Sent::default();
    let seen = Seen { sent, refusals: histogram(), outer: histogram(), acceptances: histogram() };
    let crowd = Rc::new(Crowd {
        server,
        connections,
        phases,
        requests,
        start: Instant::now(),
        cpu: process_cpu(),
        due: Cell::default(),
        over_cap: Cell::default(),
        seen: RefCell::new(seen),
    });
    let pacing = tokio::task::spawn_local(Rc::clone(&crowd).govern());
    let all: Vec<_> = (0..connections)
        .map(|number| tokio::task::spawn_local(Rc::clone(&crowd).connection(number)))
        .collect();
    for connection in all {
        connection.await.expect("a connection does not panic")?;
    }
    pacing.abort();
    let mut seen = crowd.seen.borrow_mut();
    let quantile = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile);
    Ok(Sent {
        refusal_p50_ns: quantile(&seen.refusals, 0.5),
        refusal_p99_ns: quantile(&seen.refusals, 0.99),
        outer_p99_ns: quantile(&seen.outer, 0.99),
        accepted_p99_ns: quantile(&seen.acceptances, 0.99),
        cpu: process_cpu() - crowd.cpu,
        wall: crowd.start.elapsed(),
        ..std::mem::take(&mut seen.sent)
    })
}

impl Crowd {
    async fn govern(self: Rc<Self>) {
        loop {
            let burnt = process_cpu() - self.cpu;
            self.over_cap.set(burnt > self.start.elapsed().mul_f64(CPU_CAP));
            sleep(LOOK).await;
        }
    }

    /// Sends until the phases are over: its share of the requests, each until it is accepted.
    async fn connection(self: Rc<Self>, number: usize) -> io::Result<()> {
        let mut connection = Connection::open(Ipv4Addr::LOCALHOST, self.server).await?;
        let mut next = number % self.requests.len();
        let mut wrapped = false;
        while self.turn().await {
            let begin = Instant::now();
            let answer = connection.request(&self.requests[next]).await?;
            let took_ns = begin.elapsed().as_nanos() as u64;
            if self.is_accepted(&answer, took_ns, wrapped) {
                next += self.connections;
                if next >= self.requests.len() {
                    (next, wrapped) = (number % self.requests.len(), true);
                }
            }
            if answer.closes {
                connection = Connection::open(Ipv4Addr::LOCALHOST, self.server).await?;
            }
        }
        Ok(())
    }

    /// Notes an answer; `again` if the transaction was accepted before.
    fn is_accepted(&self, answer: &Answer, took_ns: u64, again: bool) -> bool {
        let Seen { sent, refusals, outer, acceptances } = &mut *self.seen.borrow_mut();
        sent.offered += 1;
        match answer.status {
            200 if answer.is_accepted() => {
                sent.accepted += 1;
                sent.distinct += u64::from(!again);
                acceptances.saturating_record(took_ns);
                return true;
            }
            503 => {
                sent.refused += 1;
                refusals.saturating_record(took_ns);
                // The reason that only the outer gate gives.
                if answer.reason() == Some("too_many_requests") {
                    sent.refused_outer += 1;
                    outer.saturating_record(took_ns);
                }
            }
            status => {
                sent.failed += 1;
                sent.failure = Some(format!("{status} {}", answer.body));
            }
        }
        false
    }

    /// Waits until the next request may be sent; false when all phases are over.
    async fn turn(&self) -> bool {
        loop {
            let (phase, number) = self.due.get();
            let Some(Phase { lasts, rate }) = self.phases.get(phase).copied() else { return false };
            let begin: Duration = self.phases[..phase].iter().map(|phase| phase.lasts).sum();
            let (begin, end) = (self.start + begin, self.start + begin + lasts);
            let due = match rate {
                // A tick from now for whoever is over the cap, and for a phase without requests.
                None if self.over_cap.get() => Instant::now() + LOOK,
                None if Instant::now() < end => return true,
                None => end,
                Some(0) => end,
                Some(rate) => {
                    begin + Duration::from_nanos(number * 1_000_000_000 / u64::from(rate))
                }
            };
            if due >= end || Instant::now() >= end {
                sleep_until(end.into()).await;
                if self.due.get().0 == phase {
                    self.due.set((phase + 1, 0));
                }
                continue;
            }
            if rate.is_some() {
                self.due.set((phase, number + 1));
            }
            sleep_until(due.into()).await;
            if rate.is_some() {
                return true;
            }
        }
    }
}
