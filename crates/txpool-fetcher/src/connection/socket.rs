//! A Unix socket that is read by a thread of its own. A WebSocket stands behind one too: a task passes the text of each
//! message on, so that everything else knows one kind of socket.

use std::{
    convert::Infallible,
    io,
    net::Shutdown,
    os::unix::{fs::FileTypeExt, net::UnixStream},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::{SinkExt as _, StreamExt as _, stream::SplitSink, stream::SplitStream};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::SendFlags,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        self, TcpStream,
        unix::{ReadHalf, WriteHalf},
    },
    runtime::Handle,
    time::timeout,
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream,
    tungstenite::{self, Message, protocol::WebSocketConfig},
};

use super::Frames;
use crate::{
    config::Endpoint,
    error::{ConnectError, LossReason},
    tasks::Tasks,
};

/// A Unix socket in blocking mode, for the thread that reads it. Whoever writes does not wait.
///
/// A socket and its clones share one mode, so it gives out none of them.
pub(crate) struct BlockingSocket {
    stream: UnixStream,
    /// Of a WebSocket, set before its other end is closed.
    ended: Arc<OnceLock<LossReason>>,
}

/// A write must not wait, although the socket is in blocking mode.
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

impl BlockingSocket {
    /// `ended` says why the socket is closed, where that is known.
    pub(crate) fn new(stream: UnixStream, ended: Arc<OnceLock<LossReason>>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { stream, ended })
    }

    /// Waits until one of these has something to read, at most `limit`, and returns which have.
    ///
    /// On Linux a blocking `read` is woken twice for each request: a Unix socket also wakes its
    /// readers when the peer has read what was sent (`unix_write_space`), and only `poll`
    /// distinguishes the two. Where little is sent, a read alone costs one system call less.
    pub(crate) fn wait<const N: usize>(sockets: [&Self; N], limit: Duration) -> [bool; N] {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        let mut polled = sockets.map(|socket| PollFd::new(&socket.stream, PollFlags::IN));
        match retry_on_intr(|| poll(&mut polled, Some(&limit))) {
            Ok(_) => polled.map(|socket| !socket.revents().is_empty()),
            // The error is one of a socket's, and its read says which.
            Err(_) => [true; N],
        }
    }

    /// Reads what there is. Waits for it for at most 100 ms: 0 if nothing comes.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, LossReason> {
        match retry_on_intr(|| rustix::io::read(&self.stream, &mut *buffer)) {
            Ok(0) => Err(self.ended.get().cloned().unwrap_or(LossReason::Closed)),
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(LossReason::from_io(&error.into())),
        }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::net::send(&self.stream, bytes, SEND_FLAGS))?)
    }

    /// How many bytes have arrived and are not read.
    pub(crate) fn unread(&self) -> u64 {
        // Without an answer the next read counts as the last.
        rustix::io::ioctl_fionread(&self.stream).unwrap_or(0)
    }

    /// Ends the connection; its reader wakes up.
    pub(crate) fn end(&self) {
        // It fails when the peer has closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Opens a socket to a node. Over WebSocket a message has at most `max_bytes`, and the handshake
/// takes at most `limit`. With `tasks`, a thread assembles messages: one of megabytes takes ms.
pub(crate) async fn open_socket(
    endpoint: &Endpoint,
    max_bytes: usize,
    limit: Duration,
    tasks: Option<&Tasks>,
) -> Result<BlockingSocket, ConnectError> {
    let url = match endpoint {
        Endpoint::Ipc(path) => return open_ipc(path).await,
        Endpoint::Ws(url) => url,
        // A pool in this process is called directly by its source, and never dialled.
        Endpoint::InProcess(_) => {
            return Err(ConnectError::io(endpoint, io::ErrorKind::Unsupported.into()));
        }
    };
    let (socket, pass_on) = open_ws(url, max_bytes, limit).await?;
    // It ends with the connection, or with its runtime.
    match tasks {
        Some(tasks) => drop(tasks.spawn_blocking(|| Handle::current().block_on(pass_on))),
        None => drop(tokio::spawn(pass_on)),
    }
    Ok(socket)
}

/// The path is resolved each time, because nodes delete and re-create the socket when they start.
async fn open_ipc(path: &Path) -> Result<BlockingSocket, ConnectError> {
    let stream = net::UnixStream::connect(path).await.and_then(net::UnixStream::into_std);
    let socket = stream.and_then(|stream| BlockingSocket::new(stream, Arc::default()));
    socket.map_err(|error| explain(path, error))
}

fn explain(path: &Path, error: io::Error) -> ConnectError {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => " (is the node running, and is this its --ipcpath?)",
        io::ErrorKind::PermissionDenied => " (run as the node's user, or change the socket's mode)",
        // Linux reports "connection refused" for a stale socket, and for a file that is none.
        _ if path.metadata().is_ok_and(|meta| !meta.file_type().is_socket()) => {
            " (there is a file or folder at this path, not a socket)"
        }
        io::ErrorKind::ConnectionRefused => " (the socket is left over from a node that is gone)",
        _ => "",
    };
    ConnectError::Io { endpoint: path.display().to_string(), source: error.into(), hint }
}

type WsStream = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a WebSocket whose messages have at most `max_bytes`. The future passes them on to its end.
async fn open_ws(
    url: &str,
    max_bytes: usize,
    limit: Duration,
) -> Result<(BlockingSocket, impl Future<Output = ()> + use<>), ConnectError> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(max_bytes))
        .max_frame_size(Some(max_bytes));
    let connect = tokio_tungstenite::connect_async_with_config(url, Some(config), true);
    let connected = timeout(limit, connect).await.map_err(|_| ConnectError::NoAnswer {
        endpoint: url.to_owned(),
        method: "the WebSocket handshake",
        timeout: limit,
    })?;
    let failed = |error| ConnectError::io(&url, error);
    let (messages, _) = connected.map_err(|error| failed(io::Error::other(error.to_string())))?;
    let (ours, mut theirs) = net::UnixStream::pair().map_err(failed)?;
    let ended = Arc::new(OnceLock::new());
    let socket = ours.into_std().and_then(|ours| BlockingSocket::new(ours, Arc::clone(&ended)));
    let pass_on = async move {
        let (requests, responses) = messages.split();
        let (from_us, to_us) = theirs.split();
        // Separate branches, so that reading continues while the peer does not read.
        let Err(reason) = tokio::select! {
            end = pass_in(responses, to_us, max_bytes) => end,
            end = pass_out(from_us, requests) => end,
        };
        // Before the socket is closed; nobody else sets it.
        let _ = ended.set(reason);
    };
    Ok((socket.map_err(failed)?, pass_on))
}

async fn pass_in(
    mut messages: SplitStream<WsStream>,
    mut socket: WriteHalf<'_>,
    max_bytes: usize,
) -> Result<Infallible, LossReason> {
    loop {
        match messages.next().await {
            Some(Ok(Message::Text(text))) => {
                // If this fails, our side has ended.
                socket.write_all(text.as_bytes()).await.map_err(|_| LossReason::Closed)?;
            }
            Some(Ok(Message::Close(_))) | None => return Err(LossReason::Closed),
            // Pings and pongs of the WebSocket protocol.
            Some(Ok(_)) => {}
            Some(Err(tungstenite::Error::Capacity(_))) => {
                return Err(LossReason::Oversized(max_bytes));
            }
            Some(Err(error)) => return Err(reason(&error)),
        }
    }
}

/// Sends each request in a message of its own; those at hand together.
async fn pass_out(
    mut socket: ReadHalf<'_>,
    mut messages: SplitSink<WsStream, Message>,
) -> Result<Infallible, LossReason> {
    let mut requests = Frames::new(usize::MAX);
    loop {
        let count = socket.read(requests.spare()).await.unwrap_or(0);
        if count == 0 {
            return Err(LossReason::Closed);
        }
        requests.filled(count);
        while let Some(request) = requests.next()? {
            let message = Message::text(String::from_utf8_lossy(request).into_owned());
            messages.feed(message).await.map_err(|error| reason(&error))?;
        }
        messages.flush().await.map_err(|error| reason(&error))?;
    }
}

fn reason(error: &tungstenite::Error) -> LossReason {
    match error {
        tungstenite::Error::Io(error) => LossReason::from_io(error),
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            LossReason::Closed
        }
        other => LossReason::garbage(other.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_denied_names_the_path_and_the_cure() {
        // Not over a real socket: the tests may run as root, who is denied nothing.
        let error = explain(Path::new("/n.ipc"), io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            error.to_string(),
            "/n.ipc: permission denied (run as the node's user, or change the socket's mode)"
        );
    }
}
