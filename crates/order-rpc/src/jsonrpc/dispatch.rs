//! From the body of a request to its response: parse, admit, run, answer.

use std::{sync::Arc, time::Instant};

use alloy_primitives::Address;
use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use load_control::{Priority, WorkError, WorkPermit};

use crate::{
    context::{Entered, RpcContext},
    http::body::SMALL_BODY_BYTES,
    jsonrpc::envelope::{Call, Calls, Id, State},
    limits::callers::PeerId,
    methods::admission::{Admitted, Candidate},
    methods::signature::{Claim, SignatureError},
    methods::{Method, Verified},
    reply::{Answer, ErrorResponse, INVALID_REQUEST, Reason},
};

/// Bodies up to this size are parsed on the thread that read them, which takes microseconds. Longer
/// ones are parsed on a worker thread, under a work permit: a megabyte takes milliseconds, during
/// which the thread would serve no other caller.
const MAX_INLINE_BYTES: usize = 8 * 1_024;

/// Bytes of a body that cost as much to read, parse and hash (about 3 us per KiB) as one signature
/// recovery.
const BYTES_PER_WORK: usize = 16 * 1_024;

/// A request whose body was parsed.
#[derive(Debug)]
struct Request {
    /// The signed bytes.
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
    /// The body could not be parsed, so the id of the request is not known.
    ///
    /// # Cancel safety
    /// If the future is dropped, work that has begun continues to its end and holds its permit
    /// until then.
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
        // The caller's address pays for the work so far.
        self.take_peer_quota(entered.caller(), count + request.body.len() / BYTES_PER_WORK)?;
        if request.has(Method::is_deferrable) && self.deferral.must_wait() {
            // Urgent calls go ahead of the others in the batch.
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

    /// Runs calls on a worker thread, with the given work permit or one that it acquires.
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
                // A signer without quota causes no signature recovery, and a forged signature
                // spends no signer's quota.
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
        // The work permit is released while proofs wait for theirs, and while the host decides.
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

    /// Lets the host decide on all orders of a request concurrently, and then inserts them in their
    /// order.
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

    /// Runs calls, cheap checks first: no signature is recovered before every call has passed the
    /// checks that need none, and before the quota has paid for the work.
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
        // One for the request's own signature.
        let work = 1 + prepared.iter().map(|(.., ready)| ready.work()).sum::<usize>();
        self.take_peer_quota(caller, work)?;
        let signer = verify(work)?;
        for (index, method, ready) in prepared {
            calls[index].state = match ready.verify(signer, caller.is_front, &self.proofs) {
                // Most orders are inserted here: switching to another thread would cost more than
                // the insert.
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
            // Anyone can sign, and 8 MB take tens of milliseconds to parse, so only short requests
            // get the priority.
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
                    text.push_str(&error.json_with_id(&call.id));
                    single = Some(error);
                }
            }
        }
        if request.is_batch {
            text.push(']');
        }
        // In a batch each element has its own response, so none of them sets the status.
        Answer { text, error: single.filter(|_| !request.is_batch) }
    }
}

impl Request {
    /// Whether a call of such a method has not run yet.
    fn has(&self, which: fn(Method) -> bool) -> bool {
        self.calls.iter().any(|call| matches!(call.state, State::Sent(method, _) if which(method)))
    }

    /// Ends every call that has not run yet with this error.
    fn end(&mut self, error: &ErrorResponse) {
        for call in &mut self.calls {
            if matches!(call.state, State::Sent(..)) {
                call.state = State::Done(Err(error.clone()));
            }
        }
    }
}

/// The order on which the host decides.
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

/// Runs a function on a thread for CPU-heavy work.
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
