//! Requests out of a stream of bytes: JSON values one after the other, with or without anything between them.

/// Finds where the first JSON value ends, over as many reads as it takes, looking at each byte once.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// Bytes of the buffer that were looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether what was seen so far is neither blank nor the beginning of an object or array.
    garbage: bool,
}

impl Splitter {
    /// The length of the first complete value at the front of `buffer`, which must begin with what the last call
    /// left incomplete; `None` when more bytes are needed.
    ///
    /// Bytes that begin no object or array are a value of their own up to the next line end, `{` or `[`: the node
    /// answers them with one error and goes on.
    pub(crate) fn next(&mut self, buffer: &[u8]) -> Option<usize> {
        while let Some(&byte) = buffer.get(self.seen) {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else if self.depth > 0 {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            return Some(self.end(self.seen + 1));
                        }
                    }
                    _ => {}
                }
            } else {
                match byte {
                    b'{' | b'[' | b'\n' if self.garbage => return Some(self.end(self.seen)),
                    b'{' | b'[' => self.depth = 1,
                    _ if byte.is_ascii_whitespace() => {}
                    _ => self.garbage = true,
                }
            }
            self.seen += 1;
        }
        None
    }

    const fn end(&mut self, len: usize) -> usize {
        *self = Self { seen: 0, depth: 0, in_string: false, escaped: false, garbage: false };
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]]) -> Vec<String> {
        let (mut buffer, mut splitter, mut values) = (Vec::new(), Splitter::default(), Vec::new());
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
            while let Some(len) = splitter.next(&buffer) {
                let value: Vec<u8> = buffer.drain(..len).collect();
                values.push(String::from_utf8(value).expect("ASCII").trim().to_owned());
            }
        }
        values
    }

    #[test]
    fn values_need_no_separator_and_garbage_between_them_is_one_of_its_own() {
        for (text, values) in [
            (&br#"{"a":1}{"b":[2]} [3]"#[..], &[r#"{"a":1}"#, r#"{"b":[2]}"#, "[3]"][..]),
            (br#"{"a":"}\"]{"}[]"#, &[r#"{"a":"}\"]{"}"#, "[]"]),
            (b"[1]garbage[2]\nmore\n[3]", &["[1]", "garbage", "[2]", "more", "[3]"]),
        ] {
            assert_eq!(split(&[text]), values);
        }
    }

    proptest! {
        #[test]
        fn cuts_between_reads_change_nothing(cuts in proptest::collection::vec(0usize..60, 0..8)) {
            let text: &[u8] = br#"{"id":1,"s":"\\\"{"} [[],{}]xx{"id":2} {"id":3,"p":["0x[",null]}"#;
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            cuts.push(text.len());
            let mut from = 0;
            let chunks: Vec<&[u8]> = cuts.into_iter().map(|to| &text[std::mem::replace(&mut from, to)..to]).collect();
            prop_assert_eq!(split(&chunks), split(&[text]));
        }
    }
}
