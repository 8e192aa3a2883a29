//! Turns the body of a request into its response: parses, admits, runs and answers its calls.
//!
//! This is a dispatcher of our own on serde_json: a JSON-RPC framework would serve only a handful
//! of methods here and parse each body again, and admission, limits, batches and the shape of
//! errors would still have to be our own. A body is parsed once: the envelope borrows the
//! parameters as text, and the method parses them. A long body is parsed on a worker thread under
//! the permit that then covers verification and insert, so that it delays no other caller.
//!
//! Between two elements of a batch others get the work permit. A success response is sent only for
//! an order that is in the pool.

use std::{
    collections::HashSet,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::Address;
use bytes::Bytes;
use futures::future::join_all;
use load_control::{Priority, Refusal, WorkPermit};
use order_pool::Holder;

use super::envelope::{Call, CallState, Calls};
use crate::{
    config::body_work,
    deferral::Deferral,
    host::{Candidate, Host, Verdict},
    limits::{
        CallerId, Limiter, Limits, RequestInFlight, Requester, SMALL_BODY_BYTES, run_blocking,
    },
    methods::{IgnoredFields, Method, Methods, SignatureClaim, Verified},
    metrics::Metrics,
    reply::{ErrorResponse, Reason, Reply},
};

/// Bodies up to this size are parsed on the thread that read them, in microseconds. Longer ones are
/// parsed on a worker thread, under a work permit: a megabyte takes milliseconds.
const MAX_INLINE_BYTES: usize = 8 * 1_024;

/// The work, in signature recoveries, after which a batch returns its work permit before its next
/// element and waits for another one: 3 ms, and what one more element takes. A whole batch may take
/// half a second.
const WORK_PER_PERMIT: usize = 64;

/// Serves the requests of all connections.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) methods: Methods,
    pub(crate) deferral: Deferral,
    pub(crate) metrics: Metrics,
}

/// A parsed request on its way through the dispatcher.
#[derive(Debug)]
struct Request {
    /// The bytes that the signature covers.
    body: Bytes,
    claim: Option<SignatureClaim>,
    requester: Requester,
    calls: Calls,
    /// The work permit for the work that comes next, if the request has one already.
    permit: Option<WorkPermit>,
    /// Whether the request was deferred, so that it is not refused for lack of a permit.
    was_deferred: bool,
}

impl Dispatcher {
    pub(crate) fn new(limits: Limits, mut host: Host) -> Self {
        let configured: HashSet<_> = limits.config.known_signers.iter().copied().collect();
        let is_known_to_host = host.is_known_signer;
        host.is_known_signer =
            Arc::new(move |signer| configured.contains(&signer) || is_known_to_host(signer));
        let deferral = Deferral::new(&limits, host.monitor.clone(), host.gate.clone());
        let limiter = Arc::new(Limiter::new(limits, host.gate.clone()));
        let methods = Methods::new(host, Arc::clone(&limiter));
        Self { limiter, methods, deferral, metrics: Metrics::new() }
    }

    /// Serves a request whose body was read.
    ///
    /// # Errors
    /// The body could not be parsed, so the id of the request is not known.
    ///
    /// # Cancel safety
    /// If the future is dropped, work that has begun continues until it would return its permit.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<SignatureClaim>,
        in_flight: &mut RequestInFlight,
    ) -> Result<Reply, ErrorResponse> {
        if let Some(claim) = claim {
            // Nothing is parsed for a claimed signer without quota. The body is paid for already.
            self.limiter.quotas.check_signer(claim.signer, in_flight.requester.caller)?;
        }
        let mut request = self.parse(body, claim, in_flight.requester).await?;
        let ran = self.run(&mut request, in_flight).await;
        // If nothing could run, the permit was not used, and must not be held while the response
        // is written.
        request.permit = None;
        let is_verified = request.requester.signer.is_some();
        in_flight.is_known = is_verified
            && claim.is_some_and(|claim| self.is_known(claim, in_flight.requester.caller));
        Ok(match ran {
            Ok(()) => self.reply(request),
            Err(error) => {
                self.metrics.count(error.reason);
                Reply { text: error.json(request.calls.id.as_json()), error: Some(error) }
            }
        })
    }

    async fn parse(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<SignatureClaim>,
        requester: Requester,
    ) -> Result<Request, ErrorResponse> {
        if body.len() <= MAX_INLINE_BYTES {
            let calls = Calls::parse(&body)?;
            return Ok(Request {
                body,
                claim,
                requester,
                calls,
                permit: None,
                was_deferred: false,
            });
        }
        let priority = self.priority(claim, requester.caller, body.len());
        let permit = self.limiter.gate.acquire_external(priority, Instant::now()).await?;
        let dispatcher = Arc::clone(self);
        let work = move || {
            let mut requester = requester;
            let known_claim = claim.filter(|_| priority == Priority::Known);
            dispatcher.verify_signature(known_claim, &body, &mut requester)?;
            let calls = Calls::parse(&body)?;
            let permit = Some(permit);
            let was_deferred = false;
            Ok::<_, ErrorResponse>(Request { body, claim, requester, calls, permit, was_deferred })
        };
        run_blocking(work).await?
    }

    /// Runs all calls of a request.
    ///
    /// # Errors
    /// The request is refused as a whole. An error of a single call is stored in its state.
    async fn run(
        self: &Arc<Self>,
        request: &mut Request,
        in_flight: &mut RequestInFlight,
    ) -> Result<(), ErrorResponse> {
        let count = request.calls.calls.len();
        self.limiter.admit_batch(in_flight, count)?;
        // The first element was charged with the head of the request.
        self.limiter.quotas.charge(request.requester, count - 1)?;
        let priority = self.priority_of(request);
        // A front is served as early as a known signer, but forwards those of strangers too. A
        // forged claim is charged for.
        let is_known = request.claim.is_some() && priority == Priority::Known;
        if !is_known && request.has_pending(Method::is_deferrable) && self.deferral.must_wait() {
            // The calls of a batch that are not deferrable run before it waits.
            if request.has_pending(Method::is_urgent) {
                self.run_on_worker(request, Method::is_urgent).await?;
            }
            request.permit = None;
            let caller = request.requester.caller;
            match self.deferral.acquire(caller, in_flight.weight()).await {
                Ok(permit) => {
                    request.permit = Some(permit);
                    request.was_deferred = true;
                }
                // The calls that have run keep their results.
                Err(refusal) => request.refuse_pending(Method::is_any, refusal),
            }
        }
        if request.has_pending(Method::is_any) {
            self.run_on_worker(request, Method::is_any).await?;
        }
        Ok(())
    }

    /// Runs the calls of the selected methods on a worker thread: with the request's work permit,
    /// if it has one, and with further ones for a long batch. Then it has their blob proofs
    /// verified, and inserts their orders.
    async fn run_on_worker(
        self: &Arc<Self>,
        request: &mut Request,
        is_selected: fn(Method) -> bool,
    ) -> Result<(), ErrorResponse> {
        let priority = self.priority_of(request);
        let gate = &self.limiter.gate;
        loop {
            let dispatcher = Arc::clone(self);
            let body = request.body.clone();
            let claim = request.claim;
            let mut requester = request.requester;
            let mut calls = mem::take(&mut request.calls.calls);
            let work = move || {
                // A claim that has served the request before others is verified before all other
                // work: if every call failed before it needed the signature, nobody would check it.
                let known_claim = claim.filter(|_| priority == Priority::Known);
                dispatcher.verify_signature(known_claim, &body, &mut requester)?;
                dispatcher.run_calls(&mut calls, is_selected, claim, &body, &mut requester)?;
                Ok::<_, ErrorResponse>((calls, requester))
            };
            let permit = request.permit.take();
            let ran = gate.run_external(permit, priority, Instant::now(), work).await;
            (request.calls.calls, request.requester) = ran??;
            if !request.has_pending(is_selected) {
                break;
            }
            let next_permit = if request.was_deferred {
                Ok(gate.acquire_external_deferred().await)
            } else {
                gate.acquire_external(priority, Instant::now()).await
            };
            match next_permit {
                Ok(permit) => request.permit = Some(permit),
                Err(refusal) => {
                    // The calls that have run keep their results.
                    request.refuse_pending(is_selected, refusal);
                    break;
                }
            }
        }
        // No work permit is held while proofs wait for theirs, and while the host decides.
        self.verify_proofs(request).await;
        self.insert_calls(request).await;
        Ok(())
    }

    /// Verifies a request's own signature, unless that was done before.
    fn verify_signature(
        &self,
        claim: Option<SignatureClaim>,
        body: &[u8],
        requester: &mut Requester,
    ) -> Result<(), ErrorResponse> {
        let (Some(claim), None) = (claim, requester.signer) else { return Ok(()) };
        // Verified before it is charged, so that a forged claim spends nobody's quota but the
        // caller's, and is detected even if that quota is spent.
        match claim.verify(body) {
            Ok(signer) => {
                requester.signer = Some(signer);
                if self.methods.is_known_signer(signer) {
                    self.limiter.first_senders.add(claim.signature, requester.caller);
                }
            }
            Err(error) => {
                self.limiter.quotas.charge_forgery(requester.caller);
                return Err(error);
            }
        }
        self.limiter.quotas.charge(*requester, 1)
    }

    /// Runs the checks of calls one after the other, as many as one work permit is for, and inserts
    /// orders for which nothing else is needed.
    ///
    /// # Errors
    /// The request's own signature is wrong. It is verified once a call has passed the checks that
    /// need no signature.
    fn run_calls(
        &self,
        calls: &mut [Call],
        is_selected: fn(Method) -> bool,
        claim: Option<SignatureClaim>,
        body: &[u8],
        requester: &mut Requester,
    ) -> Result<(), ErrorResponse> {
        // Whether an earlier call waits for its proofs or for the host.
        let mut any_waits = calls.iter().any(Call::is_verified);
        let mut work = 0;
        for (index, call) in calls.iter_mut().enumerate() {
            let CallState::Pending(method, params) = &call.state else { continue };
            let method = *method;
            if !is_selected(method) {
                continue;
            }
            if work >= WORK_PER_PERMIT {
                break;
            }
            let is_front = requester.caller.is_front;
            let is_lenient = is_front && self.limiter.limits.config.lenient_fronts;
            let mut ignored = IgnoredFields::new(is_lenient);
            // Whether an order is pooled already decides only if no earlier call may change that.
            let prepared = self.methods.prepare(method, params, &mut ignored, !any_waits);
            for (counter, count) in self.metrics.ignored_fields.iter().zip(ignored.counts) {
                counter.increment(count);
            }
            work += body_work(params.len());
            if let Ok(prepared) = &prepared {
                work += prepared.recoveries();
                self.verify_signature(claim, body, requester)?;
            }
            let verified = prepared.and_then(|prepared| {
                // The proofs of blobs are charged when they are verified.
                self.limiter.quotas.charge(*requester, prepared.recoveries())?;
                // Each call of a batch is later than those before it.
                let offset = Duration::from_micros(index as u64);
                let arrived_at = requester.arrived_at + offset;
                let requester = Requester { arrived_at, ..*requester };
                prepared.verify(
                    requester,
                    |signer| self.holder(requester.caller, signer),
                    &self.methods.prover,
                )
            });
            call.state = match verified {
                Ok(verified) => {
                    let needs_decision =
                        self.methods.host.admission.is_some() && verified.order().is_some();
                    // No call overtakes an order that waits for its proofs or for the host.
                    any_waits |= verified.is_unproven() || needs_decision;
                    if any_waits {
                        CallState::Verified(method, verified)
                    } else {
                        // To switch to another thread would cost more than the insert.
                        self.insert(method, verified, Verdict::Accept)
                    }
                }
                Err(error) => CallState::refused(error),
            };
        }
        Ok(())
    }

    /// Verifies the blob proofs of all verified calls, one call after the other.
    async fn verify_proofs(&self, request: &mut Request) {
        for call in &mut request.calls.calls {
            let CallState::Verified(method, Verified::Order(order, unproven)) = &mut call.state
            else {
                continue;
            };
            let unproven = mem::take(unproven);
            let field = method.transaction_field();
            let proven = self.methods.prover.prove(field, order, unproven, request.requester).await;
            if let Err(error) = proven {
                call.state = CallState::refused(error);
            }
        }
    }

    /// Asks the host to decide on all orders of a request at once, and inserts them in their order.
    async fn insert_calls(&self, request: &mut Request) {
        let requester = request.requester;
        let calls = mem::take(&mut request.calls.calls);
        let decisions = calls.iter().map(|call| self.decide(call, requester));
        let decisions = join_all(decisions).await;
        for (mut call, decision) in calls.into_iter().zip(decisions) {
            if let CallState::Verified(method, verified) = call.state {
                call.state = match decision {
                    Ok(verdict) => self.insert(method, verified, verdict),
                    Err(error) => CallState::refused(error),
                };
            }
            request.calls.calls.push(call);
        }
    }

    /// Asks the host to decide on the order of a call; everything else is accepted.
    async fn decide(&self, call: &Call, requester: Requester) -> Result<Verdict, ErrorResponse> {
        let order = match &call.state {
            CallState::Verified(_, verified) => verified.order(),
            CallState::Pending(..) | CallState::Done(_) => None,
        };
        let (Some(order), Some(admission)) = (order, &self.methods.host.admission) else {
            return Ok(Verdict::Accept);
        };
        // A front names the signer of each bundle.
        let bundle_signer = order.as_bundle().and_then(|bundle| bundle.parts().signer);
        let candidate = Candidate::new(order, bundle_signer.or(requester.signer));
        let (outcome, decision) =
            self.methods.admit(&**admission, candidate, requester.caller).await;
        self.metrics.admissions[outcome as usize].increment(1);
        decision
    }

    fn insert(&self, method: Method, verified: Verified, verdict: Verdict) -> CallState {
        let host = &self.methods.host;
        // An answer only reads, so there is nothing to publish.
        let is_answer = matches!(verified, Verified::Answer(_));
        let refuses_unpublished = self.limiter.limits.config.refuse_unpublished && !is_answer;
        if refuses_unpublished && !(host.is_published)() {
            return CallState::refused(self.limiter.retry_later(Reason::NotPublished));
        }
        let result = verified.insert(&host.pool, &verdict);
        if result.is_ok() {
            self.metrics.accepted[method as usize].increment(1);
        }
        CallState::Done(result)
    }

    /// Returns who holds what this caller sends for this signer.
    fn holder(&self, caller: CallerId, signer: Option<Address>) -> Holder {
        match signer {
            Some(signer) if self.methods.is_known_signer(signer) => Holder::Signer(signer),
            _ if caller.is_front => Holder::Forwarded { front: caller.address, signer },
            _ => Holder::caller(caller.address),
        }
    }

    fn priority_of(&self, request: &Request) -> Priority {
        self.priority(request.claim, request.requester.caller, request.body.len())
    }

    /// Returns the class in which a request waits for a work permit. Its signature is not verified
    /// yet. A front that signs counts as its signer does.
    fn priority(
        &self,
        claim: Option<SignatureClaim>,
        caller: CallerId,
        body_bytes: usize,
    ) -> Priority {
        match claim {
            None if caller.is_front => Priority::Known,
            None => Priority::Unsigned,
            Some(claim) if self.is_known(claim, caller) => Priority::Known,
            // Anyone can sign, and 8 MB take tens of milliseconds to parse.
            Some(_) if body_bytes > SMALL_BODY_BYTES => Priority::Unsigned,
            Some(_) => Priority::Signed,
        }
    }

    /// Whether a request claims a signer that the host knows, and is no copy of one that another
    /// caller sent.
    fn is_known(&self, claim: SignatureClaim, caller: CallerId) -> bool {
        self.methods.is_known_signer(claim.signer)
            && !self.limiter.is_copy(&claim.signature, caller)
    }

    fn reply(&self, request: Request) -> Reply {
        let is_batch = request.calls.is_batch;
        let mut text = String::from(if is_batch { "[" } else { "" });
        let mut last_error = None;
        for (index, call) in request.calls.calls.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            let result = match call.state {
                CallState::Done(result) => result,
                // Every call was run, or the request was refused as a whole.
                CallState::Pending(..) | CallState::Verified(..) => Err(ErrorResponse::internal()),
            };
            match result {
                Ok(result) => {
                    let id = call.id.as_json();
                    text.push_str(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
                }
                Err(error) => {
                    self.metrics.count(error.reason);
                    text.push_str(&error.json(call.id.as_json()));
                    last_error = Some(error);
                }
            }
        }
        if is_batch {
            text.push(']');
        }
        // In a batch each element has its own response, so none of them sets the status.
        Reply { text, error: last_error.filter(|_| !is_batch) }
    }
}

impl Request {
    /// Whether a call of a selected method has not run yet.
    fn has_pending(&self, is_selected: fn(Method) -> bool) -> bool {
        self.calls.calls.iter().any(|call| call.is_pending(is_selected))
    }

    /// Refuses the calls of selected methods that have not run yet.
    fn refuse_pending(&mut self, is_selected: fn(Method) -> bool, refusal: Refusal) {
        for call in &mut self.calls.calls {
            if call.is_pending(is_selected) {
                call.state = CallState::refused(refusal.into());
            }
        }
    }
}

impl Call {
    /// Whether it waits for its proofs, for the host or for its insert.
    fn is_verified(&self) -> bool {
        matches!(self.state, CallState::Verified(..))
    }

    fn is_pending(&self, is_selected: fn(Method) -> bool) -> bool {
        matches!(self.state, CallState::Pending(method, _) if is_selected(method))
    }
}
