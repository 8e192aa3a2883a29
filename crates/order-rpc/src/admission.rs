//! The tower layer in front of jsonrpsee: admits requests, and answers what it refuses.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use jsonrpsee::{core::BoxError, server::HttpBody};
use load_control::InFlightPermit;
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt};

use crate::{
    active::ActiveRequest,
    body::{self, Shape},
    config::SignatureMode,
    context::{Caller, RpcContext},
    peers::OpenConnection,
    reply::{ErrorResponse, INVALID_REQUEST, LIMIT, Reason},
    signature::{self, Claim, SignatureError},
    ws,
};

/// Lingering close: how many bytes of a refused body are read and discarded.
const LINGER_BYTES: usize = 1 << 20;
/// Lingering close: for how long at most.
const LINGER_TIMEOUT: Duration = Duration::from_millis(250);
/// How many refused bodies are read and discarded at the same time.
pub(crate) const MAX_LINGERING: usize = 64;

/// Puts an [`Admission`] in front of a JSON-RPC service, for one connection.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionLayer {
    pub(crate) context: Arc<RpcContext>,
    pub(crate) connections: ws::Connections,
    pub(crate) connection: Arc<OpenConnection>,
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, rpc: S) -> Admission<S> {
        let AdmissionLayer { context, connections, connection } = self.clone();
        Admission { context, connections, _connection: connection, rpc }
    }
}

/// Refuses before the body is read, reads the body within its limits, verifies its signature, and
/// passes it on.
#[derive(Clone, Debug)]
pub(crate) struct Admission<S> {
    pub(crate) context: Arc<RpcContext>,
    pub(crate) connections: ws::Connections,
    /// Kept by a WebSocket's task too, so that the connection counts until the WebSocket ends.
    _connection: Arc<OpenConnection>,
    rpc: S,
}

/// What jsonrpsee's service is to the rest of this crate.
pub(crate) trait Rpc:
    Service<
        Request<Full<Bytes>>,
        Response = Response<HttpBody>,
        Error = BoxError,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Rpc for S where
    S: Service<
            Request<Full<Bytes>>,
            Response = Response<HttpBody>,
            Error = BoxError,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

impl<S, B> Service<Request<B>> for Admission<S>
where
    S: Rpc,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<HttpBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<HttpBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Always ready: a request beyond the limits gets an error response, it does not wait.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        let context = Arc::clone(&self.context);
        async move {
            Ok(match this.route(request).await {
                Ok(response) => response,
                Err(error) => {
                    context.metrics.count(error.reason);
                    error.response()
                }
            })
        }
        .boxed()
    }
}

impl<S: Rpc> Admission<S> {
    async fn route<B>(self, request: Request<B>) -> Result<Response<HttpBody>, ErrorResponse>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/healthz") => Ok(text(StatusCode::OK, json!({ "healthy": true }))),
            (&Method::GET, "/readyz") => Ok(self.readiness()),
            (&Method::GET, _) if ws::is_upgrade(&request) => ws::upgrade(self, request),
            (&Method::POST, _) => self.post(request).await,
            (method, _) => Err(http_error(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not allowed: POST, or GET of /healthz and /readyz"),
            )),
        }
    }

    /// 503 while a source is not live, the gate sheds load, or the RPC server shuts down. A source
    /// whose node does not list its pool is ready: what it announces comes in.
    fn readiness(&self) -> Response<HttpBody> {
        let host = &self.context.host;
        let sources_live = (host.readiness)();
        let shedding = host.gate.is_shedding(Instant::now());
        let shutting_down = self.context.active.is_closed();
        let ready = sources_live && !shedding && !shutting_down;
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        text(
            status,
            json!({
                "ready": ready,
                "sourcesLive": sources_live,
                "sourcesAudited": (host.audited)(),
                "shedding": shedding,
                "shuttingDown": shutting_down,
            }),
        )
    }

    async fn post<B>(self, request: Request<B>) -> Result<Response<HttpBody>, ErrorResponse>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        // All checks that need no body come before the body is read.
        let ((_active, permit), claim) = match self.enter_by(&parts.headers) {
            Ok(entered) => entered,
            Err(error) => {
                self.linger(body);
                return Err(error);
            }
        };
        let (body, _share) = body::read(body, &self.context).await?;
        self.serve(body, permit, claim).await
    }

    fn enter_by(
        &self,
        headers: &HeaderMap,
    ) -> Result<((ActiveRequest, InFlightPermit), Option<Claim>), ErrorResponse> {
        let entered = self.enter()?;
        is_json(headers)?;
        Ok((entered, self.claim(headers)?))
    }

    /// Lingering close: reads and discards the body of a refused request while its response is sent.
    /// A connection that is closed with unread bytes is reset, and the response may be lost. Limited
    /// in time, in bytes and in how many bodies at once; nothing is kept.
    fn linger<B>(&self, body: B)
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
    {
        if body.is_end_stream() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.context.lingering).try_acquire_owned() else { return };
        let discard = async move {
            let mut body = std::pin::pin!(body);
            let mut left = LINGER_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let read = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = left.checked_sub(read) else { break };
                left = rest;
            }
        };
        self.connections.tasks.spawn(async move {
            // After the timeout the connection is closed with bytes unread.
            let _ = tokio::time::timeout(LINGER_TIMEOUT, discard).await;
            drop(permit);
        });
    }

    /// Admits a request, or refuses it.
    pub(crate) fn enter(&self) -> Result<(ActiveRequest, InFlightPermit), ErrorResponse> {
        let (context, now) = (&self.context, Instant::now());
        let gate = &context.host.gate;
        let Some(active) = context.active.begin() else {
            return Err(ErrorResponse::refusal(&gate.refuse_closed(now)));
        };
        let permit = gate.enter(now).map_err(|refusal| ErrorResponse::refusal(&refusal))?;
        Ok((active, permit))
    }

    /// Serves a request whose body was read.
    pub(crate) async fn serve(
        &self,
        body: Bytes,
        mut permit: InFlightPermit,
        claim: Option<Claim>,
    ) -> Result<Response<HttpBody>, ErrorResponse> {
        let context = &self.context;
        let shape = body::shape(&body, context.config.max_depth, context.config.max_batch)?;
        let elements = match shape {
            Shape::Single => 1,
            Shape::Batch(elements) => elements,
        };
        let batch = context.host.gate.enter_batch(&mut permit, elements, Instant::now());
        batch.map_err(|refusal| ErrorResponse::refusal(&refusal))?;
        let signer = match claim {
            None => None,
            Some(claim) => {
                // Before the work: no signature is recovered for a signer without quota.
                context.check_quota(claim.address, elements)?;
                let signed = body.clone();
                let verify = move |_: &RpcContext| claim.verify(&signed).map_err(signature_error);
                let signer = context.work(None, verify).await?;
                context.take_quota(signer, elements)?;
                Some(signer)
            }
        };
        let caller = Caller { signer, weight: permit.weight(), ..Caller::default() };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        request.extensions_mut().insert(caller.clone());
        // The service is jsonrpsee's, which has no error of its own.
        let served = self.rpc.clone().oneshot(request).await;
        let mut response = served.map_err(|error| {
            tracing::error!(%error, "the JSON-RPC service failed");
            ErrorResponse::internal()
        })?;
        // In a batch each element has its own response, and the status is that of none of them.
        if let (Shape::Single, Some(error)) = (shape, caller.error_response.get()) {
            error.mark(&mut response);
        }
        drop(permit);
        Ok(response)
    }

    fn claim(&self, headers: &HeaderMap) -> Result<Option<Claim>, ErrorResponse> {
        let mode = self.context.config.signatures;
        if mode == SignatureMode::Off {
            return Ok(None);
        }
        let mut values = headers.get_all(signature::HEADER).iter();
        let claim = match (values.next(), values.next()) {
            (None, _) if mode == SignatureMode::Required => Err(SignatureError::Missing),
            (None, _) => return Ok(None),
            (Some(value), None) => {
                value.to_str().map_err(|_| SignatureError::Malformed).and_then(Claim::parse)
            }
            // With two signatures the caller is ambiguous.
            (Some(_), Some(_)) => Err(SignatureError::Malformed),
        };
        claim.map(Some).map_err(signature_error)
    }
}

pub(crate) fn signature_error(error: SignatureError) -> ErrorResponse {
    ErrorResponse::request(
        StatusCode::UNAUTHORIZED,
        INVALID_REQUEST,
        Reason::Signature,
        error.to_string(),
    )
}

fn is_json(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    match essence {
        Some(json) if json.eq_ignore_ascii_case("application/json") => Ok(()),
        _ => {
            let message = "Content-Type must be application/json".to_owned();
            Err(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

pub(crate) fn http_error(status: StatusCode, message: String) -> ErrorResponse {
    ErrorResponse::request(status, INVALID_REQUEST, Reason::Http, message)
}

fn text(status: StatusCode, body: Value) -> Response<HttpBody> {
    let mut response = Response::new(HttpBody::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A response's body as text. All of them are short and in memory.
pub(crate) async fn into_text(response: Response<HttpBody>) -> String {
    let body = response.into_body().collect().await.map(|body| body.to_bytes());
    // A body in memory does not fail, and jsonrpsee writes UTF-8.
    body.map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default()
}

// The code is jsonrpsee's own for "batches are not supported", which we never send.
const _: () = assert!(LIMIT == jsonrpsee::types::error::BATCHES_NOT_SUPPORTED_CODE);
