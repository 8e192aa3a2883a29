//! From the bytes of a request to the bytes of its answer.

mod methods;
mod request;
mod server;

use std::{
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use rand::Rng as _;
use serde_json::value::RawValue;

use crate::{
    faults::{BadAnswer, LARGE_ANSWER_BYTES},
    quirks::{MethodQuirk, Topic},
    shared::Shared,
    tx::to_json,
};
use methods::{Found, call, raw_json};
use request::{Params, Request, RpcError};
use server::TOO_MANY;
pub(crate) use server::{listen, run as serve};

/// The longest delay of an answer with [`BadAnswer::OutOfOrder`].
const MAX_LATENESS: Duration = Duration::from_millis(20);

/// How many bytes of an answer with [`BadAnswer::ByteByByte`] are written one by one.
const SINGLE_BYTES: usize = 4096;

/// An answer without its line end, and how it must be sent.
#[derive(Debug, Default)]
struct Reply {
    message: Vec<u8>,
    /// How many bytes of the message are written one by one.
    singles: usize,
    /// Subscriptions that begin after the answer is queued, so that no notification precedes it.
    subscriptions: Vec<(String, Topic)>,
    /// How long the answer is delayed.
    delay: Duration,
    /// These quirks are applied by the connection.
    is_html_if_first: bool,
    is_sent_twice: bool,
    closes: bool,
}

/// Whether a request takes long, so that it must not delay other requests of its connection: a
/// batch, a list of the pool, or a block.
fn is_heavy(frame: &[u8]) -> bool {
    let begin = &frame[..frame.len().min(128)];
    let names = |method: &[u8]| begin.windows(method.len()).any(|text| text == method);
    begin.trim_ascii().starts_with(b"[") || names(b"txpool_content") || names(b"eth_getBlockBy")
}

/// Answers one request or batch; `None` if there is no answer.
fn handle(shared: &Shared, frame: &[u8]) -> Option<Reply> {
    let frame = frame.trim_ascii();
    if frame.first() != Some(&b'[') {
        return answer(shared, frame);
    }
    let Ok(calls) = serde_json::from_slice::<Vec<&RawValue>>(frame) else {
        return Some(error_reply(&RpcError::PARSE));
    };
    if calls.is_empty() {
        return Some(error_reply(&RpcError::INVALID_REQUEST));
    }
    let mut all = Reply::default();
    for mut one in calls.iter().filter_map(|call| answer(shared, call.get().as_bytes())) {
        all.message.push(if all.message.is_empty() { b'[' } else { b',' });
        all.message.append(&mut one.message);
        all.subscriptions.append(&mut one.subscriptions);
        all.delay = all.delay.max(one.delay);
        all.is_html_if_first |= one.is_html_if_first;
        all.is_sent_twice |= one.is_sent_twice;
        all.closes |= one.closes;
    }
    all.message.push(b']');
    (all.message.len() > 1).then_some(all)
}

fn error_reply(error: &RpcError) -> Reply {
    let mut reply = Reply::default();
    write(&mut reply.message, "null", "error", &to_json(error));
    reply
}

fn write(out: &mut Vec<u8>, id: &str, member: &str, json: &[u8]) {
    write!(out, r#"{{"jsonrpc":"2.0","id":{id},"{member}":"#).expect("memory takes all");
    out.extend_from_slice(json);
    out.push(b'}');
}

fn answer(shared: &Shared, frame: &[u8]) -> Option<Reply> {
    let request: Request<'_> = match serde_json::from_slice(frame) {
        Ok(request) => request,
        Err(error) if error.is_data() => return Some(error_reply(&RpcError::INVALID_REQUEST)),
        Err(_) => return Some(error_reply(&RpcError::PARSE)),
    };
    let method = request.method.as_ref();
    let mut reply = Reply::default();
    let (mut bad, mut refused) = (None, None);
    let quirks = {
        let mut state = shared.lock();
        *state.stats.methods.entry(method.to_owned()).or_default() += 1;
        let quirks = Arc::clone(&state.quirks);
        match quirks.methods.get(method) {
            _ if quirks.is_mute => return None,
            Some(MethodQuirk::NoAnswer) => return None,
            Some(MethodQuirk::Error(code)) => refused = Some(RpcError::new(*code, "refused")),
            None => {}
        }
        if method == "eth_getRawTransactionByHash" {
            reply.delay = shared.config.latency;
            match state.line.as_mut().map(|line| line.request(Instant::now())) {
                Some(None) => {
                    state.stats.raw_busy += 1;
                    refused = Some(RpcError::new(RpcError::LIMIT_EXCEEDED, "server is busy"));
                }
                turn => {
                    reply.delay += turn.flatten().unwrap_or_default();
                    bad = state.armed.next_answer();
                    state.stats.bad_answers += u64::from(bad.is_some());
                }
            }
        }
        if bad == Some(BadAnswer::OutOfOrder) {
            reply.delay += MAX_LATENESS.mul_f64(state.rng.random());
        }
        quirks
    };
    reply.delay += shared.delay(&quirks);
    reply.is_html_if_first = quirks.html_first;
    (reply.is_sent_twice, reply.closes) = (quirks.answers_twice, quirks.closes_after_answer);
    let params = Params::read(request.params);
    let found = params.and_then(|params| match (bad, refused) {
        (Some(BadAnswer::WrongTransaction), _) => another(shared, &params),
        (_, Some(refused)) => Err(refused),
        _ => call(shared, method, &params),
    });
    // A request without an id has an effect, but gets no answer.
    let id = &quirks.ids.answer_to(request.id?.get());
    let (member, json) = match found {
        Err(error) if quirks.text_errors => ("error", to_json(&error.message())),
        Err(error) => ("error", to_json(&error)),
        Ok(Found::Json(json)) => ("result", json),
        Ok(Found::Subscribed(subscription, topic)) => {
            let json = to_json(&subscription);
            reply.subscriptions.push((subscription, topic));
            ("result", json)
        }
    };
    write(&mut reply.message, id, member, &json);
    match bad {
        None => {}
        Some(BadAnswer::Never) => return None,
        Some(bad) => spoil(&mut reply, bad, id),
    }
    Some(reply)
}

/// Makes a correct answer wrong.
fn spoil(reply: &mut Reply, bad: BadAnswer, id: &str) {
    let correct = std::mem::take(&mut reply.message);
    let out = &mut reply.message;
    match bad {
        // These are late, missing, or already contain the wrong transaction.
        BadAnswer::OutOfOrder | BadAnswer::WrongTransaction | BadAnswer::Never => *out = correct,
        BadAnswer::ByteByByte => (reply.message, reply.singles) = (correct, SINGLE_BYTES),
        BadAnswer::Truncated => out.extend_from_slice(&correct[..correct.len() / 2]),
        BadAnswer::Null => write(out, id, "result", b"null"),
        BadAnswer::Error => {
            write(out, id, "error", &to_json(&RpcError::new(-32603, "Internal error")));
        }
        BadAnswer::Busy => {
            let busy = "transaction indexing is in progress";
            write(out, id, "error", &to_json(&RpcError::new(RpcError::SERVER, busy)));
        }
        BadAnswer::Garbage => out.extend_from_slice(b"<html>502 Bad Gateway</html>"),
        BadAnswer::PlainText => out.extend_from_slice(TOO_MANY),
        BadAnswer::Large => {
            write(out, id, "result", &to_json(&format!("0x{}", "0".repeat(LARGE_ANSWER_BYTES))));
        }
    }
}

/// Returns a pending transaction other than the requested one.
fn another(shared: &Shared, params: &Params<'_>) -> Result<Found, RpcError> {
    let requested: B256 = params.get(0)?;
    let state = shared.lock();
    let other = state.core.pool.pending().find(|tx| tx.hash != requested);
    Ok(Found::Json(other.map_or(b"null".to_vec(), |tx| raw_json(&tx.network()))))
}
