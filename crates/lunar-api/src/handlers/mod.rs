//! The resources of the API.

mod all_objects;
mod attachments;
mod body;
mod caller;
mod condition;
mod config;
mod config_history;
mod errors;
pub mod events;
mod gateways;
mod history;
mod metrics;
mod objects;
mod page;
mod routers;
mod server;
mod sessions;

/// Bodies of requests and responses.
pub mod reports {
    pub use super::all_objects::AllObjects;
    pub use super::attachments::AttachmentList;
    pub use super::caller::CallerReport;
    pub use super::config::{ApplyRequest, ConfigText, DiffRequest, DifferenceList};
    pub use super::config_history::{HistoryList, RollbackOptions};
    pub use super::gateways::{GatewayList, SharedUnitList};
    pub use super::history::RateList;
    pub use super::objects::ChangeReport;
    pub use super::routers::RouterList;
    pub use super::server::{ServerReport, StopReport};
    pub use super::sessions::{Outcome, SessionList};
}

pub(crate) use history::sample;
pub(crate) use page::page_file;

use crate::problem::Problem;
use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use lunar_admin::{Asker, Request, Response, ServerControl};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;

/// Maximum number of requests that wait for the main thread, including those whose clients are gone.
pub const MAX_WAITING: usize = 16;

/// The state that all handlers share.
#[derive(Clone)]
pub struct ApiState {
    control: Arc<dyn ServerControl>,
    waiting: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    started_at: Instant,
}

impl ApiState {
    /// Executes a request on the main thread.
    async fn ask(&self, request: Request) -> Result<Response, Box<Problem>> {
        let asker = Asker::new(crate::caller::name());
        // Without a client, this future is dropped.
        let _waits = asker.waits();
        match self.blocking(move |control| control.ask(request, &asker)).await? {
            Response::Failed(error) => Err(error.into()),
            response => Ok(response),
        }
    }

    /// Calls the server where it may wait, as one of at most [`MAX_WAITING`] requests.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn ServerControl) -> T + Send + 'static,
    ) -> Result<T, Box<Problem>> {
        let Ok(permit) = self.waiting.clone().try_acquire_owned() else { return Err(busy()) };
        let control = self.control.clone();
        let called = tokio::task::spawn_blocking(move || {
            let result = call(&*control);
            drop(permit);
            result
        });
        called.await.map_err(|_| unexpected())
    }
}

/// All routes, with their descriptions.
pub fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .merge(server::routes())
        .merge(sessions::routes())
        .merge(routers::routes())
        .merge(gateways::routes())
        .merge(attachments::routes())
        .merge(config::routes())
        .merge(config_history::routes())
        .merge(metrics::routes())
        .merge(objects::routes())
        .merge(events::routes())
        .merge(all_objects::routes())
        .merge(history::routes())
        .merge(caller::routes())
}

/// The handler of all requests.
pub fn router(control: Arc<dyn ServerControl>) -> Router {
    let waiting = Arc::new(Semaphore::new(MAX_WAITING));
    let of_metrics = crate::metrics::router(control.clone());
    let streams = Arc::new(Semaphore::new(events::MAX_STREAMS));
    let state = ApiState { control, waiting, streams, started_at: Instant::now() };
    let (router, _) = routes().split_for_parts();
    router
        .route("/v1/openapi.json", axum::routing::get(|| async { Json(crate::openapi()).into_response() }))
        .fallback(no_resource)
        .method_not_allowed_fallback(no_method)
        .layer(axum::middleware::map_response(errors::as_problem))
        .with_state(state)
        .merge(of_metrics)
}

async fn no_resource(State(_): State<ApiState>, uri: axum::http::Uri) -> Box<Problem> {
    Problem::not_found(format!("the resource {}", uri.path()), "GET /v1/openapi.json lists the resources")
}

async fn no_method(method: Method, uri: axum::http::Uri) -> Box<Problem> {
    let what = format!("{method} is not a method of {}", uri.path());
    let hint = match uri.path().starts_with("/v1/attachments") {
        true => attachments::CREATE_HINT,
        false => "GET /v1/openapi.json lists the methods",
    };
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, what, hint)
}

fn busy() -> Box<Problem> {
    let what = format!("the server rejects the request, because {MAX_WAITING} requests are pending");
    let hint = "check the process of the server, and repeat the request later";
    let code = lunar_config::ErrorCode::TimedOut.name().to_owned();
    Box::new(Problem { code, ..*Problem::new(StatusCode::SERVICE_UNAVAILABLE, what, hint) })
}

/// The error of a response that does not belong to its request.
fn unexpected() -> Box<Problem> {
    let hint = "read the log of the server";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server gives no answer to the request", hint)
}
