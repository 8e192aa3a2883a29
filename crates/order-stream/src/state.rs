//! The states of a publisher and of a source.

use std::{fmt, thread};

/// What a publisher or a source is doing. Read it with `state()`, or as `order_stream_state`, whose value is
/// [`Self::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It was shut down.
    Ended,
    /// It opens a connection.
    Connecting,
    /// Connected. A publisher compares its pool with what it has published; a source reads what the stream
    /// holds.
    CatchingUp,
    /// Connected, and nothing is waiting but what is on its way.
    Live,
    /// It is slower than the flow: a publisher waits for acknowledgements, a source has more than 10,000 messages before
    /// it.
    Lagging,
    /// The stream does not answer: it has no leader, or its server is stopping. Publishing goes on with one
    /// message at a time, after pauses.
    Unavailable,
    /// The server does not have the stream: see [`ensure_stream`](crate::ensure_stream).
    StreamMissing,
    /// The stream accepts nothing more: it is at its limit, or the server's storage is full.
    Full,
    /// The server refuses the credentials or a subject.
    Denied,
    /// There is no connection.
    Disconnected {
        /// Why.
        reason: DisconnectReason,
    },
    /// It has ended, because its thread has panicked: a bug, here or in the pool. Start another.
    Failed,
}

impl State {
    /// The value of `order_stream_state`: 0 ended, 1 connecting, 2 catching up, 3 live, 4 lagging, 5 unavailable,
    /// 6 stream missing, 7 full, 8 denied, 9 disconnected, 10 failed.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Ended => 0,
            Self::Connecting => 1,
            Self::CatchingUp => 2,
            Self::Live => 3,
            Self::Lagging => 4,
            Self::Unavailable => 5,
            Self::StreamMissing => 6,
            Self::Full => 7,
            Self::Denied => 8,
            Self::Disconnected { .. } => 9,
            Self::Failed => 10,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Ended => "ended",
            Self::Connecting => "connecting",
            Self::CatchingUp => "catching up",
            Self::Live => "live",
            Self::Lagging => "lagging",
            Self::Unavailable => "stream unavailable",
            Self::StreamMissing => "stream missing",
            Self::Full => "stream full",
            Self::Denied => "denied",
            Self::Disconnected { reason } => return write!(f, "disconnected: {reason}"),
            Self::Failed => "failed: its thread has panicked",
        };
        f.write_str(text)
    }
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// No server could be reached: refused, unknown name, time-out.
    Unreachable,
    /// The TLS handshake failed: certificates, or a server without TLS.
    Tls,
    /// The connection was lost, or its server stopped answering pings.
    Lost,
    /// The server announced that it stops.
    ServerStopping,
    /// The server refused the connection for another reason than its credentials.
    Refused,
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "no server can be reached",
            Self::Tls => "the TLS handshake failed",
            Self::Lost => "the connection was lost",
            Self::ServerStopping => "the server stops",
            Self::Refused => "the server refused the connection",
        })
    }
}

/// Shows the last state when it is dropped: that it has ended, or has failed, if its thread unwinds.
pub(crate) struct EndGuard<F: FnMut(State)>(pub(crate) F);

impl<F: FnMut(State)> Drop for EndGuard<F> {
    fn drop(&mut self) {
        let state = if thread::panicking() {
            tracing::error!("the thread has panicked");
            State::Failed
        } else {
            State::Ended
        };
        (self.0)(state);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    use super::*;

    #[test]
    fn the_last_state_tells_an_end_from_a_panic() {
        let last = Cell::new(None);
        let guard = || EndGuard(|state| last.set(Some(state)));
        drop(guard());
        assert_eq!(last.get(), Some(State::Ended));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard();
            panic!("a bug");
        }));
        assert!(panicked.is_err());
        assert_eq!(last.get(), Some(State::Failed));
        assert_eq!(State::Failed.code(), 10);
    }
}
