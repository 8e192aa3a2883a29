//! The methods.

use std::time::SystemTime;

use alloy_primitives::{Address, Bytes};
use order_pool::{
    BundleError, CancelOutcome, InsertOutcome, RawBundle, RawCancelBundle, RejectReason,
    ReplacementKey,
};
use serde_json::{Value, json};

use crate::{
    context::RpcContext,
    params,
    reply::{ErrorResponse, Reason},
    verify,
};

/// A method that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    SendRawTransaction,
    SendBundle,
    CancelBundle,
}

impl Method {
    pub(crate) const ALL: [Self; 3] =
        [Self::SendRawTransaction, Self::SendBundle, Self::CancelBundle];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SendRawTransaction => "eth_sendRawTransaction",
            Self::SendBundle => "eth_sendBundle",
            Self::CancelBundle => "eth_cancelBundle",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether it waits while the load is high.
    pub(crate) fn is_deferrable(self) -> bool {
        match self {
            Self::SendRawTransaction => true,
            Self::SendBundle | Self::CancelBundle => false,
        }
    }

    /// Runs a call of it: CPU-heavy work.
    pub(crate) fn call(
        self,
        context: &RpcContext,
        params: &[u8],
        signer: Option<Address>,
    ) -> Result<Value, ErrorResponse> {
        let result = match self {
            Self::SendRawTransaction => send_raw_transaction(context, params),
            Self::SendBundle => send_bundle(context, params, signer),
            Self::CancelBundle => cancel_bundle(context, params, signer),
        }?;
        context.metrics.accepted(self);
        Ok(result)
    }
}

fn send_raw_transaction(context: &RpcContext, params: &[u8]) -> Result<Value, ErrorResponse> {
    let raw: Bytes = params::one(params, "")?;
    let now = SystemTime::now();
    let tx = verify::transaction(&raw, "params[0]", context.config.chain_id, now)?;
    let hash = *tx.hash();
    match context.host.pool.insert_transaction(tx) {
        // Known is success as long as it is pooled: the promise is about the pool.
        InsertOutcome::Known if !context.host.pool.contains(&hash) => {
            let message = "already known, and not in the pool any more".to_owned();
            Err(ErrorResponse::rejected(Reason::Known, message))
        }
        outcome => check_outcome(outcome, "params[0]"),
    }?;
    Ok(json!(hash))
}

fn send_bundle(
    context: &RpcContext,
    params: &[u8],
    signer: Option<Address>,
) -> Result<Value, ErrorResponse> {
    let raw: RawBundle = params::one(params, "")?;
    let config = &context.config;
    // Resolving decodes; chain and gas are then checked on what it decoded.
    let bundle = raw
        .resolve(signer, config.max_txs_per_bundle, SystemTime::now())
        .map_err(|error| bundle_error(&error))?;
    for (index, tx) in bundle.txs().iter().enumerate() {
        verify::fits(tx.envelope(), &format!("txs[{index}]"), config.chain_id)?;
    }
    let bundle_hash = *bundle.hash();
    check_outcome(context.host.pool.insert_bundle(bundle), "replacementNonce")?;
    Ok(json!({ "bundleHash": bundle_hash }))
}

fn cancel_bundle(
    context: &RpcContext,
    params: &[u8],
    signer: Option<Address>,
) -> Result<Value, ErrorResponse> {
    let cancel: RawCancelBundle = params::one(params, "replacementUuid")?;
    let Some(signer) = signer else {
        let message = "replacementUuid needs a signed request".to_owned();
        return Err(ErrorResponse::field(Reason::Signature, "replacementUuid", message));
    };
    let key = ReplacementKey { uuid: cancel.replacement_uuid, signer };
    match context.host.pool.cancel_bundle(key, cancel.replacement_nonce) {
        // Cancelled permanently before: that is what the caller wants.
        CancelOutcome::Cancelled { .. } | CancelOutcome::CancelledPermanently => Ok(json!(true)),
        CancelOutcome::Superseded { nonce, current } => Err(superseded(nonce, current)),
        _ => Err(ErrorResponse::internal()),
    }
}
fn superseded(nonce: u64, current: u64) -> ErrorResponse {
    let message = format!("replacementNonce is {nonce}, must be above {current}");
    ErrorResponse::rejected(Reason::Superseded, message)
}

/// A success response is only sent for an order that is in the pool.
fn check_outcome(outcome: InsertOutcome, field: &str) -> Result<(), ErrorResponse> {
    match outcome {
        InsertOutcome::Added
        | InsertOutcome::Replaced { .. }
        | InsertOutcome::Cancelled
        | InsertOutcome::Known => Ok(()),
        InsertOutcome::Superseded { nonce, current } => Err(superseded(nonce, current)),
        InsertOutcome::CancelledPermanently => {
            let message = "replacementUuid was cancelled permanently".to_owned();
            Err(ErrorResponse::rejected(Reason::Superseded, message))
        }
        InsertOutcome::Mined => Err(ErrorResponse::rejected(
            Reason::Mined,
            format!("{field}: a recent block contains it"),
        )),
        InsertOutcome::StaleNonce { nonce, next } => {
            let message = format!("nonce too low: next nonce {next}, tx nonce {nonce}");
            Err(ErrorResponse::rejected(Reason::StaleNonce, message))
        }
        InsertOutcome::Rejected(reason) => Err(match reason {
            RejectReason::TooMany { field, .. } => {
                ErrorResponse::field(Reason::Params, field, reason.to_string())
            }
            RejectReason::BlockPassed { .. } | RejectReason::BlockTooFar { .. } => {
                ErrorResponse::field(Reason::Params, "blockNumber", reason.to_string())
            }
            RejectReason::PaysTooLittle { .. } => {
                ErrorResponse::rejected(Reason::PaysTooLittle, reason.to_string())
            }
            _ => ErrorResponse::rejected(Reason::PoolFull, reason.to_string()),
        }),
        // This crate cannot promise anything about an outcome that it does not know.
        _ => Err(ErrorResponse::internal()),
    }
}

fn bundle_error(error: &BundleError) -> ErrorResponse {
    let (reason, field) = match error {
        BundleError::Empty => (Reason::Params, "txs".to_owned()),
        BundleError::NonceWithoutUuid { .. } => (Reason::Params, "replacementNonce".to_owned()),
        BundleError::UuidWithoutSigner { .. } => (Reason::Signature, "replacementUuid".to_owned()),
        BundleError::TimestampsReversed { .. } => (Reason::Params, "minTimestamp".to_owned()),
        BundleError::RefundPercent { .. } => (Reason::Params, "refundPercent".to_owned()),
        BundleError::TooMany { field, .. } => (Reason::Params, (*field).to_owned()),
        BundleError::Undecodable { index, .. } => (Reason::Undecodable, format!("txs[{index}]")),
        BundleError::Signature { index, .. } => {
            (Reason::TransactionSignature, format!("txs[{index}]"))
        }
        BundleError::Sidecar { index, .. } => (Reason::Sidecar, format!("txs[{index}]")),
        _ => (Reason::Params, "params[0]".to_owned()),
    };
    ErrorResponse::field(reason, &field, error.to_string())
}
