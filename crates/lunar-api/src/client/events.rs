//! Reads the stream of events.

use super::{CallError, Client, decoded, strange, whole};
use crate::handlers::events::KEEP_ALIVE;
use http_body_util::{BodyExt, Full};
use hyper::Method;
use hyper::body::{Bytes, Incoming};
use lunar_admin::ServerEvent;
use lunar_config::{Diagnostic, ErrorCode};
use serde_json::Value;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

/// Maximum length of an event.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// A stream that sends nothing for this time is lost: the server sends a comment more often.
const SILENCE: Duration = Duration::from_secs(4 * KEEP_ALIVE.as_secs());

impl Client {
    /// Passes the events after number `since` to `each`, until it breaks. Without `follow`, the last event is the end.
    /// The time limit of the client is that of the first response.
    ///
    /// # Errors
    /// As [`Client::get`], and with `follow` also when the server ends.
    pub fn events(
        &self,
        since: u64,
        follow: bool,
        mut each: impl FnMut(ServerEvent) -> ControlFlow<()>,
    ) -> Result<(), Vec<Diagnostic>> {
        let failed = |e| self.no_answer(&Method::GET, e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| failed(CallError::Io(e)))?;
        let head = self.head(&Method::GET, &format!("/v1/events?since={since}&follow={follow}"));
        let request = head.body(Full::<Bytes>::default()).map_err(|e| strange(&e.to_string()))?;
        runtime.block_on(async {
            let response = self.limited(self.begin(request)).await.map_err(failed)?;
            if !response.status().is_success() {
                let response = self.limited(whole(response)).await.map_err(failed)?;
                return decoded::<Value>(&response).map(drop);
            }
            let mut last = since;
            let mut pass = |event: ServerEvent| {
                last = event.sequence;
                each(event)
            };
            let is_broken = self.read(response.into_body(), &mut pass).await?;
            if follow && !is_broken { Err(self.ended(last).into()) } else { Ok(()) }
        })
    }

    /// Reads events until the end of the body. True if `pass` ended before.
    async fn read(
        &self,
        mut body: Incoming,
        pass: &mut impl FnMut(ServerEvent) -> ControlFlow<()>,
    ) -> Result<bool, Diagnostic> {
        let mut lines = EventLines::default();
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame()).await;
            let late = |_| self.no_answer(&Method::GET, CallError::Io(io::ErrorKind::TimedOut.into()));
            let data = match frame.map_err(late)? {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                // A server that ends cuts the stream.
                Some(Err(_)) | None => return Ok(false),
            };
            for event in lines.take(&data)? {
                if pass(event).is_break() {
                    return Ok(true);
                }
            }
        }
    }

    fn ended(&self, last: u64) -> Diagnostic {
        let what = format!("the server at {} has ended the stream of events", self.server);
        let hint = format!("when a server runs again, continue with lunar events --follow --since {last}");
        Diagnostic::new(what, hint).with_code(ErrorCode::Unreachable)
    }
}

/// The lines of a stream of server-sent events, whose events have one line of data each.
#[derive(Default)]
struct EventLines(Vec<u8>);

impl EventLines {
    /// The events that are complete with these bytes.
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<ServerEvent>, Diagnostic> {
        self.0.extend_from_slice(bytes);
        let end = self.0.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.0.drain(..end).collect();
        if self.0.len() > MAX_EVENT_BYTES {
            return Err(strange("an event is too large"));
        }
        let data = whole.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
        data.map(|data| serde_json::from_slice(data).map_err(|e| strange(&e.to_string()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_arrives_in_parts_among_comments() {
        let mut lines = EventLines::default();
        let mut take = |text: &str| lines.take(text.as_bytes()).unwrap();
        assert!(take(":\n\nid: 7\nevent: log\nda").is_empty());
        let event = "{\"sequence\":7,\"time\":\"t\",\"kind\":\"log\",\"level\":\"info\",\"message\":\"m\",\"tsih\":1}";
        let events = take(&format!("ta: {event}\n\n:\n\n"));
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.sequence, &event.fields["tsih"]), (7, &1.into()));
        assert!(lines.take(b"data: {\n").unwrap_err().what.starts_with("unexpected response of the server"));
    }

    #[test]
    fn line_without_an_end_is_rejected() {
        let mut lines = EventLines::default();
        assert!(lines.take(&vec![b'x'; MAX_EVENT_BYTES]).is_ok());
        assert!(lines.take(b"x").is_err());
    }
}
