//! `/metrics`: what a server counts, as text for Prometheus.

mod gateways;
mod listener;
mod luns;
mod routers;
mod server;
mod targets;
#[cfg(test)]
mod tests;
mod text;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lunar_admin::{Asker, Request, RouterReport, ServerControl};
use std::sync::Arc;
use std::time::Duration;
use text::MetricType::Gauge;
use text::{MEDIA_TYPE, MetricsText};
use tokio::sync::Mutex;

pub use listener::MetricsServer;

/// The path.
pub const PATH: &str = "/metrics";
/// How long a response waits for the reports of routers: for its turn, and for the main thread, which may be changing the
/// configuration.
const ROUTERS_TIMEOUT: Duration = Duration::from_secs(2);

/// The maker of the text. One client at a time asks the main thread, so that many cost no more than one.
#[derive(Clone)]
struct MetricsSource {
    control: Arc<dyn ServerControl>,
    turn: Arc<Mutex<()>>,
}

/// The route of the metrics of `control`.
pub fn router(control: Arc<dyn ServerControl>) -> Router {
    let source = MetricsSource { control, turn: Arc::default() };
    Router::new().route(PATH, get(show)).with_state(source)
}

/// The reports of routers. A scrape that gives up leaves the turn to its question, which the main thread still answers.
async fn routers(source: &MetricsSource) -> Option<Vec<RouterReport>> {
    let turn = source.turn.clone().lock_owned().await;
    let control = source.control.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        control.ask(Request::Routers, &Asker::default())
    });
    match asked.await {
        Ok(lunar_admin::Response::Routers(routers)) => Some(routers),
        _ => None,
    }
}

async fn show(State(source): State<MetricsSource>) -> Response {
    let routers = tokio::time::timeout(ROUTERS_TIMEOUT, routers(&source)).await.ok().flatten();
    let mut text = MetricsText::default();
    let report = source.control.metrics();
    server::add(&mut text, &report, &source.control.config());
    targets::add(&mut text, &report);
    luns::add(&mut text, &report);
    gateways::add(&mut text, &source.control.group().units);
    routers::add(&mut text, routers.as_deref().unwrap_or_default());
    text.metric("lunar_scrape_incomplete", Gauge, "Whether the metrics of routers are missing.")
        .add(&[], u8::from(routers.is_none()));
    let mut response = text.into_text().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}
