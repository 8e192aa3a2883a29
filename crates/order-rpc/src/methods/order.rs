//! An order on its way into the pool: prepared, verified, inserted.

use std::{sync::Arc, time::SystemTime};

use alloy_primitives::{Address, B256};
use order_pool::{
    BundleError, CancelOutcome, CancelPrivateOutcome, Cancellation, Holder, InsertOutcome, Order,
    OrderPool, PooledTransaction, PrivateTerms, RawBundle, RawCancelBundle, RejectReason,
    ReplacementKey,
};
use serde_json::{Value, json};

use super::{
    last_block_passed,
    params::FIRST,
    proofs::{Proofs, Unproven},
    verify,
};
use crate::{
    host::Verdict,
    limits::Requester,
    reply::{ErrorResponse, Reason},
};

/// A call that has passed all checks that need no signature.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// A transaction that is already in the pool, and its last block if it is sent as a private one.
    Pooled(B256, Option<u64>),
    Transaction {
        tx: PooledTransaction,
        /// Its field in the parameters.
        field: &'static str,
        /// The last block of a private one.
        last_block: Option<u64>,
    },
    /// With its transactions, in order.
    Bundle(RawBundle, Vec<PooledTransaction>),
    Cancellation(RawCancelBundle),
    /// Of the private transaction with this hash.
    PrivateCancellation(B256),
    /// The result of a call that changes nothing.
    Answer(Value),
}

impl Prepared {
    /// The signatures that are recovered next; one for a cancellation.
    pub(crate) fn recoveries(&self) -> usize {
        match self {
            Self::Pooled(..) | Self::Answer(_) => 0,
            Self::Transaction { .. } | Self::Cancellation(_) | Self::PrivateCancellation(_) => 1,
            Self::Bundle(_, txs) => txs.len(),
        }
    }

    /// Does everything but the proofs. What a front sends of a bundle has the signer that it names.
    pub(crate) fn verify(
        self,
        requester: Requester,
        holder_of: impl Fn(Option<Address>) -> Holder,
        proofs: &Proofs,
    ) -> Result<Verified, ErrorResponse> {
        let Requester { signer, arrived, .. } = requester;
        let named =
            |address: Option<Address>| address.filter(|_| requester.caller.is_front).or(signer);
        let terms = |last: Option<u64>| last.map(|max_block| PrivateTerms { signer, max_block });
        Ok(match self {
            Self::Pooled(hash, last_block) => {
                Verified::Pooled(hash, holder_of(signer), terms(last_block))
            }
            Self::Transaction { tx, field, last_block } => {
                let tx = verify::transaction(tx, field, terms(last_block), arrived)?
                    .held_by(holder_of(signer));
                let unproven = proofs.unproven(std::slice::from_ref(&tx));
                Verified::Order(Arc::new(Order::Tx(tx)), unproven)
            }
            Self::Bundle(raw, txs) => {
                let txs = txs.into_iter().enumerate();
                let verify =
                    |(index, tx)| verify::transaction(tx, &format!("txs[{index}]"), None, arrived);
                let txs = txs.map(verify).collect::<Result<_, _>>()?;
                let signer = named(raw.signing_address);
                let bundle = raw.with_transactions(txs, signer, holder_of(signer), arrived);
                let bundle = bundle.map_err(|error| bundle_error(&error))?;
                let unproven = proofs.unproven(bundle.txs());
                Verified::Order(Arc::new(Order::Bundle(bundle)), unproven)
            }
            Self::Cancellation(cancel) => {
                let signer = named(cancel.signing_address);
                let signer = signer.ok_or_else(|| needs_signature("replacementUuid"))?;
                let key = ReplacementKey { uuid: cancel.replacement_uuid, signer };
                let (nonce, holder) = (cancel.replacement_nonce, holder_of(Some(signer)));
                Verified::Cancellation(Cancellation { key, nonce, holder, sent_at: None })
            }
            Self::PrivateCancellation(hash) => {
                let signer = signer.ok_or_else(|| needs_signature("txHash"))?;
                Verified::PrivateCancellation(hash, signer, holder_of(Some(signer)), arrived)
            }
            Self::Answer(answer) => Verified::Answer(answer),
        })
    }
}

/// A call that now only the host and the pool can refuse.
#[derive(Debug)]
pub(crate) enum Verified {
    /// A transaction that is already in the pool.
    Pooled(B256, Holder, Option<PrivateTerms>),
    /// With the blobs whose proofs are not verified yet. It is shared while one of these is.
    Order(Arc<Order>, Vec<Unproven>),
    Cancellation(Cancellation),
    /// Of the private transaction with this hash, by this signer, and when it came: what stands
    /// behind it in a batch is later, though it is verified before this is done.
    PrivateCancellation(B256, Address, Holder, SystemTime),
    /// The result of a call that changes nothing.
    Answer(Value),
}

impl Verified {
    /// The order on which the host decides.
    pub(crate) fn order(&self) -> Option<&Order> {
        match self {
            // A bundle without transactions is a cancellation.
            Self::Order(order, _) => match &**order {
                Order::Bundle(bundle) if bundle.txs().is_empty() => None,
                order => Some(order),
            },
            Self::Pooled(..)
            | Self::Cancellation(..)
            | Self::PrivateCancellation(..)
            | Self::Answer(_) => None,
        }
    }

    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self, Self::Order(_, unproven) if !unproven.is_empty())
    }

    /// Inserts it into the pool, in microseconds, as the host decided: `Accept` without a decision.
    pub(crate) fn insert(
        self,
        pool: &OrderPool,
        verdict: &Verdict,
    ) -> Result<Value, ErrorResponse> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Pooled(hash, holder, terms) => {
                check_outcome(pool.hold(&hash, holder, terms.as_ref()), "the transaction")?;
                Ok(json!(hash))
            }
            Self::Order(order, _) => insert_order(Arc::unwrap_or_clone(order), pool, verdict),
            Self::Cancellation(cancellation) => match pool.cancel_bundle(cancellation) {
                // If it was cancelled permanently before, the caller has what it wants. Null, as in
                // rbuilder: alloy's client accepts nothing else as success.
                CancelOutcome::Cancelled { .. } | CancelOutcome::CancelledPermanently => {
                    Ok(Value::Null)
                }
                CancelOutcome::Superseded { nonce, current } => Err(superseded(nonce, current)),
                _ => Err(ErrorResponse::internal()),
            },
            Self::PrivateCancellation(hash, signer, holder, at) => {
                let (reason, message) = match pool.cancel_private(&hash, signer, holder, at) {
                    CancelPrivateOutcome::Cancelled => return Ok(json!(true)),
                    CancelPrivateOutcome::Public => (
                        Reason::BecamePublic,
                        format!("{hash} is known to others and cannot be cancelled"),
                    ),
                    CancelPrivateOutcome::Unknown => (
                        Reason::UnknownPrivate,
                        format!("no private transaction of {signer} has the hash {hash} here"),
                    ),
                    _ => return Err(ErrorResponse::internal()),
                };
                Err(ErrorResponse::rejected(reason, message))
            }
        }
    }
}

fn insert_order(order: Order, pool: &OrderPool, verdict: &Verdict) -> Result<Value, ErrorResponse> {
    let funds = match verdict {
        Verdict::AcceptWithin(funds) => Some(funds),
        _ => None,
    };
    match order {
        Order::Tx(tx) => {
            let hash = *tx.hash();
            let is_vouched_for = *verdict == Verdict::Prioritize;
            let tx = if is_vouched_for { tx.vouched_for() } else { tx };
            match pool.insert(Order::Tx(tx), funds) {
                // For a private transaction: a head came meanwhile.
                InsertOutcome::Rejected(RejectReason::BlockPassed { value, limit }) => {
                    Err(last_block_passed(value, limit))
                }
                outcome => check_outcome(outcome, "the transaction"),
            }?;
            Ok(json!(hash))
        }
        Order::Bundle(bundle) => {
            let hash = *bundle.hash();
            let outcome = pool.insert(Order::Bundle(bundle), funds);
            check_outcome(outcome, "replacementNonce")?;
            Ok(json!({ "bundleHash": hash }))
        }
        // No other kind of order is created here.
        _ => Err(ErrorResponse::internal()),
    }
}

fn needs_signature(field: &str) -> ErrorResponse {
    ErrorResponse::field(Reason::Signature, field, format!("{field} needs a signed request"))
}

fn superseded(nonce: u64, current: u64) -> ErrorResponse {
    let message = format!("replacementNonce is {nonce}, must be above {current}");
    ErrorResponse::rejected(Reason::Superseded, message)
}

/// A success response is only sent for an order that is in the pool.
fn check_outcome(outcome: InsertOutcome, field: &str) -> Result<(), ErrorResponse> {
    let (reason, message) = match outcome {
        InsertOutcome::Added
        | InsertOutcome::Replaced { .. }
        | InsertOutcome::Cancelled
        | InsertOutcome::Known => return Ok(()),
        InsertOutcome::Superseded { nonce, current } => return Err(superseded(nonce, current)),
        InsertOutcome::Rejected(reason) => return Err(rejected(&reason)),
        InsertOutcome::CancelledPermanently => {
            (Reason::Superseded, "replacementUuid was cancelled permanently".to_owned())
        }
        InsertOutcome::AlreadyRemoved => {
            (Reason::Known, "already known, and not in the pool any more".to_owned())
        }
        InsertOutcome::Mined => (Reason::Mined, format!("{field}: a recent block contains it")),
        InsertOutcome::StaleNonce { nonce, next } => {
            (Reason::StaleNonce, format!("nonce too low: next nonce {next}, tx nonce {nonce}"))
        }
        // An outcome that this crate does not know may not mean success.
        _ => return Err(ErrorResponse::internal()),
    };
    Err(ErrorResponse::rejected(reason, message))
}

pub(super) fn rejected(rejection: &RejectReason) -> ErrorResponse {
    let message = rejection.to_string();
    let reason = match rejection {
        RejectReason::TooMany { field, .. } => {
            return ErrorResponse::field(Reason::Params, field, message);
        }
        RejectReason::BlockPassed { .. } | RejectReason::BlockTooFar { .. } => {
            return ErrorResponse::field(Reason::Params, "blockNumber", message);
        }
        RejectReason::TxMined { .. } => Reason::Mined,
        RejectReason::TxStale { .. } => Reason::StaleNonce,
        RejectReason::PaysTooLittle { .. } => Reason::PaysTooLittle,
        RejectReason::InsufficientFunds { .. } => Reason::Admission,
        _ => Reason::PoolFull,
    };
    ErrorResponse::rejected(reason, message)
}

pub(super) fn bundle_error(error: &BundleError) -> ErrorResponse {
    let field = match error {
        BundleError::Empty => "txs",
        BundleError::NonceWithoutUuid { .. } => "replacementNonce",
        BundleError::UuidWithoutSigner { .. } => "replacementUuid",
        BundleError::TimestampsReversed { .. } => "minTimestamp",
        BundleError::TwoUuids { .. } => "uuid",
        BundleError::UnknownVersion { .. } => "version",
        BundleError::TwoNonces { .. } => "replacementSeqNumber",
        BundleError::RefundIndex { .. } | BundleError::TwoRefunds { .. } => "refundIndex",
        BundleError::RefundPercent { .. } => "refundPercent",
        BundleError::NotInVersion { field } | BundleError::TooMany { field, .. } => field,
        // Those of transactions: they are decoded and verified here.
        _ => FIRST,
    };
    let is_unsigned = matches!(error, BundleError::UuidWithoutSigner { .. });
    let reason = if is_unsigned { Reason::Signature } else { Reason::Params };
    ErrorResponse::field(reason, field, error.to_string())
}
