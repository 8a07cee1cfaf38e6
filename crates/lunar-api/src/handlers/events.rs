//! `/v1/events`: the stream of events.

use super::ApiState;
use crate::problem::Problem;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};
use lunar_admin::{EventLog, ServerEvent};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum number of streams. They must leave connections for other requests.
pub const MAX_STREAMS: usize = 16;
/// Events that a reader gets at a time.
const PART: usize = 64;
/// Time after which an idle stream sends a comment, so that both ends notice a lost connection.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The position of a reader.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct EventQuery {
    /// The number of the last event that the reader has seen; 0: all events that are kept follow. By default, only new
    /// events follow.
    since: Option<u64>,
    /// Whether the stream continues with new events; by default it does. Otherwise it ends after the last event, and
    /// `since` is 0 by default.
    follow: Option<bool>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Streams events (server-sent events of HTML). `id` is the number of an event, `event` its kind, and `data` its JSON.
/// The header `Last-Event-ID` continues after that event, and overrides `since`. An event of the kind `gap` replaces
/// events that are not kept any more.
#[utoipa::path(get, path = "/v1/events",
    params(EventQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The number of the last event seen")),
    responses((status = 200, body = ServerEvent, content_type = "text/event-stream"), (status = 400, body = Problem),
        (status = 503, body = Problem)))]
async fn events(
    State(api): State<ApiState>,
    query: Result<Query<EventQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Box<Problem>> {
    let EventQuery { since, follow } = query.map_err(|e| invalid(&e.body_text()))?.0;
    let (log, follows) = (api.control.events(), follow.unwrap_or(true));
    let seen = match (last_seen(&headers)?.or(since), follows) {
        (None, true) => log.last(),
        (None | Some(0), _) => log.before_first(),
        (Some(seen), _) => seen,
    };
    let permit = api.streams.clone().try_acquire_owned().map_err(|_| too_many())?;
    let reader = EventReader { log, seen, follows, pending: VecDeque::new(), _permit: permit };
    let next = |mut reader: EventReader| async move { Some((Ok(reader.next().await?), reader)) };
    Ok(Sse::new(stream::unfold(reader, next)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// The number of `Last-Event-ID`, which a client sends when it connects again.
fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Box<Problem>> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    text.trim().parse().map(Some).map_err(|_| invalid(&format!("the header Last-Event-ID is {text:?}")))
}

fn invalid(fault: &str) -> Box<Problem> {
    let hint = "send the number of the last event that you have seen, or 0 for all that are kept";
    let what = format!("the position in the events is invalid: {}", lunar_config::plain(fault));
    Problem::new(StatusCode::BAD_REQUEST, what, hint)
}

fn too_many() -> Box<Problem> {
    let what = format!("{MAX_STREAMS} clients read events already");
    let hint = "end one of them, and repeat the request";
    let code = lunar_config::ErrorCode::InUse.name().to_owned();
    Box::new(Problem { code, ..*Problem::new(StatusCode::SERVICE_UNAVAILABLE, what, hint) })
}

/// A reader. It is asked only when the client can take more, so a slow client loses events instead of keeping them in
/// memory, and gets the number of lost ones.
struct EventReader {
    log: Arc<EventLog>,
    seen: u64,
    follows: bool,
    pending: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

impl EventReader {
    /// The next event. None at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            // Before the look, so that no event is missed between both.
            let recorded = self.log.listen();
            let part = self.log.after(self.seen, PART);
            for event in part.gap.iter().chain(part.events.iter().map(|event| &**event)) {
                self.seen = event.sequence;
                self.pending.push_back(shown(event));
            }
            match (self.pending.is_empty(), self.follows) {
                (true, true) => recorded.await,
                (true, false) => return None,
                (false, _) => {}
            }
        }
    }
}

fn shown(event: &ServerEvent) -> Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    Event::default().id(event.sequence.to_string()).event(&event.kind).data(data)
}
