//! Peers that are no node: a typed error that names the path and the likely cause, and no hang.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    thread,
};

use testkit::ingest::socket;
use tokio::sync::mpsc;
use txpool_fetcher::{
    ConnectError, FetchedTransaction, Fetcher, FetcherConfig, Limits, StartError,
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

/// Serves every connection with `serve` on threads of its own.
fn peer(path: &Path, serve: impl Fn(UnixStream) + Send + Clone + 'static) {
    let listener = UnixListener::bind(path).expect("a fresh path");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
}

#[tokio::test]
async fn a_missing_path_is_named() {
    let (_folder, path) = socket();
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::Missing { .. }), "{error:?}");
    assert!(error.to_string().contains("--ipcpath"));
}

#[tokio::test]
async fn a_file_is_not_a_socket() {
    let (_folder, path) = socket();
    std::fs::write(&path, "no socket").unwrap();
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::NotASocket { .. }), "{error:?}");
}

#[tokio::test]
async fn a_socket_without_a_listener_is_left_over() {
    let (_folder, path) = socket();
    drop(UnixListener::bind(&path).unwrap());
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_closes_at_once_is_told_from_one_that_speaks() {
    let (_folder, path) = socket();
    peer(&path, drop);
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::ClosedAtOnce { .. }), "{error:?}");
}

#[tokio::test]
async fn plain_text_is_quoted() {
    let (_folder, path) = socket();
    peer(&path, |mut stream| {
        let _ = stream.write_all(b"Too many connections. Please try again later.");
    });
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::NotJsonRpc { .. }), "{error:?}");
    assert!(error.to_string().contains("Too many connections"), "{error}");
}

#[tokio::test]
async fn garbage_is_quoted() {
    let (_folder, path) = socket();
    peer(&path, |mut stream| {
        let _ = stream.write_all(b"\x16\x03\x01\x00\xff}}}]]");
        let mut rest = String::new();
        // Until the other side has had enough.
        let _ = BufReader::new(stream).read_line(&mut rest);
    });
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::NotJsonRpc { .. }), "{error:?}");
}

#[tokio::test]
async fn a_peer_that_never_answers_does_not_hang_the_start() {
    let (_folder, path) = socket();
    peer(&path, |stream| {
        let mut rest = String::new();
        let _ = BufReader::new(stream).read_line(&mut rest);
    });
    let error = start(&path).await;
    assert!(matches!(error, ConnectError::NoAnswer { method: "eth_chainId", .. }), "{error:?}");
}

/// Answers every request with the same result or error, under the request's id.
fn answering(path: &Path, answer: &'static str) {
    peer(path, move |stream| {
        let mut requests =
            serde_json::Deserializer::from_reader(stream.try_clone().expect("a second handle"))
                .into_iter::<serde_json::Value>();
        let mut stream = stream;
        while let Some(Ok(request)) = requests.next() {
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},{answer}}}\n", request["id"]);
            if stream.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
}

#[tokio::test]
async fn a_json_rpc_peer_that_is_no_node_is_found_out() {
    for answer in [
        r#""result":"not a number""#,
        r#""result":{"a":1}"#,
        r#""error":{"code":-32601,"message":"the method does not exist"}"#,
    ] {
        let (_folder, path) = socket();
        answering(&path, answer);
        let error = start(&path).await;
        assert!(matches!(error, ConnectError::NotEthereum { .. }), "{error:?}");
    }
}
