//! From the body of a request to its response: parse, admit, run, answer.

use std::{sync::Arc, time::Instant};

use alloy_primitives::Address;
use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use load_control::{Priority, WorkError, WorkPermit};

use crate::{
    admission::{Admitted, Candidate},
    body::SMALL_BODY_BYTES,
    context::{Entered, RpcContext},
    envelope::{Call, Calls, Id, State},
    methods::{Method, Verified},
    peers::PeerId,
    reply::{Answer, ErrorResponse, INVALID_REQUEST, Reason},
    signature::{Claim, SignatureError},
};

/// Bodies up to this are parsed where they were read: it takes microseconds. Longer ones are parsed on
/// a thread for work, under a work permit: a megabyte takes milliseconds, for which no other caller of
/// the thread would be served.
const MAX_INLINE_BYTES: usize = 8 * 1_024;

/// Bytes of a body that cost as much as the recovery of a signature: to read, to parse and to hash, in all
/// about 3 us per KiB.
const BYTES_PER_WORK: usize = 16 * 1_024;

/// A request whose body was parsed.
#[derive(Debug)]
struct Request {
    /// What is signed.
    body: Bytes,
    claim: Option<Claim>,
    signer: Option<Address>,
    calls: Vec<Call>,
    is_batch: bool,
    /// Null for a batch.
    id: Id,
    caller: PeerId,
}

impl RpcContext {
    /// Serves a request whose body was read.
    ///
    /// # Errors
    /// Before the body was parsed: the id of the request is not known.
    ///
    /// # Cancel safety
    /// Dropped, the work that has begun goes on to its end and holds its permit until then.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<Claim>,
        entered: &mut Entered,
    ) -> Result<Answer, ErrorResponse> {
        let (mut request, permit) = self.parse(body, claim, entered.caller()).await?;
        Ok(match self.run(&mut request, permit, entered).await {
            Ok(()) => self.answer(request),
            Err(error) => self.refuse(error, &request.id),
        })
    }

    /// An error response to a request as a whole.
    pub(crate) fn refuse(&self, error: ErrorResponse, id: &Id) -> Answer {
        self.metrics.count(error.reason);
        Answer { text: error.json_with_id(id), error: Some(error) }
    }

    async fn parse(
        self: &Arc<Self>,
        body: Bytes,
        claim: Option<Claim>,
        caller: PeerId,
    ) -> Result<(Request, Option<WorkPermit>), ErrorResponse> {
        let max_batch = self.config.max_batch;
        let (parsed, permit) = if body.len() <= MAX_INLINE_BYTES {
            (Calls::parse(&body, max_batch), None)
        } else {
            let permit = self.permit(claim.as_ref(), caller, body.len()).await?;
            let text = body.clone();
            on_thread(move || (Calls::parse(&text, max_batch), Some(permit))).await?
        };
        let Calls { calls, is_batch } = parsed?;
        let id = match &calls[..] {
            [single] if !is_batch => single.id.clone(),
            _ => Id::NULL,
        };
        Ok((Request { body, claim, signer: None, calls, is_batch, id, caller }, permit))
    }

    async fn run(
        self: &Arc<Self>,
        request: &mut Request,
        mut permit: Option<WorkPermit>,
        entered: &mut Entered,
    ) -> Result<(), ErrorResponse> {
        let gate = &self.host.gate;
        let count = request.calls.len();
        entered.grow(count, self)?;
        // What was done so far is paid for by the caller's address.
        self.take_peer_quota(entered.caller(), count + request.body.len() / BYTES_PER_WORK)?;
        if request.has(Method::is_deferrable) && self.deferral.must_wait() {
            // What must not wait goes ahead of what stands beside it in the batch.
            let urgent = |method: Method| !method.is_deferrable();
            if request.has(urgent) {
                self.work(request, permit.take(), urgent).await?;
            }
            drop(permit.take());
            match self.deferral.acquire(gate, entered.weight()).await {
                Ok(acquired) => permit = acquired,
                Err(refusal) => request.end(&ErrorResponse::refusal(&refusal)),
            }
        }
        if request.has(|_| true) {
            self.work(request, permit, |_| true).await?;
        }
        Ok(())
    }

    /// Runs calls on a thread for CPU-heavy work, with the given work permit or one that it acquires.
    async fn work(
        self: &Arc<Self>,
        request: &mut Request,
        permit: Option<WorkPermit>,
        which: fn(Method) -> bool,
    ) -> Result<(), ErrorResponse> {
        let priority = self.priority_of(request.claim.as_ref(), request.caller, request.body.len());
        let context = Arc::clone(self);
        let (body, claim) = (request.body.clone(), request.claim);
        let (mut calls, mut signer) = (std::mem::take(&mut request.calls), request.signer);
        let caller = request.caller;
        let work = move || {
            let ran = context.run_calls(&mut calls, which, caller, |work| {
                let (Some(claim), None) = (claim, signer) else { return Ok(signer) };
                // No signature is recovered for a signer without quota, and none pays for a forged one.
                context.check_quota(claim.address, work)?;
                let verified = claim.verify(&body).map_err(signature_error)?;
                context.take_quota(verified, work)?;
                signer = Some(verified);
                Ok(signer)
            });
            ran.map(|()| (calls, signer))
        };
        let ran = self.host.gate.run_external(permit, priority, Instant::now(), work).await;
        (request.calls, request.signer) = ran.map_err(work_error)??;
        // The work permit is free again while proofs wait for theirs, and while the host is asked.
        for call in &mut request.calls {
            let is_unproven =
                matches!(&call.state, State::Verified(_, verified) if verified.is_unproven());
            if let Some((method, verified)) = is_unproven.then(|| call.take_verified()).flatten() {
                call.state = match self.prove(method, verified).await {
                    Ok(verified) => State::Verified(method, verified),
                    Err(error) => State::Done(Err(error)),
                };
            }
        }
        self.insert_calls(request).await;
        Ok(())
    }

    /// Asks the host about all orders of a request at once, and then hands them to the pool in their order.
    async fn insert_calls(&self, request: &mut Request) {
        let signer = request.signer;
        let ask = |call| async move {
            match (candidate(call, signer), &self.host.admission) {
                (Some(candidate), Some(admission)) => {
                    self.admit(&**admission, candidate).await.map(Some)
                }
                _ => Ok(None),
            }
        };
        let admitted = join_all(request.calls.iter().map(ask)).await;
        for (call, admitted) in request.calls.iter_mut().zip(admitted) {
            let Some((method, verified)) = call.take_verified() else { continue };
            call.state = match admitted {
                Ok(admitted) => self.insert(method, verified, admitted),
                Err(error) => State::Done(Err(error)),
            };
        }
    }

    fn insert(&self, method: Method, verified: Verified, admitted: Option<Admitted>) -> State {
        let done = verified.insert(&self.host.pool, admitted);
        if done.is_ok() {
            self.metrics.accepted(method);
        }
        State::Done(done)
    }

    /// Runs calls, what is cheap first: no signature is recovered before every call has passed the checks
    /// that need none, and before their work was paid for.
    fn run_calls(
        &self,
        calls: &mut [Call],
        which: fn(Method) -> bool,
        caller: PeerId,
        verify: impl FnOnce(usize) -> Result<Option<Address>, ErrorResponse>,
    ) -> Result<(), ErrorResponse> {
        let mut prepared = Vec::new();
        for (index, call) in calls.iter_mut().enumerate() {
            let State::Sent(method, params) = &call.state else { continue };
            let method = *method;
            if !which(method) {
                continue;
            }
            match method.prepare(self, params) {
                Ok(ready) => prepared.push((index, method, ready)),
                Err(error) => call.state = State::Done(Err(error)),
            }
        }
        if prepared.is_empty() {
            return Ok(());
        }
        // One for the signature of the request.
        let work = 1 + prepared.iter().map(|(.., ready)| ready.work()).sum::<usize>();
        self.take_peer_quota(caller, work)?;
        let signer = verify(work)?;
        for (index, method, ready) in prepared {
            calls[index].state = match ready.verify(signer, caller.is_front, &self.proofs) {
                // Most are pooled here: a further hop to another thread would cost more than it.
                Ok(order) if self.host.admission.is_none() && !order.is_unproven() => {
                    self.insert(method, order, None)
                }
                Ok(order) => State::Verified(method, order),
                Err(error) => State::Done(Err(error)),
            };
        }
        Ok(())
    }

    /// A work permit for an external caller.
    async fn permit(
        &self,
        claim: Option<&Claim>,
        caller: PeerId,
        body_bytes: usize,
    ) -> Result<WorkPermit, ErrorResponse> {
        let priority = self.priority_of(claim, caller, body_bytes);
        let acquired = self.host.gate.acquire_external(priority, Instant::now()).await;
        acquired.map_err(|refusal| ErrorResponse::refusal(&refusal))
    }

    fn priority_of(&self, claim: Option<&Claim>, caller: PeerId, body_bytes: usize) -> Priority {
        match self.priority(claim, caller) {
            // Anybody can sign, and 8 MB take tens of milliseconds to parse: a short request takes one.
            Priority::Signed if body_bytes > SMALL_BODY_BYTES => Priority::Unsigned,
            priority => priority,
        }
    }

    fn answer(&self, request: Request) -> Answer {
        let mut text = String::from(if request.is_batch { "[" } else { "" });
        let mut single = None;
        for (index, call) in request.calls.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            let done = match call.state {
                State::Done(done) => done,
                // Every call that was sent was run, or the request was refused as a whole.
                State::Sent(..) | State::Verified(..) => Err(ErrorResponse::internal()),
            };
            match done {
                Ok(result) => {
                    let id = call.id.as_json();
                    text.push_str(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
                }
                Err(error) => {
                    self.metrics.count(error.reason);
                    text.push_str(&error.json_with_id(&call.id));
                    single = Some(error);
                }
            }
        }
        if request.is_batch {
            text.push(']');
        }
        // In a batch each element has its own response, and the status is that of none of them.
        Answer { text, error: single.filter(|_| !request.is_batch) }
    }
}

impl Request {
    /// Whether a call of such a method was not run yet.
    fn has(&self, which: fn(Method) -> bool) -> bool {
        self.calls.iter().any(|call| matches!(call.state, State::Sent(method, _) if which(method)))
    }

    /// Ends every call that was not run yet.
    fn end(&mut self, error: &ErrorResponse) {
        for call in &mut self.calls {
            if matches!(call.state, State::Sent(..)) {
                call.state = State::Done(Err(error.clone()));
            }
        }
    }
}

/// What the host is asked about.
fn candidate(call: &Call, signer: Option<Address>) -> Option<Candidate<'_>> {
    let State::Verified(_, verified) = &call.state else { return None };
    let order = verified.order()?;
    // A front names the signer of each bundle.
    let of_bundle = order.as_bundle().and_then(|bundle| bundle.parts().signer);
    Some(Candidate::new(order, of_bundle.or(signer)))
}

pub(crate) fn signature_error(error: SignatureError) -> ErrorResponse {
    let status = StatusCode::UNAUTHORIZED;
    ErrorResponse::request(status, INVALID_REQUEST, Reason::Signature, error.to_string())
}

/// Runs this on a thread for CPU-heavy work.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    tokio::task::spawn_blocking(work).await.map_err(|_| work_error(WorkError::Lost))
}

fn work_error(error: WorkError) -> ErrorResponse {
    match error {
        WorkError::Refused(refusal) => ErrorResponse::refusal(&refusal),
        error => {
            tracing::error!(%error, "a request is answered with an internal error");
            ErrorResponse::internal()
        }
    }
}
