//! `/metrics`: what a server counts, as text for Prometheus.

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
use lunar_admin::{Request, ServerControl};
use std::sync::Arc;
use std::time::Duration;
use text::MetricType::Gauge;
use text::{MEDIA_TYPE, MetricsText};
use tokio::sync::Mutex;

pub use listener::MetricsServer;

/// The path.
pub const PATH: &str = "/metrics";
/// How long a response waits for the reports of routers, which the main thread makes. It may be changing the
/// configuration.
const ROUTERS_TIMEOUT: Duration = Duration::from_secs(2);

/// The maker of the text. One thread at a time makes it, so that many clients cost no more than one.
#[derive(Clone)]
struct MetricsSource {
    control: Arc<dyn ServerControl>,
    making: Arc<Mutex<()>>,
}

/// The route of the metrics of `control`.
pub fn router(control: Arc<dyn ServerControl>) -> Router {
    let source = MetricsSource { control, making: Arc::default() };
    Router::new().route(PATH, get(show)).with_state(source)
}

async fn show(State(source): State<MetricsSource>) -> Response {
    let making = source.making.clone().lock_owned().await;
    let control = source.control.clone();
    let routers = tokio::task::spawn_blocking(move || {
        let _making = making;
        control.ask(Request::Routers, "")
    });
    let routers = match tokio::time::timeout(ROUTERS_TIMEOUT, routers).await {
        Ok(Ok(lunar_admin::Response::Routers(routers))) => Some(routers),
        _ => None,
    };
    let mut text = MetricsText::default();
    let report = source.control.metrics();
    server::add(&mut text, &report, &source.control.config());
    targets::add(&mut text, &report);
    luns::add(&mut text, &report);
    routers::add(&mut text, routers.as_deref().unwrap_or_default());
    text.metric("lunar_scrape_incomplete", Gauge, "Whether the metrics of routers are missing.")
        .add(&[], u8::from(routers.is_none()));
    let mut response = text.into_text().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}
