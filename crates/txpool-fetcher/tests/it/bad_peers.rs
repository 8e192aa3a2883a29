//! Peers that are not a node: the start returns a typed error with the path and the likely cause.

use std::{io::Write as _, os::unix::net::UnixListener, path::Path};

use super::{
    fake::{requests, respond, serve},
    *,
};

async fn start(path: &Path) -> ConnectError {
    let ping_timeout = std::time::Duration::from_millis(300);
    let limits = Limits { ping_timeout, ..Limits::default() };
    let (sender, _receiver) = mpsc::channel::<FetchedTransaction>(1);
    match Fetcher::start_with(FetcherConfig::ipc(path), limits, sender).await {
        Err(StartError::Connect(error)) => {
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            error
        }
        other => panic!("a typed error was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn a_path_without_a_listener_is_named_with_the_likely_cause() {
    for hint in ["--ipcpath", "not a socket", "left over"] {
        let (_folder, path) = socket();
        match hint {
            "not a socket" => std::fs::write(&path, "no socket").unwrap(),
            "left over" => drop(UnixListener::bind(&path).unwrap()),
            _ => {}
        }
        let error = start(&path).await;
        assert!(matches!(error, ConnectError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[tokio::test]
async fn the_error_shows_the_first_message_of_a_wrong_peer() {
    // The bytes that the peer sends, whether it keeps the connection open, and the expected error.
    let cases: [(&[u8], bool, &str); 4] = [
        (b"", false, "closed the connection before it answered"),
        (b"Too many connections. Please try again later.", false, "sent: \"Too many connections"),
        (b"\x16\x03\x01\x00\xff}}}]]", true, "does not answer as a node does"),
        (b"", true, "no answer to eth_chainId"),
    ];
    for (says, waits, expected) in cases {
        let (_folder, path) = socket();
        serve(&path, move |mut stream| {
            // The fetcher may have closed the connection.
            let _ = stream.write_all(says);
            if waits {
                requests(&stream).for_each(drop);
            }
        });
        let error = start(&path).await.to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_json_rpc_peer_that_is_no_node_is_refused() {
    for response in [
        Ok(json!("not a number")),
        Ok(json!({ "a": 1 })),
        Err(json!({ "code": -32601, "message": "the method does not exist" })),
    ] {
        let (_folder, path) = socket();
        serve(&path, move |stream| {
            requests(&stream).for_each(|request| respond(&stream, &request, &response));
        });
        let error = start(&path).await;
        assert!(matches!(error, ConnectError::NotEthereum { .. }), "{error:?}");
    }
}
