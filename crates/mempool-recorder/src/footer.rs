//! Checks a Parquet footer before the parser reads it. The parser bounds lists by the bytes that
//! follow, but it reserves memory for as many children as a schema element claims, and recurses
//! into them.

// This module reads bytes from outside, which must not cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

/// The most levels of nesting. A footer of the format has seven.
const MAX_DEPTH: usize = 16;

/// The most elements of the schema. Each may be the only child of the one before it, and the parser
/// recurses for each level. A recording has twenty.
const MAX_SCHEMA_ELEMENTS: u64 = 256;

/// The field of `FileMetaData` that holds the schema (`parquet.thrift`).
const SCHEMA: i64 = 2;
/// The field of `SchemaElement` that holds its number of children.
const NUM_CHILDREN: i64 = 5;

/// The types of Thrift's compact protocol. The types of booleans encode the value as well.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// Whether no list claims more elements than bytes follow, and no schema element claims more
/// children than the schema has elements. The footer is a struct in Thrift's compact protocol.
pub(crate) fn is_plausible(footer: &[u8]) -> bool {
    let mut walker = Walker { rest: footer, max_children: i64::MAX };
    walker.walk_struct(0).is_some()
}

/// Walks through a footer without building anything. Its methods return `None` if the footer is not
/// plausible.
struct Walker<'a> {
    /// The bytes that are not read yet.
    rest: &'a [u8],
    /// The number of schema elements while the schema is read.
    max_children: i64,
}

impl Walker<'_> {
    fn read_byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn read_zigzag(&mut self) -> Option<i64> {
        let value = self.read_varint()?;
        Some((value >> 1) as i64 ^ ((value & 1) as i64).wrapping_neg())
    }

    fn walk_struct(&mut self, depth: usize) -> Option<()> {
        let mut field = 0_i64;
        loop {
            let header = self.read_byte()?;
            if header == 0 {
                return Some(());
            }
            field = match header >> 4 {
                0 => self.read_zigzag()?,
                delta => field.checked_add(delta.into())?,
            };
            match header & 0x0f {
                TRUE | FALSE => {}
                I32 if depth == 1 && field == NUM_CHILDREN => {
                    if self.read_zigzag()? > self.max_children {
                        return None;
                    }
                }
                LIST if depth == 0 && field == SCHEMA => self.walk_list(depth, true)?,
                kind => self.walk_value(kind, depth)?,
            }
        }
    }

    fn walk_list(&mut self, depth: usize, is_schema: bool) -> Option<()> {
        let header = self.read_byte()?;
        let count = match header >> 4 {
            15 => self.read_varint()?,
            count => count.into(),
        };
        // Each element takes at least one byte.
        if count > self.rest.len() as u64 || is_schema && count > MAX_SCHEMA_ELEMENTS {
            return None;
        }
        self.max_children = if is_schema { count as i64 } else { i64::MAX };
        for _ in 0..count {
            match header & 0x0f {
                // In a list each boolean takes a byte.
                TRUE | FALSE => self.skip(1)?,
                kind => self.walk_value(kind, depth)?,
            }
        }
        self.max_children = i64::MAX;
        Some(())
    }

    fn walk_value(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth == MAX_DEPTH {
            return None;
        }
        match kind {
            BYTE => self.skip(1),
            I16 | I32 | I64 => self.read_varint().map(drop),
            DOUBLE => self.skip(8),
            BINARY => {
                let bytes = self.read_varint()?;
                self.skip(bytes)
            }
            LIST | SET => self.walk_list(depth.saturating_add(1), false),
            STRUCT => self.walk_struct(depth.saturating_add(1)),
            // The format has no maps.
            _ => None,
        }
    }
}
