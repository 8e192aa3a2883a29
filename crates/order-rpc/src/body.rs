//! Reading a request, within bounds of size, time and memory.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::{Bytes, BytesMut};
use futures::future::Either;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use crate::{
    context::RpcContext,
    reply::{ErrorResponse, INVALID_REQUEST, Reason},
};

/// Bytes of bodies in memory, of all requests together.
#[derive(Debug)]
pub(crate) struct Buffered {
    bytes: AtomicUsize,
    limit: usize,
}

impl Buffered {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), limit }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

/// A request's share of them, released when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Buffered>,
    bytes: usize,
}

impl Share {
    pub(crate) fn new(of: &Arc<Buffered>) -> Self {
        Self { of: Arc::clone(of), bytes: 0 }
    }

    pub(crate) fn try_add(&mut self, more: usize) -> bool {
        let limit = self.of.limit;
        let raise = |bytes: usize| bytes.checked_add(more).filter(|raised| *raised <= limit);
        // Relaxed: a count that guards only itself.
        let added = self.of.bytes.fetch_update(Relaxed, Relaxed, raise).is_ok();
        if added {
            self.bytes += more;
        }
        added
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Reads a whole body.
///
/// A slow request stays in flight for long, so the number of slow bodies is limited: one that is not
/// complete after `slow_body_after` needs one of `max_slow_bodies` permits. An attacker who holds all
/// of these keeps out other slow callers, and no others.
///
/// # Cancel safety
/// What was read is lost, and its share is released.
pub(crate) async fn read<B>(body: B, context: &RpcContext) -> Result<(Bytes, Share), ErrorResponse>
where
    B: Body<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    let config = &context.config;
    let mut reading = pin!(collect(body, context));
    let (first, rest) =
        (config.slow_body_after, config.body_timeout.saturating_sub(config.slow_body_after));
    let quick = match timeout(first, reading.as_mut()).await {
        Ok(read) => Either::Left(read),
        Err(_) => Either::Right(()),
    };
    if let Either::Left(read) = quick {
        return read;
    }
    let Ok(_permit) = context.slow_bodies.try_acquire() else {
        return Err(context.retry_later(Reason::SlowBodies, "too many requests come in slowly"));
    };
    timeout(rest, reading).await.unwrap_or_else(|_| {
        let message = format!("the body did not come within {:?}", config.body_timeout);
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(ErrorResponse::request(status, INVALID_REQUEST, Reason::BodyTimeout, message))
    })
}

async fn collect<B>(body: B, context: &RpcContext) -> Result<(Bytes, Share), ErrorResponse>
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
    let mut share = Share::new(&context.buffered);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = format!("the body broke off: {error}");
            ErrorResponse::request(
                StatusCode::BAD_REQUEST,
                INVALID_REQUEST,
                Reason::BodyBroken,
                message,
            )
        })?;
        let Some(data) = frame.data_ref() else { continue };
        if read.len() + data.len() > limit {
            return Err(too_large());
        }
        if !share.try_add(data.len()) {
            return Err(context.retry_later(Reason::BufferedBytes, "too much is being read"));
        }
        read.extend_from_slice(data);
    }
    Ok((read.freeze(), share))
}
