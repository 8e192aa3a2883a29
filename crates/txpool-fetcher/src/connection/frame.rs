//! Splits a byte stream into JSON values, wherever the reads divide it.

use memchr::memchr2;

use crate::error::LossReason;

/// Size of the buffer while answers are small: about 130 answers of a token transfer.
const BASE_BYTES: usize = 64 * 1024;

/// Least free space for a read. A smaller one would cost a system call for each answer.
const MIN_READ_BYTES: usize = 16 * 1024;

/// How many consecutive values must fit the base size before a grown buffer shrinks again. Blobs
/// often come in series, and mapping and clearing 2 MB for each takes longer than decoding it.
const SMALL_BEFORE_SHRINK: u32 = 64;

/// The buffer between the socket and the parser.
///
/// It holds at most one incomplete value and the bytes that were read after it: about twice the
/// limit for one value, and only while such a value arrives.
pub(crate) struct Frames {
    /// Initialized throughout; the unprocessed bytes are in `start..filled`.
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    max_frame_bytes: usize,
    /// How many bytes of the value at `start` have been scanned. Each is scanned once.
    scanned: usize,
    scan: Scan,
    small_in_a_row: u32,
}

/// Where in a JSON value the next byte stands.
#[derive(Default)]
pub(crate) struct Scan {
    /// How many arrays and objects are open.
    pub(crate) depth: usize,
    in_string: bool,
    escaped: bool,
    /// How many bytes have been scanned since the latest string began.
    pub(crate) since_quote: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "start + scanned <= filled <= buffer.len() holds throughout; these are positions of what was read, and \
              no number from the stream is among them"
)]
impl Frames {
    pub(crate) fn new(max_frame_bytes: usize) -> Self {
        Self {
            buffer: vec![0; BASE_BYTES],
            start: 0,
            filled: 0,
            max_frame_bytes,
            scanned: 0,
            scan: Scan::default(),
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

    /// The next complete value: an object or array with balanced brackets, not always valid JSON.
    ///
    /// # Errors
    /// [`LossReason::Garbage`]: the next byte starts neither an object nor an array, so nothing after it can
    /// be trusted. [`LossReason::Oversized`]: the next value is above the limit.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, LossReason> {
        if self.scanned == 0 && !self.find_start()? {
            return Ok(None);
        }
        let unscanned = &self.buffer[self.start + self.scanned..self.filled];
        let end = self.scan.advance(unscanned);
        self.scanned += end.unwrap_or(unscanned.len());
        if self.scanned > self.max_frame_bytes {
            return Err(LossReason::Oversized(self.max_frame_bytes));
        }
        if end.is_none() {
            return Ok(None);
        }
        let value = self.start..self.start + self.scanned;
        self.start = value.end;
        self.scanned = 0;
        let is_small = value.len() <= BASE_BYTES;
        self.small_in_a_row = if is_small { self.small_in_a_row.saturating_add(1) } else { 0 };
        Ok(Some(&self.buffer[value]))
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
}

impl Scan {
    /// Scans the next bytes, up to the end of the value. Returns how many those are if it ends in them.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of bytes that were read")]
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some((rest, first)) = bytes.get(at..).and_then(|rest| Some((rest, rest.first()?)))
        {
            let count = if self.escaped {
                self.escaped = false;
                1
            } else if self.in_string {
                let end = memchr2(b'"', b'\\', rest);
                self.escaped = end.is_some_and(|end| rest.get(end) == Some(&b'\\'));
                self.in_string = self.escaped || end.is_none();
                end.map_or(rest.len(), |end| end + 1)
            } else {
                match first {
                    b'"' => (self.in_string, self.since_quote) = (true, 0),
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        // Not every value begins with a bracket.
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                1
            };
            at += count;
            self.since_quote += count;
        }
        None
    }
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
        feed(&mut Frames::new(max), bytes, pieces)
    }

    fn feed(
        frames: &mut Frames,
        mut rest: &[u8],
        pieces: &[usize],
    ) -> Result<Vec<Vec<u8>>, LossReason> {
        let mut found = Vec::new();
        let mut sizes = pieces.iter().copied().cycle();
        loop {
            while let Some(value) = frames.next()? {
                found.push(value.to_vec());
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

    fn garbage() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![any::<u8>(), proptest::sample::select(&b"{}[]\"\\ :,1a"[..])];
        proptest::collection::vec(byte, 0..200)
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
        fn garbage_and_a_damaged_stream_are_split_in_the_same_way_wherever_the_reads_cut(
            (bytes, max) in prop_oneof![
                (garbage(), 4usize..100),
                (damaged_seeds("frames"), MIB..=MIB),
            ],
            pieces in proptest::collection::vec(1usize..60, 1..20),
        ) {
            let at_once = split(&bytes, max, &[bytes.len().max(1)]).ok();
            prop_assert_eq!(at_once, split(&bytes, max, &pieces).ok());
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
        let large = format!(r#"{{"id":1,"result":"0x{}"}}"#, "ab".repeat(4 * MIB));
        assert_eq!(feed(&mut frames, large.as_bytes(), &[16 * MIB]).unwrap().len(), 1);
        assert!(frames.buffer.len() >= 8 * MIB);
        let small = br#"{"id":1,"result":null}"#;
        for _ in 0..SMALL_BEFORE_SHRINK {
            assert_eq!(feed(&mut frames, small, &[MIB]).unwrap().len(), 1);
        }
        frames.spare();
        assert_eq!(frames.buffer.len(), BASE_BYTES);
    }

    #[test]
    fn a_value_above_the_limit_ends_the_stream_before_more_of_it_is_held() {
        let mut frames = Frames::new(MIB);
        let mut read = 0;
        frames.spare()[..11].copy_from_slice(br#"{"result":""#);
        let reason = loop {
            let count = frames.spare().len();
            frames.filled(count);
            read += count;
            if let Err(reason) = frames.next() {
                break reason;
            }
        };
        assert_eq!(reason, LossReason::Oversized(MIB));
        assert!(read <= 4 * MIB && frames.buffer.len() <= 4 * MIB, "{read}");
    }
}
