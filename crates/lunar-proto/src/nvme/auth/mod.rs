//! DH-HMAC-CHAP: host and controller prove that they know a secret (NVM Express Base, in-band authentication).
//!
//! Each queue runs the exchange: the host negotiates hash and group, the controller challenges it, the host replies, perhaps
//! with a challenge of its own, and both learn the result.

mod controller;
mod group;
mod hash;
mod host;
mod messages;
mod primes;
mod secret;
#[cfg(test)]
mod tests;

pub use super::key_text::InvalidSecret;
pub use controller::ControllerAuth;
pub use group::DhGroup;
pub use hash::DhChapHash;
pub use host::HostAuth;
pub use messages::{AuthFailure, AuthMessage};
pub use secret::DhChapSecret;

pub(super) use hash::hmac;
use lunar_wire::nvme::Nqn;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Host and subsystem of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthNames {
    /// The host.
    pub host: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
}

/// The secrets and the choices of one side.
#[derive(Clone, Debug)]
pub struct AuthSecrets {
    /// The secret of the host.
    pub host: DhChapSecret,
    /// The secret of the subsystem, with which the controller proves itself. A host that has it asks for the proof.
    pub subsystem: Option<DhChapSecret>,
    /// Allowed hashes, the preferred one first.
    pub hashes: Vec<DhChapHash>,
    /// Allowed groups, the preferred one first.
    pub groups: Vec<DhGroup>,
}

impl AuthSecrets {
    /// Secrets with all hashes and groups.
    pub fn new(host: DhChapSecret, subsystem: Option<DhChapSecret>) -> AuthSecrets {
        let (hashes, groups) = (DhChapHash::ALL.into(), DhGroup::ALL.into());
        AuthSecrets { host, subsystem, hashes, groups }
    }
}

/// The secret that host and controller do not share, as far as one of them knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchedSecret {
    /// The secret of the host.
    Host,
    /// The secret of the subsystem.
    Subsystem,
    /// The host asks for the proof of the subsystem, which has no secret.
    NoSubsystem,
    /// One of the two: the controller does not say whether the host has failed, or the subsystem has no secret.
    Either,
}

/// The place of a response in its exchange.
struct Response<'a> {
    hash: DhChapHash,
    /// The secret, transformed for its owner.
    key: &'a [u8],
    challenge: &'a [u8],
    /// The shared secret of a group; None without one.
    shared: Option<&'a [u8]>,
    sequence: u32,
    transaction: u16,
}

impl Response<'_> {
    /// Mixes the shared secret of the group into the challenge.
    fn challenge(&self) -> Zeroizing<Vec<u8>> {
        match self.shared {
            Some(shared) => hmac(self.hash, &self.hash.digest(shared), &[self.challenge]),
            None => Zeroizing::new(self.challenge.to_vec()),
        }
    }

    fn of(&self, owner: &str, first: &Nqn, second: &Nqn) -> Zeroizing<Vec<u8>> {
        // The byte behind the transaction is SC_C: no secure channel follows.
        let parts = [
            &self.challenge()[..],
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[0],
            owner.as_bytes(),
            first.as_str().as_bytes(),
            &[0],
            second.as_str().as_bytes(),
        ];
        hmac(self.hash, self.key, &parts)
    }

    /// The response of a host.
    fn of_host(&self, names: &AuthNames) -> Zeroizing<Vec<u8>> {
        self.of("HostHost", &names.host, &names.subsystem)
    }

    /// The response of a controller.
    fn of_controller(&self, names: &AuthNames) -> Zeroizing<Vec<u8>> {
        self.of("Controller", &names.subsystem, &names.host)
    }
}

/// Whether two responses are equal, in constant time.
pub(super) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// Random bytes.
fn random(len: usize) -> Result<Vec<u8>, AuthFailure> {
    let mut bytes = vec![0; len];
    getrandom::fill(&mut bytes).map_err(|_| AuthFailure::FAILED)?;
    Ok(bytes)
}

/// A sequence number, which is not 0.
fn sequence() -> Result<u32, AuthFailure> {
    Ok(getrandom::u32().map_err(|_| AuthFailure::FAILED)?.max(1))
}
