//! Replaces `connection.rs` in a build without a transport: no connection can be opened.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{End, LastMessage, Meter, Notification};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError, LossReason},
    limits::Limits,
};

/// A connection, which cannot exist in this build.
pub(crate) struct Connection {
    pub(crate) ended: Arc<End>,
    never: Infallible,
}

pub(crate) struct RawTransactionCall(Infallible);

pub(crate) struct Notifications(Infallible);

impl Connection {
    pub(crate) async fn open(endpoint: &Endpoint, limits: &Limits) -> Result<Self, ConnectError> {
        Self::open_with(endpoint, limits.max_frame_bytes, limits.ping_timeout).await
    }

    pub(crate) async fn open_with(
        endpoint: &Endpoint,
        _max_message_bytes: usize,
        _limit: Duration,
    ) -> Result<Self, ConnectError> {
        let reason = "this build has no transport: see the features `ipc` and `ws`";
        Err(ConnectError::io(endpoint, io::Error::new(io::ErrorKind::Unsupported, reason)))
    }

    pub(crate) fn end(&self, _reason: LossReason) {
        match self.never {}
    }

    pub(crate) fn last_message(&self) -> &Arc<LastMessage> {
        match self.never {}
    }

    pub(crate) fn last_message_at(&self) -> Instant {
        match self.never {}
    }

    pub(crate) fn in_flight(&self) -> usize {
        match self.never {}
    }

    pub(crate) async fn call(
        &self,
        _method: &'static str,
        _params: impl Serialize,
        _limit: Duration,
    ) -> Result<Box<RawValue>, CallError> {
        match self.never {}
    }

    pub(crate) fn raw_transaction(self: &Arc<Self>, _hash: B256) -> RawTransactionCall {
        match self.never {}
    }

    pub(crate) async fn subscribe(
        &self,
        _params: impl Serialize,
        _buffer: usize,
        _limit: Duration,
    ) -> Result<Notifications, CallError> {
        match self.never {}
    }
}

impl Future for RawTransactionCall {
    type Output = Result<Option<Bytes>, CallError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0 {}
    }
}

impl Notifications {
    pub(crate) fn meter(&self) -> Arc<Meter> {
        match self.0 {}
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self.0 {}
    }

    pub(crate) async fn next(&mut self) -> Option<Notification> {
        match self.0 {}
    }
}
