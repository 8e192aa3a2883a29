//! A server on a free port, a client that shows status, headers and body, and signed orders.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of several test binaries, each using a part"
)]

#[path = "memory.rs"]
pub mod memory;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction, Signed, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Signature, TxKind, U256, keccak256};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use futures::FutureExt as _;
use load_control::{Gate, GateConfig, Limit, LoadMonitor, Priority, WorkPermit};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use order_pool::{Block, Head, OrderPool, PoolConfig, PooledTransaction};
use order_rpc::{Host, OrderRpc, OrderRpcConfig};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub const CHAIN: u64 = 1337;
pub const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// How long a test waits for what must happen. A machine that is busy is no failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    pub rpc: OrderRpc,
    pub addr: SocketAddr,
    pub pool: OrderPool,
    pub gate: Gate,
    pub counted: Counted,
}

/// A block whose hash is its number.
pub fn block(number: u64, mined: &[B256]) -> Block {
    let hash = |number| B256::from(U256::from(number));
    Block::new(Head::new(number, hash(number), hash(number - 1)), mined)
}

/// What the metrics of one server say: its handles are made when it starts, by whoever starts it.
#[derive(Clone, Debug, Default)]
pub struct Counted(Arc<Mutex<HashMap<Series, Arc<AtomicU64>>>>);

/// A metric and its `reason` or `verdict`, empty if it has none.
type Series = (String, String);

impl Counted {
    /// How often something was answered with no for this reason.
    pub fn reason(&self, reason: &str) -> u64 {
        self.of("order_rpc_refused_total", reason) + self.of("order_rpc_failed_total", reason)
    }

    /// The same, since the last look.
    pub fn take(&self, reason: &str) -> u64 {
        let take = |metric| self.get(metric, reason).swap(0, Relaxed);
        take("order_rpc_refused_total") + take("order_rpc_failed_total")
    }

    /// How often the host decided so.
    pub fn verdict(&self, verdict: &str) -> u64 {
        self.of("order_rpc_admissions_total", verdict)
    }

    pub fn of(&self, metric: &str, reason: &str) -> u64 {
        self.get(metric, reason).load(Relaxed)
    }

    pub fn gauge(&self, metric: &str) -> f64 {
        f64::from_bits(self.get(metric, "").load(Relaxed))
    }

    fn get(&self, metric: &str, reason: &str) -> Arc<AtomicU64> {
        let key = (metric.to_owned(), reason.to_owned());
        Arc::clone(self.0.lock().unwrap().entry(key).or_default())
    }
}

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_outcome = |name| name == "reason" || name == "verdict";
        let reason = key.labels().find(|label| is_outcome(label.key()));
        Counter::from_arc(self.get(key.name(), reason.map_or("", |label| label.value())))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.get(key.name(), ""))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Waits for something that another thread is about to do.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        tokio::task::yield_now().await;
    }
}

/// A gate of which nobody is refused because the machine is busy: a test of that sets the wait.
pub fn gate_config(requests: usize) -> GateConfig {
    let requests = Limit::Number(requests);
    GateConfig { requests, permit_wait: PATIENCE, ..GateConfig::for_cores(2) }
}

/// A gate at which external callers wait for a permit no longer than this.
pub fn impatient_gate_config(wait: Duration) -> GateConfig {
    GateConfig { permit_wait: wait, burst_wait: Duration::ZERO, ..gate_config(64) }
}

pub fn config() -> OrderRpcConfig {
    OrderRpcConfig::new(CHAIN)
}

impl Server {
    pub fn start(
        pool: OrderPool,
        gate: GateConfig,
        monitor: Option<LoadMonitor>,
        start: impl FnOnce(Host) -> OrderRpc,
    ) -> Self {
        let gate = Gate::new(gate).unwrap();
        let mut host = Host::new(pool.clone(), gate.clone());
        host.monitor = monitor;
        let counted = Counted::default();
        let rpc = metrics::with_local_recorder(&counted, || start(host));
        Self { addr: rpc.local_addr(), rpc, pool, gate, counted }
    }

    /// Takes all work permits of callers.
    pub fn hold_permits(&self) -> Vec<WorkPermit> {
        let GateConfig { work_permits, reserved_permits, .. } = *self.gate.config();
        let acquire = |_| self.gate.acquire_external(Priority::Known, Instant::now());
        let all = (reserved_permits..work_permits).map(acquire);
        all.map(|permit| permit.now_or_never().expect("it is free").unwrap()).collect()
    }

    /// What requests hold: themselves, their permits, and their bytes.
    pub fn held(&self) -> [usize; 4] {
        let stats = self.gate.stats();
        let (active, bytes) = (self.rpc.active_requests(), self.rpc.buffered_bytes());
        [stats.requests_in_flight, stats.work_in_use, active, bytes]
    }

    pub async fn until_nothing_is_held(&self) {
        until("everything is given back", || self.held() == [0; 4]).await;
    }
}

/// A server with its defaults, in a process of its own.
pub fn start_server(config: OrderRpcConfig, gate: GateConfig) -> Server {
    // The first server would load it, and it is no caller's.
    order_pool::load_trusted_setup();
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    Server::start(pool, gate, None, |host| OrderRpc::start(config, host).unwrap())
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Whether it has a result, which may be null, and no error.
    pub fn is_success(&self) -> bool {
        let json = self.json();
        json.get("result").is_some() && json.get("error").is_none()
    }

    /// What must have succeeded.
    #[track_caller]
    pub fn result(&self) -> Value {
        assert!(self.is_success(), "{self:?}");
        self.json()["result"].clone()
    }

    /// The code and the reason of an error, whose data has what its code promises.
    pub fn error(&self) -> (u16, i64, String) {
        let json = self.json();
        let error = &json["error"];
        let reason = error["data"]["reason"].as_str().unwrap_or_else(|| panic!("{self:?}"));
        let code = error["code"].as_i64().unwrap();
        if code == -32005 {
            let ms = error["data"]["retryAfterMs"].as_u64().unwrap();
            let secs: u64 = self.headers["retry-after"].parse().unwrap();
            assert!(secs >= 1 && secs * 1_000 >= ms, "{self:?}");
        }
        if code == -32602 {
            assert!(error["data"]["field"].is_string(), "{self:?}");
        }
        (self.status, code, reason.to_owned())
    }

    pub fn field(&self) -> String {
        self.json()["error"]["data"]["field"].as_str().unwrap().to_owned()
    }
}

pub fn head(method: &str, path: &str, length: usize, headers: &[(&str, &str)]) -> String {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head
}

pub async fn read_answer(socket: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes))
        .await
        .expect("an answer in time")
        .unwrap_or_else(|error| panic!("{error} after {}", String::from_utf8_lossy(&bytes)));
    parse(&bytes)
}

pub fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Answer { status, headers, text: body.to_owned() }
}

pub async fn send(addr: SocketAddr, body: &[u8], headers: &[(&str, &str)]) -> Answer {
    send_on(TcpStream::connect(addr).await.unwrap(), body, headers).await
}

pub async fn send_on(mut socket: TcpStream, body: &[u8], headers: &[(&str, &str)]) -> Answer {
    let mut bytes = head("POST", "/", body.len(), headers).into_bytes();
    bytes.extend_from_slice(body);
    socket.write_all(&bytes).await.unwrap();
    read_answer(&mut socket).await
}

/// A connection from this address of the loopback network: to the server another caller.
pub async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// A request as it is written.
pub async fn send_text(addr: SocketAddr, text: &str) -> Answer {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    read_answer(&mut socket).await
}

pub async fn get(addr: SocketAddr, path: &str) -> Answer {
    send_text(addr, &head("GET", path, 0, &[])).await
}

/// Promises a body of this length, and sends its beginning.
pub async fn begin(
    from: [u8; 4],
    to: SocketAddr,
    (length, beginning): (usize, &str),
    headers: &[(&str, &str)],
) -> TcpStream {
    let mut socket = connect_from(from, to).await;
    let text = head("POST", "/", length, headers) + beginning;
    // A server that refuses it may close before all is sent; the answer says why.
    let _ = socket.write_all(text.as_bytes()).await;
    socket
}

pub fn request(method: &str, params: Value) -> String {
    element(method, params).to_string()
}

fn element(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

/// Calls in one body, each with one parameter.
pub fn batch(calls: &[(&str, Value)]) -> String {
    let elements = calls.iter().map(|(method, param)| element(method, json!([param])));
    json!(elements.collect::<Vec<_>>()).to_string()
}

/// A valid transaction, as a request.
pub fn transaction() -> String {
    request("eth_sendRawTransaction", json!([raw(0)]))
}

/// An error that says when to come back.
pub fn refused(status: u16, reason: &str) -> (u16, i64, String) {
    (status, -32005, reason.to_owned())
}

pub async fn call(addr: SocketAddr, method: &str, params: Value) -> Answer {
    send(addr, request(method, params).as_bytes(), &[]).await
}

pub fn signature(signer: &PrivateKeySigner, body: &[u8]) -> String {
    let text = keccak256(body).to_string();
    format!("{}:{}", signer.address(), signer.sign_message_sync(text.as_bytes()).unwrap())
}

/// The same signature with the address of another signer.
pub fn claimed_by(signature: &str, other: &PrivateKeySigner) -> String {
    let (_, signature) = signature.split_once(':').unwrap();
    format!("{}:{signature}", other.address())
}

pub async fn signed_call(
    addr: SocketAddr,
    signer: &PrivateKeySigner,
    method: &str,
    params: Value,
) -> Answer {
    send_signed(addr, signer, &request(method, params)).await
}

pub async fn send_signed(addr: SocketAddr, signer: &PrivateKeySigner, body: &str) -> Answer {
    send_signed_on(TcpStream::connect(addr).await.unwrap(), signer, body).await
}

pub async fn send_signed_on(to: TcpStream, signer: &PrivateKeySigner, body: &str) -> Answer {
    let header = signature(signer, body.as_bytes());
    send_on(to, body.as_bytes(), &[("x-flashbots-signature", &header)]).await
}

pub fn plain(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 1_000_000_000,
        max_priority_fee_per_gas: 1,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..TxEip1559::default()
    }
}

pub fn sign<T>(tx: T, signer: &PrivateKeySigner) -> PooledTransaction
where
    T: SignableTransaction<Signature>,
    PooledTransaction: From<Signed<T>>,
{
    let signature = signer.sign_hash_sync(&tx.signature_hash()).unwrap();
    tx.into_signed(signature).into()
}

pub fn hex(tx: &PooledTransaction) -> String {
    alloy_primitives::hex::encode_prefixed(tx.encoded_2718())
}

/// A valid transaction, unlike any other.
pub fn raw(nonce: u64) -> String {
    hex(&sign(plain(nonce), &PrivateKeySigner::random()))
}
