//! CHAP (RFC 1994, RFC 7143 section 12.1.3).

use crate::login::Login;
use crate::pdu::Pdu;
use crate::raw::Raw;
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use std::net::SocketAddr;

/// The CHAP challenge of a target.
#[derive(Debug, Clone)]
pub struct Chap {
    pub algorithm: u8,
    pub identifier: u8,
    pub challenge: Vec<u8>,
}

impl Chap {
    /// The response to this challenge.
    pub fn response(&self, secret: &[u8]) -> Vec<u8> {
        response(self.algorithm, self.identifier, secret, &self.challenge)
    }

    /// Logs in up to the challenge: AuthMethod=CHAP, then CHAP_A with this list of algorithms.
    pub fn begin(login: &Login, address: SocketAddr, algorithms: &str) -> Result<(Raw, Chap), Pdu> {
        let mut raw = login.connect(address);
        let answer = raw.login(&login.clone().key("AuthMethod", "CHAP").request(0, None));
        if answer.status() != 0 {
            return Err(answer);
        }
        assert_eq!(answer.value("AuthMethod").as_deref(), Some("CHAP"), "{answer:?}");
        let answer = raw.login(&login.empty(0, None).keys(&[("CHAP_A", algorithms)]));
        if answer.status() != 0 {
            return Err(answer);
        }
        let chap = Chap::read(&answer);
        Ok((raw, chap))
    }

    /// The challenge of a Login Response.
    pub fn read(answer: &Pdu) -> Chap {
        let value = |key| answer.value(key).unwrap_or_else(|| panic!("no {key} in {answer:?}"));
        let number = |key| value(key).parse().unwrap_or_else(|e| panic!("{key}: {e}"));
        let challenge = unbinary(&value("CHAP_C"));
        assert!((1..=1024).contains(&challenge.len()), "{answer:?}");
        Chap { algorithm: number("CHAP_A"), identifier: number("CHAP_I"), challenge }
    }

    /// A complete login with one-way CHAP. The error is the status of the rejected login.
    pub fn login(
        login: &Login,
        address: SocketAddr,
        algorithm: u8,
        name: &str,
        secret: &[u8],
    ) -> Result<Raw, u16> {
        let (mut raw, chap) =
            Chap::begin(login, address, &algorithm.to_string()).map_err(|answer| answer.status())?;
        let keys = [("CHAP_N", name), ("CHAP_R", &hex(&chap.response(secret)))];
        login.finish(&mut raw, login.empty(0, Some(1)).keys(&keys)).map(|_| raw)
    }
}

/// The response of `algorithm` (5 MD5, 6 SHA1, 7 SHA-256, 8 SHA3-256).
pub fn response(algorithm: u8, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
    let text = [&[identifier], secret, challenge].concat();
    match algorithm {
        5 => Md5::digest(&text).to_vec(),
        6 => Sha1::digest(&text).to_vec(),
        7 => Sha256::digest(&text).to_vec(),
        8 => Sha3_256::digest(&text).to_vec(),
        other => panic!("no algorithm {other}"),
    }
}

/// Bytes as `0x` and lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".into(), |text, b| format!("{text}{b:02x}"))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as `0b` and base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::from("0b");
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |w, b| w << 8 | *b as u32) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * i) & 63) as usize] as char;
            text.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

/// The bytes of a binary value in hex or base64 (RFC 7143 section 6.1).
pub fn unbinary(text: &str) -> Vec<u8> {
    match text.split_at(2) {
        ("0x" | "0X", digits) => {
            let digits = if digits.len() % 2 == 1 { format!("0{digits}") } else { digits.to_string() };
            (0..digits.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).expect("hex"))
                .collect()
        }
        ("0b" | "0B", digits) => unbase64(digits.trim_end_matches('=')),
        _ => panic!("not binary: {text}"),
    }
}

fn unbase64(digits: &str) -> Vec<u8> {
    let value = |d: u8| ALPHABET.iter().position(|a| *a == d).expect("base64") as u32;
    let (mut word, mut bits, mut bytes) = (0u32, 0, Vec::new());
    for digit in digits.bytes() {
        (word, bits) = (word << 6 | value(digit), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_values_round_trip() {
        for n in 0..40 {
            let bytes: Vec<u8> = (0..n).map(|i: u8| i.wrapping_mul(37) + 5).collect();
            assert_eq!(unbinary(&hex(&bytes)), bytes);
            assert_eq!(unbinary(&base64(&bytes)), bytes);
        }
        assert_eq!(base64(b"ab"), "0bYWI=");
        assert_eq!(hex(&response(5, 1, b"", b"")).len(), 34);
    }
}
