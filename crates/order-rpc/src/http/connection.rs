//! Serves one HTTP connection: admits each request before its body is read, or refuses it.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, uri::Authority};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use serde_json::json;

use super::{
    HttpServer, body, open_connections::ConnectionSlot, request_socket::ServedRequests, response,
    response_socket::Reader,
};
use crate::{
    config::{SignatureMode, body_work},
    limits::{AdmittedHead, Caller, Limiter, forwarded_for},
    methods::{SIGNATURE_HEADERS, SignatureClaim, signature_refused},
    reply::{ErrorResponse, Reason, truncate},
};

/// Lingering close: how many bytes of a refused body are read and discarded.
const MAX_LINGER_BYTES: usize = 1 << 20;
/// Lingering close: for how long at most.
const LINGER_TIMEOUT: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) server: Arc<HttpServer>,
    pub(super) caller: Arc<Caller>,
    /// Whether it comes from a trusted proxy, which names the caller of each request.
    pub(super) is_proxy: bool,
    pub(super) reader: Reader,
    pub(super) slot: Arc<ConnectionSlot>,
    pub(super) served: ServedRequests,
}

/// A request whose head passed all checks that need no body.
struct CheckedHead {
    caller: Arc<Caller>,
    admitted: AdmittedHead,
    claim: Option<SignatureClaim>,
}

impl Connection {
    /// Serves one request. It never fails: every error is a response.
    pub(super) async fn respond(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let _served = self.served.start();
        let method = request.method().clone();
        let result = match self.charge_head(request.headers()) {
            Ok(()) => self.route(request).await,
            Err(error) => {
                self.linger(request.into_body());
                Err(error)
            }
        };
        if result.is_err() || method == Method::GET {
            // Such a request is answered at once. Without the yield a client that pipelines them
            // would keep this thread from serving other connections.
            tokio::task::yield_now().await;
        }
        Ok(result.unwrap_or_else(|error| {
            self.server.dispatcher.metrics.count(error.reason);
            response::from_error(&error, self.closes_after(error.reason))
        }))
    }

    /// Charges the caller for the head of a request, whatever becomes of the request.
    fn charge_head(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        // A proxy's own requests, and those that name no caller, are refused or cost nothing.
        let Ok(caller) = self.caller(headers) else { return Ok(()) };
        self.limiter().quotas.charge_caller(caller.id, body_work(0))
    }

    /// Whether the connection ends with this error response. A proxy's connection does not, because
    /// it carries the requests of others.
    fn closes_after(&self, reason: Reason) -> bool {
        reason == Reason::CallerQuota && !self.is_proxy
    }

    fn limiter(&self) -> &Limiter {
        &self.server.dispatcher.limiter
    }

    async fn route(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/healthz") => {
                Ok(response::json(json!({ "healthy": true }).to_string(), None))
            }
            (&Method::GET, "/readyz") => Ok(self.readiness()),
            (&Method::POST, _) => self.post(request).await,
            (&Method::GET, _) if request.headers().contains_key(header::UPGRADE) => {
                Err(http_error(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "WebSockets are not served: send each request by POST",
                ))
            }
            (method, _) => Err(http_error(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not allowed: use POST, or GET of /healthz and /readyz"),
            )),
        }
    }

    /// Answers `/readyz`: 503 while a source is not live, the gate sheds load, the host cannot
    /// publish, or the server shuts down. A source whose node does not list its pool is ready,
    /// because its announcements are fetched.
    fn readiness(&self) -> Response<Full<Bytes>> {
        let dispatcher = &self.server.dispatcher;
        let host = &dispatcher.methods.host;
        let limiter = &dispatcher.limiter;
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

    async fn post(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, ErrorResponse> {
        let (head, body) = request.into_parts();
        // All checks that need no body come before the body is read.
        let CheckedHead { caller, admitted, claim } = match self.check_head(&head.headers, &body) {
            Ok(checked) => checked,
            Err(error) => {
                self.linger(body);
                return Err(error);
            }
        };
        if self.is_proxy {
            self.reader.set(&caller);
        }
        let dispatcher = &self.server.dispatcher;
        let (body, held) = body::read(body, self.limiter(), &caller).await?;
        let mut request = self.limiter().admit_request(&caller, admitted)?;
        // If the connection was displaced, this waits until the connection is closed.
        let _work = self.slot.work.lock().await;
        let reply = dispatcher.serve(body, claim, &mut request).await?;
        if request.is_known {
            // Relaxed: it orders nothing else.
            self.slot.is_known.store(true, Relaxed);
            self.limiter().callers.remember(&caller);
        }
        Ok(response::from_reply(reply, held))
    }

    /// Refuses a request to a host name that is not ours. A web page can have a browser send
    /// requests to a name of its own that leads here (DNS rebinding), and a browser always names
    /// the host.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        let mut values = headers.get_all(header::HOST).iter();
        let Some(host) = values.next() else { return Ok(()) };
        let is_repeated = values.next().is_some();
        let authority = Authority::try_from(host.as_bytes()).ok().filter(|_| !is_repeated);
        if authority.is_some_and(|authority| self.is_own_host(authority.host())) {
            return Ok(());
        }
        let message = "Host must be an IP address, localhost or one of host_names";
        Err(http_error(StatusCode::FORBIDDEN, message))
    }

    fn is_own_host(&self, host: &str) -> bool {
        let host_names = &self.limiter().limits.config.host_names;
        host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || host_names.iter().any(|name| host.eq_ignore_ascii_case(name))
    }

    /// Returns the caller whose shares a request uses.
    fn caller(&self, headers: &HeaderMap) -> Result<Arc<Caller>, ErrorResponse> {
        if !self.is_proxy {
            return Ok(Arc::clone(&self.caller));
        }
        let address = forwarded_for(headers).ok_or_else(|| {
            let message = "the last entry of X-Forwarded-For is not the address of a caller";
            http_error(StatusCode::BAD_REQUEST, message)
        })?;
        Ok(self.limiter().callers.with_address(address))
    }

    fn check_head(
        &self,
        headers: &HeaderMap,
        body: &Incoming,
    ) -> Result<CheckedHead, ErrorResponse> {
        self.check_host(headers)?;
        let caller = self.caller(headers)?;
        let is_signed = SIGNATURE_HEADERS.iter().any(|name| headers.contains_key(*name));
        let admitted = self.limiter().admit_head(&caller, is_signed)?;
        check_content_type(headers)?;
        check_content_encoding(headers)?;
        let mode = match self.limiter().limits.config.signatures {
            // A front forwards only requests that were signed.
            SignatureMode::Required if caller.id.is_front => SignatureMode::Optional,
            mode => mode,
        };
        let claim = signature_claim(headers, mode)?;
        body::check_announced(body, self.limiter(), &caller)?;
        Ok(CheckedHead { caller, admitted, claim })
    }

    /// Lingering close: discards the body of a refused request, bounded in time, bytes and number.
    /// A connection that is closed with unread bytes is reset, and its response may be lost.
    fn linger(&self, mut body: Incoming) {
        if body.is_end_stream() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.server.lingering).try_acquire_owned() else { return };
        let discard = async move {
            let mut bytes_left = MAX_LINGER_BYTES;
            while let Some(Ok(frame)) = body.frame().await {
                let read = frame.data_ref().map_or(0, Bytes::len);
                let Some(rest) = bytes_left.checked_sub(read) else { break };
                bytes_left = rest;
            }
        };
        self.server.tasks.spawn(async move {
            // After the timeout the connection is closed with bytes unread.
            let _ = tokio::time::timeout(LINGER_TIMEOUT, discard).await;
            drop(permit);
        });
    }
}

/// Parses the signature header, if there is one and signatures are not ignored.
fn signature_claim(
    headers: &HeaderMap,
    mode: SignatureMode,
) -> Result<Option<SignatureClaim>, ErrorResponse> {
    if mode == SignatureMode::Off {
        return Ok(None);
    }
    // Some clients send the same signature under both names.
    let [flashbots, buildernet] = SIGNATURE_HEADERS.map(|name| headers.get_all(name));
    let buildernet =
        buildernet.iter().filter(|value| !flashbots.iter().any(|other| other == *value));
    let mut values = flashbots.iter().chain(buildernet);
    let claim = match (values.next(), values.next()) {
        (None, _) if mode == SignatureMode::Required => {
            return Err(signature_refused("missing and required"));
        }
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().and_then(SignatureClaim::parse),
        // With two signatures the signer is ambiguous.
        (Some(_), Some(_)) => None,
    };
    if claim.is_none() {
        return Err(signature_refused("not of the form 0x<address>:0x<signature>"));
    }
    Ok(claim)
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next()).map(str::trim);
    if media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message = "Content-Type must be application/json";
    Err(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Refuses a compressed body, because its length would not bound the cost of reading it.
fn check_content_encoding(headers: &HeaderMap) -> Result<(), ErrorResponse> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(()) };
    if encoding.as_bytes().eq_ignore_ascii_case(b"identity") {
        return Ok(());
    }
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let encoding = truncate(&encoding);
    let message = format!("Content-Encoding is {encoding}, must be absent: send the body as is");
    Err(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn http_error(status: StatusCode, message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::http(status, Reason::Http, message)
}
