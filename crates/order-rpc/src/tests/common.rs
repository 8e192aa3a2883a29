//! A server on a free port, clients that return status, headers and body, and signed orders.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a module of several test binaries, each using a part"
)]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
pub use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_consensus::{SignableTransaction, Signed};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, TxKind, U256, keccak256};
use alloy_signer::SignerSync;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use order_pool::{Block, Head, PooledTransaction};
use order_rpc::Reason;
use tokio::net::TcpSocket;
pub use {
    alloy_consensus::TxEip1559,
    alloy_primitives::{Address, B256},
    alloy_signer_local::PrivateKeySigner,
    futures::{FutureExt, future::join_all},
    load_control::{Gate, GateConfig, Limit, LoadMonitor, Priority, WorkPermit},
    order_pool::{OrderPool, PoolConfig},
    order_rpc::{Host, OrderRpc, OrderRpcConfig, Quota, SignatureMode},
    serde_json::{Value, json},
    testkit::{configured, usage::resident_bytes},
    tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    },
};

pub const CHAIN: u64 = 1337;
pub const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// How long a test waits for an event that must come, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Two callers, by their addresses of the loopback network.
pub const ONE: [u8; 4] = [127, 0, 0, 1];
pub const OTHER: [u8; 4] = [127, 0, 0, 2];
pub const SIGNATURE: &str = "x-flashbots-signature";

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

/// The metrics of what was created while they were recorded: the sum of each by name and label. The
/// label is empty if the metric has none.
pub struct Counted(Snapshotter, Mutex<HashMap<(String, String), f64>>);

impl Counted {
    pub fn record<T>(create: impl FnOnce() -> T) -> (T, Self) {
        let recorder = DebuggingRecorder::new();
        let created = metrics::with_local_recorder(&recorder, create);
        (created, Self(recorder.snapshotter(), Mutex::default()))
    }

    /// Returns the number of errors with this reason.
    pub fn reason(&self, reason: &str) -> u64 {
        self.sum("order_rpc_refused_total", reason) + self.sum("order_rpc_failed_total", reason)
    }

    /// Returns the number of errors with this reason since the last call.
    pub fn take(&self, reason: &str) -> u64 {
        let count = self.reason(reason);
        self.1.lock().unwrap().retain(|(_, label), _| label != reason);
        count
    }

    pub fn sum(&self, metric: &str, label: &str) -> u64 {
        let mut sums = self.1.lock().unwrap();
        // A snapshot has only what was counted since the last one.
        for (key, _, _, value) in self.0.snapshot().into_vec() {
            let label = key.key().labels().next().map_or("", |label| label.value());
            let sum = sums.entry((key.key().name().to_owned(), label.to_owned())).or_default();
            *sum += match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(level) => level.0,
                DebugValue::Histogram(_) => 0.0,
            };
        }
        sums.get(&(metric.to_owned(), label.to_owned())).copied().unwrap_or_default() as u64
    }
}

/// The maximum of resident memory at any sample. Each test that uses it is a program of its own,
/// because memory that other tests free would hide what this one takes. Clients and server share
/// the process, so a bound holds for both.
#[derive(Debug, Default)]
pub struct PeakMemory(AtomicUsize);

impl PeakMemory {
    pub fn sample(&self) {
        // Relaxed: the maximum orders nothing else.
        self.0.fetch_max(resident_bytes(), Relaxed);
    }

    /// Returns the bytes by which the maximum is above `before`.
    pub fn above(&self, before: usize) -> usize {
        self.sample();
        self.0.load(Relaxed).saturating_sub(before)
    }
}

/// Waits for a condition that another thread brings about.
pub async fn wait_until(condition: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {condition}");
        tokio::task::yield_now().await;
    }
}

/// A gate whose permit wait a busy machine does not reach.
pub fn gate_config(requests: usize) -> GateConfig {
    let requests = Limit::Number(requests);
    configured(GateConfig::for_cores(2), |config| {
        config.requests = requests;
        config.permit_wait = PATIENCE;
    })
}

/// A gate where external callers wait for a permit no longer than `wait`.
pub fn impatient_gate_config(wait: Duration) -> GateConfig {
    configured(gate_config(64), |config| {
        config.permit_wait = wait;
        config.burst_wait = Duration::ZERO;
    })
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
        let (rpc, counted) = Counted::record(|| start(host));
        Self { addr: rpc.local_addr(), rpc, pool, gate, counted }
    }

    /// Takes all work permits of external callers.
    pub fn hold_permits(&self) -> Vec<WorkPermit> {
        let GateConfig { work_permits, reserved_permits, .. } = *self.gate.config();
        let permits = (reserved_permits..work_permits).map(|_| {
            let permit = self.gate.acquire_external(Priority::Known, Instant::now());
            permit.now_or_never().expect("it is free").unwrap()
        });
        permits.collect()
    }

    /// Returns what requests hold: places in flight, work permits, active requests, and bytes.
    pub fn held(&self) -> [usize; 4] {
        let stats = self.gate.stats();
        let (active, bytes) = (self.rpc.active_requests(), self.rpc.buffered_bytes());
        [stats.requests_in_flight, stats.work_in_use, active, bytes]
    }

    pub async fn wait_until_nothing_is_held(&self) {
        wait_until("requests hold nothing", || self.held() == [0; 4]).await;
    }

    /// Returns the number of admissions with this outcome.
    pub fn verdicts(&self, verdict: &str) -> u64 {
        self.counted.sum("order_rpc_admissions_total", verdict)
    }

    pub async fn wait_until_in_flight(&self, count: usize) {
        wait_until("the requests are in progress", || self.rpc.active_requests() == count).await;
    }

    /// Returns a client at this address of the loopback network. Each address is another caller.
    pub fn client(&self, address: [u8; 4]) -> Client {
        Client { server: self.addr, address, headers: String::new(), signer: None }
    }

    pub fn signed(&self, signer: &PrivateKeySigner) -> Client {
        self.client(ONE).signed(signer)
    }

    pub async fn send(&self, body: impl AsRef<[u8]>) -> Answer {
        self.client(ONE).send(body).await
    }

    pub async fn call(&self, method: &str, params: Value) -> Answer {
        self.client(ONE).call(method, params).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.client(ONE).get(path).await
    }
}

/// Starts a server with its default limits, in a process of its own.
pub fn start_server(config: OrderRpcConfig, gate: GateConfig) -> Server {
    // Loaded before memory is measured, because it is not memory of callers.
    order_pool::load_trusted_setup();
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    Server::start(pool, gate, None, |host| OrderRpc::start(config, host).unwrap())
}

#[derive(Clone, Debug)]
pub struct Client {
    server: SocketAddr,
    address: [u8; 4],
    headers: String,
    signer: Option<PrivateKeySigner>,
}

impl Client {
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    /// Returns a client that signs what it sends.
    pub fn signed(self, signer: &PrivateKeySigner) -> Self {
        Self { signer: Some(signer.clone()), ..self }
    }

    /// Returns the head of a request with a body of this length, after which the connection ends.
    pub fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n{}\r\n",
            self.headers
        )
    }

    /// Returns the bytes of a request.
    pub fn post(mut self, body: &[u8]) -> Vec<u8> {
        if let Some(signer) = self.signer.take() {
            self = self.with(SIGNATURE, &signature(&signer, body));
        }
        [self.head("POST", "/", body.len()).as_bytes(), body].concat()
    }

    pub async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        // The port of the default address is bound on connect, which allows more open connections.
        if self.address != ONE {
            socket.bind(SocketAddr::from((self.address, 0))).unwrap();
        }
        socket.connect(self.server).await.unwrap()
    }

    pub async fn write(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut socket = self.connect().await;
        socket.write_all(bytes.as_ref()).await.unwrap();
        read_answer(&mut socket).await
    }

    pub async fn send(self, body: impl AsRef<[u8]>) -> Answer {
        let client = self.clone();
        client.write(self.post(body.as_ref())).await
    }

    pub async fn call(self, method: &str, params: Value) -> Answer {
        self.send(request(method, params)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.write(self.head("GET", path, 0)).await
    }

    /// Announces a body of this length, and sends its beginning.
    pub async fn send_partial(&self, length: usize, beginning: &str) -> TcpStream {
        let mut socket = self.connect().await;
        let text = self.head("POST", "/", length) + beginning;
        // A server that refuses the request may close before all is sent; the answer has the
        // reason.
        let _ = socket.write_all(text.as_bytes()).await;
        socket
    }

    /// Opens a connection that is idle after a first request; `None` if the request is refused.
    pub async fn connect_idle(&self) -> Option<TcpStream> {
        let mut socket = self.connect().await;
        let answer = exchange(&mut socket, self.head("GET", "/healthz", 0)).await;
        answer.is_some_and(|answer| answer.status == 200).then_some(socket)
    }
}

/// Sends a request that keeps the connection open, and returns its answer; `None` if the connection
/// is closed before.
pub async fn exchange(socket: &mut TcpStream, text: impl AsRef<[u8]>) -> Option<Answer> {
    let text = String::from_utf8_lossy(text.as_ref()).replace("connection: close\r\n", "");
    let _ = socket.write_all(text.as_bytes()).await;
    let mut read = vec![0; 4_096];
    let count = tokio::time::timeout(PATIENCE, socket.read(&mut read)).await.unwrap().ok()?;
    (count > 0).then(|| parse(&read[..count]))
}

pub async fn wait_until_closed(socket: &mut TcpStream) {
    // A reset is an end too. Bytes that were on their way come first.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("closed");
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

    /// Returns the result of a call that must have succeeded.
    #[track_caller]
    pub fn result(&self) -> Value {
        assert_eq!(reason_of(&self.json()), None, "{self:?}");
        self.json()["result"].clone()
    }

    /// Returns the hash that is the result of sending a transaction.
    #[track_caller]
    pub fn hash(&self) -> B256 {
        serde_json::from_value(self.result()).unwrap()
    }

    /// Returns the status, the code and the reason of an error, and asserts that its data is
    /// complete.
    pub fn error(&self) -> (u16, i64, &'static str) {
        let json = self.json();
        let error = &json["error"];
        let reason = reason_of(&json).unwrap_or_else(|| panic!("{self:?}"));
        let code = error["code"].as_i64().unwrap();
        if code == -32005 {
            let ms = error["data"]["retryAfterMs"].as_u64().unwrap();
            let secs: u64 = self.headers["retry-after"].parse().unwrap();
            assert!(secs >= 1 && secs * 1_000 >= ms, "{self:?}");
        }
        if code == -32602 {
            assert!(error["data"]["field"].is_string(), "{self:?}");
        }
        (self.status, code, reason)
    }

    /// Returns the reason and the field of an error about a parameter.
    #[track_caller]
    pub fn field_error(&self) -> (&'static str, String) {
        let (status, code, reason) = self.error();
        assert_eq!((status, code), (200, -32602), "{self:?}");
        (reason, self.json()["error"]["data"]["field"].as_str().unwrap().to_owned())
    }

    /// Returns the reason of each element of a [`batch`] in order; `None` if it succeeded.
    pub fn reasons(&self) -> Vec<Option<&'static str>> {
        let json = self.json();
        let responses = json.as_array().unwrap();
        assert!((1..).zip(responses).all(|(id, response)| response["id"] == id), "{json}");
        responses.iter().map(reason_of).collect()
    }
}

/// Returns the reason of an error; `None` if the response has a result and no error.
fn reason_of(response: &Value) -> Option<&'static str> {
    if response.get("result").is_some() && response.get("error").is_none() {
        return None;
    }
    let text = &response["error"]["data"]["reason"];
    let reason = Reason::ALL.into_iter().find(|reason| text == reason.as_str());
    Some(reason.unwrap_or_else(|| panic!("{response}")).as_str())
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

pub fn request(method: &str, params: Value) -> String {
    element(1, method, params).to_string()
}

fn element(id: usize, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Returns a batch of calls, each with an id and one parameter.
pub fn batch(calls: &[(&str, Value)]) -> String {
    let elements =
        (1..).zip(calls).map(|(id, (method, param))| element(id, method, json!([param])));
    json!(elements.collect::<Vec<_>>()).to_string()
}

/// Returns a request that sends a valid transaction.
pub fn transaction() -> String {
    request("eth_sendRawTransaction", json!([raw(0)]))
}

/// Returns a request that cancels the bundle with [`UUID`].
pub fn cancellation() -> String {
    request("eth_cancelBundle", json!([{ "uuid": UUID }]))
}

/// The error of a refusal with a retry-after time, as [`Answer::error`] returns it.
pub fn refused(status: u16, reason: &'static str) -> (u16, i64, &'static str) {
    (status, -32005, reason)
}

pub fn signature(signer: &PrivateKeySigner, body: &[u8]) -> String {
    let text = keccak256(body).to_string();
    format!("{}:{}", signer.address(), signer.sign_message_sync(text.as_bytes()).unwrap())
}

/// Returns the signature of `forger` over a body, with the address of `victim`.
pub fn forged(forger: &PrivateKeySigner, body: &[u8], victim: &PrivateKeySigner) -> String {
    let signature = signature(forger, body);
    signature.replace(&forger.address().to_string(), &victim.address().to_string())
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

/// Returns a valid transaction that differs from every other one.
pub fn raw(nonce: u64) -> String {
    hex(&sign(plain(nonce), &PrivateKeySigner::random()))
}
