//! Bearer tokens: a file with one token a line. Only their hashes stay in memory.

use lunar_config::{InvalidValue, invalid};
use lunar_runtime::host::secret_file;
use sha2::{Digest, Sha256};
use std::path::Path;
use subtle::ConstantTimeEq;

/// Maximum size of a file of tokens.
const MAX_FILE_BYTES: usize = 1 << 20;
/// Shorter tokens could be guessed.
const MIN_CHARS: usize = 32;
const MAX_CHARS: usize = 256;
const FORM: &str = "write one token a line: NAME read|write TOKEN";

/// The requests that a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests that change nothing.
    Read,
    /// All requests.
    Write,
}

/// All tokens.
#[derive(Clone, Default)]
pub struct BearerTokens(Vec<BearerToken>);

#[derive(Clone)]
struct BearerToken {
    name: String,
    role: Role,
    hash: [u8; 32],
}

impl BearerTokens {
    /// Reads a file that only this user can read, or for root only `owner`.
    ///
    /// # Errors
    /// The fault of the file.
    pub fn load(path: &Path, owner: Option<u32>) -> Result<BearerTokens, InvalidValue> {
        let refused = |refused: lunar_runtime::host::SecretError| {
            let unfit: InvalidValue = invalid::<()>(refused.what, refused.hint).unwrap_err();
            unfit
        };
        let bytes = secret_file(path, MAX_FILE_BYTES, owner).map_err(refused)?;
        let shown = path.display();
        if bytes.len() > MAX_FILE_BYTES {
            return invalid(format!("the file of tokens {shown} is larger than 1 MiB"), FORM);
        }
        let Ok(text) = std::str::from_utf8(&bytes) else {
            return invalid(format!("the file of tokens {shown} is not UTF-8 text"), FORM);
        };
        BearerTokens::parse(text).map_err(|InvalidValue { what, hint, code }| InvalidValue {
            what: format!("the file of tokens {shown} {what}"),
            hint,
            code,
        })
    }

    fn parse(text: &str) -> Result<BearerTokens, InvalidValue> {
        let mut tokens = BearerTokens::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                tokens.add(line).map_err(|InvalidValue { what, hint, code }| InvalidValue {
                    what: format!("has a fault in line {number}: {what}"),
                    hint,
                    code,
                })?;
            }
        }
        match tokens.0.is_empty() {
            true => invalid("has no token", FORM),
            false => Ok(tokens),
        }
    }

    /// Adds the token of a line. No message shows a token.
    fn add(&mut self, line: &str) -> Result<(), InvalidValue> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, role, token] = words[..] else {
            return invalid(format!("it has {} words, not 3", words.len()), FORM);
        };
        let is_name = name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            return invalid("the name is no ASCII text of at most 64 characters", FORM);
        }
        let role = match role {
            "read" => Role::Read,
            "write" => Role::Write,
            _ => return invalid(format!("the role of {name} is neither read nor write"), FORM),
        };
        let length = token.len();
        if !(MIN_CHARS..=MAX_CHARS).contains(&length) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let what = format!("the token of {name} has {length} bytes");
            return invalid(what, "use 32 to 256 ASCII characters: openssl rand -hex 32");
        }
        let hash = Sha256::digest(token.as_bytes()).into();
        if let Some(other) = self.0.iter().find(|other| other.name == name || other.hash == hash) {
            let what = format!("{name} has the name or the token of {}", other.name);
            return invalid(what, "give each token a name and characters of its own");
        }
        self.0.push(BearerToken { name: name.to_owned(), role, hash });
        Ok(())
    }

    /// The name and the role of a token. Its hash is compared with all others in constant time.
    pub fn find(&self, token: &[u8]) -> Option<(&str, Role)> {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let is_it = |other: &BearerToken| bool::from(hash.ct_eq(&other.hash));
        let mut found = None;
        for other in &self.0 {
            found = if is_it(other) { Some(other) } else { found };
        }
        found.map(|token| (token.name.as_str(), token.role))
    }

    /// A hash of all names, roles and tokens.
    pub(super) fn hash(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        for BearerToken { name, role, hash } in &self.0 {
            hasher.update(name.as_bytes());
            hasher.update([0, u8::from(*role == Role::Write)]);
            hasher.update(hash);
        }
        hasher.finalize().into()
    }

    /// The names with their roles, for `lunar diff`.
    pub fn names(&self) -> String {
        let shown = |token: &BearerToken| match token.role {
            Role::Read => format!("{} (read)", token.name),
            Role::Write => token.name.clone(),
        };
        self.0.iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const TWO: &str = "fedcba9876543210fedcba9876543210";

    fn fault(text: &str) -> String {
        let unfit = BearerTokens::parse(text).err().expect("a fault");
        assert!(!format!("{unfit:?}").contains(ONE), "{unfit:?}");
        unfit.what
    }

    #[test]
    fn token_is_found_by_all_its_characters() {
        let text = format!("# people\n\n ann write {ONE}\r\nprom\tread  {TWO}\n");
        let tokens = BearerTokens::parse(&text).map_err(|unfit| unfit.what).unwrap();
        assert_eq!(tokens.find(ONE.as_bytes()), Some(("ann", Role::Write)));
        assert_eq!(tokens.find(TWO.as_bytes()), Some(("prom", Role::Read)));
        assert_eq!(tokens.find(&ONE.as_bytes()[1..]), None);
        assert_eq!(tokens.find(b""), None);
        assert_eq!(tokens.names(), "ann, prom (read)");
    }

    #[test]
    fn fault_of_a_token_is_named_with_its_line() {
        assert_eq!(fault("# none\n"), "has no token");
        assert_eq!(fault(&format!("\nann {ONE}")), "has a fault in line 2: it has 2 words, not 3");
        assert_eq!(
            fault(&format!("ann root {ONE}")),
            "has a fault in line 1: the role of ann is neither read nor write"
        );
        assert_eq!(fault("ann read short"), "has a fault in line 1: the token of ann has 5 bytes");
        let twice = format!("ann read {ONE}\nbob write {ONE}");
        assert_eq!(fault(&twice), "has a fault in line 2: bob has the name or the token of ann");
        assert!(
            fault(&format!("\u{e4}nn read {ONE}"))
                .ends_with("the name is no ASCII text of at most 64 characters")
        );
    }
}
