//! Reports of a machine that was not the first to publish.

use std::time::SystemTime;

use alloy_primitives::B256;
use bytes::Bytes;

use super::{KIND_SEEN, error::WireError, open, start};

/// Most entries of a report.
pub const MAX_SEEN: usize = 256;

/// The bytes of one entry: hash and time.
const ENTRY_BYTES: usize = 40;

/// The longest report: version, kind and entries.
pub(crate) const MAX_REPORT_BYTES: usize = 2 + MAX_SEEN * ENTRY_BYTES;

/// A report of when this machine first received these transactions. At most the first [`MAX_SEEN`] are
/// encoded.
#[must_use]
pub fn encode_seen(entries: &[(B256, SystemTime)]) -> Bytes {
    let mut writer = start(KIND_SEEN, entries.len().saturating_mul(ENTRY_BYTES).saturating_add(2));
    for (hash, time) in entries.iter().take(MAX_SEEN) {
        writer.bytes(hash.as_slice());
        writer.time(*time);
    }
    writer.finish()
}

/// The entries of a report.
///
/// # Errors
/// Names the field.
pub fn decode_seen(payload: &[u8]) -> Result<Vec<(B256, SystemTime)>, WireError> {
    let (kind, mut reader) = open(payload)?;
    if kind != KIND_SEEN {
        return Err(WireError::Kind { found: kind });
    }
    let value = reader.rest().len().div_ceil(ENTRY_BYTES);
    if value > MAX_SEEN {
        return Err(WireError::TooLong { field: "seen", value, limit: MAX_SEEN });
    }
    let mut entries = Vec::with_capacity(value);
    while !reader.rest().is_empty() {
        entries.push((reader.hash("seen.hash")?, reader.time("seen.time")?));
    }
    Ok(entries)
}
