//! The control's server: not ours, in a process of its own. It does for each request what cannot be
//! avoided, decoding and recovering the sender, and answers yes. Live latency beside it is what the
//! outsiders' load on the machine alone costs.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::mpsc,
    thread,
    time::Duration,
};

use alloy_consensus::{TxEnvelope, transaction::SignerRecoverable as _};
use alloy_eips::eip2718::Decodable2718 as _;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::child::{Process, obey, own_cpu};

pub(crate) const ROLE: &str = "__decoy";

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 39\r\n\r\n\
    {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"yes\"}";

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Listen; answered with the port.
    Start,
    /// Answered with the CPU time so far.
    Cpu,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Port(u16),
    Cpu(Duration),
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
        match process.ask(&Order::Start)? {
            Answer::Port(port) => {
                Ok(Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) })
            }
            Answer::Cpu(_) => Err(io::Error::other("the server answered something else")),
        }
    }

    pub(crate) fn cpu(&mut self) -> io::Result<Duration> {
        match self.process.ask(&Order::Cpu)? {
            Answer::Cpu(cpu) => Ok(cpu),
            Answer::Port(_) => Err(io::Error::other("the server answered something else")),
        }
    }
}

/// Runs as the server.
pub(crate) fn serve() -> io::Result<()> {
    obey(|order| {
        Ok(match order {
            Order::Start => Answer::Port(listen()?),
            Order::Cpu => Answer::Cpu(own_cpu()),
        })
    })
}

fn listen() -> io::Result<u16> {
    let (tell, told) = mpsc::channel();
    // Its runtime lives as long as the process; it ends with the bench's end of stdin.
    thread::spawn(move || -> io::Result<()> {
        // A thread for each core.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            // Whoever asked may have gone, and then the process ends.
            let _ = tell.send(listener.local_addr()?.port());
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(async move {
                    if let Err(error) = answer_all(stream).await {
                        eprintln!("the control's server: {error}");
                    }
                });
            }
        })
    });
    told.recv().map_err(|_| io::Error::other("the control's server could not listen"))
}

async fn answer_all(mut stream: TcpStream) -> io::Result<()> {
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
        recover(body)?;
        stream.write_all(ANSWER).await?;
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
    struct Request {
        params: [alloy_primitives::Bytes; 1],
    }
    let Request { params: [raw] } = serde_json::from_slice(body)?;
    let tx = TxEnvelope::decode_2718_exact(&raw).map_err(io::Error::other)?;
    std::hint::black_box(tx.recover_signer().map_err(io::Error::other)?);
    Ok(())
}
