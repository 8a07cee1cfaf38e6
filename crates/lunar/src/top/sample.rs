//! The reports of a server at one moment.

use crate::exit::Failure;
use lunar_admin::metrics::MetricsReport;
use lunar_admin::{RouterReport, SessionReport};
use lunar_api::client::{Client, RouterList, ServerReport, SessionList};
use std::time::{Instant, SystemTime};

/// The reports of one moment.
pub struct Sample {
    /// The time of the counters.
    pub taken_at: Instant,
    /// The same as time of day.
    pub time: SystemTime,
    /// The server.
    pub server: ServerReport,
    /// Its counters.
    pub metrics: MetricsReport,
    /// Its sessions.
    pub sessions: Vec<SessionReport>,
    /// Its routers.
    pub routers: Vec<RouterReport>,
}

impl Sample {
    /// Reads the reports of a server.
    ///
    /// # Errors
    /// When it does not answer all requests.
    pub fn take(client: &Client) -> Result<Sample, Failure> {
        let server = client.get("/v1/server")?;
        let metrics = client.get("/v1/metrics")?;
        let (taken_at, time) = (Instant::now(), SystemTime::now());
        let sessions: SessionList = client.get("/v1/sessions")?;
        let routers: RouterList = client.get("/v1/routers")?;
        Ok(Sample { taken_at, time, server, metrics, sessions: sessions.items, routers: routers.items })
    }
}
