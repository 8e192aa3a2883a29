//! Messages to the streams, and their answers.

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use async_nats::{HeaderMap, Message, StatusCode};
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::timeout;

use super::{Session, TURN};
use crate::{
    ack::answer_of,
    config::Flow,
    follow::Item,
    metrics::RefuseReason,
    outbox::{Answer, Outcome, Trouble},
    publisher::{End, Run},
    state::{DisconnectReason, State},
    subjects::seen,
    wire::Encoded,
};

/// The bytes of the one header: `NATS/1.0`, the name, 64 digits, up to 44 more, and line ends.
const HEADER_BYTES: usize = 144;

impl Session<'_> {
    /// Publishes something for the first time.
    pub(super) async fn publish(&mut self, lane: usize, item: Item) -> Result<(), End> {
        let Some(encoded) = item.encode() else { return Ok(()) };
        let size = encoded.payload.len();
        let counters = &self.run.counters;
        counters.published.add(1);
        counters.bytes.add(size as u64);
        if size + HEADER_BYTES > self.max_payload {
            tracing::warn!(id = %encoded.id, size, limit = self.max_payload, "too large for the server");
            counters.refused[RefuseReason::TooLarge.index()].add(1);
            return Ok(());
        }
        let suffix = item.suffix(&self.run.config.machine);
        let Some(outbox) = self.run.lanes.get_mut(lane) else { return Ok(()) };
        let number = outbox.add(item, encoded.id, size, Instant::now());
        self.send(lane, number, suffix, encoded).await
    }

    pub(super) async fn publish_due(&mut self) -> Result<(), End> {
        if self.run.report.due().is_some_and(|due| due <= Instant::now()) {
            self.flush_report().await;
        }
        for lane in 0..self.run.subjects.lanes() {
            for _ in 0..TURN {
                let Some(outbox) = self.run.lanes.get_mut(lane) else { break };
                let due = outbox.next_due(Instant::now(), rand::random());
                let Some((number, item, id)) = due else { break };
                let suffix = item.suffix(&self.run.config.machine);
                let Some(encoded) = item.encode() else { continue };
                if encoded.payload.len() + HEADER_BYTES > self.max_payload {
                    // Another server of the cluster, with another limit.
                    self.on_answer(lane, number, Answer::Refused(RefuseReason::TooLarge));
                    continue;
                }
                self.run.counters.republished.add(1);
                self.send(lane, number, suffix, Encoded { id, ..encoded }).await?;
            }
        }
        Ok(())
    }

    /// Waits only while the connection's commands are full, and not beyond its loss.
    async fn send(
        &self,
        lane: usize,
        number: u64,
        suffix: Option<String>,
        Encoded { id, payload }: Encoded,
    ) -> Result<(), End> {
        let mut id = alloy_primitives::hex::encode(id);
        // Another message for the stream, and the same for who reads it.
        id.push_str(&suffix.unwrap_or_default());
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        let subject = self.run.subjects.of(lane).clone();
        let reply = format!("{}.{lane}.{number}", self.inbox);
        let client = &self.link.client;
        let sent = client.publish_with_reply_and_headers(subject, reply, headers, payload);
        tokio::select! {
            biased;
            sent = timeout(self.run.config.ack_timeout, sent) => match sent {
                Ok(Ok(())) => Ok(()),
                // Refused by the client itself, or a socket that takes nothing: the message stays in
                // the outbox.
                Ok(Err(_)) | Err(_) => {
                    Err(End::Lost(State::Disconnected { reason: DisconnectReason::Lost }))
                }
            },
            reason = self.link.lost() => Err(End::Lost(State::Disconnected { reason })),
        }
    }

    /// One acknowledgement, and those that are there behind it.
    pub(super) fn on_acks(&mut self, first: Message) {
        self.on_ack(&first);
        for _ in 1..TURN {
            let Some(Some(ack)) = self.acks.next().now_or_never() else { break };
            self.on_ack(&ack);
        }
    }

    fn on_ack(&mut self, ack: &Message) {
        let mut tokens = ack.subject.rsplit('.');
        let number = tokens.next().and_then(|token| token.parse().ok());
        let lane = tokens.next().and_then(|token| token.parse().ok());
        let (Some(number), Some(lane)) = (number, lane) else { return };
        let answer = match ack.status {
            Some(StatusCode::NO_RESPONDERS) => Answer::Later(Trouble::Unavailable),
            _ => {
                let (answer, stored) = answer_of(&ack.payload);
                if let Some((stream, sequence)) = stored {
                    self.note_acknowledged(&stream, sequence, answer == Answer::Stored);
                }
                answer
            }
        };
        if answer == Answer::InProcess {
            self.run.counters.in_process.add(1);
        }
        self.on_answer(lane, number, answer);
    }

    fn on_answer(&mut self, lane: usize, number: u64, answer: Answer) {
        let Some(outbox) = self.run.lanes.get_mut(lane) else { return };
        let left = outbox.answer(number, answer, Instant::now(), rand::random());
        if let Some((item, outcome)) = left {
            self.settle(&item, outcome);
        }
    }

    fn note_acknowledged(&mut self, stream: &str, sequence: u64, is_new: bool) {
        let shard =
            stream.rsplit('_').next().and_then(|token| token.parse().ok()).unwrap_or(0_usize);
        if self.run.acknowledged(shard, sequence, is_new) {
            self.compare();
        }
    }

    pub(super) fn on_denied(&mut self, subject: &str) {
        let lane = self.run.subjects.lane_with(subject);
        if let Some(outbox) = lane.and_then(|lane| self.run.lanes.get_mut(lane)) {
            outbox.denied(Instant::now(), rand::random());
        }
    }

    fn settle(&mut self, item: &Item, outcome: Outcome) {
        let counters = &self.run.counters;
        match outcome {
            Outcome::Stored => counters.stored.add(1),
            Outcome::Duplicate { by_another } => {
                counters.duplicate.add(1);
                if by_another {
                    // Relaxed: a count alone.
                    counters.not_first.fetch_add(1, Relaxed);
                    self.note_seen(item);
                }
            }
            Outcome::Refused(reason) => counters.refused[reason.index()].add(1),
        }
    }

    /// Another machine was first: sources are told when this one saw it.
    fn note_seen(&mut self, item: &Item) {
        let Run { config, report, .. } = &mut *self.run;
        if config.reports
            && config.flow == Flow::Public
            && let Item::Order { order, .. } = item
            && let Some(tx) = order.as_tx()
        {
            report.add(*tx.hash(), tx.first_seen(), Instant::now());
        }
    }

    pub(super) async fn flush_report(&mut self) {
        let Some(report) = self.run.report.take() else { return };
        let subject = seen(self.run.config.chain_id, &self.run.config.machine);
        let sent = self.link.client.publish(subject, report);
        // A report that is lost changes only who is said to have been how much later.
        let _ = timeout(Duration::from_millis(100), sent).await;
    }
}
