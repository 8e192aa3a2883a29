//! A client for the RPC server: one connection that stays open, requests written ahead.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use alloy_primitives::{eip191_hash_message, keccak256};
use mock_node::workload::Account;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

/// A request as it is sent: `POST` with this body, or `GET` without one.
pub fn request(path: &str, headers: &str, body: Option<&str>) -> Vec<u8> {
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.unwrap_or_default();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A call of JSON-RPC; with an account, signed by it.
pub fn call(method: &str, params: &Value, signer: Option<&Account>) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    post(&body.to_string(), signer)
}

/// A body; with an account, signed by it as searchers do (`X-Flashbots-Signature`).
pub fn post(body: &str, signer: Option<&Account>) -> Vec<u8> {
    let header = signer.map(|signer| {
        let signature = signer.sign_hash(eip191_hash_message(keccak256(body).to_string()));
        format!("x-flashbots-signature: {}:{signature}\r\n", signer.address)
    });
    request("/", &header.unwrap_or_default(), Some(body))
}

#[derive(Debug)]
pub struct Connection {
    /// For whoever sends no whole requests.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Whether the server closes the connection after it.
    pub closes: bool,
    pub body: String,
}

impl Answer {
    /// Whether it has a result.
    pub fn is_accepted(&self) -> bool {
        self.status == 200 && self.body.contains("\"result\"")
    }

    /// Why it has none, if it says so.
    pub fn reason(&self) -> Option<&str> {
        self.body.split_once("\"reason\":\"")?.1.split('"').next()
    }
}

impl Connection {
    /// From an address of the loopback network: to the server a caller of its own.
    pub async fn open(from: Ipv4Addr, server: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub async fn request(&mut self, request: &[u8]) -> io::Result<Answer> {
        // Whoever refuses a request answers before all of it was written, and closes.
        let written = self.stream.write_all(request).await;
        let answer = self.answer().await;
        if answer.is_err() { written.and(answer) } else { answer }
    }

    pub async fn answer(&mut self) -> io::Result<Answer> {
        self.buffer.clear();
        loop {
            if let Some(answer) = parse(&self.buffer)? {
                return Ok(answer);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::other("the server closed without an answer"));
            }
        }
    }
}

/// An answer, if it is there in full. Only what our server and the benches' own send is understood.
fn parse(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let strange = || io::Error::other(format!("no answer: {}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..at]).map_err(|_| strange())?.to_ascii_lowercase();
    let header = |name: &str| {
        head.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| *key == name)
    };
    let length: Option<usize> = header("content-length").and_then(|(_, n)| n.trim().parse().ok());
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (Some(length), Some(status)) = (length, status) else { return Err(strange()) };
    let Some(body) = bytes[at + 4..].get(..length) else { return Ok(None) };
    let closes = header("connection").is_some_and(|(_, value)| value.trim() == "close");
    Ok(Some(Answer { status, closes, body: String::from_utf8_lossy(body).into_owned() }))
}
