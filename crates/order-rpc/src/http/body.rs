//! Reads a request's body, within bounds of size, time and memory.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use crate::{
    limits::{Caller, Held, Limiter},
    reply::{ErrorResponse, Reason},
};

/// Reads a whole body.
///
/// A slow request stays in flight for long, so the number of slow bodies is limited: one that is
/// not complete after `slow_body_after` needs one of `max_slow_bodies` permits, of which one caller
/// may hold a part. An attacker who holds all of them from several addresses keeps out only other
/// slow callers.
///
/// # Cancel safety
/// The bytes that were read are lost, and their share is released.
pub(crate) async fn read(
    body: Incoming,
    limiter: &Limiter,
    caller: &Caller,
) -> Result<(Bytes, Held), ErrorResponse> {
    let limits = &limiter.limits;
    let mut reading = pin!(collect(body, limiter, caller));
    let (first, rest) =
        (limits.slow_body_after, limits.body_timeout.saturating_sub(limits.slow_body_after));
    if let Ok(read) = timeout(first, reading.as_mut()).await {
        return read;
    }
    let Some(_of_caller) = caller.slow_bodies.take(1) else {
        return Err(limiter.retry_later(Reason::CallerSlowBodies));
    };
    let Ok(_permit) = limiter.slow_bodies.try_acquire() else {
        return Err(limiter.retry_later(Reason::SlowBodies));
    };
    timeout(rest, reading).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {:?}", limits.body_timeout);
        Err(ErrorResponse::http(StatusCode::REQUEST_TIMEOUT, Reason::BodyTimeout, message))
    })
}

async fn collect(
    body: Incoming,
    limiter: &Limiter,
    caller: &Caller,
) -> Result<(Bytes, Held), ErrorResponse> {
    let mut body = pin!(body);
    let mut held = limiter.hold(caller);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body ended early: {error}");
            ErrorResponse::http(StatusCode::BAD_REQUEST, Reason::BodyBroken, message)
        })?;
        let Some(data) = frame.data_ref() else { continue };
        check_length(read.len().saturating_add(data.len()), limiter)?;
        limiter.hold_more(&mut held, data.len())?;
        read.extend_from_slice(data);
    }
    Ok((read.freeze(), held))
}

/// Refuses a body whose announced length is too large, or cannot be paid for or held now, before any of it is read.
pub(crate) fn check(body: &Incoming, limit: &Limiter, by: &Caller) -> Result<(), ErrorResponse> {
    let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    check_length(length, limit)?;
    limit.check_body(by, length)
}

fn check_length(length: usize, limiter: &Limiter) -> Result<(), ErrorResponse> {
    let limit = limiter.limits.config.max_body_bytes;
    if length <= limit {
        return Ok(());
    }
    let message = format!("the body has more than the {limit} bytes of max_body_bytes");
    Err(ErrorResponse::http(StatusCode::PAYLOAD_TOO_LARGE, Reason::BodyTooLarge, message))
}
