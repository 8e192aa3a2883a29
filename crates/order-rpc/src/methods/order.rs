//! Takes an order from its parsed parameters into the pool: prepared, verified, inserted.

use std::{slice, sync::Arc, time::SystemTime};

use alloy_primitives::{Address, B256};
use order_pool::{
    BundleError, CancelOutcome, CancelPrivateOutcome, Cancellation, Holder, InsertOutcome, Order,
    OrderPool, PooledTransaction, PrivateTerms, RawBundle, RawCancelBundle, RejectReason,
    ReplacementKey,
};
use serde_json::{Value, json};

use super::{
    params::FIRST_PARAM,
    proofs::{Prover, UnprovenBlob},
    transaction,
};
use crate::{
    host::Verdict,
    limits::Requester,
    reply::{ErrorResponse, Reason},
};

/// A call that has passed all checks that need no signature.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// A transaction that is already in the pool, and its last block if it is sent as a private
    /// one.
    Pooled(B256, Option<u64>),
    Transaction {
        tx: PooledTransaction,
        /// The name of its field in the parameters.
        field: &'static str,
        /// The last block of a private transaction.
        last_block: Option<u64>,
    },
    /// A bundle, with its transactions in order.
    Bundle(RawBundle, Vec<PooledTransaction>),
    Cancellation(RawCancelBundle),
    /// The cancellation of the private transaction with this hash.
    PrivateCancellation(B256),
    /// The result of a call that only reads.
    Answer(Value),
}

impl Prepared {
    /// Returns the number of signatures that are recovered next, which is the work that is charged.
    /// A cancellation costs one.
    pub(crate) fn recoveries(&self) -> usize {
        match self {
            Self::Pooled(..) | Self::Answer(_) => 0,
            Self::Transaction { .. } | Self::Cancellation(_) | Self::PrivateCancellation(_) => 1,
            Self::Bundle(_, txs) => txs.len(),
        }
    }

    /// Runs all remaining checks, except blob proofs and the host's decision. A bundle that a front
    /// forwards has the signer that the front names.
    pub(crate) fn verify(
        self,
        requester: Requester,
        holder: impl Fn(Option<Address>) -> Holder,
        prover: &Prover,
    ) -> Result<Verified, ErrorResponse> {
        let Requester { caller, signer, arrived_at } = requester;
        let order_signer = |signing_address: Option<Address>| {
            signing_address.filter(|_| caller.is_front).or(signer)
        };
        let private_terms = |last_block: Option<u64>| {
            last_block.map(|max_block| PrivateTerms { signer, max_block })
        };
        match self {
            Self::Pooled(hash, last_block) => {
                Ok(Verified::Pooled(hash, holder(signer), private_terms(last_block), arrived_at))
            }
            Self::Transaction { tx, field, last_block } => {
                let tx = transaction::recover(tx, field, private_terms(last_block), arrived_at)?;
                let tx = tx.held_by(holder(signer));
                let unproven = prover.unproven(slice::from_ref(&tx));
                Ok(Verified::Order(Arc::new(Order::Tx(tx)), unproven))
            }
            Self::Bundle(raw, txs) => {
                let mut recovered = Vec::with_capacity(txs.len());
                for (index, tx) in txs.into_iter().enumerate() {
                    let field = format!("txs[{index}]");
                    recovered.push(transaction::recover(tx, &field, None, arrived_at)?);
                }
                let signer = order_signer(raw.signing_address);
                let bundle = raw.with_transactions(recovered, signer, holder(signer), arrived_at);
                let bundle = bundle.map_err(|error| bundle_error(&error))?;
                let unproven = prover.unproven(bundle.txs());
                Ok(Verified::Order(Arc::new(Order::Bundle(bundle)), unproven))
            }
            Self::Cancellation(cancel) => {
                let Some(signer) = order_signer(cancel.signing_address) else {
                    return Err(needs_signature("replacementUuid"));
                };
                Ok(Verified::Cancellation(Cancellation {
                    key: ReplacementKey { uuid: cancel.replacement_uuid, signer },
                    nonce: cancel.replacement_nonce,
                    holder: holder(Some(signer)),
                    sent_at: None,
                }))
            }
            Self::PrivateCancellation(hash) => {
                let Some(signer) = signer else { return Err(needs_signature("txHash")) };
                let holder = holder(Some(signer));
                Ok(Verified::PrivateCancellation { hash, signer, holder, arrived_at })
            }
            Self::Answer(answer) => Ok(Verified::Answer(answer)),
        }
    }
}

/// A call that now only the host and the pool can refuse.
#[derive(Debug)]
pub(crate) enum Verified {
    /// A transaction that is already in the pool.
    Pooled(B256, Holder, Option<PrivateTerms>, SystemTime),
    /// An order, and the blobs whose proofs are not verified yet. It is shared with the thread that
    /// verifies them.
    Order(Arc<Order>, Vec<UnprovenBlob>),
    Cancellation(Cancellation),
    /// The cancellation of a private transaction.
    PrivateCancellation {
        hash: B256,
        signer: Address,
        holder: Holder,
        /// When it arrived. A transaction after it in a batch is later, although it is verified
        /// before this cancellation takes effect.
        arrived_at: SystemTime,
    },
    /// The result of a call that only reads.
    Answer(Value),
}

impl Verified {
    /// Returns the order on which the host decides.
    pub(crate) fn order(&self) -> Option<&Order> {
        match self {
            // A bundle without transactions is a cancellation.
            Self::Order(order, _) => match &**order {
                Order::Bundle(bundle) if bundle.txs().is_empty() => None,
                order => Some(order),
            },
            Self::Pooled(..)
            | Self::Cancellation(..)
            | Self::PrivateCancellation { .. }
            | Self::Answer(_) => None,
        }
    }

    /// Whether it has blobs whose proofs are not verified yet.
    pub(crate) fn is_unproven(&self) -> bool {
        matches!(self, Self::Order(_, unproven) if !unproven.is_empty())
    }

    /// Inserts it into the pool in microseconds, with the host's verdict; `Accept` if the host
    /// decides nothing. Returns the result of the call.
    pub(crate) fn insert(
        self,
        pool: &OrderPool,
        verdict: &Verdict,
    ) -> Result<Value, ErrorResponse> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Pooled(hash, holder, terms, arrived_at) => {
                let outcome = pool.add_holder(&hash, holder, terms.as_ref(), arrived_at);
                check_outcome(outcome, "the transaction")?;
                Ok(json!(hash))
            }
            Self::Order(order, _) => insert_order(Arc::unwrap_or_clone(order), pool, verdict),
            Self::Cancellation(cancellation) => match pool.cancel_bundle(cancellation) {
                // If it was cancelled permanently before, the caller has what it wants. The result
                // is null as in rbuilder, because alloy's client accepts nothing else as success.
                CancelOutcome::Cancelled { .. } | CancelOutcome::CancelledPermanently => {
                    Ok(Value::Null)
                }
                CancelOutcome::Superseded { nonce, current } => Err(superseded(nonce, current)),
                _ => Err(ErrorResponse::internal()),
            },
            Self::PrivateCancellation { hash, signer, holder, arrived_at } => {
                match pool.cancel_private(&hash, signer, holder, arrived_at) {
                    CancelPrivateOutcome::Cancelled => Ok(json!(true)),
                    CancelPrivateOutcome::Public => Err(ErrorResponse::rejected(
                        Reason::BecamePublic,
                        format!("{hash} is known to others and cannot be cancelled"),
                    )),
                    CancelPrivateOutcome::Unknown => Err(ErrorResponse::rejected(
                        Reason::UnknownPrivate,
                        format!("no private transaction of {signer} has the hash {hash} here"),
                    )),
                    _ => Err(ErrorResponse::internal()),
                }
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
                // A private transaction whose last block came meanwhile.
                InsertOutcome::Rejected(RejectReason::BlockPassed { value, limit }) => {
                    return Err(last_block_passed(value, limit));
                }
                outcome => check_outcome(outcome, "the transaction")?,
            }
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

pub(super) fn last_block_passed(value: u64, limit: u64) -> ErrorResponse {
    let message = format!("maxBlockNumber is {value}, the lowest that is not built yet is {limit}");
    ErrorResponse::field(Reason::Params, "maxBlockNumber", message)
}

/// Turns every outcome that leaves the order out of the pool into an error.
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
            (Reason::Known, "already known, and no longer in the pool".to_owned())
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

/// Returns the error response for a rejection of the pool.
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

/// Returns the error response for an invalid bundle, with the name of the invalid field.
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
        BundleError::TargetSlots { .. } => "targetSlots",
        BundleError::NotInVersion { field } | BundleError::TooMany { field, .. } => field,
        // Errors of transactions, which are decoded and verified here before.
        _ => FIRST_PARAM,
    };
    let is_unsigned = matches!(error, BundleError::UuidWithoutSigner { .. });
    let reason = if is_unsigned { Reason::Signature } else { Reason::Params };
    ErrorResponse::field(reason, field, error.to_string())
}
