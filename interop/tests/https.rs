//! The API over HTTPS, used by curl and openssl, and by the commands as from another host.

use interop::certificates::{Authority, write};
use interop::scsi::pattern;
use interop::tool::{self, Tool};
use interop::{Folder, Login, Server, TARGET, lunar_bin, ports};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const TOOLS: [Tool; 2] =
    [Tool { program: "curl", package: "curl" }, Tool { program: "openssl", package: "openssl" }];
const LIMIT: Duration = Duration::from_secs(60);
const WRITER: &str = "0123456789abcdef0123456789abcdef";
const READER: &str = "fedcba9876543210fedcba9876543210";
const INVALID: i32 = 7;
const DENIED: i32 = 13;
const UNAUTHENTICATED: i32 = 24;
/// The exit status of curl when a TLS connection fails, in its versions.
const TLS_FAILED: [i32; 2] = [35, 56];

/// A server whose API other hosts can use.
struct Site {
    server: Server,
    ca: Authority,
    port: u16,
}

impl Site {
    fn new(keys: &str) -> Site {
        let (folder, ca, port) = (Folder::fresh(), Authority::new("test authority"), ports::free());
        write(&folder, "ca.pem", &ca.pem());
        ca.server(&["localhost", "127.0.0.1"]).write(&folder, "server");
        write(&folder, "tokens", &format!("ann write {WRITER}\nprom read {READER}\n"));
        write(&folder, "ann.token", WRITER);
        write(&folder, "prom.token", READER);
        let toml = format!(
            "[api]\nlisten = [\"127.0.0.1:{port}\"]\ncertificate_file = \"server.pem\"\nkey_file = \"server.key\"\n{keys}\
             [session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
             [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n"
        );
        Site { server: Server::start_in(folder, &toml), ca, port }
    }

    /// A server with two tokens.
    fn with_tokens() -> Site {
        Site::new("token_file = \"tokens\"\n")
    }

    fn folder(&self) -> &Path {
        self.server.dir()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The exit status of curl, the status of the response, and its head and body.
    fn curl(&self, path: &str, options: &[&str]) -> (i32, u16, String) {
        let mut curl = Command::new("curl");
        curl.current_dir(self.folder()).args(["--silent", "--include", "--cacert", "ca.pem"]).args(options);
        let ran = tool::run(curl.arg(format!("https://localhost:{}{path}", self.port)), LIMIT);
        let status = ran.said.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        (ran.status.and_then(|status| status.code()).unwrap_or(-1), status, ran.said)
    }

    /// The status of a request with this token.
    fn status(&self, path: &str, token: &str, options: &[&str]) -> u16 {
        let bearer = format!("Authorization: Bearer {token}");
        self.curl(path, &[&["-H", &bearer], options].concat()).1
    }

    /// A command of `lunar` for the server at the URL.
    fn lunar(&self, arguments: &[&str]) -> (String, String, i32) {
        let url = format!("https://localhost:{}", self.port);
        let mut command = Command::new(lunar_bin());
        command
            .args(arguments)
            .current_dir(self.folder())
            .env("LUNAR_SERVER", url)
            .env("LUNAR_CA_FILE", "ca.pem");
        let ran = command.output().expect("lunar runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
    }

    /// stdout of a command that succeeds.
    fn does(&self, arguments: &[&str]) -> String {
        let (out, err, status) = self.lunar(&[arguments, &["--token-file", "ann.token"]].concat());
        assert_eq!((status, err.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    }

    /// `lunar reload` on the admin socket.
    fn reload(&self) -> (String, String, i32) {
        self.lunar(&["reload", "--socket", "admin.sock"])
    }
}

#[test]
fn token_is_checked_for_each_request() {
    if !tool::have(&TOOLS) {
        return;
    }
    let site = Site::with_tokens();
    assert_eq!(site.status("/v1/server", WRITER, &[]), 200);
    assert_eq!(site.status("/v1/server", READER, &["--head"]), 200);
    let (_, status, text) = site.curl("/v1/server", &[]);
    assert!(status == 401 && text.contains("www-authenticate: Bearer"), "{text}");
    assert!(text.contains("connection: close"), "a client without rights keeps no connection: {text}");
    let wrong = WRITER.replace('0', "1");
    assert_eq!(site.status("/v1/server", &wrong, &[]), 401);
    assert_eq!(site.status("/v1/server", &WRITER[..31], &[]), 401);
    assert_eq!(site.curl("/v1/server", &["--user", &format!("ann:{WRITER}")]).1, 401);
    let lun = format!("/v1/targets/{TARGET}/luns/1");
    let put =
        ["-X", "PUT", "-H", "Content-Type: application/json", "-d", "{\"backend\":\"null\",\"size\":4096}"];
    let bearer = format!("Authorization: Bearer {READER}");
    let (_, status, text) = site.curl(&lun, &[&["-H", &bearer], &put[..]].concat());
    assert!(status == 403 && text.contains("content-type: application/problem+json"), "{text}");
    let forbidden = "may only read";
    interop::routed::until("a request without the right is logged", || {
        assert_eq!(site.status(&lun, READER, &put), 403);
        site.server.log().contains(forbidden).then_some(())
    });
    assert_eq!(site.status(&lun, WRITER, &put), 201);
    let log = site.server.log();
    assert!(
        log.contains(&format!("create LUN 1 of {TARGET}: requested by token ann at 127.0.0.1:")),
        "{log}"
    );
    assert!(!log.contains(WRITER) && !log.contains(&wrong), "{log}");
}

#[test]
fn client_certificate_is_accepted_and_an_unknown_one_refused() {
    if !tool::have(&TOOLS) {
        return;
    }
    let site = Site::new("client_ca_file = \"ca.pem\"\nclient_writers = [\"ops-*\"]\n");
    site.ca.client("ops-1").write(site.folder(), "ops");
    site.ca.client("guest").write(site.folder(), "guest");
    Authority::new("another authority").client("ops-1").write(site.folder(), "unknown");
    let stop = ["-X", "POST"];
    let with = |name: &str, path: &str, options: &[&str]| {
        let (certificate, key) = (format!("{name}.pem"), format!("{name}.key"));
        site.curl(path, &[&["--cert", &certificate, "--key", &key], options].concat())
    };
    assert_eq!(with("guest", "/v1/server", &[]).1, 200);
    assert_eq!(with("guest", "/v1/config/apply", &stop).1, 403);
    let (exit, status, text) = with("unknown", "/v1/server", &[]);
    assert!(TLS_FAILED.contains(&exit) && status == 0, "{exit}: {text}");
    let (exit, status, text) = site.curl("/v1/server", &[]);
    assert!(TLS_FAILED.contains(&exit) && status == 0, "{exit}: {text}");
    // A browser sends the certificate with the requests of any page.
    assert_eq!(with("ops", "/v1/server/stop", &["-X", "POST", "-H", "Sec-Fetch-Site: cross-site"]).1, 403);
    assert_eq!(with("ops", "/v1/config/confirm", &stop).1, 409, "nothing is on trial");
    let (out, err, status) =
        site.lunar(&["lun", "add", TARGET, "null:1M", "--cert", "ops.pem", "--key", "ops.key"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(
        site.server.log().contains("requested by certificate ops-1 at 127.0.0.1:"),
        "{}",
        site.server.log()
    );
}

#[test]
fn only_tls_1_2_and_1_3_are_spoken() {
    if !tool::have(&TOOLS) {
        return;
    }
    let site = Site::with_tokens();
    assert_eq!(site.status("/v1/server", WRITER, &["--tlsv1.2", "--tls-max", "1.2"]), 200);
    assert_eq!(site.status("/v1/server", WRITER, &["--tlsv1.3"]), 200);
    for version in ["-tls1_1", "-tls1"] {
        let mut openssl = Command::new("openssl");
        openssl
            .args(["s_client", version, "-cipher", "ALL:@SECLEVEL=0", "-connect"])
            .arg(site.address().to_string());
        let ran = tool::run(&mut openssl, LIMIT);
        assert!(!ran.ok() && ran.said.contains("no peer certificate available"), "{}", ran.said);
    }
}

#[test]
fn request_without_tls_gets_an_answer() {
    let site = Site::with_tokens();
    let mut plain = TcpStream::connect(site.address()).expect("a server");
    plain.write_all(b"GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request is sent");
    let mut text = String::new();
    plain.read_to_string(&mut text).expect("an answer, and its end");
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("the port expects HTTPS"), "{text}");
}

#[test]
fn slow_clients_delay_neither_commands_nor_io() {
    if !tool::have(&TOOLS) {
        return;
    }
    let site = Site::with_tokens();
    let mut raw = Login::new().on(site.server.portal());
    raw.clear_attentions(0);
    // One sends a part of a handshake, and the others nothing. Most of them are more than one host may have.
    let slow: Vec<TcpStream> =
        (0..80).map(|_| TcpStream::connect(site.address()).expect("a server")).collect();
    (&slow[0]).write_all(&[0x16, 3, 1, 2]).expect("a part of a handshake is sent");
    raw.write_blocks(0, 0, &pattern(512, 3)).good();
    let (out, err, status) = site.lunar(&["status", "--socket", "admin.sock"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    for mut stream in slow {
        // It is disconnected, with a reset if its bytes were not read.
        _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(site.status("/v1/server", WRITER, &[]), 200);
    // A part of a request over TLS.
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-connect"]).arg(site.address().to_string());
    let mut openssl =
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("openssl");
    let head = format!("GET /v1/server HTTP/1.1\r\nAuthorization: Bearer {WRITER}\r\n");
    let stdin = openssl.stdin.as_mut().expect("piped");
    stdin.write_all(head.as_bytes()).expect("a part of a request is sent");
    let mut text = String::new();
    openssl.stdout.as_mut().expect("piped").read_to_string(&mut text).expect("the end of the connection");
    assert!(!text.contains("HTTP/1.1 200"), "{text}");
    openssl.wait().expect("openssl ends");
}

#[test]
fn certificate_and_tokens_are_replaced_by_a_reload() {
    if !tool::have(&TOOLS) {
        return;
    }
    let site = Site::with_tokens();
    let other = Authority::new("new authority");
    let pair = other.server(&["localhost"]);
    write(site.folder(), "server.pem", &pair.certificate);
    let (_, err, status) = site.reload();
    assert!(status != 0 && err.contains("server.key cannot be used with "), "{status}: {err}");
    assert_eq!(site.status("/v1/server", WRITER, &[]), 200, "the old certificate stays");
    write(site.folder(), "server.key", &pair.key);
    write(site.folder(), "tokens", &format!("bob write {READER}\n"));
    let (out, err, status) = site.reload();
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("api: certificate_file from ") && !out.contains(READER), "{out}");
    assert_eq!(site.curl("/v1/server", &[]).0, 60, "curl does not know the new authority");
    write(site.folder(), "ca.pem", &other.pem());
    assert_eq!(site.status("/v1/server", WRITER, &[]), 401);
    assert_eq!(site.status("/v1/config/confirm", READER, &["-X", "POST"]), 409, "bob may write");
}

#[test]
fn server_without_authentication_is_refused() {
    let folder = Folder::fresh();
    let ca = Authority::new("test authority");
    ca.server(&["localhost"]).write(&folder, "server");
    let api = |listen: &str| {
        format!(
            "[api]\nlisten = [\"{listen}\"]\ncertificate_file = \"server.pem\"\nkey_file = \"server.key\"\n\
             [[target]]\nname = \"{TARGET}\"\n"
        )
    };
    for listen in ["127.0.0.1:3261", "0.0.0.0:3261"] {
        let log = Server::refused(&folder, &api(listen));
        assert!(log.contains("[api] has neither `token_file` nor `client_ca_file`"), "{log}");
    }
    let tokens = api("127.0.0.1:3261").replace("[[target]]", "token_file = \"tokens\"\n[[target]]");
    std::fs::write(folder.join("tokens"), format!("ann write {WRITER}\n")).expect("a file");
    std::fs::set_permissions(folder.join("tokens"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("a mode");
    let log = Server::refused(&folder, &tokens);
    assert!(log.contains("tokens has mode 0644, but only 0600 and 0400 are allowed"), "{log}");
}

#[test]
fn commands_work_with_a_server_of_another_host() {
    let site = Site::with_tokens();
    let mut raw = Login::new().on(site.server.portal());
    raw.clear_attentions(0);
    let url = format!("https://localhost:{}", site.port);
    assert!(site.does(&["status"]).starts_with(&format!("server    {url}\n")));
    assert!(site.does(&["status", "--json"]).contains(&format!("\"server\": \"{url}\"")));
    assert!(site.does(&["session", "list", "--json"]).contains(&url));
    let tsih = raw.tsih.to_string();
    assert!(site.does(&["session", "show", &tsih]).contains(&format!("TSIH={tsih}\n")));
    assert!(site.does(&["target", "list"]).contains(TARGET));
    assert!(site.does(&["router", "list"]).contains("no routers"));
    assert!(site.does(&["diff"]).contains("nothing would change"));
    assert!(site.does(&["lun", "add", TARGET, "null:1M"]).ends_with("applied\n"));
    let disk = site.folder().join("new.img").display().to_string();
    assert!(site.does(&["lun", "add", TARGET, &disk, "--size", "1M"]).ends_with("applied\n"));
    assert!(Path::new(&disk).exists());
    assert!(site.does(&["chap", "add", "alice", "--secret-file", "ann.token"]).ends_with("applied\n"));
    assert!(site.does(&["apply"]).contains("applied"));
    for relative in
        [&["lun", "add", TARGET, "x.img", "--size", "1M"][..], &["diff", "x.toml"], &["apply", "x.toml"]]
    {
        let (_, err, status) = site.lunar(&[relative, &["--token-file", "ann.token"]].concat());
        assert!(status == INVALID && err.contains(" is not absolute\n  hint: "), "{status}: {err}");
    }
    let (_, err, status) = site.lunar(&["lun", "remove", TARGET, "1", "--token-file", "prom.token"]);
    assert!(status == DENIED && err.contains("token prom at "), "{status}: {err}");
    let (_, err, status) = site.lunar(&["status"]);
    assert!(status == UNAUTHENTICATED && err.contains("neither a token nor"), "{status}: {err}");
    drop(raw);
    assert_eq!(site.does(&["stop"]), "the server has ended\n");
}
