//! Lists the hashes of a node's pool, by scanning the answer to `txpool_content` as it streams in.
//!
//! The answer for 10,000 transactions is 10 MB of JSON; with blob sidecars (anvil) it can have any
//! size. So it is read from a connection of its own, where it delays nothing else, and over IPC it is
//! never held in memory: the scanner keeps the depth, two flags and the hashes. Over WebSocket it is
//! one message, which is held as a whole and bounded by [`MAX_LISTING_BYTES`].

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::time::Duration;

use alloy_primitives::B256;
use futures::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::{
    config::Endpoint,
    connection::{no_socket, open_ipc, open_ws_stream},
    error::SnapshotError,
};

/// Most bytes read with one call.
const CHUNK_BYTES: usize = 256 * 1024;

/// Most hashes kept of one response: 2^22, which take 128 MiB; [`SnapshotError::TooMany`]
/// says it. No node's pool holds as many.
const MAX_HASHES: usize = 1 << 22;

/// Longest list of a pool over WebSocket, 256 MiB: about 200,000 transactions. reth sends no
/// response above 160 MB.
const MAX_LISTING_BYTES: usize = 256 * 1024 * 1024;

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"txpool_content","params":[]}"#;

/// The hashes of the transactions in a node's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) pending: Vec<B256>,
    pub(crate) queued: Vec<B256>,
}

/// Lists the pool over a connection of its own.
pub(crate) async fn list(
    endpoint: &Endpoint,
    max_frame_bytes: usize,
    limit: Duration,
) -> Result<Content, SnapshotError> {
    let max_bytes = max_frame_bytes.max(MAX_LISTING_BYTES);
    let content = async {
        match endpoint {
            Endpoint::Ipc(path) => list_ipc(path).await,
            Endpoint::Ws(url) => list_ws(url, max_bytes, limit).await,
            Endpoint::InProcess(_) => Err(no_socket(endpoint).into()),
        }
    };
    timeout(limit, content).await.unwrap_or(Err(SnapshotError::Timeout(limit)))
}

async fn list_ws(url: &str, max_bytes: usize, limit: Duration) -> Result<Content, SnapshotError> {
    let mut stream = open_ws_stream(url, max_bytes, limit).await?;
    let failed = |error| match error {
        tungstenite::Error::Capacity(_) => SnapshotError::Oversized(max_bytes),
        other => SnapshotError::Io(std::io::Error::other(other)),
    };
    stream.send(Message::text(REQUEST)).await.map_err(failed)?;
    loop {
        match stream.next().await.transpose().map_err(failed)? {
            Some(Message::Text(text)) => {
                let mut scanner = ContentScanner::default();
                scanner.feed(text.as_bytes())?;
                return scanner.finish();
            }
            None | Some(Message::Close(_)) => return Err(SnapshotError::Truncated(0)),
            // Pings and pongs of the WebSocket protocol.
            Some(_) => {}
        }
    }
}

async fn list_ipc(path: &std::path::Path) -> Result<Content, SnapshotError> {
    let mut stream = open_ipc(path).await?;
    stream.write_all(REQUEST.as_bytes()).await?;
    let mut scanner = ContentScanner::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut total = 0u64;
    loop {
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Err(SnapshotError::Truncated(total));
        }
        total = total.saturating_add(count as u64);
        if scanner.feed(chunk.get(..count).unwrap_or_default())? {
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
    code: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Pending,
    Queued,
}

/// The longest string that matters: a hash with its `0x`.
const TEXT_BYTES: usize = 66;

/// The longest error code that matters: six characters, and room for codes of the host's own.
const CODE_BYTES: usize = 12;

/// Depth of a transaction's fields: below the answer, the result, the list, the sender, the
/// transaction.
const FIELD_DEPTH: usize = 5;

impl ContentScanner {
    /// Scans the next piece; true when the answer is complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<bool, SnapshotError> {
        let mut rest = bytes;
        while let Some((byte, after)) = rest.split_first() {
            if self.in_string {
                rest = self.string(rest)?;
                continue;
            }
            // Outside of strings there are only a few bytes between two structural ones, so a plain
            // loop is fast enough.
            rest = after;
            match *byte {
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
                b'-' | b'0'..=b'9'
                    if self.in_error
                        && self.depth == 2
                        && self.key == b"code"
                        && self.code.len() < CODE_BYTES =>
                {
                    self.code.push(*byte);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// The hashes found. An error if the answer was an error response, or not the content of a
    /// pool.
    pub(crate) fn finish(self) -> Result<Content, SnapshotError> {
        if !self.error.is_empty() {
            let code = std::str::from_utf8(&self.code).ok().and_then(|code| code.parse().ok());
            let message = String::from_utf8_lossy(&self.error).into_owned();
            return Err(SnapshotError::Refused { code: code.unwrap_or(0), message });
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
        self.depth = self.depth.saturating_add(1);
        // Pool content is 5 deep, an access list inside it 8.
        if self.depth > 64 { Err(SnapshotError::NotAPool) } else { Ok(()) }
    }

    /// Continues inside a string; returns what follows of the piece.
    fn string<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], SnapshotError> {
        if self.escaped {
            self.escaped = false;
            self.keep = false;
            return Ok(bytes.get(1..).unwrap_or_default());
        }
        let end = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        let (text, rest) = bytes.split_at(end);
        if self.keep {
            let limit = if self.in_error { 200 } else { TEXT_BYTES };
            let room = limit.saturating_sub(self.text.len());
            self.keep = self.in_error || text.len() <= room;
            self.text.extend_from_slice(text.get(..room).unwrap_or(text));
        }
        match rest.split_first() {
            None => Ok(rest),
            Some((b'\\', rest)) => {
                self.escaped = true;
                Ok(rest)
            }
            Some((_, rest)) => {
                self.in_string = false;
                if !self.keep {
                    self.text.clear();
                }
                if self.after_colon {
                    self.value()?;
                }
                Ok(rest)
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
    use testkit::corpus::{damaged_seeds, seeds};

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

        #[test]
        fn a_damaged_list_gives_the_same_hashes_however_the_bytes_are_cut(
            bytes in damaged_seeds("pool-lists"),
            piece in 1usize..80,
        ) {
            prop_assert_eq!(scan(&bytes, bytes.len()).ok(), scan(&bytes, piece).ok());
        }
    }

    #[test]
    fn the_kept_lists_are_scanned_or_refused() {
        for seed in seeds("pool-lists") {
            for piece in [1, 7, 1 << 16] {
                let found = scan(&seed.bytes, piece);
                assert_eq!(found.is_ok(), seed.is_good(), "{}: {found:?}", seed.name);
            }
        }
    }

    #[test]
    fn an_error_response_is_an_error_with_the_nodes_message() {
        let bytes =
            br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}"#;
        let error = scan(bytes, 5).unwrap_err();
        assert!(
            matches!(&error, SnapshotError::Refused { code: -32601, message } if message == "no such method"),
            "{error}"
        );
        assert!(!error.is_retryable());
        let busy = br#"{"error":{"message":"code 1","data":{"code":7},"code":-32005},"id":1}"#;
        let error = scan(busy, 3).unwrap_err();
        assert!(matches!(&error, SnapshotError::Refused { code: -32005, .. }), "{error}");
        assert!(error.is_retryable());
    }

    #[tokio::test]
    async fn over_websocket_a_list_above_the_limit_ends_with_an_error_of_its_own() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(REQUEST));
            // The other side may have had enough before the end.
            let _ = socket.send(Message::text(" ".repeat(4096))).await;
        };
        let (result, ()) = tokio::join!(list_ws(&url, 1024, Duration::from_secs(60)), serve);
        let error = result.unwrap_err();
        assert!(matches!(error, SnapshotError::Oversized(1024)), "{error}");
        assert!(!error.is_retryable());
    }

    #[test]
    fn plain_text_is_not_a_pool() {
        let error = scan(b"Too many connections. Please try again later.", 64).unwrap_err();
        assert!(matches!(error, SnapshotError::NotAPool));
    }
}
