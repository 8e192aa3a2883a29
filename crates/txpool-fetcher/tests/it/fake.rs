//! A node whose every block and response is written by the test.

use std::{
    collections::HashMap,
    io::Write as _,
    net::Shutdown,
    ops::RangeInclusive,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{Address, B256, Bytes};
use mock_node::workload::PreparedTx;
use order_pool::OrderPool;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::ingest::{eventually, socket};
use txpool_fetcher::FetcherConfig;

use super::peer;

pub(super) const CHAIN_ID: u64 = 1337;

/// What the node does when a transaction is requested.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Raw(Bytes),
    /// `null`, and just before it the announcement of the transaction, which the node has from then on.
    NotYet(Bytes),
    /// More bytes than a value may have.
    Oversized,
    /// The connection is closed.
    Close,
    /// Bytes that are not JSON.
    Garbage,
    /// This `error`, for so long from the first request on; then the transaction.
    BusyFor(Duration, Value, Bytes),
}

/// What the node does when its pool is to be listed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Listing {
    /// An error response with this code.
    Refused(i64),
    /// No response.
    Silent,
    /// One more hash each time.
    Growing,
    /// The transactions that it has.
    #[default]
    All,
    /// All but the first few, which it counts.
    AllBut(usize),
    /// A block has taken the last one since they were counted.
    Mined,
    /// The transactions that it has, and no count.
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

    /// As if it had been made just now.
    pub(super) fn recent(mut self) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        self.time = now.expect("after 1970").as_secs();
        self
    }

    /// As if another transaction of the same sender and nonce had been mined.
    pub(super) fn with_rival_of(mut self, tx: &PreparedTx) -> Self {
        self.txs.push((B256::from(tx.hash.0.map(|byte| !byte)), tx.sender, tx.nonce));
        self
    }

    pub(super) fn json(&self, full: Option<bool>) -> Value {
        let mut object = json!({
            "number": format!("{:#x}", self.number), "hash": self.hash, "parentHash": self.parent,
            "timestamp": format!("{:#x}", self.time), "gasUsed": "0x0", "gasLimit": "0x1c9c380",
            "baseFeePerGas": "0x3b9aca00", "miner": Address::ZERO,
        });
        let txs = self.txs.iter();
        match full {
            None => {}
            Some(false) => object["transactions"] = txs.map(|(hash, ..)| json!(hash)).collect(),
            Some(true) => {
                let txs = txs.map(|(hash, from, nonce)| {
                    json!({ "hash": hash, "from": from, "nonce": format!("{nonce:#x}") })
                });
                object["transactions"] = txs.collect();
            }
        }
        object
    }
}

pub(super) fn block_hash(n: u64) -> B256 {
    B256::left_padding_from(&(n + 1).to_be_bytes())
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) blocks: HashMap<B256, FakeBlock>,
    pub(super) head: B256,
    pub(super) pending: Vec<PreparedTx>,
    pub(super) subscribers: Vec<(String, UnixStream)>,
    /// How often requests for a block, full or not, are answered with an error response.
    pub(super) busy: HashMap<(B256, bool), u32>,
    /// Full blocks are answered by and by: nothing else is on their connection meanwhile.
    pub(super) full_blocks_stand_still: bool,
    /// No request is answered.
    pub(super) stands_still: bool,
    /// Instead of [`CHAIN_ID`].
    pub(super) chain_id: Option<u64>,
    pub(super) is_syncing: bool,
    /// In place of what is pending.
    pub(super) replies: HashMap<B256, Reply>,
    first_busy: Option<Instant>,
    pub(super) listing: Listing,
    /// It answers nothing any more.
    pub(super) is_dead: bool,
    /// Every method that was requested, with its parameters.
    pub(super) requested: Vec<(String, Value)>,
    pub(super) connections: Vec<UnixStream>,
}

impl State {
    pub(super) fn notify(&self, topic: &str, result: &Value) {
        for (subscribed, writer) in &self.subscribers {
            if subscribed == topic {
                peer::notify(writer, topic, result);
            }
        }
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
        peer::serve(&fake.path, move |stream| served.serve(&stream));
        fake
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    pub(super) fn serve(&self, stream: &UnixStream) {
        self.lock().connections.push(stream.try_clone().expect("a second handle"));
        for request in peer::requests(stream) {
            let waits = |state: &State| {
                state.stands_still || request["params"][1] == true && state.full_blocks_stand_still
            };
            while waits(&self.lock()) {
                thread::sleep(Duration::from_millis(1));
            }
            if let Some(response) = self.answer(stream, &request) {
                peer::respond(stream, &request, response);
            }
        }
    }

    pub(super) fn answer(&self, writer: &UnixStream, request: &Value) -> Option<Value> {
        let mut state = self.lock();
        let (method, params) = (request["method"].as_str()?, &request["params"]);
        if state.is_dead {
            return None;
        }
        state.requested.push((method.to_owned(), params.clone()));
        Some(match method {
            "eth_chainId" => {
                json!({ "result": format!("{:#x}", state.chain_id.unwrap_or(CHAIN_ID)) })
            }
            "eth_syncing" if state.is_syncing => json!({ "result": { "currentBlock": "0x1" } }),
            "eth_syncing" => json!({ "result": false }),
            "web3_clientVersion" => json!({ "result": "fake/1" }),
            "eth_blockNumber" => {
                let head = state.head;
                json!({ "result": format!("{:#x}", state.blocks[&head].number) })
            }
            "eth_subscribe" => {
                let topic = params[0].as_str()?.to_owned();
                let writer = writer.try_clone().expect("another handle");
                state.subscribers.push((topic.clone(), writer));
                json!({ "result": topic })
            }
            "eth_getBlockByNumber" => {
                json!({ "result": state.blocks[&state.head].json(Some(false)) })
            }
            "eth_getBlockByHash" => {
                let hash: B256 = serde_json::from_value(params[0].clone()).ok()?;
                let full = params[1].as_bool()?;
                if let Some(left) = state.busy.get_mut(&(hash, full))
                    && *left > 0
                {
                    *left -= 1;
                    return Some(json!({ "error": { "code": -32000, "message": "busy" } }));
                }
                json!({ "result": state.blocks.get(&hash).map(|block| block.json(Some(full))) })
            }
            "txpool_status" if !matches!(state.listing, Listing::Uncounted) => {
                json!({ "result": {
                    "pending": format!("{:#x}", state.pending.len()), "queued": "0x0"
                } })
            }
            "txpool_content" => {
                let hash = |n: u64| B256::left_padding_from(&n.to_be_bytes());
                let listed = state.requested.iter().filter(|(it, _)| it == "txpool_content");
                let count = listed.count() as u64;
                let hashes: Vec<B256> = match state.listing {
                    Listing::Refused(code) => {
                        return Some(json!({ "error": { "code": code, "message": "no" } }));
                    }
                    Listing::Silent => return None,
                    Listing::Growing => (1..=2 + count).map(hash).collect(),
                    listing => {
                        if matches!(listing, Listing::Mined) {
                            state.pending.pop();
                        }
                        let few = if let Listing::AllBut(few) = listing { few } else { 0 };
                        let pending = state.pending.iter().skip(few).map(|tx| tx.hash);
                        pending.chain(state.replies.keys().copied()).collect()
                    }
                };
                let mut pending = json!({});
                for (n, hash) in hashes.iter().enumerate() {
                    let sender = Address::left_padding_from(&n.to_be_bytes()).to_string();
                    pending[sender] = json!({ "0": { "hash": hash } });
                }
                json!({ "result": { "pending": pending, "queued": {} } })
            }
            "eth_getRawTransactionByHash" => {
                let hash: B256 = serde_json::from_value(params[0].clone()).ok()?;
                match state.replies.get(&hash).cloned() {
                    Some(Reply::Raw(raw)) => json!({ "result": raw }),
                    Some(Reply::NotYet(raw)) => {
                        state.replies.insert(hash, Reply::Raw(raw));
                        state.notify("newPendingTransactions", &json!(hash));
                        // For the announcement to be processed.
                        thread::sleep(Duration::from_millis(50));
                        json!({ "result": null })
                    }
                    Some(Reply::Oversized) => {
                        json!({ "result": format!("0x{}", "00".repeat(2 << 20)) })
                    }
                    Some(Reply::Close) => {
                        writer.shutdown(Shutdown::Both).expect("it is open");
                        return None;
                    }
                    Some(Reply::Garbage) => {
                        (&mut &*writer).write_all(b"upstream failed\n").expect("it is read");
                        return None;
                    }
                    Some(Reply::BusyFor(time, busy, raw)) => {
                        match state.first_busy.get_or_insert_with(Instant::now).elapsed() < time {
                            true => json!({ "error": busy }),
                            false => json!({ "result": raw }),
                        }
                    }
                    None => {
                        let found = state.pending.iter().find(|tx| tx.hash == hash);
                        json!({ "result": found.map(|tx| tx.raw.clone()) })
                    }
                }
            }
            _ => json!({ "error": { "code": -32601, "message": "no such method" } }),
        })
    }

    pub(super) fn add(&self, block: &FakeBlock) {
        self.lock().blocks.insert(block.hash, block.clone());
    }

    /// Makes it the head and announces it.
    pub(super) fn announce(&self, block: &FakeBlock) {
        self.add(block);
        self.lock().head = block.hash;
        self.notify("newHeads", &block.json(None));
    }

    pub(super) fn announce_tx(&self, tx: &PreparedTx) {
        self.lock().pending.push(tx.clone());
        self.notify("newPendingTransactions", &json!(tx.hash));
    }

    pub(super) fn notify(&self, topic: &str, result: &Value) {
        self.lock().notify(topic, result);
    }

    /// Every connection ends, and the chain is that of these blocks.
    pub(super) fn restart(&self, chain: &[FakeBlock]) {
        let mut state = self.lock();
        state.blocks = chain.iter().map(|block| (block.hash, block.clone())).collect();
        state.head = chain.last().expect("a block").hash;
        state.subscribers.clear();
        // Some may be closed already.
        state.connections.drain(..).for_each(|it| _ = it.shutdown(Shutdown::Both));
    }

    /// How often this block was requested, with its transactions or without.
    pub(super) fn requests_for(&self, block: u64, full: bool) -> usize {
        let wanted = ("eth_getBlockByHash".to_owned(), json!([block_hash(block), full]));
        self.lock().requested.iter().filter(|requested| **requested == wanted).count()
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.lock().requested.iter().filter(|(requested, _)| requested == method).count()
    }

    pub(super) fn config(&self) -> FetcherConfig {
        FetcherConfig::ipc(&self.path)
    }

    /// Announces transactions, until they are in our pool.
    pub(super) async fn pools(&self, pool: &OrderPool, txs: &[PreparedTx]) {
        txs.iter().for_each(|tx| self.announce_tx(tx));
        eventually("pooled", || txs.iter().all(|tx| pool.contains(&tx.hash))).await;
    }
}

/// A chain of blocks without transactions, on block `parent` of the same chain.
pub(super) fn blocks(numbers: RangeInclusive<u64>) -> impl Iterator<Item = FakeBlock> {
    numbers.map(|number| FakeBlock::new(number, number, number - 1, &[]))
}
