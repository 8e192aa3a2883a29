//! Reads and writes the fields of a message.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};
use bytes::{BufMut as _, BytesMut};
use order_pool::Holder;

use super::{Encoded, PublisherTime, VERSION, WireError, hash_content, micros};

/// Reads the fields of a message one after the other.
pub(super) struct Reader<'a> {
    /// The bytes that are not read yet.
    pub(super) rest: &'a [u8],
    /// The bytes that the message id covers, to the end of the message.
    pub(super) content: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message, content: message }
    }

    pub(super) const fn begin_content(&mut self) {
        self.content = self.rest;
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let left = self.rest.len();
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or(WireError::Truncated { needed: count, left })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let left = self.rest.len();
        self.take(N)?.try_into().map_err(|_| WireError::Truncated { needed: N, left })
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn hash(&mut self) -> Result<B256, WireError> {
        self.array().map(B256::new)
    }

    pub(super) fn address(&mut self) -> Result<Address, WireError> {
        self.array().map(Address::new)
    }

    pub(super) fn length(&mut self) -> Result<usize, WireError> {
        let length = self.array().map(u32::from_be_bytes)?;
        Ok(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Reads the age and the time of sending. The local time is 0.
    pub(super) fn send_time(&mut self) -> Result<PublisherTime, WireError> {
        let age = self.u64().map(Duration::from_nanos)?;
        let sent_before = match self.u64()? {
            0 => None,
            value => {
                let since_epoch = Duration::from_micros(value);
                let time = SystemTime::UNIX_EPOCH.checked_add(since_epoch);
                Some(time.ok_or(WireError::Value { field: "time of sending", value })?)
            }
        };
        Ok(PublisherTime { age, local_micros: 0, sent_before })
    }

    /// Reads the holder against whose share the publisher counts an order.
    pub(super) fn holder(&mut self) -> Result<Holder, WireError> {
        Ok(match self.array()? {
            [0] => Holder::Host,
            [1] => Holder::Signer(self.address()?),
            [2] => Holder::Caller(self.ip_address()?),
            [3] => {
                let front = self.ip_address()?;
                Holder::Forwarded { front, signer: self.option(Self::address)? }
            }
            [value] => return Err(WireError::Value { field: "holder", value: value.into() }),
        })
    }

    fn ip_address(&mut self) -> Result<IpAddr, WireError> {
        Ok(IpAddr::from(self.array::<16>()?).to_canonical())
    }

    pub(super) fn flag(&mut self) -> Result<bool, WireError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(WireError::Value { field: "flag", value: value.into() }),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        self.flag()?.then(|| read(self)).transpose()
    }

    pub(super) fn hashes(&mut self) -> Result<Vec<B256>, WireError> {
        let bytes = self.length()?.saturating_mul(size_of::<B256>());
        let (hashes, _) = self.take(bytes)?.as_chunks::<32>();
        Ok(hashes.iter().map(|hash| B256::new(*hash)).collect())
    }
}

/// Writes the fields that [`Reader`] reads.
pub(super) struct Writer {
    pub(super) bytes: BytesMut,
    kind: u8,
    /// The index of the first byte that the message id covers.
    content_start: usize,
}

impl Writer {
    pub(super) fn new(kind: u8, capacity: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(capacity);
        bytes.put_slice(&[VERSION, kind]);
        Self { bytes, kind, content_start: 0 }
    }

    pub(super) fn begin_content(&mut self) {
        self.content_start = self.bytes.len();
    }

    pub(super) fn put(&mut self, bytes: impl AsRef<[u8]>) {
        self.bytes.put_slice(bytes.as_ref());
    }

    /// Writes the length of a list. No published list comes near four billion entries.
    pub(super) fn length(&mut self, length: usize) {
        self.bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    }

    /// Writes the age and the time of sending. An age of more than 584 years becomes the highest
    /// value that fits.
    pub(super) fn send_time(&mut self, PublisherTime { age, sent_before, .. }: &PublisherTime) {
        self.bytes.put_u64(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        self.bytes.put_u64(sent_before.map_or(0, micros));
    }

    pub(super) fn holder(&mut self, holder: Holder) {
        match holder {
            Holder::Host => self.put([0]),
            Holder::Signer(signer) => {
                self.put([1]);
                self.put(signer);
            }
            Holder::Caller(address) => {
                self.put([2]);
                self.ip_address(address);
            }
            Holder::Forwarded { front, signer } => {
                self.put([3]);
                self.ip_address(front);
                self.option(signer);
            }
        }
    }

    fn ip_address(&mut self, address: IpAddr) {
        self.put(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        });
    }

    pub(super) fn option(&mut self, value: Option<impl AsRef<[u8]>>) {
        self.put([u8::from(value.is_some())]);
        if let Some(value) = value {
            self.put(value);
        }
    }

    pub(super) fn number(&mut self, value: Option<u64>) {
        self.option(value.map(u64::to_be_bytes));
    }

    pub(super) fn hashes(&mut self, hashes: &[B256]) {
        self.length(hashes.len());
        hashes.iter().for_each(|hash| self.put(hash));
    }

    /// Returns the message, whose id is a hash of its content.
    pub(super) fn finish(self) -> Encoded {
        let payload = self.bytes.freeze();
        let id = hash_content(self.kind, payload.get(self.content_start..).unwrap_or_default());
        Encoded { id, payload }
    }
}
