//! The live page in a browser, and the bridge of `lunar page` that serves it.

use interop::browser::{Browser, CHROMIUM};
use interop::scsi::pattern;
use interop::server::lunar_bin;
use interop::{Folder, Login, Server, TARGET, tool};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const CONFIG: &str =
    "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n";
const MEMORY: &str = "backend = \"memory\"\nsize = \"8MiB\"\n";
/// A name of a file that would be markup and a script.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

fn config() -> String {
    format!("{CONFIG}[[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\n{MEMORY}")
}

/// A running `lunar page`.
struct LivePage(Child, String);

impl LivePage {
    fn of(server: &Server, options: &[&str]) -> LivePage {
        let socket = server.dir().join("admin.sock");
        let mut command = Command::new(lunar_bin());
        command.args(["page", "--socket"]).arg(socket).args(options);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("lunar runs");
        let mut url = String::new();
        let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url);
        assert!(read.is_ok() && url.starts_with("http://127.0.0.1:"), "{url:?}");
        LivePage(child, url.trim_end().to_owned())
    }

    /// HOST:PORT and the token.
    fn parts(&self) -> (&str, &str) {
        self.1.strip_prefix("http://").and_then(|url| url.split_once("/#token=")).expect("a URL")
    }

    /// Status and text of a request to the bridge. `fields`: further header fields, each with its end of line.
    fn request(&self, line: &str, fields: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.parts().0).expect("a bridge");
        let text = format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n{fields}\r\n");
        stream.write_all(text.as_bytes()).expect("a request is sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("a response");
        (text[9..12].parse().expect("a status"), text)
    }
}

impl Drop for LivePage {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The response to a request at the admin socket.
fn admin(server: &Server, line: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let fields = "Host: x\r\nConnection: close\r\nContent-Type: application/json";
    let text = format!("{line} HTTP/1.1\r\n{fields}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).expect("a request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    text
}

/// A page in a browser.
struct Shown {
    browser: Browser,
    page: LivePage,
    folder: Folder,
}

impl Shown {
    fn of(server: &Server, options: &[&str]) -> Shown {
        let (folder, page) = (Folder::fresh(), LivePage::of(server, options));
        let mut browser = Browser::start(&folder);
        browser.show_as(1300, 900, "light");
        browser.open(&page.1);
        browser.until("document.getElementById('health-level').textContent !== ''");
        Shown { browser, page, folder }
    }

    /// Waits for a text in a row of a table.
    fn row(&mut self, table: &str, text: &str) {
        self.browser.until(&format!(
            "[...document.getElementById('{table}-table').tBodies[0].rows].some((row) => row.innerText.includes({text:?}))"
        ));
    }

    fn text(&mut self, id: &str) -> String {
        self.browser.text(&format!("document.getElementById({id:?}).textContent"))
    }

    fn click(&mut self, selector: &str) {
        self.browser.until(&format!("document.querySelector({selector:?}).checkVisibility()"));
        self.browser.value(&format!("document.querySelector({selector:?}).click()"));
    }

    fn set(&mut self, name: &str, value: &str) {
        self.browser.value(&format!(
            "(() => {{ const input = document.querySelector('dialog [name={name}]'); input.value = {value:?}; \
             input.dispatchEvent(new Event('change')); }})()"
        ));
    }

    /// Keeps a picture if `LUNAR_REPORT_DIR` names a folder.
    fn picture(&mut self, name: &str) {
        let folder = std::env::var_os("LUNAR_REPORT_DIR").map(PathBuf::from);
        let path = folder.unwrap_or_else(|| self.folder.to_path_buf()).join(format!("page-{name}.png"));
        self.browser.picture(&path);
        assert!(std::fs::read(&path).expect("a picture").starts_with(b"\x89PNG"));
    }

    /// The page loaded nothing from elsewhere, and the browser reports no fault.
    fn is_clean(&self) {
        let own = format!("http://{}/", self.page.parts().0);
        let elsewhere: Vec<String> =
            self.browser.requests().into_iter().filter(|url| !url.starts_with(&own)).collect();
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
        assert!(self.browser.complaints().is_empty(), "{:?}", self.browser.complaints());
    }
}

#[test]
fn page_shows_the_server_as_it_changes() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let mut server = Server::start(&config());
    let mut shown = Shown::of(&server, &[]);
    assert_eq!(shown.text("health-level"), "ok");
    shown.row("luns", "memory");
    shown.row("access", "all initiators");
    assert_eq!(shown.browser.text("location.href"), format!("http://{}/", shown.page.parts().0));

    // A host logs in and works.
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    shown.row("sessions", interop::INITIATOR);
    for block in 0..64 {
        raw.write_blocks(0, block * 8, &pattern(4096, 3)).good();
    }
    shown.browser.until("Number(document.querySelector('#plot-bytes svg[role=img]').dataset.peak) > 0");
    shown
        .browser
        .until("document.querySelector('#plot-commands path.second').getAttribute('d').startsWith('M')");
    assert!(
        shown
            .browser
            .text("document.querySelector('#plot-bytes output').textContent")
            .starts_with("now: read ")
    );

    // A LUN of the API appears, and its name stays text.
    let path = server.dir().join(HOSTILE).display().to_string();
    let lun = serde_json::json!({ "backend": "file", "path": path, "size": "1MiB" }).to_string();
    let created = admin(&server, &format!("PUT /v1/targets/{TARGET}/luns/77"), &lun);
    assert!(created.contains(" 201 "), "{created}");
    shown.row("luns", HOSTILE);
    assert_eq!(shown.browser.value("document.querySelectorAll('main img, main script').length"), 0);
    // So does a namespace of it.
    assert!(
        !shown
            .browser
            .value("document.getElementById('subsystems').checkVisibility()")
            .as_bool()
            .expect("a flag")
    );
    let nqn = "/v1/subsystems/nqn.2026-11.org.example:page";
    let namespace = serde_json::json!({ "target": TARGET, "lun": 77 }).to_string();
    for (path, body) in [(nqn.to_owned(), "{}"), (format!("{nqn}/namespaces/3"), &*namespace)] {
        let created = admin(&server, &format!("PUT {path}"), body);
        assert!(created.contains(" 201 "), "{created}");
    }
    shown.row("subsystems", &format!("LUN 77 of {TARGET}"));
    shown.picture("wide-light");

    // Without --write, nothing can be changed, and the page says how.
    assert!(shown.text("role").contains("lunar page --write"));
    let buttons = "[...document.querySelectorAll('main button')].filter((one) => one.checkVisibility()).map((one) => one.textContent).join()";
    assert_eq!(shown.browser.text(buttons), "Compare now");

    server.rewrite(&format!("{}[[target.lun]]\nlun = 5\n{MEMORY}", config()));
    shown.click("#compare");
    shown.browser.until("document.getElementById('diff').innerText.includes('LUN 5: added')");
    shown.browser.until("document.getElementById('health-items').innerText.includes('the files differ')");
    assert_eq!(shown.text("health-level"), "warning");

    server.kill9();
    shown.browser.until("document.getElementById('health-level').textContent === 'error'");
    assert!(shown.text("health-items").contains("no server answers at "));
    server.restart();
    shown.browser.until("document.getElementById('health-level').textContent !== 'error'");
}

#[test]
fn page_shows_a_router_without_other_targets() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let map =
        "[[router.r1.target]]\naccess = \"all\"\nmap = \"lun\"\nlun = [{ lun = 0, upstream = \"f\" }]\n";
    let router =
        format!("[router.r1]\n[router.r1.upstream.f]\nmemory = \"1MiB\"\n{map}name = \"{TARGET}\"\n");
    let server = Server::start(&format!("{CONFIG}{router}"));
    let shown = admin(&server, "GET /v1/server", "");
    assert!(shown.contains("\"targets\":1,\"luns\":1,"), "{shown}");
    let mut shown = Shown::of(&server, &[]);
    shown.row("routers", "r1");
    shown.is_clean();
}

#[test]
fn page_with_write_adds_a_lun_and_ends_a_session() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let server = Server::start(&config());
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    let mut shown = Shown::of(&server, &["--write"]);
    shown.row("luns", "memory");
    shown.click("#add-lun");
    assert_eq!(
        shown.browser.text("document.querySelector('dialog [name=lun]').value"),
        "1",
        "the next free number"
    );
    shown.set("backend", "memory");
    shown.set("size", "none");
    shown.click("dialog button[type=submit]");
    shown.browser.until("document.getElementById('dialog-fault').textContent.includes('; hint: ')");
    shown.set("size", "3MiB");
    shown.click("dialog button[type=submit]");
    shown.browser.until("!document.getElementById('dialog').open");
    shown.row("luns", "3.00 MiB");
    assert!(admin(&server, &format!("GET /v1/targets/{TARGET}/luns/1"), "").contains("\"origin\":\"api\""));
    raw.clear_attentions(0);
    raw.clear_attentions(1);

    shown.click("[aria-label^='Remove LUN 1 ']");
    shown.browser.value("document.querySelector('dialog [name=force]').checked = true");
    shown.click("dialog button[type=submit]");
    shown.browser.until("!document.getElementById('dialog').open");
    shown.browser.until("!document.getElementById('luns-table').innerText.includes('3.00 MiB')");

    shown.click("[aria-label^='End session ']");
    assert!(shown.text("dialog").contains(interop::INITIATOR));
    shown.click("dialog button[type=submit]");
    shown.browser.until("!document.getElementById('dialog').open");
    // The host is asked to log out (RFC 7143 section 11.9, event 1).
    assert_eq!(raw.recv_op(0x32).bhs[36], 1);
    drop(raw);
    shown.row("sessions", "No sessions.");
    shown.is_clean();
}

#[test]
fn page_fits_each_width_and_colour_scheme() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let server = Server::start(&config());
    let long = format!("iqn.2026-11.org.example:{}", "long".repeat(40));
    let mut raw = Login::new().initiator(&long).on(server.portal());
    raw.clear_attentions(0);
    let mut shown = Shown::of(&server, &["--write"]);
    shown.row("sessions", &long);
    shown.browser.until("document.querySelector('#plot-bytes svg[role=img]').dataset.points > 1");
    for (scheme, paper) in [("light", "rgb(244, 245, 247)"), ("dark", "rgb(21, 24, 28)")] {
        for width in [1300, 390] {
            shown.browser.show_as(width, 900, scheme);
            shown.browser.until(&format!("innerWidth === {width}"));
            let background = shown.browser.text("getComputedStyle(document.body).backgroundColor");
            assert_eq!(background, paper, "{scheme}");
            let over = shown.browser.value("document.documentElement.scrollWidth - innerWidth");
            assert_eq!(over, 0, "{scheme} {width}");
            shown.picture(&format!("{scheme}-{width}"));
        }
    }
    shown.click("#add-lun");
    assert_eq!(shown.browser.value("document.documentElement.scrollWidth - innerWidth"), 0);
    shown.picture("dialog-390");
    shown.is_clean();
}

#[test]
fn page_is_usable_by_keyboard_and_has_names() {
    if !tool::have(&[CHROMIUM]) {
        return;
    }
    let server = Server::start(&config());
    let mut shown = Shown::of(&server, &["--write"]);
    shown.row("luns", "memory");
    shown.browser.until("document.querySelector('#plot-bytes svg[role=img]').dataset.points > 1");
    let focus = "document.activeElement.id || document.activeElement.parentElement.id";
    let mut reached = Vec::new();
    while reached.last().is_none_or(|id| id != "add-lun") {
        shown.browser.press("Tab");
        reached.push(shown.browser.text(focus));
        if reached.last().is_some_and(|id| id == "plot-bytes") {
            shown.browser.press("ArrowLeft");
            let said = shown.browser.text("document.querySelector('#plot-bytes output').textContent");
            assert!(!said.starts_with("now"), "{said}");
        }
        assert!(reached.len() < 40, "{reached:?}");
    }
    assert!(reached.contains(&"plot-bytes".to_owned()), "{reached:?}");
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(shown.browser.text(outline), "solid", "the focus is visible");
    shown.browser.press("Enter");
    shown.browser.until("document.getElementById('dialog').open");
    assert!(nameless(&mut shown).is_empty(), "{:?}", nameless(&mut shown));
    shown.browser.press("Escape");
    shown.browser.until("!document.getElementById('dialog').open");
    assert_eq!(shown.browser.text(focus), "add-lun", "the focus returns");
    assert!(nameless(&mut shown).is_empty(), "{:?}", nameless(&mut shown));
}

/// The controls of the page without an accessible name.
fn nameless(shown: &mut Shown) -> Vec<String> {
    let tree = shown.browser.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let nodes = tree["nodes"].as_array().expect("nodes").iter();
    let is_control = |role: &str| {
        [
            "button",
            "textbox",
            "searchbox",
            "combobox",
            "spinbutton",
            "checkbox",
            "link",
            "img",
            "image",
            "dialog",
            "region",
        ]
        .contains(&role)
    };
    let controls: Vec<_> = nodes
        .filter(|node| node["ignored"] != true)
        .filter(|node| node["role"]["value"].as_str().is_some_and(is_control))
        .collect();
    assert!(controls.len() > 5, "{controls:?}");
    let has_name = |node: &&&serde_json::Value| node["name"]["value"].as_str().is_none_or(str::is_empty);
    controls.iter().filter(has_name).map(|node| node.to_string()).collect()
}

#[test]
fn bridge_answers_only_its_own_page() {
    let server = Server::start(&config());
    let page = LivePage::of(&server, &[]);
    let (own, token) = page.parts();
    let (host, bearer) = (format!("Host: {own}\r\n"), format!("Authorization: Bearer {token}\r\n"));
    let (status, text) = page.request("GET /", &host);
    assert!(status == 200 && text.contains("content-security-policy: default-src 'none'; "), "{text}");
    assert!(!text.contains(token));
    let with = |fields: &str| page.request("GET /v1/server", fields);
    assert_eq!(with(&format!("{host}{bearer}")).0, 200);
    assert_eq!(with(&format!("Host: localhost:1\r\n{bearer}")).0, 200, "a forwarded port");
    let (status, text) = with(&host);
    assert!(status == 401 && text.contains("open the URL that lunar page printed"), "{text}");
    let wrong = format!("Authorization: Bearer {}\r\n", token.replace(|c: char| c.is_ascii_digit(), "f"));
    assert_eq!(with(&format!("{host}{wrong}")).0, 401);
    // A page of another site whose name was rebound to this address.
    for line in ["GET /", "GET /v1/server"] {
        let (status, text) = page.request(line, &format!("Host: evil.example\r\n{bearer}"));
        assert!(status == 421 && text.contains("evil.example is not a name of this host"), "{text}");
    }
    // A page of another site may not send the token.
    let (_, text) = page.request("OPTIONS /v1/server", &format!("{host}Origin: http://evil.example\r\n"));
    assert!(!text.to_lowercase().contains("access-control-"), "{text}");
    let (status, text) = page.request("POST /v1/server/stop", &format!("{host}{bearer}"));
    assert!(status == 403 && text.contains("start it with lunar page --write"), "{text}");
    let other_file = "GET /v1/config/diff?file=/etc/shadow";
    assert_eq!(page.request(other_file, &format!("{host}{bearer}")).0, 403);
    let caller = page.request("GET /v1/caller", &format!("{host}{bearer}")).1;
    assert!(caller.contains("\"may_write\":false"), "{caller}");
}

#[test]
fn page_without_a_server_says_so() {
    let folder = Folder::fresh();
    let mut command = Command::new(lunar_bin());
    let ran = tool::run(
        command.args(["page", "--socket"]).arg(folder.join("none")),
        std::time::Duration::from_secs(60),
    );
    assert!(!ran.ok() && ran.said.contains("no server answers at "), "{}", ran.said);
}
