//! Turns a right answer into a wrong one.

use std::time::Duration;

use super::{error::RpcError, server::TOO_MANY, write_error};
use crate::{
    faults::{BadAnswer, LARGE_ANSWER_BYTES},
    outbox::Message,
};

/// Answers of [`BadAnswer::OutOfOrder`] come up to so much later.
pub(super) const OVERTAKEN_BY: Duration = Duration::from_millis(20);

/// What goes out instead of `right`; `None` when nothing does. The answer's line end is added by the caller.
pub(super) fn spoil(bad: BadAnswer, id: &str, right: Message) -> Option<Message> {
    let mut wrong = Message::default();
    let out = wrong.text();
    match bad {
        // These two are wrong in their time and in what was looked up.
        BadAnswer::OutOfOrder | BadAnswer::WrongTransaction => return Some(right),
        BadAnswer::Never => return None,
        BadAnswer::ByteByByte => return Some(right.in_single_bytes(4096)),
        BadAnswer::Truncated => return Some(right.half()),
        BadAnswer::Null => result(out, id, b"null"),
        BadAnswer::Error => write_error(out, id, &RpcError::new(-32603, "Internal error")),
        BadAnswer::Busy => {
            let busy = "transaction indexing is in progress";
            write_error(out, id, &RpcError::new(RpcError::SERVER, busy));
        }
        BadAnswer::Garbage => out.extend_from_slice(b"<html>502 Bad Gateway</html>"),
        BadAnswer::PlainText => out.extend_from_slice(TOO_MANY),
        BadAnswer::Large => {
            let mut zeros = b"\"0x".to_vec();
            zeros.resize(LARGE_ANSWER_BYTES, b'0');
            zeros.push(b'"');
            result(out, id, &zeros);
        }
    }
    Some(wrong)
}

fn result(out: &mut Vec<u8>, id: &str, result: &[u8]) {
    for part in [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#, result, b"}"] {
        out.extend_from_slice(part);
    }
}
