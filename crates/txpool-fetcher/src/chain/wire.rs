//! Reads the JSON forms of a block: a head of `newHeads`, and a block of `eth_getBlockByHash` with
//! hashes or with full transactions.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{collections::HashMap, io::Read};

use alloy_primitives::{Address, B256, U64, U256};
use chain_view::{Block, Head, NonceUpdate, next_base_fee_wei};
use serde::Deserialize;

use super::Unread;
use crate::{answer::result_of, error::SnapshotError};

/// The header fields that all nodes send, with `newHeads` and with a block.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireHead {
    number: U64,
    hash: B256,
    parent_hash: B256,
    timestamp: U64,
    gas_used: U64,
    gas_limit: U64,
    base_fee_per_gas: Option<U256>,
    blob_gas_used: Option<U64>,
    excess_blob_gas: Option<U64>,
    #[serde(default)]
    miner: Address,
}

/// The other fields that are read of a block. `T` is the hash of a transaction, or a full one.
#[derive(Debug, Deserialize)]
struct WireBlock<T> {
    hash: B256,
    transactions: Vec<T>,
}

/// The fields that are read of a full transaction object.
#[derive(Debug, Deserialize)]
struct WireNonce {
    #[serde(rename = "from")]
    sender: Address,
    nonce: U64,
}

impl From<WireHead> for Head {
    fn from(wire: WireHead) -> Self {
        // A base fee above u64 would cost more than all ether for one transaction. It counts as
        // unknown.
        let base_fee_wei = wire.base_fee_per_gas.and_then(|fee| u64::try_from(fee).ok());
        let (used, limit) = (wire.gas_used.to(), wire.gas_limit.to());
        Self {
            number: wire.number.to(),
            hash: wire.hash,
            parent_hash: wire.parent_hash,
            timestamp: wire.timestamp.to(),
            next_base_fee_wei: base_fee_wei.and_then(|fee| next_base_fee_wei(fee, used, limit)),
            base_fee_wei,
            blob_gas_used: wire.blob_gas_used.map(|gas| gas.to()),
            excess_blob_gas: wire.excess_blob_gas.map(|gas| gas.to()),
            gas_limit: limit,
            fee_recipient: wire.miner,
        }
    }
}

/// Reads a notification of `newHeads`.
pub(crate) fn read_head(json: &str) -> serde_json::Result<Head> {
    serde_json::from_str::<WireHead>(json).map(Head::from)
}

/// Reads a block with the hashes of its transactions; `None` for `null`.
pub(super) fn read_block(json: &str) -> serde_json::Result<Option<Block>> {
    let Some(head) = serde_json::from_str::<Option<WireHead>>(json)? else { return Ok(None) };
    let block: WireBlock<B256> = serde_json::from_str(json)?;
    Ok(Some(Block::new(head.into(), block.transactions)))
}

/// The highest number of transactions in a block whose hashes are unknown. On mainnet it is 2,857
/// (60,000,000 gas / 21,000).
const MAX_TXS_OF_UNREAD_BLOCK: usize = 1 << 13;

/// Reads the nonces that the block `requested` raised, from the response with full transactions
/// while it arrives. This takes some milliseconds for a large block. The response must have as many
/// transactions as `requested` has hashes.
pub(super) fn read_nonces(json: impl Read, requested: &Block) -> Result<Vec<NonceUpdate>, Unread> {
    let block = match result_of::<WireBlock<WireNonce>>(json) {
        Ok(block) => block.ok_or(Unread::Missing)?,
        // A response that is no pool content is not a block either: the reader is shared.
        Err(SnapshotError::NotAPool) => return Err(Unread::Malformed),
        Err(_) => return Err(Unread::Failed),
    };
    // The nonces of another block would remove valid transactions.
    let count = block.transactions.len();
    let is_count_plausible = match requested.mined.len() {
        0 => count <= MAX_TXS_OF_UNREAD_BLOCK,
        hashes => count == hashes,
    };
    if block.hash != requested.head.hash || !is_count_plausible {
        return Err(Unread::Malformed);
    }
    let mut next_nonces = HashMap::<Address, u64>::new();
    for WireNonce { sender, nonce } in block.transactions {
        let next = next_nonces.entry(sender).or_default();
        *next = nonce.to::<u64>().saturating_add(1).max(*next);
    }
    Ok(next_nonces.into_iter().map(NonceUpdate::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::corpus::{damaged_seeds, seeds};

    fn head_json(base_fee: &str, transactions: &str) -> String {
        let hash = B256::repeat_byte(1);
        format!(
            r#"{{"number":"0x7","hash":"{hash}","parentHash":"{hash}","timestamp":"0x54",
            "gasUsed":"0x1c9c380","gasLimit":"0x1c9c380","baseFeePerGas":{base_fee},
            "miner":"0x0000000000000000000000000000000000000002","transactions":{transactions}}}"#
        )
    }

    #[test]
    fn a_head_is_read_with_all_fields_that_a_builder_needs() {
        let head = read_head(&head_json("\"0x8\"", "[]")).unwrap();
        assert_eq!((head.number, head.timestamp, head.gas_limit), (7, 84, 30_000_000));
        assert_eq!(head.next_base_fee_wei, Some(9));
        assert_eq!(head.fee_recipient, Address::with_last_byte(2));
    }

    /// Before the fix the sum overflowed: a panic in a debug build, and a base fee near zero in a
    /// release build.
    #[test]
    fn an_absurd_base_fee_counts_as_unknown() {
        let most = format!("\"{:#x}\"", u64::MAX);
        let huge = format!("\"{:#x}\"", U256::MAX);
        for base_fee in [most.as_str(), huge.as_str(), "null"] {
            assert_eq!(read_head(&head_json(base_fee, "[]")).unwrap().next_base_fee_wei, None);
        }
    }

    #[test]
    fn a_block_without_its_transactions_is_an_error() {
        let hash = B256::repeat_byte(5);
        let block = read_block(&head_json("null", &format!("[\"{hash}\"]"))).unwrap().unwrap();
        assert_eq!(*block.mined, [hash]);
        assert!(read_block("null").unwrap().is_none());
        assert!(read_block(&head_json("null", "null")).is_err());
        assert!(read_block(&head_json("null", "[1]")).is_err());
    }

    #[test]
    fn the_highest_nonce_of_a_sender_counts() {
        let sender = Address::with_last_byte(3);
        let tx = |nonce: &str| format!(r#"{{"from":"{sender}","nonce":"{nonce}"}}"#);
        let txs = format!("[{},{},{}]", tx("0x5"), tx("0x6"), tx("0x4"));
        let head = Head::new(7, B256::repeat_byte(1), B256::repeat_byte(1));
        let block = |txs| Block::new(head, vec![B256::ZERO; txs]);
        let read = |response: &str| read_nonces(response.as_bytes(), &block(3));
        let response = |txs: &str| format!(r#"{{"id":1,"result":{}}}"#, head_json("null", txs));
        assert_eq!(read(&response(&txs)), Ok(vec![NonceUpdate::new(sender, 7)]));
        let one = response(&format!("[{}]", tx("0xffffffffffffffff")));
        let max = Ok(vec![NonceUpdate::new(sender, u64::MAX)]);
        assert_eq!(read_nonces(one.as_bytes(), &block(1)), max);
        assert_eq!(read_nonces(one.as_bytes(), &block(0)), max, "its hashes could not be read");
        assert_eq!(read(&one), Err(Unread::Malformed), "the block has three");
        let txs_of_many = vec![tx("0x1"); MAX_TXS_OF_UNREAD_BLOCK + 1].join(",");
        let many = response(&format!("[{txs_of_many}]"));
        assert_eq!(read_nonces(many.as_bytes(), &block(0)), Err(Unread::Malformed));
        assert_eq!(read(&response("[\"0x00\"]")), Err(Unread::Malformed));
        let other_block = Block::new(Head::default(), vec![B256::ZERO; 3]);
        let other = read_nonces(response(&txs).as_bytes(), &other_block);
        assert_eq!(other, Err(Unread::Malformed), "the response is another block");
        assert_eq!(read(r#"{"id":1,"result":null}"#), Err(Unread::Missing));
        assert_eq!(read(r#"{"id":1,"error":{"code":-32000}}"#), Err(Unread::Failed));
        assert_eq!(read(r#"{"id":1,"result":{}}"#), Err(Unread::Malformed));
    }

    #[test]
    fn the_corpus_of_blocks_is_read_or_refused() {
        for seed in seeds("blocks") {
            let read = read_block(std::str::from_utf8(&seed.bytes).unwrap());
            let is_block = matches!(read, Ok(Some(_)));
            assert_eq!(is_block, seed.is_good(), "{}: {read:?}", seed.name);
        }
    }

    proptest! {
        #[test]
        fn a_damaged_block_has_a_head_or_is_refused(bytes in damaged_seeds("blocks")) {
            let text = String::from_utf8_lossy(&bytes);
            let head = read_head(&text).ok();
            if let Ok(Some(block)) = read_block(&text) {
                prop_assert_eq!(head, Some(block.head));
            }
            let answer = format!(r#"{{"result":{text}}}"#);
            let _ = read_nonces(answer.as_bytes(), &Block::new(head.unwrap_or_default(), []));
        }
    }
}
