//! From a node's response to a delivery, on the thread that read the response.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Deliverer, FetchRequest, Slot};
use crate::{
    audit::Listings, connection::Payload, error::CallError, request::Responses,
    sink::TransactionSink, sync::contain, tasks::Alive,
};

/// Slots are released together, at the latest when this many are waiting: while announcements wait
/// for a slot, each single release wakes the thread of the sockets. A quarter of the default number
/// of slots.
const RELEASED_TOGETHER: usize = 16;

/// Processes the responses of one connection.
pub(crate) struct ResponseReader<S: TransactionSink> {
    deliverer: Arc<Deliverer<S>>,
    /// Slots of finished fetches.
    released: Vec<Slot>,
    release_at: usize,
    listings: Arc<Listings>,
    _alive: Alive,
}

impl<S: TransactionSink> ResponseReader<S> {
    pub(crate) fn new(deliverer: &Arc<Deliverer<S>>, listings: &Arc<Listings>) -> Self {
        let fetch = &deliverer.fetch;
        let slots = fetch.settings.config.fetch_slots;
        Self {
            released: Vec::with_capacity(RELEASED_TOGETHER),
            release_at: RELEASED_TOGETHER.min(slots.div_ceil(4)),
            listings: Arc::clone(listings),
            _alive: fetch.tasks.alive(),
            deliverer: Arc::clone(deliverer),
        }
    }
}

impl<S: TransactionSink> Responses<FetchRequest> for ResponseReader<S> {
    fn on_response(&mut self, request: FetchRequest, sent: Instant, payload: Payload<'_>) {
        let text = match payload {
            Err(error) => return self.deliverer.fetch.failed(request, error),
            Ok(text) => text,
        };
        let is_gone = text.as_deref() == Some("0x");
        let source = request.source;
        let Some(mut task) = self.deliverer.fetch.answered(request, sent, is_gone) else { return };
        let bytes = text.as_ref().map_or(0, |text| text.len());
        self.deliverer.fetch.slots.set_response_bytes(&mut task.slot, bytes);
        let deliverer = &self.deliverer;
        let released = &mut self.released;
        let mut done = None;
        contain(|| {
            let text = text.as_deref();
            done = deliverer.decode_and_deliver(task, source, text, || released.clear());
        });
        self.released.extend(done);
        if self.released.len() >= self.release_at {
            self.released.clear();
        }
    }

    fn on_timeout(&mut self, request: FetchRequest) {
        self.deliverer.fetch.failed(
            request,
            CallError::Timeout(self.deliverer.fetch.settings.limits.fetch_timeout),
        );
    }

    fn on_late(&mut self) {
        self.deliverer.fetch.metrics.late_answers.increment(1);
    }

    fn on_idle(&mut self) {
        self.released.clear();
    }

    fn patience(&self) -> Duration {
        self.listings.patience(&self.deliverer.fetch.settings.limits)
    }
}
