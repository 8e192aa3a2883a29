//! The thread of a connection: reads what comes, times requests out and pings the node.
//!
//! A request times out, and a connection is given up, only by what was read: up to a time before which everything
//! that had arrived was processed. So neither a sink that blocks nor a busy thread of ours makes a node look late.

#![expect(clippy::arithmetic_side_effects, reason = "times of our own clock")]

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    BlockingSocket, Connection, Frames,
    client::PING_ID,
    response::{Incoming, Notification},
};
use crate::{error::LossReason, limits::Limits, sync::lock, tasks::Tasks};

/// Processes what comes over one connection, on the thread of that connection.
pub(crate) trait Responses<R>: Send + 'static {
    /// Whether the requests are fetches: they time out after [`Limits::fetch_timeout`], and as they are many, the thread
    /// polls before it reads: see [`BlockingSocket::wait`].
    const ARE_FETCHES: bool = true;

    /// Processes the response to a request that was sent at `sent`. May block; meanwhile the
    /// time-outs of the connection's other requests are suspended. A panic ends the connection.
    fn on_response(&mut self, request: R, sent: Instant, response: &Incoming<'_>);

    /// Takes a notification that was read at `read_at`.
    fn on_notification(&mut self, _note: &Notification<'_>, _read_at: Instant) {}

    fn on_timeout(&mut self, _request: R) {}

    /// A response came after its request had timed out, or matches none.
    fn on_late(&mut self) {}

    /// Every message that was read has been processed.
    fn on_idle(&mut self) {}
}

/// Reads one connection, which ends with it.
pub(crate) struct Reader<R, P> {
    connection: Arc<Connection<R>>,
    responses: P,
    limits: Limits,
    listings: Arc<Listings>,
    /// When the latest read returned.
    read_at: Instant,
    last_frame: Instant,
    /// When the node was pinged that has sent nothing since, and how much longer than else it may take.
    pinged: Option<(Instant, Duration)>,
    /// How often time-outs are looked at, and when next.
    grain: Duration,
    look_at: Instant,
    /// When the socket's receive queue was looked at, and how much of what it held then is unread.
    queue_at: Instant,
    queue_unread: u64,
}

impl<R: Send + 'static, P: Responses<R>> Reader<R, P> {
    pub(super) fn new(
        connection: &Arc<Connection<R>>,
        responses: P,
        limits: &Limits,
        listings: &Arc<Listings>,
    ) -> Self {
        let now = Instant::now();
        let grain = limits.fetch_timeout / 16;
        Self {
            connection: Arc::clone(connection),
            responses,
            limits: limits.clone(),
            listings: Arc::clone(listings),
            read_at: now,
            last_frame: now,
            pinged: None,
            grain: grain.clamp(Duration::from_millis(1), Duration::from_millis(100)),
            look_at: now,
            queue_at: now,
            queue_unread: 0,
        }
    }

    /// Starts the thread that reads these connections, one or two, until all have ended. It drops the `responses` with
    /// everything that they hold.
    pub(super) fn spawn(name: &str, readers: Vec<Self>, tasks: &Tasks) -> io::Result<()> {
        let with_frames = |reader: Self| (Frames::new(reader.limits.max_frame_bytes), reader);
        let mut readers: Vec<_> = readers.into_iter().map(with_frames).collect();
        tasks.spawn_thread(name, move || {
            while !readers.is_empty() {
                let is_ready = match &*readers {
                    [(_, one), (_, other)] => {
                        let sockets = [&one.connection.socket, &other.connection.socket];
                        BlockingSocket::wait(sockets, one.grain)
                    }
                    [(_, one)] if P::ARE_FETCHES => {
                        let [is_ready] = BlockingSocket::wait([&one.connection.socket], one.grain);
                        [is_ready, true]
                    }
                    _ => [true; 2],
                };
                let mut is_ready = is_ready.into_iter();
                readers.retain_mut(|(frames, reader)| {
                    let read = reader.read_once(frames, is_ready.next().unwrap_or(true));
                    reader.responses.on_idle();
                    read.inspect_err(|reason| reader.connection.end(reason.clone())).is_ok()
                });
            }
        })
    }

    /// Takes every value that is complete after a read.
    fn read_once(&mut self, frames: &mut Frames, is_ready: bool) -> Result<(), LossReason> {
        let spare = frames.spare();
        let room = spare.len();
        let count = if is_ready { self.connection.socket.read(spare)? } else { 0 };
        // What had arrived when the read before this one returned, is read.
        let read_before = std::mem::replace(&mut self.read_at, Instant::now());
        frames.filled(count);
        while let Some(value) = frames.next()? {
            self.take(value)?;
        }
        // A read that does not fill the buffer has emptied the socket. A node that fills each read never lets
        // it run empty; its requests must time out all the same.
        if count < room {
            self.queue_unread = 0;
            self.read_until(read_before);
            return Ok(());
        }
        self.queue_unread = self.queue_unread.saturating_sub(count as u64);
        if self.queue_unread == 0 {
            self.read_until(self.queue_at);
            self.queue_at = Instant::now();
            self.queue_unread = self.connection.socket.unread();
        }
        Ok(())
    }

    fn take(&mut self, value: &[u8]) -> Result<(), LossReason> {
        self.last_frame = self.read_at;
        let Some(message) = Incoming::read(value)? else { return Ok(()) };
        if let Some(note) = &message.params {
            self.responses.on_notification(note, self.read_at);
            return Ok(());
        }
        let Some(id) = message.id() else { return Ok(()) };
        let handle = |(request, sent)| self.responses.on_response(request, sent, &message);
        if !self.connection.handle(id, handle) && id != PING_ID {
            self.responses.on_late();
        }
        self.connection.ended.reason().map_or(Ok(()), Err)
    }

    /// Everything that had arrived by this time is processed.
    fn read_until(&mut self, until: Instant) {
        if until < self.look_at {
            return;
        }
        self.look_at = until + self.grain;
        if P::ARE_FETCHES {
            let expired = self.connection.take_expired(self.limits.fetch_timeout, until);
            expired.into_iter().for_each(|request| self.responses.on_timeout(request));
        }
        self.supervise(until);
        // What the socket had no room for.
        self.connection.flush();
    }

    /// Pings a connection that is silent, and ends one that does not send a complete value after that. Single bytes do
    /// not count: after a truncated response, everything that follows is read as a part of it.
    fn supervise(&mut self, until: Instant) {
        let Self { connection, limits, last_frame, .. } = self;
        match &mut self.pinged {
            Some((pinged, patience)) if *last_frame < *pinged => {
                // The list of the pool may have ended since.
                *patience = self.listings.patience(limits).max(*patience);
                if until >= *pinged + limits.ping_timeout + *patience {
                    connection.end(LossReason::Unresponsive(until - *pinged));
                }
            }
            pinged => {
                let is_silent = until >= *last_frame + limits.ping_interval;
                *pinged = is_silent.then(|| (Instant::now(), Duration::ZERO));
                if is_silent {
                    connection.ping();
                }
            }
        }
    }
}

impl<R, P> Drop for Reader<R, P> {
    fn drop(&mut self) {
        // Also after a panic: who waits for responses must learn of the end. The first reason stands.
        self.connection.end(LossReason::Closed);
    }
}

/// How many times as long as the list before one may take: the pool may have grown meanwhile.
const GROWTH: u32 = 4;

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In progress: for the source's own comparison, and for those that a caller of
    /// [`Fetcher::audit`](crate::Fetcher::audit) requested.
    pub(crate) running: AtomicU64,
    /// How long the latest one took, or one that failed since, if that took longer.
    took: Mutex<Option<Duration>>,
}

impl Listings {
    /// One has ended. One that failed may have failed at once, which says nothing of the next.
    pub(crate) fn took(&self, time: Duration, is_complete: bool) {
        let mut took = lock(&self.took);
        *took = if is_complete { Some(time) } else { took.map(|known| known.max(time)) };
    }

    /// How much longer than else the node may be silent. While it lists its pool, a node may be slow with everything:
    /// anvil answers no request for 12 s with 60,000 transactions. But it may as well have gone silent for good: it has no
    /// more time than its lists lead to expect, and the time of a ping more at the least.
    pub(super) fn patience(&self, limits: &Limits) -> Duration {
        if self.running.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let took = *lock(&self.took);
        let expected = took.map_or(limits.snapshot_timeout, |took| took.saturating_mul(GROWTH));
        expected.max(limits.ping_timeout).min(limits.snapshot_timeout)
    }
}
