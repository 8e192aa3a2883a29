//! A connection to a node for the host's own calls, separate from those of the fetcher.

use std::{fmt::Debug, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use super::{Connection, clip};
use crate::{
    config::Endpoint,
    error::{CallError, ConnectError},
    limits::Limits,
};

/// A connection to a node for the host's own calls. It has a separate socket, so the calls do not
/// affect a [`Fetcher`](crate::Fetcher).
///
/// It never reconnects: once a call has failed with [`CallError::ConnectionLost`], or has timed
/// out, drop it and connect again. Dropping it closes the socket.
pub struct NodeClient {
    connection: Connection,
}

impl NodeClient {
    /// Connects, and waits for that for at most `limit`. A task of the current tokio runtime reads
    /// and writes the connection, so the runtime needs its I/O and time drivers.
    ///
    /// # Errors
    /// Returns [`ConnectError`] if nothing listens at the endpoint, if it does not accept the
    /// connection in time, or if this build has no transport for it. A pool in this process has no
    /// connections.
    ///
    /// # Cancel safety
    /// Cancel safe: the socket is closed.
    pub async fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Self, ConnectError> {
        let max_message_bytes = Limits::default().max_frame_bytes;
        let connection = Connection::open_with(endpoint, max_message_bytes, limit).await?;
        Ok(Self { connection })
    }

    /// Calls a method, and waits for the response for at most `limit`. `params` are the parameters:
    /// a tuple or a slice becomes a list.
    ///
    /// Keep fewer than 100 calls in flight on one connection: while the node reads no further
    /// requests, responses are not read either.
    ///
    /// # Errors
    /// Returns [`CallError`] if there is no response in time, if it is an error, or if its result
    /// is not a `T`.
    ///
    /// # Cancel safety
    /// Cancel safe: the node may still respond, and its response is discarded.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: impl Serialize + Clone + Debug + Send + Sync + Unpin + 'static,
        limit: Duration,
    ) -> Result<T, CallError> {
        let result = self.connection.call(method, params, limit).await?;
        serde_json::from_str(result.get())
            .map_err(|_| CallError::Unreadable { response: clip(result.get(), 120) })
    }
}

impl Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeClient").finish_non_exhaustive()
    }
}
