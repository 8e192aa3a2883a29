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
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    capacity::Busy,
    faults::BadAnswer,
    shared::{Shared, Topic},
};
use error::RpcError;
use methods::call;
use params::Params;
pub(crate) use server::{listen, run as serve};
use spoil::{OVERTAKEN_BY, SINGLE_BYTES, spoil};

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
    message: Vec<u8>,
    /// So many bytes of the message are one write each.
    singles: usize,
    /// Subscriptions that begin once the answer is queued, so that no notification can overtake it.
    begin: Vec<(String, Topic)>,
    /// Raw transactions among what is answered.
    raws: u64,
    /// Held back for so long.
    delay: Duration,
}

/// Whether a request takes long, and is answered beside the connection's other ones: a batch, a list of the pool, a block.
fn is_heavy(frame: &[u8]) -> bool {
    let begin = &frame[..frame.len().min(128)];
    let names = |method: &[u8]| begin.windows(method.len()).any(|text| text == method);
    begin.trim_ascii().starts_with(b"[") || names(b"txpool_content") || names(b"eth_getBlockBy")
}

/// Answers one object or batch; `None` when no answer is due.
fn handle(shared: &Shared, frame: &[u8]) -> Option<Reply> {
    let frame = frame.trim_ascii();
    if frame.first() != Some(&b'[') {
        return match serde_json::from_slice::<Request<'_>>(frame) {
            Ok(request) => answer(shared, &request),
            Err(error) => Some(malformed(frame, &error)),
        };
    }
    let Ok(calls) = serde_json::from_slice::<Vec<&RawValue>>(frame) else {
        return Some(error_reply(RpcError::PARSE, "Parse error"));
    };
    if calls.is_empty() {
        return Some(error_reply(RpcError::INVALID_REQUEST, "Invalid request"));
    }
    let mut all = Reply::default();
    for call in calls {
        let one = match serde_json::from_str::<Request<'_>>(call.get()) {
            Ok(request) => answer(shared, &request),
            Err(error) => Some(malformed(call.get().as_bytes(), &error)),
        };
        let Some(mut one) = one else { continue };
        all.message.push(if all.message.is_empty() { b'[' } else { b',' });
        all.message.append(&mut one.message);
        all.begin.append(&mut one.begin);
        all.raws += one.raws;
        all.delay = all.delay.max(one.delay);
    }
    all.message.push(b']');
    (all.message.len() > 1).then_some(all)
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
    write_error(&mut reply.message, "null", &RpcError::new(code, text));
    reply
}

fn write_error(out: &mut Vec<u8>, id: &str, error: &RpcError) {
    let mut object = serde_json::json!({ "code": error.code, "message": error.message });
    if let Some(data) = &error.data {
        object["data"] = data.clone();
    }
    write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{object}}}"#).expect("memory takes all");
}

fn write_result(out: &mut Vec<u8>, id: &str, result: &[u8]) {
    for part in [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#, result, b"}"] {
        out.extend_from_slice(part);
    }
}

/// What a method found.
enum Found {
    Json(Vec<u8>),
    /// A raw transaction, and its hash.
    Raw(Bytes, B256),
    Subscribed(String, Topic),
}

fn answer(shared: &Shared, request: &Request<'_>) -> Option<Reply> {
    shared.counters.method(&request.method);
    let is_raw = request.method == "eth_getRawTransactionByHash";
    if is_raw {
        shared.counters.raw_begins();
    }
    let bad = if is_raw { shared.switches.next_answer() } else { None };
    let params = Params::read(request.params);
    let mut found = params.and_then(|params| call(shared, &request.method, &params));
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
        Some(BadAnswer::ByteByByte) => reply.singles = SINGLE_BYTES,
        Some(BadAnswer::WrongTransaction) => found = Ok(another(shared, found)),
        _ => {}
    }
    // A request without an id wants no answer, only its effect.
    let Some(id) = request.id.map(RawValue::get) else {
        shared.counters.raw_ends(reply.raws);
        return None;
    };
    match found {
        Err(error) => write_error(&mut reply.message, id, &error),
        Ok(Found::Json(json)) => write_result(&mut reply.message, id, &json),
        Ok(Found::Raw(raw, _)) => {
            // Six blobs are 1.6 MB of digits: each is written once.
            let mut quoted = vec![b'"'; 2 * raw.len() + 4];
            quoted[1..3].copy_from_slice(b"0x");
            let end = quoted.len() - 1;
            const_hex::encode_to_slice(raw, &mut quoted[3..end]).expect("two digits for each byte");
            write_result(&mut reply.message, id, &quoted);
        }
        Ok(Found::Subscribed(subscription, topic)) => {
            write_result(&mut reply.message, id, format!("\"{subscription}\"").as_bytes());
            reply.begin.push((subscription, topic));
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
        Ok(Found::Raw(_, hash)) => Some(hash),
        _ => None,
    };
    let state = shared.lock();
    match state.core.pool.pending().find(|tx| Some(tx.hash) != right) {
        Some(tx) => Found::Raw(tx.network(), tx.hash),
        None => Found::Json(b"null".to_vec()),
    }
}
