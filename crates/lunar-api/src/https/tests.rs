//! The API over HTTPS, with certificates and tokens of their own.

use super::*;
use crate::client::{Client, ClientCredentials, Method, Outcome, ServerAddress, SessionList};
use crate::peers::MAX_OF_PEER;
use crate::tests::{Fake, single};
use interop::Folder;
use interop::certificates::{Authority, write};
use serde_json::Value;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMIT: Duration = Duration::from_secs(20);
const ANN: &str = "0123456789abcdef0123456789abcdef";
const READER: &str = "fedcba9876543210fedcba9876543210";

/// Files of a server in a folder of its own.
struct Site {
    folder: Folder,
    ca: Authority,
    files: CredentialFiles,
}

impl Site {
    /// A server with two tokens.
    fn new() -> Site {
        let folder = Folder::fresh();
        let ca = Authority::new("test authority");
        write(&folder, "ca.pem", &ca.pem());
        let (certificate, key) = ca.server(&["localhost", "127.0.0.1"]).write(&folder, "server");
        let tokens = write(&folder, "tokens", &format!("ann write {ANN}\nprom read {READER}\n"));
        let files = CredentialFiles { certificate, key, tokens: Some(tokens), ..CredentialFiles::default() };
        Site { folder, ca, files }
    }

    /// Certificates of clients too: those that begin with `ops-` may write.
    fn with_client_certificates() -> Site {
        let mut site = Site::new();
        site.files.client_ca = Some(site.folder.join("ca.pem"));
        site.files.client_writers = vec!["ops-*".into()];
        site
    }

    fn settings(&self) -> HttpsSettings {
        let credentials =
            HttpsCredentials::load(&self.files, None).map_err(|unfit| unfit.what).expect("credentials");
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        HttpsSettings { listen, files: self.files.clone(), credentials: Arc::new(credentials) }
    }

    /// The running server, and its address.
    fn serve(&self) -> (HttpsServer, SocketAddr) {
        let mut server = HttpsServer::new(Arc::new(Fake::default()));
        reload(&mut server, Some(&self.settings()));
        let address = server.addresses()[0];
        (server, address)
    }

    /// A client with this token, if it is not empty.
    fn client(&self, at: SocketAddr, token: &str) -> Client {
        let token = (!token.is_empty()).then(|| write(&self.folder, "token", token));
        self.client_with(at, ClientCredentials { token, ..ClientCredentials::default() })
    }

    /// A client with the certificate of this name.
    fn client_of(&self, at: SocketAddr, ca: &Authority, name: &str) -> Client {
        let (certificate, key) = ca.client(name).write(&self.folder, name);
        let (certificate, key) = (Some(certificate), Some(key));
        self.client_with(at, ClientCredentials { certificate, key, ..ClientCredentials::default() })
    }

    fn client_with(&self, at: SocketAddr, credentials: ClientCredentials) -> Client {
        let credentials = ClientCredentials { ca: Some(self.folder.join("ca.pem")), ..credentials };
        let url = format!("https://localhost:{}", at.port());
        Client::new(&ServerAddress::https(&url, &credentials).expect("a client"), LIMIT)
    }
}

fn reload(server: &mut HttpsServer, settings: Option<&HttpsSettings>) {
    let prepared = server.prepare(settings).expect("a state");
    server.apply(prepared);
}

fn read(client: &Client) -> Result<usize, Diagnostic> {
    single(client.get::<SessionList>("/v1/sessions")).map(|list| list.items.len())
}

/// The fault of a change, which the fake server refuses with the name of the sender.
fn changed(client: &Client) -> Diagnostic {
    single(client.post::<Outcome>("/v1/config/confirm", &())).expect_err("a fault")
}

#[test]
fn token_decides_what_its_owner_may_do() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let (ann, reader) = (site.client(at, ANN), site.client(at, READER));
    assert_eq!((read(&ann).unwrap(), read(&reader).unwrap()), (2, 2));
    assert!(changed(&ann).what.starts_with("confirm the applied configuration by token ann at 127.0.0.1:"));
    let refused = changed(&reader);
    assert!(refused.what.starts_with("token prom at 127.0.0.1:"), "{refused}");
    assert!(refused.what.ends_with(" may only read"), "{refused}");
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    let secret = single(reader.get::<Value>("/v1/config/diff?file=/etc/shadow")).unwrap_err();
    assert_eq!(secret.code, ErrorCode::PermissionDenied, "the faults of a file show parts of it");
    let wrong = read(&site.client(at, &ANN.replace('0', "1"))).unwrap_err();
    assert_eq!(
        (wrong.what.as_str(), wrong.code),
        ("the token is not valid", ErrorCode::AuthenticationFailed)
    );
    let none = read(&site.client(at, "")).unwrap_err();
    assert_eq!(none.what, "the request has neither a token nor a client certificate");
}

#[test]
fn page_needs_no_token_and_knows_the_rights_of_one() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let none = site.client(at, "");
    for file in ["/", "/page/main.js"] {
        // It is no JSON.
        assert!(
            single(none.get::<Value>(file)).unwrap_err().what.starts_with("unexpected response"),
            "{file}"
        );
    }
    assert_eq!(single(none.get::<Value>("/v1/caller")).unwrap_err().code, ErrorCode::AuthenticationFailed);
    let may_write = |token| site.client(at, token).get::<Value>("/v1/caller").unwrap()["may_write"].clone();
    assert_eq!([may_write(ANN), may_write(READER)], [true, false]);
}

#[test]
fn certificate_of_a_client_decides_by_its_name() {
    let site = Site::with_client_certificates();
    let (_server, at) = site.serve();
    let writer = site.client_of(at, &site.ca, "ops-1");
    let confirmed = "confirm the applied configuration by certificate ops-1 at 127.0.0.1:";
    assert!(changed(&writer).what.starts_with(confirmed));
    let reader = site.client_of(at, &site.ca, "guest");
    assert_eq!(read(&reader).unwrap(), 2);
    assert!(changed(&reader).what.starts_with("certificate guest at 127.0.0.1:"));
    assert_eq!(read(&site.client(at, READER)).unwrap(), 2, "a token needs no certificate");
    let unknown = site.client_of(at, &Authority::new("another authority"), "ops-2");
    let refused = read(&unknown).unwrap_err();
    assert_eq!(refused.code, ErrorCode::AuthenticationFailed, "{refused}");
}

#[test]
fn certificate_is_required_without_tokens() {
    let mut site = Site::with_client_certificates();
    site.files.tokens = None;
    let (_server, at) = site.serve();
    let refused = read(&site.client(at, "")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::AuthenticationFailed, "{refused}");
    assert!(refused.to_string().contains("--cert FILE"), "{refused}");
    assert_eq!(read(&site.client_of(at, &site.ca, "guest")).unwrap(), 2);
}

#[test]
fn client_refuses_an_unknown_server() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let url = format!("https://localhost:{}", at.port());
    let strange = write(&site.folder, "strange.pem", &Authority::new("another authority").pem());
    let credentials = ClientCredentials { ca: Some(strange), ..ClientCredentials::default() };
    let refused = read(&Client::new(&ServerAddress::https(&url, &credentials).unwrap(), LIMIT)).unwrap_err();
    assert!(refused.what.starts_with(&format!("no TLS connection with the server at {url}: ")), "{refused}");
    assert_eq!(refused.hint.as_deref(), Some("give the authority of its certificate with --ca FILE"));
}

#[test]
fn change_of_the_files_takes_effect_on_reload() {
    let site = Site::with_client_certificates();
    let (mut server, at) = site.serve();
    let other = Authority::new("new authority");
    other.server(&["localhost"]).write(&site.folder, "server");
    let ann = site.client(at, ANN);
    assert_eq!(read(&ann).unwrap(), 2, "the files are not read again by themselves");
    reload(&mut server, Some(&site.settings()));
    assert!(read(&ann).unwrap_err().what.contains("no TLS connection"), "the authority is the old one");
    write(&site.folder, "ca.pem", &other.pem());
    assert_eq!(read(&site.client(at, ANN)).unwrap(), 2);
    write(&site.folder, "tokens", &format!("bob write {READER}"));
    reload(&mut server, Some(&site.settings()));
    let gone = read(&site.client(at, ANN)).unwrap_err();
    assert_eq!(gone.what, "the token is not valid");
    reload(&mut server, None);
    assert!(server.addresses().is_empty());
    assert_eq!(read(&site.client(at, READER)).unwrap_err().code, ErrorCode::Unreachable);
}

#[test]
fn revoked_token_is_refused_on_an_open_connection() {
    let site = Site::new();
    let (mut server, at) = site.serve();
    let ServerAddress::Https(address) = site.client(at, ANN).server().clone() else { unreachable!() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut stream = runtime.block_on(address.connect()).unwrap();
    let request = format!("GET /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANN}\r\n\r\n");
    let mut ask = || {
        runtime.block_on(async {
            let mut text = [0; 4096];
            // The server may have closed the connection.
            _ = stream.write_all(request.as_bytes()).await;
            let length = stream.read(&mut text).await.unwrap_or(0);
            String::from_utf8_lossy(&text[..length]).into_owned()
        })
    };
    assert!(ask().starts_with("HTTP/1.1 200 "));
    write(&site.folder, "tokens", &format!("bob write {READER}"));
    reload(&mut server, Some(&site.settings()));
    let refused = ask();
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 401 "), "{refused}");
}

#[test]
fn silent_peers_delay_no_other_client() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let silent: Vec<TcpStream> = (1..MAX_OF_PEER).map(|_| TcpStream::connect(at).unwrap()).collect();
    assert_eq!(read(&site.client(at, ANN)).unwrap(), 2);
    let more: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(at).unwrap()).collect();
    for mut stream in silent.into_iter().chain(more) {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let end = stream.read(&mut [0; 16]);
        let is_end = matches!(end, Ok(0)) || end.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset);
        assert!(is_end, "it is disconnected");
    }
}

#[test]
fn request_without_tls_is_answered() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let mut plain = TcpStream::connect(at).unwrap();
    plain.write_all(b"GET /v1/server HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    plain.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("the port expects HTTPS"), "{text}");
}

#[test]
fn address_in_use_is_reported_and_nothing_changes() {
    let site = Site::new();
    let (mut server, at) = site.serve();
    let (_other, taken) = site.serve();
    let mut settings = site.settings();
    settings.listen.push(taken);
    let problem = server.prepare(Some(&settings)).err().expect("a fault");
    assert!(problem.what.starts_with(&format!("cannot serve the API at https://{taken}: ")), "{problem}");
    assert_eq!(problem.code, ErrorCode::InUse);
    assert_eq!(read(&site.client(at, ANN)).unwrap(), 2);
}

/// As [`read`]. A connection that the former listener had not accepted is reset when it closes.
fn read_soon(client: &Client) -> usize {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match read(client) {
            Ok(targets) => return targets,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn wildcard_and_address_of_a_port_replace_each_other() {
    let site = Site::new();
    let port = interop::ports::free();
    let at = |address: &str| format!("{address}:{port}").parse::<SocketAddr>().unwrap();
    let mut server = HttpsServer::new(Arc::new(Fake::default()));
    let ann = site.client(at("127.0.0.1"), ANN);
    for listen in [
        &["127.0.0.1"][..],
        &["0.0.0.0"],
        &["127.0.0.1", "127.0.0.2"],
        &["0.0.0.0"],
        &["127.0.0.1", "[::1]"],
        &["127.0.0.1", "[::]"],
    ] {
        let listen: Vec<SocketAddr> = listen.iter().map(|address| at(address)).collect();
        reload(&mut server, Some(&HttpsSettings { listen: listen.clone(), ..site.settings() }));
        assert_eq!(server.addresses(), listen);
        assert_eq!(read_soon(&ann), 2, "{listen:?}");
    }
    // A change that is given up leaves the open listener, and no other server gets the port.
    drop(server.prepare(Some(&HttpsSettings { listen: vec![at("0.0.0.0")], ..site.settings() })).unwrap());
    assert_eq!(read_soon(&ann), 2);
    for address in ["127.0.0.1", "0.0.0.0"] {
        let taken = Listener::bind(at(address)).err().map(|e| e.kind());
        assert_eq!(taken, Some(io::ErrorKind::AddrInUse), "{address}");
    }
}

#[test]
fn fault_of_a_file_names_the_file() {
    let site = Site::with_client_certificates();
    let fault = |change: &dyn Fn(&mut CredentialFiles)| {
        let mut files = site.files.clone();
        change(&mut files);
        let what = HttpsCredentials::load(&files, None).expect_err("a fault").what;
        what.replace(&format!("{}/", site.folder.display()), "")
    };
    let file = |name: &str, text: &str| write(&site.folder, name, text);
    let missing = PathBuf::from("/nonexistent/server.pem");
    assert_eq!(
        fault(&|files| files.certificate = missing.clone()),
        "cannot read the certificate /nonexistent/server.pem: no such file or directory"
    );
    assert_eq!(fault(&|files| files.certificate = file("a", "x")), "the file a has no certificate");
    assert_eq!(
        fault(&|files| files.key = files.certificate.clone()),
        "the file server.pem has no private key"
    );
    let other = site.ca.client("x").write(&site.folder, "other").1;
    let mismatch = fault(&|files| files.key = other.clone());
    assert!(mismatch.starts_with("the private key other.key cannot be used with server.pem: "), "{mismatch}");
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(
        fault(&|files| files.key = other.clone()),
        "the private key other.key has mode 0644: all users can access it"
    );
    assert_eq!(fault(&|files| files.client_ca = Some(file("b", ""))), "the file b has no certificate");
    assert_eq!(
        fault(&|files| files.tokens = Some(file("c", "ann write"))),
        "the file of tokens c has a fault in line 1: it has 2 words, not 3"
    );
}

#[test]
fn certificate_that_expires_soon_is_reported() {
    let credentials = Site::new().settings().credentials;
    assert_eq!(credentials.warning(SystemTime::now()), None);
    let end = credentials.not_after().expect("an end");
    let day = Duration::from_secs(86400);
    assert_eq!(credentials.warning(end - 15 * day), None);
    assert!(credentials.warning(end - 13 * day).expect("a warning").contains("[api] expires on "));
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    let warning = credentials.warning(later).expect("a warning");
    assert!(warning.starts_with("the certificate of [api] expired on "), "{warning}");
}

#[test]
fn long_body_is_refused() {
    let site = Site::new();
    let (_server, at) = site.serve();
    let body = serde_json::json!({ "file": "x".repeat(2 << 20) });
    let refused = site.client(at, ANN).send::<Value>(Method::POST, "/v1/config/apply", None, &body);
    let refused = single(refused).expect_err("a fault");
    assert!(refused.what.contains("longer than 1 MiB"), "{refused}");
}
