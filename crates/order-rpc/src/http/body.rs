//! Reads the body of a request within bounds of size, time and memory.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{pin::pin, sync::Arc, time::Instant};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::time::timeout;

use crate::{
    limits::{Caller, HeldBytes, Limiter, Progress},
    reply::{ErrorResponse, Reason},
};

/// Reads a whole body.
///
/// A body that is not complete after `slow_body_after` needs one of the places for slow bodies, and
/// loses it to another body that arrives faster: see `SlowBodies`.
///
/// # Cancel safety
/// The bytes that were read are lost, and their share is released.
pub(crate) async fn read(
    body: Incoming,
    limiter: &Limiter,
    caller: &Caller,
) -> Result<(Bytes, HeldBytes), ErrorResponse> {
    let limits = &limiter.limits;
    let progress = Arc::new(Progress::new(Instant::now()));
    let mut reading = pin!(collect(body, limiter, caller, &progress));
    if let Ok(read) = timeout(limits.slow_body_after, reading.as_mut()).await {
        return read;
    }
    let is_trusted = limiter.callers.is_trusted(caller);
    let entered = limiter.slow_bodies.enter(caller.id, is_trusted, &progress, Instant::now());
    let mut place = entered.map_err(|reason| limiter.retry_later(reason))?;
    let time_left = limits.body_timeout.saturating_sub(limits.slow_body_after);
    tokio::select! {
        // A body that is complete is not evicted.
        biased;
        read = timeout(time_left, reading) => read.unwrap_or_else(|_| {
            let message = format!("the body did not arrive within {:?}", limits.body_timeout);
            Err(ErrorResponse::http(StatusCode::REQUEST_TIMEOUT, Reason::BodyTimeout, message))
        }),
        reason = place.evicted() => Err(limiter.retry_later(reason)),
    }
}

async fn collect(
    body: Incoming,
    limiter: &Limiter,
    caller: &Caller,
    progress: &Progress,
) -> Result<(Bytes, HeldBytes), ErrorResponse> {
    let mut body = pin!(body);
    let mut held = limiter.hold_body(caller);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body ended early: {error}");
            ErrorResponse::http(StatusCode::BAD_REQUEST, Reason::BodyBroken, message)
        })?;
        let Some(data) = frame.data_ref() else { continue };
        check_length(read.len().saturating_add(data.len()), limiter)?;
        limiter.hold_more(&mut held, data.len())?;
        progress.add(data.len());
        read.extend_from_slice(data);
    }
    Ok((read.freeze(), held))
}

/// Refuses a body whose announced length is too large, or cannot be paid for or held now, before
/// any of it is read.
pub(crate) fn check_announced(
    body: &Incoming,
    limiter: &Limiter,
    caller: &Caller,
) -> Result<(), ErrorResponse> {
    let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    check_length(length, limiter)?;
    limiter.check_body(caller, length)
}

fn check_length(length: usize, limiter: &Limiter) -> Result<(), ErrorResponse> {
    let limit = limiter.limits.config.max_body_bytes;
    if length <= limit {
        return Ok(());
    }
    let message = format!("the body has more than the {limit} bytes of max_body_bytes");
    Err(ErrorResponse::http(StatusCode::PAYLOAD_TOO_LARGE, Reason::BodyTooLarge, message))
}
