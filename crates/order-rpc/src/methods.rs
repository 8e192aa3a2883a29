//! The JSON-RPC methods: what each of them parses, checks and does.
//!
//! Checks run in the order of their cost: the length, whether the transaction is pooled already,
//! the block, the chain, gas and fees, the quotas; then the request's signature, the senders, the
//! blob proofs, and the host's decision. Only the signature of a request that claims a known
//! signer, which is served first, is verified before all of them.
//!
//! In reading order: `params` parses parameters, with `ignored_fields`; `transaction` checks a
//! transaction by `fork_rules`; `order` takes an order from its parameters into the pool;
//! `signature`, `proofs` and `admission` are the expensive checks.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

mod admission;
mod fork_rules;
mod ignored_fields;
mod order;
pub(crate) mod params;
mod proofs;
mod signature;
mod transaction;

use std::sync::Arc;

use alloy_primitives::{Address, keccak256};
use load_control::labels;
use order_pool::{Head, MAX_BLOCKS_AHEAD, MAX_TXS_PER_BUNDLE, RawBundle, RejectReason};
use tokio::sync::Semaphore;

pub(crate) use self::{
    admission::AdmissionOutcome,
    ignored_fields::{IGNORED_FIELDS, IgnoredFields},
    order::{Prepared, Verified},
    signature::{HEADERS as SIGNATURE_HEADERS, SignatureClaim, refused as signature_refused},
};
use self::{
    fork_rules::ForkRules,
    params::{FIRST_PARAM, RawCancelPrivate, RawPrivate},
    proofs::Prover,
};
use crate::{
    host::Host,
    limits::Limiter,
    reply::{ErrorResponse, Reason},
};

/// The most blocks above the head for which a private transaction is kept: a higher or absent
/// `maxBlockNumber` is lowered to it, as at Flashbots. The pool's own bound applies too.
pub(crate) const MAX_PRIVATE_BLOCKS: u64 = 25;

labels! {
    /// A JSON-RPC method that is served.
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
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }

    /// Whether its calls wait while the load is high.
    pub(crate) fn is_deferrable(self) -> bool {
        self == Self::SendRawTransaction
    }

    /// Whether its calls never wait for the load to fall.
    pub(crate) fn is_urgent(self) -> bool {
        !self.is_deferrable()
    }

    /// Selects every method.
    pub(crate) const fn is_any(self) -> bool {
        true
    }

    /// The field in which a single transaction stands in its parameters, for error messages.
    pub(crate) fn transaction_field(self) -> &'static str {
        if self == Self::SendPrivateTransaction { "tx" } else { FIRST_PARAM }
    }
}

/// Runs the methods, with what they need of the host and of the limits.
#[derive(Debug)]
pub(crate) struct Methods {
    pub(crate) host: Host,
    pub(crate) prover: Prover,
    limiter: Arc<Limiter>,
    /// Bounds the orders of strangers on which the host is asked to decide.
    admissions: Semaphore,
    /// The same for orders of known signers and of the host.
    known_admissions: Semaphore,
}

impl Methods {
    pub(crate) fn new(host: Host, limiter: Arc<Limiter>) -> Self {
        let max_admissions = limiter.limits.max_admissions;
        Self {
            prover: Prover::new(Arc::clone(&limiter)),
            host,
            limiter,
            admissions: Semaphore::new(max_admissions),
            known_admissions: Semaphore::new(max_admissions),
        }
    }

    pub(crate) fn is_known_signer(&self, signer: Address) -> bool {
        (self.host.is_known_signer)(signer)
    }

    /// Parses the parameters of a call and runs the checks that need no signature.
    ///
    /// `accepts_pooled`: a transaction that is in the pool needs no more checks. It is false if an
    /// earlier call of the batch may still remove the transaction.
    pub(crate) fn prepare(
        &self,
        method: Method,
        params: &[u8],
        ignored: &mut IgnoredFields,
        accepts_pooled: bool,
    ) -> Result<Prepared, ErrorResponse> {
        let field = method.transaction_field();
        match method {
            Method::SendRawTransaction => {
                let raw = params::parse_raw_transaction(params)?;
                self.prepare_transaction(&raw, field, None, accepts_pooled)
            }
            Method::SendBundle => self.prepare_bundle(params, ignored),
            Method::CancelBundle => {
                let cancel = params::parse_object(params, "replacementUuid", ignored)?;
                Ok(Prepared::Cancellation(cancel))
            }
            Method::SendPrivateTransaction => {
                let RawPrivate { tx, max_block_number, .. } =
                    params::parse_object(params, field, ignored)?;
                let last_block = self.last_block(max_block_number)?;
                self.prepare_transaction(&tx, field, Some(last_block), accepts_pooled)
            }
            Method::SendPrivateRawTransaction => {
                let raw = params::parse_private_raw_transaction(params)?;
                let last_block = self.last_block(None)?;
                self.prepare_transaction(&raw, field, Some(last_block), accepts_pooled)
            }
            Method::CancelPrivateTransaction => {
                let RawCancelPrivate { tx_hash } = params::parse_object(params, "txHash", ignored)?;
                Ok(Prepared::PrivateCancellation(tx_hash))
            }
            // Clients call these in addition to sending an order: ethers for each broadcast.
            Method::BlockNumber => {
                params::check_no_params(params)?;
                let number = self.head()?.number;
                Ok(Prepared::Answer(format!("{number:#x}").into()))
            }
            Method::ChainId => {
                params::check_no_params(params)?;
                let chain_id = self.limiter.limits.config.chain_id;
                Ok(Prepared::Answer(format!("{chain_id:#x}").into()))
            }
            Method::NetVersion => {
                params::check_no_params(params)?;
                let chain_id = self.limiter.limits.config.chain_id;
                Ok(Prepared::Answer(chain_id.to_string().into()))
            }
        }
    }

    fn head(&self) -> Result<Head, ErrorResponse> {
        self.host.pool.head().ok_or_else(|| self.limiter.retry_later(Reason::HeadUnknown))
    }

    fn fork_rules(&self) -> ForkRules {
        ForkRules::after(self.host.pool.head().as_ref(), &self.limiter.limits.config)
    }

    /// Returns the last block of a private transaction, from its `maxBlockNumber`.
    fn last_block(&self, max_block_number: Option<u64>) -> Result<u64, ErrorResponse> {
        let head = self.head()?;
        let limit = head.number.saturating_add(MAX_PRIVATE_BLOCKS);
        match max_block_number {
            Some(value) if value <= head.number => {
                Err(order::last_block_passed(value, head.number.saturating_add(1)))
            }
            Some(value) => Ok(value.min(limit)),
            None => Ok(limit),
        }
    }

    /// Decodes and checks one transaction, unless `accepts_pooled` is set and the pool has it.
    /// `field` is the name of its parameter, for error responses.
    fn prepare_transaction(
        &self,
        raw: &[u8],
        field: &'static str,
        last_block: Option<u64>,
        accepts_pooled: bool,
    ) -> Result<Prepared, ErrorResponse> {
        // A pooled transaction need not be decoded: keccak of its bytes is its hash. The hash of a
        // blob transaction does not cover its blobs, so it is looked up after it is decoded.
        if accepts_pooled && !transaction::has_blobs(raw) {
            let hash = keccak256(raw);
            if self.host.pool.contains(&hash) {
                return Ok(Prepared::Pooled(hash, last_block));
            }
        }
        let tx = transaction::decode(raw, field, &self.fork_rules())?;
        let hash = *tx.tx_hash();
        if accepts_pooled && self.host.pool.contains(&hash) {
            return Ok(Prepared::Pooled(hash, last_block));
        }
        Ok(Prepared::Transaction { tx, field, last_block })
    }

    fn prepare_bundle(
        &self,
        params: &[u8],
        ignored: &mut IgnoredFields,
    ) -> Result<Prepared, ErrorResponse> {
        let raw: RawBundle = params::parse_object(params, "", ignored)?;
        raw.check(MAX_TXS_PER_BUNDLE).map_err(|error| order::bundle_error(&error))?;
        self.check_bundle_time(&raw)?;
        let rules = self.fork_rules();
        let mut txs = Vec::with_capacity(raw.txs.len());
        for (index, tx) in raw.txs.iter().enumerate() {
            txs.push(transaction::decode(tx, &format!("txs[{index}]"), &rules)?);
        }
        Ok(Prepared::Bundle(raw, txs))
    }

    /// Refuses a bundle that no block after the head can contain, or only one that is too far.
    fn check_bundle_time(&self, bundle: &RawBundle) -> Result<(), ErrorResponse> {
        let Some(head) = self.host.pool.head() else { return Ok(()) };
        // Block 0 means the next block.
        let block = bundle.block_number.filter(|block| *block != 0);
        let farthest = head.number.saturating_add(MAX_BLOCKS_AHEAD);
        match block {
            Some(value) if value <= head.number => {
                let limit = head.number.saturating_add(1);
                return Err(order::rejected(&RejectReason::BlockPassed { value, limit }));
            }
            Some(value) if value > farthest => {
                let limit = farthest;
                return Err(order::rejected(&RejectReason::BlockTooFar { value, limit }));
            }
            _ => {}
        }
        // Each block has a later timestamp than the one before. 0 means that it is unset.
        let max_timestamp = bundle.max_timestamp.unwrap_or_default();
        if (1..=head.timestamp).contains(&max_timestamp) {
            let head_timestamp = head.timestamp;
            let message = format!(
                "maxTimestamp is {max_timestamp}, the head's timestamp is {head_timestamp}"
            );
            return Err(ErrorResponse::field(Reason::Params, "maxTimestamp", message));
        }
        Ok(())
    }
}
