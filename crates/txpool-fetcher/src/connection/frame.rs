//! Splits a byte stream into JSON values, wherever the reads divide it.

use memchr::{memchr2, memrchr};

use crate::error::LossReason;

/// Size of the buffer while answers are small: about 130 answers of a token transfer.
const BASE_BYTES: usize = 64 * 1024;

/// Least free space for a read. A smaller one would cost a system call for each answer.
const MIN_READ_BYTES: usize = 16 * 1024;

/// How many consecutive values must fit the base size before a grown buffer shrinks again. Blobs
/// often come in series, and mapping and clearing 2 MB for each takes longer than decoding it.
const SMALL_BEFORE_SHRINK: u32 = 64;

/// How many bytes of the start and of the end of an oversized value are kept, to find its id.
const EDGE_BYTES: usize = 256;

/// One complete value of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// An object or array with balanced brackets. The parser decides whether it is valid JSON.
    Value(&'a [u8]),
    /// A value above the limit. The rest of it is read and dropped, so the connection stays usable.
    Oversized {
        /// The id of its response, if it is near the start or the end of the value.
        id: Option<u64>,
    },
}

/// The buffer between the socket and the parser.
///
/// It holds at most one incomplete value and the bytes that were read after it: about twice the
/// limit for one value, and only while such a value arrives.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Initialized throughout; the unprocessed bytes are in `start..filled`.
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    max_frame_bytes: usize,
    scan: Scan,
    oversized: Option<Oversized>,
    small_in_a_row: u32,
}

/// How far the value at `start` has been scanned. Each byte is scanned once.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    bytes: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

#[derive(Debug)]
struct Oversized {
    reported: bool,
    tail: Vec<u8>,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "start + scan.bytes <= filled <= buffer.len() holds throughout; these are positions of what was read, and \
              no number from the stream is among them"
)]
impl Frames {
    pub(crate) fn new(max_frame_bytes: usize) -> Self {
        Self {
            buffer: vec![0; BASE_BYTES],
            start: 0,
            filled: 0,
            max_frame_bytes,
            scan: Scan::default(),
            oversized: None,
            small_in_a_row: 0,
        }
    }

    /// Where the next read goes. Never empty.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        if self.start == self.filled {
            self.start = 0;
            self.filled = 0;
            if self.buffer.len() > BASE_BYTES && self.small_in_a_row >= SMALL_BEFORE_SHRINK {
                self.buffer = vec![0; BASE_BYTES];
            }
        }
        if self.buffer.len() - self.filled < MIN_READ_BYTES {
            self.buffer.copy_within(self.start..self.filled, 0);
            self.filled -= self.start;
            self.start = 0;
            if self.buffer.len() - self.filled < MIN_READ_BYTES {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        &mut self.buffer[self.filled..]
    }

    /// Records that `count` bytes were read into [`Self::spare`].
    pub(crate) fn filled(&mut self, count: usize) {
        self.filled += count;
        debug_assert!(self.filled <= self.buffer.len());
    }

    /// The next value that is complete, or that is known to be too large.
    ///
    /// # Errors
    /// [`LossReason::Garbage`]: the next byte starts neither an object nor an array, so nothing after it can
    /// be trusted.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, LossReason> {
        if self.oversized.is_some() && !self.skip_oversized() {
            return Ok(None);
        }
        if let Some(oversized) = self.oversized.take()
            && !oversized.reported
        {
            return Ok(Some(Frame::Oversized { id: id_at_end(&oversized.tail) }));
        }
        if self.scan.bytes == 0 && !self.find_start()? {
            return Ok(None);
        }
        let unread = &self.buffer[self.start..self.filled];
        let complete = self.scan.advance(unread);
        if self.scan.bytes > self.max_frame_bytes {
            return Ok(self.begin_oversized(complete));
        }
        if !complete {
            return Ok(None);
        }
        let value = self.start..self.start + self.scan.bytes;
        self.start = value.end;
        self.scan = Scan::default();
        let is_small = value.len() <= BASE_BYTES;
        self.small_in_a_row = if is_small { self.small_in_a_row.saturating_add(1) } else { 0 };
        Ok(Some(Frame::Value(&self.buffer[value])))
    }

    /// Skips white space; false when no other byte follows.
    fn find_start(&mut self) -> Result<bool, LossReason> {
        let unread = &self.buffer[self.start..self.filled];
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let Some(skipped) = unread.iter().position(|byte| !is_space(byte)) else {
            self.start = self.filled;
            return Ok(false);
        };
        self.start += skipped;
        let unread = &unread[skipped..];
        if matches!(unread[0], b'{' | b'[') {
            return Ok(true);
        }
        Err(LossReason::garbage(unread))
    }

    fn begin_oversized(&mut self, complete: bool) -> Option<Frame<'_>> {
        let value = &self.buffer[self.start..self.start + self.scan.bytes];
        let id = id_at_start(&value[..value.len().min(EDGE_BYTES)]);
        let tail = value[value.len().saturating_sub(EDGE_BYTES)..].to_vec();
        self.start += value.len();
        self.small_in_a_row = 0;
        if complete {
            self.scan = Scan::default();
            return Some(Frame::Oversized { id: id.or_else(|| id_at_end(&tail)) });
        }
        self.scan.bytes = 0;
        self.oversized = Some(Oversized { reported: id.is_some(), tail });
        id.map(|id| Frame::Oversized { id: Some(id) })
    }

    /// Drops the bytes of the oversized value; true when its end was reached.
    fn skip_oversized(&mut self) -> bool {
        let unread = &self.buffer[self.start..self.filled];
        let complete = self.scan.advance(unread);
        let dropped = &unread[..self.scan.bytes];
        if let Some(Oversized { tail, .. }) = &mut self.oversized {
            tail.extend_from_slice(&dropped[dropped.len().saturating_sub(EDGE_BYTES)..]);
            let excess = tail.len().saturating_sub(EDGE_BYTES);
            tail.drain(..excess);
        }
        self.start += dropped.len();
        self.scan.bytes = 0;
        if complete {
            self.scan = Scan::default();
        }
        complete
    }
}

impl Scan {
    /// Scans the bytes that were not scanned yet; true when the value ends at `self.bytes`.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "bytes is at most the value's length, and a value begins with a bracket: the depth falls from 1 at least"
    )]
    fn advance(&mut self, value: &[u8]) -> bool {
        while let Some((rest, first)) =
            value.get(self.bytes..).and_then(|rest| Some((rest, rest.first()?)))
        {
            if self.escaped {
                self.escaped = false;
                self.bytes += 1;
            } else if self.in_string {
                match memchr2(b'"', b'\\', rest) {
                    None => self.bytes += rest.len(),
                    Some(at) => {
                        self.escaped = rest.get(at) == Some(&b'\\');
                        self.in_string = self.escaped;
                        self.bytes += at + 1;
                    }
                }
            } else {
                self.bytes += 1;
                match first {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return true;
                        }
                    }
                    _ => {}
                }
            }
        }
        false
    }
}

/// The number in a field `id` that precedes every value except short strings: both geth and reth
/// write `jsonrpc` and `id` first.
fn id_at_start(head: &[u8]) -> Option<u64> {
    // The value that made it too large is a string or a container; the id stands before it.
    let field = head.windows(4).position(|four| four == b"\"id\"")?;
    let result = head.windows(8).position(|eight| eight == b"\"result\"");
    if result.is_some_and(|result| result < field) {
        return None;
    }
    number_of_field(head.get(field..)?.strip_prefix(b"\"id\"")?)
}

/// The number in the last field `id` before the end of a value.
fn id_at_end(tail: &[u8]) -> Option<u64> {
    let mut before = tail;
    while let Some(quote) = memrchr(b'"', before) {
        let (head, rest) = tail.split_at_checked(quote)?;
        if head.ends_with(b"\"id") {
            return number_of_field(rest.strip_prefix(b"\"")?);
        }
        before = head;
    }
    None
}

/// The number in `: 17,`; `None` when it is not a number or is cut off.
fn number_of_field(after_key: &[u8]) -> Option<u64> {
    let rest = after_key.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use testkit::corpus::{damaged_seeds, seeds};

    const MIB: usize = 1 << 20;

    /// Everything found in `bytes` when they come in pieces of these sizes.
    fn split(bytes: &[u8], max: usize, pieces: &[usize]) -> Result<Vec<Vec<u8>>, LossReason> {
        let mut frames = Frames::new(max);
        let mut found = Vec::new();
        let mut sizes = pieces.iter().copied().cycle();
        let mut rest = bytes;
        loop {
            while let Some(frame) = frames.next()? {
                match frame {
                    Frame::Value(value) => found.push(value.to_vec()),
                    Frame::Oversized { id } => found.push(format!("oversized {id:?}").into_bytes()),
                }
            }
            if rest.is_empty() {
                return Ok(found);
            }
            let spare = frames.spare();
            let count = sizes.next().unwrap_or(1).clamp(1, rest.len().min(spare.len()));
            spare[..count].copy_from_slice(&rest[..count]);
            frames.filled(count);
            rest = &rest[count..];
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,30}".prop_map(Value::from),
            r#"["\\\\{}\\[\\]]{0,8}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::vec((".{0,6}", inner), 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_values_are_those_that_were_written_wherever_the_reads_cut(
            values in proptest::collection::vec((any_json(), any::<bool>(), "[ \t\r\n]{0,3}"), 1..8),
            pieces in proptest::collection::vec(1usize..60, 1..20),
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (value, pretty, space) in values {
                // At the top level a connection carries objects and arrays only.
                let value = json!({ "v": value });
                let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) };
                let text = text.unwrap();
                bytes.extend_from_slice(space.as_bytes());
                bytes.extend_from_slice(&text);
                expected.push(text);
            }
            prop_assert_eq!(split(&bytes, MIB, &pieces).unwrap(), expected);
        }

        #[test]
        fn garbage_ends_in_the_same_way_wherever_the_reads_cut(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), proptest::sample::select(&b"{}[]\"\\ :,1a"[..])], 0..200,
            ),
            pieces in proptest::collection::vec(1usize..20, 1..10),
            max in 4usize..100,
        ) {
            let at_once = split(&bytes, max, &[bytes.len().max(1)]).is_ok();
            prop_assert_eq!(at_once, split(&bytes, max, &pieces).is_ok());
        }

        #[test]
        fn a_damaged_stream_is_split_in_the_same_way_wherever_the_reads_cut(
            bytes in damaged_seeds("frames"),
            pieces in proptest::collection::vec(1usize..60, 1..20),
        ) {
            let at_once = split(&bytes, MIB, &[bytes.len().max(1)]).ok();
            prop_assert_eq!(at_once, split(&bytes, MIB, &pieces).ok());
        }
    }

    #[test]
    fn the_kept_streams_are_split_or_refused() {
        for seed in seeds("frames") {
            for pieces in [&[1][..], &[7], &[1 << 16]] {
                let is_split = split(&seed.bytes, MIB, pieces).is_ok();
                assert_eq!(is_split, seed.is_good(), "{}, {pieces:?}", seed.name);
            }
        }
    }

    #[test]
    fn an_answer_of_8_mb_is_one_value_and_the_buffer_shrinks_after_it() {
        let mut frames = Frames::new(16 * MIB);
        let feed = |frames: &mut Frames, mut rest: &[u8]| {
            let mut found = 0;
            while !rest.is_empty() {
                let spare = frames.spare();
                let count = spare.len().min(rest.len());
                spare[..count].copy_from_slice(&rest[..count]);
                frames.filled(count);
                rest = &rest[count..];
                while let Some(Frame::Value(_)) = frames.next().unwrap() {
                    found += 1;
                }
            }
            found
        };
        let large = format!(r#"{{"id":1,"result":"0x{}"}}"#, "ab".repeat(4 * MIB));
        assert_eq!(feed(&mut frames, large.as_bytes()), 1);
        assert!(frames.buffer.len() >= 8 * MIB);
        let small = br#"{"id":1,"result":null}"#;
        for _ in 0..SMALL_BEFORE_SHRINK {
            assert_eq!(feed(&mut frames, small), 1);
        }
        frames.spare();
        assert_eq!(frames.buffer.len(), BASE_BYTES);
    }

    #[test]
    fn an_oversized_value_is_named_and_skipped_and_what_follows_is_read() {
        let follows = r#"{"id":9,"result":null}"#;
        let long = "\\\"{[".repeat(2000);
        for (value, expected) in [
            (format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{long}"}}"#), "oversized Some(7)"),
            (format!(r#"{{"result":"{long}","id" : 8 }}"#), "oversized Some(8)"),
            (format!(r#"{{"result":"{long}"}}"#), "oversized None"),
            (format!(r#"{{"id":"x","result":"{long}"}}"#), "oversized None"),
        ] {
            let bytes = format!("{value}{follows}");
            for pieces in [&[1][..], &[100], &[7, 3000], &[1 << 16]] {
                let found = split(bytes.as_bytes(), 1000, pieces).unwrap();
                let found: Vec<_> =
                    found.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
                assert_eq!(found, [expected, follows], "{pieces:?}");
            }
        }
    }

    #[test]
    fn an_endless_value_holds_no_more_than_the_limit() {
        let mut frames = Frames::new(MIB);
        let mut first = true;
        for _ in 0..1000 {
            let spare = frames.spare();
            spare.fill(b'x');
            if first {
                spare[..20].copy_from_slice(br#"{"id": 3, "result":""#);
                first = false;
            }
            let count = spare.len();
            frames.filled(count);
            while let Some(frame) = frames.next().unwrap() {
                assert_eq!(frame, Frame::Oversized { id: Some(3) });
            }
            assert!(frames.buffer.len() <= 4 * MIB);
        }
    }

    #[test]
    fn plain_text_is_garbage_and_is_shown() {
        let text = b"Too many connections. Please try again later.";
        assert_eq!(split(text, MIB, &[8]), Err(LossReason::Garbage("Too many".into())));
        assert!(split(b"{}\n}", MIB, &[8]).is_err());
    }
}
