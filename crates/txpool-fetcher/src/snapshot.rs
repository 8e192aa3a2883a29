//! Lists the hashes of a node's pool, by scanning the answer to `txpool_content` as it streams in.
//!
//! The answer for 10,000 transactions is 10 MB of JSON; with blob sidecars (anvil) it can have any
//! size. So it is read from a connection of its own, where it delays nothing else, and it is never
//! held in memory: the scanner keeps the depth, two flags and the hashes.

use std::time::Duration;

use alloy_primitives::B256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{config::Endpoint, connection::open_ipc, error::ConnectError};

/// Most bytes read with one call.
const CHUNK_BYTES: usize = 256 * 1024;

/// Most hashes kept of one answer: 2^22, which take 128 MiB. No node's pool holds as many.
const MAX_HASHES: usize = 1 << 22;

/// The hashes of the transactions in a node's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) pending: Vec<B256>,
    pub(crate) queued: Vec<B256>,
}

/// Why the node's pool could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Reading from or writing to the connection failed.
    #[error("reading the pool's content: {0}")]
    Io(#[from] std::io::Error),
    /// The connection ended before the answer did.
    #[error("the node closed the connection after {0} bytes of the pool's content")]
    Truncated(u64),
    /// The node sent an error response.
    #[error("the node refused to list its pool: {0}")]
    Refused(String),
    /// The answer is not the content of a pool.
    #[error("the answer to txpool_content is not the content of a pool")]
    NotAPool,
    /// A comparison that a caller of [`Fetcher::audit`](crate::Fetcher::audit) requested is running,
    /// and as many as may wait do.
    #[error("{waiting} requests for a comparison with this node's pool wait already")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The answer was not complete in time.
    #[error("the node did not list its pool in {0:?}")]
    Timeout(Duration),
    /// The pool holds more hashes than are kept.
    #[error("the node's pool holds more than {MAX_HASHES} transactions")]
    TooMany,
    /// The function `pooled` of a pool in this process panicked.
    #[error("`pooled` of the pool panicked")]
    PoolPanicked,
    /// The connection for the request was lost, or there is none.
    #[error("the connection was lost")]
    ConnectionLost,
}

/// Lists the pool over a new connection to an IPC socket.
pub(crate) async fn list_ipc(
    endpoint: &Endpoint,
    limit: Duration,
) -> Result<Content, SnapshotError> {
    let Endpoint::Ipc(path) = endpoint else { return Err(SnapshotError::NotAPool) };
    match timeout(limit, read_content(path)).await {
        Ok(result) => result,
        Err(_) => Err(SnapshotError::Timeout(limit)),
    }
}

async fn read_content(path: &std::path::Path) -> Result<Content, SnapshotError> {
    let mut stream = open_ipc(path).await?;
    stream.write_all(br#"{"jsonrpc":"2.0","id":1,"method":"txpool_content","params":[]}"#).await?;
    let mut scanner = ContentScanner::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut total = 0u64;
    loop {
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Err(SnapshotError::Truncated(total));
        }
        total += count as u64;
        if scanner.feed(&chunk[..count])? {
            return scanner.finish();
        }
        // Yields after each chunk, whose scan takes about 0.1 ms.
        tokio::task::yield_now().await;
    }
}

/// Finds `result.{pending,queued}.<sender>.<nonce>.hash` in JSON that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct ContentScanner {
    content: Content,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The string being read, or just read, up to the length that can matter.
    text: Vec<u8>,
    keep: bool,
    /// A colon was read: the next value belongs to `key`.
    after_colon: bool,
    key: Vec<u8>,
    /// Where in the answer the scanner is: `in_result` below the key at depth 1, `list` below the
    /// key at depth 2.
    in_result: bool,
    found_result: bool,
    in_error: bool,
    list: List,
    error: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Pending,
    Queued,
}

/// The longest string that matters: a hash with its 0x.
const TEXT_BYTES: usize = 66;

/// Depth of a transaction's fields: below the answer, the result, the list, the sender, the
/// transaction.
const FIELD_DEPTH: usize = 5;

impl ContentScanner {
    /// Scans the bare result of a call, without the envelope of the answer.
    pub(crate) fn of_result(json: &str) -> Result<Content, SnapshotError> {
        let mut scanner = Self { depth: 1, after_colon: true, ..Self::default() };
        scanner.key.extend_from_slice(b"result");
        scanner.feed(json.as_bytes())?;
        if scanner.depth != 1 {
            return Err(SnapshotError::NotAPool);
        }
        scanner.depth = 0;
        scanner.finish()
    }

    /// Scans the next piece; true when the answer is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<bool, SnapshotError> {
        let mut at = 0;
        while at < bytes.len() {
            if self.in_string {
                at += self.string(&bytes[at..])?;
                continue;
            }
            // Outside of strings there are only a few bytes between two structural ones, so a plain
            // loop is fast enough.
            let byte = bytes[at];
            at += 1;
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.text.clear();
                    self.keep = true;
                }
                b':' => {
                    self.after_colon = true;
                    std::mem::swap(&mut self.key, &mut self.text);
                }
                b',' => self.after_colon = false,
                b'{' | b'[' => {
                    self.open()?;
                    self.after_colon = false;
                }
                b'}' | b']' => {
                    self.depth = self.depth.checked_sub(1).ok_or(SnapshotError::NotAPool)?;
                    self.after_colon = false;
                    match self.depth {
                        0 => return Ok(true),
                        1 => {
                            self.in_result = false;
                            self.in_error = false;
                        }
                        2 => self.list = List::None,
                        _ => {}
                    }
                }
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ if self.depth == 0 => return Err(SnapshotError::NotAPool),
                _ => {}
            }
        }
        Ok(false)
    }

    /// The hashes found. An error if the answer was an error response, or not the content of a
    /// pool.
    pub(crate) fn finish(self) -> Result<Content, SnapshotError> {
        if !self.error.is_empty() {
            return Err(SnapshotError::Refused(String::from_utf8_lossy(&self.error).into_owned()));
        }
        if !self.found_result || self.depth != 0 {
            return Err(SnapshotError::NotAPool);
        }
        Ok(self.content)
    }

    fn open(&mut self) -> Result<(), SnapshotError> {
        match (self.depth, self.after_colon) {
            (1, true) => {
                self.in_result = self.key == b"result";
                self.found_result |= self.in_result;
                self.in_error = self.key == b"error";
                if self.in_error && self.error.is_empty() {
                    self.error.extend_from_slice(b"error");
                }
            }
            (2, true) if self.in_result => {
                self.list = match self.key.as_slice() {
                    b"pending" => List::Pending,
                    b"queued" => List::Queued,
                    _ => List::None,
                };
            }
            _ => {}
        }
        self.depth += 1;
        // Pool content is 5 deep, an access list inside it 8.
        if self.depth > 64 { Err(SnapshotError::NotAPool) } else { Ok(()) }
    }

    /// Continues inside a string; returns how many bytes it scanned.
    fn string(&mut self, bytes: &[u8]) -> Result<usize, SnapshotError> {
        if self.escaped {
            self.escaped = false;
            self.keep = false;
            return Ok(1);
        }
        let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        if self.keep {
            let limit = if self.in_error { 200 } else { TEXT_BYTES };
            if self.text.len() + end > limit {
                self.keep = self.in_error;
                let room = limit.saturating_sub(self.text.len()).min(end);
                self.text.extend_from_slice(&bytes[..room]);
            } else {
                self.text.extend_from_slice(&bytes[..end]);
            }
        }
        match bytes.get(end) {
            None => Ok(end),
            Some(b'\\') => {
                self.escaped = true;
                Ok(end + 1)
            }
            Some(_) => {
                self.in_string = false;
                if !self.keep {
                    self.text.clear();
                }
                if self.after_colon {
                    self.value()?;
                }
                Ok(end + 1)
            }
        }
    }

    fn value(&mut self) -> Result<(), SnapshotError> {
        if self.in_error && self.depth == 2 && self.key == b"message" {
            self.error = std::mem::take(&mut self.text);
        }
        if self.depth != FIELD_DEPTH || self.list == List::None || self.key != b"hash" {
            return Ok(());
        }
        let hash =
            const_hex::decode_to_array::<_, 32>(&self.text).map_err(|_| SnapshotError::NotAPool)?;
        let list = match self.list {
            List::Pending => &mut self.content.pending,
            _ => &mut self.content.queued,
        };
        if list.len() == MAX_HASHES {
            return Err(SnapshotError::TooMany);
        }
        list.push(B256::from(hash));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn scan(bytes: &[u8], piece: usize) -> Result<Content, SnapshotError> {
        let mut scanner = ContentScanner::default();
        for part in bytes.chunks(piece.max(1)) {
            if scanner.feed(part)? {
                return scanner.finish();
            }
        }
        Err(SnapshotError::Truncated(bytes.len() as u64))
    }

    fn pool(hashes: &[[u8; 32]], extra: &Value) -> Value {
        let mut senders = Map::new();
        for (index, hash) in hashes.iter().enumerate() {
            let tx = json!({
                "accessList": [{"address": "0x01", "storageKeys": [], "hash": "0x00"}],
                "hash": B256::from(*hash), "input": "0x\"\\{", "extra": extra, "nonce": "0x1"
            });
            let sender = senders.entry(format!("sender{}", index % 3)).or_insert(json!({}));
            sender[index.to_string()] = tx;
        }
        Value::Object(senders)
    }

    proptest! {
        #[test]
        fn the_scanner_finds_what_a_parser_finds_however_the_bytes_are_cut(
            pending in proptest::collection::vec(any::<[u8; 32]>(), 0..20),
            queued in proptest::collection::vec(any::<[u8; 32]>(), 0..5),
            piece in 1usize..200,
            text in ".{0,40}",
            pretty in any::<bool>(),
        ) {
            let extra = json!({ "hash": text, "pending": [text, null, 1.5, {"hash": "0xff"}] });
            let answer = json!({"id": 1, "jsonrpc": "2.0", "result": {
                "queued": pool(&queued, &extra), "pending": pool(&pending, &extra), "hash": "0x1",
            }});
            let bytes =
                if pretty { serde_json::to_vec_pretty(&answer) } else { serde_json::to_vec(&answer) };
            let mut found = scan(&bytes.unwrap(), piece).unwrap();
            let mut expected: Vec<_> = pending.iter().map(B256::from).collect();
            expected.sort();
            found.pending.sort();
            prop_assert_eq!(found.pending, expected);
            prop_assert_eq!(found.queued.len(), queued.len());
        }

        #[test]
        fn the_scanner_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let whole = scan(&bytes, 300).is_ok();
            prop_assert_eq!(whole, scan(&bytes, 7).is_ok());
        }
    }

    #[test]
    fn an_error_response_is_an_error_with_the_nodes_message() {
        let bytes =
            br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}"#;
        let error = scan(bytes, 5).unwrap_err();
        assert!(error.to_string().contains("no such method"), "{error}");
    }

    #[test]
    fn plain_text_is_not_a_pool() {
        let error = scan(b"Too many connections. Please try again later.", 64).unwrap_err();
        assert!(matches!(error, SnapshotError::NotAPool));
    }
}
