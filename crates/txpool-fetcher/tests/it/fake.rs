//! A scripted node, whose blocks and responses are defined by the test, and simple peers at a Unix
//! socket.

use std::{
    io::Write as _,
    net::Shutdown,
    ops::RangeInclusive,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::MutexGuard,
    time::SystemTime,
};

use alloy_primitives::{Address, Bytes};
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::*;

pub(super) const CHAIN_ID: u64 = 1337;

/// Sent when a client subscribes: messages that answer no request and belong to no subscription.
const STRAY: &str = r#"
{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"0x7","result":1}}
{"jsonrpc":"2.0","id":"newHeads","result":null} {"jsonrpc":"2.0","id":null,"result":"0x1"}"#;

/// What the node does when a transaction is requested.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Raw(Bytes),
    /// It announces the transaction, which it has from then on, and then answers `null`.
    NotYet(Bytes),
    /// It does not answer.
    Never,
    /// It closes the connection.
    Close,
    /// It sends bytes that are not JSON.
    Garbage,
    /// It answers with this `error`.
    Busy(Value),
}

/// What the node does when its pool is to be listed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Listing {
    /// An error response with this code.
    Refused(i64),
    /// No response.
    Silent,
    /// One more hash at each request.
    Growing,
    /// All pending transactions.
    #[default]
    All,
    /// All but the first few, which it still counts.
    AllBut(usize),
    /// All but the last one, which a block took after they were counted.
    Mined,
    /// All pending transactions, but the node does not count them.
    Uncounted,
}

#[derive(Clone, Debug)]
pub(super) struct FakeBlock {
    pub(super) number: u64,
    pub(super) hash: B256,
    pub(super) parent: B256,
    /// In seconds since the Unix epoch; long ago by default.
    pub(super) time: u64,
    /// Hash, sender and nonce.
    pub(super) txs: Vec<(B256, Address, u64)>,
}

impl FakeBlock {
    pub(super) fn new(number: u64, hash: u64, parent: u64, txs: &[&PreparedTx]) -> Self {
        let txs = txs.iter().map(|tx| (tx.hash, tx.sender, tx.nonce)).collect();
        Self { number, hash: block_hash(hash), parent: block_hash(parent), time: 1, txs }
    }

    /// Gives the block the current time.
    pub(super) fn recent(mut self) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.time = now.expect("after 1970").as_secs();
        self
    }

    /// Adds another transaction with the same sender and nonce.
    pub(super) fn with_rival_of(mut self, tx: &PreparedTx) -> Self {
        self.txs.push((B256::from(tx.hash.0.map(|byte| !byte)), tx.sender, tx.nonce));
        self
    }

    pub(super) fn json(&self, full: Option<bool>) -> Value {
        let mut object = json!({
            "number": quantity(self.number), "hash": self.hash, "parentHash": self.parent,
            "timestamp": quantity(self.time), "gasUsed": "0x0", "gasLimit": "0x1c9c380",
            "baseFeePerGas": "0x3b9aca00", "miner": Address::ZERO,
        });
        if let Some(full) = full {
            let txs = self.txs.iter().map(|(hash, sender, nonce)| {
                if full {
                    json!({ "hash": hash, "from": sender, "nonce": quantity(*nonce) })
                } else {
                    json!(hash)
                }
            });
            object["transactions"] = txs.collect();
        }
        object
    }
}

pub(super) fn block_hash(n: u64) -> B256 {
    B256::left_padding_from(&(n + 1).to_be_bytes())
}

fn quantity(n: u64) -> Value {
    json!(format!("{n:#x}"))
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) blocks: HashMap<B256, FakeBlock>,
    pub(super) head: B256,
    pub(super) pending: Vec<PreparedTx>,
    pub(super) subscribers: Vec<(String, UnixStream)>,
    /// How often requests for a block, full or not, are answered with an error response.
    pub(super) busy: HashMap<(B256, bool), u32>,
    /// Requests for full blocks wait, and block their connection meanwhile.
    pub(super) full_blocks_stand_still: bool,
    /// All requests wait.
    pub(super) stands_still: bool,
    /// The chain id in place of [`CHAIN_ID`].
    pub(super) chain_id: Option<u64>,
    pub(super) is_syncing: bool,
    /// The hash of the genesis block. Without it block 0 is the head, as any other number is.
    pub(super) genesis: Option<B256>,
    /// Subscriptions are refused.
    pub(super) refuses_subscriptions: bool,
    /// Replies to requests for transactions, in place of the pending ones.
    pub(super) replies: HashMap<B256, Reply>,
    pub(super) listing: Listing,
    /// All requests: the method and its parameters.
    pub(super) requested: Vec<(String, Value)>,
    pub(super) connections: Vec<UnixStream>,
}

impl State {
    pub(super) fn notify(&self, topic: &str, result: &Value) {
        let params = json!({ "subscription": topic, "result": result });
        let note = json!({ "jsonrpc": "2.0", "method": "eth_subscription", "params": params });
        for (_, writer) in self.subscribers.iter().filter(|(subscribed, _)| subscribed == topic) {
            // The subscriber may be gone.
            let _ = writeln!(&*writer, "{note}");
        }
    }

    fn count(&self, method: &str) -> usize {
        self.requested.iter().filter(|(requested, _)| requested == method).count()
    }
}

/// A node with scripted responses.
#[derive(Clone, Debug)]
pub(super) struct Fake {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) path: PathBuf,
    _folder: Arc<TempDir>,
}

impl Fake {
    pub(super) fn start() -> Self {
        let (folder, path) = socket();
        let fake = Self { state: Arc::default(), path, _folder: Arc::new(folder) };
        fake.add(&FakeBlock::new(1, 1, 0, &[]));
        fake.lock().head = block_hash(1);
        let served = fake.clone();
        serve(&fake.path, move |stream| served.serve(&stream));
        fake
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    fn serve(&self, stream: &UnixStream) {
        self.lock().connections.push(stream.try_clone().expect("a second handle"));
        for request in requests(stream) {
            let waits = |state: &State| {
                state.stands_still || request["params"][1] == true && state.full_blocks_stand_still
            };
            while waits(&self.lock()) {
                thread::sleep(Duration::from_millis(1));
            }
            if let Some(response) = self.answer(stream, &request) {
                respond(stream, &request, &response);
            }
        }
    }

    /// Returns the result or the error of the response; `None` for no response.
    fn answer(&self, writer: &UnixStream, request: &Value) -> Option<Result<Value, Value>> {
        let state = &mut *self.lock();
        let (method, params) = (request["method"].as_str()?, &request["params"]);
        state.requested.push((method.to_owned(), params.clone()));
        let hash = || serde_json::from_value::<B256>(params[0].clone()).ok();
        Some(Ok(match method {
            "eth_chainId" => quantity(state.chain_id.unwrap_or(CHAIN_ID)),
            "eth_syncing" if state.is_syncing => json!({ "currentBlock": "0x1" }),
            "eth_syncing" => json!(false),
            "web3_clientVersion" => json!("fake/1"),
            "eth_blockNumber" => quantity(state.blocks[&state.head].number),
            "eth_subscribe" if state.refuses_subscriptions => {
                return Some(Err(json!({ "code": -32000, "message": "not now" })));
            }
            "eth_subscribe" => {
                let mut writer = writer.try_clone().expect("another handle");
                // The subscriber may be gone.
                let _ = writer.write_all(STRAY.as_bytes());
                state.subscribers.push((params[0].as_str()?.to_owned(), writer));
                params[0].clone()
            }
            "eth_getBlockByNumber" if params[0] == "0x0" && state.genesis.is_some() => {
                json!({ "number": "0x0", "hash": state.genesis })
            }
            "eth_getBlockByNumber" => state.blocks[&state.head].json(Some(false)),
            "eth_getBlockByHash" => {
                let asked = (hash()?, params[1].as_bool()?);
                match state.busy.get_mut(&asked) {
                    Some(left) if *left > 0 => {
                        *left -= 1;
                        return Some(Err(json!({ "code": -32000, "message": "busy" })));
                    }
                    _ => json!(state.blocks.get(&asked.0).map(|block| block.json(Some(asked.1)))),
                }
            }
            "txpool_status" if !matches!(state.listing, Listing::Uncounted) => {
                json!({ "pending": quantity(state.pending.len() as u64), "queued": "0x0" })
            }
            "txpool_content" => {
                let hashes: Vec<B256> = match state.listing {
                    Listing::Refused(code) => {
                        return Some(Err(json!({ "code": code, "message": "no" })));
                    }
                    Listing::Silent => return None,
                    Listing::Growing => {
                        (1..=2 + state.count(method) as u64).map(block_hash).collect()
                    }
                    listing => {
                        if matches!(listing, Listing::Mined) {
                            state.pending.pop();
                        }
                        let few = if let Listing::AllBut(few) = listing { few } else { 0 };
                        let pending = state.pending.iter().skip(few).map(|tx| tx.hash);
                        pending.chain(state.replies.keys().copied()).collect()
                    }
                };
                let is_blob =
                    |hash| state.pending.iter().any(|tx| tx.hash == hash && tx.raw[0] == 3);
                let one = |(nonce, hash): (usize, B256)| {
                    let blobs = is_blob(hash).then_some([hash]);
                    (nonce.to_string(), json!({ "hash": hash, "blobVersionedHashes": blobs }))
                };
                let txs: Map<_, _> = hashes.into_iter().enumerate().map(one).collect();
                json!({ "pending": { (Address::ZERO.to_string()): txs }, "queued": {} })
            }
            "eth_getRawTransactionByHash" => {
                let hash = hash()?;
                match state.replies.get(&hash).cloned() {
                    Some(Reply::Raw(raw)) => json!(raw),
                    Some(Reply::NotYet(raw)) => {
                        state.replies.insert(hash, Reply::Raw(raw));
                        state.notify("newPendingTransactions", &json!(hash));
                        // Gives the fetcher time to process the announcement first.
                        thread::sleep(Duration::from_millis(50));
                        Value::Null
                    }
                    Some(Reply::Never) => return None,
                    Some(Reply::Close) => {
                        close(writer);
                        return None;
                    }
                    Some(Reply::Garbage) => {
                        (&mut &*writer).write_all(b"upstream failed\n").expect("it is read");
                        return None;
                    }
                    Some(Reply::Busy(busy)) => return Some(Err(busy)),
                    None => {
                        let found = state.pending.iter().find(|tx| tx.hash == hash);
                        json!(found.map(|tx| &tx.raw))
                    }
                }
            }
            _ => return Some(Err(json!({ "code": -32601, "message": "no such method" }))),
        }))
    }

    pub(super) fn add(&self, block: &FakeBlock) {
        self.lock().blocks.insert(block.hash, block.clone());
    }

    /// Makes a block the head and announces it.
    pub(super) fn announce(&self, block: &FakeBlock) {
        self.add(block);
        self.lock().head = block.hash;
        self.notify("newHeads", &block.json(None));
    }

    pub(super) fn announce_hash(&self, hash: B256) {
        self.notify("newPendingTransactions", &json!(hash));
    }

    pub(super) fn announce_tx(&self, tx: &PreparedTx) {
        self.lock().pending.push(tx.clone());
        self.announce_hash(tx.hash);
    }

    pub(super) fn notify(&self, topic: &str, result: &Value) {
        self.lock().notify(topic, result);
    }

    /// Closes every connection and replaces the chain.
    pub(super) fn restart(&self, chain: &[FakeBlock]) {
        let mut state = self.lock();
        state.blocks = chain.iter().map(|block| (block.hash, block.clone())).collect();
        state.head = chain.last().expect("a block").hash;
        state.subscribers.clear();
        drop(state);
        self.close();
    }

    /// Closes every connection.
    pub(super) fn close(&self) {
        self.lock().connections.drain(..).for_each(|connection| close(&connection));
    }

    fn requests(&self, method: &str, params: Value) -> usize {
        let wanted = (method.to_owned(), params);
        self.lock().requested.iter().filter(|requested| **requested == wanted).count()
    }

    /// Returns how often a block was requested, with full transactions or with hashes.
    pub(super) fn requests_for(&self, block: u64, full: bool) -> usize {
        self.requests("eth_getBlockByHash", json!([block_hash(block), full]))
    }

    /// Returns how often a transaction was requested.
    pub(super) fn requests_of(&self, hash: B256) -> usize {
        self.requests("eth_getRawTransactionByHash", json!([hash]))
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.lock().count(method)
    }

    pub(super) fn config(&self) -> FetcherConfig {
        FetcherConfig::ipc(&self.path)
    }

    /// Announces transactions, and waits until they are pooled.
    pub(super) async fn announce_and_wait(&self, pool: &OrderPool, txs: &[PreparedTx]) {
        txs.iter().for_each(|tx| self.announce_tx(tx));
        eventually("pooled", || txs.iter().all(|tx| pool.contains(&tx.hash))).await;
    }
}

/// Makes a chain of blocks without transactions.
pub(super) fn blocks(numbers: RangeInclusive<u64>) -> impl Iterator<Item = FakeBlock> {
    numbers.map(|number| FakeBlock::new(number, number, number - 1, &[]))
}

/// Makes a configuration with these nodes as sources.
pub(super) fn config_of<'a>(fakes: impl IntoIterator<Item = &'a Fake>) -> FetcherConfig {
    FetcherConfig::new(fakes.into_iter().map(|fake| Endpoint::Ipc(fake.path.clone())))
}

/// Serves every connection on a separate thread.
pub(super) fn serve(path: &Path, serve: impl Fn(UnixStream) + Send + Clone + 'static) {
    let listener = UnixListener::bind(path).expect("a fresh path");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
}

/// Iterates over the requests that come over a connection, until it ends.
pub(super) fn requests(stream: &UnixStream) -> impl Iterator<Item = Value> + use<> {
    let reader = stream.try_clone().expect("a second handle");
    let requests = serde_json::Deserializer::from_reader(reader).into_iter::<Value>();
    requests.map_while(Result::ok).inspect(|request| assert_eq!(request["jsonrpc"], "2.0"))
}

/// Sends a response with this `result` or `error`. The client may have stopped waiting.
pub(super) fn respond(mut stream: &UnixStream, request: &Value, response: &Result<Value, Value>) {
    let (Ok(value) | Err(value)) = response;
    let key = if response.is_ok() { "result" } else { "error" };
    let response = json!({ "jsonrpc": "2.0", "id": request["id"], (key): value });
    let _ = writeln!(stream, "{response}");
}

/// Closes a connection, unless the client has.
fn close(stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
