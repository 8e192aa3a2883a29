//! From the bytes of a request to the bytes of its answer.

mod error;
mod methods;
mod params;
mod server;
mod spoil;
mod state_methods;

use std::{
    borrow::Cow,
    io::Write as _,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    capacity::Busy,
    faults::BadAnswer,
    outbox::Message,
    shared::{Shared, Topic},
    tx::SignedTx,
};
use error::RpcError;
use methods::call;
use params::Params;
pub(crate) use server::{listen, run as serve};
use spoil::{OVERTAKEN_BY, spoil};

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

/// An answer without its line end, and what follows from having given it.
#[derive(Debug, Default)]
struct Reply {
    message: Message,
    /// Subscriptions that begin once the answer is queued, so that no notification can overtake it.
    begin: Vec<(String, Topic)>,
    /// Raw transactions among what is answered.
    raws: u64,
    /// Held back for so long.
    delay: Duration,
}

/// How a request is to be treated.
#[derive(Debug)]
enum Handled {
    /// Answered; `None` when no answer is due.
    Now(Option<Reply>),
    /// Not answered yet: it takes long and belongs on another thread, with `may_block`.
    Heavy,
}

/// Answers one object or batch.
fn handle(shared: &Shared, connection: u64, frame: &[u8], may_block: bool) -> Handled {
    let frame = frame.trim_ascii();
    if frame.first() != Some(&b'[') {
        return match serde_json::from_slice::<Request<'_>>(frame) {
            Ok(request) if !may_block && is_heavy(shared, &request) => Handled::Heavy,
            Ok(request) => Handled::Now(answer(shared, connection, &request)),
            Err(error) => Handled::Now(Some(malformed(frame, &error))),
        };
    }
    let Ok(calls) = serde_json::from_slice::<Vec<&RawValue>>(frame) else {
        return Handled::Now(Some(error_reply(RpcError::PARSE, "Parse error")));
    };
    if calls.is_empty() {
        return Handled::Now(Some(error_reply(RpcError::INVALID_REQUEST, "Invalid request")));
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
            Err(error) => Some(malformed(call.get().as_bytes(), &error)),
        };
        let Some(mut one) = one else { continue };
        let separator = if all.message.len() == 0 { b'[' } else { b',' };
        all.message.text().push(separator);
        all.message.append(one.message);
        all.begin.append(&mut one.begin);
        all.raws += one.raws;
        all.delay = all.delay.max(one.delay);
    }
    if all.message.len() == 0 {
        return Handled::Now(None);
    }
    all.message.text().push(b']');
    Handled::Now(Some(all))
}

fn is_heavy(shared: &Shared, request: &Request<'_>) -> bool {
    // A request for the state of a block that is being executed waits for that.
    let waits = || shared.executor.as_ref().is_some_and(|executor| executor.is_behind());
    (state_methods::METHODS.contains(&&*request.method) && waits())
        || matches!(
            &*request.method,
            "txpool_content" | "eth_getBlockByHash" | "eth_getBlockByNumber"
        )
}

fn malformed(frame: &[u8], error: &serde_json::Error) -> Reply {
    if error.is_data() && serde_json::from_slice::<serde::de::IgnoredAny>(frame).is_ok() {
        error_reply(RpcError::INVALID_REQUEST, "Invalid request")
    } else {
        error_reply(RpcError::PARSE, "Parse error")
    }
}

fn error_reply(code: i32, text: &'static str) -> Reply {
    let mut reply = Reply::default();
    write_error(reply.message.text(), "null", &RpcError::new(code, text));
    reply
}

fn write_error(out: &mut Vec<u8>, id: &str, error: &RpcError) {
    let mut object = serde_json::json!({ "code": error.code, "message": error.message });
    if let Some(data) = &error.data {
        object["data"] = data.clone();
    }
    write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#).expect("memory takes all");
}

/// What a method found.
enum Found {
    Json(Vec<u8>),
    Raw(Arc<SignedTx>, bool),
    Subscribed(String, Topic),
}

fn answer(shared: &Shared, connection: u64, request: &Request<'_>) -> Option<Reply> {
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
        reply.delay = shared.config.latency;
        match shared.line.as_ref().map(|line| line.request(Instant::now())) {
            None => {}
            Some(Ok(turn)) => reply.delay += turn,
            Some(Err(Busy)) => {
                shared.counters.raw_busy.fetch_add(1, Relaxed);
                found = Err(RpcError::new(RpcError::LIMIT_EXCEEDED, "server is busy"));
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
    Some(reply)
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
