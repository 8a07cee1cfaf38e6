//! The control API of a running server, over HTTP by hand: objects come and go while hosts use others.

use interop::scsi::pattern;
use interop::{Login, Server, TARGET};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const CONFIG: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";

fn server() -> Server {
    let lun = "[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n";
    Server::start(&format!("{CONFIG}[[target]]\nname = \"{TARGET}\"\n{lun}"))
}

/// Status and text of a request at the admin socket. `fields`: further header fields, each with its end of line.
fn request(server: &Server, line: &str, fields: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let fields = format!("Host: x\r\nConnection: close\r\nContent-Type: application/json\r\n{fields}");
    let text = format!("{line} HTTP/1.1\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).expect("a request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    (text[9..12].parse().expect("a status"), text)
}

#[test]
fn lun_of_the_api_is_served_until_it_is_deleted() {
    let server = server();
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    let lun = format!("/v1/targets/{TARGET}/luns/1");
    let (status, text) =
        request(&server, &format!("PUT {lun}"), "", "{\"backend\":\"memory\",\"size\":\"1MiB\"}");
    assert_eq!(status, 201, "{text}");
    // The host learns of the new LUN, and of nothing else.
    raw.clear_attentions(0);
    raw.clear_attentions(1);
    raw.write_blocks(1, 0, &pattern(512, 3)).good();
    let (_, listed) = request(&server, &format!("GET /v1/targets/{TARGET}/luns"), "", "");
    assert!(listed.contains("\"origin\":\"file\"") && listed.contains("\"origin\":\"api\""), "{listed}");
    let patch = |query: &str, keys: &str| {
        let fields = "Content-Type: application/merge-patch+json\r\nIf-Match: *\r\n";
        request(&server, &format!("PATCH {lun}{query}"), fields, keys)
    };
    let (status, text) = patch("", "{\"backend\":\"null\"}");
    assert!(status == 409 && text.contains("is in use by iqn."), "another medium: {text}");
    assert_eq!(patch("", "{\"vendor\":\"A\"}").0, 200);
    assert_eq!(patch("?force=true", "{\"backend\":\"null\"}").0, 200);
    let delete = |query: &str| request(&server, &format!("DELETE {lun}{query}"), "If-Match: *\r\n", "");
    let (status, text) = delete("");
    assert!(status == 409 && text.contains("is in use by iqn."), "{text}");
    assert_eq!(delete("?force=true").0, 200);
    assert!(
        server.log().contains(&format!("delete LUN 1 of {TARGET}: requested by user ")),
        "{}",
        server.log()
    );
}

#[test]
fn access_entry_beyond_the_list_is_refused() {
    let server = server();
    let access = format!("/v1/targets/{TARGET}/access");
    let entry = "{\"initiators\":[\"iqn.2026-11.org.example:*\"]}";
    assert_eq!(request(&server, &format!("POST {access}"), "", entry).0, 201);
    for line in [format!("PUT {access}/7"), format!("POST {access}?at=7")] {
        let (status, text) = request(&server, &line, "", entry);
        assert!(status == 422 && text.contains("access entry 7 of "), "{line}: {text}");
    }
    let other = "{\"initiators\":[\"iqn.2026-11.org.other:*\"]}";
    assert_eq!(request(&server, &format!("PUT {access}/1"), "", other).0, 201, "the next index");
    let (status, text) = request(&server, &format!("POST {access}?at=0"), "", "{\"deny\":true}");
    assert!(
        status == 201 && text.contains("access entry 1 of ") && text.contains(" never applies: "),
        "{text}"
    );
}

#[test]
fn session_ends_on_demand() {
    let server = server();
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    let (_, sessions) = request(&server, "GET /v1/sessions", "", "");
    let tsih = sessions.split("\"tsih\":").nth(1).and_then(|text| text.split(',').next()).expect("a session");
    let (status, text) = request(&server, &format!("DELETE /v1/sessions/{tsih}"), "", "");
    assert_eq!(status, 200, "{text}");
    // The host is asked to log out (RFC 7143 section 11.9, event 1).
    assert_eq!(raw.recv_op(0x32).bhs[36], 1);
}
