//! The methods.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use alloy_primitives::{Address, B256, Bytes};
use jsonrpsee::{
    Extensions, RpcModule,
    types::{ErrorObjectOwned, Params},
};
use order_pool::{
    BundleError, CancelOutcome, InsertOutcome, RawBundle, RawCancelBundle, RejectReason,
    ReplacementKey,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    context::{Caller, RpcContext},
    reply::{ErrorResponse, Reason},
    verify,
};

/// The answer to `eth_sendBundle`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BundleAnswer {
    bundle_hash: B256,
}

pub(crate) fn module(context: Arc<RpcContext>) -> RpcModule<Arc<RpcContext>> {
    let mut module = RpcModule::new(context);
    // `expect`: three names, each registered once.
    let once = "each method is registered once";
    module
        .register_async_method("eth_sendRawTransaction", |params, context, extensions| async move {
            let caller = caller(&extensions);
            let sent = send_raw_transaction(&context, params, caller.weight).await;
            answer(&context, &caller, sent)
        })
        .expect(once);
    module
        .register_async_method("eth_sendBundle", |params, context, extensions| async move {
            let caller = caller(&extensions);
            answer(&context, &caller, send_bundle(&context, params, caller.signer).await)
        })
        .expect(once);
    module
        .register_async_method("eth_cancelBundle", |params, context, extensions| async move {
            let caller = caller(&extensions);
            answer(&context, &caller, cancel_bundle(&context, params, caller.signer).await)
        })
        .expect(once);
    module
}

fn caller(extensions: &Extensions) -> Caller {
    extensions.get::<Caller>().cloned().unwrap_or_default()
}

fn answer<T>(
    context: &RpcContext,
    caller: &Caller,
    done: Result<T, ErrorResponse>,
) -> Result<T, ErrorObjectOwned> {
    done.map_err(|error| {
        context.metrics.count(error.reason);
        let object = error.error_object();
        // In a batch the first one is kept; the status of a batch does not use it.
        let _ = caller.error_response.set(error);
        object
    })
}

async fn send_raw_transaction(
    context: &Arc<RpcContext>,
    params: Params<'static>,
    weight: usize,
) -> Result<B256, ErrorResponse> {
    let permit = context.deferral.acquire(&context.host.gate, weight).await;
    let permit = permit.map_err(|refusal| ErrorResponse::refusal(&refusal))?;
    let sent = context.work(permit, move |context| {
        let [raw]: [Bytes; 1] = params.parse().map_err(|error: ErrorObjectOwned| {
            let message = format!("params must be one string of hex: {}", details(&error));
            ErrorResponse::field(Reason::Params, "params[0]", message)
        })?;
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
        Ok(hash)
    });
    let hash = sent.await?;
    context.metrics.raw_transactions.increment(1);
    Ok(hash)
}

async fn send_bundle(
    context: &Arc<RpcContext>,
    params: Params<'static>,
    signer: Option<Address>,
) -> Result<BundleAnswer, ErrorResponse> {
    let sent = context.work(None, move |context| {
        let raw: RawBundle = one_object(&params, &[])?;
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
        Ok(BundleAnswer { bundle_hash })
    });
    let sent = sent.await?;
    context.metrics.bundles.increment(1);
    Ok(sent)
}

/// Never deferred, and without a work permit because it is short: a cancellation must not wait.
async fn cancel_bundle(
    context: &Arc<RpcContext>,
    params: Params<'static>,
    signer: Option<Address>,
) -> Result<bool, ErrorResponse> {
    let uuid = format!("\"{}\"", Uuid::nil());
    let cancel: RawCancelBundle = one_object(&params, &[("replacementUuid", &uuid)])?;
    let Some(signer) = signer else {
        let message = "replacementUuid needs a signed request".to_owned();
        return Err(ErrorResponse::field(Reason::Signature, "replacementUuid", message));
    };
    let key = ReplacementKey { uuid: cancel.replacement_uuid, signer };
    match context.host.pool.cancel_bundle(key, cancel.replacement_nonce) {
        // Cancelled permanently before: that is what the caller wants.
        CancelOutcome::Cancelled { .. } | CancelOutcome::CancelledPermanently => {
            context.metrics.cancellations.increment(1);
            Ok(true)
        }
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

/// The one object that the bundle methods take.
///
/// If it does not read, its fields are tried one by one, beside those of `base` that must not be
/// absent, to name the culprit. At most one field fails, and then the trying ends.
fn one_object<T: DeserializeOwned>(
    params: &Params<'_>,
    base: &[(&str, &str)],
) -> Result<T, ErrorResponse> {
    let error = match params.parse::<[T; 1]>() {
        Ok([object]) => return Ok(object),
        Err(error) => error,
    };
    let mut field = "params[0]".to_owned();
    if let Ok([fields]) = params.parse::<[BTreeMap<String, Box<RawValue>>; 1]>() {
        for (name, value) in &fields {
            let mut alone: BTreeMap<&str, &str> = base.iter().copied().collect();
            // The alias of the same field.
            if name == "uuid" {
                alone.remove("replacementUuid");
            }
            alone.insert(name, value.get());
            if !reads::<T>(&alone) {
                field.clone_from(name);
                break;
            }
        }
        let missing = base.iter().find(|(name, _)| !fields.contains_key(*name));
        if field == "params[0]"
            && let Some((name, _)) = missing
        {
            field = (*name).to_owned();
        }
    }
    let message = format!("{field}: {}", details(&error));
    Err(ErrorResponse::field(Reason::Params, &field, message))
}

fn reads<T: DeserializeOwned>(fields: &BTreeMap<&str, &str>) -> bool {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("{}:{value}", serde_json::Value::from(*name)))
        .collect();
    serde_json::from_str::<T>(&format!("{{{}}}", fields.join(","))).is_ok()
}

/// What serde said, of an error of jsonrpsee's making.
fn details(error: &ErrorObjectOwned) -> String {
    let data = error.data().and_then(|data| serde_json::from_str::<String>(data.get()).ok());
    let mut text = data.unwrap_or_else(|| error.message().to_owned());
    // A value of the caller's may be in it, of any length.
    if text.len() > 200 {
        let end = (0..=200).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}
