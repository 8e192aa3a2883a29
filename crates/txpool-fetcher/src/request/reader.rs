//! The thread of a request connection: reads its responses, times its requests out and pings it.
//!
//! A request times out, and a connection is given up, only by what was read: up to a time before which everything
//! that had arrived was processed. So neither a sink that blocks nor a busy thread of ours makes a node look late.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "times of our own clock, and counts of what was read"
)]

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::client::{PING_ID, RequestConnection};
use crate::{
    connection::{Ends as _, Frames, Payload, Response},
    error::LossReason,
    limits::Limits,
    sync::OnDrop,
    tasks::Tasks,
};

/// Processes what becomes of the requests of one connection, on the thread of that connection.
pub(crate) trait Responses<T>: Send + 'static {
    /// Processes the response to a request that was sent at `sent`. May block; meanwhile the
    /// time-outs of the connection's other requests are suspended. A panic ends the connection.
    fn on_response(&mut self, request: T, sent: Instant, payload: Payload<'_>);

    /// A request was not answered in time.
    fn on_timeout(&mut self, request: T);

    /// A response came after its request had timed out, or matches none.
    fn on_late(&mut self) {}

    /// Every response that was read has been processed; the thread is about to wait.
    fn on_idle(&mut self) {}

    /// How much longer than its limit the node may be silent, because it lists its pool.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

pub(super) struct Reader<T: Send + 'static, R> {
    connection: Arc<RequestConnection<T>>,
    responses: R,
    limits: Limits,
    last_frame: Instant,
    pinged: Option<Instant>,
    /// How often time-outs are looked at, and when next.
    grain: Duration,
    look_at: Instant,
}

impl<T: Send + 'static, R: Responses<T>> Reader<T, R> {
    /// Starts the thread. It ends with the connection, and drops `responses` with everything that it
    /// holds.
    pub(super) fn spawn(
        connection: &Arc<RequestConnection<T>>,
        responses: R,
        limits: &Limits,
        tasks: &Tasks,
    ) -> io::Result<()> {
        let now = Instant::now();
        let grain = limits.fetch_timeout / 16;
        let mut reader = Self {
            connection: Arc::clone(connection),
            responses,
            limits: limits.clone(),
            last_frame: now,
            pinged: None,
            grain: grain.clamp(Duration::from_millis(1), Duration::from_millis(100)),
            look_at: now,
        };
        tasks.spawn_thread("mempool-request", move || {
            let connection = Arc::clone(&reader.connection);
            // Also after a panic: the requests in flight must learn of the end.
            let _ends = OnDrop(|| connection.end(LossReason::Closed));
            let mut frames = Frames::new(reader.limits.max_frame_bytes);
            let mut queue = Queue { at: Instant::now(), unread: 0 };
            loop {
                if let Err(reason) = reader.read_once(&mut frames, &mut queue) {
                    return connection.end(reason);
                }
            }
        })
    }

    fn read_once(&mut self, frames: &mut Frames, queue: &mut Queue) -> Result<(), LossReason> {
        let socket = &self.connection.socket;
        let waits = Instant::now();
        if !socket.wait_readable(self.grain)? {
            self.read_until(waits);
            return Ok(());
        }
        let read_at = Instant::now();
        let spare = frames.spare();
        let room = spare.len();
        let count = socket.read(spare)?;
        frames.filled(count);
        while let Some(value) = frames.next()? {
            self.take(value, read_at)?;
        }
        self.responses.on_idle();
        // A read that does not fill the buffer has emptied the socket. A node that fills each read never lets
        // it run empty; its requests must time out all the same.
        if count < room {
            queue.unread = 0;
            self.read_until(read_at);
        } else if queue.unread > count as u64 {
            queue.unread -= count as u64;
        } else {
            self.read_until(queue.at);
            *queue = Queue { at: Instant::now(), unread: self.connection.socket.unread() };
        }
        Ok(())
    }

    fn take(&mut self, value: &[u8], read_at: Instant) -> Result<(), LossReason> {
        self.last_frame = read_at;
        match Response::read(value)? {
            Some(Response { id, payload }) => {
                let handle = |(request, sent)| self.responses.on_response(request, sent, payload);
                if !self.connection.handle(id, handle) && id != PING_ID {
                    self.responses.on_late();
                }
            }
            None => tracing::debug!(bytes = value.len(), "no response to a request"),
        }
        self.connection.ended.reason().map_or(Ok(()), Err)
    }

    /// Everything that had arrived by this time is processed.
    fn read_until(&mut self, until: Instant) {
        if until < self.look_at {
            return;
        }
        self.look_at = until + self.grain;
        for request in self.connection.take_expired(self.limits.fetch_timeout, until) {
            self.responses.on_timeout(request);
        }
        self.supervise(until);
        // What the socket had no room for.
        self.connection.flush();
    }

    /// Pings a connection that is silent, and ends one that does not send a complete value after that.
    fn supervise(&mut self, until: Instant) {
        if self.pinged.is_some_and(|pinged| self.last_frame >= pinged) {
            self.pinged = None;
        }
        match self.pinged {
            Some(pinged)
                if until >= pinged + self.limits.ping_timeout + self.responses.patience() =>
            {
                self.connection.end(LossReason::Unresponsive(until - pinged));
            }
            None if until >= self.last_frame + self.limits.ping_interval => {
                self.pinged = Some(Instant::now());
                self.connection.ping();
            }
            _ => {}
        }
    }
}

/// The receive queue of a socket: when it was looked at, and how much of what it held then is unread.
struct Queue {
    at: Instant,
    unread: u64,
}
