//! CHAP (RFC 1994, RFC 7143 section 12.1.3): digests, secrets, challenges.

pub(crate) mod keys;

use std::sync::Arc;

use md5::Digest;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The longest CHAP_C and CHAP_R, in bytes (RFC 7143 section 12.1.3).
pub const BINARY_LEN: usize = 1024;

/// Bytes of the challenges made here.
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
    /// All of them, in the order in which an initiator offers them: the strongest first, but SHA-256 last.
    /// STGT and its relatives take 7 for SHA-1, and choose it; who means SHA-256 knows SHA3-256 too.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha1, Self::Md5, Self::Sha256];

    /// The name of the algorithm in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha3 => "sha3-256",
        }
    }

    /// The first algorithm of a CHAP_A list that is allowed.
    pub fn first_of(list: &str, allowed: &[Self]) -> Option<Self> {
        list.split(',').filter_map(Self::numbered).find(|algorithm| allowed.contains(algorithm))
    }

    /// The algorithm of one CHAP_A number.
    pub(crate) fn numbered(value: &str) -> Option<Self> {
        let n = lunar_wire::iscsi::text::number(value)?;
        Self::ALL.into_iter().find(|a| *a as u64 == n)
    }

    /// The response to a challenge: the digest of identifier, secret and challenge.
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

/// Why the text of a file is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// What follows `0x` is not two hexadecimal digits for each byte.
    Hex,
    /// A control character of Unicode (category Cc), which an editor or another system left there.
    Control(char),
}

impl SecretError {
    /// The fault and its remedy, for people.
    pub fn explain(self) -> (String, &'static str) {
        match self {
            Self::Hex => ("0x without pairs of hexadecimal digits".into(), "write two digits for each byte"),
            Self::Control(c) => (
                format!("the control character {:02x}h", u32::from(c)),
                "save it as one line of plain text, or write the bytes in hexadecimal after 0x",
            ),
        }
    }
}

/// The mark that some editors put before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The secret that a file holds: its bytes without a byte order mark and the end of the line, or those that `0x...` names.
///
/// # Errors
/// What is wrong with a text that cannot be meant.
pub fn secret_of_text(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    // What is no UTF-8 has no characters beyond ASCII, and its bytes stand for themselves.
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

/// A shared secret. It shows in no log, its memory is cleared when it goes, and comparing takes the same time whatever differs.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Wraps the bytes of a secret.
    pub fn new(bytes: &[u8]) -> Self {
        Secret(Arc::new(bytes.to_vec().into()))
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Below the 96 bits that RFC 7143 section 9.2.1 asks for where nothing else protects the exchange.
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

/// A CHAP name, taken literally, and its secret.
#[derive(Clone, Debug, PartialEq)]
pub struct ChapUser {
    /// CHAP_N.
    pub name: String,
    /// What both sides know.
    pub secret: Secret,
}

/// How a target, or discovery, wants initiators to authenticate.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// Nobody gets in without CHAP.
    pub required: bool,
    /// The users that are admitted; without any CHAP is not offered.
    pub users: Arc<[ChapUser]>,
    /// As whom an initiator's challenge is answered.
    pub mutual: Option<ChapUser>,
    /// The algorithms that an initiator may choose.
    pub algorithms: Vec<Algorithm>,
}

impl Authentication {
    /// Everybody gets in without CHAP.
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

    /// What satisfies both this and another demand: who must authenticate for both must be admitted by both.
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

/// A challenge made here and not yet answered.
#[derive(Debug)]
pub struct Challenge {
    /// The algorithm agreed upon.
    pub algorithm: Algorithm,
    /// CHAP_I.
    pub id: u8,
    /// CHAP_C.
    pub bytes: [u8; CHALLENGE_LEN],
}

impl Challenge {
    /// A challenge that nobody can predict, or None if the system has no random bytes.
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let (mut id, mut bytes) = ([0], [0; CHALLENGE_LEN]);
        getrandom::fill(&mut id).ok()?;
        getrandom::fill(&mut bytes).ok()?;
        Some(Challenge { algorithm, id: id[0], bytes })
    }

    /// Whether a CHAP_R answers this challenge with that secret.
    pub fn is_answered(&self, response: &[u8], secret: &Secret) -> bool {
        self.algorithm.response(self.id, secret, &self.bytes).ct_eq(response).into()
    }

    /// Whether a peer's challenge is this one sent back (RFC 7143 section 9.2.1).
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
    fn responses() {
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

    /// The allocator may use the memory again, and keeps what it does not use.
    #[test]
    fn a_secret_is_cleared_from_memory_when_it_goes() {
        use std::os::unix::fs::FileExt;
        const LEN: usize = 8000;
        let secret = Secret::new(&[0xa7; LEN]);
        let (memory, at) = (std::fs::File::open("/proc/self/mem"), secret.bytes().as_ptr() as u64);
        let memory = memory.expect("Linux has it");
        let left = || {
            let mut bytes = [0; LEN];
            // Memory that is gone holds nothing.
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
    fn the_first_known_algorithm_is_taken() {
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
    fn only_the_right_secret_answers() {
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
    fn two_demands_admit_whom_both_admit() {
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
