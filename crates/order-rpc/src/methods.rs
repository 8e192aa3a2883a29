//! The JSON-RPC methods: what each takes, checks and does.
//!
//! Checks run in the order of their cost: the length, whether the transaction is pooled, the block,
//! the chain, gas and fees, the quotas; then the request's signature, the senders, the blob proofs,
//! and what the host says. Only the signature of a known signer, who is served first, comes first.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod admission;
mod ignored;
mod order;
pub(crate) mod params;
mod proofs;
mod rules;
mod signature;
mod verify;

use std::sync::Arc;

use alloy_primitives::{B256, keccak256};
use load_control::labels;
use order_pool::{MAX_BLOCKS_AHEAD, MAX_TXS_PER_BUNDLE, RawBundle, RejectReason};
use tokio::sync::Semaphore;

pub(crate) use self::{
    admission::Ended,
    ignored::{IGNORED_FIELDS, Ignored},
    order::{Prepared, Verified},
    signature::{Claim, HEADERS as SIGNATURE_HEADERS, refused as signature_refused},
};
use self::{
    params::{RawCancelPrivate, RawPrivate},
    proofs::Proofs,
    rules::Rules,
};
use crate::{
    host::Host,
    limits::Limiter,
    reply::{ErrorResponse, Reason},
};

/// The most blocks above the head for which a private transaction is kept: a higher or absent
/// `maxBlockNumber` becomes this, as at Flashbots. The pool's bound applies too.
pub(crate) const MAX_PRIVATE_BLOCKS: u64 = 25;

labels! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Method {
        SendRawTransaction = "eth_sendRawTransaction",
        SendBundle = "eth_sendBundle",
        CancelBundle = "eth_cancelBundle",
        SendPrivateTransaction = "eth_sendPrivateTransaction",
        SendPrivateRawTransaction = "eth_sendPrivateRawTransaction",
        CancelPrivateTransaction = "eth_cancelPrivateTransaction",
        BlockNumber = "eth_blockNumber",
        ChainId = "eth_chainId",
        NetVersion = "net_version",
    }
}

impl Method {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// Whether it waits while the load is high.
    pub(crate) fn is_deferrable(self) -> bool {
        self == Self::SendRawTransaction
    }
}

#[derive(Debug)]
pub(crate) struct Methods {
    pub(crate) host: Host,
    pub(crate) proofs: Proofs,
    limiter: Arc<Limiter>,
    /// The turns of strangers' orders, on which the host decides.
    admissions: Semaphore,
    /// The turns of known signers' orders, and the host's.
    known_admissions: Semaphore,
}

impl Methods {
    pub(crate) fn new(host: Host, limiter: Arc<Limiter>) -> Self {
        let [admissions, known_admissions] =
            [(); 2].map(|()| Semaphore::new(limiter.limits.max_admissions));
        Self { host, proofs: Proofs::new(), limiter, admissions, known_admissions }
    }

    /// Parses the parameters of a call and runs the checks that need no signature. `may_be_pooled`:
    /// a transaction that is in the pool needs no more.
    pub(crate) fn prepare(
        &self,
        method: Method,
        params: &[u8],
        ignored: &mut Ignored,
        may_be_pooled: bool,
    ) -> Result<Prepared, ErrorResponse> {
        let transaction = |raw: &[u8], field, last_block| {
            self.prepare_transaction(raw, field, last_block, may_be_pooled)
        };
        match method {
            Method::SendRawTransaction => transaction(&params::raw(params)?, params::FIRST, None),
            Method::SendBundle => self.prepare_bundle(params, ignored),
            Method::CancelBundle => {
                params::one(params, "replacementUuid", ignored).map(Prepared::Cancellation)
            }
            Method::SendPrivateTransaction => {
                let RawPrivate { tx, max_block_number, .. } = params::one(params, "tx", ignored)?;
                transaction(&tx, "tx", Some(self.last_block(max_block_number)?))
            }
            Method::SendPrivateRawTransaction => {
                let raw = params::private_raw(params)?;
                transaction(&raw, params::FIRST, Some(self.last_block(None)?))
            }
            Method::CancelPrivateTransaction => {
                let RawCancelPrivate { tx_hash } = params::one(params, "txHash", ignored)?;
                Ok(Prepared::PrivateCancellation(tx_hash))
            }
            // Clients ask for these beside an order: ethers for each broadcast.
            Method::BlockNumber => {
                params::none(params)?;
                let head = self.host.pool.head();
                let head = head.ok_or_else(|| self.limiter.retry_later(Reason::HeadUnknown))?;
                Ok(Prepared::Answer(format!("{:#x}", head.number).into()))
            }
            Method::ChainId => {
                params::none(params)?;
                let chain_id = self.limiter.limits.config.chain_id;
                Ok(Prepared::Answer(format!("{chain_id:#x}").into()))
            }
            Method::NetVersion => {
                params::none(params)?;
                Ok(Prepared::Answer(self.limiter.limits.config.chain_id.to_string().into()))
            }
        }
    }

    fn rules(&self) -> Rules {
        Rules::after(self.host.pool.head().as_ref(), &self.limiter.limits.config)
    }

    /// The last block of a private transaction.
    fn last_block(&self, wanted: Option<u64>) -> Result<u64, ErrorResponse> {
        let Some(head) = self.host.pool.head() else {
            return Err(self.limiter.retry_later(Reason::HeadUnknown));
        };
        let most = head.number.saturating_add(MAX_PRIVATE_BLOCKS);
        match wanted {
            Some(value) if value <= head.number => {
                Err(last_block_passed(value, head.number.saturating_add(1)))
            }
            wanted => Ok(wanted.unwrap_or(most).min(most)),
        }
    }

    fn prepare_transaction(
        &self,
        raw: &[u8],
        field: &'static str,
        last_block: Option<u64>,
        may_be_pooled: bool,
    ) -> Result<Prepared, ErrorResponse> {
        let is_pooled = |hash: &B256| may_be_pooled && self.host.pool.contains(hash);
        // The hash of a blob transaction does not cover the blobs.
        if !verify::has_blobs(raw) {
            let hash = keccak256(raw);
            if is_pooled(&hash) {
                return Ok(Prepared::Pooled(hash, last_block));
            }
        }
        let tx = verify::decode(raw, field, &self.rules())?;
        let hash = *tx.tx_hash();
        Ok(match is_pooled(&hash) {
            true => Prepared::Pooled(hash, last_block),
            false => Prepared::Transaction { tx, field, last_block },
        })
    }

    fn prepare_bundle(
        &self,
        params: &[u8],
        ignored: &mut Ignored,
    ) -> Result<Prepared, ErrorResponse> {
        let raw: RawBundle = params::one(params, "", ignored)?;
        raw.check(MAX_TXS_PER_BUNDLE).map_err(|error| order::bundle_error(&error))?;
        if let Some(head) = self.host.pool.head() {
            let limit = head.number.saturating_add(MAX_BLOCKS_AHEAD);
            match raw.block_number.filter(|block| *block != 0) {
                Some(value) if value <= head.number => {
                    let limit = head.number.saturating_add(1);
                    return Err(order::rejected(&RejectReason::BlockPassed { value, limit }));
                }
                Some(value) if value > limit => {
                    return Err(order::rejected(&RejectReason::BlockTooFar { value, limit }));
                }
                _ => {}
            }
            // Each block is later than the one before. 0 is unset.
            let (time, passed) = (raw.max_timestamp.unwrap_or_default(), head.timestamp);
            if (1..=passed).contains(&time) {
                let message = format!("maxTimestamp is {time}, the head's timestamp is {passed}");
                return Err(ErrorResponse::field(Reason::Params, "maxTimestamp", message));
            }
        }
        let rules = self.rules();
        let txs = raw.txs.iter().enumerate();
        let txs = txs.map(|(index, tx)| verify::decode(tx, &format!("txs[{index}]"), &rules));
        let txs = txs.collect::<Result<_, _>>()?;
        Ok(Prepared::Bundle(raw, txs))
    }
}

fn last_block_passed(value: u64, limit: u64) -> ErrorResponse {
    let message = format!("maxBlockNumber is {value}, the lowest that is not built yet is {limit}");
    ErrorResponse::field(Reason::Params, "maxBlockNumber", message)
}
