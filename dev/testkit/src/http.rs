//! A client of the RPC server: one connection that stays open.

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

/// Encodes a request: `POST` with this body, or `GET` without one.
pub fn request(path: &str, headers: &str, body: Option<&str>) -> Vec<u8> {
    let method = if body.is_some() { "POST" } else { "GET" };
    let body = body.unwrap_or_default();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         {headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Encodes a JSON-RPC call, signed by an account if one is given.
pub fn call(method: &str, params: &Value, signer: Option<&Account>) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    post(&body.to_string(), signer)
}

/// Encodes a request with this body, signed by an account (`X-Flashbots-Signature`) if one is
/// given.
pub fn post(body: &str, signer: Option<&Account>) -> Vec<u8> {
    let header = signer.map(|signer| {
        let signature = signer.sign_hash(eip191_hash_message(keccak256(body).to_string()));
        format!("x-flashbots-signature: {}:{signature}\r\n", signer.address)
    });
    request("/", &header.unwrap_or_default(), Some(body))
}

#[derive(Debug)]
pub struct Connection {
    /// Public for tests that send incomplete requests.
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Whether the server closes the connection after this answer.
    pub closes: bool,
    pub body: String,
}

impl Answer {
    /// Whether the answer has a result.
    pub fn is_accepted(&self) -> bool {
        self.status == 200 && self.body.contains("\"result\"")
    }

    /// The reason of a refusal, if the answer has one.
    pub fn reason(&self) -> Option<&str> {
        self.body.split_once("\"reason\":\"")?.1.split('"').next()
    }
}

impl Connection {
    /// Connects from an address of the loopback network. To the server, each address is a separate
    /// caller.
    pub async fn open(local: Ipv4Addr, server: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((local, 0).into())?;
        let stream = socket.connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    pub async fn request(&mut self, request: &[u8]) -> io::Result<Answer> {
        // A server that refuses a request may answer and close before all of it was written.
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

/// Parses an answer; `None` if it is incomplete. It supports only what our server and those of the
/// benches send.
fn parse(bytes: &[u8]) -> io::Result<Option<Answer>> {
    let Some(head_length) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let malformed =
        || io::Error::other(format!("not an HTTP answer: {}", String::from_utf8_lossy(bytes)));
    let head =
        std::str::from_utf8(&bytes[..head_length]).map_err(|_| malformed())?.to_ascii_lowercase();
    let header = |name: &str| {
        head.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| *key == name)
    };
    let length: Option<usize> = header("content-length").and_then(|(_, n)| n.trim().parse().ok());
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (Some(length), Some(status)) = (length, status) else { return Err(malformed()) };
    let Some(body) = bytes[head_length + 4..].get(..length) else { return Ok(None) };
    let closes = header("connection").is_some_and(|(_, value)| value.trim() == "close");
    Ok(Some(Answer { status, closes, body: String::from_utf8_lossy(body).into_owned() }))
}
