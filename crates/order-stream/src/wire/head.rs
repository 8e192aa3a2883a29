//! Heads, with what their blocks contain.

use alloy_primitives::B256;
use chain_view::Head;

use super::{
    Encoded, KIND_HEAD,
    bytes::{Reader, Writer},
    error::WireError,
};

/// A head as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRecord {
    /// The head.
    pub head: Head,
    /// The head that the publisher had before, zero if it had none, the head itself if it is told once more: the same block is
    /// another message after another one.
    /// The blocks above it that come back with it have a number of their own behind the message id.
    pub previous: B256,
    /// The transactions of its block, as far as the publisher knows them. The message id does not cover them, since a
    /// machine may not have read the block.
    pub mined: Vec<B256>,
}

impl HeadRecord {
    /// The message id is a hash of the head and of the previous one.
    pub(super) fn encode(&self) -> Encoded {
        let head = &self.head;
        let capacity = self.mined.len().saturating_mul(32).saturating_add(256);
        let mut writer = Writer::new(KIND_HEAD, capacity);
        writer.hashes(&self.mined);
        let content = writer.bytes.len();
        let numbers = [head.number, head.timestamp, head.gas_limit];
        numbers.iter().for_each(|number| writer.put(number.to_be_bytes()));
        [head.hash, head.parent_hash, self.previous].iter().for_each(|hash| writer.put(hash));
        writer.put(head.fee_recipient);
        writer.number(head.next_base_fee_wei);
        writer.number(head.base_fee_wei);
        writer.number(head.blob_gas_used);
        writer.number(head.excess_blob_gas);
        writer.finish(content)
    }

    /// Reads what stands behind the mined transactions.
    pub(super) fn read(reader: &mut Reader<'_>, mined: Vec<B256>) -> Result<Self, WireError> {
        let number = reader.u64()?;
        let (timestamp, gas_limit) = (reader.u64()?, reader.u64()?);
        let mut head = Head::new(number, reader.hash()?, reader.hash()?);
        (head.timestamp, head.gas_limit) = (timestamp, gas_limit);
        let previous = reader.hash()?;
        head.fee_recipient = reader.address()?;
        head.next_base_fee_wei = reader.option(Reader::u64)?;
        head.base_fee_wei = reader.option(Reader::u64)?;
        head.blob_gas_used = reader.option(Reader::u64)?;
        head.excess_blob_gas = reader.option(Reader::u64)?;
        Ok(Self { head, previous, mined })
    }
}
