//! Lists the hashes of a node's pool, from the response to `txpool_content` while it arrives.
//!
//! The response has 10 MB for 10,000 transactions, or any size with blob sidecars (anvil). Over IPC
//! only the hashes and the current string are held in memory; over WebSocket the whole message.

// Input from outside is read here: no input may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{fmt, io::Read, sync::Arc};

use alloy_primitives::B256;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use crate::{
    answer::{LongCall, result_of},
    config::Endpoint,
    error::SnapshotError,
    limits::Limits,
    tasks::Tasks,
};

/// The highest number of pending hashes, and of queued ones: 2^22, which are 128 MiB. No node's
/// pool holds as many.
const MAX_HASHES: usize = 1 << 22;

/// Longest list over WebSocket: 256 MiB, which is about 200,000 transactions. reth sends at most
/// 160 MB.
const MAX_LISTING_BYTES: usize = 256 * 1024 * 1024;

/// The list of a node's pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) pending: Vec<B256>,
    pub(crate) queued: Vec<B256>,
    /// Whether the list contains a blob transaction: geth lists none.
    pub(crate) lists_blobs: bool,
}

/// The result of `txpool_content`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Pool {
    #[serde(deserialize_with = "read_hashes")]
    pending: Hashes,
    #[serde(deserialize_with = "read_hashes")]
    queued: Hashes,
}

/// The hashes of pending, or of queued transactions.
#[derive(Default)]
struct Hashes {
    hashes: Vec<B256>,
    has_blobs: bool,
}

/// Requests the list of a node's pool.
pub(super) async fn request(
    endpoint: &Endpoint,
    limits: &Limits,
    tasks: &Arc<Tasks>,
) -> Result<Content, SnapshotError> {
    let call = LongCall {
        endpoint,
        method: "txpool_content",
        params: "[]",
        max_bytes: limits.max_frame_bytes.max(MAX_LISTING_BYTES),
        time_limit: limits.snapshot_timeout,
    };
    call.read(tasks, read).await?
}

/// Reads the list. This may block for seconds.
fn read(answer: impl Read) -> Result<Content, SnapshotError> {
    let Pool { pending, queued } = result_of(answer)?.ok_or(SnapshotError::NotAPool)?;
    if pending.hashes.len().max(queued.hashes.len()) > MAX_HASHES {
        return Err(SnapshotError::TooMany);
    }
    let lists_blobs = pending.has_blobs || queued.has_blobs;
    Ok(Content { pending: pending.hashes, queued: queued.hashes, lists_blobs })
}

/// Reads the hashes in `{ sender: { nonce: { "hash": .. } } }`, at most one more than
/// [`MAX_HASHES`].
fn read_hashes<'de, D: Deserializer<'de>>(json: D) -> Result<Hashes, D::Error> {
    let mut found = Hashes::default();
    HashesSeed { levels: 2, found: &mut found }.deserialize(json)?;
    Ok(found)
}

/// Reads the hashes of transactions that are nested in `levels` objects.
struct HashesSeed<'a> {
    levels: u8,
    found: &'a mut Hashes,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    hash: Option<B256>,
    /// Only blob transactions have this field, by the execution-apis specification.
    blob_versioned_hashes: Option<IgnoredAny>,
}

impl<'de> DeserializeSeed<'de> for HashesSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        if self.levels > 0 {
            return json.deserialize_map(self);
        }
        let listed = Listed::deserialize(json)?;
        let Hashes { hashes, has_blobs } = self.found;
        hashes.extend(listed.hash.filter(|_| hashes.len() <= MAX_HASHES));
        *has_blobs |= listed.blob_versioned_hashes.is_some();
        Ok(())
    }
}

impl<'de> Visitor<'de> for HashesSeed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let levels = self.levels.saturating_sub(1);
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(HashesSeed { levels, found: &mut *self.found })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, BufReader, Write as _},
        os::unix::net,
        time::Duration,
    };

    use futures::{SinkExt as _, StreamExt as _};
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};
    use testkit::corpus::{damaged_seeds, seeds};
    use tokio::runtime::Handle;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"txpool_content","params":[]}"#;

    struct Pieces<'a>(std::slice::Chunks<'a, u8>);

    impl Read for Pieces<'_> {
        fn read(&mut self, mut buffer: &mut [u8]) -> io::Result<usize> {
            io::Write::write(&mut buffer, self.0.next().unwrap_or_default())
        }
    }

    fn scan(bytes: &[u8], piece: usize) -> Result<Content, SnapshotError> {
        read(BufReader::new(Pieces(bytes.chunks(piece.clamp(1, 8 << 10)))))
    }

    fn tasks() -> Arc<Tasks> {
        Tasks::new(Handle::current(), CancellationToken::new()).into()
    }

    /// Requests the list over IPC from a node that sends the response with `send`.
    async fn list_from(send: impl FnOnce(net::UnixStream) + Send + 'static) -> SnapshotError {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.ipc");
        let node = net::UnixListener::bind(&path).unwrap();
        let node = std::thread::spawn(move || {
            let mut stream = node.accept().unwrap().0;
            stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
            send(stream);
        });
        let listed = request(&Endpoint::Ipc(path), &Limits::default(), &tasks()).await;
        let error = listed.unwrap_err();
        node.join().unwrap();
        error
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
        fn the_listed_hashes_do_not_depend_on_the_pieces(
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
        fn a_damaged_list_is_read_alike_in_any_pieces(
            bytes in damaged_seeds("pool-lists"),
            piece in 1usize..80,
        ) {
            prop_assert_eq!(scan(&bytes, bytes.len()).ok(), scan(&bytes, piece).ok());
        }
    }

    #[test]
    fn the_corpus_of_lists_is_read_or_refused() {
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
    async fn the_error_of_a_truncated_list_says_where_it_ended() {
        let cut = br#"{"result":{"pending":{"0x01"#;
        let error = list_from(|mut node| node.write_all(cut).unwrap()).await;
        assert!(matches!(error, SnapshotError::Truncated(27)), "{error}");
    }

    /// Before the fix an error was held as a whole, and one byte for each open bracket of skipped
    /// values.
    #[tokio::test]
    async fn strings_errors_and_brackets_without_an_end_are_not_held() {
        for (begin, again) in [
            (r#"{"result":{"pending":{"0x01"#, "aaaa"),
            (r#"{"error":{"a":["#, r#""","#),
            (r#"{"x":"#, r#"["","#),
            (r#"{"result":{"x":"#, r#"["]","#),
        ] {
            let error = list_from(move |mut node| {
                node.write_all(begin.as_bytes()).unwrap();
                let again = again.repeat(1 << 14);
                for _ in 0..(64 << 20) / again.len() {
                    if node.write_all(again.as_bytes()).is_err() {
                        return;
                    }
                }
            })
            .await;
            assert!(matches!(error, SnapshotError::NotAPool), "{begin}: {error}");
        }
    }

    #[tokio::test]
    async fn a_list_above_the_limit_ends_its_websocket_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            let request = socket.next().await.unwrap().unwrap().into_text().unwrap();
            assert!(request.contains(r#""method":"txpool_content","params":[]"#), "{request}");
            // The fetcher may have closed the connection.
            let _ = socket.send(Message::text(" ".repeat(4096))).await;
        };
        let (endpoint, time_limit) = (Endpoint::Ws(url), Duration::from_secs(60));
        let list = async {
            let call = LongCall {
                endpoint: &endpoint,
                method: "txpool_content",
                params: "[]",
                max_bytes: 1024,
                time_limit,
            };
            call.read(&tasks(), read).await.map(drop)
        };
        let (result, ()) = tokio::join!(list, serve);
        let error = result.unwrap_err();
        assert!(matches!(error, SnapshotError::ConnectionLost), "{error}");
    }
}
