//! Checks a footer before the parser gets it, which bounds lists by the bytes that follow, but
//! reserves memory for as many children as an element of the schema claims, and calls itself for
//! each level of them.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

/// Most levels of nesting; a footer of the format has seven.
const MAX_DEPTH: usize = 16;

/// Most elements of the schema, each of which may be the only child of the one before it: the parser
/// calls itself for each level. A recording has twenty.
const MAX_SCHEMA: u64 = 256;

/// The field of `FileMetaData` that holds the schema, whose elements contain their number of
/// children.
const SCHEMA: i64 = 2;
const NUM_CHILDREN: i64 = 5;

/// Whether no list claims more elements than bytes follow, and no group of the schema more children
/// than the schema has elements. The footer is a struct in Thrift's compact protocol.
pub(crate) fn is_plausible(footer: &[u8]) -> bool {
    let mut walk = Walk { rest: footer, max_children: i64::MAX };
    walk.structure(0).is_some()
}

struct Walk<'a> {
    rest: &'a [u8],
    max_children: i64,
}

impl Walk<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ ((value & 1) as i64).wrapping_neg())
    }

    fn structure(&mut self, depth: usize) -> Option<()> {
        let mut field = 0_i64;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            field = match header >> 4 {
                0 => self.zigzag()?,
                delta => field.checked_add(delta.into())?,
            };
            match header & 0x0f {
                // The type itself encodes the value.
                1 | 2 => {}
                5 if depth == 1 && field == NUM_CHILDREN => {
                    if self.zigzag()? > self.max_children {
                        return None;
                    }
                }
                9 if depth == 0 && field == SCHEMA => self.list(depth, true)?,
                kind => self.value(kind, depth)?,
            }
        }
    }

    fn list(&mut self, depth: usize, is_schema: bool) -> Option<()> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.varint()?,
            count => count.into(),
        };
        // Each element takes at least a byte.
        if count > self.rest.len() as u64 || is_schema && count > MAX_SCHEMA {
            return None;
        }
        self.max_children = if is_schema { count as i64 } else { i64::MAX };
        for _ in 0..count {
            match header & 0x0f {
                1 | 2 => self.skip(1)?,
                kind => self.value(kind, depth)?,
            }
        }
        self.max_children = i64::MAX;
        Some(())
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        match kind {
            3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let bytes = self.varint()?;
                self.skip(bytes)
            }
            9 | 10 => self.list(depth.saturating_add(1), false),
            12 => self.structure(depth.saturating_add(1)),
            // The format has no maps.
            _ => None,
        }
    }
}
