//! Turns a right answer into a wrong one.

use std::time::Duration;

use super::{error::RpcError, server::TOO_MANY, write_error, write_result};
use crate::faults::{BadAnswer, LARGE_ANSWER_BYTES};

/// Answers of [`BadAnswer::OutOfOrder`] come up to so much later.
pub(super) const OVERTAKEN_BY: Duration = Duration::from_millis(20);

/// Of an answer of [`BadAnswer::ByteByByte`], how many bytes are one write each.
pub(super) const SINGLE_BYTES: usize = 4096;

/// What goes out instead of `right`; `None` when nothing does. The answer's line end is added by the caller.
pub(super) fn spoil(bad: BadAnswer, id: &str, mut right: Vec<u8>) -> Option<Vec<u8>> {
    let mut wrong = Vec::new();
    match bad {
        // These are wrong in their time, in how they are written, or in what was looked up.
        BadAnswer::OutOfOrder | BadAnswer::ByteByByte | BadAnswer::WrongTransaction => {
            return Some(right);
        }
        BadAnswer::Never => return None,
        BadAnswer::Truncated => {
            right.truncate(right.len() / 2);
            return Some(right);
        }
        BadAnswer::Null => write_result(&mut wrong, id, b"null"),
        BadAnswer::Error => write_error(&mut wrong, id, &RpcError::new(-32603, "Internal error")),
        BadAnswer::Busy => {
            let busy = "transaction indexing is in progress";
            write_error(&mut wrong, id, &RpcError::new(RpcError::SERVER, busy));
        }
        BadAnswer::Garbage => wrong.extend_from_slice(b"<html>502 Bad Gateway</html>"),
        BadAnswer::PlainText => wrong.extend_from_slice(TOO_MANY),
        BadAnswer::Large => {
            let zeros = format!("\"0x{}\"", "0".repeat(LARGE_ANSWER_BYTES));
            write_result(&mut wrong, id, zeros.as_bytes());
        }
    }
    Some(wrong)
}
