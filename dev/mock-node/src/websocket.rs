//! A bridge that serves a node over WebSocket: each line of the node's socket is one message.

use std::{
    io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream, UnixStream},
    runtime::Runtime,
};
use tokio_tungstenite::tungstenite::Message;

/// The response of a proxy whose node cannot be reached.
const HTML: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 28\r\n\
Connection: close\r\n\r\n<html>502 Bad Gateway</html>";

/// How a gateway can differ from the WebSocket server of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebSocketQuirks {
    /// Messages to the client are binary frames.
    pub is_binary: bool,
    /// A new connection gets a page of HTML instead of the handshake.
    pub is_html: bool,
}

/// Serves WebSockets on a port of this machine, on its own thread, until it is dropped.
#[derive(Debug)]
pub struct WebSocketBridge {
    url: String,
    quirks: Arc<Mutex<WebSocketQuirks>>,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl WebSocketBridge {
    /// Starts a bridge to the node whose socket is at this path.
    pub fn start(ipc_path: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("mock-node-ws")
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let url = format!("ws://{}", listener.local_addr()?);
        let quirks = Arc::<Mutex<WebSocketQuirks>>::default();
        let (path, shared) = (ipc_path.to_owned(), Arc::clone(&quirks));
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("it does not block");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, path.clone(), Arc::clone(&shared)));
            }
        });
        Ok(Self { url, quirks, runtime: Some(runtime) })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Changes the quirks: open connections use the new ones from the next message on.
    pub fn set_quirks(&self, quirks: WebSocketQuirks) {
        *self.quirks.lock() = quirks;
    }
}

impl Drop for WebSocketBridge {
    fn drop(&mut self) {
        // It does not wait for the runtime, because it may be dropped within another runtime.
        self.runtime.take().expect("taken only here").shutdown_background();
    }
}

/// Serves a connection until either side ends it, and returns `None`.
async fn serve(
    mut stream: TcpStream,
    ipc_path: PathBuf,
    quirks: Arc<Mutex<WebSocketQuirks>>,
) -> Option<()> {
    let is_html = quirks.lock().is_html;
    if is_html {
        // The request is read first: unread bytes would reset the connection when it is closed, and
        // the page would be lost.
        let is_closed = stream.read(&mut [0; 4096]).await.ok()? == 0;
        return if is_closed { None } else { stream.write_all(HTML).await.ok() };
    }
    let socket = tokio_tungstenite::accept_async(stream).await.ok()?;
    let (mut client_sink, mut client_stream) = socket.split();
    let (node_reader, mut node_writer) = UnixStream::connect(ipc_path).await.ok()?.into_split();
    let mut lines = BufReader::new(node_reader).lines();
    loop {
        // The order is irrelevant, and no line is lost: `next_line` is cancel safe.
        tokio::select! {
            line = lines.next_line() => {
                let line = line.ok()??;
                let is_binary = quirks.lock().is_binary;
                let message = if is_binary {
                    Message::binary(line.into_bytes())
                } else {
                    Message::text(line)
                };
                client_sink.send(message).await.ok()?;
            }
            message = client_stream.next() => {
                if let Message::Text(text) = message?.ok()? {
                    node_writer.write_all(text.as_bytes()).await.ok()?;
                }
            }
        }
    }
}
