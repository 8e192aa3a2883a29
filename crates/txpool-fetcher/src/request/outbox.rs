//! Formats requests and writes them into a socket that may be full.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "positions in bytes of our own"
)]

use std::io::{ErrorKind, Write as _};

use alloy_primitives::B256;

use super::client::PING_ID;
use crate::{config::MAX_FETCH_SLOTS, connection::BlockingSocket};

/// Most bytes that wait for a node that does not read: two requests for each of the most fetch
/// slots, at about 150 bytes each. A request beyond that is not written, and times out like one
/// that the node has not read.
const OUTBOX_BYTES: usize = 2 * MAX_FETCH_SLOTS * 150;

/// Formatted requests that were not sent yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// Appends the request for a transaction,
    /// `{"jsonrpc":"2.0","method":"eth_getRawTransactionByHash","params":["0x…"],"id":…}`. False when there is no room.
    /// Nodes need no separator between two requests.
    pub(super) fn push(&mut self, id: u64, hash: &B256) -> bool {
        self.append(|bytes| {
            bytes.extend_from_slice(
                br#"{"jsonrpc":"2.0","method":"eth_getRawTransactionByHash","params":["0x"#,
            );
            let hex = bytes.len();
            bytes.resize(hex + 64, 0);
            const_hex::encode_to_slice(hash, &mut bytes[hex..]).expect("32 bytes are 64 digits");
            write!(bytes, r#""],"id":{}}}"#, id).expect("a vector takes every write");
        })
    }

    pub(super) fn push_ping(&mut self) -> bool {
        let (id, method) = (PING_ID, "eth_blockNumber");
        self.append(|bytes| {
            write!(bytes, r#"{{"jsonrpc":"2.0","method":"{method}","params":[],"id":{id}}}"#)
                .expect("a vector takes every write");
        })
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.unsent().len() >= OUTBOX_BYTES {
            return false;
        }
        if self.sent > OUTBOX_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        write(&mut self.bytes);
        true
    }

    /// Sends as much as the socket has room for.
    pub(super) fn send(&mut self, socket: &BlockingSocket) {
        while !self.unsent().is_empty() {
            match socket.send(self.unsent()) {
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The connection has ended; its reader finds out why, and nothing is sent any more.
                Err(_) => self.advance(self.unsent().len()),
            }
        }
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_request_is_the_json_that_a_node_expects() {
        let hash = B256::repeat_byte(0xab);
        let mut outbox = Outbox::default();
        assert!(outbox.push(70_000, &hash) && outbox.push_ping());
        let mut values = serde_json::Deserializer::from_slice(outbox.unsent()).into_iter::<Value>();
        let request = values.next().unwrap().unwrap();
        assert_eq!(
            request,
            json!({
                "jsonrpc": "2.0", "id": 70_000, "method": "eth_getRawTransactionByHash",
                "params": [hash],
            })
        );
        assert_eq!(values.next().unwrap().unwrap()["method"], "eth_blockNumber");
        assert!(values.next().is_none());
    }

    #[test]
    fn what_a_node_does_not_read_is_bounded_and_what_it_reads_makes_room() {
        let mut outbox = Outbox::default();
        let id = 70_000;
        while outbox.push(id, &B256::ZERO) {}
        assert!(outbox.bytes.len() < OUTBOX_BYTES + 200 && !outbox.push_ping());
        for _ in 0..10_000 {
            outbox.advance(150);
            outbox.push(id, &B256::ZERO);
            assert!(outbox.bytes.len() < 3 * OUTBOX_BYTES);
        }
        let rest = outbox.unsent().len();
        outbox.advance(rest);
        assert!(outbox.unsent().is_empty() && outbox.push(id, &B256::ZERO));
    }
}
