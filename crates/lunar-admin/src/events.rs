//! Events of a server: logins, session ends, changes of the configuration, and the other lines of its log. A reader
//! that returns later gets the events since the last one that it has seen.

use crate::Keys;
use event_listener::{Event as Notification, EventListener};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Events that are kept for readers that return.
const KEPT: usize = 4096;
/// The size of the kept events, which bounds their number if they are long.
const KEPT_BYTES: usize = 4 << 20;
/// The longest text in an event. Peers choose some of the texts.
const TEXT_BYTES: usize = 1024;
/// The memory of an event besides its texts, roughly.
const EVENT_BYTES: usize = 256;

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerEvent {
    /// Its number, which increases with each event, also across restarts of the server.
    pub sequence: u64,
    /// When it occurred (RFC 3339).
    pub time: String,
    /// Its kind, such as `session.login`; `log` for another line of the log.
    pub kind: String,
    /// `error`, `warn` or `info`.
    pub level: String,
    /// The event in words.
    pub message: String,
    /// Its details.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Value>)]
    pub fields: Keys,
}

/// The events of a process. Recording an event waits for no reader.
pub struct EventLog {
    state: Mutex<EventRing>,
    recorded: Notification,
}

struct EventRing {
    /// The number before that of the first event of this process.
    start: u64,
    last: u64,
    kept: VecDeque<Arc<ServerEvent>>,
    bytes: usize,
}

/// Events for a reader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventPart {
    /// The event of kind `gap`, if events after the one that the reader has seen are not kept any more.
    pub gap: Option<ServerEvent>,
    /// The events, in order.
    pub events: Vec<Arc<ServerEvent>>,
}

/// The numbers begin at the time in milliseconds, so that they are larger than those of an earlier process.
impl Default for EventLog {
    fn default() -> EventLog {
        let start_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        EventLog::starting_after(u64::try_from(start_ms).unwrap_or(0))
    }
}

impl EventLog {
    /// An empty log. Its first event has the number `start + 1`.
    pub fn starting_after(start: u64) -> EventLog {
        let ring = EventRing { start, last: start, kept: VecDeque::new(), bytes: 0 };
        EventLog { state: Mutex::new(ring), recorded: Notification::new() }
    }

    fn state(&self) -> MutexGuard<'_, EventRing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event. Its number is set, and long texts are cut.
    pub fn record(&self, mut event: ServerEvent) {
        cut(&mut event);
        self.state().push(event);
        self.recorded.notify(usize::MAX);
    }

    /// The number of the last event, or the number before the first one.
    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// The number before that of the oldest event that is kept.
    pub fn before_first(&self) -> u64 {
        self.state().before_first()
    }

    /// The events after number `seen`, at most `limit`.
    pub fn after(&self, seen: u64, limit: usize) -> EventPart {
        let state = self.state();
        let gap = state.gap(seen);
        let from = gap.as_ref().map_or(seen, |gap| gap.sequence);
        let skip = usize::try_from(from - state.before_first()).unwrap_or(usize::MAX);
        EventPart { gap, events: state.kept.iter().skip(skip).take(limit).cloned().collect() }
    }

    /// Completes when an event is recorded after this call.
    pub fn listen(&self) -> EventListener {
        self.recorded.listen()
    }
}

impl EventRing {
    fn push(&mut self, event: ServerEvent) {
        self.last += 1;
        let event = ServerEvent { sequence: self.last, ..event };
        self.bytes += bytes(&event);
        self.kept.push_back(Arc::new(event));
        while self.kept.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { return };
            self.bytes -= bytes(&oldest);
        }
    }

    fn before_first(&self) -> u64 {
        self.last - self.kept.len() as u64
    }

    /// The event that reports missing events to a reader that has seen number `seen`.
    fn gap(&self, seen: u64) -> Option<ServerEvent> {
        let before_first = self.before_first();
        let (message, lost) = match seen {
            _ if seen < self.start || seen > self.last => {
                ("the server has restarted: events before its start are not kept".to_owned(), Value::Null)
            }
            _ if seen < before_first => {
                let lost = before_first - seen;
                (format!("{lost} events are not kept any more"), lost.into())
            }
            _ => return None,
        };
        Some(ServerEvent {
            sequence: before_first,
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            kind: "gap".into(),
            level: "warn".into(),
            message,
            fields: Keys::from_iter([("lost".to_owned(), lost)]),
        })
    }
}

/// Cuts the texts of an event that are too long.
fn cut(event: &mut ServerEvent) {
    let of_fields = event.fields.values_mut().filter_map(|value| match value {
        Value::String(text) => Some(text),
        _ => None,
    });
    for text in of_fields.chain([&mut event.message]).filter(|text| text.len() > TEXT_BYTES) {
        text.truncate(text.floor_char_boundary(TEXT_BYTES));
        text.push_str("...");
    }
}

/// The memory of an event, roughly.
fn bytes(event: &ServerEvent) -> usize {
    let of_field = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
    EVENT_BYTES + event.message.len() + event.fields.iter().map(of_field).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str) -> ServerEvent {
        let (time, level) = ("2026-11-28T00:00:00Z".into(), "info".into());
        let message = message.into();
        ServerEvent { sequence: 0, time, kind: "log".into(), level, message, fields: Keys::new() }
    }

    fn log(start: u64, events: usize) -> EventLog {
        let log = EventLog::starting_after(start);
        (0..events).for_each(|_| log.record(event("m")));
        log
    }

    fn numbers(part: &EventPart) -> Vec<u64> {
        part.events.iter().map(|event| event.sequence).collect()
    }

    /// The number of missing events in words, and the number from which a reader continues.
    fn gap(part: &EventPart) -> (String, u64) {
        let gap = part.gap.as_ref().expect("a gap");
        assert_eq!((&*gap.kind, &*gap.level), ("gap", "warn"));
        (gap.fields["lost"].to_string(), gap.sequence)
    }

    #[test]
    fn reader_gets_the_events_after_its_last_one() {
        assert_eq!(log(100, 0).after(100, 9), EventPart::default());
        let log = log(100, 3);
        assert_eq!(numbers(&log.after(100, 9)), [101, 102, 103]);
        assert_eq!(numbers(&log.after(102, 9)), [103]);
        assert_eq!(numbers(&log.after(100, 2)), [101, 102]);
        assert_eq!(log.after(103, 9), EventPart::default());
        assert_eq!((log.before_first(), log.last()), (100, 103));
    }

    #[test]
    fn reader_of_an_earlier_process_learns_of_the_restart() {
        let log = log(100, 3);
        for seen in [7, 99, 104] {
            let part = log.after(seen, 9);
            assert_eq!((gap(&part), numbers(&part)), (("null".into(), 100), vec![101, 102, 103]), "{seen}");
        }
        let before = EventLog::default();
        before.record(event("m"));
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(EventLog::default().last() > before.last(), "a number means one event");
    }

    #[test]
    fn reader_learns_of_events_that_are_gone() {
        let log = log(100, KEPT + 10);
        let part = log.after(104, usize::MAX);
        assert_eq!((gap(&part), part.events.len(), part.events[0].sequence), (("6".into(), 110), KEPT, 111));
        assert_eq!(log.after(110, 1).gap, None);
        let gone = log.after(104, 0).gap.expect("a gap");
        assert_eq!(gone.message, "6 events are not kept any more");
    }

    #[test]
    fn memory_is_bounded_whatever_peers_send() {
        let log = EventLog::starting_after(0);
        let long = "\u{e9}".repeat(100_000);
        for _ in 0..KEPT {
            let fields = Keys::from_iter([("initiator".to_owned(), long.as_str().into())]);
            log.record(ServerEvent { fields, ..event(&long) });
        }
        let state = log.state();
        assert!(state.bytes <= KEPT_BYTES && state.kept.len() > 1000, "{}", state.kept.len());
        assert_eq!(state.bytes, state.kept.iter().map(|event| bytes(event)).sum::<usize>());
        let text = &state.kept[0].message;
        assert!(text.ends_with("\u{e9}...") && text.len() == TEXT_BYTES + 3, "{}", text.len());
    }

    #[test]
    fn event_wakes_those_that_listen() {
        use event_listener::Listener;
        let log = EventLog::starting_after(0);
        let listener = log.listen();
        log.record(event("m"));
        listener.wait();
        assert_eq!(log.last(), 1);
    }
}
