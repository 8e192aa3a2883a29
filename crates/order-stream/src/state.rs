//! The states of a publisher and of a source.

use std::fmt;

/// What a publisher or a source is doing. Read it with `state()`, or as `order_stream_state`, whose value is
/// [`Self::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It was shut down.
    Ended,
    /// It opens a connection.
    Connecting,
    /// Connected. A publisher compares its pool with what it has published; a source reads what the stream holds.
    CatchingUp,
    /// Connected, and nothing is waiting but what is on its way, and what callers of whom only the address is known have sent
    /// (`order_stream_waiting`).
    Live,
    /// It is slower than the flow: a publisher waits for acknowledgements, a source has more than 10,000 messages before
    /// it.
    Lagging,
    /// The stream does not respond: it has no leader, or its server is stopping. Publishing goes on with one message at a
    /// time, after pauses.
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

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// No server could be reached: refused, unknown name, time-out.
    Unreachable,
    /// The TLS handshake failed: certificates, or a server without TLS.
    Tls,
    /// The connection was lost, or its server stopped responding to pings.
    Lost,
    /// The server announced that it stops.
    ServerStopping,
    /// The server refused the connection for another reason than its credentials.
    Refused,
}

impl State {
    /// The value of `order_stream_state`: 0 ended, 1 connecting, 2 catching up, 3 live, 4 lagging, 5 unavailable,
    /// 6 stream missing, 7 full, 8 denied, 9 disconnected, 10 failed.
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
