//! Reads a request's body, within bounds of size, time and memory.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures::future::Either;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use crate::{
    context::RpcContext,
    limits::budget::Share,
    limits::callers::Peer,
    reply::{ErrorResponse, INVALID_REQUEST, Reason},
};

/// Bodies up to this size may use all of the buffered bytes. Longer ones leave an eighth of them
/// free, so that long bodies never keep out a cancellation or a bundle of plain transactions.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1_024;
/// The reciprocal of the part of the buffered bytes that is reserved for small bodies.
const SMALL_BODY_PART: usize = 8;

/// The bytes of a request in memory: of its body, and then of its response until that is sent.
#[derive(Debug)]
pub(crate) struct Held {
    all: Share,
    of_peer: Share,
    kept_for_small: usize,
}

impl Held {
    pub(crate) fn new(context: &RpcContext, peer: &Peer) -> Self {
        let limit = context.buffered.limit();
        // A body of the maximum length always fits.
        let spare = limit.saturating_sub(context.config.max_body_bytes);
        let kept_for_small = spare.min(limit / SMALL_BODY_PART);
        Self { all: context.buffered.empty(), of_peer: peer.bytes.empty(), kept_for_small }
    }

    /// Adds bytes to it.
    ///
    /// # Errors
    /// The bytes of all requests, or of the peer's, would exceed their limit. The share must then
    /// be dropped.
    pub(crate) fn add(&mut self, more: usize, context: &RpcContext) -> Result<(), ErrorResponse> {
        let is_small = self.all.count().saturating_add(more) <= SMALL_BODY_BYTES;
        let keep_free = if is_small { 0 } else { self.kept_for_small };
        if !self.of_peer.try_add(more, 0) {
            let message = "too many bytes from this address are being read or sent";
            return Err(context.retry_later(Reason::PeerBufferedBytes, message));
        }
        if !self.all.try_add(more, keep_free) {
            return Err(
                context.retry_later(Reason::BufferedBytes, "too many bytes are being read or sent")
            );
        }
        Ok(())
    }

    /// Replaces the share of the request's body, which is dropped, by that of its response.
    pub(crate) fn response(&mut self, bytes: usize) {
        self.all.resize(bytes);
        self.of_peer.resize(bytes);
    }
}

/// Reads a whole body.
///
/// A slow request stays in flight for long, so the number of slow bodies is limited: one that is
/// not complete after `slow_body_after` needs one of `max_slow_bodies` permits, of which one peer
/// may hold a part. An attacker who holds all of them from several addresses keeps out only other
/// slow callers.
///
/// # Cancel safety
/// The bytes that were read are lost, and their share is released.
pub(crate) async fn read<B>(
    body: B,
    context: &RpcContext,
    peer: &Peer,
) -> Result<(Bytes, Held), ErrorResponse>
where
    B: Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    let config = &context.config;
    let mut reading = pin!(collect(body, context, peer));
    let (first, rest) =
        (config.slow_body_after, config.body_timeout.saturating_sub(config.slow_body_after));
    let quick = match timeout(first, reading.as_mut()).await {
        Ok(read) => Either::Left(read),
        Err(_) => Either::Right(()),
    };
    if let Either::Left(read) = quick {
        return read;
    }
    let Some(_of_peer) = peer.slow_bodies.take(1) else {
        let message = "too many requests from this address arrive slowly";
        return Err(context.retry_later(Reason::PeerSlowBodies, message));
    };
    let Ok(_permit) = context.slow_bodies.try_acquire() else {
        return Err(context.retry_later(Reason::SlowBodies, "too many requests arrive slowly"));
    };
    timeout(rest, reading).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {:?}", config.body_timeout);
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(ErrorResponse::request(status, INVALID_REQUEST, Reason::BodyTimeout, message))
    })
}

async fn collect<B>(
    body: B,
    context: &RpcContext,
    peer: &Peer,
) -> Result<(Bytes, Held), ErrorResponse>
where
    B: Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    let limit = context.config.max_body_bytes;
    let too_large = || {
        let message = format!("the body has more than the {limit} bytes of max_body_bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        ErrorResponse::request(status, INVALID_REQUEST, Reason::BodyTooLarge, message)
    };
    let mut body = pin!(body);
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut held = Held::new(context, peer);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body ended early: {error}");
            ErrorResponse::request(
                StatusCode::BAD_REQUEST,
                INVALID_REQUEST,
                Reason::BodyBroken,
                message,
            )
        })?;
        let Some(data) = frame.data_ref() else { continue };
        if read.len().saturating_add(data.len()) > limit {
            return Err(too_large());
        }
        held.add(data.len(), context)?;
        read.extend_from_slice(data);
    }
    Ok((read.freeze(), held))
}
