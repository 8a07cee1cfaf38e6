//! Records the lines of the log as events of the server. A line whose tracing event has a name is an event of that kind.

use lunar_admin::{EventLog, Keys, ServerEvent};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

static EVENTS: LazyLock<Arc<EventLog>> = LazyLock::new(Arc::default);

/// The events of this process.
pub fn events() -> Arc<EventLog> {
    EVENTS.clone()
}

/// Records events of level `info` and above.
pub struct EventLayer;

impl<S: Subscriber> Layer<S> for EventLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() <= Level::INFO {
            EVENTS.record(server_event(event));
        }
    }
}

fn server_event(event: &Event<'_>) -> ServerEvent {
    let mut fields = FieldVisitor::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    // The library names other events by their place: `event crates/lunar/src/serve.rs:1`.
    let kind = Some(metadata.name()).filter(|name| !name.starts_with("event "));
    ServerEvent {
        sequence: 0,
        time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        kind: kind.unwrap_or("log").to_owned(),
        level: metadata.level().as_str().to_ascii_lowercase(),
        message: fields.message,
        fields: fields.others,
    }
}

/// A line of the JSON log. `module`: the part of the program that wrote it.
#[derive(Serialize)]
struct JsonLine<'a> {
    timestamp: String,
    level: &'a str,
    message: &'a str,
    #[serde(flatten)]
    fields: &'a Keys,
    module: &'a str,
}

/// An event as a JSON object.
pub fn json_line(event: &Event<'_>) -> String {
    let mut fields = FieldVisitor::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    let line = JsonLine {
        timestamp: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        level: metadata.level().as_str(),
        message: &fields.message,
        fields: &fields.others,
        module: metadata.target(),
    };
    serde_json::to_string(&line).unwrap_or_default()
}

#[derive(Default)]
struct FieldVisitor {
    message: String,
    others: Keys,
}

impl FieldVisitor {
    fn set(&mut self, field: &Field, value: Value) {
        // These names are those of the event itself, or of its line in JSON.
        let name = match field.name() {
            name @ ("sequence" | "time" | "timestamp" | "kind" | "level" | "module") => format!("{name}_of"),
            name => name.to_owned(),
        };
        self.others.insert(name, value);
    }
}

impl Visit for FieldVisitor {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.set(field, value.into()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.set(field, format!("{value:?}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn line_of_the_log_is_an_event_with_its_fields() {
        let seen = events().last();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(EventLayer), || {
            let address = std::net::Ipv4Addr::LOCALHOST;
            tracing::info!(name: "session.login", %address, tsih = 7u16, user = None::<&str>, level = "x", "logged in");
            tracing::warn!("a {}", "line");
            tracing::debug!("not recorded");
        });
        let part = events().after(seen, 9);
        let [login, line] = &part.events[..] else { panic!("{part:?}") };
        assert_eq!((&*login.kind, &*login.level, &*login.message), ("session.login", "info", "logged in"));
        let fields = serde_json::to_string(&login.fields).unwrap();
        assert_eq!(fields, "{\"address\":\"127.0.0.1\",\"level_of\":\"x\",\"tsih\":7}");
        assert_eq!((&*line.kind, &*line.level, &*line.message), ("log", "warn", "a line"));
    }
}
