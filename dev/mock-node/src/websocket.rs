//! A node over WebSocket: its socket behind a bridge that passes messages on, each line as one.

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

/// The answer of a proxy whose node is away.
const HTML: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 28\r\nConnection: close\r\n\r\n\
<html>502 Bad Gateway</html>";

/// Where a gateway differs from a node's own WebSocket server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WebSocketQuirks {
    /// Messages to the client are binary frames.
    pub is_binary: bool,
    /// A new connection is answered with a page of HTML instead of the handshake.
    pub is_html: bool,
}

/// Serves WebSockets on a port of this machine until it is dropped, on a thread of its own.
#[derive(Debug)]
pub struct WebSocketBridge {
    url: String,
    quirks: Arc<Mutex<WebSocketQuirks>>,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

impl WebSocketBridge {
    /// In front of the node whose socket is at this path.
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
        // Not waited for: it may be dropped within another runtime.
        self.runtime.take().expect("taken only here").shutdown_background();
    }
}

/// Until either side ends; `None` then.
async fn serve(
    mut stream: TcpStream,
    ipc_path: PathBuf,
    quirks: Arc<Mutex<WebSocketQuirks>>,
) -> Option<()> {
    let is_html = quirks.lock().is_html;
    if is_html {
        // What is not read before the close would reset the connection, and the page be lost.
        let is_closed = stream.read(&mut [0; 4096]).await.ok()? == 0;
        return if is_closed { None } else { stream.write_all(HTML).await.ok() };
    }
    let socket = tokio_tungstenite::accept_async(stream).await.ok()?;
    let (mut to_client, mut from_client) = socket.split();
    let (from_node, mut to_node) = UnixStream::connect(ipc_path).await.ok()?.into_split();
    let mut lines = BufReader::new(from_node).lines();
    loop {
        // The order does not matter, and no line is lost: `next_line` is cancel safe.
        tokio::select! {
            line = lines.next_line() => {
                let line = line.ok()??;
                let is_binary = quirks.lock().is_binary;
                let message =
                    if is_binary { Message::binary(line.into_bytes()) } else { Message::text(line) };
                to_client.send(message).await.ok()?;
            }
            message = from_client.next() => {
                if let Message::Text(text) = message?.ok()? {
                    to_node.write_all(text.as_bytes()).await.ok()?;
                }
            }
        }
    }
}
