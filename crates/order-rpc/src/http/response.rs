//! Builds responses: their status, headers and body.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::Full;

use crate::{
    limits::HeldBytes,
    reply::{ErrorResponse, Reply},
};

/// Builds the response to a request that was run. `held` is resized to the response, and released
/// when its last byte was written to the socket.
pub(super) fn from_reply(reply: Reply, mut held: HeldBytes) -> Response<Full<Bytes>> {
    let Reply { text, error } = reply;
    held.resize(text.len());
    json(Bytes::from_owner(HeldText { text, _held: held }), error.as_ref())
}

/// Builds the response to a request that was not parsed, so its id is null. With
/// `closes_connection` the connection ends after it.
pub(super) fn from_error(error: &ErrorResponse, closes_connection: bool) -> Response<Full<Bytes>> {
    let mut response = json(error.json("null"), Some(error));
    if closes_connection {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Builds a response with this body, and with the status and headers of the error in it.
pub(super) fn json(text: impl Into<Bytes>, error: Option<&ErrorResponse>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    let Some(error) = error else { return response };
    *response.status_mut() = error.status;
    if let Some(secs) = error.retry_after_secs() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(secs));
    }
    response
}

/// Returns the bytes of an error response that closes its connection, for a connection that hyper
/// does not serve.
pub(super) fn raw_http(error: &ErrorResponse) -> String {
    let body = error.json("null");
    let head = from_error(error, true);
    let status = head.status();
    let length = body.len();
    let mut text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n");
    for (name, value) in head.headers() {
        let value = String::from_utf8_lossy(value.as_bytes());
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n" + &body
}

/// The text of a response, with its share of the buffered bytes.
struct HeldText {
    text: String,
    _held: HeldBytes,
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
