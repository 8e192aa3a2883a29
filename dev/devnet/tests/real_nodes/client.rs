//! The smallest client: one request, one response.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
};

use alloy_primitives::{B256, Bytes, U64};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

pub(crate) struct Client {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Reply {
    result: Option<Box<RawValue>>,
    error: Option<Value>,
}

impl Client {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn call(&self, method: &str, params: Value) -> Result<String, Value> {
        let mut stream = UnixStream::connect(&self.path).expect("the node listens");
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        stream.write_all(request.to_string().as_bytes()).expect("the node reads");
        let mut replies = serde_json::Deserializer::from_reader(stream).into_iter::<Reply>();
        let reply = replies.next().expect("an answer").expect("JSON-RPC");
        match reply.error {
            Some(error) => Err(error),
            None => Ok(reply.result.map_or("null".into(), |result| result.get().to_owned())),
        }
    }

    /// Subscribes to whole transactions, and reads them until the node is gone.
    pub(crate) fn drain_objects(&self) {
        let mut stream = UnixStream::connect(&self.path).expect("the node listens");
        let params = json!(["newPendingTransactions", true]);
        let request =
            json!({"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": params});
        stream.write_all(request.to_string().as_bytes()).expect("the node reads");
        thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
    }

    pub(crate) fn send(&self, raw: &Bytes) -> Result<B256, Value> {
        let answer = self.call("eth_sendRawTransaction", json!([raw]))?;
        Ok(serde_json::from_str(&answer).expect("a hash"))
    }

    pub(crate) fn raw_json(&self, hash: B256) -> String {
        self.call("eth_getRawTransactionByHash", json!([hash])).expect("an answer")
    }

    /// How many transactions wait in the node's pool for an earlier one of their sender.
    pub(crate) fn queued(&self) -> u64 {
        let status = self.call("txpool_status", json!([])).expect("both nodes have it");
        let status: BTreeMap<String, U64> = serde_json::from_str(&status).expect("quantities");
        status["queued"].to()
    }

    pub(crate) fn chain_id(&self) -> u64 {
        let answer = self.call("eth_chainId", json!([])).expect("an answer");
        serde_json::from_str::<U64>(&answer).expect("a number").to()
    }
}
