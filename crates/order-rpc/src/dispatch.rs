//! From the body of a request to its response: parse, admit, run, answer.

use std::{sync::Arc, time::Instant};

use alloy_primitives::Address;
use bytes::Bytes;
use http::StatusCode;
use load_control::WorkPermit;

use crate::{
    context::{Entered, RpcContext},
    envelope::{Call, Calls, Id, State},
    methods::Method,
    reply::{Answer, ErrorResponse, INVALID_REQUEST, Reason},
    signature::{Claim, SignatureError},
};

/// Bodies up to this are parsed where they were read: it takes microseconds. Longer ones are parsed on
/// a thread for work, under a work permit: a megabyte takes milliseconds, for which no other caller of
/// the thread would be served.
const MAX_INLINE_BYTES: usize = 8 * 1_024;

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
        let (mut request, permit) = self.parse(body, claim).await?;
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
    ) -> Result<(Request, Option<WorkPermit>), ErrorResponse> {
        let max_batch = self.config.max_batch;
        let (parsed, permit) = if body.len() <= MAX_INLINE_BYTES {
            (Calls::parse(&body, max_batch), None)
        } else {
            let permit = self.permit().await?;
            let text = body.clone();
            on_thread(move || (Calls::parse(&text, max_batch), Some(permit))).await?
        };
        let Calls { calls, is_batch } = parsed?;
        let id = match &calls[..] {
            [single] if !is_batch => single.id.clone(),
            _ => Id::NULL,
        };
        Ok((Request { body, claim, signer: None, calls, is_batch, id }, permit))
    }

    async fn run(
        self: &Arc<Self>,
        request: &mut Request,
        mut permit: Option<WorkPermit>,
        entered: &mut Entered,
    ) -> Result<(), ErrorResponse> {
        let gate = &self.host.gate;
        let count = request.calls.len();
        let batch = gate.enter_batch(&mut entered.permit, count, Instant::now());
        batch.map_err(|refusal| ErrorResponse::refusal(&refusal))?;
        if let Some(claim) = &request.claim {
            // Before the work: no signature is recovered for a signer without quota.
            self.check_quota(claim.address, count)?;
        }
        if request.has(Method::is_deferrable) && self.deferral.must_wait() {
            // What must not wait goes ahead of what stands beside it in the batch.
            let urgent = |method: Method| !method.is_deferrable();
            if request.has(urgent) {
                self.work(request, permit.take(), urgent).await?;
            }
            drop(permit.take());
            match self.deferral.acquire(gate, entered.permit.weight()).await {
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
        let permit = match permit {
            Some(permit) => permit,
            None => self.permit().await?,
        };
        let context = Arc::clone(self);
        let (body, claim) = (request.body.clone(), request.claim);
        let (mut calls, mut signer) = (std::mem::take(&mut request.calls), request.signer);
        let done = on_thread(move || {
            let _permit = permit;
            let verified = context.verify(&body, claim, calls.len(), &mut signer);
            if verified.is_ok() {
                for call in &mut calls {
                    call.run(&context, signer, which);
                }
            }
            verified.map(|()| (calls, signer))
        });
        (request.calls, request.signer) = done.await??;
        Ok(())
    }

    /// Recovers who signed the body, once.
    fn verify(
        &self,
        body: &[u8],
        claim: Option<Claim>,
        count: usize,
        signer: &mut Option<Address>,
    ) -> Result<(), ErrorResponse> {
        let (Some(claim), None) = (claim, &signer) else { return Ok(()) };
        let verified = claim.verify(body).map_err(signature_error)?;
        self.take_quota(verified, count)?;
        *signer = Some(verified);
        Ok(())
    }

    /// A work permit for an external caller.
    async fn permit(&self) -> Result<WorkPermit, ErrorResponse> {
        let acquired = self.host.gate.acquire_external(Instant::now()).await;
        acquired.map_err(|refusal| ErrorResponse::refusal(&refusal))
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
                State::Sent(..) => Err(ErrorResponse::internal()),
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

impl Call {
    fn run(&mut self, context: &RpcContext, signer: Option<Address>, which: fn(Method) -> bool) {
        if let State::Sent(method, params) = &self.state
            && which(*method)
        {
            self.state = State::Done(method.call(context, params, signer));
        }
    }
}

pub(crate) fn signature_error(error: SignatureError) -> ErrorResponse {
    let status = StatusCode::UNAUTHORIZED;
    ErrorResponse::request(status, INVALID_REQUEST, Reason::Signature, error.to_string())
}

/// Runs this on a thread for CPU-heavy work.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        // The work panicked, or the runtime shuts down: an internal error for the caller.
        tracing::error!(%error, "work on a request did not finish");
        ErrorResponse::internal()
    })
}
