//! From the bytes of a request to the bytes of its answer.

pub(crate) mod server;
mod spoil;
mod state_methods;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::Write as _,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, U64, keccak256};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    chain::FullBlock,
    chain::objects::block_object,
    config::UnknownRaw,
    error::RpcError,
    faults::BadAnswer,
    rpc::spoil::{OVERTAKEN_BY, spoil},
    shared::{Shared, Topic, to_json},
    state::Keeper,
    tx::SignedTx,
    wire::Message,
};

/// Calls in one batch from which on it is answered beside the connection's other requests.
const HEAVY_BATCH: usize = 64;

#[derive(Debug, Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// An answer, and what follows from having given it.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) message: Message,
    /// Subscriptions that begin once the answer is queued, so that no notification can overtake it.
    pub(crate) begin: Vec<(String, Topic)>,
    /// Raw transactions among what is answered.
    pub(crate) raws: u64,
    /// Held back for so long.
    pub(crate) delay: Duration,
}

/// How a request is to be treated.
#[derive(Debug)]
pub(crate) enum Handled {
    /// Answered; `None` when no answer is due.
    Now(Option<Reply>),
    /// Not answered yet: it takes long and belongs on another thread, with `may_block`.
    Heavy,
}

/// Answers one object or batch.
pub(crate) fn handle(shared: &Shared, connection: u64, frame: &[u8], may_block: bool) -> Handled {
    let frame = frame.trim_ascii();
    if frame.first() != Some(&b'[') {
        return match serde_json::from_slice::<Request<'_>>(frame) {
            Ok(request) if !may_block && is_heavy(shared, &request) => Handled::Heavy,
            Ok(request) => Handled::Now(answer(shared, connection, &request).map(Answer::with_end)),
            Err(error) => Handled::Now(Some(malformed(frame, &error))),
        };
    }
    let Ok(calls) = serde_json::from_slice::<Vec<&RawValue>>(frame) else {
        return Handled::Now(Some(error_reply(RpcError::new(RpcError::PARSE, "Parse error"))));
    };
    if calls.is_empty() {
        let error = RpcError::new(RpcError::INVALID_REQUEST, "Invalid request");
        return Handled::Now(Some(error_reply(error)));
    }
    let requests: Vec<_> =
        calls.iter().map(|call| serde_json::from_str::<Request<'_>>(call.get())).collect();
    let heavy = requests.len() >= HEAVY_BATCH
        || requests.iter().flatten().any(|request| is_heavy(shared, request));
    if heavy && !may_block {
        return Handled::Heavy;
    }
    let mut all = Reply::default();
    for (call, request) in calls.iter().zip(requests) {
        let one = match request {
            Ok(request) => answer(shared, connection, &request),
            Err(error) => Some(Answer(malformed(call.get().as_bytes(), &error))),
        };
        let Some(Answer(mut one)) = one else { continue };
        let separator = if all.message.len() == 0 { b'[' } else { b',' };
        all.message.text().push(separator);
        trim_end(&mut one.message);
        all.message.append(one.message);
        all.begin.append(&mut one.begin);
        all.raws += one.raws;
        all.delay = all.delay.max(one.delay);
    }
    if all.message.len() == 0 {
        return Handled::Now(None);
    }
    all.message.text().extend_from_slice(b"]\n");
    Handled::Now(Some(all))
}

/// An answer without its line end.
struct Answer(Reply);

impl Answer {
    fn with_end(self) -> Reply {
        let mut reply = self.0;
        reply.message.text().push(b'\n');
        reply
    }
}

fn trim_end(message: &mut Message) {
    if message.text().last() == Some(&b'\n') {
        message.text().pop();
    }
}

fn is_heavy(shared: &Shared, request: &Request<'_>) -> bool {
    // A request for the state of a block that is being executed waits for that.
    let waits = || shared.keeper.as_ref().is_some_and(Keeper::is_behind);
    (state_methods::METHODS.contains(&&*request.method) && waits())
        || matches!(
            &*request.method,
            "txpool_content" | "txpool_contentFrom" | "eth_getBlockByHash" | "eth_getBlockByNumber"
        )
}

fn malformed(frame: &[u8], error: &serde_json::Error) -> Reply {
    if error.is_data() && serde_json::from_slice::<serde::de::IgnoredAny>(frame).is_ok() {
        error_reply(RpcError::new(RpcError::INVALID_REQUEST, "Invalid request"))
    } else {
        error_reply(RpcError::new(RpcError::PARSE, "Parse error"))
    }
}

fn error_reply(error: RpcError) -> Reply {
    let mut message = Message::default();
    write_error(message.text(), "null", &error);
    message.text().push(b'\n');
    Reply { message, ..Reply::default() }
}

pub(crate) fn write_error(out: &mut Vec<u8>, id: &str, error: &RpcError) {
    let mut object = serde_json::json!({ "code": error.code, "message": error.message });
    if let Some(data) = &error.data {
        object["data"] = data.clone();
    }
    write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#).expect("memory takes all");
}

/// What a method found.
pub(crate) enum Found {
    Json(Vec<u8>),
    Raw(Arc<SignedTx>, bool),
    Subscribed(String, Topic),
}

fn answer(shared: &Shared, connection: u64, request: &Request<'_>) -> Option<Answer> {
    shared.counters.method(&request.method);
    let is_raw = request.method == "eth_getRawTransactionByHash";
    if is_raw {
        shared.counters.raw_begins();
    }
    let bad = if is_raw { shared.switches.next_answer() } else { None };
    let params = Params::read(request.params);
    let mut found = params.and_then(|params| call(shared, connection, &request.method, &params));
    let mut reply = Reply::default();
    if is_raw {
        reply.raws = 1;
        reply.delay = shared.delays.draw();
        match shared.line.as_ref().map(|line| line.request(Instant::now())) {
            None => {}
            Some(Ok(turn)) => reply.delay += turn,
            Some(Err(busy)) => {
                shared.counters.raw_busy.fetch_add(1, Relaxed);
                found = Err(busy.into());
            }
        }
    }
    match bad {
        Some(BadAnswer::OutOfOrder) => reply.delay += shared.delays.draw_up_to(OVERTAKEN_BY),
        Some(BadAnswer::WrongTransaction) => found = Ok(another(shared, found)),
        _ => {}
    }
    // A request without an id wants no answer, only its effect.
    let Some(id) = request.id.map(RawValue::get) else {
        shared.counters.raw_ends(reply.raws);
        return None;
    };
    let out = reply.message.text();
    match found {
        Err(error) => write_error(out, id, &error),
        Ok(found) => {
            write!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":"#).expect("memory takes all");
            match found {
                Found::Json(json) => out.extend_from_slice(&json),
                Found::Raw(tx, pending) => write_raw(&mut reply.message, &tx, pending),
                Found::Subscribed(subscription, topic) => {
                    write!(out, r#""{subscription}""#).expect("memory takes all");
                    reply.begin.push((subscription, topic));
                }
            }
            reply.message.text().push(b'}');
        }
    }
    if let Some(bad) = bad {
        shared.counters.bad_answers.fetch_add(1, Relaxed);
        let Some(spoiled) = spoil(bad, id, reply.message) else {
            shared.counters.raw_ends(reply.raws);
            return None;
        };
        reply.message = spoiled;
    }
    Some(Answer(reply))
}

/// A pending transaction that is not the one found.
fn another(shared: &Shared, found: Result<Found, RpcError>) -> Found {
    let right = match found {
        Ok(Found::Raw(tx, _)) => Some(tx.hash),
        _ => None,
    };
    let state = shared.lock();
    match state.core.pool.pending().find(|tx| Some(tx.hash) != right) {
        Some(tx) => Found::Raw(tx.clone(), true),
        None => Found::Json(b"null".to_vec()),
    }
}

fn write_raw(message: &mut Message, tx: &SignedTx, pending: bool) {
    let (digits, shared) =
        if pending { tx.body.network_hex() } else { (const_hex::encode(tx.body.mined()), None) };
    let out = message.text();
    out.extend_from_slice(b"\"0x");
    out.extend_from_slice(digits.as_bytes());
    if let Some(shared) = shared {
        message.push_shared(shared);
    }
    message.text().push(b'"');
}

fn call(
    shared: &Shared,
    connection: u64,
    method: &str,
    params: &Params<'_>,
) -> Result<Found, RpcError> {
    let json = |value: &dyn erased::Json| Ok(Found::Json(value.json()));
    match method {
        "eth_getRawTransactionByHash" => {
            let hash: B256 = params.get(0)?;
            let found = shared.lock().core.find(&hash);
            match found {
                Some((tx, at)) => {
                    shared.counters.raw_found.fetch_add(1, Relaxed);
                    Ok(Found::Raw(tx, at.is_none()))
                }
                None => {
                    shared.counters.raw_unknown.fetch_add(1, Relaxed);
                    Ok(Found::Json(match shared.config.unknown_raw {
                        UnknownRaw::Null => b"null".to_vec(),
                        UnknownRaw::EmptyHex => br#""0x""#.to_vec(),
                    }))
                }
            }
        }
        "eth_getTransactionByHash" => {
            let hash: B256 = params.get(0)?;
            let found = shared.lock().core.find(&hash);
            json(&found.map(|(tx, at)| tx.to_object(at)))
        }
        "eth_subscribe" => subscribe(shared, params),
        "eth_unsubscribe" => {
            let id: String = params.get(0)?;
            let mut state = shared.lock();
            let before = state.subscriptions.len();
            state.subscriptions.retain(|sub| sub.connection != connection || sub.id != id);
            json(&(state.subscriptions.len() < before))
        }
        "eth_sendRawTransaction" => {
            let raw: Bytes = params.get(0)?;
            let config = &shared.config;
            let tx = SignedTx::from_raw(&raw, config.chain_id, config.accept_old_sidecars)?;
            let hash = tx.hash;
            shared.submit(Arc::new(tx))?;
            json(&hash)
        }
        "eth_blockNumber" => json(&U64::from(shared.lock().core.chain.head().header.number)),
        "eth_getBlockByHash" => {
            let (hash, full): (B256, bool) = (params.get(0)?, params.get_or(1, false)?);
            let block = shared.lock().core.chain.by_hash(&hash).cloned();
            json(&block.map(|block| block_object(&block, full)))
        }
        "eth_getBlockByNumber" => {
            let (tag, full): (String, bool) = (params.get(0)?, params.get_or(1, false)?);
            let block = block_by_tag(shared, &tag)?;
            json(&block.map(|block| block_object(&block, full)))
        }
        "eth_getBalance" | "eth_getCode" | "eth_getStorageAt" => {
            state_methods::call(shared, method, params)
        }
        "eth_getTransactionCount" if params.names_a_block(1) => {
            state_methods::call(shared, method, params)
        }
        "eth_getTransactionCount" => {
            let (address, tag): (Address, String) =
                (params.get(0)?, params.get_or(1, "latest".to_owned())?);
            let state = shared.lock();
            let mined = state.core.chain.nonce(&address);
            let next = match tag.as_str() {
                "pending" => state.core.pool.next_nonce(&address).unwrap_or(mined),
                _ => mined,
            };
            json(&U64::from(next))
        }
        "eth_chainId" => json(&U64::from(shared.config.chain_id)),
        "net_version" => json(&shared.config.chain_id.to_string()),
        "web3_clientVersion" => json(&shared.config.client_version),
        "eth_syncing" => json(&false),
        "eth_gasPrice" => {
            json(&U64::from(shared.lock().core.chain.next_base_fee_wei() + SUGGESTED_TIP_WEI))
        }
        "eth_maxPriorityFeePerGas" => json(&U64::from(SUGGESTED_TIP_WEI)),
        "eth_blobBaseFee" => json(&U64::from(1)),
        "txpool_status" => {
            let state = shared.lock();
            let pending = state.core.pool.pending_count();
            let queued = state.core.pool.len() - pending;
            let counts = [("pending", pending), ("queued", queued)];
            json(
                &counts
                    .map(|(name, count)| (name, U64::from(count)))
                    .into_iter()
                    .collect::<BTreeMap<_, _>>(),
            )
        }
        "txpool_content" => {
            shared.list();
            let (pending, queued) = pool_content(shared, None);
            Ok(Found::Json(content_json(pending, queued, true)))
        }
        "txpool_contentFrom" => {
            let sender: Address = params.get(0)?;
            let (pending, queued) = pool_content(shared, Some(sender));
            Ok(Found::Json(content_json(pending, queued, false)))
        }
        _ => Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found")),
    }
}

/// What `eth_gasPrice` adds to the base fee, reth's fallback suggestion: 1 gwei.
const SUGGESTED_TIP_WEI: u64 = 1_000_000_000;

fn subscribe(shared: &Shared, params: &Params<'_>) -> Result<Found, RpcError> {
    let kind: String = params.get(0)?;
    let topic = match kind.as_str() {
        "newPendingTransactions" if params.get_or(1, false)? => Topic::Objects,
        "newPendingTransactions" => Topic::Hashes,
        "newHeads" => Topic::Heads,
        other => {
            return Err(RpcError::invalid_params(format!("unknown variant `{other}`")));
        }
    };
    let mut state = shared.lock();
    state.next_subscription += 1;
    // Opaque, as long as reth's.
    let digest =
        keccak256([shared.config.seed, state.next_subscription].map(u64::to_be_bytes).concat());
    Ok(Found::Subscribed(const_hex::encode_prefixed(&digest[..16]), topic))
}

pub(crate) fn block_by_tag(shared: &Shared, tag: &str) -> Result<Option<Arc<FullBlock>>, RpcError> {
    let state = shared.lock();
    let chain = &state.core.chain;
    Ok(match tag {
        "latest" | "safe" | "finalized" | "pending" => Some(chain.head().clone()),
        "earliest" => chain.by_number(0).cloned(),
        number => {
            let digits = number.strip_prefix("0x").unwrap_or_default();
            let number = u64::from_str_radix(digits, 16).map_err(|_| {
                RpcError::invalid_params(format!("invalid block number `{number}`"))
            })?;
            chain.by_number(number).cloned()
        }
    })
}

type Txs = Vec<Arc<SignedTx>>;

fn pool_content(shared: &Shared, sender: Option<Address>) -> (Txs, Txs) {
    let wanted = |tx: &&Arc<SignedTx>| sender.is_none_or(|sender| tx.sender == sender);
    let state = shared.lock();
    let pool = &state.core.pool;
    (
        pool.pending().filter(wanted).cloned().collect(),
        pool.queued().filter(wanted).cloned().collect(),
    )
}

/// `{pending:{sender:{nonce:object}},queued:..}`, or without the senders' level.
fn content_json(pending: Txs, queued: Txs, by_sender: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity((pending.len() + queued.len()) * 700 + 32);
    for (name, mut txs) in [("{\"pending\":{", pending), ("},\"queued\":{", queued)] {
        out.extend_from_slice(name.as_bytes());
        txs.sort_unstable_by_key(|tx| (tx.sender, tx.nonce));
        let mut before = None;
        for tx in txs {
            let begins = before != Some(tx.sender);
            match (before, begins && by_sender) {
                (None, true) => write!(out, "\"{}\":{{", tx.sender).expect("memory takes all"),
                (Some(_), true) => {
                    write!(out, "}},\"{}\":{{", tx.sender).expect("memory takes all")
                }
                (None, false) => {}
                (Some(_), false) => out.push(b','),
            }
            before = Some(tx.sender);
            write!(out, "\"{}\":", tx.nonce).expect("memory takes all");
            serde_json::to_writer(&mut out, &tx.to_object(None)).expect("objects can be written");
        }
        if before.is_some() && by_sender {
            out.push(b'}');
        }
    }
    out.extend_from_slice(b"}}");
    out
}

/// A request's parameters by position.
pub(crate) struct Params<'a>(Vec<&'a RawValue>);

impl<'a> Params<'a> {
    fn read(params: Option<&'a RawValue>) -> Result<Self, RpcError> {
        let Some(params) = params.filter(|params| params.get() != "null") else {
            return Ok(Self(Vec::new()));
        };
        serde_json::from_str(params.get())
            .map(Self)
            .map_err(|error| RpcError::invalid_params(error.to_string()))
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, index: usize) -> Result<T, RpcError> {
        let param = self.0.get(index).ok_or_else(|| RpcError::invalid_params("No more params"))?;
        serde_json::from_str(param.get())
            .map_err(|error| RpcError::invalid_params(error.to_string()))
    }

    /// Whether the parameter names one certain block, not a place at the chain's end.
    fn names_a_block(&self, index: usize) -> bool {
        self.0
            .get(index)
            .is_some_and(|param| matches!(&param.get().as_bytes(), [b'{', ..] | [b'"', b'0', ..]))
    }

    pub(crate) fn get_or<T: DeserializeOwned>(
        &self,
        index: usize,
        default: T,
    ) -> Result<T, RpcError> {
        match self.0.get(index) {
            None => Ok(default),
            Some(param) if param.get() == "null" => Ok(default),
            Some(_) => self.get(index),
        }
    }
}

/// Lets one closure write any answer.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> Vec<u8>;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> Vec<u8> {
            super::to_json(self)
        }
    }
}
