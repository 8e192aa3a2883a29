//! Peers of a few lines at a Unix socket.

use std::{
    io::Write as _,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    thread,
};

use serde_json::{Value, json};

/// Serves every connection on a thread of its own.
pub(crate) fn serve(path: &Path, serve: impl Fn(UnixStream) + Send + Clone + 'static) {
    let listener = UnixListener::bind(path).expect("a fresh path");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
}

/// The requests that come over a connection, until it ends.
pub(crate) fn requests(stream: &UnixStream) -> impl Iterator<Item = Value> + use<> {
    let reader = stream.try_clone().expect("a second handle");
    serde_json::Deserializer::from_reader(reader).into_iter().map_while(Result::ok)
}

/// Sends a response with this `result` or `error`. The other side may have stopped waiting.
pub(crate) fn respond(mut stream: &UnixStream, request: &Value, mut response: Value) {
    response["jsonrpc"] = json!("2.0");
    response["id"] = request["id"].clone();
    let _ = writeln!(stream, "{response}");
}

/// Sends a notification. The subscriber may be gone.
pub(crate) fn notify(mut stream: &UnixStream, subscription: &str, result: &Value) {
    let params = json!({ "subscription": subscription, "result": result });
    let note = json!({ "jsonrpc": "2.0", "method": "eth_subscription", "params": params });
    let _ = writeln!(stream, "{note}");
}

/// Closes a connection, unless the other side has.
pub(crate) fn close(stream: UnixStream) {
    let _ = stream.shutdown(std::net::Shutdown::Both);
}
