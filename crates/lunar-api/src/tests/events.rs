//! The stream of events.

use super::*;
use crate::handlers::events::MAX_STREAMS;
use std::ops::ControlFlow;

fn record(log: &EventLog, message: &str) {
    let [time, kind, level] = ["2026-11-28T00:00:00Z", "session.login", "info"].map(str::to_owned);
    let fields = Keys::from_iter([("tsih".to_owned(), 7.into())]);
    log.record(ServerEvent { sequence: 0, time, kind, level, message: message.into(), fields });
}

/// A running API whose next event has number 101.
fn served_with_events(folder: &Folder) -> (ApiServer, PathBuf, Arc<EventLog>) {
    let log = Arc::new(EventLog::starting_after(100));
    let (server, path) = served(folder, Arc::new(Fake(Mutex::default(), log.clone())));
    (server, path, log)
}

/// Sends a request for a stream. `fields`: further header fields, each with its end of line.
fn ask(path: &Path, query: &str, fields: &str) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let head = format!("GET /v1/events{query} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Reads a stream until its text contains `end`.
fn until(stream: &mut UnixStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut part = [0; 4096];
        let len = stream.read(&mut part).expect("an event in time");
        assert!(len > 0, "the stream ended: {text}");
        text += &String::from_utf8_lossy(&part[..len]);
    }
    text
}

#[test]
fn events_are_streamed_and_replayed_from_a_number() {
    let folder = Folder::fresh();
    let (_server, path, log) = served_with_events(&folder);
    ["first", "second", "third"].iter().for_each(|message| record(&log, message));
    for (query, fields) in [("?since=101", ""), ("?since=9", "Last-Event-ID: 101\r\n")] {
        let text = until(&mut ask(&path, query, fields), "third");
        assert!(text.contains("text/event-stream") && !text.contains("first"), "{text}");
        for line in ["\nid: 102\n", "\nevent: session.login\n", "\ndata: {\"sequence\":102,", "\"tsih\":7}"] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
    assert!(until(&mut ask(&path, "?since=0", ""), "third").contains("first"));
}

#[test]
fn new_event_wakes_a_reader_that_waits() {
    let folder = Folder::fresh();
    let (_server, path, log) = served_with_events(&folder);
    record(&log, "old");
    let mut stream = ask(&path, "", "");
    until(&mut stream, "\r\n\r\n");
    record(&log, "new");
    let text = until(&mut stream, "\"new\"");
    assert!(!text.contains("old"), "without a number, only new events follow: {text}");
}

#[test]
fn number_of_another_run_is_answered_with_a_gap() {
    let folder = Folder::fresh();
    let (_server, path, log) = served_with_events(&folder);
    record(&log, "first");
    let text = until(&mut ask(&path, "?since=7", ""), "first");
    assert!(text.contains("\nid: 100\nevent: gap\ndata: {\"sequence\":100,"), "{text}");
    assert!(text.contains("the server has restarted") && text.contains("\"lost\":null"), "{text}");
}

#[test]
fn invalid_position_is_rejected_with_a_hint() {
    let folder = Folder::fresh();
    let (_server, path, _) = served_with_events(&folder);
    for (head, fault) in [
        ("GET /v1/events?since=x HTTP/1.1", "since"),
        ("GET /v1/events?since=-1 HTTP/1.1", "since"),
        ("GET /v1/events?follow=maybe HTTP/1.1", "follow"),
        ("GET /v1/events HTTP/1.1\r\nLast-Event-ID: 7x", "the header Last-Event-ID is \"7x\""),
    ] {
        let (status, problem) = raw(&path, head, "");
        let problem: Problem = serde_json::from_value(problem).unwrap();
        assert_eq!(status, 400, "{head}");
        assert!(problem.detail.contains(fault) && !problem.hint.is_empty(), "{head}: {problem:?}");
    }
}

#[test]
fn readers_of_events_leave_connections_for_others() {
    let folder = Folder::fresh();
    let (_server, path, log) = served_with_events(&folder);
    let mut streams: Vec<UnixStream> = (0..MAX_STREAMS).map(|_| ask(&path, "", "")).collect();
    streams.iter_mut().for_each(|stream| _ = until(stream, "\r\n\r\n"));
    let (status, problem) = raw(&path, "GET /v1/events HTTP/1.1", "");
    assert_eq!((status, &problem["code"]), (503, &json!("in-use")), "{problem}");
    assert_eq!(sessions(&path, LIMIT).unwrap().items.len(), 2);
    // The server notices the end of a reader at the next event, at the latest.
    drop(streams);
    while raw(&path, "GET /v1/events?follow=false HTTP/1.1", "").0 != 200 {
        record(&log, "more");
    }
}

#[test]
fn reader_that_stalls_delays_nothing_and_gets_a_gap() {
    let folder = Folder::fresh();
    let (_server, path, log) = served_with_events(&folder);
    let mut stream = ask(&path, "", "");
    until(&mut stream, "\r\n\r\n");
    // More than the server keeps and the socket takes.
    (0..20_000).for_each(|_| record(&log, &"x".repeat(500)));
    record(&log, "the last one");
    assert_eq!(sessions(&path, LIMIT).unwrap().items.len(), 2);
    let text = until(&mut stream, "the last one");
    let gap = text.split("event: gap\ndata: ").nth(1).and_then(|rest| rest.lines().next()).expect("a gap");
    let gap: ServerEvent = serde_json::from_str(gap).unwrap();
    let lost = gap.fields["lost"].as_u64().unwrap();
    let received = text.matches("event: session.login\n").count() as u64;
    assert!(lost > 0 && lost + received == 20_001, "{lost} lost, {received} received");
}

#[test]
fn client_reads_to_the_end_or_follows() {
    let folder = Folder::fresh();
    let (server, path, log) = served_with_events(&folder);
    let client = client(&path, LIMIT);
    ["first", "second"].iter().for_each(|message| record(&log, message));
    let mut seen = Vec::new();
    let mut keep = |event: ServerEvent| {
        seen.push(event.message);
        ControlFlow::Continue(())
    };
    client.events(0, false, &mut keep).unwrap();
    client.events(101, false, &mut keep).unwrap();
    assert_eq!(seen, ["first", "second", "second"]);
    client
        .events(0, true, |event| {
            assert_eq!(event.message, "first");
            ControlFlow::Break(())
        })
        .unwrap();
    let mut server = Some(server);
    let ended = client.events(0, true, |event| {
        if event.message == "second" {
            server.take();
        }
        ControlFlow::Continue(())
    });
    let problem = single(ended).unwrap_err();
    assert_eq!(problem.code, ErrorCode::Unreachable);
    assert!(problem.hint.unwrap().ends_with("lunar events --follow --since 102"));
    assert_eq!(
        single(client.events(0, true, |_| ControlFlow::Continue(()))).unwrap_err().code,
        ErrorCode::Unreachable
    );
}
