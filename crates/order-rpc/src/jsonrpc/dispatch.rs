//! From the body of a request to its response: parse, admit, run, respond.
//!
//! A dispatcher of our own on serde_json: a JSON-RPC framework would serve only a handful of methods
//! here and parse each body again, and admission, limits, batches and error shapes would still have
//! to be our own. A body is parsed once: the envelope borrows the parameters as text, and the method
//! parses them. A long one is parsed on a worker thread under the permit that then covers
//! verification and insert, so that it delays no other caller.
//!
//! Between two elements of a batch others get the work permit. A success response is sent only for
//! an order that is in the pool.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::Address;
use bytes::Bytes;
use futures::future::join_all;
use load_control::{Priority, Refusal, WorkPermit};
use order_pool::Holder;

use super::envelope::{Call, Calls, State};
use crate::{
    config::body_work,
    deferral::Deferral,
    host::{Candidate, Host, Verdict},
    limits::{CallerId, Entered, Limiter, Limits, Requester, SMALL_BODY_BYTES, on_thread},
    methods::{Claim, Ignored, Method, Methods, Verified},
    metrics::Metrics,
    reply::{ErrorResponse, Reason, Reply},
};

/// Bodies up to this size are parsed on the thread that read them, in microseconds. Longer ones are
/// parsed on a worker thread, under a work permit: a megabyte takes milliseconds.
const MAX_INLINE_BYTES: usize = 8 * 1_024;

/// The work, in recoveries, after which a batch gives its work permit back between two elements and waits for the next:
/// 3 ms, and those of one element more. A whole batch may be half a second.
const WORK_PER_PERMIT: usize = 64;

#[derive(Debug)]
struct Request {
    /// The signed bytes.
    body: Bytes,
    claim: Option<Claim>,
    requester: Requester,
    sent: Calls,
    /// For the work that comes next.
    permit: Option<WorkPermit>,
    /// It was deferred, so that it is not refused for lack of a permit.
    was_deferred: bool,
}

#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) methods: Methods,
    pub(crate) deferral: Deferral,
    pub(crate) metrics: Metrics,
}

impl Dispatcher {
    pub(crate) fn new(limits: Limits, mut host: Host) -> Self {
        let configured: HashSet<_> = limits.config.known_signers.iter().copied().collect();
        let knows_signer = host.knows_signer;
        host.knows_signer = Arc::new(move |it| configured.contains(&it) || knows_signer(it));
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
    /// If the future is dropped, work that has begun continues until it would give its permit back.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<Claim>,
        entered: &mut Entered,
    ) -> Result<Reply, ErrorResponse> {
        // Nothing is parsed for a claimed signer without quota. The body is paid for.
        claim.map_or(Ok(()), |claim| {
            self.limiter.charges.check_signer(claim.address, entered.requester.caller)
        })?;
        let mut request = self.parse(body, claim, entered.requester).await?;
        let ran = self.run(&mut request, entered).await;
        // Not used if nothing could run.
        request.permit = None;
        entered.is_known =
            request.requester.signer.is_some_and(|it| (self.methods.host.knows_signer)(it));
        Ok(match ran {
            Ok(()) => self.reply(request),
            Err(error) => {
                self.metrics.count(error.reason);
                Reply { text: error.json(request.sent.id.as_json()), error: Some(error) }
            }
        })
    }

    async fn parse(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<Claim>,
        mut requester: Requester,
    ) -> Result<Request, ErrorResponse> {
        let mut permit = None;
        let sent = if body.len() <= MAX_INLINE_BYTES {
            Calls::parse(&body)
        } else {
            let priority = self.priority(claim, requester.caller, &body);
            let gate = &self.limiter.gate;
            let acquired = gate.acquire_external(priority, Instant::now()).await?;
            let (context, text) = (Arc::clone(self), body.clone());
            let known = claim.filter(|_| priority == Priority::Known);
            let work = move || {
                let signed = context.sign_in(known, &text, &mut requester);
                (signed.and_then(|()| Calls::parse(&text)), requester, Some(acquired))
            };
            let sent;
            (sent, requester, permit) = on_thread(work).await?;
            sent
        };
        Ok(Request { body, claim, requester, sent: sent?, permit, was_deferred: false })
    }

    async fn run(
        self: &Arc<Self>,
        request: &mut Request,
        entered: &mut Entered,
    ) -> Result<(), ErrorResponse> {
        let count = request.sent.calls.len();
        self.limiter.grow(entered, count)?;
        // The first is paid for.
        self.limiter.charges.charge(request.requester, count - 1)?;
        // A front forwards those of strangers too. A claim that is forged is paid for.
        let priority = self.priority(request.claim, request.requester.caller, &request.body);
        let is_known = request.claim.is_some() && priority == Priority::Known;
        if !is_known && request.has(Method::is_deferrable) && self.deferral.must_wait() {
            // Urgent calls go ahead of the others in the batch.
            let urgent = |method: Method| !method.is_deferrable();
            if request.has(urgent) {
                self.work(request, urgent).await?;
            }
            request.permit = None;
            // A refusal now is not one of the calls that have run.
            match self.deferral.acquire(entered.weight()).await {
                Ok(permit) => (request.permit, request.was_deferred) = (Some(permit), true),
                Err(refusal) => request.refuse(|_| true, refusal),
            }
        }
        if request.has(|_| true) {
            self.work(request, |_| true).await?;
        }
        Ok(())
    }

    /// Runs calls on a worker thread, with the request's work permit, if any, and with further ones.
    async fn work(
        self: &Arc<Self>,
        request: &mut Request,
        which: fn(Method) -> bool,
    ) -> Result<(), ErrorResponse> {
        let priority = self.priority(request.claim, request.requester.caller, &request.body);
        let gate = &self.limiter.gate;
        loop {
            let context = Arc::clone(self);
            let (body, claim, mut requester) =
                (request.body.clone(), request.claim, request.requester);
            let mut calls = std::mem::take(&mut request.sent.calls);
            let known = claim.filter(|_| priority == Priority::Known);
            let work = move || {
                context.sign_in(known, &body, &mut requester)?;
                let sign_in = |requester: &mut Requester| context.sign_in(claim, &body, requester);
                context.run_calls(&mut calls, which, &mut requester, sign_in)?;
                Ok::<_, ErrorResponse>((calls, requester))
            };
            let permit = request.permit.take();
            let ran = gate.run_external(permit, priority, Instant::now(), work).await;
            (request.sent.calls, request.requester) = ran??;
            if !request.has(which) {
                break;
            }
            let next = match request.was_deferred {
                true => Ok(gate.acquire_external_deferred().await),
                false => gate.acquire_external(priority, Instant::now()).await,
            };
            match next {
                Ok(next) => request.permit = Some(next),
                Err(refusal) => {
                    // Not one of the calls that have run.
                    request.refuse(which, refusal);
                    break;
                }
            }
        }
        // The work permit is released while proofs wait for theirs, and while the host decides.
        for call in &mut request.sent.calls {
            let State::Verified(method, Verified::Order(order, unproven)) = &mut call.state else {
                continue;
            };
            let unproven = std::mem::take(unproven);
            let proven = self.methods.prove(*method, order, unproven, request.requester).await;
            if let Err(error) = proven {
                call.state = State::refused(error);
            }
        }
        self.insert_calls(request).await;
        Ok(())
    }

    /// Verifies a request's own signature, once: before all other work if its claim has served it before others, since
    /// nobody would look at it if each call failed before.
    fn sign_in(
        &self,
        claim: Option<Claim>,
        body: &[u8],
        requester: &mut Requester,
    ) -> Result<(), ErrorResponse> {
        let (Some(claim), None) = (claim, requester.signer) else { return Ok(()) };
        // Before it is paid for: a forged one spends no signer's quota, and is found all the same.
        let verified = claim.verify(body);
        requester.signer =
            Some(verified.inspect_err(|_| self.limiter.charges.charge_forgery(requester.caller))?);
        self.limiter.charges.charge(*requester, 1)
    }

    /// Lets the host decide on all orders of a request at once, and inserts them in their order.
    async fn insert_calls(&self, request: &mut Request) {
        let Requester { caller, signer, .. } = request.requester;
        let asked = request.sent.calls.iter().map(|call| async move {
            let order = match &call.state {
                State::Verified(_, verified) => verified.order(),
                _ => None,
            };
            let (Some(order), Some(admission)) = (order, &self.methods.host.admission) else {
                return Ok(Verdict::Accept);
            };
            // A front names the signer of each bundle.
            let of_bundle = order.as_bundle().and_then(|bundle| bundle.parts().signer);
            let candidate = Candidate::new(order, of_bundle.or(signer));
            let (ended, admitted) = self.methods.admit(&**admission, candidate, caller).await;
            self.metrics.admissions[ended as usize].increment(1);
            admitted
        });
        let admitted = join_all(asked).await;
        let calls = std::mem::take(&mut request.sent.calls).into_iter().zip(admitted);
        let inserted = calls.map(|(mut call, admitted)| {
            if let State::Verified(method, verified) = call.state {
                let insert = |verdict| self.insert(method, verified, verdict);
                call.state = admitted.map_or_else(State::refused, insert);
            }
            call
        });
        request.sent.calls = inserted.collect();
    }

    fn insert(&self, method: Method, verified: Verified, verdict: Verdict) -> State {
        let host = &self.methods.host;
        // An answer only reads, so there is nothing to publish.
        let is_answer = matches!(verified, Verified::Answer(_));
        let refuses_unpublished = self.limiter.limits.config.refuse_unpublished && !is_answer;
        if refuses_unpublished && !(host.is_published)() {
            return State::refused(self.limiter.retry_later(Reason::NotPublished));
        }
        let done = verified.insert(&host.pool, &verdict);
        if done.is_ok() {
            self.metrics.accepted[method as usize].increment(1);
        }
        State::Done(done)
    }

    /// Runs calls one after the other, as many as one permit is for. `sign_in` verifies the request's
    /// own signature, once a call has passed the checks that need none.
    fn run_calls(
        &self,
        calls: &mut [Call],
        which: fn(Method) -> bool,
        requester: &mut Requester,
        sign_in: impl Fn(&mut Requester) -> Result<(), ErrorResponse>,
    ) -> Result<(), ErrorResponse> {
        let mut any_waits = calls.iter().any(|call| matches!(call.state, State::Verified(..)));
        let mut work = 0;
        for (place, call) in calls.iter_mut().enumerate() {
            let State::Sent(method, params) = &call.state else { continue };
            let method = *method;
            if !which(method) {
                continue;
            }
            if work >= WORK_PER_PERMIT {
                break;
            }
            // What the pool holds decides only if nothing is to change it before.
            let is_front = requester.caller.is_front;
            let mut ignored = Ignored::new(is_front && self.limiter.limits.config.lenient_fronts);
            let prepared = self.methods.prepare(method, params, &mut ignored, !any_waits);
            for (counter, count) in self.metrics.ignored_fields.iter().zip(ignored.counts) {
                counter.increment(count);
            }
            work += body_work(params.len());
            if let Ok(prepared) = &prepared {
                work += prepared.recoveries();
                sign_in(requester)?;
            }
            let verified = prepared.and_then(|prepared| {
                // The proofs of blobs are paid for when they are verified.
                self.limiter.charges.charge(*requester, prepared.recoveries())?;
                // Each is later than those before it in its batch.
                let requester = Requester {
                    arrived: requester.arrived + Duration::from_micros(place as u64),
                    ..*requester
                };
                prepared.verify(
                    requester,
                    |signer| self.holder(requester.caller, signer),
                    &self.methods.proofs,
                )
            });
            call.state = match verified {
                Ok(verified) => {
                    let is_asked = self.methods.host.admission.is_some();
                    // Nothing overtakes an order that waits for its proofs or for the host.
                    any_waits |= verified.is_unproven() || is_asked && verified.order().is_some();
                    if any_waits {
                        State::Verified(method, verified)
                    } else {
                        // To switch to another thread would cost more than the insert.
                        self.insert(method, verified, Verdict::Accept)
                    }
                }
                Err(error) => State::refused(error),
            };
        }
        Ok(())
    }

    /// Who holds what this caller sends for this signer.
    fn holder(&self, caller: CallerId, signer: Option<Address>) -> Holder {
        match signer {
            Some(signer) if (self.methods.host.knows_signer)(signer) => Holder::Signer(signer),
            _ if caller.is_front => Holder::Forwarded { front: caller.address, signer },
            _ => Holder::caller(caller.address),
        }
    }

    /// How soon a caller gets a work permit.
    fn priority(&self, claim: Option<Claim>, caller: CallerId, body: &Bytes) -> Priority {
        match claim.map(|claim| (self.methods.host.knows_signer)(claim.address)) {
            None if caller.is_front => Priority::Known,
            None => Priority::Unsigned,
            Some(true) => Priority::Known,
            // Anyone can sign, and 8 MB take tens of milliseconds to parse.
            Some(false) if body.len() > SMALL_BODY_BYTES => Priority::Unsigned,
            Some(false) => Priority::Signed,
        }
    }

    fn reply(&self, request: Request) -> Reply {
        let mut text = String::from(if request.sent.is_batch { "[" } else { "" });
        let mut single = None;
        for (index, call) in request.sent.calls.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            let done = match call.state {
                State::Done(done) => done,
                // Every sent call was run, or the request was refused as a whole.
                State::Sent(..) | State::Verified(..) => Err(ErrorResponse::internal()),
            };
            match done {
                Ok(result) => {
                    let id = call.id.as_json();
                    text.push_str(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
                }
                Err(error) => {
                    self.metrics.count(error.reason);
                    text.push_str(&error.json(call.id.as_json()));
                    single = Some(error);
                }
            }
        }
        if request.sent.is_batch {
            text.push(']');
        }
        // In a batch each element has its own response, so none of them sets the status.
        Reply { text, error: single.filter(|_| !request.sent.is_batch) }
    }
}

impl Request {
    /// Whether a call of such a method has not run yet.
    fn has(&self, which: fn(Method) -> bool) -> bool {
        self.sent
            .calls
            .iter()
            .any(|call| matches!(call.state, State::Sent(method, _) if which(method)))
    }

    /// Refuses the calls of such methods that have not run yet.
    fn refuse(&mut self, which: fn(Method) -> bool, refusal: Refusal) {
        for call in &mut self.sent.calls {
            if matches!(call.state, State::Sent(method, _) if which(method)) {
                call.state = State::refused(refusal.into());
            }
        }
    }
}
