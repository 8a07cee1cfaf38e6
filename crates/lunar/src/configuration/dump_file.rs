//! The format of a dump: JSON with a version and a checksum.

use super::owner;
use crate::exit::{Exit, Failure};
use crate::hex;
use lunar_server::{Diagnostic, ErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of the format.
const FORMAT: &str = "lunar-config-dump";
/// The version that this program writes. It reads no other one.
const VERSION: u64 = 1;
/// Maximum size of a dump to read.
const MAX_BYTES: u64 = 1 << 30;

/// A dump as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDump {
    format: String,
    version: u64,
    /// SHA-256 of `content` as JSON without blanks.
    sha256: String,
    content: Dump,
}

/// Configuration and state of a server.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dump {
    /// When it was written (RFC 3339).
    pub(super) created: String,
    /// The version of Lunar that wrote it.
    pub(super) lunar: String,
    /// The absolute path of the first file of the configuration.
    pub(super) config_file: String,
    /// Whether the secrets are in it.
    pub(super) has_secrets: bool,
    /// The files of the configuration in their order, then the others.
    pub(super) files: Vec<DumpedFile>,
}

/// The purpose of a file, which decides where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FileKind {
    /// Configuration, relative to the folder of the configuration.
    Config,
    /// A secret, relative to this folder or absolute.
    Secret,
    /// A certificate that the configuration names, as a secret.
    Certificate,
    /// A saved attachment, relative to this folder.
    Attachment,
    /// State of a logical unit, relative to the state folder.
    State,
}

/// A file of a dump.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DumpedFile {
    pub(super) kind: FileKind,
    pub(super) path: String,
    /// In octal digits.
    mode: String,
    user: String,
    group: String,
    /// Its content if that is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Its content in hexadecimal digits otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl DumpedFile {
    /// A file with the mode and the owner of the file at `at`.
    pub(super) fn new(kind: FileKind, path: String, at: &Path, content: Vec<u8>) -> io::Result<DumpedFile> {
        let metadata = at.metadata()?;
        let [user, group] = owner::names(&metadata);
        let (text, hex) = match String::from_utf8(content) {
            Ok(text) => (Some(text), None),
            Err(e) => (None, Some(hex::digits(e.as_bytes()))),
        };
        Ok(DumpedFile {
            kind,
            path,
            mode: format!("{:04o}", metadata.mode() & 0o7777),
            user,
            group,
            text,
            hex,
        })
    }

    /// The mode; None if it is invalid.
    pub(super) fn mode(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok().filter(|mode| *mode <= 0o777)
    }

    /// The names of user and group.
    pub(super) fn owner(&self) -> [String; 2] {
        [self.user.clone(), self.group.clone()]
    }

    /// The content; None if it is invalid.
    pub(super) fn content(&self) -> Option<Vec<u8>> {
        match (&self.text, &self.hex) {
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(digits)) => hex::parse(digits).ok(),
            _ => None,
        }
    }
}

/// The text of a dump.
pub(super) fn text(content: Dump) -> Result<String, Failure> {
    let sha256 = checksum(&content)?;
    crate::client::json(&StoredDump { format: FORMAT.into(), version: VERSION, sha256, content })
}

fn checksum(content: &Dump) -> Result<String, Diagnostic> {
    let bytes = serde_json::to_vec(content).map_err(|e| {
        Diagnostic::new(format!("cannot write JSON: {e}"), "report this as an error of Lunar")
    })?;
    Ok(hex::digits(&Sha256::digest(bytes)))
}

/// Reads and checks a dump.
pub(super) fn read(path: &Path) -> Result<Dump, Failure> {
    let unreadable = |e: &io::Error| {
        let what = format!("cannot read {}: {e}", path.display());
        let problem = Diagnostic::new(what, "check the path and its permissions");
        Failure::from(problem.with_code(ErrorCode::from(e.kind())))
    };
    let file = File::open(path).map_err(|e| unreadable(&e))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| unreadable(&e))?;
    decoded(&bytes)
        .map_err(|(what, hint)| Failure::new(Exit::Invalid, format!("{} {what}", path.display()), hint))
}

/// The dump in these bytes, or the fault and its fix.
fn decoded(bytes: &[u8]) -> Result<Dump, (String, &'static str)> {
    let no_dump = |why: &str| (format!("is no dump: {why}"), "give a file of lunar config dump");
    let damaged = |why: String| (format!("is damaged: {why}"), "use another dump");
    if bytes.len() as u64 > MAX_BYTES {
        return Err(no_dump("it is larger than 1 GiB"));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|e| match bytes.starts_with(b"{") {
        true => damaged(e.to_string()),
        false => no_dump("it is no JSON"),
    })?;
    if value["format"] != FORMAT {
        return Err(no_dump("it has another format"));
    }
    match value["version"].as_u64() {
        Some(VERSION) => {}
        Some(version) => {
            let what =
                format!("has version {version} of the format, and this version of Lunar reads {VERSION}");
            return Err((what, "use the version of Lunar that wrote it, or a later one"));
        }
        None => return Err(damaged("it has no version".into())),
    }
    let stored: StoredDump = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
    match checksum(&stored.content) {
        Ok(sha256) if sha256 == stored.sha256 => Ok(stored.content),
        _ => Err(damaged("its checksum does not match".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> Dump {
        let file = |content: &[u8]| {
            let path = "lu/iqn.a/0.state".to_owned();
            DumpedFile::new(FileKind::State, path, &std::env::temp_dir(), content.to_vec()).unwrap()
        };
        Dump {
            created: "2026-11-28T10:00:00Z".into(),
            lunar: "0.1.0".into(),
            config_file: "/etc/lunar/lunar.toml".into(),
            has_secrets: false,
            files: vec![file(b"text\n"), file(&[0xff, 0])],
        }
    }

    fn fault(text: &str) -> String {
        decoded(text.as_bytes()).unwrap_err().0
    }

    #[test]
    fn dump_reads_back_with_text_and_bytes() {
        let text = text(dump()).unwrap();
        assert!(text.contains("\"text\": \"text\\n\"") && text.contains("\"hex\": \"ff00\""), "{text}");
        let read = decoded(text.as_bytes()).unwrap();
        assert_eq!(read, dump());
        let contents: Vec<_> = read.files.iter().map(|file| file.content().unwrap()).collect();
        assert_eq!(contents, [b"text\n".to_vec(), vec![0xff, 0]]);
    }

    #[test]
    fn changed_or_short_dump_is_damaged() {
        let text = text(dump()).unwrap();
        assert_eq!(fault(&text.replace("text\\n", "next\\n")), "is damaged: its checksum does not match");
        assert_eq!(fault(&text.replace("ff00", "ff01")), "is damaged: its checksum does not match");
        let short = &text[..text.len() / 2];
        assert!(fault(short).starts_with("is damaged: EOF while parsing"), "{}", fault(short));
        let unknown = text.replace("\"created\"", "\"made\"");
        assert!(fault(&unknown).starts_with("is damaged: unknown field `made`"), "{}", fault(&unknown));
    }

    #[test]
    fn newer_version_is_named() {
        let newer = text(dump()).unwrap().replace("\"version\": 1", "\"version\": 2");
        assert_eq!(fault(&newer), "has version 2 of the format, and this version of Lunar reads 1");
        assert_eq!(fault("[server]\n"), "is no dump: it is no JSON");
        assert_eq!(fault("{\"format\": \"other\"}"), "is no dump: it has another format");
    }
}
