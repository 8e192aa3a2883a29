//! A blocking client that shows every line, so that a test reads like a transcript.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use alloy_primitives::B256;
use mock_node::{MockNode, NodeConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a test waits for a line before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn start(adjust: impl FnOnce(NodeConfig) -> NodeConfig) -> (TempDir, MockNode) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config =
        adjust(NodeConfig { accounts: 20, ..NodeConfig::new(dir.path().join("node.ipc")) });
    let node = testkit::state::start(config).expect("the node starts");
    (dir, node)
}

pub(crate) fn connected(
    adjust: impl FnOnce(NodeConfig) -> NodeConfig,
) -> (TempDir, MockNode, Client) {
    let (dir, node) = start(adjust);
    let client = Client::to(&node);
    (dir, node, client)
}

pub(crate) fn subscribed(
    adjust: impl FnOnce(NodeConfig) -> NodeConfig,
) -> (TempDir, MockNode, Client) {
    let (dir, node) = start(adjust);
    let client = Client::subscribed(&node);
    (dir, node, client)
}

#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    next_id: u64,
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let reader = BufReader::new(stream.try_clone().expect("a second handle"));
        Self { stream, reader, next_id: 1 }
    }

    pub(crate) fn to(node: &MockNode) -> Self {
        Self::connect(node.ipc_path())
    }

    pub(crate) fn subscribed(node: &MockNode) -> Self {
        let mut client = Self::to(node);
        client.subscribe(json!(["newPendingTransactions"]));
        client
    }

    /// Reads the rest of the stream.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset ends the connection as well.
        let _ = self.reader.read_to_end(&mut rest);
        rest
    }

    /// Whether nothing arrives for `time`.
    pub(crate) fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).expect("a timeout");
        let silent = self.reader.fill_buf().is_err_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        });
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        silent
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the node reads");
    }

    /// Reads the next line; `None` at the end of the stream.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.reader.read_line(&mut line).expect("a line in time");
        (len > 0).then_some(line)
    }

    /// The first line of a new connection: the text about too many connections, or the answer to a
    /// request.
    pub(crate) fn line_or_answer(&mut self) -> String {
        // A refused connection may already be closed.
        let _ = self.stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#);
        let mut line = String::new();
        let _ = self.reader.read_line(&mut line);
        line
    }

    pub(crate) fn value(&mut self) -> Value {
        let line = self.line().expect("the node keeps the connection");
        serde_json::from_str(&line).expect("a line is JSON")
    }

    /// Calls a method, and returns the whole answer.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.write(request.to_string().as_bytes());
        let value = self.value();
        assert_eq!(value["id"], json!(id));
        value
    }

    /// Requests a raw transaction, without waiting for the answer.
    pub(crate) fn request_raw(&mut self, id: usize, hash: B256) {
        let method = "eth_getRawTransactionByHash";
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": [hash]});
        self.write(call.to_string().as_bytes());
    }

    pub(crate) fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.call(method, params);
        assert!(answer.get("error").is_none(), "{method} answered {answer}");
        answer["result"].clone()
    }

    pub(crate) fn subscribe(&mut self, params: Value) {
        self.result("eth_subscribe", params);
    }

    /// Reads the next notification, and returns its hash.
    pub(crate) fn announced(&mut self) -> B256 {
        let mut value = self.value();
        assert_eq!(value["method"], "eth_subscription", "{value}");
        serde_json::from_value(value["params"]["result"].take()).expect("a hash")
    }
}
