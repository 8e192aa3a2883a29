//! Reading and writing of the fields.

use std::time::{Duration, SystemTime};

use alloy_primitives::{Address, B256};
use bytes::{BufMut as _, Bytes, BytesMut};

use super::error::WireError;

/// Reads fields one after the other; each call names the field for its error.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What is not read yet.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Reads everything that is left.
    pub(super) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn take(
        &mut self,
        count: usize,
        field: &'static str,
    ) -> Result<&'a [u8], WireError> {
        let left = self.0.len();
        let (taken, rest) = self.0.split_at_checked(count).ok_or(WireError::Truncated {
            field,
            needed: count,
            left,
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let left = self.0.len();
        let (taken, rest) =
            self.0.split_first_chunk().ok_or(WireError::Truncated { field, needed: N, left })?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        self.array(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        self.array(field).map(u64::from_be_bytes)
    }

    pub(super) fn hash(&mut self, field: &'static str) -> Result<B256, WireError> {
        self.array(field).map(B256::new)
    }

    pub(super) fn address(&mut self, field: &'static str) -> Result<Address, WireError> {
        self.array(field).map(Address::new)
    }

    pub(super) fn uuid(&mut self, field: &'static str) -> Result<uuid::Uuid, WireError> {
        self.array(field).map(uuid::Uuid::from_bytes)
    }

    pub(super) fn time(&mut self, field: &'static str) -> Result<SystemTime, WireError> {
        let nanos = self.u64(field)?;
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(nanos));
        time.ok_or(WireError::Value { field, value: nanos })
    }

    /// Flags, of which only the lowest `used` may be set.
    pub(super) fn flags(&mut self, field: &'static str, used: u32) -> Result<Flags, WireError> {
        let bits = self.u16(field)?;
        let unused = u32::from(bits).checked_shr(used).unwrap_or(0);
        if unused != 0 {
            Err(WireError::Value { field, value: bits.into() })
        } else {
            Ok(Flags(bits))
        }
    }

    /// Hashes, of which there may be at most `limit`.
    pub(super) fn hashes(
        &mut self,
        field: &'static str,
        limit: usize,
    ) -> Result<Vec<B256>, WireError> {
        let value = usize::from(self.u16(field)?);
        if value > limit {
            return Err(WireError::TooLong { field, value, limit });
        }
        let bytes = self.take(value.saturating_mul(size_of::<B256>()), field)?;
        let (hashes, _) = bytes.as_chunks::<32>();
        Ok(hashes.iter().map(|hash| B256::new(*hash)).collect())
    }

    pub(super) const fn end(&self) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing { left }),
        }
    }
}

/// Which optional fields follow.
#[derive(Clone, Copy)]
pub(super) struct Flags(u16);

impl Flags {
    /// The flags, the first one lowest.
    pub(super) fn of(set: &[bool]) -> Self {
        Self(set.iter().rev().fold(0, |bits, set| (bits << 1) | u16::from(*set)))
    }

    pub(super) fn has(self, flag: u32) -> bool {
        u32::from(self.0).checked_shr(flag).unwrap_or(0) & 1 == 1
    }
}

pub(super) struct Writer(BytesMut);

impl Writer {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(BytesMut::with_capacity(capacity))
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.put_u8(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.put_u16(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.put_u32(value);
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.put_u64(value);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.put_slice(bytes);
    }

    /// A time before 1970 becomes 1970, one after 2554 the latest that fits.
    pub(super) fn time(&mut self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.u64(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn flags(&mut self, set: &[bool]) {
        self.u16(Flags::of(set).0);
    }

    /// At most `limit` of the hashes.
    pub(super) fn hashes(&mut self, hashes: &[B256], limit: u16) {
        let count = u16::try_from(hashes.len()).unwrap_or(limit).min(limit);
        self.u16(count);
        hashes.iter().take(count.into()).for_each(|hash| self.bytes(hash.as_slice()));
    }

    pub(super) const fn buffer(&mut self) -> &mut BytesMut {
        &mut self.0
    }

    pub(super) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}
