//! CHAP (RFC 1994, RFC 7143 section 12.1.3): algorithms, secrets, challenges.

pub(crate) mod keys;

use std::sync::Arc;

use md5::Digest;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Maximum length of CHAP_C and CHAP_R in bytes (RFC 7143 section 12.1.3).
pub const BINARY_LEN: usize = 1024;

/// Bytes of a generated challenge.
const CHALLENGE_LEN: usize = 24;

/// A CHAP algorithm by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Algorithm {
    /// MD5.
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3 = 8,
}

impl Algorithm {
    /// All algorithms in the order in which an initiator offers them: strongest first, but SHA-256 last. STGT and its
    /// derivatives select 7 (SHA-256) and then compute SHA-1. A peer that implements SHA-256 also implements
    /// SHA3-256.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha1, Self::Md5, Self::Sha256];

    /// The name of the algorithm in a configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha3 => "sha3-256",
        }
    }

    /// The first allowed algorithm of a CHAP_A list.
    pub fn first_of(list: &str, allowed: &[Self]) -> Option<Self> {
        list.split(',').filter_map(Self::numbered).find(|algorithm| allowed.contains(algorithm))
    }

    /// The algorithm that a CHAP_A number names.
    pub(crate) fn numbered(value: &str) -> Option<Self> {
        let n = lunar_wire::iscsi::text::number(value)?;
        Self::ALL.into_iter().find(|a| *a as u64 == n)
    }

    /// Computes the response to a challenge: the digest of identifier, secret and challenge (RFC 1994 section 4.1).
    pub fn response(self, id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        fn digest<D: Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
            parts.into_iter().fold(D::new(), |d, p| d.chain_update(p)).finalize().to_vec()
        }
        let parts = [&[id], secret.bytes(), challenge];
        match self {
            Self::Md5 => digest::<md5::Md5>(parts),
            Self::Sha1 => digest::<sha1::Sha1>(parts),
            Self::Sha256 => digest::<sha2::Sha256>(parts),
            Self::Sha3 => digest::<sha3::Sha3_256>(parts),
        }
    }
}

/// The reason why the content of a file is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// `0x` is not followed by pairs of hexadecimal digits.
    Hex,
    /// It contains a control character (Unicode category Cc), which an editor or another system left in the file.
    Control(char),
}

impl SecretError {
    /// The fault and a hint, for an error message.
    pub fn explain(self) -> (String, &'static str) {
        match self {
            Self::Hex => {
                ("0x not followed by pairs of hexadecimal digits".into(), "write two digits for each byte")
            }
            Self::Control(c) => (
                format!("the control character {:02x}h", u32::from(c)),
                "save the secret as one line of plain text, or write its bytes in hexadecimal after 0x",
            ),
        }
    }
}

/// The byte order mark that some editors put before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The longest content of a file with a secret: 255 bytes in hexadecimal, and a line end.
pub const MAX_SECRET_TEXT_BYTES: usize = 2 + 2 * 255 + 2;

/// The secret in the content of a file: its bytes without byte order mark and line end, or the bytes that `0x...`
/// spells.
///
/// # Errors
/// The content is malformed: see [`SecretError`].
pub fn secret_of_text(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    // Invalid UTF-8 is allowed: its bytes are part of the secret.
    let mut chars = text.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
    if let Some(c) = chars.find(|c| c.is_control()) {
        return Err(SecretError::Control(c));
    }
    let Some(digits) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) else {
        return Ok(text.to_vec().into());
    };
    let digit = |b: &u8| char::from(*b).to_digit(16);
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return Err(SecretError::Hex);
    }
    let byte = |pair: &[u8]| Some((digit(&pair[0])? << 4 | digit(&pair[1])?) as u8);
    let mut bytes = Zeroizing::new(vec![0; digits.len() / 2]);
    for (at, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *at = byte(pair).ok_or(SecretError::Hex)?;
    }
    Ok(bytes)
}

/// A shared secret. `Debug` does not print it, its memory is cleared on drop, and comparison takes constant time.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Copies the bytes of a secret.
    pub fn new(bytes: &[u8]) -> Self {
        Secret(Arc::new(bytes.to_vec().into()))
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is shorter than the 96 bits that RFC 7143 section 9.2.1 requires without IPsec.
    pub fn is_short(&self) -> bool {
        self.0.len() < 12
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A CHAP name and its secret. The name is compared byte by byte.
#[derive(Clone, Debug, PartialEq)]
pub struct ChapUser {
    /// CHAP_N.
    pub name: String,
    /// The shared secret.
    pub secret: Secret,
}

/// The authentication that a target, or discovery, requires of initiators.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// A login without CHAP is rejected.
    pub required: bool,
    /// Admitted users. If there are none, CHAP is not offered.
    pub users: Arc<[ChapUser]>,
    /// The name and secret with which the target answers an initiator's challenge (mutual CHAP).
    pub mutual: Option<ChapUser>,
    /// Algorithms that an initiator may select.
    pub algorithms: Vec<Algorithm>,
}

impl Authentication {
    /// No authentication: every initiator is admitted.
    pub fn none() -> Self {
        Authentication {
            required: false,
            users: Arc::new([]),
            mutual: None,
            algorithms: Algorithm::ALL.to_vec(),
        }
    }

    /// The secret of an admitted user.
    pub fn secret(&self, user: &str) -> Option<&Secret> {
        self.users.iter().find(|u| u.name == user).map(|u| &u.secret)
    }

    /// The combination of two requirements. If both require CHAP, only users admitted by both remain.
    pub fn and(self, other: Self) -> Self {
        match (self.required, other.required) {
            (_, false) => self,
            (false, true) => other,
            (true, true) => {
                let users = self.users.iter().filter(|u| other.users.contains(u)).cloned().collect();
                Authentication { users, mutual: self.mutual.or(other.mutual), ..self }
            }
        }
    }
}

/// A challenge that this side sent and that has no answer yet.
#[derive(Debug)]
pub struct Challenge {
    /// The negotiated algorithm.
    pub algorithm: Algorithm,
    /// CHAP_I.
    pub id: u8,
    /// CHAP_C.
    pub bytes: [u8; CHALLENGE_LEN],
}

impl Challenge {
    /// A random challenge; `None` if the system provides no random bytes.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let (mut id, mut bytes) = ([0], [0; CHALLENGE_LEN]);
        getrandom::fill(&mut id).ok()?;
        getrandom::fill(&mut bytes).ok()?;
        Some(Challenge { algorithm, id: id[0], bytes })
    }

    /// Whether `response` (CHAP_R) is the right answer to this challenge for that secret. The comparison takes
    /// constant time.
    pub fn is_answered(&self, response: &[u8], secret: &Secret) -> bool {
        self.algorithm.response(self.id, secret, &self.bytes).ct_eq(response).into()
    }

    /// Whether a peer's challenge is this one, reflected (RFC 7143 section 9.2.1).
    pub fn is_reflected(&self, challenge: &[u8]) -> bool {
        self.bytes.ct_eq(challenge).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn user(name: &str, secret: &[u8]) -> ChapUser {
        ChapUser { name: name.into(), secret: Secret::new(secret) }
    }

    /// Identifier 0x10, secret "secret", challenge 00 01 02 03, computed with another implementation.
    #[test]
    fn response_of_each_algorithm_matches_known_value() {
        for (algorithm, want) in [
            (Algorithm::Md5, "645632abed3da10d44b0625dde9595be"),
            (Algorithm::Sha1, "76155e806c7a2507146e3a2e64986de95387cc9b"),
            (Algorithm::Sha256, "f6d646c4a650fcf271c3170043774f563bb83b32f4edf5a9b382b7e54728b0b6"),
            (Algorithm::Sha3, "1fdaa113b0ae15c391b64f46bfc74a78d2ab11d1d05b91392bac079f4a5ed7c6"),
        ] {
            let got = algorithm.response(0x10, &Secret::new(b"secret"), &[0, 1, 2, 3]);
            let hex: String = got.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(hex, want);
        }
    }

    /// Reads freed memory through /proc: the allocator may have reused some of it, and otherwise leaves it unchanged.
    #[test]
    fn dropped_secret_is_cleared_from_memory() {
        use std::os::unix::fs::FileExt;
        const LEN: usize = 8000;
        let secret = Secret::new(&[0xa7; LEN]);
        let (memory, at) = (std::fs::File::open("/proc/self/mem"), secret.bytes().as_ptr() as u64);
        let memory = memory.expect("Linux has it");
        let left = || {
            let mut bytes = [0; LEN];
            // Freed memory must not be read through a pointer, and the page may be unmapped.
            let read = memory.read_at(&mut bytes, at).unwrap_or(0);
            bytes[..read].iter().filter(|byte| **byte == 0xa7).count()
        };
        assert_eq!(left(), LEN);
        let other = secret.clone();
        drop(secret);
        assert_eq!(left(), LEN, "the other one needs it");
        drop(other);
        assert!(left() < LEN / 100, "{} bytes are left", left());
    }

    #[test]
    fn first_known_algorithm_is_selected() {
        for (list, want) in [
            ("5", Some(Algorithm::Md5)),
            ("99,7,5", Some(Algorithm::Sha256)),
            ("0x8", Some(Algorithm::Sha3)),
            ("6,5", Some(Algorithm::Sha1)),
            ("99", None),
            ("", None),
            ("five", None),
        ] {
            assert_eq!(Algorithm::first_of(list, &Algorithm::ALL), want, "{list}");
        }
    }

    /// SEC-016.
    #[test]
    fn challenges_do_not_repeat() {
        let made = (0..1000).map(|_| Challenge::new(Algorithm::Md5).unwrap());
        let (mut ids, mut all) = (HashSet::new(), HashSet::new());
        made.for_each(|c| {
            ids.insert(c.id);
            assert!(all.insert(c.bytes));
        });
        assert!(ids.len() > 100);
    }

    #[test]
    fn only_the_right_secret_answers_a_challenge() {
        let c = Challenge::new(Algorithm::Sha256).unwrap();
        let secret = Secret::new(b"right secret");
        let response = c.algorithm.response(c.id, &secret, &c.bytes);
        assert!(c.is_answered(&response, &secret));
        assert!(!c.is_answered(&response, &Secret::new(b"wrong secret")));
        assert!(!c.is_answered(&response[1..], &secret));
        assert!(!c.is_answered(&[], &secret));
        assert!(c.is_reflected(&c.bytes) && !c.is_reflected(&c.bytes[1..]));
    }

    #[test]
    fn secrets_do_not_show() {
        assert!(!format!("{:?}", user("u", b"hidden")).contains("hidden"));
        assert!(!format!("{:?}", Secret::new(b"hidden")).contains("104"));
    }

    #[test]
    fn combined_requirements_admit_common_users() {
        let (a, b, c) = (user("a", b"1"), user("b", b"2"), user("c", b"3"));
        let of = |required, users: &[ChapUser]| Authentication {
            required,
            users: users.into(),
            ..Authentication::none()
        };
        let names = |x: Authentication| x.users.iter().map(|u| u.name.clone()).collect::<String>();
        let both = of(true, &[a.clone(), b.clone()]).and(of(true, &[b.clone(), c]));
        assert!(both.required);
        assert_eq!(names(both), "b");
        assert_eq!(names(of(false, &[]).and(of(true, std::slice::from_ref(&a)))), "a");
        let first = of(true, &[a]).and(Authentication::none());
        assert!(first.required);
        assert_eq!(names(first), "a");
        assert_eq!(names(of(true, &[user("x", b"1")]).and(of(true, &[user("x", b"2")]))), "");
    }
}
