//! `[[chap_user]]`: names, and secrets in files that only their owner can read.

use lunar_config::{Diagnostics, ErrorCode, InvalidValue, invalid, nearest};
use lunar_config::{Section, UniqueKeys, text};
use lunar_proto::chap::MAX_SECRET_TEXT_BYTES;
use lunar_target::config::ChapAccount;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use zeroize::Zeroizing;

/// A user and the position of its name in the file.
pub(super) type NamedUser = (ChapAccount, Range<usize>);

/// All CHAP users of a configuration, by `id`; None for a user whose secret is invalid, which is reported already.
pub(super) struct ChapUsers(BTreeMap<String, Option<ChapAccount>>);

/// Contents of secret files by their absolute paths, in place of those on the disk. A file that is not among them gets
/// a random secret. So tools can check a configuration whose secrets only its server may read.
pub type GivenSecrets = BTreeMap<std::path::PathBuf, Zeroizing<Vec<u8>>>;

/// Where secrets are read.
#[derive(Clone, Copy, Default)]
pub(super) struct SecretSource<'a> {
    /// Instead of the files on the disk.
    pub given: Option<&'a GivenSecrets>,
    /// The user of the server, whose files root reads too: see [`super::server_owner`].
    pub owner: Option<u32>,
}

/// Reads all `[[chap_user]]` with their secrets.
pub(super) fn users(
    p: &mut Diagnostics<'_>,
    root: &mut Section<'_>,
    base: &Path,
    source: SecretSource<'_>,
) -> ChapUsers {
    let mut users = BTreeMap::new();
    let mut once = UniqueKeys::new("CHAP user");
    for mut s in root.sections(p, "chap_user", "[[chap_user]]") {
        let name_at = s.find("name").map(|value| value.span());
        let name = s.parsed(p, "name", |text| lunar_config::plain_text(text, "a CHAP name"));
        let id = s.parsed(p, "id", |text| lunar_config::plain_text(text, "an identifier of a CHAP user"));
        let id_at = s.find("id").map(|value| value.span());
        let has_file = s.find("secret_file").is_some();
        let secret = s.parsed(p, "secret_file", |text| secret(&super::path(text, base)?, source));
        match name_at {
            None => s.missing(p, "name", "\"alice\""),
            Some(at) if !has_file => {
                p.add(&at, "[[chap_user]] has no `secret_file`", "add secret_file = \"alice.secret\"")
            }
            Some(at) => {
                let id = if id_at.is_some() { id } else { name.clone() };
                if let (Some(name), Some(id)) = (name, id)
                    && once.first(p, id.clone(), id_at.as_ref().unwrap_or(&at))
                {
                    users.insert(id, secret.map(|secret| ChapAccount { name, secret }));
                }
            }
        }
        s.done(p);
    }
    let users = ChapUsers(users);
    users.warn_of_shared();
    users
}

impl ChapUsers {
    /// The users that a list names.
    pub(super) fn list(
        &self,
        p: &mut Diagnostics<'_>,
        s: &mut Section<'_>,
        key: &'static str,
    ) -> Option<Vec<NamedUser>> {
        let (values, at) = s.list(p, key)?;
        if values.is_empty() {
            p.add(&at, format!("`{key}` is empty"), "write the name of a [[chap_user]], or remove the key");
        }
        let mut named: Vec<NamedUser> = Vec::new();
        for value in values {
            let user = text(p, key, value).and_then(|id| self.named(p, id, value.span()));
            let Some((user, at)) = user else { continue };
            match named.iter().any(|(other, _)| other.name == user.name) {
                true => p.add(
                    &at,
                    format!("`{key}` lists two CHAP users with the name {:?}", user.name),
                    "list one of them, because an initiator sends only the name",
                ),
                false => named.push((user, at)),
            }
        }
        Some(named)
    }

    /// The user that a key names.
    pub(super) fn one(
        &self,
        p: &mut Diagnostics<'_>,
        s: &mut Section<'_>,
        key: &'static str,
    ) -> Option<NamedUser> {
        let (name, at) = s.text(p, key)?;
        self.named(p, name, at)
    }

    fn named(&self, p: &mut Diagnostics<'_>, name: &str, at: Range<usize>) -> Option<NamedUser> {
        if let Some(user) = self.0.get(name) {
            return user.clone().map(|user| (user, at));
        }
        let hint = match nearest(name, self.0.keys().map(String::as_str)) {
            Some(meant) => format!("did you mean \"{}\"?", meant.escape_debug()),
            None => "add [[chap_user]] with this name".to_string(),
        };
        p.add(&at, format!("unknown CHAP user \"{}\"", name.escape_debug()), hint);
        None
    }

    /// Reports a secret that several users have (RFC 7143 section 9.2.1): each of them can log in as the
    /// others.
    fn warn_of_shared(&self) {
        let mut seen = BTreeMap::new();
        for user in self.0.values().flatten() {
            if let Some(other) = seen.insert(&*user.secret, &user.name) {
                tracing::warn!("the CHAP users {other:?} and {:?} have the same secret", user.name);
            }
        }
    }

    /// Rejects a secret that is used in both directions (RFC 7143 section 9.2.1): its owner could impersonate either side.
    pub(super) fn refuse_shared<'n>(
        &self,
        p: &mut Diagnostics<'_>,
        mutual: &Option<NamedUser>,
        mut users: impl Iterator<Item = &'n NamedUser>,
    ) {
        let Some((mutual, at)) = mutual else { return };
        if let Some((user, _)) = users.find(|(user, _)| user.secret == mutual.secret) {
            let what = format!(
                "the mutual CHAP user {:?} has the same secret as the user {:?}",
                mutual.name, user.name
            );
            p.add(at, what, "use different secrets for the two directions (RFC 7143 section 9.2.1)");
        }
    }
}

/// Reads a secret: a regular file of this user without access for others, or one that is given.
fn secret(path: &Path, source: SecretSource<'_>) -> Result<Zeroizing<Vec<u8>>, InvalidValue> {
    let bytes = match secret_text(path, source)? {
        Some(bytes) => bytes,
        None => unknown_secret(path),
    };
    decode(&bytes).or_else(|(what, hint)| invalid(format!("the secret {} {what}", path.display()), hint))
}

/// The content of a file with a secret; None: a tool checks the configuration, and the file is not read.
pub(super) fn secret_text(
    path: &Path,
    source: SecretSource<'_>,
) -> Result<Option<Zeroizing<Vec<u8>>>, InvalidValue> {
    let refused = |refused: lunar_runtime::host::SecretError| InvalidValue {
        what: refused.what,
        hint: refused.hint,
        code: if path.exists() { ErrorCode::Other } else { ErrorCode::NotFound },
    };
    match source.given {
        Some(given) => Ok(given.get(path).cloned()),
        None => lunar_runtime::host::secret_file(path, MAX_SECRET_TEXT_BYTES, source.owner)
            .map(Some)
            .map_err(refused),
    }
}

/// The secret in place of that of a file that is not read: the same for each user of the file, and no other.
fn unknown_secret(path: &Path) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(format!("0x{}", super::hex(&unknown_key(path))).into_bytes())
}

/// The bytes of such a secret.
pub(super) fn unknown_key(path: &Path) -> [u8; 32] {
    Sha256::digest(path.as_os_str().as_encoded_bytes()).into()
}

/// Decodes a secret and checks its length (RFC 7143 section 9.2.1).
fn decode(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, (String, &'static str)> {
    let bytes = lunar_proto::chap::secret_of_text(text).map_err(|bad| {
        let (what, hint) = bad.explain();
        (format!("contains {what}"), hint)
    })?;
    match bytes.len() {
        0..12 => Err((
            format!("has {} bytes", bytes.len()),
            "use 12 to 255 bytes, preferably 16 random bytes (RFC 7143 section 9.2.1)",
        )),
        12..=255 => Ok(bytes),
        _ => Err(("has more than 255 bytes".to_string(), "use 12 to 255 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_secret_is_decoded() {
        assert_eq!(decode(b"twelve bytes\n"), Ok(b"twelve bytes".to_vec().into()));
        assert_eq!(decode(b"0x000102030405060708090a0B"), Ok((0..12).collect::<Vec<u8>>().into()));
        assert_eq!(decode(&[b'x'; 255]).map(|s| s.len()), Ok(255));
    }

    #[test]
    fn secret_saved_by_windows_editors_is_read() {
        for text in [&b"twelve bytes\r\n"[..], b"\xef\xbb\xbftwelve bytes\r\n", b"\xef\xbb\xbftwelve bytes"] {
            assert_eq!(decode(text), Ok(b"twelve bytes".to_vec().into()));
        }
        let utf16 = "twelve bytes".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        assert_eq!(decode(&utf16).unwrap_err().0, "contains the control character 00h");
    }

    #[test]
    fn wrong_secrets_say_why() {
        let what = |bytes: &[u8]| decode(bytes).unwrap_err().0;
        assert_eq!(what(b"elevenbytes\n"), "has 11 bytes");
        assert_eq!(what(&[b'x'; 256]), "has more than 255 bytes");
        for text in [&b"0x00010"[..], b"0xsecret and more"] {
            assert_eq!(what(text), "contains 0x not followed by pairs of hexadecimal digits");
        }
        assert_eq!(what(b"twelve byte\n\n"), "contains the control character 0ah");
        assert_eq!(what("twelve bytes\u{85}\n".as_bytes()), "contains the control character 85h");
        assert_eq!(what(b"twelve\x7fbytes"), "contains the control character 7fh");
        assert_eq!(what(b"0x0001"), "has 2 bytes");
    }
}
