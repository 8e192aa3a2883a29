//! A connection to a node for one batch of calls at a time, with blocking reads and writes.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io::{self, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, U256};
use order_pool::Funds;
use serde::Deserialize;
use tokio_tungstenite::tungstenite::{
    Message, WebSocket,
    client::{IntoClientRequest as _, client_with_config},
    protocol::WebSocketConfig,
};
use txpool_fetcher::Endpoint;

/// Time for a batch, including the connect. A connection whose response is later is closed.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a node that did not answer is not asked again. One attempt a second needs no further
/// backoff.
const PAUSE: Duration = Duration::from_secs(1);

/// Most bytes of a response: ten times those of the longest batch.
const MAX_RESPONSE_BYTES: u64 = 1 << 20;

/// The node's latest block, and the accounts in the order of the addresses; `None` for an account
/// without a result.
type Accounts = (u64, Vec<Option<Funds>>);

type Error = Box<dyn std::error::Error>;

/// A node, and the connection to it while there is one.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    /// Of all accounts.
    max_nonces_ahead: u8,
    connection: Option<Connection>,
    failed_at: Option<Instant>,
}

#[derive(Debug)]
enum Connection {
    Ipc(BufReader<Timed<UnixStream>>),
    Ws(Box<WebSocket<Timed<TcpStream>>>),
}

/// A response to one call of a batch. An error has no result.
#[derive(Debug, Deserialize)]
struct Response {
    id: usize,
    result: Option<U256>,
}

impl Link {
    pub(super) const fn new(endpoint: Endpoint, max_nonces_ahead: u8) -> Self {
        Self { endpoint, max_nonces_ahead, connection: None, failed_at: None }
    }

    /// Requests accounts; `None` if the node does not answer in time, or with anything else.
    pub(super) fn accounts(&mut self, addresses: &[Address]) -> Option<Accounts> {
        if self.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        let deadline = Instant::now().checked_add(CALL_TIMEOUT)?;
        let responses = self.call(&batch(addresses), deadline);
        let limit = self.max_nonces_ahead;
        match responses.and_then(|responses| read(responses, addresses.len(), limit)) {
            Ok(response) => {
                if self.failed_at.take().is_some() {
                    tracing::info!(endpoint = %self.endpoint, "the node returns accounts again");
                }
                Some(response)
            }
            Err(error) => {
                if self.failed_at.replace(Instant::now()).is_none() {
                    tracing::warn!(%error, endpoint = %self.endpoint, "the node does not return accounts");
                }
                self.connection = None;
                None
            }
        }
    }

    fn call(&mut self, batch: &str, deadline: Instant) -> Result<Vec<Response>, Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.endpoint, deadline)?),
        };
        connection.call(batch, deadline)
    }
}

impl Connection {
    fn open(endpoint: &Endpoint, deadline: Instant) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Ipc(path) => {
                let socket = UnixStream::connect(path)?;
                let set = |socket: &UnixStream, left| {
                    socket.set_read_timeout(left).and_then(|()| socket.set_write_timeout(left))
                };
                Ok(Self::Ipc(BufReader::new(Timed { socket, deadline, set })))
            }
            Endpoint::Ws(url) => {
                let request = url.as_str().into_client_request()?;
                let (host, port) = (request.uri().host(), request.uri().port_u16().unwrap_or(80));
                let host = host.ok_or("the URL has no host")?;
                // An IPv6 address is in brackets in a URL.
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
                let socket = connect(&addresses, deadline)?;
                socket.set_nodelay(true)?;
                let set = |socket: &TcpStream, left| {
                    socket.set_read_timeout(left).and_then(|()| socket.set_write_timeout(left))
                };
                let socket = Timed { socket, deadline, set };
                let limits =
                    WebSocketConfig::default().max_message_size(Some(MAX_RESPONSE_BYTES as usize));
                let opened = client_with_config(request, socket, Some(limits));
                let (socket, _) = opened.map_err(|error| error.to_string())?;
                Ok(Self::Ws(Box::new(socket)))
            }
            // A pool in this process has no accounts to request.
            _ => Err("it is no node".into()),
        }
    }

    fn call(&mut self, batch: &str, deadline: Instant) -> Result<Vec<Response>, Error> {
        match self {
            Self::Ipc(socket) => {
                socket.get_mut().deadline = deadline;
                socket.get_mut().write_all(batch.as_bytes())?;
                // The reader stops at the end of the array: later bytes stay in the buffer.
                let limited = socket.by_ref().take(MAX_RESPONSE_BYTES);
                let mut text = serde_json::Deserializer::from_reader(limited);
                Ok(Vec::deserialize(&mut text)?)
            }
            Self::Ws(socket) => {
                socket.get_mut().deadline = deadline;
                socket.send(Message::text(batch))?;
                loop {
                    match socket.read()? {
                        Message::Text(text) => return Ok(serde_json::from_str(&text)?),
                        Message::Close(_) => return Err("the node closed the connection".into()),
                        // Pings are answered by the library.
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Connects to the first address of a host at which something listens: `localhost` may be `::1` before it is 127.0.0.1, where
/// the node is. Each may take its share of the time that is left.
fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut failed = io::ErrorKind::NotFound.into();
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let share = deadline.saturating_duration_since(Instant::now()).checked_div(left);
        match TcpStream::connect_timeout(address, share.unwrap_or_default()) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn batch(addresses: &[Address]) -> String {
    let call = |id: usize, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    };
    let mut batch = format!("[{}", call(0, "eth_blockNumber", "[]"));
    for (index, address) in addresses.iter().enumerate() {
        let params = format!(r#"["{address:#x}","latest"]"#);
        let methods = ["eth_getBalance", "eth_getTransactionCount"];
        for (method, id) in methods.into_iter().zip(index.saturating_mul(2).saturating_add(1)..) {
            batch.push(',');
            batch.push_str(&call(id, method, &params));
        }
    }
    batch.push_str("]\n");
    batch
}

fn read(responses: Vec<Response>, count: usize, max_nonces_ahead: u8) -> Result<Accounts, Error> {
    let mut results = vec![None; count.saturating_mul(2).saturating_add(1)];
    for Response { id, result } in responses {
        if let Some(slot) = results.get_mut(id) {
            *slot = result;
        }
    }
    let no_block = "no block number";
    let (block, of_accounts) = results.split_first().ok_or(no_block)?;
    let block = block.and_then(|block| u64::try_from(block).ok()).ok_or(no_block)?;
    let accounts = of_accounts.as_chunks().0.iter().map(|[balance_wei, next_nonce]| {
        let next_nonce = u64::try_from((*next_nonce)?).ok()?;
        Some(Funds { balance_wei: (*balance_wei)?, next_nonce, max_nonces_ahead })
    });
    Ok((block, accounts.collect()))
}

/// A socket that is read and written until a deadline.
#[derive(Debug)]
struct Timed<S> {
    socket: S,
    deadline: Instant,
    /// Sets both time-outs of the socket.
    set: fn(&S, Option<Duration>) -> io::Result<()>,
}

impl<S> Timed<S> {
    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            (self.set)(&self.socket, Some(left))
        }
    }
}

impl<S: Read> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        self.socket.read(buffer)
    }
}

impl<S: Write> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    #[test]
    fn a_node_is_reached_at_any_address_of_its_host() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let addresses = [SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()), address];
        let deadline = Instant::now() + CALL_TIMEOUT;
        let socket = connect(&addresses, deadline).expect("the second one listens");
        assert_eq!(socket.peer_addr().expect("connected"), address);
        let late = connect(&addresses, Instant::now() - CALL_TIMEOUT);
        assert!(late.is_err(), "no connect begins after the deadline");
        let none = connect(&[], deadline).expect_err("no address");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
