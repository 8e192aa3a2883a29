//! The JSON forms of a block: the common fields of `newHeads` and `eth_getBlockByHash`.

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

/// What is read of a block beside its header: the hashes of its transactions, or full ones.
#[derive(Debug, Deserialize)]
struct WireBlock<T> {
    hash: B256,
    transactions: Vec<T>,
}

/// The fields that are read of a full transaction object.
#[derive(Debug, Deserialize)]
struct WireNonce {
    from: Address,
    nonce: U64,
}

impl From<WireHead> for Head {
    fn from(wire: WireHead) -> Self {
        // One above u64 would cost more than all ether for one transaction: it is unknown.
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

/// A notification of `newHeads`.
pub(crate) fn read_head(json: &str) -> serde_json::Result<Head> {
    serde_json::from_str::<WireHead>(json).map(Head::from)
}

/// A block with the hashes of its transactions; `None` for `null`.
pub(super) fn read_block(json: &str) -> serde_json::Result<Option<Block>> {
    let Some(head) = serde_json::from_str::<Option<WireHead>>(json)? else { return Ok(None) };
    let block: WireBlock<B256> = serde_json::from_str(json)?;
    Ok(Some(Block::new(head.into(), block.transactions)))
}

/// Most transactions of a block of unread hashes. Mainnet: 2,857 (60,000,000 gas / 21,000).
const MAX_UNCOUNTED_TXS: usize = 1 << 13;

/// The nonces that the requested block raised, from the response with full transactions, as it
/// comes: some milliseconds for a large one. It must have as many as `requested` has hashes.
pub(super) fn read_nonces(json: impl Read, requested: &Block) -> Result<Vec<NonceUpdate>, Unread> {
    let block = match result_of::<WireBlock<WireNonce>>(json) {
        Ok(block) => block.ok_or(Unread::Missing)?,
        // It is not a block either.
        Err(SnapshotError::NotAPool) => return Err(Unread::Malformed),
        Err(_) => return Err(Unread::Failed),
    };
    // The nonces of another block would remove valid transactions.
    let count = block.transactions.len();
    let has_its_txs = match requested.mined.len() {
        0 => count <= MAX_UNCOUNTED_TXS,
        hashes => count == hashes,
    };
    if block.hash != requested.head.hash || !has_its_txs {
        return Err(Unread::Malformed);
    }
    let mut next = HashMap::<Address, u64>::new();
    for WireNonce { from, nonce } in block.transactions {
        let known = next.entry(from).or_default();
        *known = nonce.to::<u64>().saturating_add(1).max(*known);
    }
    Ok(next.into_iter().map(NonceUpdate::from).collect())
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
    fn a_head_is_read_with_all_that_a_builder_needs() {
        let head = read_head(&head_json("\"0x8\"", "[]")).unwrap();
        assert_eq!((head.number, head.timestamp, head.gas_limit), (7, 84, 30_000_000));
        assert_eq!(head.next_base_fee_wei, Some(9));
        assert_eq!(head.fee_recipient, Address::with_last_byte(2));
    }

    /// Before, the sum overflowed: a panic in a debug build, and a base fee near zero in a release
    /// build.
    #[test]
    fn an_absurd_base_fee_is_an_unknown_one() {
        let most = format!("\"{:#x}\"", u64::MAX);
        let huge = format!("\"{:#x}\"", U256::MAX);
        for base_fee in [most.as_str(), huge.as_str(), "null"] {
            assert_eq!(read_head(&head_json(base_fee, "[]")).unwrap().next_base_fee_wei, None);
        }
    }

    #[test]
    fn a_block_is_told_from_none_and_from_one_that_says_nothing_of_its_transactions() {
        let hash = B256::repeat_byte(5);
        let block = read_block(&head_json("null", &format!("[\"{hash}\"]"))).unwrap().unwrap();
        assert_eq!(*block.mined, [hash]);
        assert!(read_block("null").unwrap().is_none());
        assert!(read_block(&head_json("null", "null")).is_err());
        assert!(read_block(&head_json("null", "[1]")).is_err());
    }

    #[test]
    fn of_several_nonces_of_a_sender_the_highest_counts() {
        let from = Address::with_last_byte(3);
        let tx = |nonce: &str| format!(r#"{{"from":"{from}","nonce":"{nonce}"}}"#);
        let txs = format!("[{},{},{}]", tx("0x5"), tx("0x6"), tx("0x4"));
        let head = Head::new(7, B256::repeat_byte(1), B256::repeat_byte(1));
        let of = |txs| Block::new(head, vec![B256::ZERO; txs]);
        let answer = |answer: &str| read_nonces(answer.as_bytes(), &of(3));
        let whole = |txs: &str| format!(r#"{{"id":1,"result":{}}}"#, head_json("null", txs));
        assert_eq!(answer(&whole(&txs)), Ok(vec![NonceUpdate::new(from, 7)]));
        let one = whole(&format!("[{}]", tx("0xffffffffffffffff")));
        let most = Ok(vec![NonceUpdate::new(from, u64::MAX)]);
        assert_eq!(read_nonces(one.as_bytes(), &of(1)), most);
        assert_eq!(read_nonces(one.as_bytes(), &of(0)), most, "its hashes could not be read");
        assert_eq!(answer(&one), Err(Unread::Malformed), "the block has three");
        let many = whole(&format!("[{}]", vec![tx("0x1"); MAX_UNCOUNTED_TXS + 1].join(",")));
        assert_eq!(read_nonces(many.as_bytes(), &of(0)), Err(Unread::Malformed));
        assert_eq!(answer(&whole("[\"0x00\"]")), Err(Unread::Malformed));
        let other =
            read_nonces(whole(&txs).as_bytes(), &Block::new(Head::default(), vec![B256::ZERO; 3]));
        assert_eq!(other, Err(Unread::Malformed), "another block's");
        assert_eq!(answer(r#"{"id":1,"result":null}"#), Err(Unread::Missing));
        assert_eq!(answer(r#"{"id":1,"error":{"code":-32000}}"#), Err(Unread::Failed));
        assert_eq!(answer(r#"{"id":1,"result":{}}"#), Err(Unread::Malformed));
    }

    #[test]
    fn the_kept_answers_are_blocks_or_refused() {
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
