//! CHAP (RFC 1994, RFC 7143 section 12.1.3): digests, secrets, challenges.

use std::sync::Arc;

use md5::Digest;
use subtle::ConstantTimeEq;

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
    const ALL: [Self; 4] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Sha3];

    /// The first algorithm of a CHAP_A list that is known here.
    pub fn first_of(list: &str) -> Option<Self> {
        let known = |v| {
            let n = wire::iscsi::text::number(v)?;
            Self::ALL.into_iter().find(|a| *a as u64 == n)
        };
        list.split(',').find_map(known)
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

/// A shared secret. It shows in no log, and comparing takes the same time whatever differs.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Wraps the bytes of a secret.
    pub fn new(bytes: &[u8]) -> Self {
        Secret(bytes.into())
    }

    fn bytes(&self) -> &[u8] {
        &self.0
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
}

impl Authentication {
    /// Everybody gets in without CHAP.
    pub fn none() -> Self {
        Authentication { required: false, users: Arc::new([]), mutual: None }
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
                Authentication { required: true, users, mutual: self.mutual.or(other.mutual) }
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
    /// A challenge that nobody can foresee, or None if the system has no random bytes.
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
