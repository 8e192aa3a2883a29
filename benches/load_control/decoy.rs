//! The control's server: not ours, in a process of its own. It accepts the share of the requests that
//! ours accepted, and does for each of these what cannot be avoided: it decodes the transaction and
//! recovers the sender. The others it turns away with an answer that is ready made. It has as many
//! threads as ours has for external callers. Live latency beside it is what the external callers' load on the
//! machine alone costs.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use alloy_consensus::{TxEnvelope, transaction::SignerRecoverable as _};
use alloy_eips::eip2718::Decodable2718 as _;
use mempool_ingest::{OrderRpcConfig, load_control::GateConfig};
use mock_node::DEV_CHAIN_ID;
use serde::{Deserialize, Serialize};
use testkit::{
    process::{Process, serve},
    usage::process_cpu,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

pub(crate) const ROLE: &str = "__decoy";

const YES: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 39\r\n\r\n\
    {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"yes\"}";

/// As long as ours.
const NO: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\n\
    content-length: 136\r\n\r\n\
    {\"error\":{\"code\":-32005,\"data\":{\"reason\":\"no_permit\",\"retryAfterMs\":1500},\
    \"message\":\"overloaded, try again later\"},\"id\":1,\"jsonrpc\":\"2.0\"}";

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Listen; answered with the port.
    Start,
    /// Accept this share from now on, counted anew.
    Accept(Share),
    /// Answered with the CPU time so far.
    Cpu,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) accepted: u64,
    pub(crate) offered: u64,
}

impl Share {
    /// How many of the first `offered` are accepted: they lie evenly among the others.
    pub(crate) fn of(self, offered: u64) -> u64 {
        let product = u128::from(offered) * u128::from(self.accepted);
        (product / u128::from(self.offered.max(1))) as u64
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Response {
    Port(u16),
    Cpu(Duration),
    Done,
}

/// The server's process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Decoy {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Decoy {
    pub(crate) fn spawn() -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        match process.request(&Request::Start)? {
            Response::Port(port) => {
                Ok(Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) })
            }
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn accept(&mut self, share: Share) -> io::Result<()> {
        match self.process.request(&Request::Accept(share))? {
            Response::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn cpu(&mut self) -> io::Result<Duration> {
        match self.process.request(&Request::Cpu)? {
            Response::Cpu(cpu) => Ok(cpu),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the control's server answered something else")
}

/// Runs as the server.
pub(crate) fn respond() -> io::Result<()> {
    let mut quota = None;
    serve(|order| {
        Ok(match order {
            Request::Start => Response::Port(listen(quota.insert(Arc::default()))?),
            Request::Accept(share) => {
                quota.as_ref().ok_or_else(unexpected)?.set(share);
                Response::Done
            }
            Request::Cpu => Response::Cpu(process_cpu()),
        })
    })
}

/// Whom to accept. It is set only while no request is in flight, so the three need not change as one.
#[derive(Debug, Default)]
struct Quota {
    accepted: AtomicU64,
    offered: AtomicU64,
    seen: AtomicU64,
}

impl Quota {
    // Relaxed, here and below: the clients send requests only after the response to this one.
    fn set(&self, share: Share) {
        self.accepted.store(share.accepted, Relaxed);
        self.offered.store(share.offered, Relaxed);
        self.seen.store(0, Relaxed);
    }

    fn is_accepted(&self) -> bool {
        let [accepted, offered] = [&self.accepted, &self.offered].map(|count| count.load(Relaxed));
        let share = Share { accepted, offered };
        let seen = self.seen.fetch_add(1, Relaxed);
        share.of(seen + 1) > share.of(seen)
    }
}

fn listen(quota: &Arc<Quota>) -> io::Result<u16> {
    let (tell, told) = mpsc::sync_channel(1);
    let quota = Arc::clone(quota);
    // Its runtime lives as long as the process; it ends with the bench's end of stdin.
    thread::spawn(move || -> io::Result<()> {
        let gate = GateConfig::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(OrderRpcConfig::new(DEV_CHAIN_ID).threads)
            .max_blocking_threads(gate.work_permits - gate.reserved_permits)
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            // The receiver may have gone, and then the process ends.
            let _ = tell.send(listener.local_addr()?.port());
            loop {
                let (stream, _) = listener.accept().await?;
                let quota = Arc::clone(&quota);
                tokio::spawn(async move {
                    if let Err(error) = answer_all(stream, &quota).await {
                        eprintln!("the control's server: {error}");
                    }
                });
            }
        })
    });
    told.recv().map_err(|_| io::Error::other("the control's server could not listen"))
}

async fn answer_all(mut stream: TcpStream, quota: &Quota) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let body = loop {
            if let Some(body) = body(&buffer) {
                break body;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let answer = if quota.is_accepted() {
            let body = body.to_vec();
            // On a thread for it, as ours.
            let recovered = tokio::task::spawn_blocking(move || recover(&body)).await;
            recovered.map_err(io::Error::other)??;
            YES
        } else {
            NO
        };
        stream.write_all(answer).await?;
    }
}

fn body(bytes: &[u8]) -> Option<&[u8]> {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..at]).ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    bytes.get(at..at + length.parse::<usize>().ok()?)
}

fn recover(body: &[u8]) -> io::Result<()> {
    #[derive(Deserialize)]
    struct Body {
        params: [alloy_primitives::Bytes; 1],
    }
    let Body { params: [raw] } = serde_json::from_slice(body)?;
    let tx = TxEnvelope::decode_2718_exact(&raw).map_err(io::Error::other)?;
    std::hint::black_box(tx.recover_signer().map_err(io::Error::other)?);
    Ok(())
}
