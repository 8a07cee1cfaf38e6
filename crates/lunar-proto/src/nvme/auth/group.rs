//! Groups of Diffie-Hellman (RFC 7919).

use super::primes::{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192};
use super::{AuthFailure, random};
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

/// A group, by its identifier on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DhGroup {
    /// None: the responses depend on the secret alone.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

/// Bytes of a private key: twice the strength of the largest group, and more.
const PRIVATE: usize = 64;

impl DhGroup {
    /// All groups.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// The group with this identifier.
    pub fn decode(id: u8) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|group| *group as u8 == id)
    }

    fn prime(self) -> &'static str {
        match self {
            DhGroup::Null => "",
            DhGroup::Ffdhe2048 => FFDHE2048,
            DhGroup::Ffdhe3072 => FFDHE3072,
            DhGroup::Ffdhe4096 => FFDHE4096,
            DhGroup::Ffdhe6144 => FFDHE6144,
            DhGroup::Ffdhe8192 => FFDHE8192,
        }
    }

    /// Bytes of a public key; 0 without a group.
    pub fn public_len(self) -> usize {
        self.prime().len() / 2
    }

    fn bits(self) -> u32 {
        self.public_len() as u32 * 8
    }

    fn prime_bytes(self) -> Vec<u8> {
        let digit = |digit: u8| char::from(digit).to_digit(16).expect("a hexadecimal digit") as u8;
        self.prime().as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// Checks the public key of the other side.
    ///
    /// # Errors
    /// It has another length, or makes the secret known: 0, 1 or the prime less 1.
    pub(super) fn check_public(self, public: &[u8]) -> Result<(), AuthFailure> {
        if public.len() != self.public_len() {
            return Err(AuthFailure::INVALID_PAYLOAD);
        }
        if public.is_empty() {
            return Ok(());
        }
        let prime = BoxedUint::from_be_slice_vartime(&self.prime_bytes());
        let one = BoxedUint::from_be_slice(&[1], self.bits()).expect("it fits");
        let public = BoxedUint::from_be_slice_vartime(public);
        let is_valid = public > one && public < prime.wrapping_sub(&one);
        if is_valid { Ok(()) } else { Err(AuthFailure::INVALID_PAYLOAD) }
    }

    /// The power of a base that is less than the prime.
    fn power(self, base: BoxedUint, exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        let prime = BoxedUint::from_be_slice_vartime(&self.prime_bytes());
        let params = BoxedMontyParams::new(Odd::new(prime).expect("a prime is odd"));
        let exponent = Zeroizing::new(BoxedUint::from_be_slice_vartime(exponent));
        let power = BoxedMontyForm::new(base, &params).pow(&exponent);
        Zeroizing::new(power.retrieve().to_be_bytes().into_vec())
    }
}

/// A private key of a group, with its public key.
pub struct DhKey {
    group: DhGroup,
    private: Zeroizing<Vec<u8>>,
    /// Empty without a group.
    pub public: Vec<u8>,
}

impl DhKey {
    /// A random key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate(group: DhGroup) -> Result<DhKey, AuthFailure> {
        let private = Zeroizing::new(random(PRIVATE)?);
        Ok(DhKey { group, public: DhKey::public_of(group, &private), private })
    }

    fn public_of(group: DhGroup, private: &[u8]) -> Vec<u8> {
        if group == DhGroup::Null {
            return Vec::new();
        }
        let two = BoxedUint::from_be_slice(&[2], group.bits()).expect("it fits");
        group.power(two, private).to_vec()
    }

    /// The secret that both sides share. None without a group.
    ///
    /// # Errors
    /// The public key of the other side is invalid.
    pub fn shared(&self, other: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, AuthFailure> {
        self.group.check_public(other)?;
        let public = BoxedUint::from_be_slice_vartime(other);
        Ok((self.group != DhGroup::Null).then(|| self.group.power(public, &self.private)))
    }

    #[cfg(test)]
    pub fn group_prime(&self) -> Vec<u8> {
        self.group.prime_bytes()
    }

    #[cfg(test)]
    pub fn of(group: DhGroup, private: &[u8]) -> DhKey {
        let public = DhKey::public_of(group, private);
        DhKey { group, private: Zeroizing::new(private.to_vec()), public }
    }
}
