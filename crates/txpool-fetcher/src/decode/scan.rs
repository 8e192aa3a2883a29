//! Splits JSON into members and elements, as slices of the text, without copying.
//!
//! It does not validate what it skips: an object has been validated by serde_json before (it arrives as
//! a raw value), and of a response only values of known content are taken. It never panics, never
//! recurses and reads each byte at most twice.

use std::borrow::Cow;

use memchr::memchr2;

/// One value of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Null,
    /// The content of a string. Owned only when the string contained escapes.
    Text(Cow<'a, [u8]>),
    /// The characters of a number.
    Number(&'a [u8]),
    /// An array, brackets included.
    Array(&'a [u8]),
    /// An object, braces included.
    Object(&'a [u8]),
    /// `true` or `false`.
    Bool,
}

/// The text cannot be split at this byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    pub(crate) at: usize,
}

type Result<T> = std::result::Result<T, SyntaxError>;

/// The members of one object, in order.
#[derive(Debug)]
pub(crate) struct Members<'a>(Items<'a>);

/// The elements of one array, in order.
#[derive(Debug)]
pub(crate) struct Elements<'a>(Items<'a>);

impl<'a> Members<'a> {
    /// Fails unless `json` is exactly one object, with optional whitespace around it.
    pub(crate) fn new(json: &'a [u8]) -> Result<Self> {
        Items::new(json, b'{', b'}').map(Self)
    }

    pub(crate) fn next(&mut self) -> Result<Option<(Cow<'a, [u8]>, Value<'a>)>> {
        if !self.0.advance()? {
            return Ok(None);
        }
        let scanner = &mut self.0.scanner;
        let key = scanner.string()?;
        scanner.skip_whitespace();
        scanner.expect(b':')?;
        scanner.skip_whitespace();
        Ok(Some((key, scanner.value()?)))
    }
}

impl<'a> Elements<'a> {
    /// Fails unless `json` is exactly one array, with optional whitespace around it.
    pub(crate) fn new(json: &'a [u8]) -> Result<Self> {
        Items::new(json, b'[', b']').map(Self)
    }

    pub(crate) fn next(&mut self) -> Result<Option<Value<'a>>> {
        if !self.0.advance()? {
            return Ok(None);
        }
        self.0.scanner.value().map(Some)
    }
}

/// The common part of objects and arrays: items between brackets, separated by commas.
#[derive(Debug)]
struct Items<'a> {
    scanner: Scanner<'a>,
    close: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opened,
    Between,
    Closed,
}

impl<'a> Items<'a> {
    fn new(json: &'a [u8], open: u8, close: u8) -> Result<Self> {
        let mut scanner = Scanner { json, at: 0 };
        scanner.skip_whitespace();
        scanner.expect(open)?;
        Ok(Self { scanner, close, state: State::Opened })
    }

    /// Moves to the next item; false at the end of the last one.
    fn advance(&mut self) -> Result<bool> {
        if self.state == State::Closed {
            return Ok(false);
        }
        self.scanner.skip_whitespace();
        if self.scanner.peek() == Some(self.close) {
            self.scanner.skip(1);
            self.scanner.skip_whitespace();
            self.state = State::Closed;
            return if self.scanner.peek().is_none() { Ok(false) } else { self.scanner.error() };
        }
        if self.state == State::Between {
            self.scanner.expect(b',')?;
            self.scanner.skip_whitespace();
        }
        self.state = State::Between;
        Ok(true)
    }
}

#[derive(Debug)]
struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    /// Positions are within the text, or one byte behind it.
    const fn skip(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes);
    }

    /// What was read since this position.
    fn since(&self, start: usize) -> Result<&'a [u8]> {
        self.json.get(start..self.at).ok_or(SyntaxError { at: start })
    }

    fn error<T>(&self) -> Result<T> {
        Err(SyntaxError { at: self.at })
    }

    fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.skip(1);
        }
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek() == Some(byte) {
            self.skip(1);
            Ok(())
        } else {
            self.error()
        }
    }

    fn value(&mut self) -> Result<Value<'a>> {
        match self.peek() {
            Some(b'"') => self.string().map(Value::Text),
            Some(b'{') => self.nested().map(Value::Object),
            Some(b'[') => self.nested().map(Value::Array),
            Some(b'-' | b'0'..=b'9') => {
                let start = self.at;
                while let Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'e' | b'E') = self.peek() {
                    self.skip(1);
                }
                self.since(start).map(Value::Number)
            }
            Some(b'n') => self.word(b"null", Value::Null),
            Some(b't') => self.word(b"true", Value::Bool),
            Some(b'f') => self.word(b"false", Value::Bool),
            _ => self.error(),
        }
    }

    fn word(&mut self, word: &[u8], value: Value<'a>) -> Result<Value<'a>> {
        if self.json.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.skip(word.len());
            Ok(value)
        } else {
            self.error()
        }
    }

    /// Reads a string. One with escapes, which no node writes here, is decoded by serde_json.
    fn string(&mut self) -> Result<Cow<'a, [u8]>> {
        let quote = self.at;
        self.expect(b'"')?;
        let rest = self.json.get(self.at..).unwrap_or_default();
        let end = memchr2(b'"', b'\\', rest);
        if let Some((content, [b'"', ..])) = end.and_then(|end| rest.split_at_checked(end)) {
            self.skip(content.len());
            self.skip(1);
            return Ok(Cow::Borrowed(content));
        }
        self.at = quote;
        self.skip_string()?;
        match serde_json::from_slice::<String>(self.since(quote)?) {
            Ok(text) => Ok(Cow::Owned(text.into_bytes())),
            Err(_) => Err(SyntaxError { at: quote }),
        }
    }

    /// Moves behind a string.
    fn skip_string(&mut self) -> Result<()> {
        self.expect(b'"')?;
        loop {
            let rest = self.json.get(self.at..).unwrap_or_default();
            let Some(offset) = memchr2(b'"', b'\\', rest) else { return self.error() };
            self.skip(offset);
            // The escaped character cannot end the string.
            let is_end = self.peek() == Some(b'"');
            self.skip(if is_end { 1 } else { 2 });
            if is_end {
                return Ok(());
            }
        }
    }

    /// Moves behind an array or object and returns it with its brackets. Brackets are counted, not
    /// matched by kind.
    fn nested(&mut self) -> Result<&'a [u8]> {
        let start = self.at;
        let mut depth = 0usize;
        loop {
            match self.peek() {
                Some(b'{' | b'[') => depth = depth.saturating_add(1),
                Some(b'}' | b']') => {
                    // It starts at an opening bracket, so the depth is at least one here.
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        self.skip(1);
                        return self.since(start);
                    }
                }
                Some(b'"') => {
                    self.skip_string()?;
                    continue;
                }
                Some(_) => {}
                None => return self.error(),
            }
            self.skip(1);
        }
    }
}
