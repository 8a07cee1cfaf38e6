//! Chromium without a window, over the pipes of the DevTools protocol.

use crate::tool::Tool;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// The program. The tests of a page are skipped without it.
pub const CHROMIUM: Tool = Tool { program: "chromium", package: "chromium" };

/// Time limit of a response, and of a condition of the page. Machines of CI are slow.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two looks at the page.
const PAUSE: Duration = Duration::from_millis(100);

/// Descriptor 3 is the input of the protocol, and 4 its output.
const SCRIPT: &str = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// A browser with one page. Dropping it kills the process.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    seen: Vec<Value>,
}

impl Browser {
    /// Starts a browser whose profile is in `folder`.
    pub fn start(folder: &Path) -> Browser {
        let log = fs::File::create(folder.join("chromium.log")).expect("a log");
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args([
            "--remote-debugging-pipe",
            "--disable-background-networking",
            "--disable-component-update",
        ]);
        command.args(["--disable-dev-shm-usage", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display())).arg("about:blank");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("chromium");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (send, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                drop(send.send(serde_json::from_slice(&message).expect("a message of the protocol")));
            }
        });
        let mut browser = Browser { child, input, messages, session: None, last_id: 0, seen: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a request of the protocol, and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let written = self.input.write_all(format!("{request}\0").as_bytes());
        written.and_then(|()| self.input.flush()).expect("the browser lives");
        let end = Instant::now() + LIMIT;
        loop {
            match self.messages.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(message) if message["id"] == self.last_id => {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].clone();
                }
                Ok(message) => self.seen.push(message),
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no response"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: the browser has ended"),
            }
        }
    }

    /// Sets the size of the page, and `light` or `dark`.
    pub fn show_as(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
    }

    /// Opens a page.
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
    }

    /// The value of an expression of JavaScript.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// The text of an expression.
    pub fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an expression is true. Before the page is loaded, the expression may throw.
    pub fn until(&mut self, expression: &str) {
        let end = Instant::now() + LIMIT;
        let safe = format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
        while self.value(&safe) != true {
            if Instant::now() > end {
                let text = self.text("document.body.innerText");
                panic!("never: {expression}\n{}\n{text}", self.complaints().join("\n"));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Presses and releases a key: `Tab`, `Enter`, `Escape` or the name of another key.
    pub fn press(&mut self, key: &str) {
        let text = if key == "Enter" { "\r" } else { "" };
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Types into the element that has the focus.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// The URLs of all requests of the page.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.seen.iter().filter(|message| message["method"] == "Network.requestWillBeSent");
        sent.filter_map(|message| message["params"]["request"]["url"].as_str()).map(str::to_owned).collect()
    }

    /// The reports of the browser: errors of scripts, and violations of the policy.
    pub fn complaints(&self) -> Vec<String> {
        let is_complaint = |message: &&Value| match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            // Some servers lack a resource, and others are down.
            Some("Log.entryAdded") => {
                let entry = &message["params"]["entry"];
                entry["level"] == "error" && entry["source"] != "network"
            }
            Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
            _ => false,
        };
        self.seen.iter().filter(is_complaint).map(|message| message["params"].to_string()).collect()
    }

    /// Writes a picture of the whole page to a PNG file.
    pub fn picture(&mut self, path: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({ "captureBeyondViewport": true }));
        fs::write(path, base64(shot["data"].as_str().expect("a picture"))).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The bytes of a base64 text (RFC 4648 section 4).
fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte));
    let (mut bytes, mut bits, mut value) = (Vec::new(), 0, 0_usize);
    for digit in digits {
        (value, bits) = ((value << 6 | digit) & 0xffff, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((value >> bits & 0xff) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_any_length_is_decoded() {
        let texts = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmFy"];
        assert_eq!(
            texts.map(base64),
            ["", "f", "fo", "foo", "foob", "foobar"].map(|text| text.as_bytes().to_vec())
        );
    }
}
