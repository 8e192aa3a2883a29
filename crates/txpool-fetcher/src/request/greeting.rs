//! The first exchange on a connection, before its thread starts.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use super::{
    frame::{Frame, Frames, Garbage, clipped},
    outbox::write_ping,
    response::{NotAResponse, Response},
    slab::RequestId,
};
use crate::error::LossReason;

/// More than any node answers to a request for its block number.
const MAX_BYTES: usize = 64 * 1024;

/// One request and the wait for its answer. No I/O of its own.
#[derive(Debug)]
pub(crate) struct Greeting {
    frames: Frames,
    is_answered: bool,
}

impl Greeting {
    /// The method of the request.
    pub(crate) const METHOD: &str = "eth_blockNumber";

    pub(crate) fn new() -> Self {
        Self { frames: Frames::new(MAX_BYTES), is_answered: false }
    }

    pub(crate) fn request(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_ping(&mut bytes);
        bytes
    }

    pub(crate) fn spare(&mut self) -> &mut [u8] {
        self.frames.spare()
    }

    /// Records that `count` bytes were read into [`Self::spare`].
    pub(crate) fn read(&mut self, count: usize) -> Result<(), LossReason> {
        self.frames.filled(count);
        loop {
            match self.frames.next() {
                Ok(Some(Frame::Value(value))) => match Response::read(value) {
                    // An error is an answer too.
                    Ok(response) => self.is_answered |= response.id == RequestId::PING.get(),
                    Err(NotAResponse::NoId) => {}
                    Err(NotAResponse::NotJson) => {
                        return Err(LossReason::Garbage(clipped(value).0));
                    }
                },
                Ok(Some(Frame::Oversized { .. })) => {}
                Ok(None) => return Ok(()),
                Err(Garbage(said)) => return Err(LossReason::Garbage(said)),
            }
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeted(pieces: &[&str]) -> Result<bool, LossReason> {
        let mut greeting = Greeting::new();
        for piece in pieces {
            greeting.spare()[..piece.len()].copy_from_slice(piece.as_bytes());
            greeting.read(piece.len())?;
        }
        Ok(greeting.is_answered())
    }

    #[test]
    fn only_the_answer_to_the_request_ends_the_wait() {
        let id = RequestId::PING.get();
        assert_eq!(greeted(&[r#"{"id":1,"result":"0x1"}"#]), Ok(false));
        assert_eq!(
            greeted(&[r#"{"jsonrpc":"2.0","id":"#, &format!("{id},"), r#""result":"0x1"}"#]),
            Ok(true)
        );
        assert_eq!(greeted(&[&format!(r#"{{"id":{id},"error":{{"code":-32601}}}}"#)]), Ok(true));
        assert!(matches!(greeted(&["Too many connections."]), Err(LossReason::Garbage(_))));
    }
}
