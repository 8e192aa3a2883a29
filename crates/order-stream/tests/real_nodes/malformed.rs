//! Messages whose headers the client cannot read.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};

use alloy_primitives::hex;
use order_stream::wire::TxRecord;

use super::*;

const EVIL: &str = "mempool.1.tx.0.evil";

/// A client that sends what it is told.
pub(super) struct RawClient(BufReader<TcpStream>);

impl RawClient {
    /// `auth` is part of a JSON object.
    pub(super) fn connect(server: &NatsServer, auth: &str) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        let mut client = Self(BufReader::new(socket));
        let comma = if auth.is_empty() { "" } else { "," };
        let hello = format!("{{\"verbose\":false,\"headers\":true{comma}{auth}}}");
        client.send(format!("CONNECT {hello}\r\n").as_bytes());
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("a server");
    }

    /// Publishes a message; the server has it when this returns.
    pub(super) fn store(&mut self, subject: &str, headers: &str, payload: &[u8]) {
        let (length, total) = (headers.len(), headers.len() + payload.len());
        let head = format!("HPUB {subject} {length} {total}\r\n{headers}");
        self.send(&[head.as_bytes(), payload, b"\r\nPING\r\n"].concat());
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("a server") > 0, "the server has hung up");
            assert!(!line.starts_with("-ERR"), "{line}");
        }
    }

    pub(super) fn store_tx(&mut self, headers: &str, tx: &Transaction) {
        let encoded = TxRecord::of(tx).encode();
        let id = hex::encode(encoded.id);
        let headers = format!("{headers}\r\nNats-Msg-Id: {id}\r\n\r\n");
        self.store(EVIL, &headers, &encoded.payload);
    }
}

#[tokio::test]
async fn malformed_headers_cost_their_own_message_and_no_other() {
    let stage = Stage::new(streams()).await;
    let (ingested, live, late) = (pool(), pool(), pool());
    let txs = transactions(51, 303, 0);
    let publisher = stage.publisher(&ingested, "a");
    let at_once = stage.source(&live, "live");
    insert(&ingested, &txs[..100]);
    until_equal(&ingested, &live).await;
    let mut evil = RawClient::connect(&stage.server, "");
    for malformed in ["no colon", "A: b\rc", "A b: c"] {
        evil.store(EVIL, &format!("NATS/1.0\r\n{malformed}\r\n\r\n"), b"x");
    }
    insert(&ingested, &txs[100..200]);
    until("all stored", || publisher.stats().stored == 200).await;
    // These can be decoded. Of the third, nats-server 2.12 does not store the status.
    evil.store_tx("NATS/1.0\r\nno colon", &txs[300]);
    evil.store_tx("NATS/1.0\r\nA: b\rc", &txs[301]);
    evil.store_tx("NATS/1.0 503 No Responders", &txs[302]);
    insert(&ingested, &txs[200..300]);
    let later = stage.source(&late, "late");
    for (pool, source) in [(live, at_once), (late, later)] {
        let took = until("all good ones", || pool.stats().txs == 303).await;
        println!("all good ones {took:?} after the last was stored");
        until("live", || source.state() == State::Live && source.stats().behind == 0).await;
        let stats = source.shutdown(PATIENCE).await;
        println!("{stats:?}");
        assert_eq!((stats.pooled, stats.malformed, stats.missed), (303, 3, 0), "{stats:?}");
        assert_eq!((stats.received, stats.unfinished), (306, 0), "{stats:?}");
    }
    finish(publisher).await;
}
