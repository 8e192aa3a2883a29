//! The states of a publisher and of a source, as users, metrics and logs see them.

use std::fmt;

/// What a publisher or a source is doing. Read it with `state()`, or as the metric
/// `order_stream_state`, whose value is [`Self::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It was shut down.
    Ended,
    /// It is opening a connection, and asks the server for the stream.
    Connecting,
    /// The stream has responded. A publisher compares its pool with what it has published; a source
    /// reads the messages that the stream already holds.
    CatchingUp,
    /// It is connected and has no backlog. Messages may be in flight, and messages of unknown
    /// callers may still wait in the publisher's fair queue (`order_stream_waiting`).
    Live,
    /// It is slower than the flow: a publisher waits for acknowledgements, a source has more than
    /// 10,000 unread messages.
    Lagging,
    /// The stream does not respond, because it has no leader or its server is stopping. The
    /// publisher goes on with one message at a time, after pauses.
    Unavailable,
    /// The server does not have the stream, or a publisher of the private flow found it without
    /// lifetimes of messages, which earlier versions did not need. See
    /// [`ensure_stream`](crate::ensure_stream).
    StreamMissing,
    /// The stream accepts no more messages: it is at its limit, or the server's storage is full.
    Full,
    /// The server rejects the credentials or a subject.
    Denied,
    /// There is no connection.
    Disconnected {
        /// Why there is none.
        reason: DisconnectReason,
    },
    /// It has ended because its thread panicked. This is a bug, here or in the pool. Start a new
    /// publisher or source.
    Failed,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// No server could be reached: connection refused, unknown host name, or timeout.
    Unreachable,
    /// The TLS handshake failed, because of a certificate or because the server has no TLS.
    Tls,
    /// The connection was lost, or its server stopped responding to pings.
    Lost,
    /// The server announced that it is stopping.
    ServerStopping,
    /// The server rejected the connection for another reason than its credentials.
    Refused,
}

impl State {
    /// Returns the value of `order_stream_state`: 0 ended, 1 connecting, 2 catching up, 3 live,
    /// 4 lagging, 5 unavailable, 6 stream missing, 7 full, 8 denied, 9 disconnected, 10 failed.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.code_and_text().0
    }

    const fn code_and_text(&self) -> (u8, &'static str) {
        use DisconnectReason::{Lost, Refused, ServerStopping, Tls, Unreachable};
        match self {
            Self::Ended => (0, "ended"),
            Self::Connecting => (1, "connecting"),
            Self::CatchingUp => (2, "catching up"),
            Self::Live => (3, "live"),
            Self::Lagging => (4, "lagging"),
            Self::Unavailable => (5, "stream unavailable"),
            Self::StreamMissing => (6, "stream missing"),
            Self::Full => (7, "stream full"),
            Self::Denied => (8, "denied"),
            Self::Disconnected { reason } => match reason {
                Unreachable => (9, "disconnected: no server can be reached"),
                Tls => (9, "disconnected: the TLS handshake failed"),
                Lost => (9, "disconnected: the connection was lost"),
                ServerStopping => (9, "disconnected: the server stops"),
                Refused => (9, "disconnected: the server refused the connection"),
            },
            Self::Failed => (10, "failed: its thread has panicked"),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code_and_text().1)
    }
}
