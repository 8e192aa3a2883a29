//! One HTTP connection: admits requests before their bodies are read, or sends error responses.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, uri::Authority};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use serde_json::json;

use super::{HttpServer, body, open::Place, response};
use crate::{
    config::{SignatureMode, body_work},
    limits::{Arrival, Caller, Limiter, forwarded_for},
    methods::{Claim, SIGNATURE_HEADERS, signature_refused},
    reply::{ErrorResponse, Reason, cut},
};

/// Lingering close: how many bytes of a refused body are read and discarded.
const LINGER_BYTES: usize = 1 << 20;
/// Lingering close: for how long at most.
const LINGER_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) server: Arc<HttpServer>,
    pub(super) caller: Arc<Caller>,
    /// Whether it comes from a trusted proxy, which names the caller of each request.
    pub(super) is_proxy: bool,
    pub(super) place: Arc<Place>,
}

impl Connection {
    pub(super) async fn respond(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let method = request.method().clone();
        let response = match self.charge_head(request.headers()) {
            Ok(()) => self.route(request).await,
            Err(error) => {
                self.linger(request.into_body());
                Err(error)
            }
        };
        let is_cheap = response.is_err() || method == Method::GET;
        let response = response.unwrap_or_else(|error| {
            self.server.dispatcher.metrics.count(error.reason);
            response::of_error(&error, self.closes_after(error.reason))
        });
        if is_cheap {
            // Other connections get their turn between two pipelined requests, each of which would
            // else be answered at once.
            tokio::task::yield_now().await;
        }
        Ok(response)
    }

    /// Spends what the head of a request costs, whatever becomes of the request.
    fn charge_head(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        // A proxy's own requests, and those that name no caller, are refused or cost nothing.
        let Ok(caller) = self.caller(headers) else { return Ok(()) };
        self.limiter().charges.charge_caller(caller.id, body_work(0))
    }

    /// Whether the connection ends with this error response. A proxy's carries requests of others.
    fn closes_after(&self, reason: Reason) -> bool {
        reason == Reason::CallerQuota && !self.is_proxy
    }

    fn limiter(&self) -> &Limiter {
        &self.server.dispatcher.limiter
    }

    async fn route(&self, call: Request<Incoming>) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        match (call.method(), call.uri().path()) {
            (&Method::GET, "/healthz") => {
                Ok(response::json(json!({ "healthy": true }).to_string(), None))
            }
            (&Method::GET, "/readyz") => Ok(self.readiness()),
            (&Method::POST, _) => self.post(call).await,
            (&Method::GET, _) if call.headers().contains_key(header::UPGRADE) => Err(http_error(
                StatusCode::METHOD_NOT_ALLOWED,
                "WebSockets are not served: send each request by POST",
            )),
            (method, _) => Err(http_error(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not allowed: POST, or GET of /healthz and /readyz"),
            )),
        }
    }

    /// 503 while a source is not live, the gate sheds load, or the RPC server shuts down. A source
    /// whose node does not list its pool is ready, because its announcements are fetched.
    fn readiness(&self) -> Response<Full<Bytes>> {
        let dispatcher = &self.server.dispatcher;
        let (host, limiter) = (&dispatcher.methods.host, &dispatcher.limiter);
        let sources_live = (host.sources_live)();
        let shedding = limiter.gate.is_shedding(Instant::now());
        let shutting_down = limiter.active.is_closed();
        let published = (host.is_published)();
        let ready = sources_live && published && !shedding && !shutting_down;
        let body = json!({
            "ready": ready,
            "sourcesLive": sources_live,
            "sourcesAudited": (host.sources_audited)(),
            "published": published,
            "shedding": shedding,
            "shuttingDown": shutting_down,
        });
        let mut response = response::json(body.to_string(), None);
        if !ready {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    async fn post(&self, call: Request<Incoming>) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let (parts, body) = call.into_parts();
        // All checks that need no body come before the body is read.
        let (caller, arrival, claim) = match self.arrive(&parts.headers, &body) {
            Ok(arrived) => arrived,
            Err(error) => {
                self.linger(body);
                return Err(error);
            }
        };
        let dispatcher = &self.server.dispatcher;
        let (body, held) = body::read(body, self.limiter(), &caller).await?;
        let mut entered = self.limiter().enter(&caller, arrival)?;
        // Waits if another connection has this one's place: then this one is about to end.
        let _in_work = self.place.work.lock().await;
        let reply = dispatcher.serve(body, claim, &mut entered).await?;
        if entered.is_known {
            // It orders nothing else.
            self.place.is_known.store(true, Relaxed);
            self.limiter().callers.remember(&caller);
        }
        Ok(response::of_reply(reply, held))
    }

    /// Refuses a request to a name that is not ours. A web page can have a browser send requests to
    /// a name of its own that leads here (DNS rebinding). A browser always names its host.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        let mut named = headers.get_all(header::HOST).iter();
        let Some(host) = named.next() else { return Ok(()) };
        let host = Authority::try_from(host.as_bytes()).ok().filter(|_| named.next().is_none());
        let names = &self.limiter().limits.config.host_names;
        let is_ours = |host: &str| {
            host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
                || host.eq_ignore_ascii_case("localhost")
                || names.iter().any(|ours| host.eq_ignore_ascii_case(ours))
        };
        if host.is_some_and(|host| is_ours(host.host())) {
            return Ok(());
        }
        let message = "Host must be an IP address, localhost or one of host_names";
        Err(http_error(StatusCode::FORBIDDEN, message))
    }

    /// The caller whose shares a request uses.
    fn caller(&self, headers: &HeaderMap) -> Result<Arc<Caller>, ErrorResponse> {
        if !self.is_proxy {
            return Ok(Arc::clone(&self.caller));
        }
        let address = forwarded_for(headers).ok_or_else(|| {
            let message = "the last entry of X-Forwarded-For is no address of a caller";
            http_error(StatusCode::BAD_REQUEST, message)
        })?;
        Ok(self.limiter().callers.of(address))
    }

    fn arrive(
        &self,
        headers: &HeaderMap,
        body: &Incoming,
    ) -> Result<(Arc<Caller>, Arrival, Option<Claim>), ErrorResponse> {
        self.check_host(headers)?;
        let caller = self.caller(headers)?;
        let is_signed = SIGNATURE_HEADERS.iter().any(|name| headers.contains_key(*name));
        let arrival = self.limiter().arrive(&caller, is_signed)?;
        is_json(headers)?;
        is_plain(headers)?;
        let mode = match self.limiter().limits.config.signatures {
            // Requests that a front forwards were signed.
            SignatureMode::Required if caller.id.is_front => SignatureMode::Optional,
            mode => mode,
        };
        let claim = claim(headers, mode)?;
        body::check(body, self.limiter(), &caller)?;
        Ok((caller, arrival, claim))
    }

    /// Lingering close: discards the body of a refused request, bounded in time, bytes and number.
    /// A connection that is closed with unread bytes is reset, and its response may be lost.
    fn linger(&self, mut body: Incoming) {
        if body.is_end_stream() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.server.lingering).try_acquire_owned() else { return };
        let discard = async move {
            let mut left = LINGER_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let read = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = left.checked_sub(read) else { break };
                left = rest;
            }
        };
        self.server.tasks.spawn(async move {
            // After the timeout the connection is closed with bytes unread.
            let _ = tokio::time::timeout(LINGER_TIMEOUT, discard).await;
            drop(permit);
        });
    }
}

fn claim(headers: &HeaderMap, mode: SignatureMode) -> Result<Option<Claim>, ErrorResponse> {
    // Some clients send the same signature under both names.
    let [flashbots, buildernet] = SIGNATURE_HEADERS.map(|name| headers.get_all(name));
    let repeated = |value: &&HeaderValue| !flashbots.iter().any(|other| other == *value);
    let mut values = flashbots.iter().chain(buildernet.iter().filter(repeated));
    let claim = match (values.next(), values.next()) {
        _ if mode == SignatureMode::Off => return Ok(None),
        (None, _) if mode == SignatureMode::Required => {
            return Err(signature_refused("missing and required"));
        }
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().and_then(Claim::parse),
        // With two signatures the caller is ambiguous.
        (Some(_), Some(_)) => None,
    };
    let malformed = || signature_refused("not of the form 0x<address>:0x<signature>");
    claim.ok_or_else(malformed).map(Some)
}

fn is_json(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message = "Content-Type must be application/json";
    Err(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Refuses a body that is compressed: its length would say nothing about its cost.
fn is_plain(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(()) };
    if encoding.as_bytes().eq_ignore_ascii_case(b"identity") {
        return Ok(());
    }
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let message =
        format!("Content-Encoding is {}, must be absent: send the body as it is", cut(&encoding));
    Err(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn http_error(status: StatusCode, message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::http(status, Reason::Http, message)
}
