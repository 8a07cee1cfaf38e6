//! `[api]`: the control API over HTTPS.

use super::chap::SecretSource;
use super::path;
use lunar_api::https::{CredentialFiles, HttpsCredentials, HttpsSettings};
use lunar_config::{Diagnostics, InvalidValue, Section, UniqueKeys, invalid, text};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

const EXAMPLE: &str = "[\"127.0.0.1:3261\"]";

/// Reads `[api]`, and its files unless secrets are given. None if the section is missing, has a fault, or without its
/// files.
pub(super) fn api(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    base: &Path,
    source: SecretSource<'_>,
) -> Option<HttpsSettings> {
    let is_there = root.find("api").is_some();
    let mut s = root.section(p, "api", "[api]");
    let at = s.at.clone();
    let listen = addresses(p, &mut s);
    let has = |s: &mut Section<'_>, key| s.find(key).is_some();
    let file = |p: &mut Diagnostics<'_>, s: &mut Section<'_>, key| s.parsed(p, key, |text| path(text, base));
    for (key, example) in
        [("listen", EXAMPLE), ("certificate_file", "\"server.pem\""), ("key_file", "\"server.key\"")]
    {
        if is_there && !has(&mut s, key) {
            s.missing(p, key, example);
        }
    }
    let (certificate, key) = (file(p, &mut s, "certificate_file"), file(p, &mut s, "key_file"));
    let has_client = has(&mut s, "token_file") | has(&mut s, "client_ca_file");
    let (tokens, client_ca) = (file(p, &mut s, "token_file"), file(p, &mut s, "client_ca_file"));
    let client_writers = s.parsed_list(p, "client_writers", writer).unwrap_or_default();
    s.done(p);
    if !is_there {
        return None;
    }
    if !has_client {
        let what = "[api] has neither `token_file` nor `client_ca_file`: anybody could change the server";
        p.add(&at, what, "add token_file = \"tokens\", a file of mode 0600 with lines NAME read|write TOKEN");
        return None;
    }
    if (tokens.is_none() && client_ca.is_none()) || listen.is_empty() || source.given.is_some() {
        return None;
    }
    let files = CredentialFiles { certificate: certificate?, key: key?, tokens, client_ca, client_writers };
    let credentials = p.check(&at, HttpsCredentials::load(&files, source.owner))?;
    Some(HttpsSettings { listen, files, credentials: Arc::new(credentials) })
}

/// The addresses of `listen`, each once.
fn addresses(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Vec<SocketAddr> {
    let Some((values, at)) = s.list(p, "listen") else { return Vec::new() };
    if values.is_empty() {
        p.add(&at, "`listen` is empty", format!("write listen = {EXAMPLE}"));
    }
    let mut unique = UniqueKeys::new("the address");
    let mut one = |value: lunar_config::Value<'_>| {
        let address = {
            let text = text(p, "listen", value)?;
            p.check(&value.span(), address(text))?
        };
        unique.first(p, address, &value.span()).then_some(address)
    };
    values.into_iter().filter_map(&mut one).collect()
}

fn address(text: &str) -> Result<SocketAddr, InvalidValue> {
    text.parse().or_else(|_| {
        let what = format!("\"{}\" is not an address and a port", text.escape_debug());
        invalid(what, "write a numeric address and a port: 127.0.0.1:3261 or [::]:3261")
    })
}

/// A common name, or the start of one with `*`.
fn writer(text: &str) -> Result<String, InvalidValue> {
    let start = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || start.contains('*') || text.chars().any(char::is_control) {
        let what = format!("\"{}\" is no common name of a certificate", text.escape_debug());
        return invalid(what, "write a name such as \"ann\", or its start such as \"ops-*\"");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{Folder, check_all};
    use crate::config::{Config, parse};
    use interop::certificates::Authority;

    const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n";
    const FILES: &str = "[api]\nlisten = [\"127.0.0.1:3261\", \"[::]:3261\"]\ncertificate_file = \"server.pem\"\n\
        key_file = \"server.key\"\n";

    /// A folder with the files of a server.
    fn site(name: &str) -> Folder {
        let folder = Folder::new(name);
        let ca = Authority::new("test authority");
        folder.file("ca.pem", ca.pem(), 0o640);
        let pair = ca.server(&["localhost"]);
        folder.file("server.pem", pair.certificate, 0o644);
        folder.file("server.key", pair.key, 0o600);
        folder.file("tokens", "ann write 0123456789abcdef0123456789abcdef\n", 0o600);
        folder
    }

    fn parsed(folder: &Folder, keys: &str) -> Result<Config, String> {
        let path = folder.0.join("t.toml");
        parse(&format!("{keys}{TARGET}"), &path).map_err(|list| {
            let text: String = list.iter().map(|problem| format!("{problem}\n")).collect();
            text.replace(&format!("{}/", folder.0.display()), "")
        })
    }

    #[test]
    fn files_are_read_from_the_folder_of_the_configuration() {
        let folder = site("api");
        assert!(parsed(&folder, "").unwrap().api.is_none());
        let keys =
            "token_file = \"tokens\"\nclient_ca_file = \"ca.pem\"\nclient_writers = [\"ann\", \"ops-*\"]\n";
        let api = parsed(&folder, &format!("{FILES}{keys}")).unwrap().api.unwrap();
        assert_eq!(api.listen.len(), 2);
        assert_eq!(api.files.tokens, Some(folder.0.join("tokens")));
        assert_eq!(api.files.client_writers, ["ann", "ops-*"]);
        assert_eq!(api.credentials.tokens(), "ann");
    }

    #[test]
    fn root_reads_the_tokens_of_the_user_of_the_server() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let folder = site("api-owner");
        std::fs::create_dir_all(folder.0.join("t.d/api")).unwrap();
        let chown = |name: &str, user| {
            std::os::unix::fs::chown(folder.0.join(name), Some(user), None).unwrap();
        };
        chown("t.d/api", 12345);
        let fault = || parsed(&folder, &format!("{FILES}token_file = \"tokens\"\n")).err();
        ["server.key", "tokens"].into_iter().for_each(|name| chown(name, 12345));
        assert_eq!(fault(), None);
        chown("tokens", 12346);
        assert!(fault().unwrap().contains("the secret tokens belongs to user 12346"));
    }

    #[test]
    fn problems_of_the_api() {
        let folder = site("api-problems");
        let run = |keys: &str| parsed(&folder, keys).err().unwrap_or_default();
        let token = |keys: &str| format!("[api]\n{keys}token_file = \"tokens\"\n");
        let plain = FILES.strip_prefix("[api]\n").unwrap();
        let open = "[api] has neither `token_file` nor `client_ca_file`: anybody could change the server";
        check_all(
            run,
            &[
                (
                    FILES,
                    &[
                        &format!("t.toml:1:1: {open}"),
                        "hint: add token_file = \"tokens\", a file of mode 0600 with lines NAME read|write TOKEN",
                    ],
                ),
                (
                    &token(""),
                    &[
                        "t.toml:1:1: [api] has no `listen`",
                        "hint: add listen = [\"127.0.0.1:3261\"]",
                        "t.toml:1:1: [api] has no `certificate_file`",
                        "hint: add certificate_file = \"server.pem\"",
                        "t.toml:1:1: [api] has no `key_file`",
                        "hint: add key_file = \"server.key\"",
                    ],
                ),
                (
                    &token(&plain.replace("127.0.0.1:3261", "localhost:3261")),
                    &[
                        "t.toml:2:11: \"localhost:3261\" is not an address and a port",
                        "hint: write a numeric address and a port: 127.0.0.1:3261 or [::]:3261",
                    ],
                ),
                (
                    &token(&plain.replace("[::]:3261", "127.0.0.1:3261")),
                    &[
                        "t.toml:2:29: the address 127.0.0.1:3261 is given twice",
                        "hint: the first is at 2:11; change or remove one of them",
                    ],
                ),
                (
                    &token(&plain.replace("server.key", "ca.pem")),
                    &[
                        "t.toml:1:1: the file ca.pem has no private key",
                        "hint: write PEM text with -----BEGIN PRIVATE KEY-----",
                    ],
                ),
                (
                    &token(&format!("{plain}client_writers = [\"a*b\"]\ncolour = 1\n")),
                    &[
                        "t.toml:5:19: \"a*b\" is no common name of a certificate",
                        "hint: write a name such as \"ann\", or its start such as \"ops-*\"",
                        "t.toml:6:1: unknown key `colour` in [api]",
                        "hint: known keys: listen, certificate_file, key_file, token_file, client_ca_file, client_writers",
                    ],
                ),
            ],
        );
    }

    #[test]
    fn change_of_the_files_is_a_difference_without_secrets() {
        let folder = site("api-diff");
        let config = || parsed(&folder, &format!("{FILES}token_file = \"tokens\"\n")).unwrap();
        let before = config();
        folder.file("tokens", "ann write fedcba9876543210fedcba9876543210\n", 0o600);
        let pair = Authority::new("another authority").server(&["localhost"]);
        folder.file("server.pem", pair.certificate, 0o644);
        folder.file("server.key", pair.key, 0o600);
        let changes: Vec<String> = crate::diff(&before, &config()).iter().map(ToString::to_string).collect();
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert!(
            changes[0].contains("certificate_file from ") && changes[0].contains("(SHA-256 "),
            "{changes:?}"
        );
        assert!(changes[1].contains("(ann) (with another secret)"), "{changes:?}");
        assert!(
            !changes.concat().contains("fedcba98") && !changes.concat().contains("restart"),
            "{changes:?}"
        );
    }
}
