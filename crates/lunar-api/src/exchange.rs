//! Serves the requests of one connection.

use crate::caller::Caller;
use crate::handlers::page_file;
use crate::problem::Problem;
use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

/// Maximum length of the body of a request.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Time for a client to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the last response of a connection that must end.
const GRACE: Duration = Duration::from_secs(5);

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLimits {
    /// Time for a client to send the head of the next request.
    pub head: Duration,
}

/// Serves a connection until it ends, or until `stop` and the end of the request in progress. `caller` finds the
/// sender of a request by its head.
pub async fn serve<I>(
    stream: I,
    router: Router,
    limits: ExchangeLimits,
    caller: impl Fn(&Parts) -> Result<Caller, Box<Problem>>,
    stop: impl Future<Output = ()>,
) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let router = router.clone();
        // The files of the page need no sender.
        let caller = match page_file(&parts.method, parts.uri.path()) {
            Some(file) => Err(file),
            None => caller(&parts).map_err(IntoResponse::into_response),
        };
        async move {
            let response = match caller {
                Ok(caller) => caller.handle(respond(parts, body, router)).await,
                // A client without rights must not keep a connection that others need.
                Err(mut response) => {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                    response
                }
            };
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = connection.as_mut() => return served,
        () = stop => connection.as_mut().graceful_shutdown(),
    }
    tokio::time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
}

/// Responds to a request whose whole body has arrived.
async fn respond(parts: Parts, body: Incoming, mut router: Router) -> Response {
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => {
            let Ok(response) = router.call(Request::from_parts(parts, Body::from(body.to_bytes()))).await;
            response
        }
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            let what = "the body of the request is longer than 1 MiB";
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, what, "send a shorter body").into_response()
        }
        Ok(Err(e)) => {
            let what = format!("the body of the request is incomplete: {e}");
            Problem::new(StatusCode::BAD_REQUEST, what, "repeat the request").into_response()
        }
        Err(_) => {
            let what = "the body of the request did not arrive within 10 s";
            Problem::new(StatusCode::REQUEST_TIMEOUT, what, "repeat the request").into_response()
        }
    }
}
