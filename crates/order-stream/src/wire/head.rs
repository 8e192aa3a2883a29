//! Heads, with what they removed from the publisher's pool.

use alloy_primitives::B256;
use chain_view::{Block, Head};

use super::{Encoded, KIND_HEAD, bytes::Reader, content_id, error::WireError, start};

/// Most hashes of [`HeadRecord::mined`]: above 45 million gas of plain transfers.
pub const MAX_MINED: usize = 4_096;

/// A head as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadRecord {
    /// The head.
    pub head: Head,
    /// The head that the publisher had before, zero if it had none. It makes the return to an earlier
    /// block after a reorg a message of its own.
    pub previous: B256,
    /// The transactions of its block that the publisher's pool held, at most [`MAX_MINED`]. The message id
    /// does not cover them, since the pools of two machines differ.
    pub mined: Vec<B256>,
}

impl HeadRecord {
    /// Encodes it. The message id is a hash of the head and of the previous one.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let Head { number, hash, parent_hash, timestamp, gas_limit, fee_recipient, .. } = self.head;
        let mut writer = start(KIND_HEAD, self.mined.len().saturating_mul(32).saturating_add(224));
        [number, timestamp, gas_limit].iter().for_each(|value| writer.u64(*value));
        [hash, parent_hash, self.previous].iter().for_each(|hash| writer.bytes(hash.as_slice()));
        writer.bytes(fee_recipient.as_slice());
        let options = options(&self.head);
        writer.flags(&options.map(|option| option.is_some()));
        options.iter().flatten().for_each(|value| writer.u64(*value));
        let id = content_id(KIND_HEAD, writer.buffer().get(2..).unwrap_or_default());
        writer.hashes(&self.mined, MAX_MINED as u16);
        Encoded { id, payload: writer.finish() }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Self, B256), WireError> {
        let content = reader.rest();
        let number = reader.u64("number")?;
        let (timestamp, gas_limit) = (reader.u64("timestamp")?, reader.u64("gas_limit")?);
        let (hash, parent) = (reader.hash("hash")?, reader.hash("parent_hash")?);
        let previous = reader.hash("previous")?;
        let fee_recipient = reader.address("fee_recipient")?;
        let flags = reader.flags("head", 4)?;
        let mut options = [None; 4];
        let names = ["next_base_fee_wei", "base_fee_wei", "blob_gas_used", "excess_blob_gas"];
        for ((option, name), flag) in options.iter_mut().zip(names).zip(0..) {
            if flags.has(flag) {
                *option = Some(reader.u64(name)?);
            }
        }
        let read = content.len().saturating_sub(reader.rest().len());
        let id = content_id(KIND_HEAD, content.get(..read).unwrap_or_default());
        let mut head = Head::new(number, hash, parent);
        (head.timestamp, head.gas_limit, head.fee_recipient) =
            (timestamp, gas_limit, fee_recipient);
        [head.next_base_fee_wei, head.base_fee_wei, head.blob_gas_used, head.excess_blob_gas] =
            options;
        let mined = reader.hashes("mined", MAX_MINED)?;
        Ok((Self { head, previous, mined }, id))
    }

    /// The block for a pool.
    #[must_use]
    pub fn into_block(self) -> Block {
        Block::new(self.head, self.mined)
    }
}

const fn options(head: &Head) -> [Option<u64>; 4] {
    [head.next_base_fee_wei, head.base_fee_wei, head.blob_gas_used, head.excess_blob_gas]
}
